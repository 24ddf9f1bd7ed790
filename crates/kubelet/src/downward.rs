//! Facts about the pod that it may ask for: fields of its own object and resources of its containers.

use std::net::IpAddr;

use thiserror::Error;

use crate::pod::{Container, Pod, Quantity, ResourceFieldRef, StringMap};

/// What the pod's object does not say by itself.
#[derive(Debug, Clone, Default)]
pub struct PodFacts<'a> {
    pub node_name: &'a str,
    pub host_ips: &'a [IpAddr],
    pub pod_ips: &'a [IpAddr],
    /// What the node can give to pods: milli-cores and bytes.
    pub allocatable_cpu: i64,
    pub allocatable_memory: i64,
}

#[derive(Debug, Error, PartialEq)]
pub enum DownwardError {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
}

/// The value of a `fieldPath`.
pub fn field(pod: &Pod, facts: &PodFacts<'_>, path: &str) -> Result<String, DownwardError> {
    let metadata = &pod.metadata;
    let join = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    Ok(match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "metadata.labels" => formatted(&metadata.labels),
        "metadata.annotations" => formatted(&metadata.annotations),
        "spec.nodeName" => facts.node_name.to_owned(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" => first(facts.host_ips),
        "status.hostIPs" => join(facts.host_ips),
        "status.podIP" => first(facts.pod_ips),
        "status.podIPs" => join(facts.pod_ips),
        other => {
            let unsupported = || DownwardError::Field(other.to_owned());
            let (map, key) =
                other.strip_suffix("']").and_then(|text| text.split_once("['")).ok_or_else(unsupported)?;
            let values = match map {
                "metadata.labels" => &metadata.labels,
                "metadata.annotations" => &metadata.annotations,
                _ => return Err(unsupported()),
            };
            values.get(key).cloned().unwrap_or_default()
        }
    })
}

/// `key="value"` lines, sorted, as files of the downward API have them.
fn formatted(map: &StringMap) -> String {
    map.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>().join("\n")
}

/// The value of a `resourceFieldRef`, in units of its divisor, rounded up.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    facts: &PodFacts<'_>,
    wanted: &ResourceFieldRef,
) -> Result<String, DownwardError> {
    let container = match (wanted.container_name.as_str(), own) {
        ("", Some(own)) => own,
        (name, _) => pod
            .container(name)
            .map(|(_, container)| container)
            .ok_or_else(|| DownwardError::Container(name.into()))?,
    };
    let unsupported = || DownwardError::Resource(wanted.resource.clone());
    let (list, name) = wanted.resource.split_once('.').ok_or_else(unsupported)?;
    let is_cpu = name == "cpu";
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let read = |quantity: &Quantity| if is_cpu { quantity.millis() } else { quantity.value() };
    let value = match list {
        "limits" => container.resources.limits.get(name).and_then(read).filter(|value| *value > 0).unwrap_or(
            match name {
                // No limit: the node's own is what there is.
                "cpu" => facts.allocatable_cpu,
                "memory" => facts.allocatable_memory,
                _ => 0,
            },
        ),
        "requests" => {
            let own = container.resources.requests.get(name).or(container.resources.limits.get(name));
            own.and_then(read).unwrap_or(0)
        }
        _ => return Err(unsupported()),
    };
    let divisor = wanted.divisor.as_ref().and_then(read).filter(|divisor| *divisor > 0);
    let divisor = divisor.unwrap_or(if is_cpu { 1000 } else { 1 });
    Ok((value.saturating_add(divisor - 1) / divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_and_resources_have_upstreams_form() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": {"b": "2", "a": "x\"y"}, "annotations": {"k.io/n": "v"}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "33M"}}}]},
        }))
        .unwrap();
        let ips = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let facts = PodFacts { pod_ips: &ips, allocatable_cpu: 1900, node_name: "n", ..PodFacts::default() };
        for (path, wanted) in [
            ("metadata.labels", "a=\"x\\\"y\"\nb=\"2\""),
            ("metadata.annotations['k.io/n']", "v"),
            ("status.podIPs", "10.0.0.1,fd00::1"),
            ("spec.nodeName", "n"),
        ] {
            assert_eq!(field(&pod, &facts, path).unwrap(), wanted);
        }
        assert!(field(&pod, &facts, "status.phase").is_err());
        let of = |resource: &str, divisor: Option<&str>| {
            let wanted = ResourceFieldRef {
                container_name: "c".into(),
                resource: resource.into(),
                divisor: divisor.map(|text| Quantity(text.into())),
            };
            super::resource(&pod, None, &facts, &wanted).unwrap()
        };
        assert_eq!(of("requests.cpu", Some("1m")), "250");
        assert_eq!(of("requests.cpu", None), "1");
        assert_eq!(of("limits.cpu", None), "2");
        assert_eq!(of("requests.memory", Some("1Mi")), "32");
    }
}
