//! Follows the API's objects into the cache, and tells the queue what may help whom.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use client::{Change, Informer, Key, ListOptions, Projection, Resource, resources};
use futures::future::BoxFuture;
use jiff::Timestamp;
use lifecycle::Tasks;

use super::Scheduler;
use crate::cache::Cache;
use crate::devices::{DeviceClass, ResourceClaim, ResourceSlice};
use crate::events::ClusterEvent;
use crate::framework::{Code, Point};
use crate::handle::State;
use crate::preemption::Budget;
use crate::storage::{Attachment, Capacity, Claim, Class, CsiDriver, CsiNode, Volume};
use crate::types::{Namespace, Node, Pod};
use crate::workloads::{Mapped, Selecting};

/// The followed resources.
#[derive(Clone)]
pub struct Sources(Arc<Vec<Box<dyn Synced>>>);

trait Synced: Send + Sync {
    fn synced(&self) -> BoxFuture<'_, ()>;
}

impl<P: Projection> Synced for Informer<P> {
    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(Informer::synced(self))
    }
}

/// What a change means to those who wait.
type News<P> = fn(&Change<P>) -> Option<ClusterEvent>;

/// Puts an object into a map, or takes it out.
fn file<K: Hash + Eq, P>(map: &mut HashMap<K, Arc<P>>, key: K, object: Option<Arc<P>>) {
    match object {
        Some(object) => drop(map.insert(key, object)),
        None => drop(map.remove(&key)),
    }
}

struct Follow<'a> {
    scheduler: &'a Arc<Scheduler>,
    tasks: &'a Tasks,
    all: Vec<Box<dyn Synced>>,
}

impl Follow<'_> {
    fn all<P: Projection>(
        &mut self,
        resource: &Resource,
        which: ListOptions,
        on_change: impl Fn(&Arc<Scheduler>, &Change<P>) + Send + Sync + 'static,
    ) {
        let informer = Informer::<P>::start(&self.scheduler.handle.client, resource, "", which, self.tasks);
        let scheduler = self.scheduler.clone();
        informer.on_change(move |change| on_change(&scheduler, change));
        self.all.push(Box::new(informer));
    }

    /// Objects that are kept in the cache as they are; whoever waits for such hears of it.
    fn kept<P: Projection>(
        &mut self,
        resource: &Resource,
        keep: fn(&mut Cache, Key, Option<Arc<P>>),
        news: News<P>,
    ) {
        self.all(resource, ListOptions::default(), move |scheduler, change: &Change<P>| {
            let mut state = scheduler.handle.lock();
            keep(&mut state.cache, change.key(), change.new.clone());
            if let Some(event) = news(change) {
                scheduler.wake(&mut state, &event);
                scheduler.ungate(&mut state);
            }
            drop(state);
            scheduler.handle.changes.send_modify(|count| *count += 1);
        });
    }
}

impl Sources {
    pub fn start(scheduler: &Arc<Scheduler>, tasks: &Tasks) -> Self {
        let mut follow = Follow { scheduler, tasks, all: Vec::new() };
        follow.all(&resources::NODES, ListOptions::default(), Scheduler::node_changed);
        follow.all(
            &resources::NAMESPACES,
            ListOptions::default(),
            |scheduler, change: &Change<Namespace>| {
                let labels = change.new.as_ref().map(|namespace| namespace.metadata.labels.clone());
                let mut state = scheduler.handle.lock();
                state.cache.set_namespace(&change.key().name, labels);
                scheduler.wake(&mut state, &ClusterEvent::NamespaceChanged);
            },
        );
        follow.storage();
        follow.devices();
        follow.workloads();
        // Finished pods use nothing, so they are not even cached.
        let unfinished = ListOptions::fields("status.phase!=Succeeded,status.phase!=Failed");
        follow.all(&resources::PODS, unfinished, Scheduler::pod_changed);
        Self(Arc::new(follow.all))
    }

    pub async fn synced(&self) {
        for source in self.0.iter() {
            source.synced().await;
        }
    }
}

impl Follow<'_> {
    fn storage(&mut self) {
        self.kept::<Claim>(
            &resources::PERSISTENT_VOLUME_CLAIMS,
            |cache, key, it| file(&mut cache.storage.claims, key, it),
            |change| Some(ClusterEvent::ClaimChanged { old: change.old.clone(), new: change.new.clone()? }),
        );
        self.kept::<Volume>(
            &resources::PERSISTENT_VOLUMES,
            |cache, key, it| file(&mut cache.storage.volumes, key.name, it),
            |change| change.new.clone().map(ClusterEvent::VolumeChanged),
        );
        self.kept::<Class>(
            &resources::STORAGE_CLASSES,
            |cache, key, it| file(&mut cache.storage.classes, key.name, it),
            |change| change.new.clone().map(ClusterEvent::ClassChanged),
        );
        self.kept::<CsiNode>(
            &resources::CSI_NODES,
            |cache, key, it| file(&mut cache.storage.csi_nodes, key.name, it),
            |change| change.new.clone().map(ClusterEvent::CsiNodeChanged),
        );
        self.kept::<CsiDriver>(
            &resources::CSI_DRIVERS,
            |cache, key, it| file(&mut cache.storage.csi_drivers, key.name, it),
            |_| Some(ClusterEvent::CsiDriverChanged),
        );
        self.kept::<Capacity>(
            &resources::CSI_STORAGE_CAPACITIES,
            |cache, key, it| file(&mut cache.storage.capacities, key, it),
            |_| Some(ClusterEvent::StorageCapacityChanged),
        );
        self.kept::<Attachment>(
            &resources::VOLUME_ATTACHMENTS,
            |cache, key, it| file(&mut cache.storage.attachments, key.name, it),
            |change| change.new.is_none().then_some(ClusterEvent::VolumeDetached),
        );
    }

    fn devices(&mut self) {
        self.kept::<ResourceClaim>(
            &resources::RESOURCE_CLAIMS,
            |cache, key, it| file(&mut cache.devices.claims, key, it),
            |change| {
                Some(ClusterEvent::ResourceClaimChanged { old: change.old.clone(), new: change.new.clone() })
            },
        );
        self.kept::<ResourceSlice>(
            &resources::RESOURCE_SLICES,
            |cache, key, it| file(&mut cache.devices.slices, key.name, it),
            |change| change.new.clone().map(ClusterEvent::ResourceSliceChanged),
        );
        self.kept::<DeviceClass>(
            &resources::DEVICE_CLASSES,
            |cache, key, it| file(&mut cache.devices.classes, key.name, it),
            |change| change.new.clone().map(ClusterEvent::DeviceClassChanged),
        );
    }

    fn workloads(&mut self) {
        self.kept::<Mapped>(
            &resources::SERVICES,
            |cache, key, it| cache.workloads.set_service(&key, it),
            |_| None,
        );
        self.kept::<Mapped>(
            &resources::REPLICATION_CONTROLLERS,
            |cache, key, it| file(&mut cache.workloads.replication_controllers, key, it),
            |_| None,
        );
        self.kept::<Selecting>(
            &resources::REPLICA_SETS,
            |cache, key, it| file(&mut cache.workloads.replica_sets, key, it),
            |_| None,
        );
        self.kept::<Selecting>(
            &resources::STATEFUL_SETS,
            |cache, key, it| file(&mut cache.workloads.stateful_sets, key, it),
            |_| None,
        );
        self.kept::<Budget>(
            &resources::POD_DISRUPTION_BUDGETS,
            |cache, key, it| file(&mut cache.budgets, key, it),
            |_| None,
        );
    }
}

impl Scheduler {
    /// The number of the profile that a pod asks for; pods that ask for none of ours are someone else's.
    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        self.profiles.iter().position(|profile| *profile.name == *pod.spec.scheduler_name)
    }

    fn node_changed(self: &Arc<Self>, change: &Change<Node>) {
        let mut state = self.handle.lock();
        match (&change.old, &change.new) {
            (old, Some(new)) => {
                state.cache.set_node(new.clone());
                match old {
                    None => self.wake(&mut state, &ClusterEvent::NodeAdded(new.clone())),
                    Some(old) if offers_changed(old, new) => {
                        let event = ClusterEvent::NodeChanged { old: old.clone(), new: new.clone() };
                        self.wake(&mut state, &event);
                    }
                    // Heartbeats help nobody.
                    Some(_) => {}
                }
            }
            (_, None) => state.cache.remove_node(&change.key().name),
        }
    }

    fn pod_changed(self: &Arc<Self>, change: &Change<Pod>) {
        let mut guard = self.handle.lock();
        let state = &mut *guard;
        let pod = change.latest();
        let uid = &pod.metadata.uid;
        if change.new.is_none() || !pod.spec.node_name.is_empty() {
            state.cache.nominate(pod, None);
        }
        if change.new.is_none() {
            state.queue.remove(uid);
            self.handle.reject(uid, "the pod was deleted".into());
            if state.cache.is_placed(uid) {
                state.cache.remove_pod(uid);
                self.wake(state, &ClusterEvent::PodGone(pod.clone()));
            }
        } else if !pod.spec.node_name.is_empty() {
            state.queue.remove(uid);
            state.cache.set_pod(pod.clone());
            match &change.old {
                // A pod that others want to be near to may just have come.
                Some(old) if old.spec.node_name.is_empty() => {
                    self.wake(state, &ClusterEvent::PodPlaced(pod.clone()))
                }
                None => self.wake(state, &ClusterEvent::PodPlaced(pod.clone())),
                Some(old)
                    if old.metadata.labels != pod.metadata.labels
                        || old.metadata.generation != pod.metadata.generation =>
                {
                    self.wake(state, &ClusterEvent::PodChanged { old: old.clone(), new: pod.clone() });
                }
                Some(_) => {}
            }
        } else if pod.metadata.is_terminating() {
            state.queue.remove(uid);
        } else if let Some(profile) = self.profile_of(pod)
            && !state.cache.is_placed(uid)
        {
            let nominated = &*pod.status.nominated_node_name;
            if !nominated.is_empty() {
                state.cache.nominate(pod, Some(nominated));
            }
            let framework = &self.profiles[profile].framework;
            let began = Instant::now();
            let gated = framework.holds_back(pod, &state.cache).is_some();
            let code = if gated { Code::Never } else { Code::Success };
            framework.measures.took(Point::PreEnqueue, code, began);
            state.queue.set(pod.clone(), profile, gated, Timestamp::now());
            self.work.notify_one();
        }
    }

    /// Plugins that hold pods back may let some go now.
    fn ungate(&self, state: &mut State) {
        for (pod, profile) in state.queue.gated() {
            if self.profiles[profile].framework.holds_back(&pod, &state.cache).is_none() {
                state.queue.set(pod, profile, false, Timestamp::now());
                self.work.notify_one();
            }
        }
    }
}

/// Whether a node offers something else than before; heartbeats do not count.
fn offers_changed(old: &Node, new: &Node) -> bool {
    old.metadata.labels != new.metadata.labels
        || old.spec != new.spec
        || old.status.allocatable != new.status.allocatable
}
