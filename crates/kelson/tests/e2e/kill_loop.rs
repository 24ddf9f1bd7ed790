//! The cluster's process killed again and again while pods come and go: it always starts again, and a purge leaves nothing.
//!
//! `KELSON_KILL_ROUNDS` says how many times; a few by default.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::first_light::IMAGE;
use crate::harness::{Cluster, eventually, in_own_network, leftovers};

fn rounds() -> u32 {
    std::env::var("KELSON_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

fn eight_pods(name: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": 8, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "main", "image": IMAGE}],
            }},
        },
    }))
    .unwrap()
}

/// Directories below the cgroup hierarchies that have one of these words in their names.
fn cgroups_of(words: &BTreeSet<String>) -> Vec<PathBuf> {
    fn walk(directory: &Path, words: &BTreeSet<String>, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            match words.iter().any(|word| name.contains(word)) {
                true => found.push(entry.path()),
                false => walk(&entry.path(), words, found),
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), words, &mut found);
    found
}

#[test]
fn a_cluster_that_is_killed_again_and_again_always_starts_and_leaves_nothing() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        let mut uids = BTreeSet::new();
        for round in 0..rounds() {
            cluster.up();
            let client = cluster.client().await;
            let deployments = Api::<Deployment>::default_namespaced(client.clone());
            let pods = Api::<Pod>::default_namespaced(client);
            let name = format!("round-{round}");
            deployments.create(&PostParams::default(), &eight_pods(&name)).await.unwrap();
            if round > 0 {
                let old = format!("round-{}", round - 1);
                deployments.delete(&old, &DeleteParams::background()).await.unwrap();
            }
            // Not a wait for something: the instant of death is what is tried out.
            tokio::time::sleep(Duration::from_millis(20 + 137 * u64::from(round) % 600)).await;
            let listed = pods.list(&ListParams::default()).await.unwrap();
            uids.extend(listed.items.into_iter().filter_map(|pod| pod.metadata.uid));
            kill_process(Pid::from_raw(cluster.pid()).unwrap(), Signal::KILL).unwrap();
            eventually("the process is gone", || async {
                if cluster.status()["running"] == false { Ok(()) } else { Err("still running".to_owned()) }
            })
            .await;
        }
        // What it finds works: the last deployment becomes whole.
        cluster.up();
        let pods = Api::<Pod>::default_namespaced(cluster.client().await);
        let last = format!("app=round-{}", rounds() - 1);
        eventually("eight pods run", || async {
            let listed =
                pods.list(&ListParams::default().labels(&last)).await.map_err(|error| error.to_string())?;
            let running = |pod: &&Pod| {
                pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
            };
            let count = listed.items.iter().filter(running).count();
            if count == 8 { Ok(()) } else { Err(format!("{count} run")) }
        })
        .await;
        kill_process(Pid::from_raw(cluster.pid()).unwrap(), Signal::KILL).unwrap();
        let listed = cluster.kelson("down", &["--purge"]);
        assert!(listed.status.success(), "{}", crate::harness::text(&listed));
        assert!(!cluster.data_dir().exists());
        assert_eq!(leftovers(&cluster.data_dir()), Vec::<String>::new());
        assert_eq!(cgroups_of(&uids), Vec::<PathBuf>::new());
        let routing = netlink::route::Routing::open().unwrap();
        let links: Vec<String> = routing.links().unwrap().into_iter().map(|link| link.name).collect();
        assert_eq!(links, ["lo"]);
        let nftables = netlink::nft::Nftables::open().unwrap();
        for family in [netlink::nft::Family::Ip, netlink::nft::Family::Ip6] {
            assert_eq!(nftables.tables(family).unwrap(), Vec::<String>::new(), "{family:?}");
        }
    });
}
