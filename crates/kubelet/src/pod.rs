//! The kubelet's projection of a Pod: every field of the spec that the node acts on, and nothing else.
//!
//! The served object itself is kept beside it as text ([`Pod::raw`]) for `/pods` and for mirror pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

pub type StringMap = BTreeMap<String, String>;

/// Set by the API server's admission on the mirror of a static pod.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// A pod that this node was given.
#[derive(Debug, Clone, Deserialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default)]
    pub status: PodStatus,
    #[serde(skip)]
    pub raw: Option<Arc<RawValue>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub labels: StringMap,
    pub annotations: StringMap,
    pub deletion_timestamp: Option<Timestamp>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub creation_timestamp: Option<Timestamp>,
    pub owner_references: Vec<Value>,
    pub finalizers: Vec<String>,
}

/// What of the last written status has to be known when nothing else remembers it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: String,
    pub reason: String,
    pub message: String,
    pub start_time: Option<Timestamp>,
    pub conditions: Vec<Condition>,
    pub container_statuses: Vec<OldContainerStatus>,
    pub init_container_statuses: Vec<OldContainerStatus>,
    pub ephemeral_container_statuses: Vec<OldContainerStatus>,
}

/// A container's status as it was last written: restart counts outlive the containers they count.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OldContainerStatus {
    pub name: String,
    pub restart_count: u32,
    pub ready: bool,
    pub started: Option<bool>,
    pub state: Value,
    pub last_state: Value,
    #[serde(rename = "containerID")]
    pub container_id: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    pub r#type: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: String,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub ephemeral_containers: Vec<Container>,
    pub volumes: Vec<Volume>,
    pub restart_policy: RestartPolicy,
    pub termination_grace_period_seconds: Option<i64>,
    pub active_deadline_seconds: Option<i64>,
    pub dns_policy: String,
    pub dns_config: Option<PodDnsConfig>,
    pub node_selector: StringMap,
    pub affinity: Option<Affinity>,
    pub tolerations: Vec<Toleration>,
    pub service_account_name: String,
    pub host_network: bool,
    #[serde(rename = "hostPID")]
    pub host_pid: bool,
    #[serde(rename = "hostIPC")]
    pub host_ipc: bool,
    pub share_process_namespace: Option<bool>,
    pub security_context: PodSecurityContext,
    pub image_pull_secrets: Vec<LocalReference>,
    pub hostname: String,
    pub hostname_override: Option<String>,
    pub subdomain: String,
    #[serde(rename = "setHostnameAsFQDN")]
    pub set_hostname_as_fqdn: bool,
    pub host_aliases: Vec<HostAlias>,
    pub readiness_gates: Vec<ReadinessGate>,
    pub scheduling_gates: Vec<Value>,
    pub enable_service_links: Option<bool>,
    pub overhead: BTreeMap<String, Quantity>,
    /// `false` asks for a user namespace.
    pub host_users: Option<bool>,
    pub resource_claims: Vec<Value>,
    pub resources: Option<ResourceRequirements>,
    pub runtime_class_name: Option<String>,
    pub priority: Option<i32>,
    pub priority_class_name: String,
    pub os: Option<PodOs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub struct PodOs {
    pub name: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct LocalReference {
    pub name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HostAlias {
    pub ip: String,
    pub hostnames: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReadinessGate {
    pub condition_type: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct PodDnsConfig {
    pub nameservers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<DnsOption>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct DnsOption {
    pub name: String,
    pub value: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Toleration {
    pub key: String,
    pub operator: String,
    pub value: String,
    pub effect: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    pub node_affinity: Option<NodeAffinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeAffinity {
    pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<NodeRequirement>,
    pub match_fields: Vec<NodeRequirement>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct NodeRequirement {
    pub key: String,
    pub operator: String,
    pub values: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSecurityContext {
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: Option<bool>,
    pub fs_group: Option<i64>,
    pub fs_group_change_policy: Option<String>,
    pub supplemental_groups: Vec<i64>,
    pub supplemental_groups_policy: Option<String>,
    pub sysctls: Vec<Sysctl>,
    pub seccomp_profile: Option<Profile>,
    pub app_armor_profile: Option<Profile>,
    pub se_linux_options: Option<SeLinux>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Sysctl {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Profile {
    pub r#type: String,
    pub localhost_profile: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct SeLinux {
    pub user: String,
    pub role: String,
    pub r#type: String,
    pub level: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub working_dir: String,
    pub ports: Vec<ContainerPort>,
    pub env: Vec<EnvVar>,
    pub env_from: Vec<EnvFrom>,
    pub resources: ResourceRequirements,
    pub resize_policy: Vec<ResizePolicy>,
    pub volume_mounts: Vec<VolumeMount>,
    pub volume_devices: Vec<LocalReference>,
    pub liveness_probe: Option<Probe>,
    pub readiness_probe: Option<Probe>,
    pub startup_probe: Option<Probe>,
    pub lifecycle: Lifecycle,
    pub termination_message_path: String,
    pub termination_message_policy: String,
    pub image_pull_policy: String,
    pub security_context: SecurityContext,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    /// Of init containers: `Always` makes it a sidecar. Of app containers: overrides the pod's policy.
    pub restart_policy: Option<RestartPolicy>,
    /// Looked at before the policy, the first that matches counts.
    pub restart_policy_rules: Vec<RestartRule>,
    /// Of ephemeral containers: whose process namespace to join.
    pub target_container_name: String,
}

/// What to do after certain exits.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RestartRule {
    pub action: String,
    pub exit_codes: Option<ExitCodes>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ExitCodes {
    pub operator: String,
    pub values: Vec<i32>,
}

impl RestartRule {
    pub fn matches(&self, exit_code: i32) -> bool {
        self.exit_codes.as_ref().is_some_and(|codes| match codes.operator.as_str() {
            "In" => codes.values.contains(&exit_code),
            "NotIn" => !codes.values.contains(&exit_code),
            _ => false,
        })
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub host_port: u16,
    pub container_port: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    #[serde(rename = "hostIP", skip_serializing_if = "String::is_empty")]
    pub host_ip: String,
}

fn is_zero(port: &u16) -> bool {
    *port == 0
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvVar {
    pub name: String,
    pub value: String,
    pub value_from: Option<EnvSource>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvSource {
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceFieldRef>,
    pub config_map_key_ref: Option<KeyRef>,
    pub secret_key_ref: Option<KeyRef>,
    pub file_key_ref: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FieldRef {
    pub api_version: String,
    pub field_path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceFieldRef {
    pub container_name: String,
    pub resource: String,
    pub divisor: Option<Quantity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct KeyRef {
    pub name: String,
    pub key: String,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EnvFrom {
    pub prefix: String,
    pub config_map_ref: Option<ObjectRef>,
    pub secret_ref: Option<ObjectRef>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ObjectRef {
    pub name: String,
    pub optional: Option<bool>,
}

/// A quantity as written; numbers are taken too, as YAML manifests have them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Value")]
pub struct Quantity(pub String);

impl From<Value> for Quantity {
    fn from(value: Value) -> Self {
        Self(match value {
            Value::String(text) => text,
            other => other.to_string(),
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceRequirements {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Quantity>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Quantity>,
}

/// What a change of a resource does to a running container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResizePolicy {
    pub resource_name: String,
    pub restart_policy: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeMount {
    pub name: String,
    pub mount_path: String,
    pub read_only: bool,
    pub recursive_read_only: Option<String>,
    pub sub_path: String,
    pub sub_path_expr: String,
    pub mount_propagation: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Lifecycle {
    pub post_start: Option<Handler>,
    pub pre_stop: Option<Handler>,
    pub stop_signal: Option<String>,
}

/// What a probe or a hook does.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Handler {
    pub exec: Option<ExecAction>,
    pub http_get: Option<HttpGet>,
    pub tcp_socket: Option<TcpSocket>,
    pub grpc: Option<Grpc>,
    pub sleep: Option<Sleep>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ExecAction {
    pub command: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpGet {
    pub path: String,
    pub port: PortRef,
    pub host: String,
    pub scheme: String,
    pub http_headers: Vec<HttpHeader>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HttpHeader {
    pub name: String,
    pub value: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct TcpSocket {
    pub port: PortRef,
    pub host: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Grpc {
    pub port: u16,
    pub service: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Sleep {
    pub seconds: i64,
}

/// A port by number or by the name that the container gives it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PortRef {
    Number(u16),
    Name(String),
}

impl Default for PortRef {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl PortRef {
    /// The number, looked up among a container's ports if it is a name.
    pub fn resolve(&self, container: &Container) -> Option<u16> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Name(name) => container
                .ports
                .iter()
                .find(|port| port.name == *name)
                .map(|port| port.container_port)
                .or_else(|| name.parse().ok()),
        }
        .filter(|port| *port != 0)
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Probe {
    #[serde(flatten)]
    pub handler: Handler,
    pub initial_delay_seconds: Option<i64>,
    pub timeout_seconds: Option<i64>,
    pub period_seconds: Option<i64>,
    pub success_threshold: Option<u32>,
    pub failure_threshold: Option<u32>,
    pub termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    pub capabilities: Capabilities,
    pub privileged: Option<bool>,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub run_as_non_root: Option<bool>,
    pub read_only_root_filesystem: Option<bool>,
    pub allow_privilege_escalation: Option<bool>,
    pub proc_mount: Option<String>,
    pub seccomp_profile: Option<Profile>,
    pub app_armor_profile: Option<Profile>,
    pub se_linux_options: Option<SeLinux>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Capabilities {
    pub add: Vec<String>,
    pub drop: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Volume {
    pub name: String,
    pub empty_dir: Option<EmptyDir>,
    pub host_path: Option<HostPath>,
    pub config_map: Option<ConfigSource>,
    pub secret: Option<SecretSource>,
    pub projected: Option<Projected>,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardSource>,
    pub persistent_volume_claim: Option<ClaimSource>,
    pub image: Option<ImageSource>,
    /// Every other source, by its name, for the sentence that says it is not supported.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EmptyDir {
    pub medium: String,
    pub size_limit: Option<Quantity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct HostPath {
    pub path: String,
    pub r#type: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ConfigSource {
    pub name: String,
    pub items: Vec<Item>,
    pub default_mode: Option<u32>,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretSource {
    #[serde(alias = "name")]
    pub secret_name: String,
    pub items: Vec<Item>,
    pub default_mode: Option<u32>,
    pub optional: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Item {
    pub key: String,
    pub path: String,
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DownwardSource {
    pub items: Vec<DownwardItem>,
    pub default_mode: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DownwardItem {
    pub path: String,
    pub mode: Option<u32>,
    pub field_ref: Option<FieldRef>,
    pub resource_field_ref: Option<ResourceFieldRef>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Projected {
    pub sources: Vec<ProjectedSource>,
    pub default_mode: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ProjectedSource {
    pub config_map: Option<ConfigSource>,
    pub secret: Option<SecretSource>,
    #[serde(rename = "downwardAPI")]
    pub downward_api: Option<DownwardSource>,
    pub service_account_token: Option<TokenSource>,
    pub cluster_trust_bundle: Option<Value>,
    pub pod_certificate: Option<Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TokenSource {
    pub audience: String,
    pub expiration_seconds: Option<i64>,
    pub path: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    pub claim_name: String,
    pub read_only: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ImageSource {
    pub reference: String,
    pub pull_policy: String,
}

/// Which of a pod's three lists a container stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Init,
    /// An init container that keeps running beside the others.
    Sidecar,
    App,
    Ephemeral,
}

impl Pod {
    /// Reads a pod and keeps its text.
    pub fn from_raw(raw: Box<RawValue>) -> Result<Self, serde_json::Error> {
        let mut pod: Self = client::read(raw.get().as_bytes())?;
        pod.raw = Some(raw.into());
        Ok(pod)
    }

    pub fn is_mirror(&self) -> bool {
        self.metadata.annotations.contains_key(MIRROR_ANNOTATION)
    }

    pub fn is_static(&self) -> bool {
        self.metadata.annotations.get(SOURCE_ANNOTATION).is_some_and(|source| source != "api")
    }

    pub fn key(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    /// `name_namespace(uid)`, as in upstream's messages.
    pub fn full_name(&self) -> String {
        format!("{}_{}({})", self.metadata.name, self.metadata.namespace, self.metadata.uid)
    }

    pub fn grace_seconds(&self) -> i64 {
        self.metadata
            .deletion_grace_period_seconds
            .filter(|_| self.metadata.deletion_timestamp.is_some())
            .or(self.spec.termination_grace_period_seconds)
            .unwrap_or(30)
    }

    /// All containers with their roles: init, then app, then ephemeral, each in order.
    pub fn containers(&self) -> impl Iterator<Item = (Role, &Container)> {
        let init = self.spec.init_containers.iter().map(|container| (init_role(container), container));
        let app = self.spec.containers.iter().map(|container| (Role::App, container));
        let ephemeral = self.spec.ephemeral_containers.iter().map(|container| (Role::Ephemeral, container));
        init.chain(app).chain(ephemeral)
    }

    pub fn container(&self, name: &str) -> Option<(Role, &Container)> {
        self.containers().find(|(_, container)| container.name == name)
    }
}

fn init_role(container: &Container) -> Role {
    if container.restart_policy == Some(RestartPolicy::Always) { Role::Sidecar } else { Role::Init }
}

impl Container {
    /// The fingerprint kept on a running container: another one means that the container has to be replaced.
    /// As upstream, only name and image count; other fields of a running container cannot change.
    pub fn hash(&self) -> String {
        let text = format!("{{\"image\":{:?},\"name\":{:?}}}", self.image, self.name);
        let hash = text
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        format!("{hash:x}")
    }

    /// The field path of events about this container.
    pub fn field_path(&self, role: Role) -> String {
        let list = match role {
            Role::Init | Role::Sidecar => "initContainers",
            Role::App => "containers",
            Role::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.name)
    }

    /// The pull policy, by upstream's default where the object has none (static pods).
    pub fn pull_policy(&self) -> &str {
        pull_policy(&self.image_pull_policy, &self.image)
    }
}

/// The pull policy of an image: the one said, or upstream's default for its name.
pub fn pull_policy<'a>(said: &'a str, image: &str) -> &'a str {
    if !said.is_empty() {
        return said;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    let untagged = !name.contains(':') && !name.contains('@');
    if untagged || name.ends_with(":latest") { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_of_every_corner_is_read() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                         "deletionGracePeriodSeconds": 7},
            "spec": {
                "hostPID": true, "setHostnameAsFQDN": true, "restartPolicy": "OnFailure",
                "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}],
                "containers": [{"name": "c", "image": "x:1",
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 3},
                    "ports": [{"containerPort": 80, "name": "web"}]}],
                "volumes": [{"name": "v", "nfs": {"server": "s"}}, {"name": "d", "downwardAPI": {"items": []}}]
            }
        }))
        .unwrap();
        assert!(pod.spec.host_pid && pod.spec.set_hostname_as_fqdn);
        assert_eq!(pod.grace_seconds(), 7);
        let roles: Vec<_> =
            pod.containers().map(|(role, container)| (role, container.name.as_str())).collect();
        assert_eq!(roles, [(Role::Init, "i"), (Role::Sidecar, "s"), (Role::App, "c")]);
        let container = &pod.spec.containers[0];
        assert_eq!(container.resources.limits["cpu"], Quantity("1".into()));
        let probe = container.liveness_probe.as_ref().unwrap();
        assert_eq!(probe.handler.http_get.as_ref().unwrap().port.resolve(container), Some(80));
        assert!(pod.spec.volumes[0].other.contains_key("nfs"));
        assert!(pod.spec.volumes[1].downward_api.is_some());
    }

    #[test]
    fn pull_policy_follows_the_tag() {
        let policy =
            |image: &str| Container { image: image.into(), ..Container::default() }.pull_policy().to_owned();
        assert_eq!(policy("host:5000/a"), "Always");
        assert_eq!(policy("a:latest"), "Always");
        assert_eq!(policy("a:1"), "IfNotPresent");
        assert_eq!(policy("a@sha256:00"), "IfNotPresent");
    }
}
