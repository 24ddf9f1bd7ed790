//! How quickly the controllers make and unmake workloads, on nodes and kubelets that cost nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use client::{Client, DeleteOptions, Informer, ListOptions, Metadata, Projection, Propagation, resources};
use futures::{StreamExt, TryStreamExt};
use lifecycle::{Stop, Tasks};
use measure::Processes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fake_nodes::{FakeNodes, NodeArgs, connect};
use super::wait_for_account;

const NAMESPACE: &str = "kelson-bench-churn";
/// Requests of this command that are under way at once.
const CONCURRENCY: usize = 32;

/// Creates Deployments, waits until all replicas are available, deletes them, and waits until all is gone.
#[derive(Args, Debug)]
pub struct ChurnBench {
    /// How to reach the cluster
    #[arg(long)]
    kubeconfig: PathBuf,
    /// How many Deployments
    #[arg(long, default_value_t = 100)]
    deployments: usize,
    /// Replicas of each
    #[arg(long, default_value_t = 10)]
    replicas: usize,
    /// How often
    #[arg(long, default_value_t = 1)]
    rounds: u32,
    /// Fake nodes to run them on; 0 uses those that are there
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    /// Processes of the server, whose CPU time and memory are told
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// How long each half of a round may take, in seconds
    #[arg(long, default_value_t = 600)]
    deadline: u64,
    /// Leave the workload standing after the first half, until interrupted
    #[arg(long)]
    hold: bool,
    #[command(flatten)]
    like: NodeArgs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Deployment {
    metadata: Metadata,
    status: DeploymentStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DeploymentStatus {
    available_replicas: usize,
}

impl Projection for Deployment {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Anything of which only the existence counts.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Thing {
    metadata: Metadata,
}

impl Projection for Thing {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn shrink(&mut self) {
        self.metadata.labels = Default::default();
        self.metadata.owner_references = Default::default();
    }
}

/// What there is of the workload.
struct Seen {
    deployments: Informer<Deployment>,
    sets: Informer<Thing>,
    pods: Informer<Thing>,
}

impl ChurnBench {
    pub async fn run(self, stop: Stop) -> anyhow::Result<()> {
        telemetry::log_to_stderr("warn");
        let tasks = Tasks::under(&stop);
        let client = connect(&self.kubeconfig, "kelson-bench")?;
        let outcome = stop.or(self.measure(&client, &tasks, &stop)).await;
        tasks.drain(Duration::from_secs(5)).await;
        outcome.unwrap_or(Ok(()))
    }

    async fn measure(&self, client: &Client, tasks: &Tasks, stop: &Stop) -> anyhow::Result<()> {
        let nodes = match self.nodes {
            0 => None,
            // Kubelets have their own connection, as in life.
            count => {
                let own = connect(&self.kubeconfig, "kelson-fake-nodes")?;
                Some(FakeNodes::start(&own, count, &self.like, tasks).await?)
            }
        };
        let namespaces = client.api(&resources::NAMESPACES);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        if namespaces.find::<Value>(NAMESPACE).await?.is_none() {
            namespaces.create::<Value>(&namespace).await?;
        }
        wait_for_account(client, NAMESPACE).await?;
        let follow = |resource| Informer::start(client, resource, NAMESPACE, ListOptions::default(), tasks);
        let seen = Seen {
            deployments: Informer::start(
                client,
                &resources::DEPLOYMENTS,
                NAMESPACE,
                ListOptions::default(),
                tasks,
            ),
            sets: follow(&resources::REPLICA_SETS),
            pods: follow(&resources::PODS),
        };
        seen.deployments.synced().await;
        seen.sets.synced().await;
        seen.pods.synced().await;
        for _ in 0..self.rounds {
            self.round(client, &seen, stop).await?;
        }
        namespaces.delete(NAMESPACE, &DeleteOptions::default()).await?;
        if let Some(nodes) = nodes {
            nodes.remove().await?;
        }
        Ok(())
    }

    async fn round(&self, client: &Client, seen: &Seen, stop: &Stop) -> anyhow::Result<()> {
        let deployments = client.api(&resources::DEPLOYMENTS).within(NAMESPACE);
        let (began, before) = (Instant::now(), self.server().cpu());
        futures::stream::iter(0..self.deployments)
            .map(|number| {
                let (deployments, body) = (deployments.clone(), self.deployment(number));
                async move { deployments.create::<Value>(&body).await.map(drop) }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot create the Deployments")?;
        self.within(
            "available",
            until(&seen.deployments, |all| {
                let up = all.iter().filter(|one| one.status.available_replicas == self.replicas).count();
                up == self.deployments
            }),
        )
        .await?;
        self.tell("all available", began, before);
        if self.hold {
            stop.requested().await;
        }
        let (began, before) = (Instant::now(), self.server().cpu());
        futures::stream::iter(0..self.deployments)
            .map(|number| {
                let deployments = deployments.clone();
                async move {
                    let options = DeleteOptions::default().propagation(Propagation::Background);
                    deployments.delete(&name(number), &options).await.map(drop)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot delete the Deployments")?;
        self.within("gone", async {
            until(&seen.deployments, <[_]>::is_empty).await;
            until(&seen.sets, <[_]>::is_empty).await;
            until(&seen.pods, <[_]>::is_empty).await;
        })
        .await?;
        self.tell("all deleted", began, before);
        Ok(())
    }

    async fn within(&self, what: &str, work: impl Future<Output = ()>) -> anyhow::Result<()> {
        let deadline = Duration::from_secs(self.deadline);
        tokio::time::timeout(deadline, work)
            .await
            .with_context(|| format!("not all was {what} within {} s", self.deadline))
    }

    fn server(&self) -> Processes {
        Processes::new(self.pid.iter().copied())
    }

    fn tell(&self, what: &str, began: Instant, before: Option<Duration>) {
        let took = began.elapsed().as_secs_f64();
        let pods = self.deployments * self.replicas;
        print!("{what:<16} {took:8.3} s {:10.0} pods/s", pods as f64 / took);
        let server = self.server();
        if let (Some(before), Some(now), Some(memory)) = (before, server.cpu(), server.memory()) {
            let cpu = now.saturating_sub(before).as_secs_f64();
            let mebibytes = memory as f64 / f64::from(1 << 20);
            print!(
                "   server: {cpu:.2} s CPU, {:.0} µs per pod, {mebibytes:.1} MiB PSS",
                cpu * 1e6 / pods as f64
            );
        }
        println!();
    }

    fn deployment(&self, number: usize) -> Value {
        let labels = json!({"app": name(number)});
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name(number), "labels": labels},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{
                        "name": "main", "image": "kelson.local/demo",
                        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
                    }]},
                },
            },
        })
    }
}

fn name(number: usize) -> String {
    format!("churn-{number}")
}

/// Resolves once the cached objects satisfy `done`; looks only when something changed.
async fn until<P: Projection>(informer: &Informer<P>, done: impl Fn(&[std::sync::Arc<P>]) -> bool) {
    loop {
        let seen = informer.revision();
        if done(&informer.list()) {
            return;
        }
        informer.reached(seen + 1).await;
    }
}
