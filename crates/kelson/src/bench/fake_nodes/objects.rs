//! What fake nodes tell the API: nodes, leases, and the statuses of pods, as a kubelet would write them.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::NodeArgs;
use super::kubelet::Pod;

pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Marks what this command made.
pub const FAKE_LABEL: &str = "kelson.dev/fake-node";
const VERSION: &str = "v1.36.4";
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
/// Addresses of nodes and of pods; neither is ever spoken to.
const NODE_ADDRESSES: u32 = u32::from_be_bytes([10, 64, 0, 0]);
const POD_ADDRESSES: u32 = u32::from_be_bytes([10, 192, 0, 0]);
const POD_ADDRESS_COUNT: u32 = 1 << 22;

/// The conditions of a healthy node: type, status, reason, message.
const CONDITIONS: [(&str, &str, &str, &str); 4] = [
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
];

/// What all nodes have in common.
pub struct Shape {
    prefix: String,
    cpu: u32,
    memory_gib: u32,
    max_pods: u32,
    zones: usize,
}

impl Shape {
    pub fn new(args: &NodeArgs) -> Self {
        Self {
            prefix: args.prefix.clone(),
            cpu: args.cpu,
            memory_gib: args.memory,
            max_pods: args.max_pods,
            zones: args.zones,
        }
    }

    pub fn name(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    /// The number in a name, if the name is one of ours.
    pub fn number(&self, name: &str) -> Option<usize> {
        name.strip_prefix(&self.prefix)?.parse().ok()
    }

    pub fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::from(NODE_ADDRESSES.wrapping_add(number as u32 + 1))
    }

    pub fn node(&self, number: usize, now: Timestamp) -> Value {
        let name = self.name(number);
        let mut labels = json!({
            "beta.kubernetes.io/arch": ARCHITECTURE,
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": ARCHITECTURE,
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            FAKE_LABEL: "true",
        });
        if self.zones > 0 {
            labels["topology.kubernetes.io/region"] = json!("fake-region");
            labels["topology.kubernetes.io/zone"] = json!(format!("zone-{}", number % self.zones));
        }
        let resources = |reserved_kib: u64| {
            json!({
                "cpu": self.cpu.to_string(),
                "ephemeral-storage": "1048576Mi",
                "hugepages-1Gi": "0",
                "hugepages-2Mi": "0",
                "memory": format!("{}Ki", (u64::from(self.memory_gib) << 20) - reserved_kib),
                "pods": self.max_pods.to_string(),
            })
        };
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {"providerID": format!("fake://{name}")},
            "status": {
                "capacity": resources(0),
                "allocatable": resources(100 << 10),
                "conditions": conditions(now, true),
                "addresses": [
                    {"type": "InternalIP", "address": Self::address(number).to_string()},
                    {"type": "Hostname", "address": name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {
                    "machineID": format!("{number:032x}"),
                    "systemUUID": format!("00000000-0000-4000-8000-{number:012x}"),
                    "bootID": format!("00000000-0000-4000-9000-{number:012x}"),
                    "kernelVersion": "6.12.0",
                    "osImage": "Fake Linux",
                    "containerRuntimeVersion": "fake://1.0",
                    "kubeletVersion": VERSION,
                    "kubeProxyVersion": "",
                    "operatingSystem": "linux",
                    "architecture": ARCHITECTURE,
                },
                "images": [],
            },
        })
    }

    pub fn lease(&self, number: usize, node_uid: &str, now: Timestamp) -> Value {
        let name = self.name(number);
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name, "namespace": LEASE_NAMESPACE,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros(now)},
        })
    }
}

pub fn renewal(now: Timestamp) -> Value {
    json!({"spec": {"renewTime": micros(now)}})
}

pub fn heartbeat(now: Timestamp) -> Value {
    json!({"status": {"conditions": conditions(now, false)}})
}

fn conditions(now: Timestamp, first: bool) -> Vec<Value> {
    let condition = |(kind, status, reason, message): (&str, &str, &str, &str)| {
        let mut condition = json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": seconds(now),
        });
        if first {
            condition["lastTransitionTime"] = json!(seconds(now));
        }
        condition
    };
    CONDITIONS.into_iter().map(condition).collect()
}

/// The address of the pod that came as the `serial`th.
pub fn pod_address(serial: u32) -> Ipv4Addr {
    Ipv4Addr::from(POD_ADDRESSES + serial % POD_ADDRESS_COUNT)
}

/// A patch of a pod's status: everything has started and is ready.
pub fn running(pod: &Pod, host: Ipv4Addr, address: Ipv4Addr, now: Timestamp) -> Value {
    let now = seconds(now);
    let started = json!({"running": {"startedAt": now}});
    let done =
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}});
    let containers =
        pod.spec.containers.iter().map(|container| container_status(pod, container, &started, true));
    let inits = pod.spec.init_containers.iter().map(|container| {
        let sidecar = container.restart_policy == "Always";
        container_status(pod, container, if sidecar { &started } else { &done }, true)
    });
    let ip = if pod.spec.host_network { host } else { address }.to_string();
    let truths = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let mut status = json!({
        "phase": "Running",
        "observedGeneration": pod.metadata.generation,
        "conditions": truths.map(|kind| condition(pod, kind, "True", &now)),
        "hostIP": host.to_string(),
        "hostIPs": [{"ip": host.to_string()}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": now,
        "containerStatuses": containers.collect::<Vec<_>>(),
    });
    let inits: Vec<Value> = inits.collect();
    if !inits.is_empty() {
        status["initContainerStatuses"] = json!(inits);
    }
    json!({"metadata": {"uid": pod.metadata.uid}, "status": status})
}

/// A patch of a pod's status: all its containers ended with this code.
pub fn finished(pod: &Pod, code: i32, now: Timestamp) -> Value {
    let now = seconds(now);
    let succeeded = code == 0;
    let (phase, reason) = if succeeded { ("Succeeded", "Completed") } else { ("Failed", "Error") };
    let ended =
        json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}});
    let containers: Vec<Value> =
        pod.spec.containers.iter().map(|container| container_status(pod, container, &ended, false)).collect();
    let mut conditions = vec![
        condition(pod, "PodReadyToStartContainers", "False", &now),
        condition(pod, "Ready", "False", &now),
        condition(pod, "ContainersReady", "False", &now),
    ];
    let why = if succeeded { "PodCompleted" } else { "PodFailed" };
    for condition in &mut conditions[1..] {
        condition["reason"] = json!(why);
    }
    json!({
        "metadata": {"uid": pod.metadata.uid},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": containers},
    })
}

fn condition(pod: &Pod, kind: &str, status: &str, now: &str) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": now, "observedGeneration": pod.metadata.generation})
}

fn container_status(pod: &Pod, container: &super::kubelet::Container, state: &Value, ready: bool) -> Value {
    json!({
        "name": container.name,
        "image": container.image,
        "imageID": format!("fake://{}", container.image),
        "containerID": format!("fake://{}/{}", pod.metadata.uid, container.name),
        "state": state,
        "lastState": {},
        "ready": ready,
        "started": ready,
        "restartCount": 0,
    })
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(zones: usize) -> Shape {
        Shape { prefix: "n-".into(), cpu: 4, memory_gib: 1, max_pods: 110, zones }
    }

    #[test]
    fn a_node_looks_like_a_real_one() {
        let node = shape(3).node(4, Timestamp::UNIX_EPOCH);
        assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "n-4");
        assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "zone-1");
        assert_eq!(node["status"]["capacity"]["memory"], "1048576Ki");
        assert_eq!(node["status"]["allocatable"]["memory"], "946176Ki");
        assert_eq!(node["status"]["addresses"][0]["address"], "10.64.0.5");
        assert_eq!(shape(0).number("n-17"), Some(17));
        assert_eq!(shape(0).number("worker"), None);
    }

    #[test]
    fn a_pods_status_names_every_container() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u"},
            "spec": {"containers": [{"name": "a", "image": "i"}],
                "initContainers": [{"name": "b", "image": "i"}, {"name": "c", "image": "i", "restartPolicy": "Always"}]},
        }))
        .unwrap();
        let up = running(&pod, Shape::address(0), pod_address(7), Timestamp::UNIX_EPOCH);
        assert_eq!(up["metadata"]["uid"], "u");
        assert_eq!(up["status"]["podIPs"][0]["ip"], "10.192.0.7");
        assert_eq!(up["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
        assert!(up["status"]["initContainerStatuses"][1]["state"]["running"].is_object());
        let down = finished(&pod, 137, Timestamp::UNIX_EPOCH);
        assert_eq!(down["status"]["phase"], "Failed");
        assert_eq!(down["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    }
}
