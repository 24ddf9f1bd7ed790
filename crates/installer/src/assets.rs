//! The table of assets and targets: what `kelson graph` draws and `kelson create` makes.

use std::sync::Arc;

use crate::graph::{Asset, AssetError, AssetFile, Files, Generate, Graph, Inputs, Place};
use crate::identity::{self, Identity};
use crate::nodes::Nodes;
use crate::release::Release;
use crate::tls::KeyPool;
use crate::{ignition_configs, kubeconfigs, manifests, scene, static_pods, surroundings, tls};

/// What one `create` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// install-config.yaml.
    InstallConfig,
    /// Manifests, static pods, nodes.yaml.
    Manifests,
    /// Ignition files and everything around them.
    IgnitionConfigs {
        /// Whether each node gets a whole file of its own.
        per_node: bool,
    },
}

impl Target {
    /// Names of its assets.
    pub fn assets(self) -> Vec<&'static str> {
        match self {
            Self::InstallConfig => vec!["install-config"],
            Self::Manifests => {
                vec!["manifests", "openshift", "bootstrap-manifests", "master-manifests", "nodes"]
            }
            Self::IgnitionConfigs { per_node } => {
                let mut out = vec![
                    "bootstrap-ignition",
                    "pointer-ignition",
                    "auth-kubeconfig",
                    "auth-password",
                    "metadata",
                    "haproxy",
                    "dns",
                    "readme",
                ];
                if per_node {
                    out.push("node-ignition");
                }
                out
            }
        }
    }
}

fn asset(
    name: &str,
    parents: Vec<String>,
    about: &'static str,
    place: Place,
    generate: impl Fn(&Inputs<'_>) -> Result<Files, AssetError> + Send + Sync + 'static,
) -> Asset {
    let generate: Generate = Box::new(generate);
    Asset { name: name.to_owned(), parents, about, place, generate }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn on_disk(list: &[&str]) -> Place {
    Place::Disk(names(list))
}

fn with_scene(more: Vec<String>) -> Vec<String> {
    let mut out = names(scene::PARENTS);
    out.extend(more);
    out
}

/// The whole graph, parents first.
pub fn graph(keys: Arc<KeyPool>) -> Graph {
    let mut out = vec![
        asset(
            "install-config",
            Vec::new(),
            "what you ask for; everything else follows from it",
            on_disk(&["install-config.yaml"]),
            |_| Err(AssetError::NoConfig),
        ),
        asset("key-algorithm", Vec::new(), "the kind of keys", Place::Internal, |_| {
            Ok(vec![AssetFile::public("key-algorithm.json", serde_json::to_vec(&pki::Algorithm::default())?)])
        }),
        asset("release", Vec::new(), "which image each component runs from", Place::Internal, |_| {
            Ok(vec![AssetFile::public("release.json", serde_json::to_vec_pretty(&Release::built_in())?)])
        }),
        asset(
            "nodes",
            names(&["install-config"]),
            "the machines, their names and addresses",
            on_disk(&["nodes.yaml"]),
            |inputs| Ok(vec![AssetFile::public("nodes.yaml", Nodes::plan(inputs.config()?).to_yaml()?)]),
        ),
        asset(
            "identity",
            names(&["install-config"]),
            "infra ID and cluster ID",
            Place::Internal,
            generate_identity,
        ),
        asset("kubeadmin", Vec::new(), "the first user's password and its hash", Place::Internal, |_| {
            let password = identity::password()?;
            let hash = bcrypt::hash(&password, 10)?;
            Ok(vec![
                AssetFile::secret("kubeadmin-hash", hash),
                AssetFile::secret("kubeadmin-password", password),
            ])
        }),
    ];
    out.extend(tls::assets(keys));
    out.extend(derived());
    Graph::new(out)
}

/// Assets that are written from a scene.
fn derived() -> Vec<Asset> {
    vec![
        asset(
            "kubeconfigs",
            kubeconfigs::parents(),
            "who speaks to the API server as whom",
            Place::Internal,
            kubeconfigs::generate,
        ),
        asset(
            "manifests",
            with_scene(manifests::cluster_parents()),
            "definitions and objects that the cluster is born with",
            on_disk(&["manifests/"]),
            manifests::generate_cluster,
        ),
        asset(
            "openshift",
            with_scene(manifests::openshift_parents()),
            "objects that users often add to",
            on_disk(&["openshift/"]),
            manifests::generate_openshift,
        ),
        asset(
            "bootstrap-manifests",
            with_scene(Vec::new()),
            "static pods of the bootstrap machine",
            on_disk(&["bootstrap-manifests/"]),
            static_pods::generate_bootstrap,
        ),
        asset(
            "master-manifests",
            with_scene(Vec::new()),
            "static pods of masters",
            on_disk(&["master-manifests/"]),
            static_pods::generate_master,
        ),
        asset(
            "bootstrap-ignition",
            ignition_configs::bootstrap_parents(),
            "everything the first machine boots from",
            on_disk(&["bootstrap.ign"]),
            ignition_configs::generate_bootstrap,
        ),
        asset(
            "pointer-ignition",
            ignition_configs::pointer_parents(),
            "how other machines find their config",
            on_disk(&["master.ign", "worker.ign", "arbiter.ign"]),
            ignition_configs::generate_pointers,
        ),
        asset(
            "node-ignition",
            ignition_configs::node_parents(),
            "whole configs, one per machine",
            on_disk(&["nodes/"]),
            ignition_configs::generate_nodes,
        ),
        asset(
            "auth-kubeconfig",
            names(&["kubeconfigs"]),
            "the administrator's way in",
            on_disk(&["auth/kubeconfig"]),
            |inputs| {
                let text = inputs.text("kubeconfigs", "auth/admin.kubeconfig")?;
                Ok(vec![AssetFile::secret("auth/kubeconfig", text)])
            },
        ),
        asset(
            "auth-password",
            names(&["kubeadmin"]),
            "password of kubeadmin",
            on_disk(&["auth/kubeadmin-password"]),
            |inputs| {
                let text = inputs.text("kubeadmin", "kubeadmin-password")?;
                Ok(vec![AssetFile::secret("auth/kubeadmin-password", text)])
            },
        ),
        asset(
            "metadata",
            with_scene(Vec::new()),
            "names of the cluster, for other commands",
            on_disk(&["metadata.json"]),
            surroundings::generate_metadata,
        ),
        asset(
            "haproxy",
            with_scene(Vec::new()),
            "the load balancer's configuration",
            on_disk(&["haproxy.cfg"]),
            surroundings::generate_haproxy,
        ),
        asset(
            "dns",
            with_scene(Vec::new()),
            "records that the cluster needs",
            on_disk(&["dns/"]),
            surroundings::generate_dns,
        ),
        asset(
            "readme",
            with_scene(Vec::new()),
            "what all the files are, and what to do next",
            on_disk(&["README.md"]),
            surroundings::generate_readme,
        ),
    ]
}

/// Drawn once per cluster name: other edits to the config do not make it another cluster.
fn generate_identity(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let name = &inputs.config()?.metadata.name;
    let previous = inputs.previous.and_then(|files| files.first());
    let previous = previous.and_then(|file| serde_json::from_slice::<Identity>(&file.content).ok());
    let identity = match previous.filter(|previous| previous.cluster_name == *name) {
        Some(identity) => identity,
        None => Identity::draw(name)?,
    };
    Ok(vec![AssetFile::public("identity.json", serde_json::to_vec_pretty(&identity)?)])
}
