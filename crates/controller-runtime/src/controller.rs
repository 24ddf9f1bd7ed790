//! What a controller declares: how to look, how to decide, and which changes concern it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use client::{Change, Client, Error, Key, Resource};
use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::caches::Caches;
use crate::executor::Failure;
use crate::meta::Kind;
use crate::plan::Plan;
use crate::queue::Queue;

/// What a gather function may look at. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// The caches of the process.
    pub caches: Caches,
    /// The key to decide on.
    pub key: Key,
    /// The time of the decision.
    pub now: Timestamp,
    /// What went wrong with the plan that was just tried, if the status is to tell of it: see
    /// [`Controller::telling_failures`].
    pub failure: Option<Arc<Failure>>,
    /// For reads that no cache can answer. A gather never writes.
    pub reader: Client,
}

impl Context {
    /// The object that the key names.
    pub fn object<K: Kind>(&self) -> Option<Arc<K>> {
        self.caches.of::<K>().get(&self.key)
    }
}

pub(crate) type Decide = Arc<dyn Fn(Context) -> BoxFuture<'static, Result<Plan, Error>> + Send + Sync>;
type Subscribe = Box<dyn FnOnce(&Caches, &Arc<Queue>) -> BoxFuture<'static, ()> + Send>;

/// See the module. Built once, then given to [`crate::Runtime::start`].
pub struct Controller {
    pub(crate) name: &'static str,
    pub(crate) identity: &'static str,
    pub(crate) component: &'static str,
    pub(crate) workers: usize,
    pub(crate) tells_failures: bool,
    pub(crate) decide: Decide,
    pub(crate) subscriptions: Vec<Subscribe>,
    pub(crate) seeds: Vec<Key>,
    pub(crate) state: State,
    kind: Option<Resource>,
}

/// Tells the states of the object that a key names apart: by its identity and the generation of its wish.
pub(crate) type State = Arc<dyn Fn(&Caches, &Key) -> u64 + Send + Sync>;

impl Controller {
    /// A controller that looks only into caches. `gather` returns nothing if there is nothing to decide on.
    pub fn new<V: Send + 'static>(
        name: &'static str,
        gather: impl Fn(&Context) -> Option<V> + Send + Sync + 'static,
        reconcile: impl Fn(&V) -> Plan + Send + Sync + 'static,
    ) -> Self {
        Self::deciding(
            name,
            Arc::new(move |context| {
                let plan = gather(&context).map(|view| reconcile(&view)).unwrap_or_default();
                Box::pin(std::future::ready(Ok(plan)))
            }),
        )
    }

    /// A controller whose gather also reads from the server, for what no cache holds.
    pub fn reading<V: Send + 'static>(
        name: &'static str,
        gather: impl Fn(Context) -> BoxFuture<'static, Result<Option<V>, Error>> + Send + Sync + 'static,
        reconcile: impl Fn(&V) -> Plan + Send + Sync + 'static,
    ) -> Self {
        let reconcile = Arc::new(reconcile);
        Self::deciding(
            name,
            Arc::new(move |context| {
                let (view, reconcile) = (gather(context), reconcile.clone());
                Box::pin(async move { Ok(view.await?.map(|view| reconcile(&view)).unwrap_or_default()) })
            }),
        )
    }

    fn deciding(name: &'static str, decide: Decide) -> Self {
        Self {
            name,
            identity: name,
            component: name,
            workers: 2,
            tells_failures: false,
            decide,
            subscriptions: Vec::new(),
            seeds: Vec::new(),
            state: Arc::new(|_, _| 0),
            kind: None,
        }
    }

    /// The service account in `kube-system` that the controller acts as, and the name in its events.
    pub fn acting_as(mut self, identity: &'static str) -> Self {
        self.identity = identity;
        self.component = identity;
        self
    }

    /// The source that its events name, where that is not the service account.
    pub fn events_from(mut self, component: &'static str) -> Self {
        self.component = component;
        self
    }

    /// How many keys are worked on at once.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// Its status says what was seen, not what its plan will have done: it is also written if the rest of the plan failed,
    /// after a second decision that knows of the failure. Of all others nothing is claimed that did not happen.
    pub fn telling_failures(mut self) -> Self {
        self.tells_failures = true;
        self
    }

    /// A key that is looked at once at the start, whatever the caches hold.
    pub fn seed(mut self, key: Key) -> Self {
        self.seeds.push(key);
        self
    }

    /// Keys are those of this kind, and each of its changes triggers its key.
    pub fn for_kind<K: Kind>(self) -> Self {
        self.for_changes_of::<K>(|_| true)
    }

    /// Reconciles objects of this kind, but only after changes that matter.
    pub fn for_changes_of<K: Kind>(
        mut self,
        matters: impl Fn(&Change<K>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.kind = Some(K::RESOURCE);
        self.state = Arc::new(|caches, key| {
            let Some(object) = caches.of::<K>().get(key) else { return 0 };
            let mut hasher = DefaultHasher::new();
            (&object.meta().uid, object.meta().generation).hash(&mut hasher);
            hasher.finish()
        });
        self.watching::<K>(move |_, change| if matters(change) { vec![change.key()] } else { Vec::new() })
    }

    /// Changes of this kind trigger the key of the object that controls (or controlled) it.
    pub fn owning<K: Kind>(self) -> Self {
        let Some(owner) = self.kind.clone() else {
            unreachable!("owning() follows for_kind(): {} has no kind to own with", self.name)
        };
        self.watching::<K>(move |_, change| {
            let mut keys: Vec<Key> = Vec::with_capacity(1);
            for object in change.old.iter().chain(change.new.iter()) {
                let meta = object.meta();
                let Some(controller) = meta.controller() else { continue };
                let group = controller.api_version.split_once('/').map_or("", |(group, _)| group);
                if *controller.kind == *owner.kind && *group == *owner.group {
                    let namespace = if owner.namespaced { &*meta.namespace } else { "" };
                    let key = Key::new(namespace, &controller.name);
                    if !keys.contains(&key) {
                        keys.push(key);
                    }
                }
            }
            keys
        })
    }

    /// Changes of this kind trigger the keys that `map` names.
    pub fn watching<K: Kind>(
        mut self,
        map: impl Fn(&Caches, &Change<K>) -> Vec<Key> + Send + Sync + 'static,
    ) -> Self {
        self.subscriptions.push(Box::new(move |caches, queue| {
            let informer = caches.of::<K>();
            let (caches, queue) = (caches.clone(), queue.clone());
            informer.on_change(move |change| {
                for key in map(&caches, change) {
                    queue.add(key);
                }
            });
            Box::pin(async move { informer.synced().await })
        }));
        self
    }

    /// The kind is looked at but triggers nothing.
    pub fn reading_kind<K: Kind>(self) -> Self {
        self.watching::<K>(|_, _| Vec::new())
    }

    /// A trigger of another sort: called once at the start with the caches and a function that asks for a key.
    pub fn triggered_by(
        mut self,
        start: impl FnOnce(&Caches, Arc<dyn Fn(Key) + Send + Sync>) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Self {
        self.subscriptions.push(Box::new(move |caches, queue| {
            let queue = queue.clone();
            start(caches, Arc::new(move |key| queue.add(key)))
        }));
        self
    }
}
