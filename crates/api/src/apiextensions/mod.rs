//! Custom resource definitions.

use crate::{Definition, Effect};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        )
        .short(&["crd", "crds"])
        .categories(&["api-extensions"])
        .status()
        .generation()
        .effects(&[Effect::ServeCustomResources]),
    ]
}
