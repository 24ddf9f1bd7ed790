//! Resizes of pods: what the pod's node cannot give at all is refused at once.

use api::core::pod_spec::amounts::{self, Amounts};
use apimachinery::meta::{Meta, get_str};
use apimachinery::quantity::Quantity;
use apimachinery::status::{Cause, Status};
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

/// The plug-in.
pub struct PodResizeValidator;

impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let resource = &request.context.resource;
        let (Some(pod), Some(old)) = (object, old) else { return Ok(()) };
        let resizes = request.operation == Operation::Update && request.subresource == "resize";
        let node = get_str(pod, "spec.nodeName");
        if !resizes || !resource.is_core("pods") || node.is_empty() || pod.generation() == old.generation() {
            return Ok(());
        }
        let refuse = |why: String| request.forbid(pod.name(), &why);
        let nodes = server.builtin("", "nodes")?;
        let Some(entry) = server.cached(&nodes, "", node) else {
            return Err(refuse(format!("node {node:?} not found")));
        };
        match problem(pod, node, &nodes.parse(&entry)) {
            None => Ok(()),
            Some((reason, why)) => {
                let mut status = refuse(why);
                let details = status.details.get_or_insert_default();
                details.causes.push(Cause { reason: reason.into(), ..Cause::default() });
                Err(status)
            }
        }
    }
}

/// Why a node can never run a pod of that size.
fn problem(pod: &Value, name: &str, node: &Value) -> Option<(&'static str, String)> {
    let system = node["metadata"]["labels"]["kubernetes.io/os"].as_str().unwrap_or("linux");
    if system != "linux" {
        let why = format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
        return Some(("UnsupportedPlatform", why));
    }
    let (asked, has) = (requests(&pod["spec"]), amounts::read(&node["status"]["allocatable"]));
    let of = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or(Quantity::new(0));
    let shown: [(&str, fn(Quantity) -> i64); 2] = [("cpu", Quantity::millis), ("memory", Quantity::value)];
    let lacking: Vec<String> = shown
        .into_iter()
        .filter(|(name, _)| of(&asked, name) > of(&has, name))
        .map(|(name, number)| {
            let (asked, has) = (number(of(&asked, name)), number(of(&has, name)));
            format!("{name}, requested: {asked}, allocatable: {has}")
        })
        .collect();
    let why = format!("node didn't have enough allocatable resources: {}", lacking.join("; "));
    (!lacking.is_empty()).then_some(("NodeCapacity", why))
}

/// What a pod asks for: what it says of itself, or what its containers need together, and what running it costs.
fn requests(spec: &Value) -> Amounts {
    let mut sum = amounts::of_containers(spec, "requests");
    sum.extend(amounts::read(&spec["resources"]["requests"]));
    amounts::add(&mut sum, &amounts::read(&spec["overhead"]));
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_does_not_grow_over_its_node() {
        let pod = |cpu: &str| json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu}}}]}});
        let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
        assert_eq!(problem(&pod("2"), "n", &node), None);
        let (reason, why) = problem(&pod("2100m"), "n", &node).unwrap();
        assert_eq!(reason, "NodeCapacity");
        assert_eq!(
            why,
            "node didn't have enough allocatable resources: cpu, requested: 2100, allocatable: 2000"
        );
        let other = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
        assert_eq!(problem(&pod("1"), "n", &other).unwrap().0, "UnsupportedPlatform");
    }
}
