//! What a write needs from the world, by name, so that the exceptions to the generic store can be counted.
//!
//! An effect that takes something (an address, a port) reserves it before the write and keeps or undoes it after.

mod binding;
mod devices;
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
use crate::user::UserInfo;

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
    match (&*names.group, &*names.plural, old) {
        ("certificates.k8s.io", "certificatesigningrequests", Some(old)) => {
            stamp_verdicts(new, old, crate::clock::now());
        }
        ("certificates.k8s.io", "certificatesigningrequests", None) => name_requester(new, &context.user),
        ("resource.k8s.io", "resourceclaims" | "resourceclaimtemplates", None) => {
            devices::judge_request(server, context, new)?;
        }
        ("resource.k8s.io", "resourceclaims", Some(old)) if subresource == "status" => {
            devices::judge_status(server, context, new, old)?;
        }
        _ => {}
    }
    Ok(())
}

/// A request to sign names its requester, whatever the client wrote.
fn name_requester(request: &mut Value, user: &UserInfo) {
    for field in ["username", "uid", "groups", "extra"] {
        apimachinery::meta::remove(request, &format!("spec.{field}"));
    }
    let spec = &mut request["spec"];
    spec["username"] = Value::from(user.name.clone());
    if !user.uid.is_empty() {
        spec["uid"] = Value::from(user.uid.clone());
    }
    spec["groups"] = Value::from(user.groups.clone());
    if !user.extra.is_empty() {
        spec["extra"] = serde_json::json!(user.extra);
    }
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
    fn a_request_to_sign_says_nothing_of_its_requester_that_is_not_so() {
        let forged = json!({"spec": {"request": "r", "username": "root", "uid": "0", "groups": ["system:masters"],
            "extra": {"authentication.kubernetes.io/node-name": ["n1"]}}});
        let mut request = forged.clone();
        name_requester(&mut request, &UserInfo { name: "ann".to_owned(), ..UserInfo::default() });
        assert_eq!(request["spec"], json!({"request": "r", "username": "ann", "groups": []}));
        let mut user = UserInfo { name: "ann".to_owned(), uid: "7".to_owned(), ..UserInfo::default() };
        user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let mut request = forged;
        name_requester(&mut request, &user);
        assert_eq!((&request["spec"]["uid"], &request["spec"]["extra"]), (&json!("7"), &json!({"k": ["v"]})));
    }

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
