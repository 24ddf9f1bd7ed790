//! Runtime classes.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![Definition::cluster("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")]
}
