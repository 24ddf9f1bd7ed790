//! Tells users what happens to their pods: events and the `PodScheduled` condition.

use client::{Patch, resources};
use controller_runtime::time;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::warn;

use super::Scheduler;
use crate::handle::News;
use crate::types::Pod;

impl Scheduler {
    /// Tells why the pod waits, once per reason, and which node is kept for it (an empty name: none any more).
    pub(super) async fn report(&self, pod: &Pod, reason: &str, message: &str, nominated: Option<&str>) {
        let meta = &pod.metadata;
        let news = News {
            warning: true,
            reason: "FailedScheduling",
            action: "Scheduling",
            message: message.to_owned(),
            related: None,
        };
        self.handle.record(pod, &pod.spec.scheduler_name, news);
        let known = pod.condition("PodScheduled").is_some_and(|condition| {
            &*condition.status == "False" && *condition.reason == *reason && *condition.message == *message
        });
        let nominated = nominated.filter(|node| **node != *pod.status.nominated_node_name);
        if known && nominated.is_none() {
            return;
        }
        let mut status = json!({});
        if !known {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
                "observedGeneration": meta.generation,
                "lastProbeTime": null, "lastTransitionTime": time(Timestamp::now()),
            }]);
        }
        match nominated {
            Some("") => status["nominatedNodeName"] = json!(null),
            Some(node) => status["nominatedNodeName"] = json!(node),
            None => {}
        }
        let patch = json!({"status": status});
        let api = self.handle.client.api(&resources::PODS).within(&meta.namespace);
        match api.patch_sub::<IgnoredAny>(&meta.name, "status", Patch::Strategic(&patch)).await {
            Err(error) if !error.is_not_found() => {
                warn!(pod = %meta.key(), error = %telemetry::chain(&error), "cannot report why the pod waits");
            }
            _ => {}
        }
    }
}
