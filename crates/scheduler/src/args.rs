//! `kelson kube-scheduler`, with upstream's flags.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use controller_runtime::program::{ProgramArgs, ProgramError, Status};
use lifecycle::Stop;
use thiserror::Error;

use crate::Config;
use crate::config::{self, ConfigError, Settings};
use crate::metrics::Metrics;

const PORT: u16 = 10259;

/// Assigns pods to nodes.
#[derive(Args, Clone, Debug)]
pub struct KubeSchedulerArgs {
    /// A KubeSchedulerConfiguration
    #[arg(long)]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub program: ProgramArgs,
}

/// A scheduler that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot read the configuration {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration {path} cannot be used", path = path.display())]
    Config { path: PathBuf, source: ConfigError },
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl Status for Metrics {
    fn metrics(&self) -> String {
        self.to_string()
    }
}

/// Runs until the stop.
pub async fn run(args: KubeSchedulerArgs, stop: &Stop) -> Result<(), StartError> {
    let settings = match &args.config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| StartError::Read { path: path.clone(), source })?;
            config::parse(&text).map_err(|source| StartError::Config { path: path.clone(), source })?
        }
    };
    let program = args.program.complete("kube-scheduler", PORT)?;
    let metrics = Arc::new(Metrics::default());
    let status = metrics.clone();
    program
        .run(stop, status, |client, tasks| async move {
            crate::start(Config { client, settings, metrics }, &tasks);
        })
        .await?;
    Ok(())
}
