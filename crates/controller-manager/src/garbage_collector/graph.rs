//! Who owns whom, by uid. Objects that own nothing and are owned by nothing are not kept.

use std::collections::{HashMap, HashSet, VecDeque};

use client::Resource;
use controller_runtime::{Key, Meta};

use super::{Dependent, FOREGROUND, ORPHAN, Owner};

type Uid = Box<str>;

/// See the module.
#[derive(Default)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
    kinds: HashMap<(Box<str>, Box<str>), Resource>,
    /// Owners that the server said are not in a namespace. A uid never comes back, so one question is enough for all
    /// dependents; the oldest are forgotten.
    absent: HashSet<(Uid, Box<str>)>,
    absent_order: VecDeque<(Uid, Box<str>)>,
}

/// How many owners are remembered as absent.
const ABSENT: usize = 1000;

#[derive(Default)]
struct Node {
    /// Kind and metadata; nothing for an owner that only references name.
    seen: Option<(Resource, Meta)>,
    /// Where references say that it is.
    named: Option<(Resource, Key)>,
    dependents: HashSet<Uid>,
}

impl Graph {
    /// Notes the kinds that are served, so that references can be followed.
    pub fn learn_kinds(&mut self, kinds: impl Iterator<Item = Resource>) {
        self.kinds = kinds
            .map(|resource| ((resource.group.as_ref().into(), resource.kind.as_ref().into()), resource))
            .collect();
    }

    /// Notes that the server has no such owner in a namespace.
    pub fn note_absent(&mut self, uid: &str, namespace: &str) {
        let known: (Uid, Box<str>) = (uid.into(), namespace.into());
        if self.absent.insert(known.clone()) {
            self.absent_order.push_back(known);
        }
        if self.absent_order.len() > ABSENT
            && let Some(oldest) = self.absent_order.pop_front()
        {
            self.absent.remove(&oldest);
        }
    }

    /// Whether the server said so.
    pub fn is_absent(&self, uid: &str, namespace: &str) -> bool {
        self.absent.contains(&(uid.into(), namespace.into()))
    }

    /// The kind that an owner reference means.
    pub fn kind_of(&self, api_version: &str, kind: &str) -> Option<Resource> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.get(&(group.into(), kind.into())).cloned()
    }

    /// Takes in the present state of an object. Returns the uids to look at.
    pub fn observe(&mut self, resource: &Resource, meta: &Meta) -> Vec<Uid> {
        let mut ask = Vec::new();
        let uid = &meta.uid;
        let matters =
            !meta.owner_references.is_empty() || meta.is_terminating() || self.nodes.contains_key(uid);
        if !matters {
            return ask;
        }
        let old = self.nodes.entry(uid.clone()).or_default().seen.replace((resource.clone(), meta.clone()));
        let before: HashSet<&str> =
            old.iter().flat_map(|(_, meta)| &meta.owner_references).map(|owner| &*owner.uid).collect();
        let after: HashSet<&str> = meta.owner_references.iter().map(|owner| &*owner.uid).collect();
        for owner in meta.owner_references.iter().filter(|owner| !before.contains(&*owner.uid)) {
            let place = self.kind_of(&owner.api_version, &owner.kind).map(|kind| {
                (kind.clone(), Key::new(if kind.namespaced { &meta.namespace } else { "" }, &owner.name))
            });
            let node = self.nodes.entry(owner.uid.clone()).or_default();
            node.dependents.insert(uid.clone());
            if node.seen.is_none() {
                node.named = node.named.take().or(place);
                // Nobody has seen it: find out whether it exists.
                ask.push(owner.uid.clone());
            } else if is_waiting(node) {
                ask.push(uid.clone());
            }
        }
        for gone in before.difference(&after) {
            self.unlink(gone, uid, &mut ask);
        }
        let unblocked = old.as_ref().is_some_and(|(_, old)| {
            old.owner_references.iter().any(|owner| owner.block_owner_deletion)
                && !meta.owner_references.iter().any(|owner| owner.block_owner_deletion)
        });
        if unblocked {
            ask.extend(meta.owner_references.iter().map(|owner| owner.uid.clone()));
        }
        if meta.is_terminating() && (meta.has_finalizer(ORPHAN) || meta.has_finalizer(FOREGROUND)) {
            ask.push(uid.clone());
            if let (true, Some(node)) = (meta.has_finalizer(FOREGROUND), self.nodes.get(uid)) {
                ask.extend(node.dependents.iter().cloned());
            }
        }
        ask
    }

    /// Takes an object out. Returns the uids to look at: its dependents, and owners that waited for it.
    pub fn forget(&mut self, uid: &str) -> Vec<Uid> {
        let mut ask = Vec::new();
        let Some(node) = self.nodes.get_mut(uid) else { return ask };
        let seen = node.seen.take();
        ask.extend(node.dependents.iter().cloned());
        if node.dependents.is_empty() {
            self.nodes.remove(uid);
        }
        for owner in seen.iter().flat_map(|(_, meta)| &meta.owner_references) {
            self.unlink(&owner.uid, uid, &mut ask);
        }
        ask
    }

    fn unlink(&mut self, owner: &str, dependent: &str, ask: &mut Vec<Uid>) {
        let Some(node) = self.nodes.get_mut(owner) else { return };
        node.dependents.remove(dependent);
        if is_waiting(node) {
            ask.push(owner.into());
        }
        let unowned = node
            .seen
            .as_ref()
            .is_none_or(|(_, meta)| meta.owner_references.is_empty() && !meta.is_terminating());
        if node.dependents.is_empty() && unowned {
            self.nodes.remove(owner);
        }
    }

    /// Where an object is, as far as is known.
    pub fn place_of(&self, uid: &str) -> Option<(Resource, Key)> {
        let node = self.nodes.get(uid)?;
        node.seen
            .as_ref()
            .map(|(resource, meta)| (resource.clone(), meta.key()))
            .or_else(|| node.named.clone())
    }

    /// What is known of an owner of an object; nothing if it has to be asked for.
    pub fn state_of(&self, owner: &str, of: &Meta) -> Option<Owner> {
        let (resource, meta) = self.nodes.get(owner)?.seen.as_ref()?;
        if resource.namespaced && meta.namespace != of.namespace {
            return Some(Owner::Unreachable);
        }
        let waiting = meta.is_terminating() && meta.has_finalizer(FOREGROUND);
        Some(if waiting { Owner::Waiting } else { Owner::Solid })
    }

    /// The objects that name this one as an owner.
    pub fn dependents_of(&self, uid: &str) -> Vec<Dependent> {
        let dependents = self.nodes.get(uid).into_iter().flat_map(|node| &node.dependents);
        let seen = dependents.filter_map(|uid| self.nodes.get(uid)?.seen.as_ref());
        seen.map(|(resource, meta)| Dependent { resource: resource.clone(), meta: meta.clone() }).collect()
    }

    /// How many objects are kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

fn is_waiting(node: &Node) -> bool {
    node.seen.as_ref().is_some_and(|(_, meta)| meta.is_terminating() && meta.has_finalizer(FOREGROUND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use client::resources::{PODS, REPLICA_SETS};
    use serde_json::json;

    fn meta(name: &str, owner: Option<&str>) -> Meta {
        let owners: Vec<_> = owner
            .iter()
            .map(|o| json!({"apiVersion":"apps/v1","kind":"ReplicaSet","name":o,"uid":o,"blockOwnerDeletion":true}))
            .collect();
        object(json!({"name":name,"namespace":"n","uid":name,"ownerReferences":owners}))
    }

    fn graph() -> Graph {
        let mut graph = Graph::default();
        graph.learn_kinds([REPLICA_SETS, PODS].into_iter());
        graph
    }

    #[test]
    fn absence_is_remembered_for_a_namespace_and_not_for_ever() {
        let mut graph = Graph::default();
        graph.note_absent("u", "a");
        assert!(graph.is_absent("u", "a") && !graph.is_absent("u", "b") && !graph.is_absent("v", "a"));
        for number in 0..ABSENT {
            graph.note_absent(&number.to_string(), "a");
        }
        assert!(!graph.is_absent("u", "a") && graph.absent.len() == ABSENT);
    }

    #[test]
    fn objects_without_ties_are_not_kept() {
        let mut graph = graph();
        assert!(graph.observe(&PODS, &meta("lone", None)).is_empty());
        assert_eq!(graph.len(), 0);
    }

    #[test]
    fn an_unseen_owner_is_asked_for_and_its_end_concerns_the_dependents() {
        let mut graph = graph();
        assert_eq!(graph.observe(&PODS, &meta("p", Some("r"))), ["r".into()]);
        assert_eq!(graph.place_of("r"), Some((REPLICA_SETS, Key::new("n", "r"))));
        assert!(graph.observe(&REPLICA_SETS, &meta("r", None)).is_empty());
        assert_eq!(graph.state_of("r", &meta("p", None)), Some(Owner::Solid));
        assert_eq!(graph.forget("r"), ["p".into()]);
        assert_eq!(graph.state_of("r", &meta("p", None)), None);
        graph.forget("p");
        assert_eq!(graph.len(), 0, "nothing stays behind");
    }

    #[test]
    fn a_waiting_owner_is_looked_at_when_a_dependent_goes() {
        let mut graph = graph();
        graph.observe(&REPLICA_SETS, &meta("r", None));
        graph.observe(&PODS, &meta("p", Some("r")));
        let going: Meta =
            object(json!({"name":"r","namespace":"n","uid":"r","deletionTimestamp":"2026-01-01T00:00:00Z",
            "finalizers":["foregroundDeletion"]}));
        let mut asked = graph.observe(&REPLICA_SETS, &going);
        asked.sort();
        assert_eq!(asked, ["p".into(), "r".into()]);
        assert_eq!(graph.forget("p"), ["r".into()]);
    }

    #[test]
    fn an_owner_in_another_namespace_is_unreachable() {
        let mut graph = graph();
        graph.observe(&PODS, &meta("p", Some("r")));
        graph.observe(&REPLICA_SETS, &object(json!({"name":"r","namespace":"other","uid":"r"})));
        assert_eq!(graph.state_of("r", &meta("p", None)), Some(Owner::Unreachable));
    }
}
