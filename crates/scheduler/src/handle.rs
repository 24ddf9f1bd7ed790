//! What plugins may do while a binding is under way: call the API, look at the cache, wait for changes of it, and let
//! waiting pods go.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{Client, resources};
use controller_runtime::{Doing, Event, Recorder, Reference};
use tokio::sync::{oneshot, watch};

use crate::cache::Cache;
use crate::framework::Reasons;
use crate::queue::Queue;
use crate::types::Pod;

/// Events hold no more than this; conditions hold all.
const LONGEST_NOTE: usize = 1024;

/// The cache and the queue, which change together.
pub(crate) struct State {
    pub cache: Cache,
    pub queue: Queue,
    /// Where the next cycle starts among the nodes.
    pub rotation: usize,
}

/// Shared by everything in one scheduler. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub client: Client,
    pub(crate) state: Arc<Mutex<State>>,
    /// Counts changes of claims, volumes and devices, for those who wait for one.
    pub(crate) changes: Arc<watch::Sender<u64>>,
    waiting: Arc<Mutex<HashMap<Box<str>, WaitingPod>>>,
    /// One per profile, under the profile's name.
    recorders: Arc<[(&'static str, Recorder)]>,
}

/// Something that happens to a pod, for its user to read.
pub struct News<'a> {
    pub warning: bool,
    pub reason: &'static str,
    /// What the scheduler was about.
    pub action: &'static str,
    pub message: String,
    /// The other pod that it concerns.
    pub related: Option<&'a Pod>,
}

fn reference(pod: &Pod) -> Reference {
    let meta = &pod.metadata;
    Reference {
        api_version: resources::PODS.api_version(),
        kind: resources::PODS.kind.to_string(),
        key: meta.key(),
        uid: meta.uid.clone(),
        revision: meta.resource_version.clone(),
    }
}

/// A pod that some plugins have not permitted yet.
struct WaitingPod {
    plugins: HashSet<&'static str>,
    answer: Option<oneshot::Sender<Result<(), Reasons>>>,
}

impl Handle {
    pub(crate) fn new(client: Client, state: State, recorders: Vec<(&'static str, Recorder)>) -> Self {
        Self {
            client,
            state: Arc::new(Mutex::new(state)),
            changes: Arc::new(watch::Sender::new(0)),
            waiting: Arc::default(),
            recorders: recorders.into(),
        }
    }

    /// Records an event about a pod, under the name of the profile that schedules it on whose behalf it happens.
    pub fn record(&self, pod: &Pod, scheduler: &str, news: News<'_>) {
        let Some((_, recorder)) = self.recorders.iter().find(|(name, _)| *name == scheduler) else { return };
        let News { warning, reason, action, mut message, related } = news;
        if message.len() > LONGEST_NOTE {
            let mut end = LONGEST_NOTE - 4;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push_str(" ...");
        }
        let event = Event { about: reference(pod), warning, reason: reason.to_owned(), message };
        recorder.record_doing(event, Doing { action, related: related.map(reference) });
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the cache, or changes it. No cycle runs meanwhile, so it has to be quick.
    pub fn with_cache<T>(&self, look: impl FnOnce(&mut Cache) -> T) -> T {
        look(&mut self.lock().cache)
    }

    /// Waits until the cache gives an answer; it is asked again after every change of claims, volumes and devices.
    pub async fn until<T>(&self, mut ask: impl FnMut(&mut Cache) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            if let Some(answer) = self.with_cache(&mut ask) {
                return answer;
            }
            // The sender lives in this handle, so waiting cannot fail.
            let _ = changes.changed().await;
        }
    }

    /// Notes that a pod has to wait for these plugins; the answer comes through the receiver.
    pub(crate) fn hold(
        &self,
        uid: &str,
        plugins: HashSet<&'static str>,
    ) -> oneshot::Receiver<Result<(), Reasons>> {
        let (answer, receiver) = oneshot::channel();
        self.waiting_pods().insert(uid.into(), WaitingPod { plugins, answer: Some(answer) });
        receiver
    }

    pub(crate) fn release(&self, uid: &str) {
        self.waiting_pods().remove(uid);
    }

    fn waiting_pods(&self) -> MutexGuard<'_, HashMap<Box<str>, WaitingPod>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The uids of the pods that wait for a permission.
    pub fn waiting(&self) -> Vec<Box<str>> {
        self.waiting_pods().keys().cloned().collect()
    }

    /// A plugin permits a pod that it made wait; false if it does not wait (any more).
    pub fn allow(&self, uid: &str, plugin: &str) -> bool {
        let mut waiting = self.waiting_pods();
        let Some(pod) = waiting.get_mut(uid) else { return false };
        let known = pod.plugins.remove(plugin);
        if pod.plugins.is_empty()
            && let Some(answer) = pod.answer.take()
        {
            // Nobody listens any more if the wait was too long; then there is nothing to tell.
            let _ = answer.send(Ok(()));
        }
        known
    }

    /// A plugin sends a waiting pod back to the queue.
    pub fn reject(&self, uid: &str, reasons: Reasons) -> bool {
        let mut waiting = self.waiting_pods();
        let Some(answer) = waiting.get_mut(uid).and_then(|pod| pod.answer.take()) else { return false };
        answer.send(Err(reasons)).is_ok()
    }
}

/// Waits for a permission that [`Handle::hold`] promised.
pub(crate) async fn permission(
    answer: oneshot::Receiver<Result<(), Reasons>>,
    longest: Duration,
) -> Result<(), Reasons> {
    match tokio::time::timeout(longest, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err("the pod no longer waits".into()),
        Err(_) => Err(format!("rejected due to timeout after waiting {longest:?}").into()),
    }
}
