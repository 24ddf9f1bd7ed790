//! Limits on voluntary disruption.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
            .short(&["pdb"])
            .status()
            .generation(),
    ]
}
