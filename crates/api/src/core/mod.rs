//! The core group: pods, services, nodes and what they need.

use crate::{Definition, Effect, Subresource, Verb, Verbs};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("", "v1", "Binding", "bindings")
            .verbs(Verbs::CREATE)
            .effects(&[Effect::BindPod]),
        Definition::cluster("", "v1", "ComponentStatus", "componentstatuses")
            .short(&["cs"])
            .verbs(Verbs::READ),
        Definition::namespaced("", "v1", "ConfigMap", "configmaps").short(&["cm"]),
        Definition::namespaced("", "v1", "Endpoints", "endpoints")
            .short(&["ep"])
            .stored_at("/registry/services/endpoints"),
        Definition::namespaced("", "v1", "Event", "events").short(&["ev"]).create_on_update(),
        Definition::namespaced("", "v1", "LimitRange", "limitranges").short(&["limits"]),
        Definition::cluster("", "v1", "Namespace", "namespaces")
            .short(&["ns"])
            .verbs(Verbs::of(&[
                Verb::Create,
                Verb::Delete,
                Verb::Get,
                Verb::List,
                Verb::Patch,
                Verb::Update,
                Verb::Watch,
            ]))
            .with(Subresource::Finalize)
            .status()
            .label("status.phase")
            .effects(&[Effect::FinalizeNamespace]),
        Definition::cluster("", "v1", "Node", "nodes")
            .short(&["no"])
            .stored_at("/registry/minions")
            .with(Subresource::Proxy)
            .status()
            .label_or("spec.unschedulable", "false")
            .effects(&[Effect::Connect]),
        Definition::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
            .short(&["pvc"])
            .status(),
        Definition::cluster("", "v1", "PersistentVolume", "persistentvolumes").short(&["pv"]).status(),
        Definition::namespaced("", "v1", "Pod", "pods")
            .short(&["po"])
            .categories(&["all"])
            .with(Subresource::Attach)
            .with(Subresource::Binding)
            .with(Subresource::EphemeralContainers)
            .with(Subresource::Eviction)
            .with(Subresource::Exec)
            .with(Subresource::Log)
            .with(Subresource::PortForward)
            .with(Subresource::Proxy)
            .with(Subresource::Resize)
            .status()
            .generation()
            .label("spec.nodeName")
            .label("spec.restartPolicy")
            .label("spec.schedulerName")
            .label("spec.serviceAccountName")
            .label_or("spec.hostNetwork", "false")
            .label("status.phase")
            .label("status.podIP")
            .label("status.nominatedNodeName")
            .effects(&[Effect::BindPod, Effect::EvictPod, Effect::GracefulPodDeletion, Effect::Connect]),
        Definition::namespaced("", "v1", "PodTemplate", "podtemplates"),
        Definition::namespaced("", "v1", "ReplicationController", "replicationcontrollers")
            .short(&["rc"])
            .categories(&["all"])
            .stored_at("/registry/controllers")
            .scale()
            .status()
            .generation()
            .orphans()
            .label_or("status.replicas", "0"),
        Definition::namespaced("", "v1", "ResourceQuota", "resourcequotas").short(&["quota"]).status(),
        Definition::namespaced("", "v1", "Secret", "secrets").label("type"),
        Definition::namespaced("", "v1", "ServiceAccount", "serviceaccounts")
            .short(&["sa"])
            .with(Subresource::Token)
            .effects(&[Effect::IssueToken]),
        Definition::namespaced("", "v1", "Service", "services")
            .short(&["svc"])
            .categories(&["all"])
            .stored_at("/registry/services/specs")
            .with(Subresource::Proxy)
            .status()
            .label("spec.clusterIP")
            .label("spec.type")
            .effects(&[Effect::AllocateServiceAddresses, Effect::Connect]),
    ]
}
