//! emptyDir: a directory that lives as long as the pod, on disk or in memory.

use cri::BoxFuture;

use super::memory::{self, Shape};
use super::{Context, Mounted, VolumeError};
use crate::pod::{EmptyDir, Quantity};
use crate::resources;

pub static DEFAULT: &EmptyDir = &EmptyDir { medium: String::new(), size_limit: None };

pub struct Source<'v>(pub &'v EmptyDir);

impl super::Source for Source<'_> {
    fn set_up<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let place = context.place("empty-dir")?;
            let group = context.group();
            let mode = if group.is_some() { 0o2777 } else { 0o777 };
            match self.0.medium.as_str() {
                "" => place.parent.make_whole(place.name, mode, group),
                "Memory" => {
                    let size = size(context, self.0.size_limit.as_ref())?;
                    memory::ensure(&place.parent, place.name, Shape { mode, group, size })
                }
                other => return Err(VolumeError::Medium(other.to_owned())),
            }
            .map_err(|source| VolumeError::io("cannot create", &place.path, source))?;
            Ok(Mounted::at(place.path))
        })
    }
}

/// The least of what the volume, the pod and the node allow.
fn size(context: &Context<'_>, limit: Option<&Quantity>) -> Result<Option<i64>, VolumeError> {
    let asked = match limit {
        Some(limit) => Some(limit.value().ok_or_else(|| VolumeError::Size { name: limit.0.clone() })?),
        None => None,
    };
    let of_pod = resources::of_pod(context.pod).memory_limit_in_bytes;
    Ok([asked.unwrap_or(0), of_pod, context.facts.allocatable_memory]
        .into_iter()
        .filter(|bytes| *bytes > 0)
        .min())
}
