//! `kelson bench api`: what an API server does in a second and what it costs, against any kubeconfig.
//!
//! Everything happens in two namespaces of its own, which are removed at the end. The server is measured from outside:
//! its process is found by the port that it listens on, or given with `--pid`. A server whose store is another
//! process can be measured with it by giving both.

mod load;
mod objects;
mod watching;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use client::{Endpoint, HttpsConfig};
use http::Method;
use lifecycle::{Stop, Tasks};
use measure::{Figure, Form, Latencies, Processes, Report};
use pki::Kubeconfig;
use serde_json::json;

use load::{Caller, Done, Limit, Load};
use objects::Kind;
use watching::Plan;

/// How long a started server may take until it is ready, and a namespace until it is gone.
const PATIENCE: Duration = Duration::from_secs(60);
/// The objects that each client changes and reads.
const OWN: u64 = 8;
const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";

/// Measures API servers: requests, lists, watches, memory.
#[derive(Args, Clone, Debug)]
pub struct ApiBench {
    /// How to reach the server; `NAME=FILE` gives it a name in the table
    #[arg(long, value_name = "[NAME=]FILE")]
    kubeconfig: Target,
    /// Measure another server in the same run
    #[arg(long, value_name = "[NAME=]FILE")]
    compare: Vec<Target>,
    /// The processes of the first server [default: the one that listens on the port in the kubeconfig]
    #[arg(long, value_delimiter = ',')]
    pid: Vec<u32>,
    /// Start the first server with this command, measure the time until /readyz, start it again with the listed pods stored,
    /// and stop it at the end
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// What to run, by the beginning of its name
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds per scenario
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Concurrent clients
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// Connections that clients and watchers share
    #[arg(long, default_value_t = 8)]
    connections: usize,
    /// Numbers of pods to list and to hold in memory
    #[arg(long, value_delimiter = ',', default_value = "10000")]
    pods: Vec<u64>,
    /// Seconds to leave the server alone and measure what that costs; 0 leaves it out
    #[arg(long, default_value_t = 0)]
    idle: u64,
    /// A second per scenario, 200 pods, few watchers
    #[arg(long)]
    quick: bool,
    /// Leave the namespace with its objects
    #[arg(long)]
    keep: bool,
    /// How to print the figures
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// A server to measure.
#[derive(Clone, Debug)]
struct Target {
    name: String,
    file: PathBuf,
}

impl std::str::FromStr for Target {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.split_once('=') {
            Some((name, file)) => Self { name: name.to_owned(), file: file.into() },
            None => Self { name: String::new(), file: text.into() },
        })
    }
}

impl ApiBench {
    pub async fn run(self, stop: Stop, out: &mut dyn Write) -> anyhow::Result<()> {
        let form = if self.output == Output::Json { Form::Json } else { Form::Text };
        let mut report = Report::new(form);
        let outcome = self.servers(&stop, &mut report, out).await;
        report.finish(out)?;
        outcome
    }

    async fn servers(&self, stop: &Stop, report: &mut Report, out: &mut dyn Write) -> anyhow::Result<()> {
        for (index, target) in std::iter::once(&self.kubeconfig).chain(&self.compare).enumerate() {
            let first = index == 0;
            let command = self.start.as_deref().filter(|_| first);
            let mut started = command.map(Started::begin).transpose()?;
            let config = wait_for_config(target, started.is_some()).await?;
            let ready = match &started {
                Some(started) => Some(started.ready(&config).await?),
                None => None,
            };
            let tasks = Tasks::under(stop);
            let mut run = self.run_on(target, index, &config, &tasks).await?;
            if let Some(took) = ready {
                report.add(run.start("start until /readyz", took), out)?;
            }
            let mut outcome = match run.prepare().await {
                Ok(()) => stop.or(run.scenarios(report, out)).await.unwrap_or(Ok(())),
                failed => failed,
            };
            if let Some(command) = command
                && self.wants("list")
                && outcome.is_ok()
            {
                // The old one ends, and saves what it has, before the new one begins.
                drop(started.take());
                let again = started.insert(Started::begin(command)?);
                let took = again.ready(&config).await?;
                run = self.run_on(target, index, &config, &tasks).await?;
                let scenario = format!("start with {} pods stored", self.sizes().iter().max().unwrap_or(&0));
                outcome = report.add(run.start(&scenario, took), out).map_err(Into::into);
            }
            if !self.keep {
                for namespace in [&run.namespace, &run.full_namespace] {
                    run.remove_namespace(namespace).await?;
                }
            }
            tasks.drain(Duration::from_secs(5)).await;
            outcome?;
            if stop.is_requested() {
                break;
            }
        }
        Ok(())
    }

    /// Connects to a server and finds its processes.
    async fn run_on(
        &self,
        target: &Target,
        index: usize,
        config: &HttpsConfig,
        tasks: &Tasks,
    ) -> anyhow::Result<Run<'_>> {
        let load = Load::connect(config, self.connections, tasks).await?;
        let processes = if index == 0 && !self.pid.is_empty() {
            Processes::new(self.pid.iter().copied())
        } else {
            Processes::listening_on(Endpoint::new(config)?.port())
        };
        let name = match target.name.as_str() {
            "" => version(&load).await?,
            name => name.to_owned(),
        };
        let namespace = format!("bench-{}-{index}", std::process::id());
        let full_namespace = format!("{namespace}-full");
        Ok(Run { args: self, load, tasks: tasks.clone(), processes, name, namespace, full_namespace })
    }

    /// The numbers of pods to list.
    fn sizes(&self) -> &[u64] {
        if self.quick { &[200] } else { &self.pods }
    }

    fn wants(&self, scenario: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|start| scenario.starts_with(start.as_str()))
    }

    fn time(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { self.seconds.max(1) })
    }
}

/// A server that starts may write its kubeconfig only then.
async fn wait_for_config(target: &Target, starting: bool) -> anyhow::Result<HttpsConfig> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Kubeconfig::load(&target.file).map(|file| HttpsConfig::from_kubeconfig(&file, None)) {
            Ok(config) => return Ok(config?),
            Err(_) if starting && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", target.file.display()));
            }
        }
    }
}

async fn version(load: &Load) -> anyhow::Result<String> {
    let body = load.caller(0).get("/version").await?.expect()?;
    let version: serde_json::Value = serde_json::from_slice(&body)?;
    Ok(version["gitVersion"].as_str().unwrap_or("unknown").to_owned())
}

/// A server that was started for the measurement; it ends with this value.
struct Started {
    child: Child,
    began: Instant,
}

impl Started {
    fn begin(command: &str) -> anyhow::Result<Self> {
        let began = Instant::now();
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {command}"))?;
        Ok(Self { child, began })
    }

    /// The time from the start until the server says that it is ready.
    async fn ready(&self, config: &HttpsConfig) -> anyhow::Result<Duration> {
        let tasks = Tasks::new();
        while self.began.elapsed() < PATIENCE {
            if let Ok(load) = Load::connect(config, 1, &tasks).await
                && load.caller(0).get("/readyz").await.is_ok_and(|answer| answer.code.is_success())
            {
                let took = self.began.elapsed();
                tasks.drain(Duration::from_secs(1)).await;
                return Ok(took);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bail!("the started server is not ready after {} s", PATIENCE.as_secs())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It may have ended by itself. A server that is told to end saves what it has.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// One server in one run.
struct Run<'a> {
    args: &'a ApiBench,
    load: Load,
    tasks: Tasks,
    processes: Processes,
    name: String,
    namespace: String,
    /// Where the pods are that are listed, and no others.
    full_namespace: String,
}

/// What clients do over and over.
#[derive(Clone, Copy, Debug)]
enum Work {
    Create,
    Get,
    Put,
    Patch,
    Apply,
}

impl Run<'_> {
    /// The namespace, and the account that pods need where nobody makes one.
    async fn prepare(&self) -> anyhow::Result<()> {
        let caller = self.load.caller(0);
        for name in [&self.namespace, &self.full_namespace] {
            let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}});
            caller.ensure("/api/v1/namespaces", namespace.to_string().into()).await?;
            let account =
                json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default"}});
            let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
            caller.ensure(&path, account.to_string().into()).await?;
        }
        Ok(())
    }

    /// The time that a start took, and the memory after it.
    fn start(&self, scenario: &str, took: Duration) -> Figure {
        let times: Latencies = [took].into_iter().collect();
        let mut figure = Figure::of(scenario, &self.name, &times, took.as_secs_f64());
        figure.memory_bytes = self.processes.memory();
        figure
    }

    async fn scenarios(&self, report: &mut Report, out: &mut dyn Write) -> anyhow::Result<()> {
        let clients = self.args.clients.max(1);
        if self.args.idle > 0 && self.args.wants("idle") {
            report.add(self.idle().await?, out)?;
        }
        let own = AtomicU64::new(0);
        for (scenario, kind, work, clients) in [
            ("configmap create", Kind::ConfigMap, Work::Create, clients),
            ("configmap create, one client", Kind::ConfigMap, Work::Create, 1),
            ("configmap get", Kind::ConfigMap, Work::Get, clients),
            ("configmap get and put", Kind::ConfigMap, Work::Put, clients),
            ("configmap merge patch", Kind::ConfigMap, Work::Patch, clients),
            ("configmap apply", Kind::ConfigMap, Work::Apply, clients),
            ("pod create", Kind::Pod, Work::Create, clients),
            ("pod get and put", Kind::Pod, Work::Put, clients),
            ("pod strategic patch", Kind::Pod, Work::Patch, clients),
            ("pod apply", Kind::Pod, Work::Apply, clients),
        ] {
            if self.args.wants(scenario) {
                // Names of another run of a scenario are not used again.
                let run = own.fetch_add(1, Ordering::Relaxed);
                let figure = self.requests(scenario, kind, work, clients, run).await?;
                report.add(figure, out)?;
            }
        }
        let few = self.args.quick;
        for (scenario, plan) in [
            (
                "watch, 100 changes/s",
                Plan {
                    watchers: if few { 20 } else { 200 },
                    writers: 1,
                    rate: Some(100),
                    time: self.args.time(),
                },
            ),
            (
                "watch, flat out",
                Plan { watchers: if few { 10 } else { 50 }, writers: 8, rate: None, time: self.args.time() },
            ),
        ] {
            if self.args.wants(scenario) {
                report.add(self.watches(scenario, plan).await?, out)?;
            }
        }
        let mut have = 0;
        for size in self.args.sizes().iter().copied().filter(|_| self.args.wants("list")) {
            report.add(self.fill(have, size).await?, out)?;
            have = have.max(size);
            report.add(self.list(size).await?, out)?;
        }
        Ok(())
    }

    /// Runs something and says what it cost.
    async fn figure(&self, scenario: &str, done: impl Future<Output = Done>) -> Figure {
        let before = self.processes.cpu();
        let done = done.await;
        let mut figure = Figure::of(scenario, &self.name, &done.times, done.seconds);
        self.cost(&mut figure, before);
        figure.errors = done.errors;
        figure.remark = done.first_error.map(|error| error.replace(['|', '\n'], " ")).unwrap_or_default();
        figure
    }

    fn cost(&self, figure: &mut Figure, before: Option<Duration>) {
        let used = self.processes.cpu().zip(before).map(|(after, before)| after.saturating_sub(before));
        figure.cpu_micros = used.map(|used| used.as_secs_f64() * 1e6 / figure.count.max(1) as f64);
        figure.memory_bytes = self.processes.memory();
    }

    async fn idle(&self) -> anyhow::Result<Figure> {
        let time = Duration::from_secs(self.args.idle);
        let before = self.processes.cpu();
        tokio::time::sleep(time).await;
        let mut figure = Figure {
            scenario: "idle".to_owned(),
            server: self.name.clone(),
            count: self.args.idle,
            ..Figure::default()
        };
        self.cost(&mut figure, before);
        if let Some(micros) = figure.cpu_micros {
            figure.remark = format!("{:.2} % of a core", micros / 1e4);
        }
        Ok(figure)
    }

    async fn requests(
        &self,
        scenario: &str,
        kind: Kind,
        work: Work,
        clients: usize,
        run: u64,
    ) -> anyhow::Result<Figure> {
        // Every client has objects of its own, so that none waits for another's change.
        let (base, path) = (run * 5_000_000, Arc::<str>::from(kind.path(&self.namespace)));
        let object = Arc::new(kind.object());
        if !matches!(work, Work::Create) {
            let (object, path) = (object.clone(), path.clone());
            let total = clients as u64 * OWN;
            let made = self
                .load
                .run(clients, Limit::Count(total), move |caller, _, number| {
                    let (object, path) = (object.clone(), path.clone());
                    async move {
                        let name = objects::name((number / OWN) as usize, base + number % OWN);
                        if matches!(work, Work::Apply) {
                            apply(&caller, &path, &name, object.fill(&name, 0)).await
                        } else {
                            caller.ensure(&path, object.fill(&name, 0)).await
                        }
                    }
                })
                .await;
            if let Some(error) = made.first_error {
                bail!("cannot make the objects of {scenario}: {error}");
            }
        }
        let patch = Arc::new(kind.patch());
        let done = self.load.run(clients, Limit::Time(self.args.time()), move |caller, client, number| {
            let (object, patch, path) = (object.clone(), patch.clone(), path.clone());
            async move {
                if matches!(work, Work::Create) {
                    let name = objects::name(client, base + number);
                    let body = object.fill(&name, number);
                    return caller.call(Method::POST, &path, JSON, body).await?.expect().map(drop);
                }
                let name = objects::name(client, base + number % OWN);
                let url = format!("{path}/{name}");
                match work {
                    Work::Create | Work::Get => caller.get(&url).await?.expect().map(drop),
                    Work::Put => {
                        let old = caller.get(&url).await?.expect()?;
                        let new = objects::recount(&old, number + 1).context("the object has no count")?;
                        caller.call(Method::PUT, &url, JSON, new).await?.expect().map(drop)
                    }
                    Work::Patch => {
                        let body = patch.fill("", number + 1);
                        caller.call(Method::PATCH, &url, kind.patch_type(), body).await?.expect().map(drop)
                    }
                    Work::Apply => apply(&caller, &path, &name, object.fill(&name, number + 1)).await,
                }
            }
        });
        Ok(self.figure(scenario, done).await)
    }

    async fn watches(&self, scenario: &str, plan: Plan) -> anyhow::Result<Figure> {
        let before = self.processes.cpu();
        let seen = watching::run(&self.load, &self.tasks, &self.namespace, plan).await?;
        let mut figure = Figure::of(scenario, &self.name, &seen.delays, seen.seconds);
        figure.count = seen.events;
        figure.per_second = seen.events as f64 / seen.seconds.max(1e-9);
        self.cost(&mut figure, before);
        figure.errors = seen.errors;
        let cores = figure.cpu_micros.unwrap_or(0.0) * figure.per_second / 1e6;
        figure.remark = format!(
            "{} watchers, {} changes, {cores:.2} cores; lost {}, duplicate {}, out of order {}, cut {}",
            plan.watchers, seen.changes, seen.lost, seen.duplicates, seen.disordered, seen.cut
        );
        if let Some(error) = seen.first_error {
            figure.remark.push_str("; ");
            figure.remark.push_str(&error.replace(['|', '\n'], " "));
        }
        Ok(figure)
    }

    /// Creates pods until there are `size` of these.
    async fn fill(&self, have: u64, size: u64) -> anyhow::Result<Figure> {
        // Beside the names that other scenarios use.
        const BASE: u64 = 90_000_000;
        let path = Arc::<str>::from(Kind::Pod.path(&self.full_namespace));
        let object = Arc::new(Kind::Pod.object());
        let missing = Limit::Count(size.saturating_sub(have));
        let done = self.load.run(self.args.clients.max(1), missing, move |caller, _, number| {
            let (object, path) = (object.clone(), path.clone());
            async move {
                let name = objects::name(999, BASE + have + number);
                caller.ensure(&path, object.fill(&name, number)).await
            }
        });
        Ok(self.figure(&format!("list: fill up to {size} pods"), done).await)
    }

    async fn list(&self, size: u64) -> anyhow::Result<Figure> {
        let url = Kind::Pod.path(&self.full_namespace);
        let bytes = Arc::new(AtomicU64::new(0));
        let seen = bytes.clone();
        let done = self.load.run(1, Limit::Time(self.args.time()), move |caller: Caller, _, _| {
            let (url, seen) = (url.clone(), seen.clone());
            async move {
                seen.store(caller.get_size(&url).await? as u64, Ordering::Relaxed);
                Ok(())
            }
        });
        let mut figure = self.figure(&format!("list {size} pods"), done).await;
        if figure.errors == 0 {
            figure.remark = format!("{:.1} MB", bytes.load(Ordering::Relaxed) as f64 / 1e6);
        }
        Ok(figure)
    }

    /// Removes everything, also where no controller does.
    async fn remove_namespace(&self, namespace: &str) -> anyhow::Result<()> {
        let caller = self.load.caller(0);
        let own = format!("/api/v1/namespaces/{namespace}");
        for kind in [Kind::ConfigMap, Kind::Pod] {
            let url = format!("{}?gracePeriodSeconds=0", kind.path(namespace));
            caller.call(Method::DELETE, &url, JSON, Bytes::new()).await?.expect()?;
        }
        caller.call(Method::DELETE, &own, JSON, Bytes::new()).await?.expect()?;
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let answer = caller.get(&own).await?;
            if answer.code == http::StatusCode::NOT_FOUND {
                return Ok(());
            }
            // A server without controllers leaves the last step to its client.
            if began.elapsed() > Duration::from_secs(5) {
                let mut object: serde_json::Value = serde_json::from_slice(&answer.expect()?)?;
                object["spec"]["finalizers"] = json!([]);
                let url = format!("{own}/finalize");
                // Another may be quicker; whether it is gone is asked again.
                let _ = caller.call(Method::PUT, &url, JSON, object.to_string().into()).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("the namespace {namespace} is still there")
    }
}

async fn apply(caller: &Caller, path: &str, name: &str, body: Bytes) -> anyhow::Result<()> {
    let url = format!("{path}/{name}?fieldManager=kelson-bench&force=true");
    caller.call(Method::PATCH, &url, APPLY, body).await?.expect().map(drop)
}

#[cfg(test)]
mod tests;
