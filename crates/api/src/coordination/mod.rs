//! Leases.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![Definition::namespaced("coordination.k8s.io", "v1", "Lease", "leases").create_on_update()]
}
