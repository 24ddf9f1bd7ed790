//! What a Kelson cluster has beyond upstream's own objects: a default StorageClass, and the rights of the parts that
//! upstream runs as pods.

use anyhow::Context;
use client::{Client, Patch, Resource, resources};
use serde_json::{Value, json};

/// Who owns these fields.
const MANAGER: &str = "kelson";

/// Applies every object; running it again changes nothing.
pub async fn apply(client: &Client) -> anyhow::Result<()> {
    for (resource, mut object) in objects() {
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.as_ref().into();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let patch = Patch::Apply { manager: MANAGER, force: true, object: &object };
        let applied = client.api(&resource).within(&namespace).patch::<Value>(&name, patch).await;
        applied.with_context(|| format!("cannot apply {resource} {name}"))?;
    }
    Ok(())
}

/// Claims without a class get a directory; the cluster's DNS reads Services and publishes itself as one.
fn objects() -> Vec<(Resource, Value)> {
    let dns = json!([{"kind": "ServiceAccount", "name": "coredns", "namespace": "kube-system"}]);
    let role =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    vec![
        (
            resources::STORAGE_CLASSES,
            json!({
                "metadata": {
                    "name": "local",
                    "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
                },
                "provisioner": "kelson.local/directory", "reclaimPolicy": "Delete",
                "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true,
            }),
        ),
        (resources::SERVICE_ACCOUNTS, json!({"metadata": {"name": "coredns", "namespace": "kube-system"}})),
        (
            resources::CLUSTER_ROLES,
            json!({
                "metadata": {"name": "system:coredns"},
                "rules": [
                    {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": ["list", "watch"]},
                    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
                ],
            }),
        ),
        (
            resources::CLUSTER_ROLE_BINDINGS,
            json!({
                "metadata": {"name": "system:coredns"},
                "roleRef": role("ClusterRole", "system:coredns"), "subjects": dns,
            }),
        ),
        (
            resources::ROLES,
            json!({
                "metadata": {"name": "system:coredns-publisher", "namespace": "kube-system"},
                "rules": [
                    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "update", "patch"]},
                    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices", "endpointslices/restricted"],
                     "verbs": ["get", "create", "update", "patch"]},
                ],
            }),
        ),
        (
            resources::ROLE_BINDINGS,
            json!({
                "metadata": {"name": "system:coredns-publisher", "namespace": "kube-system"},
                "roleRef": role("Role", "system:coredns-publisher"), "subjects": dns,
            }),
        ),
    ]
}
