//! Horizontal autoscaling.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
            .short(&["hpa"])
            .categories(&["all"])
            .status(),
        Definition::namespaced("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
            .short(&["hpa"])
            .categories(&["all"])
            .status(),
    ]
}
