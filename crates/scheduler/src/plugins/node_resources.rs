//! Whether a node has room for a pod, and how evenly the pod would fill it.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, Score, Verdict, WakeUp};

/// Room for the pod's requests; the emptier node scores higher.
pub struct Fit;

impl Plugin for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }
}

impl Filter for Fit {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::PodGone, WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let (asked, used, room) = (&pod.requests, &node.requested, &node.allocatable);
        let mut short = Vec::new();
        if node.pods.len() as i64 + 1 > room.pods {
            short.push("Too many pods".into());
        }
        for (reason, asked, used, room) in [
            ("Insufficient cpu", asked.milli_cpu, used.milli_cpu, room.milli_cpu),
            ("Insufficient memory", asked.memory, used.memory, room.memory),
            (
                "Insufficient ephemeral-storage",
                asked.ephemeral_storage,
                used.ephemeral_storage,
                room.ephemeral_storage,
            ),
        ] {
            if asked > 0 && asked > room.saturating_sub(used) {
                short.push(reason.into());
            }
        }
        for (name, asked) in &asked.others {
            let amount = |of: &crate::Resources| of.others.get(name).copied().unwrap_or(0);
            if *asked > 0 && *asked > amount(room) - amount(used) {
                short.push(format!("Insufficient {name}").into());
            }
        }
        if short.is_empty() { Verdict::Fits } else { Verdict::Refused(short) }
    }
}

impl Score for Fit {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let shares = free_shares(pod, node);
        let sum: f64 = shares.iter().map(|free| (free * MAX_SCORE as f64).floor()).sum();
        if shares.is_empty() { 0 } else { sum as i64 / shares.len() as i64 }
    }
}

/// Prefers nodes on which CPU and memory would be used to a similar degree.
pub struct BalancedAllocation;

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }
}

impl Score for BalancedAllocation {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let deviation = match free_shares(pod, node)[..] {
            [cpu, memory] => ((cpu - memory) / 2.0).abs(),
            _ => 0.0,
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

/// What would be left of CPU and memory, as shares of what the node offers; a resource it lacks is left out.
fn free_shares(pod: &PlacedPod, node: &NodeInfo) -> Vec<f64> {
    let (asked, used, room) = (&pod.requests_for_scoring, &node.requested_for_scoring, &node.allocatable);
    [(asked.milli_cpu, used.milli_cpu, room.milli_cpu), (asked.memory, used.memory, room.memory)]
        .into_iter()
        .filter(|(_, _, room)| *room > 0)
        .map(|(asked, used, room)| ((room - used - asked) as f64 / room as f64).clamp(0.0, 1.0))
        .collect()
}
