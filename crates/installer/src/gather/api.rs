//! What the API tells of an installation, as far as it answers: kinds that explain one, and no Secrets.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::{Entry, without_keys};
use crate::bootstrap::{connect, error_text};

/// What is asked for, and what its file is called. Secrets, and whatever may hold one, are not here.
const RESOURCES: &[(&str, &str)] = &[
    ("/version", "version"),
    ("/api/v1/nodes", "nodes"),
    ("/apis/certificates.k8s.io/v1/certificatesigningrequests", "csr"),
    ("/apis/config.openshift.io/v1/clusterversions", "clusterversions"),
    ("/apis/config.openshift.io/v1/clusteroperators", "clusteroperators"),
    ("/apis/config.openshift.io/v1/infrastructures", "infrastructures"),
    ("/apis/config.openshift.io/v1/networks", "networks"),
    ("/apis/config.openshift.io/v1/featuregates", "featuregates"),
    ("/apis/operator.openshift.io/v1/etcds", "etcds"),
    ("/apis/operator.openshift.io/v1/kubeapiservers", "kubeapiservers"),
    ("/api/v1/namespaces", "namespaces"),
    ("/api/v1/pods", "pods"),
    ("/api/v1/events", "events"),
    ("/api/v1/services", "services"),
    ("/apis/discovery.k8s.io/v1/endpointslices", "endpointslices"),
    ("/apis/apps/v1/deployments", "deployments"),
    ("/apis/apps/v1/daemonsets", "daemonsets"),
    ("/apis/coordination.k8s.io/v1/leases", "leases"),
    ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "customresourcedefinitions"),
];

/// A whole dump takes no longer, whatever hangs.
const LIMIT: Duration = Duration::from_secs(30);
/// An API that is not there is noticed.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answers, and why there are no more.
pub(super) async fn entries(dir: &Path) -> (Vec<Entry>, Option<String>) {
    let path = dir.join("auth/kubeconfig");
    if !path.exists() {
        return (Vec::new(), Some("there is no auth/kubeconfig".to_owned()));
    }
    let client = match connect(&path, "kelson-gather") {
        Ok(client) => client,
        Err(error) => return (Vec::new(), Some(error_text(&error))),
    };
    let mut out = Vec::new();
    let all = async {
        for (index, (path, name)) in RESOURCES.iter().enumerate() {
            let asked = client.get_path::<Value>(path);
            // The first question tells whether anybody is there; a list may take longer.
            let limit = if index == 0 { PATIENCE } else { LIMIT };
            match tokio::time::timeout(limit, asked).await {
                Ok(Ok(answer)) => {
                    let text = serde_json::to_vec_pretty(&bare(answer)).unwrap_or_default();
                    out.push(Entry { path: format!("resources/{name}.json"), content: without_keys(&text) });
                }
                // Kinds that are not there yet are no fault.
                Ok(Err(error)) if error.is_not_found() => {}
                Ok(Err(error)) => return Some(format!("{path}: {}", error_text(&error))),
                Err(_) => return Some(format!("{path}: no answer within {} s", limit.as_secs())),
            }
        }
        None
    };
    let problem = tokio::time::timeout(LIMIT, all).await;
    let problem = problem.unwrap_or_else(|_| Some(format!("not all within {} s", LIMIT.as_secs())));
    (out, problem)
}

/// Without what only machines read: who changed which field, and values of environment variables.
fn bare(mut answer: Value) -> Value {
    for item in answer["items"].as_array_mut().into_iter().flatten() {
        if let Some(metadata) = item["metadata"].as_object_mut() {
            metadata.shift_remove("managedFields");
            // A copy of the object as someone applied it.
            if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.shift_remove("kubectl.kubernetes.io/last-applied-configuration");
            }
        }
        hide_environment(item);
    }
    answer
}

fn hide_environment(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map.iter_mut() {
                match (key.as_str(), &mut *inner) {
                    ("env", Value::Array(list)) => {
                        for variable in list.iter_mut().filter(|one| one.get("value").is_some()) {
                            variable["value"] = Value::String("(left out)".to_owned());
                        }
                    }
                    _ => hide_environment(inner),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(hide_environment),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_secret_is_asked_for_and_none_stays_in_what_is() {
        assert!(RESOURCES.iter().all(|(path, _)| !path.contains("secret") && !path.contains("token")));
        let pod = json!({"items": [{
            "metadata": {"managedFields": [1], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x", "a": "b"}},
            "spec": {"containers": [{"env": [{"name": "PASSWORD", "value": "hunter2"}, {"name": "REF", "valueFrom": {}}]}]},
        }]});
        let text = bare(pod).to_string();
        assert!(
            !text.contains("hunter2") && !text.contains("managedFields") && !text.contains("last-applied"),
            "{text}"
        );
        assert!(text.contains("PASSWORD") && text.contains("\"a\":\"b\""), "{text}");
    }
}
