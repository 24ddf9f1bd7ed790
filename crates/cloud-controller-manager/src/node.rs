//! Tells nodes what their machines are: a kubelet that waits for a provider starts with a taint, and here it gets its
//! provider id, labels and addresses and loses the taint.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Plan};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use crate::kinds::{Node, PROVIDED_IP};
use crate::provider::{Address, Instance, Provider};

/// The controller's name.
pub const NAME: &str = "cloud-node-controller";
/// Marks a node that no provider has looked at.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// Labels with an older name: the older is what counts where both are there.
const OLDER_NAMES: [(&str, &str); 3] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
];

/// What one node depends on.
pub struct View {
    node: Arc<Node>,
    instance: Result<Option<Instance>, String>,
    frequency: SignedDuration,
    now: Timestamp,
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let node = &*view.node;
    let waits = node.has_taint(UNINITIALIZED);
    let instance = match &view.instance {
        Ok(Some(instance)) => instance,
        Ok(None) if waits => {
            plan.retry(format!("node {} has no machine yet", node.metadata.name));
            return plan;
        }
        Ok(None) => return plan,
        Err(error) => {
            plan.retry(error.clone());
            return plan;
        }
    };
    let addresses = match addresses(node, &instance.addresses) {
        Ok(addresses) => addresses,
        Err(error) => {
            plan.retry(error);
            return plan;
        }
    };
    if waits {
        let mut spec = json!({"taints": node.taints_without(UNINITIALIZED)});
        if node.spec.provider_id.is_empty() && !instance.provider_id.is_empty() {
            spec["providerID"] = json!(instance.provider_id);
        }
        plan.update(node, json!({"metadata": {"labels": labels(instance)}, "spec": spec}));
        plan.event(node, "Synced", "Node synced successfully");
        // The addresses follow once this is seen: one write to an object at a time.
        return plan;
    }
    let renamed = renamed_labels(node);
    if !renamed.is_empty() {
        plan.update(node, json!({"metadata": {"labels": renamed}}));
    } else if !instance.addresses.is_empty() && !same(&node.status.addresses, &addresses) {
        plan.update_sub(node, "status", json!({"status": {"addresses": addresses}}));
    }
    plan.look_again(view.now.checked_add(view.frequency).unwrap_or(view.now));
    plan
}

/// The labels that a machine gives its node.
fn labels(instance: &Instance) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut add = |value: &str, names: (&str, &str)| {
        if !value.is_empty() {
            labels.insert(names.0.into(), json!(value));
            labels.insert(names.1.into(), json!(value));
        }
    };
    add(&instance.zone, OLDER_NAMES[0]);
    add(&instance.region, OLDER_NAMES[1]);
    add(&instance.instance_type, OLDER_NAMES[2]);
    let is_reserved = |name: &str| {
        let domain = name.split_once('/').map_or("", |(domain, _)| domain);
        ["kubernetes.io", "k8s.io"]
            .iter()
            .any(|own| domain == *own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.')))
    };
    for (name, value) in instance.labels.iter().filter(|(name, _)| !is_reserved(name)) {
        labels.entry(name.clone()).or_insert_with(|| json!(value));
    }
    labels
}

/// What is missing or wrong in the labels' newer names.
fn renamed_labels(node: &Node) -> Map<String, Value> {
    let mut wanted = Map::new();
    for (older, newer) in OLDER_NAMES {
        if let Some(value) = node.metadata.label(older)
            && node.metadata.label(newer) != Some(value)
        {
            wanted.insert(newer.into(), json!(value));
        }
    }
    wanted
}

/// A node's addresses: the machine's, the one that the kubelet was told first and alone of its type, and the host's
/// name as the kubelet knows it.
fn addresses(node: &Node, of_machine: &[Address]) -> Result<Vec<Address>, String> {
    let mut addresses = of_machine.to_vec();
    if let Some(told) = node.metadata.annotation(PROVIDED_IP).filter(|_| !addresses.is_empty()) {
        let Some(first) = addresses.iter().find(|own| *own.address == *told).cloned() else {
            return Err(format!(
                "failed to get node address from cloud provider that matches ip: {told} of node {}",
                node.metadata.name
            ));
        };
        addresses.retain(|own| own.kind != first.kind);
        addresses.insert(0, first);
    }
    if !addresses.iter().any(|own| &*own.kind == "Hostname") {
        addresses.extend(node.status.addresses.iter().filter(|own| &*own.kind == "Hostname").cloned());
    }
    Ok(addresses)
}

/// Whether both list the same, in whatever order.
fn same(a: &[Address], b: &[Address]) -> bool {
    a.len() == b.len() && a.iter().all(|one| b.contains(one))
}

/// The controller; machines are looked at again after `frequency`.
pub fn controller(provider: Arc<dyn Provider>, frequency: SignedDuration, workers: usize) -> Controller {
    let gather = move |context: Context| -> BoxFuture<'static, _> {
        let provider = provider.clone();
        Box::pin(async move {
            let (Some(node), Some(instances)) = (context.object::<Node>(), provider.instances()) else {
                return Ok(None);
            };
            let instance = instances.instance(&node).await;
            let instance = instance.map_err(|error| telemetry::chain(&error).to_string());
            Ok(Some(View { node, instance, frequency, now: context.now }))
        })
    };
    Controller::reading(NAME, gather, reconcile)
        .acting_as("node-controller")
        .events_from("cloud-node-controller")
        .workers(workers)
        .for_kind::<Node>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Instance {
        serde_json::from_value(json!({"providerID":"local://m1","instanceType":"large","zone":"z1","region":"r1",
            "addresses":[{"type":"InternalIP","address":"10.0.0.5"},{"type":"ExternalIP","address":"192.0.2.5"}],
            "labels":{"rack":"7","evil.kubernetes.io/x":"1","k8s.io/x":"1"}}))
        .unwrap()
    }

    fn plan(node: Value, instance: Result<Option<Instance>, String>) -> Plan {
        let node = Arc::new(serde_json::from_value(node).unwrap());
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        reconcile(&View { node, instance, frequency: SignedDuration::from_mins(5), now })
    }

    fn tainted() -> Value {
        json!({"metadata":{"name":"a"},"spec":{"taints":[{"key":UNINITIALIZED,"value":"true","effect":"NoSchedule"},
            {"key":"gpu","effect":"NoSchedule"}]}})
    }

    #[test]
    fn a_waiting_node_learns_what_it_is_and_loses_the_taint() {
        let plan = plan(tainted(), Ok(Some(machine())));
        let change = plan.changes()[0].1;
        assert_eq!(change["spec"]["taints"], json!([{"key":"gpu","effect":"NoSchedule"}]));
        assert_eq!(change["spec"]["providerID"], "local://m1");
        let labels = &change["metadata"]["labels"];
        assert_eq!(labels["topology.kubernetes.io/zone"], "z1");
        assert_eq!(labels["failure-domain.beta.kubernetes.io/region"], "r1");
        assert_eq!(labels["node.kubernetes.io/instance-type"], "large");
        assert_eq!(
            (&labels["rack"], labels.get("evil.kubernetes.io/x"), labels.get("k8s.io/x")),
            (&json!("7"), None, None)
        );
        assert_eq!(plan.events()[0].reason, "Synced");
    }

    #[test]
    fn a_waiting_node_without_a_machine_waits_on() {
        for answer in [Ok(None), Err("the inventory cannot be read".to_owned())] {
            let plan = plan(tainted(), answer);
            assert!(plan.is_empty() && plan.failure().is_some());
        }
    }

    #[test]
    fn addresses_are_the_machines_with_the_hosts_name() {
        let host = json!({"type":"Hostname","address":"a"});
        let node = |annotations: Value, addresses: Value| json!({"metadata":{"name":"a","annotations":annotations},"status":{"addresses":addresses}});
        let first = plan(node(json!({}), json!([host])), Ok(Some(machine())));
        let told = &first.changes()[0].1["status"]["addresses"];
        assert_eq!(told.as_array().unwrap().len(), 3);
        assert!(plan(node(json!({}), told.clone()), Ok(Some(machine()))).is_empty());
        let mut two = machine();
        two.addresses.push(Address { kind: "InternalIP".into(), address: "10.1.0.5".into() });
        let preferred = plan(node(json!({PROVIDED_IP:"10.1.0.5"}), json!([host])), Ok(Some(two.clone())));
        let told = &preferred.changes()[0].1["status"]["addresses"];
        assert_eq!((&told[0]["address"], told.as_array().unwrap().len()), (&json!("10.1.0.5"), 3));
        assert!(plan(node(json!({PROVIDED_IP:"10.9.9.9"}), json!([])), Ok(Some(two))).failure().is_some());
    }

    #[test]
    fn newer_label_names_follow_the_older() {
        let node = json!({"metadata":{"name":"a","labels":{"failure-domain.beta.kubernetes.io/zone":"z2"}}});
        let plan = plan(node, Ok(Some(Instance::default())));
        assert_eq!(plan.changes()[0].1["metadata"]["labels"], json!({"topology.kubernetes.io/zone":"z2"}));
    }
}
