//! Where the pods behind a Service are.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![Definition::namespaced("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices").generation()]
}
