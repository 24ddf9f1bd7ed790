//! `kelson up --detach`: the same start in a process of its own, watched until the cluster is ready.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::checklist::{Checklist, Progress};
use super::{Layout, UpArgs};

/// Starts the cluster's process and returns once it says that it is ready, or why it is not.
pub fn start(args: &UpArgs, layout: &Layout) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find the kelson binary")?;
    let mut command = Command::new(binary);
    command.args(["up", "--report", "--data-dir"]).arg(layout.root());
    command.args(["--bind", &args.bind.to_string(), "--log", &args.log]);
    if let Some(kubeconfig) = &args.kubeconfig {
        let kubeconfig = std::path::absolute(kubeconfig).context("cannot resolve the kubeconfig's path")?;
        command.arg("--kubeconfig").arg(kubeconfig);
    }
    for range in &args.load_balancer_pool {
        command.args(["--load-balancer-pool", &range.to_string()]);
    }
    for (flag, range) in [("--pod-cidr", args.pod_cidr), ("--service-cidr", args.service_cidr)] {
        if let Some(range) = range {
            command.args([flag, &range.to_string()]);
        }
    }
    for (flag, given) in [
        ("--control-plane-only", args.control_plane_only),
        ("--no-audit", args.no_audit),
        ("--no-secret-encryption", args.no_secret_encryption),
    ] {
        if given {
            command.arg(flag);
        }
    }
    // A group of its own keeps the terminal's Ctrl-C away from the cluster.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    // What a panic says belongs in the log; without a place to log, the start fails by itself and says so.
    let log = OpenOptions::new().create(true).append(true).open(layout.log());
    command.stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
    let mut child = command.spawn().context("cannot start the cluster's process")?;
    let stdout = child.stdout.take().context("the child has no output")?;
    let list = Checklist::for_stdout();
    for line in BufReader::new(stdout).lines() {
        let line = line.context("cannot read the cluster's progress")?;
        let Ok(progress) = serde_json::from_str::<Progress>(&line) else { continue };
        list.tell(&progress);
        match progress {
            Progress::Ready { .. } => return Ok(()),
            Progress::Failed { message } => bail!("{message}"),
            Progress::Begin { .. } | Progress::Done { .. } => {}
        }
    }
    let status = child.wait().context("cannot wait for the cluster's process")?;
    bail!("the cluster's process ended early ({status}); its log is {}", layout.log().display())
}
