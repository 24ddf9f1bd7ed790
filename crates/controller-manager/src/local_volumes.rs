//! Volumes that are directories of nodes: what the default StorageClass gives out of the box.
//!
//! A volume is made when the scheduler has chosen the claim's node and stays there: its node affinity says so. The
//! kubelet makes the directory when the first pod mounts it. When the claim goes, the volume goes: first the directory,
//! where this program runs on the volume's node, then its object.

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
    /// The node that this program runs on; directories of others stay when their volumes go.
    pub host: Option<String>,
}

impl LocalVolumes {
    /// The provisioner `kelson.local/directory` under a directory.
    pub fn under(directory: impl Into<String>) -> Self {
        Self { provisioner: "kelson.local/directory".into(), directory: directory.into(), host: None }
    }

    /// The same, run on this node.
    pub fn on(self, node: impl Into<String>) -> Self {
        Self { host: Some(node.into()), ..self }
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.directory.trim_end_matches('/'))
    }

    /// The directory of a volume, if it is one that was made here and lies on this program's node.
    pub fn directory_here(&self, volume: &PersistentVolume) -> Option<String> {
        let path = self.path_of(&volume.metadata.name);
        let own = volume.spec.host_path.as_ref().is_some_and(|source| *source.path == *path);
        let terms = volume.spec.node_affinity.as_ref()?.value();
        let rule = &terms["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        let here = self.host.as_ref().is_some_and(|host| rule["values"] == json!([host]));
        (own && here && self.made(volume) && volume.metadata.name.starts_with("pvc-")).then_some(path)
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
        let path = self.path_of(&name);
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
    fn only_own_directories_of_this_node_are_removed() {
        let local = LocalVolumes::under("/data/volumes").on("node-1");
        let volume = |name: &str, path: &str, node: &str, by: &str| -> PersistentVolume {
            object(
                json!({"metadata":{"name":name,"annotations":{PROVISIONED_BY:by}},"spec":{"hostPath":{"path":path},
                "nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[
                    {"key":"kubernetes.io/hostname","operator":"In","values":[node]}]}]}}}}),
            )
        };
        let own = &*local.provisioner;
        let here = |volume: PersistentVolume| local.directory_here(&volume);
        assert_eq!(
            here(volume("pvc-1", "/data/volumes/pvc-1", "node-1", own)).as_deref(),
            Some("/data/volumes/pvc-1")
        );
        assert_eq!(here(volume("pvc-1", "/data/volumes/pvc-1", "node-2", own)), None);
        assert_eq!(here(volume("pvc-1", "/etc", "node-1", own)), None);
        assert_eq!(here(volume("pvc-1", "/data/volumes/pvc-1", "node-1", "other")), None);
        assert_eq!(here(volume("..", "/data/volumes/..", "node-1", own)), None);
    }

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
