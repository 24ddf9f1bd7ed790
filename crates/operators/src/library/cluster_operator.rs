//! The ClusterOperator: what an operator tells the cluster-version-operator and everyone who asks.

use client::Resource;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::conditions::{Condition, find, listed, union};

pub const CLUSTER_OPERATORS: Resource =
    Resource::cluster("config.openshift.io", "v1", "clusteroperators", "ClusterOperator");

/// An object that belongs to an operator, for whoever gathers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Related {
    pub group: &'static str,
    pub resource: &'static str,
    pub namespace: &'static str,
    pub name: &'static str,
}

/// A namespace with everything in it.
pub const fn namespace(name: &'static str) -> Related {
    Related { group: "", resource: "namespaces", namespace: "", name }
}

/// An object of the whole cluster.
pub const fn of_cluster(group: &'static str, resource: &'static str, name: &'static str) -> Related {
    Related { group, resource, namespace: "", name }
}

/// The conditions that a ClusterOperator has, in the order of its columns.
const KINDS: [&str; 4] = ["Available", "Progressing", "Degraded", "Upgradeable"];

/// The status from the conditions of the parts. A version is told once what carries it has been rolled out; until then
/// the earlier one stands.
pub fn status(
    before: &Value,
    parts: &Value,
    versions: &[(String, String)],
    related: &[Related],
    now: Timestamp,
) -> Value {
    let conditions: Vec<Condition> = KINDS.iter().map(|kind| with_default(kind, parts, now)).collect();
    told(before, &conditions, versions, related, now)
}

/// Nobody said whether an update may happen: then it may.
fn with_default(kind: &str, parts: &Value, now: Timestamp) -> Condition {
    let condition = union(kind, parts, now);
    match (kind, condition.status) {
        ("Upgradeable", "Unknown") if condition.reason == "NoData" => {
            Condition::new(kind, "True", "AsExpected", "All is well")
        }
        _ => condition,
    }
}

/// What is said of an operator that was told not to work.
pub fn unmanaged(before: &Value, related: &[Related], now: Timestamp) -> Value {
    const WHY: &str = "the operator is in an unmanaged state, therefore no operator status is reported";
    let conditions: Vec<Condition> =
        KINDS.iter().map(|kind| Condition::new(kind, "Unknown", "Unmanaged", WHY)).collect();
    told(before, &conditions, &[], related, now)
}

fn told(
    before: &Value,
    conditions: &[Condition],
    versions: &[(String, String)],
    related: &[Related],
    now: Timestamp,
) -> Value {
    let mut list = listed(&before["conditions"], conditions, now);
    // Conditions of others stay: the version operator and administrators may add some.
    for other in before["conditions"].as_array().into_iter().flatten() {
        let kind = other["type"].as_str().unwrap_or_default();
        if find(&list, kind).is_none()
            && let Some(list) = list.as_array_mut()
        {
            list.push(other.clone());
        }
    }
    let mut have: Vec<Value> = before["versions"].as_array().cloned().unwrap_or_default();
    for (name, version) in versions {
        match have.iter_mut().find(|known| known["name"] == name.as_str()) {
            Some(known) => known["version"] = json!(version),
            None => have.push(json!({"name": name, "version": version})),
        }
    }
    let related: Vec<Value> = related
        .iter()
        .map(|one| {
            let mut value = json!({"group": one.group, "resource": one.resource, "name": one.name});
            if !one.namespace.is_empty() {
                value["namespace"] = json!(one.namespace);
            }
            value
        })
        .collect();
    let mut status = json!({"conditions": list, "relatedObjects": related});
    if !have.is_empty() {
        status["versions"] = json!(have);
    }
    if !before["extension"].is_null() {
        status["extension"] = before["extension"].clone();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_wait_for_the_rollout_and_then_stand() {
        let now = Timestamp::from_second(1).unwrap();
        let parts = listed(
            &Value::Null,
            &[
                Condition::fine("XAvailable"),
                Condition::not_fine("NodeInstallerProgressing", "Rollout", "2 of 3"),
                Condition::fine("XDegraded"),
            ],
            now,
        );
        let before = json!({"versions": [{"name": "operator", "version": "1"}]});
        let under_way = status(&before, &parts, &[], &[namespace("openshift-etcd")], now);
        assert_eq!(under_way["versions"], before["versions"]);
        assert_eq!(find(&under_way["conditions"], "Progressing").unwrap()["reason"], "NodeInstaller_Rollout");
        assert_eq!(find(&under_way["conditions"], "Upgradeable").unwrap()["status"], "True");
        assert_eq!(
            under_way["relatedObjects"][0],
            json!({"group": "", "resource": "namespaces", "name": "openshift-etcd"})
        );
        let done = status(&under_way, &parts, &[("operator".into(), "2".into())], &[], now);
        assert_eq!(done["versions"], json!([{"name": "operator", "version": "2"}]));
    }
}
