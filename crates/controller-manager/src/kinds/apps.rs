//! Deployments, ReplicaSets and the other kinds that keep pods running.

use controller_runtime::{Meta, Raw, Selector};
use serde::Deserialize;

use super::{Condition, IntOrString, kind};
use client::Labels;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A ReplicaSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ReplicaSetSpec,
    /// What is.
    pub status: ReplicaSetStatus,
}
kind!(ReplicaSet, REPLICA_SETS, owned true, keep |name| name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetSpec {
    /// Wanted pods.
    pub replicas: Option<i64>,
    /// How long a pod must be ready.
    pub min_ready_seconds: i64,
    /// Which pods belong to it.
    pub selector: Selector,
    /// What its pods are made from.
    pub template: Raw,
}

/// Of `status`, common to ReplicaSet and ReplicationController.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaSetStatus {
    /// Pods.
    pub replicas: i64,
    /// Pods with all of the template's labels.
    pub fully_labeled_replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// Pods that are being deleted.
    pub terminating_replicas: Option<i64>,
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

impl ReplicaSet {
    /// Wanted pods.
    pub fn replicas(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
}

/// A ReplicationController.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicationController {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ReplicationControllerSpec,
    /// What is.
    pub status: ReplicaSetStatus,
}
kind!(ReplicationController, REPLICATION_CONTROLLERS, owned true, keep |name| name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicationControllerSpec {
    /// Wanted pods.
    pub replicas: Option<i64>,
    /// How long a pod must be ready.
    pub min_ready_seconds: i64,
    /// Labels of the pods that belong to it.
    pub selector: Labels,
    /// What its pods are made from.
    pub template: Raw,
}

/// A Deployment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Deployment {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: DeploymentSpec,
    /// What is.
    pub status: DeploymentStatus,
}
kind!(Deployment, DEPLOYMENTS, keep | name | name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentSpec {
    /// Wanted pods.
    pub replicas: Option<i64>,
    /// Which pods belong to it.
    pub selector: Selector,
    /// What its pods are made from.
    pub template: Raw,
    /// How pods are replaced.
    pub strategy: Strategy,
    /// How long a pod must be ready.
    pub min_ready_seconds: i64,
    /// How many old ReplicaSets are kept.
    pub revision_history_limit: Option<i64>,
    /// Whether nothing is rolled out.
    pub paused: bool,
    /// How long a rollout may make no progress.
    pub progress_deadline_seconds: Option<i64>,
}

/// How pods are replaced.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// `Recreate` or `RollingUpdate` (`OnDelete` for sets).
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// Bounds of a rolling update.
    pub rolling_update: Option<RollingUpdate>,
}

/// Bounds of a rolling update.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// How many pods may be missing.
    pub max_unavailable: Option<IntOrString>,
    /// How many pods there may be too many.
    pub max_surge: Option<IntOrString>,
    /// The first ordinal to update (stateful sets).
    pub partition: Option<i64>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeploymentStatus {
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// Pods.
    pub replicas: i64,
    /// Pods of the present template.
    pub updated_replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// Pods that are missing.
    pub unavailable_replicas: i64,
    /// Pods that are being deleted.
    pub terminating_replicas: Option<i64>,
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// How often a generated name was taken.
    pub collision_count: Option<i64>,
}

/// A ControllerRevision.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    /// Metadata.
    pub metadata: Meta,
    /// The state that it keeps.
    pub data: Raw,
    /// Its number.
    pub revision: i64,
}
kind!(ControllerRevision, CONTROLLER_REVISIONS, owned true, keep |name| name != LAST_APPLIED);

/// A StatefulSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: StatefulSetSpec,
    /// What is.
    pub status: StatefulSetStatus,
}
kind!(StatefulSet, STATEFUL_SETS, keep | name | name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetSpec {
    /// Wanted pods.
    pub replicas: Option<i64>,
    /// Which pods belong to it.
    pub selector: Selector,
    /// What its pods are made from.
    pub template: Raw,
    /// What its claims are made from.
    pub volume_claim_templates: Vec<Raw>,
    /// The Service that names its pods.
    pub service_name: Box<str>,
    /// `OrderedReady` or `Parallel`.
    pub pod_management_policy: Box<str>,
    /// How pods are replaced.
    pub update_strategy: Strategy,
    /// How many revisions are kept.
    pub revision_history_limit: Option<i64>,
    /// How long a pod must be ready.
    pub min_ready_seconds: i64,
    /// What becomes of claims.
    pub persistent_volume_claim_retention_policy: Option<Retention>,
    /// Where ordinals start.
    pub ordinals: Option<Ordinals>,
}

/// What becomes of claims.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Retention {
    /// When the set is deleted.
    pub when_deleted: Box<str>,
    /// When it shrinks.
    pub when_scaled: Box<str>,
}

/// Where ordinals start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    /// The first one.
    pub start: i64,
}

/// Of `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StatefulSetStatus {
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// Pods.
    pub replicas: i64,
    /// Ready pods.
    pub ready_replicas: i64,
    /// Pods of the current revision.
    pub current_replicas: i64,
    /// Pods of the update revision.
    pub updated_replicas: i64,
    /// Available pods.
    pub available_replicas: i64,
    /// The revision that is complete.
    pub current_revision: Box<str>,
    /// The revision that is rolled out.
    pub update_revision: Box<str>,
    /// How often a generated name was taken.
    pub collision_count: Option<i64>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A DaemonSet.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonSet {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: DaemonSetSpec,
    /// What is.
    pub status: DaemonSetStatus,
}
kind!(DaemonSet, DAEMON_SETS, keep | name | name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetSpec {
    /// Which pods belong to it.
    pub selector: Selector,
    /// What its pods are made from.
    pub template: Raw,
    /// How pods are replaced.
    pub update_strategy: Strategy,
    /// How long a pod must be ready.
    pub min_ready_seconds: i64,
    /// How many revisions are kept.
    pub revision_history_limit: Option<i64>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DaemonSetStatus {
    /// Nodes that run a pod and should.
    pub current_number_scheduled: i64,
    /// Nodes that run a pod and should not.
    pub number_misscheduled: i64,
    /// Nodes that should run a pod.
    pub desired_number_scheduled: i64,
    /// Nodes with a ready pod.
    pub number_ready: i64,
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// Nodes with a pod of the present template.
    pub updated_number_scheduled: i64,
    /// Nodes with an available pod.
    pub number_available: i64,
    /// Nodes without one.
    pub number_unavailable: i64,
    /// How often a generated name was taken.
    pub collision_count: Option<i64>,
}
