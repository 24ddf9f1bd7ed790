//! A kubelet writes only what is its own: its Node, its pods, tokens for its pods.

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::authz::Attributes;
use crate::server::ApiServer;

/// Where the leases of nodes are.
const LEASES: &str = "kube-node-lease";
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
pub struct NodeRestriction {
    /// Labels of the cluster that a node may bring along when it registers, though not change later.
    pub registration_labels: Vec<String>,
}

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

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        judge(server, &self.registration_labels, request, Some(object), old)
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        _: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        // What is written was judged before anybody else looked at it.
        if request.operation == Operation::Delete {
            judge(server, &self.registration_labels, request, None, old)
        } else {
            Ok(())
        }
    }
}

/// A write by a node in its parts.
struct Write<'a> {
    server: &'a ApiServer,
    registration_labels: &'a [String],
    request: &'a Request<'a>,
    node: &'a str,
    new: Option<&'a Value>,
    old: Option<&'a Value>,
}

fn judge(
    server: &ApiServer,
    registration_labels: &[String],
    request: &Request<'_>,
    new: Option<&Value>,
    old: Option<&Value>,
) -> Result<(), Status> {
    let Some(node) = request.context.user.node_name() else { return Ok(()) };
    let write = Write { server, registration_labels, request, node, new, old };
    let resource = &request.context.resource;
    match (resource.group(), resource.plural(), request.subresource) {
        ("", "pods", "") => write.pod(),
        ("", "pods", "status") => write.pod_status(),
        ("", "pods", "eviction") => write.eviction(),
        ("", "pods", other) => {
            let why =
                format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed");
            Err(write.deny(&why))
        }
        ("", "nodes", _) => write.node(),
        ("", "persistentvolumeclaims", "status") => write.claim_status(),
        ("", "persistentvolumeclaims", _) => Err(write.deny("may only update PVC status")),
        ("", "serviceaccounts", "token") => write.token(),
        ("coordination.k8s.io", "leases", _) => {
            if request.context.info.namespace != LEASES {
                return Err(write.deny(&format!("can only access leases in the {LEASES:?} system namespace")));
            }
            write.own_name("can only access node lease with the same name as the requesting node")
        }
        ("storage.k8s.io", "csinodes", _) => {
            write.own_name("can only access CSINode with the same name as the requesting node")
        }
        ("resource.k8s.io", "resourceslices", _) => {
            let (slice, verb) = match request.operation {
                Operation::Create => (new, "create"),
                Operation::Delete => (old, "delete"),
                _ => return Ok(()),
            };
            if slice.is_some_and(|slice| slice["spec"]["nodeName"] != node) {
                let why =
                    format!("can only {verb} ResourceSlice with the same NodeName as the requesting node");
                return Err(write.deny(&why));
            }
            Ok(())
        }
        ("certificates.k8s.io", "certificatesigningrequests", "") => write.signing(),
        _ => Ok(()),
    }
}

impl Write<'_> {
    /// The object's name, wherever it is said.
    fn name(&self) -> &str {
        match (self.request.context.info.name.as_str(), self.new) {
            ("", Some(new)) => new.name(),
            (name, _) => name,
        }
    }

    fn deny(&self, why: &str) -> Status {
        self.request.forbid(self.name(), why)
    }

    fn deny_node(&self, why: &str) -> Result<(), Status> {
        Err(self.deny(&format!("node {:?} {why}", self.node)))
    }

    fn own_name(&self, why: &str) -> Result<(), Status> {
        if self.name() == self.node { Ok(()) } else { Err(self.deny(why)) }
    }

    /// The pod of that name in the request's namespace.
    fn known_pod(&self, name: &str) -> Result<Value, Status> {
        let found = self.look_up("", "pods", &self.request.context.info.namespace, name);
        found.ok_or_else(|| Status::not_found("", "pod", name))
    }

    fn pod(&self) -> Result<(), Status> {
        match (self.request.operation, self.new, self.old) {
            (Operation::Create, Some(pod), _) => self.mirror_pod(pod),
            (Operation::Delete, _, Some(pod)) if pod["spec"]["nodeName"] == self.node => Ok(()),
            (Operation::Delete, ..) => {
                self.deny_node("can only delete pods with spec.nodeName set to itself")
            }
            (operation, ..) => {
                let (word, node) = (format!("{operation:?}").to_uppercase(), self.node);
                let why = format!(
                    "unexpected operation {word:?}, node {node:?} can only create and delete mirror pods"
                );
                Err(self.deny(&why))
            }
        }
    }

    fn mirror_pod(&self, pod: &Value) -> Result<(), Status> {
        let node = self.node;
        if pod.annotation(MIRROR).is_none() {
            let why =
                format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods");
            return Err(self.deny(&why));
        }
        if pod["spec"]["nodeName"] != node {
            return self.deny_node("can only create pods with spec.nodeName set to itself");
        }
        let owner = match pod.owner_references() {
            [owner] => owner,
            [] => return self.deny_node("can only create pods with an owner reference set to itself"),
            _ => return self.deny_node("can only create pods with a single owner reference set to itself"),
        };
        if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
            return self.deny_node("can only create pods with an owner reference set to itself");
        }
        if owner["controller"] != true {
            return self.deny_node("can only create pods with a controller owner reference set to itself");
        }
        if owner["blockOwnerDeletion"] == true {
            return self.deny_node("must not set blockOwnerDeletion on an owner reference");
        }
        let nodes = self.server.builtin("", "nodes")?;
        let known =
            self.server.cached(&nodes, "", node).ok_or_else(|| Status::not_found("", "node", node))?;
        let known = nodes.parse(&known);
        let claimed = owner["uid"].as_str().unwrap_or_default();
        if claimed != known.uid() {
            let why = format!("node {node} UID mismatch: expected {claimed} got {}", known.uid());
            return Err(self.deny(&why));
        }
        match foreign_reference(pod) {
            Some(what) => self.deny_node(&format!("can not create pods that reference {what}")),
            None => Ok(()),
        }
    }

    fn pod_status(&self) -> Result<(), Status> {
        let (Some(new), Some(old)) = (self.new, self.old) else { return Ok(()) };
        if old["spec"]["nodeName"] != self.node {
            return self.deny_node("can only update pod status for pods with spec.nodeName set to itself");
        }
        if new.labels() != old.labels() {
            return self.deny_node("cannot update labels through pod status");
        }
        let claims = |pod: &Value| pod["status"].get("resourceClaimStatuses").cloned().unwrap_or_default();
        if claims(new) != claims(old) {
            return self.deny_node("cannot update resource claim statues");
        }
        let extended =
            |pod: &Value| pod["status"].get("extendedResourceClaimStatus").cloned().unwrap_or_default();
        if extended(new) != extended(old) {
            return self.deny_node("cannot update extended resource claim status");
        }
        Ok(())
    }

    fn eviction(&self) -> Result<(), Status> {
        let pod = self.known_pod(self.name())?;
        if pod["spec"]["nodeName"] == self.node {
            return Ok(());
        }
        let why = format!("node {} can only evict pods with spec.nodeName set to itself", self.node);
        Err(self.deny(&why))
    }

    fn claim_status(&self) -> Result<(), Status> {
        let (Some(new), Some(old)) = (self.new, self.old) else { return Ok(()) };
        let rest = |claim: &Value| {
            let mut claim = claim.clone();
            for (part, fields) in [
                ("metadata", &["resourceVersion", "managedFields"][..]),
                ("status", &["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"]),
            ] {
                if let Some(part) = claim[part].as_object_mut() {
                    fields.iter().for_each(|field| drop(part.shift_remove(*field)));
                }
            }
            if claim["status"].as_object().is_none_or(serde_json::Map::is_empty)
                && let Some(claim) = claim.as_object_mut()
            {
                claim.shift_remove("status");
            }
            claim
        };
        if rest(new) == rest(old) {
            return Ok(());
        }
        self.deny_node("is not allowed to update fields other than status.quantity and status.conditions")
    }

    fn node(&self) -> Result<(), Status> {
        if self.name() != self.node {
            return self.deny_node(&format!("is not allowed to modify node {:?}", self.name()));
        }
        let Some(new) = self.new else { return Ok(()) };
        let labels = |object: Option<&Value>| object.and_then(Meta::labels).cloned().unwrap_or_default();
        let (before, after) = (labels(self.old), labels(Some(new)));
        let mut changed: Vec<&str> = before
            .keys()
            .chain(after.keys())
            .filter(|key| before.get(*key) != after.get(*key) && is_foreign_label(key))
            .map(String::as_str)
            .collect();
        changed.sort_unstable();
        changed.dedup();
        let source = &new["spec"]["configSource"];
        let Some(old) = self.old else {
            if !source.is_null() {
                return self.deny_node("is not allowed to create pods with a non-nil configSource");
            }
            changed.retain(|key| !self.registration_labels.iter().any(|label| label == key));
            if !changed.is_empty() {
                return self.deny_node(&format!(
                    "is not allowed to set the following labels: {}",
                    changed.join(", ")
                ));
            }
            return Ok(());
        };
        if !source.is_null() && *source != old["spec"]["configSource"] {
            return self.deny_node("is not allowed to update configSource to a new non-nil configSource");
        }
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        if list(&old["spec"]["taints"]) != list(&new["spec"]["taints"]) {
            return self.deny_node("is not allowed to modify taints");
        }
        if old.owner_references() != new.owner_references() {
            return self.deny_node("is not allowed to modify ownerReferences");
        }
        if !changed.is_empty() {
            return Err(self.deny(&format!("is not allowed to modify labels: {}", changed.join(", "))));
        }
        Ok(())
    }

    /// Tokens are for pods of the node, and for whom those pods need them.
    fn token(&self) -> Result<(), Status> {
        let Some(asked) = self.new else { return Ok(()) };
        let bound = &asked["spec"]["boundObjectRef"];
        let text = |field: &str| bound[field].as_str().unwrap_or_default();
        if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
            return Err(self.deny("node requested token not bound to a pod"));
        }
        if text("uid").is_empty() {
            return Err(self.deny("node requested token with a pod binding without a uid"));
        }
        let pod = self.known_pod(text("name"))?;
        if pod.uid() != text("uid") {
            return Err(self.deny(&format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                text("uid")
            )));
        }
        if pod["spec"]["nodeName"] != self.node {
            return Err(self.deny("node requested token bound to a pod scheduled on a different node"));
        }
        let audience = match asked["spec"]["audiences"].as_array().map_or(&[][..], Vec::as_slice) {
            [] => "",
            [one] => one.as_str().unwrap_or_default(),
            _ => return Err(self.deny("node may only request 0 or 1 audiences")),
        };
        if self.needs_audience(&pod, audience) {
            return Ok(());
        }
        let (user, info) = (&self.request.context.user, &self.request.context.info);
        let verb = "request-serviceaccounts-token-audience";
        let asked = Attributes {
            version: "v1",
            resource: audience,
            ..Attributes::resource(user, verb, "", "", &info.namespace, &info.name)
        };
        if self.server.authorize_now(&asked).is_allowed() {
            return Ok(());
        }
        Err(self.deny(&format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            user.name
        )))
    }

    /// Whether a volume of the pod wants a token for `audience`, by itself or through its CSI driver.
    fn needs_audience(&self, pod: &Value, audience: &str) -> bool {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let is = |one: &Value| one["audience"].as_str().unwrap_or_default() == audience;
        list(&pod["spec"]["volumes"]).iter().any(|volume| {
            let projected = list(&volume["projected"]["sources"]);
            if projected
                .iter()
                .any(|source| source["serviceAccountToken"].is_object() && is(&source["serviceAccountToken"]))
            {
                return true;
            }
            let Some(driver) = self.driver_of(pod, volume) else { return false };
            let driver = self.look_up("storage.k8s.io", "csidrivers", "", &driver);
            driver.is_some_and(|driver| list(&driver["spec"]["tokenRequests"]).iter().any(is))
        })
    }

    fn driver_of(&self, pod: &Value, volume: &Value) -> Option<String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if let Some(driver) = text(&volume["csi"]["driver"]) {
            return Some(driver);
        }
        let claim = match volume["ephemeral"].is_object() {
            true => format!("{}-{}", pod.name(), volume["name"].as_str().unwrap_or_default()),
            false => text(&volume["persistentVolumeClaim"]["claimName"])?,
        };
        let claim = self.look_up("", "persistentvolumeclaims", pod.namespace(), &claim)?;
        let volume = self.look_up("", "persistentvolumes", "", claim["spec"]["volumeName"].as_str()?)?;
        text(&volume["spec"]["csi"]["driver"])
    }

    fn look_up(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let resource = self.server.builtin(group, plural).ok()?;
        self.server.cached(&resource, namespace, name).map(|entry| resource.parse(&entry))
    }

    /// A certificate for a kubelet is asked for in the name of the node.
    fn signing(&self) -> Result<(), Status> {
        let (Operation::Create, Some(request)) = (self.request.operation, self.new) else { return Ok(()) };
        let signer = request["spec"]["signerName"].as_str().unwrap_or_default();
        if !matches!(signer, "kubernetes.io/kubelet-serving" | "kubernetes.io/kube-apiserver-client-kubelet")
        {
            return Ok(());
        }
        let wanted = format!("system:node:{}", self.node);
        match super::certificates::common_name(request) {
            Some(name) if name == wanted => Ok(()),
            Some(_) => Err(self.deny(&format!("can only create a node CSR with CN={wanted}"))),
            None => Err(self.deny("unable to parse csr: PEM block type must be CERTIFICATE REQUEST")),
        }
    }
}

/// What a pod refers to that it would have to be read through the API.
fn foreign_reference(pod: &Value) -> Option<&'static str> {
    let spec = &pod["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if !spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Some("serviceaccounts");
    }
    let (secrets, config_maps) = crate::authz::node::named_by(pod);
    if secrets {
        return Some("secrets");
    }
    if config_maps {
        return Some("configmaps");
    }
    if !list(&spec["resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    list(&spec["volumes"]).iter().find_map(|volume| {
        let kinds = [
            ("csi", "csidrivers (via CSI volumes)"),
            ("glusterfs", "endpoints (via glusterFS volumes)"),
            ("persistentVolumeClaim", "persistentvolumeclaims"),
            ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ];
        let direct = kinds.iter().find(|(field, _)| volume[*field].is_object()).map(|(_, what)| *what);
        direct.or_else(|| {
            let sources = [
                ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
                ("clusterTrustBundle", "clustertrustbundles"),
                ("podCertificate", "podcertificates"),
            ];
            list(&volume["projected"]["sources"]).iter().find_map(|source| {
                sources.iter().find(|(field, _)| source[*field].is_object()).map(|(_, what)| *what)
            })
        })
    })
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
