use super::*;

fn payload(version: &str) -> Payload {
    Payload {
        version: version.parse().unwrap(),
        image: format!("example.com/release@{version}"),
        url: String::new(),
        channels: Vec::new(),
        images: BTreeMap::new(),
        hash: "h".to_owned(),
        manifests: Vec::new(),
    }
}

struct Scenario<'a> {
    state: State,
    progress: Progress,
    completed: bool,
    problems: &'a [String],
    refused: Option<&'a str>,
    minutes: i64,
}

impl Default for Scenario<'_> {
    fn default() -> Self {
        let progress = Progress::default();
        Self {
            state: State::Initializing,
            progress,
            completed: false,
            problems: &[],
            refused: None,
            minutes: 0,
        }
    }
}

impl Scenario<'_> {
    fn status(&self, before: &Value, version: &str) -> Value {
        status(
            before,
            &Observed {
                payload: &payload(version),
                state: self.state,
                progress: &self.progress,
                completed: self.completed,
                generation: 3,
                capabilities: &Capabilities::default(),
                problems: self.problems,
                refused: self.refused,
                waiting_since: &BTreeMap::from([("dns".to_owned(), Timestamp::UNIX_EPOCH)]),
                now: Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_mins(self.minutes),
            },
        )
    }
}

fn shown(status: &Value, kind: &str) -> String {
    let condition =
        status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == kind);
    let condition = condition.cloned().unwrap_or_default();
    let text = |field: &str| condition[field].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", text("status"), text("reason"), text("message"))
}

#[test]
fn a_first_install_goes_from_partial_to_completed() {
    let working =
        Scenario { progress: Progress { done: 5, total: 20, failure: None }, ..Scenario::default() };
    let first = working.status(&Value::Null, "4.18.0");
    assert_eq!(shown(&first, "Progressing"), "True - Working towards 4.18.0: 5 of 20 done (25% complete)");
    assert_eq!(shown(&first, "Available"), "False - -");
    assert_eq!(first["history"][0]["state"], "Partial");
    assert_eq!(first["observedGeneration"], 3);
    assert_eq!(state(&first, "example.com/release@4.18.0"), State::Initializing);

    let done = Scenario { completed: true, minutes: 7, ..Scenario::default() }.status(&first, "4.18.0");
    assert_eq!(shown(&done, "Available"), "True - Done applying 4.18.0");
    assert_eq!(shown(&done, "Progressing"), "False - Cluster version is 4.18.0");
    assert_eq!(done["history"].as_array().unwrap().len(), 1);
    assert_eq!(done["history"][0]["completionTime"], "1970-01-01T00:07:00Z");
    assert_eq!(state(&done, "example.com/release@4.18.0"), State::Reconciling);
    assert_eq!(state(&done, "example.com/release@4.18.1"), State::Updating);
}

#[test]
fn another_version_ends_the_entry_before_it() {
    let first = Scenario::default().status(&Value::Null, "4.18.0");
    let second =
        Scenario { state: State::Updating, minutes: 1, ..Scenario::default() }.status(&first, "4.18.1");
    let history = second["history"].as_array().unwrap();
    assert_eq!(
        (history.len(), &history[0]["version"], &history[1]["state"]),
        (2, &json!("4.18.1"), &json!("Partial"))
    );
    assert_eq!(history[1]["completionTime"], "1970-01-01T00:01:00Z");
    assert_eq!(history[0]["completionTime"], Value::Null);
}

fn failing(reason: &str, effect: Effect) -> Progress {
    let failure = Failure::new(effect, reason, "Cluster operator dns is degraded".to_owned(), "dns");
    Progress { done: 1, total: 4, failure: Some(failure) }
}

#[test]
fn a_degraded_operator_is_named_while_reconciling() {
    let progress = failing("ClusterOperatorDegraded", Effect::FailAfterInterval);
    let now = Scenario { state: State::Reconciling, progress, completed: true, ..Scenario::default() };
    let now = now.status(&Value::Null, "4.18.0");
    assert_eq!(shown(&now, "Failing"), "True ClusterOperatorDegraded Cluster operator dns is degraded");
    assert_eq!(
        shown(&now, "Progressing"),
        "False ClusterOperatorDegraded Error while reconciling 4.18.0: the cluster operator dns is degraded"
    );
}

#[test]
fn while_updating_it_has_forty_minutes() {
    let with = |minutes| {
        let progress = failing("ClusterOperatorDegraded", Effect::FailAfterInterval);
        Scenario { state: State::Updating, progress, minutes, ..Scenario::default() }
            .status(&Value::Null, "4.18.0")
    };
    assert_eq!(shown(&with(5), "Failing"), "False - -");
    assert_eq!(
        shown(&with(5), "Progressing"),
        "True ClusterOperatorDegraded Working towards 4.18.0: 1 of 4 done (25% complete), waiting up to 40 minutes on dns"
    );
    assert!(shown(&with(41), "Failing").starts_with("True ClusterOperatorDegraded"));
    assert!(
        shown(&with(41), "Progressing").starts_with("True ClusterOperatorDegraded Unable to apply 4.18.0")
    );
}

#[test]
fn an_operator_still_at_work_is_not_a_failure() {
    let with = |minutes| {
        let progress = failing("ClusterOperatorUpdating", Effect::None);
        Scenario { state: State::Updating, progress, minutes, ..Scenario::default() }
            .status(&Value::Null, "4.18.0")
    };
    assert_eq!(shown(&with(1), "Failing"), "False - -");
    assert!(
        shown(&with(31), "Failing").starts_with("Unknown SlowClusterOperator waiting on dns over 30 minutes")
    );
}

#[test]
fn transition_times_stay_while_the_status_does() {
    let first = Scenario::default().status(&Value::Null, "4.18.0");
    let later = Scenario { minutes: 9, ..Scenario::default() }.status(&first, "4.18.0");
    let time = |status: &Value| status["conditions"][0]["lastTransitionTime"].clone();
    assert_eq!(time(&first), time(&later));
}

#[test]
fn what_is_wrong_with_the_spec_is_listed() {
    let spec = Spec {
        cluster_id: "x".to_owned(),
        desired_update: Some(DesiredUpdate::default()),
        ..Spec::default()
    };
    let problems = spec.problems();
    assert_eq!(problems.len(), 2);
    let status = Scenario { problems: &problems, ..Scenario::default() }.status(&Value::Null, "4.18.0");
    assert!(
        shown(&status, "Invalid")
            .starts_with("True InvalidClusterVersion The cluster version is invalid:\n* spec.clusterID")
    );
    let fine = Scenario::default().status(&status, "4.18.0");
    assert_eq!(shown(&fine, "Invalid"), "- - -");
}

#[test]
fn a_capability_once_enabled_stays() {
    let spec = Spec {
        capabilities: Some(CapabilitySpec {
            baseline_capability_set: "None".to_owned(),
            ..CapabilitySpec::default()
        }),
        ..Spec::default()
    };
    let before = json!({"capabilities": {"enabledCapabilities": ["Console", "Unheard"]}});
    let enabled = spec.capabilities(&before, &["Ingress".to_owned()]).enabled;
    assert_eq!(enabled, BTreeSet::from(["Console".to_owned(), "Ingress".to_owned()]));
    assert_eq!(Spec::default().capabilities(&Value::Null, &[]).enabled.len(), CAPABILITIES.len());
}

#[test]
fn a_release_that_is_not_taken_is_said() {
    let status =
        Scenario { refused: Some("no such image"), ..Scenario::default() }.status(&Value::Null, "4.18.0");
    assert_eq!(shown(&status, "ReleaseAccepted"), "False RetrievePayload no such image");
}

#[test]
fn history_is_bounded_and_keeps_the_beginning() {
    let mut now = Value::Null;
    for minor in 0..150 {
        now = Scenario { completed: true, ..Scenario::default() }.status(&now, &format!("4.{minor}.0"));
    }
    let history = now["history"].as_array().unwrap();
    assert_eq!(
        (history.len(), &history[0]["version"], &history[99]["version"]),
        (100, &json!("4.149.0"), &json!("4.0.0"))
    );
}

#[test]
fn updates_are_not_said_to_want_a_channel_when_nobody_is_asked() {
    let status = Scenario::default().status(&Value::Null, "4.18.0");
    assert!(shown(&status, "RetrievedUpdates").starts_with("False NoUpstream Updates are not retrieved"));
}
