//! Removes nodes whose machines are gone, and marks those whose machines are off. Only nodes that are not ready are
//! asked about: a node that reports has a machine.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Plan};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::{Node, Taint};
use crate::provider::{Instance, Provider};

/// The controller's name.
pub const NAME: &str = "cloud-node-lifecycle-controller";
/// Marks a node whose machine is off.
pub const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// What one node depends on.
pub struct View {
    node: Arc<Node>,
    /// Its machine, if it was asked for.
    instance: Option<Result<Option<Instance>, String>>,
    period: SignedDuration,
    now: Timestamp,
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let node = &*view.node;
    let Some(instance) = &view.instance else {
        if node.has_taint(SHUT_DOWN) {
            plan.update(node, json!({"spec": {"taints": node.taints_without(SHUT_DOWN)}}));
        }
        return plan;
    };
    plan.look_again(view.now.checked_add(view.period).unwrap_or(view.now));
    match instance {
        // Not knowing is no reason to act; the next look comes anyway.
        Err(error) => {
            plan.retry(error.clone());
        }
        Ok(None) if !node.metadata.is_terminating() => {
            let name = &node.metadata.name;
            let text = format!("Deleting node {name} because it does not exist in the cloud provider");
            plan.event(node, "DeletingNode", text);
            let failed = format!("Failed deleting node {name}: {{error}}");
            plan.delete(node).announce(node, None, Some(("DeletingNodeFailed", failed)));
        }
        Ok(Some(instance)) if instance.shut_down && !node.has_taint(SHUT_DOWN) => {
            let mut taints: Vec<Taint> = node.spec.taints.clone();
            taints.push(Taint { key: SHUT_DOWN.into(), effect: "NoSchedule".into(), ..Taint::default() });
            plan.update(node, json!({"spec": {"taints": taints}}));
        }
        Ok(_) => {}
    }
    plan
}

/// The controller; nodes that are not ready are asked about every `period`.
pub fn controller(provider: Arc<dyn Provider>, period: SignedDuration) -> Controller {
    let gather = move |context: Context| -> BoxFuture<'static, _> {
        let provider = provider.clone();
        Box::pin(async move {
            let (Some(node), Some(instances)) = (context.object::<Node>(), provider.instances()) else {
                return Ok(None);
            };
            let instance = if node.says("Ready", "True") {
                None
            } else {
                let answer = instances.instance(&node).await;
                Some(answer.map_err(|error| telemetry::chain(&error).to_string()))
            };
            Ok(Some(View { node, instance, period, now: context.now }))
        })
    };
    Controller::reading(NAME, gather, reconcile)
        .acting_as("node-controller")
        .events_from("cloud-node-lifecycle-controller")
        .for_kind::<Node>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn plan(taints: Value, instance: Option<Result<Option<Instance>, String>>) -> Plan {
        let node = json!({"metadata":{"name":"a","uid":"a"},"spec":{"taints":taints}});
        let node = Arc::new(serde_json::from_value(node).unwrap());
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        reconcile(&View { node, instance, period: SignedDuration::from_secs(5), now })
    }

    #[test]
    fn only_a_machine_that_is_surely_gone_takes_its_node_along() {
        let off = Instance { shut_down: true, ..Instance::default() };
        let cases = [
            ("gone", Some(Ok(None)), vec!["a"]),
            ("not known", Some(Err("no answer".to_owned())), vec![]),
            ("off", Some(Ok(Some(off))), vec![]),
            ("there", Some(Ok(Some(Instance::default()))), vec![]),
            ("ready, not asked", None, vec![]),
        ];
        for (name, instance, deleted) in cases {
            assert_eq!(plan(json!([]), instance).deletes(), deleted, "{name}");
        }
    }

    #[test]
    fn a_machine_that_is_off_taints_its_node_until_it_is_ready() {
        let off = Some(Ok(Some(Instance { shut_down: true, ..Instance::default() })));
        let first = plan(json!([]), off.clone());
        let taints = first.changes()[0].1["spec"]["taints"].clone();
        assert_eq!(taints, json!([{"key":SHUT_DOWN,"effect":"NoSchedule"}]));
        assert!(plan(taints.clone(), off).is_empty());
        assert_eq!(plan(taints, None).changes()[0].1["spec"]["taints"], json!([]));
    }
}
