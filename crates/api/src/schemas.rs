//! The schemas of the built-in kinds, loaded from the table that `build.rs` made.
//!
//! The table is parsed once, on first use; names are slices of the embedded text. Descriptions are kept
//! deflated and only inflated by whoever prints OpenAPI.

use std::{
    collections::HashMap,
    io::Read as _,
    sync::{Arc, OnceLock},
};

use apimachinery::schema::{
    Arena, Field, Inline, Kind, List, ListType, Name, NodeId, Object, Opaque, PatchStrategy, Scalar, Schema,
    SchemaOr,
};

static TABLE: &str = include_str!(concat!(env!("OUT_DIR"), "/schemas.txt"));
/// What else is described, after the types of the table.
static FURTHER: &str = include_str!(concat!(env!("OUT_DIR"), "/further.txt"));
static GO_NAMES: &str = include_str!("../overlay/go-names.txt");
static DESCRIPTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// All built-in types.
pub struct Schemas {
    arena: Arc<Arena>,
    by_definition: HashMap<&'static str, NodeId>,
    lists: HashMap<&'static str, NodeId>,
}

/// The built-in types, loaded on first use.
pub fn schemas() -> &'static Schemas {
    static LOADED: OnceLock<Schemas> = OnceLock::new();
    LOADED.get_or_init(Schemas::load)
}

impl Schemas {
    /// The type with an OpenAPI definition name such as `io.k8s.api.core.v1.Pod`.
    pub fn get(&self, definition: &str) -> Option<Schema> {
        let id = self.by_definition.get(definition)?;
        Some(Schema::new(self.arena.clone(), *id))
    }

    /// The list type of a kind.
    pub fn list_of(&self, definition: &str) -> Option<Schema> {
        let id = self.lists.get(definition)?;
        Some(Schema::new(self.arena.clone(), *id))
    }

    /// Every type with its definition name, sorted as in the table.
    pub fn definitions(&self) -> impl Iterator<Item = (&'static str, Schema)> {
        let names = TABLE.lines().filter_map(|line| line.strip_prefix("T ")?.split(' ').next());
        names.filter_map(|name| Some((name, self.get(name)?)))
    }

    /// The shared arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    fn load() -> Self {
        let mut arena = Arena::default();
        arena.go_names = GO_NAMES;
        let mut by_definition = HashMap::new();
        // Types first, so that references by number are known.
        let heads: Vec<&'static str> = TABLE.lines().filter_map(|line| line.strip_prefix("T ")).collect();
        let ids: Vec<NodeId> = heads.iter().map(|_| arena.add(Kind::Opaque(Opaque::Any))).collect();
        let mut loader = Loader { arena, ids, scalars: HashMap::new() };
        let mut number = 0;
        let mut lines = TABLE.lines().peekable();
        let mut kinds = Vec::new();
        while let Some(head) = lines.next() {
            let mut words = head.trim_start_matches("T ").split(' ');
            let definition = words.next().unwrap_or_default();
            let name = words.next().unwrap_or_default();
            let inlines = words
                .filter_map(|word| word.split_once('.'))
                .filter_map(|(tag, via)| Some(Inline { tag: tag.parse().ok()?, via: via.parse().ok()? }))
                .collect();
            let mut fields = Vec::new();
            while let Some(line) = lines.next_if(|line| line.starts_with("F ")) {
                fields.extend(loader.field(line));
            }
            if fields.iter().any(|field: &Field| field.name == "metadata") {
                kinds.push((definition, name));
            }
            let fields = loader.arena.add_fields(fields);
            let object = object(name, definition, fields, inlines, ATOMIC.binary_search(&definition).is_ok());
            loader.arena.set(loader.ids[number], Kind::Object(object));
            by_definition.insert(definition, loader.ids[number]);
            number += 1;
        }
        if let Some(id) = by_definition.get(GRANULAR.0) {
            loader.arena.make_granular(*id, GRANULAR.1);
        }
        let list_meta = by_definition.get(LIST_META).copied();
        let mut lists = HashMap::new();
        for (definition, name) in kinds {
            let (Some(item), Some(meta)) = (by_definition.get(definition), list_meta) else { continue };
            lists.insert(definition, loader.list_type(definition, name, *item, meta));
        }
        Self { arena: Arc::new(loader.arena), by_definition, lists }
    }

    /// Inflates the descriptions: for each type in table order its own text, then one per field; then those of lists
    /// and query options.
    pub fn descriptions(&self) -> Descriptions {
        let mut text = String::new();
        let read = flate2::read::DeflateDecoder::new(DESCRIPTIONS).read_to_string(&mut text);
        if read.is_err() {
            // Cannot happen with the embedded bytes; OpenAPI without descriptions is the mild consequence.
            text.clear();
        }
        let mut spans = HashMap::new();
        let mut rest = 0;
        let mut next = |text: &str| {
            let end = text[rest..].find('\0').map_or(text.len(), |at| rest + at);
            let span = rest..end;
            rest = (end + 1).min(text.len());
            span
        };
        let mut current = "";
        for line in TABLE.lines() {
            let mut words = line.split(' ');
            match words.next() {
                Some("T") => {
                    current = words.next().unwrap_or_default();
                    spans.insert((current, ""), next(&text));
                }
                _ => {
                    spans.insert((current, words.next().unwrap_or_default()), next(&text));
                }
            }
        }
        for line in FURTHER.lines() {
            spans.insert(line.split_once(' ').unwrap_or((line, "")), next(&text));
        }
        Descriptions { text, spans }
    }
}

/// Structs that apply owns as a whole (`+structType=atomic` upstream), sorted.
const ATOMIC: &[&str] = &[
    "io.k8s.api.admissionregistration.v1.MatchResources",
    "io.k8s.api.admissionregistration.v1.NamedRuleWithOperations",
    "io.k8s.api.admissionregistration.v1.ParamKind",
    "io.k8s.api.admissionregistration.v1.ParamRef",
    "io.k8s.api.admissionregistration.v1.Variable",
    "io.k8s.api.autoscaling.v1.CrossVersionObjectReference",
    "io.k8s.api.core.v1.ConfigMapKeySelector",
    "io.k8s.api.core.v1.EndpointAddress",
    "io.k8s.api.core.v1.EndpointPort",
    "io.k8s.api.core.v1.FileKeySelector",
    "io.k8s.api.core.v1.LocalObjectReference",
    "io.k8s.api.core.v1.NodeSelector",
    "io.k8s.api.core.v1.NodeSelectorTerm",
    "io.k8s.api.core.v1.ObjectFieldSelector",
    "io.k8s.api.core.v1.ObjectReference",
    "io.k8s.api.core.v1.ResourceFieldSelector",
    "io.k8s.api.core.v1.ScopeSelector",
    "io.k8s.api.core.v1.SecretKeySelector",
    "io.k8s.api.core.v1.SecretReference",
    "io.k8s.api.core.v1.TopologySelectorTerm",
    "io.k8s.api.core.v1.TypedLocalObjectReference",
    "io.k8s.api.discovery.v1.EndpointPort",
    "io.k8s.api.networking.v1.ServiceBackendPort",
    "io.k8s.api.rbac.v1.RoleRef",
    "io.k8s.api.rbac.v1.Subject",
    "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
];

/// The one field whose type is owned as a whole elsewhere and part by part here.
const GRANULAR: (&str, &str) = ("io.k8s.api.core.v1.PersistentVolumeSpec", "claimRef");

fn object(
    name: &'static str,
    definition: &'static str,
    fields: std::ops::Range<u32>,
    inlines: Vec<Inline>,
    atomic: bool,
) -> Object {
    Object {
        name: Name::Borrowed(name),
        definition: Name::Borrowed(definition),
        fields,
        inlines,
        additional: None,
        preserve_unknown: false,
        embedded: false,
        atomic,
    }
}

struct Loader {
    arena: Arena,
    ids: Vec<NodeId>,
    scalars: HashMap<&'static str, NodeId>,
}

impl Loader {
    fn field(&mut self, line: &'static str) -> Option<Field> {
        let mut words = line.split(' ').skip(1);
        let name = words.next()?;
        let tag = words.next()?.parse().ok()?;
        let via = words.next()?.parse().ok()?;
        let flags = words.next()?;
        let node = self.node(words.next()?);
        Some(Field {
            name: Name::Borrowed(name),
            node,
            tag,
            via,
            required: flags.contains('r'),
            pointer: flags.contains('p'),
            always: flags.contains('a'),
            patch: PatchStrategy {
                merge: flags.contains('m'),
                replace: flags.contains('R'),
                retain_keys: flags.contains('k'),
            },
        })
    }

    fn node(&mut self, text: &'static str) -> NodeId {
        let scalar = |scalar| Kind::Scalar(scalar);
        let kind = match text.as_bytes().first() {
            Some(b'#') => {
                let number: usize = text[1..].parse().unwrap_or(0);
                return self.ids[number];
            }
            Some(b'{') => {
                let (atomic, rest) = match text[1..].strip_prefix('!') {
                    Some(rest) => (true, rest),
                    None => (false, &text[1..]),
                };
                Kind::Map { value: self.node(rest), atomic }
            }
            Some(b'[') => {
                let (head, items) = text[1..].split_once(']').unwrap_or(("", "*"));
                let mut parts = head.split(':');
                let list_type = match parts.next().unwrap_or_default() {
                    "s" => ListType::Set,
                    "a" | "" => ListType::Atomic,
                    keys => ListType::Map(keys[1..].split(',').map(Name::Borrowed).collect()),
                };
                let merge_key = parts.next().filter(|key| !key.is_empty()).map(Name::Borrowed);
                let wrapped = parts.next() == Some("w");
                Kind::List(List { items: self.node(items), list_type, merge_key, wrapped })
            }
            Some(b'|') => {
                let or = match &text[1..2] {
                    "b" => SchemaOr::Bool,
                    "a" => SchemaOr::Array,
                    _ => SchemaOr::Strings,
                };
                Kind::SchemaOr(or, self.node(&text[2..]))
            }
            _ => {
                if let Some(id) = self.scalars.get(text) {
                    return *id;
                }
                let kind = match text {
                    "s" => scalar(Scalar::String),
                    "i" => scalar(Scalar::Int32),
                    "l" => scalar(Scalar::Int64),
                    "d" => scalar(Scalar::Float),
                    "b" => scalar(Scalar::Bool),
                    "y" => scalar(Scalar::Bytes),
                    "q" => scalar(Scalar::Quantity),
                    "o" => scalar(Scalar::IntOrString),
                    "t" => scalar(Scalar::Time),
                    "u" => scalar(Scalar::MicroTime),
                    "D" => scalar(Scalar::Duration),
                    "x" => Kind::Opaque(Opaque::RawExtension),
                    "j" => Kind::Opaque(Opaque::Json),
                    "f" => Kind::Opaque(Opaque::Fields),
                    _ => Kind::Opaque(Opaque::Any),
                };
                let id = self.arena.add(kind);
                self.scalars.insert(text, id);
                return id;
            }
        };
        self.arena.add(kind)
    }

    fn list_type(&mut self, definition: &str, name: &str, item: NodeId, meta: NodeId) -> NodeId {
        let text = self.node("s");
        let items = self.arena.add(Kind::List(List {
            items: item,
            list_type: ListType::Atomic,
            merge_key: None,
            wrapped: false,
        }));
        let field =
            |name: &'static str, node, tag, required| Field { tag, required, ..Field::new(name, node) };
        let fields = self.arena.add_fields(vec![
            field("apiVersion", text, 0, false),
            field("kind", text, 0, false),
            field("metadata", meta, 1, false),
            field("items", items, 2, true),
        ]);
        self.arena.add(Kind::Object(Object {
            name: Name::Owned(format!("{name}List")),
            definition: Name::Owned(format!("{definition}List")),
            fields,
            inlines: Vec::new(),
            additional: None,
            preserve_unknown: false,
            embedded: false,
            atomic: false,
        }))
    }
}

/// Inflated descriptions. Drop it when done.
pub struct Descriptions {
    text: String,
    spans: HashMap<(&'static str, &'static str), std::ops::Range<usize>>,
}

impl Descriptions {
    /// The text about a type.
    pub fn of_type<'a>(&'a self, definition: &'a str) -> &'a str {
        self.of_field(definition, "")
    }

    /// The text about a field of a type.
    pub fn of_field<'a>(&'a self, definition: &'a str, field: &'a str) -> &'a str {
        // The key's lifetime is the shorter one of the arguments; the map's keys outlive it.
        let spans: &HashMap<(&'a str, &'a str), std::ops::Range<usize>> = &self.spans;
        spans.get(&(definition, field)).map_or("", |span| &self.text[span.clone()])
    }
}

/// `PartialObjectMetadata` and its list, which any kind can be shown as.
pub fn partial_metadata() -> (Schema, Schema) {
    static MADE: OnceLock<(Schema, Schema)> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut arena = Arena::default();
        let text = arena.add(Kind::Scalar(Scalar::String));
        let meta = arena.import(object_meta().node());
        let list_meta = schemas().get(LIST_META).unwrap_or_else(Schema::any);
        let list_meta = arena.import(list_meta.node());
        let field = |name: &'static str, node, tag| Field { tag, ..Field::new(name, node) };
        let definition = "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadata";
        let fields = arena.add_fields(vec![
            field("apiVersion", text, 0),
            field("kind", text, 0),
            field("metadata", meta, 1),
        ]);
        let one =
            arena.add(Kind::Object(object("PartialObjectMetadata", definition, fields, Vec::new(), false)));
        let items = arena.add(Kind::List(List {
            items: one,
            list_type: ListType::Atomic,
            merge_key: None,
            wrapped: false,
        }));
        let fields = arena.add_fields(vec![
            field("apiVersion", text, 0),
            field("kind", text, 0),
            field("metadata", list_meta, 1),
            field("items", items, 2),
        ]);
        let definition = "io.k8s.apimachinery.pkg.apis.meta.v1.PartialObjectMetadataList";
        let list = arena.add(Kind::Object(object(
            "PartialObjectMetadataList",
            definition,
            fields,
            Vec::new(),
            false,
        )));
        let arena = Arc::new(arena);
        (Schema::new(arena.clone(), one), Schema::new(arena, list))
    })
    .clone()
}

/// `ObjectMeta`, which every kind and every custom resource has.
pub fn object_meta() -> Schema {
    schemas().get(OBJECT_META).unwrap_or_else(Schema::any)
}

#[cfg(test)]
mod tests {
    use apimachinery::schema::{Kind, ListType};

    use super::*;

    #[test]
    fn the_table_knows_pods() {
        let pod = schemas().get("io.k8s.api.core.v1.Pod").expect("Pod is in the table");
        let containers = pod.node().path("spec.containers").expect("a pod has containers");
        let Kind::List(list) = containers.kind() else { panic!("containers is a list") };
        assert_eq!(list.list_type, ListType::Map(vec!["name".into()]));
        assert_eq!(list.merge_key.as_deref(), Some("name"));
        let ports = pod.node().path("spec.containers.ports").expect("a container has ports");
        let Kind::List(list) = ports.kind() else { panic!("ports is a list") };
        assert_eq!(list.list_type, ListType::Map(vec!["containerPort".into(), "protocol".into()]));
    }

    #[test]
    fn every_field_but_type_meta_has_a_tag() {
        let mut missing = Vec::new();
        for (name, schema) in schemas().definitions() {
            for field in schema.node().fields() {
                let type_meta = field.name == "apiVersion" || field.name == "kind";
                // Alpha fields that were renamed before protobuf numbers were published for them.
                let alpha =
                    name.contains("NodeAllocatableResource") || field.name.starts_with("nodeAllocatable");
                if field.tag == 0 && !type_meta && !alpha {
                    missing.push(format!("{name}.{}", field.name));
                }
            }
        }
        assert!(missing.is_empty(), "{missing:#?}");
    }

    #[test]
    fn descriptions_belong_to_their_fields() {
        let all = schemas().descriptions();
        assert!(all.of_type("io.k8s.api.core.v1.Pod").starts_with("Pod is a collection of containers"));
        assert!(
            all.of_field("io.k8s.api.apps.v1.Deployment", "spec").starts_with("Specification of the desired")
        );
    }
}
