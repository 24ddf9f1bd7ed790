//! Priority and fairness of requests.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas")
            .status()
            .generation(),
        Definition::cluster(
            "flowcontrol.apiserver.k8s.io",
            "v1",
            "PriorityLevelConfiguration",
            "prioritylevelconfigurations",
        )
        .status()
        .generation(),
    ]
}
