//! What a Kelson cluster has beyond upstream's own objects: a default StorageClass, and the rights of the parts that
//! upstream runs as pods.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Patch, Resource, resources};
use serde_json::{Value, json};

/// Who owns these fields.
const MANAGER: &str = "kelson";

/// Applies what every cluster has; running it again changes nothing.
pub async fn apply(client: &Client) -> anyhow::Result<()> {
    apply_all(client, objects()).await
}

/// Tells the API server where the metrics API is served.
pub async fn publish_metrics(client: &Client, server: &metrics_server::Server) -> anyhow::Result<()> {
    apply_all(client, metrics_objects(server)).await
}

async fn apply_all(client: &Client, objects: Vec<(Resource, Value)>) -> anyhow::Result<()> {
    for (resource, mut object) in objects {
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

/// The Service of the metrics API, as the API server calls it.
pub const METRICS_NAME: &str = "metrics-server.kube-system.svc";

fn metrics_objects(server: &metrics_server::Server) -> Vec<(Resource, Value)> {
    let (name, namespace) = ("metrics-server", "kube-system");
    let metadata =
        |name: &str| json!({"name": name, "namespace": namespace, "labels": {"k8s-app": "metrics-server"}});
    let mut slice = metadata("metrics-server-kelson");
    slice["labels"] = json!({"kubernetes.io/service-name": name,
        "endpointslice.kubernetes.io/managed-by": "metrics-server.kelson.io"});
    vec![
        (
            resources::SERVICES,
            json!({"metadata": metadata(name),
                "spec": {"ports": [{"name": "https", "port": 443, "protocol": "TCP"}]}}),
        ),
        (
            resources::ENDPOINT_SLICES,
            json!({
                "metadata": slice,
                "addressType": if server.address.is_ipv6() { "IPv6" } else { "IPv4" },
                "ports": [{"name": "https", "port": server.address.port(), "protocol": "TCP"}],
                "endpoints": [{"addresses": [server.address.ip()], "conditions": {"ready": true}}],
            }),
        ),
        (
            resources::API_SERVICES,
            json!({
                "metadata": {"name": "v1beta1.metrics.k8s.io", "labels": {"k8s-app": "metrics-server"}},
                "spec": {
                    "group": "metrics.k8s.io", "version": "v1beta1",
                    "groupPriorityMinimum": 100, "versionPriority": 100,
                    "service": {"name": name, "namespace": namespace, "port": 443},
                    "caBundle": STANDARD.encode(&server.ca),
                },
            }),
        ),
    ]
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
            resources::CLUSTER_ROLES,
            json!({
                "metadata": {"name": "system:metrics-server"},
                "rules": [
                    {"apiGroups": [""], "resources": ["nodes/metrics", "nodes/proxy"], "verbs": ["get"]},
                    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]},
                ],
            }),
        ),
        (
            resources::CLUSTER_ROLE_BINDINGS,
            json!({
                "metadata": {"name": "system:metrics-server"},
                "roleRef": role("ClusterRole", "system:metrics-server"),
                "subjects": [{"kind": "ServiceAccount", "name": "metrics-server", "namespace": "kube-system"}],
            }),
        ),
        (
            resources::CLUSTER_ROLES,
            json!({
                "metadata": {
                    "name": "system:aggregated-metrics-reader",
                    "labels": {
                        "rbac.authorization.k8s.io/aggregate-to-view": "true",
                        "rbac.authorization.k8s.io/aggregate-to-edit": "true",
                        "rbac.authorization.k8s.io/aggregate-to-admin": "true",
                    },
                },
                "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list"]}],
            }),
        ),
        (
            resources::CLUSTER_ROLES,
            json!({
                "metadata": {"name": "system:network-policy"},
                "rules": [
                    {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
                    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
                ],
            }),
        ),
        (
            resources::CLUSTER_ROLE_BINDINGS,
            json!({
                "metadata": {"name": "system:network-policy"},
                "roleRef": role("ClusterRole", "system:network-policy"),
                "subjects": [{"kind": "ServiceAccount", "name": "network-policy", "namespace": "kube-system"}],
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
