//! Who owns whom, by uid. Objects that own nothing and are owned by nothing are not kept; of the others the graph holds
//! no copy, but the object that some cache has anyway.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;

use client::Resource;
use controller_runtime::{Described, Key, Meta};

use super::{Dependent, FOREGROUND, ORPHAN, Owner};

type Uid = Box<str>;

/// See the module.
#[derive(Default)]
pub struct Graph {
    nodes: HashMap<Id, Node>,
    kinds: HashMap<(Box<str>, Box<str>), Arc<Resource>>,
    /// Owners that the server said are not in a namespace. A uid never comes back, so one question is enough for all
    /// dependents; the oldest are forgotten.
    absent: HashSet<(Uid, Box<str>)>,
    absent_order: VecDeque<(Uid, Box<str>)>,
}

/// How many owners are remembered as absent.
const ABSENT: usize = 1000;

/// A uid in little room: nearly all are UUIDs in their usual form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Id {
    Uuid([u8; 16]),
    Other(Uid),
}

/// Where the groups of digits of a UUID begin and end.
const GROUPS: [(usize, usize); 5] = [(0, 8), (9, 13), (14, 18), (19, 23), (24, 36)];

impl From<&str> for Id {
    fn from(uid: &str) -> Self {
        parse_uuid(uid.as_bytes()).map_or_else(|| Self::Other(uid.into()), Self::Uuid)
    }
}

fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != 36 || GROUPS[1..].iter().any(|(from, _)| text[from - 1] != b'-') {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 16];
    let pairs = GROUPS.iter().flat_map(|(from, to)| text[*from..*to].chunks_exact(2));
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

impl Id {
    fn uid(&self) -> Uid {
        let bytes = match self {
            Self::Uuid(bytes) => bytes,
            Self::Other(uid) => return uid.clone(),
        };
        let mut text = String::with_capacity(36);
        for (at, byte) in bytes.iter().enumerate() {
            if [4, 6, 8, 10].contains(&at) {
                text.push('-');
            }
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.into()
    }
}

#[derive(Default)]
struct Node {
    /// Kind and object; nothing for an owner that only references name.
    seen: Option<(Arc<Resource>, Arc<dyn Described>)>,
    /// Where references say that it is.
    named: Option<Box<(Arc<Resource>, Key)>>,
    /// Most objects have none: an empty set in place would take more room than all the rest.
    #[allow(clippy::box_collection)]
    dependents: Option<Box<HashSet<Id>>>,
}

impl Node {
    fn meta(&self) -> Option<&Meta> {
        self.seen.as_ref().map(|(_, object)| object.described())
    }

    fn dependents(&self) -> impl Iterator<Item = &Id> {
        self.dependents.iter().flat_map(|ids| ids.iter())
    }

    /// Whether it was seen in another namespace than that of an object that names it as its owner.
    fn is_elsewhere(&self, of: &Meta) -> bool {
        let seen = self.seen.as_ref();
        seen.is_some_and(|(resource, own)| resource.namespaced && own.described().namespace != of.namespace)
    }

    fn is_waiting(&self) -> bool {
        self.meta().is_some_and(|meta| meta.is_terminating() && meta.has_finalizer(FOREGROUND))
    }
}

impl Graph {
    /// Notes the kinds that are served, so that references can be followed.
    pub fn learn_kinds(&mut self, kinds: impl Iterator<Item = Resource>) {
        let named =
            |kind: Resource| ((kind.group.as_ref().into(), kind.kind.as_ref().into()), Arc::new(kind));
        self.kinds = kinds.map(named).collect();
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
    pub fn kind_of(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.kinds.get(&(group.into(), kind.into())).cloned()
    }

    /// Takes in the present state of an object. Returns the uids to look at.
    pub fn observe(&mut self, resource: &Arc<Resource>, object: Arc<dyn Described>) -> Vec<Uid> {
        let meta = object.described();
        let id = Id::from(&*meta.uid);
        let matters =
            !meta.owner_references.is_empty() || meta.is_terminating() || self.nodes.contains_key(&id);
        if !matters {
            return Vec::new();
        }
        let mut ask = Vec::new();
        let node = self.nodes.entry(id.clone()).or_default();
        let old = node.seen.replace((resource.clone(), object.clone()));
        let old = old.as_ref().map(|(_, object)| object.described());
        let before = old.map_or(&[][..], |old| &old.owner_references);
        let names =
            |owners: &[client::OwnerReference], uid: &str| owners.iter().any(|owner| *owner.uid == *uid);
        for owner in meta.owner_references.iter().filter(|owner| !names(before, &owner.uid)) {
            let place = self.kind_of(&owner.api_version, &owner.kind).map(|kind| {
                let key = Key::new(if kind.namespaced { &meta.namespace } else { "" }, &owner.name);
                Box::new((kind, key))
            });
            let node = self.nodes.entry(Id::from(&*owner.uid)).or_default();
            node.dependents.get_or_insert_default().insert(id.clone());
            if node.seen.is_none() {
                node.named = node.named.take().or(place);
                // Nobody has seen it: find out whether it exists.
                ask.push(owner.uid.clone());
            } else if node.is_waiting() || node.is_elsewhere(meta) {
                ask.push(meta.uid.clone());
            }
        }
        if old.is_none() && resource.namespaced {
            ask.extend(self.strangers_of(&id, &meta.namespace));
        }
        for gone in before.iter().filter(|owner| !names(&meta.owner_references, &owner.uid)) {
            self.unlink(&gone.uid, &id, &mut ask);
        }
        let unblocked = before.iter().any(|owner| owner.block_owner_deletion)
            && !meta.owner_references.iter().any(|owner| owner.block_owner_deletion);
        if unblocked {
            ask.extend(meta.owner_references.iter().map(|owner| owner.uid.clone()));
        }
        if meta.is_terminating() && (meta.has_finalizer(ORPHAN) || meta.has_finalizer(FOREGROUND)) {
            ask.push(meta.uid.clone());
            if let (true, Some(node)) = (meta.has_finalizer(FOREGROUND), self.nodes.get(&id)) {
                ask.extend(node.dependents().map(Id::uid));
            }
        }
        ask
    }

    /// Who names an object as an owner though they are not in its namespace.
    fn strangers_of(&self, id: &Id, namespace: &str) -> Vec<Uid> {
        let named_by = self.nodes.get(id).into_iter().flat_map(Node::dependents);
        let seen = named_by.filter_map(|id| self.nodes.get(id)?.meta());
        seen.filter(|meta| *meta.namespace != *namespace).map(|meta| meta.uid.clone()).collect()
    }

    /// Takes an object out. Returns the uids to look at: its dependents, and owners that waited for it.
    pub fn forget(&mut self, uid: &str) -> Vec<Uid> {
        let (mut ask, id) = (Vec::new(), Id::from(uid));
        let Some(node) = self.nodes.get_mut(&id) else { return ask };
        let seen = node.seen.take();
        ask.extend(node.dependents().map(Id::uid));
        if node.dependents.is_none() {
            self.nodes.remove(&id);
        }
        for owner in seen.iter().flat_map(|(_, object)| &object.described().owner_references) {
            self.unlink(&owner.uid, &id, &mut ask);
        }
        ask
    }

    fn unlink(&mut self, owner: &str, dependent: &Id, ask: &mut Vec<Uid>) {
        let id = Id::from(owner);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if let Some(dependents) = &mut node.dependents {
            dependents.remove(dependent);
            if dependents.is_empty() {
                node.dependents = None;
            }
        }
        if node.is_waiting() {
            ask.push(owner.into());
        }
        let unowned =
            node.meta().is_none_or(|meta| meta.owner_references.is_empty() && !meta.is_terminating());
        if node.dependents.is_none() && unowned {
            self.nodes.remove(&id);
        }
    }

    /// Where an object is, as far as is known.
    pub fn place_of(&self, uid: &str) -> Option<(Arc<Resource>, Key)> {
        let node = self.nodes.get(&Id::from(uid))?;
        match &node.seen {
            Some((resource, object)) => Some((resource.clone(), object.described().key())),
            None => node.named.as_deref().cloned(),
        }
    }

    /// What is known of an owner of an object; nothing if it has to be asked for.
    pub fn state_of(&self, owner: &str, of: &Meta) -> Option<Owner> {
        let node = self.nodes.get(&Id::from(owner))?;
        let (resource, object) = node.seen.as_ref()?;
        if resource.namespaced && object.described().namespace != of.namespace {
            return Some(Owner::Unreachable);
        }
        Some(if node.is_waiting() { Owner::Waiting } else { Owner::Solid })
    }

    /// The objects that name this one as an owner.
    pub fn dependents_of(&self, uid: &str) -> Vec<Dependent> {
        let id = Id::from(uid);
        let dependents = self.nodes.get(&id).into_iter().flat_map(Node::dependents);
        let seen = dependents.filter_map(|id| self.nodes.get(id)?.seen.as_ref());
        seen.map(|(resource, object)| Dependent {
            resource: resource.clone(),
            meta: object.described().clone(),
        })
        .collect()
    }

    /// How many objects are kept.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::monitors::Partial;
    use super::*;
    use crate::testing::object;
    use client::resources::{PODS, REPLICA_SETS};
    use serde_json::json;

    fn meta(name: &str, owner: Option<&str>) -> Arc<dyn Described> {
        let owners: Vec<_> = owner
            .iter()
            .map(|o| json!({"apiVersion":"apps/v1","kind":"ReplicaSet","name":o,"uid":o,"blockOwnerDeletion":true}))
            .collect();
        held(json!({"name":name,"namespace":"n","uid":name,"ownerReferences":owners}))
    }

    fn held(metadata: serde_json::Value) -> Arc<dyn Described> {
        Arc::new(Partial { metadata: object(metadata) })
    }

    fn pods() -> Arc<Resource> {
        Arc::new(PODS)
    }

    fn sets() -> Arc<Resource> {
        Arc::new(REPLICA_SETS)
    }

    #[test]
    fn a_uid_reads_as_it_was_written() {
        let usual = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";
        assert_eq!((Id::from(usual).uid(), size_of::<Id>()), (usual.into(), 24));
        assert!(matches!(Id::from(usual), Id::Uuid(_)));
        for odd in
            ["", "u", &usual.to_uppercase(), &usual.replace('-', "0"), "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1fg"]
        {
            assert_eq!(Id::from(odd), Id::Other(odd.into()));
            assert_eq!(&*Id::from(odd).uid(), odd);
        }
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
        assert!(graph.observe(&pods(), meta("lone", None)).is_empty());
        assert_eq!(graph.len(), 0);
    }

    #[test]
    fn an_unseen_owner_is_asked_for_and_its_end_concerns_the_dependents() {
        let mut graph = graph();
        assert_eq!(graph.observe(&pods(), meta("p", Some("r"))), ["r".into()]);
        assert_eq!(graph.place_of("r"), Some((sets(), Key::new("n", "r"))));
        assert!(graph.observe(&sets(), meta("r", None)).is_empty());
        assert_eq!(graph.state_of("r", meta("p", None).described()), Some(Owner::Solid));
        assert_eq!(graph.forget("r"), ["p".into()]);
        assert_eq!(graph.state_of("r", meta("p", None).described()), None);
        graph.forget("p");
        assert_eq!(graph.len(), 0, "nothing stays behind");
    }

    #[test]
    fn a_waiting_owner_is_looked_at_when_a_dependent_goes() {
        let mut graph = graph();
        graph.observe(&sets(), meta("r", None));
        graph.observe(&pods(), meta("p", Some("r")));
        let going =
            held(json!({"name":"r","namespace":"n","uid":"r","deletionTimestamp":"2026-01-01T00:00:00Z",
            "finalizers":["foregroundDeletion"]}));
        let mut asked = graph.observe(&sets(), going);
        asked.sort();
        assert_eq!(asked, ["p".into(), "r".into()]);
        assert_eq!(graph.forget("p"), ["r".into()]);
    }

    #[test]
    fn an_owner_in_another_namespace_is_unreachable() {
        let mut graph = graph();
        graph.observe(&pods(), meta("p", Some("r")));
        graph.observe(&sets(), held(json!({"name":"r","namespace":"other","uid":"r"})));
        assert_eq!(graph.state_of("r", meta("p", None).described()), Some(Owner::Unreachable));
    }

    #[test]
    fn who_names_an_owner_of_another_namespace_is_looked_at_whoever_comes_first() {
        let owner = || held(json!({"name":"r","namespace":"other","uid":"r"}));
        let child = held(json!({"name":"c","namespace":"other","uid":"c",
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"r"}]}));
        let (mut early, mut late) = (graph(), graph());
        early.observe(&pods(), child);
        assert!(early.observe(&sets(), owner()).is_empty());
        assert_eq!(early.observe(&pods(), meta("p", Some("r"))), ["p".into()]);

        late.observe(&pods(), meta("p", Some("r")));
        assert_eq!(late.observe(&sets(), owner()), ["p".into()]);
    }
}
