//! Conditions of an operator's parts, and their union by suffix as the ClusterOperator shows it.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// How long something has to be wrong before the operator calls itself degraded.
pub const INERTIA: SignedDuration = SignedDuration::from_secs(120);

/// A condition of one part, such as `NodeInstallerProgressing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub kind: String,
    pub status: &'static str,
    pub reason: String,
    pub message: String,
}

impl Condition {
    /// The part is as it should be: whatever its suffix makes the good status.
    pub fn fine(kind: &str) -> Self {
        Self::new(kind, good_status(kind), "AsExpected", "")
    }

    /// Something is not as it should be, or still under way.
    pub fn not_fine(kind: &str, reason: &str, message: impl Into<String>) -> Self {
        let status = if good_status(kind) == "True" { "False" } else { "True" };
        Self::new(kind, status, reason, message)
    }

    pub fn new(kind: &str, status: &'static str, reason: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), status, reason: reason.to_owned(), message: message.into() }
    }

    /// Fine, or degraded with what the errors say.
    pub fn of_errors(kind: &str, reason: &str, errors: &[String]) -> Self {
        match errors.is_empty() {
            true => Self::fine(kind),
            false => Self::not_fine(kind, reason, errors.join("\n")),
        }
    }
}

/// What a condition of this type says when all is well.
fn good_status(kind: &str) -> &'static str {
    if kind.ends_with("Available") || kind.ends_with("Upgradeable") { "True" } else { "False" }
}

/// The conditions as a status holds them: those of this round and no others, each with the time since when it says so.
pub fn listed(before: &Value, conditions: &[Condition], now: Timestamp) -> Value {
    let mut list: Vec<Value> = Vec::with_capacity(conditions.len());
    for condition in conditions {
        if list.iter().any(|have| have["type"] == condition.kind.as_str()) {
            continue;
        }
        let known = find(before, &condition.kind);
        let since = known
            .filter(|known| known["status"] == condition.status)
            .map_or_else(|| time(now), |known| known["lastTransitionTime"].clone());
        list.push(json!({
            "type": condition.kind, "status": condition.status, "lastTransitionTime": since,
            "reason": condition.reason, "message": condition.message,
        }));
    }
    list.sort_by(|one, other| one["type"].as_str().cmp(&other["type"].as_str()));
    Value::Array(list)
}

/// A condition of a list by its type.
pub fn find<'a>(list: &'a Value, kind: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|condition| condition["type"] == kind)
}

pub fn time(at: Timestamp) -> Value {
    controller_runtime::time(at)
}

/// What the ClusterOperator says about one of its conditions, from all conditions that end with the same word.
pub fn union(kind: &str, conditions: &Value, now: Timestamp) -> Condition {
    let empty = Vec::new();
    let all = conditions.as_array().unwrap_or(&empty);
    let matching: Vec<&Value> = all.iter().filter(|one| text(one, "type").ends_with(kind)).collect();
    if matching.is_empty() {
        return Condition::new(kind, "Unknown", "NoData", "");
    }
    let good = good_status(kind);
    let mut bad: Vec<&Value> = matching.iter().copied().filter(|one| one["status"] != good).collect();
    if kind == "Degraded" {
        bad.retain(|one| lasting(one, now));
    }
    if bad.is_empty() {
        let said: Vec<String> = matching.iter().filter_map(|one| message_of(one)).collect();
        let message = if said.is_empty() { "All is well".to_owned() } else { said.join("\n") };
        return Condition::new(kind, good, "AsExpected", message);
    }
    let opposite = if good == "True" { "False" } else { "True" };
    let status = if bad.iter().any(|one| one["status"] == opposite) { opposite } else { "Unknown" };
    let reasons: Vec<String> = bad
        .iter()
        .map(|one| format!("{}_{}", text(one, "type").trim_end_matches(kind), text(one, "reason")))
        .collect();
    let messages: Vec<String> = bad.iter().filter_map(|one| message_of(one)).collect();
    Condition::new(kind, status, &reasons.join("::"), messages.join("\n"))
}

/// When a condition that is not called degraded yet will be.
pub fn next_degraded(conditions: &Value, now: Timestamp) -> Option<Timestamp> {
    let all = conditions.as_array().into_iter().flatten();
    all.filter(|one| text(one, "type").ends_with("Degraded") && one["status"] == "True" && !lasting(one, now))
        .filter_map(|one| since(one)?.checked_add(INERTIA).ok())
        .min()
}

fn since(condition: &Value) -> Option<Timestamp> {
    condition["lastTransitionTime"].as_str()?.parse().ok()
}

fn lasting(condition: &Value, now: Timestamp) -> bool {
    since(condition).is_none_or(|since| now.duration_since(since) >= INERTIA)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The lines of a condition's message, each with the type in front.
fn message_of(condition: &Value) -> Option<String> {
    let message = text(condition, "message");
    let lines: Vec<String> = message
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| format!("{}: {line}", text(condition, "type")))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays_and_stale_ones_go() {
        let first =
            listed(&Value::Null, &[Condition::fine("ADegraded"), Condition::fine("BDegraded")], at(1));
        let again = listed(&first, &[Condition::new("ADegraded", "False", "Other", "word")], at(2));
        assert_eq!(again[0]["lastTransitionTime"], first[0]["lastTransitionTime"]);
        assert_eq!(again[0]["reason"], "Other");
        assert_eq!(again.as_array().unwrap().len(), 1);
        let worse = listed(&again, &[Condition::not_fine("ADegraded", "Bad", "broken")], at(3));
        assert_eq!(worse[0]["lastTransitionTime"], time(at(3)));
    }

    #[test]
    fn degraded_counts_only_what_lasts() {
        let list = listed(
            &Value::Null,
            &[
                Condition::not_fine("NodeControllerDegraded", "MasterNodesReady", "node a\nnode b"),
                Condition::fine("StaticPodsDegraded"),
            ],
            at(1000),
        );
        assert_eq!(union("Degraded", &list, at(1010)).status, "False");
        assert_eq!(next_degraded(&list, at(1010)), Some(at(1120)));
        let late = union("Degraded", &list, at(1120));
        assert_eq!((late.status, &*late.reason), ("True", "NodeController_MasterNodesReady"));
        assert_eq!(late.message, "NodeControllerDegraded: node a\nNodeControllerDegraded: node b");
        assert_eq!(next_degraded(&list, at(1120)), None);
    }

    #[test]
    fn available_is_false_when_any_part_is_and_unknown_without_any() {
        let list = listed(
            &Value::Null,
            &[
                Condition::fine("XAvailable"),
                Condition::not_fine("StaticPodsAvailable", "ZeroNodesActive", "0 nodes are active"),
            ],
            at(1),
        );
        let available = union("Available", &list, at(1));
        assert_eq!((available.status, &*available.reason), ("False", "StaticPods_ZeroNodesActive"));
        assert_eq!(union("Upgradeable", &list, at(1)).status, "Unknown");
        assert_eq!(
            union("Progressing", &json!([{"type": "AProgressing", "status": "False"}]), at(1)).message,
            "All is well"
        );
    }
}
