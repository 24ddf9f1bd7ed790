//! `kelson bench`: the figures in `docs/benchmarks.md`, for anyone to measure again.

mod up;

use clap::Subcommand;

/// Measures a part of the system.
#[derive(Subcommand, Debug)]
pub enum Bench {
    Up(up::UpBench),
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(bench) => bench.run(),
        }
    }
}
