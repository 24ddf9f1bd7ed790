//! `kelson analyze`: what went wrong first, from a bundle or from the directory itself. Pure: files in, findings out.
//!
//! The order is that of an installation, so the first finding is the one that the others may follow from.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::bootstrap::cause;
use crate::complaint;

/// Files of a bundle by their paths in it.
pub type Files = BTreeMap<String, Vec<u8>>;

/// What is wrong, the first thing first.
pub fn findings(files: &Files) -> Vec<String> {
    let mut out = Vec::new();
    machines(files, &mut out);
    services(files, &mut out);
    static_pods(files, &mut out);
    nodes(files, &mut out);
    operators(files, &mut out);
    out
}

fn json(files: &Files, path: &str) -> Option<Value> {
    serde_json::from_slice(files.get(path)?).ok()
}

fn items(files: &Files, name: &str) -> Option<Vec<Value>> {
    json(files, &format!("resources/{name}.json"))?["items"].as_array().cloned()
}

fn text(files: &Files, path: &str) -> String {
    files.get(path).map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
}

/// Directories of machines: `bootstrap`, `control-plane/NAME`.
fn machine_paths(files: &Files) -> Vec<String> {
    let mut out: Vec<String> =
        files.keys().filter_map(|path| path.strip_suffix("/state.json")).map(str::to_owned).collect();
    // The bootstrap machine sorts first, which is also the order of causes.
    out.sort();
    out
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Machines that do not run, or that hang before their units start.
fn machines(files: &Files, out: &mut Vec<String>) {
    for path in machine_paths(files) {
        let name = name_of(&path);
        let state = json(files, &format!("{path}/state.json")).unwrap_or_default();
        if state["phase"] == "crashed" {
            let reason = state["reason"].as_str().unwrap_or_default();
            out.push(format!("{name}: the machine crashed: {reason}"));
            continue;
        }
        let status = json(files, &format!("{path}/status.json")).unwrap_or_default();
        let (phase, detail) = (status["phase"].as_str().unwrap_or_default(), status["detail"].as_str());
        let runs = state["phase"] == "running";
        match (phase, detail.unwrap_or_default()) {
            ("ignition", detail) if runs => {
                out.push(format!("{name}: it does not get past its ignition file: {detail}"));
            }
            ("emergency" | "degraded", detail) if runs => out.push(format!("{name}: {phase}: {detail}")),
            _ => {}
        }
    }
}

/// Services of the bootstrap machine, by their records.
fn services(files: &Files, out: &mut Vec<String>) {
    let prefix = "bootstrap/services/";
    for (path, content) in files.range(prefix.to_owned()..).take_while(|(path, _)| path.starts_with(prefix)) {
        let service = path.trim_start_matches(prefix).trim_end_matches(".json");
        let Ok(entries) = serde_json::from_slice::<Vec<Value>>(content) else { continue };
        let journal = text(files, &format!("bootstrap/journals/{service}.service.log"));
        // The last word on each stage counts: one that failed and then went well is no fault.
        let mut stages: Vec<(&str, &Value)> = Vec::new();
        for entry in entries.iter().filter(|entry| entry["stage"].is_string()) {
            let stage = entry["stage"].as_str().unwrap_or_default();
            stages.retain(|(name, _)| *name != stage);
            stages.push((stage, entry));
        }
        for (stage, entry) in stages {
            match (entry["phase"].as_str(), entry["result"].as_str()) {
                (Some("stage end"), Some("failure")) => {
                    let message = entry["errorMessage"].as_str().unwrap_or_default();
                    out.push(format!("bootstrap: {service} failed at {stage}: {message}"));
                }
                (Some("stage start"), _) => {
                    let last =
                        journal.lines().last().and_then(|line| line.split_once(' ')).map(|(_, text)| text);
                    let since = entry["timestamp"].as_str().unwrap_or_default();
                    out.push(format!(
                        "bootstrap: {service} is at {stage} since {since}: {}",
                        last.unwrap_or("its journal says nothing")
                    ));
                }
                _ => {}
            }
        }
    }
}

/// Pods of the bootstrap machine that complained, while nobody answered for the API.
fn static_pods(files: &Files, out: &mut Vec<String>) {
    if files.keys().any(|path| path.starts_with("resources/")) {
        return;
    }
    for container in ["etcd", "kube-apiserver"] {
        let mut logs = files.iter().filter(|(path, _)| {
            path.starts_with("bootstrap/pods/") && path.split('/').nth(3) == Some(container)
        });
        // The last attempt has the highest number.
        if let Some((path, content)) = logs.next_back()
            && let Some(said) = complaint::of_container(&String::from_utf8_lossy(content))
        {
            out.push(format!("bootstrap: {container} says: {said} ({path})"));
        }
    }
}

/// Machines that have not joined, or that are not ready.
fn nodes(files: &Files, out: &mut Vec<String>) {
    let (Some(requests), Some(nodes)) = (items(files, "csr"), items(files, "nodes")) else { return };
    out.extend(cause::of_machines(&[], &requests, &nodes));
    for path in machine_paths(files).iter().filter(|path| *path != "bootstrap") {
        let name = name_of(path);
        let is_node = |node: &&Value| {
            let node = node["metadata"]["name"].as_str().unwrap_or_default();
            node.split('.').next() == Some(name)
        };
        if nodes.iter().any(|node| is_node(&node)) {
            continue;
        }
        let journal = text(files, &format!("{path}/journals/kubelet.service.log"));
        let said = journal.lines().rev().find_map(|line| complaint::of_line(line.split_once(' ')?.1));
        out.push(format!(
            "{name}: its node has not registered: {}",
            said.unwrap_or("its kubelet does not say why")
        ));
    }
    out.extend(nodes.iter().filter_map(cause::not_ready));
}

/// Operators that are not as they should be.
fn operators(files: &Files, out: &mut Vec<String>) {
    for version in items(files, "clusterversions").unwrap_or_default() {
        let conditions = version["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let failing = conditions.iter().find(|one| one["type"] == "Failing" && one["status"] == "True");
        out.extend(failing.map(|one| {
            format!("ClusterVersion is failing: {}", one["message"].as_str().unwrap_or_default())
        }));
    }
    for operator in items(files, "clusteroperators").unwrap_or_default() {
        let (state, why) = cause::of_operator(&operator);
        if state != cause::SETTLED {
            let name = operator["metadata"]["name"].as_str().unwrap_or_default();
            out.push(format!("operator {name} is {state}: {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn files(list: &[(&str, Value)]) -> Files {
        list.iter()
            .map(|(path, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                ((*path).to_owned(), text.into_bytes())
            })
            .collect()
    }

    #[test]
    fn a_machine_that_cannot_fetch_its_file_comes_before_all_else() {
        let found = findings(&files(&[
            ("bootstrap/state.json", json!({"phase": "running"})),
            ("control-plane/master-0/state.json", json!({"phase": "running"})),
            ("control-plane/master-0/status.json", json!({"phase": "ignition", "detail": "cannot fetch x"})),
            ("resources/csr.json", json!({"items": []})),
            ("resources/nodes.json", json!({"items": []})),
        ]));
        assert_eq!(found[0], "master-0: it does not get past its ignition file: cannot fetch x");
        assert_eq!(found[1], "master-0: its node has not registered: its kubelet does not say why");
    }

    #[test]
    fn the_stage_that_failed_or_hangs_is_named_with_its_cause() {
        let record = json!([
            {"phase": "stage start", "stage": "resolve-api-url"},
            {"phase": "stage end", "stage": "resolve-api-url", "result": "failure", "errorMessage": "no such name"},
            {"phase": "stage start", "stage": "wait-for-etcd"},
            {"phase": "stage end", "stage": "wait-for-etcd", "result": "failure", "errorMessage": "late"},
            {"phase": "stage start", "stage": "wait-for-etcd"},
            {"phase": "stage end", "stage": "wait-for-etcd", "result": "success"},
            {"phase": "stage start", "stage": "cb-bootstrap", "timestamp": "T"},
        ]);
        let found = findings(&files(&[
            ("bootstrap/services/bootkube.json", record),
            (
                "bootstrap/journals/bootkube.service.log",
                json!("T bootkube: cb-bootstrap\nT waiting for the API server: refused\n"),
            ),
            (
                "bootstrap/pods/kube-system_kube-apiserver_1/kube-apiserver/0.log",
                json!("T stderr F error: no such file ca.crt\n"),
            ),
        ]));
        assert_eq!(
            found,
            [
                "bootstrap: bootkube failed at resolve-api-url: no such name",
                "bootstrap: bootkube is at cb-bootstrap since T: waiting for the API server: refused",
                "bootstrap: kube-apiserver says: no such file ca.crt (bootstrap/pods/kube-system_kube-apiserver_1/kube-apiserver/0.log)",
            ]
        );
    }

    #[test]
    fn requests_that_nobody_approved_and_operators_that_fail_are_named() {
        let csr = json!({"metadata": {"name": "csr-x"}, "spec": {"signerName": "kubernetes.io/kubelet-serving", "username": "system:node:m-0"}});
        let operator = json!({"metadata": {"name": "dns"}, "status": {"conditions": [{"type": "Degraded", "status": "True", "message": "no"}]}});
        let found = findings(&files(&[
            ("resources/csr.json", json!({"items": [csr]})),
            ("resources/nodes.json", json!({"items": []})),
            ("resources/clusteroperators.json", json!({"items": [operator]})),
        ]));
        assert_eq!(
            found,
            [
                "m-0: kubelet waits for its serving certificate: CSR csr-x is pending approval",
                "operator dns is Degraded=True: no"
            ]
        );
        assert!(findings(&Files::new()).is_empty());
    }
}
