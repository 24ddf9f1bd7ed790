//! Forms and shapes that are asked for, and what the server writes for itself.

use http::Method;
use serde_json::{Value, json};

use apiserver::UserInfo;

use crate::harness::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What is of another kind is told as such, whatever its fields would be here.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_of_another_kind_is_told_as_such_in_every_format() {
    let server = Server::start().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}}});
    let services = "/api/v1/namespaces/default/services?fieldValidation=Strict";
    // A status whose second field, a text, is none in a Service.
    let protobuf = apimachinery::protobuf::wrap("v1", "Status", b"\x12\x07Failure\x1a\x01x");
    let json = deployment.to_string().into_bytes();
    for (kind, body, name, from) in [
        ("application/json", json.clone(), "Deployment", "v1.Deployment"),
        ("application/yaml", json, "Deployment", "v1.Deployment"),
        ("application/vnd.kubernetes.protobuf", protobuf, "Status", "v1.Status"),
    ] {
        let refused = server.ask(Method::POST, services, kind, body).await.expect(400);
        let why = format!("converting ({from}) to (core.Service): unknown conversion");
        let wanted = format!("{name} in version \"v1\" cannot be handled as a Service: {why}");
        assert_eq!(refused["message"], wanted, "{kind}");
    }
    server.stop().await;
}

/// A dry run takes no address: it shows that of the range, and knows no other range than this one.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_the_address_of_the_range() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services?dryRun=All";
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
        "spec": {"ports": [{"port": 80}]}});
    let shown = server.post(services, &service).await.expect(201);
    let range = server.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.expect(200);
    let range = range["spec"]["cidrs"][0].as_str().unwrap().to_owned();
    assert_eq!(shown["spec"]["clusterIP"].as_str(), range.split('/').next());
    service["spec"]["clusterIP"] = json!("203.0.113.1");
    let refused = server.post(services, &service).await.expect(422);
    let why =
        format!("the provided IP (203.0.113.1) is not in the valid range. The range of valid IPs is {range}");
    assert!(refused["message"].as_str().unwrap().ends_with(&why), "{refused}");
    server.stop().await;
}

/// What the server writes for itself says who wrote it, and there is nothing that upstream has not.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_the_server_have_owners() {
    let server = Server::start().await;
    let owners = |object: &Value| -> Vec<String> {
        let shown = |entry: &Value| {
            let text = |name: &str| entry[name].as_str().unwrap_or("-").to_owned();
            [text("manager"), text("operation"), text("subresource"), entry["fieldsV1"].to_string()].join(" ")
        };
        object["metadata"]["managedFields"].as_array().into_iter().flatten().map(shown).collect()
    };
    let range = server.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.expect(200);
    let condition = r#"{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}"#;
    assert_eq!(
        owners(&range),
        [
            format!(
                r#"kubernetes-service-cidr-controller Apply status {{"f:status":{{"f:conditions":{{"k:{{\"type\":\"Ready\"}}":{condition}}}}}}}"#
            ),
            r#"kube-apiserver Update - {"f:spec":{"f:cidrs":{}}}"#.to_owned(),
        ]
    );
    assert_eq!(range["status"]["conditions"][0]["reason"], "");
    let service = server.get("/api/v1/namespaces/default/services/kubernetes").await.expect(200);
    assert_eq!(service["spec"]["clusterIPs"], json!([service["spec"]["clusterIP"]]));
    assert_eq!(service["spec"]["ipFamilies"], json!(["IPv4"]));
    assert!(!owners(&service)[0].contains("f:clusterIPs"), "{service}");
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    let address = server.get(&format!("/apis/networking.k8s.io/v1/ipaddresses/{address}")).await.expect(200);
    assert!(
        owners(&address)[0].starts_with(r#"kube-apiserver Update - {"f:metadata":{"f:labels""#),
        "{address}"
    );
    let schemas = server.get("/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas").await.expect(200);
    let names: Vec<_> =
        schemas["items"].as_array().unwrap().iter().map(|one| &one["metadata"]["name"]).collect();
    let wanted = [
        "catch-all",
        "exempt",
        "global-default",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-system-service-accounts",
        "probes",
        "service-accounts",
        "system-leader-election",
        "system-node-high",
        "system-nodes",
    ];
    assert_eq!(names, wanted);
    server.stop().await;
}

/// An annotation that is a field of Go's struct is not part of metadata that is shown alone.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_alone_is_without_what_is_a_field_elsewhere() {
    let server = Server::start().await;
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = server.post(sets, &set).await.expect(201);
    let counted = "deprecated.daemonset.template.generation";
    assert_eq!(made["metadata"]["annotations"][counted], "1");
    let admin = UserInfo::new("admin", &["system:masters"]);
    for (shape, at) in [("PartialObjectMetadata", "/metadata"), ("Table", "/rows/0/object/metadata")] {
        let accept = format!("application/json;as={shape};v=v1;g=meta.k8s.io");
        let headers = [("accept", accept.as_str())];
        let path = format!("{sets}/d");
        let shown = server.ask_with(&admin, Method::GET, &path, &headers, Vec::new()).await.expect(200);
        let metadata = shown.pointer(at).unwrap();
        assert_eq!(metadata["name"], "d");
        assert!(metadata.get("annotations").is_none(), "{shape}: {metadata}");
    }
    server.stop().await;
}

/// Who asks for another shape is told what went wrong in a form that he takes as such, or else in JSON.
#[tokio::test(flavor = "multi_thread")]
async fn failures_have_no_other_shape() {
    let server = Server::start().await;
    let admin = UserInfo::new("admin", &["system:masters"]);
    let alone = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let path = format!("{MAPS}/none");
    let told =
        server.ask_with(&admin, Method::GET, &path, &[("accept", alone)], Vec::new()).await.expect(404);
    assert_eq!(told["kind"], "Status");
    let refused =
        server.ask_with(&admin, Method::GET, "/version", &[("accept", "application/yaml")], Vec::new()).await;
    assert_eq!(refused.code, 406);
    server.stop().await;
}
