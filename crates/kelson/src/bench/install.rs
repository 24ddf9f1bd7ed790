//! Where the time of an installation goes: `create cluster` in a fresh directory, with each step's moment, then what the
//! machines cost at rest and how long destroying them takes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use client::Client;
use jiff::Timestamp;
use lifecycle::Stop;
use measure::Processes;
use serde_json::Value;
use tokio::time::Instant;

/// Installs a cluster on machines of this host and says where the time goes.
#[derive(Args, Debug)]
pub struct InstallBench {
    /// Machines of the control plane
    #[arg(long, default_value_t = 3)]
    masters: u32,
    /// Machines for workloads
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// How far to go
    #[arg(long, value_enum, default_value = "install")]
    until: Until,
    /// How long it may take, in seconds
    #[arg(long, default_value_t = 600)]
    deadline: u64,
    /// How long to leave the machines alone before their memory is measured, in seconds
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Where the installation goes; must not exist
    #[arg(long, default_value = "/var/tmp/kelson-bench-install")]
    dir: PathBuf,
}

/// A stage of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Until {
    /// Every master has registered
    Registered,
    /// The bootstrap machine may go
    Bootstrap,
    /// The cluster is installed
    Install,
}

impl InstallBench {
    pub async fn run(self, stop: Stop) -> anyhow::Result<()> {
        ensure!(!self.dir.exists(), "{} exists; choose another with --dir", self.dir.display());
        fs::create_dir_all(&self.dir)?;
        fs::write(
            self.dir.join("install-config.yaml"),
            format!(
                "apiVersion: v1\nbaseDomain: kelson.local\nmetadata: {{name: bench}}\n\
                 networking:\n  machineNetwork: [{{cidr: 192.168.126.0/24}}]\nplatform: {{local: {{}}}}\n\
                 controlPlane: {{replicas: {}}}\ncompute: [{{replicas: {}}}]\npullSecret: '{{\"auths\":{{}}}}'\n",
                self.masters, self.workers
            ),
        )?;
        let outcome = self.measure(&stop).await;
        // Whatever happened, nothing of it stays.
        let began = Instant::now();
        let destroyed = kelson(&["destroy", "cluster"], &self.dir).output();
        println!("destroy                          {:8.2} s", began.elapsed().as_secs_f64());
        let destroyed = destroyed?;
        ensure!(destroyed.status.success(), "{}", String::from_utf8_lossy(&destroyed.stderr).trim());
        fs::remove_dir_all(&self.dir)?;
        outcome
    }

    async fn measure(&self, stop: &Stop) -> anyhow::Result<()> {
        let (began, clock) = (Timestamp::now(), Instant::now());
        let output = self.dir.join("create.json");
        let mut installer = Installer(
            kelson(&["create", "cluster", "-o", "json"], &self.dir)
                .stdin(Stdio::null())
                .stdout(fs::File::create(&output)?)
                .stderr(fs::File::create(self.dir.join("create.err"))?)
                .spawn()?,
        );
        let mut moments = Moments { began, seen: BTreeMap::new() };
        loop {
            self.look(&mut moments, &output).await;
            if moments.seen.contains_key(self.last_moment()) {
                break;
            }
            if let Some(status) = installer.0.try_wait()? {
                let said = fs::read_to_string(self.dir.join("create.err")).unwrap_or_default();
                bail!("create cluster ended with {status}: {}", said.trim());
            }
            if clock.elapsed() >= Duration::from_secs(self.deadline) {
                moments.print();
                let last = fs::read_to_string(&output).unwrap_or_default();
                let last = last.lines().last().unwrap_or("nothing").to_owned();
                bail!("not within {} s; it last said {last}", self.deadline);
            }
            if stop.or(tokio::time::sleep(Duration::from_millis(100))).await.is_none() {
                bail!("interrupted");
            }
        }
        drop(installer);
        moments.print();
        if stop.or(tokio::time::sleep(Duration::from_secs(self.idle))).await.is_none() {
            bail!("interrupted");
        }
        self.costs().await
    }

    fn last_moment(&self) -> &'static str {
        match self.until {
            Until::Registered => "all masters registered",
            Until::Bootstrap => "bootstrap complete",
            Until::Install => "installed",
        }
    }

    /// Notes what happened since the last look; what happened on machines has their own clock's time, which is the host's.
    async fn look(&self, moments: &mut Moments, output: &Path) {
        let text = fs::read_to_string(output).unwrap_or_default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let Some(event) = line["event"].as_str() else { continue };
            match event {
                "bootstrap is complete" => moments.note("bootstrap complete", time(&line["time"])),
                "bootstrap: powered off" => moments.note("bootstrap powered off", time(&line["time"])),
                "installed" => moments.note("installed", Some(Timestamp::now())),
                other => {
                    if let Some((name, _)) = other.split_once(": booting") {
                        moments.note(&format!("{name} boots"), time(&line["time"]));
                    }
                }
            }
        }
        let record = self.dir.join("local/machines/bootstrap/var/log/openshift/bootkube.json");
        let record: Vec<Value> =
            fs::read(record).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        for entry in record.iter().filter(|entry| entry["result"] == "success") {
            if let Some(stage) = entry["stage"].as_str() {
                moments.note(&format!("bootkube {stage}"), time(&entry["timestamp"]));
            }
        }
        let Ok(client) = installer::bootstrap::connect(&self.dir.join("auth/kubeconfig"), "kelson-bench")
        else {
            return;
        };
        let nodes = nodes(&client).await;
        if !nodes.is_empty() {
            moments.note("API answers", Some(Timestamp::now()));
        }
        for node in &nodes {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            moments.note(&format!("{name} registered"), Some(Timestamp::now()));
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True") {
                moments.note(&format!("{name} ready"), Some(Timestamp::now()));
            }
        }
        let masters = nodes
            .iter()
            .filter(|node| node["metadata"]["labels"].get("node-role.kubernetes.io/master").is_some());
        if masters.count() >= self.masters as usize {
            moments.note("all masters registered", Some(Timestamp::now()));
        }
    }

    /// Memory of all processes of the machines, shared pages counted once among them.
    async fn costs(&self) -> anyhow::Result<()> {
        let metadata: Value = serde_json::from_slice(&fs::read(self.dir.join("metadata.json"))?)?;
        let id = metadata["infraID"].as_str().context("metadata.json has no infraID")?;
        let processes = Processes::new(of_cluster(id));
        let memory = processes.memory().context("the machines have no processes")?;
        println!("memory of all machines at rest   {:8.1} MiB PSS", memory as f64 / 1048576.0);
        Ok(())
    }
}

/// Ends with its owner, so that nothing goes on behind a failed run.
struct Installer(Child);

impl Drop for Installer {
    fn drop(&mut self) {
        // One that has ended already is as it should be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kelson(words: &[&str], dir: &Path) -> Command {
    // The machines' own copy would do as well; this is the one that is measured.
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "kelson".into()));
    command.args(words).arg("--dir").arg(dir);
    command
}

async fn nodes(client: &Client) -> Vec<Value> {
    let asked = client.get_path::<Value>("/api/v1/nodes");
    match tokio::time::timeout(Duration::from_secs(2), asked).await {
        Ok(Ok(list)) => list["items"].as_array().cloned().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// Processes in the control groups of a cluster.
fn of_cluster(id: &str) -> Vec<u32> {
    let group = format!("/kelson/{id}");
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        fs::read_to_string(entry.path().join("cgroup")).ok()?.contains(&group).then_some(pid)
    })
    .collect()
}

/// When each step was first seen.
struct Moments {
    began: Timestamp,
    seen: BTreeMap<String, Timestamp>,
}

impl Moments {
    fn note(&mut self, what: &str, when: Option<Timestamp>) {
        if let Some(when) = when {
            self.seen.entry(what.to_owned()).or_insert(when);
        }
    }

    fn print(&self) {
        let mut all: Vec<(&String, &Timestamp)> = self.seen.iter().collect();
        all.sort_by_key(|(_, when)| **when);
        let mut last = self.began;
        for (what, when) in all {
            let since = when.duration_since(self.began).as_secs_f64();
            let step = when.duration_since(last).as_secs_f64();
            println!("{what:<32} {since:8.2} s  (+{step:.2})");
            last = *when;
        }
    }
}
