//! Tells users what happens to their pods: events and the `PodScheduled` condition.

use client::{Metadata, Patch, resources};
use controller_runtime::{Event, Reference, time};
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing::warn;

use super::Scheduler;
use crate::queue::Profile;
use crate::types::Pod;

/// Events hold no more than this; conditions hold all.
const LONGEST_NOTE: usize = 1024;

impl Scheduler {
    pub(super) fn record(
        &self,
        profile: Profile,
        pod: &Metadata,
        warning: bool,
        reason: &str,
        mut message: String,
    ) {
        let about = Reference {
            api_version: resources::PODS.api_version(),
            kind: resources::PODS.kind.to_string(),
            key: pod.key(),
            uid: pod.uid.clone(),
            revision: pod.resource_version.clone(),
        };
        if message.len() > LONGEST_NOTE {
            let mut end = LONGEST_NOTE - 4;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
            message.push_str(" ...");
        }
        self.profiles[profile].events.record(Event { about, warning, reason: reason.to_owned(), message });
    }

    /// Tells why the pod waits, once per reason, and which node is kept for it (an empty name: none any more).
    pub(super) async fn report(
        &self,
        profile: Profile,
        pod: &Pod,
        reason: &str,
        message: &str,
        nominated: Option<&str>,
    ) {
        let meta = &pod.metadata;
        self.record(profile, meta, true, "FailedScheduling", message.to_owned());
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
