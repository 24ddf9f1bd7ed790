//! What a kubelet needs to run, complete and typed; made by [`crate::args`] or by the program that embeds it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::{ImageService, RuntimeService};
use serde::Deserialize;

use crate::certificates::{Certificates, Serving};
use crate::eviction;
use crate::images::ImageSettings;

/// A taint that the node registers with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// Who decides what an identified client of the HTTPS server may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    /// Nobody: whoever is identified may do everything.
    AlwaysAllow,
    /// The API server, by SubjectAccessReviews.
    Webhook,
}

/// Certificate and key of the HTTPS server.
#[derive(Clone)]
pub struct ServingCertificate {
    pub chain_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
}

/// Everything fixed at the start.
#[derive(Clone)]
pub struct Config {
    pub node_name: String,
    /// Addresses of the node, the primary one first.
    pub node_ips: Vec<IpAddr>,
    pub client: client::Client,
    /// There is no API server: only static pods, no node, no mirrors. `client` answers nothing then.
    pub standalone: bool,
    pub runtime: Arc<dyn RuntimeService>,
    pub images: Arc<dyn ImageService>,
    /// Pods' volumes and small files.
    pub root_dir: PathBuf,
    /// Container logs: `<dir>/<namespace>_<name>_<uid>/<container>/<attempt>.log`.
    pub pod_logs_dir: PathBuf,
    /// Manifests of static pods.
    pub static_pod_path: Option<PathBuf>,
    pub resolv_conf: PathBuf,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// The pod address range, where it does not come from the Node object.
    pub pod_cidr: Option<String>,
    pub register_node: bool,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    /// A cloud controller manager completes the node; until then it takes no pods.
    pub cloud_provider_external: bool,
    pub max_pods: u32,
    /// When pods are ended for want of memory, disk or processes.
    pub eviction: eviction::Settings,
    /// The cgroup under which the kubelet makes the pods' own; none where the runtime makes them.
    pub pod_cgroups: Option<String>,
    /// Processes per pod; 0 for no limit.
    pub pod_pids_limit: i64,
    /// Taken from the machine before pods get the rest: milli-cores and bytes.
    pub reserved_cpu_millis: i64,
    pub reserved_memory: i64,
    /// Taken from the disk's allocatable share, in bytes.
    pub reserved_storage: i64,
    /// Health over HTTP, for the machine's supervisor; none without an address.
    pub healthz: Option<SocketAddr>,
    /// The HTTPS server; none without an address.
    pub listen: Option<SocketAddr>,
    pub serving: Option<ServingCertificate>,
    /// The serving certificate of the moment, where it is asked for; instead of `serving`.
    pub serving_resolver: Option<Arc<Serving>>,
    /// Certificates that are asked for and replaced.
    pub certificates: Option<Certificates>,
    /// Who may present client certificates.
    pub client_ca_pem: Option<Vec<u8>>,
    /// Identities that may do everything without being asked about: the API server's own.
    pub trusted_users: Vec<String>,
    pub anonymous_auth: bool,
    /// Whether the API server is asked about bearer tokens.
    pub token_reviews: bool,
    pub authorization: Authorization,
    /// How often the node's status is computed.
    pub node_status_update_frequency: Duration,
    pub node_status_report_frequency: Duration,
    pub node_lease_duration: Duration,
    pub provider_id: Option<String>,
    /// Sysctls beyond the safe ones that pods may set; `net.core.*` allows a family.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// A container's log is rotated at this size, and so many files are kept.
    pub log_max_bytes: u64,
    pub log_max_files: u32,
    pub cluster_version: String,
    /// How images are pulled and removed.
    pub image_settings: ImageSettings,
}

impl Config {
    /// A config with upstream's defaults for all but what has none.
    pub fn new(
        node_name: impl Into<String>,
        node_ip: IpAddr,
        client: client::Client,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
        root_dir: impl Into<PathBuf>,
    ) -> Self {
        let root_dir = root_dir.into();
        Self {
            node_name: node_name.into(),
            node_ips: vec![node_ip],
            client,
            standalone: false,
            runtime,
            images,
            pod_logs_dir: root_dir.join("logs"),
            root_dir,
            static_pod_path: None,
            resolv_conf: "/etc/resolv.conf".into(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            pod_cidr: None,
            register_node: true,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            unschedulable: false,
            cloud_provider_external: false,
            max_pods: 110,
            eviction: eviction::Settings::default(),
            pod_cgroups: None,
            pod_pids_limit: 0,
            reserved_cpu_millis: 0,
            reserved_memory: 0,
            reserved_storage: 0,
            healthz: None,
            listen: None,
            serving: None,
            serving_resolver: None,
            certificates: None,
            client_ca_pem: None,
            trusted_users: vec!["kube-apiserver-kubelet-client".into(), "system:kube-apiserver".into()],
            anonymous_auth: false,
            token_reviews: true,
            authorization: Authorization::Webhook,
            node_status_update_frequency: Duration::from_secs(10),
            node_status_report_frequency: Duration::from_secs(300),
            node_lease_duration: Duration::from_secs(40),
            provider_id: None,
            allowed_unsafe_sysctls: Vec::new(),
            log_max_bytes: 10 << 20,
            log_max_files: 5,
            cluster_version: "v1.36.0".into(),
            image_settings: ImageSettings::default(),
        }
    }
}
