//! Work that ends.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("batch", "v1", "CronJob", "cronjobs")
            .short(&["cj"])
            .categories(&["all"])
            .status()
            .generation(),
        Definition::namespaced("batch", "v1", "Job", "jobs").categories(&["all"]).status().generation(),
    ]
}
