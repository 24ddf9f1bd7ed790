//! Who may do what.

use crate::{Definition, Effect};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings")
            .named(apimachinery::names::is_path_segment_name)
            .effects(&[Effect::CheckEscalation]),
        Definition::cluster("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles")
            .named(apimachinery::names::is_path_segment_name)
            .effects(&[Effect::CheckEscalation]),
        Definition::namespaced("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
            .named(apimachinery::names::is_path_segment_name)
            .effects(&[Effect::CheckEscalation]),
        Definition::namespaced("rbac.authorization.k8s.io", "v1", "Role", "roles")
            .named(apimachinery::names::is_path_segment_name)
            .effects(&[Effect::CheckEscalation]),
    ]
}
