//! Prefers nodes that hold the pod's images already, the more bytes the better.

use std::collections::HashMap;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, MAX_SCORE, Plugin, Score};

/// Less than this is quicker to fetch than to care about; more than this per container makes no difference.
const SMALLEST: f64 = 23.0 * 1024.0 * 1024.0;
const LARGEST: f64 = 1000.0 * 1024.0 * 1024.0;

pub struct ImageLocality;

/// How many nodes have each of the pod's images.
struct Spread(HashMap<String, usize>, usize);

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }
}

impl Score for ImageLocality {
    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, _feasible: &[usize], cache: &mut Cache) {
        let images = images(pod);
        let count =
            |image: &String| cache.nodes().iter().filter(|node| size_on(node, image).is_some()).count();
        let spread = images.into_iter().map(|image| (image.clone(), count(&image))).collect();
        cycle.keep(Spread(spread, cache.nodes().len().max(1)));
    }

    fn score(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let images = images(pod);
        let Some(Spread(spread, nodes)) = cycle.get::<Spread>() else { return 0 };
        if images.is_empty() {
            return 0;
        }
        // An image that few nodes have counts less, or all pods of one image would crowd on one node.
        let present = images.iter().filter_map(|image| {
            let share = spread.get(image).copied().unwrap_or(0) as f64 / *nodes as f64;
            Some(size_on(node, image)? as f64 * share)
        });
        let largest = LARGEST * images.len() as f64;
        let sum = present.sum::<f64>().clamp(SMALLEST, largest);
        (MAX_SCORE as f64 * (sum - SMALLEST) / (largest - SMALLEST)) as i64
    }
}

fn images(pod: &PlacedPod) -> Vec<String> {
    let spec = &pod.pod.spec;
    spec.init_containers.iter().chain(&spec.containers).map(|container| with_tag(&container.image)).collect()
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
