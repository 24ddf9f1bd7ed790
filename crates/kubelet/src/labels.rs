//! The labels and annotations under which sandboxes and containers are found again after a restart. The names are
//! upstream's, so that tools that read them (crictl, cAdvisor) work.

use std::collections::BTreeMap;

use crate::pod::{Container, Pod};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
/// Asked for by whoever attaches to a container of a runtime behind a socket.
pub const TTY: &str = "io.kubernetes.container.tty";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";

pub fn of_pod(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone();
    labels.insert(POD_NAME.into(), pod.metadata.name.clone());
    labels.insert(POD_NAMESPACE.into(), pod.metadata.namespace.clone());
    labels.insert(POD_UID.into(), pod.metadata.uid.clone());
    labels
}

pub fn of_container(pod: &Pod, container: &Container) -> BTreeMap<String, String> {
    [
        (POD_NAME, pod.metadata.name.as_str()),
        (POD_NAMESPACE, &pod.metadata.namespace),
        (POD_UID, &pod.metadata.uid),
        (CONTAINER_NAME, &container.name),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

pub fn annotations(pod: &Pod, container: &Container, attempt: u32) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = [
        (HASH, container.hash()),
        (RESTART_COUNT, attempt.to_string()),
        (MESSAGE_PATH, container.termination_message_path.clone()),
        (MESSAGE_POLICY, container.termination_message_policy.clone()),
        (GRACE, pod.spec.termination_grace_period_seconds.unwrap_or(30).to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    if container.tty {
        all.insert(TTY.into(), "true".into());
    }
    if !container.ports.is_empty()
        && let Ok(ports) = serde_json::to_string(&container.ports)
    {
        all.insert(PORTS.into(), ports);
    }
    all
}

/// Selects everything of one pod.
pub fn selector(uid: &str) -> BTreeMap<String, String> {
    [(POD_UID.to_owned(), uid.to_owned())].into()
}
