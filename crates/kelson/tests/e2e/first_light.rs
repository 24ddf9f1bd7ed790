//! From `kelson up` to a Service reached by name, with kube-rs.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::Client;
use kube::api::{Api, AttachParams, DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::harness::{Cluster, eventually, in_own_network};

pub const IMAGE: &str = "kelson.local/demo";

pub fn pod(name: &str, spec: Value) -> Pod {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": IMAGE}]},
    });
    merge(&mut pod["spec"], spec);
    serde_json::from_value(pod).expect("a valid pod")
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) if !into.is_empty() => {
            for (index, value) in from.into_iter().enumerate() {
                match into.get_mut(index) {
                    Some(old) => merge(old, value),
                    None => into.push(value),
                }
            }
        }
        (into, from) => *into = from,
    }
}

/// Runs a command as a pod's only container.
fn command(words: &[&str]) -> Value {
    json!({"containers": [{"command": words}]})
}

pub async fn create(pods: &Api<Pod>, pod: &Pod) -> Pod {
    // The default service account is made by a controller, as upstream; until then pods are refused.
    eventually("the pod is accepted", || async {
        pods.create(&PostParams::default(), pod).await.map_err(|error| error.to_string())
    })
    .await
}

pub async fn phase(pods: &Api<Pod>, name: &str, wanted: &str) -> Pod {
    eventually(&format!("pod {name} is {wanted}"), || async {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        let status = pod.status.clone().unwrap_or_default();
        if status.phase.as_deref() == Some(wanted) { Ok(pod) } else { Err(format!("{status:?}")) }
    })
    .await
}

pub async fn ready(pods: &Api<Pod>, name: &str) -> Pod {
    eventually(&format!("pod {name} is ready"), || async {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        if is_ready(&pod) { Ok(pod) } else { Err(format!("{:?}", pod.status)) }
    })
    .await
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub async fn exec(pods: &Api<Pod>, name: &str, words: &[&str]) -> String {
    let mut attached = pods.exec(name, words.to_vec(), &AttachParams::default()).await.expect("exec starts");
    let mut out = String::new();
    attached.stdout().expect("stdout is attached").read_to_string(&mut out).await.expect("stdout is text");
    attached.join().await.expect("exec ends");
    out
}

#[test]
fn a_cluster_has_what_upstreams_has() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap();
        assert_eq!(nodes.items.len(), 1);
        for namespace in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            Api::<Namespace>::all(client.clone()).get(namespace).await.unwrap();
        }
        let service = Api::<Service>::default_namespaced(client.clone()).get("kubernetes").await.unwrap();
        assert_eq!(service.spec.unwrap().cluster_ip.as_deref(), Some("172.30.0.1"));
        for class in ["system-cluster-critical", "system-node-critical"] {
            Api::<PriorityClass>::all(client.clone()).get(class).await.unwrap();
        }
        let accounts = Api::<ServiceAccount>::default_namespaced(client.clone());
        eventually("the default service account exists", || async {
            accounts.get("default").await.map_err(|error| error.to_string())
        })
        .await;
        let roots = Api::<ConfigMap>::default_namespaced(client.clone());
        eventually("the root CA is published", || async {
            roots.get("kube-root-ca.crt").await.map_err(|error| error.to_string())
        })
        .await;
        let version = client.apiserver_version().await.unwrap();
        assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
    });
}

#[test]
fn a_pod_runs_logs_answers_and_goes() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let pods = Api::<Pod>::default_namespaced(cluster.client().await);
        create(&pods, &pod("hello", json!({}))).await;
        let running = phase(&pods, "hello", "Running").await;
        let status = running.status.unwrap();
        assert!(status.pod_ip.is_some_and(|ip| ip.starts_with("10.128.")), "a pod address");

        let mut follow = pods
            .log_stream("hello", &LogParams { follow: true, ..Default::default() })
            .await
            .unwrap()
            .lines_compat();
        let first = follow.next_line().await.unwrap();
        assert!(first.is_some(), "the server says that it listens");

        assert_eq!(exec(&pods, "hello", &["cat", "/etc/hostname"]).await.trim(), "hello");

        let mut forwarder = pods.portforward("hello", &[8080]).await.unwrap();
        let mut stream = forwarder.take_stream(8080).unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: hello\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = [0; 64];
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(stream);

        pods.delete("hello", &DeleteParams::default()).await.unwrap();
        eventually("the pod is gone", || async {
            match pods.get_opt("hello").await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    });
}

/// kube-rs hands out a futures reader; tests want lines.
trait LinesCompat {
    fn lines_compat(self) -> tokio::io::Lines<tokio::io::BufReader<tokio_util::compat::Compat<Self>>>
    where
        Self: Sized;
}

impl<R: futures::AsyncBufRead + Unpin> LinesCompat for R {
    fn lines_compat(self) -> tokio::io::Lines<tokio::io::BufReader<tokio_util::compat::Compat<Self>>> {
        use tokio_util::compat::FuturesAsyncReadCompatExt;
        tokio::io::BufReader::new(self.compat()).lines()
    }
}

#[test]
fn a_deployment_is_reached_by_its_services_name() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let web = deployment(&client, "web", 3).await;
        assert_eq!(web.status.unwrap().available_replicas, Some(3));
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .unwrap();
        Api::<Service>::default_namespaced(client.clone())
            .create(&PostParams::default(), &service)
            .await
            .unwrap();
        let slices = Api::<EndpointSlice>::default_namespaced(client.clone());
        eventually("the Service has endpoints", || async {
            let which = ListParams::default().labels("kubernetes.io/service-name=web");
            let slices = slices.list(&which).await.map_err(|error| error.to_string())?;
            let count: usize =
                slices.items.iter().map(|slice| slice.endpoints.iter().flatten().count()).sum();
            if count == 3 { Ok(()) } else { Err(format!("{count} endpoints")) }
        })
        .await;
        let words = ["demo", "http-get", "http://web.default.svc.cluster.local/"];
        create(&pods, &pod("caller", merge_with(command(&words), json!({"restartPolicy": "Never"})))).await;
        phase(&pods, "caller", "Succeeded").await;
        let answer = pods.logs("caller", &LogParams::default()).await.unwrap();
        assert!(answer.contains("web-"), "one of the Deployment's pods answered: {answer}");
    });
}

fn merge_with(mut one: Value, other: Value) -> Value {
    merge(&mut one, other);
    one
}

pub async fn deployment(client: &Client, name: &str, replicas: i32) -> Deployment {
    let deployments = Api::<Deployment>::default_namespaced(client.clone());
    let wanted: Deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE, "ports": [{"containerPort": 8080}],
                    "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}}],
            }},
        },
    }))
    .unwrap();
    deployments.create(&PostParams::default(), &wanted).await.unwrap();
    eventually(&format!("deployment {name} is available"), || async {
        let found = deployments.get(name).await.map_err(|error| error.to_string())?;
        let status = found.status.clone().unwrap_or_default();
        if status.available_replicas == Some(replicas) { Ok(found) } else { Err(format!("{status:?}")) }
    })
    .await
}

#[test]
fn what_fails_is_restarted_and_probes_have_their_effect() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let pods = Api::<Pod>::default_namespaced(cluster.client().await);
        let probe = |kind: &str, handler: Value| {
            let mut probe = json!({"periodSeconds": 1, "failureThreshold": 1});
            merge(&mut probe, handler);
            json!({"containers": [{(kind): probe}]})
        };
        let failing = [
            ("exits", command(&["demo", "fail", "3"])),
            ("http", probe("livenessProbe", json!({"httpGet": {"path": "/no-such-path", "port": 8080}}))),
            ("tcp", probe("livenessProbe", json!({"tcpSocket": {"port": 9}}))),
            ("exec", probe("livenessProbe", json!({"exec": {"command": ["demo", "fail", "1"]}}))),
        ];
        for (name, spec) in &failing {
            create(&pods, &pod(name, spec.clone())).await;
        }
        let unready = probe("readinessProbe", json!({"httpGet": {"path": "/no-such-path", "port": 8080}}));
        create(&pods, &pod("unready", unready)).await;
        for (name, _) in &failing {
            eventually(&format!("{name} is restarted"), || async {
                let pod = pods.get(name).await.map_err(|error| error.to_string())?;
                let status = pod.status.clone().unwrap_or_default();
                let restarts: i32 =
                    status.container_statuses.iter().flatten().map(|container| container.restart_count).sum();
                if restarts > 0 { Ok(()) } else { Err(format!("{status:?}")) }
            })
            .await;
        }
        let unready = phase(&pods, "unready", "Running").await;
        assert!(!is_ready(&unready));
        let exits = pods.get("exits").await.unwrap().status.unwrap().container_statuses.unwrap();
        let last = exits[0].last_state.as_ref().and_then(|state| state.terminated.as_ref()).unwrap();
        assert_eq!(last.exit_code, 3);
    });
}

#[test]
fn volumes_show_what_they_were_made_of() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let map: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "m"}, "data": {"k": "from-map"}})).unwrap();
        Api::<ConfigMap>::default_namespaced(client.clone())
            .create(&PostParams::default(), &map)
            .await
            .unwrap();
        let secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"k": "from-secret"}}))
                .unwrap();
        Api::<Secret>::default_namespaced(client.clone())
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
        let host = tempfile::tempdir().unwrap();
        std::fs::write(host.path().join("k"), "from-host").unwrap();
        let mounts: Vec<Value> = ["map", "secret", "empty", "host", "projected", "downward"]
            .iter()
            .map(|name| json!({"name": name, "mountPath": format!("/v/{name}")}))
            .collect();
        let fields = json!([{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]);
        let spec = json!({
            "containers": [{"volumeMounts": mounts}],
            "volumes": [
                {"name": "map", "configMap": {"name": "m"}},
                {"name": "secret", "secret": {"secretName": "s"}},
                {"name": "empty", "emptyDir": {}},
                {"name": "host", "hostPath": {"path": host.path()}},
                {"name": "projected", "projected": {"sources": [
                    {"configMap": {"name": "m", "items": [{"key": "k", "path": "deep/k"}]}},
                    {"serviceAccountToken": {"path": "token"}},
                ]}},
                {"name": "downward", "downwardAPI": {"items": fields}},
            ],
        });
        create(&pods, &pod("volumes", spec)).await;
        phase(&pods, "volumes", "Running").await;
        for (file, expected) in [
            ("map/k", "from-map"),
            ("secret/k", "from-secret"),
            ("host/k", "from-host"),
            ("projected/deep/k", "from-map"),
            ("projected/token", "ey"),
            ("downward/labels", "app=\"volumes\""),
        ] {
            let found = exec(&pods, "volumes", &["cat", &format!("/v/{file}")]).await;
            assert!(found.starts_with(expected), "{file}: {found}");
        }
        let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
        assert!(exec(&pods, "volumes", &["cat", token]).await.starts_with("ey"), "a projected token");
    });
}

#[test]
fn a_claim_without_a_class_gets_a_volume_where_its_pod_goes() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }))
        .unwrap();
        Api::<PersistentVolumeClaim>::default_namespaced(client)
            .create(&PostParams::default(), &claim)
            .await
            .unwrap();
        let spec = json!({
            "containers": [{"volumeMounts": [{"name": "d", "mountPath": "/data"}]}],
            "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}],
        });
        create(&pods, &pod("writer", spec)).await;
        phase(&pods, "writer", "Running").await;
        exec(&pods, "writer", &["write", "/data/x", "kept"]).await;
        assert_eq!(exec(&pods, "writer", &["cat", "/data/x"]).await.trim(), "kept");
    });
}
