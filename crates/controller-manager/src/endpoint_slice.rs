//! EndpointSlices: where a Service's traffic goes, in parts of a hundred.
//!
//! Slices are changed as little as possible: an endpoint stays in the slice it is in, new ones fill gaps, and only then
//! slices are added. Readers pay for every slice that changes.

mod topology;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Labels, Plan, difference};
use serde_json::{Value, json};

use self::topology::ZoneCpu;
use crate::endpoints::{of_pod, reference, selected, target};
use crate::kinds::{
    Endpoint, EndpointConditions, EndpointPort, EndpointSlice, Hints, Named, Node, Pod, Service, labels_json,
};

/// Marks whose slice it is.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// Names the Service of a slice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";
const ZONE: &str = "topology.kubernetes.io/zone";

/// What one Service's slices depend on.
pub struct View {
    /// The Service.
    pub service: Arc<Service>,
    /// The pods that it selects.
    pub pods: Vec<Arc<Pod>>,
    /// Zones of nodes.
    pub zones: HashMap<Box<str>, Box<str>>,
    /// Its slices that we made.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// How many endpoints a slice may have.
    pub limit: usize,
    /// The CPUs of the zones, if the Service wants its endpoints shared by them.
    pub shared: Option<ZoneCpu>,
}

/// Decides on one Service.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let service = &*view.service;
    if service.metadata.is_terminating() {
        return plan;
    }
    for family in families(service) {
        let mut groups = wanted(view, family);
        let own: Vec<Arc<EndpointSlice>> =
            view.slices.iter().filter(|slice| *slice.address_type == *family).cloned().collect();
        let told = view.shared.as_ref().and_then(|zones| share(&mut groups, &own, family, zones));
        let before = plan.writes().count();
        let labels = labels_of(service);
        arrange(service, family, groups, &own, &labels, view.limit, &mut plan);
        // Told with the change that it explains, not again and again.
        if let Some(told) = told.filter(|_| plan.writes().count() > before) {
            match told {
                Told::Enabled(text) => plan.event(service, "TopologyAwareHintsEnabled", text),
                Told::Disabled(text) => plan.warn(service, "TopologyAwareHintsDisabled", text),
            };
        }
    }
    let unwanted =
        |slice: &&Arc<EndpointSlice>| !families(service).any(|family| *slice.address_type == *family);
    for slice in view.slices.iter().filter(unwanted) {
        plan.delete(&**slice);
    }
    plan
}

fn families(service: &Service) -> impl Iterator<Item = &str> {
    let given = &service.spec.ip_families;
    let default =
        given.is_empty().then(|| if service.spec.cluster_ip.contains(':') { "IPv6" } else { "IPv4" });
    given.iter().map(|family| &**family).chain(default)
}

type Groups = BTreeMap<Vec<EndpointPort>, Vec<Endpoint>>;

/// The endpoints of a family, by the ports that they offer.
fn wanted(view: &View, family: &str) -> Groups {
    let service = &*view.service;
    let published = service.spec.publish_not_ready_addresses;
    let mut groups = Groups::new();
    for pod in view.pods.iter().filter(|pod| pod.has_endpoint(true)) {
        let Some(address) = pod.address(family == "IPv6") else { continue };
        let (ready, terminating) = (pod.is_ready(), pod.metadata.is_terminating());
        let zone = view.zones.get(&*pod.spec.node_name).cloned();
        let mut endpoint = Endpoint {
            addresses: vec![address.into()],
            conditions: EndpointConditions {
                ready: Some(published || (ready && !terminating)),
                serving: Some(published || ready),
                terminating: Some(terminating),
            },
            hostname: None,
            target_ref: Some(reference(pod)),
            node_name: Some(&pod.spec.node_name).filter(|name| !name.is_empty()).map(Box::from),
            zone,
            hints: None,
        };
        if !pod.spec.hostname.is_empty() && pod.spec.subdomain == service.metadata.name {
            endpoint.hostname = Some(pod.spec.hostname.clone());
        }
        endpoint.hints = hints(service, &endpoint);
        let mut ports: Vec<EndpointPort> = Vec::new();
        for port in &service.spec.ports {
            if let Some(number) = target(pod, port) {
                ports.push(EndpointPort {
                    name: Some(port.name.clone()),
                    port: Some(number),
                    protocol: Some(if port.protocol.is_empty() {
                        "TCP".into()
                    } else {
                        port.protocol.clone()
                    }),
                    app_protocol: port.app_protocol.clone(),
                });
            }
        }
        ports.sort();
        groups.entry(ports).or_default().push(endpoint);
    }
    groups
}

/// What a Service is told about how its endpoints are shared.
enum Told {
    Enabled(String),
    Disabled(String),
}

/// Shares the endpoints of a family among zones.
fn share(groups: &mut Groups, slices: &[Arc<EndpointSlice>], family: &str, zones: &ZoneCpu) -> Option<Told> {
    let old = slices.iter().flat_map(|slice| &slice.endpoints);
    let hint = |endpoint: &Endpoint| Some(endpoint.hints.as_ref()?.for_zones.first()?.name.clone());
    let before: HashMap<_, Box<str>> =
        old.filter_map(|endpoint| Some((identity(endpoint), hint(endpoint)?))).collect();
    let mut all: Vec<&mut Endpoint> = groups.values_mut().flatten().collect();
    match topology::share(&mut all, |endpoint| before.get(&identity(endpoint)).cloned(), zones) {
        Ok(()) if before.is_empty() => {
            Some(Told::Enabled(format!("Topology Aware Hints has been enabled, addressType: {family}")))
        }
        Ok(()) => None,
        Err(why) => Some(Told::Disabled(format!("{why}, addressType: {family}"))),
    }
}

/// Who should use an endpoint, where the Service asks for nearness.
fn hints(service: &Service, endpoint: &Endpoint) -> Option<Hints> {
    let named = |name: &Option<Box<str>>| name.iter().map(|name| Named { name: name.clone() }).collect();
    if endpoint.conditions.ready != Some(true) || topology::is_wanted(service) {
        return None;
    }
    match service.spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" if endpoint.zone.is_some() => {
            Some(Hints { for_zones: named(&endpoint.zone), for_nodes: Vec::new() })
        }
        "PreferSameNode" if endpoint.zone.is_some() || endpoint.node_name.is_some() => {
            Some(Hints { for_zones: named(&endpoint.zone), for_nodes: named(&endpoint.node_name) })
        }
        _ => None,
    }
}

/// Identifies an endpoint across changes.
fn identity(endpoint: &Endpoint) -> (Box<str>, Box<str>) {
    let uid = endpoint.target_ref.as_ref().map(|target| target.uid.clone()).unwrap_or_default();
    (uid, endpoint.addresses.first().cloned().unwrap_or_default())
}

/// Puts the wanted endpoints of one family into slices.
fn arrange(
    service: &Service,
    family: &str,
    groups: Groups,
    slices: &[Arc<EndpointSlice>],
    labels: &Labels,
    limit: usize,
    plan: &mut Plan,
) {
    let mut by_ports: BTreeMap<Vec<EndpointPort>, Vec<&Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in slices {
        let mut ports = slice.ports.clone();
        ports.sort();
        by_ports.entry(ports).or_default().push(slice);
    }
    let nothing_wanted = groups.is_empty();
    let mut unused: Vec<&Arc<EndpointSlice>> = Vec::new();
    for (ports, found) in &by_ports {
        if !groups.contains_key(ports) {
            unused.extend(found);
        }
    }
    for (ports, endpoints) in groups {
        let found = by_ports.remove(&ports).unwrap_or_default();
        fill(service, family, &ports, endpoints, &found, &mut unused, labels, limit, plan);
    }
    if nothing_wanted {
        // One empty slice says that there is nothing, which differs from not knowing.
        let placeholder =
            unused.iter().position(|slice| slice.endpoints.is_empty() && slice.ports.is_empty());
        match placeholder {
            Some(index) => {
                let slice = unused.remove(index);
                change(slice, Vec::new(), &[], labels, plan);
            }
            None => create(service, family, &[], Vec::new(), labels, plan),
        }
    }
    for slice in unused {
        plan.delete(&**slice);
    }
}

#[allow(clippy::too_many_arguments)]
fn fill<'a>(
    service: &Service,
    family: &str,
    ports: &[EndpointPort],
    endpoints: Vec<Endpoint>,
    slices: &[&'a Arc<EndpointSlice>],
    unused: &mut Vec<&'a Arc<EndpointSlice>>,
    labels: &Labels,
    limit: usize,
    plan: &mut Plan,
) {
    let mut order: Vec<(Box<str>, Box<str>)> = endpoints.iter().map(identity).collect();
    let mut wanted: HashMap<_, Endpoint> =
        endpoints.into_iter().map(|endpoint| (identity(&endpoint), endpoint)).collect();
    let mut kept: Vec<Vec<Endpoint>> = slices
        .iter()
        .map(|slice| slice.endpoints.iter().filter_map(|old| wanted.remove(&identity(old))).collect())
        .collect();
    order.retain(|identity| wanted.contains_key(identity));
    let mut rest = order.into_iter().filter_map(|identity| wanted.remove(&identity));
    // Slices that change anyway take new endpoints first, then those with room.
    let changes = |index: &usize| kept_differs(&slices[*index].endpoints, &kept[*index]);
    let (first, second): (Vec<usize>, Vec<usize>) = (0..slices.len()).partition(changes);
    for index in first.into_iter().chain(second) {
        while kept[index].len() < limit {
            let Some(endpoint) = rest.next() else { break };
            kept[index].push(endpoint);
        }
    }
    for (slice, endpoints) in slices.iter().zip(kept) {
        if endpoints.is_empty() { unused.push(slice) } else { change(slice, endpoints, ports, labels, plan) }
    }
    loop {
        let part: Vec<Endpoint> = rest.by_ref().take(limit).collect();
        if part.is_empty() {
            break;
        }
        match unused.pop() {
            Some(slice) => change(slice, part, ports, labels, plan),
            None => create(service, family, ports, part, labels, plan),
        }
    }
}

fn kept_differs(old: &[Endpoint], new: &[Endpoint]) -> bool {
    old.len() != new.len() || old.iter().zip(new).any(|(old, new)| old != new)
}

fn change(
    slice: &EndpointSlice,
    endpoints: Vec<Endpoint>,
    ports: &[EndpointPort],
    labels: &Labels,
    plan: &mut Plan,
) {
    let part = |endpoints: &[Endpoint], ports: &[EndpointPort], labels: &Labels| json!({"metadata": {"labels": labels_json(labels)}, "endpoints": endpoints, "ports": ports});
    let mut old_ports = slice.ports.clone();
    old_ports.sort();
    let old = part(&slice.endpoints, &old_ports, &slice.metadata.labels);
    if let Some(change) = difference(&old, &part(&endpoints, ports, labels)) {
        plan.update(slice, change);
    }
}

fn create(
    service: &Service,
    family: &str,
    ports: &[EndpointPort],
    endpoints: Vec<Endpoint>,
    labels: &Labels,
    plan: &mut Plan,
) {
    let slice: Value = json!({
        "metadata": {
            "generateName": format!("{}-", service.metadata.name),
            "namespace": service.metadata.namespace,
            "labels": labels_json(labels),
            "ownerReferences": [service.controller_ref()],
        },
        "addressType": family,
        "endpoints": endpoints,
        "ports": ports,
    });
    let failed = format!("Error updating Endpoint Slices for Service {}: {{error}}", service.key());
    plan.create(&EndpointSlice::RESOURCE, slice).announce(
        service,
        None,
        Some(("FailedToUpdateEndpointSlices", failed)),
    );
}

fn labels_of(service: &Service) -> Labels {
    let own = service
        .metadata
        .labels
        .iter()
        .filter(|(name, _)| ![HEADLESS, SERVICE_NAME, MANAGED_BY].contains(name));
    let headless = service.is_headless().then_some((HEADLESS, ""));
    own.chain(headless).chain([(SERVICE_NAME, &*service.metadata.name), (MANAGED_BY, MANAGER)]).collect()
}

fn gather(context: &Context, limit: usize) -> Option<View> {
    let service = context.object::<Service>()?;
    let pods = selected(&context.caches, &service)?;
    let nodes = context.caches.of::<Node>();
    let mut zones: HashMap<Box<str>, Box<str>> = HashMap::new();
    for pod in &pods {
        let zone =
            || nodes.get(&Key::cluster(&pod.spec.node_name))?.metadata.label(ZONE).map(Box::<str>::from);
        if let (false, Some(zone)) = (zones.contains_key(&*pod.spec.node_name), zone()) {
            zones.insert((&pod.spec.node_name).into(), zone);
        }
    }
    let mut slices = context.caches.of::<EndpointSlice>().indexed("service", &context.key.to_string());
    slices.retain(|slice| {
        slice.metadata.label(MANAGED_BY) == Some(MANAGER) && !slice.metadata.is_terminating()
    });
    slices.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let shared =
        topology::is_wanted(&service).then(|| topology::zone_cpu(nodes.list().iter().map(|node| &**node)));
    Some(View { service, pods, zones, slices, limit, shared })
}

/// The Service that a slice of ours belongs to.
fn of_slice(_: &Caches, change: &Change<EndpointSlice>) -> Vec<Key> {
    let metadata = &change.latest().metadata;
    let ours = metadata.label(MANAGED_BY) == Some(MANAGER);
    metadata
        .label(SERVICE_NAME)
        .filter(|_| ours)
        .map(|name| Key::new(&metadata.namespace, name))
        .into_iter()
        .collect()
}

/// A node that moves to another zone concerns every Service; one that comes or goes, those that are shared by zones.
fn of_node(caches: &Caches, change: &Change<Node>) -> Vec<Key> {
    let zone = |node: &Option<Arc<Node>>| {
        node.as_ref().and_then(|node| node.metadata.label(ZONE).map(str::to_owned))
    };
    let share = |node: &Option<Arc<Node>>| node.as_deref().and_then(topology::share_of);
    let moved = zone(&change.old) != zone(&change.new);
    if !moved && share(&change.old) == share(&change.new) {
        return Vec::new();
    }
    let services = caches.of::<Service>().list();
    let concerned = services.iter().filter(|service| moved || topology::is_wanted(service));
    concerned.map(|service| service.key()).collect()
}

/// The controller; slices have up to `limit` endpoints.
pub fn controller(limit: usize) -> Controller {
    Controller::new("endpointslice-controller", move |context| gather(context, limit), reconcile)
        .acting_as("endpointslice-controller")
        .events_from("endpoint-slice-controller")
        .workers(3)
        .for_kind::<Service>()
        .watching::<Pod>(of_pod)
        .watching::<EndpointSlice>(of_slice)
        .watching::<Node>(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, pod};

    fn service(more: Value) -> Arc<Service> {
        let mut value = json!({"metadata":{"name":"web","namespace":"n","uid":"s1"},
            "spec":{"selector":{"app":"web"},"clusterIP":"172.30.0.5","ipFamilies":["IPv4"],
                "ports":[{"name":"http","port":80,"protocol":"TCP","targetPort":8080}]}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(object(value))
    }

    fn running(number: usize) -> Arc<Pod> {
        let (name, ip) = (format!("p{number}"), format!("10.0.{}.{}", number / 200, number % 200 + 1));
        Arc::new(pod(
            &name,
            json!({"spec":{"nodeName":"a"},"status":{"phase":"Running","podIP":ip,
            "podIPs":[{"ip":ip}],"conditions":[{"type":"Ready","status":"True"}]}}),
        ))
    }

    fn view(service: Arc<Service>, pods: Vec<Arc<Pod>>, slices: Vec<Arc<EndpointSlice>>) -> View {
        let zones = [("a".into(), "z1".into())].into_iter().collect();
        View { service, pods, zones, slices, limit: 100, shared: None }
    }

    fn stored(plan: &Plan) -> Vec<Arc<EndpointSlice>> {
        let named = |(index, value): (usize, &&Value)| {
            let mut value = (*value).clone();
            value["metadata"]["name"] = json!(format!("web-{index}"));
            Arc::new(object(value))
        };
        plan.creates().iter().enumerate().map(named).collect()
    }

    #[test]
    fn endpoints_are_cut_into_slices_and_stay_where_they_are() {
        let pods: Vec<_> = (0..250).map(running).collect();
        let plan = reconcile(&view(service(json!({})), pods.clone(), vec![]));
        let sizes: Vec<usize> =
            plan.creates().iter().map(|slice| slice["endpoints"].as_array().unwrap().len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
        let slices = stored(&plan);
        assert!(reconcile(&view(service(json!({})), pods.clone(), slices.clone())).is_empty());

        let mut fewer = pods.clone();
        fewer.remove(10);
        let plan = reconcile(&view(service(json!({})), fewer, slices.clone()));
        assert_eq!(plan.changes().len(), 1, "only the slice that lost one changes");

        let mut swapped = pods;
        swapped[10] = running(300);
        let plan = reconcile(&view(service(json!({})), swapped, slices));
        assert_eq!(plan.changes().len(), 1, "the gap is filled");
        assert!(plan.creates().is_empty());
    }

    #[test]
    fn an_endpoint_tells_its_state_and_place() {
        let plan = reconcile(&view(
            service(json!({"spec":{"trafficDistribution":"PreferSameZone"}})),
            vec![running(0)],
            vec![],
        ));
        let slice = plan.creates()[0];
        assert_eq!(
            slice["endpoints"][0],
            json!({"addresses":["10.0.0.1"],
            "conditions":{"ready":true,"serving":true,"terminating":false},
            "targetRef":{"kind":"Pod","namespace":"n","name":"p0","uid":"p0"},"nodeName":"a","zone":"z1",
            "hints":{"forZones":[{"name":"z1"}]}})
        );
        assert_eq!(slice["metadata"]["labels"], json!({MANAGED_BY:MANAGER,SERVICE_NAME:"web"}));
        assert_eq!(slice["ports"], json!([{"name":"http","port":8080,"protocol":"TCP"}]));
    }

    #[test]
    fn endpoints_are_shared_among_zones_on_request() {
        let auto = json!({"metadata":{"annotations":{"service.kubernetes.io/topology-mode":"Auto"}},
            "spec":{"trafficDistribution":"PreferSameZone"}});
        let mut view = view(service(auto), (0..4).map(running).collect(), vec![]);
        let even = |zones: &[&str]| Some(zones.iter().map(|zone| ((*zone).into(), 1000)).collect());
        view.shared = Some(even(&["z1", "z2"]));
        let plan = reconcile(&view);
        let hints: Vec<&str> = plan.creates()[0]["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|endpoint| endpoint["hints"]["forZones"][0]["name"].as_str().unwrap())
            .collect();
        assert_eq!(hints, ["z2", "z2", "z1", "z1"]);
        assert_eq!(plan.events()[0].reason, "TopologyAwareHintsEnabled");
        view.slices = stored(&plan);
        assert!(reconcile(&view).is_empty(), "settled");
        view.shared = Some(even(&["z1"]));
        let plan = reconcile(&view);
        assert!(plan.changes()[0].1["endpoints"][0].get("hints").is_none());
        assert_eq!(plan.events()[0].reason, "TopologyAwareHintsDisabled");
    }

    #[test]
    fn no_endpoints_leave_one_empty_slice() {
        let plan = reconcile(&view(service(json!({})), vec![], vec![]));
        assert_eq!(plan.creates().len(), 1);
        let slices = stored(&plan);
        assert!(reconcile(&view(service(json!({})), vec![], slices.clone())).is_empty());
        let plan = reconcile(&view(service(json!({})), vec![running(0)], slices));
        assert_eq!((plan.changes().len(), plan.creates().len()), (1, 0), "the empty slice is reused");
    }

    #[test]
    fn both_families_get_slices() {
        let both = service(json!({"spec":{"ipFamilies":["IPv4","IPv6"]}}));
        let dual = Arc::new(pod(
            "d",
            json!({"spec":{"nodeName":"a"},"status":{"phase":"Running","podIP":"10.0.0.1",
            "podIPs":[{"ip":"10.0.0.1"},{"ip":"fd00::1"}]}}),
        ));
        let plan = reconcile(&view(both, vec![dual], vec![]));
        let kinds: Vec<&str> =
            plan.creates().iter().map(|slice| slice["addressType"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["IPv4", "IPv6"]);
        assert_eq!(plan.creates()[0]["endpoints"][0]["conditions"]["ready"], false);
    }
}
