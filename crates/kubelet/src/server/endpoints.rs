//! The small endpoints: the pods, the configuration, a command without streams.

use std::time::Duration;

use cri::ContainerState;
use http::StatusCode;
use serde_json::{Value, json};

use super::query::Query;
use super::{Answer, json as answer_json, text};
use crate::config::Config;
use crate::host::SharedHost;
use crate::pod_worker::Report;
use crate::pods::Pods;

/// `/pods`: every pod of the node with its present status.
pub fn pods(pods: &Pods) -> Answer {
    let items: Vec<Value> = pods.reports().iter().filter_map(whole_pod).collect();
    answer_json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn whole_pod(report: &Report) -> Option<Value> {
    let raw = report.pod.as_ref()?.raw.as_ref()?;
    let mut object: Value = serde_json::from_str(raw.get()).ok()?;
    if let Some(status) = &report.status {
        object["status"] = status.status.clone();
    }
    Some(object)
}

/// `/runningpods/`: what the runtime runs, whoever asked for it.
pub fn running_pods(pods: &Pods) -> Answer {
    let items: Vec<Value> = pods
        .reports()
        .iter()
        .filter(|report| report.containers.iter().any(|(_, _, state)| *state == ContainerState::Running))
        .filter_map(|report| {
            let metadata = &report.pod.as_ref()?.metadata;
            let containers: Vec<Value> = report
                .containers
                .iter()
                .filter(|(_, _, state)| *state == ContainerState::Running)
                .map(|(name, ..)| json!({"name": name, "image": "", "resources": {}}))
                .collect();
            Some(json!({
                "metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid},
                "spec": {"containers": containers}, "status": {},
            }))
        })
        .collect();
    answer_json(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

/// `/configz`: the configuration in upstream's form.
pub fn configz(config: &Config) -> Answer {
    answer_json(&json!({"kubeletconfig": {
        "staticPodPath": config.static_pod_path.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
        "address": config.listen.map(|listen| listen.ip().to_string()).unwrap_or_default(),
        "port": config.listen.map_or(0, |listen| listen.port()),
        "authentication": {"anonymous": {"enabled": config.anonymous_auth}, "webhook": {"enabled": true}, "x509": {}},
        "authorization": {"mode": "Webhook"},
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns,
        "nodeStatusReportFrequency": format!("{}s", config.node_status_report_frequency.as_secs()),
        "nodeLeaseDurationSeconds": config.node_lease_duration.as_secs(),
        "maxPods": config.max_pods,
        "podPidsLimit": config.pod_pids_limit,
        "resolvConf": config.resolv_conf.display().to_string(),
        "cgroupDriver": "cgroupfs",
        "podLogsDir": config.pod_logs_dir.display().to_string(),
        "registerNode": config.register_node,
    }}))
}

/// `/run`: a command, its output as the answer.
pub async fn run(
    host: &SharedHost,
    pods: &Pods,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Answer {
    let Some(report) = pods.find(namespace, pod, None) else {
        return text(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let Some(id) = running(&report.borrow(), container) else {
        return text(StatusCode::NOT_FOUND, format!("container not found ({container:?})"));
    };
    let command: Vec<String> = query.get("cmd").unwrap_or_default().split(' ').map(str::to_owned).collect();
    match host.config.runtime.exec_sync(&id, &command, Duration::ZERO).await {
        Ok(output) => {
            let mut body = output.stdout.to_vec();
            body.extend_from_slice(&output.stderr);
            let code = if output.exit_code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            text(code, body)
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, telemetry::chain(&error).to_string()),
    }
}

/// The id of a running container of this name.
pub fn running(report: &Report, name: &str) -> Option<String> {
    let newest = report.containers.iter().find(|(known, ..)| known == name)?;
    (newest.2 == ContainerState::Running).then(|| newest.1.clone())
}
