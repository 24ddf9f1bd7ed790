//! What a pod sees of its kubelet.

use std::sync::Arc;
use std::time::Duration;

use kubelet::Config;
use lifecycle::Tasks;
use serde_json::{Value, json};

use crate::api::FakeApi;
use crate::runtime::FakeRuntime;

const POD: &str = "/api/v1/namespaces/n/pods/p";

struct Node {
    api: Arc<FakeApi>,
    runtime: Arc<FakeRuntime>,
    dir: Arc<tempfile::TempDir>,
    tasks: Tasks,
}

impl Node {
    async fn start() -> Self {
        Self::on(FakeApi::new(), FakeRuntime::new(), Arc::new(tempfile::tempdir().unwrap())).await
    }

    async fn on(api: Arc<FakeApi>, runtime: Arc<FakeRuntime>, dir: Arc<tempfile::TempDir>) -> Self {
        Self::with(api, runtime, dir, |_| {}).await
    }

    async fn with(
        api: Arc<FakeApi>,
        runtime: Arc<FakeRuntime>,
        dir: Arc<tempfile::TempDir>,
        set: impl FnOnce(&mut Config),
    ) -> Self {
        let tasks = Tasks::new();
        let address = "192.0.2.1".parse().unwrap();
        let mut config =
            Config::new("node", address, api.client(), runtime.clone(), runtime.clone(), dir.path());
        config.static_pod_path = Some(dir.path().join("manifests"));
        std::fs::create_dir_all(dir.path().join("manifests")).unwrap();
        // How full this machine's disk is, is none of the tests' business.
        config.eviction.thresholds.clear();
        set(&mut config);
        kubelet::start(config, &tasks).await.unwrap();
        Self { api, runtime, dir, tasks }
    }

    /// The kubelet dies and comes back; everything else stays.
    async fn restart(self) -> Self {
        assert!(self.tasks.drain(Duration::from_secs(5)).await.is_empty());
        Self::on(self.api, self.runtime, self.dir).await
    }

    fn create(&self, spec: Value) {
        let mut spec = spec;
        spec["nodeName"] = json!("node");
        self.api.put(POD, json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec, "status": {"phase": "Pending"}}));
    }

    fn status(&self) -> Value {
        self.api.get(POD).map(|pod| pod["status"].clone()).unwrap_or_default()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "never: {what}\nstatus: {:#}\ncalls: {:?}",
                self.status(),
                self.runtime.calls()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn events(&self) -> Vec<String> {
        let events = self.api.below("/api/v1/namespaces/n/events/");
        events.iter().map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

fn ready(node: &Node) -> bool {
    let status = node.status();
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

#[tokio::test]
async fn the_node_registers_and_renews_its_lease() {
    let node = Node::start().await;
    node.until("a Ready node", |node| {
        let status = node.api.get("/api/v1/nodes/node").unwrap_or_default();
        status["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    })
    .await;
    let object = node.api.get("/api/v1/nodes/node").unwrap();
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/hostname"], "node");
    assert_eq!(object["status"]["addresses"][0], json!({"type": "InternalIP", "address": "192.0.2.1"}));
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node";
    node.until("a lease", |node| node.api.get(lease).is_some()).await;
}

#[tokio::test]
async fn a_pod_runs_and_is_deleted_with_grace() {
    let node = Node::start().await;
    node.create(json!({
        "terminationGracePeriodSeconds": 7,
        "containers": [{"name": "a", "image": "x:1", "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}],
    }));
    node.until("Ready", ready).await;
    let status = node.status();
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], "127.0.0.1");
    let env = node.runtime.config_of("a").unwrap().log_path;
    assert!(env.to_string_lossy().contains("IP=127.0.0.1"), "{env:?}");
    node.api.delete_gracefully(POD, 7);
    node.until("the object is deleted", |node| node.api.get(POD).is_none()).await;
    node.until("the sandbox is removed", |node| node.runtime.sandbox_count() == 0).await;
    let calls = node.runtime.calls();
    let order: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(order, ["run p", "create a 0", "exec true", "stop a 7s", "stop sandbox", "remove sandbox"]);
    for reason in ["Pulled", "Created", "Started", "Killing"] {
        assert!(node.events().iter().any(|known| known == reason), "{reason} in {:?}", node.events());
    }
}

#[tokio::test]
async fn a_node_that_runs_short_ends_pods_and_takes_no_more() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let node = Node::with(FakeApi::new(), FakeRuntime::new(), dir, |config| {
        // More than any machine has: always crossed, but only after a while.
        let soft = [("memory.available".to_owned(), "1Pi".to_owned())].into();
        let grace = [("memory.available".to_owned(), "3s".to_owned())].into();
        let none = Default::default();
        config.eviction.thresholds = kubelet::eviction::parse(&none, &soft, &grace, &none).unwrap();
        config.eviction.max_pod_grace = Duration::from_secs(4);
    })
    .await;
    let requests = json!({"requests": {"memory": "1Mi"}});
    node.create(json!({"terminationGracePeriodSeconds": 30,
                       "containers": [{"name": "a", "image": "x:1", "resources": requests}]}));
    node.until("Ready", ready).await;
    node.until("evicted", |node| node.status()["phase"] == "Failed").await;
    let status = node.status();
    assert_eq!(status["reason"], "Evicted");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with("The node was low on resource: memory. Threshold quantity: 1Pi, available: ")
    );
    let target =
        status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "DisruptionTarget");
    assert_eq!(target.unwrap()["reason"], "TerminationByKubelet");
    assert!(node.runtime.calls().contains(&"stop a 4s".to_owned()), "{:?}", node.runtime.calls());
    node.until("MemoryPressure", |node| {
        let object = node.api.get("/api/v1/nodes/node").unwrap_or_default();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|one| one["type"] == "MemoryPressure" && one["status"] == "True")
    })
    .await;
    assert!(node.events().contains(&"Evicted".to_owned()));

    // Whoever asks for nothing is turned away.
    node.api.remove(POD);
    node.until("gone", |node| node.runtime.sandbox_count() == 0).await;
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    node.until("refused", |node| node.status()["phase"] == "Failed").await;
    assert_eq!(node.status()["message"], "The node had condition: [MemoryPressure]. ");
    assert_eq!(node.runtime.sandbox_count(), 0);
}

#[tokio::test]
async fn a_pod_that_outgrows_its_volume_is_ended() {
    let node = Node::start().await;
    node.create(json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "64Ki"}}],
        "containers": [{"name": "a", "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]}));
    node.until("Ready", ready).await;
    let uid = node.api.get(POD).unwrap()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    let volume = node.dir.path().join(format!("pods/{uid}/volumes/kubernetes.io~empty-dir/v"));
    std::fs::write(volume.join("file"), vec![1; 128 << 10]).unwrap();
    node.until("evicted", |node| node.status()["reason"] == "Evicted").await;
    let message = "Usage of EmptyDir volume \"v\" exceeds the limit \"64Ki\". ";
    assert_eq!(node.status()["message"], message);
}

fn resize_conditions(node: &Node) -> Vec<String> {
    let conditions = node.status()["conditions"].as_array().cloned().unwrap_or_default();
    let word = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    conditions
        .iter()
        .filter(|one| word(one, "type").starts_with("PodResize"))
        .map(|one| format!("{} {}", word(one, "type"), word(one, "reason")))
        .collect()
}

#[tokio::test]
async fn a_pod_is_resized_where_it_runs() {
    let node = Node::start().await;
    let asks = |cpu: &str, memory: &str| {
        let both = json!({"cpu": cpu, "memory": memory});
        json!({"nodeName": "node", "containers": [{"name": "a", "image": "x:1",
               "resources": {"requests": both, "limits": both}}]})
    };
    node.create(asks("100m", "10Mi"));
    node.until("Ready", ready).await;
    let edit = |node: &Node, spec: Value, generation: i64| {
        let mut pod = node.api.get(POD).unwrap();
        pod["spec"] = spec;
        pod["metadata"]["generation"] = json!(generation);
        node.api.put(POD, pod);
    };
    let shown = |node: &Node| node.status()["containerStatuses"][0].clone();

    edit(&node, asks("200m", "20Mi"), 2);
    node.until("resized", |node| {
        shown(node)["resources"]["limits"] == json!({"cpu": "200m", "memory": "20Mi"})
            && node.status()["observedGeneration"] == 2
            && resize_conditions(node).is_empty()
    })
    .await;
    assert_eq!(shown(&node)["allocatedResources"], json!({"cpu": "200m", "memory": "20Mi"}));
    assert_eq!(shown(&node)["restartCount"], 0);
    let calls = node.runtime.calls();
    let updates: Vec<&str> =
        calls.iter().filter(|call| call.starts_with("update")).map(String::as_str).collect();
    let wanted = [
        "update pod memory=20971520",
        "update a memory=20971520",
        "update pod quota=20000",
        "update a quota=20000",
        "update pod shares=204",
        "update a shares=204",
    ];
    assert_eq!(updates, wanted);
    for reason in ["ResizeStarted", "ResizeCompleted"] {
        node.until(reason, |node| node.events().iter().any(|known| known == reason)).await;
    }

    // More than the node has is never made, and is taken back by asking for less.
    edit(&node, asks("200", "20Mi"), 3);
    node.until("infeasible", |node| resize_conditions(node) == ["PodResizePending Infeasible"]).await;
    assert_eq!(shown(&node)["allocatedResources"]["cpu"], "200m");
    // The next kubelet knows what the pod was given.
    let node = node.restart().await;
    node.until("Ready again", |node| {
        ready(node) && resize_conditions(node) == ["PodResizePending Infeasible"]
    })
    .await;
    assert_eq!(shown(&node)["allocatedResources"]["cpu"], "200m");
    edit(&node, asks("150m", "20Mi"), 4);
    node.until("resized again", |node| {
        shown(node)["resources"]["requests"]["cpu"] == "150m" && resize_conditions(node).is_empty()
    })
    .await;
    assert_eq!(shown(&node)["restartCount"], 0);
}

#[tokio::test]
async fn a_crashed_container_is_restarted_and_then_backs_off() {
    let node = Node::start().await;
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Ready", ready).await;
    node.runtime.exit("a", 3);
    node.until("one restart", |node| node.status()["containerStatuses"][0]["restartCount"] == 1).await;
    node.until("Ready again", ready).await;
    node.runtime.exit("a", 3);
    node.until("back-off", |node| {
        node.status()["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })
    .await;
    assert_eq!(node.status()["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 3);
    assert_eq!(node.status()["phase"], "Running");
}

#[tokio::test]
async fn a_job_like_pod_succeeds_and_its_sandbox_stops() {
    let node = Node::start().await;
    node.create(json!({"restartPolicy": "Never", "initContainers": [{"name": "i", "image": "x:1"}],
                       "containers": [{"name": "a", "image": "x:1"}]}));
    node.until("init runs", |node| node.runtime.running("i").is_some()).await;
    assert!(node.runtime.config_of("a").is_none());
    node.runtime.exit("i", 0);
    node.until("app runs", |node| node.runtime.running("a").is_some()).await;
    node.runtime.exit("a", 0);
    node.until("Succeeded", |node| node.status()["phase"] == "Succeeded").await;
    assert_eq!(node.status()["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    node.until("sandbox stopped", |node| node.runtime.calls().contains(&"stop sandbox".to_owned())).await;
    node.api.delete_gracefully(POD, 0);
    node.until("the object is deleted", |node| node.api.get(POD).is_none()).await;
}

#[tokio::test]
async fn a_missing_image_is_told_and_tried_again() {
    let node = Node::start().await;
    node.runtime.forget_image("x:1");
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    let reason = |node: &Node| node.status()["containerStatuses"][0]["state"]["waiting"]["reason"].clone();
    node.until("ErrImagePull", |node| reason(node) == "ErrImagePull").await;
    node.until("ImagePullBackOff", |node| reason(node) == "ImagePullBackOff").await;
    assert_eq!(node.status()["phase"], "Pending");
    node.runtime.provide_image("x:1");
    let deadline = tokio::time::timeout(Duration::from_secs(20), async {
        while !ready(&node) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    deadline.await.expect("pulled at the next try");
}

#[tokio::test]
async fn a_restarted_kubelet_adopts_what_runs() {
    let node = Node::start().await;
    node.create(json!({"containers": [{"name": "a", "image": "x:1", "readinessProbe": {"exec": {"command": ["true"]}}}]}));
    node.until("Ready", ready).await;
    let before = node.status();
    let calls = node.runtime.calls().iter().filter(|call| !call.starts_with("exec")).count();
    let node = node.restart().await;
    node.until("the pod is known again", |node| {
        let exec = node.runtime.calls().iter().filter(|call| call.starts_with("exec")).count();
        exec >= 2
    })
    .await;
    let after = node.status();
    assert_eq!(after["containerStatuses"], before["containerStatuses"]);
    assert_eq!(after["startTime"], before["startTime"]);
    assert_eq!(node.runtime.calls().iter().filter(|call| !call.starts_with("exec")).count(), calls);
}

#[tokio::test]
async fn a_pod_deleted_while_the_kubelet_was_away_is_ended() {
    let node = Node::start().await;
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Ready", ready).await;
    assert!(node.tasks.drain(Duration::from_secs(5)).await.is_empty());
    node.api.remove(POD);
    let node = Node::on(node.api, node.runtime, node.dir).await;
    node.until("nothing is left", |node| node.runtime.sandbox_count() == 0).await;
}

#[tokio::test]
async fn a_server_that_is_away_ends_nothing_and_static_pods_start() {
    let node = Node::start().await;
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Ready", ready).await;
    node.api.set_down(true);
    let node = node.restart().await;
    let manifest =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: s, image: 'x:1'}]}";
    std::fs::write(node.dir.path().join("manifests/web.yaml"), manifest).unwrap();
    node.until("the static pod runs", |node| node.runtime.running("s").is_some()).await;
    assert!(node.runtime.running("a").is_some());
    node.api.set_down(false);
    let mirror = "/api/v1/namespaces/default/pods/web-node";
    node.until("a mirror with a status", |node| {
        node.api.get(mirror).is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
    std::fs::remove_file(node.dir.path().join("manifests/web.yaml")).unwrap();
    node.until("the mirror is gone", |node| node.api.get(mirror).is_none()).await;
    node.until("the static pod is gone", |node| node.runtime.running("s").is_none()).await;
}

#[tokio::test]
async fn probes_restart_and_withhold() {
    let node = Node::start().await;
    node.create(json!({"terminationGracePeriodSeconds": 2, "containers": [
        {"name": "a", "image": "x:1",
         "livenessProbe": {"exec": {"command": ["false"]}, "failureThreshold": 1, "periodSeconds": 1}},
        {"name": "b", "image": "x:1", "readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 1}},
    ]}));
    node.until("a was restarted", |node| {
        node.status()["containerStatuses"][0]["restartCount"].as_u64().is_some_and(|count| count >= 1)
    })
    .await;
    assert!(!ready(&node));
    assert!(node.runtime.running("b").is_some());
    assert!(node.events().iter().any(|reason| reason == "Unhealthy"));
}

#[tokio::test]
async fn volumes_follow_their_objects() {
    if !testing::root() {
        return;
    }
    let node = Node::start().await;
    node.create(json!({
        "containers": [{"name": "a", "image": "x:1", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "projected": {"sources": [
            {"configMap": {"name": "m"}}, {"serviceAccountToken": {"path": "token"}},
            {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}],
    }));
    node.until("the missing map is told", |node| node.events().iter().any(|reason| reason == "FailedMount"))
        .await;
    let map = "/api/v1/namespaces/n/configmaps/m";
    node.api.put(map, json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"k": "one"}}));
    node.until("Ready", ready).await;
    let mounts = node.runtime.config_of("a").unwrap().mounts;
    let path = mounts.iter().find(|mount| mount.container_path.ends_with("v")).unwrap().host_path.clone();
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    assert_eq!((read("k"), read("token"), read("name")), ("one".into(), "secret".into(), "p".into()));
    node.api.put(map, json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"k": "two"}}));
    node.until("the file changed", |_| read("k") == "two").await;
    let mount = mounts.iter().find(|mount| mount.container_path.ends_with("v")).unwrap();
    assert!(mount.readonly, "what the kubelet writes is not the pod's to change");
    let is_mounted =
        || std::fs::read_to_string("/proc/self/mounts").unwrap().contains(path.to_str().unwrap());
    assert!(is_mounted(), "tokens are kept in memory");
    node.api.delete_gracefully(POD, 0);
    node.until("the volume is gone", |_| !is_mounted() && !path.exists()).await;
}

#[tokio::test]
async fn a_pod_that_does_not_fit_fails_with_the_reason() {
    let node = Node::start().await;
    node.create(json!({"nodeSelector": {"no": "where"}, "containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Failed", |node| node.status()["phase"] == "Failed").await;
    assert_eq!(node.status()["reason"], "NodeAffinity");
    assert!(node.runtime.calls().is_empty());
}

#[tokio::test]
async fn a_label_of_the_node_counts_from_when_it_is_set() {
    let node = Node::start().await;
    let path = "/api/v1/nodes/node";
    node.until("registered", |node| node.api.get(path).is_some()).await;
    let mut object = node.api.get(path).unwrap();
    object["metadata"]["labels"]["new"] = json!("label");
    object["spec"] = json!({"taints": [{"key": "t", "effect": "NoExecute"}]});
    node.api.put(path, object);
    let spec = json!({"nodeSelector": {"new": "label"}, "containers": [{"name": "a", "image": "x:1"}]});
    let mut tolerant = spec.clone();
    tolerant["tolerations"] = json!([{"operator": "Exists"}]);
    node.create(tolerant);
    node.until("Ready", ready).await;
    let other = "/api/v1/namespaces/n/pods/q";
    let mut spec = spec;
    spec["nodeName"] = json!("node");
    let object =
        json!({"metadata": {"name": "q", "namespace": "n"}, "spec": spec, "status": {"phase": "Pending"}});
    node.api.put(other, object);
    node.until("the intolerant one is refused", |node| {
        node.api.get(other).is_some_and(|pod| pod["status"]["reason"] == "TaintToleration")
    })
    .await;
}

/// A pod that asks for users of its own is run with them, or not at all.
#[tokio::test]
async fn a_pod_with_users_of_its_own_gets_ids_of_the_host() {
    let node = Node::start().await;
    node.create(json!({"hostUsers": false, "containers": [{"name": "a", "image": "x:1"}]}));
    node.until("runs", |node| node.runtime.running("a").is_some()).await;
    let files = std::fs::read_dir(node.dir.path().join("pods")).into_iter().flatten().flatten();
    let kept: Vec<String> =
        files.filter_map(|pod| std::fs::read_to_string(pod.path().join("userns")).ok()).collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].contains("\"hostId\":65536") && kept[0].contains("\"length\":65536"), "{kept:?}");
}

#[tokio::test]
async fn a_deadline_ends_the_pod() {
    let node = Node::start().await;
    node.create(json!({"activeDeadlineSeconds": 1, "containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Failed", |node| node.status()["phase"] == "Failed").await;
    assert_eq!(node.status()["reason"], "DeadlineExceeded");
    node.until("stopped", |node| node.runtime.running("a").is_none()).await;
}

/// The new version of a static pod wants the port that the old one still has.
#[tokio::test]
async fn an_edited_static_pod_follows_its_old_version() {
    let node = Node::start().await;
    let write = |image: &str| {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: s, image: '{image}', \
             ports: [{{containerPort: 80, hostPort: 80}}]}}]}}"
        );
        let file = node.dir.path().join("manifests/web.yaml");
        let fresh = node.dir.path().join("web.new");
        std::fs::write(&fresh, manifest).unwrap();
        std::fs::rename(fresh, file).unwrap();
    };
    let runs = |image: &'static str| {
        move |node: &Node| {
            node.runtime.running("s").is_some_and(|one| one.image.user_specified_image == image)
        }
    };
    write("x:1");
    node.until("the first version runs", runs("x:1")).await;
    write("x:2");
    node.until("the second version runs", runs("x:2")).await;
    let mirror = "/api/v1/namespaces/default/pods/web-node";
    node.until("its mirror says so", |node| {
        node.api.get(mirror).is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
}

#[tokio::test]
async fn a_restart_leaves_static_pods_alone() {
    let node = Node::start().await;
    let manifest =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: s, image: 'x:1'}]}";
    std::fs::write(node.dir.path().join("manifests/web.yaml"), manifest).unwrap();
    node.until("the static pod runs", |node| node.runtime.running("s").is_some()).await;
    let mirror = "/api/v1/namespaces/default/pods/web-node";
    node.until("a mirror", |node| {
        node.api.get(mirror).is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
    let (id, calls) = (node.runtime.running("s").unwrap().id, node.runtime.calls());
    let node = node.restart().await;
    // A new pod that runs proves that the sources were read and orphans looked for.
    node.create(json!({"containers": [{"name": "a", "image": "x:1"}]}));
    node.until("Ready", ready).await;
    assert_eq!(node.runtime.running("s").map(|one| one.id), Some(id));
    assert_eq!(node.runtime.calls()[..calls.len()], calls);
    assert!(!node.runtime.calls().iter().any(|call| call.starts_with("stop")));
    // A mirror that someone deleted comes back and is told everything again.
    node.api.remove(mirror);
    node.until("a new mirror", |node| {
        node.api.get(mirror).is_some_and(|pod| pod["status"]["phase"] == "Running")
    })
    .await;
}
