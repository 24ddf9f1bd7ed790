//! What a cluster costs: the time to start it and a pod, and its memory and CPU when nothing happens.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use client::{Client, DeleteOptions, Https, HttpsConfig, ListOptions, WatchEvent, resources};
use measure::{Latencies, Processes};
use pki::Kubeconfig;
use serde_json::{Value, json};

/// Starts clusters in a fresh directory and measures start, pod latency, idle memory and idle CPU.
#[derive(Args, Debug)]
pub struct UpBench {
    /// How many cold starts
    #[arg(long, default_value_t = 5)]
    starts: u32,
    /// How many pods, one after the other
    #[arg(long, default_value_t = 20)]
    pods: u32,
    /// How long to leave the cluster alone before and while idle costs are measured, in seconds
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Where the clusters' data goes; must not exist
    #[arg(long, default_value = "/var/tmp/kelson-bench")]
    data_dir: PathBuf,
    /// The image to run
    #[arg(long, default_value = "kelson.local/demo")]
    image: String,
}

impl UpBench {
    pub fn run(self) -> anyhow::Result<()> {
        if self.data_dir.exists() {
            bail!("{} exists; choose another with --data-dir", self.data_dir.display());
        }
        let outcome = self.measure();
        // Whatever happened, nothing of the last cluster stays.
        let cleaned = self.kelson(&["down", "--purge"]);
        outcome.and(cleaned.map(drop))
    }

    fn measure(&self) -> anyhow::Result<()> {
        let binary = std::env::current_exe()?;
        println!("binary size            {:8.1} MB", fs::metadata(&binary)?.len() as f64 / 1e6);
        let mut starts = Latencies::new();
        for round in 0..self.starts {
            let began = Instant::now();
            self.kelson(&["up", "--detach"])?;
            starts.push(began.elapsed());
            if round + 1 < self.starts {
                self.kelson(&["down", "--purge"])?;
            }
        }
        print("cold start until Ready", &starts);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let kubeconfig = Kubeconfig::load(&self.data_dir.join("admin.kubeconfig"))?;
            let client =
                Client::new(Https::new(HttpsConfig::from_kubeconfig(&kubeconfig, None)?)?, "kelson-bench");
            print("pod create to Running", &self.run_pods(&client).await?);
            self.idle_costs().await
        })
    }

    fn kelson(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(std::env::current_exe()?)
            .args(words)
            .arg("--data-dir")
            .arg(&self.data_dir)
            .output()?;
        if !output.status.success() {
            bail!("kelson {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// From the request that creates a pod until a watch shows it Running; one pod at a time.
    async fn run_pods(&self, client: &Client) -> anyhow::Result<Latencies> {
        let api = client.api(&resources::PODS).within("default");
        self.wait_for_account(client).await?;
        let mut latencies = Latencies::new();
        for number in 0..self.pods {
            let name = format!("bench-{number}");
            let list = api.list::<Value>(&ListOptions::default()).await?;
            let from = ListOptions {
                field_selector: format!("metadata.name={name}"),
                resource_version: list.metadata.resource_version,
                ..ListOptions::default()
            };
            let mut changes = api.watch(&from, 60).await?;
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": self.image}]},
            });
            let began = Instant::now();
            api.create::<Value>(&pod).await?;
            loop {
                let event = changes.next().await.context("the watch ended before the pod ran")??;
                let (WatchEvent::Added(raw) | WatchEvent::Modified(raw)) = event else { continue };
                let pod: Value = raw.decode()?;
                if pod["status"]["phase"] == "Running" {
                    break;
                }
            }
            latencies.push(began.elapsed());
            api.delete(&name, &DeleteOptions::default().grace(0)).await?;
        }
        Ok(latencies)
    }

    async fn wait_for_account(&self, client: &Client) -> anyhow::Result<()> {
        let accounts = client.api(&resources::SERVICE_ACCOUNTS).within("default");
        let deadline = Instant::now() + Duration::from_secs(30);
        while accounts.find::<Value>("default").await?.is_none() {
            if Instant::now() > deadline {
                bail!("no default service account within 30 s");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn idle_costs(&self) -> anyhow::Result<()> {
        let idle = Duration::from_secs(self.idle);
        tokio::time::sleep(idle).await;
        let status: Value = serde_json::from_str(&self.kelson(&["status", "-o", "json"])?)?;
        let processes = status["processes"].as_array().context("no processes")?;
        let memory: u64 = processes.iter().filter_map(|process| process["pssBytes"].as_u64()).sum();
        println!(
            "idle memory (PSS)      {:8.1} MiB in {} processes",
            memory as f64 / f64::from(1 << 20),
            processes.len()
        );
        let pids = processes.iter().filter_map(|process| process["pid"].as_u64());
        let own = Processes::new(pids.filter_map(|pid| u32::try_from(pid).ok()));
        let before = own.cpu().unwrap_or_default();
        tokio::time::sleep(idle).await;
        let used = own.cpu().context("a process of the cluster has ended")?.saturating_sub(before);
        let share = used.as_secs_f64() / idle.as_secs_f64() * 100.0;
        println!("idle CPU               {share:8.2} % of a core");
        Ok(())
    }
}

fn print(what: &str, times: &Latencies) {
    let [median, p99] =
        times.percentiles([0.5, 0.99]).unwrap_or_default().map(|micros| f64::from(micros) / 1e3);
    println!("{what:<22} {median:8.1} ms median, {p99:.1} ms p99, {} runs", times.len());
}
