//! Jobs whose pods have numbers: which are done, which failed, which come next.

use std::collections::BTreeSet;

use controller_runtime::Plan;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::policy::{self, Verdict};
use super::{Tally, backoff, new_pod};
use crate::kinds::{Job, Pod};
use crate::pods;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// A pod's index.
pub fn of(pod: &Pod) -> Option<i64> {
    pod.metadata.annotation(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

fn number(pod: &Pod, annotation: &str) -> i64 {
    pod.metadata.annotation(annotation).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Reads `0-2,5`; parts that make no sense or are out of range are left out.
pub fn from_text(text: &str, completions: i64) -> BTreeSet<i64> {
    let mut all = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i64>(), last.parse::<i64>()) {
            all.extend(first.max(0)..=last.min(completions - 1));
        }
    }
    all
}

/// Writes `0-2,5`.
pub fn to_text(indexes: &BTreeSet<i64>) -> String {
    let mut parts: Vec<(i64, i64)> = Vec::new();
    for index in indexes {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *index => *last = *index,
            _ => parts.push((*index, *index)),
        }
    }
    let words = parts.iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        // Two neighbours are written as two.
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// Fills in the indexes of a tally.
pub fn count(tally: &mut Tally<'_>) {
    let (job, completions) = (tally.job, tally.job.completions());
    let valid = |pod: &Pod| of(pod).filter(|index| *index < completions);
    tally.succeeded_indexes = from_text(&job.status.completed_indexes, completions);
    let succeeded = tally.pods.iter().filter(|pod| pod.is_tracked() && &*pod.status.phase == "Succeeded");
    tally.succeeded_indexes.extend(succeeded.filter_map(|pod| valid(pod)));
    let Some(limit) = job.spec.backoff_limit_per_index else { return };
    let mut failed = from_text(job.status.failed_indexes.as_deref().unwrap_or(""), completions);
    for pod in tally.pods.iter().filter(|pod| pod.is_tracked() && pod.has_failed_for(job)) {
        let verdict = policy::verdict(job, pod);
        let final_one = verdict == Verdict::FailIndex || (verdict.counts() && number(pod, FAILURES) >= limit);
        if let Some(index) = valid(pod).filter(|index| final_one && !tally.succeeded_indexes.contains(index))
        {
            failed.insert(index);
        }
    }
    let active: BTreeSet<i64> = tally.active.iter().filter_map(|pod| of(pod)).collect();
    for pod in tally.pods.iter().copied().filter(|pod| pod.is_tracked() && pod.has_failed_for(job)) {
        let Some(index) = valid(pod) else { continue };
        if tally.succeeded_indexes.contains(&index) || failed.contains(&index) || active.contains(&index) {
            continue;
        }
        let rank = |pod: &Pod| (number(pod, FAILURES) + number(pod, IGNORED), pod.finished_at());
        if tally.kept.get(&index).is_none_or(|kept| rank(kept) <= rank(pod)) {
            tally.kept.insert(index, pod);
        }
    }
    tally.failed_indexes = Some(failed);
}

/// The message if some rule of the success policy is met.
pub fn success_policy(tally: &Tally<'_>) -> Option<String> {
    let policy = tally.job.spec.success_policy.as_ref().filter(|_| tally.job.is_indexed())?;
    let completions = tally.job.completions();
    let met = policy.rules.iter().position(|rule| {
        let counted = match &rule.succeeded_indexes {
            Some(text) => from_text(text, completions),
            None => (0..completions).collect(),
        };
        let done = counted.intersection(&tally.succeeded_indexes).count() as i64;
        done >= rule.succeeded_count.unwrap_or(counted.len() as i64)
    })?;
    Some(format!("Matched rules at index {met}"))
}

/// Splits active pods into those whose index is double, missing or out of range, and the rest.
pub fn doubles<'a>(job: &Job, mut active: Vec<&'a Pod>, now: Timestamp) -> (Vec<&'a Pod>, Vec<&'a Pod>) {
    // Of doubles the one that is furthest stays: it comes last in this order.
    pods::deletion_order(&mut active, now, |_| 0);
    let mut seen = BTreeSet::new();
    let (mut go, mut stay) = (Vec::new(), Vec::new());
    for pod in active.into_iter().rev() {
        match of(pod).filter(|index| *index < job.completions()) {
            Some(index) if seen.insert(index) => stay.push(pod),
            _ => go.push(pod),
        }
    }
    (go, stay)
}

/// Pods for the first indexes that are neither done nor under way.
pub fn to_create(tally: &Tally<'_>, count: usize, plan: &mut Plan) -> Vec<Value> {
    let job = tally.job;
    let mut busy: BTreeSet<i64> = tally.active.iter().filter_map(|pod| of(pod)).collect();
    if job.waits_for_end() {
        busy.extend(
            tally
                .pods
                .iter()
                .filter(|pod| pod.metadata.is_terminating() && !pod.is_finished())
                .filter_map(|pod| of(pod)),
        );
    }
    let failed = tally.failed_indexes.as_ref();
    let is_open = |index: &i64| {
        !tally.succeeded_indexes.contains(index)
            && !busy.contains(index)
            && failed.is_none_or(|failed| !failed.contains(index))
    };
    let mut made = Vec::new();
    for index in (0..job.completions()).filter(is_open).take(count) {
        let before = tally.kept.get(&index).copied();
        if let Some(before) = before {
            let failures = number(before, FAILURES) + number(before, IGNORED) + 1;
            let until = backoff(usize::try_from(failures).unwrap_or(1), before.finished_at());
            if let Some(at) = until.filter(|at| *at > tally.now) {
                plan.look_again(at);
                continue;
            }
        }
        made.push(with_index(job, index, before));
    }
    made
}

fn with_index(job: &Job, index: i64, before: Option<&Pod>) -> Value {
    let mut pod = new_pod(job);
    let metadata = &mut pod["metadata"];
    metadata["generateName"] = json!(format!("{}-{index}-", job.metadata.name));
    metadata["annotations"][INDEX] = json!(index.to_string());
    metadata["labels"][INDEX] = json!(index.to_string());
    if job.spec.backoff_limit_per_index.is_some() {
        let (mut failures, mut ignored) =
            before.map_or((0, 0), |pod| (number(pod, FAILURES), number(pod, IGNORED)));
        if let Some(before) = before {
            if policy::verdict(job, before).counts() { failures += 1 } else { ignored += 1 }
        }
        metadata["annotations"][FAILURES] = json!(failures.to_string());
        if ignored > 0 {
            metadata["annotations"][IGNORED] = json!(ignored.to_string());
        }
    }
    pod["spec"]["hostname"] = json!(format!("{}-{index}", job.metadata.name));
    let variable = json!({"name": "JOB_COMPLETION_INDEX",
        "valueFrom": {"fieldRef": {"fieldPath": format!("metadata.labels['{INDEX}']")}}});
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            let mut variables = container["env"].as_array().cloned().unwrap_or_default();
            if !variables.iter().any(|other| other["name"] == "JOB_COMPLETION_INDEX") {
                variables.push(variable.clone());
            }
            container["env"] = json!(variables);
        }
    }
    if pod["spec"]["initContainers"].is_null()
        && let Some(spec) = pod["spec"].as_object_mut()
    {
        spec.shift_remove("initContainers");
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_written_in_ranges_and_read_back() {
        let cases =
            [("", vec![]), ("1", vec![1]), ("0,1", vec![0, 1]), ("0-2,5,7-9", vec![0, 1, 2, 5, 7, 8, 9])];
        for (text, list) in cases {
            let set: BTreeSet<i64> = list.into_iter().collect();
            assert_eq!(to_text(&set), text);
            assert_eq!(from_text(text, 10), set);
        }
        assert_eq!(from_text("3-20,x", 5), [3, 4].into_iter().collect());
    }
}
