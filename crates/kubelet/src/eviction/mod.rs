//! Eviction: ends pods before the node runs out of memory, disk or processes, and pods that outgrew limits of their own.
//!
//! `observe → judge (pure) → reclaim what nobody needs → rank (pure) → end one pod → look again`
//!
//! A look costs a few reads of `/proc` and `statvfs`, so it happens every other second; what pods use is measured only
//! where somebody has to be chosen or has a limit. One pod is ended at a time, and the next only after it is gone.

mod rank;
mod thresholds;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cri::PodSandboxStatsFilter;
use jiff::Timestamp;
use lifecycle::Stop;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::host::SharedHost;
use crate::images;
use crate::pod::Pod;
use crate::pods::Pods;
use crate::state::Verdict;
use rank::Candidate;
use thresholds::{Found, Memory, Observations, Threshold};

pub use thresholds::{Amount, BadThreshold, DEFAULT_HARD, Pressure, Settings, Signal, thresholds as parse};

const PERIOD: Duration = Duration::from_secs(2);
/// How often pods with limits of their own are measured.
const MEASURE: Duration = Duration::from_secs(10);
/// How long a pod that was ended is waited for.
const CLEANUP: Duration = Duration::from_secs(30);
/// The grace of a pod that is ended at once.
const IMMEDIATE: Duration = Duration::from_secs(1);

/// Watches over the node until stopped. `pressures` hears what the node is short of.
pub async fn run(host: SharedHost, pods: Arc<Pods>, pressures: watch::Sender<Vec<Pressure>>, stop: Stop) {
    let mut manager = Manager {
        host,
        pods,
        pressures,
        memory: Memory::default(),
        images: None,
        measured: None,
        announced: None,
    };
    loop {
        let ended = manager.round().await;
        if !ended.is_empty() {
            manager.wait_for(&ended, &stop).await;
        }
        if stop.or(tokio::time::sleep(PERIOD)).await.is_none() {
            return;
        }
    }
}

struct Manager {
    host: SharedHost,
    pods: Arc<Pods>,
    pressures: watch::Sender<Vec<Pressure>>,
    memory: Memory,
    /// Where images are.
    images: Option<PathBuf>,
    /// When limits of pods were last looked at.
    measured: Option<Instant>,
    /// What the node was last said to reclaim.
    announced: Option<Signal>,
}

impl Manager {
    /// One look. Answers with the pods that were ended, by uid.
    async fn round(&mut self) -> Vec<String> {
        let seen = self.observe().await;
        let settings = &self.host.config.eviction;
        let Found { pressures, met } = thresholds::judge(settings, &seen, &mut self.memory, Timestamp::now());
        self.pressures.send_if_modified(|known| std::mem::replace(known, pressures.clone()) != pressures);
        let ended = self.enforce_own_limits().await;
        if !ended.is_empty() {
            return ended;
        }
        let Some(threshold) = met.first() else {
            self.announced = None;
            return Vec::new();
        };
        let resource = threshold.signal.resource();
        if self.announced.replace(threshold.signal) != Some(threshold.signal) {
            warn!(resource, "the node runs short");
            let text = format!("Attempting to reclaim {resource}");
            self.host.events.node(&self.host.config.node_name, true, "EvictionThresholdMet", text);
        }
        if threshold.signal.pressure() == Pressure::Disk && self.reclaim().await {
            info!(resource, "removing what nobody uses was enough");
            return Vec::new();
        }
        self.end_one(threshold, &seen).await
    }

    async fn observe(&mut self) -> Observations {
        if self.images.is_none()
            && let Ok(info) = self.host.config.images.image_fs_info().await
        {
            self.images = info.image_filesystems.first().map(|one| one.mountpoint.clone());
        }
        usage::observe(&self.host.config.root_dir, self.images.as_deref())
    }

    /// Removes images that nothing uses. True if that was enough.
    async fn reclaim(&mut self) -> bool {
        match images::collect::remove_unused(&self.host, &self.pods).await {
            Ok(0) => return false,
            Ok(count) => info!(count, "unused images are removed to free the disk"),
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "cannot remove unused images");
                return false;
            }
        }
        let seen = self.observe().await;
        !thresholds::is_short(&self.host.config.eviction, &seen)
    }

    /// Measures these pods.
    async fn candidates(&self, pods: Vec<Arc<Pod>>) -> Vec<Candidate> {
        let stats = self.host.config.runtime.list_pod_sandbox_stats(&PodSandboxStatsFilter::default()).await;
        let stats = match stats {
            Ok(stats) => stats,
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "cannot measure pods");
                return Vec::new();
            }
        };
        let host = self.host.clone();
        let measured = tokio::task::spawn_blocking(move || {
            let of = |pod: Arc<Pod>| {
                let stats = stats.iter().find(|one| one.attributes.metadata.uid == pod.metadata.uid);
                Candidate { usage: usage::of_pod(&host, &pod, stats), pod }
            };
            pods.into_iter().map(of).collect()
        });
        // Cancelled only with the whole runtime.
        measured.await.unwrap_or_default()
    }

    /// Ends pods that outgrew a limit of their own.
    async fn enforce_own_limits(&mut self) -> Vec<String> {
        if self.measured.is_some_and(|at| at.elapsed() < MEASURE) {
            return Vec::new();
        }
        self.measured = Some(Instant::now());
        let limited =
            self.pods.active().into_iter().filter(|pod| rank::has_own_limit(pod)).collect::<Vec<_>>();
        if limited.is_empty() {
            return Vec::new();
        }
        let mut ended = Vec::new();
        for one in self.candidates(limited).await {
            if let Some(message) = rank::own_limit(&one).filter(|_| rank::is_evictable(&one.pod)) {
                ended.extend(self.end(&one.pod, message, IMMEDIATE, false));
            }
        }
        ended
    }

    /// Ends the pod that comes first for this shortage.
    async fn end_one(&self, threshold: &Threshold, seen: &Observations) -> Vec<String> {
        let mut candidates = self.candidates(self.pods.active()).await;
        rank::rank(threshold.signal, &mut candidates);
        for one in candidates.iter().filter(|one| rank::is_evictable(&one.pod)) {
            let grace = match threshold.grace {
                None => IMMEDIATE,
                Some(_) => {
                    let own = Duration::from_secs(one.pod.grace_seconds().max(0) as u64);
                    own.min(self.host.config.eviction.max_pod_grace)
                }
            };
            let message = rank::message(threshold, one, seen);
            if let Some(uid) = self.end(&one.pod, message, grace, true) {
                return vec![uid];
            }
        }
        debug!(resource = threshold.signal.resource(), "no pod can be evicted");
        Vec::new()
    }

    fn end(&self, pod: &Pod, message: String, grace: Duration, disruption: bool) -> Option<String> {
        let verdict =
            Verdict { reason: "Evicted".into(), message: message.clone(), grace: Some(grace), disruption };
        if !self.pods.end(&pod.metadata.uid, verdict) {
            return None;
        }
        info!(pod = %pod.key(), message, "pod is evicted");
        self.host.events.pod(pod, true, "Evicted", message);
        Some(pod.metadata.uid.clone())
    }

    /// Waits until what was ended is gone: only then is it known what that freed.
    async fn wait_for(&self, ended: &[String], stop: &Stop) {
        let deadline = Instant::now() + CLEANUP;
        while Instant::now() < deadline && ended.iter().any(|uid| !self.pods.has_ended(uid)) {
            if stop.or(tokio::time::sleep(Duration::from_millis(200))).await.is_none() {
                return;
            }
        }
    }
}
