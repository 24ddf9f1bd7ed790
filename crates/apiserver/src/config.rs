//! What an API server is made of. Built by the command line ([`crate::args`]) or by whoever embeds it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use etcd::Store;
use ipnet::IpNet;

use crate::authn::Anonymous;
use crate::authn::oidc::IssuerConfig;
use crate::authz::webhook::WebhookConfig;
use crate::registry::RuntimeConfig;
use crate::reload::Reloaded;
use crate::settings::Settings;
use crate::tls::Limits;

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct KeyPair {
    /// The certificate chain.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("KeyPair")
    }
}

/// A proxy in front that says who the user is.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaderConfig {
    /// Signs the proxy's certificate.
    pub ca: Vec<u8>,
    /// The common names that it may have.
    pub allowed_names: Vec<String>,
    /// Headers with the user name.
    pub username_headers: Vec<String>,
    /// Headers with the uid.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with extra fields.
    pub extra_prefixes: Vec<String>,
}

/// Service account tokens.
#[derive(Clone, Debug, Default)]
pub struct ServiceAccountConfig {
    /// The key that signs, PEM.
    pub signing_key: Option<Vec<u8>>,
    /// Further keys that verify, PEM.
    pub verifying_keys: Vec<Vec<u8>>,
    /// The first signs, all are accepted.
    pub issuers: Vec<String>,
    /// Whom tokens for this server are addressed to; the issuer if empty.
    pub audiences: Vec<String>,
    /// Where the keys are published; made from the issuer if empty.
    pub jwks_uri: String,
    /// The longest life of a token in seconds; 0 is no bound.
    pub max_expiration: i64,
    /// Whether tokens of pods live longer than asked for, to spare old clients.
    pub extend_expiration: bool,
}

/// How kubelets are reached.
#[derive(Clone, Debug, Default)]
pub struct KubeletConfig {
    /// The identity shown to kubelets.
    pub client: Option<KeyPair>,
    /// Signs the kubelets' certificates; without it they are not judged.
    pub ca: Option<Vec<u8>>,
    /// Kinds of node addresses, most wanted first.
    pub address_types: Vec<String>,
}

/// The address under which the cluster reaches this server.
#[derive(Clone, Copy, Debug)]
pub struct Advertise {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
}

/// Who decides what users may do.
#[derive(Clone, Debug)]
pub enum AuthorizationMode {
    /// Everything is allowed.
    AlwaysAllow,
    /// Nothing is allowed.
    AlwaysDeny,
    /// Kubelets reach what their pods need.
    Node,
    /// Roles and bindings.
    Rbac,
    /// The policies of a file.
    Abac(Arc<crate::authz::abac::Policies>),
    /// Somebody else decides.
    Webhook(Box<WebhookConfig>),
}

/// What is audited and where it goes.
#[derive(Clone, Debug)]
pub struct AuditConfig {
    /// The policy, YAML.
    pub policy: String,
    /// A file.
    pub log: Option<AuditLog>,
    /// A server.
    pub webhook: Option<AuditWebhook>,
}

/// When a request goes on after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditMode {
    /// At once; events are collected.
    Batch,
    /// When the event is out, or could not be.
    #[default]
    Blocking,
    /// When the event is out; otherwise the request is refused.
    BlockingStrict,
}

/// How events are collected.
#[derive(Clone, Debug)]
pub struct AuditBatch {
    /// The most events that wait.
    pub buffer_size: usize,
    /// The most events of a batch.
    pub max_size: usize,
    /// A batch waits at most this long to be filled.
    pub max_wait: std::time::Duration,
    /// Whether the rate of batches is bounded.
    pub throttle: bool,
    /// Batches a second.
    pub throttle_qps: f64,
    /// Batches at once.
    pub throttle_burst: u32,
}

impl Default for AuditBatch {
    fn default() -> Self {
        Self {
            buffer_size: 10_000,
            max_size: 1,
            max_wait: std::time::Duration::ZERO,
            throttle: false,
            throttle_qps: 0.0,
            throttle_burst: 0,
        }
    }
}

/// What both outputs have.
#[derive(Clone, Debug, Default)]
pub struct AuditOutput {
    /// When a request goes on.
    pub mode: AuditMode,
    /// How events are collected, in batch mode.
    pub batch: AuditBatch,
    /// The most bytes of an event and of a batch, if bounded.
    pub truncate: Option<(usize, usize)>,
}

/// The audit log.
#[derive(Clone, Debug)]
pub struct AuditLog {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// Rotate at this size in MiB.
    pub max_size: u64,
    /// Keep so many rotated files; 0 is all.
    pub max_backup: usize,
    /// Keep rotated files for so many days; 0 is for ever.
    pub max_age_days: u64,
    /// Whether rotated files are packed.
    pub compress: bool,
    /// Whether lines have the older form instead of JSON.
    pub legacy: bool,
    /// How events come there.
    pub output: AuditOutput,
}

impl AuditLog {
    /// A log with upstream's defaults.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            max_size: 100,
            max_backup: 100,
            max_age_days: 366,
            compress: false,
            legacy: false,
            output: AuditOutput::default(),
        }
    }
}

/// The audit webhook.
#[derive(Clone, Debug)]
pub struct AuditWebhook {
    /// A kubeconfig that names the server.
    pub kubeconfig: String,
    /// After a failure it is left alone for so long at first.
    pub backoff: std::time::Duration,
    /// How events come there.
    pub output: AuditOutput,
}

/// Everything that an API server needs.
pub struct Config {
    /// Where objects are kept.
    pub store: Arc<dyn Store>,
    /// Bound listeners; serving starts on them.
    pub listeners: Vec<std::net::TcpListener>,
    /// The serving certificate.
    pub serving: KeyPair,
    /// Which TLS is spoken.
    pub tls: Limits,
    /// Certificates for other names: pattern and pair.
    pub named_serving: Vec<(String, KeyPair)>,
    /// Signs client certificates.
    pub client_ca: Option<Vec<u8>>,
    /// A trusted proxy.
    pub request_header: Option<RequestHeaderConfig>,
    /// The identity of this server as a proxy, for aggregated servers.
    pub proxy_client: Option<KeyPair>,
    /// Service account tokens.
    pub service_accounts: ServiceAccountConfig,
    /// Kubelets.
    pub kubelet: KubeletConfig,
    /// Cluster IPs come from here, the first family first.
    pub service_cidrs: Vec<IpNet>,
    /// Node ports come from here, both ends included.
    pub node_ports: (u16, u16),
    /// The address in the `kubernetes` Service; none: the Service gets no endpoints.
    pub advertise: Option<Advertise>,
    /// Asked in order.
    pub authorization: Vec<AuthorizationMode>,
    /// Requests without credentials.
    pub anonymous: Anonymous,
    /// A token file's text.
    pub static_tokens: String,
    /// Whether bootstrap tokens are taken.
    pub bootstrap_tokens: bool,
    /// OIDC issuers and the CA of each.
    pub oidc: Vec<(IssuerConfig, Option<Vec<u8>>)>,
    /// A token webhook's kubeconfig.
    pub token_webhook: Option<String>,
    /// The version of TokenReview that it understands.
    pub token_webhook_version: String,
    /// How long its answers are remembered.
    pub token_webhook_ttl: std::time::Duration,
    /// Configuration files that are read again when they change.
    pub reloaded: Reloaded,
    /// Admission plug-ins to leave out.
    pub disabled_admission: Vec<String>,
    /// Admission plug-ins to add to the default ones.
    pub enabled_admission: Vec<String>,
    /// Auditing.
    pub audit: Option<AuditConfig>,
    /// The encryption configuration, YAML.
    pub encryption: Option<String>,
    /// Requests in flight, reading and writing together.
    pub max_in_flight: usize,
    /// Requests that are no watches end after this.
    pub request_timeout: std::time::Duration,
    /// Keys start with this.
    pub store_prefix: String,
    /// How long events are kept.
    pub event_ttl: std::time::Duration,
    /// Which built-in API versions are served.
    pub runtime: RuntimeConfig,
    /// How often old revisions are forgotten; none: never by this server.
    pub compaction_interval: Option<std::time::Duration>,
    /// Times, numbers, switches.
    pub settings: Settings,
}

impl Config {
    /// A server on `store` with upstream's defaults; listeners and identities are the caller's to add.
    pub fn new(store: Arc<dyn Store>, serving: KeyPair) -> Self {
        Self {
            store,
            listeners: Vec::new(),
            serving,
            tls: Limits::default(),
            named_serving: Vec::new(),
            client_ca: None,
            request_header: None,
            proxy_client: None,
            service_accounts: ServiceAccountConfig::default(),
            kubelet: KubeletConfig::default(),
            service_cidrs: vec![IpNet::V4(default_service_cidr())],
            node_ports: (30000, 32767),
            advertise: None,
            authorization: vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
            anonymous: Anonymous::health_only(),
            static_tokens: String::new(),
            bootstrap_tokens: true,
            oidc: Vec::new(),
            token_webhook: None,
            token_webhook_version: "v1".to_owned(),
            token_webhook_ttl: std::time::Duration::from_secs(120),
            reloaded: Reloaded::default(),
            disabled_admission: Vec::new(),
            enabled_admission: Vec::new(),
            audit: None,
            encryption: None,
            max_in_flight: 600,
            request_timeout: std::time::Duration::from_secs(60),
            store_prefix: "/registry/".to_owned(),
            event_ttl: std::time::Duration::from_secs(3600),
            runtime: RuntimeConfig::default(),
            compaction_interval: Some(std::time::Duration::from_secs(300)),
            settings: Settings::default(),
        }
    }
}

fn default_service_cidr() -> ipnet::Ipv4Net {
    ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(10, 0, 0, 0), 24)
}
