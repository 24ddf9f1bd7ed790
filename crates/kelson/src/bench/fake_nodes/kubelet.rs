//! When fake kubelets tell what: [`next`] decides from a pod as it is now, the rest carries it out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{Client, DeleteOptions, Informer, ListOptions, Metadata, Patch, Projection, resources};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, unbounded};
use lifecycle::Tasks;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tracing::warn;

use super::CONCURRENCY;
use super::objects::{self, Shape};

/// Longer than any test.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
const ATTEMPTS: u32 = 6;
const FIRST_RETRY: Duration = Duration::from_millis(20);

/// A pod as far as a fake kubelet cares.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
    /// Its index in its Job, if it has one.
    #[serde(skip)]
    pub index: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: Box<str>,
    pub host_network: bool,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: String,
    pub image: String,
    pub restart_policy: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
}

impl Container {
    /// How long its command says that it runs: `sleep 300`, also at the end of a shell's line; `pause` never ends.
    fn runs_for(&self) -> Option<Duration> {
        let line: Vec<&str> =
            self.command.iter().chain(&self.args).flat_map(|word| word.split_whitespace()).collect();
        if line.last() == Some(&"pause") {
            return Some(FOREVER);
        }
        let last = line.iter().rposition(|word| *word == "sleep" || word.ends_with("/sleep"))?;
        let time = line.get(last + 1)?.trim_end_matches(';');
        match time {
            "infinity" => Some(FOREVER),
            _ => time
                .trim_end_matches('s')
                .parse()
                .ok()
                .and_then(|time| Duration::try_from_secs_f64(time).ok()),
        }
    }
}

impl Container {
    /// The code that its command says it ends with: `exit 3` at the end of a shell's line, where the number may be
    /// `$JOB_COMPLETION_INDEX`, or `false`.
    fn exit_code(&self, index: &str) -> i32 {
        let line: Vec<&str> =
            self.command.iter().chain(&self.args).flat_map(|word| word.split_whitespace()).collect();
        match line[..] {
            [.., "exit", "$JOB_COMPLETION_INDEX"] => index.parse().unwrap_or(0),
            [.., "exit", code] => code.parse().unwrap_or(0),
            [.., "false"] => 1,
            _ => 0,
        }
    }
}

impl PodSpec {
    fn runs_for(&self) -> Option<Duration> {
        self.containers.iter().filter_map(Container::runs_for).max()
    }
}

impl Pod {
    /// The highest code that a container ends with.
    fn exit_code(&self) -> i32 {
        let codes = self.spec.containers.iter().map(|container| container.exit_code(&self.index));
        codes.max().unwrap_or(0)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    pub phase: Box<str>,
}

impl Projection for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn shrink(&mut self) {
        // Only what may still be told is kept; a long-running pod needs its containers' names at most once more.
        self.index = self.metadata.labels.get(JOB_INDEX).unwrap_or_default().into();
        self.metadata.labels = Default::default();
    }
}

/// The label that tells the pod of an indexed Job its index.
const JOB_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The code of a container that was killed.
const KILLED: i32 = 137;

/// What a kubelet does next about a pod.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Run,
    /// The work of a Job's pod will be done after a while.
    Finish,
    /// It ends because it was deleted, and someone still wants to read how.
    Fail,
    Remove,
}

fn next(pod: &Pod) -> Step {
    let finished = matches!(&*pod.status.phase, "Succeeded" | "Failed");
    let of_job = pod.metadata.controller().is_some_and(|owner| &*owner.kind == "Job");
    match (pod.metadata.is_terminating(), &*pod.status.phase) {
        // Whoever holds a finalizer may count how pods end; nobody else sees the difference.
        (true, _) if !pod.metadata.finalizers.is_empty() && !finished => Step::Fail,
        (true, _)
            if pod.metadata.finalizers.is_empty()
                || pod.metadata.deletion_grace_period_seconds != Some(0) =>
        {
            Step::Remove
        }
        (true, _) => Step::Nothing,
        (false, "" | "Pending") => Step::Run,
        (false, "Running") if of_job => Step::Finish,
        (false, _) => Step::Nothing,
    }
}

/// All kubelets of the fake nodes.
pub struct Kubelets {
    client: Client,
    shape: Arc<Shape>,
    nodes: usize,
    job_pods_run: Duration,
    /// Given to pods by uid, so that one that is told of twice keeps its address.
    addresses: Mutex<Addresses>,
    /// How many requests may be under way.
    permits: Semaphore,
}

#[derive(Default)]
struct Addresses {
    given: HashMap<Box<str>, u32>,
    last: u32,
}

impl Addresses {
    fn of(&mut self, uid: &str) -> u32 {
        if let Some(serial) = self.given.get(uid) {
            return *serial;
        }
        self.last += 1;
        self.given.insert(uid.into(), self.last);
        self.last
    }
}

impl Kubelets {
    pub fn start(client: &Client, shape: &Arc<Shape>, nodes: usize, job_pods_run: Duration, tasks: &Tasks) {
        let kubelets = Self {
            client: client.clone(),
            shape: shape.clone(),
            nodes,
            job_pods_run,
            addresses: Mutex::default(),
            permits: Semaphore::new(CONCURRENCY),
        };
        let bound = ListOptions::fields("spec.nodeName!=");
        let informer = Informer::<Pod>::start(client, &resources::PODS, "", bound, tasks);
        let (sender, changes) = unbounded();
        informer.on_change(move |change| {
            if let Some(pod) = &change.new {
                // The receiver ends with the tasks, and the informer with it.
                let _ = sender.unbounded_send(pod.clone());
            }
        });
        tasks.spawn("fake-kubelets", |stop| async move {
            stop.or(kubelets.serve(changes)).await;
        });
    }

    async fn serve(&self, changes: UnboundedReceiver<Arc<Pod>>) {
        changes
            .for_each_concurrent(None, |pod| async move {
                let Some(number) =
                    self.shape.number(&pod.spec.node_name).filter(|number| *number < self.nodes)
                else {
                    return;
                };
                let step = next(&pod);
                if step == Step::Finish {
                    tokio::time::sleep(pod.spec.runs_for().unwrap_or(self.job_pods_run)).await;
                }
                if step != Step::Nothing {
                    self.try_to(step, &pod, number).await;
                }
            })
            .await;
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn try_to(&self, step: Step, pod: &Pod, number: usize) {
        for attempt in 0..ATTEMPTS {
            match self.act(&step, pod, number).await {
                Ok(()) => return,
                // It is gone, or another of the same name took its place: nothing of ours to tell.
                Err(error) if error.is_not_found() || error.is_conflict() => return,
                Err(error) if attempt + 1 == ATTEMPTS => {
                    let pod = pod.metadata.key();
                    warn!(%pod, ?step, error = %telemetry::chain(&error), "a fake kubelet gave up");
                }
                Err(_) => tokio::time::sleep(FIRST_RETRY * (1 << attempt)).await,
            }
        }
    }

    async fn act(&self, step: &Step, pod: &Pod, number: usize) -> Result<(), client::Error> {
        let _permit = self.permits.acquire().await;
        let pods = self.client.api(&resources::PODS).within(&pod.metadata.namespace);
        let now = jiff::Timestamp::now();
        let status = match step {
            Step::Nothing => return Ok(()),
            Step::Run => {
                let serial = self.addresses().of(&pod.metadata.uid);
                objects::running(pod, Shape::address(number), objects::pod_address(serial), now)
            }
            Step::Finish => objects::finished(pod, pod.exit_code(), now),
            Step::Fail => objects::finished(pod, KILLED, now),
            Step::Remove => {
                self.addresses().given.remove(&pod.metadata.uid);
                let options = DeleteOptions::of_uid(&*pod.metadata.uid).grace(0);
                return pods.delete(&pod.metadata.name, &options).await.map(drop);
            }
        };
        pods.patch_sub::<Value>(&pod.metadata.name, "status", Patch::Strategic(&status)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_says_how_it_ends() {
        let cases = [
            (json!({"command": ["sh", "-c", "sleep 1; exit 42"]}), 42),
            (json!({"command": ["sh", "-c", "exit $JOB_COMPLETION_INDEX"]}), 3),
            (json!({"command": ["false"]}), 1),
            (json!({"command": ["sleep", "1"]}), 0),
        ];
        for (container, wanted) in cases {
            let pod = json!({"metadata": {"labels": {JOB_INDEX: "3"}}, "spec": {"containers": [container]}});
            let mut pod: Pod = serde_json::from_value(pod).unwrap();
            pod.shrink();
            assert_eq!(pod.exit_code(), wanted, "{container}");
        }
    }

    #[test]
    fn a_command_that_sleeps_says_how_long_it_runs() {
        let cases = [
            (json!({"command": ["sleep", "300"]}), Some(300)),
            (json!({"command": ["/bin/sh", "-c"], "args": ["touch /a; sleep 20; exit 1"]}), Some(20)),
            (json!({"args": ["/bin/sleep", "5s"]}), Some(5)),
            (json!({"args": ["pause"]}), Some(FOREVER.as_secs())),
            (json!({"command": ["sleep", "infinity"]}), Some(FOREVER.as_secs())),
            (json!({"command": ["true"]}), None),
            (json!({"command": ["sleep", "-1"]}), None),
        ];
        for (container, wanted) in cases {
            let spec: PodSpec = serde_json::from_value(json!({"containers": [container]})).unwrap();
            assert_eq!(spec.runs_for().map(|time| time.as_secs()), wanted, "{container}");
        }
    }

    #[test]
    fn pods_run_and_go_and_those_of_jobs_succeed() {
        let job =
            json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true}]);
        let going = "2026-01-01T00:00:00Z";
        let cases = [
            (json!({}), "Pending", Step::Run),
            (json!({}), "", Step::Run),
            (json!({}), "Running", Step::Nothing),
            (json!({"ownerReferences": job}), "Running", Step::Finish),
            (json!({"ownerReferences": job}), "Succeeded", Step::Nothing),
            (json!({"deletionTimestamp": going}), "Running", Step::Remove),
            (json!({"deletionTimestamp": going, "finalizers": ["x"]}), "Running", Step::Fail),
            (
                json!({"deletionTimestamp": going, "finalizers": ["x"], "deletionGracePeriodSeconds": 30}),
                "Failed",
                Step::Remove,
            ),
            (
                json!({"deletionTimestamp": going, "finalizers": ["x"], "deletionGracePeriodSeconds": 0}),
                "Failed",
                Step::Nothing,
            ),
        ];
        for (metadata, phase, wanted) in cases {
            let pod =
                serde_json::from_value(json!({"metadata": metadata, "status": {"phase": phase}})).unwrap();
            assert_eq!(next(&pod), wanted, "{metadata} {phase}");
        }
    }
}
