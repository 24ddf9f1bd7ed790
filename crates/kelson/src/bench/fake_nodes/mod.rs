//! Nodes without machines: they register, renew their leases, and run the pods bound to them by saying so.
//!
//! One watch of all bound pods feeds one stream of requests, so that thousands of nodes cost this process little and
//! the API server only what real kubelets would cost it. `objects` says what the API is told; `kubelet` when.

mod kubelet;
mod objects;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use client::{
    Client, DeleteOptions, Https, HttpsConfig, Informer, ListOptions, Metadata, Projection, resources,
};
use futures::{StreamExt, TryStreamExt};
use lifecycle::{Stop, Tasks};
use pki::Kubeconfig;
use serde::Deserialize;
use serde_json::Value;
use tracing::warn;

use kubelet::Kubelets;
use objects::{FAKE_LABEL, Shape};

/// Requests that are under way at once, over all nodes.
const CONCURRENCY: usize = 256;
/// A lease lasts 40 s; kubelets renew it four times as often.
const RENEW_EVERY: u64 = 10;
/// Without other news kubelets tell their status this often.
const HEARTBEAT_EVERY: u64 = 300;
const READY_DEADLINE: Duration = Duration::from_secs(120);

/// What the nodes look like.
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// What their names begin with
    #[arg(long, default_value = "fake-node-")]
    pub prefix: String,
    /// Cores of each
    #[arg(long, default_value_t = 32)]
    pub cpu: u32,
    /// Memory of each, in GiB
    #[arg(long, default_value_t = 256)]
    pub memory: u32,
    /// Pods that each may run
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// Zones to spread the nodes over; 0 gives them none
    #[arg(long, default_value_t = 0)]
    pub zones: usize,
    /// How long pods of Jobs run before they succeed, where their command does not say it (`sleep 300`); how they
    /// end it may say too (`exit 3`)
    #[arg(long, default_value = "1s", value_parser = duration)]
    pub job_pods_run: Duration,
}

/// `300ms`, `5s`, `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: Result<jiff::SignedDuration, _> = text.parse();
    parsed
        .ok()
        .and_then(|span| Duration::try_from(span).ok())
        .ok_or_else(|| format!("{text:?} is not a duration such as 5s"))
}

/// Holds fake nodes and runs what is scheduled to them until it is interrupted; then the nodes go.
#[derive(Args, Debug)]
pub struct FakeNodesBench {
    /// How to reach the cluster
    #[arg(long)]
    kubeconfig: PathBuf,
    /// How many nodes
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    #[command(flatten)]
    like: NodeArgs,
    /// Leave the Node objects behind at the end
    #[arg(long)]
    keep: bool,
}

impl FakeNodesBench {
    pub async fn run(self, stop: Stop) -> anyhow::Result<()> {
        telemetry::log_to_stderr("warn");
        let client = connect(&self.kubeconfig, "kelson-fake-nodes")?;
        let tasks = Tasks::new();
        let began = Instant::now();
        let nodes = match stop.or(FakeNodes::start(&client, self.nodes, &self.like, &tasks)).await {
            Some(started) => started?,
            None => return Ok(()),
        };
        println!("{} fake nodes are ready after {:.1} s", nodes.len(), began.elapsed().as_secs_f64());
        stop.requested().await;
        tasks.drain(Duration::from_secs(5)).await;
        if !self.keep {
            nodes.remove().await?;
        }
        Ok(())
    }
}

/// A client over one connection of its own.
pub fn connect(kubeconfig: &Path, user_agent: &str) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::load(kubeconfig)?;
    Ok(Client::new(Https::new(HttpsConfig::from_kubeconfig(&kubeconfig, None)?)?, user_agent))
}

/// Running fake nodes; they stop with the tasks they were started on.
pub struct FakeNodes {
    client: Client,
    names: Vec<String>,
}

/// What is looked at while nodes become ready.
#[derive(Deserialize)]
struct Node {
    metadata: Metadata,
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Value>,
}

impl Projection for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl FakeNodes {
    /// Registers the nodes, starts their kubelets, and returns once pods can be scheduled to all of them.
    pub async fn start(
        client: &Client,
        count: usize,
        like: &NodeArgs,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        let shape = Arc::new(Shape::new(like));
        Kubelets::start(client, &shape, count, like.job_pods_run, tasks);
        Self::stand(client, count, &shape, tasks).await
    }

    /// Nodes that stay alive, but leave the pods bound to them as they are.
    pub async fn without_kubelets(
        client: &Client,
        count: usize,
        like: &NodeArgs,
        tasks: &Tasks,
    ) -> anyhow::Result<Self> {
        Self::stand(client, count, &Arc::new(Shape::new(like)), tasks).await
    }

    /// These nodes as they may be already, to be removed whether or not all came to be.
    pub fn left_behind(client: &Client, count: usize, like: &NodeArgs) -> Self {
        Self::named(client, count, &Shape::new(like))
    }

    fn named(client: &Client, count: usize, shape: &Shape) -> Self {
        Self { client: client.clone(), names: (0..count).map(|number| shape.name(number)).collect() }
    }

    async fn stand(client: &Client, count: usize, shape: &Arc<Shape>, tasks: &Tasks) -> anyhow::Result<Self> {
        futures::stream::iter(0..count)
            .map(|number| register(client, shape, number))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot register the nodes")?;
        let (pulse, all) = (client.clone(), shape.clone());
        tasks.spawn("fake-node-leases", |stop| async move {
            stop.or(keep_alive(&pulse, &all, count)).await;
        });
        let nodes = Self::named(client, count, shape);
        nodes.wait_until_schedulable(tasks).await?;
        Ok(nodes)
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// A node is born with a taint that the node lifecycle controller takes away when it has seen it ready.
    async fn wait_until_schedulable(&self, tasks: &Tasks) -> anyhow::Result<()> {
        let watching = Tasks::under(&tasks.stop());
        let which = ListOptions::labels(FAKE_LABEL);
        let informer = Informer::<Node>::start(&self.client, &resources::NODES, "", which, &watching);
        let ready = async {
            informer.synced().await;
            loop {
                let seen = informer.revision();
                let clean = informer.list().iter().filter(|node| node.spec.taints.is_empty()).count();
                if clean >= self.names.len() {
                    return;
                }
                informer.reached(seen + 1).await;
            }
        };
        let outcome = tokio::time::timeout(READY_DEADLINE, ready).await;
        watching.drain(Duration::from_secs(1)).await;
        outcome
            .context("the nodes did not lose their taints in time: does the node lifecycle controller run?")
    }

    /// Deletes the Node objects; their leases go with them.
    pub async fn remove(self) -> anyhow::Result<()> {
        let nodes = self.client.api(&resources::NODES);
        futures::stream::iter(self.names.iter())
            .map(|name| {
                let nodes = nodes.clone();
                async move {
                    match nodes.delete(name, &DeleteOptions::default()).await {
                        Err(error) if !error.is_not_found() => Err(error),
                        _ => Ok(()),
                    }
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect::<Vec<()>>()
            .await
            .context("cannot remove the nodes")?;
        Ok(())
    }
}

/// Creates the node and its lease, or takes over those of an earlier run.
async fn register(client: &Client, shape: &Shape, number: usize) -> Result<(), client::Error> {
    let nodes = client.api(&resources::NODES);
    let now = jiff::Timestamp::now();
    let node = match nodes.create::<Value>(&shape.node(number, now)).await {
        Ok(node) => node,
        Err(error) if error.is_already_exists() => {
            let body = serde_json::json!({"status": shape.node(number, now)["status"]});
            nodes.patch_sub(&shape.name(number), "status", client::Patch::Strategic(&body)).await?
        }
        Err(error) => return Err(error),
    };
    let uid = node["metadata"]["uid"].as_str().unwrap_or_default();
    let leases = client.api(&resources::LEASES).within(objects::LEASE_NAMESPACE);
    match leases.create::<Value>(&shape.lease(number, uid, now)).await {
        Err(error) if error.is_already_exists() => renew(client, &shape.name(number), now).await,
        other => other.map(drop),
    }
}

async fn renew(client: &Client, name: &str, now: jiff::Timestamp) -> Result<(), client::Error> {
    let leases = client.api(&resources::LEASES).within(objects::LEASE_NAMESPACE);
    leases.patch::<Value>(name, client::Patch::Merge(&objects::renewal(now))).await.map(drop)
}

/// Renews a tenth of the leases each second, and tells a few statuses, so that there is never a burst.
async fn keep_alive(client: &Client, shape: &Shape, count: usize) {
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    for second in 0_u64.. {
        clock.tick().await;
        let due =
            |every: u64| (0..count).filter(move |number| (*number as u64 + second).is_multiple_of(every));
        let now = jiff::Timestamp::now();
        let leases = due(RENEW_EVERY).map(|number| (number, false));
        let all = leases.chain(due(HEARTBEAT_EVERY).map(|number| (number, true)));
        futures::stream::iter(all)
            .for_each_concurrent(CONCURRENCY, |(number, heartbeat)| async move {
                let name = shape.name(number);
                let told = if heartbeat {
                    let nodes = client.api(&resources::NODES);
                    let body = objects::heartbeat(now);
                    nodes.patch_sub::<Value>(&name, "status", client::Patch::Strategic(&body)).await.map(drop)
                } else {
                    renew(client, &name, now).await
                };
                // A node that someone deleted stays so, as with a real kubelet.
                if let Err(error) =
                    told.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
                {
                    warn!(node = name, error = %telemetry::chain(&error), "the node could not be kept alive");
                }
            })
            .await;
    }
}
