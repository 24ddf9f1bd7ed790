//! Namespaces that are being deleted: empties them, tells what remains, and lets them go.
//!
//! All kinds are found by discovery, so custom ones go, too. Pods go first, because other things in the namespace may
//! guard them (network policies) while they still run.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Error, ListOptions, Resource};
use controller_runtime::{Context, Controller, Key, Plan, Verb, Write};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;

use crate::discovery::discover;
use crate::kinds::{Condition, Namespace, Pod, set_condition};

const FINALIZER: &str = "kubernetes";
/// How soon to look again after deleting, and while waiting for others to finish.
const SOON: SignedDuration = SignedDuration::from_millis(100);
const LATER: SignedDuration = SignedDuration::from_secs(1);

/// What is left of one kind.
#[derive(Clone, Debug)]
pub struct Remaining {
    /// The kind.
    pub resource: Resource,
    /// Whether they can be deleted all at once; else their names.
    pub collection: bool,
    /// All objects: name, uid, whether deletion was requested, finalizers.
    pub objects: Vec<Left>,
}

/// One object that is left.
#[derive(Clone, Debug, Deserialize)]
pub struct Left {
    metadata: controller_runtime::Meta,
}

/// What the end of a namespace depends on.
pub struct View {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// What is left in it.
    pub remaining: Vec<Remaining>,
    /// Groups that could not be asked, and kinds that could not be listed.
    pub undiscovered: Vec<(String, String)>,
    /// See above.
    pub unlisted: Vec<String>,
    /// What went wrong last time.
    pub failure: Option<String>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one namespace.
pub fn reconcile(view: &View) -> Plan {
    let namespace = &*view.namespace;
    let mut plan = Plan::default();
    let empty = view.remaining.iter().all(|kind| kind.objects.is_empty());
    if empty && view.undiscovered.is_empty() && view.unlisted.is_empty() {
        let others: Vec<&str> =
            namespace.spec.finalizers.iter().map(|name| &**name).filter(|name| *name != FINALIZER).collect();
        if others.len() < namespace.spec.finalizers.len() {
            plan.update_sub(namespace, "finalize", json!({"spec": {"finalizers": others}}));
        }
        return plan;
    }
    let has_pods = view.remaining.iter().any(|kind| is_pods(&kind.resource) && !kind.objects.is_empty());
    let mut deletes = false;
    for kind in view.remaining.iter().filter(|kind| !has_pods || is_pods(&kind.resource)) {
        let fresh: Vec<&Left> = kind.objects.iter().filter(|left| !left.metadata.is_terminating()).collect();
        deletes |= !fresh.is_empty();
        if kind.collection && !fresh.is_empty() {
            let key = Key::new(&namespace.metadata.name, "");
            plan.write(Write::new(&kind.resource, key, None, Verb::DeleteCollection)).tolerant();
        } else {
            for left in fresh {
                plan.delete_meta(&kind.resource, &left.metadata, None);
            }
        }
    }
    let mut conditions = namespace.status.conditions.clone();
    for condition in tell(view) {
        set_condition(&mut conditions, condition);
    }
    if conditions != namespace.status.conditions || &*namespace.status.phase != "Terminating" {
        plan.set_status(namespace, json!({"phase": "Terminating", "conditions": conditions}));
    }
    let pause = if deletes { SOON } else { LATER };
    plan.look_again(view.now.checked_add(pause).unwrap_or(view.now));
    plan
}

fn is_pods(resource: &Resource) -> bool {
    resource.group.is_empty() && resource.plural == "pods"
}

/// What is told while the namespace is going.
fn tell(view: &View) -> Vec<Condition> {
    let told = |kind: &str, good: (&str, &str), bad: Option<(&str, String)>| match bad {
        None => Condition::new(kind, "False", good.0, good.1, view.now),
        Some((reason, text)) => Condition::new(kind, "True", reason, text, view.now),
    };
    let undiscovered = (!view.undiscovered.is_empty()).then(|| {
        let parts: Vec<String> =
            view.undiscovered.iter().map(|(group, why)| format!("{group}: {why}")).collect();
        let text = format!("Discovery failed for some groups, {} failing: {}", parts.len(), parts.join(", "));
        ("DiscoveryFailed", text)
    });
    let failed =
        view.failure.clone().or_else(|| (!view.unlisted.is_empty()).then(|| view.unlisted.join(", ")));
    let failed = failed.map(|why| {
        (
            "ContentDeletionFailed",
            format!("Failed to delete all resource types, {} remaining: {why}", view.unlisted.len().max(1)),
        )
    });
    let mut parts: Vec<String> = Vec::new();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for kind in view.remaining.iter().filter(|kind| !kind.objects.is_empty()) {
        let (resource, count) = (&kind.resource, kind.objects.len());
        parts.push(format!("{}.{} has {count} resource instances", resource.plural, resource.group));
        for finalizer in kind.objects.iter().flat_map(|left| &left.metadata.finalizers) {
            *finalizers.entry(finalizer).or_insert(0) += 1;
        }
    }
    parts.sort();
    let remaining = (!parts.is_empty())
        .then(|| ("SomeResourcesRemain", format!("Some resources are remaining: {}", parts.join(", "))));
    let held = (!finalizers.is_empty()).then(|| {
        let parts: Vec<String> =
            finalizers.iter().map(|(name, count)| format!("{name} in {count} resource instances")).collect();
        let text = format!("Some content in the namespace has finalizers remaining: {}", parts.join(", "));
        ("SomeFinalizersRemain", text)
    });
    vec![
        told(
            "NamespaceDeletionDiscoveryFailure",
            ("ResourcesDiscovered", "All resources successfully discovered"),
            undiscovered,
        ),
        told(
            "NamespaceDeletionGroupVersionParsingFailure",
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            None,
        ),
        told(
            "NamespaceDeletionContentFailure",
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
            failed,
        ),
        told("NamespaceContentRemaining", ("ContentRemoved", "All content successfully removed"), remaining),
        told(
            "NamespaceFinalizersRemaining",
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            held,
        ),
    ]
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let Some(namespace) = context.object::<Namespace>() else { return Ok(None) };
        let held = namespace.spec.finalizers.iter().any(|name| &**name == FINALIZER);
        if !namespace.metadata.is_terminating() || !held {
            return Ok(None);
        }
        let found = discover(&context.reader).await?;
        let (mut remaining, mut unlisted) = (Vec::new(), Vec::new());
        let kinds = found.kinds.into_iter().filter(|kind| kind.resource.namespaced);
        for kind in
            kinds.filter(|kind| kind.can("list") && (kind.can("deletecollection") || kind.can("delete")))
        {
            let api = context.reader.api(&kind.resource).within(&namespace.metadata.name);
            let options = ListOptions { limit: 500, ..ListOptions::default() };
            match api.list_all::<Left>(&options).await {
                Ok(list) => remaining.push(Remaining {
                    collection: kind.can("deletecollection"),
                    resource: kind.resource,
                    objects: list.items,
                }),
                // A kind that vanished since discovery has no objects.
                Err(error) if error.is_not_found() => {}
                Err(error) => unlisted.push(format!("{}: {}", kind.resource, telemetry::chain(&error))),
            }
        }
        Ok(Some(View {
            namespace,
            remaining,
            undiscovered: found.failed,
            unlisted,
            failure: context.failure.as_ref().map(|failure| failure.message.clone()),
            now: context.now,
        }))
    })
}

/// The controller.
pub fn controller() -> Controller {
    Controller::reading("namespace-controller", gather, reconcile)
        .telling_failures()
        .acting_as("namespace-controller")
        .workers(5)
        .for_kind::<Namespace>()
        .watching::<Pod>(|caches, change| {
            let key = Key::cluster(&change.latest().metadata.namespace);
            let is_going = || caches.of::<Namespace>().get(&key).is_some_and(|n| n.metadata.is_terminating());
            if change.new.is_none() && is_going() { vec![key] } else { Vec::new() }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};
    use controller_runtime::Kind;
    use serde_json::Value;

    fn view(remaining: Vec<(Resource, Vec<Value>)>) -> View {
        View {
            namespace: Arc::new(object(
                json!({"metadata":{"name":"n","deletionTimestamp":"2026-01-01T00:00:00Z"},
                "spec":{"finalizers":["kubernetes"]},"status":{"phase":"Terminating"}}),
            )),
            remaining: remaining
                .into_iter()
                .map(|(resource, objects)| Remaining {
                    resource,
                    collection: true,
                    objects: objects.into_iter().map(|meta| object(json!({"metadata": meta}))).collect(),
                })
                .collect(),
            undiscovered: Vec::new(),
            unlisted: Vec::new(),
            failure: None,
            now: now(),
        }
    }

    #[test]
    fn an_empty_namespace_is_let_go() {
        let plan = reconcile(&view(vec![(Pod::RESOURCE, vec![])]));
        assert_eq!(plan.changes()[0].1["spec"]["finalizers"], json!([]));
    }

    #[test]
    fn pods_go_before_the_rest() {
        let maps = client::resources::CONFIG_MAPS;
        let plan = reconcile(&view(vec![
            (maps.clone(), vec![json!({"name":"m"})]),
            (Pod::RESOURCE, vec![json!({"name":"p"})]),
        ]));
        let deleted: Vec<&str> = plan.writes().map(|write| &*write.resource.plural).collect();
        assert_eq!(deleted, ["pods"]);
        let plan = reconcile(&view(vec![(maps, vec![json!({"name":"m"})]), (Pod::RESOURCE, vec![])]));
        assert_eq!(plan.writes().next().unwrap().resource.plural, "configmaps");
    }

    #[test]
    fn what_remains_is_told_and_what_is_going_is_not_deleted_twice() {
        let left = json!({"name":"p","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":["x/y"]});
        let plan = reconcile(&view(vec![(Pod::RESOURCE, vec![left])]));
        assert!(plan.writes().next().is_none());
        let conditions = plan.status_change().unwrap()["conditions"].clone();
        assert_eq!(conditions[3]["message"], "Some resources are remaining: pods. has 1 resource instances");
        assert_eq!(conditions[4]["reason"], "SomeFinalizersRemain");
    }

    #[test]
    fn a_group_that_does_not_answer_keeps_the_namespace() {
        let mut view = view(vec![]);
        view.undiscovered.push(("metrics.k8s.io/v1beta1".into(), "down".into()));
        let plan = reconcile(&view);
        assert!(plan.writes().next().is_none());
        assert_eq!(plan.status_change().unwrap()["conditions"][0]["status"], "True");
    }
}
