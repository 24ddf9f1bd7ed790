//! Prefers nodes that hold the pod's images already, the more bytes the better.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::Events;
use crate::framework::{Cycle, MAX_SCORE, Plugin, PreScore, Score};

/// Less than this is quicker to fetch than to care about; more than this per container makes no difference.
const SMALLEST: f64 = 23.0 * 1024.0 * 1024.0;
const LARGEST: f64 = 1000.0 * 1024.0 * 1024.0;

pub struct ImageLocality;

/// The pod's images with the share of nodes that have each, and how many containers there are.
struct Wanted(Vec<(String, f64)>, usize);

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }
    fn wakes_on(&self) -> Events {
        Events::NONE
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

impl PreScore for ImageLocality {
    fn pre_score(&self, cycle: &mut Cycle, pod: &PlacedPod, _feasible: &[usize], cache: &mut Cache) -> bool {
        let spec = &pod.pod.spec;
        let containers = spec.init_containers.len() + spec.containers.len();
        let nodes = cache.nodes().len().max(1) as f64;
        let images = spec.init_containers.iter().chain(&spec.containers);
        let images = images.map(|container| with_tag(&container.image)).map(|image| {
            let share = cache.nodes_with_image(&image) as f64 / nodes;
            (image, share)
        });
        let wanted: Vec<(String, f64)> = images.filter(|(_, share)| *share > 0.0).collect();
        let any = !wanted.is_empty();
        cycle.keep(Wanted(wanted, containers));
        any
    }
}

impl Score for ImageLocality {
    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        let Some(Wanted(images, containers)) = cycle.get::<Wanted>() else { return 0 };
        // An image that few nodes have counts less, or all pods of one image would crowd on one node.
        let present =
            images.iter().filter_map(|(image, share)| Some((size_on(node, image)? as f64 * share).trunc()));
        let largest = LARGEST * *containers as f64;
        let sum = present.sum::<f64>().clamp(SMALLEST, largest);
        (MAX_SCORE as f64 * (sum - SMALLEST) / (largest - SMALLEST)) as i64
    }
}

/// A name without tag or digest means `:latest`.
fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains([':', '@']) { image.to_owned() } else { format!("{image}:latest") }
}

fn size_on(node: &NodeInfo, image: &str) -> Option<i64> {
    let images = &node.node.status.images;
    images.iter().find(|held| held.names.iter().any(|name| &**name == image)).map(|held| held.size_bytes)
}
