//! What keeps a release from being applied, and what that means for the cluster.

use client::Error;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error as ThisError;

/// What a failure does to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It is told, and the work goes on.
    Report,
    /// Someone is still at work; nothing is wrong yet.
    None,
    /// It is a failure once it has lasted.
    FailAfterInterval,
    Fail,
}

/// How a reason and a message are worded of several operators at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plural {
    pub reason: &'static str,
    /// What follows "Cluster operators a, b".
    pub what: &'static str,
}

/// Why an object, or the whole release, is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("{message}")]
pub struct Failure {
    pub effect: Effect,
    pub reason: String,
    pub message: String,
    /// The operators or workloads that it is about.
    pub names: Vec<String>,
    /// Only failures of operators are put together.
    pub plural: Option<Plural>,
}

/// Beyond this an operator that is still at work is called slow; machines take longer.
fn patience(operator: &str) -> SignedDuration {
    SignedDuration::from_mins(if operator == "machine-config" { 90 } else { 30 })
}

/// Beyond this a degraded operator fails the update.
const DEGRADED: SignedDuration = SignedDuration::from_mins(40);

impl Failure {
    pub fn new(effect: Effect, reason: &str, message: String, name: &str) -> Self {
        let names = if name.is_empty() { Vec::new() } else { vec![name.to_owned()] };
        Self { effect, reason: reason.to_owned(), message, names, plural: None }
    }

    /// A failure that the API server answered an object's write with. `task` says which object, and its place.
    pub fn of_request(task: &str, error: &Error) -> Self {
        let (reason, cause) = class_of(error);
        let cause = if cause.is_empty() { error.to_string() } else { cause.to_owned() };
        Self::new(Effect::Fail, reason, format!("Could not update {task}: {cause}"), "")
    }

    /// The server serves no such kind.
    pub fn no_such_kind(task: &str) -> Self {
        let message = format!(
            "Could not update {task}: the server does not recognize this resource, check extension API servers"
        );
        Self::new(Effect::Fail, "UpdatePayloadResourceTypeMissing", message, "")
    }

    /// In a few words, for the Progressing condition.
    pub fn summary(&self) -> String {
        let name = self.names.join(", ");
        let of = |with: &str, without: &str| match name.is_empty() {
            true => without.to_owned(),
            false => with.replace("{}", &name),
        };
        match self.reason.as_str() {
            "UpdatePayloadResourceNotFound" | "UpdatePayloadResourceConflict" => {
                "some resources could not be updated".to_owned()
            }
            "UpdatePayloadClusterDown" => "the control plane is down or not responding".to_owned(),
            "UpdatePayloadClusterError" => "the control plane is reporting an internal error".to_owned(),
            "UpdatePayloadClusterOverloaded" => {
                "the control plane is overloaded and is not accepting updates".to_owned()
            }
            "UpdatePayloadClusterUnauthorized" => "could not authenticate to the server".to_owned(),
            "UpdatePayloadRetrievalFailed" => "could not download the update".to_owned(),
            "UpdatePayloadResourceForbidden" => "the server is rejecting updates".to_owned(),
            "UpdatePayloadResourceTypeMissing" => {
                "a required extension is not available to update".to_owned()
            }
            "UpdatePayloadResourceInvalid" => "some cluster configuration is invalid".to_owned(),
            "UpdatePayloadIntegrity" => "the contents of the update are invalid".to_owned(),
            "ClusterOperatorDegraded" => {
                of("the cluster operator {} is degraded", "a cluster operator is degraded")
            }
            "ClusterOperatorNotAvailable" => {
                of("the cluster operator {} is not available", "a cluster operator is not available")
            }
            "ClusterOperatorsNotAvailable" => "some cluster operators are not available".to_owned(),
            "ClusterOperatorNoVersions" => of(
                "the cluster operator {} does not declare expected versions",
                "a cluster operator does not declare expected versions",
            ),
            "WorkloadNotAvailable" => {
                of("the workload {} has not yet successfully rolled out", "a workload has not yet rolled out")
            }
            "WorkloadNotProgressing" => of("the workload {} cannot roll out", "a workload cannot roll out"),
            reason if reason.starts_with("UpdatePayload") => "the update could not be applied".to_owned(),
            reason => of(
                &format!("{{}} has an unknown error: {reason}"),
                &format!("an unknown error has occurred: {reason}"),
            ),
        }
    }

    /// How it is told while an update is under way, if it is no failure yet.
    pub fn as_progress(&self, now: Timestamp, since: impl Fn(&str) -> Option<Timestamp>) -> Option<Waiting> {
        let longer_than = |limit: fn(&str) -> SignedDuration| -> Vec<&str> {
            let names = self.names.iter().map(String::as_str);
            names
                .filter(|name| since(name).is_some_and(|start| now.duration_since(start) > limit(name)))
                .collect()
        };
        match self.effect {
            Effect::None => {
                let late = longer_than(patience);
                let message = match late.as_slice() {
                    [] => format!("waiting on {}", self.names.join(", ")),
                    late => format!("waiting on {} which is longer than expected", how_long(late)),
                };
                Some(Waiting { reason: self.reason.clone(), message, slow: !late.is_empty() })
            }
            Effect::FailAfterInterval if longer_than(|_| DEGRADED).is_empty() => Some(Waiting {
                reason: self.reason.clone(),
                message: format!("waiting up to 40 minutes on {}", self.names.join(", ")),
                slow: false,
            }),
            _ => None,
        }
    }
}

/// What is waited for, in the words of the Progressing condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
    pub slow: bool,
}

fn how_long(late: &[&str]) -> String {
    let (machines, others): (Vec<&str>, Vec<&str>) = late.iter().partition(|name| **name == "machine-config");
    match (others.is_empty(), machines.is_empty()) {
        (false, true) => format!("{} over 30 minutes", others.join(", ")),
        (true, _) => "machine-config over 90 minutes".to_owned(),
        (false, false) => format!("{} over 30 minutes and machine-config over 90 minutes", others.join(", ")),
    }
}

/// Reason and cause by the class of the server's answer.
fn class_of(error: &Error) -> (&'static str, &'static str) {
    let (code, reason) = match error {
        Error::Status { code, reason, .. } => (*code, reason.as_str()),
        Error::Transport { .. } => (503, ""),
        _ => (0, ""),
    };
    match (code, reason) {
        (404, _) | (409, "AlreadyExists") => {
            ("UpdatePayloadResourceNotFound", "resource may have been deleted")
        }
        (409, _) => ("UpdatePayloadResourceConflict", "someone else is updating this resource"),
        (429, _) | (_, "ServerTimeout") => {
            ("UpdatePayloadClusterOverloaded", "the server is overloaded and is not accepting updates")
        }
        (503 | 504, _) => ("UpdatePayloadClusterDown", "the server is down or not responding"),
        (500, _) => ("UpdatePayloadClusterError", "the server is reporting an internal error"),
        (422, _) => (
            "UpdatePayloadResourceInvalid",
            "the object is invalid, possibly due to local cluster configuration",
        ),
        (401, _) => ("UpdatePayloadClusterUnauthorized", "could not authenticate to the server"),
        (403, _) => ("UpdatePayloadResourceForbidden", "the server has forbidden updates to this resource"),
        _ => ("UpdatePayloadFailed", ""),
    }
}

/// Many failures in one: operators with the same reason together, the rest as a list.
pub fn summarize(failures: Vec<Failure>) -> Option<Failure> {
    let mut condensed: Vec<Failure> = Vec::new();
    for failure in failures {
        let like = condensed.iter_mut().find(|have| have.plural.is_some() && have.plural == failure.plural);
        match (like, failure.plural) {
            (Some(have), Some(plural)) => {
                have.names.extend(failure.names);
                have.names.sort_unstable();
                have.effect = have.effect.max(failure.effect);
                have.reason = plural.reason.to_owned();
                have.message = format!("Cluster operators {} {}", have.names.join(", "), plural.what);
            }
            _ => condensed.push(failure),
        }
    }
    if condensed.len() < 2 {
        return condensed.pop();
    }
    let mut messages: Vec<String> = condensed.iter().map(|failure| failure.message.clone()).collect();
    messages.sort_unstable();
    messages.dedup();
    let message = format!("Multiple errors are preventing progress:\n* {}", messages.join("\n* "));
    let effect = condensed.iter().map(|failure| failure.effect).max().unwrap_or(Effect::Fail);
    Some(Failure::new(effect.max(Effect::Fail), "MultipleErrors", message, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEGRADED: Plural = Plural { reason: "ClusterOperatorsDegraded", what: "are degraded" };

    fn degraded(name: &str, effect: Effect) -> Failure {
        let message = format!("Cluster operator {name} is degraded");
        Failure { plural: Some(DEGRADED), ..Failure::new(effect, "ClusterOperatorDegraded", message, name) }
    }

    #[test]
    fn operators_with_one_reason_are_told_together() {
        let one =
            summarize(vec![degraded("b", Effect::Report), degraded("a", Effect::FailAfterInterval)]).unwrap();
        assert_eq!(one.message, "Cluster operators a, b are degraded");
        assert_eq!(
            (one.reason.as_str(), one.effect),
            ("ClusterOperatorsDegraded", Effect::FailAfterInterval)
        );
        assert_eq!(summarize(Vec::new()), None);
    }

    #[test]
    fn different_failures_are_listed() {
        let other = Failure::new(Effect::Fail, "UpdatePayloadFailed", "no".to_owned(), "");
        let all = summarize(vec![degraded("a", Effect::None), other.clone(), other]).unwrap();
        assert_eq!(all.reason, "MultipleErrors");
        assert_eq!(
            all.message,
            "Multiple errors are preventing progress:\n* Cluster operator a is degraded\n* no"
        );
    }

    #[test]
    fn a_degraded_operator_fails_only_after_its_interval() {
        let failure = degraded("a", Effect::FailAfterInterval);
        let start = Timestamp::UNIX_EPOCH;
        let at = |minutes: i64| start + SignedDuration::from_mins(minutes);
        let waiting = failure.as_progress(at(39), |_| Some(start)).unwrap();
        assert_eq!(waiting.message, "waiting up to 40 minutes on a");
        assert_eq!(failure.as_progress(at(41), |_| Some(start)), None);
    }

    #[test]
    fn a_slow_operator_is_a_suspicion() {
        let failure = Failure { effect: Effect::None, ..degraded("a", Effect::None) };
        let start = Timestamp::UNIX_EPOCH;
        let late = failure.as_progress(start + SignedDuration::from_mins(31), |_| Some(start)).unwrap();
        assert!(late.slow);
        assert_eq!(late.message, "waiting on a over 30 minutes which is longer than expected");
        assert!(!failure.as_progress(start, |_| Some(start)).unwrap().slow);
    }
}
