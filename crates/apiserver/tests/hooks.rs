//! What webhooks and aggregated servers are asked, and when.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::{Server, config_map, pod};
use crate::hook::{self, Hook};

const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

async fn ask_about(server: &Server, hook: &Hook, operation: &str, resources: &[&str]) {
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "hook"}, "webhooks": [{
            "name": "hook.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": format!("https://127.0.0.1:{}/", hook.port), "caBundle": hook.ca},
            "rules": [{"operations": [operation], "apiGroups": [""], "apiVersions": ["v1"], "resources": resources}],
        }],
    });
    server.post(HOOKS, &configuration).await.expect(201);
}

/// A hook that refuses everything and remembers what it was shown.
fn refusing(server: &Server) -> (Hook, Arc<Mutex<Vec<Value>>>) {
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let own = seen.clone();
    let hook = hook::serve(&server.pki, move |_, review| {
        own.lock().unwrap().push(review["request"].clone());
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
            "uid": review["request"]["uid"], "allowed": false, "status": {"message": "not here"}}})
    });
    (hook, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_shown_with_what_is_wished_of_it() {
    let server = Server::start().await;
    server.post("/api/v1/namespaces/default/pods", &pod("a")).await.expect(201);
    let (hook, seen) = refusing(&server);
    ask_about(&server, &hook, "CONNECT", &["pods/*", "services/proxy"]).await;
    let start = "/api/v1/namespaces/default";
    for path in [
        "pods/a/attach?stdin=true&container=c",
        "pods/a/exec?command=sh&command=-c&stdout=1",
        "pods/a/portforward?ports=80",
        "pods/http:a:80/proxy/x/y",
        "services/a/proxy/",
    ] {
        server.until(&format!("{start}/{path}"), |answer| answer.code == 403 || answer.code == 400).await;
        let refused = server.get(&format!("{start}/{path}")).await;
        let said = refused.body["message"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains("denied the request: not here"), "{path}: {said}");
    }
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let shown =
        |kind: &str| seen.iter().find(|one| one["kind"]["kind"] == kind).unwrap_or_else(|| panic!("{kind}"));
    let attach = shown("PodAttachOptions");
    assert_eq!(
        attach["object"],
        json!({"apiVersion": "v1", "kind": "PodAttachOptions", "stdin": true, "container": "c"})
    );
    assert_eq!((&attach["name"], &attach["subResource"]), (&json!("a"), &json!("attach")));
    assert_eq!(shown("PodExecOptions")["object"]["command"], json!(["sh", "-c"]));
    assert_eq!(shown("PodPortForwardOptions")["object"]["ports"], json!([80]));
    assert_eq!(shown("PodProxyOptions")["object"]["path"], "/x/y");
    assert!(shown("ServiceProxyOptions")["object"]["path"].is_null());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_changes_nothing_is_judged() {
    let server = Server::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let made = server.post(maps, &config_map("a")).await.expect(201);
    let (hook, _) = refusing(&server);
    ask_about(&server, &hook, "UPDATE", &["configmaps"]).await;
    let mut other = made.clone();
    other["data"]["x"] = json!("y");
    while server.put(&format!("{maps}/a"), &other).await.code == 200 {
        other["data"]["x"] = json!(format!("{}y", other["data"]["x"]));
        other["metadata"].as_object_mut().unwrap().shift_remove("resourceVersion");
    }
    let now = server.get(&format!("{maps}/a")).await.expect(200);
    let refused = server.put(&format!("{maps}/a"), &now).await.expect(400);
    assert!(refused["message"].as_str().unwrap().contains("not here"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_sent_to_a_server_that_was_not_found_available() {
    let server = Server::start().await;
    let hook = hook::serve(
        &server.pki,
        |_, _| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "far.example.com/v1", "resources": []}),
    );
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
        "spec": {"type": "ExternalName", "externalName": "localhost"}});
    server.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let registrations = "/apis/apiregistration.k8s.io/v1/apiservices";
    let registration = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.far.example.com"},
        "spec": {"group": "far.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "insecureSkipTLSVerify": true, "service": {"name": "far", "namespace": "default", "port": hook.port}},
    });
    server.post(registrations, &registration).await.expect(201);
    server.until("/apis/far.example.com/v1", |answer| answer.code == 200).await;
    let found = server.get(&format!("{registrations}/v1.far.example.com")).await.expect(200);
    let condition = &found["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"], &condition["reason"], &condition["message"]),
        (&json!("Available"), &json!("True"), &json!("Passed"), &json!("all checks passed"))
    );
    server.delete("/api/v1/namespaces/default/services/far").await.expect(200);
    server.until("/apis/far.example.com/v1", |answer| answer.code == 503).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_systems_namespaces_come_back() {
    let server = Server::start_with(|config| {
        config.settings.system_namespaces = std::time::Duration::from_millis(50);
    })
    .await;
    let path = "/api/v1/namespaces/kube-node-lease";
    let first = server.get(path).await.expect(200);
    let mut going = server.delete(path).await.expect(200);
    going["spec"]["finalizers"] = json!([]);
    server.put(&format!("{path}/finalize"), &going).await;
    server
        .until(path, |answer| {
            answer.code == 200 && answer.body["metadata"]["uid"] != first["metadata"]["uid"]
        })
        .await;
    server.stop().await;
}
