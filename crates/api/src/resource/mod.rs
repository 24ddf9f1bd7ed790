//! Devices that pods claim.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("resource.k8s.io", "v1", "DeviceClass", "deviceclasses").generation(),
        Definition::namespaced("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims").status(),
        Definition::namespaced("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
        Definition::cluster("resource.k8s.io", "v1", "ResourceSlice", "resourceslices")
            .generation()
            .label("spec.driver")
            .label("spec.nodeName"),
    ]
}
