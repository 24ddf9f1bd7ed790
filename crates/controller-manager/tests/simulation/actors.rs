//! The rest of the cluster: a scheduler that takes the first node that may be, and kubelets with moods of their own.
//!
//! They speak to the server without faults, but take their time: each step of a pod comes after a random while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{Client, DeleteOptions, Informer, ListOptions, Metadata, Patch, Projection, resources};
use lifecycle::Tasks;
use serde::Deserialize;
use serde_json::{Value, json};

use super::random::Random;

pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// In a pod's image: it fails the first time its index runs.
pub const FAILS_ONCE: &str = "fails-once";

/// A pod as the actors and the invariants see it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: Value,
    pub status: Value,
}

impl Projection for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Pod {
    pub fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or("Pending")
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.metadata.is_terminating()
    }

    pub fn is_ready(&self) -> bool {
        let conditions = self.status["conditions"].as_array();
        conditions.into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
    }

    pub fn image(&self) -> &str {
        self.spec["containers"][0]["image"].as_str().unwrap_or_default()
    }

    pub fn node(&self) -> &str {
        self.spec["nodeName"].as_str().unwrap_or_default()
    }

    /// The node that a daemon's pod is made for.
    pub fn pinned(&self) -> Option<&str> {
        let terms = self.spec.pointer(
            "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0",
        );
        terms?.as_str()
    }
}

pub struct Actors {
    client: Client,
    random: Random,
    /// Failures so far of each image that fails once.
    failed: Mutex<HashMap<String, u64>>,
    addresses: AtomicU64,
}

impl Actors {
    pub fn start(client: &Client, random: &Random, tasks: &Tasks) -> Informer<Pod> {
        let actors = Arc::new(Self {
            client: client.clone(),
            random: random.clone(),
            failed: Mutex::default(),
            addresses: AtomicU64::new(1),
        });
        let pods = Informer::<Pod>::start(client, &resources::PODS, "", ListOptions::default(), tasks);
        let group = tasks.clone();
        let beat = actors.clone();
        pods.on_change(move |change| {
            let Some(pod) = change.new.clone() else { return };
            let actors = actors.clone();
            group.spawn("actor", |stop| async move {
                stop.or(async {
                    tokio::time::sleep(actors.random.millis(1500)).await;
                    actors.act(&pod).await;
                })
                .await;
            });
        });
        tasks.spawn("leases", |stop| async move {
            stop.or(beat.renew_leases()).await;
        });
        pods
    }

    /// What comes next for a pod. A stale look does no harm: the server refuses, and a newer one follows.
    async fn act(&self, pod: &Pod) {
        let pods = self.client.api(&resources::PODS).within(&pod.metadata.namespace);
        let name = &*pod.metadata.name;
        if pod.metadata.is_terminating() {
            if !pod.metadata.finalizers.is_empty() && !pod.is_finished() && !pod.node().is_empty() {
                let _ = pods.patch_sub::<Value>(name, "status", Patch::Merge(&ended(pod, false))).await;
            }
            let options = DeleteOptions::of_uid(&*pod.metadata.uid).grace(0);
            let _ = pods.delete(name, &options).await;
        } else if pod.node().is_empty() {
            self.bind(pod).await;
        } else if pod.phase() == "Pending" {
            let number = self.addresses.fetch_add(1, Ordering::SeqCst);
            let ip = format!("10.1.{}.{}", number / 250 % 250, number % 250 + 1);
            let _ = pods.patch_sub::<Value>(name, "status", Patch::Merge(&running(pod, &ip))).await;
        } else if pod.phase() == "Running" {
            self.live(pod).await;
        }
    }

    async fn bind(&self, pod: &Pod) {
        if pod.spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
            return;
        }
        let mut node =
            pod.pinned().unwrap_or(NODES[self.random.below(NODES.len() as u64) as usize]).to_owned();
        let claims = self.client.api(&resources::PERSISTENT_VOLUME_CLAIMS).within(&pod.metadata.namespace);
        for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
            let Some(name) = volume["persistentVolumeClaim"]["claimName"].as_str() else { continue };
            // The binder takes its time; a pod waits for its claims as long as it takes.
            loop {
                let Ok(Some(claim)) = claims.find::<Value>(name).await else { return };
                let chosen = claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].as_str();
                match chosen {
                    Some(chosen) => node = chosen.to_owned(),
                    None => {
                        let choice = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
                        let _ = claims.patch::<Value>(name, Patch::Merge(&choice)).await;
                    }
                }
                if claim["status"]["phase"] == "Bound" {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        let pods = self.client.api(&resources::PODS).within(&pod.metadata.namespace);
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid},
            "target": {"kind": "Node", "name": node},
        });
        let _ = pods.create_sub::<Value>(&pod.metadata.name, "binding", &binding).await;
    }

    /// Pods that may end do so after a while.
    async fn live(&self, pod: &Pod) {
        if pod.spec["restartPolicy"] == "Always" {
            return;
        }
        tokio::time::sleep(self.random.millis(4000)).await;
        let index = pod.spec["hostname"].as_str().unwrap_or_default();
        let fails = pod.image() == FAILS_ONCE && {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let times = failed.entry(format!("{}/{index}", pod.metadata.namespace)).or_default();
            *times += 1;
            *times == 1
        };
        let pods = self.client.api(&resources::PODS).within(&pod.metadata.namespace);
        let _ =
            pods.patch_sub::<Value>(&pod.metadata.name, "status", Patch::Merge(&ended(pod, !fails))).await;
    }

    async fn renew_leases(&self) {
        let leases = self.client.api(&resources::LEASES).within("kube-node-lease");
        loop {
            let now = apiserver::clock::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            for node in NODES {
                let body = json!({"spec": {"renewTime": now}});
                if leases.patch::<Value>(node, Patch::Merge(&body)).await.is_err() {
                    let lease = json!({
                        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": node},
                        "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": now},
                    });
                    let _ = leases.create::<Value>(&lease).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    }
}

fn now() -> String {
    apiserver::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn running(pod: &Pod, ip: &str) -> Value {
    let truths = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now()}));
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now(), "conditions": truths,
        "containerStatuses": [{"name": "main", "image": pod.image(), "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": now()}}}],
    }})
}

fn ended(pod: &Pod, succeeded: bool) -> Value {
    let phase = if succeeded { "Succeeded" } else { "Failed" };
    json!({"metadata": {"uid": pod.metadata.uid}, "status": {
        "phase": phase, "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now()}],
        "containerStatuses": [{"name": "main", "image": pod.image(), "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": i32::from(!succeeded), "finishedAt": now()}}}],
    }})
}
