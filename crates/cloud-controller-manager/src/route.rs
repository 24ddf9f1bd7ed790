//! Keeps a route to every node's pods, and tells on the node whether its pods can be reached.
//!
//! Routes are compared as a whole whenever a node or its range changes, and now and then, because others may change
//! them. Only routes within the cluster's ranges are ours to remove.

use std::collections::HashMap;
use std::sync::Arc;

use controller_runtime::{Context, Controller, Key, Kind, PatchForm, Plan, time};
use futures::future::BoxFuture;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::Node;
use crate::provider::{CloudError, Provider, Route};

/// The controller's name.
pub const NAME: &str = "node-route-controller";

/// What has to change.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Routes to remove, first.
    pub delete: Vec<Route>,
    /// Routes to make, each with the node that it is for.
    pub create: Vec<(Box<str>, Route)>,
}

/// Where a node is reached: its internal address of the range's family.
fn address_of(node: &Node, range: &IpNet) -> Option<Box<str>> {
    let fits = |text: &str| {
        text.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_ipv6() == matches!(range, IpNet::V6(_)))
    };
    let own = node.status.addresses.iter();
    own.filter(|own| &*own.kind == "InternalIP").find(|own| fits(&own.address)).map(|own| own.address.clone())
}

/// Compares the routes that are with those that should be.
pub fn changes(nodes: &[Arc<Node>], routes: &[Route], cluster: &[IpNet]) -> Changes {
    let mut changes = Changes::default();
    let mut wanted: Vec<(Box<str>, Route)> = Vec::new();
    for node in nodes {
        for text in &node.spec.pod_cidrs {
            let Ok(range) = text.parse::<IpNet>() else { continue };
            let via = address_of(node, &range);
            if via.is_some() {
                wanted.push((node.metadata.name.clone(), Route { to: text.clone(), via }));
            }
        }
    }
    let ours = |route: &Route| {
        let to: Option<IpNet> = route.to.parse().ok();
        to.is_some_and(|to| cluster.iter().any(|range| range.contains(&to)))
    };
    for route in routes.iter().filter(|route| ours(route)) {
        if !wanted.iter().any(|(_, own)| own == route) {
            changes.delete.push(route.clone());
        }
    }
    changes.create = wanted.into_iter().filter(|(_, route)| !routes.contains(route)).collect();
    changes
}

/// What the nodes' conditions depend on.
pub struct View {
    nodes: Vec<Arc<Node>>,
    /// The nodes for which a route could not be made, with the reason.
    failed: HashMap<Box<str>, String>,
    period: SignedDuration,
    now: Timestamp,
}

/// Decides what the nodes are told.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    for node in view.nodes.iter().filter(|node| !node.spec.pod_cidrs.is_empty()) {
        let failure = view.failed.get(&node.metadata.name);
        if let Some(failure) = failure {
            plan.warn(&**node, "FailedToCreateRoute", failure.clone());
        }
        let (status, reason, message) = match failure {
            None => ("False", "RouteCreated", "RouteController created a route"),
            Some(_) => ("True", "NoRouteCreated", "RouteController failed to create a route"),
        };
        if node.says("NetworkUnavailable", status) {
            continue;
        }
        let condition = json!({"type": "NetworkUnavailable", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": time(view.now)});
        let body = json!({"status": {"conditions": [condition]}});
        plan.patch_meta(&Node::RESOURCE, &node.metadata, Some("status"), PatchForm::Strategic, body)
            .tolerant();
    }
    plan.look_again(view.now.checked_add(view.period).unwrap_or(view.now));
    if let Some(failure) = view.failed.values().next() {
        plan.retry(failure.clone());
    }
    plan
}

async fn settle(
    provider: &dyn Provider,
    nodes: &[Arc<Node>],
    cluster: &[IpNet],
) -> Result<HashMap<Box<str>, String>, CloudError> {
    let mut failed = HashMap::new();
    let Some(routes) = provider.routes() else { return Ok(failed) };
    let changes = changes(nodes, &routes.list().await?, cluster);
    for route in &changes.delete {
        routes.delete(route).await?;
    }
    for (node, route) in &changes.create {
        if let Err(error) = routes.create(route).await {
            let text =
                format!("Could not create route {} for node {node}: {}", route.to, telemetry::chain(&error));
            failed.insert(node.clone(), text);
        }
    }
    Ok(failed)
}

/// The controller of the routes within the cluster's ranges.
pub fn controller(provider: Arc<dyn Provider>, cluster: Vec<IpNet>, period: SignedDuration) -> Controller {
    let cluster: Arc<[IpNet]> = cluster.into();
    let gather = move |context: Context| -> BoxFuture<'static, _> {
        let (provider, cluster) = (provider.clone(), cluster.clone());
        Box::pin(async move {
            let mut nodes = context.caches.of::<Node>().list();
            nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
            let failed = settle(&*provider, &nodes, &cluster).await.unwrap_or_else(|error| {
                let text = telemetry::chain(&error).to_string();
                nodes.iter().map(|node| (node.metadata.name.clone(), text.clone())).collect()
            });
            Ok(Some(View { nodes, failed, period, now: context.now }))
        })
    };
    let all = || Key::cluster("routes");
    Controller::reading(NAME, gather, reconcile)
        .acting_as("route-controller")
        .events_from("route_controller")
        .workers(1)
        .seed(all())
        .watching::<Node>(move |_, change| {
            let shape = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|node| (node.spec.pod_cidrs.clone(), node.status.addresses.clone()))
            };
            if shape(&change.old) == shape(&change.new) { Vec::new() } else { vec![all()] }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn node(name: &str, cidrs: Value, address: &str) -> Arc<Node> {
        let value = json!({"metadata":{"name":name},"spec":{"podCIDRs":cidrs},
            "status":{"addresses":[{"type":"Hostname","address":name},{"type":"InternalIP","address":address}]}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn route(to: &str, via: &str) -> Route {
        Route { to: to.into(), via: Some(via.into()) }
    }

    #[test]
    fn routes_follow_ranges_and_addresses() {
        let cluster = ["10.128.0.0/14".parse().unwrap()];
        let nodes = [
            node("a", json!(["10.128.0.0/24"]), "192.0.2.1"),
            node("b", json!(["10.128.1.0/24", "fd00::/64"]), "192.0.2.2"),
            node("c", json!([]), "192.0.2.3"),
        ];
        let routes = [
            route("10.128.0.0/24", "192.0.2.1"),
            route("10.128.1.0/24", "192.0.2.9"),
            route("10.128.7.0/24", "192.0.2.7"),
            Route { to: "10.128.8.0/24".into(), via: None },
            route("172.16.0.0/24", "192.0.2.7"),
        ];
        let changes = changes(&nodes, &routes, &cluster);
        assert_eq!(changes.create, [("b".into(), route("10.128.1.0/24", "192.0.2.2"))]);
        assert_eq!(
            changes.delete,
            routes[1..4],
            "the moved, the orphaned, the one to nowhere; not another's"
        );
    }

    #[test]
    fn nodes_tell_whether_they_can_be_reached() {
        let nodes = vec![node("a", json!(["10.128.0.0/24"]), "x"), node("b", json!(["10.128.1.0/24"]), "y")];
        let failed = HashMap::from([("b".into(), "no".to_owned())]);
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let plan = reconcile(&View { nodes, failed, period: SignedDuration::from_secs(10), now });
        let told: Vec<_> = plan
            .changes()
            .iter()
            .map(|(name, change)| (*name, change["status"]["conditions"][0]["reason"].clone()))
            .collect();
        assert_eq!(told, [("a", json!("RouteCreated")), ("b", json!("NoRouteCreated"))]);
        assert_eq!(plan.events()[0].reason, "FailedToCreateRoute");
    }
}
