//! The kubelet's command line and configuration file, with upstream's names: `KubeletArgs → load() → Settings → complete()
//! → Config`.
//!
//! A flag that is given wins over the file, the file over the default, as upstream has it.

mod configuration;
mod fields;
mod flags;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use client::{Client, HttpsConfig, HttpsError};
use controller_runtime::program::go_duration;
use cri::{ImageService, RuntimeService};

use crate::images::{ImageSettings, Verification};
use pki::{Kubeconfig, PkiError};
use thiserror::Error;

pub use configuration::{Configuration, ConfigurationError};
pub use flags::ConfigurationFlags;

use crate::certificates::{self, Certificates, Rotating, Serving};
use crate::config::{Authorization, Config, ServingCertificate};
use crate::eviction;
use crate::pod::Quantity;
use crate::standalone;
use cri_streaming::remote::socket;

#[derive(Debug, Error)]
pub enum ArgsError {
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: PkiError,
    },
    #[error(transparent)]
    Https(#[from] HttpsError),
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("an eviction threshold cannot be used")]
    Eviction(#[from] eviction::BadThreshold),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error("{what}: {value:?} is not {wanted}")]
    Value { what: &'static str, value: String, wanted: &'static str },
    #[error(
        "{endpoint:?} is no endpoint of a container runtime: it has to be a socket, such as unix:///run/containerd/containerd.sock"
    )]
    Endpoint { endpoint: String },
    #[error(
        "--image-service-endpoint={endpoint}: images of another service need a container runtime of another program too"
    )]
    ImagesAlone { endpoint: String },
    #[error("--bootstrap-kubeconfig needs --kubeconfig: the file to write when there is a certificate")]
    NoKubeconfig,
    #[error("this node's address cannot be found: give --node-ip")]
    NoAddress,
    #[error("no client provided, cannot use webhook {what}: without --kubeconfig there is nobody to ask")]
    NobodyToAsk { what: &'static str },
    #[error("cannot make the serving certificate")]
    Certificate(#[source] PkiError),
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false; \
         /proc/swaps names {device}"
    )]
    Swap { device: String },
    #[error(
        "kubelet is configured to not run on a host using cgroup v1: failCgroupV1 is set, and there is no cgroup v2"
    )]
    CgroupV1,
}

/// Runs the node agent, with upstream's flags; without --kubeconfig alone, for the pods of --pod-manifest-path.
#[derive(Args, Clone, Debug, Default)]
pub struct KubeletArgs {
    /// File with a KubeletConfiguration
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Directory of files with more of it: every *.conf, in the order of names
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
    /// How to reach the API server; written when --bootstrap-kubeconfig has got a certificate
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How to ask for a certificate, while --kubeconfig is not there
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The node's name [default: the host's]
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// The node's addresses, the primary one first; 0.0.0.0 or :: for that of the default route
    #[arg(long, value_delimiter = ',', value_parser = node_ip)]
    pub node_ip: Vec<NodeIp>,
    /// Where pods' volumes and files, images and containers are kept
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    /// Where certificates are kept
    #[arg(long, default_value = "/var/lib/kubelet/pki")]
    pub cert_dir: PathBuf,
    /// Labels that the node registers with: key=value,...
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Register the node as one that takes pods
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub register_schedulable: Option<bool>,
    /// Who knows this machine: nobody, or a cloud controller manager (external)
    #[arg(long, value_parser = ["", "external"])]
    pub cloud_provider: Option<String>,
    /// Refused: clouds are asked by their controller manager
    #[arg(long, value_parser = no_cloud_config)]
    pub cloud_config: Option<String>,
    /// Refused: registries' credentials come from pull secrets
    #[arg(long, value_parser = no_credential_provider)]
    pub image_credential_provider_config: Option<String>,
    /// Refused, as --image-credential-provider-config
    #[arg(long, value_parser = no_credential_provider)]
    pub image_credential_provider_bin_dir: Option<String>,
    /// Taken for compatibility: the runtime is this process
    #[arg(long)]
    pub runtime_cgroups: Option<String>,
    /// Taken for compatibility: the sandbox's image is built in
    #[arg(long)]
    pub pod_infra_container_image: Option<String>,
    /// A file that one kubelet holds locked [default: kubelet.lock in --root-dir]
    #[arg(long)]
    pub lock_file: Option<PathBuf>,
    /// Ends this kubelet when another one wants the lock
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_parser = not_on_contention)]
    pub exit_on_lock_contention: Option<bool>,
    /// Taken for compatibility: ended containers are removed when their pod needs them no more
    #[arg(long, value_parser = go_duration)]
    pub minimum_container_ttl_duration: Option<Duration>,
    /// Taken for compatibility, as --minimum-container-ttl-duration
    #[arg(long, allow_hyphen_values = true)]
    pub maximum_dead_containers: Option<i64>,
    /// Taken for compatibility, as --minimum-container-ttl-duration
    #[arg(long, allow_hyphen_values = true)]
    pub maximum_dead_containers_per_container: Option<i64>,
    /// Where the pod network is configured: the first usable CNI configuration by name
    #[arg(long, default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// Where the CNI plug-ins are that the configuration names
    #[arg(long, value_delimiter = ',', default_value = "/opt/cni/bin")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Log verbosity, as upstream counts it
    #[arg(short = 'v', long = "v")]
    pub verbosity: Option<u8>,
    #[command(flatten)]
    pub configuration: ConfigurationFlags,
}

/// An address, or the wish for one of its family.
pub type NodeIp = Option<IpAddr>;

fn node_ip(text: &str) -> Result<NodeIp, String> {
    match text.trim() {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| format!("{text:?} is not an address")),
    }
}

fn no_cloud_config(_: &str) -> Result<String, String> {
    Err("the cloud is asked by its controller manager, not by the kubelet".to_owned())
}

fn no_credential_provider(_: &str) -> Result<String, String> {
    Err("there are no credential providers: registries' credentials come from pull secrets".to_owned())
}

/// How images are pulled and removed, with upstream's rules for the values.
fn image_settings(file: &Configuration) -> Result<ImageSettings, ArgsError> {
    let bad = |what, value: String, wanted| ArgsError::Value { what, value, wanted };
    let mut settings = ImageSettings::default();
    settings.serialize = file.serialize_image_pulls.unwrap_or(settings.serialize);
    settings.max_parallel = file.max_parallel_image_pulls;
    match settings.max_parallel {
        Some(0) => return Err(bad("maxParallelImagePulls", "0".into(), "a positive number")),
        Some(many) if many > 1 && settings.serialize => {
            return Err(bad(
                "maxParallelImagePulls",
                many.to_string(),
                "1 unless serializeImagePulls is false",
            ));
        }
        _ => {}
    }
    let rates = [
        ("registryPullQPS", file.registry_pull_qps, &mut settings.pull_qps),
        ("registryBurst", file.registry_burst, &mut settings.pull_burst),
    ];
    for (what, given, target) in rates {
        if let Some(given) = given {
            *target = u32::try_from(given).map_err(|_| bad(what, given.to_string(), "no negative number"))?;
        }
    }
    let ages = [
        ("imageMinimumGCAge", &file.image_minimum_gc_age, &mut settings.minimum_age),
        ("imageMaximumGCAge", &file.image_maximum_gc_age, &mut settings.maximum_age),
    ];
    for (what, given, target) in ages {
        if let Some(text) = given {
            *target = go_duration(text).map_err(|_| bad(what, text.clone(), "a duration"))?;
        }
    }
    if !settings.maximum_age.is_zero() && settings.maximum_age <= settings.minimum_age {
        let given = file.image_maximum_gc_age.clone().unwrap_or_default();
        return Err(bad("imageMaximumGCAge", given, "more than imageMinimumGCAge"));
    }
    let shares = [
        (
            "imageGCHighThresholdPercent",
            file.image_gc_high_threshold_percent,
            &mut settings.high_threshold_percent,
        ),
        (
            "imageGCLowThresholdPercent",
            file.image_gc_low_threshold_percent,
            &mut settings.low_threshold_percent,
        ),
    ];
    for (what, given, target) in shares {
        if let Some(share) = given {
            if share > 100 {
                return Err(bad(what, share.to_string(), "a number from 0 to 100"));
            }
            *target = share;
        }
    }
    if settings.low_threshold_percent >= settings.high_threshold_percent {
        let given = settings.low_threshold_percent.to_string();
        return Err(bad("imageGCLowThresholdPercent", given, "less than imageGCHighThresholdPercent"));
    }
    let list = &file.preloaded_images_verification_allowlist;
    settings.verification = match file.image_pull_credentials_verification_policy.as_str() {
        "NeverVerifyAllowlistedImages" => Verification::NeverVerifyAllowlistedImages(list.clone()),
        _ if !list.is_empty() => {
            let wanted = "the policy NeverVerifyAllowlistedImages beside it";
            return Err(bad("preloadedImagesVerificationAllowlist", list.join(","), wanted));
        }
        "" | "NeverVerifyPreloadedImages" => Verification::NeverVerifyPreloadedImages,
        "NeverVerify" => Verification::NeverVerify,
        "AlwaysVerify" => Verification::AlwaysVerify,
        other => {
            let wanted =
                "NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages or AlwaysVerify";
            return Err(bad("imagePullCredentialsVerificationPolicy", other.to_owned(), wanted));
        }
    };
    Ok(settings)
}

fn not_on_contention(text: &str) -> Result<bool, String> {
    match text {
        "false" => Ok(false),
        "true" => Err("a kubelet keeps its lock until it ends".to_owned()),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// Flags and files together.
#[derive(Debug, Clone)]
pub struct Settings {
    args: KubeletArgs,
    file: Configuration,
}

impl KubeletArgs {
    /// Reads the files that the flags name.
    pub fn load(self) -> Result<Settings, ArgsError> {
        let flags = &self.configuration.0;
        let file = configuration::load(self.config.as_deref(), self.config_dir.as_deref(), flags)?;
        for endpoint in [&file.container_runtime_endpoint, &file.image_service_endpoint] {
            if !endpoint.is_empty() && socket(endpoint).is_none() {
                return Err(ArgsError::Endpoint { endpoint: endpoint.clone() });
            }
        }
        if file.container_runtime_endpoint.is_empty() && !file.image_service_endpoint.is_empty() {
            return Err(ArgsError::ImagesAlone { endpoint: file.image_service_endpoint.clone() });
        }
        if self.bootstrap_kubeconfig.is_some() && self.kubeconfig.is_none() {
            return Err(ArgsError::NoKubeconfig);
        }
        Ok(Settings { args: self, file })
    }
}

impl Settings {
    /// Logs as the flags say; call it before anything else.
    pub fn start_logging(&self) {
        telemetry::log_to_stderr(match self.args.verbosity.unwrap_or(self.file.logging.verbosity) {
            0..=3 => "info",
            4..=5 => "debug",
            _ => "trace",
        });
    }

    /// Where everything of this kubelet is kept.
    pub fn root_dir(&self) -> &Path {
        &self.args.root_dir
    }

    /// Where certificates are kept.
    pub fn cert_dir(&self) -> &Path {
        &self.args.cert_dir
    }

    /// The file that keeps a second kubelet away.
    pub fn lock_file(&self) -> PathBuf {
        self.args.lock_file.clone().unwrap_or_else(|| self.args.root_dir.join("kubelet.lock"))
    }

    /// Where the pod network is configured.
    pub fn cni_conf_dir(&self) -> &Path {
        &self.args.cni_conf_dir
    }

    /// Where CNI plug-ins are.
    pub fn cni_bin_dirs(&self) -> &[PathBuf] {
        &self.args.cni_bin_dir
    }

    /// The cgroup under which all pods are; empty for the root.
    pub fn cgroup_root(&self) -> &str {
        self.file.cgroup_root.trim_matches('/')
    }

    /// The sockets of the runtime and of its images, where containers are run by another program.
    pub fn runtime_sockets(&self) -> Option<(PathBuf, PathBuf)> {
        let runtime = socket(&self.file.container_runtime_endpoint)?;
        let images = socket(&self.file.image_service_endpoint).unwrap_or(runtime);
        Some((runtime.to_owned(), images.to_owned()))
    }

    /// The `oom_score_adj` of the kubelet itself.
    pub fn oom_score_adj(&self) -> i32 {
        self.file.oom_score_adj.unwrap_or(-999)
    }

    /// How many files the kubelet may have open.
    pub fn max_open_files(&self) -> u64 {
        self.file.max_open_files.unwrap_or(1_000_000)
    }

    /// What must be so on this machine before anything is started.
    pub fn preflight(&self) -> Result<(), ArgsError> {
        let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
        if self.file.fail_swap_on.unwrap_or(true)
            && let Some(device) = swap_device(&swaps)
        {
            return Err(ArgsError::Swap { device });
        }
        let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        if self.file.fail_cgroup_v1 && !unified { Err(ArgsError::CgroupV1) } else { Ok(()) }
    }

    /// A config that can be started on this runtime; alone if no flag says where the API server is.
    pub fn complete(
        &self,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
    ) -> Result<Config, ArgsError> {
        let Some(path) = &self.args.kubeconfig else {
            let mut config = self.complete_with(standalone::client(), None, runtime, images)?;
            config.standalone = true;
            return Ok(config);
        };
        // Its certificate may have ended while the machine was off: then it asks again as it did at first.
        let bootstrap = match &self.args.bootstrap_kubeconfig {
            Some(bootstrap) if !certificates::is_usable(path) => Some(access(bootstrap)?),
            _ => None,
        };
        let server = match &bootstrap {
            Some(bootstrap) => bootstrap.clone(),
            None => access(path)?,
        };
        let transport = Rotating::new(bootstrap.is_none().then(|| server.clone()))?;
        let client = Client::new(transport.clone(), "kubelet");
        let mut config = self.complete_with(client, Some(&server.server), runtime, images)?;
        let names = std::iter::once(config.node_name.clone());
        config.certificates = Some(Certificates {
            node_name: config.node_name.clone(),
            directory: self.args.cert_dir.clone(),
            kubeconfig: path.clone(),
            bootstrap,
            server,
            transport,
            rotate_client: self.file.rotate_certificates,
            serving: config.serving_resolver.clone(),
            names: names.chain(config.node_ips.iter().map(ToString::to_string)).collect(),
        });
        Ok(config)
    }

    /// The same with a client that is there already; `server` is the API server's URL, for finding the own address.
    pub fn complete_with(
        &self,
        client: Client,
        server: Option<&str>,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
    ) -> Result<Config, ArgsError> {
        let (args, file) = (&self.args, &self.file);
        let node_ips = self.node_ips(server)?;
        let root = &args.root_dir;
        let mut config = Config::new(self.node_name(), node_ips[0], client, runtime, images, root);
        config.node_ips = node_ips;
        config.pod_logs_dir = file.pod_logs_dir.clone().unwrap_or_else(|| "/var/log/pods".into());
        config.static_pod_path = file.static_pod_path.clone().filter(|path| !path.as_os_str().is_empty());
        if let Some(path) = &file.resolv_conf {
            config.resolv_conf = path.into();
        }
        config.cluster_dns.clone_from(&file.cluster_dns);
        config.cluster_domain = file.cluster_domain.clone().unwrap_or_default();
        config.pod_cidr = file.pod_cidr.clone().filter(|cidr| !cidr.is_empty());
        config.provider_id = file.provider_id.clone().filter(|id| !id.is_empty());
        config.register_node = file.register_node.unwrap_or(true);
        config.unschedulable = !args.register_schedulable.unwrap_or(true);
        config.labels = labels(&args.node_labels);
        config.taints.clone_from(&file.register_with_taints);
        config.cloud_provider_external = args.cloud_provider.as_deref() == Some("external");
        config.max_pods = file.max_pods.unwrap_or(110);
        if file.pods_per_core > 0 {
            let cores = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
            config.max_pods = config.max_pods.min(file.pods_per_core.saturating_mul(cores));
        }
        config.pod_cgroups = self.runtime_sockets().map(|_| self.cgroup_root().to_owned());
        config.pod_pids_limit = file.pod_pids_limit.unwrap_or(0).max(0);
        config.allowed_unsafe_sysctls.clone_from(&file.allowed_unsafe_sysctls);
        self.complete_reserved(&mut config)?;
        config.eviction = eviction_settings(file)?;
        let frequencies = [
            (&file.node_status_update_frequency, &mut config.node_status_update_frequency),
            (&file.node_status_report_frequency, &mut config.node_status_report_frequency),
        ];
        for (text, target) in frequencies {
            // Judged when it was read; zero is upstream's spelling of the default.
            if let Some(given) =
                text.as_deref().and_then(|text| go_duration(text).ok()).filter(|d| !d.is_zero())
            {
                *target = given;
            }
        }
        if let Some(seconds) = file.node_lease_duration_seconds {
            config.node_lease_duration = Duration::from_secs(seconds.max(4));
        }
        if let Some(size) = &file.container_log_max_size {
            let not_a_size =
                || ArgsError::Value { what: "containerLogMaxSize", value: size.0.clone(), wanted: "a size" };
            config.log_max_bytes =
                size.value().and_then(|bytes| u64::try_from(bytes).ok()).ok_or_else(not_a_size)?;
        }
        if let Some(files) = file.container_log_max_files {
            config.log_max_files = files.max(2);
        }
        config.image_settings = image_settings(file)?;
        self.complete_server(server.is_some(), &mut config)?;
        Ok(config)
    }

    pub fn node_name(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.args.hostname_override.clone().unwrap_or_else(host).trim().to_lowercase()
    }

    fn node_ips(&self, server: Option<&str>) -> Result<Vec<IpAddr>, ArgsError> {
        let given: Vec<IpAddr> = self.args.node_ip.iter().flatten().copied().collect();
        if !given.is_empty() && !given[0].is_unspecified() {
            return Ok(given);
        }
        match server {
            Some(server) => Ok(vec![own_address(server)?]),
            // An address reserved for documentation: only the routing table is asked. A machine without a route still
            // runs its own pods.
            None => Ok(vec![own_address("https://192.0.2.1").unwrap_or(Ipv4Addr::LOCALHOST.into())]),
        }
    }

    fn complete_reserved(&self, config: &mut Config) -> Result<(), ArgsError> {
        for given in [&self.file.kube_reserved, &self.file.system_reserved] {
            let bad = |value: &Quantity| ArgsError::Value {
                what: "reserved resources",
                value: value.0.clone(),
                wanted: "a quantity",
            };
            for (name, value) in given {
                match name.as_str() {
                    "cpu" => config.reserved_cpu_millis += value.millis().ok_or_else(|| bad(value))?,
                    "memory" => config.reserved_memory += value.value().ok_or_else(|| bad(value))?,
                    "ephemeral-storage" => {
                        config.reserved_storage += value.value().ok_or_else(|| bad(value))?
                    }
                    "pid" => drop(value.value().ok_or_else(|| bad(value))?),
                    other => {
                        return Err(ArgsError::Value {
                            what: "reserved resources",
                            value: other.to_owned(),
                            wanted: "cpu, memory, ephemeral-storage or pid",
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn complete_server(&self, has_client: bool, config: &mut Config) -> Result<(), ArgsError> {
        let file = &self.file;
        let healthz = file.healthz_bind_address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        config.healthz = match file.healthz_port.unwrap_or(10248) {
            0 => None,
            port => Some(SocketAddr::new(healthz, port)),
        };
        config.anonymous_auth = file.authentication.anonymous.enabled.unwrap_or(false);
        config.token_reviews = file.authentication.webhook.enabled.unwrap_or(has_client);
        config.authorization = match file.authorization.mode.as_str() {
            "" if has_client => Authorization::Webhook,
            "" | "AlwaysAllow" => Authorization::AlwaysAllow,
            "Webhook" => Authorization::Webhook,
            other => {
                return Err(ArgsError::Value {
                    what: "authorization.mode",
                    value: other.to_owned(),
                    wanted: "AlwaysAllow or Webhook",
                });
            }
        };
        if !has_client && config.token_reviews {
            return Err(ArgsError::NobodyToAsk { what: "authentication" });
        }
        if !has_client && config.authorization == Authorization::Webhook {
            return Err(ArgsError::NobodyToAsk { what: "authorization" });
        }
        if !file.enable_server.unwrap_or(true) {
            return Ok(());
        }
        let address = file.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        config.listen = Some(SocketAddr::new(address, file.port.unwrap_or(10250)));
        if let Some(path) = &file.authentication.x509.client_ca_file {
            config.client_ca_pem = Some(read(path)?);
        }
        if has_client && file.server_tls_bootstrap && file.tls_cert_file.is_none() {
            config.serving_resolver = Some(Arc::new(Serving::default()));
            return Ok(());
        }
        config.serving = Some(match (&file.tls_cert_file, &file.tls_private_key_file) {
            (Some(certificate), Some(key)) => {
                ServingCertificate { chain_pem: read(certificate)?, key_pem: read(key)? }
            }
            // As upstream: without a certificate one is made that only says who the node claims to be.
            _ => self_signed(config, &self.args.cert_dir)?,
        });
        Ok(())
    }
}

/// Where a kubeconfig leads, and as whom.
fn access(path: &Path) -> Result<HttpsConfig, ArgsError> {
    let failed = |source| ArgsError::Kubeconfig { path: path.to_owned(), source };
    Ok(HttpsConfig::from_kubeconfig(&Kubeconfig::load(path).map_err(failed)?, None)?)
}

/// The certificate that was made at the first start, or a new one; upstream's file names.
fn self_signed(config: &Config, directory: &Path) -> Result<ServingCertificate, ArgsError> {
    let failed = ArgsError::Certificate;
    let (certificate, key) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    let present = (pki::files::read_if_present(&certificate).map_err(failed)?)
        .zip(pki::files::read_if_present(&key).map_err(failed)?);
    if let Some((chain_pem, key_pem)) = present {
        return Ok(ServingCertificate { chain_pem, key_pem });
    }
    let pair_key = Arc::new(pki::PrivateKey::generate(pki::Algorithm::default()).map_err(failed)?);
    let subject = pki::Subject::new(&config.node_name, &[]);
    let sans =
        std::iter::once(config.node_name.clone()).chain(config.node_ips.iter().map(ToString::to_string));
    let now = jiff::Timestamp::now();
    let request = pki::Request {
        subject,
        sans: sans.map(|name| pki::San::parse(&name)).collect(),
        usages: pki::Usages::server(),
        is_ca: false,
        not_before: now,
        not_after: now.checked_add(jiff::SignedDuration::from_hours(24 * 365)).unwrap_or(now),
    };
    let pair = pki::Pair::self_signed(&request, pair_key).map_err(failed)?;
    let serving = ServingCertificate {
        chain_pem: pair.certificate_pem().into_bytes(),
        key_pem: pair.key_pem().into_bytes(),
    };
    pki::files::create_private_dir(directory).map_err(failed)?;
    pki::files::write(&key, &serving.key_pem, 0o600).map_err(failed)?;
    pki::files::write(&certificate, &serving.chain_pem, 0o644).map_err(failed)?;
    Ok(serving)
}

fn read(path: &Path) -> Result<Vec<u8>, ArgsError> {
    std::fs::read(path).map_err(|source| ArgsError::Read { path: path.to_owned(), source })
}

/// The address from which the API server is reached.
fn own_address(server: &str) -> Result<IpAddr, ArgsError> {
    let authority = server.split("://").nth(1).unwrap_or(server).split('/').next().unwrap_or_default();
    let target = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:443") };
    // Connecting a datagram socket sends nothing; it only asks the kernel for a route.
    let found = UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| socket.connect(&target).and_then(|()| socket.local_addr()))
        .or_else(|_| {
            UdpSocket::bind("[::]:0")
                .and_then(|socket| socket.connect(&target).and_then(|()| socket.local_addr()))
        });
    found.map(|address| address.ip()).map_err(|_| ArgsError::NoAddress)
}

/// As upstream: a key alone is a label with an empty value.
fn labels(list: &[String]) -> BTreeMap<String, String> {
    let label = |text: &String| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        (key.trim().to_owned(), value.trim().to_owned())
    };
    list.iter().filter(|text| !text.trim().is_empty()).map(label).collect()
}

/// The device behind the first line after the heading.
fn swap_device(swaps: &str) -> Option<String> {
    swaps.lines().nth(1)?.split_whitespace().next().map(str::to_owned)
}

/// When pods are ended for want of something. Thresholds that are given stand alone, unless they shall be merged with
/// upstream's.
fn eviction_settings(file: &Configuration) -> Result<eviction::Settings, ArgsError> {
    let mut hard = file.eviction_hard.clone();
    if hard.is_empty() || file.merge_default_eviction_settings {
        for (signal, amount) in eviction::DEFAULT_HARD {
            hard.entry(signal.to_owned()).or_insert_with(|| amount.to_owned());
        }
    }
    let thresholds = eviction::parse(
        &hard,
        &file.eviction_soft,
        &file.eviction_soft_grace_period,
        &file.eviction_minimum_reclaim,
    )?;
    let defaults = eviction::Settings::default();
    // Judged when it was read; zero is upstream's spelling of the default.
    let period = file.eviction_pressure_transition_period.as_ref().and_then(|text| go_duration(text).ok());
    Ok(eviction::Settings {
        thresholds,
        max_pod_grace: Duration::from_secs(file.eviction_max_pod_grace_period.unwrap_or(0)),
        transition_period: period.filter(|period| !period.is_zero()).unwrap_or(defaults.transition_period),
    })
}

#[cfg(test)]
mod tests;
