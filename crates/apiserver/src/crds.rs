//! Custom resources: a CRD adds definitions to the registry and a cache to the hub, and takes them away again.
//!
//! One task follows the CRDs, one change at a time: names are accepted or refused, served versions appear in the
//! registry (and so in discovery, OpenAPI and every verb), and when a CRD is deleted its objects go first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::Definition;
use api::apiextensions::approval::approval;
use apimachinery::meta::{Meta, MetaMut};
use apimachinery::status::Status;
use apimachinery::time;
use bytes::Bytes;
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::cache::entry::encode_for_store;
use crate::cache::{Observed, Observer, Open};
use crate::context::Context;
use crate::conversion::Converter;
use crate::registry::Resource;
use crate::server::ApiServer;
use crate::store::WriteOptions;
use crate::user::UserInfo;
use crate::verbs::delete::DeleteOptions;

/// Keeps a deleted CRD until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
/// A CRD that could not be handled is tried again after this.
const RETRY: Duration = Duration::from_secs(2);

/// The changes that wait, and what is served for which CRD.
pub struct Changes {
    sender: mpsc::UnboundedSender<String>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<String>>>,
    /// The spec that is served, by CRD.
    served: Mutex<HashMap<String, (Value, Bytes)>>,
}

impl Default for Changes {
    fn default() -> Self {
        let (sender, inbox) = mpsc::unbounded_channel();
        Self { sender, inbox: Mutex::new(Some(inbox)), served: Mutex::default() }
    }
}

impl Changes {
    /// An observer that notes which CRDs changed.
    pub fn observer(&self) -> Observer {
        let sender = self.sender.clone();
        Arc::new(move |observed| {
            let (Observed::Put(entry) | Observed::Gone(entry)) = observed;
            let _ = sender.send(entry.name().to_owned()); // fails only after the follower has stopped
        })
    }
}

/// Serves every CRD that is stored.
pub async fn load(server: &Arc<ApiServer>) {
    let Ok(crds) = server.builtin("apiextensions.k8s.io", "customresourcedefinitions") else { return };
    let Some(cache) = server.hub.cache(&crds.prefix) else { return };
    for entry in cache.snapshot(&crds.prefix, 0).entries {
        let crd = entry.parse();
        if is_established(&crd) {
            serve(server, &crd).await;
        }
    }
}

/// Follows changes of CRDs.
pub fn follow(server: &Arc<ApiServer>) {
    let inbox = server.crd_changes.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let Some(inbox) = inbox else { return };
    let own = server.clone();
    let inbox = Arc::new(tokio::sync::Mutex::new(inbox));
    let mut is_first = true;
    server.tasks.keep("crds", move |stop| {
        follow_changes(own.clone(), inbox.clone(), std::mem::replace(&mut is_first, false), stop)
    });
}

type Inbox = Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<String>>>;

async fn follow_changes(own: Arc<ApiServer>, inbox: Inbox, is_first: bool, stop: Stop) {
    if !is_first {
        // What was in hand when it panicked is not known; each CRD is looked at again.
        for name in stored(&own) {
            let _ = own.crd_changes.sender.send(name); // the receiver is the inbox below
        }
    }
    let mut inbox = inbox.lock().await;
    while let Some(Some(name)) = stop.or(inbox.recv()).await {
        if let Err(status) = sync(&own, &name).await {
            warn!(crd = name, error = %status, "cannot follow a CRD now");
            let sender = own.crd_changes.sender.clone();
            own.tasks.spawn("crd-retry", |stop| async move {
                if stop.or(tokio::time::sleep(RETRY)).await.is_some() {
                    let _ = sender.send(name); // fails only after the follower has stopped
                }
            });
        }
    }
}

fn stored(server: &ApiServer) -> Vec<String> {
    let Ok(crds) = server.builtin("apiextensions.k8s.io", "customresourcedefinitions") else {
        return Vec::new();
    };
    let Some(cache) = server.hub.cache(&crds.prefix) else { return Vec::new() };
    cache.snapshot(&crds.prefix, 0).entries.iter().map(|entry| entry.name().to_owned()).collect()
}

async fn sync(server: &Arc<ApiServer>, name: &str) -> Result<(), Status> {
    let crds = server.builtin("apiextensions.k8s.io", "customresourcedefinitions")?;
    // Observers are told of a change before the cache shows it: without this, the CRD as it was before would be followed.
    server.hub.catch_up().await.map_err(|error| crate::verbs::read::store_failure(&error))?;
    let Some(entry) = server.cached(&crds, "", name) else {
        withdraw(server, name);
        return Ok(());
    };
    let crd = entry.parse();
    if crd.is_terminating() {
        return finish(server, &crd).await;
    }
    let conflict = name_conflict(server, &crd);
    if conflict.is_none() {
        serve(server, &crd).await;
    }
    write_status(server, name, |crd| accept(crd, conflict.as_deref())).await
}

fn is_established(crd: &Value) -> bool {
    has_condition(crd, "Established")
}

fn has_condition(crd: &Value, kind: &str) -> bool {
    let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|one| one["type"] == kind && one["status"] == "True")
}

/// A name of the CRD that another resource of its group has.
fn name_conflict(server: &ApiServer, crd: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names = &crd["spec"]["names"];
    let group = text(&crd["spec"]["group"]);
    let (plural, kind, singular) = (text(&names["plural"]), text(&names["kind"]), text(&names["singular"]));
    let own = format!("{plural}.{group}");
    let table = server.registry.table();
    for other in table.all().filter(|other| other.group() == group) {
        let names = &other.definition.names;
        if names.group_resource() == own {
            if !other.definition.custom {
                return Some(format!("{plural:?} is already in use"));
            }
            continue;
        }
        if names.kind == kind {
            return Some(format!("{kind:?} is already in use"));
        }
        if names.singular == singular || names.short_names.iter().any(|short| *short == singular) {
            return Some(format!("{singular:?} is already in use"));
        }
    }
    None
}

/// Puts the versions of a CRD into the registry and its objects into the cache.
async fn serve(server: &Arc<ApiServer>, crd: &Value) {
    let name = crd.name().to_owned();
    let known =
        server.crd_changes.served.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&name).cloned();
    if known.is_some_and(|(spec, _)| spec == crd["spec"]) {
        return;
    }
    let all = match Definition::versions_of_crd(crd) {
        Ok(all) => all,
        Err(problems) => {
            warn!(crd = name, problems = problems.summary(), "a stored CRD cannot be served");
            return;
        }
    };
    let all: Vec<(Arc<Definition>, bool)> =
        all.into_iter().map(|(one, served)| (Arc::new(one), served)).collect();
    let versions: Vec<Arc<Definition>> = all.iter().map(|(one, _)| one.clone()).collect();
    let converter = Converter::of(server, crd, &versions);
    let stored = versions.iter().find(|one| one.names.version == one.storage.version);
    let served = all.iter().filter(|(_, served)| *served);
    let resources: Vec<Arc<Resource>> = served
        .map(|(one, _)| Arc::new(Resource::new((**one).clone()).versioned(converter.clone(), stored)))
        .collect();
    // Objects of a CRD that serves no version are kept, and go when it goes.
    let Some(first) = versions.first() else { return };
    let prefix = Resource::new((**first).clone()).prefix;
    let names = &first.names;
    let sealed =
        server.encryption.as_ref().map(|encryption| encryption.declare(&prefix, &names.group, &names.plural));
    let open = with_defaults(&versions, sealed);
    server.hub.add(prefix.clone(), open, Vec::new()).await;
    server.registry.set_custom(&name, resources);
    server
        .crd_changes
        .served
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .insert(name.clone(), (crd["spec"].clone(), prefix));
    info!(crd = name, "serving custom resources");
}

/// Stored objects get the defaults of their version as they are read, so that a new default is seen at once.
fn with_defaults(versions: &[Arc<Definition>], sealed: Option<Open>) -> Option<Open> {
    let has_defaults = versions.iter().any(|version| {
        version.published_schema.as_ref().is_some_and(|schema| schema.to_string().contains("\"default\":"))
    });
    if !has_defaults {
        return sealed;
    }
    let versions: Vec<(String, Arc<Definition>)> =
        versions.iter().map(|one| (one.names.api_version(), one.clone())).collect();
    Some(Arc::new(move |key, value| {
        let value = match &sealed {
            Some(open) => open(key, value)?,
            None => value,
        };
        let object: Value = serde_json::from_slice(&value).map_err(|error| error.to_string())?;
        let own = versions
            .iter()
            .find(|(version, _)| object["apiVersion"] == version.as_str())
            .or(versions.first());
        let mut complete = object.clone();
        if let Some((_, version)) = own {
            version.set_defaults(&mut complete);
        }
        Ok(if complete == object { value } else { encode_for_store(&complete) })
    }))
}

/// Takes a CRD's resources away.
fn withdraw(server: &ApiServer, name: &str) {
    let gone = server.crd_changes.served.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(name);
    if let Some((_, prefix)) = gone {
        server.registry.set_custom(name, Vec::new());
        server.hub.remove(prefix);
    }
}

/// Deletes the objects of a CRD that is being deleted, then lets it go.
async fn finish(server: &Arc<ApiServer>, crd: &Value) -> Result<(), Status> {
    if !crd.finalizers().contains(&CLEANUP) {
        return Ok(());
    }
    if !has_condition(crd, "Terminating") {
        write_status(server, crd.name(), |crd| {
            let condition = condition(
                "Terminating",
                "True",
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            );
            set_condition(crd, condition);
        })
        .await?;
    }
    serve(server, crd).await;
    let all = Definition::versions_of_crd(crd).unwrap_or_default().into_iter();
    let versions: Vec<Arc<Resource>> = all
        .map(|(mut one, _)| {
            one.storage.version = one.names.version.clone();
            Arc::new(Resource::new(one))
        })
        .collect();
    if let Some(first) = versions.first() {
        let user = Arc::new(UserInfo::loopback());
        server.hub.catch_up().await.map_err(|error| crate::verbs::read::store_failure(&error))?;
        let entries = server.hub.cache(&first.prefix).map(|cache| cache.snapshot(&first.prefix, 0).entries);
        let mut left = 0;
        for entry in entries.unwrap_or_default() {
            // It goes, and stays until then, in the version that it was written in: nobody has to be asked for another one.
            let resource = versions.iter().find(|one| one.is_own(&entry)).unwrap_or(first).clone();
            let context =
                Context::internal(user.clone(), resource, "delete", entry.namespace(), entry.name());
            match server.delete_object(&context, &DeleteOptions::default()).await {
                Ok(crate::verbs::delete::Deleted::Gone(_)) => {}
                Ok(crate::verbs::delete::Deleted::Marked(_)) => left += 1,
                Err(status) if status.code == 404 => {}
                Err(status) => return Err(status),
            }
        }
        if left > 0 {
            return Err(Status::unavailable(format!(
                "{left} objects of {} are still being deleted",
                crd.name()
            )));
        }
    }
    withdraw(server, crd.name());
    let crds = server.builtin("apiextensions.k8s.io", "customresourcedefinitions")?;
    let context = Context::internal(Arc::new(UserInfo::loopback()), crds, "update", "", crd.name());
    let outcome = server
        .update_object(&context, &options(""), false, &mut |old| {
            let mut new = old.ok_or_else(|| context.not_found())?.clone();
            new.remove_finalizer(CLEANUP);
            Ok(new)
        })
        .await;
    match outcome {
        Err(status) if status.code != 404 => Err(status),
        _ => Ok(()),
    }
}

fn options(subresource: &str) -> WriteOptions {
    WriteOptions {
        dry_run: false,
        manager: "kube-apiserver".to_owned(),
        subresource: subresource.to_owned(),
        applied: false,
    }
}

async fn write_status(
    server: &Arc<ApiServer>,
    name: &str,
    change: impl Fn(&mut Value) + Send + Sync,
) -> Result<(), Status> {
    let crds = server.builtin("apiextensions.k8s.io", "customresourcedefinitions")?;
    let mut context = Context::internal(Arc::new(UserInfo::loopback()), crds, "update", "", name);
    context.info.subresource = "status".to_owned();
    let outcome = server
        .update_object(&context, &options("status"), false, &mut |old| {
            let mut new = old.ok_or_else(|| context.not_found())?.clone();
            change(&mut new);
            Ok(new)
        })
        .await;
    match outcome {
        Err(status) if status.code == 404 => Ok(()),
        Err(status) => Err(status),
        Ok(_) => Ok(()),
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time::seconds(crate::clock::now()),
    })
}

/// Sets a condition; its time stays if its status does.
fn set_condition(crd: &mut Value, mut new: Value) {
    if !crd["status"]["conditions"].is_array() {
        crd["status"]["conditions"] = json!([]);
    }
    let Some(list) = crd.pointer_mut("/status/conditions").and_then(Value::as_array_mut) else { return };
    match list.iter_mut().find(|own| own["type"] == new["type"]) {
        Some(own) => {
            if own["status"] == new["status"] {
                new["lastTransitionTime"] = own["lastTransitionTime"].clone();
            }
            *own = new;
        }
        None => list.push(new),
    }
}

/// Says in the status whether the names are accepted and the resources served.
fn accept(crd: &mut Value, conflict: Option<&str>) {
    if let Some((approval, why)) = approval(crd) {
        let (status, reason) = approval.condition();
        set_condition(crd, condition("KubernetesAPIApprovalPolicyConformant", status, reason, &why));
    }
    match conflict {
        Some(why) => {
            set_condition(crd, condition("NamesAccepted", "False", "NameConflict", why));
            if !is_established(crd) {
                set_condition(
                    crd,
                    condition("Established", "False", "NotAccepted", "not all names are accepted"),
                );
            }
        }
        None => {
            set_condition(crd, condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"));
            let message = "the initial names have been accepted";
            set_condition(crd, condition("Established", "True", "InitialNamesAccepted", message));
            crd["status"]["acceptedNames"] = crd["spec"]["names"].clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_names_establish_a_crd_once() {
        let mut crd = json!({"spec": {"names": {"plural": "things", "kind": "Thing"}}});
        accept(&mut crd, None);
        assert!(is_established(&crd));
        assert_eq!(crd["status"]["acceptedNames"]["plural"], "things");
        let once = crd.clone();
        accept(&mut crd, None);
        assert_eq!(crd, once);
        accept(&mut crd, Some("\"things\" is already in use"));
        assert!(is_established(&crd), "what is established stays so");
        assert!(!has_condition(&crd, "NamesAccepted"));
    }
}
