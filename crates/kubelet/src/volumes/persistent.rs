//! persistentVolumeClaim: the claim's bound volume, where it is a directory of this host (`hostPath`, `local`).

use cri::BoxFuture;
use serde::Deserialize;

use super::{Context, Mounted, VolumeError, ownership};
use crate::pod::{ClaimSource, Container, HostPath};

pub struct Source<'v>(pub &'v ClaimSource);

#[derive(Deserialize)]
struct Claim {
    #[serde(default)]
    spec: ClaimSpec,
    #[serde(default)]
    status: Phase,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: String,
    volume_mode: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Phase {
    phase: String,
}

#[derive(Deserialize)]
struct Volume {
    #[serde(default)]
    spec: VolumeSpec,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VolumeSpec {
    host_path: Option<HostPath>,
    local: Option<HostPath>,
}

impl super::Source for Source<'_> {
    fn set_up<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let namespace = &context.pod.metadata.namespace;
            let problem = |problem: String| VolumeError::Claim { claim: self.0.claim_name.clone(), problem };
            let claims = context.client.api(&client::resources::PERSISTENT_VOLUME_CLAIMS).within(namespace);
            let claim: Claim = claims
                .get(&self.0.claim_name)
                .await
                .map_err(|error| problem(telemetry::chain(&error).to_string()))?;
            if claim.status.phase != "Bound" || claim.spec.volume_name.is_empty() {
                return Err(problem("not bound to a volume".into()));
            }
            let name = &context.volume.name;
            let as_device =
                |container: &Container| container.volume_devices.iter().any(|one| one.name == *name);
            let as_device = context.pod.containers().any(|(_, container)| as_device(container));
            match (claim.spec.volume_mode.as_str(), as_device) {
                ("Block", false) => {
                    let text =
                        format!("volume {name} has volumeMode Block, but is specified in volumeMounts");
                    return Err(problem(text));
                }
                ("Block", true) => {
                    return Err(problem("volumeMode Block is not supported by this node".into()));
                }
                (_, true) => {
                    let text =
                        format!("volume {name} has volumeMode Filesystem, but is specified in volumeDevices");
                    return Err(problem(text));
                }
                (_, false) => {}
            }
            let volumes = context.client.api(&client::resources::PERSISTENT_VOLUMES);
            let volume: Volume = volumes
                .get(&claim.spec.volume_name)
                .await
                .map_err(|error| problem(telemetry::chain(&error).to_string()))?;
            let is_local = volume.spec.host_path.is_none();
            let directory = match (volume.spec.host_path, volume.spec.local) {
                (Some(host), _) => {
                    if !std::path::Path::new(&host.path).exists() {
                        std::fs::create_dir_all(&host.path)
                            .map_err(|source| VolumeError::io("cannot create", host.path.as_ref(), source))?;
                    }
                    host
                }
                (None, Some(local)) => local,
                (None, None) => {
                    return Err(problem(format!(
                        "the source of volume {} is not supported by this node",
                        claim.spec.volume_name
                    )));
                }
            };
            if !std::path::Path::new(&directory.path).exists() {
                return Err(problem(format!("{} does not exist on this node", directory.path)));
            }
            // As upstream: a directory of the host that was only named is not changed; a local volume is given to pods.
            if let Some(group) = context.group().filter(|_| is_local && !self.0.read_only) {
                let policy = context.pod.spec.security_context.fs_group_change_policy.as_deref();
                ownership::apply(directory.path.as_ref(), group, policy == Some("OnRootMismatch"))?;
            }
            Ok(Mounted { read_only: self.0.read_only, ..Mounted::at(directory.path.into()) })
        })
    }
}
