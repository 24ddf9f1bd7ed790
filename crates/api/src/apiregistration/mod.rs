//! API servers behind this one.

use crate::{Definition, Effect};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices")
            .categories(&["api-extensions"])
            .status()
            .named(apimachinery::names::is_path_segment_name)
            .effects(&[Effect::Aggregate]),
    ]
}
