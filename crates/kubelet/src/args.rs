//! The kubelet's command line and configuration file, with upstream's names: `KubeletArgs → complete() → Config`.
//!
//! A flag that is given wins over the file, the file over the default, as upstream has it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use client::{Client, Https, HttpsConfig, HttpsError};
use cri::{ImageService, RuntimeService};
use pki::{Kubeconfig, PkiError};
use serde::Deserialize;
use thiserror::Error;

use crate::config::{Config, ServingCertificate, Taint};
use crate::pod::Quantity;

#[derive(Debug, Error)]
pub enum ArgsError {
    #[error("--kubeconfig is missing: it says how to reach the API server, and as whom")]
    NoKubeconfig,
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
    #[error("{path} is not a kubelet.config.k8s.io/v1beta1 KubeletConfiguration")]
    Configuration {
        path: PathBuf,
        #[source]
        source: serde_yaml_ng::Error,
    },
    #[error(
        "{path} has kind {kind:?} of {api_version:?}, expected KubeletConfiguration of kubelet.config.k8s.io/v1beta1"
    )]
    Kind { path: PathBuf, kind: String, api_version: String },
    #[error("{what}: {value:?} is not {wanted}")]
    Value { what: &'static str, value: String, wanted: &'static str },
    #[error("this node's address cannot be found: give --node-ip")]
    NoAddress,
    #[error("cannot make the serving certificate")]
    Certificate(#[source] PkiError),
}

/// Runs the node agent
#[derive(Args, Clone, Debug, Default)]
pub struct KubeletArgs {
    /// File with a KubeletConfiguration
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// How to reach the API server
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The node's name [default: the host's]
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// The node's addresses, the primary one first
    #[arg(long, value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// Where pods' volumes and files are kept
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub root_dir: PathBuf,
    /// Where certificates are kept
    #[arg(long, default_value = "/var/lib/kubelet/pki")]
    pub cert_dir: PathBuf,
    /// Manifests of static pods
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Labels that the node registers with: key=value,...
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints that the node registers with: key=value:effect,...
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Register the node with the API server
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub register_node: Option<bool>,
    /// DNS servers of pods
    #[arg(long, value_delimiter = ',')]
    pub cluster_dns: Vec<String>,
    /// DNS domain of the cluster
    #[arg(long)]
    pub cluster_domain: Option<String>,
    /// The host's resolver configuration
    #[arg(long)]
    pub resolv_conf: Option<PathBuf>,
    /// Where the HTTPS server listens
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Port of the HTTPS server
    #[arg(long)]
    pub port: Option<u16>,
    /// Certificate of the HTTPS server
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Who signs client certificates
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// Let requests without an identity be asked about too
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// Most pods on this node
    #[arg(long)]
    pub max_pods: Option<u32>,
    /// Most processes per pod; -1 for no limit
    #[arg(long, allow_hyphen_values = true)]
    pub pod_max_pids: Option<i64>,
    /// The pod address range, where the node object has none
    #[arg(long)]
    pub pod_cidr: Option<String>,
    /// The cloud's name for this machine
    #[arg(long)]
    pub provider_id: Option<String>,
    /// Set aside for Kubernetes: cpu=200m,memory=500Mi
    #[arg(long, value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
    /// Set aside for the system: cpu=200m,memory=500Mi
    #[arg(long, value_delimiter = ',')]
    pub system_reserved: Vec<String>,
    /// The container runtime's socket; the built-in runtime if not given
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Log verbosity, as upstream counts it
    #[arg(short = 'v', long = "v")]
    pub verbosity: Option<u8>,
}

/// The part of upstream's KubeletConfiguration that this kubelet acts on; the rest is accepted and has no effect.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct KubeletConfiguration {
    api_version: String,
    kind: String,
    static_pod_path: Option<PathBuf>,
    address: Option<IpAddr>,
    port: Option<u16>,
    tls_cert_file: Option<PathBuf>,
    tls_private_key_file: Option<PathBuf>,
    authentication: Authentication,
    register_node: Option<bool>,
    register_with_taints: Vec<TaintConfiguration>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<String>,
    cluster_domain: Option<String>,
    resolv_conf: Option<PathBuf>,
    max_pods: Option<u32>,
    pod_pids_limit: Option<i64>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    kube_reserved: BTreeMap<String, Quantity>,
    system_reserved: BTreeMap<String, Quantity>,
    node_status_report_frequency: Option<String>,
    node_lease_duration_seconds: Option<u64>,
    pod_logs_dir: Option<PathBuf>,
    allowed_unsafe_sysctls: Vec<String>,
    container_log_max_size: Option<Quantity>,
    container_log_max_files: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Authentication {
    x509: X509,
    anonymous: AnonymousAuthentication,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct AnonymousAuthentication {
    enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct TaintConfiguration {
    key: String,
    value: String,
    effect: String,
}

impl KubeletArgs {
    /// Resolves files and defaults to a config that can be started on this runtime.
    pub fn complete(
        &self,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
    ) -> Result<Config, ArgsError> {
        let path = self.kubeconfig.as_ref().ok_or(ArgsError::NoKubeconfig)?;
        let failed = |source| ArgsError::Kubeconfig { path: path.clone(), source };
        let kubeconfig = Kubeconfig::load(path).map_err(failed)?;
        let https = HttpsConfig::from_kubeconfig(&kubeconfig, None)?;
        let server = https.server.clone();
        let client = Client::new(Https::new(https)?, "kubelet");
        self.complete_with(client, &server, runtime, images)
    }

    /// The same with a client that is there already; `server` is the API server's URL, for finding the own address.
    pub fn complete_with(
        &self,
        client: Client,
        server: &str,
        runtime: Arc<dyn RuntimeService>,
        images: Arc<dyn ImageService>,
    ) -> Result<Config, ArgsError> {
        let file = match &self.config {
            Some(path) => read_configuration(path)?,
            None => KubeletConfiguration::default(),
        };
        let name = self.node_name();
        let node_ips =
            if self.node_ip.is_empty() { vec![own_address(server)?] } else { self.node_ip.clone() };
        let mut config = Config::new(name, node_ips[0], client, runtime, images, &self.root_dir);
        config.node_ips = node_ips;
        config.pod_logs_dir = file.pod_logs_dir.clone().unwrap_or_else(|| "/var/log/pods".into());
        config.static_pod_path = self.pod_manifest_path.clone().or(file.static_pod_path.clone());
        if let Some(path) = self.resolv_conf.clone().or(file.resolv_conf.clone()) {
            config.resolv_conf = path;
        }
        config.cluster_dns =
            if self.cluster_dns.is_empty() { file.cluster_dns.clone() } else { self.cluster_dns.clone() };
        config.cluster_domain =
            self.cluster_domain.clone().or(file.cluster_domain.clone()).unwrap_or_default();
        config.pod_cidr = self.pod_cidr.clone().or(file.pod_cidr.clone());
        config.provider_id = self.provider_id.clone().or(file.provider_id.clone());
        config.register_node = self.register_node.or(file.register_node).unwrap_or(true);
        config.labels = labels(&self.node_labels)?;
        config.taints = if self.register_with_taints.is_empty() {
            let taint = |one: &TaintConfiguration| Taint {
                key: one.key.clone(),
                value: one.value.clone(),
                effect: one.effect.clone(),
            };
            file.register_with_taints.iter().map(taint).collect()
        } else {
            self.register_with_taints.iter().map(|text| taint(text)).collect::<Result<_, _>>()?
        };
        config.max_pods = self.max_pods.or(file.max_pods).unwrap_or(110);
        config.pod_pids_limit = self.pod_max_pids.or(file.pod_pids_limit).unwrap_or(0).max(0);
        config.allowed_unsafe_sysctls = file.allowed_unsafe_sysctls.clone();
        self.complete_reserved(&file, &mut config)?;
        if let Some(text) = &file.node_status_report_frequency {
            config.node_status_report_frequency = go_duration(text).ok_or_else(|| ArgsError::Value {
                what: "nodeStatusReportFrequency",
                value: text.clone(),
                wanted: "a duration such as 5m0s",
            })?;
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
        self.complete_server(&file, &mut config)?;
        Ok(config)
    }

    fn node_name(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.hostname_override.clone().unwrap_or_else(host).trim().to_lowercase()
    }

    fn complete_reserved(&self, file: &KubeletConfiguration, config: &mut Config) -> Result<(), ArgsError> {
        for (flags, of_file) in
            [(&self.kube_reserved, &file.kube_reserved), (&self.system_reserved, &file.system_reserved)]
        {
            let given = if flags.is_empty() { of_file.clone() } else { quantities(flags)? };
            let bad = |value: &Quantity| ArgsError::Value {
                what: "reserved resources",
                value: value.0.clone(),
                wanted: "a quantity",
            };
            if let Some(cpu) = given.get("cpu") {
                config.reserved_cpu_millis += cpu.millis().ok_or_else(|| bad(cpu))?;
            }
            if let Some(memory) = given.get("memory") {
                config.reserved_memory += memory.value().ok_or_else(|| bad(memory))?;
            }
        }
        Ok(())
    }

    fn complete_server(&self, file: &KubeletConfiguration, config: &mut Config) -> Result<(), ArgsError> {
        let address = self.address.or(file.address).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        config.listen = Some(SocketAddr::new(address, self.port.or(file.port).unwrap_or(10250)));
        config.anonymous_auth =
            self.anonymous_auth.or(file.authentication.anonymous.enabled).unwrap_or(false);
        if let Some(path) = self.client_ca_file.as_ref().or(file.authentication.x509.client_ca_file.as_ref())
        {
            config.client_ca_pem = Some(read(path)?);
        }
        let certificate = self.tls_cert_file.as_ref().or(file.tls_cert_file.as_ref());
        let key = self.tls_private_key_file.as_ref().or(file.tls_private_key_file.as_ref());
        config.serving = Some(match (certificate, key) {
            (Some(certificate), Some(key)) => {
                ServingCertificate { chain_pem: read(certificate)?, key_pem: read(key)? }
            }
            // As upstream: without a certificate one is made that only says who the node claims to be.
            _ => self_signed(config)?,
        });
        Ok(())
    }
}

fn self_signed(config: &Config) -> Result<ServingCertificate, ArgsError> {
    let key = Arc::new(pki::PrivateKey::generate(pki::Algorithm::default()).map_err(ArgsError::Certificate)?);
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
    let pair = pki::Pair::self_signed(&request, key).map_err(ArgsError::Certificate)?;
    Ok(ServingCertificate {
        chain_pem: pair.certificate_pem().into_bytes(),
        key_pem: pair.key_pem().into_bytes(),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, ArgsError> {
    std::fs::read(path).map_err(|source| ArgsError::Read { path: path.to_owned(), source })
}

fn read_configuration(path: &Path) -> Result<KubeletConfiguration, ArgsError> {
    let text = read(path)?;
    let file: KubeletConfiguration = serde_yaml_ng::from_slice(&text)
        .map_err(|source| ArgsError::Configuration { path: path.to_owned(), source })?;
    if file.kind != "KubeletConfiguration" || file.api_version != "kubelet.config.k8s.io/v1beta1" {
        return Err(ArgsError::Kind {
            path: path.to_owned(),
            kind: file.kind,
            api_version: file.api_version,
        });
    }
    Ok(file)
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

fn labels(list: &[String]) -> Result<BTreeMap<String, String>, ArgsError> {
    list.iter()
        .map(|text| {
            let (key, value) = text.split_once('=').ok_or_else(|| ArgsError::Value {
                what: "--node-labels",
                value: text.clone(),
                wanted: "of the form key=value",
            })?;
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

fn taint(text: &str) -> Result<Taint, ArgsError> {
    let bad = || ArgsError::Value {
        what: "--register-with-taints",
        value: text.to_owned(),
        wanted: "of the form key=value:effect",
    };
    let (head, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(bad());
    }
    let (key, value) = head.split_once('=').unwrap_or((head, ""));
    Ok(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() })
}

fn quantities(list: &[String]) -> Result<BTreeMap<String, Quantity>, ArgsError> {
    Ok(labels(list)?.into_iter().map(|(name, value)| (name, Quantity(value))).collect())
}

/// `5m0s`, `10s`, `1h`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    (!text.is_empty()).then(|| Duration::from_secs_f64(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(labels(&["a=b".into(), "c=".into()]).unwrap()["a"], "b");
        assert!(labels(&["a".into()]).is_err());
        assert_eq!(
            taint("k=v:NoSchedule").unwrap(),
            Taint { key: "k".into(), value: "v".into(), effect: "NoSchedule".into() }
        );
        assert_eq!(taint("k:NoExecute").unwrap().value, "");
        assert!(taint("k=v").is_err() && taint("k=v:Sometimes").is_err());
        assert_eq!(go_duration("5m0s"), Some(Duration::from_secs(300)));
        assert_eq!(go_duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!((go_duration(""), go_duration("5"), go_duration("5y")), (None, None, None));
    }

    #[test]
    fn the_file_is_checked_for_its_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [172.30.0.10]\nmaxPods: 7\nunknown: {a: 1}\nauthentication: {x509: {clientCAFile: /ca}, webhook: {enabled: true}}\n",
        );
        let file = read_configuration(&path).unwrap();
        assert_eq!((file.max_pods, file.cluster_dns.len()), (Some(7), 1));
        assert_eq!(file.authentication.x509.client_ca_file, Some("/ca".into()));
        write("apiVersion: v1\nkind: Pod\n");
        assert!(matches!(read_configuration(&path), Err(ArgsError::Kind { .. })));
    }

    #[test]
    fn the_own_address_is_that_of_the_route() {
        assert_eq!(own_address("https://127.0.0.1:6443").unwrap(), IpAddr::from([127, 0, 0, 1]));
    }
}
