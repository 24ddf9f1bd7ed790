//! What the Node object says. Pure, but for the measuring of pressure.

use std::collections::BTreeMap;

use cri::{Image, RuntimeStatus};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::config::{Config, Taint};
use crate::eviction::{Pressure, Signal};
use crate::machine::Machine;
use crate::status::seconds;

/// Images listed in the status, the largest first, as upstream limits them.
const MAX_IMAGES: usize = 50;
pub struct Observed<'a> {
    pub runtime: Result<RuntimeStatus, String>,
    /// What the node is short of.
    pub pressures: &'a [Pressure],
    /// The size of its disk, in bytes.
    pub disk: u64,
    pub images: &'a [Image],
    pub runtime_version: &'a str,
    /// Conditions as last written, for their transition times.
    pub conditions: &'a [Value],
    pub now: Timestamp,
}

/// What the kubelet itself says of the machine.
pub fn own_labels(config: &Config, machine: &Machine) -> BTreeMap<String, String> {
    [
        ("beta.kubernetes.io/arch", machine.architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", machine.architecture),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", &config.node_name),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// All that the node registers with.
pub fn labels(config: &Config, machine: &Machine) -> BTreeMap<String, String> {
    let mut labels = own_labels(config, machine);
    labels.extend(config.labels.clone());
    labels
}

/// The object to register.
pub fn node(config: &Config, machine: &Machine) -> Value {
    let mut spec = Map::new();
    // A cloud controller manager takes this one away once it has written what it knows of the machine.
    let uninitialized = Taint {
        key: "node.cloudprovider.kubernetes.io/uninitialized".into(),
        value: "true".into(),
        effect: "NoSchedule".into(),
    };
    let uninitialized = config.cloud_provider_external.then_some(&uninitialized);
    let taints: Vec<&Taint> = config.taints.iter().chain(uninitialized).collect();
    if !taints.is_empty() {
        let taints = taints.into_iter().map(|taint| {
            let mut value = json!({"key": taint.key, "effect": taint.effect});
            if !taint.value.is_empty() {
                value["value"] = json!(taint.value);
            }
            value
        });
        spec.insert("taints".into(), taints.collect());
    }
    if config.unschedulable {
        spec.insert("unschedulable".into(), json!(true));
    }
    if let Some(id) = &config.provider_id {
        spec.insert("providerID".into(), json!(id));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": config.node_name,
            "labels": labels(config, machine),
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "spec": spec,
    })
}

/// Allocatable as numbers: milli-cores for cpu, whole units for the rest.
pub fn allocatable_numbers(config: &Config, machine: &Machine) -> BTreeMap<String, i64> {
    [
        ("cpu", machine.allocatable_cpu(config)),
        ("memory", machine.allocatable_memory(config)),
        ("pods", i64::from(config.max_pods)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn cpu(millis: i64) -> String {
    if millis % 1000 == 0 { (millis / 1000).to_string() } else { format!("{millis}m") }
}

fn kibibytes(bytes: i64) -> String {
    format!("{}Ki", bytes / 1024)
}

/// The whole status, and its conditions for the next time.
pub fn status(config: &Config, machine: &Machine, observed: &Observed<'_>) -> (Value, Vec<Value>) {
    let disk = observed.disk as i64;
    let kept_free = config.eviction.hard(Signal::NodefsAvailable, observed.disk) as i64;
    let mut capacity = json!({
        "cpu": machine.cpus.to_string(),
        "ephemeral-storage": kibibytes(disk),
        "memory": kibibytes(machine.memory as i64),
        "pods": config.max_pods.to_string(),
    });
    let mut allocatable = json!({
        "cpu": cpu(machine.allocatable_cpu(config)),
        "ephemeral-storage": (disk - kept_free - config.reserved_storage).max(0).to_string(),
        "memory": kibibytes(machine.allocatable_memory(config)),
        "pods": config.max_pods.to_string(),
    });
    for (size, reserved) in &machine.hugepages {
        let name = match size {
            size if size >= &(1 << 30) => format!("hugepages-{}Gi", size >> 30),
            size if size >= &(1 << 20) => format!("hugepages-{}Mi", size >> 20),
            size => format!("hugepages-{}Ki", size >> 10),
        };
        let text = if *reserved == 0 { "0".to_owned() } else { kibibytes(*reserved as i64) };
        capacity[&name] = json!(text);
        allocatable[&name] = json!(text);
    }
    let mut addresses: Vec<Value> =
        config.node_ips.iter().map(|ip| json!({"type": "InternalIP", "address": ip.to_string()})).collect();
    addresses.push(json!({"type": "Hostname", "address": config.node_name}));
    let conditions = conditions(observed);
    let mut images: Vec<&Image> = observed.images.iter().collect();
    images.sort_by_key(|image| std::cmp::Reverse(image.size));
    let images: Vec<Value> = images
        .iter()
        .take(MAX_IMAGES)
        .map(|image| {
            let names: Vec<&String> = image.repo_digests.iter().chain(&image.repo_tags).take(5).collect();
            json!({"names": names, "sizeBytes": image.size})
        })
        .collect();
    let version = &config.cluster_version;
    let user_namespaces = observed.runtime.as_ref().is_ok_and(|runtime| runtime.user_namespaces);
    let status = json!({
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": conditions,
        "addresses": addresses,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": config.listen.map_or(0, |listen| listen.port())}},
        "nodeInfo": {
            "machineID": machine.machine_id,
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": machine.os_image,
            "containerRuntimeVersion": observed.runtime_version,
            "kubeletVersion": version,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine.architecture,
        },
        "images": images,
        "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": user_namespaces}}],
        "features": {"supplementalGroupsPolicy": true},
    });
    (status, conditions)
}

fn conditions(observed: &Observed<'_>) -> Vec<Value> {
    let condition = |kind: &str, holds: bool, reason: &str, message: String| {
        let status = if holds { "True" } else { "False" };
        let known = observed.conditions.iter().find(|old| old["type"] == kind && old["status"] == status);
        let since =
            known.map_or_else(|| json!(seconds(observed.now)), |old| old["lastTransitionTime"].clone());
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": seconds(observed.now), "lastTransitionTime": since,
        })
    };
    let pressed = |pressure: Pressure, reasons: (&str, &str), messages: (&str, &str)| {
        let kind = pressure.condition();
        if observed.pressures.contains(&pressure) {
            condition(kind, true, reasons.1, messages.1.to_owned())
        } else {
            condition(kind, false, reasons.0, messages.0.to_owned())
        }
    };
    let problems: Vec<String> = match &observed.runtime {
        Err(error) => vec![format!("container runtime is down: {error}")],
        Ok(runtime) => [
            ("RuntimeReady", "container runtime not ready"),
            ("NetworkReady", "container runtime network not ready"),
        ]
        .into_iter()
        .filter_map(|(kind, text)| match runtime.condition(kind) {
            Some(one) if !one.status => {
                Some(format!("{text}: {kind}=false reason:{} message:{}", one.reason, one.message))
            }
            _ => None,
        })
        .collect(),
    };
    vec![
        pressed(
            Pressure::Memory,
            ("KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"),
            ("kubelet has sufficient memory available", "kubelet has insufficient memory available"),
        ),
        pressed(
            Pressure::Disk,
            ("KubeletHasNoDiskPressure", "KubeletHasDiskPressure"),
            ("kubelet has no disk pressure", "kubelet has disk pressure"),
        ),
        pressed(
            Pressure::Pid,
            ("KubeletHasSufficientPID", "KubeletHasInsufficientPID"),
            ("kubelet has sufficient PID available", "kubelet has insufficient PID available"),
        ),
        if problems.is_empty() {
            condition("Ready", true, "KubeletReady", "kubelet is posting ready status".into())
        } else {
            condition("Ready", false, "KubeletNotReady", problems.join(", "))
        },
    ]
}

/// The status without what changes all the time, to tell whether anything else did.
pub fn without_heartbeats(status: &Value) -> Value {
    let mut status = status.clone();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastHeartbeatTime"] = Value::Null;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::RuntimeCondition;

    fn observed<'a>(ready: bool, conditions: &'a [Value], second: i64) -> Observed<'a> {
        let network = RuntimeCondition {
            r#type: "NetworkReady".into(),
            status: ready,
            reason: "NoRange".into(),
            message: "no address range".into(),
        };
        Observed {
            runtime: Ok(RuntimeStatus { conditions: vec![network], user_namespaces: true }),
            pressures: &[],
            disk: 0,
            images: &[],
            runtime_version: "kelson://1",
            conditions,
            now: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn transition_times_move_only_with_the_status() {
        let first = conditions(&observed(false, &[], 100));
        assert_eq!(first[3]["status"], "False");
        assert!(first[3]["message"].as_str().unwrap().contains("NetworkReady=false reason:NoRange"));
        let second = conditions(&observed(false, &first, 200));
        assert_eq!(second[3]["lastTransitionTime"], first[3]["lastTransitionTime"]);
        assert_ne!(second[3]["lastHeartbeatTime"], first[3]["lastHeartbeatTime"]);
        let third = conditions(&observed(true, &second, 300));
        assert_eq!(
            (third[3]["status"].as_str(), third[3]["lastTransitionTime"].as_str()),
            (Some("True"), Some("1970-01-01T00:05:00Z"))
        );
    }

    #[test]
    fn what_is_short_is_told() {
        let mut short = observed(true, &[], 100);
        short.pressures = &[Pressure::Disk];
        let told = conditions(&short);
        let of =
            |index: usize| (told[index]["status"].as_str().unwrap(), told[index]["reason"].as_str().unwrap());
        assert_eq!(of(0), ("False", "KubeletHasSufficientMemory"));
        assert_eq!(of(1), ("True", "KubeletHasDiskPressure"));
        assert_eq!(of(2), ("False", "KubeletHasSufficientPID"));
    }

    #[test]
    fn amounts_are_written_as_upstream_does() {
        assert_eq!((cpu(2000), cpu(1900), kibibytes(4096)), ("2".into(), "1900m".into(), "4Ki".into()));
    }
}
