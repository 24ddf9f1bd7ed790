//! The Node authorizer: a kubelet reaches what its own pods need, and nothing else.
//!
//! [`Graph`] knows which node runs which pod and what each pod refers to; it is fed by the watch of pods, claims,
//! volumes and attachments. Requests that the graph has no say in are decided by the rules of `system:node`.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::rbac::Rule;
use super::{Attributes, Decision, Reason};

/// What one pod refers to, by name inside of its namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReferences {
    node: String,
    account: String,
    secrets: Vec<String>,
    config_maps: Vec<String>,
    claims: Vec<String>,
    resource_claims: Vec<String>,
}

/// Names at a path of list items: `volumes[*].secret.secretName`.
fn names<'a>(list: &'a Value, path: &'a [&'a str]) -> impl Iterator<Item = String> + 'a {
    list.as_array().into_iter().flatten().filter_map(move |item| {
        path.iter().try_fold(item, |value, part| value.get(part)).and_then(Value::as_str).map(str::to_owned)
    })
}

/// The parts of a pod that references stand in.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Parts {
    metadata: Metadata,
    spec: Value,
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: Value,
    annotations: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    resource_claim_statuses: Value,
    extended_resource_claim_status: Value,
}

impl PodReferences {
    /// Reads a stored pod; `None` if it is on no node. Every change of every pod comes by here, so what cannot
    /// matter is not looked at.
    pub fn read(stored: &[u8]) -> Option<Self> {
        memchr::memmem::find(stored, b"\"nodeName\":\"")?;
        let Parts { metadata, spec, status } = serde_json::from_slice(stored).ok()?;
        Self::of(&json!({
            "metadata": {"name": metadata.name, "annotations": metadata.annotations},
            "spec": spec,
            "status": {
                "resourceClaimStatuses": status.resource_claim_statuses,
                "extendedResourceClaimStatus": status.extended_resource_claim_status,
            },
        }))
    }

    /// Reads a pod; `None` if it is on no node.
    pub fn of(pod: &Value) -> Option<Self> {
        let spec = &pod["spec"];
        let mut found = Self {
            node: spec["nodeName"].as_str().filter(|name| !name.is_empty())?.to_owned(),
            account: spec["serviceAccountName"].as_str().unwrap_or_default().to_owned(),
            ..Self::default()
        };
        // Mirror pods are made by the kubelet itself: what they refer to gives it nothing.
        if pod["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some() {
            return Some(Self { node: found.node, ..Self::default() });
        }
        found.secrets.extend(names(&spec["imagePullSecrets"], &["name"]));
        for containers in ["containers", "initContainers", "ephemeralContainers"] {
            for container in spec[containers].as_array().into_iter().flatten() {
                found.secrets.extend(names(&container["env"], &["valueFrom", "secretKeyRef", "name"]));
                found.secrets.extend(names(&container["envFrom"], &["secretRef", "name"]));
                found.config_maps.extend(names(&container["env"], &["valueFrom", "configMapKeyRef", "name"]));
                found.config_maps.extend(names(&container["envFrom"], &["configMapRef", "name"]));
            }
        }
        let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
        for volume in spec["volumes"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            found.secrets.extend(text(&volume["secret"]["secretName"]));
            for driver in ["flexVolume", "rbd", "cephfs", "cinder", "iscsi", "storageos", "scaleIO"] {
                found.secrets.extend(text(&volume[driver]["secretRef"]["name"]));
            }
            found.secrets.extend(text(&volume["csi"]["nodePublishSecretRef"]["name"]));
            found.secrets.extend(text(&volume["azureFile"]["secretName"]));
            found.config_maps.extend(text(&volume["configMap"]["name"]));
            found.claims.extend(text(&volume["persistentVolumeClaim"]["claimName"]));
            if volume["ephemeral"].is_object() {
                found.claims.extend(text(&volume["name"]).map(|name| format!("{pod_name}-{name}")));
            }
            let sources = &volume["projected"]["sources"];
            found.secrets.extend(names(sources, &["secret", "name"]));
            found.config_maps.extend(names(sources, &["configMap", "name"]));
        }
        found.resource_claims.extend(names(&spec["resourceClaims"], &["resourceClaimName"]));
        let status = &pod["status"];
        found.resource_claims.extend(names(&status["resourceClaimStatuses"], &["resourceClaimName"]));
        let extended = status["extendedResourceClaimStatus"]["resourceClaimName"].as_str();
        found.resource_claims.extend(extended.filter(|name| !name.is_empty()).map(str::to_owned));
        Some(found)
    }
}

/// Whether a pod names secrets, and whether it names config maps.
pub fn named_by(pod: &Value) -> (bool, bool) {
    let mut pod = json!({"metadata": {"name": pod["metadata"]["name"]}, "spec": pod["spec"]});
    pod["spec"]["nodeName"] = json!("any");
    let found = PodReferences::of(&pod).unwrap_or_default();
    (!found.secrets.is_empty(), !found.config_maps.is_empty())
}

/// The secrets that a persistent volume names and a kubelet needs, by namespace and name. Those of controllers are none of
/// its business.
fn secrets_of_volume(volume: &Value) -> Vec<(String, String)> {
    let spec = &volume["spec"];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // Older volumes name no namespace and mean that of the claim.
    let or_claims = |place: Option<String>| place.or_else(|| text(&spec["claimRef"]["namespace"]));
    let mut found = Vec::new();
    let mut add = |place: Option<String>, name: &Value| {
        found.extend(text(name).map(|name| (place.unwrap_or_default(), name)));
    };
    let of_nodes = ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"];
    let csi = of_nodes.map(|field| &spec["csi"][field]);
    let others = ["cinder", "storageos"].map(|driver| &spec[driver]["secretRef"]);
    for secret in csi.into_iter().chain(others) {
        add(text(&secret["namespace"]), &secret["name"]);
    }
    for driver in ["cephfs", "flexVolume", "rbd", "scaleIO", "iscsi"] {
        let secret = &spec[driver]["secretRef"];
        add(or_claims(text(&secret["namespace"])), &secret["name"]);
    }
    let azure = &spec["azureFile"];
    add(or_claims(text(&azure["secretNamespace"])), &azure["secretName"]);
    found
}

/// Which node needs which object.
#[derive(Default)]
pub struct Graph {
    /// By namespace and name.
    pods: HashMap<(String, String), PodReferences>,
    /// The pods of a node.
    by_node: HashMap<String, Vec<(String, String)>>,
    /// The claim that a volume is bound to, and the secrets that the volume itself names.
    volumes: HashMap<String, ((String, String), Vec<(String, String)>)>,
    /// The node of an attachment.
    attachments: HashMap<String, String>,
    /// The node of a resource slice.
    slices: HashMap<String, String>,
}

impl Graph {
    /// Sets or replaces a pod.
    pub fn set_pod(&mut self, namespace: &str, name: &str, new: Option<PodReferences>) {
        if new.is_none() && self.pods.is_empty() {
            return;
        }
        let key = (namespace.to_owned(), name.to_owned());
        if self.pods.get(&key) == new.as_ref() {
            return;
        }
        self.remove_pod(namespace, name);
        if let Some(references) = new {
            self.by_node.entry(references.node.clone()).or_default().push(key.clone());
            self.pods.insert(key, references);
        }
    }

    /// Forgets a pod.
    pub fn remove_pod(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(old) = self.pods.remove(&key) else { return };
        if let Some(pods) = self.by_node.get_mut(&old.node) {
            pods.retain(|own| *own != key);
            if pods.is_empty() {
                self.by_node.remove(&old.node);
            }
        }
    }

    /// Sets or replaces a persistent volume.
    pub fn set_volume(&mut self, name: &str, volume: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let claim = &volume["spec"]["claimRef"];
        let secrets = secrets_of_volume(volume);
        self.volumes.insert(name.to_owned(), ((text(&claim["namespace"]), text(&claim["name"])), secrets));
    }

    /// Forgets a persistent volume.
    pub fn remove_volume(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// Sets or replaces a volume attachment.
    pub fn set_attachment(&mut self, name: &str, attachment: &Value) {
        let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
        self.attachments.insert(name.to_owned(), node.to_owned());
    }

    /// Forgets a volume attachment.
    pub fn remove_attachment(&mut self, name: &str) {
        self.attachments.remove(name);
    }

    /// Sets or replaces a resource slice.
    pub fn set_slice(&mut self, name: &str, slice: &Value) {
        let node = slice["spec"]["nodeName"].as_str().unwrap_or_default();
        self.slices.insert(name.to_owned(), node.to_owned());
    }

    /// Forgets a resource slice.
    pub fn remove_slice(&mut self, name: &str) {
        self.slices.remove(name);
    }

    /// The node that a pod runs on.
    pub fn node_of(&self, namespace: &str, pod: &str) -> Option<&str> {
        self.pods.get(&(namespace.to_owned(), pod.to_owned())).map(|pod| pod.node.as_str())
    }

    fn any_pod(&self, node: &str, namespace: &str, holds: impl Fn(&PodReferences) -> bool) -> bool {
        self.by_node
            .get(node)
            .into_iter()
            .flatten()
            .any(|key| key.0 == namespace && self.pods.get(key).is_some_and(&holds))
    }

    fn reaches(&self, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let has = |list: &Vec<String>| list.iter().any(|own| own == name);
        match resource {
            "secrets" => {
                self.any_pod(node, namespace, |pod| has(&pod.secrets))
                    || self.volumes.values().any(|(claim, secrets)| {
                        secrets.iter().any(|secret| secret.0 == namespace && secret.1 == name)
                            && self.any_pod(node, &claim.0, |pod| pod.claims.contains(&claim.1))
                    })
            }
            "configmaps" => self.any_pod(node, namespace, |pod| has(&pod.config_maps)),
            "persistentvolumeclaims" => self.any_pod(node, namespace, |pod| has(&pod.claims)),
            "resourceclaims" => self.any_pod(node, namespace, |pod| has(&pod.resource_claims)),
            "serviceaccounts" => self.any_pod(node, namespace, |pod| pod.account == name),
            "persistentvolumes" => self
                .volumes
                .get(name)
                .is_some_and(|(claim, _)| self.any_pod(node, &claim.0, |pod| pod.claims.contains(&claim.1))),
            "volumeattachments" => self.attachments.get(name).is_some_and(|own| own == node),
            "resourceslices" => self.slices.get(name).is_some_and(|own| own == node),
            "pods" => self.node_of(namespace, name) == Some(node),
            _ => false,
        }
    }

    /// Decides for nodes; has no opinion on others. `rules` are those of the role `system:node`.
    pub fn authorize(&self, asked: &Attributes<'_>, rules: &[Rule]) -> Decision {
        let Some(node) = asked.user.node_name() else { return Decision::NoOpinion(String::new()) };
        if !asked.is_resource {
            return self.by_rules(asked, rules);
        }
        let no = |why: String| Decision::NoOpinion(why);
        let yes = || Decision::Allow(Reason::NONE);
        let related = || {
            if asked.name.is_empty() {
                no("No Object name found".to_owned())
            } else if self.reaches(node, asked.resource, asked.namespace, asked.name) {
                yes()
            } else {
                no(format!("no relationship found between node '{node}' and this object"))
            }
        };
        let only = |why: &str| no(why.to_owned());
        let get = || match (asked.verb, asked.subresource) {
            ("get", "") => related(),
            ("get", _) => only("cannot get subresource"),
            _ => only("can only get individual resources of this type"),
        };
        let read = || match (asked.verb, asked.subresource) {
            ("get" | "list" | "watch", "") if asked.namespace.is_empty() => {
                only("can only read namespaced object of this type")
            }
            ("get" | "list" | "watch", "") => related(),
            ("get" | "list" | "watch", _) => only("cannot read subresource"),
            _ => only("can only read resources of this type"),
        };
        let selects_own = || {
            let of_node = |term: &str| {
                term.strip_prefix("spec.nodeName=").is_some_and(|value| value.trim_start_matches('=') == node)
            };
            asked.field_selector.split(',').any(of_node)
        };
        match (asked.group, asked.resource, asked.subresource) {
            ("", "secrets" | "configmaps", _) => read(),
            ("", "persistentvolumeclaims", "status") => match asked.verb {
                "update" | "patch" => related(),
                _ => only("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims" | "persistentvolumes", _)
            | ("resource.k8s.io", "resourceclaims", _)
            | ("storage.k8s.io", "volumeattachments", _) => get(),
            ("", "serviceaccounts", "") if asked.verb == "get" => read(),
            ("", "serviceaccounts", subresource) => {
                if asked.verb != "create" || asked.name.is_empty() {
                    only("can only create tokens for individual service accounts")
                } else if subresource != "token" {
                    only("can only create token subresource of serviceaccount")
                } else {
                    related()
                }
            }
            ("coordination.k8s.io", "leases", _) => own(asked, node, "node lease", || {
                const WHERE: &str = "can only access leases in the \"kube-node-lease\" system namespace";
                (asked.namespace != "kube-node-lease").then_some(WHERE)
            }),
            ("storage.k8s.io", "csinodes", _) => own(asked, node, "CSINode", || {
                (!asked.subresource.is_empty()).then_some("cannot authorize CSINode subresources")
            }),
            ("resource.k8s.io", "resourceslices", "") => match asked.verb {
                // Of a new one, admission looks at the node that it names.
                "create" => yes(),
                "get" | "update" | "patch" | "delete" => related(),
                "list" | "watch" | "deletecollection" if selects_own() => yes(),
                "list" | "watch" | "deletecollection" => {
                    only("can only list/watch/deletecollection resourceslices with nodeName field selector")
                }
                _ => only(
                    "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection",
                ),
            },
            ("resource.k8s.io", "resourceslices", _) => only("cannot authorize ResourceSlice subresources"),
            // Of what is written, admission looks at whose it is.
            ("", "nodes", "") => match asked.verb {
                "create" | "update" | "patch" => yes(),
                "get" | "list" | "watch" if asked.name == node => yes(),
                "get" | "list" | "watch" => {
                    let what = match asked.name {
                        "" => "all nodes".to_owned(),
                        name => format!("'{name}'"),
                    };
                    no(format!("node '{node}' cannot read {what}, only its own Node object"))
                }
                _ => only(""),
            },
            ("", "nodes", "status") if matches!(asked.verb, "update" | "patch") => yes(),
            ("", "pods", "") => match asked.verb {
                "get" => related(),
                "list" | "watch" if selects_own() => yes(),
                "list" | "watch" if !asked.name.is_empty() => related(),
                "list" | "watch" => only("can only list/watch pods with spec.nodeName field selector"),
                "create" | "delete" => yes(),
                _ => only(""),
            },
            ("", "pods", "status") if matches!(asked.verb, "update" | "patch") => yes(),
            ("", "pods", "eviction") if asked.verb == "create" => yes(),
            ("", "nodes" | "pods", _) => only(""),
            _ => self.by_rules(asked, rules),
        }
    }

    fn by_rules(&self, asked: &Attributes<'_>, rules: &[Rule]) -> Decision {
        if rules.iter().any(|rule| rule.allows(asked)) {
            Decision::Allow(Reason::NONE)
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Allows writing and reading the object that is named like the node; on create, admission looks at the name.
fn own(asked: &Attributes<'_>, node: &str, what: &str, wrong: impl Fn() -> Option<&'static str>) -> Decision {
    let no = |why: String| Decision::NoOpinion(why);
    if !matches!(asked.verb, "get" | "create" | "update" | "patch" | "delete") {
        return no(format!("can only get, create, update, patch, or delete a {what}"));
    }
    if let Some(why) = wrong() {
        return no(why.to_owned());
    }
    if asked.verb != "create" && asked.name != node {
        return no(format!("can only access {what} with the same name as the requesting node"));
    }
    Decision::Allow(Reason::NONE)
}

#[cfg(test)]
mod tests {
    use apimachinery::patch::merge_patch;

    use super::*;
    use crate::user::{NODES, UserInfo};

    #[test]
    fn a_node_reaches_what_its_pods_refer_to() {
        let mut graph = Graph::default();
        graph.set_pod(
            "ns",
            "p",
            PodReferences::read(json!({"metadata": {"name": "p"}, "spec": {
                "nodeName": "n1", "serviceAccountName": "default",
                "imagePullSecrets": [{"name": "pull"}],
                "containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "env"}}}], "envFrom": [{"secretRef": {"name": "all"}}]}],
                "volumes": [
                    {"name": "a", "secret": {"secretName": "vol"}},
                    {"name": "b", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
                ],
            }}).to_string().as_bytes()),
        );
        graph.set_volume("pv1", &json!({"spec": {"claimRef": {"namespace": "ns", "name": "data"}}}));
        graph.set_slice("s1", &json!({"spec": {"nodeName": "n1"}}));
        let n1 = UserInfo::new("system:node:n1", &[NODES]);
        let n2 = UserInfo::new("system:node:n2", &[NODES]);
        let cases = [
            (&n1, "get", "", "secrets", "ns", "pull", true),
            (&n1, "get", "", "secrets", "ns", "all", true),
            (&n1, "watch", "", "secrets", "ns", "vol", true),
            (&n1, "list", "", "secrets", "ns", "", false),
            (&n1, "get", "", "secrets", "other", "vol", false),
            (&n2, "get", "", "secrets", "ns", "vol", false),
            (&n1, "get", "", "configmaps", "ns", "kube-root-ca.crt", true),
            (&n1, "get", "", "configmaps", "ns", "env", true),
            (&n1, "get", "", "persistentvolumes", "", "pv1", true),
            (&n2, "get", "", "persistentvolumes", "", "pv1", false),
            (&n1, "create", "", "serviceaccounts/token", "ns", "default", true),
            (&n1, "create", "", "serviceaccounts/token", "ns", "admin", false),
            (&n1, "get", "", "nodes", "", "n1", true),
            (&n1, "get", "", "nodes", "", "n2", false),
            (&n1, "get", "", "pods", "ns", "p", true),
            (&n2, "get", "", "pods", "ns", "p", false),
            (&n1, "get", "", "pods", "ns", "unknown", false),
            (&n1, "get", "", "pods/log", "ns", "p", false),
            (&n1, "delete", "", "nodes", "", "n1", false),
            (&n1, "get", "resource.k8s.io", "resourceslices", "", "s1", true),
            (&n2, "delete", "resource.k8s.io", "resourceslices", "", "s1", false),
            (&n1, "update", "coordination.k8s.io", "leases", "kube-node-lease", "n1", true),
            (&n1, "update", "coordination.k8s.io", "leases", "kube-node-lease", "n2", false),
            (&n1, "update", "coordination.k8s.io", "leases", "kube-system", "n1", false),
        ];
        for (user, verb, group, resource, namespace, name, allowed) in cases {
            let asked = Attributes::resource(user, verb, group, resource, namespace, name);
            assert_eq!(
                graph.authorize(&asked, &[]).is_allowed(),
                allowed,
                "{verb} {resource} {name} by {}",
                user.name
            );
        }
        graph.remove_pod("ns", "p");
        assert!(
            !graph.authorize(&Attributes::resource(&n1, "get", "", "secrets", "ns", "vol"), &[]).is_allowed()
        );
    }

    #[test]
    fn a_node_reaches_the_secrets_that_its_volumes_name_for_it() {
        let pod = |extra: Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1",
                "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "data"}}]}});
            let pod = merge_patch(pod, &extra).unwrap();
            PodReferences::read(pod.to_string().as_bytes())
        };
        let n1 = UserInfo::new("system:node:n1", &[NODES]);
        let mut graph = Graph::default();
        graph.set_pod("ns", "p", pod(json!({})));
        let own = json!({"name": "s", "namespace": "far"});
        let plain = json!({"name": "s"});
        for (source, namespace, allowed) in [
            (json!({"csi": {"nodePublishSecretRef": own}}), "far", true),
            (json!({"csi": {"nodeStageSecretRef": own}}), "far", true),
            (json!({"csi": {"nodeExpandSecretRef": own}}), "far", true),
            (json!({"csi": {"controllerExpandSecretRef": own}}), "far", false),
            (json!({"csi": {"controllerPublishSecretRef": own}}), "far", false),
            (json!({"azureFile": {"secretName": "s", "secretNamespace": "far"}}), "far", true),
            (json!({"azureFile": {"secretName": "s"}}), "ns", true),
            (json!({"cephfs": {"secretRef": own}}), "far", true),
            (json!({"cephfs": {"secretRef": plain}}), "ns", true),
            (json!({"rbd": {"secretRef": plain}}), "ns", true),
            (json!({"iscsi": {"secretRef": plain}}), "ns", true),
            (json!({"flexVolume": {"secretRef": plain}}), "ns", true),
            (json!({"scaleIO": {"secretRef": plain}}), "ns", true),
            (json!({"cinder": {"secretRef": own}}), "far", true),
            (json!({"cinder": {"secretRef": plain}}), "ns", false),
            (json!({"storageos": {"secretRef": own}}), "far", true),
        ] {
            let spec = json!({"claimRef": {"namespace": "ns", "name": "data"}});
            let volume = json!({"spec": merge_patch(spec, &source).unwrap()});
            graph.set_volume("pv1", &volume);
            let asked = Attributes::resource(&n1, "get", "", "secrets", namespace, "s");
            assert_eq!(graph.authorize(&asked, &[]).is_allowed(), allowed, "{source}");
        }
        let extended = json!({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "gpus"}}});
        let claim = Attributes::resource(&n1, "get", "resource.k8s.io", "resourceclaims", "ns", "gpus");
        assert!(!graph.authorize(&claim, &[]).is_allowed());
        graph.set_pod("ns", "p", pod(extended));
        assert!(graph.authorize(&claim, &[]).is_allowed());
        let cinder = json!({"spec": {"volumes": [{"name": "d", "cinder": {"secretRef": plain}}]}});
        graph.set_pod("ns", "p", pod(cinder));
        assert!(
            graph.authorize(&Attributes::resource(&n1, "get", "", "secrets", "ns", "s"), &[]).is_allowed()
        );
    }
}
