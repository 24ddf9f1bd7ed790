//! `kelson create cluster` and `kelson destroy cluster`: the installer's plan, made of machines of this host.
//!
//! Every step looks at what is there and does what is missing, so a second run goes on where the first one stopped.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use client::Client;
use installer::bootstrap::{cause, connect, error_text, records};
use installer::local::{Plan, lead_kubeconfig};
use installer::nodes::Role;
use lifecycle::Stop;
use machines::cluster::{Cluster, ClusterError, Forward, Record, Shared};
use machines::machine::Machine;
use serde_json::Value;
use tokio::time::Instant;

/// How long the bootstrap machine may take, as `wait-for bootstrap-complete` has it.
const PATIENCE: Duration = Duration::from_secs(65 * 60);

/// Makes the machines of the installation in a directory and waits until the bootstrap machine is no longer needed.
pub async fn create(dir: &Path, stop: &Stop, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let plan = Plan::read(dir)?;
    let cluster = ensure(dir, &plan)?;
    let port = cluster.shared().forwards.first().map(|forward| forward.listen.port()).unwrap_or_default();
    lead_kubeconfig(dir, &plan.domain, port)?;
    // A cluster whose bootstrap machine has gone is past this.
    let bootstrap_is_over = dir.join("local/bootstrap-complete").exists();
    for node in &plan.nodes.nodes {
        // Workers come once the masters carry the API, and then the bootstrap machine does not come again.
        let is_wanted = match node.role {
            Role::Bootstrap => !bootstrap_is_over,
            Role::Worker => bootstrap_is_over,
            Role::Master | Role::Arbiter => true,
        };
        if !is_wanted {
            continue;
        }
        start_machine(dir, &cluster, &plan, &node.name, out)?;
    }
    writeln!(out, "API: https://127.0.0.1:{port} (api.{}:6443 on the machines' network)", plan.domain)?;
    writeln!(out, "export KUBECONFIG={}", absolute(&dir.join("auth/kubeconfig")).display())?;
    if !bootstrap_is_over {
        wait_for_bootstrap(dir, &cluster, &plan, stop, out).await?;
        std::fs::write(dir.join("local/bootstrap-complete"), "")?;
        cluster.stop("bootstrap", Duration::from_secs(60))?;
        writeln!(out, "bootstrap: powered off")?;
        for node in plan.nodes.with_role(Role::Worker) {
            start_machine(dir, &cluster, &plan, &node.name, out)?;
        }
    }
    installer::wait::wait(installer::wait::Stage::Install, dir, out).await?;
    Ok(())
}

/// Ends the machines of a directory and removes all that they left.
pub fn destroy(dir: &Path, out: &mut dyn Write) -> anyhow::Result<()> {
    match Cluster::open(dir) {
        Ok(cluster) => {
            cluster.destroy()?;
            writeln!(out, "the machines of {} are gone", dir.display())?;
        }
        Err(ClusterError::Absent(_)) => writeln!(out, "there are no machines in {}", dir.display())?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn absolute(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The switch, the names, the load balancer, and the port of this host that leads to the API.
fn ensure(dir: &Path, plan: &Plan) -> anyhow::Result<Cluster> {
    let to = plan.api().context("the installation has no address for its API")?;
    let known = match Cluster::open(dir) {
        Ok(cluster) => cluster.shared().forwards.iter().copied().find(|forward| forward.to == to),
        Err(ClusterError::Absent(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let forward = match known {
        Some(forward) => forward,
        None => Forward { listen: free_port(6443)?, to },
    };
    let records = plan.records().into_iter().map(|(name, addresses)| Record { name, addresses });
    let shared = Shared {
        id: plan.infra_id.clone(),
        domain: plan.domain.clone(),
        addresses: plan.switch_addresses(),
        records: records.collect(),
        forwards: vec![forward],
        load_balancer: Some("haproxy.cfg".into()),
    };
    let program = std::env::current_exe().context("cannot find the kelson binary")?;
    let cluster = Cluster::ensure(dir, shared, &program)?;
    cluster.ensure_network()?;
    Ok(cluster)
}

/// The port of loopback that is wanted, or any that is free.
fn free_port(wanted: u16) -> anyhow::Result<SocketAddr> {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = bind(wanted).or_else(|_| bind(0)).context("this host has no free port")?;
    Ok(listener.local_addr()?)
}

fn start_machine(
    dir: &Path,
    cluster: &Cluster,
    plan: &Plan,
    name: &str,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let node = plan.nodes.nodes.iter().find(|node| node.name == name).context("no such machine")?;
    let machine = Machine {
        name: node.name.clone(),
        role: node.role.name().to_owned(),
        addresses: node.addresses.iter().filter_map(|address| plan.in_network(*address)).collect(),
        gateways: plan.nodes.gateways.clone(),
        nameservers: plan.nodes.nameservers.clone(),
        search: vec![plan.domain.clone()],
        memory_mib: plan.memory_mib,
        cpus: plan.cpus,
    };
    let path = dir.join(plan.ignition_of(node));
    let ignition = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    match cluster.add(&machine, &ignition) {
        Ok(_) | Err(ClusterError::Exists(_)) => {}
        Err(error) => return Err(error.into()),
    }
    match cluster.start(name) {
        Ok(()) => writeln!(
            out,
            "{name}: booting at {}",
            node.addresses.first().map(ToString::to_string).unwrap_or_default()
        )?,
        Err(ClusterError::Running(_)) => writeln!(out, "{name}: running")?,
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Waits for ConfigMap kube-system/bootstrap, saying why whenever that changes.
async fn wait_for_bootstrap(
    dir: &Path,
    cluster: &Cluster,
    plan: &Plan,
    stop: &Stop,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let client = connect(&dir.join("auth/kubeconfig"), "kelson-create-cluster")?;
    let masters: Vec<String> =
        plan.nodes.with_role(Role::Master).map(|node| format!("{}.{}", node.name, plan.domain)).collect();
    let end = Instant::now() + PATIENCE;
    let mut said: Vec<String> = Vec::new();
    loop {
        let (done, causes) = look(dir, cluster, &client, &masters).await?;
        // Each cause once: some come and go, such as a unit between two starts.
        for cause in causes.iter().filter(|cause| !said.contains(cause)) {
            writeln!(out, "waiting: {cause}")?;
        }
        said.extend(causes.iter().filter(|cause| !said.contains(cause)).cloned().collect::<Vec<_>>());
        if done {
            writeln!(out, "bootstrap is complete")?;
            return Ok(());
        }
        if Instant::now() >= end {
            bail!("bootstrapping did not end; it waits: {}", causes.join("; "));
        }
        if stop.or(tokio::time::sleep(Duration::from_millis(500))).await.is_none() {
            bail!("interrupted; the machines go on, and the same command does too");
        }
    }
}

/// Whether bootstrapping is complete, and if not, every cause that can be seen.
async fn look(
    dir: &Path,
    cluster: &Cluster,
    client: &Client,
    masters: &[String],
) -> anyhow::Result<(bool, Vec<String>)> {
    let mut causes = Vec::new();
    for place in cluster.places()? {
        let seen = cluster.seen(&place)?;
        let is_well = matches!(seen.state.as_str(), "running" | "starting" | "booting");
        if !is_well {
            causes
                .push(format!("{}: {} {}", seen.machine.name, seen.state, seen.detail).trim_end().to_owned());
        }
    }
    let record = dir.join("local/machines/bootstrap/var/log/openshift/bootkube.json");
    if let Some(stage) = std::fs::read(&record).ok().and_then(|text| records::summary(&text)) {
        causes.push(format!("bootstrap: bootkube {stage}"));
    }
    let items = |list: Value| list["items"].as_array().cloned().unwrap_or_default();
    let map = "/api/v1/namespaces/kube-system/configmaps/bootstrap";
    match client.get_path::<Value>(map).await {
        Ok(object) if object["data"]["status"] == "complete" => return Ok((true, causes)),
        Ok(_) => {}
        Err(error) if error.is_not_found() => {}
        Err(error) => {
            causes.push(format!("the API does not answer: {}", error_text(&error)));
            return Ok((false, causes));
        }
    }
    let requests = client.get_path::<Value>("/apis/certificates.k8s.io/v1/certificatesigningrequests").await;
    let nodes = client.get_path::<Value>("/api/v1/nodes").await;
    match (requests, nodes) {
        (Ok(requests), Ok(nodes)) => {
            causes.extend(cause::of_machines(masters, &items(requests), &items(nodes)))
        }
        (Err(error), _) | (_, Err(error)) => causes.push(format!("the API refuses: {}", error_text(&error))),
    }
    Ok((false, causes))
}
