//! The compact in-memory form of what a kind looks like on the wire.
//!
//! Built-in kinds (loaded from a table made at build time) and CRD structural schemas end up in the same
//! [`Arena`], so decoding, patching, server-side apply, the protobuf codec and OpenAPI have one thing to walk.
//! Types refer to each other by index because some are recursive. A [`Node`] is a cheap cursor into an arena.
//!
//! Invariant: the fields of one object are stored sorted by JSON name, so that lookup is a binary search.

use std::{borrow::Cow, collections::HashMap, ops::Range, sync::Arc};

use serde_json::{Map, Value};

pub mod structural;

/// Index of a type inside its arena.
pub type NodeId = u32;
/// A name that is borrowed for built-ins and owned for CRDs.
pub type Name = Cow<'static, str>;

/// Scalars as Go's types and the API conventions have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// UTF-8 text.
    String,
    /// 32-bit integer.
    Int32,
    /// 64-bit integer.
    Int64,
    /// Floating point; written as `number` in OpenAPI.
    Float,
    /// true or false.
    Bool,
    /// Base64 text in JSON, raw bytes in protobuf.
    Bytes,
    /// `500m`, `1Gi`; a message with one string in protobuf.
    Quantity,
    /// A port number or a port name, a count or a percentage.
    IntOrString,
    /// RFC 3339 with seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// Go's duration text (`1h30m`); an int64 message in protobuf.
    Duration,
}

impl Scalar {
    /// What Go writes for the zero value.
    pub fn zero(self) -> Value {
        match self {
            Scalar::String | Scalar::Bytes => Value::String(String::new()),
            Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::IntOrString => Value::from(0),
            Scalar::Bool => Value::Bool(false),
            Scalar::Quantity => Value::String("0".into()),
            Scalar::Duration => Value::String("0s".into()),
            Scalar::Time | Scalar::MicroTime => Value::Null,
        }
    }
}

/// Values without a declared inside. They differ only in how protobuf carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opaque {
    /// Any JSON; never appears in protobuf.
    Any,
    /// `runtime.RawExtension`: an embedded object.
    RawExtension,
    /// `apiextensions.JSON`.
    Json,
    /// `metav1.FieldsV1`.
    Fields,
}

/// The three either-or types of `JSONSchemaProps`; the node is the schema alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaOr {
    /// schema or true/false
    Bool,
    /// schema or list of schemas
    Array,
    /// schema or list of strings
    Strings,
}

/// How server-side apply treats a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as one value.
    Atomic,
    /// Scalars without repetition.
    Set,
    /// Objects told apart by the named keys.
    Map(Vec<Name>),
}

/// A list type.
#[derive(Debug, Clone)]
pub struct List {
    /// Type of one element.
    pub items: NodeId,
    /// Ownership granularity.
    pub list_type: ListType,
    /// Key by which strategic merge patch tells elements apart.
    pub merge_key: Option<Name>,
    /// In protobuf the list sits alone in a message (`ExtraValue`, `Verbs`).
    pub wrapped: bool,
}

/// Fields that JSON shows in the parent but protobuf nests in a message of their own (Go's inlined structs).
#[derive(Debug, Clone, Copy)]
pub struct Inline {
    /// Tag of the nested message.
    pub tag: u16,
    /// The inline that this one sits in: 0 is the object itself, n is `inlines[n - 1]`.
    pub via: u8,
}

/// A struct.
#[derive(Debug, Clone)]
pub struct Object {
    /// Go's name of the type, used in error texts.
    pub name: Name,
    /// OpenAPI definition name such as `io.k8s.api.core.v1.Pod`; empty for parts of a CRD.
    pub definition: Name,
    /// Where its fields are in the arena.
    pub fields: Range<u32>,
    /// Nested messages that JSON does not show.
    pub inlines: Vec<Inline>,
    /// Unknown fields have this type instead of being unknown (CRDs with both forms do not exist; this is
    /// for `additionalProperties` beside nothing).
    pub additional: Option<NodeId>,
    /// Unknown fields are kept (`x-kubernetes-preserve-unknown-fields`).
    pub preserve_unknown: bool,
    /// Has apiVersion, kind and metadata of its own (`x-kubernetes-embedded-resource`).
    pub embedded: bool,
    /// Owned as a whole by apply.
    pub atomic: bool,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// Struct with declared fields.
    Object(Object),
    /// String-keyed map.
    Map {
        /// Type of the values.
        value: NodeId,
        /// Owned as a whole by apply.
        atomic: bool,
    },
    /// List.
    List(List),
    /// Scalar.
    Scalar(Scalar),
    /// Free-form value.
    Opaque(Opaque),
    /// One of the either-or schema types.
    SchemaOr(SchemaOr, NodeId),
}

/// How strategic merge patch treats a field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PatchStrategy {
    /// Lists are merged by key.
    pub merge: bool,
    /// Values are replaced whole.
    pub replace: bool,
    /// Keys that the patch does not name are removed (unions).
    pub retain_keys: bool,
}

/// A field of an object.
#[derive(Debug, Clone)]
pub struct Field {
    /// JSON name.
    pub name: Name,
    /// Type.
    pub node: NodeId,
    /// Protobuf tag; 0 when protobuf does not carry it.
    pub tag: u16,
    /// The inline message it travels in: 0 none, n is `inlines[n - 1]`.
    pub via: u8,
    /// Listed as required in OpenAPI.
    pub required: bool,
    /// Zero differs from absent (a pointer in Go).
    pub pointer: bool,
    /// Present even when zero (no `omitempty` in Go, or a struct by value).
    pub always: bool,
    /// Strategic merge patch strategy.
    pub patch: PatchStrategy,
}

impl Field {
    /// A field that nothing further is said of.
    pub fn new(name: impl Into<Name>, node: NodeId) -> Self {
        Self {
            name: name.into(),
            node,
            tag: 0,
            via: 0,
            required: false,
            pointer: false,
            always: false,
            patch: PatchStrategy::default(),
        }
    }
}

/// Value rules that only CRD schemas carry; see [`structural`].
pub use structural::Rules;

/// A set of types that refer to each other.
#[derive(Debug, Clone, Default)]
pub struct Arena {
    nodes: Vec<Kind>,
    fields: Vec<Field>,
    rules: HashMap<NodeId, Box<Rules>>,
    /// What Go calls types of fields, and which structs it embeds: lines of a definition and its fields, each
    /// `field=type<Embedded`. Read only to tell what is wrong.
    pub go_names: &'static str,
    /// Made from a CRD: values of a wrong type are a validation matter, zero values are kept as sent.
    pub custom: bool,
}

impl Arena {
    /// What Go calls the type of a field, and the structs that are embedded between it and its owner.
    pub fn go_field(&self, definition: &str, field: &str) -> (Option<&'static str>, Vec<&'static str>) {
        let words = self.go_names.lines().find_map(|line| line.strip_prefix(definition)?.strip_prefix(' '));
        let found = words.and_then(|words| {
            words.split(' ').find_map(|word| {
                let rest = word.strip_prefix(field)?;
                rest.is_empty().then_some("").or_else(|| rest.starts_with(['=', '<']).then_some(rest))
            })
        });
        let mut parts = found.unwrap_or_default().split('<');
        let own = parts.next().unwrap_or_default().strip_prefix('=');
        (own, parts.collect())
    }

    /// Adds a type.
    pub fn add(&mut self, kind: Kind) -> NodeId {
        self.nodes.push(kind);
        (self.nodes.len() - 1) as NodeId
    }

    /// Adds fields (in any order) and returns where they are; an object refers to them by this range.
    pub fn add_fields(&mut self, mut fields: Vec<Field>) -> Range<u32> {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let start = self.fields.len() as u32;
        self.fields.append(&mut fields);
        start..self.fields.len() as u32
    }

    /// Replaces a type, for recursive ones whose index must be known first.
    pub fn set(&mut self, id: NodeId, kind: Kind) {
        self.nodes[id as usize] = kind;
    }

    /// Gives a field of a struct a type of its own that is owned part by part.
    pub fn make_granular(&mut self, object: NodeId, field: &str) {
        let Kind::Object(holder) = &self.nodes[object as usize] else { return };
        let range = holder.fields.start as usize..holder.fields.end as usize;
        let Some(index) = range.into_iter().find(|index| self.fields[*index].name == field) else { return };
        let mut kind = self.nodes[self.fields[index].node as usize].clone();
        if let Kind::Object(own) = &mut kind {
            own.atomic = false;
        }
        self.fields[index].node = self.add(kind);
    }

    /// Attaches value rules to a type.
    pub fn set_rules(&mut self, id: NodeId, rules: Rules) {
        self.rules.insert(id, Box::new(rules));
    }

    /// Copies a type and everything below it from another arena. The type must not be recursive.
    pub fn import(&mut self, node: Node<'_>) -> NodeId {
        let kind = match node.kind() {
            Kind::Object(object) => {
                let fields = node
                    .fields()
                    .iter()
                    .map(|field| Field { node: self.import(node.at(field.node)), ..field.clone() })
                    .collect();
                let range = self.add_fields(fields);
                Kind::Object(Object { fields: range, additional: None, ..object.clone() })
            }
            Kind::Map { value, atomic } => Kind::Map { value: self.import(node.at(*value)), atomic: *atomic },
            Kind::List(list) => Kind::List(List { items: self.import(node.at(list.items)), ..list.clone() }),
            Kind::SchemaOr(..) => Kind::Opaque(Opaque::Json),
            other => other.clone(),
        };
        self.add(kind)
    }

    /// A cursor at a type.
    pub fn node(&self, id: NodeId) -> Node<'_> {
        Node { arena: self, id }
    }

    /// Number of types, for memory accounting and tests.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no type at all.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// A type that owns its arena: what a definition holds.
#[derive(Clone)]
pub struct Schema {
    arena: Arc<Arena>,
    root: NodeId,
}

impl std::fmt::Debug for Schema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Schema({} of {})", self.root, self.arena.len())
    }
}

impl Schema {
    /// A schema rooted at one type of an arena.
    pub fn new(arena: Arc<Arena>, root: NodeId) -> Self {
        Self { arena, root }
    }

    /// Cursor at the root.
    pub fn node(&self) -> Node<'_> {
        Node { arena: &self.arena, id: self.root }
    }

    /// The arena, to build further schemas on it.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// A schema that says nothing: every JSON object fits.
    pub fn any() -> Self {
        let mut arena = Arena { custom: true, ..Arena::default() };
        let root = arena.add(Kind::Opaque(Opaque::Any));
        Self { arena: Arc::new(arena), root }
    }
}

/// A cursor at a type. Copy it freely.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    arena: &'a Arena,
    id: NodeId,
}

impl<'a> Node<'a> {
    /// What the type is.
    pub fn kind(self) -> &'a Kind {
        &self.arena.nodes[self.id as usize]
    }

    /// Its index.
    pub fn id(self) -> NodeId {
        self.id
    }

    /// The arena it lives in.
    pub fn arena(self) -> &'a Arena {
        self.arena
    }

    /// A cursor at another type of the same arena.
    pub fn at(self, id: NodeId) -> Node<'a> {
        Node { arena: self.arena, id }
    }

    /// Value rules, for CRD types.
    pub fn rules(self) -> Option<&'a Rules> {
        if self.arena.rules.is_empty() {
            return None;
        }
        self.arena.rules.get(&self.id).map(|rules| &**rules)
    }

    /// The struct, when it is one.
    pub fn object(self) -> Option<&'a Object> {
        match self.kind() {
            Kind::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Declared fields, sorted by name.
    pub fn fields(self) -> &'a [Field] {
        match self.kind() {
            Kind::Object(object) => {
                &self.arena.fields[object.fields.start as usize..object.fields.end as usize]
            }
            _ => &[],
        }
    }

    /// Position of a field among [`Node::fields`].
    pub fn field_index(self, name: &str) -> Option<usize> {
        self.fields().binary_search_by(|field| field.name.as_ref().cmp(name)).ok()
    }

    /// A declared field.
    pub fn field(self, name: &str) -> Option<&'a Field> {
        self.field_index(name).map(|index| &self.fields()[index])
    }

    /// The type below a key, whatever the container is: a declared field, a map value, or nothing known.
    pub fn child(self, name: &str) -> Option<Node<'a>> {
        match self.kind() {
            Kind::Object(object) => self
                .field(name)
                .map(|field| self.at(field.node))
                .or_else(|| object.additional.map(|id| self.at(id))),
            Kind::Map { value, .. } => Some(self.at(*value)),
            Kind::SchemaOr(_, schema) => self.at(*schema).child(name),
            _ => None,
        }
    }

    /// Adds the fields that Go writes even when they are zero: `{}`, `""`, 0, and null for a time or a pointer.
    ///
    /// Go writes empty lists and maps as null too. Objects are served without those, since no reader can tell the
    /// difference but some stumble over null; with `collections` they are added, for comparing with what Go would have.
    pub fn add_zeroes(self, out: &mut Map<String, Value>, collections: bool) {
        for field in self.fields() {
            if !field.always || out.contains_key(field.name.as_ref()) {
                continue;
            }
            let child = self.at(field.node);
            let value = match child.kind() {
                Kind::List(_) | Kind::Map { .. } | Kind::Scalar(Scalar::Bytes) if !collections => continue,
                _ if field.pointer => Value::Null,
                Kind::Scalar(scalar) => scalar.zero(),
                Kind::Object(_) => {
                    let mut inner = Map::new();
                    child.add_zeroes(&mut inner, collections);
                    Value::Object(inner)
                }
                Kind::List(_) | Kind::Map { .. } | Kind::Opaque(_) | Kind::SchemaOr(..) => Value::Null,
            };
            out.insert(field.name.to_string(), value);
        }
    }

    /// The type of list elements.
    pub fn items(self) -> Option<Node<'a>> {
        match self.kind() {
            Kind::List(list) => Some(self.at(list.items)),
            Kind::SchemaOr(SchemaOr::Array, schema) => Some(self.at(*schema)),
            _ => None,
        }
    }

    /// The type at a dotted path of field names (`spec.template.spec`), lists stepped into.
    pub fn path(self, path: &str) -> Option<Node<'a>> {
        path.split('.').try_fold(self, |node, name| {
            let node = node.items().unwrap_or(node);
            node.child(name)
        })
    }

    /// Go's word for the type in decoding errors.
    pub fn go_type(self) -> String {
        match self.kind() {
            Kind::Object(object) if self.arena.custom && object.name.is_empty() => {
                "map[string]interface {}".into()
            }
            Kind::Object(object) => format!("{}.{}", go_package(&object.definition), object.name),
            Kind::Map { value, .. } => format!("map[string]{}", self.at(*value).go_type()),
            Kind::List(list) => format!("[]{}", self.at(list.items).go_type()),
            Kind::Scalar(scalar) => match scalar {
                Scalar::String => "string",
                Scalar::Int32 => "int32",
                Scalar::Int64 => "int64",
                Scalar::Float => "float64",
                Scalar::Bool => "bool",
                Scalar::Bytes => "[]uint8",
                Scalar::Quantity => "resource.Quantity",
                Scalar::IntOrString => "intstr.IntOrString",
                Scalar::Time => "v1.Time",
                Scalar::MicroTime => "v1.MicroTime",
                Scalar::Duration => "v1.Duration",
            }
            .into(),
            Kind::Opaque(_) => "interface {}".into(),
            Kind::SchemaOr(..) => "v1.JSONSchemaProps".into(),
        }
    }
}

fn go_package(definition: &str) -> &str {
    definition.rsplit('.').nth(1).unwrap_or("v1")
}

/// Whether a value is what Go calls the zero value of its type: such optional fields are not written.
pub fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}
