use serde_json::json;

use super::*;

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "n", "labels": {"app": "web"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{
                    "name": "web", "image": "example.com/web:1", "args": ["serve"],
                    "ports": [{"name": "http", "containerPort": 80}],
                    "resources": {"requests": {"cpu": "0.1", "memory": "50Mi"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
                }]},
            },
        },
    })
}

/// The object as it comes back from a server.
fn served(object: &Value) -> Value {
    let mut object = Forms::default().kept(object);
    object["metadata"]["uid"] = json!("u");
    object["metadata"]["resourceVersion"] = json!("7");
    object
}

#[test]
fn what_the_server_filled_in_is_no_difference() {
    let required = deployment();
    assert_eq!(Forms::default().merge(&served(&required), &required), None);
}

#[test]
fn owned_fields_are_restored_and_foreign_ones_stay() {
    let required = deployment();
    let mut existing = served(&required);
    existing["spec"]["replicas"] = json!(5);
    existing["metadata"]["labels"]["extra"] = json!("kept");
    existing["metadata"]["labels"]["app"] = json!("other");
    existing["spec"]["revisionHistoryLimit"] = json!(3);
    existing["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["other"]);
    existing["spec"]["template"]["spec"]["containers"][0]["terminationMessagePath"] = json!("/foreign");
    existing["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "spy", "image": "x"}));
    existing["spec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    existing["status"] = json!({"replicas": 5});
    let merged = Forms::default().merge(&existing, &required).unwrap();
    assert_eq!(merged["spec"]["replicas"], 1);
    assert_eq!(merged["metadata"]["labels"], json!({"app": "web", "extra": "kept"}));
    assert_eq!(merged["metadata"]["resourceVersion"], "7");
    assert_eq!(merged["spec"]["revisionHistoryLimit"], 3);
    let containers = merged["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    assert_eq!(containers[0]["args"], json!(["serve"]));
    assert_eq!(containers[0]["terminationMessagePath"], "/foreign");
    assert_eq!(merged["spec"]["template"]["spec"]["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(merged["status"], json!({"replicas": 5}));
    assert_eq!(Forms::default().merge(&merged, &required), None, "a second look finds nothing to do");
}

#[test]
fn what_the_release_no_longer_says_goes() {
    let mut required = deployment();
    let existing = served(&required);
    let container = &mut required["spec"]["template"]["spec"]["containers"][0];
    container["args"] = Value::Null;
    container["livenessProbe"] = Value::Null;
    container["ports"] = json!([]);
    let merged = Forms::default().merge(&existing, &required).unwrap();
    let container = &merged["spec"]["template"]["spec"]["containers"][0];
    assert!(container.get("args").is_none() && container.get("livenessProbe").is_none());
    assert!(is_nothing(&container["ports"]));
}

#[test]
fn another_spelling_of_a_quantity_is_no_difference() {
    let mut required = deployment();
    let existing = served(&required);
    required["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("100m");
    assert_eq!(Forms::default().merge(&existing, &required), None);
}

#[test]
fn keys_of_a_config_map_are_shared() {
    let required =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"mine": "1"}});
    let mut existing = required.clone();
    existing["data"] = json!({"mine": "2", "yours": "3"});
    let merged = Forms::default().merge(&existing, &required).unwrap();
    assert_eq!(merged["data"], json!({"mine": "1", "yours": "3"}));
}

#[test]
fn a_service_keeps_the_addresses_that_the_server_chose() {
    let required = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
        "spec": {"selector": {"a": "b"}, "type": "NodePort", "ports": [{"name": "x", "port": 80}]},
    });
    let mut existing = served(&required);
    existing["spec"]["clusterIP"] = json!("172.30.0.9");
    existing["spec"]["ports"][0]["nodePort"] = json!(30000);
    assert_eq!(Forms::default().merge(&existing, &required), None);
    existing["spec"]["selector"] = json!({"a": "c"});
    let merged = Forms::default().merge(&existing, &required).unwrap();
    assert_eq!(merged["spec"]["selector"], json!({"a": "b"}));
    assert_eq!(merged["spec"]["clusterIP"], "172.30.0.9");
    assert_eq!(merged["spec"]["ports"][0]["nodePort"], 30000);
}

#[test]
fn rules_of_an_aggregated_role_belong_to_the_server() {
    let required = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "a"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}, "rules": [],
    });
    let mut existing = required.clone();
    existing["rules"] = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    assert_eq!(Forms::default().merge(&existing, &required), None);
}

#[test]
fn an_injected_bundle_stays() {
    let required = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "a", "annotations": {INJECT_CA_BUNDLE: "true"}},
        "webhooks": [{
            "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        }],
    });
    let mut existing = served(&required);
    existing["webhooks"][0]["clientConfig"]["caBundle"] = json!("Zm9v");
    assert_eq!(Forms::default().merge(&existing, &required), None);
    existing["metadata"]["annotations"][INJECT_CA_BUNDLE] = json!("false");
    assert!(Forms::default().merge(&existing, &required).is_some());
}

#[test]
fn a_custom_resource_is_owned_whole_but_for_its_status() {
    let required = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "DNS", "metadata": {"name": "cluster"},
        "spec": {"baseDomain": "example.com"},
    });
    let mut existing = required.clone();
    existing["status"] = json!({"a": 1});
    existing["metadata"]["labels"] = json!({"extra": "kept"});
    assert_eq!(Forms::default().merge(&existing, &required), None);
    existing["spec"] = json!({"baseDomain": "example.org"});
    let merged = Forms::default().merge(&existing, &required).unwrap();
    assert_eq!((&merged["spec"]["baseDomain"], &merged["status"]["a"]), (&json!("example.com"), &json!(1)));
}

#[test]
fn merging_is_idempotent_for_every_kind_of_the_table() {
    for ((group, kind), _) in OWNED {
        let api_version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
        let required =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "labels": {"x": "y"}}});
        let existing = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
        let merged = Forms::default().merge(&existing, &required).expect(kind);
        assert_eq!(Forms::default().merge(&merged, &required), None, "{kind}");
    }
}
