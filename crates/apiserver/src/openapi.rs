//! The OpenAPI documents, printed from the registry when asked for.
//!
//! A document's hash is that of what it is made from, so that listing all of them makes none. The documents last
//! asked for are kept, compressed; a change of the registry drops them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use api::schemas::{Descriptions, schemas};
use api::{Scope, Verb};
use apimachinery::schema::{Kind, ListType, Node, Scalar};
use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderMap, Response};
use serde_json::{Map, Value, json};
use sha2::Digest;

use crate::body::Body;
use crate::endpoints::{VERSION, tagged_as};
use crate::registry::{Resource, Table};
use crate::request_info::Query;
use crate::server::ApiServer;

/// The documents made for one generation of the registry: name to compressed JSON.
#[derive(Default)]
pub struct Documents {
    made: Mutex<(u64, BTreeMap<String, Bytes>)>,
}

/// At most so many documents are kept.
const KEPT: usize = 12;

impl Documents {
    fn get(&self, generation: u64, name: &str, make: impl FnOnce() -> Value) -> Bytes {
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if made.0 != generation || made.1.len() > KEPT {
            *made = (generation, BTreeMap::new());
        }
        if let Some(packed) = made.1.get(name) {
            return unpack(packed);
        }
        let bytes = Bytes::from(make().to_string());
        made.1.insert(name.to_owned(), pack(&bytes));
        bytes
    }
}

fn pack(bytes: &[u8]) -> Bytes {
    use std::io::Write;
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing into memory cannot fail.
    let _ = encoder.write_all(bytes);
    Bytes::from(encoder.finish().unwrap_or_default())
}

fn unpack(bytes: &[u8]) -> Bytes {
    use std::io::Read;
    let mut out = Vec::new();
    // The bytes are our own.
    let _ = flate2::read::DeflateDecoder::new(bytes).read_to_end(&mut out);
    Bytes::from(out)
}

impl ApiServer {
    /// GET below `/openapi`.
    pub(crate) fn openapi_document(
        self: &Arc<Self>,
        parts: &[&str],
        headers: &HeaderMap,
        _query: &Query,
    ) -> Result<Response<Body>, Status> {
        let table = self.registry.table();
        match parts {
            ["v2"] => {
                let accept = crate::negotiate::accept_header(headers);
                if !accept.is_empty() && !accept.contains("json") && !accept.contains("*/*") {
                    return Err(Status::not_acceptable(&["application/json"]));
                }
                let bytes = self.openapi.get(table.generation, "v2", || version_2(&table));
                Ok(tagged_as(headers, bytes, "application/json", &digest(&table, None)))
            }
            ["v3"] => Ok(tagged_as(
                headers,
                Bytes::from(index(&table).to_string()),
                "application/json",
                &digest(&table, None),
            )),
            ["v3", path @ ..] => {
                let (group, version) = match path {
                    ["api", version] => ("", *version),
                    ["apis", group, version] => (*group, *version),
                    _ => return Err(Status::no_such_path()),
                };
                let found = table.of_version(group, version);
                if found.is_empty() {
                    return Err(Status::no_such_path());
                }
                let name = path.join("/");
                let bytes = self.openapi.get(table.generation, &name, || version_3(&found));
                Ok(tagged_as(headers, bytes, "application/json", &digest(&table, Some((group, version)))))
            }
            _ => Err(Status::no_such_path()),
        }
    }
}

/// The hash of what a document, or all of them, are made from.
fn digest(table: &Table, only: Option<(&str, &str)>) -> String {
    let mut hash = sha2::Sha256::new();
    hash.update(VERSION);
    for (group, versions) in &table.groups {
        for version in versions {
            if only.is_some_and(|only| only != (group.as_str(), version.as_str())) {
                continue;
            }
            for resource in table.of_version(group, version) {
                hash.update(format!("{group}/{version}/{}", resource.plural()));
                if let Some(schema) = &resource.definition.published_schema {
                    hash.update(schema.to_string());
                }
            }
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
}

fn index(table: &Table) -> Value {
    let mut paths = Map::new();
    for (group, versions) in &table.groups {
        for version in versions {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let hash = digest(table, Some((group, version)));
            paths.insert(
                path.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}")}),
            );
        }
    }
    json!({"paths": paths})
}

fn version_3(resources: &[&Arc<Resource>]) -> Value {
    let mut printer = Printer::new("#/components/schemas/", true);
    let mut paths = Map::new();
    for resource in resources {
        printer.add_resource(resource);
        add_paths(resource, &printer, &mut paths);
    }
    let definitions = printer.finish();
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": definitions},
    })
}

fn version_2(table: &Table) -> Value {
    let mut printer = Printer::new("#/definitions/", false);
    let mut paths = Map::new();
    let mut resources: Vec<&Arc<Resource>> = table.all().collect();
    resources.sort_by_key(|one| (one.group().to_owned(), one.version().to_owned(), one.plural().to_owned()));
    for resource in resources {
        printer.add_resource(resource);
        add_paths(resource, &printer, &mut paths);
    }
    let definitions = printer.finish();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "definitions": definitions,
    })
}

/// The paths of a resource with their operations.
fn add_paths(resource: &Resource, printer: &Printer, paths: &mut Map<String, Value>) {
    let definition = &resource.definition;
    let root = if resource.group().is_empty() {
        format!("/api/{}", resource.version())
    } else {
        format!("/apis/{}/{}", resource.group(), resource.version())
    };
    let base = match definition.scope {
        Scope::Namespaced => format!("{root}/namespaces/{{namespace}}/{}", resource.plural()),
        Scope::Cluster => format!("{root}/{}", resource.plural()),
    };
    let gvk = json!({"group": resource.group(), "version": resource.version(), "kind": resource.kind()});
    let body = json!({"$ref": format!("{}{}", printer.prefix, definition.definition_name)});
    let parameter = |name: &str, kind: &str| {
        if printer.modern {
            json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
        } else {
            json!({"name": name, "in": "query", "type": kind, "uniqueItems": true})
        }
    };
    let operation = |verb: Verb, action: &str| {
        let mut parameters = Vec::new();
        if matches!(verb, Verb::Create | Verb::Update | Verb::Patch) {
            for name in ["dryRun", "fieldManager", "fieldValidation"] {
                parameters.push(parameter(name, "string"));
            }
            if verb == Verb::Patch {
                parameters.push(parameter("force", "boolean"));
            }
        }
        let content = if printer.modern {
            json!({"200": {"description": "OK", "content": {"application/json": {"schema": body}}}})
        } else {
            json!({"200": {"description": "OK", "schema": body}})
        };
        let group: String = resource.group().split('.').next().unwrap_or_default().to_owned();
        json!({
            "operationId": format!("{action}{}{}{}", title(if group.is_empty() { "core" } else { &group }), title(resource.version()), resource.kind()),
            "parameters": parameters,
            "responses": content,
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk,
        })
    };
    let mut collection = Map::new();
    let mut single = Map::new();
    for (verb, method, action, on_one) in [
        (Verb::List, "get", "list", false),
        (Verb::Create, "post", "post", false),
        (Verb::DeleteCollection, "delete", "deletecollection", false),
        (Verb::Get, "get", "get", true),
        (Verb::Update, "put", "put", true),
        (Verb::Patch, "patch", "patch", true),
        (Verb::Delete, "delete", "delete", true),
    ] {
        if definition.verbs.contains(verb) {
            let target = if on_one { &mut single } else { &mut collection };
            target.insert(method.to_owned(), operation(verb, action));
        }
    }
    if !collection.is_empty() {
        paths.insert(base.clone(), Value::Object(collection));
    }
    if !single.is_empty() {
        paths.insert(format!("{base}/{{name}}"), Value::Object(single));
    }
}

fn title(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const DURATION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Prints types, each once, following references.
struct Printer {
    prefix: &'static str,
    /// Version 3: a reference with a description needs `allOf`.
    modern: bool,
    descriptions: Descriptions,
    done: Map<String, Value>,
    waiting: BTreeSet<String>,
}

impl Printer {
    fn new(prefix: &'static str, modern: bool) -> Self {
        Self {
            prefix,
            modern,
            descriptions: schemas().descriptions(),
            done: Map::new(),
            waiting: BTreeSet::new(),
        }
    }

    fn add_resource(&mut self, resource: &Resource) {
        let definition = &resource.definition;
        let names = &definition.names;
        let gvk = |kind: &str| json!([{"group": names.group, "version": names.version, "kind": kind}]);
        let name = definition.definition_name.to_string();
        let mut printed = match &definition.published_schema {
            Some(schema) => self.custom(schema),
            None => self.object(&name, definition.schema.node()),
        };
        printed["x-kubernetes-group-version-kind"] = gvk(&names.kind);
        self.done.insert(name.clone(), printed);
        if definition.verbs.contains(Verb::List) {
            let list = format!("{name}List");
            let mut printed = json!({
                "description": format!("{} is a list of {}", names.list_kind, names.plural),
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": {"type": "string", "description": API_VERSION},
                    "kind": {"type": "string", "description": KIND},
                    "items": {"type": "array", "items": {"$ref": format!("{}{name}", self.prefix)}},
                    "metadata": self.reference("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta", "Standard list metadata."),
                },
            });
            printed["x-kubernetes-group-version-kind"] = gvk(&names.list_kind);
            self.done.insert(list, printed);
        }
    }

    /// Prints everything that was referred to.
    fn finish(mut self) -> Map<String, Value> {
        while let Some(name) = self.waiting.pop_first() {
            if self.done.contains_key(&name) {
                continue;
            }
            let printed = match name.as_str() {
                QUANTITY => {
                    json!({"description": QUANTITY_TEXT, "oneOf": [{"type": "string"}, {"type": "number"}]})
                }
                INT_OR_STRING => json!({
                    "description": "IntOrString is a type that can hold an int32 or a string.",
                    "format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}],
                }),
                TIME | MICRO_TIME => {
                    json!({"description": "A point in time, as RFC 3339 text.", "type": "string", "format": "date-time"})
                }
                DURATION => json!({"description": "A duration such as 1h30m.", "type": "string"}),
                RAW => json!({"description": "An object of any kind.", "type": "object"}),
                other => match schemas().get(other) {
                    Some(schema) => self.object(other, schema.node()),
                    None => json!({"type": "object"}),
                },
            };
            let printed = if self.modern { printed } else { flatten(printed) };
            self.done.insert(name, printed);
        }
        self.done
    }

    fn object(&mut self, name: &str, node: Node<'_>) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in node.fields() {
            let description = self.descriptions.of_field(name, &field.name).to_owned();
            let mut printed = self.node(node.at(field.node), &description);
            if let Kind::List(list) = node.at(field.node).kind()
                && let Some(key) = &list.merge_key
            {
                printed["x-kubernetes-patch-merge-key"] = json!(key);
            }
            let strategy: Vec<&str> = [
                (field.patch.merge, "merge"),
                (field.patch.replace, "replace"),
                (field.patch.retain_keys, "retainKeys"),
            ]
            .into_iter()
            .filter_map(|(on, word)| on.then_some(word))
            .collect();
            if !strategy.is_empty() {
                printed["x-kubernetes-patch-strategy"] = json!(strategy.join(","));
            }
            if field.required {
                required.push(field.name.to_string());
            }
            properties.insert(field.name.to_string(), printed);
        }
        let mut out = json!({"type": "object"});
        let description = self.descriptions.of_type(name);
        if !description.is_empty() {
            out["description"] = json!(description);
        }
        if !properties.is_empty() {
            out["properties"] = Value::Object(properties);
        }
        if !required.is_empty() {
            out["required"] = json!(required);
        }
        out
    }

    fn reference(&mut self, name: &str, description: &str) -> Value {
        self.waiting.insert(name.to_owned());
        let target = format!("{}{name}", self.prefix);
        match (description.is_empty(), self.modern) {
            (true, _) => json!({"$ref": target}),
            (false, true) => json!({"description": description, "allOf": [{"$ref": target}]}),
            (false, false) => json!({"description": description, "$ref": target}),
        }
    }

    fn node(&mut self, node: Node<'_>, description: &str) -> Value {
        let simple = |kind: &str, format: &str| {
            let mut value = json!({"type": kind});
            if !format.is_empty() {
                value["format"] = json!(format);
            }
            value
        };
        let mut printed = match node.kind() {
            Kind::Object(object) if !object.definition.is_empty() => {
                return self.reference(&object.definition.clone(), description);
            }
            Kind::Object(_) => self.object("", node),
            Kind::Map { value, .. } => {
                let inner = self.node(node.at(*value), "");
                json!({"type": "object", "additionalProperties": inner})
            }
            Kind::List(list) => {
                let inner = self.node(node.at(list.items), "");
                let mut value = json!({"type": "array", "items": inner});
                match &list.list_type {
                    ListType::Atomic => value["x-kubernetes-list-type"] = json!("atomic"),
                    ListType::Set => value["x-kubernetes-list-type"] = json!("set"),
                    ListType::Map(keys) => {
                        value["x-kubernetes-list-type"] = json!("map");
                        value["x-kubernetes-list-map-keys"] = json!(keys);
                    }
                }
                value
            }
            Kind::Scalar(scalar) => match scalar {
                Scalar::String => simple("string", ""),
                Scalar::Int32 => simple("integer", "int32"),
                Scalar::Int64 => simple("integer", "int64"),
                Scalar::Float => simple("number", "double"),
                Scalar::Bool => simple("boolean", ""),
                Scalar::Bytes => simple("string", "byte"),
                Scalar::Quantity => return self.reference(QUANTITY, description),
                Scalar::IntOrString => return self.reference(INT_OR_STRING, description),
                Scalar::Time => return self.reference(TIME, description),
                Scalar::MicroTime => return self.reference(MICRO_TIME, description),
                Scalar::Duration => return self.reference(DURATION, description),
            },
            Kind::Opaque(apimachinery::schema::Opaque::RawExtension) => {
                return self.reference(RAW, description);
            }
            Kind::Opaque(_) => json!({"type": "object"}),
            Kind::SchemaOr(..) => json!({}),
        };
        if !description.is_empty() {
            printed["description"] = json!(description);
        }
        printed
    }

    /// A CRD's own schema, with the metadata that every object has.
    fn custom(&mut self, schema: &Value) -> Value {
        let mut printed = schema.clone();
        if printed["x-kubernetes-preserve-unknown-fields"] == true
            && printed["properties"].is_null()
            && !self.modern
        {
            // Clients of version 2 take any fields only where none are declared.
            return json!({"type": "object"});
        }
        if !printed["properties"].is_object() {
            printed["properties"] = json!({});
        }
        printed["properties"]["apiVersion"] = json!({"type": "string", "description": API_VERSION});
        printed["properties"]["kind"] = json!({"type": "string", "description": KIND});
        printed["properties"]["metadata"] = self.reference(
            OBJECT_META,
            "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
        );
        if self.modern { printed } else { flatten(printed) }
    }
}

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const QUANTITY_TEXT: &str = "Quantity is a number with an optional suffix: decimal (m, k, M, G, ...), binary (Ki, Mi, Gi, ...) or an exponent.";

/// Version 2 knows no `oneOf` and friends; what they say is left out.
fn flatten(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            if map.contains_key("oneOf") && !map.contains_key("type") {
                map.insert("type".to_owned(), json!("string"));
            }
            for field in ["oneOf", "anyOf", "allOf", "not", "nullable"] {
                map.shift_remove(field);
            }
            if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
                map.shift_remove("items");
                map.shift_remove("properties");
                map.shift_remove("additionalProperties");
            }
            for (_, inner) in map.iter_mut() {
                let taken = std::mem::take(inner);
                *inner = flatten(taken);
            }
        }
        Value::Array(list) => {
            for inner in list {
                let taken = std::mem::take(inner);
                *inner = flatten(taken);
            }
        }
        _ => {}
    }
    value
}
