//! Walking values along their schema: which fields they have, how two differ, how one merges into another.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::set::{Set, shown};
use crate::golang;
use crate::meta::same;
use crate::schema::{Kind, ListType, Node, Scalar};

/// The differences between two values.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Only in the second.
    pub added: Set,
    /// In both, with other values.
    pub modified: Set,
    /// Only in the first.
    pub removed: Set,
}

/// How a value is treated: one thing, or a container with parts that are owned one by one.
enum Shape<'a> {
    Leaf,
    Fields,
    Items(&'a ListType, Node<'a>),
}

fn shape<'a>(value: &Value, node: Option<Node<'a>>) -> Shape<'a> {
    let Some(node) = node else {
        // Undeclared: maps are granular, lists are not.
        return if value.is_object() { Shape::Fields } else { Shape::Leaf };
    };
    match (node.kind(), value) {
        (Kind::Object(object), Value::Object(_)) if !object.atomic => Shape::Fields,
        (Kind::Map { atomic: false, .. }, Value::Object(_)) => Shape::Fields,
        (Kind::List(list), Value::Array(_)) if list.list_type != ListType::Atomic => {
            Shape::Items(&list.list_type, node.at(list.items))
        }
        (Kind::Opaque(_), Value::Object(_)) if node.arena().custom => Shape::Fields,
        (Kind::SchemaOr(_, schema), Value::Object(_)) => shape(value, Some(node.at(*schema))),
        _ => Shape::Leaf,
    }
}

fn child<'a>(node: Option<Node<'a>>, name: &str) -> Option<Node<'a>> {
    node?.child(name)
}

/// Whether a field is declared by name (of a struct), not just a key of a map.
fn is_declared(node: Option<Node<'_>>, name: &str) -> bool {
    match node.map(Node::kind) {
        Some(Kind::Object(_)) => node.is_some_and(|node| node.field(name).is_some()),
        Some(Kind::SchemaOr(_, schema)) => node.is_some_and(|node| is_declared(Some(node.at(*schema)), name)),
        _ => false,
    }
}

/// The path element of a list item; `None` when a key is missing that has no default.
pub fn item_element(item: &Value, list_type: &ListType, items: Node<'_>) -> Option<String> {
    match list_type {
        ListType::Set => Some(format!("v:{item}")),
        ListType::Map(keys) => {
            let mut sorted: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
            sorted.sort_unstable();
            let mut out = b"k:{".to_vec();
            for (number, key) in sorted.into_iter().enumerate() {
                if number > 0 {
                    out.push(b',');
                }
                serde_json::to_writer(&mut out, key).ok()?;
                out.push(b':');
                serde_json::to_writer(&mut out, &*key_value(item, key, items)?).ok()?;
            }
            out.push(b'}');
            String::from_utf8(out).ok()
        }
        ListType::Atomic => None,
    }
}

/// What an item has, or is taken to have, for a key.
fn key_value<'v>(item: &'v Value, key: &str, items: Node<'_>) -> Option<Cow<'v, Value>> {
    match item.get(key) {
        Some(value) => Some(Cow::Borrowed(value)),
        None => key_default(key, items).map(Cow::Owned),
    }
}

/// Keys that may be left out because they have a default.
fn key_default(key: &str, items: Node<'_>) -> Option<Value> {
    let declared = items.child(key).and_then(|node| node.rules()).and_then(|rules| rules.default.clone());
    if declared.is_some() {
        return declared;
    }
    if key == "protocol" && !items.arena().custom {
        return Some(Value::from("TCP"));
    }
    // Fields that Go always writes have their zero value as default.
    let field = items.field(key).filter(|field| field.always && !field.pointer)?;
    match items.at(field.node).kind() {
        Kind::Scalar(scalar) => Some(scalar.zero()),
        _ => None,
    }
}

/// All fields that a value has.
pub fn field_set(value: &Value, node: Node<'_>) -> Set {
    let mut set = Set::default();
    collect(value, Some(node), &mut set);
    set
}

fn collect(value: &Value, node: Option<Node<'_>>, set: &mut Set) {
    match (shape(value, node), value) {
        (Shape::Fields, Value::Object(map)) => {
            for (name, below) in map {
                let element = ["f:", name].concat();
                let inner = child(node, name);
                let leaf = matches!(shape(below, inner), Shape::Leaf);
                let empty = below.is_null() || below.as_object().is_some_and(Map::is_empty);
                let member = leaf || empty || !is_declared(node, name);
                let mut children = Set::default();
                if !leaf {
                    collect(below, inner, &mut children);
                }
                set.add(element, member, children);
            }
        }
        (Shape::Items(list_type, items), Value::Array(list)) => {
            for item in list {
                let Some(element) = item_element(item, list_type, items) else { continue };
                let mut children = Set::default();
                if !matches!(shape(item, Some(items)), Shape::Leaf) {
                    collect(item, Some(items), &mut children);
                }
                set.add(element, true, children);
            }
        }
        _ => {}
    }
}

/// How two values differ.
pub fn compare(before: &Value, after: &Value, node: Node<'_>) -> Comparison {
    let mut out = Comparison::default();
    let mut path = Vec::new();
    compare_parts(before, after, Some(node), &mut path, &mut out);
    out
}

/// A step of a path; only steps to a difference are ever written out.
#[derive(Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item(&'a str),
}

fn record(set: &mut Set, path: &[Step<'_>]) {
    set.insert(path.len(), |index, element| match path[index] {
        Step::Field(name) => {
            element.push_str("f:");
            element.push_str(name);
        }
        Step::Item(text) => element.push_str(text),
    });
}

fn is_empty_container(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// Whether an empty map or list, or null, is anywhere in a value.
pub fn has_empty_container(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty() || map.values().any(has_empty_container),
        Value::Array(list) => list.is_empty() || list.iter().any(has_empty_container),
        other => other.is_null(),
    }
}

fn compare_at<'v>(
    before: Option<&'v Value>,
    after: Option<&'v Value>,
    node: Option<Node<'_>>,
    path: &mut Vec<Step<'v>>,
    out: &mut Comparison,
) {
    let probe = after.filter(|value| !value.is_null()).or(before);
    let leaf = probe.is_none_or(|value| matches!(shape(value, node), Shape::Leaf))
        || is_empty_container(before) && is_empty_container(after);
    match (before, after, leaf) {
        (None, None, _) => {}
        (Some(before), Some(after), true) => {
            if !same(before, after) {
                record(&mut out.modified, path);
            }
        }
        (Some(before), Some(after), false) => compare_parts(before, after, node, path, out),
        (None, Some(after), leaf) => {
            record(&mut out.added, path);
            if !leaf {
                compare_parts(&Value::Null, after, node, path, out);
            }
        }
        (Some(before), None, leaf) => {
            record(&mut out.removed, path);
            if !leaf {
                compare_parts(before, &Value::Null, node, path, out);
            }
        }
    }
}

/// What a field that an object leaves out is in Go, where lists and maps that are always written are null.
fn unwritten(node: Option<Node<'_>>, name: &str) -> Option<&'static Value> {
    static NULL: Value = Value::Null;
    let node = node?;
    let field = node.field(name).filter(|field| field.always && !field.pointer)?;
    matches!(node.at(field.node).kind(), Kind::List(_) | Kind::Map { .. }).then_some(&NULL)
}

fn compare_parts<'v>(
    before: &'v Value,
    after: &'v Value,
    node: Option<Node<'_>>,
    path: &mut Vec<Step<'v>>,
    out: &mut Comparison,
) {
    let probe = if after.is_null() { before } else { after };
    match shape(probe, node) {
        Shape::Leaf => {
            if !same(before, after) {
                record(&mut out.modified, path);
            }
        }
        Shape::Fields => {
            let (lhs, rhs) = (before.as_object(), after.as_object());
            // Two versions of an object mostly have their fields in the same order: no need to look them up.
            let mut aligned = rhs.into_iter().flatten().peekable();
            let mut common = 0;
            for (name, old) in lhs.into_iter().flatten() {
                let new = match aligned.next_if(|(own, _)| *own == name) {
                    Some((_, new)) => Some(new),
                    None => rhs.and_then(|map| map.get(name)),
                };
                common += usize::from(new.is_some());
                let new = new.or_else(|| rhs.and_then(|_| unwritten(node, name)));
                path.push(Step::Field(name));
                compare_at(Some(old), new, child(node, name), path, out);
                path.pop();
            }
            if common == rhs.map_or(0, Map::len) {
                return;
            }
            for (name, new) in rhs.into_iter().flatten() {
                if lhs.is_none_or(|lhs| !lhs.contains_key(name)) {
                    path.push(Step::Field(name));
                    let old = lhs.and_then(|_| unwritten(node, name));
                    compare_at(old, Some(new), child(node, name), path, out);
                    path.pop();
                }
            }
        }
        // Naming the items of a list costs far more than seeing that nothing has changed.
        Shape::Items(..) if same(before, after) => {}
        Shape::Items(list_type, items) => compare_items(before, after, list_type, items, path, out),
    }
}

/// The names of a list's items. In a long list they are looked up: to look through it for every item takes for ever.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    /// Where each name comes first, once there are many.
    places: HashMap<String, usize>,
}

impl Names {
    const FEW: usize = 32;

    fn find(&self, name: &str) -> Option<usize> {
        match self.places.is_empty() {
            true => self.list.iter().position(|have| have == name),
            false => self.places.get(name).copied(),
        }
    }

    fn push(&mut self, name: String) {
        let at = self.list.len();
        if at == Self::FEW {
            let places = self.list.iter().enumerate().rev();
            self.places = places.map(|(at, name)| (name.clone(), at)).collect();
        }
        if at >= Self::FEW {
            self.places.entry(name.clone()).or_insert(at);
        }
        self.list.push(name);
    }
}

impl Extend<String> for Names {
    fn extend<I: IntoIterator<Item = String>>(&mut self, names: I) {
        names.into_iter().for_each(|name| self.push(name));
    }
}

fn compare_items(
    before: &Value,
    after: &Value,
    list_type: &ListType,
    items: Node<'_>,
    path: &[Step<'_>],
    out: &mut Comparison,
) {
    fn index<'v>(value: &'v Value, list_type: &ListType, items: Node<'_>) -> (Names, Vec<&'v Value>) {
        let list = value.as_array().into_iter().flatten();
        list.filter_map(|item| Some((item_element(item, list_type, items)?, item))).unzip()
    }
    let ((lhs, old), (rhs, new)) = (index(before, list_type, items), index(after, list_type, items));
    // The path is rebuilt with a shorter life, so that the elements' names can be borrowed.
    let mut path: Vec<Step<'_>> = path.to_vec();
    for (number, element) in lhs.list.iter().chain(&rhs.list).enumerate() {
        let (left, right) = (lhs.find(element), rhs.find(element));
        if left.or(right.map(|at| at + lhs.list.len())) != Some(number) {
            continue;
        }
        path.push(Step::Item(element));
        compare_at(left.map(|at| old[at]), right.map(|at| new[at]), Some(items), &mut path, out);
        path.pop();
    }
}

/// Merges a configuration into a value: what the configuration says wins, the rest stays.
pub fn merge(into: &mut Value, config: &Value, node: Node<'_>) {
    merge_at(into, config, Some(node));
}

fn merge_at(into: &mut Value, config: &Value, node: Option<Node<'_>>) {
    match (shape(config, node), &mut *into, config) {
        (Shape::Fields, Value::Object(into), Value::Object(config)) => {
            for (name, value) in config {
                match into.get_mut(name) {
                    Some(have) => merge_at(have, value, child(node, name)),
                    None => {
                        into.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (Shape::Items(list_type, items), Value::Array(into), Value::Array(config)) => {
            let same_item = |(one, other): (&Value, &Value)| is_same_item(one, other, list_type, items);
            if into.len() == config.len() && into.iter().zip(config).all(same_item) {
                into.iter_mut().zip(config).for_each(|(have, value)| merge_at(have, value, Some(items)));
            } else {
                *into = merge_list(into, config, list_type, items);
            }
        }
        (_, into, config) => {
            if !same(into, config) {
                *into = config.clone();
            }
        }
    }
}

/// Whether two items of a list have the same name in it.
fn is_same_item(one: &Value, other: &Value, list_type: &ListType, items: Node<'_>) -> bool {
    match list_type {
        ListType::Set => same(one, other),
        ListType::Map(keys) => keys.iter().all(|key| {
            let value = key_value(one, key, items);
            value.is_some() && value == key_value(other, key, items)
        }),
        ListType::Atomic => false,
    }
}

/// The configuration's order rules among its own items; items that only the live list has keep their neighbours.
fn merge_list(live: &[Value], config: &[Value], list_type: &ListType, items: Node<'_>) -> Vec<Value> {
    let elements = |list: &[Value]| -> Names {
        let mut names = Names::default();
        names.extend(list.iter().map(|item| item_element(item, list_type, items).unwrap_or_default()));
        names
    };
    let (left, right) = (elements(live), elements(config));
    let (lhs, rhs) = (&left.list, &right.list);
    let mut out = Vec::with_capacity(live.len().max(config.len()));
    let mut shared = rhs.iter().filter(|element| left.find(element).is_some());
    let mut next_shared = shared.next();
    let (mut l, mut r) = (0, 0);
    let merged = |left: &Value, right: &Value| {
        let mut out = left.clone();
        merge_at(&mut out, right, Some(items));
        out
    };
    while l < lhs.len() || r < rhs.len() {
        // Where the configuration has the live list's next item; done if that is behind us.
        let beside = lhs.get(l).and_then(|element| right.find(element));
        if l < lhs.len() && r < rhs.len() {
            if lhs[l] == rhs[r] {
                out.push(merged(&live[l], &config[r]));
                l += 1;
                r += 1;
                next_shared = shared.next();
                continue;
            }
            if beside.is_some() && next_shared.is_some_and(|next| *next != lhs[l]) {
                l += 1;
                continue;
            }
        }
        if l < lhs.len() {
            match beside {
                None => {
                    out.push(live[l].clone());
                    l += 1;
                    continue;
                }
                Some(at) if at < r => l += 1,
                Some(_) => {}
            }
        }
        if r < rhs.len() {
            out.push(match left.find(&rhs[r]) {
                Some(at) => merged(&live[at], &config[r]),
                None => config[r].clone(),
            });
            if next_shared.is_some_and(|next| *next == rhs[r]) {
                next_shared = shared.next();
            }
            r += 1;
        }
    }
    out
}

/// The value without the paths of a set.
pub fn remove(value: &Value, set: &Set, node: Node<'_>) -> Value {
    remove_at(value, set, Some(node)).unwrap_or_else(|| Value::Object(Map::new()))
}

/// `None` when nothing is left of a container that had something.
fn remove_at(value: &Value, set: &Set, node: Option<Node<'_>>) -> Option<Value> {
    match (shape(value, node), value) {
        (Shape::Fields, Value::Object(map)) => {
            let mut out = Map::new();
            for (name, below) in map {
                let element = format!("f:{name}");
                if set.has(&element) {
                    continue;
                }
                match set.child(&element) {
                    None => {
                        out.insert(name.clone(), below.clone());
                    }
                    Some(inner) => {
                        if let Some(rest) = remove_at(below, inner, child(node, name)) {
                            out.insert(name.clone(), rest);
                        }
                    }
                }
            }
            (!out.is_empty() || map.is_empty()).then_some(Value::Object(out))
        }
        (Shape::Items(list_type, items), Value::Array(list)) => {
            let mut out = Vec::new();
            for item in list {
                let element = item_element(item, list_type, items).unwrap_or_default();
                if set.has(&element) {
                    continue;
                }
                match set.child(&element) {
                    None => out.push(item.clone()),
                    Some(inner) => out.extend(remove_at(item, inner, Some(items))),
                }
            }
            (!out.is_empty() || list.is_empty()).then_some(Value::Array(out))
        }
        _ => Some(value.clone()),
    }
}

/// The set with the declared parents of its paths as members too.
pub fn named_parents(set: &Set, node: Node<'_>) -> Set {
    let mut out = set.clone();
    add_named(set, Some(node), &mut out);
    out
}

fn add_named(set: &Set, node: Option<Node<'_>>, out: &mut Set) {
    for (element, _, below) in set.iter() {
        if below.is_empty() {
            continue;
        }
        let inner = match element.strip_prefix("f:") {
            Some(name) => {
                if is_declared(node, name) {
                    out.insert_member(element);
                }
                child(node, name)
            }
            None => node.and_then(Node::items),
        };
        add_named(below, inner, out.child_mut(element));
    }
}

/// What is wrong with a value. Every complaint has its whole path, and a long name may be on the path to many of them: what
/// would not fit into an answer is not written.
#[derive(Default)]
struct Complaints {
    list: Vec<String>,
    bytes: usize,
}

impl Complaints {
    const MAX_BYTES: usize = 4 << 20;

    fn push(&mut self, complaint: std::fmt::Arguments<'_>) {
        if self.bytes < Self::MAX_BYTES {
            let complaint = complaint.to_string();
            self.bytes += complaint.len();
            self.list.push(complaint);
        }
    }
}

/// Fields that the schema does not have and values that it has otherwise, in structured-merge-diff's words.
pub fn undeclared(value: &Value, node: Node<'_>) -> Vec<String> {
    let mut out = Complaints::default();
    find_undeclared(value, node, &Place::Root, &mut out);
    out.list
}

/// What is wrong with the type of a value. Null is of every type.
fn ill_typed(value: &Value, node: Node<'_>) -> Option<String> {
    let held = || format!("&{{{}}}", golang::plain(value));
    match (node.kind(), value) {
        (_, Value::Null) => None,
        (Kind::Object(_) | Kind::Map { .. }, Value::Object(_)) | (Kind::List(_), Value::Array(_)) => None,
        (Kind::Object(_) | Kind::Map { .. }, _) => Some(format!("expected map, got {}", held())),
        (Kind::List(_), _) => Some(format!("expected list, got {}", held())),
        (Kind::Scalar(Scalar::IntOrString | Scalar::Quantity), Value::Array(_) | Value::Object(_)) => {
            Some(format!("expected any scalar, got {}", held()))
        }
        (Kind::Scalar(Scalar::IntOrString | Scalar::Quantity), _) => None,
        (Kind::Scalar(Scalar::Bool), Value::Bool(_)) => None,
        (Kind::Scalar(Scalar::Bool), _) => Some(format!("expected boolean, got {}", held())),
        (Kind::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float), Value::Number(_)) => None,
        (Kind::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Float), _) => {
            let found = golang::type_name(value);
            Some(format!("expected numeric (int or float), got {found}"))
        }
        (Kind::Scalar(_), Value::String(_)) => None,
        (Kind::Scalar(_), _) => {
            let held = golang::syntax(value);
            Some(format!("expected string, got &value.valueUnstructured{{Value:{held}}}"))
        }
        (Kind::Opaque(_) | Kind::SchemaOr(..), _) => None,
    }
}

/// Where a walk is. Written out only for those who have something to complain about.
enum Place<'a> {
    Root,
    Field(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
    /// An item that is named by its keys if it has them.
    Item(&'a Place<'a>, usize, &'a Value, &'a ListType, Node<'a>),
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(parent, name) => write!(out, "{parent}.{name}"),
            Self::Index(parent, index) => write!(out, "{parent}[{index}]"),
            Self::Item(parent, index, item, list_type, items) => {
                match item_element(item, list_type, *items) {
                    Some(text) => write!(out, "{parent}{}", shown(&text)),
                    None => write!(out, "{parent}[{index}]"),
                }
            }
        }
    }
}

fn find_undeclared(value: &Value, node: Node<'_>, place: &Place<'_>, out: &mut Complaints) {
    if let Some(wrong) = ill_typed(value, node) {
        out.push(format_args!("{place}: {wrong}"));
    }
    match (node.kind(), value) {
        (Kind::Object(object), Value::Object(map)) => {
            for (name, below) in map {
                let here = Place::Field(place, name);
                match node.child(name) {
                    Some(inner) => find_undeclared(below, inner, &here, out),
                    None if object.preserve_unknown => {}
                    None => out.push(format_args!("{here}: field not declared in schema")),
                }
            }
        }
        (Kind::Map { value: inner, .. }, Value::Object(map)) => {
            for (name, below) in map {
                find_undeclared(below, node.at(*inner), &Place::Field(place, name), out);
            }
        }
        (Kind::List(list), Value::Array(elements)) => {
            let items = node.at(list.items);
            for (index, element) in elements.iter().enumerate() {
                let here = Place::Item(place, index, element, &list.list_type, items);
                find_undeclared(element, items, &here, out);
            }
        }
        _ => {}
    }
}

/// Lists with repeated or keyless elements.
pub fn bad_lists(value: &Value, node: Node<'_>) -> Vec<String> {
    let mut out = Complaints::default();
    find_bad_lists(value, node, &Place::Root, &mut out);
    out.list
}

fn find_bad_lists(value: &Value, node: Node<'_>, path: &Place<'_>, out: &mut Complaints) {
    match value {
        Value::Object(map) => {
            for (name, below) in map {
                if let Some(inner) = node.child(name) {
                    find_bad_lists(below, inner, &Place::Field(path, name), out);
                }
            }
        }
        Value::Array(elements) => {
            let Kind::List(list) = node.kind() else { return };
            let items = node.at(list.items);
            let mut seen = Names::default();
            for (index, element) in elements.iter().enumerate() {
                if list.list_type != ListType::Atomic {
                    let name = match elements.len() {
                        // Nobody else can have its name.
                        1 if missing_key(element, &list.list_type, items).is_empty() => Some(String::new()),
                        _ => item_element(element, &list.list_type, items),
                    };
                    match name {
                        None => {
                            let missing = missing_key(element, &list.list_type, items);
                            out.push(format_args!(
                                "{path}: element {index}: associative list with keys has an element that omits key field {missing:?} (and doesn't have default value)"
                            ));
                        }
                        Some(text) if seen.find(&text).is_some() => {
                            out.push(format_args!("{path}: duplicate entries for key {}", shown(&text)));
                        }
                        Some(text) => seen.push(text),
                    }
                }
                find_bad_lists(element, items, &Place::Index(path, index), out);
            }
        }
        _ => {}
    }
}

fn missing_key<'a>(element: &Value, list_type: &'a ListType, items: Node<'_>) -> &'a str {
    match list_type {
        ListType::Map(keys) => keys
            .iter()
            .find(|key| element.get(key.as_ref()).is_none() && key_default(key, items).is_none())
            .map_or("", AsRef::as_ref),
        _ => "",
    }
}
