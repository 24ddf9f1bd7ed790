//! The loop: reads the ClusterVersion, applies the release, tells how far it is, and begins again when something is
//! changed, when it failed, or when it is time to look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use client::{Client, Error, Informer, Key, ListOptions, Metadata, Projection, Resource};
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tracing::{info, warn};

use super::State;
use super::apply::Applier;
use super::cluster_version::{self, Observed, Spec};
use super::failure::{Effect, Failure};
use super::include::{Capabilities, Criteria};
use super::payload::Payload;
use super::sync::{Progress, sync};
use crate::library::cluster_operator::CLUSTER_OPERATORS;

pub const CLUSTER_VERSIONS: Resource =
    Resource::cluster("config.openshift.io", "v1", "clusterversions", "ClusterVersion");
pub const FEATURE_GATES: Resource =
    Resource::cluster("config.openshift.io", "v1", "featuregates", "FeatureGate");

/// The pause between two looks at a cluster that is as it should be; as much again is added at random.
const INTERVAL: Duration = Duration::from_secs(120);
/// Steps are told this often at most.
const TELL: Duration = Duration::from_millis(500);

/// A ClusterVersion or FeatureGate, whole.
#[derive(Deserialize)]
struct Followed {
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl Projection for Followed {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// What the operator was started with.
pub struct Operator {
    pub client: Client,
    pub payload: Payload,
    /// What the payload was chosen by; overrides and capabilities come from the ClusterVersion.
    pub features: Features,
    pub always_enable: Vec<String>,
    /// The name of the ClusterVersion.
    pub name: String,
    /// Since when each operator is waited for.
    pub waiting: Mutex<BTreeMap<String, Timestamp>>,
}

impl Operator {
    /// Works until the stop. Returns early when the feature set is no longer the one it started with.
    pub async fn run(&self, tasks: &Tasks, stop: &Stop) {
        let versions: Informer<Followed> =
            Informer::start(&self.client, &CLUSTER_VERSIONS, "", ListOptions::default(), tasks);
        let gates: Informer<Followed> =
            Informer::start(&self.client, &FEATURE_GATES, "", ListOptions::default(), tasks);
        let changed = watch::Sender::new(());
        let (on_version, on_gate) = (changed.clone(), changed.clone());
        let name = self.name.clone();
        versions.on_change(move |change| {
            // Our own writes of the status are not news.
            let generation =
                |of: &Option<std::sync::Arc<Followed>>| of.as_ref().map(|it| it.metadata.generation);
            if *change.key().name == *name && generation(&change.old) != generation(&change.new) {
                on_version.send_replace(());
            }
        });
        gates.on_change(move |_| {
            on_gate.send_replace(());
        });
        // An operator that has got further may be the one that is waited for.
        let operators: Informer<Followed> =
            Informer::start(&self.client, &CLUSTER_OPERATORS, "", ListOptions::default(), tasks);
        let moved = watch::Sender::new(());
        let on_operator = moved.clone();
        operators.on_change(move |change| {
            let told = |of: &Option<std::sync::Arc<Followed>>| of.as_ref().map(|it| standing(&it.status));
            if told(&change.old) != told(&change.new) {
                on_operator.send_replace(());
            }
        });
        if stop.or(async { tokio::join!(versions.synced(), gates.synced()) }).await.is_none() {
            return;
        }
        let mut attempt = 0;
        let mut failures = 0;
        let mut news = changed.subscribe();
        let mut moves = moved.subscribe();
        while !stop.is_requested() {
            if self.features_changed(&gates) {
                info!(
                    "the features are others than at the start, ending; whoever supervises this starts it again"
                );
                return;
            }
            news.borrow_and_update();
            moves.borrow_and_update();
            let round = async {
                tokio::select! {
                    biased;
                    _ = news.changed() => None,
                    outcome = self.round(attempt) => Some(outcome),
                }
            };
            let Some(outcome) = stop.or(round).await else { return };
            let pause = match outcome {
                // Something was changed while it worked: begin again with what is wanted now.
                None => continue,
                Some(Ok(true)) => {
                    failures = 0;
                    INTERVAL + random_up_to(INTERVAL)
                }
                Some(Ok(false)) => {
                    failures += 1;
                    (INTERVAL / 16) * 2u32.pow(u32::min(failures - 1, 4))
                }
                Some(Err(error)) => {
                    warn!(error = %telemetry::chain(&error), "the ClusterVersion cannot be read or written");
                    Duration::from_secs(3)
                }
            };
            attempt += 1;
            let wait = async {
                // Whichever comes first; none is lost by being dropped.
                tokio::select! {
                    _ = news.changed() => {}
                    _ = moves.changed(), if failures > 0 => {}
                    () = tokio::time::sleep(pause) => {}
                }
            };
            if stop.or(wait).await.is_none() {
                return;
            }
        }
    }

    fn features_changed(&self, gates: &Informer<Followed>) -> bool {
        let gate = gates.get(&Key::cluster("cluster"));
        let now = gate.map(|gate| Features::of(&gate.spec, &gate.status, &self.payload.version.to_string()));
        now.is_some_and(|now| now != self.features)
    }

    /// Applies the release once. Whether all is well; an error is of the ClusterVersion itself.
    async fn round(&self, attempt: u64) -> Result<bool, Error> {
        let api = self.client.api(&CLUSTER_VERSIONS);
        let Some(before) = api.find::<Value>(&self.name).await? else {
            info!(name = self.name, "waiting for the ClusterVersion");
            return Ok(false);
        };
        let (spec, problems) = match Spec::of(&before) {
            Ok(spec) => {
                let problems = spec.problems();
                (spec, problems)
            }
            Err(error) => (Spec::default(), vec![format!("spec: Invalid value: {error}")]),
        };
        let capabilities = spec.capabilities(&before["status"], &self.always_enable);
        let criteria = Criteria {
            feature_gates: Some(self.features.gates.clone()),
            overrides: spec.overrides(),
            capabilities: Some(capabilities.clone()),
            ..Criteria::default()
        };
        let reporter = Reporter {
            operator: self,
            state: cluster_version::state(&before["status"], &self.payload.image),
            generation: before["metadata"]["generation"].as_i64().unwrap_or_default(),
            capabilities,
            problems,
            refused: self.refusal(&spec),
        };
        let applier = Applier::new(self.client.clone()).owned_by(&before);
        let state = reporter.state;
        let (steps, mut seen) =
            watch::channel(Progress { total: self.payload.manifests.len(), ..Progress::default() });
        let telling = async {
            while seen.changed().await.is_ok() {
                let progress = seen.borrow_and_update().clone();
                if state != State::Reconciling
                    && let Err(error) = reporter.tell(&progress, false).await
                {
                    warn!(error = %telemetry::chain(&error), "the status cannot be told");
                }
                tokio::time::sleep(TELL).await;
            }
        };
        let work = async {
            let report = |progress: Progress| {
                steps.send_replace(progress);
            };
            sync(&applier, &self.payload, &criteria, state, attempt, report).await
        };
        let progress = tokio::select! {
            progress = work => progress,
            () = telling => return Ok(false),
        };
        let fine = progress.failure.as_ref().is_none_or(|failure| failure.effect == Effect::Report);
        self.note(progress.failure.as_ref());
        reporter.tell(&progress, fine).await?;
        if let Some(failure) = &progress.failure {
            warn!(%failure, done = progress.done, total = progress.total, "the release is not applied yet");
        }
        Ok(progress.failure.is_none())
    }

    /// Remembers since when it is waited for operators; those that are fine now are forgotten.
    fn note(&self, failure: Option<&Failure>) {
        let now = Timestamp::now();
        let mut waiting = lock(&self.waiting);
        let names = failure.map(|failure| failure.names.as_slice()).unwrap_or_default();
        waiting.retain(|name, _| names.contains(name));
        for name in names {
            waiting.entry(name.clone()).or_insert(now);
        }
    }

    /// Another release is not fetched by this build: it says so instead of pretending.
    fn refusal(&self, spec: &Spec) -> Option<String> {
        let wanted = spec.desired_update.as_ref()?;
        let same = match wanted.image.is_empty() {
            true => wanted.version == self.payload.version.to_string(),
            false => wanted.image == self.payload.image,
        };
        (!same).then(|| {
            let target = if wanted.image.is_empty() { &wanted.version } else { &wanted.image };
            format!("Retrieving payload failed version=\"{}\" image=\"{}\" failure=releases other than the one this operator runs from ({target}) cannot be retrieved", wanted.version, wanted.image)
        })
    }
}

/// What of an operator's status others wait for.
fn standing(status: &Value) -> (Vec<(Value, Value)>, Value) {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let judged = conditions.filter(|one| one["type"] == "Available" || one["type"] == "Degraded");
    let judged = judged.map(|one| (one["type"].clone(), one["status"].clone())).collect();
    (judged, status["versions"].clone())
}

/// What a FeatureGate opens for a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub set: String,
    pub gates: BTreeSet<String>,
}

impl Features {
    pub fn of(spec: &Value, status: &Value, version: &str) -> Self {
        let gates = status["featureGates"].as_array().into_iter().flatten();
        let enabled =
            gates.filter(|gates| gates["version"] == version).filter_map(|gates| gates["enabled"].as_array());
        Self {
            set: spec["featureSet"].as_str().unwrap_or_default().to_owned(),
            gates: enabled.flatten().filter_map(|gate| gate["name"].as_str().map(str::to_owned)).collect(),
        }
    }
}

/// Writes the status of one round.
struct Reporter<'a> {
    operator: &'a Operator,
    state: State,
    generation: i64,
    capabilities: Capabilities,
    problems: Vec<String>,
    refused: Option<String>,
}

impl Reporter<'_> {
    async fn tell(&self, progress: &Progress, completed: bool) -> Result<(), Error> {
        let now = Timestamp::now();
        let waiting = lock(&self.operator.waiting).clone();
        let api = self.operator.client.api(&CLUSTER_VERSIONS);
        for _ in 0..5 {
            let Some(mut object) = api.find::<Value>(&self.operator.name).await? else { return Ok(()) };
            let observed = Observed {
                payload: &self.operator.payload,
                state: self.state,
                progress,
                completed: completed || self.state == State::Reconciling,
                generation: self.generation,
                capabilities: &self.capabilities,
                problems: &self.problems,
                refused: self.refused.as_deref(),
                waiting_since: &waiting,
                now,
            };
            let status = cluster_version::status(&object["status"], &observed);
            if status == object["status"] {
                return Ok(());
            }
            object["status"] = status;
            match api.replace_sub::<Value>(&self.operator.name, "status", &object).await {
                Err(error) if error.is_conflict() => {}
                outcome => return outcome.map(drop),
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Spreads the looks of several operators.
fn random_up_to(limit: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let word = RandomState::new().hash_one(std::process::id());
    limit.mul_f64((word >> 11) as f64 / (1u64 << 53) as f64)
}
