//! Making and unmaking sandboxes, and following their shims.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cgroups::Limits;
use cni::PodRef;
use cri::{BoxFuture, ContainerEventType, NamespaceMode, PodSandboxConfig};
use lifecycle::Stop;
use rustix::mount::UnmountFlags;
use tracing::{debug, warn};

use super::state::{Phase, Sandbox, SandboxRecord, Shim, State};
use super::{KILL_DEADLINE, Runtime, orphans};
use crate::client::Connection;
use crate::records;
use crate::shim::protocol::{Reply, Request};
use crate::spec::{Exit, Run, files};
use crate::{plan, sys};

/// The file that makes a directory a sandbox.
pub(super) const RECORD: &str = "sandbox.json";

/// The longest pause between two attempts to remove a cgroup; the attempts end after about twice that.
const CGROUP_PATIENCE: Duration = Duration::from_secs(1);

/// What a container that nobody saw ending is said to have ended with, as containerd does.
const UNKNOWN_EXIT: i32 = 255;

impl Runtime {
    /// Makes a sandbox; undoes everything if a step fails.
    pub(super) async fn run_sandbox(&self, config: &PodSandboxConfig) -> cri::Result<String> {
        if !matches!(config.runtime_handler.as_str(), "" | "kelson") {
            return Err(cri::Error::invalid(
                "the runtime handler",
                format!("no handler {:?}", config.runtime_handler),
            ));
        }
        let id = crate::new_id();
        let record = SandboxRecord {
            id: id.clone(),
            config: config.clone(),
            created_at: records::now(),
            phase: Phase::Creating,
            attachment: Default::default(),
            cgroup_parent: self.cgroup_parent(&id, config),
        };
        match self.make_sandbox(record).await {
            Ok(()) => {
                self.announce(&id, &id, ContainerEventType::Created);
                self.announce(&id, &id, ContainerEventType::Started);
                Ok(id)
            }
            Err(error) => {
                if let Err(error) = self.remove_sandbox(&id).await {
                    warn!(sandbox = %id, error = %telemetry::chain(&error), "cannot undo a failed sandbox");
                }
                Err(error)
            }
        }
    }

    fn cgroup_parent(&self, id: &str, config: &PodSandboxConfig) -> String {
        let root = self.config.cgroup_root.trim_end_matches('/');
        match config.linux.cgroup_parent.trim_matches('/') {
            "" if root.is_empty() => format!("/kelson/pod{id}"),
            "" => format!("{root}/pod{id}"),
            parent => format!("{root}/{parent}"),
        }
    }

    /// Changes the limits of the pod's cgroup that are given; the others stay.
    pub(super) fn update_sandbox_resources(
        &self,
        id: &str,
        change: &cri::LinuxContainerResources,
    ) -> cri::Result<()> {
        let mut record = self.state().sandbox(id)?.record.clone();
        let id = record.id.clone();
        let warnings = self.cgroups.apply(&record.cgroup_parent, &Limits::of(change));
        if let Some(reason) = warnings.into_iter().next() {
            return Err(cri::Error::failed(format!("changing the limits of sandbox {id}"), reason));
        }
        super::container::merge_resources(record.config.linux.resources.get_or_insert_default(), change);
        records::write(&self.sandbox_directory(&id).join(RECORD), &record)
            .map_err(|error| cri::Error::failed(format!("recording the limits of sandbox {id}"), error))?;
        if let Some(sandbox) = self.state().sandboxes.get_mut(&id) {
            sandbox.record = record;
        }
        Ok(())
    }

    async fn make_sandbox(&self, mut record: SandboxRecord) -> cri::Result<()> {
        let id = record.id.clone();
        let directory = self.sandbox_directory(&id);
        let spec = plan::sandbox(&id, &record.config, &record.cgroup_parent)?;
        write_files(&directory, &record, &spec)
            .map_err(|error| cri::Error::failed(format!("writing the records of sandbox {id}"), error))?;
        self.state().sandboxes.insert(id.clone(), Sandbox { record: record.clone(), shim: None });

        let limits = record.config.linux.resources.as_ref().map(Limits::of).unwrap_or_default();
        let warnings = self.cgroups.create(&record.cgroup_parent).into_iter();
        for warning in warnings.chain(self.cgroups.apply(&record.cgroup_parent, &limits)) {
            debug!(sandbox = %id, warning, "the pod's cgroup is not as it should be");
        }
        self.spawn_shim(&directory).await?;
        let shim = self
            .connect(&id)
            .await
            .map_err(|error| cri::Error::failed("connecting to the pod's shim", error))?;
        if spec.own_network {
            let pod = pod_ref(&record, Some(&shim))?;
            record.attachment = self
                .config
                .network
                .add(&pod)
                .await
                .map_err(|error| cri::Error::failed("connecting the pod's network", error))?;
            let hosts = plan::hosts(&record.config.hostname, &record.attachment.addresses);
            write_readable(&directory.join("hosts"), &hosts)
                .map_err(|error| cri::Error::failed("writing the pod's hosts file", error))?;
        }
        record.phase = Phase::Ready;
        records::write(&directory.join(RECORD), &record)
            .map_err(|error| cri::Error::failed(format!("recording sandbox {id}"), error))?;
        if let Some(sandbox) = self.state().sandboxes.get_mut(&id) {
            sandbox.record = record;
        }
        Ok(())
    }

    /// Starts a shim and waits until it serves. It detaches, so the process waited for is not the shim itself.
    async fn spawn_shim(&self, directory: &Path) -> cri::Result<()> {
        let failed = |error: std::io::Error| {
            cri::Error::failed(format!("running {} shim", self.config.shim_exe.display()), error)
        };
        let mut child = tokio::process::Command::new(format!("/proc/self/fd/{}", self.shim_exe.as_raw_fd()))
            .arg0(&self.config.shim_exe)
            .arg("shim")
            .arg(directory)
            .current_dir("/")
            .env_clear()
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .map_err(failed)?;
        // Nothing is written to it: its other end tells that we live.
        let alive = child.stdin.take();
        let output = child.wait_with_output().await.map_err(failed)?;
        drop(alive);
        match output.status.success() {
            true => Ok(()),
            false => {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                Err(cri::Error::failed("starting the pod's shim", reason))
            }
        }
    }

    /// Connects to a sandbox's shim, takes over what it knows, and follows it from now on.
    pub(super) fn connect<'a>(&'a self, id: &'a str) -> BoxFuture<'a, std::io::Result<Shim>> {
        // Boxed: following leads to losing leads to connecting. With a limit: a process that was being started when its
        // shim died may hold the socket open, and nobody answers.
        Box::pin(async move {
            tokio::time::timeout(KILL_DEADLINE, self.connect_now(id))
                .await
                .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        })
    }

    async fn connect_now(&self, id: &str) -> std::io::Result<Shim> {
        let connection = Connection::open(&self.sandbox_directory(id))?;
        let (Reply::Snapshot { pid, containers }, mut fds) = connection.ask(&Request::Subscribe, &[]).await?
        else {
            return Err(std::io::Error::other("the pod's shim speaks another language"));
        };
        for known in containers {
            if let Some(run) = known.run {
                self.saw_start(id, &known.id, run);
            }
            if let Some(exit) = known.exit {
                self.saw_end(id, &known.id, exit);
            }
        }
        let network =
            fds.pop().ok_or_else(|| std::io::Error::other("the pod's shim sent no network namespace"))?;
        let shim = Shim { pid, network: Arc::new(network) };
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.shim = Some(shim.clone());
        }
        if let Some(runtime) = self.handle() {
            let id = id.to_owned();
            self.tasks.spawn(format!("shim/{}", &id[..12]), move |stop| async move {
                runtime.follow(&id, connection, stop).await;
            });
        }
        Ok(shim)
    }

    /// Applies a shim's events until it is gone.
    async fn follow(self: Arc<Self>, id: &str, connection: Connection, stop: Stop) {
        // Dropping a receive loses nothing: what was not read is in the next snapshot.
        while let Some(received) = stop.or(connection.receive()).await {
            match received {
                Ok(Some((Reply::Started { id: container, run }, _))) => self.saw_start(id, &container, run),
                Ok(Some((Reply::Exited { id: container, exit }, _))) => self.saw_end(id, &container, exit),
                Ok(Some(_)) => {}
                Ok(None) => return self.lost_shim(id).await,
                Err(error) => {
                    warn!(sandbox = id, %error, "cannot hear the pod's shim");
                    return self.lost_shim(id).await;
                }
            }
        }
    }

    /// A container runs: heard as an event or as the answer to our request, whichever comes first.
    pub(super) fn saw_start(&self, sandbox: &str, id: &str, run: Run) {
        let is_news = match self.state().containers.get_mut(id) {
            Some(container) if container.run.is_none() => {
                container.run = Some(run);
                true
            }
            _ => false,
        };
        if is_news {
            self.announce(sandbox, id, ContainerEventType::Started);
        }
    }

    pub(super) fn saw_end(&self, sandbox: &str, id: &str, exit: Exit) {
        let is_news = match self.state().containers.get_mut(id) {
            Some(container) if container.exit.is_none() => {
                debug!(container = id, code = exit.code, reason = exit.reason, "container ended");
                container.exit = Some(exit);
                true
            }
            _ => false,
        };
        if is_news {
            self.announce(sandbox, id, ContainerEventType::Stopped);
        }
    }

    /// The connection to a shim ended: because it was told to end, because we were slow to listen, or because it
    /// died. Only in the last case something must be done.
    pub(super) async fn lost_shim(&self, id: &str) {
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.shim = None;
        }
        if Connection::open(&self.sandbox_directory(id)).is_ok() {
            match self.connect(id).await {
                Ok(_) => return,
                Err(error) => warn!(sandbox = id, %error, "cannot connect to the pod's shim again"),
            }
        }
        let ended_as_asked = !self.sandbox_directory(id).join(files::SOCKET).exists();
        if !ended_as_asked {
            warn!(sandbox = id, "the pod's shim died; ending its containers");
        }
        self.bury_containers(id);
        self.announce(id, id, ContainerEventType::Stopped);
    }

    /// Ends what a dead shim left and records that nobody knows how it ended.
    fn bury_containers(&self, sandbox: &str) {
        let left: Vec<(String, String, Option<Run>)> = self
            .state()
            .of_sandbox(sandbox)
            .filter(|container| container.exit.is_none())
            .map(|container| {
                (container.record.id.clone(), container.record.cgroup.clone(), container.run.clone())
            })
            .collect();
        for (id, cgroup, run) in left {
            // The shim may have recorded the end and died before it could say so.
            let path = self.container_directory(sandbox, &id).join(files::EXIT);
            if let Ok(Some(exit)) = records::read_if_there::<Exit>(&path) {
                self.saw_end(sandbox, &id, exit);
                continue;
            }
            let ran = run.is_some();
            if let Some(run) = run.filter(|run| records::start_ticks(run.pid) == Some(run.start_ticks)) {
                let _ = sys::kill(run.pid, libc::SIGKILL); // it ended just now: as well
            }
            self.cgroups.kill(&cgroup);
            if !ran {
                continue; // created only, or on its way to run when the shim died
            }
            let exit = Exit {
                code: UNKNOWN_EXIT,
                finished_at: records::now(),
                reason: "Unknown".into(),
                message: "the pod's shim died".into(),
            };
            if let Err(error) = records::write(&path, &exit) {
                warn!(container = %id, %error, "cannot record the end of a container");
            }
            self.saw_end(sandbox, &id, exit);
        }
    }

    /// Takes a sandbox down. Its record stays until it is removed.
    pub(super) async fn stop_sandbox(&self, id: &str) -> cri::Result<()> {
        let Some(mut record) = self.sandbox_record(id) else { return Ok(()) };
        if record.phase == Phase::Stopped {
            return Ok(());
        }
        let directory = self.sandbox_directory(id);
        // Its descriptor keeps the network namespace for whoever takes the network down.
        let shim = self.state().sandboxes.get(id).and_then(|sandbox| sandbox.shim.clone());
        self.end_shim(id, &directory).await?;
        if record.phase == Phase::Creating || directory.join(files::SOCKET).exists() {
            // It did not end as it was asked to: it was still being made, or died.
            self.end_orphans(&directory).await;
        }
        self.bury_containers(id);
        if record.config.linux.security_context.namespace_options.network != NamespaceMode::Node {
            let pod = pod_ref(&record, shim.as_ref())?;
            let freed = self.config.network.del(&pod).await;
            freed.map_err(|error| cri::Error::failed("disconnecting the pod's network", error))?;
        }
        // Mounted only if the shim could not do it itself.
        let _ = rustix::mount::unmount(directory.join(files::SHM), UnmountFlags::DETACH);
        self.remove_cgroup(&format!("{}/{id}", record.cgroup_parent)).await;
        record.phase = Phase::Stopped;
        record.attachment = Default::default();
        records::write(&directory.join(RECORD), &record)
            .map_err(|error| cri::Error::failed(format!("recording sandbox {id}"), error))?;
        if let Some(sandbox) = self.state().sandboxes.get_mut(id) {
            sandbox.record = record;
        }
        self.announce(id, id, ContainerEventType::Stopped);
        Ok(())
    }

    fn sandbox_record(&self, id: &str) -> Option<SandboxRecord> {
        self.state().sandboxes.get(id).map(|sandbox| sandbox.record.clone())
    }

    /// Tells a shim to end with everything it has, and waits for that; a shim that does not is killed.
    async fn end_shim(&self, id: &str, directory: &Path) -> cri::Result<()> {
        let ask = async {
            let connection = Connection::open(directory)?;
            connection.send(&Request::Shutdown, &[]).await?;
            while connection.receive().await?.is_some() {}
            Ok::<_, std::io::Error>(())
        };
        // An error is a shim that is gone already.
        if tokio::time::timeout(KILL_DEADLINE, ask).await.is_err() {
            warn!(sandbox = id, "the pod's shim does not end; killing it");
            let pid =
                self.state().sandboxes.get(id).and_then(|sandbox| sandbox.shim.as_ref()).map(|shim| shim.pid);
            if let Some(pid) = pid {
                let _ = sys::kill(pid, libc::SIGKILL); // gone: as wished
            }
        }
        let gone = |state: &State| state.sandboxes.get(id).is_none_or(|sandbox| sandbox.shim.is_none());
        match self.wait_until(KILL_DEADLINE, gone).await {
            true => Ok(()),
            false => Err(cri::Error::failed(format!("stopping sandbox {id}"), "its processes do not end")),
        }
    }

    /// Removes a sandbox with its containers; stops it first.
    pub(super) async fn remove_sandbox(&self, id: &str) -> cri::Result<()> {
        let Some(record) = self.sandbox_record(id) else { return Ok(()) };
        self.stop_sandbox(id).await?;
        let containers: Vec<String> =
            self.state().of_sandbox(id).map(|container| container.record.id.clone()).collect();
        for container in containers {
            self.remove(&container).await?;
        }
        // Another sandbox of the same pod may be starting under it.
        self.cgroups.remove_if_empty(&record.cgroup_parent);
        orphans::remove_with_last(&self.sandbox_directory(id), RECORD)
            .map_err(|error| cri::Error::failed(format!("removing sandbox {id}"), error))?;
        self.state().sandboxes.remove(id);
        self.announce(id, id, ContainerEventType::Deleted);
        Ok(())
    }

    /// Removes a group with all below it. A process is heard to have ended a moment before the kernel takes it out of
    /// its group, and no event tells of that; so this asks again, ever less often.
    pub(super) async fn remove_cgroup(&self, group: &str) -> bool {
        let mut pause = Duration::from_millis(1);
        while !self.cgroups.remove(group) {
            if pause > CGROUP_PATIENCE {
                debug!(group, "cgroup is still in use");
                return false;
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        true
    }
}

fn write_files(
    directory: &Path,
    record: &SandboxRecord,
    spec: &crate::spec::SandboxSpec,
) -> std::io::Result<()> {
    records::make_private(directory)?;
    records::write(&directory.join(RECORD), record)?;
    records::write(&directory.join(files::SANDBOX), spec)?;
    let resolv = match &record.config.dns_config {
        Some(dns) => plan::resolv_conf(dns),
        None => fs::read_to_string("/etc/resolv.conf").unwrap_or_default(), // a host without one has nothing to share
    };
    write_readable(&directory.join("resolv.conf"), &resolv)?;
    let (hostname, hosts) = match &spec.hostname {
        Some(name) => (format!("{name}\n"), plan::hosts(name, &[])),
        None => (
            fs::read_to_string("/etc/hostname").unwrap_or_default(),
            fs::read_to_string("/etc/hosts").unwrap_or_else(|_| plan::hosts("", &[])),
        ),
    };
    write_readable(&directory.join("hostname"), &hostname)?;
    write_readable(&directory.join("hosts"), &hosts)
}

/// Writes a file that any user of a container may read, whatever our umask is. In place: it may be mounted.
fn write_readable(path: &Path, text: &str) -> std::io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// The pod as the network knows it. Without a shim the namespace is gone, and the path leads nowhere.
pub(super) fn pod_ref(record: &SandboxRecord, shim: Option<&Shim>) -> cri::Result<PodRef> {
    let config = &record.config;
    let mut host_ports = Vec::new();
    for mapping in config.port_mappings.iter().filter(|mapping| mapping.host_port != 0) {
        let host_ip = match mapping.host_ip.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|_| cri::Error::invalid("a host port's address", text))?),
        };
        host_ports.push(cni::PortMapping {
            protocol: match mapping.protocol {
                cri::Protocol::Tcp => cni::Protocol::Tcp,
                cri::Protocol::Udp => cni::Protocol::Udp,
                cri::Protocol::Sctp => cni::Protocol::Sctp,
            },
            container_port: mapping.container_port,
            host_port: mapping.host_port,
            host_ip,
        });
    }
    Ok(PodRef {
        sandbox_id: record.id.clone(),
        netns: match shim {
            Some(shim) => PathBuf::from(format!("/proc/self/fd/{}", shim.network.as_raw_fd())),
            None => PathBuf::from(format!("/proc/self/fd/gone-{}", record.id)),
        },
        namespace: config.metadata.namespace.clone(),
        name: config.metadata.name.clone(),
        uid: config.metadata.uid.clone(),
        host_ports,
        bandwidth: cni::Bandwidth {
            ingress: plan::bandwidth(&config.annotations, "kubernetes.io/ingress-bandwidth")?,
            egress: plan::bandwidth(&config.annotations, "kubernetes.io/egress-bandwidth")?,
        },
    })
}
