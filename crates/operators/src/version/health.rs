//! Whether what was applied works: operators by their conditions and versions, workloads by theirs.

use serde_json::Value;

use super::State;
use super::failure::{Effect, Failure, Plural};

const NO_VERSIONS: Plural =
    Plural { reason: "ClusterOperatorsNoVersions", what: "do not declare expected versions" };
const NOT_AVAILABLE: Plural = Plural { reason: "ClusterOperatorsNotAvailable", what: "are not available" };
const DEGRADED: Plural = Plural { reason: "ClusterOperatorsDegraded", what: "are degraded" };
const UPDATING: Plural = Plural { reason: "ClusterOperatorsUpdating", what: "are updating versions" };

/// A condition of an object's status.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn is(object: &Value, kind: &str, status: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == status)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// An operator that the release expects at certain versions.
pub fn cluster_operator(expected: &Value, actual: &Value, state: State) -> Result<(), Failure> {
    let name = text(&expected["metadata"], "name");
    let fail = |effect, reason: &str, what: &str, plural| {
        let message = format!("Cluster operator {name} {what}");
        Err(Failure { plural: Some(plural), ..Failure::new(effect, reason, message, name) })
    };
    let versions = |of: &'_ Value| -> Vec<(String, String)> {
        let list = of["status"]["versions"].as_array().cloned().unwrap_or_default();
        list.iter().map(|entry| (text(entry, "name").to_owned(), text(entry, "version").to_owned())).collect()
    };
    let wanted = versions(expected);
    if wanted.is_empty() {
        return fail(
            Effect::Fail,
            "ClusterOperatorNoVersions",
            "does not declare expected versions",
            NO_VERSIONS,
        );
    }
    if !is(actual, "Available", "True") {
        return fail(Effect::Fail, "ClusterOperatorNotAvailable", "is not available", NOT_AVAILABLE);
    }
    if !is(actual, "Degraded", "False") {
        let effect = match state {
            State::Initializing => Effect::Report,
            _ => Effect::FailAfterInterval,
        };
        return fail(effect, "ClusterOperatorDegraded", "is degraded", DEGRADED);
    }
    let have = versions(actual);
    match state == State::Initializing || wanted.iter().all(|version| have.contains(version)) {
        true => Ok(()),
        false => fail(Effect::None, "ClusterOperatorUpdating", "is updating versions", UPDATING),
    }
}

/// A workload or definition that was applied. A first install does not wait for any.
pub fn applied(object: &Value, state: State) -> Result<(), Failure> {
    if state == State::Initializing {
        return Ok(());
    }
    match text(object, "kind") {
        "Deployment" => deployment(object),
        "DaemonSet" => not_deleted(object),
        "Job" => job(object),
        "CustomResourceDefinition" => definition(object),
        _ => Ok(()),
    }
}

fn title(object: &Value) -> String {
    format!("{}/{}", text(&object["metadata"], "namespace"), text(&object["metadata"], "name"))
}

fn workload(object: &Value, reason: &str, what: String) -> Failure {
    let kind = text(object, "kind").to_lowercase();
    let name = title(object);
    Failure::new(Effect::Fail, reason, format!("{kind} {name} {what}"), &name)
}

fn not_deleted(object: &Value) -> Result<(), Failure> {
    match object["metadata"]["deletionTimestamp"].is_null() {
        true => Ok(()),
        false => Err(workload(object, "UpdatePayloadFailed", "is being deleted".to_owned())),
    }
}

fn deployment(object: &Value) -> Result<(), Failure> {
    not_deleted(object)?;
    let because =
        |condition: &Value| format!("{} ({})", text(condition, "reason"), text(condition, "message"));
    if let Some(failure) = condition(object, "ReplicaFailure").filter(|failure| failure["status"] == "True") {
        let what = format!("has a replica failure {}: {}", text(failure, "reason"), text(failure, "message"));
        return Err(workload(object, "WorkloadNotProgressing", what));
    }
    let Some(progressing) = condition(object, "Progressing").filter(|found| found["status"] == "False")
    else {
        return Ok(());
    };
    if let Some(available) = condition(object, "Available").filter(|found| found["status"] == "False") {
        let what = format!("is not available {} or progressing {}", because(available), because(progressing));
        return Err(workload(object, "WorkloadNotAvailable", what));
    }
    if progressing["reason"] == "ProgressDeadlineExceeded" {
        let what = format!(
            "is Progressing=False: {}: {}",
            text(progressing, "reason"),
            text(progressing, "message")
        );
        return Err(workload(object, "WorkloadNotProgressing", what));
    }
    Ok(())
}

fn job(object: &Value) -> Result<(), Failure> {
    let count = |field: &str| object["status"][field].as_i64().unwrap_or(0);
    if count("succeeded") > 0 {
        return Ok(());
    }
    match condition(object, "Failed").filter(|failed| failed["status"] == "True") {
        Some(failed) => {
            let what = format!(
                "failed, reason: {:?}, message: {:?}",
                text(failed, "reason"),
                text(failed, "message")
            );
            Err(workload(object, "UpdatePayloadFailed", what))
        }
        None => Err(Failure {
            effect: Effect::None,
            ..workload(object, "WorkloadNotAvailable", "has not completed yet".to_owned())
        }),
    }
}

fn definition(object: &Value) -> Result<(), Failure> {
    match is(object, "Established", "True") {
        true => Ok(()),
        false => {
            let name = text(&object["metadata"], "name");
            let message = format!("CustomResourceDefinition {name} is not established");
            Err(Failure::new(Effect::Fail, "UpdatePayloadFailed", message, name))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn operator(conditions: &[(&str, &str)], version: &str) -> Value {
        let conditions: Vec<Value> =
            conditions.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        json!({
            "metadata": {"name": "dns"},
            "status": {"conditions": conditions, "versions": [{"name": "operator", "version": version}]},
        })
    }

    #[test]
    fn an_operator_is_judged_by_availability_then_health_then_version() {
        let expected = operator(&[], "2");
        let healthy: &[(&str, &str)] = &[("Available", "True"), ("Degraded", "False")];
        let table: &[(&[(&str, &str)], &str, State, Option<(&str, Effect)>)] = &[
            (healthy, "2", State::Updating, None),
            (healthy, "1", State::Updating, Some(("ClusterOperatorUpdating", Effect::None))),
            (healthy, "1", State::Initializing, None),
            (&[], "2", State::Updating, Some(("ClusterOperatorNotAvailable", Effect::Fail))),
            (
                &[("Available", "True")],
                "2",
                State::Initializing,
                Some(("ClusterOperatorDegraded", Effect::Report)),
            ),
            (
                &[("Available", "True"), ("Degraded", "True")],
                "2",
                State::Reconciling,
                Some(("ClusterOperatorDegraded", Effect::FailAfterInterval)),
            ),
        ];
        for (conditions, version, state, wanted) in table {
            let verdict = cluster_operator(&expected, &operator(conditions, version), *state);
            let verdict = verdict.err().map(|failure| (failure.reason, failure.effect));
            assert_eq!(verdict, wanted.map(|(reason, effect)| (reason.to_owned(), effect)));
        }
        let silent = json!({"metadata": {"name": "dns"}});
        let failure = cluster_operator(&silent, &operator(healthy, "2"), State::Updating).unwrap_err();
        assert_eq!(failure.reason, "ClusterOperatorNoVersions");
    }

    #[test]
    fn a_deployment_fails_by_its_own_conditions() {
        let with = |conditions: Value| {
            let object = json!({"kind": "Deployment", "metadata": {"namespace": "n", "name": "a"}, "status": {"conditions": conditions}});
            applied(&object, State::Updating).err().map(|failure| failure.reason)
        };
        assert_eq!(with(json!([])), None);
        assert_eq!(
            with(json!([{"type": "ReplicaFailure", "status": "True"}])).unwrap(),
            "WorkloadNotProgressing"
        );
        assert_eq!(
            with(
                json!([{"type": "Available", "status": "False"}, {"type": "Progressing", "status": "False"}])
            )
            .unwrap(),
            "WorkloadNotAvailable"
        );
        assert_eq!(
            with(
                json!([{"type": "Available", "status": "False"}, {"type": "Progressing", "status": "True"}])
            ),
            None
        );
        let late = json!([{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]);
        assert_eq!(with(late).unwrap(), "WorkloadNotProgressing");
    }

    #[test]
    fn a_job_is_waited_for() {
        let with = |status: Value| {
            applied(&json!({"kind": "Job", "metadata": {"name": "a"}, "status": status}), State::Updating)
        };
        assert_eq!(with(json!({"succeeded": 1})), Ok(()));
        assert_eq!(with(json!({"active": 1})).unwrap_err().effect, Effect::None);
        let failed =
            json!({"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]});
        assert_eq!(with(failed).unwrap_err().effect, Effect::Fail);
    }
}
