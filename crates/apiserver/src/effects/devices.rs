//! Devices: who may ask for those of others, and who may say which a claim got and how they are.

use std::collections::{BTreeSet, HashMap};

use apimachinery::field::{Path, Problems};
use apimachinery::meta::{get, get_list};
use apimachinery::names;
use apimachinery::status::Status;
use serde_json::Value;

use crate::authz::Attributes;
use crate::context::Context;
use crate::impersonate::NODE_NAME;
use crate::server::ApiServer;
use crate::user::{UserInfo, split_service_account};

/// Judges what a new claim or template asks for. It does not change later.
pub fn judge_request(server: &ApiServer, context: &Context, claim: &Value) -> Result<(), Status> {
    let spec = get(claim, "spec.spec").unwrap_or(&claim["spec"]);
    let asks = |request: &Value| request["exactly"]["adminAccess"] == true;
    let Some(index) = get_list(spec, "devices.requests").iter().position(asks) else { return Ok(()) };
    let mut problems = Problems::new();
    let list = Path::new("spec.devices.requests");
    admin_access(server, context, &list.index(index).child("adminAccess"), &mut problems)?;
    said(context, claim, &problems)
}

/// Judges a new status of a claim.
pub fn judge_status(server: &ApiServer, context: &Context, new: &Value, old: &Value) -> Result<(), Status> {
    let mut problems = Problems::new();
    let granted = |claim: &Value| {
        let results = get_list(claim, "status.allocation.devices.results");
        results.iter().position(|result| result["adminAccess"] == true)
    };
    if let (None, Some(index)) = (granted(old), granted(new)) {
        let list = Path::new("status.allocation.devices.results");
        admin_access(server, context, &list.index(index).child("adminAccess"), &mut problems)?;
    }
    let (new_status, old_status) = (&new["status"], &old["status"]);
    if ["allocation", "reservedFor"].iter().any(|field| !is_same(&new_status[*field], &old_status[*field])) {
        binding(server, context, &mut problems);
    }
    // Without an allocation there are no devices to tell of.
    if new_status["allocation"].is_object() {
        for driver in changed_drivers(&new_status["devices"], &old_status["devices"]) {
            of_driver(server, context, driver, &new_status["allocation"], &mut problems);
        }
    }
    said(context, new, &problems)
}

fn said(context: &Context, claim: &Value, problems: &Problems) -> Result<(), Status> {
    if problems.is_empty() { Ok(()) } else { Err(context.invalid(claim, problems)) }
}

/// Devices that others use are for namespaces that an administrator marked.
fn admin_access(
    server: &ApiServer,
    context: &Context,
    path: &Path<'_>,
    problems: &mut Problems,
) -> Result<(), Status> {
    let namespaces = server.builtin("", "namespaces")?;
    let namespace = server.cached(&namespaces, "", &context.info.namespace);
    let label = "resource.kubernetes.io/admin-access";
    if namespace.is_none_or(|entry| namespaces.parse(&entry)["metadata"]["labels"][label] != "true") {
        let why =
            format!("admin access to devices requires the `{label}: true` label on the containing namespace");
        problems.forbidden(path, why);
    }
    Ok(())
}

/// Which devices a claim gets, and for whom, is said by those who may do so for every claim.
fn binding(server: &ApiServer, context: &Context, problems: &mut Problems) {
    let asked = Attributes {
        subresource: "binding",
        namespace: "",
        name: "",
        ..Attributes::of(&context.user, &context.info, "", "")
    };
    if let Err(refusal) = server.authorize_now(&asked).or_forbidden(&asked) {
        let why = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"{}\" permission: {}",
            asked.verb, refusal.message
        );
        problems.forbidden(&Path::new("status.allocation"), why);
    }
}

/// How devices are is said by whom may do so for their driver: on the node that they are on, or on any.
fn of_driver(
    server: &ApiServer,
    context: &Context,
    driver: &str,
    allocation: &Value,
    problems: &mut Problems,
) {
    let verb = context.info.verb;
    let mut verbs = Vec::new();
    if node_of(allocation).is_some_and(|node| is_on(&context.user, node)) {
        verbs.push(format!("associated-node:{verb}"));
    }
    verbs.push(format!("arbitrary-node:{verb}"));
    let mut first = None;
    for verb in &verbs {
        let own = Attributes::of(&context.user, &context.info, "", "");
        let asked = Attributes { verb, subresource: "driver", name: driver, ..own };
        match server.authorize_now(&asked).or_forbidden(&asked) {
            Ok(()) => return,
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    let refusal = first.map(|refusal| refusal.message).unwrap_or_default();
    let why = format!(
        "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {refusal}",
        verbs.join(" ")
    );
    problems.forbidden(&Path::new("status.devices"), why);
}

/// The drivers of devices that are told of, no longer told of, or told of otherwise.
fn changed_drivers<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    fn list(devices: &Value) -> &[Value] {
        devices.as_array().map_or(&[], Vec::as_slice)
    }
    let key = |device: &'a Value| {
        ["driver", "pool", "device", "shareID"].map(|field| device[field].as_str().unwrap_or_default())
    };
    let mut before: HashMap<[&str; 4], &Value> =
        list(old).iter().map(|device| (key(device), device)).collect();
    let mut changed = BTreeSet::new();
    for device in list(new) {
        let key = key(device);
        if before.remove(&key).is_none_or(|old| !is_same(device, old)) {
            changed.insert(key[0]);
        }
    }
    changed.extend(before.keys().map(|[driver, ..]| *driver));
    changed
}

/// The one node that an allocation is for.
fn node_of(allocation: &Value) -> Option<&str> {
    let [term] = get_list(allocation, "nodeSelector.nodeSelectorTerms") else { return None };
    let ([], [field]) = (get_list(term, "matchExpressions"), get_list(term, "matchFields")) else {
        return None;
    };
    let [node] = get_list(field, "values") else { return None };
    let names = field["key"] == "metadata.name" && field["operator"] == "In";
    node.as_str().filter(|node| names && !node.is_empty())
}

/// Whether `user` is an account whose token was made for a pod on `node`.
fn is_on(user: &UserInfo, node: &str) -> bool {
    let own = user.extra.get(NODE_NAME).map_or(&[][..], Vec::as_slice);
    split_service_account(&user.name).is_some()
        && matches!(own, [own] if own == node)
        && names::is_dns1123_subdomain(node).is_empty()
}

/// Whether two values mean the same: an empty list is none.
fn is_same(one: &Value, other: &Value) -> bool {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let same = |key: &String| {
                is_same(one.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null))
            };
            one.keys().chain(other.keys()).all(same)
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        _ => one == other || is_empty(one) && is_empty(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_driver_whose_devices_change_is_seen() {
        let device = |driver: &str, name: &str, more: Value| json!({"driver": driver, "pool": "p", "device": name, "conditions": more});
        let (a, b) = (device("a", "1", json!([])), device("b", "1", json!([])));
        let plain = json!({"driver": "a", "pool": "p", "device": "1"});
        let ready = device("a", "1", json!([{"type": "Ready"}]));
        let mut shared = a.clone();
        shared["shareID"] = json!("s");
        for (new, old, want) in [
            (json!([a, b]), json!([b, a]), &[][..]),
            (json!([a]), json!([plain]), &[]),
            (json!([a, b]), Value::Null, &["a", "b"]),
            (Value::Null, json!([b]), &["b"]),
            (json!([ready, b]), json!([a, b]), &["a"]),
            (json!([shared]), json!([a]), &["a"]),
        ] {
            let found: Vec<&str> = changed_drivers(&new, &old).into_iter().collect();
            assert_eq!(found, want, "{new} after {old}");
        }
    }

    #[test]
    fn an_account_is_on_the_node_that_its_token_names() {
        let allocation = |term: Value| json!({"nodeSelector": {"nodeSelectorTerms": [term]}});
        let on = |node: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        let n1 = allocation(on("n1"));
        assert_eq!(node_of(&n1), Some("n1"));
        let mut wide = on("n1");
        wide["matchExpressions"] = json!([{"key": "zone", "operator": "Exists"}]);
        for other in [json!({}), allocation(wide), allocation(json!({})), Value::Null] {
            assert_eq!(node_of(&other), None, "{other}");
        }
        let mut account = UserInfo::service_account("drivers", "d");
        assert!(!is_on(&account, "n1"));
        account.extra.insert(NODE_NAME.to_owned(), vec!["n1".to_owned()]);
        assert!(is_on(&account, "n1") && !is_on(&account, "n2"));
        account.name = "ann".to_owned();
        assert!(!is_on(&account, "n1"));
    }
}
