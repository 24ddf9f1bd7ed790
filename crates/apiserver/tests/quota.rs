//! Quota and the other rules of admission.

use serde_json::json;

use crate::harness::{Server, config_map, pod};

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creates_never_pass_a_quota() {
    let server = Server::start().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "5"}}});
    server.post(quotas, &quota).await.expect(201);
    // The controller's part: say what counts and what is used.
    let status = json!({"status": {"hard": {"configmaps": "5"}, "used": {"configmaps": "0"}}});
    server.patch(&format!("{quotas}/q/status"), "merge", &status).await.expect(200);
    server.get(quotas).await.expect(200);
    let creates = (0..40).map(|index| {
        let server = &server;
        async move {
            server.post("/api/v1/namespaces/default/configmaps", &config_map(&format!("c{index}"))).await
        }
    });
    let answers = futures::future::join_all(creates).await;
    assert_eq!(answers.iter().filter(|answer| answer.code == 201).count(), 5);
    let refused = answers.iter().find(|answer| answer.code == 403).unwrap();
    assert!(
        refused.body["message"].as_str().unwrap().contains("exceeded quota: q, requested: configmaps=1"),
        "{}",
        refused.body
    );
    assert_eq!(server.get(&format!("{quotas}/q")).await.expect(200)["status"]["used"]["configmaps"], "5");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_completed_and_judged() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let made = server.post(pods, &pod("p")).await.expect(201);
    let spec = &made["spec"];
    assert_eq!(spec["serviceAccountName"], "default");
    assert_eq!(spec["priority"], 0);
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert!(
        spec["containers"][0]["volumeMounts"][0]["name"].as_str().unwrap().starts_with("kube-api-access-")
    );
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    server.patch("/api/v1/namespaces/default", "merge", &label).await.expect(200);
    server.get("/api/v1/namespaces").await.expect(200);
    let mut privileged = pod("bad");
    privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let refused = server.post(pods, &privileged).await.expect(403);
    assert!(
        refused["message"].as_str().unwrap().contains("violates PodSecurity \"baseline:latest\": privileged"),
        "{refused}"
    );
    let mut unknown = pod("unknown");
    unknown["spec"]["serviceAccountName"] = json!("nobody");
    assert_eq!(server.post(pods, &unknown).await.code, 403);
    let mut class = pod("class");
    class["spec"]["priorityClassName"] = json!("system-node-critical");
    assert_eq!(server.post(pods, &class).await.expect(201)["spec"]["priority"], 2_000_001_000);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_made_in_a_namespace_that_goes_away() {
    let server = Server::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}});
    server.post("/api/v1/namespaces", &namespace).await.expect(201);
    server.delete("/api/v1/namespaces/x").await.expect(200);
    assert_eq!(server.get("/api/v1/namespaces/x").await.expect(200)["status"]["phase"], "Terminating");
    server.get("/api/v1/namespaces").await.expect(200);
    let refused = server.post("/api/v1/namespaces/x/configmaps", &config_map("a")).await.expect(403);
    assert_eq!(refused["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let mut left = server.get("/api/v1/namespaces/x").await.expect(200);
    left["spec"]["finalizers"] = json!([]);
    server.put("/api/v1/namespaces/x/finalize", &left).await.expect(200);
    assert_eq!(server.get("/api/v1/namespaces/x").await.code, 404);
    server.stop().await;
}
