//! Who may do what.

use crate::{Definition, Effect};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings")
            .effects(&[Effect::CheckEscalation]),
        Definition::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
            .effects(&[Effect::CheckEscalation]),
        Definition::namespaced("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
            .effects(&[Effect::CheckEscalation]),
        Definition::namespaced("rbac.authorization.k8s.io", "v1", "Role", "roles")
            .effects(&[Effect::CheckEscalation]),
    ]
}
