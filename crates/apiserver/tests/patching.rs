//! What is told of patches that cannot be carried out, and who owns what after those that were.

use http::Method;
use serde_json::{Value, json};

use crate::harness::{Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Code and message of a patch given as text.
async fn refused(server: &Server, path: &str, form: &str, text: &str) -> (u16, String) {
    let kind = match form {
        "apply" => "application/apply-patch+yaml".to_owned(),
        form => format!("application/{form}-patch+json"),
    };
    let path = format!("{path}{}dryRun=All&fieldManager=m", if path.contains('?') { '&' } else { '?' });
    let answer = server.ask(Method::PATCH, &path, &kind, text.as_bytes().to_vec()).await;
    (answer.code, answer.body["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_that_cannot_be_carried_out_are_told_as_upstream_tells_them() {
    let server = Server::start().await;
    server.post(MAPS, &config_map("a")).await.expect(201);
    let path = format!("{MAPS}/a");
    let nameless = "the name of the object (a based on URL) was undeterminable: name must be provided";
    let number = "strconv.ParseUint: parsing \"x\": invalid syntax";
    for (form, patch, code, message) in [
        (
            "json",
            "{}",
            400,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        ),
        (
            "json",
            "[{\"op\":1}]",
            400,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
        ),
        ("json", "x", 400, "error decoding patch: invalid character 'x' looking for beginning of value"),
        ("json", "[{\"op\":\"remove\",\"path\":\"/metadata\"}]", 400, nameless),
        (
            "merge",
            "[]",
            400,
            "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        ("merge", "{\"metadata\":{\"name\":null}}", 400, nameless),
        ("merge", "{\"apiVersion\":\"\"}", 400, nameless),
        ("merge", "{\"kind\":\"\"}", 200, ""),
        ("merge", "{\"metadata\":{\"resourceVersion\":\"x\"}}", 500, number),
        (
            "merge",
            "{\"metadata\":{\"uid\":\"x\"}}",
            422,
            "ConfigMap \"a\" is invalid: metadata.uid: Invalid value: \"x\": field is immutable",
        ),
        ("strategic-merge", "{\"kind\":\"Pod\"}", 200, ""),
        ("strategic-merge", "{\"$patch\":\"x\"}", 500, "unknown patch type: x in map: map[$patch:x]"),
        ("strategic-merge", "{\"$patch\":\"delete\"}", 400, nameless),
        (
            "apply",
            "[]",
            400,
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (
            "apply",
            "{apiVersion: v1, kind: ConfigMap, data: {a: 1}}",
            500,
            "failed to create typed patch object (/; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:1}",
        ),
        (
            "apply",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: b}, x: 1}",
            500,
            "failed to create typed patch object (/b; /v1, Kind=ConfigMap): .x: field not declared in schema",
        ),
        (
            "apply",
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: c}}",
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ] {
        assert_eq!(refused(&server, &path, form, patch).await, (code, message.to_owned()), "{form} {patch}");
    }
    let strict = format!("{path}?fieldValidation=Ignore");
    let got = refused(&server, &strict, "json", "{}").await;
    assert_eq!(got, (400, "json: cannot unmarshal object into Go value of type jsonpatch.Patch".to_owned()));
    // Whether there is something to patch is looked at before the patch.
    assert_eq!(refused(&server, &format!("{MAPS}/none"), "merge", "x").await.0, 404);
    let new = refused(&server, &format!("{MAPS}/none"), "apply", "{apiVersion: v1, kind: ConfigMap}").await;
    assert_eq!(new, (400, nameless.replace("(a ", "(none ")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_were_forgotten_are_not_kept_again_before_an_apply() {
    let server = Server::start().await;
    server.post(MAPS, &config_map("a")).await.expect(201);
    let path = format!("{MAPS}/a?fieldManager=m");
    let forgotten =
        server.patch(&path, "merge", &json!({"metadata": {"managedFields": []}})).await.expect(200);
    assert_eq!(forgotten["metadata"]["managedFields"], Value::Null);
    let changed = server.patch(&path, "merge", &json!({"data": {"b": "1"}})).await.expect(200);
    assert_eq!(changed["metadata"]["managedFields"], Value::Null);
    server.stop().await;
}

/// Conflicts are told in upstream's order: fields of a level before what is below others of that level.
#[tokio::test(flavor = "multi_thread")]
async fn conflicts_come_in_the_order_of_field_sets() {
    let server = Server::start().await;
    let apply = |manager: &str, data: Value, labels: Value| {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "labels": labels}, "immutable": data["x"] == "2", "data": data});
        (format!("{MAPS}/a?fieldManager={manager}"), object)
    };
    let (path, object) = apply("one", json!({"x": "1"}), json!({"l": "1"}));
    server.patch(&path, "apply", &object).await.expect(201);
    let (path, object) = apply("two", json!({"x": "2"}), json!({"l": "2"}));
    let refused = server.patch(&path, "apply", &object).await.expect(409);
    let fields: Vec<&str> = refused["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["field"].as_str().unwrap())
        .collect();
    assert_eq!(fields, [".immutable", ".data.x", ".metadata.labels.l"]);
    server.stop().await;
}

/// Who owns the replicas of a deployment, through which end point.
fn scalers(deployment: &Value) -> Vec<String> {
    let entries = deployment["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owns = |entry: &&Value| entry["fieldsV1"]["f:spec"].get("f:replicas").is_some();
    let word = |entry: &Value, field: &str| entry[field].as_str().unwrap_or("-").to_owned();
    let shown = |entry: &Value| {
        ["manager", "operation", "apiVersion", "subresource"].map(|name| word(entry, name)).join(" ")
    };
    entries.iter().filter(owns).map(shown).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_is_applied_to_and_has_the_owners_of_the_replicas() {
    let server = Server::start().await;
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    server.post(&format!("{all}?fieldManager=mk"), &deployment).await.expect(201);
    let scale = |replicas: i64| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": replicas}});
    let path = |manager: &str| format!("{all}/d/scale?fieldManager={manager}");
    let refused = server.patch(&path("s"), "apply", &scale(5)).await.expect(409);
    let why = "Apply failed with 1 conflict: conflict with \"mk\" using autoscaling/v1: .spec.replicas";
    assert_eq!(refused["message"], why);
    let applied = server.patch(&path("s&force=true"), "apply", &scale(5)).await.expect(200);
    assert_eq!((&applied["kind"], &applied["spec"]["replicas"]), (&json!("Scale"), &json!(5)));
    assert_eq!(scalers(&server.get(&format!("{all}/d")).await.expect(200)), ["s Apply apps/v1 scale"]);
    // Whoever writes after that takes it, and who applies less than before gives it back.
    server.put(&path("p"), &scale(6)).await.expect(200);
    assert_eq!(scalers(&server.get(&format!("{all}/d")).await.expect(200)), ["p Update apps/v1 scale"]);
    let wrong = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}});
    let refused = server.patch(&path("s"), "apply", &wrong).await.expect(400);
    assert_eq!(refused["message"], "invalid object type: apps/v1, Kind=Deployment");
}

/// A review is answered with what was asked, and with who asked it; it has no other metadata.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_say_who_asked() {
    let server = Server::start().await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews?fieldManager=m";
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let answer = server.post(path, &review).await.expect(201);
    assert_eq!(answer["metadata"]["managedFields"][0]["manager"], "m");
    let mut named = review.clone();
    named["metadata"] = json!({"name": "x"});
    let refused = server.post(path, &named).await.expect(422);
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata");
    server.stop().await;
}

/// What the server writes of flow schemas is owned by the names that upstream gives its parts.
#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_writes_have_upstreams_owners() {
    let server = Server::start().await;
    let path = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/exempt";
    let owners = |schema: &Value| schema["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owners = owners(&server.until(path, |answer| owners(&answer.body).len() == 2).await);
    let named: Vec<(&str, &str)> = owners
        .iter()
        .map(|one| (one["manager"].as_str().unwrap(), one["operation"].as_str().unwrap()))
        .collect();
    assert_eq!(
        named,
        [
            ("api-priority-and-fairness-config-consumer-v1", "Apply"),
            ("api-priority-and-fairness-config-producer-v1", "Update"),
        ]
    );
    server.stop().await;
}

/// A status is not warned of what the rest says, and names nothing but what it writes.
#[tokio::test(flavor = "multi_thread")]
async fn owners_of_a_status_are_owners_of_nothing_else() {
    let server = Server::start().await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let template =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    server.post(path, &made).await.expect(201);
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "d", "labels": {"l": "1"}, "annotations": {"n": "1"}}, "status": {"replicas": 1}});
    let applied =
        server.patch(&format!("{path}/d/status?fieldManager=m"), "apply", &status).await.expect(200);
    assert_eq!(applied["metadata"]["labels"], Value::Null);
    let owners = applied["metadata"]["managedFields"].as_array().unwrap();
    let own = owners.iter().find(|one| one["manager"] == "m").unwrap();
    assert_eq!(
        own["fieldsV1"],
        json!({"f:metadata": {"f:annotations": {"f:n": {}}}, "f:status": {"f:replicas": {}}})
    );
    server.stop().await;
}

/// Corners of queries, paths and media types.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_told_as_upstream_tells_it() {
    let server = Server::start().await;
    for (path, code, message) in [
        (
            "/api/v1/namespaces/default/pods/%2e%2e".to_owned(),
            400,
            "Name parameter invalid: \"..\": may not be '..'",
        ),
        (
            "/apis/batch/v1/jobs?fieldSelector=spec.x%3D1".to_owned(),
            400,
            "field label \"spec.x\" not supported for Job",
        ),
        (
            "/apis/events.k8s.io/v1/events?fieldSelector=involvedObject.kind%3DPod".to_owned(),
            400,
            "field label not supported: involvedObject.kind",
        ),
        (
            format!("{MAPS}?watch=1&continue=abc"),
            422,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
        ),
    ] {
        let answer = server.get(&path).await;
        assert_eq!(
            (answer.code, answer.body["message"].as_str().unwrap_or_default()),
            (code, message),
            "{path}"
        );
    }
    let unreadable = server.ask(Method::POST, MAPS, "application/json;x", b"{}".to_vec()).await;
    assert_eq!(unreadable.code, 415);
    server.stop().await;
}
