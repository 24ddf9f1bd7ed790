//! The loop of every operator: wakes when something changes, lets the operator read and decide, and does what it said.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use client::{
    Client, DeleteOptions, Error, Informer, Key, ListOptions, Metadata, Projection, Resource, resources,
};
use controller_runtime::{Event, Recorder, Reference, system_clock};
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::cluster_operator::{self, CLUSTER_OPERATORS, Related};
use super::conditions::{self, Condition};
use super::restore::{Restorer, said};

/// What is true of one operator whatever happens.
pub struct About {
    /// The program's name, also of its Deployment.
    pub program: &'static str,
    /// Where it runs, and where its lease is.
    pub namespace: &'static str,
    pub lease: &'static str,
    /// The name of its ClusterOperator.
    pub cluster_operator: &'static str,
    /// The kind that configures it, and the name of the one object.
    pub resource: Resource,
    pub name: &'static str,
    /// What wakes it, beside the object above: kinds, and the namespace they are looked for in (empty for all).
    pub follows: &'static [(Resource, &'static str)],
    pub related: &'static [Related],
    /// The condition that says whether its fixed objects are there.
    pub resources_condition: &'static str,
    /// Whether `managementState: Removed` means anything to it.
    pub removable: bool,
}

/// An operator's own part.
pub trait Operator: Send + Sync + 'static {
    fn about(&self) -> &'static About;

    /// Reads what it needs and decides. Failing means being unable to read: whatever else is wrong is a condition.
    fn sync(&self, world: &World) -> impl Future<Output = Result<Round, Error>> + Send;
}

/// What a decision may begin with.
#[derive(Clone)]
pub struct World {
    pub client: Client,
    /// The operator's own object, as it is now.
    pub resource: Arc<Value>,
    pub now: Timestamp,
    pub tasks: Tasks,
}

impl World {
    /// An object, null if there is none.
    pub async fn find(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Value, Error> {
        let found = self.client.api(resource).within(namespace).find::<Value>(name).await?;
        Ok(found.unwrap_or_default())
    }

    /// All objects of a namespace, or of the cluster; none of a kind that is not served.
    pub async fn list(&self, resource: &Resource, namespace: &str) -> Result<Vec<Value>, Error> {
        let options = ListOptions::default();
        match self.client.api(resource).within(namespace).list_all::<Value>(&options).await {
            Ok(list) => Ok(list.items),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// What an operator wants to be done now, as a value. Everything is written in the order of these fields.
#[derive(Default)]
pub struct Round {
    /// Objects of which the named fields are restored, as a release's are.
    pub restore: Vec<Value>,
    /// ConfigMaps and Secrets that have exactly this content, labels and annotations of others aside.
    pub write: Vec<Value>,
    /// Objects that are made unless they are there.
    pub create: Vec<Value>,
    /// `spec.observedConfig` of the operator's own object.
    pub observed_config: Option<Value>,
    /// Fields of its status beside the conditions.
    pub status: Map<String, Value>,
    pub conditions: Vec<Condition>,
    /// What has been rolled out, by name.
    pub versions: Vec<(String, String)>,
    /// Objects that are no longer needed; done last.
    pub delete: Vec<(Resource, Key)>,
    /// Reasons and messages of events about the operator.
    pub events: Vec<(&'static str, String)>,
    /// When to look again though nothing changed.
    pub again: Option<Duration>,
}

impl Round {
    /// Looks again after a while, or earlier if that was asked for before.
    pub fn look_again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |earlier| earlier.min(after)));
    }
}

/// The pause between two looks at what did not change.
const INTERVAL: Duration = Duration::from_secs(60);
/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// So many rounds within this time are too many: something is undone as soon as it is done.
const BUSY: (usize, Duration) = (40, Duration::from_secs(10));
/// The pause after that.
const CALM: Duration = Duration::from_secs(1);

/// Only who changed, not what.
#[derive(Deserialize)]
struct Seen {
    metadata: Metadata,
}

impl Projection for Seen {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn shrink(&mut self) {
        self.metadata.labels = Default::default();
    }
}

/// What the loop counts.
#[derive(Default)]
pub struct Counters {
    rounds: AtomicU64,
    failures: AtomicU64,
}

impl Counters {
    /// The lines of the metrics, under the names of client-go's queues.
    pub fn print(&self, program: &str) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "# TYPE workqueue_adds_total counter\nworkqueue_adds_total{{name=\"{program}\"}} {}\n\
             # TYPE workqueue_retries_total counter\nworkqueue_retries_total{{name=\"{program}\"}} {}\n",
            count(&self.rounds),
            count(&self.failures)
        )
    }
}

/// Runs an operator until the stop.
pub struct Driver<O> {
    pub operator: O,
    pub client: Client,
    pub counters: Arc<Counters>,
}

impl<O: Operator> Driver<O> {
    pub async fn run(&self, tasks: &Tasks, stop: &Stop) {
        let about = self.operator.about();
        let changed = watch::Sender::new(());
        let own = [(about.resource.clone(), ""), (CLUSTER_OPERATORS.clone(), "")];
        for (resource, namespace) in own.iter().chain(about.follows) {
            // Of its own kinds it follows just its own objects.
            let which = match own.iter().position(|(one, _)| one == resource) {
                Some(0) => ListOptions::fields(format!("metadata.name={}", about.name)),
                Some(_) => ListOptions::fields(format!("metadata.name={}", about.cluster_operator)),
                None => ListOptions::default(),
            };
            let informer: Informer<Seen> = Informer::start(&self.client, resource, namespace, which, tasks);
            let changed = changed.clone();
            informer.on_change(move |_| {
                changed.send_replace(());
            });
        }
        let recorder = Recorder::start(self.client.clone(), about.program, system_clock(), tasks);
        let restorer = Restorer::new(self.client.clone());
        let mut news = changed.subscribe();
        let mut failures = 0u32;
        let mut recent: VecDeque<Instant> = VecDeque::new();
        while !stop.is_requested() {
            news.borrow_and_update();
            self.counters.rounds.fetch_add(1, Ordering::Relaxed);
            let Some(outcome) = stop.or(self.round(&restorer, &recorder, tasks)).await else { return };
            let pause = match outcome {
                Ok(pause) => {
                    failures = 0;
                    pause
                }
                Err(error) => {
                    failures += 1;
                    self.counters.failures.fetch_add(1, Ordering::Relaxed);
                    let conflict = error.is_conflict();
                    if !conflict {
                        warn!(error = %telemetry::chain(&error), failures, "cannot look, will try again");
                    }
                    Duration::from_millis(100)
                        .saturating_mul(1 << failures.min(6))
                        .min(Duration::from_secs(5))
                }
            };
            recent.push_back(Instant::now());
            if recent.len() > BUSY.0 {
                recent.pop_front();
            }
            let busy = recent.len() == BUSY.0 && recent.front().is_some_and(|first| first.elapsed() < BUSY.1);
            let wait = async {
                // Whichever comes first; neither is lost by being dropped.
                tokio::select! {
                    _ = news.changed() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                tokio::time::sleep(if busy { CALM } else { TOGETHER }).await;
            };
            if stop.or(wait).await.is_none() {
                return;
            }
        }
    }

    /// Looks, decides and acts once. Returns when to look again.
    async fn round(
        &self,
        restorer: &Restorer,
        recorder: &Recorder,
        tasks: &Tasks,
    ) -> Result<Duration, Error> {
        let about = self.operator.about();
        let api = self.client.api(&about.resource);
        let Some(resource) = api.find::<Value>(about.name).await? else {
            debug!(kind = %about.resource, name = about.name, "waiting for the operator's own object");
            return Ok(Duration::from_secs(5));
        };
        let now = Timestamp::now();
        let state = resource["spec"]["managementState"].as_str().unwrap_or_default().to_owned();
        if state == "Unmanaged" {
            self.tell(|before| cluster_operator::unmanaged(before, about.related, now)).await?;
            return Ok(INTERVAL);
        }
        let world =
            World { client: self.client.clone(), resource: Arc::new(resource), now, tasks: tasks.clone() };
        let mut round = self.operator.sync(&world).await?;
        let missing = restorer.restore_all(&round.restore).await;
        round.conditions.push(Condition::of_errors(about.resources_condition, "SyncError", &missing));
        let mut errors = Vec::new();
        for object in &round.write {
            if let Err(error) = self.write(object).await {
                errors.push(format!("{}: {}", title(object), said(&error)));
            }
        }
        if errors.is_empty() {
            for object in &round.create {
                if let Err(error) = self.create(object).await {
                    errors.push(format!("{}: {}", title(object), said(&error)));
                }
            }
        }
        let broken = !errors.is_empty() || !missing.is_empty();
        round.conditions.push(Condition::of_errors(
            "TargetConfigControllerDegraded",
            "SynchronizationError",
            &errors,
        ));
        round.conditions.push(management_state(&state, about.removable));
        round.conditions.extend(unsupported_overrides(&world.resource));
        let mut resource = (*world.resource).clone();
        if let Some(observed) = round.observed_config.take()
            && resource["spec"]["observedConfig"] != observed
        {
            resource["spec"]["observedConfig"] = observed;
            resource = api.replace(about.name, &resource).await?;
        }
        // What was not done is not claimed.
        if errors.is_empty() {
            for (field, value) in std::mem::take(&mut round.status) {
                resource["status"][field] = value;
            }
        }
        let listed = conditions::listed(&world.resource["status"]["conditions"], &round.conditions, now);
        resource["status"]["conditions"] = listed.clone();
        resource["status"]["observedGeneration"] = resource["metadata"]["generation"].clone();
        if resource["status"] != world.resource["status"] {
            api.replace_sub::<Value>(about.name, "status", &resource).await?;
        }
        let versions = if errors.is_empty() { round.versions.as_slice() } else { &[] };
        self.tell(|before| cluster_operator::status(before, &listed, versions, about.related, now)).await?;
        for (reason, message) in round.events {
            info!(reason, message, "event");
            recorder.record(Event {
                about: deployment(about),
                warning: false,
                reason: reason.into(),
                message,
            });
        }
        if errors.is_empty() {
            for (resource, key) in &round.delete {
                let api = self.client.api(resource).within(&key.namespace);
                match api.delete(&key.name, &DeleteOptions::default()).await {
                    Ok(_) => info!(%resource, %key, "deleted"),
                    Err(error) if error.is_not_found() => {}
                    Err(error) => {
                        warn!(%resource, %key, error = %telemetry::chain(&error), "cannot be deleted")
                    }
                }
            }
        }
        let mut pause = round.again.unwrap_or(INTERVAL);
        if broken {
            pause = pause.min(Duration::from_secs(2));
        }
        if let Some(at) = conditions::next_degraded(&listed, now) {
            let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
            pause = pause.min(left + Duration::from_millis(100));
        }
        Ok(pause)
    }

    /// Makes a ConfigMap or Secret be exactly this, but for metadata of others.
    async fn write(&self, object: &Value) -> Result<(), Error> {
        let Some(api) = self.api_of(object) else { return Ok(()) };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        for _ in 0..5 {
            let outcome = match api.find::<Value>(name).await? {
                None => {
                    info!(object = title(object), "creating");
                    api.create::<Value>(object).await
                }
                Some(mut existing) => {
                    let before = existing.clone();
                    for field in ["data", "binaryData"] {
                        match object.get(field) {
                            Some(wanted) if !is_empty(wanted) => existing[field] = wanted.clone(),
                            _ => {
                                existing.as_object_mut().map(|fields| fields.shift_remove(field));
                            }
                        }
                    }
                    for field in ["labels", "annotations"] {
                        for (key, value) in object["metadata"][field].as_object().into_iter().flatten() {
                            // Nothing is wanted where null stands.
                            match (value.is_null(), existing["metadata"][field].as_object_mut()) {
                                (false, _) => existing["metadata"][field][key] = value.clone(),
                                (true, Some(map)) => drop(map.shift_remove(key)),
                                (true, None) => {}
                            }
                        }
                    }
                    if existing == before {
                        return Ok(());
                    }
                    info!(object = title(object), "writing");
                    api.replace::<Value>(name, &existing).await
                }
            };
            match outcome {
                Err(error) if error.is_conflict() || error.is_already_exists() => {}
                outcome => return outcome.map(drop),
            }
        }
        Ok(())
    }

    async fn create(&self, object: &Value) -> Result<(), Error> {
        let Some(api) = self.api_of(object) else { return Ok(()) };
        match api.create::<Value>(object).await {
            Ok(_) => {
                info!(object = title(object), "created");
                Ok(())
            }
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn api_of(&self, object: &Value) -> Option<client::Api> {
        const KINDS: [Resource; 3] = [resources::CONFIG_MAPS, resources::SECRETS, resources::PODS];
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = KINDS.into_iter().find(|resource| *resource.kind == *kind)?;
        Some(self.client.api(&resource).within(object["metadata"]["namespace"].as_str().unwrap_or_default()))
    }

    /// Writes the ClusterOperator's status, if it says something else than before.
    async fn tell(&self, status: impl Fn(&Value) -> Value) -> Result<(), Error> {
        let about = self.operator.about();
        let api = self.client.api(&CLUSTER_OPERATORS);
        let mut object = match api.find::<Value>(about.cluster_operator).await? {
            Some(object) => object,
            None => {
                let object = json!({
                    "apiVersion": CLUSTER_OPERATORS.api_version(), "kind": "ClusterOperator",
                    "metadata": {"name": about.cluster_operator}, "spec": {},
                });
                api.create(&object).await?
            }
        };
        let told = status(&object["status"]);
        if told == object["status"] {
            return Ok(());
        }
        object["status"] = told;
        api.replace_sub::<Value>(about.cluster_operator, "status", &object).await.map(drop)
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_none_or(Map::is_empty)
}

/// How messages name an object.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]).to_lowercase();
    match text(&object["metadata"]["namespace"]).as_str() {
        "" => format!("{kind}/{}", text(&object["metadata"]["name"])),
        namespace => format!("{kind}/{} -n {namespace}", text(&object["metadata"]["name"])),
    }
}

fn deployment(about: &About) -> Reference {
    Reference {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        key: Key::new(about.namespace, about.program),
        uid: "".into(),
        revision: Default::default(),
    }
}

fn management_state(state: &str, removable: bool) -> Condition {
    const KIND: &str = "ManagementStateDegraded";
    match state {
        "" | "Managed" | "Force" => Condition::fine(KIND),
        "Removed" if removable => Condition::fine(KIND),
        "Removed" => Condition::not_fine(
            KIND,
            "Removed",
            "Removed is not supported: the cluster cannot run without it",
        ),
        other => Condition::not_fine(KIND, "Unknown", format!("{other:?} is not a management state")),
    }
}

/// Overrides that nobody supports keep a cluster from being updated.
fn unsupported_overrides(resource: &Value) -> Vec<Condition> {
    const KIND: &str = "UnsupportedConfigOverridesUpgradeable";
    let overrides = &resource["spec"]["unsupportedConfigOverrides"];
    let none = match overrides {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if none {
        return vec![Condition::new(KIND, "True", "NoUnsupportedConfigOverrides", "")];
    }
    let set: Vec<&str> =
        overrides.as_object().map(|map| map.keys().map(String::as_str).collect()).unwrap_or_default();
    let message = format!("setting: [{}]", set.join(" "));
    vec![Condition::not_fine(KIND, "UnsupportedConfigOverridesSet", message)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_overrides_are_told() {
        assert_eq!(management_state("Managed", false).status, "False");
        assert_eq!(management_state("Removed", false).status, "True");
        assert_eq!(management_state("Removed", true).status, "False");
        assert_eq!(management_state("Nonsense", true).status, "True");
        assert_eq!(unsupported_overrides(&json!({"spec": {}}))[0].status, "True");
        let set = unsupported_overrides(&json!({"spec": {"unsupportedConfigOverrides": {"a": 1}}}));
        assert_eq!((set[0].status, &*set[0].message), ("False", "setting: [a]"));
    }
}
