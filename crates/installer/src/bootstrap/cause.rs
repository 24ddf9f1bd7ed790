//! What a cluster that comes up is waiting for, named from what can be seen of it. Pure.

use serde_json::Value;

use super::approve;

/// Why a node is not ready; nothing if it is.
pub fn not_ready(node: &Value) -> Option<String> {
    let name = node["metadata"]["name"].as_str().unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    match conditions.iter().find(|condition| condition["type"] == "Ready") {
        Some(ready) if ready["status"] == "True" => None,
        Some(ready) => {
            Some(format!("{name} is not ready: {}", ready["message"].as_str().unwrap_or_default()))
        }
        None => Some(format!("{name} has not said how it is")),
    }
}

/// What [`of_operator`] says of an operator that waits for nothing.
pub const SETTLED: &str = "Available=True";

/// The worst condition of an operator, and its cause.
pub fn of_operator(operator: &Value) -> (String, String) {
    let conditions = operator["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |kind: &str, status: &str| {
        conditions.iter().find(|one| one["type"] == kind && one["status"] == status)
    };
    let bad = [("Degraded", "True"), ("Available", "False"), ("Progressing", "True")];
    for (kind, status) in bad {
        if let Some(condition) = find(kind, status) {
            let message = condition["message"].as_str().unwrap_or_default();
            return (format!("{kind}={status}"), message.to_owned());
        }
    }
    match find("Available", "True") {
        Some(_) => (SETTLED.to_owned(), String::new()),
        None => ("unknown".to_owned(), "it has not said how it is".to_owned()),
    }
}

/// The machine that a request is of: its node's name. A machine's first request comes from the identity that all share, so
/// the name is the one that it asks for.
fn machine_of(request: &Value) -> Option<String> {
    use base64::Engine as _;
    let by = request["spec"]["username"].as_str()?.strip_prefix("system:node:").map(str::to_owned);
    by.or_else(|| {
        let text = request["spec"]["request"].as_str()?;
        let text = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        let wanted = pki::Csr::from_pem(&text).ok()?.subject;
        wanted.common_name.strip_prefix("system:node:").map(str::to_owned)
    })
}

/// What machines wait for, as far as requests and nodes tell: `expected` are the names that nodes will have.
pub fn of_machines(expected: &[String], requests: &[Value], nodes: &[Value]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let pending: Vec<&Value> = requests.iter().filter(|request| approve::is_wanted(request)).collect();
    for request in &pending {
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        let who = machine_of(request).unwrap_or_else(|| "a machine".to_owned());
        let kind = if request["spec"]["signerName"] == "kubernetes.io/kubelet-serving" {
            "serving"
        } else {
            "client"
        };
        out.push(format!("{who}: kubelet waits for its {kind} certificate: CSR {name} is pending approval"));
    }
    for name in expected {
        match nodes.iter().find(|node| node["metadata"]["name"].as_str() == Some(name)) {
            Some(node) => out.extend(not_ready(node)),
            None if pending.is_empty() => out.push(format!("{name} has not registered")),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_wait_has_its_cause() {
        let expected = ["m-0".to_owned(), "m-1".to_owned()];
        let csr = json!({"metadata": {"name": "csr-x"}, "spec": {"signerName": "kubernetes.io/kubelet-serving", "username": "system:node:m-0"}});
        let node = json!({"metadata": {"name": "m-0"}, "status": {"conditions": [{"type": "Ready", "status": "False", "message": "no network"}]}});
        assert_eq!(
            of_machines(&expected, &[csr], std::slice::from_ref(&node)),
            [
                "m-0: kubelet waits for its serving certificate: CSR csr-x is pending approval",
                "m-0 is not ready: no network"
            ]
        );
        assert_eq!(of_machines(&expected, &[], &[node])[1], "m-1 has not registered");
        let ready = json!({"metadata": {"name": "m-0"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        assert!(of_machines(&expected[..1], &[], &[ready]).is_empty());
    }
}
