//! Every command the binary knows, one line each; the work is in the component's crate.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, CommandFactory, Parser, Subcommand};
use client::{Client, Https, HttpsConfig};
use container_runtime::ImageArgs;
use installer::cli::{AnalyzeArgs, CreateArgs, ExplainArgs, GatherArgs, GraphArgs, PkiArgs, WaitForArgs};
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
    Analyze(AnalyzeArgs),
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
    ClusterEtcdOperator(operators::etcd::ClusterEtcdOperatorArgs),
    /// Runs API servers on the nodes of the control plane
    ClusterKubeApiserverOperator(operators::library::operand::StaticPodOperatorArgs),
    /// Runs controller managers on the nodes of the control plane
    ClusterKubeControllerManagerOperator(operators::library::operand::StaticPodOperatorArgs),
    /// Runs schedulers on the nodes of the control plane
    ClusterKubeSchedulerOperator(operators::library::operand::StaticPodOperatorArgs),
    Registry(registry::RegistryArgs),
    Adm(adm_release::AdmArgs),
    KubeProxy(Box<kube_proxy::KubeProxyArgs>),
    PodNetwork(pod_network::agent::PodNetworkArgs),
    Coredns(cluster_dns::program::CorednsArgs),
    ClusterDnsOperator(operators::dns::ClusterDnsOperatorArgs),
    ClusterNetworkOperator(operators::network::ClusterNetworkOperatorArgs),
    MachineApprover(Box<operators::machine_approver::MachineApproverArgs>),
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
                Some(request) => {
                    component(|stop| async move { crate::cluster::create(&request, &stop).await })
                }
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
            Command::Gather(args) => {
                component(|_| async move { Ok(args.run(&mut std::io::stdout()).await?) })
            }
            Command::Analyze(args) => {
                component(|_| async move { Ok(args.run(&mut std::io::stdout()).await?) })
            }
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
            Command::ClusterEtcdOperator(args) => component(|stop| async move { Ok(args.run(stop).await?) }),
            Command::ClusterKubeApiserverOperator(args) => component(|stop| async move {
                Ok(args.run(operators::kube_apiserver::KubeApiserverOperator, stop).await?)
            }),
            Command::ClusterKubeControllerManagerOperator(args) => component(|stop| async move {
                let operator = operators::kube_controller_manager::KubeControllerManagerOperator;
                Ok(args.run(operator, stop).await?)
            }),
            Command::ClusterKubeSchedulerOperator(args) => component(|stop| async move {
                Ok(args.run(operators::kube_scheduler::KubeSchedulerOperator, stop).await?)
            }),
            Command::Adm(args) => component(|stop| async move {
                let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
                match stop.or(args.run(crate::images::for_releases, &mut out, &mut err)).await {
                    Some(outcome) => Ok(outcome?),
                    None => anyhow::bail!("interrupted"),
                }
            }),
            Command::Registry(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| async move { Ok(args.run(stop, &mut std::io::stdout()).await?) })
            }
            Command::KubeProxy(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| proxy(*args, stop))
            }
            Command::PodNetwork(args) => component(|stop| crate::pod_network::run(args, stop)),
            Command::Coredns(args) => {
                telemetry::log_to_stderr("info");
                component(|stop| async move { Ok(args.run(stop).await?) })
            }
            Command::ClusterDnsOperator(args) => component(|stop| async move { Ok(args.run(stop).await?) }),
            Command::ClusterNetworkOperator(args) => {
                component(|stop| async move { Ok(args.run(stop).await?) })
            }
            Command::MachineApprover(args) => component(|stop| async move { Ok(args.run(stop).await?) }),
            Command::Bench(bench) => bench.run(),
        }
    }
}

/// Called by the name of a component, as in that component's image, the program is it: `kube-apiserver --flag` is
/// `kelson kube-apiserver --flag`.
pub fn by_name(mut args: Vec<OsString>) -> Vec<OsString> {
    let called = args.first().and_then(|name| Path::new(name).file_name()?.to_str());
    // `oc` and `kubectl` have commands of their own.
    let mut components = release::components::COMPONENTS.iter().filter_map(|component| component.program());
    let component = components.find(|name| called == Some(*name) && *name != "oc");
    if let Some(name) = component {
        args.splice(0..1, ["kelson".into(), name.into()]);
    }
    args
}

/// Called `etcdctl` or `etcdutl`, or with one of them as its command, it is that program, with its exit codes.
pub fn etcd_tool(arguments: &[OsString]) -> Option<std::process::ExitCode> {
    let name =
        |word: &OsString| Path::new(word).file_name().and_then(|name| name.to_str().map(str::to_owned));
    let is_tool = |name: &Option<String>| matches!(name.as_deref(), Some("etcdctl" | "etcdutl"));
    let called = arguments.first().map(name).filter(is_tool).flatten();
    let asked = arguments.get(1).and_then(|word| word.to_str()).map(|word| Some(word.to_owned()));
    let asked = asked.filter(is_tool).flatten();
    let (tool, rest) = match (called, asked) {
        (Some(tool), _) => (tool, arguments.to_vec()),
        (None, Some(tool)) => (tool, arguments[1..].to_vec()),
        (None, None) => return None,
    };
    if tool == "etcdutl" {
        return Some(etcd::ctl::etcdutl(rest).into());
    }
    let mut code = 1;
    let outcome = component(|stop| async {
        code = etcd::ctl::etcdctl(rest, stop).await;
        Ok(())
    });
    match outcome {
        Ok(()) => Some(code.into()),
        Err(error) => {
            eprintln!("Error: {error:#}");
            Some(std::process::ExitCode::FAILURE)
        }
    }
}

async fn proxy(args: kube_proxy::KubeProxyArgs, stop: Stop) -> anyhow::Result<()> {
    if args.cleanup {
        return Ok(kube_proxy::remove_rules(kube_proxy::TABLE)?);
    }
    let config = args.complete()?;
    let https = match &config.kubeconfig {
        Some(path) => HttpsConfig::from_kubeconfig(&Kubeconfig::load(path)?, None)?,
        None => HttpsConfig::in_cluster()?,
    };
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
    fn the_binary_is_etcdctl_and_etcdutl_by_name_and_by_command() {
        let is_tool = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            etcd_tool(&words).is_some()
        };
        assert!(is_tool(&["/usr/bin/etcdutl", "version"]) && is_tool(&["kelson", "etcdutl", "version"]));
        assert!(is_tool(&["etcdctl", "version"]) && is_tool(&["kelson", "etcdctl", "version"]));
        assert!(!is_tool(&["kelson", "etcd"]) && !is_tool(&[]) && !is_tool(&["kelson"]));
    }

    #[test]
    fn the_binary_answers_to_every_components_name() {
        for name in release::components::programs() {
            if cli::Program::named(std::ffi::OsStr::new(name)).is_some() {
                assert_eq!(by_name(vec![name.into()]), [name]);
                continue;
            }
            let args = by_name(vec![format!("/usr/bin/{name}").into(), "--x".into()]);
            assert_eq!(args, ["kelson", name, "--x"]);
            assert!(Kelson::command().find_subcommand(name).is_some(), "{name}");
        }
        assert_eq!(by_name(vec!["/usr/bin/kelson".into(), "up".into()]), ["/usr/bin/kelson", "up"]);
        assert!(by_name(Vec::new()).is_empty());
    }
}
