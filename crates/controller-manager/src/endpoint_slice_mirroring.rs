//! Mirrors Endpoints that users made for Services without a selector into EndpointSlices, which is all that proxies read.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Kind, Labels, Plan, difference};
use serde_json::{Value, json};

use crate::endpoint_slice::{MANAGED_BY, SERVICE_NAME};
use crate::kinds::{
    Endpoint, EndpointAddress, EndpointConditions, EndpointPort, EndpointSlice, EndpointSubset, Endpoints,
    Service, labels_json,
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// What one mirror depends on.
pub struct View {
    /// The Endpoints.
    pub endpoints: Option<Arc<Endpoints>>,
    /// Its Service.
    pub service: Option<Arc<Service>>,
    /// The slices that mirror it.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// More endpoints of a subset than this are left out.
    pub limit: usize,
}

/// Decides on one mirror.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let mut slices = view.slices.clone();
    if let Some(endpoints) =
        view.endpoints.as_ref().filter(|endpoints| is_mirrored(endpoints, view.service.as_deref()))
    {
        for subset in &endpoints.subsets {
            for family in ["IPv4", "IPv6"] {
                let wanted = slice_of(endpoints, subset, family, view.limit);
                if wanted["endpoints"].as_array().is_none_or(Vec::is_empty) {
                    continue;
                }
                let ports: Vec<EndpointPort> = ports_of(subset);
                let found =
                    slices.iter().position(|slice| *slice.address_type == *family && slice.ports == ports);
                match found.map(|index| slices.remove(index)) {
                    None => {
                        plan.create(&EndpointSlice::RESOURCE, wanted);
                    }
                    Some(old) => {
                        let present = json!({"metadata": {"labels": labels_json(&old.metadata.labels)}, "endpoints": old.endpoints});
                        let target = json!({"metadata": {"labels": wanted["metadata"]["labels"]}, "endpoints": wanted["endpoints"]});
                        if let Some(change) = difference(&present, &target) {
                            plan.update(&*old, change);
                        }
                    }
                }
            }
        }
    }
    for slice in slices {
        plan.delete(&*slice);
    }
    plan
}

/// Only what users made by hand: no selector, no leader's lock, not asked to be left alone.
fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let selected = service.is_none_or(|service| service.selects().is_some());
    let skipped =
        endpoints.metadata.label(SKIP) == Some("true") || endpoints.metadata.annotation(LEADER).is_some();
    !selected && !skipped && !endpoints.metadata.is_terminating()
}

fn ports_of(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let mut ports = subset.ports.clone();
    for port in &mut ports {
        port.name.get_or_insert_with(|| "".into());
        port.protocol.get_or_insert_with(|| "TCP".into());
    }
    ports.sort();
    ports
}

fn slice_of(endpoints: &Endpoints, subset: &EndpointSubset, family: &str, limit: usize) -> Value {
    let of_family = |address: &&EndpointAddress| address.ip.contains(':') == (family == "IPv6");
    let make = |address: &EndpointAddress, ready: bool| Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: EndpointConditions { ready: Some(ready), ..EndpointConditions::default() },
        hostname: Some(address.hostname.clone()).filter(|name| !name.is_empty()),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        ..Endpoint::default()
    };
    let ready = subset.addresses.iter().filter(of_family).map(|address| make(address, true));
    let others = subset.not_ready_addresses.iter().filter(of_family).map(|address| make(address, false));
    let all: Vec<Endpoint> = ready.chain(others).take(limit).collect();
    let own = endpoints.metadata.labels.iter().filter(|(name, _)| ![MANAGED_BY, SERVICE_NAME].contains(name));
    let labels: Labels =
        own.chain([(SERVICE_NAME, &*endpoints.metadata.name), (MANAGED_BY, MANAGER)]).collect();
    json!({
        "metadata": {
            "generateName": format!("{}-", endpoints.metadata.name),
            "namespace": endpoints.metadata.namespace,
            "labels": labels_json(&labels),
            "ownerReferences": [endpoints.controller_ref()],
        },
        "addressType": family,
        "endpoints": all,
        "ports": ports_of(subset),
    })
}

fn gather(context: &Context, limit: usize) -> Option<View> {
    let mut slices = context.caches.of::<EndpointSlice>().indexed("service", &context.key.to_string());
    slices.retain(|slice| {
        slice.metadata.label(MANAGED_BY) == Some(MANAGER) && !slice.metadata.is_terminating()
    });
    Some(View { endpoints: context.object(), service: context.object(), slices, limit })
}

/// The controller; more than `limit` endpoints of a subset are left out.
pub fn controller(limit: usize) -> Controller {
    Controller::new("endpointslice-mirroring-controller", move |context| gather(context, limit), reconcile)
        .acting_as("endpointslicemirroring-controller")
        .for_kind::<Endpoints>()
        .watching::<Service>(|_, change| vec![change.key()])
        .watching::<EndpointSlice>(|_, change| {
            let metadata = &change.latest().metadata;
            let ours = metadata.label(MANAGED_BY) == Some(MANAGER);
            let name = metadata.label(SERVICE_NAME).filter(|_| ours);
            name.map(|name| controller_runtime::Key::new(&metadata.namespace, name)).into_iter().collect()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn view(selector: Value, labels: Value) -> View {
        View {
            endpoints: Some(Arc::new(object(
                json!({"metadata":{"name":"ext","namespace":"n","uid":"e1","labels":labels},
                "subsets":[{"addresses":[{"ip":"192.0.2.1"},{"ip":"2001:db8::1"}],"ports":[{"port":443}]}]}),
            ))),
            service: Some(Arc::new(object(
                json!({"metadata":{"name":"ext","namespace":"n"},"spec":{"selector":selector}}),
            ))),
            slices: Vec::new(),
            limit: 1000,
        }
    }

    #[test]
    fn hand_made_endpoints_are_mirrored_by_family() {
        let plan = reconcile(&view(Value::Null, json!({})));
        let families: Vec<&Value> = plan.creates().iter().map(|slice| &slice["addressType"]).collect();
        assert_eq!(families, ["IPv4", "IPv6"]);
        assert_eq!(plan.creates()[0]["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
        let mut again = view(Value::Null, json!({}));
        again.slices = plan.creates().into_iter().map(|slice| Arc::new(object(slice.clone()))).collect();
        assert!(reconcile(&again).is_empty());
        again.limit = 0;
        assert!(reconcile(&again).creates().is_empty());
        again.endpoints = None;
        assert_eq!(reconcile(&again).deletes().len(), 2);
    }

    #[test]
    fn selected_and_skipped_ones_are_not() {
        assert!(reconcile(&view(json!({"a":"b"}), json!({}))).is_empty());
        assert!(reconcile(&view(Value::Null, json!({SKIP:"true"}))).is_empty());
    }
}
