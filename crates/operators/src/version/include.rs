//! Which objects of a release belong into this cluster: profile, feature set, feature gates, capabilities, overrides.

use std::collections::BTreeSet;

use thiserror::Error;

use super::manifest::{Manifest, ObjectId};

pub const DEFAULT_PROFILE: &str = "self-managed-high-availability";
const FEATURE_SET: &str = "release.openshift.io/feature-set";
const FEATURE_GATE: &str = "release.openshift.io/feature-gate";
const MAJOR_VERSION: &str = "release.openshift.io/major-version";
const CAPABILITY: &str = "capability.openshift.io/name";
/// Annotations say `Default` where the API says nothing.
const DEFAULT_FEATURE_SET: &str = "Default";
const FEATURE_SETS: &[&str] =
    &[DEFAULT_FEATURE_SET, "CustomNoUpgrade", "DevPreviewNoUpgrade", "OKD", "TechPreviewNoUpgrade"];

/// What decides about an object. `None` means that nobody is left out on that account.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    pub exclude_identifier: Option<String>,
    pub profile: Option<String>,
    pub feature_set: Option<String>,
    pub feature_gates: Option<BTreeSet<String>>,
    pub major_version: Option<u64>,
    pub capabilities: Option<Capabilities>,
    pub overrides: Vec<Override>,
}

/// The capabilities of a cluster, as in ClusterVersion's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub known: BTreeSet<String>,
    pub enabled: BTreeSet<String>,
}

/// An entry of ClusterVersion's `spec.overrides`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub id: ObjectId,
    pub unmanaged: bool,
}

/// Why an object does not belong here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Excluded {
    #[error("no annotations")]
    NoAnnotations,
    #[error("{0}=true")]
    ByIdentifier(String),
    #[error("both feature set and feature gate annotations are present: a manifest may specify one of them")]
    SetAndGate,
    #[error("unrecognized value {value:?} in {FEATURE_SET}={annotation}")]
    UnknownFeatureSet { value: String, annotation: String },
    #[error("{required:?} is required, and {FEATURE_SET}={annotation}")]
    OtherFeatureSet { required: String, annotation: String },
    #[error("feature gate {0} is required but not enabled")]
    GateClosed(String),
    #[error("feature gate {0} is enabled but manifest requires it to be disabled")]
    GateOpen(String),
    #[error("major version filtering is only supported for feature gates and custom resources")]
    MajorVersionOfKind,
    #[error("invalid major version {0:?} in annotation")]
    BadMajorVersion(String),
    #[error("major version {version} is not one of {annotation}")]
    OtherMajorVersion { version: u64, annotation: String },
    #[error("unrecognized value {annotation}={value}")]
    ProfileValue { annotation: String, value: String },
    #[error("{0} unset")]
    OtherProfile(String),
    #[error("unrecognized capability names: {}", .0.join(", "))]
    UnknownCapabilities(Vec<String>),
    #[error("disabled capabilities: {}", .0.join(", "))]
    DisabledCapabilities(Vec<String>),
    #[error("overridden")]
    Overridden,
}

/// The words of a comma-separated annotation.
fn words(annotation: &str) -> impl Iterator<Item = &str> {
    annotation.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// The capabilities that an object belongs to.
pub fn capabilities_of(manifest: &Manifest) -> Vec<&str> {
    manifest.annotation(CAPABILITY).map(|names| names.split('+').map(str::trim).collect()).unwrap_or_default()
}

impl Criteria {
    /// Whether the object belongs here, or why not. Rules apply in the order in which the first is told.
    pub fn include(&self, manifest: &Manifest) -> Result<(), Excluded> {
        if !manifest.object["metadata"]["annotations"].is_object() {
            return Err(Excluded::NoAnnotations);
        }
        if let Some(identifier) = &self.exclude_identifier {
            let annotation = format!("exclude.release.openshift.io/{identifier}");
            if manifest.annotation(&annotation) == Some("true") {
                return Err(Excluded::ByIdentifier(annotation));
            }
        }
        self.feature_set(manifest)?;
        self.feature_gates(manifest)?;
        self.major_version(manifest)?;
        if let Some(profile) = &self.profile {
            let annotation = format!("include.release.openshift.io/{profile}");
            match manifest.annotation(&annotation) {
                Some("true") => {}
                Some(value) => return Err(Excluded::ProfileValue { annotation, value: value.to_owned() }),
                None => return Err(Excluded::OtherProfile(annotation)),
            }
        }
        if let Some(capabilities) = &self.capabilities {
            capabilities.include(manifest)?;
        }
        match self.overrides.iter().any(|entry| entry.unmanaged && entry.matches(&manifest.id)) {
            true => Err(Excluded::Overridden),
            false => Ok(()),
        }
    }

    fn feature_set(&self, manifest: &Manifest) -> Result<(), Excluded> {
        let Some(required) = &self.feature_set else { return Ok(()) };
        let Some(annotation) = manifest.annotation(FEATURE_SET) else { return Ok(()) };
        if self.feature_gates.is_some() && manifest.annotation(FEATURE_GATE).is_some() {
            return Err(Excluded::SetAndGate);
        }
        let required = if required.is_empty() { DEFAULT_FEATURE_SET } else { required };
        let sets: Vec<&str> = annotation.split(',').collect();
        if let Some(value) = sets.iter().find(|set| !FEATURE_SETS.contains(set)) {
            let (value, annotation) = ((*value).to_owned(), annotation.to_owned());
            return Err(Excluded::UnknownFeatureSet { value, annotation });
        }
        match sets.contains(&required) {
            true => Ok(()),
            false => {
                let (required, annotation) = (required.to_owned(), annotation.to_owned());
                Err(Excluded::OtherFeatureSet { required, annotation })
            }
        }
    }

    fn feature_gates(&self, manifest: &Manifest) -> Result<(), Excluded> {
        let Some(enabled) = &self.feature_gates else { return Ok(()) };
        for word in manifest.annotation(FEATURE_GATE).into_iter().flat_map(words) {
            match word.strip_prefix('-') {
                Some(gate) if enabled.contains(gate) => return Err(Excluded::GateOpen(gate.to_owned())),
                None if !enabled.contains(word) => return Err(Excluded::GateClosed(word.to_owned())),
                _ => {}
            }
        }
        Ok(())
    }

    fn major_version(&self, manifest: &Manifest) -> Result<(), Excluded> {
        let Some(version) = self.major_version else { return Ok(()) };
        let Some(annotation) = manifest.annotation(MAJOR_VERSION) else { return Ok(()) };
        if !manifest.is("config.openshift.io", "FeatureGate")
            && !manifest.is("apiextensions.k8s.io", "CustomResourceDefinition")
        {
            return Err(Excluded::MajorVersionOfKind);
        }
        let (mut wanted, mut unwanted) = (BTreeSet::new(), BTreeSet::new());
        for word in words(annotation) {
            let (into, number) = match word.strip_prefix('-') {
                Some(number) => (&mut unwanted, number),
                None => (&mut wanted, word),
            };
            let number: u64 = number.parse().map_err(|_| Excluded::BadMajorVersion(number.to_owned()))?;
            into.insert(number);
        }
        if !wanted.is_disjoint(&unwanted) {
            return Err(Excluded::BadMajorVersion(annotation.to_owned()));
        }
        match wanted.contains(&version) || wanted.is_empty() && !unwanted.contains(&version) {
            true => Ok(()),
            false => Err(Excluded::OtherMajorVersion { version, annotation: annotation.to_owned() }),
        }
    }
}

impl Capabilities {
    fn include(&self, manifest: &Manifest) -> Result<(), Excluded> {
        let of = capabilities_of(manifest);
        let outside = |set: &BTreeSet<String>| -> Vec<String> {
            of.iter().filter(|name| !set.contains(**name)).map(|name| (*name).to_owned()).collect()
        };
        let unknown = outside(&self.known);
        if !unknown.is_empty() {
            return Err(Excluded::UnknownCapabilities(unknown));
        }
        match outside(&self.enabled) {
            disabled if disabled.is_empty() => Ok(()),
            disabled => Err(Excluded::DisabledCapabilities(disabled)),
        }
    }
}

impl Override {
    /// Objects outside of namespaces match whatever namespace is given.
    fn matches(&self, id: &ObjectId) -> bool {
        let namespace = if id.namespace.is_empty() { "" } else { &self.id.namespace };
        self.id.group == id.group
            && self.id.kind == id.kind
            && self.id.name == id.name
            && namespace == id.namespace
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::version::manifest::parse;

    fn annotated(kind: &str, annotations: &[(&str, &str)]) -> Manifest {
        let annotations: serde_json::Map<_, _> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let api_version = match kind {
            "FeatureGate" => "config.openshift.io/v1",
            _ => "v1",
        };
        let object = json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {"name": "a", "namespace": "n", "annotations": annotations},
        });
        parse("f", object.to_string().as_bytes()).unwrap().remove(0)
    }

    const PROFILE: (&str, &str) = ("include.release.openshift.io/self-managed-high-availability", "true");

    fn criteria() -> Criteria {
        Criteria {
            profile: Some(DEFAULT_PROFILE.to_owned()),
            feature_set: Some(String::new()),
            feature_gates: Some(BTreeSet::from(["Open".to_owned()])),
            major_version: Some(4),
            ..Criteria::default()
        }
    }

    #[test]
    fn an_object_must_opt_in_to_the_profile() {
        let bare = parse("f", b"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}").unwrap().remove(0);
        assert_eq!(criteria().include(&bare), Err(Excluded::NoAnnotations));
        assert_eq!(criteria().include(&annotated("ConfigMap", &[PROFILE])), Ok(()));
        let (name, _) = PROFILE;
        assert!(matches!(
            criteria().include(&annotated("ConfigMap", &[(name, "yes")])),
            Err(Excluded::ProfileValue { .. })
        ));
        assert_eq!(
            criteria().include(&annotated("ConfigMap", &[("a", "b")])),
            Err(Excluded::OtherProfile(name.to_owned()))
        );
    }

    #[test]
    fn feature_sets_and_gates_decide() {
        let table: &[(&str, &str, bool)] = &[
            (FEATURE_SET, "Default", true),
            (FEATURE_SET, "Default,TechPreviewNoUpgrade", true),
            (FEATURE_SET, "TechPreviewNoUpgrade", false),
            (FEATURE_SET, "Default,Other", false),
            (FEATURE_GATE, "Open", true),
            (FEATURE_GATE, "Open,-Closed", true),
            (FEATURE_GATE, "Closed", false),
            (FEATURE_GATE, "-Open", false),
        ];
        for (annotation, value, included) in table {
            let manifest = annotated("ConfigMap", &[PROFILE, (annotation, value)]);
            assert_eq!(criteria().include(&manifest).is_ok(), *included, "{annotation}={value}");
        }
        let both = annotated("ConfigMap", &[PROFILE, (FEATURE_SET, "Default"), (FEATURE_GATE, "Open")]);
        assert_eq!(criteria().include(&both), Err(Excluded::SetAndGate));
    }

    #[test]
    fn major_versions_select_feature_gates_and_definitions_only() {
        for (value, included) in
            [("4", true), ("5", false), ("4,5", true), ("-3", true), ("-4", false), ("4,-4", false)]
        {
            let manifest = annotated("FeatureGate", &[PROFILE, (MAJOR_VERSION, value)]);
            assert_eq!(criteria().include(&manifest).is_ok(), included, "{value}");
        }
        let other = annotated("ConfigMap", &[PROFILE, (MAJOR_VERSION, "4")]);
        assert_eq!(criteria().include(&other), Err(Excluded::MajorVersionOfKind));
    }

    #[test]
    fn every_capability_must_be_known_and_enabled() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let criteria = Criteria {
            capabilities: Some(Capabilities { known: set(&["A", "B"]), enabled: set(&["A"]) }),
            ..criteria()
        };
        let of = |value| annotated("ConfigMap", &[PROFILE, (CAPABILITY, value)]);
        assert_eq!(criteria.include(&of("A")), Ok(()));
        assert_eq!(criteria.include(&of("A+B")), Err(Excluded::DisabledCapabilities(vec!["B".to_owned()])));
        assert_eq!(criteria.include(&of("A+C")), Err(Excluded::UnknownCapabilities(vec!["C".to_owned()])));
    }

    #[test]
    fn an_override_takes_one_object_out() {
        let manifest = annotated("ConfigMap", &[PROFILE]);
        let entry = |name: &str, unmanaged| Override {
            id: ObjectId { name: name.to_owned(), ..manifest.id.clone() },
            unmanaged,
        };
        let with = |overrides| Criteria { overrides, ..criteria() }.include(&manifest);
        assert_eq!(with(vec![entry("a", true)]), Err(Excluded::Overridden));
        assert_eq!(with(vec![entry("a", false), entry("b", true)]), Ok(()));
    }
}
