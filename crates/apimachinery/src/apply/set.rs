//! Sets of field paths, as `fieldsV1` writes them.
//!
//! A path element is kept in its wire form: `f:name` a field, `k:{"name":"a"}` a list element by key, `v:"a"` one
//! by value, `i:0` one by position. That makes reading and writing trivial and the order total.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde_json::{Map, Value};

/// A long name may be on the way to many paths. No more than this is written of them, which is more than anybody reads.
const MAX_PATH_BYTES: usize = 64 << 20;

/// A set of paths: a trie whose nodes may be members themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Set {
    entries: BTreeMap<Box<str>, Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    member: bool,
    children: Set,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.children.is_empty()
    }
}

/// Whether what is written below an element makes the element itself a member.
fn is_member(below: &Map<String, Value>) -> bool {
    below.is_empty() || below.contains_key(".")
}

impl Set {
    /// Whether no path is in it.
    pub fn is_empty(&self) -> bool {
        self.entries.values().all(Node::is_empty)
    }

    /// Reads `fieldsV1`.
    pub fn from_value(value: &Value) -> Option<Set> {
        Set::from_map(value.as_object()?)
    }

    fn from_map(map: &Map<String, Value>) -> Option<Set> {
        let mut set = Set::default();
        for (key, below) in map {
            if key == "." {
                continue;
            }
            let below = below.as_object()?;
            let member = is_member(below);
            let children = Set::from_map(below)?;
            set.entries.insert(key.as_str().into(), Node { member, children });
        }
        Some(set)
    }

    /// Writes `fieldsV1`.
    pub fn to_value(&self) -> Value {
        Value::Object(self.to_map(Map::new()))
    }

    fn to_map(&self, mut out: Map<String, Value>) -> Map<String, Value> {
        for (key, node) in &self.entries {
            if node.is_empty() {
                continue;
            }
            let mut below = Map::new();
            if node.member && !node.children.is_empty() {
                below.insert(".".into(), Value::Object(Map::new()));
            }
            out.insert(key.to_string(), Value::Object(node.children.to_map(below)));
        }
        out
    }

    /// Whether every path of this is in the other.
    pub fn is_within(&self, other: &Set) -> bool {
        self.entries.iter().all(|(element, node)| match other.entries.get(element) {
            None => node.is_empty(),
            Some(have) => (!node.member || have.member) && node.children.is_within(&have.children),
        })
    }

    /// Adds a path: `write` puts the text of the n-th of its elements into the buffer.
    pub fn insert(&mut self, length: usize, mut write: impl FnMut(usize, &mut String)) {
        let mut element = String::with_capacity(64);
        let mut here = self;
        for index in 0..length {
            element.clear();
            write(index, &mut element);
            let node = here.node(&element);
            node.member |= index + 1 == length;
            here = &mut node.children;
        }
    }

    fn node(&mut self, element: &str) -> &mut Node {
        // Looked up before it is named: most elements are there, and a name costs an allocation.
        if !self.entries.contains_key(element) {
            self.entries.insert(element.into(), Node::default());
        }
        match self.entries.get_mut(element) {
            Some(node) => node,
            None => unreachable!("the element was just put there"),
        }
    }

    /// Adds an element with everything below it.
    pub fn add(&mut self, element: String, member: bool, children: Set) {
        match self.entries.entry(element.into_boxed_str()) {
            Entry::Vacant(place) => {
                place.insert(Node { member, children });
            }
            Entry::Occupied(mut place) => {
                let node = place.get_mut();
                node.member |= member;
                node.children = node.children.union(&children);
            }
        }
    }

    /// Removes an element and everything below it.
    pub fn remove(&mut self, element: &str) {
        self.entries.remove(element);
    }

    /// The set below an element, to be changed.
    pub fn below_mut(&mut self, element: &str) -> Option<&mut Set> {
        self.entries.get_mut(element).map(|node| &mut node.children)
    }

    /// Adds a member at this level.
    pub fn insert_member(&mut self, element: &str) {
        self.node(element).member = true;
    }

    /// The set below an element, made when absent.
    pub fn child_mut(&mut self, element: &str) -> &mut Set {
        &mut self.node(element).children
    }

    /// The set below an element.
    pub fn child(&self, element: &str) -> Option<&Set> {
        self.entries.get(element).map(|node| &node.children).filter(|set| !set.is_empty())
    }

    /// Whether an element of this level is a member.
    pub fn has(&self, element: &str) -> bool {
        self.entries.get(element).is_some_and(|node| node.member)
    }

    /// Elements of this level with what is below them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, bool, &Set)> {
        self.entries.iter().map(|(element, node)| (element.as_ref(), node.member, &node.children))
    }

    /// Whether every path of this is in a set that is still in its written form.
    pub fn is_within_written(&self, written: &Map<String, Value>) -> bool {
        self.entries.iter().filter(|(_, node)| !node.is_empty()).all(|(element, node)| {
            let Some(below) = written.get(&**element).and_then(Value::as_object) else { return false };
            (!node.member || is_member(below)) && node.children.is_within_written(below)
        })
    }

    /// Whether this is the set that was written.
    pub fn is_written(&self, written: &Map<String, Value>) -> bool {
        let own = self.entries.iter().filter(|(_, node)| !node.is_empty());
        let mut count = usize::from(written.contains_key("."));
        for (element, node) in own {
            let Some(below) = written.get(&**element).and_then(Value::as_object) else { return false };
            if node.member != is_member(below) || !node.children.is_written(below) {
                return false;
            }
            count += 1;
        }
        count == written.len()
    }

    /// Whether some path of this is in a set that is still in its written form.
    pub fn meets_written(&self, written: &Map<String, Value>) -> bool {
        self.entries.iter().any(|(element, node)| {
            let Some(below) = written.get(&**element).and_then(Value::as_object) else { return false };
            node.member && is_member(below) || node.children.meets_written(below)
        })
    }

    /// All paths of both, for those who need neither any more.
    #[must_use]
    pub fn joined(mut self, other: Set) -> Set {
        if self.entries.is_empty() {
            return other;
        }
        for (element, node) in other.entries {
            match self.entries.entry(element) {
                Entry::Vacant(place) => {
                    place.insert(node);
                }
                Entry::Occupied(mut place) => {
                    let have = place.get_mut();
                    have.member |= node.member;
                    have.children = std::mem::take(&mut have.children).joined(node.children);
                }
            }
        }
        self
    }

    /// All paths of both.
    #[must_use]
    pub fn union(&self, other: &Set) -> Set {
        let mut out = self.clone();
        for (element, node) in &other.entries {
            match out.entries.get_mut(element) {
                Some(have) => {
                    have.member |= node.member;
                    have.children = have.children.union(&node.children);
                }
                None => {
                    out.entries.insert(element.clone(), node.clone());
                }
            }
        }
        out
    }

    /// Paths of both at once.
    #[must_use]
    pub fn intersection(&self, other: &Set) -> Set {
        let mut out = Set::default();
        for (element, node) in &self.entries {
            let Some(have) = other.entries.get(element) else { continue };
            let both = Node {
                member: node.member && have.member,
                children: node.children.intersection(&have.children),
            };
            if both.member || !both.children.is_empty() {
                out.entries.insert(element.clone(), both);
            }
        }
        out
    }

    /// Paths of the first that the second does not have.
    #[must_use]
    pub fn difference(&self, other: &Set) -> Set {
        let mut out = self.clone();
        out.subtract(other);
        out
    }

    /// Takes away the paths that the other has.
    pub fn subtract(&mut self, other: &Set) {
        for (element, gone) in &other.entries {
            let Some(node) = self.entries.get_mut(element) else { continue };
            node.member &= !gone.member;
            node.children.subtract(&gone.children);
            if node.is_empty() {
                self.entries.remove(element);
            }
        }
    }

    /// Removes a field itself, keeping what is below it.
    pub fn remove_member(&mut self, field: &str) {
        if let Some(node) = self.entries.get_mut(format!("f:{field}").as_str()) {
            node.member = false;
        }
    }

    /// All paths as people read them: `.spec.containers[name="a"].image`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut room = MAX_PATH_BYTES;
        self.collect("", &mut out, &mut room);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>, room: &mut usize) {
        // Members come first, what is below them after all of them.
        let members = self.entries.iter().filter(|(_, node)| node.member).map(|(element, _)| (element, None));
        let parents = self.entries.iter().filter(|(_, node)| !node.children.is_empty());
        for (element, below) in members.chain(parents.map(|(element, node)| (element, Some(&node.children))))
        {
            let path = format!("{prefix}{}", shown(element));
            let Some(rest) = room.checked_sub(path.len()) else { return };
            *room = rest;
            match below {
                Some(below) => below.collect(&path, out, room),
                None => out.push(path),
            }
        }
    }
}

/// An element as people read it.
pub fn shown(element: &str) -> String {
    let (kind, text) = element.split_at(element.len().min(2));
    match kind {
        "f:" => format!(".{text}"),
        "v:" => format!("[={text}]"),
        "i:" => format!("[{text}]"),
        "k:" => match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(keys) => {
                let pairs: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                format!("[{}]", pairs.join(","))
            }
            Err(_) => format!("[{text}]"),
        },
        _ => format!(".{element}"),
    }
}
