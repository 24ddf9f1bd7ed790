//! Finding again what an earlier process left: running pods are taken over, half-made things are removed.

use std::fs;
use std::io;
use std::path::Path;

use cri::NamespaceMode;
use tracing::{info, warn};

use super::state::{Container, ContainerRecord, Phase, Sandbox, SandboxRecord};
use super::{OpenError, Runtime, remove_directory};
use crate::records;
use crate::runtime::sandbox::pod_ref;
use crate::spec::files;

impl Runtime {
    pub(super) async fn adopt_all(&self) -> Result<(), OpenError> {
        let at = |source| OpenError::State { path: self.config.state_dir.clone(), source };
        let mut adoptions = Vec::new();
        for name in names(&self.config.state_dir).map_err(at)? {
            let directory = self.config.state_dir.join(&name);
            let record: Option<SandboxRecord> =
                records::read_if_there(&directory.join("sandbox.json")).map_err(at)?;
            match record {
                Some(record) => adoptions.push(self.adopt(record)),
                None => remove_directory(&directory).map_err(at)?,
            }
        }
        futures::future::join_all(adoptions).await;
        self.remove_orphaned_snapshots().map_err(at)
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
                if let Err(error) = self.remove_sandbox(&id).await {
                    warn!(sandbox = %id, error = %telemetry::chain(&error), "cannot remove sandbox");
                }
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
                Ok(None) => self.config.network.add(&pod).await,
                Err(error) => Err(error),
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

    fn remove_orphaned_snapshots(&self) -> io::Result<()> {
        let snapshots = self.config.root_dir.join("snapshots");
        for name in names(&snapshots)? {
            if !self.state().containers.contains_key(&name) {
                remove_directory(&snapshots.join(name))?;
            }
        }
        Ok(())
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
