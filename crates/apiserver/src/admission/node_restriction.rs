//! A kubelet writes only what is its own: its Node, its pods, tokens for its pods.

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

const MIRROR: &str = "kubernetes.io/config.mirror";

/// Labels below `kubernetes.io` and `k8s.io` that a kubelet may set on its node.
const OWN_LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "node.kubernetes.io/windows-build",
];

/// The plug-in.
pub struct NodeRestriction;

fn is_foreign_label(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    if domain == "node-restriction.kubernetes.io" || domain.ends_with(".node-restriction.kubernetes.io") {
        return true;
    }
    let kubernetes = |root: &str| domain == root || domain.ends_with(&format!(".{root}"));
    if !kubernetes("kubernetes.io") && !kubernetes("k8s.io") {
        return false;
    }
    !OWN_LABELS.contains(&key)
        && !["kubelet.kubernetes.io", "node.kubernetes.io"]
            .iter()
            .any(|own| domain == *own || domain.ends_with(&format!(".{own}")))
}

impl Plugin for NodeRestriction {
    fn name(&self) -> &'static str {
        "NodeRestriction"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(node) = request.context.user.node_name() else { return Ok(()) };
        let resource = &request.context.resource;
        match (resource.group(), resource.plural(), request.subresource) {
            ("", "pods", "") => self.pod(request, node, new, old),
            ("", "pods", "status") => {
                let own = old.or(new).and_then(|pod| pod["spec"]["nodeName"].as_str()) == Some(node);
                if own {
                    self.same_labels(request, node, new, old)
                } else {
                    Err(deny(
                        request,
                        node,
                        "can only update pod status for pods with spec.nodeName set to itself",
                    ))
                }
            }
            ("", "pods", "eviction") => {
                let graph = server.graph.read().unwrap_or_else(|poisoned| poisoned.into_inner());
                let info = &request.context.info;
                if graph.node_of(&info.namespace, &info.name) == Some(node) {
                    Ok(())
                } else {
                    Err(deny(request, node, "can only evict pods with spec.nodeName set to itself"))
                }
            }
            ("", "nodes", "" | "status") => self.node(request, node, new, old),
            ("coordination.k8s.io", "leases", "") => {
                let lease = new.or(old);
                if lease.is_some_and(|lease| lease.namespace() == "kube-node-lease" && lease.name() == node) {
                    Ok(())
                } else {
                    Err(deny(
                        request,
                        node,
                        "can only access the lease in kube-node-lease that is named like the node",
                    ))
                }
            }
            ("storage.k8s.io", "csinodes", "") if new.or(old).is_some_and(|one| one.name() != node) => {
                Err(deny(request, node, &format!("can only access CSINode {node:?}")))
            }
            ("resource.k8s.io", "resourceslices", "")
                if new.or(old).is_some_and(|one| one["spec"]["nodeName"] != node) =>
            {
                Err(deny(request, node, "can only access ResourceSlices with spec.nodeName set to itself"))
            }
            _ => Ok(()),
        }
    }
}

fn deny(request: &Request<'_>, node: &str, why: &str) -> Status {
    request.forbid(&request.context.info.name, &format!("node {node:?} {why}"))
}

impl NodeRestriction {
    fn pod(
        &self,
        request: &Request<'_>,
        node: &str,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        match (request.operation, new, old) {
            (Operation::Create, Some(pod), _) => {
                if pod.annotation(MIRROR).is_none() {
                    return Err(deny(
                        request,
                        node,
                        &format!("can only create pods with the annotation {MIRROR:?}"),
                    ));
                }
                if pod["spec"]["nodeName"] != node {
                    return Err(deny(request, node, "can only create pods with spec.nodeName set to itself"));
                }
                let owners = pod.owner_references();
                let own = owners.len() == 1 && owners[0]["kind"] == "Node" && owners[0]["name"] == node;
                if !owners.is_empty() && !own {
                    return Err(deny(
                        request,
                        node,
                        "can only create pods with an owner reference set to itself",
                    ));
                }
                let forbidden = pod["spec"]["volumes"].as_array().into_iter().flatten().any(|volume| {
                    volume["secret"].is_object()
                        || volume["configMap"].is_object()
                        || volume["persistentVolumeClaim"].is_object()
                });
                if forbidden {
                    return Err(deny(
                        request,
                        node,
                        "can not create pods that reference secrets, configmaps or claims",
                    ));
                }
                Ok(())
            }
            (Operation::Delete, _, Some(pod)) if pod["spec"]["nodeName"] == node => Ok(()),
            (Operation::Delete, ..) => {
                Err(deny(request, node, "can only delete pods with spec.nodeName set to itself"))
            }
            (Operation::Update, ..) => Err(deny(request, node, "cannot update pods")),
            _ => Ok(()),
        }
    }

    fn same_labels(
        &self,
        request: &Request<'_>,
        node: &str,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        match (new, old) {
            (Some(new), Some(old)) if new.labels() != old.labels() => {
                Err(deny(request, node, "cannot update labels through pod status"))
            }
            _ => Ok(()),
        }
    }

    fn node(
        &self,
        request: &Request<'_>,
        node: &str,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let object = new.or(old);
        if object.is_some_and(|object| object.name() != node) {
            return Err(deny(
                request,
                node,
                &format!("is not allowed to modify node {:?}", object.map(Meta::name).unwrap_or_default()),
            ));
        }
        let Some(new) = new else { return Err(deny(request, node, "is not allowed to delete its node")) };
        let labels = |object: Option<&Value>| object.and_then(Meta::labels).cloned().unwrap_or_default();
        let (before, after) = (labels(old), labels(Some(new)));
        let changed: Vec<&String> = before
            .keys()
            .chain(after.keys())
            .filter(|key| before.get(*key) != after.get(*key) && is_foreign_label(key))
            .collect();
        if !changed.is_empty() {
            return Err(deny(request, node, &format!("is not allowed to modify labels: {changed:?}")));
        }
        if let Some(old) = old
            && request.subresource.is_empty()
            && old["spec"]["taints"] != new["spec"]["taints"]
        {
            return Err(deny(request, node, "is not allowed to modify taints"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_the_cluster_are_not_the_kubelets() {
        for (key, foreign) in [
            ("kubernetes.io/hostname", false),
            ("node.kubernetes.io/anything", false),
            ("kubelet.kubernetes.io/x", false),
            ("example.com/x", false),
            ("plain", false),
            ("node-role.kubernetes.io/master", true),
            ("node-restriction.kubernetes.io/x", true),
            ("a.node-restriction.kubernetes.io/x", true),
            ("foo.k8s.io/x", true),
        ] {
            assert_eq!(is_foreign_label(key), foreign, "{key}");
        }
    }
}
