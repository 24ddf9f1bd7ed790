//! Workloads that keep pods running.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("apps", "v1", "ControllerRevision", "controllerrevisions"),
        Definition::namespaced("apps", "v1", "DaemonSet", "daemonsets")
            .short(&["ds"])
            .categories(&["all"])
            .status()
            .generation(),
        Definition::namespaced("apps", "v1", "Deployment", "deployments")
            .short(&["deploy"])
            .categories(&["all"])
            .scale()
            .status()
            .generation(),
        Definition::namespaced("apps", "v1", "ReplicaSet", "replicasets")
            .short(&["rs"])
            .categories(&["all"])
            .scale()
            .status()
            .generation()
            .label_or("status.replicas", "0"),
        Definition::namespaced("apps", "v1", "StatefulSet", "statefulsets")
            .short(&["sts"])
            .categories(&["all"])
            .scale()
            .status()
            .generation(),
    ]
}
