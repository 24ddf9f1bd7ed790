//! The paths of an OpenAPI document: what can be done with a kind, in upstream's words and under upstream's names.
//!
//! An operation is described once ([`Operation`]) and printed in the form of the document. Parameters that all
//! operations of a path have stand at the path.

use serde_json::{Map, Value, json};

use super::{DELETE_OPTIONS, Form, PATCH, Printer, STATUS, WATCH_EVENT};
use crate::schemas::schemas;
use crate::{Definition, Scope, Subresource, Verb};

const DOCUMENTS: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const STREAMS: [&str; 2] =
    ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
const PATCHES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

/// Parameters, and the types of options whose fields they are.
type Query = (&'static [&'static str], &'static [&'static str]);

const NOTHING: Query = (&[], &[]);
const LISTED: Query = (LIST, &["ListOptions"]);
const CREATED: Query = (WRITE, &["CreateOptions"]);
const REPLACED: Query = (WRITE, &["UpdateOptions"]);
const PATCHED: Query = (APPLY, &["PatchOptions"]);
const DELETED: Query = (DELETE, &[DELETE_OPTIONS]);
const ALL_DELETED: Query = (DELETE_MANY, &[DELETE_OPTIONS, "ListOptions"]);
const LOGGED: Query = (LOG, &["PodLogOptions"]);

const LIST: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "pretty",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
    "watch",
];
const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "pretty"];
const APPLY: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force", "pretty"];
const DELETE: &[&str] = &[
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "pretty",
    "propagationPolicy",
];
const DELETE_MANY: &[&str] = &[
    "continue",
    "dryRun",
    "fieldSelector",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector",
    "limit",
    "orphanDependents",
    "pretty",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "shardSelector",
    "timeoutSeconds",
];
const LOG: &[&str] = &[
    "container",
    "follow",
    "insecureSkipTLSVerifyBackend",
    "limitBytes",
    "pretty",
    "previous",
    "sinceSeconds",
    "stream",
    "tailLines",
    "timestamps",
];
const EXEC: &[&str] = &["command", "container", "stderr", "stdin", "stdout", "tty"];
const ATTACH: &[&str] = &["container", "stderr", "stdin", "stdout", "tty"];

/// Kinds whose deletion is answered with the object.
const GIVEN_BACK: [&str; 16] = [
    "CSIDriver",
    "CSINode",
    "DeviceClass",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceQuota",
    "ResourceSlice",
    "Service",
    "ServiceAccount",
    "StorageClass",
    "VolumeAttachment",
    "VolumeAttributesClass",
];

/// Type and meaning of a query parameter.
fn meaning(name: &str) -> (&'static str, &'static str) {
    match name {
        "allowWatchBookmarks" => {
            ("boolean", "Whether a watch also tells, now and then, which version it has reached.")
        }
        "command" => ("string", "The program to run and its arguments, one after the other."),
        "container" => ("string", "The container; may be left out if there is only one."),
        "continue" => ("string", "Where the list before this one stopped, as it said itself."),
        "dryRun" => ("string", "With the value All everything is done but stored."),
        "fieldManager" => {
            ("string", "Who makes the change, for the ownership of fields; at most 128 printable letters.")
        }
        "fieldSelector" => ("string", "Only objects with these fields."),
        "fieldValidation" => (
            "string",
            "What is done about unknown and duplicate fields: Ignore, Warn (the default) or Strict.",
        ),
        "follow" => ("boolean", "Whether the log is sent on as it grows."),
        "force" => ("boolean", "Whether an apply takes over fields that others own."),
        "gracePeriodSeconds" => ("integer", "How long the object may take to end; zero is at once."),
        "ignoreStoreReadErrorWithClusterBreakingPotential" => (
            "boolean",
            "Whether an object that cannot be read is removed without what depends on reading it.",
        ),
        "insecureSkipTLSVerifyBackend" => {
            ("boolean", "Whether the kubelet's certificate is believed unseen.")
        }
        "labelSelector" => ("string", "Only objects with these labels."),
        "limit" => ("integer", "The most objects of one answer; the rest is had with continue."),
        "limitBytes" => ("integer", "The most bytes of the log."),
        "orphanDependents" => ("boolean", "Deprecated: say propagationPolicy. Whether dependents stay."),
        "path" => ("string", "The path that is asked for behind the proxy."),
        "ports" => ("integer", "The ports to forward."),
        "pretty" => ("string", "Whether the answer is indented."),
        "previous" => ("boolean", "Whether the log of the container that ended before is meant."),
        "propagationPolicy" => ("string", "What becomes of dependents: Orphan, Background or Foreground."),
        "resourceVersion" => ("string", "How new the answer must be, or after which version a watch begins."),
        "resourceVersionMatch" => {
            ("string", "Exact or NotOlderThan: how resourceVersion is meant by a list.")
        }
        "sendInitialEvents" => ("boolean", "Whether a watch begins with the objects as they are."),
        "shardSelector" => ("string", "Only objects of this part of all; behind a gate that is closed."),
        "sinceSeconds" => ("integer", "Only what was logged in the last seconds, so many."),
        "stderr" => ("boolean", "Whether the error output is sent."),
        "stdin" => ("boolean", "Whether there is an input."),
        "stdout" => ("boolean", "Whether the output is sent."),
        "stream" => ("string", "All, Stdout or Stderr."),
        "tailLines" => ("integer", "The last lines of the log, so many."),
        "timeoutSeconds" => ("integer", "The most seconds that a list or watch may take."),
        "timestamps" => ("boolean", "Whether each line begins with its time."),
        "tty" => ("boolean", "Whether the program gets a terminal."),
        "watch" => ("boolean", "Whether changes are sent as they come, instead of a list."),
        _ => ("string", ""),
    }
}

/// One operation, whatever the form.
struct Operation<'a> {
    definition: &'a Definition,
    description: String,
    id: String,
    action: &'static str,
    kind: Value,
    query: Query,
    /// The body and whether it must be there.
    body: Option<(Value, bool)>,
    consumes: Vec<&'static str>,
    produces: Vec<&'static str>,
    codes: &'static [u16],
    answer: Value,
}

/// `apps` as `Apps`, `rbac.authorization.k8s.io` as `RbacAuthorization`, nothing as `Core`.
pub(super) fn group_words(group: &str) -> String {
    match group {
        "" => "Core".to_owned(),
        group => group.trim_end_matches(".k8s.io").split('.').map(camel).collect(),
    }
}

pub(super) fn camel(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// What operations are grouped by: `apps_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    let mut words = group_words(group);
    words[..1].make_ascii_lowercase();
    if version.is_empty() { words } else { format!("{words}_{version}") }
}

/// A kind with its article; one that is a plural has none.
fn a(kind: &str) -> String {
    match kind {
        kind if kind.ends_with('s') && !kind.ends_with("ss") => kind.to_owned(),
        kind if kind.starts_with(['A', 'E', 'I', 'O', 'U', 'a', 'e', 'i', 'o', 'u']) => format!("an {kind}"),
        kind => format!("a {kind}"),
    }
}

impl Printer {
    pub(super) fn add_paths(&mut self, definition: &Definition, paths: &mut Map<String, Value>) {
        let names = &definition.names;
        let root = match names.group.as_ref() {
            "" => format!("/api/{}", names.version),
            group => format!("/apis/{group}/{}", names.version),
        };
        let namespaced = definition.scope == Scope::Namespaced;
        let below = if namespaced {
            format!("namespaces/{{namespace}}/{}", names.plural)
        } else {
            names.plural.to_string()
        };
        let scoped = format!("{root}/{below}");
        let place = if namespaced { "Namespaced" } else { "" };
        let verbs = &definition.verbs;
        let kind = names.kind.as_ref();
        let mut collection = Map::new();
        if verbs.contains(Verb::List) {
            let operation = self.list_many(definition, &format!("{place}{kind}"));
            collection.insert("get".into(), operation);
        }
        if verbs.contains(Verb::Create) {
            collection.insert("post".into(), self.create(definition, &format!("{place}{kind}"), None));
        }
        if verbs.contains(Verb::DeleteCollection) {
            collection
                .insert("delete".into(), self.delete(definition, &format!("Collection{place}{kind}"), true));
        }
        self.insert_path(paths, scoped.clone(), collection, namespaced, None);
        if namespaced && verbs.contains(Verb::List) {
            let all = self.list_many(definition, &format!("{kind}ForAllNamespaces"));
            self.insert_path(paths, format!("{root}/{}", names.plural), one("get", all), false, None);
        }
        let mut single = Map::new();
        for (verb, method) in
            [(Verb::Get, "get"), (Verb::Update, "put"), (Verb::Patch, "patch"), (Verb::Delete, "delete")]
        {
            if verbs.contains(verb) {
                let operation = match method {
                    "delete" => self.delete(definition, &format!("{place}{kind}"), false),
                    method => self.on_one(definition, method, place, None),
                };
                single.insert(method.into(), operation);
            }
        }
        self.insert_path(paths, format!("{scoped}/{{name}}"), single, namespaced, Some(kind));
        for subresource in &definition.subresources {
            self.subresource(definition, subresource, &scoped, place, paths);
        }
        // CRDs have no paths of the older way to watch.
        if !verbs.contains(Verb::Watch) || definition.custom {
            return;
        }
        let watch = format!("{root}/watch");
        let many = self.watch(definition, &format!("{place}{kind}List"), true);
        self.insert_path(paths, format!("{watch}/{below}"), one("get", many), namespaced, None);
        let single = self.watch(definition, &format!("{place}{kind}"), false);
        let path = format!("{watch}/{below}/{{name}}");
        self.insert_path(paths, path, one("get", single), namespaced, Some(kind));
        if namespaced {
            let all = self.watch(definition, &format!("{kind}ListForAllNamespaces"), true);
            self.insert_path(paths, format!("{watch}/{}", names.plural), one("get", all), false, None);
        }
    }

    fn subresource(
        &mut self,
        definition: &Definition,
        subresource: &Subresource,
        scoped: &str,
        place: &str,
        paths: &mut Map<String, Value>,
    ) {
        let namespaced = !place.is_empty();
        let mut operations = Map::new();
        let path = format!("{scoped}/{{name}}/{}", subresource.name());
        let options;
        let named = match subresource {
            Subresource::Proxy => {
                options = format!("{}ProxyOptions", definition.names.kind);
                options.as_str()
            }
            own => own.kind().map_or(definition.names.kind.as_ref(), |kind| kind.kind),
        };
        if let Some((methods, query)) = connects(subresource, &definition.names.kind) {
            for method in methods {
                let operation = self.connect(definition, subresource, method, place, query, named, "");
                operations.insert((*method).to_owned(), operation);
            }
            self.insert_path(paths, path.clone(), operations, namespaced, Some(named));
            if matches!(subresource, Subresource::Proxy) {
                let more = methods.iter().map(|method| {
                    let own = self.connect(definition, subresource, method, place, query, named, "WithPath");
                    ((*method).to_owned(), own)
                });
                let more: Map<String, Value> = more.collect();
                self.insert_path(paths, format!("{path}/{{path}}"), more, namespaced, Some(named));
            }
            return;
        }
        for (verb, method) in
            [(Verb::Get, "get"), (Verb::Create, "post"), (Verb::Update, "put"), (Verb::Patch, "patch")]
        {
            if !subresource.verbs().contains(verb) {
                continue;
            }
            let operation = match method {
                "post" => {
                    let id = format!("{place}{}{}", definition.names.kind, camel(subresource.name()));
                    self.create(definition, &id, Some(subresource))
                }
                method => self.on_one(definition, method, place, Some(subresource)),
            };
            operations.insert(method.into(), operation);
        }
        self.insert_path(paths, path, operations, namespaced, Some(named));
    }

    fn base<'a>(
        &self,
        definition: &'a Definition,
        verb: &str,
        id: &str,
        action: &'static str,
        description: String,
    ) -> Operation<'a> {
        let names = &definition.names;
        let documents = if definition.custom { &DOCUMENTS[..2] } else { &DOCUMENTS[..] };
        Operation {
            definition,
            description,
            id: format!("{verb}{}{}{id}", group_words(&names.group), camel(&names.version)),
            action,
            kind: json!({"group": names.group, "version": names.version, "kind": names.kind}),
            query: NOTHING,
            body: None,
            consumes: if definition.custom { documents.to_vec() } else { vec!["*/*"] },
            produces: documents.to_vec(),
            codes: &[200],
            answer: json!({"type": "string"}),
        }
    }

    /// The schema of what a kind or a subresource takes and gives.
    fn schema(&mut self, definition: &Definition, subresource: Option<&Subresource>) -> Value {
        let name = match subresource.and_then(Subresource::kind) {
            Some(kind) => crate::definition::definition_name(kind.group, kind.version, kind.kind),
            None => definition.definition_name.to_string(),
        };
        let known = self.out.contains_key(&name)
            || schemas().get(&name).is_some()
            || definition.definition_name == name;
        if known { self.reference(&name) } else { json!({"type": "string"}) }
    }

    fn list_many(&mut self, definition: &Definition, id: &str) -> Value {
        let kind = &definition.names.kind;
        let does = if definition.verbs.contains(Verb::Watch) { "list or watch" } else { "list" };
        let mut own = self.base(definition, "list", id, "list", format!("{does} objects of kind {kind}"));
        own.query = LISTED;
        if !definition.custom {
            own.produces.extend(STREAMS);
        }
        own.answer = self.reference(&format!("{}List", definition.definition_name));
        self.print(own)
    }

    fn watch(&mut self, definition: &Definition, id: &str, many: bool) -> Value {
        let kind = &definition.names.kind;
        let (action, description) = if many {
            (
                "watchlist",
                format!(
                    "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list operation instead."
                ),
            )
        } else {
            (
                "watch",
                format!(
                    "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list operation instead, filtered to a single item with the 'fieldSelector' parameter."
                ),
            )
        };
        let mut own = self.base(definition, "watch", id, action, description);
        own.query = LISTED;
        own.produces.extend(STREAMS);
        own.answer = self.reference(WATCH_EVENT);
        self.print(own)
    }

    fn create(&mut self, definition: &Definition, id: &str, subresource: Option<&Subresource>) -> Value {
        let kind = &definition.names.kind;
        let description = match subresource {
            Some(own) => format!("create {} of {}", own.name(), a(kind)),
            None => format!("create {}", a(kind)),
        };
        let mut own = self.base(definition, "create", id, "post", description);
        own.set_kind(subresource);
        own.query = CREATED;
        own.codes = &[200, 201, 202];
        own.answer = self.schema(definition, subresource);
        own.body = Some((own.answer.clone(), true));
        self.print(own)
    }

    fn delete(&mut self, definition: &Definition, id: &str, many: bool) -> Value {
        let kind = &definition.names.kind;
        let description =
            if many { format!("delete collection of {kind}") } else { format!("delete {}", a(kind)) };
        let action = if many { "deletecollection" } else { "delete" };
        let mut own = self.base(definition, "delete", id, action, description);
        own.query = if many { ALL_DELETED } else { DELETED };
        own.codes = if many { &[200] } else { &[200, 202] };
        own.answer = if !many && !definition.custom && GIVEN_BACK.contains(&kind.as_ref()) {
            self.schema(definition, None)
        } else {
            self.reference(STATUS)
        };
        own.body = Some((self.reference(DELETE_OPTIONS), false));
        self.print(own)
    }

    /// Reading, replacing or patching one object or a part of it.
    fn on_one(
        &mut self,
        definition: &Definition,
        method: &'static str,
        place: &str,
        subresource: Option<&Subresource>,
    ) -> Value {
        let kind = &definition.names.kind;
        let (verb, words) = match method {
            "get" => ("read", "read"),
            "put" => ("replace", "replace"),
            _ => ("patch", "partially update"),
        };
        let (part, id) = match subresource {
            Some(own) => {
                (format!("{} of the specified", own.name()), format!("{place}{kind}{}", camel(own.name())))
            }
            None => ("the specified".to_owned(), format!("{place}{kind}")),
        };
        let mut own = self.base(definition, verb, &id, method, format!("{words} {part} {kind}"));
        own.set_kind(subresource);
        own.answer = self.schema(definition, subresource);
        match method {
            "get" => own.query = (&["pretty"], &[]),
            "put" => {
                (own.query, own.codes) = (REPLACED, &[200, 201]);
                own.body = Some((own.answer.clone(), true));
            }
            _ => {
                (own.query, own.codes) = (PATCHED, &[200, 201]);
                own.consumes = PATCHES
                    .into_iter()
                    .filter(|patch| !(definition.custom && patch.contains("strategic")))
                    .collect();
                own.body = Some((self.reference(PATCH), true));
            }
        }
        if matches!(subresource, Some(Subresource::Log)) {
            own.query = LOGGED;
            own.answer = json!({"type": "string"});
            own.produces.insert(0, "text/plain");
        }
        self.print(own)
    }

    #[allow(clippy::too_many_arguments)] // the parts of a name, each from another place
    fn connect(
        &mut self,
        definition: &Definition,
        subresource: &Subresource,
        method: &str,
        place: &str,
        query: Query,
        options: &str,
        more: &str,
    ) -> Value {
        let kind = &definition.names.kind;
        let part = subresource.name();
        let id = format!("{}{place}{kind}{}{more}", camel(method), camel(part));
        let description = format!("connect {} requests to {part} of {kind}", method.to_uppercase());
        let mut own = self.base(definition, "connect", &id, "connect", description);
        (own.query, own.consumes, own.produces) = (query, vec!["*/*"], vec!["*/*"]);
        own.kind = json!({"group": "", "version": "v1", "kind": options});
        self.print(own)
    }

    fn print(&self, own: Operation<'_>) -> Value {
        let names = &own.definition.names;
        let mut parameters: Vec<Value> = Vec::new();
        let mut out = json!({
            "description": own.description,
            "tags": [tag(&names.group, &names.version)],
            "operationId": own.id,
        });
        let words = |code: u16| match code {
            201 => "Created",
            202 => "Accepted",
            _ => "OK",
        };
        let mut responses = Map::new();
        match self.form {
            Form::V2 => {
                out["consumes"] = json!(own.consumes);
                out["produces"] = json!(own.produces);
                out["schemes"] = json!(["https"]);
                if let Some((schema, required)) = own.body {
                    let mut body = json!({"name": "body", "in": "body", "schema": schema});
                    if required {
                        body["required"] = true.into();
                    }
                    parameters.push(body);
                }
                for code in own.codes {
                    let answer = json!({"description": words(*code), "schema": own.answer});
                    responses.insert(code.to_string(), answer);
                }
            }
            Form::V3 => {
                let content = |types: &[&str], schema: &Value| -> Map<String, Value> {
                    types.iter().map(|media| ((*media).to_owned(), json!({"schema": schema}))).collect()
                };
                if let Some((schema, required)) = &own.body {
                    out["requestBody"] = json!({"content": content(&own.consumes, schema)});
                    if *required {
                        out["requestBody"]["required"] = true.into();
                    }
                }
                for code in own.codes {
                    let content = content(&own.produces, &own.answer);
                    responses
                        .insert(code.to_string(), json!({"description": words(*code), "content": content}));
                }
            }
        }
        responses.insert("401".into(), json!({"description": "Unauthorized"}));
        out["responses"] = responses.into();
        let (query, types) = own.query;
        parameters.extend(query.iter().map(|name| self.query(name, types)));
        if !parameters.is_empty() {
            out["parameters"] = parameters.into();
        }
        out["x-kubernetes-action"] = own.action.into();
        out["x-kubernetes-group-version-kind"] = own.kind;
        out
    }

    /// Adds a path; what all its operations have in common stands there once.
    fn insert_path(
        &self,
        paths: &mut Map<String, Value>,
        path: String,
        mut operations: Map<String, Value>,
        namespaced: bool,
        named: Option<&str>,
    ) {
        if operations.is_empty() {
            return;
        }
        let list = |operation: &Value| operation["parameters"].as_array().cloned().unwrap_or_default();
        let mut common: Vec<Value> = operations.values().next().map(list).unwrap_or_default();
        common.retain(|one| one["in"] != "body");
        for operation in operations.values() {
            let own = list(operation);
            common.retain(|one| own.contains(one));
        }
        for operation in operations.values_mut().filter_map(Value::as_object_mut) {
            let empty = match operation.get_mut("parameters").and_then(Value::as_array_mut) {
                Some(own) => {
                    own.retain(|one| !common.contains(one));
                    own.is_empty()
                }
                None => false,
            };
            if empty {
                operation.shift_remove("parameters");
            }
        }
        if let Some(kind) = named {
            common.push(self.parameter("name", "path", "string", &format!("name of the {kind}")));
        }
        if namespaced {
            let text = "object name and auth scope, such as for teams and projects";
            common.push(self.parameter("namespace", "path", "string", text));
        }
        if path.ends_with("/{path}") {
            let in_query = common.iter().position(|one| one["name"] == "path").map(|at| common.remove(at));
            common.push(self.parameter("path", "path", "string", "path to the resource"));
            common.extend(in_query);
        }
        common.sort_by(|one, two| one["name"].as_str().cmp(&two["name"].as_str()));
        if !common.is_empty() {
            operations.insert("parameters".into(), common.into());
        }
        paths.insert(path, operations.into());
    }

    /// A parameter of the query, in the words of the first type of options that has it.
    fn query(&self, name: &str, types: &[&str]) -> Value {
        let (kind, own) = meaning(name);
        let small = name.to_ascii_lowercase();
        let found = types.iter().flat_map(|options| {
            [self.descriptions.of_field(options, name), self.descriptions.of_field(options, &small)]
        });
        let text = found.into_iter().find(|text| !text.is_empty()).unwrap_or(own);
        self.parameter(name, "query", kind, text)
    }

    fn parameter(&self, name: &str, place: &str, kind: &str, text: &str) -> Value {
        let mut out = json!({"name": name, "in": place, "description": text});
        if place == "path" {
            out["required"] = true.into();
        }
        match self.form {
            Form::V2 => {
                out["type"] = kind.into();
                out["uniqueItems"] = true.into();
            }
            Form::V3 => out["schema"] = json!({"type": kind, "uniqueItems": true}),
        }
        out
    }

    /// The paths that only say what there is: path, kind of the answer, words and operation.
    pub(super) fn add_discovery<'a>(
        &mut self,
        versions: impl Iterator<Item = (&'a str, &'a str)>,
        roots: bool,
        paths: &mut Map<String, Value>,
    ) {
        let mut seen: Vec<(&str, &str)> = Vec::new();
        let mut all: Vec<(String, &str, &str, String, String)> = Vec::new();
        if roots {
            all.push(("/api/".into(), "APIVersions", VERSIONS, "getCoreAPIVersions".into(), "core".into()));
            all.push(("/apis/".into(), "APIGroupList", VERSIONS, "getAPIVersions".into(), "apis".into()));
        }
        for (group, version) in versions {
            if seen.contains(&(group, version)) {
                continue;
            }
            let words = group_words(group);
            if roots && !group.is_empty() && !seen.iter().any(|(own, _)| *own == group) {
                let id = format!("get{words}APIGroup");
                all.push((format!("/apis/{group}/"), "APIGroup", GROUP, id, tag(group, "")));
            }
            seen.push((group, version));
            let path = if group.is_empty() {
                format!("/api/{version}/")
            } else {
                format!("/apis/{group}/{version}/")
            };
            let id = format!("get{words}{}APIResources", camel(version));
            all.push((path, "APIResourceList", RESOURCES, id, tag(group, version)));
        }
        for (path, kind, words, id, tag) in all {
            let answer = self.reference(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"));
            let get = match self.form {
                Form::V2 => json!({
                    "description": words, "consumes": DOCUMENTS, "produces": DOCUMENTS, "schemes": ["https"],
                    "tags": [tag], "operationId": id,
                    "responses": {"200": {"description": "OK", "schema": answer}, "401": {"description": "Unauthorized"}},
                }),
                Form::V3 => {
                    let content: Map<String, Value> = DOCUMENTS
                        .iter()
                        .map(|media| ((*media).to_owned(), json!({"schema": answer})))
                        .collect();
                    json!({
                        "tags": [tag], "description": words, "operationId": id,
                        "responses": {"200": {"description": "OK", "content": content}, "401": {"description": "Unauthorized"}},
                    })
                }
            };
            paths.insert(path, json!({"get": get}));
        }
    }
}

const VERSIONS: &str = "get available API versions";
const GROUP: &str = "get information of a group";
const RESOURCES: &str = "get available resources";

impl Operation<'_> {
    fn set_kind(&mut self, subresource: Option<&Subresource>) {
        if let Some(kind) = subresource.and_then(Subresource::kind) {
            self.kind = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
        }
    }
}

fn one(method: &str, operation: Value) -> Map<String, Value> {
    [(method.to_owned(), operation)].into_iter().collect()
}

/// The methods and parameters of a subresource that is a stream.
fn connects(subresource: &Subresource, kind: &str) -> Option<(&'static [&'static str], Query)> {
    const STREAM: &[&str] = &["get", "post"];
    const ALL: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
    let proxied: &'static [&'static str] = match kind {
        "Node" => &["NodeProxyOptions"],
        "Service" => &["ServiceProxyOptions"],
        _ => &["PodProxyOptions"],
    };
    match subresource {
        Subresource::Exec => Some((STREAM, (EXEC, &["PodExecOptions"]))),
        Subresource::Attach => Some((STREAM, (ATTACH, &["PodAttachOptions"]))),
        Subresource::PortForward => Some((STREAM, (&["ports"], &["PodPortForwardOptions"]))),
        Subresource::Proxy => Some((ALL, (&["path"], proxied))),
        _ => None,
    }
}
