//! Endpoints: where a Service's traffic goes, in the older API's form.

use std::collections::BTreeMap;
use std::sync::Arc;

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Labels, Plan, Selector};
use serde_json::{Value, json};

use crate::kinds::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, IntOrString, Pod, Service, ServicePort,
    TargetRef, labels_json,
};

const HEADLESS: &str = "service.kubernetes.io/headless";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// More addresses than this are left out.
const CAPACITY: usize = 1000;

/// What one Service's endpoints depend on.
pub struct View {
    /// The Service's key.
    pub key: Key,
    /// The Service, unless it is gone.
    pub service: Option<Arc<Service>>,
    /// The pods that it selects.
    pub pods: Vec<Arc<Pod>>,
    /// The present object.
    pub present: Option<Arc<Endpoints>>,
}

impl Service {
    /// Whether pods are found by selector.
    pub fn selects(&self) -> Option<Selector> {
        self.spec.selector.as_ref().filter(|selector| !selector.is_empty()).map(Selector::of_labels)
    }

    /// Whether it has no address of its own.
    pub fn is_headless(&self) -> bool {
        &*self.spec.cluster_ip == "None"
    }
}

impl Pod {
    /// Whether it can be an endpoint at all: has an address and has not ended.
    pub fn has_endpoint(&self, include_terminating: bool) -> bool {
        let has_address = !self.status.pod_ip.is_empty() || !self.status.more_ips.is_empty();
        has_address && !self.is_finished() && (include_terminating || !self.metadata.is_terminating())
    }

    /// Its address of a family.
    pub fn address(&self, v6: bool) -> Option<&str> {
        let all = std::iter::once(&self.status.pod_ip).chain(&self.status.more_ips).map(|ip| &**ip);
        all.filter(|ip| !ip.is_empty()).find(|ip| ip.contains(':') == v6)
    }
}

/// The port of a pod that a Service's port leads to.
pub fn target(pod: &Pod, port: &ServicePort) -> Option<i64> {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &*port.protocol };
    let own = IntOrString::Int(port.port);
    pod.port_number(port.target_port.as_ref().unwrap_or(&own), protocol)
}

/// What refers to a pod.
pub fn reference(pod: &Pod) -> TargetRef {
    TargetRef {
        kind: "Pod".into(),
        namespace: (&pod.metadata.namespace).into(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    }
}

/// Decides on one Service.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let Some(service) = &view.service else {
        if let Some(present) = &view.present {
            plan.delete(&**present);
        }
        return plan;
    };
    let (subsets, over) = subsets_of(service, &view.pods);
    let labels = labels_of(service);
    match &view.present {
        None => {
            let mut metadata = json!({"name": service.metadata.name, "namespace": service.metadata.namespace,
                "labels": labels_json(&labels)});
            if over {
                metadata["annotations"] = json!({OVER_CAPACITY: "truncated"});
            }
            let object = json!({"metadata": metadata, "subsets": subsets});
            let failed = format!("Failed to create endpoint for service {}: {{error}}", view.key);
            plan.create(&Endpoints::RESOURCE, object).announce(
                &**service,
                None,
                Some(("FailedToCreateEndpoint", failed)),
            );
        }
        Some(present) => {
            let capacity = over.then_some("truncated");
            let same = canonical(&present.subsets) == subsets
                && present.metadata.labels == labels
                && present.metadata.annotation(OVER_CAPACITY) == capacity;
            if !same {
                let mut new_labels = labels_json(&labels);
                for (name, _) in present.metadata.labels.iter().filter(|(name, _)| labels.get(name).is_none())
                {
                    new_labels[name] = Value::Null;
                }
                let change = json!({"metadata": {"labels": new_labels, "annotations": {OVER_CAPACITY: capacity}},
                    "subsets": subsets});
                let failed = format!("Failed to update endpoint {}: {{error}}", view.key);
                plan.update(&**present, change).announce(
                    &**service,
                    None,
                    Some(("FailedToUpdateEndpoint", failed)),
                );
            }
        }
    }
    plan
}

fn labels_of(service: &Service) -> Labels {
    let own = service.metadata.labels.iter().filter(|(name, _)| *name != HEADLESS);
    let headless = service.is_headless().then_some((HEADLESS, ""));
    own.chain(headless).chain([(MANAGED_BY, "endpoint-controller")]).collect()
}

/// Groups addresses by the ports that they offer, in a fixed order. Also whether some were left out.
fn subsets_of(service: &Service, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    let v6 = service
        .spec
        .ip_families
        .first()
        .map_or(service.spec.cluster_ip.contains(':'), |family| &**family == "IPv6");
    type Group = (Vec<EndpointAddress>, Vec<EndpointAddress>);
    // Addresses by port first, as one address may offer different ports in different subsets.
    let mut by_ports: BTreeMap<Vec<EndpointPort>, Group> = BTreeMap::new();
    let not_ready_too = service.spec.publish_not_ready_addresses;
    let mut chosen: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.has_endpoint(not_ready_too)).collect();
    let over = chosen.len() > CAPACITY;
    if over {
        chosen.sort_by_key(|pod| (!pod.is_ready(), pod.metadata.name.clone()));
        chosen.truncate(CAPACITY);
    }
    for pod in chosen {
        let Some(ip) = pod.address(v6) else { continue };
        let mut address = EndpointAddress {
            ip: ip.into(),
            node_name: Some((&pod.spec.node_name).into()),
            target_ref: Some(reference(pod)),
            ..EndpointAddress::default()
        };
        if !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.metadata.name {
            address.hostname = pod.spec.hostname.clone();
        }
        let mut ports = Vec::new();
        for port in &service.spec.ports {
            let Some(number) = target(pod, port) else { continue };
            ports.push(EndpointPort {
                name: (!port.name.is_empty()).then(|| port.name.clone()),
                port: Some(number),
                protocol: Some(if port.protocol.is_empty() { "TCP".into() } else { port.protocol.clone() }),
                app_protocol: port.app_protocol.clone(),
            });
        }
        if ports.is_empty() && !(service.spec.ports.is_empty() && service.is_headless()) {
            continue;
        }
        ports.sort();
        let (ready, not_ready) = by_ports.entry(ports).or_default();
        if pod.is_ready() || not_ready_too { ready.push(address) } else { not_ready.push(address) }
    }
    let subsets = by_ports
        .into_iter()
        .map(|(ports, (addresses, not_ready_addresses))| EndpointSubset {
            addresses,
            not_ready_addresses,
            ports,
        })
        .collect::<Vec<_>>();
    (canonical(&subsets), over)
}

/// The same subsets in the order in which we write them.
fn canonical(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut subsets = subsets.to_vec();
    for subset in &mut subsets {
        subset.addresses.sort();
        subset.not_ready_addresses.sort();
        subset.ports.sort();
    }
    subsets.sort_by(|a, b| a.ports.cmp(&b.ports));
    subsets
}

fn gather(context: &Context) -> Option<View> {
    let service = context.object::<Service>();
    let present = context.caches.of::<Endpoints>().get(&context.key);
    let pods = match &service {
        Some(service) => selected(&context.caches, service)?,
        None => {
            // Endpoints that we did not make belong to somebody else.
            let ours = |e: &&Arc<Endpoints>| e.metadata.label(MANAGED_BY) == Some("endpoint-controller");
            present.as_ref().filter(ours)?;
            Vec::new()
        }
    };
    Some(View { key: context.key.clone(), service, pods, present })
}

/// The pods that a Service selects; nothing if it selects none by label.
pub fn selected(caches: &Caches, service: &Service) -> Option<Vec<Arc<Pod>>> {
    let selector = service.selects()?;
    let mut pods = caches.of::<Pod>().in_namespace(&service.metadata.namespace);
    pods.retain(|pod| selector.matches(&pod.metadata.labels));
    Some(pods)
}

/// The Services whose endpoints a pod's change may concern.
pub fn of_pod(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.status.pod_ip != new.status.pod_ip
                || old.status.more_ips != new.status.more_ips
                || old.is_ready() != new.is_ready()
                || old.is_finished() != new.is_finished()
                || old.metadata.is_terminating() != new.metadata.is_terminating()
                || old.spec.node_name != new.spec.node_name
                || old.metadata.labels != new.metadata.labels
        }
        (None, Some(new)) => !new.status.pod_ip.is_empty(),
        _ => true,
    };
    if !matters {
        return Vec::new();
    }
    let services = caches.of::<Service>().in_namespace(&change.latest().metadata.namespace);
    let selects = |service: &&Arc<Service>| {
        let selector = service.selects();
        let sides = change.old.iter().chain(change.new.iter());
        selector.is_some_and(|selector| sides.into_iter().any(|pod| selector.matches(&pod.metadata.labels)))
    };
    services.iter().filter(selects).map(|service| service.key()).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::new("endpoints-controller", gather, reconcile)
        .acting_as("endpoint-controller")
        .workers(3)
        .for_kind::<Service>()
        .watching::<Pod>(of_pod)
        .watching::<Endpoints>(|_, change| vec![change.key()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, pod};

    fn service(more: Value) -> Arc<Service> {
        let mut value = json!({"metadata":{"name":"web","namespace":"n","uid":"s1","labels":{"a":"b"}},
            "spec":{"selector":{"app":"web"},"clusterIP":"172.30.0.5","ipFamilies":["IPv4"],
                "ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":"web"}]}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(object(value))
    }

    fn running(name: &str, ip: &str, ready: &str) -> Arc<Pod> {
        Arc::new(pod(
            name,
            json!({"spec":{"nodeName":"a","containers":[{"name":"c","ports":[
            {"name":"web","containerPort":8080}]}]},"status":{"phase":"Running","podIP":ip,"podIPs":[{"ip":ip}],
            "conditions":[{"type":"Ready","status":ready}]}}),
        ))
    }

    fn view(service: Option<Arc<Service>>, pods: Vec<Arc<Pod>>, present: Option<Value>) -> View {
        View { key: Key::new("n", "web"), service, pods, present: present.map(|p| Arc::new(object(p))) }
    }

    #[test]
    fn ready_and_unready_pods_are_told_apart_and_named_ports_found() {
        let pods = vec![running("b", "10.0.0.2", "False"), running("a", "10.0.0.1", "True")];
        let plan = reconcile(&view(Some(service(json!({}))), pods, None));
        let object = plan.creates()[0];
        assert_eq!(
            object["metadata"]["labels"],
            json!({"a":"b","endpoints.kubernetes.io/managed-by":"endpoint-controller"})
        );
        assert_eq!(
            object["subsets"],
            json!([{
            "addresses":[{"ip":"10.0.0.1","nodeName":"a","targetRef":{"kind":"Pod","namespace":"n","name":"a","uid":"a"}}],
            "notReadyAddresses":[{"ip":"10.0.0.2","nodeName":"a","targetRef":{"kind":"Pod","namespace":"n","name":"b","uid":"b"}}],
            "ports":[{"name":"http","port":8080,"protocol":"TCP"}]}])
        );
    }

    #[test]
    fn what_is_right_stays_and_what_lost_its_service_goes() {
        let first = reconcile(&view(Some(service(json!({}))), vec![running("a", "10.0.0.1", "True")], None));
        let mut present = first.creates()[0].clone();
        present["metadata"]["resourceVersion"] = json!("3");
        let again =
            view(Some(service(json!({}))), vec![running("a", "10.0.0.1", "True")], Some(present.clone()));
        assert!(reconcile(&again).is_empty());
        assert_eq!(reconcile(&view(None, vec![], Some(present))).deletes(), ["web"]);
    }

    #[test]
    fn terminating_pods_count_only_when_unready_ones_are_published() {
        let mut going = (*running("a", "10.0.0.1", "True")).clone();
        going.metadata =
            object(json!({"name":"a","namespace":"n","uid":"a","deletionTimestamp":"2026-01-01T00:00:00Z"}));
        let plan = |published: bool| {
            let service = service(json!({"spec":{"publishNotReadyAddresses":published}}));
            reconcile(&view(Some(service), vec![Arc::new(going.clone())], None)).creates()[0]["subsets"]
                .clone()
        };
        assert_eq!(plan(false), json!([]));
        assert_eq!(plan(true)[0]["addresses"][0]["ip"], "10.0.0.1");
    }
}
