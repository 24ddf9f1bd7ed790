//! Creating, starting, stopping and removing containers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use cgroups::Limits;
use cri::{
    ContainerConfig, ContainerEventType, ContainerState, ContainerUser, LinuxContainerResources,
    PodSandboxConfig, PodSandboxState, Signal,
};
use tracing::warn;

use super::state::{Container, ContainerRecord, State};
use super::{KILL_DEADLINE, Runtime, remove_directory};
use crate::client;
use crate::image::store::SnapshotRecord;
use crate::image::{ImageError, ImageRecord};
use crate::plan::{self, Inputs};
use crate::records;
use crate::seccomp;
use crate::shim::protocol::{Reply, Request};
use crate::spec::files;
use crate::user::Accounts;

impl Runtime {
    /// Prepares a container: decides everything about it and writes it down.
    pub(super) fn create(
        &self,
        sandbox_id: &str,
        config: &ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> cri::Result<String> {
        let cgroup_parent = self.ready_sandbox(sandbox_id)?;
        // Until the snapshot is on disk, nobody may collect its layers.
        let _lock = self.store.lock(false).map_err(image_failed)?;
        let image = self.present_image(&config.image.image)?;
        let accounts = self.accounts(&image)?;
        let mut image_volumes = BTreeMap::new();
        for volume in config.mounts.iter().filter_map(|mount| mount.image.as_ref()) {
            let mut layers = self.present_image(&volume.image)?.layers;
            layers.reverse();
            image_volumes.insert(volume.image.clone(), layers);
        }
        let seccomp = localhost_profile(config)?;
        let users = self.users_of(sandbox_id)?;
        let id = crate::new_id();
        let inputs = Inputs {
            id: &id,
            config,
            sandbox: sandbox_config,
            image: &image.config,
            accounts: &accounts,
            lower: image.layers.iter().rev().cloned().collect(),
            layers: self.store.layers(),
            snapshot: self.store.snapshot(&id),
            cgroup_parent: &cgroup_parent,
            files: &self.sandbox_directory(sandbox_id),
            users,
            seccomp: seccomp.as_ref(),
            image_volumes,
        };
        let (spec, identity) = plan::container(&inputs)?;
        let mut layers = image.layers.clone();
        layers.extend(inputs.image_volumes.values().flatten().cloned());
        let record = ContainerRecord {
            id: id.clone(),
            sandbox_id: sandbox_id.to_owned(),
            config: config.clone(),
            image_id: image.id.clone(),
            image_ref: image.resolved_name().to_owned(),
            created_at: records::now(),
            user: ContainerUser {
                uid: identity.uid.into(),
                gid: identity.gid.into(),
                supplemental_groups: identity.groups.iter().map(|gid| i64::from(*gid)).collect(),
            },
            stop_signal: stop_signal(config, &image)?,
            cgroup: spec.cgroup.clone(),
            log_path: spec.log.clone(),
            resources: config.linux.resources.clone(),
        };
        make_missing_sources(config)?;
        let written = (|| {
            let (directory, snapshot) = (self.container_directory(sandbox_id, &id), self.store.snapshot(&id));
            records::make_private(&snapshot)?;
            records::write(
                &snapshot.join("layers.json"),
                &SnapshotRecord { image: image.id.clone(), layers },
            )?;
            records::make_private(&directory)?;
            records::write(&directory.join(files::SPEC), &spec)?;
            records::write(&directory.join("container.json"), &record)
        })();
        written.map_err(|error: std::io::Error| {
            self.discard_container(sandbox_id, &id);
            cri::Error::failed(format!("writing the records of container {id}"), error)
        })?;
        self.state().containers.insert(id.clone(), Container::new(record));
        self.announce(sandbox_id, &id, ContainerEventType::Created);
        Ok(id)
    }

    /// The user namespace that the sandbox was made with.
    fn users_of(&self, sandbox: &str) -> cri::Result<Option<crate::spec::IdRange>> {
        let record = self.state().sandbox(sandbox)?.record.clone();
        Ok(plan::sandbox(sandbox, &record.config, &record.cgroup_parent)?.users)
    }

    fn ready_sandbox(&self, id: &str) -> cri::Result<String> {
        let state = self.state();
        let sandbox = state.sandbox(id)?;
        match sandbox.state() {
            PodSandboxState::Ready => Ok(sandbox.record.cgroup_parent.clone()),
            PodSandboxState::NotReady => Err(cri::Error::FailedPrecondition {
                kind: "sandbox",
                id: id.to_owned(),
                state: "not ready".into(),
            }),
        }
    }

    fn present_image(&self, reference: &str) -> cri::Result<ImageRecord> {
        let found = self.store.find(reference).map_err(image_failed)?;
        found.ok_or_else(|| cri::Error::NotFound { kind: "image", id: reference.to_owned() })
    }

    fn accounts(&self, image: &ImageRecord) -> cri::Result<Accounts> {
        let text = |path: &str| {
            let text = self.store.read_file(&image.layers, Path::new(path)).map_err(image_failed)?;
            Ok::<_, cri::Error>(text.unwrap_or_default())
        };
        Ok(Accounts { passwd: text("etc/passwd")?, group: text("etc/group")? })
    }

    /// Runs a created container.
    pub(super) async fn start(&self, id: &str) -> cri::Result<()> {
        let sandbox = {
            let state = self.state();
            let container = state.container(id)?;
            if container.state() != ContainerState::Created {
                let state = "not in the created state".to_owned();
                return Err(cri::Error::FailedPrecondition { kind: "container", id: id.to_owned(), state });
            }
            container.record.sandbox_id.clone()
        };
        let request = Request::Start { id: id.to_owned() };
        match client::ask(&self.sandbox_directory(&sandbox), &request).await {
            Ok((Reply::Started { run, .. }, _)) => {
                self.saw_start(&sandbox, id, run);
                Ok(())
            }
            Ok((other, _)) => {
                Err(cri::Error::failed(format!("starting container {id}"), format!("answer {other:?}")))
            }
            Err(error) => {
                // Its end is on its way as an event; whoever asks next should know of it.
                let known =
                    |state: &State| state.containers.get(id).is_none_or(|container| container.exit.is_some());
                self.wait_until(Duration::from_secs(1), known).await;
                Err(cri::Error::Start { id: id.to_owned(), reason: error.to_string() })
            }
        }
    }

    /// Ends a container: its stop signal, some time, then SIGKILL.
    pub(super) async fn stop(&self, id: &str, timeout: Duration) -> cri::Result<()> {
        let Some((sandbox, signal)) = self.running_sandbox(id) else { return Ok(()) };
        let ended = |state: &State| state.containers.get(id).is_none_or(|container| container.exit.is_some());
        if !timeout.is_zero() {
            self.signal(&sandbox, id, signal).await?;
            if self.wait_until(timeout, ended).await {
                return Ok(());
            }
        }
        self.signal(&sandbox, id, Signal::KILL).await?;
        match self.wait_until(KILL_DEADLINE, ended).await {
            true => Ok(()),
            false => Err(cri::Error::failed(format!("stopping container {id}"), "it survives SIGKILL")),
        }
    }

    fn running_sandbox(&self, id: &str) -> Option<(String, Signal)> {
        let state = self.state();
        let container = state.running(id).ok()?;
        Some((container.record.sandbox_id.clone(), container.record.stop_signal))
    }

    async fn signal(&self, sandbox: &str, id: &str, signal: Signal) -> cri::Result<()> {
        let request = Request::Signal { id: id.to_owned(), signal: signal.number() };
        match client::ask(&self.sandbox_directory(sandbox), &request).await {
            Ok(_) => Ok(()),
            // It ended, or its shim did and its end is being recorded: there is nothing left to signal.
            Err(_) if self.wait_until(Duration::from_secs(1), |state| state.running(id).is_err()).await => {
                Ok(())
            }
            Err(error) => Err(cri::Error::failed(format!("signalling container {id}"), error)),
        }
    }

    /// Removes a container; ends it first.
    pub(super) async fn remove(&self, id: &str) -> cri::Result<()> {
        self.stop(id, Duration::ZERO).await?;
        let Some(record) = self.state().containers.get(id).map(|container| container.record.clone()) else {
            return Ok(());
        };
        let request = Request::Forget { id: id.to_owned() };
        let _ = client::ask(&self.sandbox_directory(&record.sandbox_id), &request).await; // no shim, nothing to forget
        let directory = self.container_directory(&record.sandbox_id, id);
        let snapshot = self.store.snapshot(id);
        self.remove_cgroup(&record.cgroup).await;
        let removed = tokio::task::spawn_blocking(move || {
            remove_directory(&directory).and_then(|()| remove_directory(&snapshot))
        });
        removed
            .await
            .map_err(|error| cri::Error::failed(format!("removing container {id}"), error))?
            .map_err(|error| cri::Error::failed(format!("removing container {id}"), error))?;
        self.state().containers.remove(id);
        self.announce(&record.sandbox_id, id, ContainerEventType::Deleted);
        Ok(())
    }

    /// Takes back what a failed creation wrote.
    pub(super) fn discard_container(&self, sandbox: &str, id: &str) {
        for path in [self.container_directory(sandbox, id), self.store.snapshot(id)] {
            if let Err(error) = remove_directory(&path) {
                warn!(path = %path.display(), %error, "cannot remove");
            }
        }
    }

    /// Changes the limits that are given; the others stay.
    pub(super) fn update_resources(&self, id: &str, change: &LinuxContainerResources) -> cri::Result<()> {
        let mut record = self.state().container(id)?.record.clone();
        merge_resources(&mut record.resources, change);
        let limits = Limits::of(&record.resources);
        let directory = self.container_directory(&record.sandbox_id, id);
        let is_running = self.state().container(id)?.state() == ContainerState::Running;
        if is_running {
            let warnings = self.cgroups.apply(&record.cgroup, &limits);
            if let Some(reason) = warnings.into_iter().next() {
                return Err(cri::Error::failed(format!("changing the limits of container {id}"), reason));
            }
        } else {
            let path = directory.join(files::SPEC);
            let rewritten = records::read::<crate::spec::ContainerSpec>(&path).and_then(|mut spec| {
                spec.limits = limits;
                records::write(&path, &spec)
            });
            rewritten.map_err(|error| {
                cri::Error::failed(format!("changing the limits of container {id}"), error)
            })?;
        }
        records::write(&directory.join("container.json"), &record)
            .map_err(|error| cri::Error::failed(format!("recording the limits of container {id}"), error))?;
        if let Some(container) = self.state().containers.get_mut(id) {
            container.record = record;
        }
        Ok(())
    }
}

pub(super) fn image_failed(error: ImageError) -> cri::Error {
    match error {
        ImageError::Absent(id) => cri::Error::NotFound { kind: "image", id },
        ImageError::Reference(error) => cri::Error::invalid("the image", error.to_string()),
        error => cri::Error::failed("reading the image store", error),
    }
}

fn stop_signal(config: &ContainerConfig, image: &ImageRecord) -> cri::Result<Signal> {
    match (config.stop_signal, image.config.stop_signal.as_str()) {
        (Some(signal), _) => Ok(signal),
        (None, "") => Ok(Signal::TERM),
        (None, text) => text.parse().map_err(|_| cri::Error::invalid("the image's stop signal", text)),
    }
}

/// The seccomp profile that a container names by file. Read now, so that a later start does not see another one.
fn localhost_profile(config: &ContainerConfig) -> cri::Result<Option<seccomp::program::Profile>> {
    let profile = config.linux.security_context.seccomp.as_ref();
    let file = profile.filter(|profile| profile.profile_type == cri::ProfileType::Localhost);
    let loaded = file.map(|profile| seccomp::oci::load(Path::new(&profile.localhost_ref))).transpose();
    loaded.map_err(|error| cri::Error::invalid("the seccomp profile", telemetry::chain(&error).to_string()))
}

/// A volume's path on the host that does not exist becomes a directory, as with other runtimes.
fn make_missing_sources(config: &ContainerConfig) -> cri::Result<()> {
    for mount in config.mounts.iter().filter(|mount| mount.image.is_none()) {
        if fs::symlink_metadata(&mount.host_path).is_err() {
            fs::create_dir_all(&mount.host_path).map_err(|error| {
                cri::Error::failed(format!("making {}", mount.host_path.display()), error)
            })?;
        }
    }
    Ok(())
}

pub(super) fn merge_resources(old: &mut LinuxContainerResources, change: &LinuxContainerResources) {
    let number = |old: &mut i64, new: i64| {
        if new != 0 {
            *old = new;
        }
    };
    number(&mut old.cpu_period, change.cpu_period);
    number(&mut old.cpu_quota, change.cpu_quota);
    number(&mut old.cpu_shares, change.cpu_shares);
    number(&mut old.memory_limit_in_bytes, change.memory_limit_in_bytes);
    number(&mut old.memory_swap_limit_in_bytes, change.memory_swap_limit_in_bytes);
    number(&mut old.oom_score_adj, change.oom_score_adj);
    number(&mut old.pids_limit, change.pids_limit);
    for (old, new) in
        [(&mut old.cpuset_cpus, &change.cpuset_cpus), (&mut old.cpuset_mems, &change.cpuset_mems)]
    {
        if !new.is_empty() {
            old.clone_from(new);
        }
    }
    if !change.hugepage_limits.is_empty() {
        old.hugepage_limits.clone_from(&change.hugepage_limits);
    }
    old.unified.extend(change.unified.clone());
}
