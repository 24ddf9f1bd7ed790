//! How quickly pods get their nodes: from the request that creates a pod until a watch shows it bound.
//!
//! The nodes are fake and run nothing, so that the figures are those of the API server and the scheduler. `scenario`
//! says what the pods ask for; [`figure`] what came of it; the rest carries it out.

mod scenario;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, ValueEnum};
use client::{Api, Client, DeleteOptions, Informer, ListOptions, Metadata, Projection, resources};
use futures::{StreamExt, TryStreamExt};
use lifecycle::{Stop, Tasks};
use measure::{Figure, Form, Latencies, Processes, Report};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use super::fake_nodes::{FakeNodes, NodeArgs, connect};
use super::wait_for_account;
use crate::commands::component;
use scenario::{Scenario, pod_name, pod_number};

/// Zones of the nodes unless told otherwise; two scenarios are about them.
const ZONES: usize = 3;
const CLEANUP_DEADLINE: Duration = Duration::from_secs(120);

/// Creates many pods at once on fake nodes and tells how soon each was bound.
#[derive(Args, Debug)]
pub struct ScheduleBench {
    /// How to reach the cluster
    #[arg(long, required_unless_present = "algorithm")]
    kubeconfig: Option<PathBuf>,
    /// How many fake nodes
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Pods of each scenario; 5000 for basic and 2000 for the others by default
    #[arg(long)]
    pods: Option<usize>,
    /// What the pods ask for
    #[arg(long, value_delimiter = ',', default_values_t = Scenario::value_variants().to_vec())]
    scenarios: Vec<Scenario>,
    /// Requests under way at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Connections that the requests are spread over
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
    /// Processes of the server, whose CPU time and memory are told
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// How long a scenario may take, in seconds
    #[arg(long, default_value_t = 600)]
    deadline: u64,
    /// Measure only the algorithm, on a snapshot in this process, with no cluster at all
    #[arg(long, conflicts_with_all = ["kubeconfig", "scenarios", "pid"])]
    algorithm: bool,
    /// How to print the results
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    #[command(flatten)]
    like: NodeArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Output {
    Text,
    Json,
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.name())
    }
}

/// The figure of a scenario, from when each pod's create was sent, and when each was seen bound.
fn figure(scenario: &str, nodes: usize, created: &[Instant], bound: &[Instant]) -> Figure {
    let waits = created.iter().zip(bound).map(|(from, to)| to.saturating_duration_since(*from));
    let latencies: Latencies = waits.collect();
    let took = match (created.iter().min(), bound.iter().max()) {
        (Some(first), Some(last)) => last.saturating_duration_since(*first).as_secs_f64(),
        _ => 0.0,
    };
    let mut figure = Figure::of(scenario, "", &latencies, took);
    figure.remark = format!("{} pods on {nodes} nodes in {took:.3} s", created.len());
    figure
}

/// A pod that the scheduler has bound; the watch shows no others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BoundPod {
    metadata: Metadata,
}

impl Projection for BoundPod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn shrink(&mut self) {
        self.metadata.labels = Default::default();
    }
}

/// When each pod of the running scenario was seen bound.
#[derive(Default)]
struct Bindings {
    at: Mutex<Vec<Option<Instant>>>,
    count: watch::Sender<usize>,
}

impl Bindings {
    fn expect(&self, pods: usize) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = vec![None; pods];
        self.count.send_replace(0);
    }

    fn saw(&self, number: usize) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot @ None) = at.get_mut(number) {
            *slot = Some(Instant::now());
            self.count.send_modify(|count| *count += 1);
        }
    }

    /// Resolves once so many pods are bound.
    async fn all(&self, pods: usize) -> Vec<Instant> {
        // The sender lives as long as `self`, so this ends only by the condition.
        let _ = self.count.subscribe().wait_for(|count| *count >= pods).await;
        self.at.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten().copied().collect()
    }
}

impl ScheduleBench {
    pub fn run(mut self) -> anyhow::Result<()> {
        if self.like.zones == 0 {
            self.like.zones = ZONES;
        }
        anyhow::ensure!(self.nodes > 0, "pods need at least one node");
        match self.kubeconfig.clone() {
            Some(kubeconfig) => component(|stop| self.on_cluster(kubeconfig, stop)),
            None => self.algorithm_alone(),
        }
    }

    fn report(&self) -> Report {
        Report::new(if self.output == Output::Json { Form::Json } else { Form::Text })
    }

    fn algorithm_alone(&self) -> anyhow::Result<()> {
        let (mut report, mut out, mut told) = (self.report(), std::io::stdout(), Ok(()));
        scheduler::bench::algorithm(self.nodes, self.pods.unwrap_or(2000), |measured| {
            let figure = Figure {
                scenario: measured.scenario.to_owned(),
                server: "algorithm alone".to_owned(),
                count: measured.pods as u64,
                per_second: measured.rate(),
                errors: measured.failed as u64,
                remark: format!("{} nodes; upstream's threshold is {}", self.nodes, measured.threshold),
                ..Figure::default()
            };
            if told.is_ok() {
                told = report.add(figure, &mut out);
            }
        });
        told.and_then(|()| report.finish(&mut out)).context("cannot print the figures")
    }

    async fn on_cluster(self, kubeconfig: PathBuf, stop: Stop) -> anyhow::Result<()> {
        telemetry::log_to_stderr("warn");
        let tasks = Tasks::under(&stop);
        let client = connect(&kubeconfig, "kelson-bench")?;
        let creators = (0..self.connections)
            .map(|_| connect(&kubeconfig, "kelson-bench"))
            .collect::<anyhow::Result<Vec<Client>>>()?;
        let kubelets = connect(&kubeconfig, "kelson-fake-nodes")?;
        // One that an earlier run left behind may still be going.
        let namespace = format!("kelson-bench-schedule-{}", std::process::id());
        let work = async {
            FakeNodes::without_kubelets(&kubelets, self.nodes, &self.like, &tasks).await?;
            self.measure(&client, &creators, &namespace, &tasks).await
        };
        let outcome = stop.or(work).await;
        tasks.drain(Duration::from_secs(5)).await;
        // Whatever happened, nothing stays; and why it failed is told before why it could not be cleaned up.
        let nodes = FakeNodes::left_behind(&kubelets, self.nodes, &self.like);
        let cleaned = tokio::time::timeout(CLEANUP_DEADLINE, clean(&client, &namespace, nodes));
        let cleaned =
            cleaned.await.context("what was made is not gone within 2 minutes").and_then(|done| done);
        outcome.unwrap_or(Ok(())).and(cleaned)
    }

    async fn measure(
        &self,
        client: &Client,
        creators: &[Client],
        namespace: &str,
        tasks: &Tasks,
    ) -> anyhow::Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        client.api(&resources::NAMESPACES).create::<IgnoredAny>(&body).await?;
        wait_for_account(client, namespace).await?;
        let creators: Vec<Api> =
            creators.iter().map(|client| client.api(&resources::PODS).within(namespace)).collect();
        let version: Value = client.get_path("/version").await?;
        let server = version["gitVersion"].as_str().unwrap_or("unknown");
        let (mut report, mut out) = (self.report(), std::io::stdout());
        let mut outcome = Ok(());
        for scenario in &self.scenarios {
            match self.round(*scenario, client, &creators, namespace, tasks).await {
                Ok(figure) => report.add(Figure { server: server.to_owned(), ..figure }, &mut out)?,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        // What was measured before something went wrong is worth printing.
        report.finish(&mut out)?;
        outcome
    }

    async fn round(
        &self,
        scenario: Scenario,
        client: &Client,
        creators: &[Api],
        namespace: &str,
        tasks: &Tasks,
    ) -> anyhow::Result<Figure> {
        let pods = self.pods.unwrap_or(scenario.pods());
        let bodies = (0..pods)
            .map(|number| serde_json::value::to_raw_value(&scenario.pod(number, pods, self.nodes)))
            .collect::<Result<Vec<Box<RawValue>>, _>>()?;
        let watching = Tasks::under(&tasks.stop());
        let bindings = Arc::new(Bindings::default());
        bindings.expect(pods);
        let bound = ListOptions::fields("spec.nodeName!=");
        let informer = Informer::<BoundPod>::start(client, &resources::PODS, namespace, bound, &watching);
        let seen = bindings.clone();
        informer.on_change(move |change| {
            let pod = change.new.as_ref().and_then(|pod| pod_number(scenario, &pod.metadata.name));
            if let Some(number) = pod {
                seen.saw(number);
            }
        });
        informer.synced().await;

        let processes = Processes::new(self.pid.iter().copied());
        let before = processes.cpu();
        let work = async {
            let mut created: Vec<(usize, Instant)> = futures::stream::iter(bodies.iter().enumerate())
                .map(|(number, body)| async move {
                    let began = Instant::now();
                    let api = &creators[number % creators.len()];
                    api.create::<IgnoredAny>(body).await.map(|_| (number, began))
                })
                .buffer_unordered(self.concurrency.into())
                .try_collect()
                .await
                .context("cannot create the pods")?;
            created.sort_unstable_by_key(|(number, _)| *number);
            let bound = bindings.all(pods).await;
            anyhow::Ok((created.into_iter().map(|(_, began)| began).collect::<Vec<_>>(), bound))
        };
        let (created, bound) =
            tokio::time::timeout(Duration::from_secs(self.deadline), work).await.with_context(|| {
                let count = *bindings.count.borrow();
                format!("{}: {count} of {pods} pods were bound within {} s", scenario.name(), self.deadline)
            })??;
        let mut figure = figure(scenario.name(), self.nodes, &created, &bound);
        if let (Some(before), Some(after)) = (before, processes.cpu()) {
            let cpu = after.saturating_sub(before);
            figure.cpu_micros = Some(cpu.as_secs_f64() * 1e6 / pods.max(1) as f64);
        }
        figure.memory_bytes = processes.memory();
        watching.drain(Duration::from_secs(5)).await;
        self.delete_pods(scenario, pods, creators).await?;
        Ok(figure)
    }

    /// One by one, because a collection of so many may take longer than a request may.
    async fn delete_pods(&self, scenario: Scenario, pods: usize, creators: &[Api]) -> anyhow::Result<()> {
        futures::stream::iter(0..pods)
            .map(|number| async move {
                let api = &creators[number % creators.len()];
                let options = DeleteOptions::default().grace(0);
                match api.delete(&pod_name(scenario, number), &options).await {
                    Err(error) if !error.is_not_found() => Err(error),
                    _ => Ok(()),
                }
            })
            .buffer_unordered(self.concurrency.into())
            .try_collect::<()>()
            .await
            .context("cannot delete the pods")
    }
}

/// Deletes the namespace with all that is in it, and the nodes, and waits until the namespace is gone.
async fn clean(client: &Client, namespace: &str, nodes: FakeNodes) -> anyhow::Result<()> {
    let namespaces = client.api(&resources::NAMESPACES);
    match namespaces.delete(namespace, &DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => {
            warn!(error = %telemetry::chain(&error), "the namespace could not be deleted");
        }
        _ => {}
    }
    nodes.remove().await?;
    while namespaces.find::<IgnoredAny>(namespace).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_counts_from_the_first_create_to_the_last_binding() {
        let zero = Instant::now();
        let after = |millis: u64| zero + Duration::from_millis(millis);
        let created: Vec<Instant> = (0..100).map(|number| after(number * 10)).collect();
        // Each pod waits one millisecond longer than the one before it.
        let bound: Vec<Instant> = (0..100).map(|number| after(number * 10 + number + 10)).collect();
        let figure = figure("basic", 5, &created, &bound);
        assert_eq!(figure.micros, Some([59_000, 108_000, 109_000]));
        assert!((figure.per_second - 100.0 / 1.099).abs() < 1e-6);
        assert_eq!(figure.remark, "100 pods on 5 nodes in 1.099 s");
    }

    #[tokio::test]
    async fn a_pod_is_bound_once() {
        let bindings = Bindings::default();
        bindings.expect(2);
        for number in [1, 1, 7, 0] {
            bindings.saw(number);
        }
        assert_eq!(bindings.all(2).await.len(), 2);
        assert_eq!(*bindings.count.borrow(), 2);
    }
}
