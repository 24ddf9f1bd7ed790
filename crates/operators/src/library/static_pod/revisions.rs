//! Revisions: copies of everything that a static pod is made from, under a number that only grows.

use client::resources;
use serde_json::{Value, json};

use super::{Input, StaticPod, View, by_name};
use crate::library::conditions::Condition;
use crate::library::driver::Round;

/// How far the revisions are.
pub struct Revision {
    /// The newest one that is complete, zero if none is.
    pub latest: i64,
    /// Why it was made, if it is made now.
    pub reason: Option<String>,
    /// Whether the inputs are not what the newest one holds.
    pub pending: bool,
}

const KIND: &str = "RevisionControllerDegraded";

pub fn plan(table: &StaticPod, view: &View<'_>, round: &mut Round) -> Revision {
    let known = view.resource["status"]["latestAvailableRevision"].as_i64().unwrap_or(0);
    // Numbers are never used twice, also after the status was lost.
    let used = view.config_maps.iter().filter_map(|map| number_of(super::name_of(map))).max().unwrap_or(0);
    let latest = known;
    let missing: Vec<String> = inputs(table)
        .filter(|(kind, input)| !input.optional && find(view, kind, input.name).is_none())
        .map(|(kind, input)| format!("{kind}/{}", input.name))
        .collect();
    if !missing.is_empty() {
        let message = format!("missing: {}", missing.join(", "));
        round.conditions.push(Condition::not_fine(KIND, "ContentCreationError", message));
        return Revision { latest, reason: None, pending: true };
    }
    round.conditions.push(Condition::fine(KIND));
    let force = view.resource["spec"]["forceRedeploymentReason"].as_str().unwrap_or_default();
    let reason = if latest == 0 {
        Some("configmap \"".to_owned() + table.pod_config_map() + "-0\" not found")
    } else {
        changed(table, view, latest, force)
    };
    let Some(reason) = reason else { return Revision { latest, reason: None, pending: false } };
    // A number that was begun by one who was killed is filled anew; one that was completed differs by its status.
    let next = if used == latest + 1 { used } else { used.max(latest) + 1 };
    for (kind, input) in inputs(table) {
        if let Some(found) = find(view, kind, input.name) {
            round.write.push(copy(table, found, kind, next));
        }
    }
    round.write.push(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("revision-status-{next}"), "namespace": table.namespace},
        "data": {
            "revision": next.to_string(), "status": "InProgress", "reason": reason,
            "forceRedeploymentReason": force,
        },
    }));
    round.events.push(("RevisionCreate", format!("Revision {next} created because {reason}")));
    Revision { latest: next, reason: Some(reason), pending: false }
}

/// The number at the end of a `revision-status-N`.
pub fn number_of(name: &str) -> Option<i64> {
    name.strip_prefix("revision-status-")?.parse().ok()
}

/// Everything that is copied.
pub fn inputs(table: &StaticPod) -> impl Iterator<Item = (&'static str, Input)> {
    let config_maps = table.config_maps.iter().map(|input| ("configmap", *input));
    config_maps.chain(table.secrets.iter().map(|input| ("secret", *input)))
}

fn find<'a>(view: &View<'a>, kind: &str, name: &str) -> Option<&'a Value> {
    by_name(if kind == "secret" { view.secrets } else { view.config_maps }, name)
}

/// What differs from the newest revision, in a few words.
fn changed(table: &StaticPod, view: &View<'_>, latest: i64, force: &str) -> Option<String> {
    for (kind, input) in inputs(table) {
        let now = find(view, kind, input.name);
        let then = find(view, kind, &format!("{}-{latest}", input.name));
        match (now, then) {
            (None, None) => {}
            (Some(now), Some(then)) if content(now) == content(then) => {}
            (Some(_), Some(_)) => return Some(format!("{kind} \"{}\" has changed", input.name)),
            (Some(_), None) => {
                return Some(format!("{kind} \"{}-{latest}\" not found", input.name));
            }
            (None, Some(_)) => return Some(format!("optional {kind}/{} has been removed", input.name)),
        }
    }
    let status = find(view, "configmap", &format!("revision-status-{latest}"));
    let forced = status.and_then(|status| status["data"]["forceRedeploymentReason"].as_str()).unwrap_or("");
    (!force.is_empty() && force != forced).then(|| format!("required redeployment: {force}"))
}

fn content(object: &Value) -> (&Value, &Value) {
    (&object["data"], &object["binaryData"])
}

fn copy(table: &StaticPod, object: &Value, kind: &str, revision: i64) -> Value {
    let resource = if kind == "secret" { resources::SECRETS } else { resources::CONFIG_MAPS };
    let mut copy = json!({
        "apiVersion": "v1", "kind": resource.kind,
        "metadata": {
            "name": format!("{}-{revision}", super::name_of(object)), "namespace": table.namespace,
        },
    });
    for field in ["data", "binaryData", "type"] {
        if !object[field].is_null() {
            copy[field] = object[field].clone();
        }
    }
    copy
}
