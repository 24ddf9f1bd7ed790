//! The caches of a process: one informer per projection, shared by all controllers.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::{Informer, Informers, Key, Resource};
use futures::future::BoxFuture;

use crate::meta::{Described, Kind, Meta};

/// Called with the metadata of an object before a change, and with the object after it.
pub type MetaListener = Arc<dyn Fn(Option<&Meta>, Option<Arc<dyn Described>>) + Send + Sync>;

/// What must be in view before the next decision on a key is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Everything up to this revision of the kind.
    Revision(Resource, u64),
    /// The object with this uid is gone or going.
    Gone(Resource, Key, Box<str>),
    /// Whatever was done up to now: nobody knows whether a write to the kind took effect.
    Fresh(Resource),
}

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Caches {
    informers: Informers,
    known: Arc<Mutex<HashMap<TypeId, Known>>>,
}

/// A cache without its type.
struct Known {
    resource: Resource,
    reached: Box<dyn Fn(u64) -> BoxFuture<'static, ()> + Send>,
    refreshed: Box<dyn Fn() -> BoxFuture<'static, ()> + Send>,
    gone: Box<dyn Fn(&Key, &str) -> BoxFuture<'static, ()> + Send>,
    listen: Arc<dyn Fn(MetaListener) + Send + Sync>,
}

impl Caches {
    /// No caches yet.
    pub fn new(informers: Informers) -> Self {
        Self { informers, known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<TypeId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The informers underneath, for projections that name their resource only at run time.
    pub fn informers(&self) -> &Informers {
        &self.informers
    }

    /// The cache of a kind, started on first use.
    pub fn of<K: Kind>(&self) -> Informer<K> {
        let informer = self.informers.of::<K>(&K::RESOURCE);
        self.known().entry(TypeId::of::<K>()).or_insert_with(|| Known::of(&informer));
        informer
    }

    /// The objects that the owner with this uid controls, in name order.
    pub fn controlled_by<K: Kind>(&self, uid: &str) -> Vec<Arc<K>> {
        by_name(self.of::<K>().indexed("controller", uid))
    }

    /// The objects of a namespace that nothing controls, in name order.
    pub fn orphans_in<K: Kind>(&self, namespace: &str) -> Vec<Arc<K>> {
        by_name(self.of::<K>().indexed("orphans", namespace))
    }

    /// Whether some cache holds this kind, whatever its version.
    pub fn holds(&self, resource: &Resource) -> bool {
        self.known().values().any(|known| known.holds(resource))
    }

    /// Follows the metadata of a kind through the cache that holds it; `false` if there is none.
    pub fn listen(&self, resource: &Resource, listener: MetaListener) -> bool {
        // Registering waits for the informer's handlers, and those may look into our map: not under its lock.
        let found =
            self.known().values().find(|known| known.holds(resource)).map(|known| known.listen.clone());
        found.is_some_and(|listen| {
            listen(listener);
            true
        })
    }

    /// Resolves once the caches show what is expected. Kinds without a cache are not waited for.
    pub async fn show(&self, expected: &Expect) {
        match expected {
            Expect::Revision(resource, revision) => {
                let waits: Vec<_> = self
                    .known()
                    .values()
                    .filter(|known| known.holds(resource))
                    .map(|known| (known.reached)(*revision))
                    .collect();
                futures::future::join_all(waits).await;
            }
            Expect::Fresh(resource) => {
                let waits: Vec<_> = self
                    .known()
                    .values()
                    .filter(|known| known.holds(resource))
                    .map(|known| (known.refreshed)())
                    .collect();
                futures::future::join_all(waits).await;
            }
            Expect::Gone(resource, key, uid) => {
                let waits: Vec<_> = self
                    .known()
                    .values()
                    .filter(|known| known.holds(resource))
                    .map(|known| (known.gone)(key, uid))
                    .collect();
                futures::future::join_all(waits).await;
            }
        }
    }
}

fn by_name<K: Kind>(mut objects: Vec<Arc<K>>) -> Vec<Arc<K>> {
    objects.sort_by(|a, b| a.meta().name.cmp(&b.meta().name));
    objects
}

impl Known {
    fn of<K: Kind>(informer: &Informer<K>) -> Self {
        let (a, b, c, d) = (informer.clone(), informer.clone(), informer.clone(), informer.clone());
        Self {
            resource: K::RESOURCE,
            reached: Box::new(move |revision| {
                let informer = a.clone();
                Box::pin(async move { informer.reached(revision).await })
            }),
            refreshed: Box::new(move || {
                let informer = b.clone();
                Box::pin(async move { informer.refreshed().await })
            }),
            gone: Box::new(move |key, uid| {
                let (informer, key, uid) = (c.clone(), key.clone(), Box::<str>::from(uid));
                Box::pin(async move {
                    let gone = |object: Option<&K>| {
                        object.is_none_or(|it| it.meta().uid != uid || it.meta().is_terminating())
                    };
                    informer.until(&key, gone).await;
                })
            }),
            listen: Arc::new(move |listener: MetaListener| {
                d.on_change(move |change| {
                    let new = change.new.clone().map(|object| object as Arc<dyn Described>);
                    listener(change.old.as_deref().map(Kind::meta), new);
                });
            }),
        }
    }

    fn holds(&self, resource: &Resource) -> bool {
        self.resource.group == resource.group && self.resource.plural == resource.plural
    }
}
