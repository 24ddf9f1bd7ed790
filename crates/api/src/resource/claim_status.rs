//! What a scheduler, drivers and controllers say of a ResourceClaim: which devices it has, who may use it, how they are.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str, same},
    names,
};
use serde_json::{Value, json};

use crate::{checks, core::pod_spec::affinity::node_selector, metadata::IMMUTABLE};

/// A device, and which share of it.
fn identity(entry: &Value) -> [&str; 4] {
    ["driver", "pool", "device", "shareID"].map(|field| get_str(entry, field))
}

fn results(claim: &Value) -> &[Value] {
    get_list(claim, "status.allocation.devices.results")
}

/// Forgets how devices are that the claim just lost.
pub fn prepare(claim: &mut Value, old: &Value) {
    let kept: Vec<Value> = get_list(claim, "status.devices")
        .iter()
        .filter(|device| {
            let has =
                |claim: &Value| results(claim).iter().any(|result| identity(result) == identity(device));
            !has(old) || has(claim)
        })
        .cloned()
        .collect();
    if kept.len() == get_list(claim, "status.devices").len() {
        return;
    }
    if kept.is_empty() {
        apimachinery::meta::remove(claim, "status.devices");
    } else {
        claim["status"]["devices"] = Value::Array(kept);
    }
}

/// Checks a write of the status.
pub fn validate(claim: &Value, old: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    users(claim, &path, problems);
    devices(claim, &path, problems);
    let reserved = path.child("reservedFor");
    let users = get_list(claim, "status.reservedFor");
    let allocation = get(claim, "status.allocation");
    if !users.is_empty() && allocation.is_none() {
        problems.forbidden(&reserved, "may not be specified when `allocated` is not set");
    } else if claim.is_terminating() {
        let before = get_list(old, "status.reservedFor");
        if users.iter().any(|user| !before.contains(user)) {
            problems.forbidden(
                &reserved,
                "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set",
            );
        }
    }
    let at = path.child("allocation");
    match (allocation, get(old, "status.allocation")) {
        (Some(after), Some(before)) if !same(after, before) => {
            problems.invalid(&at, crate::go_form::shown(after, "resource.AllocationResult"), IMMUTABLE)
        }
        (Some(after), None) => allocated(after, claim, &at, problems),
        _ => {}
    }
}

fn users(claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("reservedFor");
    let users = get_list(claim, "status.reservedFor");
    if users.len() > 256 {
        problems.too_many(&list, users.len(), 256);
        return;
    }
    for (index, user) in users.iter().enumerate() {
        let at = list.index(index);
        for field in ["resource", "name", "uid"] {
            checks::required(user, field, &at, problems);
        }
        if users[..index].iter().any(|other| get_str(other, "uid") == get_str(user, "uid")) {
            problems.duplicate(&at, get_str(user, "uid"));
        }
    }
}

fn allocated(allocation: &Value, claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    let devices = path.child("devices");
    let list = devices.child("results");
    let results = get_list(allocation, "devices.results");
    if results.len() > 32 {
        problems.too_many(&list, results.len(), 32);
    }
    for (index, result) in results.iter().enumerate().take_while(|_| results.len() <= 32) {
        let at = list.index(index);
        request(get_str(result, "request"), claim, &at.child("request"), problems);
        device(result, &at, problems);
        binding(result, &at, problems);
    }
    let list = devices.child("config");
    for (index, config) in get_list(allocation, "devices.config").iter().enumerate() {
        let at = list.index(index);
        match get_str(config, "source") {
            "" => problems.required(&at.child("source"), ""),
            "FromClaim" | "FromClass" => {}
            other => problems.not_supported(&at.child("source"), other, &["FromClaim", "FromClass"]),
        }
        let names = at.child("requests");
        for (number, name) in get_list(config, "requests").iter().enumerate() {
            request(name.as_str().unwrap_or_default(), claim, &names.index(number), problems);
        }
        let Some(opaque) = config.get("opaque") else {
            problems.required(&at.child("opaque"), "");
            continue;
        };
        let at = at.child("opaque");
        driver(opaque, &at, problems);
        raw(opaque.get("parameters"), &at.child("parameters"), problems);
    }
    if let Some(selector) = allocation.get("nodeSelector") {
        node_selector(selector, &path.child("nodeSelector"), problems);
    }
}

/// A request of the claim, or one of its alternatives after a slash.
fn request(name: &str, claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    const UNKNOWN: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let segments: Vec<&str> = name.split('/').collect();
    if segments.len() > 2 {
        problems.invalid(path, name, UNKNOWN);
        return;
    }
    for segment in &segments {
        problems.invalid_each(path, segment, names::is_dns1123_label(segment));
    }
    let known = get_list(claim, "spec.devices.requests").iter().any(|request| {
        let is = |entry: &Value, name: &str| get_str(entry, "name") == name;
        is(request, segments[0])
            && segments
                .get(1)
                .is_none_or(|sub| get_list(request, "firstAvailable").iter().any(|have| is(have, sub)))
    });
    if !known {
        problems.invalid(path, name, UNKNOWN);
    }
}

fn driver(owner: &Value, path: &Path<'_>, problems: &mut Problems) {
    let (name, at) = (get_str(owner, "driver"), path.child("driver"));
    if name.is_empty() {
        problems.required(&at, "");
        return;
    }
    if name.len() > 63 {
        problems.too_long(&at, 63);
    }
    problems.invalid_each(&at, name, names::is_dns1123_subdomain(name));
}

fn device(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    driver(entry, path, problems);
    let (pool, at) = (get_str(entry, "pool"), path.child("pool"));
    if pool.is_empty() {
        problems.required(&at, "");
    } else {
        if pool.len() > 253 {
            problems.too_long(&at, 253);
        }
        for part in pool.split('/') {
            problems.invalid_each(&at, part, names::is_dns1123_subdomain(part));
        }
    }
    checks::required_syntax(entry, "device", names::is_dns1123_label, path, problems);
}

/// What has to be true of a device before a pod is bound to its node.
fn binding(result: &Value, path: &Path<'_>, problems: &mut Problems) {
    let lists =
        ["bindingConditions", "bindingFailureConditions"].map(|field| (field, get_list(result, field)));
    for (field, list) in lists {
        let at = path.child(field);
        for (index, name) in list.iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            problems.invalid_each(&at.index(index), name, names::is_qualified_name(name));
        }
    }
    let [(_, wanted), (_, failures)] = lists;
    for (field, list, other) in
        [("bindingConditions", wanted, failures), ("bindingFailureConditions", failures, wanted)]
    {
        if list.is_empty() && !other.is_empty() {
            let needs =
                if field == "bindingConditions" { "bindingFailureConditions" } else { "bindingConditions" };
            problems.invalid(&path.child(field), Value::Null, format!("{field} are required to use {needs}"));
        }
    }
}

/// How devices are, as their drivers say.
fn devices(claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("devices");
    let devices = get_list(claim, "status.devices");
    for (index, entry) in devices.iter().enumerate() {
        let at = list.index(index);
        device(entry, &at, problems);
        let own = identity(entry);
        let shown = json!({"Driver": own[0], "Pool": own[1], "Device": own[2], "ShareID": own[3]});
        if !results(claim).iter().any(|result| identity(result) == own) {
            problems.invalid(&at, shown.clone(), "must be an allocated device in the claim");
        }
        if devices[..index].iter().any(|other| identity(other) == own) {
            problems.duplicate(&at, shown);
        }
        let conditions = get_list(entry, "conditions");
        if conditions.len() > 8 {
            problems.too_many(&at.child("conditions"), conditions.len(), 8);
        }
        checks::conditions(entry, &at, problems);
        if entry.get("data").is_some() {
            raw(entry.get("data"), &at.child("data"), problems);
        }
        if let Some(network) = entry.get("networkData") {
            interface(network, &at.child("networkData"), problems);
        }
    }
}

fn interface(network: &Value, path: &Path<'_>, problems: &mut Problems) {
    for (field, most) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if get_str(network, field).len() > most {
            problems.too_long(&path.child(field), most);
        }
    }
    let list = path.child("ips");
    let ips = get_list(network, "ips");
    for (index, ip) in ips.iter().enumerate() {
        let text = ip.as_str().unwrap_or_default();
        let parsed = text.split_once('/').and_then(|(ip, prefix)| {
            let ip: std::net::IpAddr = ip.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then(|| format!("{ip}/{prefix}"))
        });
        match parsed {
            None => problems.invalid(
                &list.index(index),
                text,
                "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
            ),
            Some(form) if form != text => {
                problems.invalid(&list.index(index), text, format!("must be in canonical form (\"{form}\")"));
            }
            Some(_) => {}
        }
        if ips[..index].contains(ip) {
            problems.duplicate(&list.index(index), text);
        }
    }
}

/// Data of a driver's own: an object, not too large.
fn raw(value: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    match value {
        None | Some(Value::Null) => problems.required(path, ""),
        Some(value) if value.to_string().len() > 10 * 1024 => problems.too_long(path, 10 * 1024),
        Some(Value::Object(_)) => {}
        Some(_) => problems.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}
