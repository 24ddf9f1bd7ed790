//! Volumes that are directories of nodes: what the default StorageClass gives out of the box.
//!
//! A volume is made when the scheduler has chosen the claim's node and stays there: its node affinity says so. The
//! kubelet makes the directory when the first pod mounts it. The volume's object goes with the claim.

use apimachinery::quantity::Quantity;
use controller_runtime::{Kind, Plan};
use serde_json::json;

use crate::kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass};
use crate::volume_binder::PROVISIONED_BY;

/// Where node volumes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVolumes {
    /// The provisioner's name in StorageClasses.
    pub provisioner: String,
    /// The directory on every node that holds the volumes.
    pub directory: String,
}

impl LocalVolumes {
    /// The provisioner `kelson.local/directory` under a directory.
    pub fn under(directory: impl Into<String>) -> Self {
        Self { provisioner: "kelson.local/directory".into(), directory: directory.into() }
    }

    /// Whether a volume was made here.
    pub fn made(&self, volume: &PersistentVolume) -> bool {
        volume.metadata.annotation(PROVISIONED_BY) == Some(&self.provisioner)
    }

    /// Plans the volume of a claim on a node.
    pub fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        node: Option<&str>,
        plan: &mut Plan,
    ) {
        let Some(node) = node else {
            let text = "a directory of a node needs a node: use volumeBindingMode WaitForFirstConsumer";
            plan.warn(claim, "ProvisioningFailed", text);
            return;
        };
        if claim.spec.volume_mode.as_deref() == Some("Block") {
            plan.warn(claim, "ProvisioningFailed", "a directory cannot be a block device");
            return;
        }
        let name = format!("pvc-{}", claim.metadata.uid);
        let path = format!("{}/{name}", self.directory.trim_end_matches('/'));
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
        let size = claim.spec.resources.requests.get("storage").unwrap_or("0");
        let volume = json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: self.provisioner}},
            "spec": {
                "capacity": {"storage": size},
                "accessModes": claim.spec.access_modes,
                "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": class.metadata.name,
                "volumeMode": "Filesystem",
                "hostPath": {"path": path, "type": "DirectoryOrCreate"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.metadata.namespace,
                    "name": claim.metadata.name, "uid": claim.metadata.uid},
            },
        });
        plan.create(&PersistentVolume::RESOURCE, volume).tolerant().announce(
            claim,
            Some(("ProvisioningSucceeded", format!("Successfully provisioned volume {name}"))),
            Some(("ProvisioningFailed", "failed to provision volume: {error}".into())),
        );
    }

    /// A directory grows by being said to be larger.
    pub fn expand(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        class: Option<&StorageClass>,
        plan: &mut Plan,
    ) {
        let size = |text: Option<&str>| text.and_then(|text| text.parse::<Quantity>().ok());
        let wanted = claim.spec.resources.requests.get("storage");
        let (Some(asked), Some(present)) = (size(wanted), size(volume.spec.capacity.get("storage"))) else {
            return;
        };
        let allowed = class.is_some_and(|class| class.allow_volume_expansion == Some(true));
        if asked > present && allowed {
            plan.update(volume, json!({"spec": {"capacity": {"storage": wanted}}}));
        } else if size(claim.status.capacity.get("storage")).is_some_and(|told| told < present) {
            plan.set_status(claim, json!({"capacity": {"storage": volume.spec.capacity.get("storage")}}));
            plan.event(claim, "FileSystemResizeSuccessful", "the directory was declared larger");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn a_volume_is_made_on_the_chosen_node_and_only_there() {
        let local = LocalVolumes::under("/data/volumes/");
        let claim: PersistentVolumeClaim = object(json!({"metadata":{"name":"c","namespace":"n","uid":"u1"},
            "spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}));
        let class: StorageClass =
            object(json!({"metadata":{"name":"local"},"provisioner":local.provisioner}));
        let mut plan = Plan::default();
        local.provision(&claim, &class, Some("node-1"), &mut plan);
        let volume = plan.creates()[0];
        assert_eq!(volume["spec"]["hostPath"]["path"], "/data/volumes/pvc-u1");
        assert_eq!(volume["spec"]["claimRef"]["uid"], "u1");
        let rule = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!(rule["values"], json!(["node-1"]));
        let mut plan = Plan::default();
        local.provision(&claim, &class, None, &mut plan);
        assert_eq!((plan.creates().len(), &*plan.events()[0].reason), (0, "ProvisioningFailed"));
    }
}
