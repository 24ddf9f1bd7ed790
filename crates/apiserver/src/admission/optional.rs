//! Plug-ins that are off unless `--enable-admission-plugins` names them, and the names of all that upstream has.

use apimachinery::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

/// What upstream calls its plug-ins, so that a name which is only misspelt is told from one that is not built in.
const UPSTREAM: [&str; 41] = [
    "AlwaysAdmit",
    "NamespaceAutoProvision",
    "NamespaceLifecycle",
    "NamespaceExists",
    "LimitPodHardAntiAffinityTopology",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "AlwaysPullImages",
    "ImagePolicyWebhook",
    "PodSecurity",
    "PodNodeSelector",
    "Priority",
    "DefaultTolerationSeconds",
    "PodTolerationRestriction",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PodGroupProtection",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeClaimResize",
    "RuntimeClass",
    "CertificateApproval",
    "CertificateSigning",
    "ClusterTrustBundleAttest",
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "DenyServiceExternalIPs",
    "PodTopologyLabels",
    "PodGroupWorkloadExists",
    "NodeDeclaredFeatureValidator",
    "JobValidation",
    "PodResizeValidator",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ResourceQuota",
    "AlwaysDeny",
];

/// Why the wanted set of plug-ins cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PluginError {
    /// Nobody knows the name.
    #[error("unknown admission plug-in {0:?}")]
    Unknown(String),
    /// Upstream has it, this server does not.
    #[error("admission plug-in {0:?} is not built into this server")]
    Missing(String),
    /// Asked for and ruled out.
    #[error("admission plug-in {0:?} is both enabled and disabled")]
    Both(String),
}

/// Checks the flags' names against those that are built in.
pub fn check(built_in: &[&str], disabled: &[String], enabled: &[String]) -> Result<(), PluginError> {
    for name in disabled.iter().chain(enabled).filter(|name| !name.is_empty()) {
        if !UPSTREAM.contains(&name.as_str()) {
            return Err(PluginError::Unknown(name.clone()));
        }
    }
    for name in enabled.iter().filter(|name| !name.is_empty()) {
        if disabled.contains(name) {
            return Err(PluginError::Both(name.clone()));
        }
        if !built_in.contains(&name.as_str()) {
            return Err(PluginError::Missing(name.clone()));
        }
    }
    Ok(())
}

/// The names of all plug-ins but these.
pub fn all_but(kept: &[String]) -> Vec<String> {
    UPSTREAM
        .iter()
        .filter(|name| !kept.iter().any(|own| own == *name))
        .map(|name| (*name).to_owned())
        .collect()
}

/// All plug-ins of this file.
pub fn all() -> Vec<Box<dyn Plugin>> {
    vec![
        Box::new(AlwaysAdmit),
        Box::new(AlwaysPullImages),
        Box::new(ExtendedResourceToleration),
        Box::new(DenyServiceExternalIps),
        Box::new(AlwaysDeny),
    ]
}

/// Admits everything, as not being there would.
struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }
}

/// Refuses every write.
struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn validate(
        &self,
        _server: &ApiServer,
        request: &Request<'_>,
        _object: Option<&Value>,
        _old: Option<&Value>,
    ) -> Result<(), Status> {
        Err(request.forbid(&request.context.info.name, "admission control is denying all modifications"))
    }
}

/// The lists of containers of a pod.
const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

fn touches_containers(request: &Request<'_>) -> bool {
    let context = request.context;
    context.resource.group().is_empty()
        && context.resource.plural() == "pods"
        && matches!(request.operation, Operation::Create | Operation::Update)
        && matches!(request.subresource, "" | "ephemeralcontainers")
}

/// Makes every container pull its image, so that credentials are checked each time.
struct AlwaysPullImages;

impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn mutate(
        &self,
        _server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        // An update that brings no new image leaves what was admitted before the plug-in was turned on.
        if !touches_containers(request) || old.is_some_and(|old| images(old) == images(object)) {
            return Ok(());
        }
        for list in CONTAINERS {
            for container in items_mut(object, list) {
                container["imagePullPolicy"] = json!("Always");
            }
        }
        for volume in items_mut(object, "volumes") {
            if let Some(image) = volume.get_mut("image").filter(|image| image.is_object()) {
                image["pullPolicy"] = json!("Always");
            }
        }
        Ok(())
    }
}

/// The items of a list in the spec. Looked up, not indexed: indexing for change puts nulls where there is nothing.
fn items_mut<'a>(pod: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let found = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut);
    found.into_iter().flatten()
}

fn images(pod: &Value) -> Vec<&Value> {
    let containers = CONTAINERS.iter().flat_map(|list| pod["spec"][*list].as_array().into_iter().flatten());
    containers.map(|container| &container["image"]).collect()
}

/// Lets pods that ask for extended resources onto nodes that are tainted with their names.
struct ExtendedResourceToleration;

impl Plugin for ExtendedResourceToleration {
    fn name(&self) -> &'static str {
        "ExtendedResourceToleration"
    }

    fn mutate(
        &self,
        _server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        _old: Option<&Value>,
    ) -> Result<(), Status> {
        if !touches_containers(request) {
            return Ok(());
        }
        let mut wanted: Vec<String> = Vec::new();
        for list in ["initContainers", "containers"] {
            for container in object["spec"][list].as_array().into_iter().flatten() {
                let asked = container["resources"]["requests"].as_object().into_iter().flatten();
                wanted.extend(asked.map(|(name, _)| name.clone()).filter(|name| is_extended(name)));
            }
        }
        wanted.sort();
        wanted.dedup();
        for name in wanted {
            let tolerations = &mut object["spec"]["tolerations"];
            if !tolerations.is_array() {
                *tolerations = json!([]);
            }
            let new = json!({"key": name, "operator": "Exists", "effect": "NoSchedule"});
            if let Some(list) = tolerations.as_array_mut()
                && !list.contains(&new)
            {
                list.push(new);
            }
        }
        Ok(())
    }
}

/// Whether a resource belongs to somebody else than Kubernetes.
fn is_extended(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Nobody takes external addresses that the Service did not have before.
struct DenyServiceExternalIps;

impl Plugin for DenyServiceExternalIps {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn validate(
        &self,
        _server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if !request.is("", "services") {
            return Ok(());
        }
        let addresses = |object: Option<&Value>| -> Vec<Value> {
            object.and_then(|object| object["spec"]["externalIPs"].as_array().cloned()).unwrap_or_default()
        };
        let before = addresses(old);
        if addresses(object).iter().all(|address| before.contains(address)) {
            return Ok(());
        }
        Err(request.forbid(&request.context.info.name, "Use of external IPs is denied by admission control"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let built_in = ["PodSecurity", "AlwaysPullImages"];
        assert_eq!(check(&built_in, &list(&["ImagePolicyWebhook"]), &list(&["AlwaysPullImages"])), Ok(()));
        let cases = [
            (list(&["PodSecurtiy"]), list(&[]), PluginError::Unknown("PodSecurtiy".into())),
            (list(&[]), list(&["Nope"]), PluginError::Unknown("Nope".into())),
            (list(&[]), list(&["EventRateLimit"]), PluginError::Missing("EventRateLimit".into())),
            (list(&["PodSecurity"]), list(&["PodSecurity"]), PluginError::Both("PodSecurity".into())),
        ];
        for (disabled, enabled, want) in cases {
            assert_eq!(check(&built_in, &disabled, &enabled), Err(want));
        }
    }

    #[test]
    fn extended_resources_are_told_apart() {
        assert!(is_extended("example.com/gpu"));
        assert!(!is_extended("cpu") && !is_extended("kubernetes.io/x") && !is_extended("a.kubernetes.io/x"));
    }
}
