//! What the pods and claims of a StatefulSet look like.

use std::sync::Arc;

use controller_runtime::{Kind, Plan, Raw, merge};
use serde_json::{Value, json};

use super::{REVISION_LABEL, View};
use crate::kinds::{PersistentVolumeClaim, Pod, StatefulSet};
use crate::pods;

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// The pod of an ordinal.
pub fn pod(set: &StatefulSet, template: &Raw, revision: &str, ordinal: i64) -> Value {
    let name = format!("{}-{ordinal}", set.metadata.name);
    let mut pod = pods::from_template(set, template);
    let metadata = &mut pod["metadata"];
    metadata["name"] = json!(name);
    metadata["labels"][POD_NAME] = json!(name);
    metadata["labels"][POD_INDEX] = json!(ordinal.to_string());
    metadata["labels"][REVISION_LABEL] = json!(revision);
    pod["spec"]["hostname"] = json!(name);
    if !set.spec.service_name.is_empty() {
        pod["spec"]["subdomain"] = json!(set.spec.service_name);
    }
    let templates: Vec<String> = template_names(set).collect();
    if !templates.is_empty() {
        let mut volumes = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
        // A claim of its own goes before a volume of the same name in the template.
        volumes.retain(|volume| !templates.iter().any(|name| volume["name"] == **name));
        for (volume, claim) in templates.iter().zip(claim_names(set, ordinal)) {
            volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
        }
        pod["spec"]["volumes"] = json!(volumes);
    }
    pod
}

fn template_names(set: &StatefulSet) -> impl Iterator<Item = String> {
    let name = |template: &Raw| template.value()["metadata"]["name"].as_str().unwrap_or("").to_owned();
    set.spec.volume_claim_templates.iter().map(name)
}

/// The names of an ordinal's claims, in the order of the templates.
pub fn claim_names(set: &StatefulSet, ordinal: i64) -> Vec<String> {
    template_names(set).map(|template| format!("{template}-{}-{ordinal}", set.metadata.name)).collect()
}

/// Plans the claims of an ordinal that are not there, before what follows.
pub fn missing_claims(view: &View, ordinal: i64, plan: &mut Plan) {
    let set = &*view.set;
    let mut planned = false;
    for (template, name) in set.spec.volume_claim_templates.iter().zip(claim_names(set, ordinal)) {
        if view.claims.contains_key(name.as_str()) {
            continue;
        }
        let mut claim = template.value();
        merge(
            &mut claim,
            &json!({"metadata": {"name": name, "namespace": set.metadata.namespace}, "status": null,
            "apiVersion": null, "kind": null}),
        );
        if let Some(labels) = set.spec.selector.to_json().get("matchLabels") {
            merge(&mut claim["metadata"]["labels"], labels);
        }
        let (pod, set_name) = (format!("{}-{ordinal}", set.metadata.name), &set.metadata.name);
        plan.create(&PersistentVolumeClaim::RESOURCE, claim).tolerant().announce(
            set,
            Some((
                "SuccessfulCreate",
                format!("Create Claim {name} Pod {pod} in StatefulSet {set_name} success"),
            )),
            Some((
                "FailedCreate",
                format!(
                    "Create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {{error}}"
                ),
            )),
        );
        planned = true;
    }
    if planned {
        plan.then();
    }
}

/// Puts the labels back that name a pod, if somebody took them.
pub fn keep_identity(set: &StatefulSet, pod: &Pod, plan: &mut Plan) {
    let name = &*pod.metadata.name;
    if pod.metadata.label(POD_NAME) != Some(name) && !pod.metadata.is_terminating() {
        let index = set.ordinal_of(name).unwrap_or(0).to_string();
        plan.patch(pod, json!({"metadata": {"labels": {POD_NAME: name, POD_INDEX: index}}})).tolerant();
    }
}

/// Makes claims go with the set or with their pod, as the retention policy says.
pub fn keep_claims(view: &View, members: &[(i64, &Arc<Pod>)], plan: &mut Plan) {
    let set = &*view.set;
    let policy = set.spec.persistent_volume_claim_retention_policy.clone().unwrap_or_default();
    let (with_set, with_pod) = (&*policy.when_deleted == "Delete", &*policy.when_scaled == "Delete");
    for (ordinal, pod) in members {
        let condemned = !set.is_in_range(*ordinal);
        let owner = if with_pod && condemned {
            Some(
                json!({"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}),
            )
        } else if with_set {
            Some(set.controller_ref())
        } else {
            None
        };
        for name in claim_names(set, *ordinal) {
            let Some(claim) = view.claims.get(name.as_str()) else { continue };
            let is_ours = |uid: &str| *uid == *set.metadata.uid || *uid == *pod.metadata.uid;
            let present: Vec<&str> = claim
                .metadata
                .owner_references
                .iter()
                .map(|own| &*own.uid)
                .filter(|uid| is_ours(uid))
                .collect();
            let wanted: Vec<&str> = owner.iter().filter_map(|owner| owner["uid"].as_str()).collect();
            if present == wanted {
                continue;
            }
            let others = claim.metadata.owner_references.iter().filter(|own| !is_ours(&own.uid));
            let mut owners: Vec<Value> = others
                .map(|own| json!({"apiVersion": own.api_version, "kind": own.kind, "name": own.name, "uid": own.uid}))
                .collect();
            owners.extend(owner.clone());
            plan.update(&**claim, json!({"metadata": {"ownerReferences": owners}}));
        }
    }
}
