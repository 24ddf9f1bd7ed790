//! What the ClusterVersion says: what is wanted (its spec), and what has been reached (its status).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::State;
use super::failure::{Effect, Failure};
use super::include::{Capabilities, Override};
use super::manifest::ObjectId;
use super::payload::Payload;
use super::sync::Progress;

/// History is kept to this many entries.
const MOST_HISTORY: usize = 100;

/// The capabilities that exist, as the API knows them.
pub const CAPABILITIES: &[&str] = &[
    "Build",
    "CSISnapshot",
    "CloudControllerManager",
    "CloudCredential",
    "Console",
    "DeploymentConfig",
    "ImageRegistry",
    "Ingress",
    "Insights",
    "MachineAPI",
    "NodeTuning",
    "OperatorLifecycleManager",
    "OperatorLifecycleManagerV1",
    "Storage",
    "baremetal",
    "marketplace",
    "openshift-samples",
];

/// What an administrator wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    pub channel: String,
    pub desired_update: Option<DesiredUpdate>,
    pub overrides: Vec<ComponentOverride>,
    pub capabilities: Option<CapabilitySpec>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DesiredUpdate {
    pub version: String,
    pub image: String,
    pub force: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ComponentOverride {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub unmanaged: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CapabilitySpec {
    pub baseline_capability_set: String,
    pub additional_enabled_capabilities: BTreeSet<String>,
}

impl Spec {
    pub fn of(cluster_version: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(&cluster_version["spec"])
    }

    pub fn overrides(&self) -> Vec<Override> {
        let entry = |entry: &ComponentOverride| Override {
            id: ObjectId {
                group: entry.group.clone(),
                kind: entry.kind.clone(),
                namespace: entry.namespace.clone(),
                name: entry.name.clone(),
            },
            unmanaged: entry.unmanaged,
        };
        self.overrides.iter().map(entry).collect()
    }

    /// The capabilities of the cluster. What was once enabled stays so; `always` are enabled whatever is asked for.
    pub fn capabilities(&self, before: &Value, always: &[String]) -> Capabilities {
        let known: BTreeSet<String> = CAPABILITIES.iter().map(|name| (*name).to_owned()).collect();
        let mut enabled: BTreeSet<String> = match &self.capabilities {
            Some(spec) if spec.baseline_capability_set == "None" => BTreeSet::new(),
            _ => known.clone(),
        };
        enabled
            .extend(self.capabilities.iter().flat_map(|spec| spec.additional_enabled_capabilities.clone()));
        enabled.extend(always.iter().cloned());
        let before = before["capabilities"]["enabledCapabilities"].as_array();
        enabled.extend(before.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)));
        enabled.retain(|name| known.contains(name));
        Capabilities { known, enabled }
    }

    /// Everything that is wrong with it, as the Invalid condition lists it.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = self.cluster_id.split('-').collect();
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        if lengths != [8, 4, 4, 4, 12] || !parts.iter().all(|part| hex(part)) {
            problems.push(format!(
                "spec.clusterID: Invalid value: {:?}: must be an RFC4122-variant UUID",
                self.cluster_id
            ));
        }
        for (index, entry) in self.overrides.iter().enumerate() {
            for (field, value) in [("kind", &entry.kind), ("name", &entry.name)] {
                if value.is_empty() {
                    problems.push(format!("spec.overrides[{index}].{field}: Required value"));
                }
            }
        }
        if let Some(update) = &self.desired_update
            && update.image.is_empty()
            && update.version.is_empty()
        {
            problems.push("spec.desiredUpdate: Required value: must specify version or image".to_owned());
        }
        problems
    }
}

/// What a release is applied for, by what the history says.
pub fn state(status: &Value, image: &str) -> State {
    let history = status["history"].as_array().map(Vec::as_slice).unwrap_or_default();
    let completed = |entry: &&Value| entry["state"] == "Completed";
    match history.iter().find(completed) {
        None => State::Initializing,
        Some(_)
            if history.first().is_some_and(|last| last["image"] == image && last["state"] == "Completed") =>
        {
            State::Reconciling
        }
        Some(_) => State::Updating,
    }
}

/// What the status is computed from.
pub struct Observed<'a> {
    pub payload: &'a Payload,
    pub state: State,
    pub progress: &'a Progress,
    /// The whole release was applied at least once.
    pub completed: bool,
    pub generation: i64,
    pub capabilities: &'a Capabilities,
    pub problems: &'a [String],
    /// Why another release that is asked for is not taken.
    pub refused: Option<&'a str>,
    /// Since when an operator is waited for.
    pub waiting_since: &'a BTreeMap<String, Timestamp>,
    pub now: Timestamp,
}

/// The status that follows `before`.
pub fn status(before: &Value, observed: &Observed<'_>) -> Value {
    let payload = observed.payload;
    let version = payload.version.to_string();
    let mut status = before.as_object().cloned().unwrap_or_default();
    let mut desired = json!({"version": version, "image": payload.image, "channels": payload.channels});
    if !payload.url.is_empty() {
        desired["url"] = json!(payload.url);
    }
    status.insert("desired".to_owned(), desired);
    status.insert("observedGeneration".to_owned(), json!(observed.generation));
    status.insert("versionHash".to_owned(), json!(payload.hash));
    status.insert(
        "capabilities".to_owned(),
        json!({"enabledCapabilities": observed.capabilities.enabled, "knownCapabilities": observed.capabilities.known}),
    );
    status.entry("availableUpdates").or_insert(Value::Null);
    status.insert("history".to_owned(), history(&before["history"], observed));
    let mut conditions =
        Conditions { list: before["conditions"].as_array().cloned().unwrap_or_default(), now: observed.now };
    set_conditions(&mut conditions, observed, &version);
    status.insert("conditions".to_owned(), Value::Array(conditions.list));
    Value::Object(status)
}

fn history(before: &Value, observed: &Observed<'_>) -> Value {
    let mut entries = before.as_array().cloned().unwrap_or_default();
    let now = controller_runtime::time(observed.now);
    let version = observed.payload.version.to_string();
    let same = |entry: &Value| entry["image"] == observed.payload.image && entry["version"] == version;
    if !entries.first().is_some_and(same) {
        if let Some(last) = entries.first_mut().filter(|last| last["completionTime"].is_null()) {
            last["completionTime"] = now.clone();
        }
        entries.insert(
            0,
            json!({
                "state": "Partial", "startedTime": now, "completionTime": null,
                "version": version, "image": observed.payload.image, "verified": false,
            }),
        );
    }
    if observed.completed && entries[0]["state"] != "Completed" {
        entries[0]["state"] = json!("Completed");
        entries[0]["completionTime"] = now;
    }
    // The first entry tells how the cluster began; the oldest others go first.
    while entries.len() > MOST_HISTORY {
        entries.remove(entries.len() - 2);
    }
    Value::Array(entries)
}

struct Conditions {
    list: Vec<Value>,
    now: Timestamp,
}

impl Conditions {
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let mut condition = Map::new();
        let found = self.list.iter().position(|condition| condition["type"] == kind);
        let since = found
            .map(|at| &self.list[at])
            .filter(|condition| condition["status"] == status)
            .map(|condition| condition["lastTransitionTime"].clone());
        condition.insert("type".to_owned(), json!(kind));
        condition.insert("status".to_owned(), json!(status));
        condition.insert(
            "lastTransitionTime".to_owned(),
            since.unwrap_or_else(|| controller_runtime::time(self.now)),
        );
        for (field, text) in [("reason", reason), ("message", message)] {
            if !text.is_empty() {
                condition.insert(field.to_owned(), json!(text));
            }
        }
        match found {
            Some(at) => self.list[at] = Value::Object(condition),
            None => self.list.push(Value::Object(condition)),
        }
    }

    fn remove(&mut self, kind: &str) {
        self.list.retain(|condition| condition["type"] != kind);
    }

    fn has(&self, kind: &str) -> bool {
        self.list.iter().any(|condition| condition["type"] == kind)
    }
}

fn set_conditions(conditions: &mut Conditions, observed: &Observed<'_>, version: &str) {
    let invalid = match observed.problems {
        [] => {
            conditions.remove("Invalid");
            false
        }
        problems => {
            let message = match problems {
                [one] => format!("The cluster version is invalid: {one}"),
                several => format!("The cluster version is invalid:\n* {}\n", several.join("\n* ")),
            };
            conditions.set("Invalid", "True", "InvalidClusterVersion", &message);
            true
        }
    };
    conditions.set(
        "ImplicitlyEnabledCapabilities",
        "False",
        "AsExpected",
        "Capabilities match configured spec",
    );
    match observed.refused {
        Some(why) => conditions.set("ReleaseAccepted", "False", "RetrievePayload", why),
        None => {
            let message =
                format!("Payload loaded version=\"{version}\" image=\"{}\"", observed.payload.image);
            conditions.set("ReleaseAccepted", "True", "PayloadLoaded", &message);
        }
    }
    match observed.completed {
        true => conditions.set("Available", "True", "", &format!("Done applying {version}")),
        false if !conditions.has("Available") => conditions.set("Available", "False", "", ""),
        false => {}
    }
    let failure = observed.progress.failure.as_ref();
    let reconciling = observed.state == State::Reconciling;
    let waiting = failure.filter(|_| !reconciling).and_then(|failure| {
        failure.as_progress(observed.now, |name| observed.waiting_since.get(name).copied())
    });
    failing(conditions, failure, waiting.as_ref());
    let (status, reason, message) = progressing(observed, version, failure, waiting.as_ref(), invalid);
    conditions.set("Progressing", status, &reason, &message);
    // True whatever channel is configured: nobody is asked.
    let why = "Updates are not retrieved by this version of the operator.";
    conditions.set("RetrievedUpdates", "False", "NoUpstream", why);
}

fn failing(
    conditions: &mut Conditions,
    failure: Option<&Failure>,
    waiting: Option<&super::failure::Waiting>,
) {
    match (failure, waiting) {
        (Some(_), Some(waiting)) if waiting.slow => {
            conditions.set("Failing", "Unknown", "SlowClusterOperator", &waiting.message);
        }
        (Some(failure), None) if failure.effect != Effect::None => {
            conditions.set("Failing", "True", &failure.reason, &failure.message);
        }
        _ => conditions.set("Failing", "False", "", ""),
    }
}

/// Status, reason and message of Progressing.
fn progressing(
    observed: &Observed<'_>,
    version: &str,
    failure: Option<&Failure>,
    waiting: Option<&super::failure::Waiting>,
    invalid: bool,
) -> (&'static str, String, String) {
    let reason = if invalid { "InvalidClusterVersion" } else { "" };
    let Progress { done, total, .. } = *observed.progress;
    let reconciling = observed.state == State::Reconciling || observed.completed;
    match (failure, waiting) {
        (Some(failure), None) if reconciling => {
            let message = format!("Error while reconciling {version}: {}", failure.summary());
            ("False", failure.reason.clone(), message)
        }
        (Some(failure), None) => {
            let message = format!("Unable to apply {version}: {}", failure.summary());
            ("True", failure.reason.clone(), message)
        }
        _ if reconciling && invalid => {
            ("False", reason.to_owned(), format!("Stopped at {version}: the cluster version is invalid"))
        }
        _ if reconciling => ("False", reason.to_owned(), format!("Cluster version is {version}")),
        _ if invalid => {
            ("True", reason.to_owned(), format!("Reconciling {version}: the cluster version is invalid"))
        }
        (_, waiting) => {
            let mut message = format!("Working towards {version}");
            let mut separator = ": ";
            if done > 0 {
                message += &format!(": {done} of {total} done ({}% complete)", done * 100 / total.max(1));
                separator = ", ";
            }
            if let Some(waiting) = waiting {
                message += &format!("{separator}{}", waiting.message);
            }
            ("True", waiting.map(|waiting| waiting.reason.clone()).unwrap_or_default(), message)
        }
    }
}

#[cfg(test)]
mod tests;
