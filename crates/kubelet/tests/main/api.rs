//! An API server in memory: enough of one for a kubelet. Objects by path, revisions, watches, merging patches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use client::{Body, Transport, TransportError, full_body};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    revision: u64,
    /// Requests that get no answer while true.
    down: bool,
}

pub struct FakeApi {
    state: Mutex<State>,
    changes: broadcast::Sender<(String, Value)>,
}

impl FakeApi {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changes: broadcast::channel(1024).0 })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn client(self: &Arc<Self>) -> client::Client {
        client::Client::new(Arc::new(Handle(self.clone())), "kubelet")
    }

    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// All objects whose path begins so.
    pub fn below(&self, prefix: &str) -> Vec<Value> {
        self.lock()
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(prefix))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Creates or replaces an object.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.lock();
        state.revision += 1;
        let kind = if state.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", state.revision));
        }
        state.objects.insert(path.to_owned(), object.clone());
        let _ = self.changes.send((path.to_owned(), json!({"type": kind, "object": object})));
    }

    pub fn remove(&self, path: &str) {
        let mut state = self.lock();
        state.revision += 1;
        if let Some(mut object) = state.objects.remove(path) {
            object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
            let _ = self.changes.send((path.to_owned(), json!({"type": "DELETED", "object": object})));
        }
    }

    /// Asks for the deletion of a pod with grace, as `kubectl delete` does.
    pub fn delete_gracefully(&self, path: &str, seconds: i64) {
        let mut pod = self.get(path).expect("it exists");
        pod["metadata"]["deletionTimestamp"] = json!(jiff::Timestamp::now().to_string());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(seconds);
        self.put(path, pod);
    }

    fn answer(&self, request: Request<Bytes>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or("").to_owned();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        match *request.method() {
            Method::GET if query.contains("watch=true") => self.watch(&path, &query),
            Method::GET => match self.get(&path) {
                Some(object) => ok(&object),
                None if is_collection(&path) => {
                    let state = self.lock();
                    let items: Vec<&Value> = state
                        .objects
                        .iter()
                        .filter(|(of, object)| in_collection(of, &path) && selected(object, &query))
                        .map(|(_, object)| object)
                        .collect();
                    ok(&json!({"metadata": {"resourceVersion": state.revision.to_string()}, "items": items}))
                }
                None => status(404, "NotFound"),
            },
            Method::POST if path.ends_with("/token") => {
                ok(&json!({"status": {"token": "secret", "expirationTimestamp": "2099-01-01T00:00:00Z"}}))
            }
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let at = format!("{path}/{name}");
                if self.get(&at).is_some() {
                    return status(409, "AlreadyExists");
                }
                self.put(&at, body);
                ok(&self.get(&at).unwrap())
            }
            Method::PUT => {
                self.put(&path, body);
                ok(&self.get(&path).unwrap())
            }
            Method::PATCH => {
                let at = path.trim_end_matches("/status").to_owned();
                let Some(mut object) = self.get(&at) else { return status(404, "NotFound") };
                let uid = &body["metadata"]["uid"];
                if !uid.is_null() && *uid != object["metadata"]["uid"] {
                    return status(409, "Conflict");
                }
                merge(&mut object, &body);
                self.put(&at, object);
                ok(&self.get(&at).unwrap())
            }
            Method::DELETE => {
                let Some(object) = self.get(&path) else { return status(404, "NotFound") };
                self.remove(&path);
                ok(&object)
            }
            _ => status(405, "MethodNotAllowed"),
        }
    }

    fn watch(&self, path: &str, query: &str) -> Response<Body> {
        let (path, query) = (path.to_owned(), query.to_owned());
        let from: u64 = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("resourceVersion="))
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let receiver = self.changes.subscribe();
        // What happened between the list and the subscription.
        let missed: Vec<Value> = self
            .lock()
            .objects
            .iter()
            .filter(|(of, object)| {
                let revision =
                    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
                in_collection(of, &path)
                    && selected(object, &query)
                    && revision.is_some_and(|revision| revision > from)
            })
            .map(|(_, object)| json!({"type": "MODIFIED", "object": object}))
            .collect();
        let line = |event: &Value| Ok::<_, TransportError>(Frame::data(Bytes::from(format!("{event}\n"))));
        let first: Vec<_> = missed.iter().map(line).collect();
        let rest =
            futures::stream::unfold((receiver, path, query), move |(mut receiver, path, query)| async move {
                loop {
                    let (of, event) = receiver.recv().await.ok()?;
                    if in_collection(&of, &path) && selected(&event["object"], &query) {
                        return Some((line(&event), (receiver, path, query)));
                    }
                }
            });
        let stream = futures::StreamExt::chain(futures::stream::iter(first), rest);
        Response::new(StreamBody::new(stream).boxed_unsync())
    }
}

fn is_collection(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or("");
    matches!(last, "pods" | "services" | "configmaps" | "secrets" | "nodes" | "events")
}

/// `/api/v1/pods` holds `/api/v1/namespaces/n/pods/p`; `/api/v1/namespaces/n/pods` too.
fn in_collection(object: &str, collection: &str) -> bool {
    let (scope, plural) = collection.rsplit_once('/').unwrap_or(("", collection));
    let parts: Vec<&str> = object.split('/').collect();
    parts.len() >= 2 && parts[parts.len() - 2] == plural && object.starts_with(scope)
}

fn selected(object: &Value, query: &str) -> bool {
    match query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=")) {
        None => true,
        Some(selector) => match selector.split_once("%3D").or_else(|| selector.split_once('=')) {
            Some(("spec.nodeName", node)) => object["spec"]["nodeName"] == node,
            Some(("metadata.name", name)) => object["metadata"]["name"] == name,
            _ => false,
        },
    }
}

/// Lists are replaced, but for what a strategic merge says is gone.
fn merge(object: &mut Value, patch: &Value) {
    if let Value::Array(list) = patch {
        let kept = list.iter().filter(|one| one["$patch"] != "delete").cloned();
        *object = kept.collect();
        return;
    }
    match patch {
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    if let Some(map) = object.as_object_mut() {
                        map.shift_remove(key);
                    }
                } else {
                    merge(&mut object[key.as_str()], value);
                }
            }
        }
        other => *object = other.clone(),
    }
}

fn ok(object: &Value) -> Response<Body> {
    Response::new(full_body(object.to_string()))
}

fn status(code: u16, reason: &str) -> Response<Body> {
    let text = json!({"kind": "Status", "code": code, "reason": reason, "message": reason}).to_string();
    Response::builder().status(code).body(full_body(text)).unwrap()
}

struct Handle(Arc<FakeApi>);

impl Transport for Handle {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        Box::pin(async move {
            if self.0.lock().down {
                return Err(TransportError::broken("down"));
            }
            Ok(self.0.answer(request))
        })
    }
}
