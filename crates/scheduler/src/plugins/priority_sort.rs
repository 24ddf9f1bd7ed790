//! Tries the more important pod first, and of equals the one that waits longer.

use std::cmp::Ordering;

use crate::events::Events;
use crate::framework::{Plugin, QueueSort, Queued};

pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }
    fn wakes_on(&self) -> Events {
        Events::NONE
    }
    fn queue_sort(&self) -> Option<&dyn QueueSort> {
        Some(self)
    }
}

impl QueueSort for PrioritySort {
    fn compare(&self, one: Queued<'_>, other: Queued<'_>) -> Ordering {
        let by_priority = other.pod.spec.priority.cmp(&one.pod.spec.priority);
        by_priority.then(one.since.cmp(&other.since))
    }
}
