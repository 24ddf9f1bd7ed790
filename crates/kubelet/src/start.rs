//! Starts one container: image, environment and mounts, create, start, postStart hook.
//!
//! Each step's failure becomes the reason that the container's status shows while it waits.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cri::{
    ContainerConfig, ContainerMetadata, ImageSpec, KeyValue, LinuxContainerConfig, Mount, MountPropagation,
};
use thiserror::Error;

use crate::beneath::Owner;
use crate::environment::{self, References};
use crate::host::Host;
use crate::images::{Credentials, Note, Present, Wanted};
use crate::pod::{Container, Pod, Role, VolumeMount, pull_policy};
use crate::state::Waiting;
use crate::volumes::{
    MountedVolumes, ObjectError, ObjectKind, SubPathError, bind_subpath, open_pod_dir, prepare_subpath,
};
use crate::{dns, hooks, labels, messages, resources, security};

pub struct Request {
    pub pod: Arc<Pod>,
    pub name: String,
    pub role: Role,
    pub attempt: u32,
    pub sandbox: String,
    pub sandbox_attempt: u32,
    pub pod_ips: Vec<IpAddr>,
    pub volumes: Arc<MountedVolumes>,
    /// The running container that an ephemeral one joins.
    pub target: Option<String>,
}

/// A start that did not succeed.
#[derive(Debug)]
pub struct Failure {
    pub waiting: Waiting,
    /// The image could not be had: the next try waits by the image's back-off.
    pub image: bool,
    /// A container that was started and has to be killed, because its hook failed.
    pub kill: Option<String>,
}

impl Failure {
    fn of(reason: &'static str, message: impl Into<String>) -> Self {
        Self { waiting: Waiting { reason, message: message.into() }, image: false, kill: None }
    }
}

#[derive(Debug, Error)]
enum MountError {
    #[error("volume {0:?} is not there")]
    NoVolume(String),
    #[error("cannot prepare {path}")]
    File {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    #[error("invalid subPathExpr {0:?}: a variable has no value")]
    Expression(String),
}

/// Starts a container. `running` hears its id as soon as its process runs, before the postStart hook.
pub async fn start(
    host: &Host,
    request: &Request,
    running: &(dyn Fn(&str) + Send + Sync),
) -> Result<String, Failure> {
    let pod = request.pod.as_ref();
    let Some((role, container)) = pod.container(&request.name) else {
        return Err(Failure::of(
            "CreateContainerConfigError",
            format!("the pod has no container {:?}", request.name),
        ));
    };
    let sandbox_config = host.sandbox_config(pod, request.sandbox_attempt);
    let event = |warning, reason: &str, message: String| {
        host.events.container(pod, role, container, warning, reason, message)
    };

    let note = |note: Note| match note {
        Note::Pulling(message) => event(false, "Pulling", message),
        Note::Pulled(message) => event(false, "Pulled", message),
        Note::Failed(reason, message) => event(true, reason, message),
    };
    let credentials = pull_credentials(host, pod).await;
    let failed = |waiting: Waiting| {
        event(true, "Failed", format!("Error: {}", waiting.reason));
        Failure { waiting, image: true, kill: None }
    };
    let wanted = Wanted { image: &container.image, policy: container.pull_policy() };
    let image = host.images.ensure(wanted, &credentials, &sandbox_config, &note).await.map_err(failed)?;
    for mount in &container.volume_mounts {
        let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.name);
        let Some(source) = volume.and_then(|volume| volume.image.as_ref()) else { continue };
        let wanted =
            Wanted { image: &source.reference, policy: pull_policy(&source.pull_policy, &source.reference) };
        // As upstream, of the pod rather than of its container.
        let note = |note: Note| match note {
            Note::Pulling(message) => host.events.pod(pod, false, "Pulling", message),
            Note::Pulled(message) => host.events.pod(pod, false, "Pulled", message),
            Note::Failed(reason, message) => host.events.pod(pod, true, reason, message),
        };
        host.images.ensure(wanted, &credentials, &sandbox_config, &note).await.map_err(failed)?;
    }

    let config_error = |message: String| {
        event(true, "Failed", format!("Error: {message}"));
        Failure::of("CreateContainerConfigError", message)
    };
    security::check_user(pod, container, &image.user).map_err(|error| config_error(error.to_string()))?;
    let references =
        references(host, pod, container).await.map_err(|error| config_error(error.to_string()))?;
    let config = container_config(host, request, container, &image, &references).map_err(config_error)?;

    let create_error = |error: cri::Error| {
        let message = telemetry::chain(&error).to_string();
        event(true, "Failed", format!("Error: {message}"));
        Failure::of("CreateContainerError", message)
    };
    let runtime = host.config.runtime.as_ref();
    let id =
        runtime.create_container(&request.sandbox, &config, &sandbox_config).await.map_err(create_error)?;
    event(false, "Created", "Container created".into());
    if let Err(error) = runtime.start_container(&id).await {
        let message = telemetry::chain(&error).to_string();
        event(true, "Failed", format!("Error: {message}"));
        return Err(Failure::of("RunContainerError", message));
    }
    event(false, "Started", "Container started".into());
    running(&id);

    if let Some(hook) = &container.lifecycle.post_start
        && let Err(error) = hooks::run(host, hook, pod, container, &id, &request.pod_ips).await
    {
        tracing::debug!(pod = %pod.key(), container = container.name, %error, "postStart hook failed");
        event(true, "FailedPostStartHook", "PostStartHook failed".into());
        return Err(Failure { kill: Some(id), ..Failure::of("PostStartHookError", "PostStartHook failed") });
    }
    Ok(id)
}

async fn pull_credentials(host: &Host, pod: &Pod) -> Credentials {
    let mut all = Credentials::default();
    let mut missing = Vec::new();
    let namespace = &pod.metadata.namespace;
    for secret in &pod.spec.image_pull_secrets {
        match host.volumes.objects.get(ObjectKind::Secret, namespace, &secret.name).await {
            Ok(Some(data)) => all.add_secret(namespace, &secret.name, &data),
            // Not an error: the image may be there or public.
            _ => missing.push(secret.name.as_str()),
        }
    }
    if !missing.is_empty() {
        let text = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        host.events.pod(pod, true, "FailedToRetrieveImagePullSecret", text);
    }
    all.extend(host.images.node_credentials());
    all
}

/// Reads the objects that the container's environment refers to.
async fn references(host: &Host, pod: &Pod, container: &Container) -> Result<References, ObjectError> {
    let mut found = References::default();
    let sources = container.env.iter().filter_map(|variable| variable.value_from.as_ref());
    let maps = sources.clone().filter_map(|source| source.config_map_key_ref.as_ref()).map(|key| &key.name);
    let maps = maps.chain(
        container.env_from.iter().filter_map(|from| from.config_map_ref.as_ref()).map(|one| &one.name),
    );
    let secrets = sources.filter_map(|source| source.secret_key_ref.as_ref()).map(|key| &key.name);
    let secrets = secrets
        .chain(container.env_from.iter().filter_map(|from| from.secret_ref.as_ref()).map(|one| &one.name));
    let namespace = &pod.metadata.namespace;
    for name in maps {
        let data = host.volumes.objects.get(ObjectKind::ConfigMap, namespace, name).await?;
        found.config_maps.insert(name.clone(), data);
    }
    for name in secrets {
        let data = host.volumes.objects.get(ObjectKind::Secret, namespace, name).await?;
        found.secrets.insert(name.clone(), data);
    }
    Ok(found)
}

fn container_config(
    host: &Host,
    request: &Request,
    container: &Container,
    image: &Present,
    references: &References,
) -> Result<ContainerConfig, String> {
    let pod = request.pod.as_ref();
    let facts = host.facts(pod, &request.pod_ips);
    let variables = environment::variables(pod, container, &facts, references, &host.services_for(pod))
        .map_err(|error| error.to_string())?;
    let lookup = |name: &str| {
        let (_, value) = variables.iter().find(|(known, _)| known == name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    let expand = |texts: &[String]| texts.iter().map(|text| environment::expand(text, &lookup)).collect();
    let mut mounts =
        mounts(host, request, container, &lookup).map_err(|error| telemetry::chain(&error).to_string())?;
    let users = host.users(pod).map_err(|error| format!("cannot allocate ids for the pod: {error}"))?;
    if let Some(users) = &users {
        // Volumes hold the pod's ids, and are shown so.
        for mount in mounts.iter_mut().filter(|mount| mount.image.is_none()) {
            (mount.uid_mappings, mount.gid_mappings) = (users.uids.clone(), users.gids.clone());
        }
    }
    let mut security_context = security::container(
        pod,
        request.role,
        container,
        &host.config.root_dir.join("seccomp"),
        request.target.as_deref(),
    );
    security_context.namespace_options.userns_options = users;
    let stop_signal = match &container.lifecycle.stop_signal {
        Some(name) => Some(name.parse().map_err(|error: cri::signal::UnknownSignal| error.to_string())?),
        None => None,
    };
    Ok(ContainerConfig {
        metadata: ContainerMetadata { name: container.name.clone(), attempt: request.attempt },
        image: ImageSpec {
            user_specified_image: container.image.clone(),
            ..ImageSpec::from(image.reference.as_str())
        },
        command: expand(&container.command),
        args: expand(&container.args),
        working_dir: container.working_dir.clone(),
        envs: variables
            .iter()
            .map(|(key, value)| KeyValue { key: key.clone(), value: value.clone().into() })
            .collect(),
        mounts,
        devices: Vec::new(),
        labels: labels::of_container(pod, container),
        annotations: labels::annotations(pod, container, request.attempt),
        log_path: Path::new(&container.name).join(format!("{}.log", request.attempt)),
        stdin: container.stdin,
        stdin_once: container.stdin_once,
        tty: container.tty,
        linux: LinuxContainerConfig {
            resources: resources::of_container(
                pod,
                container,
                host.machine.memory,
                host.config.pod_pids_limit,
            ),
            security_context,
        },
        stop_signal,
    })
}

fn mounts(
    host: &Host,
    request: &Request,
    container: &Container,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Mount>, MountError> {
    let pod = request.pod.as_ref();
    let mut all = Vec::new();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let volume =
            request.volumes.get(&mount.name).ok_or_else(|| MountError::NoVolume(mount.name.clone()))?;
        let sub_path = sub_path(mount, lookup)?;
        if volume.image.is_none() && !sub_path.is_empty() {
            prepare_subpath(&volume.path, &sub_path, &mount.name, &container.name)?;
        }
        let of_image = volume.image.is_some();
        let readonly = mount.read_only || volume.read_only;
        let mut host_path = if of_image { PathBuf::new() } else { volume.path.clone() };
        // Resolved by the runtime when it mounts: what is there now can be something else by then.
        let mut host_sub_path = if of_image { PathBuf::new() } else { PathBuf::from(&sub_path) };
        if host.groups.is_some() && !host_sub_path.as_os_str().is_empty() {
            // Another program's runtime knows paths only.
            let place = host
                .volumes
                .pod_dir(&pod.metadata.uid)
                .join("volume-subpaths")
                .join(&mount.name)
                .join(&container.name)
                .join(index.to_string());
            bind_subpath(&host_path, &sub_path, &place)
                .map_err(|source| MountError::File { path: place.clone(), source })?;
            (host_path, host_sub_path) = (place, PathBuf::new());
        }
        all.push(Mount {
            container_path: absolute(&mount.mount_path),
            host_path,
            host_sub_path,
            readonly,
            recursive_read_only: readonly
                && matches!(mount.recursive_read_only.as_deref(), Some("Enabled" | "IfPossible")),
            propagation: match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => MountPropagation::HostToContainer,
                Some("Bidirectional") => MountPropagation::Bidirectional,
                _ => MountPropagation::Private,
            },
            image_sub_path: if of_image { sub_path } else { String::new() },
            image: volume.image.as_deref().map(ImageSpec::from),
            ..Mount::default()
        });
    }
    let pod_dir = host.volumes.pod_dir(&pod.metadata.uid);
    let has = |path: &str| container.volume_mounts.iter().any(|mount| mount.mount_path == path);
    if !has("/etc/hosts") {
        let own = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let host_file = pod.spec.host_network.then_some(own.as_str());
        let text = dns::hosts_file(pod, &request.pod_ips, &host.config.cluster_domain, host_file);
        write_file(&pod_dir, Path::new("etc-hosts"), text.as_bytes(), 0o644)?;
        all.push(Mount {
            container_path: "/etc/hosts".into(),
            host_path: pod_dir.join("etc-hosts"),
            ..Mount::default()
        });
    }
    let message_path = match container.termination_message_path.as_str() {
        "" => "/dev/termination-log",
        path => path,
    };
    let file = messages::file(&container.name, request.attempt);
    write_file(&pod_dir, &file, b"", 0o666)?;
    // After the volumes, so that it covers one that is mounted at the same path.
    all.push(Mount {
        container_path: absolute(message_path),
        host_path: pod_dir.join(file),
        ..Mount::default()
    });
    Ok(all)
}

fn absolute(path: &str) -> PathBuf {
    if path.starts_with('/') { path.into() } else { Path::new("/").join(path) }
}

fn sub_path(mount: &VolumeMount, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, MountError> {
    if mount.sub_path_expr.is_empty() {
        return Ok(mount.sub_path.clone());
    }
    let missing = std::cell::Cell::new(false);
    let text = environment::expand(&mount.sub_path_expr, &|name| {
        let value = lookup(name);
        missing.set(missing.get() || value.is_none());
        value
    });
    if missing.get() { Err(MountError::Expression(mount.sub_path_expr.clone())) } else { Ok(text) }
}

/// Writes a file in the pod's directory. It is written in place where it is there already, for the containers that have
/// it mounted.
fn write_file(pod_dir: &Path, file: &Path, data: &[u8], mode: u32) -> Result<(), MountError> {
    let write = || {
        let (parent, name) = (file.parent().unwrap_or(Path::new("")), file.file_name().unwrap_or_default());
        let dir = open_pod_dir(pod_dir)?.ensure(parent, 0o750)?;
        dir.write_file(name, data, &Owner::root(mode))
    };
    write().map_err(|source| MountError::File { path: pod_dir.join(file), source })
}
