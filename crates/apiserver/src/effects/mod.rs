//! What a write needs from the world, by name, so that the exceptions to the generic store can be counted.
//!
//! An effect that takes something (an address, a port) reserves it before the write and keeps or undoes it after.

mod binding;
mod eviction;
mod key_pair;
mod services;
mod token;

use api::Effect;
use apimachinery::status::Status;
use apimachinery::time;
use jiff::Timestamp;
use serde_json::Value;

use crate::context::Context;
use crate::server::ApiServer;

/// What was taken for a write that has not happened yet.
#[derive(Default)]
pub struct Reserved {
    services: Option<services::Taken>,
}

impl Reserved {
    /// The write happened: what the old object had and the new one has not goes back.
    pub async fn keep(self, server: &ApiServer, object: &Value) {
        if let Some(taken) = self.services {
            Box::pin(taken.keep(server, object)).await;
        }
    }

    /// The write did not happen: everything goes back.
    pub async fn undo(self, server: &ApiServer) {
        if let Some(taken) = self.services {
            Box::pin(taken.undo(server)).await;
        }
    }
}

/// Takes what the new object needs and fills it in.
pub async fn reserve(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: Option<&Value>,
    dry_run: bool,
) -> Result<Reserved, Status> {
    let mut reserved = Reserved::default();
    if context.resource.definition.effects.contains(&Effect::AllocateServiceAddresses)
        && context.info.subresource.is_empty()
    {
        reserved.services = Some(Box::pin(services::Taken::take(server, new, old, dry_run)).await?);
    }
    Ok(reserved)
}

/// Makes addresses and ports agree with the Services.
pub async fn repair_services(server: &ApiServer) -> Result<(), Status> {
    let outcome = services::repair(server).await;
    if outcome.is_err() {
        server.metrics.allocators.repair_errors.count([]);
    }
    outcome
}

/// Gives back what a removed object had.
pub async fn removed(server: &ApiServer, context: &Context, object: &Value) {
    if context.resource.definition.effects.contains(&Effect::AllocateServiceAddresses) {
        Box::pin(services::release_all(server, object)).await;
    }
    let names = &context.resource.definition.names;
    if names.group == "networking.k8s.io" && names.plural == "ipaddresses" {
        services::take_again(server, object).await;
    }
}

/// Checks and fills that need the caller's identity, on create.
pub fn prepare_create(server: &ApiServer, context: &Context, object: &mut Value) -> Result<(), Status> {
    prepare(server, context, object, None, "")
}

/// Devices that others use are for namespaces that an administrator marked.
fn admin_access(server: &ApiServer, context: &Context, claim: &Value) -> Result<(), Status> {
    use apimachinery::meta::{get, get_list};
    let spec = get(claim, "spec.spec").unwrap_or(&claim["spec"]);
    let requests = get_list(spec, "devices.requests");
    let asks = |request: &Value| request["exactly"]["adminAccess"] == true;
    let Some(index) = requests.iter().position(asks) else { return Ok(()) };
    let namespaces = server.builtin("", "namespaces")?;
    let namespace = server.cached(&namespaces, "", &context.info.namespace);
    let label = "resource.kubernetes.io/admin-access";
    if namespace.is_some_and(|entry| namespaces.parse(&entry)["metadata"]["labels"][label] == "true") {
        return Ok(());
    }
    let mut problems = apimachinery::field::Problems::new();
    let list = apimachinery::field::Path::new("spec.devices.requests");
    let why =
        format!("admin access to devices requires the `{label}: true` label on the containing namespace");
    problems.forbidden(&list.index(index).child("adminAccess"), why);
    Err(context.invalid(claim, &problems))
}

/// What only the world can tell of an object that is in order: becomes `Warning` headers.
pub fn warn(context: &Context, object: &Value) {
    let names = &context.resource.definition.names;
    if names.group.is_empty() && names.plural == "secrets" {
        key_pair::problem(object).into_iter().for_each(|problem| context.warn(problem));
    }
}

/// The same on update.
pub fn prepare_update(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: &Value,
    subresource: &str,
) -> Result<(), Status> {
    prepare(server, context, new, Some(old), subresource)
}

fn prepare(
    server: &ApiServer,
    context: &Context,
    new: &mut Value,
    old: Option<&Value>,
    subresource: &str,
) -> Result<(), Status> {
    let definition = &context.resource.definition;
    if definition.effects.contains(&Effect::CheckEscalation) {
        server.check_escalation(context, new, old)?;
    }
    if definition.effects.contains(&Effect::AllocateServiceAddresses) && subresource.is_empty() {
        services::judge(server, new, old)?;
    }
    let names = &definition.names;
    if names.group.is_empty() && names.plural == "persistentvolumes" {
        stamp_phase(new, old, subresource, crate::clock::now());
    }
    if names.group == "resource.k8s.io" && names.plural == "resourceslices" {
        stamp_taints(new, crate::clock::now());
    }
    if let Some(old) = old.filter(|_| names.plural == "certificatesigningrequests") {
        stamp_verdicts(new, old, crate::clock::now());
    }
    let claims = ["resourceclaims", "resourceclaimtemplates"];
    if names.group == "resource.k8s.io" && claims.iter().any(|name| names.plural == *name) && old.is_none() {
        admin_access(server, context, new)?;
    }
    // A request to sign names its requester, whatever the client wrote.
    if names.group == "certificates.k8s.io" && names.plural == "certificatesigningrequests" && old.is_none() {
        let user = &context.user;
        new["spec"]["username"] = Value::from(user.name.clone());
        if user.uid.is_empty() {
            apimachinery::meta::remove(new, "spec.uid");
        } else {
            new["spec"]["uid"] = Value::from(user.uid.clone());
        }
        new["spec"]["groups"] = Value::from(user.groups.clone());
        if !user.extra.is_empty() {
            new["spec"]["extra"] = serde_json::to_value(&user.extra).unwrap_or_default();
        }
    }
    Ok(())
}

/// Notes when something was said about a request to sign, where that is not told.
fn stamp_verdicts(new: &mut Value, old: &Value, now: Timestamp) {
    let before = old["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let conditions = new["status"].get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        if condition["lastUpdateTime"].is_null() {
            condition["lastUpdateTime"] = Value::from(time::seconds(now));
        }
        if condition["lastTransitionTime"].is_null() {
            let same =
                |own: &&Value| own["type"] == condition["type"] && own["status"] == condition["status"];
            let since = before.iter().find(same).map(|own| own["lastTransitionTime"].clone());
            let since = since.filter(|since| !since.is_null());
            condition["lastTransitionTime"] = since.unwrap_or_else(|| Value::from(time::seconds(now)));
        }
    }
}

/// Notes since when devices are tainted, where their driver does not say: how long pods may stay is counted from then.
fn stamp_taints(slice: &mut Value, now: Timestamp) {
    let devices = slice["spec"].get_mut("devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        // Older versions have what a device is one level down.
        for place in ["/taints", "/basic/taints"] {
            let taints = device.pointer_mut(place).and_then(Value::as_array_mut);
            for taint in taints.into_iter().flatten().filter(|taint| taint["timeAdded"].is_null()) {
                taint["timeAdded"] = Value::from(time::seconds(now));
            }
        }
    }
}

/// Notes when a volume came into its phase; a client that writes the status may say so itself.
fn stamp_phase(new: &mut Value, old: Option<&Value>, subresource: &str, now: Timestamp) {
    const SINCE: &str = "lastPhaseTransitionTime";
    let none = Value::Null;
    let status = old.map_or(&none, |old| &old["status"]);
    let (moved, said) =
        (new["status"]["phase"] != status["phase"], new["status"].get(SINCE).unwrap_or(&none).clone());
    let since = match (old.is_some(), subresource) {
        (false, _) => Value::from(time::seconds(now)),
        (true, "status") if moved && (said.is_null() || said == status[SINCE]) => {
            Value::from(time::seconds(now))
        }
        (true, "status") if !moved && said.is_null() => status[SINCE].clone(),
        _ => return,
    };
    if !since.is_null() {
        new["status"][SINCE] = since;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_says_since_when_it_is_in_its_phase() {
        let now = Timestamp::UNIX_EPOCH;
        let stamped = |mut new: Value, old: Option<&Value>| {
            stamp_phase(&mut new, old, "status", now);
            new["status"]["lastPhaseTransitionTime"].as_str().unwrap_or_default().to_owned()
        };
        let pending =
            json!({"status": {"phase": "Pending", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}});
        let mut bound = pending.clone();
        bound["status"]["phase"] = json!("Bound");
        let mut own = bound.clone();
        own["status"]["lastPhaseTransitionTime"] = json!("2021-01-01T00:00:00Z");
        let (epoch, then) = ("1970-01-01T00:00:00Z", "2020-01-01T00:00:00Z");
        for (new, old, want) in [
            (json!({"status": {"phase": "Pending"}}), None, epoch),
            (json!({"status": {"phase": "Pending"}}), Some(&pending), then),
            (json!({"status": {"phase": "Bound"}}), Some(&pending), epoch),
            (bound, Some(&pending), epoch),
            (own, Some(&pending), "2021-01-01T00:00:00Z"),
        ] {
            assert_eq!(stamped(new, old), want);
        }
    }
}
