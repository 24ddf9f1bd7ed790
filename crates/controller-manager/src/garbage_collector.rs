//! Deletes objects whose owners are gone, in the way that the owners were deleted: background, foreground or orphan.
//!
//! `graph` follows the metadata of every kind that can be deleted, built in or custom, and says which uids to look at.
//! A decision is taken per uid. That an owner is present may be believed of the graph (its end will be seen); that it
//! is absent is always asked of the server first.

mod graph;
mod monitors;

use std::sync::{Arc, Mutex, PoisonError};

use client::{Error, Resource};
use controller_runtime::{Context, Controller, Key, Meta, OwnerReference, PatchForm, Plan, Propagation};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use graph::Graph;
pub use monitors::Monitors;
use monitors::Partial;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// What is known of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It is there.
    Solid,
    /// It is not there.
    Absent,
    /// It is being deleted and waits for its dependents.
    Waiting,
    /// It names a namespaced kind in another namespace, or from outside of one.
    Unreachable,
}

/// A dependent of the object.
#[derive(Clone, Debug)]
pub struct Dependent {
    /// Kind.
    pub resource: Arc<Resource>,
    /// Metadata.
    pub meta: Meta,
}

/// What the fate of one object depends on.
pub struct View {
    /// Its kind.
    pub resource: Arc<Resource>,
    /// Its metadata, fresh from the server.
    pub meta: Meta,
    /// Its owners, in the order of its references.
    pub owners: Vec<(OwnerReference, Owner)>,
    /// Its dependents.
    pub dependents: Vec<Dependent>,
}

/// Decides on one object.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let (resource, meta) = (&view.resource, &view.meta);
    if meta.is_terminating() {
        if meta.has_finalizer(ORPHAN) {
            orphan(view, &mut plan);
        } else if meta.has_finalizer(FOREGROUND) {
            wait_for_dependents(view, &mut plan);
        }
        return plan;
    }
    for (owner, _) in view.owners.iter().filter(|(_, state)| *state == Owner::Unreachable) {
        let about = controller_runtime::Reference::of(resource, meta);
        let text = format!(
            "ownerRef [{}/{}, namespace: {}, name: {}, uid: {}] does not exist in namespace \"{}\"",
            owner.api_version, owner.kind, meta.namespace, owner.name, owner.uid, meta.namespace
        );
        plan.record(about, true, "OwnerRefInvalidNamespace", text);
    }
    let has = |wanted: &Owner| view.owners.iter().any(|(_, state)| state == wanted);
    if meta.namespace.is_empty() && has(&Owner::Unreachable) {
        // What is in no namespace cannot say which one its owner is in. Nobody knows whether the owner is there.
        return plan;
    }
    let lost = has(&Owner::Absent) || has(&Owner::Unreachable);
    if view.owners.is_empty() || (!lost && !has(&Owner::Waiting)) {
        return plan;
    }
    if has(&Owner::Solid) {
        // Somebody still wants it: only the references to the others go.
        let keep: Vec<&OwnerReference> =
            view.owners.iter().filter(|(_, state)| *state == Owner::Solid).map(|(owner, _)| owner).collect();
        patch_owners(resource, meta, &keep, &mut plan);
    } else if has(&Owner::Waiting) && !view.dependents.is_empty() {
        // Its own dependents go first. One that is going already means a circle, which must not wait for itself.
        if view.dependents.iter().any(|dependent| dependent.meta.is_terminating()) {
            unblock(view, &mut plan);
        }
        plan.then().delete_meta(resource, meta, Some(Propagation::Foreground));
    } else {
        let propagation = if meta.has_finalizer(ORPHAN) {
            Propagation::Orphan
        } else if meta.has_finalizer(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        plan.delete_meta(resource, meta, Some(propagation)).at_revision(meta);
    }
    plan
}

/// Takes the object out of its dependents' lists of owners, then lets it go.
fn orphan(view: &View, plan: &mut Plan) {
    for dependent in &view.dependents {
        let others: Vec<&OwnerReference> =
            dependent.meta.owner_references.iter().filter(|owner| owner.uid != view.meta.uid).collect();
        patch_owners(&dependent.resource, &dependent.meta, &others, plan);
    }
    plan.then();
    remove_finalizer(view, ORPHAN, plan);
}

/// Waits until every dependent that blocks is gone, then lets the object go.
fn wait_for_dependents(view: &View, plan: &mut Plan) {
    let blocks = |dependent: &&Dependent| {
        let owners = &dependent.meta.owner_references;
        owners.iter().any(|owner| owner.uid == view.meta.uid && owner.block_owner_deletion)
    };
    if view.dependents.iter().any(|dependent| blocks(&dependent)) {
        return;
    }
    remove_finalizer(view, FOREGROUND, plan);
}

fn remove_finalizer(view: &View, finalizer: &str, plan: &mut Plan) {
    let body = json!({"metadata": {"resourceVersion": view.meta.resource_version,
        "finalizers": view.meta.finalizers_without(finalizer)}});
    plan.patch_meta(&view.resource, &view.meta, None, PatchForm::Merge, body).tolerant();
}

fn patch_owners(resource: &Resource, meta: &Meta, owners: &[&OwnerReference], plan: &mut Plan) {
    let owners: Vec<Value> = owners.iter().map(|owner| owner_json(owner)).collect();
    let body = json!({"metadata": {"resourceVersion": meta.resource_version, "ownerReferences": owners}});
    plan.patch_meta(resource, meta, None, PatchForm::Merge, body).tolerant();
}

fn owner_json(owner: &OwnerReference) -> Value {
    let mut value =
        json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid});
    if owner.controller {
        value["controller"] = json!(true);
    }
    if owner.block_owner_deletion {
        value["blockOwnerDeletion"] = json!(true);
    }
    value
}

/// Stops the object from blocking its owners.
fn unblock(view: &View, plan: &mut Plan) {
    let owners: Vec<Value> = view
        .meta
        .owner_references
        .iter()
        .map(|owner| owner_json(&OwnerReference { block_owner_deletion: false, ..owner.clone() }))
        .collect();
    let body = json!({"metadata": {"ownerReferences": owners}});
    plan.patch_meta(&view.resource, &view.meta, None, PatchForm::Merge, body).tolerant();
}

/// The graph, shared by monitors and decisions.
pub(crate) type SharedGraph = Arc<Mutex<Graph>>;

pub(crate) fn lock(graph: &SharedGraph) -> std::sync::MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gather(
    graph: SharedGraph,
    enqueue: monitors::Enqueue,
    context: Context,
) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let uid = &*context.key.name;
        let Some((resource, key)) = lock(&graph).place_of(uid) else { return Ok(None) };
        let api = context.reader.api(&resource).within(&key.namespace);
        let found: Option<Partial> = api.find(&key.name).await?;
        let Some(found) = found.map(Arc::new).filter(|found| *found.metadata.uid == *uid) else {
            // It is gone, or never was: whoever depends on it has to be looked at.
            let next = {
                let mut graph = lock(&graph);
                graph.note_absent(uid, &key.namespace);
                graph.forget(uid)
            };
            next.into_iter().for_each(|uid| enqueue.ask(&uid));
            return Ok(None);
        };
        let meta = found.metadata.clone();
        let next = lock(&graph).observe(&resource, found);
        next.into_iter().filter(|next| **next != *uid).for_each(|uid| enqueue.ask(&uid));
        let mut owners = Vec::with_capacity(meta.owner_references.len());
        for owner in &meta.owner_references {
            owners.push((owner.clone(), state_of(&graph, &context, &meta, owner).await?));
        }
        let dependents = lock(&graph).dependents_of(uid);
        if meta.is_terminating() && meta.has_finalizer(FOREGROUND) {
            // Dependents of an object that waits for them have to go.
            for dependent in dependents.iter().filter(|dependent| !dependent.meta.is_terminating()) {
                enqueue.ask(&dependent.meta.uid);
            }
        }
        Ok(Some(View { resource, meta, owners, dependents }))
    })
}

async fn state_of(
    graph: &SharedGraph,
    context: &Context,
    meta: &Meta,
    owner: &OwnerReference,
) -> Result<Owner, Error> {
    let (known, resource) = {
        let graph = lock(graph);
        (graph.state_of(&owner.uid, meta), graph.kind_of(&owner.api_version, &owner.kind))
    };
    if let Some(state) = known {
        return Ok(state);
    }
    let Some(resource) = resource else {
        // A kind that is not served (yet): its objects may exist all the same, so nothing may be deleted.
        return Ok(Owner::Solid);
    };
    if resource.namespaced && meta.namespace.is_empty() {
        return Ok(Owner::Unreachable);
    }
    let namespace = if resource.namespaced { &*meta.namespace } else { "" };
    if lock(graph).is_absent(&owner.uid, namespace) {
        return Ok(Owner::Absent);
    }
    let api = context.reader.api(&resource).within(&meta.namespace);
    let found: Option<Partial> = api.find(&owner.name).await?;
    Ok(match found.map(|found| found.metadata).filter(|found| found.uid == owner.uid) {
        Some(found) if found.is_terminating() && found.has_finalizer(FOREGROUND) => Owner::Waiting,
        Some(_) => Owner::Solid,
        None => {
            lock(graph).note_absent(&owner.uid, namespace);
            Owner::Absent
        }
    })
}

/// The controller, and the one that keeps its monitors in step with the kinds that are served.
pub fn controllers(tasks: &lifecycle::Tasks) -> [Controller; 2] {
    let graph = SharedGraph::default();
    let monitors = Arc::new(Monitors::new(graph.clone(), tasks));
    let enqueue = monitors.enqueue();
    let wire = enqueue.clone();
    let collector = Controller::reading(
        "garbage-collector-controller",
        move |context| gather(graph.clone(), enqueue.clone(), context),
        reconcile,
    )
    .acting_as("generic-garbage-collector")
    .workers(20)
    .triggered_by(move |_, ask| {
        wire.connect(Arc::new(move |uid: &str| ask(Key::cluster(uid))));
        Box::pin(std::future::ready(()))
    });
    [collector, monitors::controller(monitors)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn view(meta: Value, owners: &[Owner], dependents: Vec<Value>) -> View {
        let mut meta = meta;
        let references: Vec<Value> = (0..owners.len())
            .map(|i| json!({"apiVersion":"v1","kind":"O","name":format!("o{i}"),"uid":format!("o{i}")}))
            .collect();
        meta["ownerReferences"] = json!(references);
        let meta: Meta = object(meta);
        let owners = meta.owner_references.iter().cloned().zip(owners.iter().cloned()).collect();
        let pods = Arc::new(client::resources::PODS);
        let dependents = dependents
            .into_iter()
            .map(|meta| Dependent { resource: pods.clone(), meta: object(meta) })
            .collect();
        View { resource: pods, meta, owners, dependents }
    }

    fn thing() -> Value {
        json!({"name":"x","namespace":"n","uid":"u","resourceVersion":"4"})
    }

    #[test]
    fn an_object_goes_when_no_owner_is_left() {
        assert!(reconcile(&view(thing(), &[], vec![])).is_empty());
        assert!(reconcile(&view(thing(), &[Owner::Solid], vec![])).is_empty());
        assert_eq!(reconcile(&view(thing(), &[Owner::Absent], vec![])).deletes(), ["x"]);
        assert_eq!(reconcile(&view(thing(), &[Owner::Absent, Owner::Waiting], vec![])).deletes(), ["x"]);
    }

    #[test]
    fn lost_owners_are_dropped_while_another_stays() {
        let plan = reconcile(&view(thing(), &[Owner::Absent, Owner::Solid], vec![]));
        assert!(plan.deletes().is_empty());
        assert_eq!(plan.changes()[0].1["metadata"]["ownerReferences"][0]["name"], "o1");
    }

    #[test]
    fn orphaning_frees_the_dependents_before_the_owner_goes() {
        let mut owner = thing();
        owner["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        owner["finalizers"] = json!(["orphan", "other"]);
        let child = json!({"name":"c","uid":"c","ownerReferences":[{"uid":"u"},{"uid":"v","name":"keep"}]});
        let plan = reconcile(&view(owner, &[], vec![child]));
        let changes = plan.changes();
        assert_eq!(changes[0].0, "c");
        assert_eq!(changes[0].1["metadata"]["ownerReferences"][0]["name"], "keep");
        assert_eq!(changes[1].1["metadata"]["finalizers"], json!(["other"]));
        assert_eq!(plan.stages().len(), 2);
    }

    #[test]
    fn foreground_deletion_waits_for_blocking_dependents() {
        let mut owner = thing();
        owner["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        owner["finalizers"] = json!(["foregroundDeletion"]);
        let child = |blocks: bool| json!({"name":"c","uid":"c","ownerReferences":[{"uid":"u","blockOwnerDeletion":blocks}]});
        assert!(reconcile(&view(owner.clone(), &[], vec![child(true)])).is_empty());
        let plan = reconcile(&view(owner, &[], vec![child(false)]));
        assert_eq!(plan.changes()[0].1["metadata"]["finalizers"], json!([]));
    }

    #[test]
    fn a_dependent_with_dependents_of_its_own_goes_in_the_foreground() {
        let plan = reconcile(&view(thing(), &[Owner::Waiting], vec![json!({"name":"c","uid":"c"})]));
        let foreground = plan.writes().any(|write| {
            matches!(
                &write.verb,
                controller_runtime::Verb::Delete { propagation: Some(Propagation::Foreground), .. }
            )
        });
        assert!(foreground);
    }

    #[test]
    fn what_is_in_no_namespace_is_not_deleted_for_an_owner_in_one() {
        let mut plain = thing();
        plain["namespace"] = json!("");
        for owners in [&[Owner::Unreachable][..], &[Owner::Unreachable, Owner::Absent]] {
            let plan = reconcile(&view(plain.clone(), owners, vec![]));
            assert_eq!(plan.writes().count(), 0, "{owners:?}");
            assert_eq!(&*plan.events()[0].reason, "OwnerRefInvalidNamespace");
        }
        assert_eq!(reconcile(&view(thing(), &[Owner::Unreachable], vec![])).writes().count(), 1);
    }
}
