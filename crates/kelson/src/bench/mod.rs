//! `kelson bench`: the figures in `docs/benchmarks.md`, for anyone to measure again.

mod api;
mod churn;
pub mod fake_nodes;
mod install;
mod schedule;
mod up;

use std::time::{Duration, Instant};

use clap::Subcommand;
use client::{Client, resources};
use serde_json::Value;

use crate::commands::component;

/// Measures a part of the system.
#[derive(Subcommand, Debug)]
pub enum Bench {
    Up(up::UpBench),
    Etcd(etcd::bench::BenchArgs),
    FakeNodes(fake_nodes::FakeNodesBench),
    Churn(churn::ChurnBench),
    Api(Box<api::ApiBench>),
    Schedule(schedule::ScheduleBench),
    Install(install::InstallBench),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(bench) => bench.run(),
            Self::FakeNodes(bench) => component(|stop| bench.run(stop)),
            Self::Churn(bench) => component(|stop| bench.run(stop)),
            Self::Schedule(bench) => bench.run(),
            Self::Install(bench) => component(|stop| bench.run(stop)),
            Self::Etcd(args) => component(|stop| async move { Ok(etcd::bench::run(args, stop).await?) }),
            Self::Api(bench) => {
                component(|stop| async move { bench.run(stop, &mut std::io::stdout()).await })
            }
        }
    }
}

/// Pods cannot be created before the namespace has its default account.
async fn wait_for_account(client: &Client, namespace: &str) -> anyhow::Result<()> {
    let accounts = client.api(&resources::SERVICE_ACCOUNTS).within(namespace);
    let deadline = Instant::now() + Duration::from_secs(30);
    while accounts.find::<Value>("default").await?.is_none() {
        anyhow::ensure!(Instant::now() < deadline, "no default service account within 30 s");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
