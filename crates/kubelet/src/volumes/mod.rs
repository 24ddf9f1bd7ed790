//! Volumes: every source that a pod may mount, behind one trait.
//!
//! `spec.volumes → source() → dyn Source::set_up → a path on the host`. Sources that hold data of API objects produce a
//! [`Payload`] (pure, in [`payload`]) which [`atomic`] writes so that a reader sees either all of the old or all of the
//! new files. The worker calls [`Volumes::set_up`] at the start and whenever a referenced object changes; doing it twice
//! changes nothing.

mod atomic;
mod empty_dir;
mod host_path;
mod memory;
mod objects;
mod ownership;
mod payload;
mod persistent;
mod subpath;
mod token;

use std::collections::HashMap;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cri::BoxFuture;
use jiff::Timestamp;
use thiserror::Error;

pub use objects::{Kind as ObjectKind, ObjectError, Objects, Watching};
pub use subpath::{SubPathError, bind as bind_subpath, prepare as prepare_subpath};

use crate::beneath::Dir;
use crate::downward::{DownwardError, PodFacts};
use crate::pod::{Pod, Volume};

#[derive(Debug, Error)]
pub enum VolumeError {
    #[error("{doing} {path}")]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("hostPath type check failed: {path} is not {wanted}")]
    HostPathType { path: String, wanted: &'static str },
    #[error("unknown hostPath type {0:?}")]
    UnknownHostPathType(String),
    #[error("{kind} {name:?} not found")]
    NotFound { kind: &'static str, name: String },
    #[error("references non-existent {kind} key: {key}")]
    NoKey { kind: &'static str, key: String },
    #[error("two sources of the volume write the path {0:?}")]
    Twice(String),
    #[error("path {0:?} leaves the volume")]
    Path(String),
    #[error("volume source {0} is not supported by this node")]
    Unsupported(String),
    #[error("emptyDir medium {0:?} is not supported by this node")]
    Medium(String),
    #[error("{name:?} is not a size")]
    Size { name: String },
    #[error("failed to fetch token")]
    Token(#[source] client::Error),
    #[error("persistent volume claim {claim}: {problem}")]
    Claim { claim: String, problem: String },
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Downward(#[from] DownwardError),
}

impl VolumeError {
    fn io(doing: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }
}

/// Sets a volume that failed apart from the others.
#[derive(Debug, Error)]
#[error("MountVolume.SetUp failed for volume {volume:?}")]
pub struct SetUpError {
    pub volume: String,
    #[source]
    pub source: VolumeError,
}

/// What a source may use.
pub struct Context<'a> {
    pub pod: &'a Pod,
    pub facts: &'a PodFacts<'a>,
    pub volume: &'a Volume,
    /// The directory for this pod: `…/pods/<uid>`.
    pub pod_dir: &'a Path,
    pub objects: &'a Objects,
    pub client: &'a client::Client,
    pub tokens: &'a token::Tokens,
    pub now: Timestamp,
}

/// Where a volume goes: a name in a directory that no pod can reach.
struct Place<'a> {
    parent: Dir,
    name: &'a str,
    /// For the runtime and for messages.
    path: PathBuf,
}

impl<'a> Context<'a> {
    /// The place of this volume, `volumes/kubernetes.io~<plugin>/<name>` in the pod's directory.
    fn place(&self, plugin: &str) -> Result<Place<'a>, VolumeError> {
        let name = self.volume.name.as_str();
        if name.contains('/') || !atomic::is_safe(name) {
            return Err(VolumeError::Path(name.to_owned()));
        }
        let below = Path::new("volumes").join(format!("kubernetes.io~{plugin}"));
        let path = self.pod_dir.join(&below);
        let parent = open_pod_dir(self.pod_dir)
            .and_then(|dir| dir.ensure(below, PRIVATE))
            .map_err(|source| VolumeError::io("cannot create", &path, source))?;
        Ok(Place { parent, name, path: path.join(name) })
    }

    /// The group that the pod's volumes are given to.
    fn group(&self) -> Option<u32> {
        self.pod.spec.security_context.fs_group.and_then(|group| u32::try_from(group).ok())
    }
}

/// The kubelet's own directories: not for other users of the machine.
const PRIVATE: u32 = 0o750;

/// Opens the directory `…/pods/<uid>`, made if it is missing.
pub fn open_pod_dir(path: &Path) -> std::io::Result<Dir> {
    let (Some(pods), Some(uid)) = (path.parent(), path.file_name()) else {
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    std::fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(pods)?;
    Dir::trusted(pods)?.ensure(uid, PRIVATE)
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq)]
pub struct Mounted {
    pub path: PathBuf,
    /// An image that the runtime mounts instead of a path.
    pub image: Option<String>,
    /// When the contents want to be made anew, because a token in them ages.
    pub refresh_at: Option<Timestamp>,
    pub read_only: bool,
}

impl Mounted {
    fn at(path: PathBuf) -> Self {
        Self { path, image: None, refresh_at: None, read_only: false }
    }
}

/// One kind of volume.
trait Source: Sync {
    fn set_up<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>>;
}

/// The source of a volume.
fn source(volume: &Volume) -> Result<Box<dyn Source + Send + '_>, VolumeError> {
    if let Some(source) = &volume.empty_dir {
        Ok(Box::new(empty_dir::Source(source)))
    } else if let Some(source) = &volume.host_path {
        Ok(Box::new(host_path::Source(source)))
    } else if volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.downward_api.is_some()
        || volume.projected.is_some()
    {
        Ok(Box::new(payload::Source))
    } else if let Some(source) = &volume.persistent_volume_claim {
        Ok(Box::new(persistent::Source(source)))
    } else if let Some(source) = &volume.image {
        Ok(Box::new(ImageVolume(source)))
    } else {
        let name = volume.other.keys().next().cloned();
        match name {
            Some(name) => Err(VolumeError::Unsupported(name)),
            // A volume without a source is an emptyDir.
            None => Ok(Box::new(empty_dir::Source(empty_dir::DEFAULT))),
        }
    }
}

struct ImageVolume<'v>(&'v crate::pod::ImageSource);

impl Source for ImageVolume<'_> {
    fn set_up<'a>(&'a self, _context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        let image = Some(self.0.reference.clone());
        Box::pin(
            async move { Ok(Mounted { path: PathBuf::new(), image, refresh_at: None, read_only: true }) },
        )
    }
}

/// All volumes of a pod, by name.
pub type MountedVolumes = HashMap<String, Mounted>;

/// The node's volumes.
pub struct Volumes {
    pods_dir: PathBuf,
    client: client::Client,
    pub objects: Arc<Objects>,
    tokens: token::Tokens,
}

impl Volumes {
    pub fn new(root_dir: &Path, client: client::Client, objects: Arc<Objects>) -> Self {
        let pods_dir = root_dir.join("pods");
        // Also where an earlier kubelet left it open to others. What is not there yet is made so.
        let _ = std::fs::set_permissions(&pods_dir, PermissionsExt::from_mode(PRIVATE));
        Self { pods_dir, client, objects, tokens: token::Tokens::default() }
    }

    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.pods_dir.join(uid)
    }

    /// The pods that left a directory.
    pub fn pods_on_disk(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.pods_dir) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// Makes every volume of the pod, or brings it up to date.
    pub async fn set_up(
        &self,
        pod: &Pod,
        facts: &PodFacts<'_>,
        now: Timestamp,
    ) -> Result<MountedVolumes, SetUpError> {
        let pod_dir = self.pod_dir(&pod.metadata.uid);
        let mut mounted = MountedVolumes::new();
        for volume in &pod.spec.volumes {
            let context = Context {
                pod,
                facts,
                volume,
                pod_dir: &pod_dir,
                objects: &self.objects,
                client: &self.client,
                tokens: &self.tokens,
                now,
            };
            let result = match source(volume) {
                Ok(source) => source.set_up(&context).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(one) => mounted.insert(volume.name.clone(), one),
                Err(source) => return Err(SetUpError { volume: volume.name.clone(), source }),
            };
        }
        Ok(mounted)
    }

    /// Unmounts and removes the volumes of a pod that ended; its small files stay for whoever asks about it.
    pub fn unmount(&self, uid: &str) -> Result<(), VolumeError> {
        self.remove(uid, &self.pod_dir(uid).join("volumes"))
    }

    /// Removes everything the pod had. Data outside its directory (hostPath, local volumes) is not touched.
    pub fn tear_down(&self, uid: &str) -> Result<(), VolumeError> {
        self.remove(uid, &self.pod_dir(uid))
    }

    fn remove(&self, uid: &str, dir: &Path) -> Result<(), VolumeError> {
        self.tokens.forget(uid);
        let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(()) };
        let remove = || {
            let parent = Dir::trusted(parent)?;
            parent.open(name)?.unmount_below()?;
            parent.remove(name)
        };
        match remove() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(VolumeError::io("cannot remove", dir, error))
            }
            _ => Ok(()),
        }
    }
}

/// The objects whose changes a pod's volumes and environment follow.
pub fn references(pod: &Pod) -> Vec<(ObjectKind, String)> {
    let mut all = Vec::new();
    let mut add = |kind, name: &str| {
        let entry = (kind, name.to_owned());
        if !name.is_empty() && !all.contains(&entry) {
            all.push(entry);
        }
    };
    for volume in &pod.spec.volumes {
        if let Some(map) = &volume.config_map {
            add(ObjectKind::ConfigMap, &map.name);
        }
        if let Some(secret) = &volume.secret {
            add(ObjectKind::Secret, &secret.secret_name);
        }
        for source in volume.projected.iter().flat_map(|projected| &projected.sources) {
            if let Some(map) = &source.config_map {
                add(ObjectKind::ConfigMap, &map.name);
            }
            if let Some(secret) = &source.secret {
                add(ObjectKind::Secret, &secret.secret_name);
            }
        }
    }
    for (_, container) in pod.containers() {
        for source in &container.env_from {
            if let Some(map) = &source.config_map_ref {
                add(ObjectKind::ConfigMap, &map.name);
            }
            if let Some(secret) = &source.secret_ref {
                add(ObjectKind::Secret, &secret.name);
            }
        }
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(map) = &source.config_map_key_ref {
                add(ObjectKind::ConfigMap, &map.name);
            }
            if let Some(secret) = &source.secret_key_ref {
                add(ObjectKind::Secret, &secret.name);
            }
        }
    }
    for secret in &pod.spec.image_pull_secrets {
        add(ObjectKind::Secret, &secret.name);
    }
    all
}
