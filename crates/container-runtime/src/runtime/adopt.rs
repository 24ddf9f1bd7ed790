//! Finding again what an earlier process left: running pods are taken over, half-made things are removed.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use cri::NamespaceMode;
use tracing::{debug, info, warn};

use super::sandbox::RECORD;
use super::state::{Container, ContainerRecord, Phase, Sandbox, SandboxRecord};
use super::{KILL_DEADLINE, OpenError, Runtime, orphans, remove_directory};
use crate::records;
use crate::runtime::sandbox::pod_ref;
use crate::spec::files;

/// The first and the longest pause between attempts to remove something by force.
const DISCARD_PAUSE: Duration = Duration::from_millis(5);
const DISCARD_PATIENCE: Duration = Duration::from_millis(500);
/// How often what resisted is tried again.
const RETRY: Duration = Duration::from_secs(10);

impl Runtime {
    pub(super) async fn adopt_all(&self) -> Result<(), OpenError> {
        let at = |source| OpenError::State { path: self.config.state_dir.clone(), source };
        let (mut adoptions, mut never_happened) = (Vec::new(), Vec::new());
        for name in names(&self.config.state_dir).map_err(at)? {
            let directory = self.config.state_dir.join(&name);
            match records::read_if_there::<SandboxRecord>(&directory.join(RECORD)) {
                Ok(Some(record)) if record.id == name => adoptions.push(self.adopt(record)),
                Ok(_) => never_happened.push(name),
                Err(error) => {
                    warn!(sandbox = %name, %error, "removing a sandbox whose record cannot be read");
                    never_happened.push(name);
                }
            }
        }
        futures::future::join_all(adoptions).await;
        futures::future::join_all(never_happened.iter().map(|name| self.discard_sandbox(name))).await;
        self.remove_orphaned_snapshots();
        Ok(())
    }

    async fn adopt(&self, record: SandboxRecord) {
        let (id, phase) = (record.id.clone(), record.phase);
        self.load_containers(&id);
        self.state().sandboxes.insert(id.clone(), Sandbox { record: record.clone(), shim: None });
        let connected = match phase {
            Phase::Stopped => return,
            Phase::Ready | Phase::Creating => self.connect(&id).await,
        };
        match (phase, connected) {
            (Phase::Creating, _) => {
                info!(sandbox = %id, "removing a sandbox that was never finished");
                self.remove_or_discard(&id).await;
            }
            (_, Ok(shim)) => self.repair_network(record, &shim).await,
            (_, Err(error)) => {
                warn!(sandbox = %id, %error, "the pod's shim is gone");
                self.lost_shim(&id).await;
            }
        }
    }

    /// The pod's interface lived on; what is outside of it (rules, routes) may have been lost meanwhile.
    async fn repair_network(&self, record: SandboxRecord, shim: &super::state::Shim) {
        if record.config.linux.security_context.namespace_options.network == NamespaceMode::Node {
            return;
        }
        let checked = match pod_ref(&record, Some(shim)) {
            Ok(pod) => match self.config.network.check(&pod).await {
                Ok(Some(attachment)) => Ok(attachment),
                // Half made, or not as it should be: made whole.
                Ok(None) | Err(_) => self.config.network.add(&pod).await,
            },
            Err(error) => {
                return warn!(sandbox = %record.id, error = %telemetry::chain(&error), "cannot check the network");
            }
        };
        match checked {
            Ok(attachment) if attachment == record.attachment => {}
            Ok(attachment) => {
                warn!(sandbox = %record.id, old = ?record.attachment, new = ?attachment, "the pod's addresses changed");
                let path = self.sandbox_directory(&record.id).join("sandbox.json");
                let record = SandboxRecord { attachment, ..record };
                if let Err(error) = records::write(&path, &record) {
                    warn!(sandbox = %record.id, %error, "cannot record the pod's addresses");
                }
                if let Some(sandbox) = self.state().sandboxes.get_mut(&record.id) {
                    sandbox.record = record;
                }
            }
            Err(error) => {
                warn!(sandbox = %record.id, error = %telemetry::chain(&error), "cannot check the pod's network")
            }
        }
    }

    fn load_containers(&self, sandbox: &str) {
        let directory = self.sandbox_directory(sandbox);
        for name in names(&directory).unwrap_or_default() {
            let container = directory.join(&name);
            if name.len() != 64 || !container.is_dir() {
                continue;
            }
            match load_container(&container) {
                Ok(Some(loaded)) => drop(self.state().containers.insert(name, loaded)),
                Ok(None) => self.discard_container(sandbox, &name),
                Err(error) => warn!(container = %name, %error, "cannot read a container's records"),
            }
        }
    }

    /// What cannot be removed now is tried again by the next start; nothing else depends on it.
    fn remove_orphaned_snapshots(&self) {
        let snapshots = self.config.root_dir.join("snapshots");
        for name in names(&snapshots).unwrap_or_default() {
            if !self.state().containers.contains_key(&name)
                && let Err(error) = remove_directory(&snapshots.join(&name))
            {
                warn!(container = %name, %error, "cannot remove the files of a container that is gone");
            }
        }
    }

    /// Removes a sandbox in the orderly way, or else by force. Says whether nothing of it is left.
    pub(super) async fn remove_or_discard(&self, id: &str) -> bool {
        match self.remove_sandbox(id).await {
            Ok(()) => true,
            Err(error) => {
                warn!(sandbox = %id, error = %telemetry::chain(&error), "cannot remove sandbox; removing it by force");
                self.discard_sandbox(id).await
            }
        }
    }

    /// Removes whatever there is of a sandbox, in whatever state it is. What resists is left for a later attempt, so that
    /// one broken directory never keeps a node from starting.
    pub(super) async fn discard_sandbox(&self, id: &str) -> bool {
        let mut outcome = self.try_discard(id).await;
        let mut pause = DISCARD_PAUSE;
        while let (Err(_), true) = (&outcome, pause <= DISCARD_PATIENCE) {
            // What was killed may take a moment to let go.
            tokio::time::sleep(pause).await;
            pause *= 4;
            outcome = self.try_discard(id).await;
        }
        let Err(error) = outcome else { return true };
        warn!(sandbox = %id, %error, "cannot remove what is left of a sandbox; trying again later");
        if let Some(runtime) = self.handle() {
            let id = id.to_owned();
            let name = format!("discard/{}", id.chars().take(12).collect::<String>());
            self.tasks.spawn(name, move |stop| async move {
                while stop.or(tokio::time::sleep(RETRY)).await.is_some() {
                    match runtime.try_discard(&id).await {
                        Ok(()) => return,
                        Err(error) => debug!(sandbox = %id, %error, "still cannot remove it"),
                    }
                }
            });
        }
        false
    }

    async fn try_discard(&self, id: &str) -> io::Result<()> {
        let directory = self.sandbox_directory(id);
        self.end_orphans(&directory).await;
        let record = records::read_if_there::<SandboxRecord>(&directory.join(RECORD)).ok().flatten();
        let containers: Vec<String> =
            names(&directory).unwrap_or_default().into_iter().filter(|name| name.len() == 64).collect();
        if let Some(record) = record.as_ref().filter(|record| record.id == id) {
            for inner in containers.iter().map(String::as_str).chain([id]) {
                let group = format!("{}/{inner}", record.cgroup_parent);
                self.cgroups.kill(&group);
                self.remove_cgroup(&group).await;
            }
            self.cgroups.remove_if_empty(&record.cgroup_parent);
            if let Ok(pod) = pod_ref(record, None)
                && let Err(error) = self.config.network.del(&pod).await
            {
                warn!(sandbox = %id, error = %telemetry::chain(&error), "cannot disconnect the pod's network");
            }
        }
        orphans::unmount_below(&directory);
        for container in &containers {
            remove_directory(&self.store.snapshot(container))?;
        }
        orphans::remove_with_last(&directory, RECORD)?;
        let mut state = self.state();
        state.containers.retain(|_, container| container.record.sandbox_id != id);
        state.sandboxes.remove(id);
        Ok(())
    }

    /// Ends shims in a directory that no connection leads to.
    pub(super) async fn end_orphans(&self, directory: &Path) {
        let (program, directory) = (self.config.shim_exe.clone(), directory.to_path_buf());
        let place = directory.display().to_string();
        let ending =
            tokio::task::spawn_blocking(move || orphans::end_shims(&program, &directory, KILL_DEADLINE));
        if !matches!(ending.await, Ok(true)) {
            warn!(directory = place, "a pod's shim survives SIGKILL");
        }
    }
}

fn load_container(directory: &Path) -> io::Result<Option<Container>> {
    let record: Option<ContainerRecord> = records::read_if_there(&directory.join("container.json"))?;
    let Some(record) = record else { return Ok(None) };
    let mut container = Container::new(record);
    container.run = records::read_if_there(&directory.join(files::RUN))?;
    container.exit = records::read_if_there(&directory.join(files::EXIT))?;
    Ok(Some(container))
}

fn names(directory: &Path) -> io::Result<Vec<String>> {
    Ok(fs::read_dir(directory)?.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}
