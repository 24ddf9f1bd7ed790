//! What a chain of plug-ins answers to ADD, in every version of the protocol.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

use crate::Attachment;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    interfaces: Vec<Interface>,
    ips: Vec<Address>,
    /// Before 0.3.0.
    ip4: Option<Old>,
    ip6: Option<Old>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Interface {
    name: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
struct Address {
    address: IpNet,
    gateway: Option<IpAddr>,
    interface: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Old {
    ip: IpNet,
    gateway: Option<IpAddr>,
}

/// The pod's addresses: those of the interface in its namespace, or all if the answer does not say whose they are.
pub fn attachment(answer: &Value, interface: &str) -> Result<Attachment, String> {
    let answer: Answer =
        Deserialize::deserialize(answer).map_err(|error: serde_json::Error| error.to_string())?;
    let is_pods = |address: &&Address| match address.interface {
        None => true,
        Some(index) => answer
            .interfaces
            .get(index)
            .is_some_and(|one| !one.sandbox.is_empty() && (one.name == interface || one.name.is_empty())),
    };
    let mut found: Vec<(IpAddr, Option<IpAddr>)> =
        answer.ips.iter().filter(is_pods).map(|one| (one.address.addr(), one.gateway)).collect();
    let old = [&answer.ip4, &answer.ip6].into_iter().flatten();
    found.extend(old.map(|one| (one.ip.addr(), one.gateway)));
    if found.is_empty() {
        return Err("it holds no address of the pod".to_owned());
    }
    Ok(Attachment {
        gateway: found.iter().find_map(|(_, gateway)| *gateway),
        addresses: found.into_iter().map(|(address, _)| address).collect(),
        interface: interface.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_addresses_of_the_pods_own_interface_are_the_pods() {
        let answer = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "cni0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/proc/1/ns/net"}],
            "ips": [
                {"address": "10.1.0.1/24", "interface": 0},
                {"address": "10.1.0.5/24", "gateway": "10.1.0.1", "interface": 2},
                {"address": "fd00::5/64", "interface": 2},
            ],
        });
        let found = attachment(&answer, "eth0").unwrap();
        let wanted: Vec<IpAddr> = vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!((found.addresses, found.gateway), (wanted, Some("10.1.0.1".parse().unwrap())));
    }

    #[test]
    fn old_answers_are_understood_and_empty_or_wrong_ones_refused() {
        let old = json!({"ip4": {"ip": "10.1.0.5/24", "gateway": "10.1.0.1"}});
        assert_eq!(attachment(&old, "eth0").unwrap().addresses.len(), 1);
        assert!(attachment(&json!({}), "eth0").unwrap_err().contains("no address"));
        assert!(attachment(&json!({"ips": [{"address": "ten"}]}), "eth0").is_err());
        let far = json!({"interfaces": [], "ips": [{"address": "10.1.0.5/24", "interface": 7}]});
        assert!(attachment(&far, "eth0").is_err());
    }
}
