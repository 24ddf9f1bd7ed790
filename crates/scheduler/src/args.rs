//! `kelson kube-scheduler`, with upstream's flags.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use controller_runtime::program::{ProgramArgs, ProgramError, Status, go_duration};
use lifecycle::Stop;
use thiserror::Error;

use crate::Config;
use crate::config::{self, ConfigError, File};
use crate::metrics::Metrics;
use crate::plugins::Registry;

const PORT: u16 = 10259;

/// Assigns pods to nodes.
#[derive(Args, Clone, Debug)]
pub struct KubeSchedulerArgs {
    /// A KubeSchedulerConfiguration
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Writes the configuration with every default to this file and ends
    #[arg(long)]
    pub write_config_to: Option<PathBuf>,
    /// How long a pod that fits nowhere is set aside before it is tried again without a cause
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub pod_max_in_unschedulable_pods_duration: Duration,
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
    #[error("cannot write the configuration to {path}", path = path.display())]
    Write { path: PathBuf, source: std::io::Error },
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
    let mut args = args;
    let path = args.config.clone().unwrap_or_default();
    let told = |source| StartError::Config { path: path.clone(), source };
    let file = match &args.config {
        None => File::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| StartError::Read { path: path.clone(), source })?;
            config::read(&text).map_err(told)?
        }
    };
    let mut settings = config::build(&file, &Registry::default()).map_err(told)?;
    settings.longest_wait = args.pod_max_in_unschedulable_pods_duration.try_into().ok();
    if let Some(path) = &args.write_config_to {
        let text = file.completed().to_yaml().map_err(told)?;
        return std::fs::write(path, text).map_err(|source| StartError::Write { path: path.clone(), source });
    }
    if args.program.kubeconfig.is_none() && !file.client_connection.kubeconfig.is_empty() {
        args.program.kubeconfig = Some(file.client_connection.kubeconfig.clone().into());
    }
    if let Some(election) = &file.leader_election {
        election.apply(&mut args.program).map_err(told)?;
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: KubeSchedulerArgs,
    }

    /// Every flag that upstream's program has, each with a value that it takes there.
    #[test]
    fn every_flag_of_upstream_is_taken_or_refused_with_a_sentence() {
        for line in include_str!("args/flags.txt").lines() {
            let (flag, refusal) =
                line.split_once(" ! ").map_or((line, None), |(flag, why)| (flag, Some(why)));
            let parsed = Line::try_parse_from(["kube-scheduler", flag]).map_err(|error| error.to_string());
            match (parsed, refusal) {
                (Ok(_), None) => {}
                (Err(said), Some(why)) => assert!(said.contains(why), "{flag}: {said}"),
                (Ok(_), Some(_)) => panic!("{flag} is taken, though the table says that it is refused"),
                (Err(said), None) => panic!("{flag}: {said}"),
            }
        }
    }

    #[test]
    fn flags_arrive_where_they_are_needed() {
        let line = Line::try_parse_from([
            "kube-scheduler",
            "--pod-max-in-unschedulable-pods-duration=1m30s",
            "--leader-elect=false",
            "--secure-port=0",
            "-v=4",
        ]);
        let args = line.unwrap_or_else(|error| panic!("{error}")).args;
        assert_eq!(args.pod_max_in_unschedulable_pods_duration, Duration::from_secs(90));
        assert_eq!((args.program.leader_elect, args.program.secure_port), (false, Some(0)));
        assert_eq!(args.program.verbosity, 4);
    }
}
