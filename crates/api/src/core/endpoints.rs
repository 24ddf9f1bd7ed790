//! Endpoints, the older form of EndpointSlices.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{
    Change, Column, Definition, MetaCheck, Rules, checks,
    defaults::{Constant, apply},
};

/// The addresses behind a Service.
pub fn definition() -> Definition {
    let mut definition = Definition::namespaced("", "v1", "Endpoints", "endpoints")
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
        .short(&["ep"])
        .stored_at("/registry/services/endpoints")
        .create_on_update()
        .columns(vec![Column::new("Endpoints", |endpoints, _| list(endpoints).into()), Column::age()])
        .rules(Endpoints);
    definition.deprecation =
        Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into());
    definition.names.list_kind = "EndpointsList".into();
    definition
}

struct Endpoints;

impl Rules for Endpoints {
    fn set_defaults(&self, endpoints: &mut Value) {
        apply(endpoints, &[("subsets.*.ports.*.protocol", Constant::Text("TCP"))]);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("subsets");
        for (index, subset) in get_list(change.new, "subsets").iter().enumerate() {
            let path = path.index(index);
            let (ready, waiting) = (get_list(subset, "addresses"), get_list(subset, "notReadyAddresses"));
            if ready.is_empty() && waiting.is_empty() {
                problems.required(&path, "must specify `addresses` or `notReadyAddresses`");
            }
            for (name, addresses) in [("addresses", ready), ("notReadyAddresses", waiting)] {
                let list = path.child(name);
                for (index, address) in addresses.iter().enumerate() {
                    let path = list.index(index);
                    let ip = get_str(address, "ip");
                    problems.invalid_each(&path.child("ip"), ip, names::is_ip(ip));
                    let host = get_str(address, "hostname");
                    if !host.is_empty() {
                        problems.invalid_each(&path.child("hostname"), host, names::is_dns1123_label(host));
                    }
                    checks::syntax(address, "nodeName", names::is_dns1123_subdomain, &path, problems);
                    endpoint_ip(ip, &path.child("ip"), problems);
                }
            }
            let ports = get_list(subset, "ports");
            let list = path.child("ports");
            for (index, port) in ports.iter().enumerate() {
                let path = list.index(index);
                let name = get_str(port, "name");
                if name.is_empty() {
                    if ports.len() > 1 {
                        problems.required(&path.child("name"), "");
                    }
                } else {
                    problems.invalid_each(&path.child("name"), name, names::is_dns1123_label(name));
                }
                let number = port["port"].as_i64().unwrap_or(0);
                for complaint in names::is_port_number(number) {
                    problems.invalid(&path.child("port"), number, complaint);
                }
                match get_str(port, "protocol") {
                    "TCP" | "UDP" | "SCTP" => {}
                    "" => problems.required(&path.child("protocol"), ""),
                    other => problems.not_supported(&path.child("protocol"), other, &["SCTP", "TCP", "UDP"]),
                }
                checks::syntax(port, "appProtocol", names::is_qualified_name, &path, problems);
            }
        }
    }
}

/// Addresses that no endpoint may have.
pub fn endpoint_ip(text: &str, path: &Path<'_>, problems: &mut Problems) {
    let Some(ip) = names::parse_ip_sloppy(text) else {
        problems.invalid(path, text, "must be a valid IP address");
        return;
    };
    if ip.is_unspecified() {
        problems.invalid(path, text, format!("may not be unspecified ({text})"));
    }
    if ip.is_loopback() {
        problems.invalid(path, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let local = match ip {
        std::net::IpAddr::V4(v4) => v4.is_link_local(),
        std::net::IpAddr::V6(v6) => (v6.segments()[0] & 0xffc0) == 0xfe80,
    };
    if local {
        problems.invalid(path, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    let group_local = match ip {
        std::net::IpAddr::V4(v4) => v4.octets()[0] == 224 && v4.octets()[1] == 0 && v4.octets()[2] == 0,
        std::net::IpAddr::V6(v6) => v6.segments()[0] == 0xff02,
    };
    if group_local {
        problems.invalid(
            path,
            text,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        );
    }
}

fn list(endpoints: &Value) -> String {
    let mut shown: Vec<String> = Vec::new();
    let mut count = 0;
    for subset in get_list(endpoints, "subsets") {
        let addresses = get_list(subset, "addresses");
        let ports = get_list(subset, "ports");
        if ports.is_empty() {
            count += addresses.len();
            shown.extend(addresses.iter().map(|address| get_str(address, "ip").to_owned()));
        }
        for port in ports {
            count += addresses.len();
            shown.extend(addresses.iter().map(|address| match get_str(address, "ip") {
                ip if ip.contains(':') => format!("[{ip}]:{}", port["port"]),
                ip => format!("{ip}:{}", port["port"]),
            }));
        }
    }
    match count {
        0 => "<none>".into(),
        1..=3 => shown.join(","),
        more => format!("{} + {} more...", shown[..3].join(","), more - 3),
    }
}
