//! Every command the binary knows, one line each; the work is in the component's crate.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context;
use clap::{Args, CommandFactory, Parser, Subcommand};
use client::{Client, Https, HttpsConfig};
use container_runtime::ImageArgs;
use container_runtime::image::builtin::COMPONENTS;
use installer::cli::{CreateArgs, ExplainArgs, GatherArgs, GraphArgs, PkiArgs, WaitForArgs};
use lifecycle::Stop;
use pki::Kubeconfig;
use tokio::signal::unix::{SignalKind, signal};

use crate::bench::Bench;
use crate::down::DownArgs;
use crate::status::StatusArgs;
use crate::up::{DataDir, UpArgs};

/// Kubernetes in one binary.
#[derive(Parser)]
#[command(name = "kelson", version, propagate_version = true)]
pub struct Kelson {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Up(UpArgs),
    Down(DownArgs),
    Status(StatusArgs),
    Image(ImageCommand),
    Create(CreateArgs),
    /// Removes what was created
    #[command(subcommand)]
    Destroy(DestroyTarget),
    #[command(hide = true)]
    Bootstrap(installer::bootstrap::BootstrapArgs),
    ClusterBootstrap(installer::bootstrap::cluster_bootstrap::ClusterBootstrapArgs),
    #[command(hide = true)]
    NodeIp(installer::bootstrap::node_ip::NodeIpArgs),
    WaitFor(WaitForArgs),
    Gather(GatherArgs),
    Graph(GraphArgs),
    Explain(ExplainArgs),
    Pki(PkiArgs),
    Machine(machines::cli::MachineArgs),
    LoadBalancer(machines::load_balancer::LoadBalancerArgs),
    Etcd(Box<etcd::EtcdArgs>),
    /// Runs the API server alone, with upstream's flags.
    KubeApiserver(Box<apiserver::KubeApiserverArgs>),
    /// Runs the controllers alone, with upstream's flags.
    KubeControllerManager(Box<controller_manager::KubeControllerManagerArgs>),
    /// Runs the cloud loops alone, with upstream's flags.
    CloudControllerManager(Box<cloud_controller_manager::CloudControllerManagerArgs>),
    Kubelet(Box<kubelet::KubeletArgs>),
    ContainerRuntime(crate::container_runtime::ContainerRuntimeArgs),
    KubeScheduler(Box<scheduler::KubeSchedulerArgs>),
    ClusterVersionOperator(operators::version::ClusterVersionOperatorArgs),
    KubeProxy(Box<kube_proxy::KubeProxyArgs>),
    #[command(subcommand)]
    Bench(Bench),
}

/// What can be destroyed.
#[derive(Subcommand)]
enum DestroyTarget {
    /// Ends the machines of an installation on this host and removes them with their disks
    Cluster(installer::cli::DirArgs),
}

/// Imports, lists and removes images.
#[derive(Args)]
struct ImageCommand {
    #[command(flatten)]
    data: DataDir,
    #[command(flatten)]
    image: ImageArgs,
}

/// Whether a word that kubectl has too is meant for a command of ours: what the installer creates and explains, and whatever
/// else stands in [`Command`].
pub fn is_own(word: &str, arguments: &[OsString]) -> bool {
    let command = Kelson::command();
    let Some(own) = command.find_subcommand(word) else { return false };
    let next = arguments.get(2).and_then(|word| word.to_str()).unwrap_or_default();
    match word {
        "create" | "adm" => own.find_subcommand(next).is_some(),
        "explain" => next
            .split('.')
            .next()
            .is_some_and(|subject| matches!(subject, "install-config" | "installconfig")),
        _ => true,
    }
}

impl Kelson {
    /// Reads the command line, as [`by_name`] left it.
    pub fn from_command_line(args: Vec<OsString>) -> Self {
        Self::parse_from(args)
    }

    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Up(args) => args.run(),
            Command::Down(args) => args.run(),
            Command::Status(args) => args.run(),
            Command::Image(command) => {
                let root = command.data.layout().images();
                Ok(command.image.run(&root, &mut std::io::stdout().lock())?)
            }
            Command::Create(args) => match args.run(&mut std::io::stdout())? {
                None => Ok(()),
                Some(dir) => component(|stop| async move {
                    crate::cluster::create(&dir, &stop, &mut std::io::stdout()).await
                }),
            },
            Command::Destroy(DestroyTarget::Cluster(args)) => {
                crate::cluster::destroy(&args.dir, &mut std::io::stdout())
            }
            Command::Bootstrap(args) => component(|stop| async move {
                match stop.or(args.run()).await {
                    Some(outcome) => Ok(outcome?),
                    None => Ok(()),
                }
            }),
            Command::ClusterBootstrap(args) => component(|stop| async move {
                match stop.or(args.run()).await {
                    Some(outcome) => Ok(outcome?),
                    None => anyhow::bail!("interrupted"),
                }
            }),
            Command::NodeIp(args) => component(|_| async move { Ok(args.run().await?) }),
            Command::WaitFor(args) => component(|stop| async move {
                let mut out = std::io::stdout();
                match stop.or(args.run(&mut out)).await {
                    Some(outcome) => Ok(outcome?),
                    None => anyhow::bail!("interrupted while waiting"),
                }
            }),
            Command::Gather(args) => Ok(args.run(&mut std::io::stdout().lock())?),
            Command::Graph(args) => Ok(args.run(&mut std::io::stdout().lock())?),
            Command::Explain(args) => Ok(args.run(&mut std::io::stdout().lock())?),
            Command::Pki(args) => Ok(args.run(&mut std::io::stdout().lock())?),
            Command::Machine(args) => Ok(args.run(&mut std::io::stdout())?),
            Command::LoadBalancer(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| async move { Ok(args.run(&stop).await?) })
            }
            Command::Etcd(args) => {
                telemetry::log_to_stderr(args.log_filter());
                component(|stop| async move { Ok(etcd::run(*args, stop).await?) })
            }
            Command::KubeApiserver(args) => {
                args.start_logging();
                component(|stop| async move { Ok(apiserver::run(*args, &stop).await?) })
            }
            Command::KubeControllerManager(args) => {
                args.loops.program.start_logging();
                component(|stop| async move { Ok(controller_manager::run(*args, &stop).await?) })
            }
            Command::CloudControllerManager(args) => {
                args.loops.program.start_logging();
                component(|stop| async move { Ok(cloud_controller_manager::run(*args, &stop).await?) })
            }
            Command::Kubelet(args) => {
                let settings = args.load()?;
                settings.start_logging();
                component(|stop| crate::kubelet::run(settings, stop))
            }
            Command::ContainerRuntime(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| args.run(stop))
            }
            Command::KubeScheduler(args) => {
                args.program.start_logging();
                component(|stop| async move { Ok(scheduler::run(*args, &stop).await?) })
            }
            Command::ClusterVersionOperator(args) => {
                component(|stop| async move { Ok(args.run(stop, &mut std::io::stdout()).await?) })
            }
            Command::KubeProxy(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| proxy(*args, stop))
            }
            Command::Bench(bench) => bench.run(),
        }
    }
}

/// Called by the name of a component, as in that component's image, the program is it: `kube-apiserver --flag` is
/// `kelson kube-apiserver --flag`.
pub fn by_name(mut args: Vec<OsString>) -> Vec<OsString> {
    let called = args.first().and_then(|name| Path::new(name).file_name()?.to_str());
    let component = COMPONENTS.into_iter().find(|name| called == Some(name));
    if let Some(name) = component {
        args.splice(0..1, ["kelson".into(), name.into()]);
    }
    args
}

async fn proxy(args: kube_proxy::KubeProxyArgs, stop: Stop) -> anyhow::Result<()> {
    if args.cleanup {
        return Ok(kube_proxy::remove_rules()?);
    }
    let config = args.complete()?;
    let path = config.kubeconfig.as_ref().context("kube-proxy needs --kubeconfig")?;
    let https = HttpsConfig::from_kubeconfig(&Kubeconfig::load(path)?, None)?;
    let client = Client::new(Https::new(https)?, "kube-proxy");
    Ok(kube_proxy::run(config, client, stop).await?)
}

/// Runs a single component until SIGINT or SIGTERM.
pub fn component<F>(run: impl FnOnce(Stop) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = Stop::new();
        let work = run(stop.clone());
        tokio::pin!(work);
        tokio::select! {
            outcome = &mut work => return outcome,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            never = crate::memory::settle() => match never {},
        }
        stop.request();
        tokio::select! {
            outcome = &mut work => outcome,
            _ = interrupt.recv() => anyhow::bail!("interrupted again while stopping"),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_binary_answers_to_every_components_name() {
        for name in COMPONENTS {
            let args = by_name(vec![format!("/usr/bin/{name}").into(), "--x".into()]);
            assert_eq!(args, ["kelson", name, "--x"]);
            assert!(Kelson::command().find_subcommand(name).is_some(), "{name}");
        }
        assert_eq!(by_name(vec!["/usr/bin/kelson".into(), "up".into()]), ["/usr/bin/kelson", "up"]);
        assert!(by_name(Vec::new()).is_empty());
    }
}
