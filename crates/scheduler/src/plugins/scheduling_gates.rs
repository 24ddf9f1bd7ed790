//! Holds pods back until every scheduling gate is removed.

use crate::cache::Cache;
use crate::events::Events;
use crate::framework::{Plugin, PreEnqueue, Reasons};
use crate::types::Pod;

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }
    fn wakes_on(&self) -> Events {
        Events::NONE
    }
    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        Some(self)
    }
}

impl PreEnqueue for SchedulingGates {
    fn holds_back(&self, pod: &Pod, _cache: &Cache) -> Option<Reasons> {
        let gates: Vec<&str> = pod.spec.scheduling_gates.iter().map(|gate| &*gate.name).collect();
        if gates.is_empty() { None } else { Some(format!("waiting for scheduling gates: {gates:?}").into()) }
    }
}
