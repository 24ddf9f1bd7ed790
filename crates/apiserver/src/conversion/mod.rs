//! Conversion of custom resources by a webhook (`spec.conversion.strategy: Webhook`).
//!
//! The store and the caches hold objects in the version that they were written in. Who wants another version asks
//! here before anything else is made of an entry: [`ApiServer::in_version`] on the way out, [`ApiServer::storable`] on the way
//! in. After that an entry is of the version of its resource, and the code behind needs not know that it was converted. Objects
//! that are of the wanted version already are never sent, so that a webhook that is down keeps nobody from them.
//!
//! Many objects go in one question, up to [`BATCH`] and [`BATCH_BYTES`]. What watches and lists had converted is kept, up to
//! [`KEPT_BYTES`] for each CRD: all watchers of an event share one question. Who reads one object
//! always asks; a write believes an earlier answer about the revision that it changes.

mod books;
mod review;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use api::Definition;
use apimachinery::decode::{self, FieldValidation};
use apimachinery::meta::{MetaMut, get, get_list};
use apimachinery::schema::{Kind, Node};
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use serde_json::Value;

use crate::admission::webhooks::call::Client;
use crate::cache::entry::{Entry, encode_for_store};
use crate::registry::Resource;
use crate::server::ApiServer;
pub use books::Books;
use review::Failure;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most objects in one question,
const BATCH: usize = 500;
/// and about the most bytes.
const BATCH_BYTES: usize = 1 << 20;
/// The most bytes of converted objects that are kept for one CRD.
const KEPT_BYTES: usize = 8 << 20;

/// The webhook of one CRD, as the CRD is now.
pub struct Converter {
    crd: String,
    server: Weak<ApiServer>,
    client: Result<Client, String>,
    /// The versions of the question that it understands.
    understood: Vec<String>,
    /// All versions of the CRD, served or not.
    versions: Vec<Arc<Definition>>,
    kept: Mutex<Kept>,
    /// Watches and lists ask one after the other: who waited finds what he wants, or shares the failure.
    turn: tokio::sync::Mutex<()>,
    failed: Mutex<Option<(Instant, Status)>>,
}

/// Converted entries, the oldest of which go first.
#[derive(Default)]
struct Kept {
    entries: HashMap<Place, Arc<Entry>>,
    order: VecDeque<Place>,
    bytes: usize,
}

/// The key and revision of a stored object, and the version that it was converted to.
type Place = (Bytes, i64, String);

impl Kept {
    fn put(&mut self, place: Place, entry: Arc<Entry>) {
        self.bytes += entry.value.len();
        if let Some(old) = self.entries.insert(place.clone(), entry) {
            self.bytes -= old.value.len();
        } else {
            self.order.push_back(place);
        }
        while self.bytes > KEPT_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.value.len());
        }
    }
}

/// Whether what was converted before will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// The webhook is asked.
    Fresh,
    /// An earlier answer about the same revision is as good, and one that somebody waits for already.
    Kept,
    /// An earlier answer about the same revision is as good; otherwise the webhook is asked at once.
    Known,
}

impl Converter {
    /// The converter of a CRD; `None` if its objects are the same in all versions.
    pub fn of(server: &Arc<ApiServer>, crd: &Value, versions: &[Arc<Definition>]) -> Option<Arc<Self>> {
        let conversion = get(crd, "spec.conversion")?;
        if conversion["strategy"] != "Webhook" {
            return None;
        }
        let texts = get_list(conversion, "webhook.conversionReviewVersions").iter();
        Some(Arc::new(Self {
            crd: apimachinery::meta::get_str(crd, "metadata.name").to_owned(),
            server: Arc::downgrade(server),
            client: Client::read(&conversion["webhook"]["clientConfig"]),
            understood: texts.filter_map(Value::as_str).map(str::to_owned).collect(),
            versions: versions.to_vec(),
            kept: Mutex::default(),
            turn: tokio::sync::Mutex::new(()),
            failed: Mutex::default(),
        }))
    }

    /// Entries in a version, those of another one converted, in the same order.
    pub async fn entries(
        &self,
        resource: &Resource,
        mut entries: Vec<Arc<Entry>>,
        age: Age,
    ) -> Result<Vec<Arc<Entry>>, Status> {
        let place = |entry: &Entry| (entry.key.clone(), entry.revision, resource.api_version.clone());
        let fill = |entries: &mut Vec<Arc<Entry>>| {
            let kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for entry in entries.iter_mut().filter(|entry| !resource.is_own(entry)) {
                if let Some(found) = kept.entries.get(&place(entry)) {
                    *entry = found.clone();
                }
            }
        };
        let others = |entries: &[Arc<Entry>]| entries.iter().any(|entry| !resource.is_own(entry));
        if age != Age::Fresh {
            fill(&mut entries);
        }
        if !others(&entries) {
            return Ok(entries);
        }
        let arrived = Instant::now();
        let _turn = match age {
            Age::Kept => Some(self.turn.lock().await),
            Age::Fresh | Age::Known => None,
        };
        if age == Age::Kept {
            fill(&mut entries);
            let failed = self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            if let Some((at, status)) = failed
                && at >= arrived
                && others(&entries)
            {
                return Err(status);
            }
        }
        let mut next = 0;
        while next < entries.len() {
            let (mut indices, mut bytes) = (Vec::new(), 0);
            while next < entries.len() && indices.len() < BATCH && bytes < BATCH_BYTES {
                if !resource.is_own(&entries[next]) {
                    bytes += entries[next].value.len();
                    indices.push(next);
                }
                next += 1;
            }
            if indices.is_empty() {
                continue;
            }
            let sent = indices.iter().map(|index| entries[*index].parse()).collect();
            let converted = self.objects(sent, &resource.api_version).await.inspect_err(|status| {
                if age == Age::Kept {
                    let failed = Some((Instant::now(), status.clone()));
                    *self.failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = failed;
                }
            })?;
            for (index, object) in indices.into_iter().zip(converted) {
                let old = &entries[index];
                let value = encode_for_store(&object);
                let new = Arc::new(Entry::new(resource.prefix.len(), old.key.clone(), value, old.revision));
                if age != Age::Fresh {
                    let mut kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    kept.put(place(old), new.clone());
                }
                entries[index] = new;
            }
        }
        Ok(entries)
    }

    /// Objects of this CRD in another version.
    pub async fn objects(&self, sent: Vec<Value>, wanted: &str) -> Result<Vec<Value>, Status> {
        let began = Instant::now();
        let server = self.server.upgrade().ok_or_else(|| Status::unavailable("the server stops"))?;
        let kind = sent.first().map(review::kind_of).unwrap_or_default();
        let from =
            sent.first().and_then(|object| object["apiVersion"].as_str()).unwrap_or_default().to_owned();
        let outcome = self.ask(&server, sent, wanted, &kind).await;
        let short = |version: &str| version.rsplit('/').next().unwrap_or_default().to_owned();
        let failure = outcome.as_ref().err().map(|(failure, _)| *failure);
        server.metrics.conversions.converted(
            [&self.crd, &short(&from), &short(wanted)],
            failure.map(Failure::word),
            began.elapsed(),
        );
        // Upstream gives no reason for these, which makes them its own failure.
        outcome.map_err(|(_, why)| Status::failure(Reason::Unknown, why))
    }

    async fn ask(
        &self,
        server: &ApiServer,
        sent: Vec<Value>,
        wanted: &str,
        kind: &str,
    ) -> Result<Vec<Value>, (Failure, String)> {
        let failed = |why: String| (Failure::Call, format!("conversion webhook for {kind} failed: {why}"));
        let known = |version: &str| self.versions.iter().any(|one| one.names.api_version() == version);
        for object in &sent {
            let from = object["apiVersion"].as_str().unwrap_or_default();
            if !known(from) {
                let why = format!("request to convert CR from an invalid group/version: {from}");
                return Err((Failure::Call, why));
            }
        }
        let version = review::version(&self.understood)
            .ok_or_else(|| (Failure::Call, "no supported conversion review versions".to_owned()))?;
        let client = self.client.as_ref().map_err(|why| failed(why.clone()))?;
        let uid = server.new_uid();
        let question = review::question(version, &uid, wanted, &sent);
        let answer = client.ask(server, &question, PATIENCE).await.map_err(failed)?;
        let converted = review::answer(version, &uid, wanted, &sent, answer)?;
        Ok(converted.into_iter().map(|object| self.pruned(object)).collect())
    }

    /// An object without what its version does not declare.
    fn pruned(&self, object: Value) -> Value {
        match self.versions.iter().find(|one| object["apiVersion"] == one.names.api_version()) {
            Some(definition) => pruned(definition, object),
            None => object,
        }
    }
}

/// An object without what its definition does not declare.
pub fn pruned(definition: &Definition, mut object: Value) -> Value {
    let options = decode::Options::new(FieldValidation::Ignore);
    match decode::value_with(object.clone(), definition.schema.node(), options) {
        Ok(decoded) => decoded.value,
        // Somewhere a type is wrong, which is judged elsewhere.
        Err(_) => {
            drop_undeclared(&mut object, definition.schema.node());
            object
        }
    }
}

/// Takes away what is not declared, as far as the types are those that are.
fn drop_undeclared(value: &mut Value, node: Node<'_>) {
    match (node.kind(), value) {
        (Kind::Object(object), Value::Object(map)) => map.retain(|name, below| match node.child(name) {
            Some(declared) => {
                drop_undeclared(below, declared);
                true
            }
            None => object.preserve_unknown,
        }),
        (Kind::Map { value: each, .. }, Value::Object(map)) => {
            map.values_mut().for_each(|below| drop_undeclared(below, node.at(*each)));
        }
        (Kind::List(list), Value::Array(items)) => {
            items.iter_mut().for_each(|item| drop_undeclared(item, node.at(list.items)));
        }
        _ => {}
    }
}

impl ApiServer {
    /// Entries in the version of a resource; those that are of another one are converted.
    pub async fn in_version(
        &self,
        resource: &Resource,
        entries: Vec<Arc<Entry>>,
        age: Age,
    ) -> Result<Vec<Arc<Entry>>, Status> {
        match &resource.converter {
            Some(converter) => converter.entries(resource, entries, age).await,
            None => Ok(entries),
        }
    }

    /// One entry in the version of a resource, as its webhook says now.
    pub async fn shown(&self, resource: &Resource, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
        self.shown_as(resource, entry, Age::Fresh).await
    }

    /// One entry in the version of a resource.
    pub async fn shown_as(
        &self,
        resource: &Resource,
        entry: Arc<Entry>,
        age: Age,
    ) -> Result<Arc<Entry>, Status> {
        if resource.converter.is_none() || resource.is_own(&entry) {
            return Ok(entry);
        }
        let mut shown = Box::pin(self.in_version(resource, vec![entry], age)).await?;
        shown.pop().ok_or_else(|| Status::internal("an object was lost while it was converted"))
    }

    /// The bytes to store for an object of a resource's version.
    pub async fn storable(&self, resource: &Resource, object: &Value) -> Result<Bytes, Status> {
        let Some(converter) = resource.converter.as_ref().filter(|_| !resource.is_stored()) else {
            return Ok(resource.encode(object));
        };
        let mut object = object.clone();
        object.take_meta("resourceVersion");
        let converting = converter.objects(vec![object], resource.storage_api_version());
        let mut stored = Box::pin(converting).await?;
        let stored =
            stored.pop().ok_or_else(|| Status::internal("an object was lost while it was converted"))?;
        Ok(encode_for_store(&stored))
    }
}
