//! What must hold at every moment, whatever goes wrong: looked at after each change of a pod.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use client::{Informer, Metadata, Projection};
use serde::Deserialize;

use super::actors::Pod;

/// A ReplicaSet as far as it counts here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Set {
    metadata: Metadata,
    spec: SetSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SetSpec {
    replicas: usize,
}

impl Projection for Set {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What may be there at most, and at least.
#[derive(Default)]
pub struct Bounds {
    /// Replicas that the sets of each app ask for together at most: what was ever wanted, and the surge. (Their pods can
    /// be more for a moment, as with upstream: one set makes its pod before the other has deleted its own.)
    pub at_most: HashMap<String, usize>,
    /// Ready pods of an app never fall below this again, once they were as many.
    pub at_least: HashMap<String, usize>,
}

/// Breaches, in words.
#[derive(Clone, Default)]
pub struct Watchdog {
    bounds: Arc<Mutex<Bounds>>,
    breaches: Arc<Mutex<Vec<String>>>,
    reached: Arc<Mutex<HashSet<String>>>,
}

impl Watchdog {
    pub fn set(&self, change: impl FnOnce(&mut Bounds)) {
        change(&mut self.bounds.lock().unwrap_or_else(PoisonError::into_inner));
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub fn breaches(&self) -> Vec<String> {
        self.breaches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn follow(&self, pods: &Informer<Pod>) {
        let (own, cache) = (self.clone(), pods.clone());
        pods.on_change(move |_| own.look(&cache.list()));
    }

    pub fn follow_sets(&self, sets: &Informer<Set>) {
        let (own, cache) = (self.clone(), sets.clone());
        sets.on_change(move |_| own.add_up(&cache.list()));
    }

    fn add_up(&self, sets: &[Arc<Set>]) {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        for (app, limit) in &bounds.at_most {
            let own = sets.iter().filter(|set| set.metadata.labels.get("app") == Some(app));
            let sizes: Vec<(&str, usize)> = own.map(|set| (&*set.metadata.name, set.spec.replicas)).collect();
            if sizes.iter().map(|(_, size)| size).sum::<usize>() > *limit {
                let said = format!("the sets of {app} ask for more than {limit}: {sizes:?}");
                self.breaches.lock().unwrap_or_else(PoisonError::into_inner).push(said);
            }
        }
    }

    fn look(&self, pods: &[Arc<Pod>]) {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said = Vec::new();
        let of = |app: &str| {
            let app = app.to_owned();
            pods.iter().filter(move |pod| pod.metadata.labels.get("app") == Some(&app))
        };
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        for (app, limit) in &bounds.at_least {
            let ready = of(app).filter(|pod| pod.is_ready() && !pod.metadata.is_terminating()).count();
            if ready >= *limit {
                reached.insert(app.clone());
            } else if reached.contains(app) {
                said.push(format!("{app} has only {ready} ready pods, {limit} are needed"));
            }
        }
        // A daemon has one pod on each node; the one it replaces may still be going.
        let mut places = HashSet::new();
        for pod in of("daemon").filter(|pod| pod.is_active()) {
            let node = pod.pinned().unwrap_or_default().to_owned();
            if !places.insert(node.clone()) {
                said.push(format!("two daemon pods on {node}"));
            }
        }
        // An ordered set makes a pod only when all before it are ready.
        let mut ordered: Vec<(u32, bool)> = of("ordered")
            .filter(|pod| pod.is_active())
            .filter_map(|pod| {
                Some((pod.metadata.name.rsplit_once('-')?.1.parse().ok()?, pod.phase() == "Pending"))
            })
            .collect();
        ordered.sort_unstable();
        if ordered.iter().filter(|(_, pending)| *pending).count() > 1 {
            said.push(format!("an ordered set waits for more than one pod: {ordered:?}"));
        }
        if !said.is_empty() {
            self.breaches.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
        }
    }
}
