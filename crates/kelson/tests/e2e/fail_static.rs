//! Killing the cluster's process disturbs nothing that runs, and loses nothing that was acknowledged.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::first_light::{create, deployment, exec, pod, ready};
use crate::harness::{Cluster, eventually, in_own_network};

/// What must be the same before and after: container ids, addresses, restarts.
fn identity(pod: &Pod) -> (String, Option<String>, Vec<(String, i32)>) {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let containers = containers
        .into_iter()
        .map(|container| (container.container_id.unwrap_or_default(), container.restart_count))
        .collect();
    (pod.name_any(), status.pod_ip, containers)
}

#[test]
fn a_killed_cluster_leaves_its_containers_and_the_next_adopts_them() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        create(&pods, &pod("survivor", json!({}))).await;
        ready(&pods, "survivor").await;
        deployment(&client, "web", 2).await;
        let before: Vec<_> =
            pods.list(&ListParams::default()).await.unwrap().items.iter().map(identity).collect();
        // The container writes down that it is the same process all the time.
        let start = exec(&pods, "survivor", &["cat", "/proc/1/stat"]).await;
        let start = start.split(' ').nth(21).unwrap().to_owned();

        let maps = Api::<ConfigMap>::default_namespaced(client.clone());
        for number in 0..50 {
            let map: ConfigMap =
                serde_json::from_value(json!({"metadata": {"name": format!("acknowledged-{number}")}}))
                    .unwrap();
            maps.create(&PostParams::default(), &map).await.unwrap();
        }
        let pid = cluster.pid();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        eventually("the process is gone", || async {
            if cluster.status()["running"] == false { Ok(()) } else { Err("still running".to_owned()) }
        })
        .await;

        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        ready(&pods, "survivor").await;
        let after: Vec<_> =
            pods.list(&ListParams::default()).await.unwrap().items.iter().map(identity).collect();
        assert_eq!(before, after);
        let same = exec(&pods, "survivor", &["cat", "/proc/1/stat"]).await;
        assert_eq!(same.split(' ').nth(21).unwrap(), start, "the same process");
        let maps = Api::<ConfigMap>::default_namespaced(client.clone());
        for number in 0..50 {
            maps.get(&format!("acknowledged-{number}")).await.unwrap();
        }
    });
}
