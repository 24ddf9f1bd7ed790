//! The Node object: made once, its status kept true, its lease kept fresh.
//!
//! The status is computed every ten seconds (`nodeStatusUpdateFrequency`) and written only when it changed, or every five minutes; what tells the
//! cluster that the node lives is the lease, renewed every ten seconds.

mod lease;
mod object;

use std::time::Duration;

use client::{Patch, resources};
use cri::ImageFilter;
use jiff::Timestamp;
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::admission::NodeView;
use crate::eviction::Pressure;
use crate::host::SharedHost;
use object::Observed;

pub use lease::renew;

const REGISTER_RETRY: Duration = Duration::from_millis(200);
const REGISTER_RETRY_LONGEST: Duration = Duration::from_secs(7);
/// A node that was never ready is looked at this often for so long, as upstream does: pods wait for it.
const FIRST_READY_LOOK: Duration = Duration::from_millis(100);
const FIRST_READY_LOOKS: u32 = 1200;

/// What events call the beginning and the end of each pressure.
const PRESSURE_EVENTS: [(&str, &str, &str); 3] = [
    ("MemoryPressure", "NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
    ("DiskPressure", "NodeHasDiskPressure", "NodeHasNoDiskPressure"),
    ("PIDPressure", "NodeHasInsufficientPID", "NodeHasSufficientPID"),
];

/// What is known of the Node object.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub uid: Option<String>,
    pub ready: bool,
}

/// Registers the node and keeps its status.
pub struct NodeStatus {
    host: SharedHost,
    view: watch::Sender<NodeView>,
    known: watch::Sender<Known>,
    written: Option<Value>,
    written_at: Option<Timestamp>,
    conditions: Vec<Value>,
    pod_cidr: Option<String>,
    pressures: watch::Receiver<Vec<Pressure>>,
    /// Name and version of the runtime, as `nodeInfo` shows it.
    runtime_version: String,
}

impl NodeStatus {
    pub fn new(
        host: SharedHost,
        version: &cri::VersionInfo,
        pressures: watch::Receiver<Vec<Pressure>>,
    ) -> (Self, watch::Receiver<NodeView>, watch::Receiver<Known>) {
        let view = NodeView {
            name: host.config.node_name.clone(),
            labels: object::labels(&host.config, &host.machine),
            allocatable: object::allocatable_numbers(&host.config, &host.machine),
            allowed_unsafe_sysctls: host.config.allowed_unsafe_sysctls.clone(),
            ..NodeView::default()
        };
        let (view, views) = watch::channel(view);
        let (known, knowns) = watch::channel(Known::default());
        let status = Self {
            host,
            view,
            known,
            written: None,
            written_at: None,
            conditions: Vec::new(),
            pod_cidr: None,
            pressures,
            runtime_version: format!("{}://{}", version.runtime_name, version.runtime_version),
        };
        (status, views, knowns)
    }

    pub async fn run(mut self, stop: Stop) {
        let mut pause = REGISTER_RETRY;
        while let Err(error) = self.register().await {
            warn!(error = %telemetry::chain(&error), "cannot register the node yet");
            if stop.or(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            pause = (pause * 2).min(REGISTER_RETRY_LONGEST);
        }
        let mut ticks = tokio::time::interval(self.host.config.node_status_update_frequency);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = FIRST_READY_LOOKS;
        loop {
            // A shortage is told at once; a sender that is gone has nothing more to tell.
            tokio::select! {
                () = stop.requested() => return,
                Ok(()) = self.pressures.changed() => {}
                () = becomes_ready(&self.host, &self.known, &mut looks) => {}
                _ = ticks.tick() => {}
            }
            match self.update().await {
                Ok(()) => {}
                Err(error) if error.is_not_found() => {
                    // Someone deleted the node; it is still here.
                    if let Err(error) = self.register().await {
                        warn!(error = %telemetry::chain(&error), "cannot register the node again");
                    }
                }
                Err(error) => warn!(error = %telemetry::chain(&error), "cannot write the node's status"),
            }
        }
    }

    /// Events for what changed of the node's pressures.
    fn tell_pressures(&self, conditions: &[Value]) {
        for (kind, begins, ends) in PRESSURE_EVENTS {
            let status = |list: &[Value]| {
                list.iter()
                    .find(|one| one["type"] == kind)
                    .and_then(|one| one["status"].as_str().map(str::to_owned))
            };
            let (old, new) = (status(&self.conditions), status(conditions));
            if old == new || old.is_none() && new.as_deref() == Some("False") {
                continue;
            }
            let reason = if new.as_deref() == Some("True") { begins } else { ends };
            let name = &self.host.config.node_name;
            self.host.events.node(name, false, reason, format!("Node {name} status is now: {reason}"));
        }
    }

    async fn register(&mut self) -> Result<(), client::Error> {
        let host = self.host.clone();
        let api = host.config.client.api(&resources::NODES);
        let name = &host.config.node_name;
        let wanted = object::node(&host.config, &host.machine);
        let created: Result<Value, client::Error> =
            if host.config.register_node { api.create(&wanted).await } else { api.get(name).await };
        let node = match created {
            Ok(node) => {
                info!(node = name, "node registered");
                host.events.node(name, false, "Starting", "Starting kubelet.");
                node
            }
            Err(error) if error.is_already_exists() => {
                // As upstream: what was given to register with is the cluster's to change since then.
                let own = object::own_labels(&host.config, &host.machine);
                let patch = json!({"metadata": {
                    "labels": own, "annotations": wanted["metadata"]["annotations"],
                }});
                api.patch(name, Patch::Strategic(&patch)).await?
            }
            Err(error) => return Err(error),
        };
        self.written = None;
        self.learn(&node);
        self.conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        self.update().await
    }

    /// Takes what others write to the Node object: labels, uid, address range.
    fn learn(&mut self, node: &Value) {
        let labels = node["metadata"]["labels"].as_object();
        let labels = labels
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let labels = labels.collect();
        self.view.send_if_modified(|view| {
            let changed = view.labels != labels;
            view.labels = labels;
            changed
        });
        let uid = node["metadata"]["uid"].as_str().map(str::to_owned);
        self.known.send_if_modified(|known| {
            let changed = known.uid != uid;
            known.uid = uid;
            changed
        });
        if let Some(cidr) = node["spec"]["podCIDR"].as_str().filter(|cidr| !cidr.is_empty()) {
            self.pod_cidr = Some(cidr.to_owned());
        }
    }

    /// Computes the status and writes it if there is a reason to.
    async fn update(&mut self) -> Result<(), client::Error> {
        let now = Timestamp::now();
        let host = self.host.clone();
        let config = &host.config;
        if self.pod_cidr.is_none() {
            // The range is given by a controller some time after the node appears.
            let api = config.client.api(&resources::NODES);
            let node: Value = api.get(&config.node_name).await?;
            self.learn(&node);
            let cidr = self.pod_cidr.clone().or_else(|| config.pod_cidr.clone());
            if let Some(cidr) = cidr {
                match config.runtime.update_pod_cidr(&cidr).await {
                    Ok(()) => self.pod_cidr = Some(cidr),
                    Err(error) => {
                        warn!(error = %telemetry::chain(&error), "the runtime does not take the pod address range")
                    }
                }
            }
        }
        let runtime = config.runtime.status().await;
        let images = config.images.list_images(&ImageFilter::default()).await.unwrap_or_default();
        let pressures = self.pressures.borrow_and_update().clone();
        let disk = rustix::fs::statvfs(&config.root_dir).ok();
        let observed = Observed {
            runtime: runtime.map_err(|error| telemetry::chain(&error).to_string()),
            pressures: &pressures,
            disk: disk.map_or(0, |disk| disk.f_blocks * disk.f_frsize),
            images: &images,
            runtime_version: &self.runtime_version,
            conditions: &self.conditions,
            now,
        };
        let (status, conditions) = object::status(config, &host.machine, &observed);
        let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        let stale = self
            .written_at
            .is_none_or(|at| now.duration_since(at).unsigned_abs() >= config.node_status_report_frequency);
        if self.written.as_ref() != Some(&object::without_heartbeats(&status)) || stale {
            let patch = json!({ "status": status });
            let api = config.client.api(&resources::NODES);
            let node: Value = api.patch_sub(&config.node_name, "status", Patch::Strategic(&patch)).await?;
            self.learn(&node);
            self.written = Some(object::without_heartbeats(&status));
            self.written_at = Some(now);
            if ready && !self.known.borrow().ready {
                host.events.node(
                    &config.node_name,
                    false,
                    "NodeReady",
                    format!("Node {} status is now: NodeReady", config.node_name),
                );
            }
        }
        self.tell_pressures(&conditions);
        self.conditions = conditions;
        self.known.send_if_modified(|known| std::mem::replace(&mut known.ready, ready) != ready);
        Ok(())
    }
}

/// Ends when the runtime can take pods for the first time; for ever pending once that was so, or was waited for too long.
async fn becomes_ready(host: &SharedHost, known: &watch::Sender<Known>, looks: &mut u32) {
    while *looks > 0 {
        if known.borrow().ready {
            *looks = 0;
            break;
        }
        *looks -= 1;
        tokio::time::sleep(FIRST_READY_LOOK).await;
        let status = host.config.runtime.status().await;
        if status.is_ok_and(|status| status.conditions.iter().all(|condition| condition.status)) {
            return;
        }
    }
    std::future::pending().await
}

/// Shared by whoever asks for the node's identity.
pub async fn uid_of(mut known: watch::Receiver<Known>) -> Option<String> {
    let found = known.wait_for(|known| known.uid.is_some()).await.ok()?;
    found.uid.clone()
}
