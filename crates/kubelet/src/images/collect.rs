//! Which images are removed: those unused for longest when the disk fills, and those unused for too long.
//!
//! [`plan`] decides from a view; [`run`] looks every five minutes and carries it out, as upstream does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::{ContainerFilter, ImageFilter, ImageSpec};
use lifecycle::Stop;
use tracing::{debug, info, warn};

use super::ImageSettings;
use crate::host::Host;
use crate::pods::Pods;

const PERIOD: Duration = Duration::from_secs(5 * 60);

/// What is known of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub first: Instant,
    pub used: Instant,
}

/// An image that may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub id: String,
    pub size: u64,
    pub seen: Seen,
}

/// The disk that images are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
}

impl Disk {
    pub fn used_percent(&self) -> u64 {
        match self.capacity {
            0 => 0,
            capacity => 100 - (self.available.min(capacity) as u128 * 100 / capacity as u128) as u64,
        }
    }
}

/// What to remove.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub remove: Vec<String>,
    /// Bytes that should have been freed, where the images do not give as much.
    pub short_of: Option<(u64, u64)>,
}

/// Decides. `candidates` are the images that nothing uses and nobody pinned.
pub fn plan(mut candidates: Vec<Candidate>, disk: Disk, settings: &ImageSettings, now: Instant) -> Plan {
    let mut plan = Plan::default();
    candidates.sort_by_key(|image| (image.seen.used, image.seen.first));
    if !settings.maximum_age.is_zero() {
        let too_old = |image: &Candidate| now.duration_since(image.seen.used) > settings.maximum_age;
        plan.remove.extend(candidates.iter().filter(|image| too_old(image)).map(|image| image.id.clone()));
        candidates.retain(|image| !too_old(image));
    }
    if disk.used_percent() < settings.high_threshold_percent {
        return plan;
    }
    let kept = u128::from(disk.capacity) * u128::from(100 - settings.low_threshold_percent.min(100)) / 100;
    let wanted = u64::try_from(kept).unwrap_or(u64::MAX).saturating_sub(disk.available);
    let mut freed = 0;
    for image in candidates {
        if freed >= wanted {
            break;
        }
        // Used in this very look, or too young.
        if image.seen.used >= now || now.duration_since(image.seen.first) < settings.minimum_age {
            continue;
        }
        freed += image.size;
        plan.remove.push(image.id);
    }
    if freed < wanted {
        plan.short_of = Some((wanted, freed));
    }
    plan
}

/// Looks and removes, until stopped.
pub async fn run(host: Arc<Host>, pods: Arc<Pods>, stop: Stop) {
    let mut seen = BTreeMap::new();
    loop {
        if let Err(error) = round(&host, &pods, &mut seen).await {
            let text = telemetry::chain(&error).to_string();
            warn!(error = text, "cannot collect images");
            host.events.node(&host.config.node_name, true, "ImageGCFailed", text);
        }
        if stop.or(tokio::time::sleep(PERIOD)).await.is_none() {
            return;
        }
    }
}

/// Removes all images that nothing uses, whatever their age. Answers with how many there were.
pub async fn remove_unused(host: &Host, pods: &Pods) -> cri::Result<usize> {
    let mut seen = BTreeMap::new();
    let candidates = candidates(host, pods, &mut seen, Instant::now()).await?;
    for image in &candidates {
        info!(image = image.id, "removing an unused image");
        host.config.images.remove_image(&ImageSpec::from(image.id.as_str())).await?;
        host.images.records().forget(&image.id);
    }
    Ok(candidates.len())
}

/// The images that no container and no volume uses and that nobody pinned.
async fn candidates(
    host: &Host,
    pods: &Pods,
    seen: &mut BTreeMap<String, Seen>,
    now: Instant,
) -> cri::Result<Vec<Candidate>> {
    let images = host.config.images.list_images(&ImageFilter::default()).await?;
    let containers = host.config.runtime.list_containers(&ContainerFilter::default()).await?;
    let active = pods.active();
    let volumes = active.iter().flat_map(|pod| &pod.spec.volumes).filter_map(|volume| volume.image.as_ref());
    let in_use: BTreeSet<&str> = containers
        .iter()
        .flat_map(|container| [&*container.image_id, &*container.image_ref, &*container.image.image])
        .chain(volumes.clone().map(|image| image.reference.as_str()))
        .collect();
    // A volume names its image as people do; the service knows which one that is.
    let mut volume_ids = BTreeSet::new();
    for image in volumes {
        let found = host.config.images.image_status(&ImageSpec::from(image.reference.as_str())).await?;
        volume_ids.extend(found.map(|image| image.id));
    }
    seen.retain(|id, _| images.iter().any(|image| image.id == *id));
    let mut candidates = Vec::new();
    for image in &images {
        let known = seen.entry(image.id.clone()).or_insert(Seen { first: now, used: now });
        let names = image.repo_tags.iter().chain(&image.repo_digests).chain([&image.id]);
        if volume_ids.contains(&image.id) || names.into_iter().any(|name| in_use.contains(name.as_str())) {
            known.used = now;
        } else if !image.pinned {
            candidates.push(Candidate { id: image.id.clone(), size: image.size, seen: *known });
        }
    }
    Ok(candidates)
}

async fn round(host: &Host, pods: &Pods, seen: &mut BTreeMap<String, Seen>) -> cri::Result<()> {
    let service = host.config.images.as_ref();
    let now = Instant::now();
    let candidates = candidates(host, pods, seen, now).await?;
    let info = service.image_fs_info().await?;
    let Some(filesystem) = info.image_filesystems.first() else { return Ok(()) };
    let stat = rustix::fs::statvfs(&filesystem.mountpoint)
        .map_err(|error| cri::Error::failed("looking at the disk of the images", error))?;
    let disk = Disk { capacity: stat.f_blocks * stat.f_frsize, available: stat.f_bavail * stat.f_frsize };
    let plan = plan(candidates, disk, &host.config.image_settings, now);
    debug!(used = disk.used_percent(), remove = plan.remove.len(), "collecting images");
    for id in plan.remove {
        info!(image = id, "removing an unused image");
        service.remove_image(&ImageSpec::from(id.as_str())).await?;
        host.images.records().forget(&id);
        seen.remove(&id);
    }
    if let Some((wanted, found)) = plan.short_of {
        let text = format!(
            "Failed to garbage collect required amount of images. Attempted to free {wanted} bytes, but only found {found} bytes eligible to free."
        );
        host.events.node(&host.config.node_name, true, "FreeDiskSpaceFailed", text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(now: Instant) -> Vec<Candidate> {
        let ago = |seconds: u64| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let one = |id: &str, size, first, used| Candidate {
            id: id.into(),
            size,
            seen: Seen { first: ago(first), used: ago(used) },
        };
        vec![one("young", 50, 60, 60), one("recent", 10, 3600, 200), one("old", 10, 3600, 3600)]
    }

    /// A moment that has enough time before it.
    fn now() -> Instant {
        Instant::now() + Duration::from_secs(100_000)
    }

    #[test]
    fn the_disk_decides_and_the_longest_unused_goes_first() {
        let now = now();
        let settings = ImageSettings::default();
        let planned = |available| plan(candidates(now), Disk { capacity: 1000, available }, &settings, now);
        assert_eq!(planned(160), Plan::default(), "84 % is below the threshold");
        assert_eq!(planned(195).remove, Vec::<String>::new());
        let ids = |plan: &Plan| plan.remove.clone();
        let at_limit = plan(candidates(now), Disk { capacity: 100, available: 15 }, &settings, now);
        assert_eq!(ids(&at_limit), ["old"], "5 bytes are wanted, 10 come");
        assert_eq!(at_limit.short_of, None);
        let full = planned(0);
        assert_eq!(ids(&full), ["old", "recent"], "what is younger than two minutes stays");
        assert_eq!(full.short_of, Some((200, 20)));
    }

    #[test]
    fn what_was_not_used_for_too_long_goes_whatever_the_disk_says() {
        let now = now();
        let settings = ImageSettings { maximum_age: Duration::from_secs(1000), ..ImageSettings::default() };
        let plan = plan(candidates(now), Disk { capacity: 100, available: 100 }, &settings, now);
        assert_eq!(plan.remove, ["old"]);
    }
}
