//! Small rules about pods: priority, tolerations of broken nodes, runtime classes, the place of their node; and the
//! taint of a new node.

use std::sync::Arc;

use apimachinery::meta::{Meta, MetaMut};
use apimachinery::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Request};
use crate::cache::entry::Entry;
use crate::server::ApiServer;

/// Gives pods the number behind their priority class.
pub struct Priority;

impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if !request.is("", "pods") {
            return Ok(());
        }
        if request.operation == Operation::Update {
            // Neither may change; what an update leaves out stays.
            for field in ["priority", "preemptionPolicy"] {
                if let Some(old) = old
                    && pod["spec"][field].is_null()
                    && !old["spec"][field].is_null()
                {
                    pod["spec"][field] = old["spec"][field].clone();
                }
            }
            return Ok(());
        }
        if request.operation != Operation::Create {
            return Ok(());
        }
        let classes = server.builtin("scheduling.k8s.io", "priorityclasses")?;
        let name = pod["spec"]["priorityClassName"].as_str().unwrap_or_default().to_owned();
        let class = if name.is_empty() {
            let all =
                server.hub.cache(&classes.prefix).map(|cache| cache.snapshot(&classes.prefix, 0).entries);
            let defaults = all.unwrap_or_default().into_iter();
            defaults
                .filter(|class| class.parsed()["globalDefault"] == true)
                .min_by_key(|class| class.parsed()["value"].as_i64())
        } else {
            let found = server.cached(&classes, "", &name);
            Some(found.ok_or_else(|| {
                request.forbid(pod.name(), &format!("no PriorityClass with name {name} was found"))
            })?)
        };
        let (value, policy) = match class.as_deref().map(Entry::parsed) {
            Some(class) => {
                if name.is_empty() {
                    pod["spec"]["priorityClassName"] = json!(class.name());
                }
                let policy = class["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority").to_owned();
                (class["value"].as_i64().unwrap_or(0), policy)
            }
            None => (0, "PreemptLowerPriority".to_owned()),
        };
        if let Some(given) = pod["spec"]["priority"].as_i64()
            && given != value
        {
            let why = format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name"
            );
            return Err(request.forbid(pod.name(), &why));
        }
        if let Some(given) = pod["spec"]["preemptionPolicy"].as_str()
            && given != policy
        {
            let why = format!(
                "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
            );
            return Err(request.forbid(pod.name(), &why));
        }
        pod["spec"]["priority"] = json!(value);
        pod["spec"]["preemptionPolicy"] = json!(policy);
        Ok(())
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        class: Option<&Value>,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(class) = class.filter(|_| request.is("scheduling.k8s.io", "priorityclasses")) else {
            return Ok(());
        };
        if class["globalDefault"] != true {
            return Ok(());
        }
        let resource = &request.context.resource;
        let all = server.hub.cache(&resource.prefix).map(|cache| cache.snapshot(&resource.prefix, 0).entries);
        for other in all.unwrap_or_default().iter().map(|entry| entry.parsed()) {
            if other["globalDefault"] == true && other.name() != class.name() {
                let why = format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    other.name()
                );
                return Err(request.forbid(class.name(), &why));
            }
        }
        Ok(())
    }
}

/// Gives a pod the zone and the region of the node that it is made for or bound to.
pub struct PodTopologyLabels;

impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let resource = &request.context.resource;
        let placed = match request.subresource {
            "" => request.operation == Operation::Create,
            "binding" => true,
            _ => false,
        };
        if !placed || !resource.group().is_empty() || resource.plural() != "pods" {
            return Ok(());
        }
        let name = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        if name.is_empty() {
            return Ok(());
        }
        let nodes = server.builtin("", "nodes")?;
        let Some(node) = server.cached(&nodes, "", name) else { return Ok(()) };
        for (key, value) in node.labels() {
            if matches!(&**key, "topology.kubernetes.io/zone" | "topology.kubernetes.io/region") {
                pod.set_label(key, value);
            }
        }
        Ok(())
    }
}

/// Pods stay for some minutes on a node that is not ready or not reachable.
pub struct DefaultTolerationSeconds {
    pub not_ready: i64,
    pub unreachable: i64,
}

impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn mutate(
        &self,
        _: &ApiServer,
        request: &Request<'_>,
        pod: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.is("", "pods") && matches!(request.operation, Operation::Create | Operation::Update) {
            tolerate(pod, self);
        }
        Ok(())
    }
}

fn tolerate(pod: &mut Value, wanted: &DefaultTolerationSeconds) {
    let empty = Vec::new();
    let present = pod["spec"]["tolerations"].as_array().unwrap_or(&empty);
    let mut missing = Vec::new();
    for (key, seconds) in [
        ("node.kubernetes.io/not-ready", wanted.not_ready),
        ("node.kubernetes.io/unreachable", wanted.unreachable),
    ] {
        let covered = present.iter().any(|own| {
            let same = own["key"].as_str().unwrap_or_default();
            let effect = own["effect"].as_str().unwrap_or_default();
            (same == key || same.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !covered {
            missing.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
            );
        }
    }
    if !missing.is_empty() {
        pod["spec"]["tolerations"] = Value::Array(present.iter().cloned().chain(missing).collect());
    }
}

/// A new node takes no pods before it has said that it is ready.
pub struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn mutate(
        &self,
        _: &ApiServer,
        request: &Request<'_>,
        node: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create || !request.is("", "nodes") {
            return Ok(());
        }
        let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
        let same = |own: &Value| own["key"] == taint["key"] && own["effect"] == taint["effect"];
        match node.pointer_mut("/spec/taints").and_then(Value::as_array_mut) {
            Some(taints) if taints.iter().any(same) => {}
            Some(taints) => taints.push(taint),
            None => node["spec"]["taints"] = json!([taint]),
        }
        Ok(())
    }
}

/// Pods of a runtime class get its overhead and its scheduling rules.
pub struct RuntimeClass;

impl RuntimeClass {
    fn class(server: &ApiServer, request: &Request<'_>, pod: &Value) -> Result<Option<Arc<Entry>>, Status> {
        let Some(name) = pod["spec"]["runtimeClassName"].as_str().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let classes = server.builtin("node.k8s.io", "runtimeclasses")?;
        match server.cached(&classes, "", name) {
            Some(entry) => Ok(Some(entry)),
            None => {
                Err(request.forbid(pod.name(), &format!("pod rejected: RuntimeClass {name:?} not found")))
            }
        }
    }
}

impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation != Operation::Create || !request.is("", "pods") {
            return Ok(());
        }
        let Some(class) = Self::class(server, request, pod)? else { return Ok(()) };
        let class = class.parsed();
        let overhead = &class["overhead"]["podFixed"];
        if overhead.is_object() {
            if pod["spec"]["overhead"].is_object() && pod["spec"]["overhead"] != *overhead {
                return Err(request.forbid(
                    pod.name(),
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
                ));
            }
            pod["spec"]["overhead"] = overhead.clone();
        }
        let scheduling = &class["scheduling"];
        for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
            let present = &pod["spec"]["nodeSelector"][key.as_str()];
            if !present.is_null() && present != value {
                let why = "conflict: runtimeClass.scheduling.nodeSelector and pod.spec.nodeSelector disagree";
                return Err(request.forbid(pod.name(), why));
            }
            pod["spec"]["nodeSelector"][key.as_str()] = value.clone();
        }
        if let Some(more) = scheduling["tolerations"].as_array() {
            let mut all = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
            for one in more {
                if !all.contains(one) {
                    all.push(one.clone());
                }
            }
            pod["spec"]["tolerations"] = Value::Array(all);
        }
        Ok(())
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        pod: Option<&Value>,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(pod) = pod.filter(|_| request.operation == Operation::Create && request.is("", "pods"))
        else {
            return Ok(());
        };
        let class = Self::class(server, request, pod)?;
        let wanted = class.as_ref().map_or(&Value::Null, |class| &class.parsed()["overhead"]["podFixed"]);
        let own = &pod["spec"]["overhead"];
        if own.is_object() && !wanted.is_object() {
            return Err(request.forbid(
                pod.name(),
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerations_are_added_where_none_covers() {
        let wanted = DefaultTolerationSeconds { not_ready: 300, unreachable: 60 };
        let mut pod = json!({"spec": {}});
        tolerate(&mut pod, &wanted);
        assert_eq!(pod["spec"]["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(pod["spec"]["tolerations"][1]["tolerationSeconds"], 60);
        let once = pod.clone();
        tolerate(&mut pod, &wanted);
        assert_eq!(pod, once);
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerate(&mut all, &wanted);
        assert_eq!(all["spec"]["tolerations"].as_array().unwrap().len(), 1);
    }
}
