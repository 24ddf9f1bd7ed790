//! Everything that manifests, static pods and ignition files are written from, read once from the parents.

use crate::graph::{AssetError, Inputs};
use crate::identity::Identity;
use crate::install_config::InstallConfig;
use crate::nodes::Nodes;
use crate::release::Release;
use crate::tls;

/// The facts of one installation.
pub struct Scene<'a> {
    /// The config.
    pub config: &'a InstallConfig,
    /// The machines.
    pub nodes: Nodes,
    /// Who the cluster is.
    pub identity: Identity,
    /// The images.
    pub release: Release,
    inputs: &'a Inputs<'a>,
}

/// What a scene is read from.
pub const PARENTS: &[&str] = &["install-config", "nodes", "identity", "release"];

impl<'a> Scene<'a> {
    /// Reads the parents.
    pub fn read(inputs: &'a Inputs<'a>) -> Result<Self, AssetError> {
        let config = inputs.config()?;
        Ok(Self {
            config,
            nodes: Nodes::parse(&inputs.text("nodes", "nodes.yaml")?, config)?,
            identity: serde_json::from_slice(inputs.file("identity", "identity.json")?)?,
            release: Release::parse(&inputs.text("release", "release.json")?)?,
            inputs,
        })
    }

    /// `<name>.<baseDomain>`.
    pub fn domain(&self) -> String {
        self.config.cluster_domain()
    }

    /// A certificate or bundle as PEM; its asset must be a parent.
    pub fn certificate(&self, name: &str) -> Result<String, AssetError> {
        self.inputs.text(&tls::asset_name(name), &tls::certificate_path(name))
    }

    /// A key as PEM; its asset must be a parent.
    pub fn key(&self, name: &str) -> Result<String, AssetError> {
        self.inputs.text(&tls::asset_name(name), &tls::key_path(name))
    }

    /// A file of a parent.
    pub fn text(&self, asset: &str, path: &str) -> Result<String, AssetError> {
        self.inputs.text(asset, path)
    }
}
