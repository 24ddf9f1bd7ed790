//! What must hold at every moment, whatever goes wrong: looked at after each change of a pod.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use client::Informer;

use super::actors::Pod;

/// What may be there at most, and at least.
#[derive(Default)]
pub struct Bounds {
    /// Active pods of each app at most: what was ever wanted, and the surge.
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

    fn look(&self, pods: &[Arc<Pod>]) {
        let bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let mut said = Vec::new();
        let of = |app: &str| {
            let app = app.to_owned();
            pods.iter().filter(move |pod| pod.metadata.labels.get("app") == Some(&app))
        };
        for (app, limit) in &bounds.at_most {
            let active: Vec<&str> =
                of(app).filter(|pod| pod.is_active()).map(|pod| &*pod.metadata.name).collect();
            if active.len() > *limit {
                said.push(format!("{app} has {} active pods, {limit} are allowed: {active:?}", active.len()));
            }
        }
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
