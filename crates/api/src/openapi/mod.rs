//! OpenAPI documents, printed on demand from definitions and schemas.
//!
//! [`v3`] makes the document of one group-version, [`v2`] the one of everything. Nothing is kept: whoever serves them
//! caches the bytes. They hold what clients read: definitions with kinds, list types, merge keys and the values of
//! enumerations (`overlay/enums.txt`), and in [`paths`] what can be done.

mod paths;
mod shared;

use std::collections::BTreeSet;

use apimachinery::schema::{Field, Kind, ListType, Node, Opaque, PatchStrategy, Scalar, SchemaOr};
use serde_json::{Map, Value, json};

use crate::{
    Definition,
    schemas::{Descriptions, schemas},
};
use paths::{group_words, tag};

const RESOURCE: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";
const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
const VERSION_INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
/// Definition, field and the values that it may have, a line each.
const ENUMS: &str = include_str!("../../overlay/enums.txt");
/// Defaults and unions that upstream declares.
const DECLARED: &str = include_str!("../../overlay/defaults.txt");
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    V2,
    V3,
}

/// The version of what is described.
const VERSION: &str = "1.36";

/// The OpenAPI v3 document of one group-version.
pub fn v3<'a>(definitions: impl IntoIterator<Item = &'a Definition>) -> Value {
    let definitions: Vec<&Definition> = definitions.into_iter().collect();
    let mut printer = Printer::new(Form::V3);
    let mut paths = Map::new();
    for definition in &definitions {
        printer.add_definition(definition);
        printer.add_paths(definition, &mut paths);
    }
    printer.add_discovery(versions(&definitions), false, &mut paths);
    printer.finish_references();
    printer.name_options(versions(&definitions));
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": printer.out, "securitySchemes": security_schemes()},
    })
}

/// Group and version of each built-in definition.
fn versions<'a>(definitions: &'a [&'a Definition]) -> impl Iterator<Item = (&'a str, &'a str)> {
    let built_in = definitions.iter().filter(|definition| !definition.custom);
    built_in.map(|definition| (definition.names.group.as_ref(), definition.names.version.as_ref()))
}

fn security_schemes() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"
    }})
}

/// Paths beside those of groups that have an OpenAPI v3 document.
pub const OTHERS: [&str; 3] = [".well-known/openid-configuration", "openid/v1/jwks", "version"];

/// The OpenAPI v3 document of one of [`OTHERS`].
pub fn v3_other(path: &str) -> Value {
    let mut printer = Printer::new(Form::V3);
    printer.wanted.clear();
    let mut paths = Map::new();
    printer.add_others(&mut paths);
    paths.retain(|own, _| own.trim_matches('/') == path);
    let mut components = json!({"securitySchemes": security_schemes()});
    if path == "version" {
        printer.finish_references();
        components["schemas"] = Value::Object(printer.out);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": components,
    })
}

/// The OpenAPI v3 document of a path that only says what there is: `api`, `apis` or `apis/GROUP`.
pub fn v3_discovery(path: &str) -> Value {
    let (kind, text, operation, tag) = match path.split_once('/') {
        Some((_, group)) => {
            let name = group_words(group);
            ("APIGroup", "get information of a group", format!("get{name}APIGroup"), tag(group, ""))
        }
        None if path == "api" => {
            ("APIVersions", "get available API versions", "getCoreAPIVersions".into(), "core".into())
        }
        None => ("APIGroupList", "get available API versions", "getAPIVersions".into(), "apis".into()),
    };
    let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}");
    let mut printer = Printer::new(Form::V3);
    printer.wanted.clear();
    let answer = json!({"schema": printer.reference(&name)});
    printer.finish_references();
    printer.out[&name]["x-kubernetes-group-version-kind"] =
        json!([{"group": "", "version": "v1", "kind": kind}]);
    let content: Map<String, Value> =
        ["application/json", "application/vnd.kubernetes.protobuf", "application/yaml"]
            .map(|media| (media.to_owned(), answer.clone()))
            .into_iter()
            .collect();
    let responses =
        json!({"200": {"description": "OK", "content": content}, "401": {"description": "Unauthorized"}});
    let get = json!({"tags": [tag], "description": text, "operationId": operation, "responses": responses});
    let mut paths = Map::new();
    paths.insert(format!("/{path}/"), json!({"get": get}));
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "components": {"schemas": printer.out, "securitySchemes": security_schemes()},
    })
}

/// The OpenAPI v2 document of all kinds.
pub fn v2<'a>(definitions: impl IntoIterator<Item = &'a Definition>) -> Value {
    let definitions: Vec<&Definition> = definitions.into_iter().collect();
    let mut printer = Printer::new(Form::V2);
    let mut paths = Map::new();
    for definition in &definitions {
        printer.add_definition(definition);
        printer.add_paths(definition, &mut paths);
    }
    printer.add_discovery(versions(&definitions), true, &mut paths);
    printer.add_others(&mut paths);
    printer.finish_references();
    printer.name_options(versions(&definitions));
    let parameters = shared::take_out(&mut paths);
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": VERSION},
        "paths": paths,
        "definitions": printer.out,
        "parameters": parameters,
        "securityDefinitions": security_schemes(),
        "security": [{"BearerToken": []}],
    })
}

struct Printer {
    form: Form,
    out: Map<String, Value>,
    /// Definition names that something refers to and that are not printed yet.
    wanted: BTreeSet<String>,
    descriptions: Descriptions,
}

impl Printer {
    fn new(form: Form) -> Self {
        let wanted = [DELETE_OPTIONS, STATUS].map(str::to_owned).into();
        Self { form, out: Map::new(), wanted, descriptions: schemas().descriptions() }
    }

    /// What the server says of itself, outside of groups.
    fn add_others(&mut self, paths: &mut Map<String, Value>) {
        let version = self.reference(VERSION_INFO);
        let text = json!({"type": "string"});
        for (path, words, tag, id, media, answer) in [
            (
                "/version/",
                "get the version information for this server",
                "version",
                "getCodeVersion",
                "application/json",
                version,
            ),
            (
                "/.well-known/openid-configuration/",
                "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
                "WellKnown",
                "getServiceAccountIssuerOpenIDConfiguration",
                "application/json",
                text.clone(),
            ),
            (
                "/openid/v1/jwks/",
                "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
                "openid",
                "getServiceAccountIssuerOpenIDKeyset",
                "application/jwk-set+json",
                text,
            ),
        ] {
            if self.form == Form::V3 {
                let ok = json!({"description": "OK", "content": {media: {"schema": answer}}});
                let responses = json!({"200": ok, "401": {"description": "Unauthorized"}});
                let get =
                    json!({"tags": [tag], "description": words, "operationId": id, "responses": responses});
                paths.insert(path.to_owned(), json!({"get": get}));
                continue;
            }
            let responses = json!({"200": {"description": "OK", "schema": answer}, "401": {"description": "Unauthorized"}});
            let mut get = json!({"description": words, "produces": [media], "schemes": ["https"], "tags": [tag], "operationId": id, "responses": responses});
            if path == "/version/" {
                get["consumes"] = json!([media]);
            }
            paths.insert(path.to_owned(), json!({"get": get}));
        }
    }

    /// Says in which versions the things are understood that every group has.
    fn name_options<'a>(&mut self, versions: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut all: Vec<(&str, &str)> = versions.collect();
        all.sort_unstable();
        all.dedup();
        for (name, kind) in [(DELETE_OPTIONS, "DeleteOptions"), (WATCH_EVENT, "WatchEvent")] {
            if let Some(body) = self.out.get_mut(name) {
                let kinds = all
                    .iter()
                    .map(|(group, version)| json!({"group": group, "version": version, "kind": kind}));
                body["x-kubernetes-group-version-kind"] = kinds.collect();
            }
        }
        for kind in ["Status", "APIGroup", "APIGroupList", "APIResourceList", "APIVersions"] {
            if let Some(body) = self.out.get_mut(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")) {
                body["x-kubernetes-group-version-kind"] =
                    json!([{"group": "", "version": "v1", "kind": kind}]);
            }
        }
    }

    fn reference(&mut self, name: &str) -> Value {
        if !self.out.contains_key(name) {
            self.wanted.insert(name.to_owned());
        }
        match self.form {
            Form::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Form::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }

    /// A reference with a text beside it, which version 3 has to wrap.
    fn described_reference(&mut self, name: &str, description: &str) -> Value {
        let mut reference = self.reference(name);
        if description.is_empty() {
            return reference;
        }
        match self.form {
            Form::V2 => {
                reference["description"] = description.into();
                reference
            }
            Form::V3 => json!({"description": description, "allOf": [reference]}),
        }
    }

    fn add_definition(&mut self, definition: &Definition) {
        let kind = json!([{"group": definition.names.group, "version": definition.names.version, "kind": definition.names.kind}]);
        let name = definition.definition_name.to_string();
        let mut body = match &definition.published_schema {
            Some(schema) => self.custom(schema),
            None => {
                let node = definition.schema.node();
                self.object(node)
            }
        };
        body["x-kubernetes-group-version-kind"] = kind;
        self.wanted.remove(&name);
        self.out.insert(name.clone(), body);
        if definition.is_stored() {
            let list = self.list(definition, &name);
            let list_name = format!("{}List", name);
            self.wanted.remove(&list_name);
            self.out.insert(list_name, list);
        }
        for subresource in &definition.subresources {
            if let Some(kind) = subresource.kind() {
                let name = crate::definition::definition_name(kind.group, kind.version, kind.kind);
                if schemas().get(&name).is_some() {
                    self.wanted.insert(name);
                }
            }
        }
    }

    fn list(&mut self, definition: &Definition, item: &str) -> Value {
        let mut items = self.reference(item);
        if !definition.custom {
            self.set_default(&mut items, Some(json!({})));
        }
        let name = format!("{item}List");
        let of = |field: &str, own: String| match self.descriptions.of_field(&name, field) {
            "" => own,
            text => text.to_owned(),
        };
        let names = &definition.names;
        let itself = of("", format!("{} is a list of {}", names.list_kind, names.kind));
        let of_items = of("items", format!("List of {}.", names.plural));
        let of_metadata = of("metadata", "Standard list metadata.".to_owned());
        let mut metadata = self.described_reference(LIST_META, &of_metadata);
        if !definition.custom {
            self.set_default(&mut metadata, Some(json!({})));
        }
        json!({
            "description": itself,
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"description": self.type_meta("apiVersion"), "type": "string"},
                "kind": {"description": self.type_meta("kind"), "type": "string"},
                "metadata": metadata,
                "items": {"description": of_items, "type": "array", "items": items},
            },
            "x-kubernetes-group-version-kind": [{"group": names.group, "version": names.version, "kind": names.list_kind}],
        })
    }

    fn type_meta(&self, field: &str) -> String {
        self.descriptions.of_field("io.k8s.api.core.v1.Pod", field).to_owned()
    }

    fn finish_references(&mut self) {
        while let Some(name) = self.wanted.pop_first() {
            if self.out.contains_key(&name) {
                continue;
            }
            let mut body = match name.as_str() {
                RESOURCE if self.form == Form::V2 => json!({"type": "string"}),
                RESOURCE => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                INT_OR_STRING if self.form == Form::V2 => {
                    json!({"type": "string", "format": "int-or-string"})
                }
                INT_OR_STRING => {
                    json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
                }
                TIME | MICRO_TIME => json!({"type": "string", "format": "date-time"}),
                JSON => json!({}),
                RAW | FIELDS | PATCH => json!({"type": "object"}),
                WATCH_EVENT => self.watch_event(),
                VERSION_INFO => version_info(self.form),
                _ => match schemas().get(&name) {
                    Some(schema) => self.object(schema.node()),
                    None => json!({"type": "object"}),
                },
            };
            if body.get("description").is_none() && !self.descriptions.of_type(&name).is_empty() {
                body["description"] = self.descriptions.of_type(&name).into();
            }
            self.out.insert(name, body);
        }
    }

    fn watch_event(&mut self) -> Value {
        let text = self.descriptions.of_field(WATCH_EVENT, "object").to_owned();
        let object = self.described_reference(RAW, &text);
        let mut kind = json!({"type": "string"});
        self.set_default(&mut kind, Some(json!("")));
        json!({
            "description": "Event represents a single event to a watched resource.",
            "type": "object", "required": ["type", "object"],
            "properties": {"object": object, "type": kind},
        })
    }

    /// A built-in struct.
    fn object(&mut self, node: Node<'_>) -> Value {
        let Some(object) = node.object() else { return json!({"type": "object"}) };
        let definition = object.definition.to_string();
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in node.fields() {
            let description = self.descriptions.of_field(&definition, &field.name).to_owned();
            let child = node.at(field.node);
            let declared = declared_default(&definition, &field.name);
            let optional = declared.is_some();
            let default = declared.or_else(|| default_of(&definition, field, child));
            let mut property = self.property(child, &description);
            self.set_default(&mut property, default);
            if let Some(map) = property.as_object_mut() {
                extensions(map, node.at(field.node), field.patch);
                if object.name == "APIResource" && field.name == "verbs" {
                    map.shift_remove("x-kubernetes-list-type");
                }
                if field.name == "allocatedResourceStatuses" && object.name == "PersistentVolumeClaimStatus" {
                    map.insert("x-kubernetes-map-type".into(), "granular".into());
                }
                enumerate(map, &definition, &field.name);
            }
            properties.insert(field.name.to_string(), property);
            if field.required && field.name != "metadata" && !optional {
                required.push(Value::from(field.name.as_ref()));
            }
        }
        let mut out = Map::new();
        let description = self.descriptions.of_type(&definition);
        if !description.is_empty() {
            out.insert("description".into(), description.into());
        }
        out.insert("type".into(), "object".into());
        if !required.is_empty() {
            out.insert("required".into(), required.into());
        }
        if !properties.is_empty() {
            out.insert("properties".into(), properties.into());
        }
        if object.atomic {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        if let Some(union) = declared_union(&definition) {
            out.insert("x-kubernetes-unions".into(), json!([union]));
        }
        Value::Object(out)
    }

    /// The type of what is in a list or a map. None of it is a pointer.
    fn element(&mut self, node: Node<'_>) -> Value {
        let mut element = self.property(node, "");
        let default = zero_of(node);
        self.set_default(&mut element, default);
        element
    }

    /// Says what a value is when it is left out, which only version 3 does. A reference has to be wrapped for that.
    fn set_default(&self, property: &mut Value, default: Option<Value>) {
        let (Form::V3, Some(default)) = (self.form, default) else { return };
        if property.get("$ref").is_some() {
            *property = json!({"allOf": [property.take()]});
        }
        property["default"] = default;
    }

    fn property(&mut self, node: Node<'_>, description: &str) -> Value {
        let mut out = match node.kind() {
            Kind::Object(object) => return self.described_reference(&object.definition.clone(), description),
            Kind::Scalar(Scalar::Quantity) => return self.described_reference(RESOURCE, description),
            Kind::Scalar(Scalar::IntOrString) => return self.described_reference(INT_OR_STRING, description),
            Kind::Scalar(Scalar::Time) => return self.described_reference(TIME, description),
            Kind::Scalar(Scalar::MicroTime) => return self.described_reference(MICRO_TIME, description),
            Kind::Opaque(Opaque::RawExtension) => return self.described_reference(RAW, description),
            Kind::Opaque(Opaque::Json) => return self.described_reference(JSON, description),
            Kind::Opaque(Opaque::Fields) => return self.described_reference(FIELDS, description),
            Kind::SchemaOr(or, schema) => match or {
                SchemaOr::Bool | SchemaOr::Strings => json!({}),
                SchemaOr::Array => {
                    let object = node.at(*schema).object().map(|object| object.definition.to_string());
                    let _reachable = object.map(|name| self.reference(&name));
                    json!({})
                }
            },
            Kind::Opaque(Opaque::Any) => json!({"type": "object"}),
            Kind::Scalar(scalar) => match scalar {
                Scalar::Int32 => json!({"type": "integer", "format": "int32"}),
                Scalar::Int64 => json!({"type": "integer", "format": "int64"}),
                Scalar::Float => json!({"type": "number", "format": "double"}),
                Scalar::Bool => json!({"type": "boolean"}),
                Scalar::Bytes => json!({"type": "string", "format": "byte"}),
                _ => json!({"type": "string"}),
            },
            Kind::Map { value, .. } => {
                let value = self.element(node.at(*value));
                json!({"type": "object", "additionalProperties": value})
            }
            Kind::List(list) => {
                let items = self.element(node.at(list.items));
                json!({"type": "array", "items": items})
            }
        };
        if !description.is_empty() {
            out["description"] = description.into();
        }
        out
    }

    /// A CRD's own schema with the fields that every object has.
    fn custom(&mut self, schema: &Value) -> Value {
        let mut body = match self.form {
            Form::V3 => schema.clone(),
            Form::V2 => for_v2(schema, true),
        };
        if !body.is_object() {
            body = json!({"type": "object"});
        }
        let preserve_only =
            schema["x-kubernetes-preserve-unknown-fields"] == true && schema.get("properties").is_none();
        if preserve_only && self.form == Form::V2 {
            return json!({"type": "object"});
        }
        let metadata = self.described_reference(
            OBJECT_META,
            "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
        );
        let (api_version, kind) = (self.type_meta("apiVersion"), self.type_meta("kind"));
        if let Some(map) = body.as_object_mut() {
            let properties = apimachinery::meta::entry_map(map, "properties");
            properties.insert("apiVersion".into(), json!({"description": api_version, "type": "string"}));
            properties.insert("kind".into(), json!({"description": kind, "type": "string"}));
            properties.insert("metadata".into(), metadata);
        }
        body
    }
}

/// What follows a type's name in the table of declarations.
fn declared(definition: &str) -> Option<std::str::Split<'static, char>> {
    let short = definition.strip_prefix("io.k8s.api.")?;
    DECLARED.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next() == Some(short)).then_some(words)
    })
}

fn declared_default(definition: &str, field: &str) -> Option<Value> {
    let mut words = declared(definition)?;
    let text = words.find_map(|word| word.strip_prefix(field)?.strip_prefix('='))?;
    serde_json::from_str(text).ok()
}

fn declared_union(definition: &str) -> Option<Value> {
    let mut words = declared(definition)?;
    if words.next() != Some("union") {
        return None;
    }
    let discriminator = words.next().filter(|word| *word != "-");
    let fields: Map<String, Value> = words
        .filter_map(|word| word.split_once(':'))
        .map(|(field, name)| (field.to_owned(), name.into()))
        .collect();
    let mut union = json!({"fields-to-discriminateBy": fields});
    if let Some(discriminator) = discriminator {
        union["discriminator"] = discriminator.into();
    }
    Some(union)
}

/// The value of a field that is left out, if Go has one for it.
fn default_of(definition: &str, field: &Field, node: Node<'_>) -> Option<Value> {
    if field.name == "protocol"
        && !definition.ends_with(".EndpointPort")
        && matches!(node.kind(), Kind::Scalar(_))
        && !field.pointer
        && !field.always
    {
        return Some(json!("TCP"));
    }
    zero_of(node).filter(|_| field.always && !field.pointer)
}

/// Go's zero value of a type, for those whose form is not their own business.
fn zero_of(node: Node<'_>) -> Option<Value> {
    match node.kind() {
        Kind::Object(_) => Some(json!({})),
        Kind::Scalar(
            scalar @ (Scalar::String | Scalar::Int32 | Scalar::Int64 | Scalar::Float | Scalar::Bool),
        ) => Some(scalar.zero()),
        _ => None,
    }
}

fn extensions(out: &mut Map<String, Value>, node: Node<'_>, patch: PatchStrategy) {
    match node.kind() {
        Kind::List(list) => {
            match &list.list_type {
                ListType::Atomic => {
                    out.insert("x-kubernetes-list-type".into(), "atomic".into());
                }
                ListType::Set => {
                    out.insert("x-kubernetes-list-type".into(), "set".into());
                }
                ListType::Map(keys) => {
                    out.insert("x-kubernetes-list-type".into(), "map".into());
                    out.insert(
                        "x-kubernetes-list-map-keys".into(),
                        keys.iter().map(|key| key.as_ref()).collect(),
                    );
                }
            }
            if let Some(key) = &list.merge_key {
                out.insert("x-kubernetes-patch-merge-key".into(), key.as_ref().into());
            }
        }
        Kind::Map { atomic: true, .. } => {
            out.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        _ => {}
    }
    let mut words = Vec::new();
    if patch.merge {
        words.push("merge");
    }
    if patch.retain_keys {
        words.push("retainKeys");
    }
    if patch.replace {
        words.push("replace");
    }
    if !words.is_empty() {
        out.insert("x-kubernetes-patch-strategy".into(), words.join(",").into());
    }
}

/// Says which values a field, or an item of it, may have.
fn enumerate(out: &mut Map<String, Value>, definition: &str, field: &str) {
    let found = ENUMS.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next() == Some(definition) && words.next() == Some(field)).then_some(words)
    });
    let Some(values) = found else { return };
    let values: Value = values.map(|word| if word == "\"\"" { "" } else { word }).collect();
    let inner = if out.contains_key("items") { "items" } else { "additionalProperties" };
    match out.get_mut(inner).and_then(Value::as_object_mut) {
        Some(inner) => inner.insert("enum".into(), values),
        None => out.insert("enum".into(), values),
    };
}

fn version_info(form: Form) -> Value {
    let required = [
        "major",
        "minor",
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    let optional = ["emulationMajor", "emulationMinor", "minCompatibilityMajor", "minCompatibilityMinor"];
    let properties: Map<String, Value> = required
        .iter()
        .chain(&optional)
        .map(|name| ((*name).to_owned(), json!({"type": "string"})))
        .collect();
    let mut properties = properties;
    if form == Form::V3 {
        required.iter().for_each(|name| properties[*name]["default"] = json!(""));
    }
    json!({
        "description": "Info contains versioning information. how we'll want to distribute that information.",
        "type": "object", "required": required, "properties": properties,
    })
}

/// Version 2 has no alternatives and no null; what cannot be said is left out.
fn for_v2(schema: &Value, root: bool) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    if !root && map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        let mut out = Map::new();
        for key in ["description", "x-kubernetes-preserve-unknown-fields"] {
            if let Some(value) = map.get(key) {
                out.insert(key.into(), value.clone());
            }
        }
        return Value::Object(out);
    }
    let mut out = Map::new();
    for (key, value) in map {
        match key.as_str() {
            "oneOf" | "anyOf" | "allOf" | "not" | "nullable" | "x-kubernetes-validations" => {}
            "properties" => {
                let inner = value.as_object().into_iter().flatten();
                let inner: Map<String, Value> =
                    inner.map(|(name, part)| (name.clone(), for_v2(part, false))).collect();
                out.insert(key.clone(), inner.into());
            }
            "items" | "additionalProperties" => {
                out.insert(key.clone(), for_v2(value, false));
            }
            _ => {
                out.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests;
