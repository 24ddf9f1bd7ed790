//! `kelson down`: stops a cluster and its pods; with `--purge` nothing of it is left.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use crate::instance::{self, Claim};
use crate::node;
use crate::up::{DataDir, Layout};

/// How long the cluster's process may take to end by itself.
const STOP_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Stops a cluster and its pods.
#[derive(Args, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    data: DataDir,
    /// Also remove the data and every interface, rule, mount and control group that the cluster made
    #[arg(long)]
    purge: bool,
}

impl DownArgs {
    pub fn run(self) -> anyhow::Result<()> {
        let layout = self.data.layout();
        if !layout.root().exists() {
            println!("no cluster in {}", layout.root().display());
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.stop(&layout))
    }

    async fn stop(&self, layout: &Layout) -> anyhow::Result<()> {
        let was_running = instance::is_running(layout);
        if was_running {
            stop_process(layout).await?;
        }
        // From here on nobody can start it again under our hands.
        let claim = Claim::take(layout)?;
        let pods = match node::stop_pods(layout).await {
            // A purge ends what is left in whatever way it takes.
            Err(failure) if self.purge => {
                eprintln!("pods could not be stopped in order: {failure:#}");
                0
            }
            stopped => stopped?,
        };
        println!("{}", if was_running { "cluster stopped" } else { "no cluster was running" });
        if pods > 0 {
            println!("{pods} pods stopped");
        }
        if self.purge {
            node::purge(layout).await?;
            drop(claim);
            fs::remove_dir_all(layout.root())
                .with_context(|| format!("cannot remove {}", layout.root().display()))?;
            println!("{} removed", layout.root().display());
        }
        Ok(())
    }
}

/// Asks the process to end and waits until its lock is free.
async fn stop_process(layout: &Layout) -> anyhow::Result<()> {
    let owner =
        instance::owner(layout).context("the lock of the data directory does not say who holds it")?;
    let pid = Pid::from_raw(owner).context("the lock of the data directory names no process")?;
    kill_process(pid, Signal::TERM).with_context(|| format!("cannot signal process {owner}"))?;
    let deadline = Instant::now() + STOP_DEADLINE;
    while instance::is_running(layout) {
        if Instant::now() > deadline {
            bail!(
                "process {} did not end within {} s; its log is {}",
                owner,
                STOP_DEADLINE.as_secs(),
                layout.log().display()
            );
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
