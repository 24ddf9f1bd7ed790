//! Every sandbox and container of this node, as the kubelet sees them.
//!
//! The truth is on disk and in the kernel: records under the state directory, shims behind their sockets. What is
//! in memory is a view of that, filled when opened ([`adopt`]) and kept by one task per shim that follows its events.
//! So the process may end at any instant: the next one finds everything.
//!
//! ```text
//! <state>/<sandbox>/sandbox.json               SandboxRecord; absent: never finished
//! <state>/<sandbox>/{shim.json,shim.sock,…}    the shim's, see `spec::files`
//! <state>/<sandbox>/{resolv.conf,hosts,hostname}
//! <state>/<sandbox>/<container>/container.json ContainerRecord; absent: never finished
//! <state>/<sandbox>/<container>/{spec,run,exit}.json
//! ```

mod adopt;
mod container;
mod images;
mod orphans;
mod sandbox;
mod service;
mod state;
mod stats;
mod streams;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use cri::{ContainerEvent, ContainerEventType};
use lifecycle::Tasks;
use thiserror::Error;
use tokio::sync::{broadcast, watch};
use tracing::{info, warn};

use crate::image::builtin::{self, Additions};
use crate::image::pull::Puller;
use crate::image::registry::{Limits, Registries};
use crate::image::store::DiskUse;
use crate::image::{ImageError, Store};
use crate::records;
use cgroups::Cgroups;
use state::State;

/// How many events a slow subscriber may be behind.
const EVENT_BACKLOG: usize = 256;
/// How long a killed process may take to be gone.
const KILL_DEADLINE: Duration = Duration::from_secs(10);
/// How long the last tasks may take when closing.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// What a runtime needs to know.
#[derive(Clone)]
pub struct Config {
    /// Images, layers and containers' writable layers: on a disk, on a filesystem that overlayfs can write to.
    pub root_dir: PathBuf,
    /// What describes the running pods. Survives the process, need not survive the machine.
    pub state_dir: PathBuf,
    /// The cgroup under which everything is put; a pod's `cgroup_parent` is relative to it. Empty: the root.
    pub cgroup_root: String,
    /// Connects pods.
    pub network: Arc<dyn cni::Network>,
    /// An executable whose main calls [`crate::dispatch`]: normally ourselves.
    pub shim_exe: PathBuf,
    /// The version under which the built-in images are tagged.
    pub version: String,
    /// Built-in images beside the runtime's own.
    pub additions: Additions,
    /// What is said of registries on this machine.
    pub registries: Registries,
}

/// Why the runtime can not work here.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Namespaces and mounts need it.
    #[error("running containers needs root: start kelson as root, or with --control-plane-only")]
    NotRoot,
    /// The image store.
    #[error("cannot open the image store")]
    Images(#[from] ImageError),
    /// The state directory.
    #[error("cannot use the state directory {path}")]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The filesystem under the root directory.
    #[error(
        "cannot stack layers in {path}: overlayfs is missing or refuses this filesystem; choose a data directory on ext4 or xfs"
    )]
    Overlay {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The in-process runtime.
pub struct Runtime {
    config: Config,
    /// The executable, open: shims are of our own build even after the file was replaced, and cannot write to it.
    shim_exe: File,
    store: Store,
    puller: Puller,
    cgroups: Cgroups,
    state: Mutex<State>,
    /// Counts changes of the state; to wait for one.
    changes: watch::Sender<u64>,
    events: broadcast::Sender<ContainerEvent>,
    tasks: Tasks,
    /// Layers do not change, so they are measured once.
    layer_sizes: Mutex<BTreeMap<String, DiskUse>>,
    me: Weak<Runtime>,
}

impl Runtime {
    /// Opens the runtime: makes the built-in images, adopts the pods that it finds, removes what was left half-done.
    pub async fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        if !rustix::process::geteuid().is_root() {
            return Err(OpenError::NotRoot);
        }
        let store = Store::open(&config.root_dir)?;
        let at = |source| OpenError::State { path: config.state_dir.clone(), source };
        records::make_private(&config.state_dir).map_err(at)?;
        probe_overlay(&config.root_dir)
            .map_err(|source| OpenError::Overlay { path: config.root_dir.clone(), source })?;
        builtin::ensure(&store, &config.shim_exe, &config.version, &config.additions)?;
        let shim_exe =
            open_unwritable(&config.shim_exe).map_err(ImageError::disk("open", &config.shim_exe))?;
        let cgroups = Cgroups::detect();
        if !matches!(cgroups, Cgroups::V2(_)) {
            info!(?cgroups, "no unified cgroup hierarchy with controllers; using what there is");
        }
        let puller = Puller::new(store.clone(), config.registries.clone(), Limits::default());
        let runtime = Arc::new_cyclic(|me| Self {
            config,
            shim_exe,
            puller,
            store,
            cgroups,
            state: Mutex::default(),
            changes: watch::Sender::new(0),
            events: broadcast::Sender::new(EVENT_BACKLOG),
            tasks: Tasks::new(),
            layer_sizes: Mutex::default(),
            me: me.clone(),
        });
        runtime.adopt_all().await?;
        let live = runtime.state().sandboxes.keys().cloned().collect();
        // Addresses that stay taken are no reason to run nothing; the next start tries again.
        if let Err(error) = runtime.config.network.gc(&live).await {
            warn!(error = %telemetry::chain(&error), "cannot disconnect all pods that are gone");
        }
        Ok(runtime)
    }

    /// Lets go of everything without disturbing any container.
    pub async fn close(&self) {
        for task in self.tasks.drain(CLOSE_DEADLINE).await {
            warn!(%task, "task did not end in time");
        }
    }

    /// Stops and removes every pod, with every mount, cgroup and process that was made for them, whatever state they are in.
    pub async fn purge(&self) -> cri::Result<()> {
        let known: Vec<String> = self.state().sandboxes.keys().cloned().collect();
        futures::future::join_all(known.iter().map(|id| self.remove_or_discard(id))).await;
        // Also what was never adopted, and shims whose directory is gone.
        let state_dir = &self.config.state_dir;
        let left: Vec<String> = std::fs::read_dir(state_dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        futures::future::join_all(left.iter().map(|id| self.discard_sandbox(id))).await;
        self.end_orphans(state_dir).await;
        orphans::unmount_below(state_dir);
        let root = &self.config.cgroup_root;
        if !root.trim_matches('/').is_empty() && !self.remove_cgroup(root).await {
            warn!(cgroup = self.config.cgroup_root, "cannot remove all cgroups");
        }
        match std::fs::read_dir(state_dir).into_iter().flatten().flatten().next() {
            None => Ok(()),
            Some(entry) => Err(cri::Error::failed(
                format!("removing sandbox {}", entry.file_name().to_string_lossy()),
                "it resists; the log says why",
            )),
        }
    }

    /// Where the images are.
    pub fn images(&self) -> &Store {
        &self.store
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// An owning handle for a task.
    fn handle(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    /// Runs what walks directories or waits for a lock where it holds nobody up.
    fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> cri::Result<T> + Send + 'static,
    ) -> cri::BoxFuture<'static, cri::Result<T>> {
        let runtime = self.handle();
        Box::pin(async move {
            let runtime = runtime.ok_or_else(|| cri::Error::failed("using the runtime", "it is closing"))?;
            let outcome = tokio::task::spawn_blocking(move || work(&runtime)).await;
            outcome.unwrap_or_else(|error| Err(cri::Error::failed("using the runtime", error)))
        })
    }

    fn sandbox_directory(&self, id: &str) -> PathBuf {
        self.config.state_dir.join(id)
    }

    fn container_directory(&self, sandbox: &str, id: &str) -> PathBuf {
        self.sandbox_directory(sandbox).join(id)
    }

    /// Tells subscribers what happened, with the pod as it is now, and wakes those who wait.
    fn announce(&self, sandbox: &str, container: &str, event_type: ContainerEventType) {
        let event = {
            let state = self.state();
            ContainerEvent {
                container_id: container.to_owned(),
                event_type,
                created_at: records::now(),
                pod_sandbox_status: state.sandboxes.get(sandbox).map(state::Sandbox::status),
                containers_statuses: state.of_sandbox(sandbox).map(state::Container::status).collect(),
            }
        };
        let _ = self.events.send(event); // nobody subscribed
        self.changes.send_modify(|count| *count += 1);
    }

    /// Waits until `is_so`, asked again after every change. False when the time is up.
    async fn wait_until(&self, limit: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        let waiting = async {
            while !is_so(&self.state()) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, waiting).await.is_ok()
    }
}

/// Opens an executable through a read-only mount of its own. A container can make the shim's child run `/proc/self/exe`, and
/// then has our program open; through this mount it cannot be written to, whoever asks. The mount belongs to no
/// namespace once its descriptor is closed, so nobody can make it writable again. It costs no memory, as a sealed copy
/// would.
fn open_unwritable(path: &Path) -> io::Result<File> {
    use rustix::mount::OpenTreeFlags;
    use std::os::fd::{AsFd, AsRawFd};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(rustix::fs::CWD, path, flags)?;
    let attributes = crate::sys::MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
    crate::sys::mount_setattr(tree.as_fd(), attributes)?;
    File::open(format!("/proc/self/fd/{}", tree.as_raw_fd()))
}

/// Tries whether overlayfs takes this filesystem for a writable layer. Nothing gets mounted: the attempt ends with
/// its superblock, which goes with the descriptor.
fn probe_overlay(root: &Path) -> io::Result<()> {
    let place = root.join("tmp").join(crate::new_id());
    let attempt = (|| {
        let filesystem = rustix::mount::fsopen("overlay", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (option, name) in [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")] {
            let directory = place.join(name);
            std::fs::create_dir_all(&directory)?;
            rustix::mount::fsconfig_set_string(&filesystem, option, &directory)?;
        }
        rustix::mount::fsconfig_set_flag(&filesystem, "volatile")?; // as containers have it; see `shim::rootfs`
        Ok(rustix::mount::fsconfig_create(&filesystem)?)
    })();
    remove_directory(&place)?;
    attempt
}

/// Removes a directory with all in it; absent is success.
fn remove_directory(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
