//! The networks that are asked for, and whether they can be had.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The type whose network is made here; for any other, someone else makes it.
pub const OWN_TYPE: &str = "OVNKubernetes";

/// What the operator works from: the fields of both Network objects that mean something to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkConfig {
    pub cluster_network: Vec<ClusterNetwork>,
    pub service_network: Vec<String>,
    pub network_type: String,
    pub mtu: Option<u32>,
    pub deploy_kube_proxy: bool,
    /// Flags of the proxy, beside those that follow from the networks.
    pub proxy_flags: Vec<String>,
}

/// A range of pod addresses, and how much of it a node gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterNetwork {
    pub cidr: String,
    pub host_prefix: u8,
}

/// What the operator's own object may ask for and cannot have: path and what is asked.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("/spec/additionalNetworks", "additional networks"),
    ("/spec/useMultiNetworkPolicy", "policies of additional networks"),
    ("/spec/exportNetworkFlows", "exporting network flows"),
    ("/spec/migration", "migrations"),
    ("/spec/defaultNetwork/ovnKubernetesConfig/ipsecConfig/mode", "IPsec"),
];

impl NetworkConfig {
    /// From the configuration and the operator's own object; where both speak, the configuration is meant.
    pub fn merge(config: &Value, operator: &Value) -> Result<Self, Vec<String>> {
        let mut problems = Vec::new();
        for (path, what) in UNSUPPORTED {
            let asked = operator.pointer(path).unwrap_or(&Value::Null);
            let is_asked = match asked {
                Value::Null | Value::Bool(false) => false,
                Value::Array(list) => !list.is_empty(),
                Value::Object(map) => !map.is_empty(),
                Value::String(text) => !matches!(text.as_str(), "" | "Disabled"),
                _ => true,
            };
            if is_asked {
                problems.push(format!(
                    "{}: {what} are not supported",
                    path.trim_start_matches('/').replace('/', ".")
                ));
            }
        }
        let either = |field: &str| match &config["spec"][field] {
            Value::Null => operator["spec"][field].clone(),
            value => value.clone(),
        };
        let mut read = |what: &str, value: Value| -> Value {
            match value {
                Value::Null => {
                    problems.push(format!("spec.{what} is missing"));
                    json!([])
                }
                value => value,
            }
        };
        let cluster = read("clusterNetwork", either("clusterNetwork"));
        let service = read("serviceNetwork", either("serviceNetwork"));
        let kind = match config["spec"]["networkType"].as_str() {
            Some(kind) if !kind.is_empty() => kind,
            _ => operator["spec"]["defaultNetwork"]["type"].as_str().unwrap_or_default(),
        };
        let merged = json!({
            "clusterNetwork": cluster, "serviceNetwork": service, "networkType": kind,
            "mtu": operator["spec"]["defaultNetwork"]["ovnKubernetesConfig"]["mtu"],
            // Services are led by the proxy, whoever makes the pod network; a network that does it says so.
            "deployKubeProxy": operator["spec"]["deployKubeProxy"].as_bool().unwrap_or(true),
            "proxyFlags": proxy_flags(&operator["spec"]["kubeProxyConfig"]),
        });
        let config: Self = match serde_json::from_value(merged) {
            Ok(config) => config,
            Err(error) => {
                problems.push(error.to_string());
                return Err(problems);
            }
        };
        problems.extend(config.problems());
        if problems.is_empty() { Ok(config) } else { Err(problems) }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut ranges: Vec<(String, IpNet)> = Vec::new();
        let all = self.cluster_network.iter().map(|one| ("clusterNetwork", &one.cidr));
        for (what, text) in all.chain(self.service_network.iter().map(|text| ("serviceNetwork", text))) {
            match text.parse::<IpNet>() {
                Err(_) => problems.push(format!("spec.{what}: {text:?} is no range of addresses")),
                Ok(range) if range.trunc() != range => problems
                    .push(format!("spec.{what}: {text} is not the beginning of a range: {}", range.trunc())),
                Ok(range) if range.addr().is_ipv6() => {
                    problems.push(format!("spec.{what}: {text}: only IPv4 is supported"))
                }
                Ok(range) => ranges.push((format!("spec.{what} {text}"), range)),
            }
        }
        for (what, count) in
            [("clusterNetwork", self.cluster_network.len()), ("serviceNetwork", self.service_network.len())]
        {
            if count != 1 {
                problems.push(format!("spec.{what} must hold one range, not {count}"));
            }
        }
        for one in &self.cluster_network {
            let prefix = one.cidr.parse::<IpNet>().map_or(0, |range| range.prefix_len());
            if one.host_prefix < prefix || one.host_prefix > 30 {
                problems.push(format!(
                    "spec.clusterNetwork: hostPrefix {} of {} must lie between {prefix} and 30",
                    one.host_prefix, one.cidr
                ));
            }
        }
        problems.extend(overlaps(&ranges));
        if self.mtu.is_some_and(|mtu| mtu != 0 && mtu < 1280) {
            problems.push(format!("mtu {} is too small: at least 1280", self.mtu.unwrap_or_default()));
        }
        problems
    }

    /// What is wrong with these networks among those of the machines.
    pub fn clashes(&self, machine_networks: &[String]) -> Vec<String> {
        let parse = |what: &str, text: &String| Some((format!("{what} {text}"), text.parse::<IpNet>().ok()?));
        let machines = machine_networks.iter().filter_map(|text| parse("machineNetwork", text));
        let own = self.cluster_network.iter().filter_map(|one| parse("clusterNetwork", &one.cidr));
        let services = self.service_network.iter().filter_map(|text| parse("serviceNetwork", text));
        overlaps(&own.chain(services).chain(machines).collect::<Vec<_>>())
    }

    /// What may not change once it is in force, and does.
    pub fn changes(&self, applied: &Self) -> Vec<String> {
        let fields = [
            ("clusterNetwork", self.cluster_network != applied.cluster_network),
            ("serviceNetwork", self.service_network != applied.service_network),
            ("defaultNetwork.type", self.network_type != applied.network_type),
            ("mtu", self.mtu.unwrap_or(0) != applied.mtu.unwrap_or(0)),
        ];
        let changed = fields.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(field, _)| format!("cannot change {field}: it is in use")).collect()
    }

    /// What everyone reads in the status of the configuration.
    pub fn status(&self) -> Value {
        let networks = self.cluster_network.iter();
        let mut status = json!({
            "clusterNetwork": networks
                .map(|one| json!({"cidr": one.cidr, "hostPrefix": one.host_prefix}))
                .collect::<Vec<_>>(),
            "serviceNetwork": self.service_network,
            "networkType": self.network_type,
        });
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu != 0) {
            status["clusterNetworkMTU"] = json!(mtu);
        }
        status
    }
}

fn overlaps(ranges: &[(String, IpNet)]) -> Vec<String> {
    let mut found = Vec::new();
    for (index, (name, range)) in ranges.iter().enumerate() {
        for (other_name, other) in &ranges[index + 1..] {
            if range.contains(other) || other.contains(range) {
                found.push(format!("{name} overlaps {other_name}"));
            }
        }
    }
    found
}

/// `kubeProxyConfig` as flags.
fn proxy_flags(config: &Value) -> Vec<String> {
    let mut flags = Vec::new();
    for (field, flag) in [("bindAddress", "bind-address"), ("iptablesSyncPeriod", "iptables-sync-period")] {
        if let Some(value) = config[field].as_str().filter(|value| !value.is_empty()) {
            flags.push(format!("--{flag}={value}"));
        }
    }
    for (name, values) in config["proxyArguments"].as_object().into_iter().flatten() {
        let values: Vec<&str> = values.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        flags.push(format!("--{name}={}", values.join(",")));
    }
    flags
}

/// The machines' networks, of the install-config that `cluster-config-v1` keeps.
pub fn machine_networks(config_map: &Value) -> Result<Vec<String>, String> {
    let text = config_map["data"]["install-config"].as_str().ok_or("it has no install-config")?;
    let config = apimachinery::decode::parse_yaml(text.as_bytes()).map_err(|error| error.to_string())?;
    let networks = config["networking"]["machineNetwork"].as_array().cloned().unwrap_or_default();
    Ok(networks.iter().filter_map(|one| one["cidr"].as_str().map(str::to_owned)).collect())
}

/// Host and port of the URL by which machines reach the API server.
pub fn api_server(infrastructure: &Value) -> Option<(String, u16)> {
    let url = infrastructure["status"]["apiServerInternalURI"].as_str()?.strip_prefix("https://")?;
    let authority = url.trim_end_matches('/');
    if let Ok(address) = authority.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Some((address.to_string(), 443));
    }
    match authority.rsplit_once(':') {
        Some((host, port)) => Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?)),
        None => Some((authority.to_owned(), 443)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn objects() -> (Value, Value) {
        let config = json!({"spec": {
            "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}],
            "serviceNetwork": ["172.30.0.0/16"], "networkType": "OVNKubernetes",
        }});
        let operator =
            json!({"spec": {"managementState": "Managed", "defaultNetwork": {"type": "OVNKubernetes"}}});
        (config, operator)
    }

    #[test]
    fn both_objects_make_one_configuration() {
        let (config, mut operator) = objects();
        operator["spec"]["kubeProxyConfig"] = json!({"proxyArguments": {"v": ["4"]}});
        operator["spec"]["defaultNetwork"]["ovnKubernetesConfig"] = json!({"mtu": 1400});
        let merged = NetworkConfig::merge(&config, &operator).unwrap();
        assert_eq!(
            (merged.mtu, merged.proxy_flags.as_slice()),
            (Some(1400), ["--v=4".to_owned()].as_slice())
        );
        assert_eq!(merged.status()["clusterNetworkMTU"], 1400);
        assert!(merged.deploy_kube_proxy);
        assert!(merged.changes(&merged).is_empty());
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let cases = [
            (
                "/spec/clusterNetwork",
                json!([{"cidr": "10.128.0.1/14", "hostPrefix": 23}]),
                "not the beginning",
            ),
            ("/spec/clusterNetwork", json!([{"cidr": "fd01::/48", "hostPrefix": 64}]), "only IPv4"),
            (
                "/spec/clusterNetwork",
                json!([{"cidr": "10.128.0.0/14", "hostPrefix": 8}]),
                "between 14 and 30",
            ),
            ("/spec/clusterNetwork", json!([]), "one range, not 0"),
            ("/spec/serviceNetwork", json!(["10.129.0.0/16"]), "overlaps"),
            ("/spec/serviceNetwork", json!(["everywhere"]), "no range"),
        ];
        for (path, value, wanted) in cases {
            let (mut config, operator) = objects();
            *config.pointer_mut(path).unwrap() = value;
            let problems = NetworkConfig::merge(&config, &operator).unwrap_err().join("; ");
            assert!(problems.contains(wanted), "{path}: {problems}");
        }
        let (config, mut operator) = objects();
        operator["spec"]["additionalNetworks"] = json!([{"name": "second"}]);
        let problems = NetworkConfig::merge(&config, &operator).unwrap_err().join("; ");
        assert!(problems.contains("additional networks are not supported"), "{problems}");
    }

    #[test]
    fn networks_in_use_do_not_change_and_must_not_be_the_machines() {
        let (mut config, operator) = objects();
        let applied = NetworkConfig::merge(&config, &operator).unwrap();
        config["spec"]["clusterNetwork"][0]["cidr"] = json!("10.132.0.0/14");
        let wanted = NetworkConfig::merge(&config, &operator).unwrap();
        assert_eq!(wanted.changes(&applied), ["cannot change clusterNetwork: it is in use"]);
        assert!(applied.clashes(&["10.0.0.0/16".to_owned()]).is_empty());
        assert_eq!(applied.clashes(&["10.0.0.0/8".to_owned()]).len(), 1);
    }

    #[test]
    fn the_installation_says_where_machines_and_api_server_are() {
        let map =
            json!({"data": {"install-config": "networking:\n  machineNetwork:\n  - cidr: 10.0.0.0/16\n"}});
        assert_eq!(machine_networks(&map).unwrap(), ["10.0.0.0/16"]);
        assert!(machine_networks(&json!({"data": {}})).is_err());
        let at = |url: &str| api_server(&json!({"status": {"apiServerInternalURI": url}}));
        assert_eq!(at("https://api-int.a.b:6443"), Some(("api-int.a.b".to_owned(), 6443)));
        assert_eq!(at("https://[fd00::1]:6443"), Some(("fd00::1".to_owned(), 6443)));
        assert_eq!(at("http://x:1"), None);
        assert_eq!(api_server(&Value::Null), None);
    }
}
