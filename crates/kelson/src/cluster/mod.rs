//! `kelson create cluster` and `kelson destroy cluster`: the installer's plan, made of machines of this host.
//!
//! Every step looks at what is there and does what is missing, so a second run goes on where the first one stopped.

mod look;
mod view;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use installer::cli::{CliError, ClusterRequest};
use installer::local::{Plan, lead_kubeconfig};
use installer::nodes::Role;
use installer::wait::WaitError;
use lifecycle::Stop;
use machines::cluster::{Cluster, ClusterError, Forward, Record, Shared};
use machines::machine::Machine;
use serde_json::json;
use tokio::time::Instant;

use look::{Eyes, Seen};
use view::View;

type Screen = View<std::io::Stdout>;

/// How long operators must be settled, as `wait-for install-complete` has it.
const SETTLE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);

/// A stage that is waited for, with its patience and exit code.
struct Stage {
    name: &'static str,
    late: &'static str,
    minutes: u64,
    code: u8,
    judge: fn(&Seen) -> &Result<(), String>,
    settle: Duration,
}

const BOOTSTRAP: Stage = Stage {
    name: "bootstrap",
    late: "the bootstrap machine did not finish",
    minutes: 65,
    code: 5,
    judge: |seen| &seen.bootstrap,
    settle: Duration::ZERO,
};

const INSTALL: &[Stage] = &[
    Stage {
        name: "install",
        late: "the cluster version did not become available",
        minutes: 40,
        code: 6,
        judge: |seen| &seen.version,
        settle: Duration::ZERO,
    },
    Stage {
        name: "operators",
        late: "the operators did not settle",
        minutes: 30,
        code: 7,
        judge: |seen| &seen.operators,
        settle: SETTLE,
    },
];

/// Makes the machines of the installation in a directory and waits until the cluster is installed.
pub async fn create(request: &ClusterRequest, stop: &Stop) -> anyhow::Result<()> {
    let dir = request.dir.as_path();
    let mut view = View::stdout(request.json);
    let plan = Plan::read(dir)?;
    // A cluster whose bootstrap machine has gone is past this.
    let mark = dir.join("local/bootstrap-complete");
    let mut is_over = mark.exists();
    let cluster = ensure(dir, &plan, is_over)?;
    let port = cluster.shared().forwards.first().map(|forward| forward.listen.port()).unwrap_or_default();
    lead_kubeconfig(dir, &plan.domain, port)?;
    for node in &plan.nodes.nodes {
        // Workers come once the masters carry the API, and then the bootstrap machine does not come again.
        let is_wanted = match node.role {
            Role::Bootstrap => !is_over,
            Role::Worker => is_over,
            Role::Master | Role::Arbiter => true,
        };
        if is_wanted {
            start_machine(dir, &cluster, &plan, &node.name, &mut view)?;
        }
    }
    let kubeconfig = absolute(&dir.join("auth/kubeconfig"));
    view.event(&format!(
        "API: https://127.0.0.1:{port} (api.{}:6443 on the machines' network)",
        plan.domain
    ))?;
    view.event(&format!("export KUBECONFIG={}", kubeconfig.display()))?;
    let mut eyes = Eyes::open(dir, &cluster, &plan)?;
    if !is_over {
        reach(&BOOTSTRAP, &mut eyes, stop, &mut view).await?;
        std::fs::write(&mark, "").with_context(|| format!("cannot write {}", mark.display()))?;
        is_over = true;
    }
    retire_bootstrap(dir, &cluster, &mut view)?;
    for node in plan.nodes.with_role(Role::Worker).filter(|_| is_over) {
        start_machine(dir, &cluster, &plan, &node.name, &mut view)?;
    }
    for stage in INSTALL {
        reach(stage, &mut eyes, stop, &mut view).await?;
    }
    let password = std::fs::read_to_string(dir.join("auth/kubeadmin-password")).unwrap_or_default();
    let api = format!("https://127.0.0.1:{port}");
    let result = json!({
        "event": "installed", "api": api, "kubeconfig": kubeconfig, "user": "kubeadmin", "password": password.trim(),
    });
    let text = format!(
        "installed\nAPI: {api}\nexport KUBECONFIG={}\nuser kubeadmin, password {}",
        kubeconfig.display(),
        password.trim()
    );
    Ok(view.finish(&result, &text)?)
}

/// Waits for a stage, showing what is seen meanwhile.
async fn reach(stage: &Stage, eyes: &mut Eyes<'_>, stop: &Stop, view: &mut Screen) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(60 * stage.minutes);
    let mut true_since = None;
    loop {
        let seen = eyes.look(stage.name).await?;
        view.show(&seen.picture)?;
        match (stage.judge)(&seen) {
            Ok(()) => {
                let since = *true_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= stage.settle {
                    return Ok(view.event(&format!("{} is complete", stage.name))?);
                }
            }
            Err(reason) => {
                true_since = None;
                if Instant::now() >= end {
                    let (what, minutes, code) = (stage.late, stage.minutes, stage.code);
                    let seen = std::iter::once(reason.clone()).chain(seen.picture.waits).collect::<Vec<_>>();
                    let late = WaitError::Late { what, minutes, seen: seen.join("; "), code };
                    return Err(CliError::Wait(late).into());
                }
            }
        }
        if stop.or(tokio::time::sleep(PAUSE)).await.is_none() {
            return Err(CliError::Wait(WaitError::Interrupted).into());
        }
    }
}

/// Takes the bootstrap machine out of the load balancer, which goes on with connections that stand, and powers it off.
fn retire_bootstrap(dir: &Path, cluster: &Cluster, view: &mut Screen) -> anyhow::Result<()> {
    balance(dir, true)?;
    cluster.ensure_network()?;
    match cluster.stop("bootstrap", Duration::from_secs(120)) {
        Ok(()) => Ok(view.event("bootstrap: powered off")?),
        Err(ClusterError::NotRunning(_) | ClusterError::NoMachine(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The load balancer's configuration: the installation's, without the bootstrap machine once that has gone. The user's own
/// file stays as it is.
fn balance(dir: &Path, without_bootstrap: bool) -> anyhow::Result<()> {
    let from = dir.join("haproxy.cfg");
    let text = std::fs::read_to_string(&from).with_context(|| format!("cannot read {}", from.display()))?;
    let is_kept = |line: &&str| !(without_bootstrap && line.trim_start().starts_with("server bootstrap "));
    let text: String = text.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
    let (local, to) = (dir.join("local"), dir.join("local/haproxy.cfg"));
    let hidden = dir.join("local/haproxy.cfg.new");
    std::fs::create_dir_all(&local).with_context(|| format!("cannot make {}", local.display()))?;
    std::fs::write(&hidden, text)
        .and_then(|()| std::fs::rename(&hidden, &to))
        .with_context(|| format!("cannot write {}", to.display()))
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
fn ensure(dir: &Path, plan: &Plan, without_bootstrap: bool) -> anyhow::Result<Cluster> {
    balance(dir, without_bootstrap)?;
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
        load_balancer: Some("local/haproxy.cfg".into()),
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
    view: &mut Screen,
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
        Ok(()) => {
            let address = node.addresses.first().map(ToString::to_string).unwrap_or_default();
            Ok(view.event(&format!("{name}: booting at {address}"))?)
        }
        Err(ClusterError::Running(_)) => Ok(view.event(&format!("{name}: running"))?),
        Err(error) => Err(error.into()),
    }
}
