//! The objects that make the network: a DaemonSet that connects pods, and one that leads Services to them.

use serde_json::{Value, json};

use super::config::{NetworkConfig, OWN_TYPE};
use crate::library::workload;

/// Where the pod network's agent runs, and under which name.
pub const POD_NETWORK: (&str, &str) = ("openshift-pod-network", "pod-network");
/// The same of the proxy.
pub const KUBE_PROXY: (&str, &str) = ("openshift-kube-proxy", "openshift-kube-proxy");

/// What stands in the objects beside the configuration.
pub struct Surroundings<'a> {
    pub pod_network_image: &'a str,
    pub kube_proxy_image: &'a str,
    /// The API server's host and port: these pods lead Services, so they cannot use one.
    pub api_server: (String, u16),
}

/// The DaemonSets that there are to be.
pub fn daemon_sets(config: &NetworkConfig) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if config.network_type == OWN_TYPE {
        all.push(POD_NETWORK);
    }
    if config.deploy_kube_proxy {
        all.push(KUBE_PROXY);
    }
    all
}

/// Every object of the network, in the order in which they are made.
pub fn objects(config: &NetworkConfig, around: &Surroundings<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for (namespace, name) in daemon_sets(config) {
        all.push(workload::namespace(namespace, "What connects pods and leads Services."));
        all.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace},
        }));
        let (role, set) = match (namespace, name) == POD_NETWORK {
            true => ("openshift-pod-network", pod_network(config, around)),
            false => ("system:node-proxier", kube_proxy(config, around)),
        };
        if (namespace, name) == POD_NETWORK {
            all.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": role},
                "rules": [
                    {"apiGroups": [""], "resources": ["nodes", "namespaces", "pods"], "verbs": ["get", "list", "watch"]},
                    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "list", "watch"]},
                ],
            }));
        }
        all.push(workload::cluster_role_binding(
            &format!("openshift-{}", name.trim_start_matches("openshift-")),
            role,
            (namespace, name),
        ));
        all.push(set);
    }
    all
}

fn pod_network(config: &NetworkConfig, around: &Surroundings<'_>) -> Value {
    let mut command = vec!["/usr/bin/pod-network".to_owned(), "agent".to_owned()];
    command.extend(config.cluster_network.iter().map(|one| format!("--cluster-cidr={}", one.cidr)));
    command.extend(config.service_network.iter().map(|range| format!("--service-cidr={range}")));
    command.extend(config.mtu.filter(|mtu| *mtu != 0).map(|mtu| format!("--mtu={mtu}")));
    // Name, on the machine, in the container.
    let places = [
        ("cni-conf-dir", "/etc/kubernetes/cni/net.d", "/host/etc/cni/net.d"),
        ("cni-bin-dir", "/var/lib/cni/bin", "/host/opt/cni/bin"),
        ("state", "/var/lib/kelson-pod-network", "/var/lib/kelson-pod-network"),
        ("run", "/run/kelson-pod-network", "/run/kelson-pod-network"),
    ];
    let container = json!({
        "name": "pod-network", "image": around.pod_network_image, "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": environment(around),
        "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}},
        // Devices, routes and rules of the machine are its work.
        "securityContext": {"privileged": true},
        "readinessProbe": {
            "exec": {"command": ["/usr/bin/pod-network", "status"]},
            "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": places.iter().map(|(name, _, inside)| json!({"name": name, "mountPath": inside})).collect::<Vec<_>>(),
    });
    let volumes: Vec<Value> = places
        .iter()
        .map(|(name, path, _)| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}))
        .collect();
    workload::daemon_set(POD_NETWORK, host_pod(POD_NETWORK.1, container, volumes))
}

fn kube_proxy(config: &NetworkConfig, around: &Surroundings<'_>) -> Value {
    let ranges: Vec<&str> = config.cluster_network.iter().map(|one| one.cidr.as_str()).collect();
    let mut command = vec![
        "/usr/bin/kube-proxy".to_owned(),
        "--hostname-override=$(NODE_NAME)".to_owned(),
        format!("--cluster-cidr={}", ranges.join(",")),
        "--proxy-mode=nftables".to_owned(),
        "--healthz-bind-address=0.0.0.0:10256".to_owned(),
        "--metrics-bind-address=127.0.0.1:10249".to_owned(),
    ];
    command.extend(config.proxy_flags.iter().cloned());
    let container = json!({
        "name": "kube-proxy", "image": around.kube_proxy_image, "imagePullPolicy": "IfNotPresent",
        "command": command,
        "env": environment(around),
        "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}},
        "securityContext": {"privileged": true},
        "ports": [{"name": "healthz", "containerPort": 10256, "hostPort": 10256, "protocol": "TCP"}],
        "livenessProbe": {
            "httpGet": {"host": "127.0.0.1", "path": "/healthz", "port": 10256},
            "initialDelaySeconds": 30, "periodSeconds": 10, "failureThreshold": 8,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let mut pod = host_pod(KUBE_PROXY.1, container, Vec::new());
    // Masters have had one as a static pod since before there was an API server.
    pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [
            {"key": "node-role.kubernetes.io/master", "operator": "DoesNotExist"},
        ]}],
    }}});
    workload::daemon_set(KUBE_PROXY, pod)
}

fn environment(around: &Surroundings<'_>) -> Value {
    json!([
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
        {"name": "KUBERNETES_SERVICE_HOST", "value": around.api_server.0},
        {"name": "KUBERNETES_SERVICE_PORT", "value": around.api_server.1.to_string()},
    ])
}

/// A pod on the machine's network, on every machine whatever its state.
fn host_pod(account: &str, container: Value, volumes: Vec<Value>) -> Value {
    json!({
        "metadata": {},
        "spec": {
            "hostNetwork": true, "dnsPolicy": "Default",
            "serviceAccountName": account,
            "priorityClassName": "system-node-critical",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 10,
            "containers": [container],
            "volumes": volumes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operands_follow_the_configuration() {
        let around = Surroundings {
            pod_network_image: "p",
            kube_proxy_image: "k",
            api_server: ("api-int.x".to_owned(), 6443),
        };
        let mut config = NetworkConfig {
            cluster_network: vec![super::super::config::ClusterNetwork {
                cidr: "10.0.0.0/14".into(),
                host_prefix: 23,
            }],
            service_network: vec!["172.30.0.0/16".into()],
            network_type: OWN_TYPE.into(),
            mtu: Some(1400),
            deploy_kube_proxy: true,
            proxy_flags: vec!["--v=4".into()],
        };
        let all = objects(&config, &around);
        let set = |name: &str| {
            let is_it = |one: &&Value| one["kind"] == "DaemonSet" && one["metadata"]["name"] == name;
            all.iter()
                .find(is_it)
                .map(|one| one["spec"]["template"]["spec"]["containers"][0]["command"].to_string())
        };
        let agent = set("pod-network").unwrap();
        assert!(agent.contains("--cluster-cidr=10.0.0.0/14") && agent.contains("--mtu=1400"), "{agent}");
        assert!(set("openshift-kube-proxy").unwrap().contains("--v=4"));
        // Another's network: only Services are led.
        config.network_type = "Calico".into();
        assert_eq!(daemon_sets(&config), [KUBE_PROXY]);
        config.deploy_kube_proxy = false;
        assert!(objects(&config, &around).is_empty());
    }
}
