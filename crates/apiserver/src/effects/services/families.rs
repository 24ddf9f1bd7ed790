//! Which families of addresses a Service gets, and what it may not ask for.

use std::net::IpAddr;

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::{Reason, Status};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{is_headless, text};
use crate::server::ApiServer;

pub(super) fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

pub(super) fn of_family(range: &IpNet) -> &'static str {
    if matches!(range, IpNet::V4(_)) { "IPv4" } else { "IPv6" }
}

/// Whether a range can hand out an address: not its first one, nor for IPv4 its last.
pub(super) fn is_host(range: &IpNet, address: &IpAddr) -> bool {
    let edge = *address == range.network() || range.addr().is_ipv4() && *address == range.broadcast();
    range.contains(address) && !edge
}

/// What is wrong with the addresses and families that a Service asks for, before anything is taken and before the rest
/// of it is judged. `has` says which families the cluster has addresses of.
fn family_problems(service: &Value, old: Option<&Value>, has: &dyn Fn(&str) -> bool) -> Problems {
    let mut problems = Problems::new();
    let spec = &service["spec"];
    let by_hand = is_headless(service) && spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    let lists = |spec: &Value| (texts(&spec["clusterIPs"]), texts(&spec["ipFamilies"]));
    let policy = match (text(&spec["ipFamilyPolicy"]), old.map(|old| text(&old["spec"]["ipFamilyPolicy"]))) {
        ("", Some(before)) if !before.is_empty() => before,
        ("", _) if by_hand => "RequireDualStack",
        ("", _) => "SingleStack",
        (said, _) => said,
    };
    let (mut addresses, mut families) = lists(spec);
    let before = old.map(|old| lists(&old["spec"])).unwrap_or_default();
    // What a cluster of other families left behind is no reason to refuse the rest.
    if policy == "PreferDualStack"
        && old.is_some_and(|old| old["spec"]["ipFamilyPolicy"] == policy)
        && before == (addresses.clone(), families.clone())
    {
        return problems;
    }
    api::core::service_rules::cluster_addresses(spec, &Path::new("spec"), &mut problems);
    if !problems.is_empty() {
        return problems;
    }
    let root = Path::new("spec");
    let at = root.child("ipFamilyPolicy");
    if policy == "SingleStack" {
        // Who asks for one family gives the other one back.
        if addresses == before.0 {
            addresses.truncate(1);
        }
        if families == before.1 {
            families.truncate(1);
        }
    } else {
        let reduced = |after: &[String], before: &[String]| !after.is_empty() && after.len() < before.len();
        for (after, before, what) in
            [(&addresses, &before.0, "cluster IP"), (&families, &before.1, "IP family")]
        {
            if reduced(after, before) {
                problems.invalid(
                    &at,
                    policy,
                    format!("must be 'SingleStack' to release the secondary {what}"),
                );
            }
        }
    }
    if policy == "SingleStack" {
        for (count, what) in [(addresses.len(), "cluster IPs"), (families.len(), "IP families")] {
            if count == 2 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                problems.invalid(&at, policy, why);
            }
        }
    }
    for (index, one) in addresses.iter().enumerate().skip(families.len()) {
        let Ok(address) = one.parse::<IpAddr>() else { break };
        if has(family(&address)) {
            continue;
        }
        let why = format!("{} is not configured on this cluster", family(&address));
        problems.invalid(&root.child("clusterIPs").index(index), json!(addresses), why);
    }
    // Who lists the addresses by hand needs none of ours.
    if !problems.is_empty() || by_hand {
        return problems;
    }
    if policy == "RequireDualStack" && !(has("IPv4") && has("IPv6")) {
        problems.invalid(&at, policy, "this cluster is not configured for dual-stack services");
    }
    for (index, one) in families.iter().enumerate().filter(|(_, one)| !has(one)) {
        problems.invalid(
            &root.child("ipFamilies").index(index),
            one.as_str(),
            "not configured on this cluster",
        );
    }
    problems
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|one| text(one).to_owned()).collect()
}

/// A port of the nodes that a Service names twice.
fn doubled_port(service: &Value) -> Option<String> {
    let ports = service["spec"]["ports"].as_array()?;
    let pair = |port: &Value| (text(&port["protocol"]).to_owned(), port["nodePort"].as_u64().unwrap_or(0));
    let doubled = ports
        .iter()
        .enumerate()
        .map(|(index, port)| (index, pair(port)))
        .find(|(index, own)| own.1 != 0 && ports[..*index].iter().any(|other| pair(other) == *own))?;
    let (protocol, number) = doubled.1;
    Some(format!("duplicate nodePort: {{{protocol} {number}}}"))
}

/// Judges what a Service asks to be given. Upstream does so before it looks at the rest.
pub fn judge(server: &ApiServer, new: &Value, old: Option<&Value>) -> Result<(), Status> {
    let kind = text(&new["spec"]["type"]);
    if kind == "ExternalName" {
        return Ok(());
    }
    let ranges = server.service_ranges();
    let has = |name: &str| ranges.iter().any(|range| of_family(range) == name);
    let problems = family_problems(new, old, &has);
    if !problems.is_empty() {
        return Err(Status::invalid("", "Service", new.name(), &problems));
    }
    match doubled_port(new).filter(|_| old.is_some() && matches!(kind, "NodePort" | "LoadBalancer")) {
        Some(why) => Err(Status::failure(Reason::Unknown, why)),
        None => Ok(()),
    }
}

/// The families that a Service gets: as it says, as its addresses are, or the first family of the cluster.
pub(super) fn families(service: &Value, given: &[IpAddr], ranges: &[IpNet]) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    let mut add = |name: &'static str| {
        if !found.contains(&name) {
            found.push(name);
        }
    };
    for one in service["spec"]["ipFamilies"].as_array().into_iter().flatten() {
        add(if one == "IPv6" { "IPv6" } else { "IPv4" });
    }
    given.iter().for_each(|one| add(family(one)));
    if found.is_empty() {
        found.push(ranges.first().map_or("IPv4", of_family));
    }
    if matches!(text(&service["spec"]["ipFamilyPolicy"]), "PreferDualStack" | "RequireDualStack") {
        for range in ranges {
            if !found.contains(&of_family(range)) {
                found.push(of_family(range));
            }
        }
    }
    // Addresses that others list by hand need no range of ours.
    let by_hand = service["spec"]["clusterIP"] == "None"
        && service["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if by_hand && service["spec"]["ipFamilyPolicy"] == "RequireDualStack" && found.len() == 1 {
        found.push(if found[0] == "IPv4" { "IPv6" } else { "IPv4" });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cluster_has_no_addresses_of_is_refused() {
        let range: IpNet = "172.30.0.0/16".parse().unwrap();
        for (address, good) in
            [("172.30.0.0", false), ("172.30.0.1", true), ("172.30.255.255", false), ("10.0.0.1", false)]
        {
            assert_eq!(is_host(&range, &address.parse().unwrap()), good, "{address}");
        }
        for (spec, field) in [
            (json!({}), None),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), None),
            (json!({"ipFamilyPolicy": "RequireDualStack"}), Some("spec.ipFamilyPolicy")),
            (json!({"ipFamilies": ["IPv4", "IPv6"]}), Some("spec.ipFamilyPolicy")),
            (json!({"ipFamilies": ["IPv6"]}), Some("spec.ipFamilies[0]")),
            (json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}), Some("spec.clusterIPs[0]")),
            (json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]}), Some("spec.clusterIPs")),
            (json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv6"]}), None),
        ] {
            let service = json!({"spec": spec});
            let found = family_problems(&service, None, &|family| family == of_family(&range));
            assert_eq!(found.iter().next().map(|problem| problem.path.as_str()), field, "{service}");
        }
        let old = json!({"spec": {
            "ipFamilyPolicy": "RequireDualStack", "clusterIP": "None", "clusterIPs": ["None"],
            "ipFamilies": ["IPv4", "IPv6"],
        }});
        let mut new = old.clone();
        new["spec"]["ipFamilies"] = json!(["IPv4"]);
        let found = family_problems(&new, Some(&old), &|family| family == "IPv4");
        assert_eq!(
            found.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(),
            ["spec.ipFamilyPolicy"]
        );
    }

    #[test]
    fn a_port_is_not_named_twice() {
        let service = |ports: Value| json!({"spec": {"ports": ports}});
        let twice = service(json!([
            {"protocol": "TCP", "nodePort": 30001}, {"protocol": "UDP", "nodePort": 30001},
            {"protocol": "TCP", "nodePort": 30001},
        ]));
        assert_eq!(doubled_port(&twice).as_deref(), Some("duplicate nodePort: {TCP 30001}"));
        assert_eq!(doubled_port(&service(json!([{"protocol": "TCP"}, {"protocol": "TCP"}]))), None);
    }

    #[test]
    fn families_follow_what_is_said() {
        let ranges: Vec<IpNet> = vec!["10.0.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()];
        let none: [IpAddr; 0] = [];
        assert_eq!(families(&json!({"spec": {}}), &none, &ranges), ["IPv4"]);
        assert_eq!(
            families(&json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}), &none, &ranges),
            ["IPv4", "IPv6"]
        );
        assert_eq!(families(&json!({"spec": {"ipFamilies": ["IPv6"]}}), &none, &ranges), ["IPv6"]);
    }
}
