//! An API server in memory, just large enough to run controllers against: any kind, watches, finalizers, generated names,
//! optimistic locking. It can refuse writes with conflicts and cut watches, to see that controllers heal.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use client::{Body, Client, Resource, Transport, TransportError, full_body, resources};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};

use controller_runtime::{Clock, Plan, Verb, merge};

/// The kinds that are served.
pub const SERVED: &[Resource] = &[
    resources::PODS,
    resources::NODES,
    resources::NAMESPACES,
    resources::SERVICES,
    resources::ENDPOINTS,
    resources::CONFIG_MAPS,
    resources::SECRETS,
    resources::SERVICE_ACCOUNTS,
    resources::CORE_EVENTS,
    resources::PERSISTENT_VOLUMES,
    resources::PERSISTENT_VOLUME_CLAIMS,
    resources::REPLICATION_CONTROLLERS,
    resources::RESOURCE_QUOTAS,
    resources::DEPLOYMENTS,
    resources::REPLICA_SETS,
    resources::STATEFUL_SETS,
    resources::DAEMON_SETS,
    resources::CONTROLLER_REVISIONS,
    resources::JOBS,
    resources::CRON_JOBS,
    resources::HORIZONTAL_POD_AUTOSCALERS,
    resources::POD_DISRUPTION_BUDGETS,
    resources::ENDPOINT_SLICES,
    resources::LEASES,
    resources::CUSTOM_RESOURCE_DEFINITIONS,
    resources::API_SERVICES,
    resources::STORAGE_CLASSES,
    resources::VOLUME_ATTACHMENTS,
    resources::CERTIFICATE_SIGNING_REQUESTS,
    resources::CLUSTER_ROLES,
    resources::SERVICE_CIDRS,
    resources::IP_ADDRESSES,
    resources::RESOURCE_CLAIMS,
    resources::RESOURCE_CLAIM_TEMPLATES,
    resources::VALIDATING_ADMISSION_POLICIES,
];

type Place = (String, String);

#[derive(Default)]
struct State {
    revision: u64,
    serial: u64,
    objects: HashMap<String, BTreeMap<Place, Value>>,
    watchers: Vec<(String, UnboundedSender<Bytes>)>,
    /// The kind whose watches hear nothing for now, and what they are still to hear.
    late: Option<(String, Vec<Bytes>)>,
    log: Vec<(u64, String, Bytes)>,
    writes: u64,
    conflict_every: u64,
    /// The kind of which nothing can be created for now.
    broken: Option<String>,
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    state: Arc<Mutex<State>>,
    clock: Clock,
}

struct Refusal(u16, &'static str, String);

impl Server {
    pub fn new(clock: Clock) -> Self {
        Self { state: Arc::default(), clock }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()), "test")
    }

    /// Every so many-th write fails with a conflict.
    pub fn refuse_every(&self, count: u64) {
        self.state().conflict_every = count;
    }

    /// Creates of a kind fail from now on, or those of none.
    pub fn break_creates(&self, resource: Option<&Resource>) {
        self.state().broken = resource.map(|resource| resource.plural.to_string());
    }

    /// Ends all watches.
    pub fn cut_watches(&self) {
        self.state().watchers.clear();
    }

    /// Keeps changes of a kind from its watches.
    pub fn hold(&self, resource: &Resource) {
        self.state().late = Some((resource.plural.to_string(), Vec::new()));
    }

    /// Tells the changes that were held.
    pub fn release(&self) {
        let mut state = self.state();
        let Some((plural, lines)) = state.late.take() else { return };
        for line in lines {
            state.send(&plural, &line);
        }
    }

    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    pub fn list(&self, resource: &Resource) -> Vec<Value> {
        let state = self.state();
        state.objects.get(&*resource.plural).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        let place = (namespace.to_owned(), name.to_owned());
        self.state().objects.get(&*resource.plural)?.get(&place).cloned()
    }

    /// Creates an object as a user would.
    pub fn create(&self, resource: &Resource, object: Value) {
        let mut plan = Plan::default();
        plan.create(resource, object);
        let write = plan.writes().next().expect("just added").clone();
        let Verb::Create(object) = write.verb else { unreachable!("a create was added") };
        let created = self.post(resource, &write.key.namespace, object);
        assert!(created.is_ok(), "the test's object can be created");
    }

    /// Merges into an object as a user would.
    pub fn change(&self, resource: &Resource, namespace: &str, name: &str, change: Value) {
        let mut object = self.get(resource, namespace, name).expect("the object to change exists");
        merge(&mut object, &change);
        if change.get("spec").is_some() {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(1);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.state().store("MODIFIED", resource, namespace, name, object);
    }

    /// Deletes an object as a user would.
    pub fn remove(&self, resource: &Resource, namespace: &str, name: &str, policy: &str) {
        let deleted = self.delete(resource, namespace, name, &json!({"propagationPolicy": policy}));
        assert!(deleted.is_ok(), "the object to delete exists");
    }

    fn post(&self, resource: &Resource, namespace: &str, mut object: Value) -> Result<Value, Refusal> {
        let mut state = self.state();
        state.count_write()?;
        if state.broken.as_deref() == Some(&*resource.plural) {
            return Err(Refusal(500, "InternalError", "refused for the test".into()));
        }
        state.serial += 1;
        let serial = state.serial;
        let terminating = resource.namespaced
            && state.objects.get("namespaces").is_some_and(|all| {
                let found = all.get(&(String::new(), namespace.to_owned()));
                found.is_some_and(|found| found["metadata"]["deletionTimestamp"].is_string())
            });
        if terminating {
            return Err(Refusal(403, "Forbidden", format!("namespace {namespace} is being terminated")));
        }
        let meta = &mut object["metadata"];
        if !meta["name"].is_string() {
            let prefix = meta["generateName"].as_str().unwrap_or("").to_owned();
            meta["name"] = json!(format!("{prefix}{serial:05}"));
        }
        let name = meta["name"].as_str().unwrap_or("").to_owned();
        if resource.namespaced {
            meta["namespace"] = json!(namespace);
        }
        meta["uid"] = json!(format!("uid-{serial}"));
        meta["creationTimestamp"] = controller_runtime::time((self.clock)());
        meta["generation"] = json!(1);
        if resource.plural == "namespaces" {
            object["spec"]["finalizers"] = json!(["kubernetes"]);
            object["status"]["phase"] = json!("Active");
        }
        if state.find(resource, namespace, &name).is_some() {
            return Err(Refusal(409, "AlreadyExists", format!("{resource} {name} exists")));
        }
        Ok(state.store("ADDED", resource, namespace, &name, object))
    }

    fn put(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        sub: &str,
        body: Value,
    ) -> Result<Value, Refusal> {
        let mut state = self.state();
        state.count_write()?;
        let old = state.find(resource, namespace, name).ok_or_else(|| missing(resource, name))?;
        let given = &body["metadata"]["resourceVersion"];
        if given.is_string() && *given != old["metadata"]["resourceVersion"] {
            return Err(Refusal(409, "Conflict", format!("{resource} {name} changed")));
        }
        if body["metadata"]["uid"].is_string() && body["metadata"]["uid"] != old["metadata"]["uid"] {
            return Err(Refusal(409, "Conflict", format!("{resource} {name} is another one")));
        }
        let mut new = body;
        match sub {
            "status" => {
                let (status, annotations) = (new["status"].take(), new["metadata"]["annotations"].take());
                new = old.clone();
                new["status"] = status;
                if !annotations.is_null() {
                    new["metadata"]["annotations"] = annotations;
                }
            }
            "" if !old["status"].is_null() => new["status"] = old["status"].clone(),
            _ => {}
        }
        if new["spec"] != old["spec"] {
            new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
        }
        if new == old {
            return Ok(old);
        }
        let held = held(&new);
        if new["metadata"]["deletionTimestamp"].is_string() && !held {
            state.erase(resource, namespace, name);
            return Ok(new);
        }
        Ok(state.store("MODIFIED", resource, namespace, name, new))
    }

    fn patch(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        sub: &str,
        form: &str,
        body: Value,
    ) -> Result<Value, Refusal> {
        let mut object =
            self.state().find(resource, namespace, name).ok_or_else(|| missing(resource, name))?;
        if form.contains("strategic") {
            strategic(&mut object, &body)
        } else {
            merge(&mut object, &body)
        }
        if !body["metadata"]["resourceVersion"].is_string() {
            object["metadata"]
                .as_object_mut()
                .expect("objects have metadata")
                .shift_remove("resourceVersion");
        }
        self.put(resource, namespace, name, sub, object)
    }

    fn delete(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<Value, Refusal> {
        let mut state = self.state();
        state.count_write()?;
        let mut object = state.find(resource, namespace, name).ok_or_else(|| missing(resource, name))?;
        let wanted = &options["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if wanted[field].is_string() && wanted[field] != object["metadata"][field] {
                return Err(Refusal(409, "Conflict", format!("{resource} {name}: {field} differs")));
            }
        }
        let finalizer = match options["propagationPolicy"].as_str() {
            Some("Orphan") => Some("orphan"),
            Some("Foreground") => Some("foregroundDeletion"),
            _ => None,
        };
        let mut finalizers: Vec<Value> =
            object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        if let Some(finalizer) = finalizer.filter(|name| !finalizers.contains(&json!(name))) {
            finalizers.push(json!(finalizer));
        }
        object["metadata"]["finalizers"] = json!(finalizers);
        if !held(&object) {
            state.erase(resource, namespace, name);
            return Ok(json!({"kind": "Status", "status": "Success"}));
        }
        if !object["metadata"]["deletionTimestamp"].is_string() {
            object["metadata"]["deletionTimestamp"] = controller_runtime::time((self.clock)());
            if resource.plural == "namespaces" {
                object["status"]["phase"] = json!("Terminating");
            }
        }
        Ok(state.store("MODIFIED", resource, namespace, name, object))
    }

    fn answer(&self, request: Request<Bytes>) -> Result<Response<Body>, Refusal> {
        let uri = request.uri().clone();
        let query: HashMap<String, String> = uri
            .query()
            .unwrap_or("")
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.replace("%2C", ",").replace("%3D", "=")))
            .collect();
        if let Some(found) = discovery(uri.path()) {
            return Ok(ok(&found));
        }
        let (resource, namespace, name, sub) =
            locate(uri.path()).ok_or(Refusal(404, "NotFound", uri.path().into()))?;
        let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        let form = request.headers().get("content-type").and_then(|form| form.to_str().ok()).unwrap_or("");
        let done = match (request.method().clone(), name.is_empty()) {
            (Method::GET, true) if query.contains_key("watch") => return Ok(self.watch(&resource, &query)),
            (Method::GET, true) => self.list_in(&resource, &namespace),
            (Method::GET, false) => {
                self.state().find(&resource, &namespace, &name).ok_or_else(|| missing(&resource, &name))?
            }
            (Method::POST, true) => self.post(&resource, &namespace, body)?,
            (Method::PUT, false) => self.put(&resource, &namespace, &name, &sub, body)?,
            (Method::PATCH, false) => self.patch(&resource, &namespace, &name, &sub, form, body)?,
            (Method::DELETE, false) => self.delete(&resource, &namespace, &name, &body)?,
            (Method::DELETE, true) => {
                let names: Vec<String> = self
                    .list(&resource)
                    .iter()
                    .filter(|object| object["metadata"]["namespace"].as_str() == Some(&namespace))
                    .filter_map(|object| object["metadata"]["name"].as_str().map(str::to_owned))
                    .collect();
                for name in names {
                    self.delete(&resource, &namespace, &name, &Value::Null)?;
                }
                json!({"kind": "Status"})
            }
            (method, _) => return Err(Refusal(405, "MethodNotAllowed", method.to_string())),
        };
        Ok(ok(&done))
    }

    fn list_in(&self, resource: &Resource, namespace: &str) -> Value {
        let state = self.state();
        let all = state.objects.get(&*resource.plural);
        let items: Vec<&Value> = all
            .into_iter()
            .flatten()
            .filter(|((own, _), _)| namespace.is_empty() || own == namespace)
            .map(|(_, object)| object)
            .collect();
        json!({"metadata": {"resourceVersion": state.revision.to_string()}, "items": items})
    }

    fn watch(&self, resource: &Resource, query: &HashMap<String, String>) -> Response<Body> {
        let from: u64 = query.get("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let (sender, receiver) = unbounded();
        let mut state = self.state();
        for (revision, plural, line) in &state.log {
            if *revision > from && *plural == resource.plural {
                let _ = sender.unbounded_send(line.clone());
            }
        }
        state.watchers.push((resource.plural.to_string(), sender));
        let stream = receiver.map(|line| Ok::<_, TransportError>(http_body::Frame::data(line)));
        Response::new(StreamBody::new(stream).boxed_unsync())
    }
}

impl State {
    fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Value> {
        self.objects.get(&*resource.plural)?.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn count_write(&mut self) -> Result<(), Refusal> {
        self.writes += 1;
        if self.conflict_every > 0 && self.writes.is_multiple_of(self.conflict_every) {
            return Err(Refusal(409, "Conflict", "refused for the test".into()));
        }
        Ok(())
    }

    fn store(
        &mut self,
        event: &str,
        resource: &Resource,
        namespace: &str,
        name: &str,
        mut object: Value,
    ) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.kind);
        let place = (namespace.to_owned(), name.to_owned());
        self.objects.entry(resource.plural.to_string()).or_default().insert(place, object.clone());
        self.tell(event, resource, &object);
        object
    }

    fn erase(&mut self, resource: &Resource, namespace: &str, name: &str) {
        let place = (namespace.to_owned(), name.to_owned());
        let Some(mut object) = self.objects.entry(resource.plural.to_string()).or_default().remove(&place)
        else {
            return;
        };
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.tell("DELETED", resource, &object);
    }

    fn tell(&mut self, event: &str, resource: &Resource, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": event, "object": object})));
        self.log.push((self.revision, resource.plural.to_string(), line.clone()));
        match &mut self.late {
            Some((late, lines)) if **late == *resource.plural => lines.push(line),
            _ => self.send(&resource.plural, &line),
        }
    }

    fn send(&mut self, kind: &str, line: &Bytes) {
        self.watchers
            .retain(|(plural, sender)| plural != kind || sender.unbounded_send(line.clone()).is_ok());
    }
}

/// Whether something still keeps an object that is being deleted.
fn held(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array().is_some_and(|names| !names.is_empty());
    let namespace = object["kind"] == "Namespace"
        && object["spec"]["finalizers"].as_array().is_some_and(|names| !names.is_empty());
    finalizers || namespace
}

fn missing(resource: &Resource, name: &str) -> Refusal {
    Refusal(404, "NotFound", format!("{resource} \"{name}\" not found"))
}

/// Merges lists by their keys where the API does.
fn strategic(target: &mut Value, change: &Value) {
    let Value::Object(fields) = change else { return merge(target, change) };
    for (name, value) in fields {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(items) = target[list].as_array_mut() {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        let key = match name.as_str() {
            "conditions" => "type",
            "ownerReferences" => "uid",
            _ => {
                if value.is_object() && target[name].is_object() {
                    strategic(&mut target[name], value);
                } else {
                    merge(target, &json!({name: value}));
                }
                continue;
            }
        };
        let mut items: Vec<Value> = target[name].as_array().cloned().unwrap_or_default();
        for item in value.as_array().into_iter().flatten() {
            let found = items.iter().position(|old| old[key] == item[key]);
            match (found, item["$patch"] == "delete") {
                (Some(index), true) => {
                    items.remove(index);
                }
                (Some(index), false) => merge(&mut items[index], item),
                (None, false) => items.push(item.clone()),
                (None, true) => {}
            }
        }
        target[name] = json!(items);
    }
}

fn locate(path: &str) -> Option<(Resource, String, String, String)> {
    let mut parts = path.trim_matches('/').split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    parts.next()?;
    let mut rest: Vec<&str> = parts.collect();
    let mut namespace = "";
    if rest.len() > 2 && rest[0] == "namespaces" && SERVED.iter().any(|kind| kind.plural == rest[2]) {
        namespace = rest[1];
        rest.drain(..2);
    }
    let resource = SERVED.iter().find(|kind| kind.group == group && kind.plural == rest[0])?.clone();
    let part = |index: usize| rest.get(index).unwrap_or(&"").to_string();
    Some((resource, namespace.to_owned(), part(1), part(2)))
}

fn discovery(path: &str) -> Option<Value> {
    let path = path.trim_matches('/');
    if path == "apis" {
        let mut groups: Vec<(&str, &str)> = SERVED
            .iter()
            .filter(|kind| !kind.group.is_empty())
            .map(|kind| (&*kind.group, &*kind.version))
            .collect();
        groups.sort_unstable();
        groups.dedup();
        let groups: Vec<Value> = groups
            .iter()
            .map(|(group, version)| json!({"preferredVersion": {"groupVersion": format!("{group}/{version}")}}))
            .collect();
        return Some(json!({"groups": groups}));
    }
    let (group, version) = match path.split('/').collect::<Vec<_>>()[..] {
        ["api", version] => ("", version),
        ["apis", group, version] => (group, version),
        _ => return None,
    };
    let found: Vec<Value> = SERVED
        .iter()
        .filter(|kind| kind.group == group && kind.version == version)
        .map(|kind| {
            json!({"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]})
        })
        .collect();
    Some(json!({"resources": found}))
}

fn ok(value: &Value) -> Response<Body> {
    Response::new(full_body(value.to_string()))
}

impl Transport for Server {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        let answer = self.answer(request).unwrap_or_else(|Refusal(code, reason, message)| {
            let status = json!({"kind": "Status", "code": code, "reason": reason, "message": message});
            let mut response = ok(&status);
            *response.status_mut() = http::StatusCode::from_u16(code).expect("a valid code");
            response
        });
        Box::pin(std::future::ready(Ok(answer)))
    }
}
