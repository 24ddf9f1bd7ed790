//! `kelson kubelet`: the node agent as a program of its own, with the container runtime in the same process, or behind a socket
//! (`--container-runtime-endpoint`).
//!
//! Images, containers' layers and what describes the running pods are below --root-dir, cgroups below --cgroup-root: several
//! kubelets share a machine. Pods belong to their shims; the program may end at any time, and the next one adopts them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use container_runtime::Runtime;
use container_runtime::image::registry::Registries;
use cri_streaming::remote::Remote;
use kubelet::Settings;
use lifecycle::{Stop, Tasks};
use rustix::fs::FlockOperation;
use rustix::process::{Resource, Rlimit};
use tracing::{info, warn};

const DRAIN: Duration = Duration::from_secs(10);

pub async fn run(settings: Settings, stop: Stop) -> anyhow::Result<()> {
    settings.preflight()?;
    let root = settings.root_dir();
    create_private(root)?;
    let _lock = lock(&settings.lock_file())?;
    protect(&settings);
    let tasks = Tasks::under(&stop);
    let (own, config) = match settings.runtime_sockets() {
        Some((runtime, images)) => {
            let remote = Arc::new(Remote::new(&runtime, &images, &tasks));
            (None, settings.complete(remote.clone(), remote)?)
        }
        None => {
            let runtime = own_runtime(&settings).await?;
            (Some(runtime.clone()), settings.complete(runtime.clone(), runtime)?)
        }
    };
    info!(node = config.node_name, root = %root.display(), "kubelet starts");
    kubelet::start(config, &tasks).await.context("cannot start the kubelet")?;
    stop.requested().await;
    let late = tasks.drain(DRAIN).await;
    if !late.is_empty() {
        warn!(tasks = ?late, "did not stop in time");
    }
    // Pods stay: a restart of the kubelet is no reason to end them.
    if let Some(runtime) = own {
        runtime.close().await;
    }
    Ok(())
}

/// The container runtime in this process.
async fn own_runtime(settings: &Settings) -> anyhow::Result<Arc<Runtime>> {
    let root = settings.root_dir();
    let network = cni::Plugins::new(cni::PluginsConfig {
        conf_dir: settings.cni_conf_dir().to_owned(),
        bin_dirs: settings.cni_bin_dirs().to_owned(),
        cache_dir: root.join("cni"),
    });
    let config = container_runtime::Config {
        root_dir: root.join("containers"),
        state_dir: root.join("runtime"),
        cgroup_root: settings.cgroup_root().to_owned(),
        network: Arc::new(network),
        shim_exe: std::env::current_exe().context("cannot find the kelson binary")?,
        version: crate::images::VERSION.to_owned(),
        additions: crate::images::built_in()?,
        registries: Registries { auth_file: Some(root.join("config.json")), ..Registries::default() },
    };
    Runtime::open(config).await.context("cannot start the container runtime")
}

fn create_private(path: &Path) -> anyhow::Result<()> {
    pki::files::create_private_dir(path).with_context(|| format!("cannot create {}", path.display()))
}

/// Two kubelets on one directory would each end the other's pods.
fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(|| format!("cannot open the lock {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).with_context(|| {
        format!("another kubelet runs here: it holds {} (choose another --root-dir)", path.display())
    })?;
    Ok(file)
}

/// As upstream: the kernel spares the kubelet when memory runs out, and it may open many files. A machine that does not
/// allow either runs it all the same.
fn protect(settings: &Settings) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", settings.oom_score_adj().to_string()) {
        info!(%error, "cannot set the kubelet's oom_score_adj");
    }
    let files = settings.max_open_files();
    let wanted = Rlimit { current: Some(files), maximum: Some(files) };
    if rustix::process::setrlimit(Resource::Nofile, wanted).is_err() {
        // Then as many as this process may have without asking.
        let allowed = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: allowed, maximum: allowed };
        if let Err(error) = rustix::process::setrlimit(Resource::Nofile, limit) {
            warn!(%error, files, "cannot raise the number of open files");
        }
    }
}
