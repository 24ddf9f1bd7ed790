//! Events about pods and the node, in upstream's words.

use client::Key;
use controller_runtime::{Event, Recorder, Reference};

use crate::pod::{Container, Pod, Role};

/// Records what happens to pods.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder }
    }

    pub fn pod(&self, pod: &Pod, warning: bool, reason: &str, message: impl Into<String>) {
        self.about(pod, String::new(), warning, reason, message.into());
    }

    pub fn container(
        &self,
        pod: &Pod,
        role: Role,
        container: &Container,
        warning: bool,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.about(pod, container.field_path(role), warning, reason, message.into());
    }

    fn about(&self, pod: &Pod, field_path: String, warning: bool, reason: &str, message: String) {
        let about = Reference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            key: Key::new(&pod.metadata.namespace, &pod.metadata.name),
            uid: pod.metadata.uid.as_str().into(),
            revision: pod.metadata.resource_version.as_str().into(),
        };
        self.recorder.record_part(Event { about, warning, reason: reason.into(), message }, field_path);
    }

    pub fn node(&self, name: &str, warning: bool, reason: &str, message: impl Into<String>) {
        let about = Reference {
            api_version: "v1".into(),
            kind: "Node".into(),
            key: Key::cluster(name),
            // As upstream: events about nodes carry the name in place of the uid.
            uid: name.into(),
            revision: "".into(),
        };
        self.recorder.record(Event { about, warning, reason: reason.into(), message: message.into() });
    }
}
