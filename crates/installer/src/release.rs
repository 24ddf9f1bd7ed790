//! The release description: which image each component runs from.

use std::collections::BTreeMap;

use ::release::components;
use serde::{Deserialize, Serialize};

use crate::graph::AssetError;

/// A release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Its version, such as 4.18.0.
    pub version: String,
    /// The release image itself, the only one that holds the release's manifests.
    pub image: String,
    /// Images by component name.
    pub images: BTreeMap<String, String>,
}

/// Components that static pods and units are made for: a release without one of them cannot be installed.
const NEEDED: &[&str] = &[
    "cluster-version-operator",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "pod",
];

impl Release {
    /// Images made from the binary itself, so that no registry is needed.
    pub fn built_in() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let image = |name: &str| format!("{}/{name}:{version}", components::REGISTRY);
        Self {
            image: image("release"),
            images: components::present().map(|one| (one.name.to_owned(), image(one.name))).collect(),
            version: version.clone(),
        }
    }

    /// Reads a description in YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, AssetError> {
        let fail =
            |reason: String| AssetError::Unusable { path: "the release description".to_owned(), reason };
        let release: Self = serde_yaml_ng::from_str(text).map_err(|error| fail(error.to_string()))?;
        match NEEDED.iter().find(|name| !release.images.contains_key(**name)) {
            Some(missing) => Err(fail(format!("it has no image for {missing}"))),
            None => Ok(release),
        }
    }

    /// The image of a component of the release, else the release image.
    pub fn image_of(&self, component: &str) -> &str {
        self.images.get(component).map_or(self.image.as_str(), String::as_str)
    }

    /// The update channel of this version.
    pub fn channel(&self) -> String {
        let mut parts = self.version.split('.');
        format!("stable-{}.{}", parts.next().unwrap_or("0"), parts.next().unwrap_or("0"))
    }
}
