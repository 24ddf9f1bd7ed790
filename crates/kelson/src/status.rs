//! `kelson status`: what runs here, how it is, and what it costs.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use clap::{Args, ValueEnum};
use client::{Client, Https, HttpsConfig, ListOptions, resources};
use pki::Kubeconfig;
use serde::Serialize;
use serde_json::Value;

use crate::instance::{self, Instance};
use crate::up::{DataDir, Layout};

/// Shows components, node, addresses, uptime and memory of a cluster.
#[derive(Args, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    data: DataDir,
    /// How to print it
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// All that `status` knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    running: bool,
    data_dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<Instance>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uptime_seconds: Option<i64>,
    processes: Vec<Process>,
    components: Vec<Component>,
    nodes: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    pid: i32,
    role: String,
    /// Proportional set size: shared pages are divided among those that share them.
    pss_bytes: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Component {
    name: String,
    healthy: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    ready: bool,
    addresses: Vec<String>,
}

impl StatusArgs {
    pub fn run(self) -> anyhow::Result<()> {
        let layout = self.data.layout();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let report = runtime.block_on(gather(&layout));
        let text = match self.output {
            Output::Json => serde_json::to_string_pretty(&report)? + "\n",
            Output::Text => render(&report),
        };
        std::io::stdout().write_all(text.as_bytes()).context("cannot print the status")?;
        Ok(())
    }
}

async fn gather(layout: &Layout) -> Report {
    let running = instance::is_running(layout);
    let instance = instance::read(layout).filter(|_| running);
    let mut report = Report {
        running,
        data_dir: layout.root().display().to_string(),
        uptime_seconds: instance
            .as_ref()
            .map(|instance| jiff::Timestamp::now().duration_since(instance.started).as_secs()),
        processes: processes(Path::new("/proc"), layout),
        components: Vec::new(),
        nodes: Vec::new(),
        pods: None,
        problem: None,
        instance,
    };
    if let Some(instance) = &report.instance
        && let Err(error) = ask(&instance.kubeconfig.clone(), &mut report).await
    {
        report.problem = Some(format!("{error:#}"));
    }
    report
}

/// What only the API knows.
async fn ask(kubeconfig: &Path, report: &mut Report) -> anyhow::Result<()> {
    let kubeconfig = Kubeconfig::load(kubeconfig)?;
    let client = Client::new(Https::new(HttpsConfig::from_kubeconfig(&kubeconfig, None)?)?, "kelson-status");
    report.components = components(&client).await?;
    let nodes = client.api(&resources::NODES).list_all::<Value>(&ListOptions::default()).await?;
    report.nodes = nodes.items.iter().map(node).collect();
    let pods = client.api(&resources::PODS).list_all::<Value>(&ListOptions::default()).await?;
    report.pods = Some(pods.items.len());
    Ok(())
}

async fn components(client: &Client) -> anyhow::Result<Vec<Component>> {
    use http_body_util::BodyExt;
    let request = http::Request::get("/readyz?verbose").body(bytes::Bytes::new())?;
    let body = client.raw(request).await?.into_body().collect().await?.to_bytes();
    Ok(parse_checks(&String::from_utf8_lossy(&body)))
}

/// Lines of the form `[+]name ok` and `[-]name failed: …`.
fn parse_checks(text: &str) -> Vec<Component> {
    text.lines()
        .filter_map(|line| {
            let (healthy, rest) = match (line.strip_prefix("[+]"), line.strip_prefix("[-]")) {
                (Some(rest), _) => (true, rest),
                (_, Some(rest)) => (false, rest),
                _ => return None,
            };
            Some(Component { name: rest.split_whitespace().next()?.to_owned(), healthy })
        })
        .collect()
}

fn node(node: &Value) -> Node {
    let list = |path: &str| node.pointer(path).and_then(Value::as_array).into_iter().flatten();
    Node {
        name: node["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        ready: list("/status/conditions")
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
        addresses: list("/status/addresses")
            .filter(|address| address["type"] != "Hostname")
            .filter_map(|address| address["address"].as_str().map(str::to_owned))
            .collect(),
    }
}

/// The cluster's own processes: those of this binary that were started for this data directory.
fn processes(proc: &Path, layout: &Layout) -> Vec<Process> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let owner = instance::read(layout).map(|instance| instance.pid);
    let root = layout.root().display().to_string();
    let mut found: Vec<Process> = entries
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let command = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<String> = command
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .collect();
            let role = role(&words, &root, owner == Some(pid))?;
            let pss_bytes = pss(&fs::read_to_string(entry.path().join("smaps_rollup")).ok()?)?;
            Some(Process { pid, role, pss_bytes })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

fn role(words: &[String], root: &str, is_owner: bool) -> Option<String> {
    if is_owner {
        return Some("cluster".to_owned());
    }
    let names_us = words.iter().any(|word| word.starts_with(root));
    (words.get(1).map(String::as_str) == Some("shim") && names_us).then(|| "shim".to_owned())
}

fn pss(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn render(report: &Report) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(out, "{name:<12} {value}").expect("a string takes all");
    };
    let Some(instance) = &report.instance else {
        line("cluster", format!("not running ({})", report.data_dir));
        let shims = report.processes.len();
        if shims > 0 {
            line("pods", format!("{shims} still run; `kelson up` adopts them, `kelson down` stops them"));
        }
        return out;
    };
    let uptime = report.uptime_seconds.unwrap_or(0);
    line(
        "cluster",
        format!("running, version {}, pid {}, up {}", instance.version, instance.pid, duration(uptime)),
    );
    line("api", format!("https://{}", instance.api));
    line("kubeconfig", instance.kubeconfig.display().to_string());
    line("data", report.data_dir.clone());
    let unhealthy: Vec<&str> =
        report.components.iter().filter(|part| !part.healthy).map(|part| part.name.as_str()).collect();
    line(
        "health",
        match (&report.problem, &unhealthy[..]) {
            (Some(problem), _) => problem.clone(),
            (None, []) => format!("all {} checks pass", report.components.len()),
            (None, failing) => format!("failing: {}", failing.join(", ")),
        },
    );
    for node in &report.nodes {
        let state = if node.ready { "Ready" } else { "NotReady" };
        line("node", format!("{} {state} {}", node.name, node.addresses.join(", ")));
    }
    if let Some(pods) = report.pods {
        line("pods", pods.to_string());
    }
    let total: u64 = report.processes.iter().map(|process| process.pss_bytes).sum();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    line("memory", format!("{:.1} MiB in {} processes", mib(total), report.processes.len()));
    out
}

fn duration(seconds: i64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{}h", seconds / 86400, seconds % 86400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_read_from_the_verbose_answer() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
        let expected = [("ping", true), ("etcd", false)]
            .map(|(name, healthy)| Component { name: name.to_owned(), healthy });
        assert_eq!(parse_checks(text), expected);
    }

    #[test]
    fn only_our_own_shims_are_counted() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(
            role(&words("kelson shim --state /data/x/pod"), "/data/x", false).as_deref(),
            Some("shim")
        );
        assert_eq!(role(&words("kelson shim --state /data/y/pod"), "/data/x", false), None);
        assert_eq!(role(&words("vim /data/x/pod"), "/data/x", false), None);
        assert_eq!(role(&words("kelson up"), "/data/x", true).as_deref(), Some("cluster"));
    }

    #[test]
    fn memory_is_the_proportional_share() {
        assert_eq!(pss("00400000-7ffd [rollup]\nRss: 9 kB\nPss:      12 kB\n"), Some(12 * 1024));
    }
}
