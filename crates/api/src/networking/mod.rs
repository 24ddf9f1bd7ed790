//! Ingresses, network policies and service address ranges.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("networking.k8s.io", "v1", "IngressClass", "ingressclasses").generation(),
        Definition::namespaced("networking.k8s.io", "v1", "Ingress", "ingresses")
            .short(&["ing"])
            .stored_at("/registry/ingress")
            .status()
            .generation(),
        Definition::cluster("networking.k8s.io", "v1", "IPAddress", "ipaddresses").short(&["ip"]),
        Definition::namespaced("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies")
            .short(&["netpol"])
            .generation(),
        Definition::cluster("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs").status(),
    ]
}
