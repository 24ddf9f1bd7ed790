//! Custom resources: the same verbs as for built-in kinds, while their CRD lives.

use serde_json::{Value, json};

use crate::harness::Server;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SHIRTS: &str = "/apis/example.com/v1/namespaces/default/shirts";

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "shirts.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "shirts", "kind": "Shirt"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"color": {"type": "string", "default": "blue"}, "size": {"type": "integer"}}},
                    "status": {"type": "object", "properties": {"worn": {"type": "integer"}}},
                }}},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crd_brings_a_resource_and_takes_it_away() {
    let server = Server::start().await;
    server.post(CRDS, &crd()).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let shirt = json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": "a"}, "spec": {"size": 3, "nope": 1}, "status": {"worn": 9}});
    let made = server.post(SHIRTS, &shirt).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 3, "color": "blue"}), "defaulted and pruned");
    assert!(made["status"].is_null(), "status has its own end point");
    let path = format!("{SHIRTS}/a");
    server.patch(&format!("{path}/status"), "merge", &json!({"status": {"worn": 1}})).await.expect(200);
    let patched = server.patch(&path, "merge", &json!({"spec": {"color": "red"}})).await.expect(200);
    assert_eq!(patched["status"]["worn"], 1);
    assert_eq!(patched["metadata"]["generation"], 2);
    assert_eq!(server.patch(&path, "strategic-merge", &json!({})).await.code, 415);
    assert_eq!(server.patch(&path, "merge", &json!({"spec": {"size": "x"}})).await.code, 422);
    let red = server.get(&format!("{SHIRTS}?fieldSelector=spec.color%3Dred")).await.expect(200);
    assert_eq!(red["items"].as_array().unwrap().len(), 1);
    let listed = server.get("/apis/example.com/v1").await.expect(200);
    assert_eq!(listed["resources"][0]["name"], "shirts");
    server.delete(&format!("{CRDS}/shirts.example.com")).await.expect(200);
    server.until(&format!("{CRDS}/shirts.example.com"), |answer| answer.code == 404).await;
    assert_eq!(server.get(SHIRTS).await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_may_stand_beside_any_others_but_not_beside_described_ones() {
    let server = Server::start().await;
    let mut open = crd();
    let parent = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    open.pointer_mut(parent).expect("spec")["additionalProperties"] = json!({"type": "string"});
    assert_eq!(server.post(CRDS, &open).await.code, 422);
    open.pointer_mut(parent).expect("spec")["additionalProperties"] = json!(true);
    server.post(CRDS, &open).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let shirt = json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": "a"}, "spec": {"size": 3, "more": 1}});
    let made = server.post(SHIRTS, &shirt).await.expect(201);
    assert_eq!(made["spec"], json!({"size": 3, "more": 1, "color": "blue"}));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_a_crd_are_judged_once_and_kept_ever_after() {
    let server = Server::start().await;
    let mut crd = crd();
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let rules = |rule: &str| json!([{"rule": rule, "message": "too large"}, {"rule": "self.size >= oldSelf.size", "message": "may not shrink"}]);
    crd.pointer_mut(spec).unwrap()["x-kubernetes-validations"] = rules("self.nope < 10");
    let refused = server.post(CRDS, &crd).await.expect(422);
    let cause = &refused["details"]["causes"][0];
    assert_eq!(
        cause["field"],
        "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule"
    );
    assert!(cause["message"].as_str().unwrap().contains("undefined field 'nope'"), "{cause}");
    crd.pointer_mut(spec).unwrap()["x-kubernetes-validations"] = rules("self.size < 10");
    server.post(CRDS, &crd).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let shirt = |size: i64| json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": "a"}, "spec": {"size": size}});
    let refused = server.post(SHIRTS, &shirt(11)).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("spec: Invalid value: too large"), "{refused}");
    server.post(SHIRTS, &shirt(3)).await.expect(201);
    let path = format!("{SHIRTS}/a");
    let refused = server.patch(&path, "merge", &json!({"spec": {"size": 2}})).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("may not shrink"), "{refused}");
    server.patch(&path, "merge", &json!({"spec": {"size": 4}})).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_crd_that_goes_stay_what_they_were_until_nobody_holds_them() {
    let server = Server::start().await;
    let mut crd = crd();
    let mut other = crd["spec"]["versions"][0].clone();
    other["name"] = json!("v2");
    other["storage"] = json!(false);
    other["schema"] =
        json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}});
    other.as_object_mut().unwrap().remove("selectableFields");
    crd["spec"]["versions"].as_array_mut().unwrap().push(other);
    server.post(CRDS, &crd).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let shirt = json!({"apiVersion": "example.com/v1", "kind": "Shirt",
        "metadata": {"name": "a", "finalizers": ["example.com/held"]}, "spec": {"size": 3}});
    server.post(SHIRTS, &shirt).await.expect(201);
    let path = format!("{CRDS}/shirts.example.com");
    let swap = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    server.patch(&path, "json", &swap).await.expect(200);
    server.delete(&path).await.expect(200);
    let marked = |answer: &crate::harness::Answer| answer.body["metadata"]["deletionTimestamp"].is_string();
    let left = server.until(&format!("{SHIRTS}/a"), marked).await;
    assert_eq!(left["spec"], json!({"size": 3, "color": "blue"}), "nothing of it was lost");
    server
        .patch(&format!("{SHIRTS}/a"), "merge", &json!({"metadata": {"finalizers": null}}))
        .await
        .expect(200);
    server.until(&path, |answer| answer.code == 404).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crd_that_serves_nothing_takes_its_objects_along() {
    let server = Server::start().await;
    server.post(CRDS, &crd()).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let shirt = json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": "a"}});
    server.post(SHIRTS, &shirt).await.expect(201);
    let path = format!("{CRDS}/shirts.example.com");
    let unserved = json!([{"op": "replace", "path": "/spec/versions/0/served", "value": false}]);
    server.patch(&path, "json", &unserved).await.expect(200);
    server.until(SHIRTS, |answer| answer.code == 404).await;
    server.delete(&path).await.expect(200);
    server.until(&path, |answer| answer.code == 404).await;
    server.post(CRDS, &crd()).await.expect(201);
    let left = server.until(SHIRTS, |answer| answer.code == 200).await;
    assert_eq!(left["items"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_label_annotation_and_finalizer_can_be_applied_away() {
    let server = Server::start().await;
    server.post(CRDS, &crd()).await.expect(201);
    server.until(SHIRTS, |answer| answer.code == 200).await;
    let path = format!("{SHIRTS}/a?fieldManager=me");
    let whole = |metadata: Value| json!({"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": metadata, "spec": {"size": 1}});
    for extra in [
        json!({"labels": {"a": "b"}}),
        json!({"annotations": {"a": "b"}}),
        json!({"finalizers": ["example.com/keep"]}),
        json!({"labels": {"a": "b"}, "annotations": {"a": "b"}, "finalizers": ["example.com/keep"]}),
    ] {
        let mut metadata = extra.clone();
        metadata["name"] = json!("a");
        server.patch(&path, "apply", &whole(metadata)).await;
        let without = server.patch(&path, "apply", &whole(json!({"name": "a"}))).await.expect(200);
        for field in ["labels", "annotations", "finalizers"] {
            assert!(without["metadata"][field].is_null(), "{extra}: {}", without["metadata"]);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_of_a_store_that_upstream_wrote_are_served() {
    let first = Server::start().await;
    let put = |key: &str, value: Value| {
        let (key, value) = (key.to_owned().into(), value.to_string().into());
        first.store.put(key, value, 0, etcd::Precondition::None)
    };
    let schema = crd()["spec"]["versions"][0]["schema"].clone();
    let stored = json!({
        "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1beta1",
        "metadata": {"name": "shirts.example.com", "uid": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1},
        "spec": {
            "group": "example.com", "version": "v1", "scope": "Namespaced",
            "names": {"plural": "shirts", "singular": "shirt", "kind": "Shirt", "listKind": "ShirtList"},
            "validation": schema, "versions": [{"name": "v1", "served": true, "storage": true}],
            "conversion": {"strategy": "None"}, "preserveUnknownFields": false,
        },
        "status": {"conditions": [{"type": "Established", "status": "True"}], "storedVersions": ["v1"],
            "acceptedNames": {"plural": "shirts", "kind": "Shirt"}},
    });
    let shirt = json!({"apiVersion": "example.com/v1", "kind": "Shirt",
        "metadata": {"name": "a", "namespace": "default", "uid": "8"}, "spec": {"size": 3}});
    let key = "/registry/apiextensions.k8s.io/customresourcedefinitions/shirts.example.com";
    put("/registry/example.com/shirts/default/a", shirt).await.unwrap();
    put(key, stored).await.unwrap();
    let server = first.beside().await;
    let found = server.until(&format!("{SHIRTS}/a"), |answer| answer.code == 200).await;
    assert_eq!(found["spec"], json!({"size": 3, "color": "blue"}));
    let path = format!("{CRDS}/shirts.example.com");
    let changed =
        server.patch(&path, "merge", &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    assert_eq!(changed["spec"]["versions"][0]["schema"], schema, "nothing is lost by a write");
    assert!(changed["spec"]["validation"].is_null());
    assert_eq!(server.get(&format!("{SHIRTS}/a")).await.expect(200)["spec"]["size"], 3);
    server.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deprecated_version_names_the_newer_one() {
    let server = Server::start().await;
    let mut two = crd();
    let mut old = two["spec"]["versions"][0].clone();
    (old["name"], old["storage"], old["deprecated"]) = (json!("v1beta1"), json!(false), json!(true));
    two["spec"]["versions"].as_array_mut().unwrap().push(old);
    server.post(CRDS, &two).await.expect(201);
    let path = "/apis/example.com/v1beta1/namespaces/default/shirts";
    server.until(path, |answer| answer.code == 200).await;
    let answer = server.get(path).await;
    let text = answer.headers["warning"].to_str().unwrap().to_owned();
    assert_eq!(text, "299 - \"example.com/v1beta1 Shirt is deprecated; use example.com/v1 Shirt\"");
    server.stop().await;
}
