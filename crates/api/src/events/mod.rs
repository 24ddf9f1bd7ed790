//! Events in their newer form; stored as core events.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![Definition::namespaced("events.k8s.io", "v1", "Event", "events").short(&["ev"]).create_on_update()]
}
