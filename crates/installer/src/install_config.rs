//! install-config.yaml: read, converted, completed, checked.
//!
//! The path: YAML → [`schema`] (types, names, choices) → [`convert`] (deprecated fields) → [`defaults`] →
//! [`InstallConfig`] → [`validate`]. Every fault is collected before anything is said.

pub mod convert;
pub mod defaults;
pub mod schema;
mod validate;
mod validate_machines;
mod validate_network;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::problem::{Problem, Problems};

/// A checked config, with its defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs)] // schema.rs explains every field
pub struct InstallConfig {
    #[serde(default)]
    pub api_version: String,
    pub metadata: Metadata,
    #[serde(default)]
    pub base_domain: String,
    pub control_plane: Option<Pool>,
    #[serde(default)]
    pub compute: Vec<Pool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arbiter: Option<Pool>,
    #[serde(default)]
    pub networking: Networking,
    #[serde(default)]
    pub platform: Platform,
    #[serde(default)]
    pub pull_secret: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ssh_key: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub additional_trust_bundle: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub additional_trust_bundle_policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Proxy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_digest_sources: Vec<ImageSource>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub publish: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fips: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub feature_set: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub credentials_mode: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpu_partitioning_mode: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_in_place: Option<BootstrapInPlace>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub os_image_stream: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Metadata {
    #[serde(default)]
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Pool {
    pub name: String,
    pub replicas: Option<i64>,
    pub architecture: String,
    pub hyperthreading: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub platform: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing: Option<Fencing>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Fencing {
    pub credentials: Vec<FencingCredential>,
}

#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct FencingCredential {
    pub host_name: String,
    pub address: String,
    pub username: String,
    pub password: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub certificate_verification: String,
}

impl std::fmt::Debug for FencingCredential {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "FencingCredential({})", self.host_name)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Networking {
    pub network_type: String,
    pub machine_network: Vec<MachineNetwork>,
    pub cluster_network: Vec<ClusterNetwork>,
    pub service_network: Vec<String>,
    #[serde(rename = "clusterNetworkMTU", skip_serializing_if = "Option::is_none")]
    pub cluster_network_mtu: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovn_kubernetes_config: Option<OvnKubernetesConfig>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct MachineNetwork {
    pub cidr: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ClusterNetwork {
    pub cidr: String,
    pub host_prefix: i64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct OvnKubernetesConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<OvnIpv4>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct OvnIpv4 {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_join_subnet: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Platform {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub none: Option<Empty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baremetal: Option<Baremetal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<Local>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Empty {}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Baremetal {
    #[serde(rename = "apiVIPs")]
    pub api_vips: Vec<String>,
    #[serde(rename = "ingressVIPs")]
    pub ingress_vips: Vec<String>,
    pub hosts: Vec<BaremetalHost>,
    #[serde(rename = "libvirtURI", skip_serializing_if = "String::is_empty")]
    pub libvirt_uri: String,
    pub external_bridge: String,
    pub provisioning_bridge: String,
    pub provisioning_network: String,
    #[serde(rename = "provisioningNetworkCIDR")]
    pub provisioning_network_cidr: String,
    #[serde(rename = "provisioningDHCPRange")]
    pub provisioning_dhcp_range: String,
    #[serde(rename = "bootstrapProvisioningIP")]
    pub bootstrap_provisioning_ip: String,
    #[serde(rename = "clusterProvisioningIP")]
    pub cluster_provisioning_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct LoadBalancer {
    #[serde(rename = "type")]
    pub type_: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BaremetalHost {
    pub name: String,
    pub role: String,
    pub bmc: Bmc,
    #[serde(rename = "bootMACAddress")]
    pub boot_mac_address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hardware_profile: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub root_device_hints: Value,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot_mode: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub network_config: Value,
}

#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Bmc {
    pub address: String,
    pub username: String,
    pub password: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_certificate_verification: bool,
}

impl std::fmt::Debug for Bmc {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Bmc({})", self.address)
    }
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct External {
    pub platform_name: String,
    pub cloud_controller_manager: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Local {
    #[serde(rename = "memoryMiB")]
    pub memory_mib: i64,
    pub cpus: i64,
    #[serde(rename = "bridgeCIDR")]
    pub bridge_cidr: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Proxy {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub http_proxy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub https_proxy: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub no_proxy: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct ImageSource {
    pub source: String,
    pub mirrors: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source_policy: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct Capabilities {
    pub baseline_capability_set: String,
    pub additional_enabled_capabilities: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[allow(missing_docs)]
pub struct BootstrapInPlace {
    pub installation_disk: String,
}

/// Why a text is not a config.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Not YAML.
    #[error("install-config.yaml is not YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The rules are broken.
    #[error("invalid install-config.yaml:{}", list(.0))]
    Invalid(Vec<Problem>),
    /// Types passed the schema and yet do not fit: a fault of ours.
    #[error("install-config.yaml cannot be read")]
    Types(#[from] serde_json::Error),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("\n  {problem}")).collect()
}

/// Reads, completes and checks a config. The second value holds warnings.
pub fn load(text: &str) -> Result<(InstallConfig, Vec<Problem>), ConfigError> {
    let mut problems = Problems::default();
    // Through YAML's own value, which refuses a key that stands twice.
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
    let mut document: Value = serde_json::to_value(yaml)?;
    if document.is_null() {
        document = Value::Object(serde_json::Map::new());
    }
    drop_nulls(&mut document);
    schema::check(&document, &mut problems);
    if !problems.is_clean() {
        // Wrong types would be reported again and again by every rule that reads them.
        let types_fit = !problems.clone().into_sorted().0.iter().any(|p| p.remedy.starts_with("must be "));
        if !types_fit {
            return Err(ConfigError::Invalid(problems.into_sorted().0));
        }
    }
    convert::convert(&mut document, &mut problems);
    defaults::fill(&mut document);
    let config: InstallConfig = serde_json::from_value(document)?;
    validate::validate(&config, &mut problems);
    let (errors, warnings) = problems.into_sorted();
    if errors.is_empty() { Ok((config, warnings)) } else { Err(ConfigError::Invalid(errors)) }
}

/// An empty value in YAML is an absent one, except for a platform without settings (`none:`).
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Object(platform)) = object.get_mut("platform") {
                for settings in platform.values_mut().filter(|settings| settings.is_null()) {
                    *settings = Value::Object(serde_json::Map::new());
                }
            }
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl InstallConfig {
    /// `<name>.<baseDomain>`, below which all names of the cluster stand.
    pub fn cluster_domain(&self) -> String {
        format!("{}.{}", self.metadata.name, self.base_domain.trim_end_matches('.'))
    }

    /// Machines of the control plane.
    pub fn control_plane_replicas(&self) -> i64 {
        self.control_plane.as_ref().and_then(|pool| pool.replicas).unwrap_or(0)
    }

    /// Machines for workloads, in all pools.
    pub fn compute_replicas(&self) -> i64 {
        self.compute.iter().filter_map(|pool| pool.replicas).sum()
    }

    /// Machines that complete a quorum.
    pub fn arbiter_replicas(&self) -> i64 {
        self.arbiter.as_ref().and_then(|pool| pool.replicas).unwrap_or(0)
    }

    /// The platform as other programs name it.
    pub fn platform_type(&self) -> &'static str {
        match &self.platform {
            Platform { baremetal: Some(_), .. } => "BareMetal",
            Platform { external: Some(_), .. } => "External",
            // Machines of this host are to operators what anyone's own machines are.
            _ => "None",
        }
    }

    /// How many failures the control plane outlives, in the API's words.
    pub fn control_plane_topology(&self) -> &'static str {
        match (self.control_plane_replicas(), self.arbiter_replicas()) {
            (1, _) => "SingleReplica",
            (2, 0) => "DualReplica",
            (_, 0) => "HighlyAvailable",
            (_, _) => "HighlyAvailableArbiter",
        }
    }

    /// The same for what runs on workers.
    pub fn infrastructure_topology(&self) -> &'static str {
        match self.compute_replicas() {
            0 if self.control_plane_replicas() == 1 => "SingleReplica",
            1 => "SingleReplica",
            _ => "HighlyAvailable",
        }
    }

    /// Whether workloads run on the control plane because nothing else is there.
    pub fn masters_schedulable(&self) -> bool {
        self.compute_replicas() == 0
    }

    /// Addresses of the `kubernetes` Service: the first of each service network.
    pub fn api_service_ips(&self) -> Vec<std::net::IpAddr> {
        self.service_addresses(1)
    }

    /// Addresses of the cluster DNS Service: the tenth of each service network.
    pub fn dns_service_ips(&self) -> Vec<std::net::IpAddr> {
        self.service_addresses(10)
    }

    fn service_addresses(&self, offset: u128) -> Vec<std::net::IpAddr> {
        self.networking
            .service_network
            .iter()
            .filter_map(|cidr| cidr.parse::<ipnet::IpNet>().ok())
            .map(|net| crate::addresses::nth(&net, offset))
            .collect()
    }

    /// The config without anything that must not be seen by those who may read the cluster's config.
    pub fn without_secrets(&self) -> Self {
        let mut config = self.clone();
        config.pull_secret = String::new();
        if let Some(baremetal) = &mut config.platform.baremetal {
            for host in &mut baremetal.hosts {
                host.bmc.username = String::new();
                host.bmc.password = String::new();
            }
        }
        let pools =
            config.control_plane.iter_mut().chain(&mut config.compute).chain(config.arbiter.iter_mut());
        for fencing in pools.filter_map(|pool| pool.fencing.as_mut()) {
            for credential in &mut fencing.credentials {
                credential.username = String::new();
                credential.password = String::new();
            }
        }
        if let Some(proxy) = &mut config.proxy {
            proxy.http_proxy = crate::redact::url(&proxy.http_proxy);
            proxy.https_proxy = crate::redact::url(&proxy.https_proxy);
        }
        config
    }
}
