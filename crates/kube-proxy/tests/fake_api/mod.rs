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
        let mut state = self.0.lock().unwrap();
        let path = request.uri().path().to_owned();
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

fn name_of(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or("").to_owned();
    format!("{}/{}", text("namespace"), text("name"))
}
