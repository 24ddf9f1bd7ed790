//! `kelson bench`: the figures in `docs/benchmarks.md`, for anyone to measure again.

mod api;
mod churn;
pub mod fake_nodes;
mod process;
mod up;

use clap::Subcommand;

use crate::commands::component;

/// Measures a part of the system.
#[derive(Subcommand, Debug)]
pub enum Bench {
    Up(up::UpBench),
    Etcd(etcd::bench::BenchArgs),
    FakeNodes(fake_nodes::FakeNodesBench),
    Churn(churn::ChurnBench),
    Api(Box<api::ApiBench>),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(bench) => bench.run(),
            Self::FakeNodes(bench) => component(|stop| bench.run(stop)),
            Self::Churn(bench) => component(|stop| bench.run(stop)),
            Self::Etcd(args) => component(|stop| async move { Ok(etcd::bench::run(args, stop).await?) }),
            Self::Api(bench) => {
                component(|stop| async move { bench.run(stop, &mut std::io::stdout()).await })
            }
        }
    }
}
