//! KubeletConfiguration: the file, the drop-ins over it, the flags over both; every field judged by its row in
//! [`super::fields`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use controller_runtime::program::go_duration;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use super::fields::{self, Field, Rule, Shape};
use crate::config::Taint;
use crate::pod::Quantity;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";
/// No configuration is larger; a file that is, is none.
const LARGEST_FILE: u64 = 10 << 20;

#[derive(Debug, Error)]
pub enum ConfigurationError {
    #[error("failed to load kubelet config file, path: {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to load kubelet config file, path: {path}: it has {size} bytes")]
    Large { path: PathBuf, size: u64 },
    #[error("failed to decode kubelet config file, path: {path}")]
    Yaml {
        path: PathBuf,
        #[source]
        source: serde_yaml_ng::Error,
    },
    #[error("{path}: kind {kind:?} of {api_version:?} is not {KIND} of {API_VERSION}")]
    Kind { path: PathBuf, kind: String, api_version: String },
    #[error("{path}: strict decoding error: unknown field {field:?}")]
    Unknown { path: PathBuf, field: String },
    #[error("{path}: {field}: {why}")]
    Field { path: PathBuf, field: String, why: String },
    #[error("the configuration cannot be used")]
    Shape(#[source] serde_json::Error),
}

/// The fields that are acted on.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Configuration {
    pub enable_server: Option<bool>,
    pub static_pod_path: Option<PathBuf>,
    pub pod_logs_dir: Option<PathBuf>,
    pub address: Option<IpAddr>,
    pub port: Option<u16>,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub healthz_port: Option<u16>,
    pub healthz_bind_address: Option<IpAddr>,
    pub oom_score_adj: Option<i32>,
    pub cluster_domain: Option<String>,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub node_status_update_frequency: Option<String>,
    pub node_status_report_frequency: Option<String>,
    pub node_lease_duration_seconds: Option<u64>,
    pub cgroup_root: String,
    pub max_pods: Option<u32>,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Option<String>,
    pub pod_pids_limit: Option<i64>,
    pub resolv_conf: Option<String>,
    pub max_open_files: Option<u64>,
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: Option<String>,
    pub eviction_max_pod_grace_period: Option<u64>,
    pub merge_default_eviction_settings: bool,
    pub pods_per_core: u32,
    pub fail_swap_on: Option<bool>,
    pub container_log_max_size: Option<Quantity>,
    pub container_log_max_files: Option<u32>,
    pub system_reserved: BTreeMap<String, Quantity>,
    pub kube_reserved: BTreeMap<String, Quantity>,
    pub allowed_unsafe_sysctls: Vec<String>,
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
    pub logging: Logging,
    pub register_with_taints: Vec<Taint>,
    pub register_node: Option<bool>,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<u32>,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<i32>,
    pub registry_burst: Option<i32>,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: Option<String>,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: Option<String>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<u64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<u64>,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Authentication {
    pub x509: X509,
    pub webhook: Enabled,
    pub anonymous: Enabled,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct X509 {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Enabled {
    pub enabled: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub mode: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Logging {
    pub verbosity: u8,
}

/// Reads the file and the drop-ins, puts the flags over them.
pub fn load(
    file: Option<&Path>,
    directory: Option<&Path>,
    flags: &Value,
) -> Result<Configuration, ConfigurationError> {
    let mut merged = json!({});
    if let Some(path) = file {
        merge(&mut merged, read(path)?);
    }
    if let Some(directory) = directory {
        for path in drop_ins(directory)? {
            merge(&mut merged, read(&path)?);
        }
    }
    merge(&mut merged, flags.clone());
    // A value that says nothing is one that was not given.
    client::drop_nulls(&mut merged);
    serde_json::from_value(merged).map_err(ConfigurationError::Shape)
}

/// As upstream: every `*.conf` below the directory, in the order of their paths.
fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, ConfigurationError> {
    let failed = |source| ConfigurationError::Read { path: directory.to_owned(), source };
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_type().map_err(failed)?.is_dir() {
                open.push(entry.path());
            } else if entry.path().extension().is_some_and(|end| end == "conf") {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<Value, ConfigurationError> {
    let failed = |source| ConfigurationError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST_FILE {
        return Err(ConfigurationError::Large { path: path.to_owned(), size });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let yaml = |source| ConfigurationError::Yaml { path: path.to_owned(), source };
    // By way of YAML's own value, which does not let a key be there twice.
    let value: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).map_err(yaml)?;
    let mut value: Value = serde_yaml_ng::from_value(value).map_err(yaml)?;
    let word = |value: &Value, name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let (kind, api_version) = (word(&value, "kind"), word(&value, "apiVersion"));
    if kind != KIND || api_version != API_VERSION {
        return Err(ConfigurationError::Kind { path: path.to_owned(), kind, api_version });
    }
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("kind");
        object.shift_remove("apiVersion");
    }
    check(path, "", &value)?;
    Ok(value)
}

/// Every field of a file is known and has a value that is done.
fn check(file: &Path, path: &str, value: &Value) -> Result<(), ConfigurationError> {
    if let Some(field) = fields::find(path) {
        return judge(field, value).map_err(|why| ConfigurationError::Field {
            path: file.to_owned(),
            field: path.to_owned(),
            why,
        });
    }
    match value {
        Value::Object(members) if path.is_empty() || fields::has_below(path) => {
            for (name, value) in members {
                let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                check(file, &below, value)?;
            }
            Ok(())
        }
        // A whole section that says nothing.
        Value::Null if fields::has_below(path) => Ok(()),
        _ => Err(ConfigurationError::Unknown { path: file.to_owned(), field: path.to_owned() }),
    }
}

/// Whether a field may have this value; if not, why.
pub fn judge(field: &Field, value: &Value) -> Result<(), String> {
    if !value.is_null() {
        has_shape(field.shape, value)?;
    }
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match field.rule {
        Rule::Acts | Rule::Taken(_) => Ok(()),
        Rule::Only(values, why) if !values.contains(&text.as_str()) && !value.is_null() => {
            Err(format!("{text} is not supported: {why}"))
        }
        Rule::Only(..) => Ok(()),
    }
}

fn has_shape(shape: Shape, value: &Value) -> Result<(), String> {
    let is_texts = |value: &Value| value.as_object().is_some_and(|map| map.values().all(Value::is_string));
    let (holds, wanted) = match shape {
        Shape::Text => (value.is_string(), "a text"),
        Shape::Number => (value.is_number(), "a number"),
        Shape::Bool => (value.is_boolean(), "true or false"),
        Shape::Duration => {
            let reads = |text: &str| go_duration(text).is_ok();
            (value.as_str().is_some_and(reads), "a duration such as 5m0s")
        }
        Shape::Quantity => (value.is_string() || value.is_number(), "a quantity"),
        Shape::List => {
            (value.as_array().is_some_and(|list| list.iter().all(Value::is_string)), "a list of texts")
        }
        Shape::Map | Shape::Thresholds => (is_texts(value), "a map of texts"),
        Shape::Switches => {
            let switches = value.as_object().is_some_and(|map| map.values().all(Value::is_boolean));
            (switches, "a map of true and false")
        }
        Shape::Taints => return taints(value),
        Shape::Structure => (true, ""),
    };
    if holds { Ok(()) } else { Err(format!("{value} is not {wanted}")) }
}

fn taints(value: &Value) -> Result<(), String> {
    let taints: Vec<Taint> = Vec::deserialize(value).map_err(|error| error.to_string())?;
    for taint in taints {
        if taint.key.is_empty() || !matches!(&*taint.effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute")
        {
            return Err(format!("a taint with key {:?} and effect {:?} is invalid", taint.key, taint.effect));
        }
    }
    Ok(())
}

/// Maps are merged; everything else is replaced.
fn merge(target: &mut Value, over: Value) {
    match (target, over) {
        (Value::Object(target), Value::Object(over)) => {
            for (name, value) in over {
                merge(target.entry(name).or_insert(Value::Null), value);
            }
        }
        (target, over) => *target = over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn file(text: &str) -> Result<Configuration, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, format!("{HEAD}{text}")).unwrap();
        load(Some(&path), None, &json!({})).map_err(|error| telemetry::chain(&error).to_string())
    }

    #[test]
    fn fields_are_read_and_the_unknown_is_refused_by_name() {
        let read = file(
            "clusterDNS: [172.30.0.10]\nmaxPods: 7\nkubeReserved: {cpu: 100m}\nfeatureGates: {A: true}\nlogging: {verbosity: 4}\n\
             authentication: {x509: {clientCAFile: /ca}, webhook: {enabled: true, cacheTTL: 0s}, anonymous: null}\n",
        )
        .unwrap();
        assert_eq!((read.max_pods, read.cluster_dns.len(), read.logging.verbosity), (Some(7), 1, 4));
        assert_eq!(read.authentication.x509.client_ca_file, Some("/ca".into()));
        for (text, why) in [
            ("unknown: {a: 1}", "strict decoding error: unknown field \"unknown\""),
            ("authentication: {oidc: {}}", "unknown field \"authentication.oidc\""),
            ("MaxPods: 7", "unknown field \"MaxPods\""),
            ("maxPods: seven", "maxPods: \"seven\" is not a number"),
            ("maxPods: -1", "the configuration cannot be used"),
            ("cgroupDriver: systemd", "cgroupDriver: systemd is not supported: cgroups are made directly"),
            ("nodeStatusUpdateFrequency: 10", "is not a duration"),
            ("cpuManagerPolicy: static", "cpuManagerPolicy: static is not supported"),
            ("registerWithTaints: [{key: a, effect: Never}]", "effect \"Never\" is invalid"),
            ("maxPods: 1\nmaxPods: 2", "duplicate"),
        ] {
            let said = file(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn drop_ins_go_over_the_file_and_flags_over_both() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), format!("{HEAD}{text}")).unwrap();
        };
        write("config.yaml", "maxPods: 1\nport: 1\nkubeReserved: {cpu: 1, memory: 1Gi}");
        write("20-b.conf", "maxPods: 3\nport: 3");
        write("10-a.conf", "maxPods: 2\nkubeReserved: {cpu: \"2\"}");
        write("30-c.yaml", "maxPods: 9");
        let said = load(Some(&path), None, &json!({})).unwrap_err();
        assert!(telemetry::chain(&said).to_string().contains("a map of texts"), "as upstream: texts only");
        write("config.yaml", "maxPods: 1\nport: 1\nkubeReserved: {cpu: \"1\", memory: 1Gi}");
        let read = load(Some(&path), Some(directory.path()), &json!({"port": 5})).unwrap();
        assert_eq!((read.max_pods, read.port), (Some(3), Some(5)));
        assert_eq!((&*read.kube_reserved["cpu"].0, &*read.kube_reserved["memory"].0), ("2", "1Gi"));
    }

    #[test]
    fn other_kinds_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pod.yaml");
        std::fs::write(&path, "apiVersion: v1\nkind: Pod\n").unwrap();
        assert!(matches!(load(Some(&path), None, &json!({})), Err(ConfigurationError::Kind { .. })));
        assert!(matches!(
            load(Some(Path::new("/none")), None, &json!({})),
            Err(ConfigurationError::Read { .. })
        ));
    }
}
