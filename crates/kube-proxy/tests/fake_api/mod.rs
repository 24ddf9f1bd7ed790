//! An API server of one map: lists and watches objects that the test puts into it. Knows paths, not kinds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client::{Body, Client, Transport, TransportError};
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

#[derive(Clone, Default)]
pub struct FakeApi(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    revision: u64,
    /// Objects by collection path, then by namespace and name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watchers: Vec<(String, mpsc::UnboundedSender<Bytes>)>,
}

impl FakeApi {
    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()), "test")
    }

    /// Creates or replaces an object; `collection` is its list's path, such as `/api/v1/services`.
    pub fn put(&self, collection: &str, mut object: Value) {
        let mut state = self.0.lock().unwrap();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let known = state.objects.entry(collection.to_owned()).or_default();
        let before = known.insert(name_of(&object), object.clone());
        state.tell(collection, if before.is_some() { "MODIFIED" } else { "ADDED" }, &object);
    }

    pub fn delete(&self, collection: &str, namespaced_name: &str) {
        let mut state = self.0.lock().unwrap();
        state.revision += 1;
        let revision = state.revision.to_string();
        if let Some(mut object) =
            state.objects.get_mut(collection).and_then(|known| known.remove(namespaced_name))
        {
            object["metadata"]["resourceVersion"] = json!(revision);
            state.tell(collection, "DELETED", &object);
        }
    }
}

impl State {
    fn tell(&mut self, collection: &str, kind: &str, object: &Value) {
        let event = Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
        self.watchers
            .retain(|(path, watcher)| path != collection || watcher.unbounded_send(event.clone()).is_ok());
    }
}

impl Transport for FakeApi {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        if request.method() != http::Method::GET {
            return async move { Ok(self.write(&request)) }.boxed();
        }
        let mut state = self.0.lock().unwrap();
        let path = request.uri().path().to_owned();
        if let Some((collection, name)) = object_of(&path) {
            let found = state.objects.get(&collection).and_then(|known| known.get(&name)).cloned();
            return async move { Ok(answer(found)) }.boxed();
        }
        let body = if request.uri().query().is_some_and(|query| query.contains("watch=")) {
            let (sender, receiver) = mpsc::unbounded();
            state.watchers.push((path, sender));
            StreamBody::new(receiver.map(|bytes| Ok(Frame::data(bytes)))).boxed_unsync()
        } else {
            let items: Vec<&Value> =
                state.objects.get(&path).into_iter().flat_map(BTreeMap::values).collect();
            let metadata = json!({"resourceVersion": state.revision.to_string()});
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items});
            client::full_body(list.to_string())
        };
        async move { Ok(Response::new(body)) }.boxed()
    }
}

impl FakeApi {
    /// Creates, or merges top-level fields into an object.
    fn write(&self, request: &Request<Bytes>) -> Response<Body> {
        let path = request.uri().path();
        let sent: Value = serde_json::from_slice(request.body()).unwrap();
        if request.method() == http::Method::POST {
            let (collection, _) = object_of(&format!("{path}/x")).unwrap();
            self.put(&collection, sent.clone());
            return answer(Some(sent));
        }
        let (collection, name) = object_of(path).unwrap();
        let mut object = self.0.lock().unwrap().objects[&collection][&name].clone();
        for (field, value) in sent.as_object().unwrap() {
            object[field] = value.clone();
        }
        self.put(&collection, object.clone());
        answer(Some(object))
    }

    /// An object as it is now.
    #[allow(dead_code, reason = "each test binary uses a part of this file")]
    pub fn get(&self, collection: &str, namespaced_name: &str) -> Option<Value> {
        self.0.lock().unwrap().objects.get(collection)?.get(namespaced_name).cloned()
    }
}

/// Splits `…/namespaces/NAMESPACE/RESOURCE/NAME` into the collection's path and `NAMESPACE/NAME`.
fn object_of(path: &str) -> Option<(String, String)> {
    let (prefix, rest) = path.split_once("/namespaces/")?;
    match rest.split('/').collect::<Vec<_>>().as_slice() {
        [namespace, resource, name] => Some((format!("{prefix}/{resource}"), format!("{namespace}/{name}"))),
        _ => None,
    }
}

fn answer(object: Option<Value>) -> Response<Body> {
    let (code, body) = match object {
        Some(object) => (200, object),
        None => (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})),
    };
    let mut response = Response::new(client::full_body(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response
}

fn name_of(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}
