//! The image service: the store in CRI's words.

use cri::{
    AuthConfig, BoxFuture, FilesystemUsage, Image, ImageFilter, ImageFsInfo, ImageService, ImageSpec,
    PodSandboxConfig, Result,
};

use super::Runtime;
use super::container::image_failed;
use crate::image::pull::PullOptions;
use crate::image::store::{DiskUse, disk_use};
use crate::image::{ImageRecord, Reference, builtin};
use crate::records;

impl Runtime {
    fn image_disk_use(&self) -> DiskUse {
        let mut sizes = self.layer_sizes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let directory = self.store.layers();
        let present: Vec<String> = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        sizes.retain(|name, _| present.contains(name));
        let mut total = DiskUse::default();
        for name in present {
            let size = *sizes.entry(name.clone()).or_insert_with(|| disk_use(&directory.join(name)));
            total.bytes += size.bytes;
            total.inodes += size.inodes;
        }
        total
    }
}

fn listed(record: ImageRecord) -> Image {
    let user = record.config.user.split(':').next().unwrap_or_default().to_owned();
    let uid = user.parse().ok();
    Image {
        id: record.id,
        repo_tags: record.tags.into_iter().collect(),
        repo_digests: record.digests.into_iter().collect(),
        size: record.size,
        username: if uid.is_some() { String::new() } else { user },
        uid,
        pinned: record.pinned,
    }
}

impl ImageService for Runtime {
    fn list_images<'a>(&'a self, filter: &'a ImageFilter) -> BoxFuture<'a, Result<Vec<Image>>> {
        Box::pin(async move {
            let records = match filter.image.image.as_str() {
                "" => self.store.list().map_err(image_failed)?,
                image => self.store.find(image).map_err(image_failed)?.into_iter().collect(),
            };
            Ok(records.into_iter().map(listed).collect())
        })
    }

    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<Option<Image>>> {
        Box::pin(async move { Ok(self.store.find(&image.image).map_err(image_failed)?.map(listed)) })
    }

    fn pull_image<'a>(
        &'a self,
        image: &'a ImageSpec,
        auth: Option<&'a AuthConfig>,
        _sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let failed = |reason: String| cri::Error::ImagePull { image: image.image.clone(), reason };
            let reference = Reference::parse(&image.image).map_err(|error| image_failed(error.into()))?;
            if reference.registry() == builtin::REGISTRY {
                let present = self.store.find(&image.image).map_err(image_failed)?;
                let absent = || failed("there is no such built-in image".to_owned());
                return present.map(|image| image.id).ok_or_else(absent);
            }
            match self.puller.pull(&reference, auth, PullOptions::default()).await {
                Ok(pulled) => Ok(pulled.id),
                Err(error) if error.is_unavailable() => {
                    let reason = telemetry::chain(error.as_ref()).to_string();
                    Err(cri::Error::RegistryUnavailable { image: image.image.clone(), reason })
                }
                Err(error) => Err(failed(telemetry::chain(error.as_ref()).to_string())),
            }
        })
    }

    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<()>> {
        let name = image.image.clone();
        self.blocking(move |runtime| runtime.store.remove(&name).map(drop).map_err(image_failed))
    }

    fn image_fs_info(&self) -> BoxFuture<'_, Result<ImageFsInfo>> {
        self.blocking(|runtime| {
            let snapshots = runtime.config.root_dir.join("snapshots");
            let usage = |mountpoint, used: DiskUse| FilesystemUsage {
                timestamp: records::now(),
                mountpoint,
                used_bytes: used.bytes,
                inodes_used: used.inodes,
            };
            Ok(ImageFsInfo {
                image_filesystems: vec![usage(runtime.store.layers(), runtime.image_disk_use())],
                container_filesystems: vec![usage(snapshots.clone(), disk_use(&snapshots))],
            })
        })
    }
}
