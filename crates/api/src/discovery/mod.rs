//! Where the pods behind a Service are.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{
    Change, Column, Definition, MetaCheck, Rules, checks,
    core::endpoints::endpoint_ip,
    defaults::{Constant, apply},
};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
            .checks_update(&[MetaCheck::Whole])
            .gated(&["endpoints.*.deprecatedTopology"])
            .generation_counts("labels")
            .generation()
            .columns(vec![
                Column::path("AddressType", "addressType"),
                Column::new("Ports", |slice, _| ports(slice).into()),
                Column::new("Endpoints", |slice, _| endpoints(slice).into()),
                Column::age(),
            ])
            .rules(Slice),
    ]
}

fn ports(slice: &Value) -> String {
    let list = get_list(slice, "ports");
    if list.is_empty() {
        return "<unset>".into();
    }
    let texts: Vec<String> = list
        .iter()
        .take(3)
        .map(|port| match port.get("port") {
            Some(number) => number.to_string(),
            None => "*".into(),
        })
        .collect();
    shorten(texts, list.len())
}

fn endpoints(slice: &Value) -> String {
    let all: Vec<String> = get_list(slice, "endpoints")
        .iter()
        .flat_map(|endpoint| get_list(endpoint, "addresses"))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if all.is_empty() {
        return "<unset>".into();
    }
    let count = all.len();
    shorten(all.into_iter().take(3).collect(), count)
}

fn shorten(shown: Vec<String>, count: usize) -> String {
    match count.saturating_sub(3) {
        0 => shown.join(","),
        more => format!("{} + {more} more...", shown.join(",")),
    }
}

struct Slice;

impl Rules for Slice {
    fn set_defaults(&self, slice: &mut Value) {
        apply(slice, &[("ports.*.name", Constant::Text("")), ("ports.*.protocol", Constant::Text("TCP"))]);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let slice = change.new;
        checks::one_of(slice, "addressType", true, &["FQDN", "IPv4", "IPv6"], &Path::ROOT, problems);
        // A kind of address that may not change is not what the addresses are judged by.
        let kind = get_str(change.old.unwrap_or(slice), "addressType");
        let list = Path::new("endpoints");
        let endpoints = get_list(slice, "endpoints");
        if endpoints.len() > 1000 {
            problems.too_many(&list, endpoints.len(), 1000);
            return;
        }
        for (index, endpoint) in endpoints.iter().enumerate() {
            let at = list.index(index);
            let addresses = get_list(endpoint, "addresses");
            let path = at.child("addresses");
            if addresses.is_empty() {
                problems.required(&path, "must contain at least 1 address");
            } else if addresses.len() > 100 {
                problems.too_many(&path, addresses.len(), 100);
            }
            for (number, address) in addresses.iter().enumerate() {
                one_address(address.as_str().unwrap_or_default(), kind, &path.index(number), problems);
            }
            checks::syntax(endpoint, "nodeName", names::is_dns1123_subdomain, &at, problems);
            checks::syntax(endpoint, "hostname", names::is_dns1123_label, &at, problems);
            let hints = at.child("hints");
            for (field, rule) in [
                ("forZones", names::is_label_value as fn(&str) -> Vec<String>),
                ("forNodes", names::is_dns1123_subdomain),
            ] {
                let list = hints.child(field);
                let entries = get_list(&endpoint["hints"], field);
                if entries.len() > 8 {
                    problems.too_many(&list, entries.len(), 8);
                }
                for (number, entry) in entries.iter().enumerate() {
                    let at = list.index(number);
                    let name = get_str(entry, "name");
                    if entries[..number].iter().any(|have| have["name"] == name) {
                        problems.duplicate(&at.child("name"), name);
                    }
                    problems.invalid_each(&at.child("name"), name, rule(name));
                }
            }
        }
        port_list(slice, problems);
        if let Some(old) = change.old {
            checks::immutable(slice, old, "addressType", problems);
        }
    }
}

fn one_address(text: &str, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    match kind {
        "FQDN" => problems.invalid_each(path, text, names::is_dns1123_subdomain(text)),
        "IPv4" | "IPv6" => {
            let complaints = names::is_ip(text);
            if !complaints.is_empty() {
                problems.invalid_each(path, text, complaints);
            } else if text.contains(':') != (kind == "IPv6") {
                problems.invalid(path, text, format!("must be an {kind} address"));
            } else {
                endpoint_ip(text, path, problems);
            }
        }
        _ => {}
    }
}

fn port_list(slice: &Value, problems: &mut Problems) {
    let list = Path::new("ports");
    let ports = get_list(slice, "ports");
    if ports.len() > 20_000 {
        problems.too_many(&list, ports.len(), 20_000);
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(port, "name");
        if !name.is_empty() {
            problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
        }
        if seen.contains(&name) {
            problems.duplicate(&at.child("name"), name);
        }
        seen.push(name);
        checks::one_of_given(port, "protocol", &["SCTP", "TCP", "UDP"], &at, problems);
        checks::syntax(port, "appProtocol", names::is_qualified_name, &at, problems);
    }
}
