//! Follows the metadata of every kind that can be deleted, and keeps in step as kinds come and go.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use client::{Client, Error, Informer, ListOptions, Metadata, Projection, Resource};
use controller_runtime::{Caches, Context, Controller, Described, Key, Meta, Plan};
use futures::future::BoxFuture;
use lifecycle::Tasks;
use serde::Deserialize;
use tracing::debug;

use super::{SharedGraph, lock};
use crate::discovery::{Discovery, discover};
use crate::kinds::{kind, none};

/// Metadata alone, of any kind.
#[derive(Deserialize)]
pub(super) struct Partial {
    pub metadata: Meta,
}

impl Described for Partial {
    fn described(&self) -> &Meta {
        &self.metadata
    }
}

impl Projection for Partial {
    fn metadata(&self) -> &Metadata {
        self.metadata.base()
    }

    fn shrink(&mut self) {
        self.metadata.drop_labels();
    }
}

/// A CustomResourceDefinition: it matters that it changed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CustomResourceDefinition {
    metadata: Meta,
}
kind!(CustomResourceDefinition, CUSTOM_RESOURCE_DEFINITIONS, keep none);

/// An APIService: it matters that it changed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiService {
    metadata: Meta,
}
kind!(ApiService, API_SERVICES, keep none);

type Ask = Arc<dyn Fn(&str) + Send + Sync>;

/// Asks for a decision on a uid, once the queue is there.
#[derive(Clone, Default)]
pub struct Enqueue(Arc<OnceLock<Ask>>);

impl Enqueue {
    /// Names the queue. Only the first call counts.
    pub fn connect(&self, ask: Ask) {
        // There is one collector per graph.
        let _ = self.0.set(ask);
    }

    /// Asks.
    pub fn ask(&self, uid: &str) {
        if let Some(ask) = self.0.get() {
            ask(uid);
        }
    }
}

/// The informers, by kind.
pub struct Monitors {
    graph: SharedGraph,
    enqueue: Enqueue,
    tasks: Tasks,
    running: Mutex<HashMap<Resource, Option<Tasks>>>,
}

impl Monitors {
    /// None yet.
    pub(crate) fn new(graph: SharedGraph, tasks: &Tasks) -> Self {
        Self { graph, enqueue: Enqueue::default(), tasks: tasks.clone(), running: Mutex::default() }
    }

    pub(crate) fn enqueue(&self) -> Enqueue {
        self.enqueue.clone()
    }

    /// Starts and stops informers so that exactly the served kinds are followed. A group that does not answer keeps
    /// the informers that it has.
    fn keep_step(&self, found: &Discovery, caches: &Caches, client: &Client) {
        lock(&self.graph).learn_kinds(found.kinds.iter().map(|kind| kind.resource.clone()));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|resource, tasks| {
            let served = found.kinds.iter().any(|kind| kind.resource == *resource);
            let group = resource.api_version();
            let unknown = found.failed.iter().any(|(failed, _)| *failed == group);
            if let (false, false, Some(tasks)) = (served, unknown, tasks) {
                debug!(%resource, "no longer served");
                tasks.stop().request();
            }
            served || unknown
        });
        for kind in &found.kinds {
            let resource = &kind.resource;
            let is_event = resource.plural == "events" && matches!(&*resource.group, "" | "events.k8s.io");
            let followed = ["delete", "list", "watch"].iter().all(|verb| kind.can(verb));
            if is_event || !followed || running.contains_key(resource) {
                continue;
            }
            running.insert(resource.clone(), self.follow(resource, caches, client));
        }
    }

    /// Follows a kind through a cache that is there anyway, or else through one of its own.
    fn follow(&self, resource: &Resource, caches: &Caches, client: &Client) -> Option<Tasks> {
        let (graph, enqueue, kind) = (self.graph.clone(), self.enqueue.clone(), Arc::new(resource.clone()));
        let listener = Arc::new(move |old: Option<&Meta>, new: Option<Arc<dyn Described>>| {
            let asked = {
                let mut graph = lock(&graph);
                let replaced =
                    old.filter(|old| new.as_ref().is_none_or(|new| new.described().uid != old.uid));
                let mut asked = replaced.map(|old| graph.forget(&old.uid)).unwrap_or_default();
                if let Some(new) = new {
                    asked.extend(graph.observe(&kind, new));
                }
                asked
            };
            asked.iter().for_each(|uid| enqueue.ask(uid));
        });
        if caches.listen(resource, listener.clone()) {
            return None;
        }
        let tasks = Tasks::under(&self.tasks.stop());
        let informer = Informer::<Partial>::start(client, resource, "", ListOptions::default(), &tasks);
        informer.on_change(move |change| {
            listener(
                change.old.as_ref().map(|object| &object.metadata),
                change.new.clone().map(|object| object as Arc<dyn Described>),
            );
        });
        Some(tasks)
    }
}

/// What the monitors depend on.
pub struct View {
    /// How many groups did not answer.
    failed: Vec<(String, String)>,
}

fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    if let Some((group, why)) = view.failed.first() {
        plan.retry(format!("{group} cannot be discovered: {why}"));
    }
    plan
}

fn gather(monitors: Arc<Monitors>, context: Context) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let found = discover(&context.reader).await?;
        monitors.keep_step(&found, &context.caches, context.caches.informers().client());
        Ok(Some(View { failed: found.failed }))
    })
}

/// Looks at the served kinds at the start and whenever definitions change.
pub(crate) fn controller(monitors: Arc<Monitors>) -> Controller {
    let all = || vec![Key::cluster("kinds")];
    Controller::reading(
        "garbage-collector-monitors",
        move |context| gather(monitors.clone(), context),
        reconcile,
    )
    .acting_as("generic-garbage-collector")
    .workers(1)
    .seed(Key::cluster("kinds"))
    .watching::<CustomResourceDefinition>(move |_, _| all())
    .watching::<ApiService>(move |_, _| all())
}
