//! Priorities.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
            .short(&["pc"])
            .generation(),
    ]
}
