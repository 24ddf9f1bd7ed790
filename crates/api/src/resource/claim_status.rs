//! What a scheduler, drivers and controllers say of a ResourceClaim: which devices it has, who may use it, how they are.

use std::collections::HashSet;

use apimachinery::{
    field::{Path, Problems, go_quote},
    meta::{Meta, get, get_list, get_str, same},
    names,
};
use serde_json::{Value, json};

use super::{driver_name, opaque, pool_name, raw_object, request_reference, request_references, slice};
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
    let users = get_list(claim, "status.reservedFor");
    slice::set(users, 256, "uid", &path.child("reservedFor"), problems, |user, at, problems| {
        for field in ["resource", "name", "uid"] {
            checks::required(user, field, at, problems);
        }
    });
}

fn allocated(allocation: &Value, claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    let requests = get_list(claim, "spec.devices.requests");
    let devices = path.child("devices");
    let list = devices.child("results");
    let results = get_list(allocation, "devices.results");
    if results.len() > 32 {
        problems.too_many(&list, results.len(), 32);
    }
    for (index, result) in results.iter().enumerate().take_while(|_| results.len() <= 32) {
        let at = list.index(index);
        request_reference(get_str(result, "request"), requests, &at.child("request"), problems);
        device(result, &at, problems);
        slice::binding_conditions(result, &at, problems);
        share(result, &at, problems);
    }
    let list = devices.child("config");
    let configs = get_list(allocation, "devices.config");
    // Those of the class and those of the claim.
    let most = 2 * 32;
    if configs.len() > most {
        problems.too_many(&list, configs.len(), most);
    }
    for (index, config) in configs.iter().enumerate().take_while(|_| configs.len() <= most) {
        let at = list.index(index);
        checks::one_of_ordered(config, "source", true, &["FromClaim", "FromClass"], &at, problems);
        request_references(config, requests, &at, problems);
        opaque(config, &at, problems);
    }
    if let Some(selector) = allocation.get("nodeSelector") {
        node_selector(selector, &path.child("nodeSelector"), problems);
    }
}

fn device(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    driver_name(get_str(entry, "driver"), &path.child("driver"), problems);
    pool_name(get_str(entry, "pool"), &path.child("pool"), problems);
    let name = get_str(entry, "device");
    problems.invalid_each(&path.child("device"), name, names::is_dns1123_label(name));
}

/// Which share of a device it is: a UUID, in small letters.
fn share(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    const FORM: &str = "uid must be in RFC 4122 normalized form, `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with \
                        lowercase hexadecimal characters";
    let Some(text) = entry.get("shareID").and_then(Value::as_str) else { return };
    let at = path.child("shareID");
    if let Err(why) = uuid(text) {
        problems.invalid(&at, text, format!("error validating uid: {why}"));
    } else if text.len() != 36 || text.contains(|c: char| c.is_ascii_uppercase()) {
        problems.invalid(&at, text, FORM);
    }
}

/// What Go's library takes for a UUID: the usual form, alone, after a prefix or in braces, or without dashes.
fn uuid(text: &str) -> Result<(), String> {
    let hex = |text: &[u8]| text.iter().all(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let own = match bytes.len() {
        36 => bytes,
        45 if !bytes[..9].eq_ignore_ascii_case(b"urn:uuid:") => {
            let prefix = String::from_utf8_lossy(&bytes[..9]);
            return Err(format!("invalid urn prefix: {}", go_quote(&prefix)));
        }
        45 => &bytes[9..],
        38 if bytes[0] != b'{' || bytes[37] != b'}' => return Err("invalid bracketed UUID format".to_owned()),
        38 => &bytes[1..37],
        32 if hex(bytes) => return Ok(()),
        32 => return Err("invalid UUID format".to_owned()),
        other => return Err(format!("invalid UUID length: {other}")),
    };
    let sound = own.iter().enumerate().all(|(index, byte)| match index {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    if sound { Ok(()) } else { Err("invalid UUID format".to_owned()) }
}

/// How devices are, as their drivers say.
fn devices(claim: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("devices");
    let devices = get_list(claim, "status.devices");
    let known: HashSet<_> = results(claim).iter().map(identity).collect();
    let shown =
        |own: [&str; 4]| json!({"Driver": own[0], "Pool": own[1], "Device": own[2], "ShareID": own[3]});
    for (index, entry) in devices.iter().enumerate() {
        let at = list.index(index);
        device(entry, &at, problems);
        share(entry, &at, problems);
        let own = identity(entry);
        if !known.contains(&own) {
            problems.invalid(&at, shown(own), "must be an allocated device in the claim");
        }
        let conditions = get_list(entry, "conditions");
        if conditions.len() > 8 {
            problems.too_many(&at.child("conditions"), conditions.len(), 8);
        }
        checks::conditions(entry, &at, problems);
        if let Some(data) = entry.get("data").filter(|data| !data.is_null()) {
            raw_object(Some(data), &at.child("data"), problems);
        }
        if let Some(network) = entry.get("networkData") {
            interface(network, &at.child("networkData"), problems);
        }
    }
    slice::unique(devices, identity, shown, &list, problems);
}

fn interface(network: &Value, path: &Path<'_>, problems: &mut Problems) {
    for (field, most) in [("interfaceName", 256), ("hardwareAddress", 128)] {
        if get_str(network, field).len() > most {
            problems.too_long(&path.child(field), most);
        }
    }
    let ips = get_list(network, "ips");
    slice::set(ips, 16, "", &path.child("ips"), problems, |ip, at, problems| {
        let text = ip.as_str().unwrap_or_default();
        let parsed = text.split_once('/').and_then(|(ip, prefix)| {
            let ip: std::net::IpAddr = ip.parse().ok()?;
            let prefix: u8 = prefix.parse().ok()?;
            (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then(|| format!("{ip}/{prefix}"))
        });
        match parsed {
            None => problems.invalid(
                at,
                text,
                "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)",
            ),
            Some(form) if form != text => {
                problems.invalid(at, text, format!("must be in canonical form (\"{form}\")"));
            }
            Some(_) => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_told_apart_by_uuids() {
        let good = "0123abcd-0123-0123-0123-0123456789ab";
        for text in [good, &format!("{{{good}}}"), &format!("URN:uuid:{good}"), &good.replace('-', "")] {
            assert_eq!(uuid(text), Ok(()), "{text}");
        }
        let told = |text: &str| uuid(text).expect_err("is none");
        assert_eq!(told("x"), "invalid UUID length: 1");
        assert_eq!(told(&good.replace('-', "x")), "invalid UUID format");
        assert_eq!(told(&format!("<{good}>")), "invalid bracketed UUID format");
        assert_eq!(told(&format!("urn-uuid:{good}")), "invalid urn prefix: \"urn-uuid:\"");
    }
}
