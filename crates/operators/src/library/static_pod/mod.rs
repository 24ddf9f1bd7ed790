//! Static pods by revisions: what etcd, the API server, the controller manager and the scheduler have in common.
//!
//! ```text
//! ConfigMaps, Secrets ─► revisions (copies `-N`) ─► rollout (one node at a time) ─► installer-N-node pods ─► kubelet
//!                                                       ▲                                                     │
//!                                     nodeStatuses of the operator's object ◄──── mirror pods, label `revision` ◄┘
//! ```
//!
//! All of it is a pure function of a [`View`]; `install` and `prune` are the programs that run on the machines.

pub mod install;
pub mod prune;
mod revisions;
mod rollout;
mod state;

use client::{Error, Resource, resources};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::conditions::Condition;
use super::driver::{Round, World};

/// Where on a machine what static pods need is laid down.
pub const RESOURCE_DIR: &str = "/etc/kubernetes/static-pod-resources";
/// Where the kubelet looks for static pods.
pub const MANIFEST_DIR: &str = "/etc/kubernetes/manifests";

/// A ConfigMap or Secret that a static pod is made from.
#[derive(Clone, Copy, Debug)]
pub struct Input {
    pub name: &'static str,
    pub optional: bool,
}

/// One that must be there.
pub const fn needs(name: &'static str) -> Input {
    Input { name, optional: false }
}

/// One that may be.
pub const fn takes(name: &'static str) -> Input {
    Input { name, optional: true }
}

/// What one operator's static pod is made from. The first ConfigMap holds the pod.
pub struct StaticPod {
    /// The operand's namespace.
    pub namespace: &'static str,
    /// The pod's name, to which the kubelet adds the node's.
    pub name: &'static str,
    /// The program that has `installer` and `prune`.
    pub program: &'static str,
    pub config_maps: &'static [Input],
    pub secrets: &'static [Input],
    /// Laid down beside the revisions and changed without one.
    pub cert_config_maps: &'static [Input],
    pub cert_secrets: &'static [Input],
}

impl StaticPod {
    /// The ConfigMap that holds the pod, which also names the directories of revisions.
    pub fn pod_config_map(&self) -> &'static str {
        self.config_maps.first().map(|input| input.name).unwrap_or_default()
    }

    /// The directory of the certificates that change without a revision.
    pub fn cert_dir(&self) -> String {
        format!("{RESOURCE_DIR}/{}-certs", self.name)
    }
}

/// What a decision about a static pod depends on.
pub struct View<'a> {
    pub resource: &'a Value,
    pub config_maps: &'a [Value],
    pub secrets: &'a [Value],
    pub pods: &'a [Value],
    pub nodes: &'a [Value],
    /// The image of the operator, which its installers run.
    pub operator_image: &'a str,
    /// Why no node may be changed now, if so.
    pub hold: Option<String>,
    pub now: Timestamp,
}

/// What is read for a [`View`].
pub struct Read {
    pub config_maps: Vec<Value>,
    pub secrets: Vec<Value>,
    pub pods: Vec<Value>,
    /// Those of the control plane.
    pub nodes: Vec<Value>,
}

impl Read {
    pub async fn of(world: &World, table: &StaticPod) -> Result<Self, Error> {
        let list = async |resource: Resource, namespace: &str| world.list(&resource, namespace).await;
        let (config_maps, secrets, pods, nodes) = tokio::try_join!(
            list(resources::CONFIG_MAPS, table.namespace),
            list(resources::SECRETS, table.namespace),
            list(resources::PODS, table.namespace),
            list(resources::NODES, ""),
        )?;
        Ok(Self { config_maps, secrets, pods, nodes: control_plane(nodes) })
    }

    /// The value of a ConfigMap's key.
    pub fn config_map(&self, name: &str) -> Option<&Value> {
        by_name(&self.config_maps, name)
    }

    pub fn secret(&self, name: &str) -> Option<&Value> {
        by_name(&self.secrets, name)
    }

    pub fn view<'a>(&'a self, world: &'a World, operator_image: &'a str, hold: Option<String>) -> View<'a> {
        View {
            resource: &world.resource,
            config_maps: &self.config_maps,
            secrets: &self.secrets,
            pods: &self.pods,
            nodes: &self.nodes,
            operator_image,
            hold,
            now: world.now,
        }
    }
}

/// The nodes that carry the control plane, by name.
pub fn control_plane(nodes: Vec<Value>) -> Vec<Value> {
    const ROLES: [&str; 2] = ["node-role.kubernetes.io/master", "node-role.kubernetes.io/control-plane"];
    let is_one = |node: &Value| {
        let labels = &node["metadata"]["labels"];
        ROLES.iter().any(|role| !labels[*role].is_null())
    };
    let mut nodes: Vec<Value> = nodes.into_iter().filter(is_one).collect();
    nodes.sort_by(|one, other| name_of(one).cmp(name_of(other)));
    nodes
}

pub fn by_name<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|object| name_of(object) == name)
}

pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The address of a node that others reach it by.
pub fn internal_ip(node: &Value) -> Option<&str> {
    let addresses = node["status"]["addresses"].as_array()?;
    addresses.iter().find(|address| address["type"] == "InternalIP")?["address"].as_str()
}

/// Whether a condition of an object's status is true.
pub fn is_true(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == kind && one["status"] == "True")
}

/// Decides about revisions, nodes, installers and what is no longer needed. Whether the newest revision is everywhere.
pub fn plan(table: &StaticPod, view: &View<'_>, round: &mut Round) -> bool {
    let revision = revisions::plan(table, view, round);
    let nodes = rollout::plan(table, view, revision.latest, round);
    state::conditions(table, view, &nodes, revision.latest, round);
    prune::plan(table, view, &nodes, revision.latest, round);
    round.status.insert("latestAvailableRevision".into(), json!(revision.latest));
    if let Some(reason) = revision.reason {
        round.status.insert("latestAvailableRevisionReason".into(), json!(reason));
    }
    let ready = nodes.iter().filter(|node| node.current_revision > 0).count();
    round.status.insert("readyReplicas".into(), json!(ready));
    let done = revision.latest > 0
        && !nodes.is_empty()
        && nodes.iter().all(|node| node.current_revision == revision.latest && node.target_revision == 0);
    round.status.insert(
        "nodeStatuses".into(),
        nodes.iter().map(|node| serde_json::to_value(node).unwrap_or_default()).collect(),
    );
    done && !revision.pending
}

/// Says that nodes of the control plane are not ready.
fn node_condition(nodes: &[Value]) -> Condition {
    const KIND: &str = "NodeControllerDegraded";
    let broken: Vec<String> = nodes
        .iter()
        .filter(|node| !is_true(node, "Ready"))
        .map(|node| {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            let ready = conditions.into_iter().find(|one| one["type"] == "Ready");
            let text =
                |field: &str| ready.and_then(|one| one[field].as_str()).unwrap_or("unknown").to_owned();
            format!(
                "node {:?} not ready since {} because {} ({})",
                name_of(node),
                text("lastTransitionTime"),
                text("reason"),
                text("message")
            )
        })
        .collect();
    match broken.is_empty() {
        true => Condition::new(KIND, "False", "MasterNodesReady", "All master nodes are ready"),
        false => Condition::not_fine(
            KIND,
            "MasterNodesReady",
            format!("The master nodes not ready: {}", broken.join(", ")),
        ),
    }
}

#[cfg(test)]
mod tests;
