//! Small loops: ranges of Service addresses in use, claims of dynamic resources, and the note on nodes of how long kubelets may keep secrets.

use std::net::IpAddr;
use std::sync::Arc;

use client::resources;
use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Meta, PatchForm, Plan, Raw};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use crate::kinds::{
    Condition, IpAddress, Node, Pod, PodClaimStatus, ServiceCidr, Toleration, condition, kind, none,
    set_condition,
};
use crate::node_ipam::Range;

const CIDR_FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// What one range of Service addresses depends on.
pub struct CidrView {
    cidr: Arc<ServiceCidr>,
    /// Whether addresses are in use that no other range has.
    needed: bool,
    now: Timestamp,
}

fn keep_cidr(view: &CidrView) -> Plan {
    let mut plan = Plan::default();
    let cidr = &*view.cidr;
    if cidr.metadata.is_terminating() {
        if view.needed {
            let mut conditions = cidr.status.conditions.clone();
            let text = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            set_condition(&mut conditions, Condition::new("Ready", "False", "Terminating", text, view.now));
            if conditions != cidr.status.conditions {
                plan.set_status(cidr, json!({"conditions": conditions}));
            }
        } else if cidr.metadata.has_finalizer(CIDR_FINALIZER) {
            plan.update(
                cidr,
                json!({"metadata": {"finalizers": cidr.metadata.finalizers_without(CIDR_FINALIZER)}}),
            );
        }
        return plan;
    }
    if !cidr.metadata.has_finalizer(CIDR_FINALIZER) {
        plan.update(cidr, json!({"metadata": {"finalizers": cidr.metadata.finalizers_with(CIDR_FINALIZER)}}));
        return plan;
    }
    if !condition(&cidr.status.conditions, "Ready").is_some_and(Condition::is_true) {
        let mut conditions = cidr.status.conditions.clone();
        let text = "Kubernetes Service CIDR is ready";
        set_condition(&mut conditions, Condition::new("Ready", "True", "", text, view.now));
        plan.set_status(cidr, json!({"conditions": conditions}));
    }
    plan
}

fn range(text: &str) -> Option<Range> {
    let prefix: u8 = text.split_once('/')?.1.parse().ok()?;
    Range::new(text, prefix)
}

/// Looks after ranges of Service addresses.
pub fn service_cidrs() -> Controller {
    let gather = |context: &Context| {
        let cidr = context.object::<ServiceCidr>()?;
        let others: Vec<Range> = context
            .caches
            .of::<ServiceCidr>()
            .list()
            .iter()
            .filter(|other| other.metadata.name != cidr.metadata.name && !other.metadata.is_terminating())
            .flat_map(|other| other.spec.cidrs.iter().filter_map(|text| range(text)).collect::<Vec<_>>())
            .collect();
        let own: Vec<Range> = cidr.spec.cidrs.iter().filter_map(|text| range(text)).collect();
        let only_here = |address: &Arc<IpAddress>| {
            let address: Option<IpAddr> = address.metadata.name.parse().ok();
            address.is_some_and(|ip| {
                own.iter().any(|r| r.contains(ip)) && !others.iter().any(|r| r.contains(ip))
            })
        };
        let needed =
            cidr.metadata.is_terminating() && context.caches.of::<IpAddress>().list().iter().any(only_here);
        Some(CidrView { cidr, needed, now: context.now })
    };
    let going = |caches: &Caches| {
        let all = caches.of::<ServiceCidr>().list();
        all.iter().filter(|cidr| cidr.metadata.is_terminating()).map(|cidr| cidr.key()).collect()
    };
    Controller::new("service-cidr-controller", gather, keep_cidr)
        .acting_as("service-cidrs-controller")
        .for_kind::<ServiceCidr>()
        .watching::<IpAddress>(
            move |caches, change| if change.new.is_none() { going(caches) } else { Vec::new() },
        )
}

/// How long kubelets may keep what they read, by the number of nodes: upper bound, seconds.
const TTL: [(usize, u32); 5] = [(100, 0), (500, 15), (1000, 30), (2000, 60), (usize::MAX, 300)];
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// What one node's note depends on.
pub struct TtlView {
    node: Arc<Node>,
    nodes: usize,
}

fn note_ttl(view: &TtlView) -> Plan {
    let mut plan = Plan::default();
    let seconds =
        TTL.iter().find(|(most, _)| view.nodes <= *most).map_or(0, |(_, seconds)| *seconds).to_string();
    if view.node.metadata.annotation(TTL_ANNOTATION) != Some(&seconds) {
        plan.patch(&*view.node, json!({"metadata": {"annotations": {TTL_ANNOTATION: seconds}}}));
    }
    plan
}

/// Notes on nodes how long kubelets may keep secrets.
pub fn ttl() -> Controller {
    let gather = |context: &Context| {
        Some(TtlView { node: context.object()?, nodes: context.caches.of::<Node>().len() })
    };
    Controller::new("ttl-controller", gather, note_ttl).acting_as("ttl-controller").for_kind::<Node>()
}

/// A ResourceClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    metadata: Meta,
    status: ClaimStatus,
}
kind!(ResourceClaim, RESOURCE_CLAIMS, owned true, keep |name| name == CLAIM_NAME,
    index |claim, add| claim.devices().iter().for_each(|own| add("pool", &crate::device_taints::place(&own.driver, &own.pool))));

impl ResourceClaim {
    /// What was allocated for it.
    pub fn devices(&self) -> &[AllocatedDevice] {
        &self.status.allocation.devices.results
    }

    /// Whether the pod with this uid may use it.
    pub fn is_reserved_for(&self, uid: &str) -> bool {
        self.status.reserved_for.iter().any(|consumer| &*consumer.uid == uid)
    }

    /// The pods that may use it.
    pub fn consumers(&self) -> Vec<Key> {
        let pods = self.status.reserved_for.iter().filter(|consumer| &*consumer.resource == "pods");
        pods.map(|consumer| Key::new(&self.metadata.namespace, &consumer.name)).collect()
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimStatus {
    reserved_for: Vec<Consumer>,
    allocation: Allocation,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Allocation {
    devices: AllocatedDevices,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct AllocatedDevices {
    results: Vec<AllocatedDevice>,
}

/// A device that a claim got.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDevice {
    /// Who drives it.
    pub driver: Box<str>,
    /// The pool that it is of.
    pub pool: Box<str>,
    /// Its name there.
    pub device: Box<str>,
    /// The taints that the claim puts up with.
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Consumer {
    #[serde(rename = "apiGroup", skip_serializing_if = "str::is_empty")]
    api_group: Box<str>,
    resource: Box<str>,
    name: Box<str>,
    uid: Box<str>,
}

/// A ResourceClaimTemplate.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimTemplate {
    metadata: Meta,
    spec: Raw,
}
kind!(ResourceClaimTemplate, RESOURCE_CLAIM_TEMPLATES, keep none);

const CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// What the claims of one pod depend on.
pub struct PodClaims {
    pod: Arc<Pod>,
    claims: Vec<Arc<ResourceClaim>>,
    templates: Vec<Arc<ResourceClaimTemplate>>,
}

fn make_claims(view: &PodClaims) -> Plan {
    let mut plan = Plan::default();
    let pod = &*view.pod;
    if pod.metadata.is_terminating() || pod.is_finished() {
        return plan;
    }
    let mut statuses: Vec<PodClaimStatus> = Vec::new();
    for wanted in &pod.spec.resource_claims {
        let Some(template_name) = &wanted.resource_claim_template_name else { continue };
        let made =
            view.claims.iter().find(|claim| claim.metadata.annotation(CLAIM_NAME) == Some(&wanted.name));
        if let Some(claim) = made {
            statuses.push(PodClaimStatus {
                name: wanted.name.clone(),
                resource_claim_name: Some(claim.metadata.name.clone()),
            });
            continue;
        }
        let Some(template) = view.templates.iter().find(|template| template.metadata.name == *template_name)
        else {
            let text = format!("resourceclaimtemplate \"{template_name}\" not found");
            plan.warn(
                pod,
                "FailedResourceClaimCreation",
                format!("PodResourceClaim {}: {text}", wanted.name),
            );
            plan.retry(text);
            continue;
        };
        let spec = template.spec.value();
        let mut annotations = spec["metadata"]["annotations"].clone();
        if annotations.is_null() {
            annotations = json!({});
        }
        annotations[CLAIM_NAME] = json!(wanted.name);
        let claim = json!({
            "metadata": {"generateName": format!("{}-{}-", pod.metadata.name, wanted.name), "namespace": pod.metadata.namespace,
                "labels": spec["metadata"]["labels"], "annotations": annotations, "ownerReferences": [pod.controller_ref()]},
            "spec": spec["spec"],
        });
        let failed = format!("PodResourceClaim {}: {{error}}", wanted.name);
        plan.create(&resources::RESOURCE_CLAIMS, claim).announce(
            pod,
            None,
            Some(("FailedResourceClaimCreation", failed)),
        );
    }
    let told = |list: &[PodClaimStatus]| json!(list);
    if !statuses.is_empty() && told(&statuses) != told(&pod.status.resource_claim_statuses) {
        let body = json!({"status": {"resourceClaimStatuses": statuses}});
        plan.patch_meta(&Pod::RESOURCE, &pod.metadata, Some("status"), PatchForm::Strategic, body).tolerant();
    }
    plan
}

/// Makes the claims that pods want from templates.
pub fn pod_claims() -> Controller {
    let wants =
        |pod: &Pod| pod.spec.resource_claims.iter().any(|claim| claim.resource_claim_template_name.is_some());
    let gather = move |context: &Context| {
        let pod = context.object::<Pod>().filter(|pod| wants(pod))?;
        let claims = context.caches.controlled_by::<ResourceClaim>(&pod.metadata.uid);
        let templates = context.caches.of::<ResourceClaimTemplate>().in_namespace(&pod.metadata.namespace);
        Some(PodClaims { pod, claims, templates })
    };
    Controller::new("resourceclaim-controller", gather, make_claims)
        .acting_as("resource-claim-controller")
        .events_from("resource_claim")
        .watching::<Pod>(move |_, change| match &change.new {
            Some(pod) if wants(pod) => vec![change.key()],
            _ => Vec::new(),
        })
        .watching::<ResourceClaim>(|_, change| {
            let metadata = &change.latest().metadata;
            let owner = metadata.controller().filter(|owner| &*owner.kind == "Pod");
            owner.map(|owner| Key::new(&metadata.namespace, &owner.name)).into_iter().collect()
        })
        .reading_kind::<ResourceClaimTemplate>()
}

/// What one claim's reservations depend on.
pub struct Reservations {
    claim: Arc<ResourceClaim>,
    /// The consumers that still need it.
    valid: Vec<Consumer>,
    /// Whether the pod that it was made for has ended.
    owner_ended: bool,
}

fn release(view: &Reservations) -> Plan {
    let mut plan = Plan::default();
    let claim = &*view.claim;
    if view.valid != claim.status.reserved_for {
        let mut status = json!({"reservedFor": view.valid});
        if view.valid.is_empty() {
            // Nobody uses it: the devices are free again.
            status["allocation"] = json!(null);
        }
        plan.set_status(claim, status);
    }
    if view.owner_ended && view.valid.is_empty() && !claim.metadata.is_terminating() {
        plan.delete(claim);
    }
    plan
}

/// Frees dynamic resources of pods that ended.
pub fn claim_release() -> Controller {
    let gather = |context: &Context| {
        let claim = context.object::<ResourceClaim>()?;
        let pods = context.caches.of::<Pod>();
        let find = |name: &str, uid: &str| {
            pods.get(&Key::new(&claim.metadata.namespace, name)).filter(|pod| *pod.metadata.uid == *uid)
        };
        let needs = |consumer: &&Consumer| {
            &*consumer.resource != "pods"
                || find(&consumer.name, &consumer.uid).is_some_and(|pod| !pod.is_finished())
        };
        let valid = claim.status.reserved_for.iter().filter(needs).cloned().collect();
        let owner = claim.metadata.controller().filter(|owner| &*owner.kind == "Pod").cloned();
        let owner_ended =
            owner.is_some_and(|owner| find(&owner.name, &owner.uid).is_some_and(|pod| pod.is_finished()));
        Some(Reservations { claim, valid, owner_ended })
    };
    Controller::new("resourceclaim-release-controller", gather, release)
        .acting_as("resource-claim-controller")
        .for_kind::<ResourceClaim>()
        .watching::<Pod>(of_ended)
}

fn of_ended(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let pod = change.latest();
    if pod.spec.resource_claims.is_empty() || change.new.as_ref().is_some_and(|pod| !pod.is_finished()) {
        return Vec::new();
    }
    let claims = caches.of::<ResourceClaim>().in_namespace(&pod.metadata.namespace);
    let uses = |claim: &&Arc<ResourceClaim>| {
        claim.metadata.is_controlled_by(&pod.metadata.uid)
            || claim.status.reserved_for.iter().any(|consumer| consumer.uid == pod.metadata.uid)
    };
    claims.iter().filter(uses).map(|claim| claim.key()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};

    #[test]
    fn addresses_of_the_other_family_are_in_no_range() {
        let own = range("10.0.0.0/24").unwrap();
        for (address, inside) in [("10.0.0.7", true), ("10.0.1.7", false), ("fd00::7", false)] {
            assert_eq!(own.contains(address.parse().unwrap()), inside, "{address}");
        }
        let wide = range("fd00::/64").unwrap();
        assert!(wide.contains("fd00::7".parse().unwrap()) && !wide.contains("10.0.0.7".parse().unwrap()));
    }

    #[test]
    fn a_range_in_use_stays() {
        let plan = |meta: serde_json::Value, needed: bool| {
            let cidr = Arc::new(object(json!({"metadata": meta, "spec": {"cidrs": ["10.0.0.0/24"]}})));
            keep_cidr(&CidrView { cidr, needed, now: now() })
        };
        let going =
            json!({"name":"c","deletionTimestamp":"2026-01-01T00:00:00Z","finalizers":[CIDR_FINALIZER]});
        assert_eq!(
            plan(going.clone(), true).status_change().unwrap()["conditions"][0]["reason"],
            "Terminating"
        );
        assert_eq!(plan(going, false).changes()[0].1["metadata"]["finalizers"], json!([]));
        let alive = json!({"name":"c","finalizers":[CIDR_FINALIZER]});
        assert_eq!(plan(alive, false).status_change().unwrap()["conditions"][0]["status"], "True");
    }

    #[test]
    fn dynamic_claims_are_made_told_and_freed() {
        let owner = Arc::new(pod(
            "p",
            json!({"spec":{"resourceClaims":[{"name":"gpu","resourceClaimTemplateName":"t"}]}}),
        ));
        let template = Arc::new(object(json!({"metadata":{"name":"t"},"spec":{"spec":{"devices":{}}}})));
        let first = make_claims(&PodClaims { pod: owner.clone(), claims: vec![], templates: vec![template] });
        assert_eq!(first.creates()[0]["metadata"]["annotations"][CLAIM_NAME], "gpu");
        let claim: Arc<ResourceClaim> =
            Arc::new(object(json!({"metadata":{"name":"p-gpu-x","annotations":{CLAIM_NAME:"gpu"}},
            "status":{"reservedFor":[{"resource":"pods","name":"p","uid":"p"}]}})));
        let second = make_claims(&PodClaims { pod: owner, claims: vec![claim.clone()], templates: vec![] });
        assert_eq!(
            second.changes()[0].1["status"]["resourceClaimStatuses"][0]["resourceClaimName"],
            "p-gpu-x"
        );
        let freed = release(&Reservations { claim, valid: vec![], owner_ended: true });
        assert_eq!(freed.status_change().unwrap()["allocation"], json!(null));
        assert_eq!(freed.deletes(), ["p-gpu-x"]);
    }
}
