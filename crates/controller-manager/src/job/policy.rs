//! What a pod's failure means for its job.

use crate::kinds::{Job, OnExitCodes, Pod, PodFailureRule};

/// The meaning of one failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It counts against the limit.
    Count,
    /// It does not.
    Ignore,
    /// The whole job fails, with this message.
    FailJob(String),
    /// The pod's index fails.
    FailIndex,
}

impl Verdict {
    /// Whether the failure is counted.
    pub fn counts(&self) -> bool {
        *self != Self::Ignore
    }
}

/// What the first fitting rule says; failures without a rule count.
pub fn verdict(job: &Job, pod: &Pod) -> Verdict {
    let rules = job.spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    for (index, rule) in rules.enumerate() {
        let Some(why) = fits(rule, pod) else { continue };
        match &*rule.action {
            "Ignore" => return Verdict::Ignore,
            "FailIndex" if job.spec.backoff_limit_per_index.is_some() => return Verdict::FailIndex,
            "Count" => return Verdict::Count,
            "FailJob" => return Verdict::FailJob(format!("{why} matching FailJob rule at index {index}")),
            _ => {}
        }
    }
    Verdict::Count
}

/// The message if some pod's failure fails the whole job.
pub fn fails_job(job: &Job, pods: &[&Pod]) -> Option<String> {
    job.spec.pod_failure_policy.as_ref()?;
    pods.iter().filter(|pod| pod.has_failed_for(job)).find_map(|pod| match verdict(job, pod) {
        Verdict::FailJob(message) => Some(message),
        _ => None,
    })
}

fn fits(rule: &PodFailureRule, pod: &Pod) -> Option<String> {
    let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
    if let Some(codes) = &rule.on_exit_codes {
        let (container, code) = exit_code(codes, pod)?;
        return Some(format!("Container {container} for pod {name} failed with exit code {code}"));
    }
    let met = rule.on_pod_conditions.iter().find(|wanted| {
        pod.condition(&wanted.kind).is_some_and(|condition| condition.status == wanted.status)
    })?;
    Some(format!("Pod {name} has condition {}", met.kind))
}

fn exit_code(codes: &OnExitCodes, pod: &Pod) -> Option<(Box<str>, i64)> {
    let all = pod.status.init_container_statuses.iter().chain(&pod.status.container_statuses);
    all.filter(|status| codes.container_name.as_ref().is_none_or(|name| *name == status.name)).find_map(
        |status| {
            let code = status.terminated.as_ref()?.exit_code;
            let listed = codes.values.contains(&code);
            let fits = if &*codes.operator == "In" { listed } else { code != 0 && !listed };
            fits.then(|| (status.name.clone(), code))
        },
    )
}
