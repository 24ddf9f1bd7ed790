//! How a member of etcd runs on a node.

use serde_json::{Value, json};

use super::NAMESPACE;
use crate::library::certificates::config_map as plain;

/// Where certificates are inside the pod.
const CERTS: &str = "/etc/kubernetes/static-pod-certs";
const DATA: &str = "/var/lib/etcd";
const GIB: i64 = 1 << 30;

/// Heartbeat and election timeout in milliseconds, by `controlPlaneHardwareSpeed`.
const SPEEDS: &[(&str, u32, u32)] = &[("", 100, 1000), ("Standard", 100, 1000), ("Slower", 500, 2500)];

/// The ConfigMap with the pod, from the operator's spec.
pub fn config_map(spec: &Value, image: &str) -> Result<Value, String> {
    let speed = spec["controlPlaneHardwareSpeed"].as_str().unwrap_or_default();
    let (_, heartbeat, election) = SPEEDS
        .iter()
        .find(|(name, _, _)| *name == speed)
        .ok_or_else(|| format!("controlPlaneHardwareSpeed {speed:?} is none of \"\", Standard, Slower"))?;
    let quota = spec["backendQuotaGiB"].as_i64().unwrap_or(8);
    if !(8..=32).contains(&quota) {
        return Err(format!("backendQuotaGiB {quota} is not between 8 and 32"));
    }
    let pod = pod(image, *heartbeat, *election, quota * GIB);
    let text = serde_json::to_string_pretty(&pod).map_err(|error| error.to_string())?;
    Ok(plain(NAMESPACE, "etcd-pod", &[("pod.yaml", text)]))
}

fn pod(image: &str, heartbeat: u32, election: u32, quota: i64) -> Value {
    let secret =
        |kind: &str, end: &str| format!("{CERTS}/secrets/etcd-all-certs/etcd-{kind}-NODE_NAME.{end}");
    let ca = format!("{CERTS}/configmaps/etcd-ca-bundle/ca-bundle.crt");
    let flags = [
        ("name", "NODE_NAME".to_owned()),
        ("data-dir", DATA.to_owned()),
        ("listen-client-urls", "https://0.0.0.0:2379".to_owned()),
        ("advertise-client-urls", "https://NODE_URL_HOST:2379".to_owned()),
        ("listen-peer-urls", "https://0.0.0.0:2380".to_owned()),
        ("initial-advertise-peer-urls", "https://NODE_URL_HOST:2380".to_owned()),
        ("initial-cluster-token", "openshift-etcd".to_owned()),
        ("cert-file", secret("serving", "crt")),
        ("key-file", secret("serving", "key")),
        ("trusted-ca-file", ca.clone()),
        ("client-cert-auth", "true".to_owned()),
        ("peer-cert-file", secret("peer", "crt")),
        ("peer-key-file", secret("peer", "key")),
        ("peer-trusted-ca-file", ca.clone()),
        ("peer-client-cert-auth", "true".to_owned()),
        // For the probes, on this machine only and without a certificate.
        ("listen-metrics-urls", "http://localhost:9978".to_owned()),
        ("heartbeat-interval", heartbeat.to_string()),
        ("election-timeout", election.to_string()),
        ("quota-backend-bytes", quota.to_string()),
        ("snapshot-count", "100000".to_owned()),
    ];
    let mut command = vec![
        "cluster-etcd-operator".to_owned(),
        "discover-etcd-initial-cluster".to_owned(),
        format!("--cacert={ca}"),
        format!("--cert={}", secret("peer", "crt")),
        format!("--key={}", secret("peer", "key")),
        format!("--endpoints-file={CERTS}/configmaps/etcd-discovery/endpoints"),
        format!("--data-dir={DATA}"),
        "--target-peer-url=https://NODE_URL_HOST:2380".to_owned(),
        "--target-name=NODE_NAME".to_owned(),
        "--".to_owned(),
        "etcd".to_owned(),
    ];
    command.extend(flags.iter().map(|(name, value)| format!("--{name}={value}")));
    let probe = |path: &str, delay: u32, period: u32, failures: u32| {
        json!({
            "httpGet": {"host": "localhost", "scheme": "HTTP", "port": 9978, "path": path},
            "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": 10,
            "failureThreshold": failures,
        })
    };
    let port = |name: &str, number: u16| json!({"name": name, "containerPort": number, "hostPort": number, "protocol": "TCP"});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "etcd", "namespace": NAMESPACE,
            "labels": {"app": "etcd", "etcd": "true", "k8s-app": "etcd", "revision": "REVISION"},
            "annotations": {
                "kubectl.kubernetes.io/default-container": "etcd",
                "target.workload.openshift.io/management": "{\"effect\": \"PreferredDuringScheduling\"}",
            },
        },
        "spec": {
            "hostNetwork": true,
            "priorityClassName": "system-node-critical", "priority": 2_000_001_000,
            "terminationGracePeriodSeconds": 30,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "etcd",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": command,
                "ports": [port("etcd", 2379), port("etcd-peer", 2380), port("etcd-metrics", 9978)],
                "resources": {"requests": {"cpu": "300m", "memory": "600Mi"}},
                "securityContext": {"privileged": true},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                // A member that waits to be added is not dead.
                "livenessProbe": probe("/health?serializable=true", 180, 30, 8),
                "readinessProbe": probe("/health", 1, 2, 3),
                "volumeMounts": [
                    {"name": "cert-dir", "mountPath": CERTS, "readOnly": true},
                    {"name": "data-dir", "mountPath": DATA},
                ],
            }],
            "volumes": [
                {"name": "cert-dir", "hostPath": {
                    "path": "/etc/kubernetes/static-pod-resources/etcd-certs", "type": "Directory",
                }},
                {"name": "data-dir", "hostPath": {"path": DATA, "type": "DirectoryOrCreate"}},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_quota_reach_the_flags_and_others_are_refused() {
        let text = |spec: Value| {
            let map = config_map(&spec, "image")?;
            Ok::<_, String>(map["data"]["pod.yaml"].as_str().unwrap_or_default().to_owned())
        };
        let usual = text(json!({})).unwrap();
        assert!(usual.contains("--heartbeat-interval=100") && usual.contains("=8589934592"));
        let slow = text(json!({"controlPlaneHardwareSpeed": "Slower", "backendQuotaGiB": 16})).unwrap();
        assert!(slow.contains("--election-timeout=2500") && slow.contains("=17179869184"));
        assert!(text(json!({"controlPlaneHardwareSpeed": "Ludicrous"})).is_err());
        assert!(text(json!({"backendQuotaGiB": 4})).is_err());
    }
}
