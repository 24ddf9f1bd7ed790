//! Volumes, their classes and drivers.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("storage.k8s.io", "v1", "CSIDriver", "csidrivers"),
        Definition::cluster("storage.k8s.io", "v1", "CSINode", "csinodes"),
        Definition::namespaced("storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities"),
        Definition::cluster("storage.k8s.io", "v1", "StorageClass", "storageclasses").short(&["sc"]),
        Definition::cluster("storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments").status(),
        Definition::cluster("storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses")
            .short(&["vac"]),
    ]
}
