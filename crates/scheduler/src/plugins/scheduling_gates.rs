//! Holds pods back until every scheduling gate is removed.

use crate::framework::{Plugin, PreEnqueue};
use crate::types::Pod;

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }
}

impl PreEnqueue for SchedulingGates {
    fn holds_back(&self, pod: &Pod) -> bool {
        !pod.spec.scheduling_gates.is_empty()
    }
}
