//! NetworkPolicies.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names, selector,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, apply},
    print,
};

/// Which traffic pods accept and send.
pub fn definition() -> Definition {
    Definition::namespaced("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
        .short(&["netpol"])
        .generation()
        .columns(vec![
            Column::new("Pod-Selector", |policy, _| print::selector(get(policy, "spec.podSelector")).into()),
            Column::age(),
        ])
        .rules(Policy)
}

struct Policy;

impl Rules for Policy {
    fn set_defaults(&self, policy: &mut Value) {
        apply(
            policy,
            &[
                ("spec.ingress.*.ports.*.protocol", Constant::Text("TCP")),
                ("spec.egress.*.ports.*.protocol", Constant::Text("TCP")),
            ],
        );
        if policy["spec"].is_object() && get_list(policy, "spec.policyTypes").is_empty() {
            let egress = !get_list(policy, "spec.egress").is_empty();
            policy["spec"]["policyTypes"] =
                if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        selector::validate_object(&spec["podSelector"], &path.child("podSelector"), problems);
        for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
            let list = path.child(direction);
            for (index, rule) in get_list(spec, direction).iter().enumerate() {
                let at = list.index(index);
                let ports = at.child("ports");
                for (number, value) in get_list(rule, "ports").iter().enumerate() {
                    port(value, &ports.index(number), problems);
                }
                let peer_path = at.child(peers);
                for (number, value) in get_list(rule, peers).iter().enumerate() {
                    peer(value, &peer_path.index(number), problems);
                }
            }
        }
        let types = get_list(spec, "policyTypes");
        let list = path.child("policyTypes");
        if types.len() > 2 {
            problems.invalid(
                &list,
                Value::Array(types.to_vec()),
                "may not specify more than two policyTypes",
            );
            return;
        }
        for (index, kind) in types.iter().enumerate() {
            let text = kind.as_str().unwrap_or_default();
            if !["Ingress", "Egress"].contains(&text) {
                problems.not_one_of(&list.index(index), text, &["Ingress", "Egress"]);
            }
        }
    }
}

fn port(port: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::one_of_ordered(port, "protocol", false, &["TCP", "UDP", "SCTP"], path, problems);
    let end = port["endPort"].as_i64();
    match port.get("port") {
        None => {
            if let Some(end) = end {
                problems.invalid(
                    &path.child("endPort"),
                    end,
                    "may not be specified when `port` is not specified",
                );
            }
        }
        Some(value @ Value::String(_)) => {
            if let Some(end) = end {
                problems.invalid(
                    &path.child("endPort"),
                    end,
                    "may not be specified when `port` is non-numeric",
                );
            }
            checks::port_or_name(value, &path.child("port"), problems);
        }
        Some(value) => {
            checks::port_or_name(value, &path.child("port"), problems);
            if let Some(end) = end {
                if end < value.as_i64().unwrap_or(0) {
                    // What upstream shows here is the other number.
                    let why = "must be greater than or equal to `port`";
                    problems.invalid(&path.child("endPort"), value.clone(), why);
                }
                for complaint in names::is_port_number(end) {
                    problems.invalid(&path.child("endPort"), end, complaint);
                }
            }
        }
    }
}

fn peer(peer: &Value, path: &Path<'_>, problems: &mut Problems) {
    let mut count = 0;
    for field in ["podSelector", "namespaceSelector"] {
        if let Some(value) = peer.get(field) {
            count += 1;
            selector::validate_object(value, &path.child(field), problems);
        }
    }
    match peer.get("ipBlock") {
        None if count == 0 => problems.required(path, "must specify a peer"),
        None => {}
        Some(block) => {
            ip_block(block, &path.child("ipBlock"), problems);
            if count > 0 {
                problems.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
    }
}

fn ip_block(block: &Value, path: &Path<'_>, problems: &mut Problems) {
    let cidr = get_str(block, "cidr");
    if cidr.is_empty() {
        problems.required(&path.child("cidr"), "");
        return;
    }
    let complaints = names::is_cidr(cidr);
    let bad = !complaints.is_empty();
    problems.invalid_each(&path.child("cidr"), cidr, complaints);
    if bad {
        // Nothing can be left out of what is no range.
        return;
    }
    let list = path.child("except");
    for (index, except) in get_list(block, "except").iter().enumerate() {
        let text = except.as_str().unwrap_or_default();
        let complaints = names::is_cidr(text);
        if complaints.is_empty() && !is_inside(text, cidr) {
            problems.invalid(&list.index(index), text, "must be a strict subset of `cidr`");
        }
        problems.invalid_each(&list.index(index), text, complaints);
    }
}

/// Whether one subnet is strictly inside another.
fn is_inside(inner: &str, outer: &str) -> bool {
    let parse = |text: &str| -> Option<(u128, u32, u32)> {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok()?;
        Some(match names::parse_ip_sloppy(address)? {
            std::net::IpAddr::V4(v4) => (u128::from(u32::from(v4)), length, 32),
            std::net::IpAddr::V6(v6) => (u128::from(v6), length, 128),
        })
    };
    let (Some((a, a_length, a_width)), Some((b, b_length, b_width))) = (parse(inner), parse(outer)) else {
        return false;
    };
    let prefix = |address: u128| if b_length == 0 { 0 } else { address >> (b_width - b_length) };
    a_width == b_width && a_length > b_length && prefix(a) == prefix(b)
}
