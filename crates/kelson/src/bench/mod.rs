//! `kelson bench`: the figures in `docs/benchmarks.md`, for anyone to measure again.

mod up;

use clap::Subcommand;

use crate::commands::component;

/// Measures a part of the system.
#[derive(Subcommand, Debug)]
pub enum Bench {
    Up(up::UpBench),
    Etcd(etcd::bench::BenchArgs),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(bench) => bench.run(),
            Self::Etcd(args) => component(|stop| async move { Ok(etcd::bench::run(args, stop).await?) }),
        }
    }
}
