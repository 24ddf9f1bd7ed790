//! What a node does for pods that run on it, on real containers: resizing.

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::first_light::{create, exec, pod, ready};
use crate::harness::{Cluster, eventually, in_own_network};

/// The pod as JSON.
async fn object(pods: &Api<Pod>, name: &str) -> Value {
    serde_json::to_value(pods.get(name).await.expect("the pod is there")).expect("a pod is JSON")
}

/// A container's own limits as it reads them: quota and memory.
async fn sees(pods: &Api<Pod>, name: &str) -> (String, String) {
    let read = async |version_1: &str, version_2: &str| {
        let file = if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            version_2
        } else {
            version_1
        };
        let text = exec(pods, name, &["cat", &format!("/sys/fs/cgroup/{file}")]).await;
        text.split_whitespace().next().unwrap_or_default().to_owned()
    };
    (read("cpu/cpu.cfs_quota_us", "cpu.max").await, read("memory/memory.limit_in_bytes", "memory.max").await)
}

#[test]
fn a_running_container_is_resized_and_sees_it() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        let asks = |cpu: &str, memory: &str| {
            let both = json!({"cpu": cpu, "memory": memory});
            json!({"requests": both, "limits": both})
        };
        create(&pods, &pod("p", json!({"containers": [{"resources": asks("100m", "64Mi")}]}))).await;
        let name = ready(&pods, "p").await.spec.unwrap().containers[0].name.clone();
        assert_eq!(sees(&pods, "p").await, ("10000".into(), (64 << 20).to_string()));

        let resize = async |cpu: &str, memory: &str| {
            let patch = json!({"spec": {"containers": [{"name": name, "resources": asks(cpu, memory)}]}});
            pods.patch_subresource("resize", "p", &PatchParams::default(), &Patch::Strategic(patch)).await
        };
        let settled = async |cpu: &str, memory: &str| {
            eventually("the resize is made", || async {
                let pod = object(&pods, "p").await;
                let status = &pod["status"]["containerStatuses"][0];
                let resizing = pod["status"]["conditions"].as_array().is_some_and(|all| {
                    all.iter()
                        .any(|one| one["type"].as_str().is_some_and(|kind| kind.starts_with("PodResize")))
                });
                let wanted = asks(cpu, memory);
                if status["resources"] == wanted
                    && status["allocatedResources"] == wanted["requests"]
                    && status["restartCount"] == 0
                    && !resizing
                {
                    Ok(())
                } else {
                    Err(pod["status"].to_string())
                }
            })
            .await;
        };
        resize("200m", "128Mi").await.unwrap();
        settled("200m", "128Mi").await;
        assert_eq!(sees(&pods, "p").await, ("20000".into(), (128 << 20).to_string()));
        resize("50m", "32Mi").await.unwrap();
        settled("50m", "32Mi").await;
        assert_eq!(sees(&pods, "p").await, ("5000".into(), (32 << 20).to_string()));

        // Less than it uses is refused, and stays as it was.
        resize("50m", "64Ki").await.unwrap();
        let refused = eventually("the refusal", || async {
            let pod = object(&pods, "p").await;
            let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions
                .into_iter()
                .find(|one| one["type"] == "PodResizeInProgress" && one["reason"] == "Error");
            found.ok_or_else(|| pod["status"].to_string())
        })
        .await;
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains("memory limit (65536) below current usage"), "{message}");
        assert_eq!(sees(&pods, "p").await.1, (32 << 20).to_string());
        resize("50m", "32Mi").await.unwrap();
        settled("50m", "32Mi").await;

        let events = Api::<Event>::default_namespaced(client);
        let reasons: Vec<String> = events
            .list(&ListParams::default().fields("involvedObject.name=p"))
            .await
            .unwrap()
            .items
            .into_iter()
            .filter_map(|event| event.reason)
            .collect();
        for reason in ["ResizeStarted", "ResizeCompleted", "ResizeError"] {
            assert!(reasons.iter().any(|known| known == reason), "{reason} in {reasons:?}");
        }
    });
}
