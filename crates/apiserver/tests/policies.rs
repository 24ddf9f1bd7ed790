//! Admission policies: what they refuse, say and change, as a client sees it.

use apiserver::UserInfo;
use http::Method;
use serde_json::{Value, json};

use crate::harness::{Server, config_map};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn rules(operations: &[&str], resource: &str) -> Value {
    let (group, plural) = resource.split_once('/').unwrap_or(("", resource));
    json!({"resourceRules": [{"operations": operations, "apiGroups": [group], "apiVersions": ["v1"], "resources": [plural]}]})
}

fn policy(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

async fn validating(server: &Server, name: &str, spec: Value, binding: Value) {
    let path = format!("{REGISTRATION}/validatingadmissionpolicies");
    server.post(&path, &policy("ValidatingAdmissionPolicy", name, spec)).await.expect(201);
    let mut spec = binding;
    spec["policyName"] = json!(name);
    let path = format!("{REGISTRATION}/validatingadmissionpolicybindings");
    server.post(&path, &policy("ValidatingAdmissionPolicyBinding", name, spec)).await.expect(201);
}

async fn mutating(server: &Server, name: &str, spec: Value) {
    let path = format!("{REGISTRATION}/mutatingadmissionpolicies");
    server.post(&path, &policy("MutatingAdmissionPolicy", name, spec)).await.expect(201);
    let path = format!("{REGISTRATION}/mutatingadmissionpolicybindings");
    let binding = policy("MutatingAdmissionPolicyBinding", name, json!({"policyName": name}));
    server.post(&path, &binding).await.expect(201);
}

fn map(name: &str, data: Value) -> Value {
    let mut map = config_map(name);
    map["data"] = data;
    map
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_policy_refuses_warns_and_says_why() {
    let server = Server::start().await;
    let spec = json!({
        "matchConstraints": rules(&["CREATE", "UPDATE"], "configmaps"),
        "matchConditions": [{"name": "not-free", "expression": "!object.metadata.name.startsWith('free')"}],
        "variables": [{"name": "keys", "expression": "has(object.data) ? size(object.data) : 0"}],
        "validations": [
            {"expression": "variables.keys > 0", "messageExpression": "'wants keys in ' + namespaceObject.metadata.name"},
            {"expression": "!('secret' in object.data)", "message": "no secrets here", "reason": "Forbidden"},
            {"expression": "oldObject == null || oldObject.data == object.data", "message": "data is fixed"},
        ],
    });
    validating(&server, "keys.example.com", spec, json!({"validationActions": ["Deny"]})).await;
    let refused = server.post(MAPS, &map("a", json!({}))).await.expect(422);
    assert_eq!(refused["reason"], "Invalid");
    let text = refused["message"].as_str().unwrap();
    assert!(
        text.ends_with("ValidatingAdmissionPolicy 'keys.example.com' with binding 'keys.example.com' denied request: wants keys in default"),
        "{text}"
    );
    server.post(MAPS, &map("free-1", json!({}))).await.expect(201);
    assert_eq!(server.post(MAPS, &map("a", json!({"secret": "x"}))).await.expect(403)["reason"], "Forbidden");
    server.post(MAPS, &map("a", json!({"x": "y"}))).await.expect(201);
    let path = format!("{MAPS}/a");
    let changed = server.patch(&path, "merge", &json!({"data": {"x": "z"}})).await.expect(422);
    assert!(changed["message"].as_str().unwrap().contains("data is fixed"));
    server.patch(&path, "merge", &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    server.delete(&path).await.expect(200);

    let spec = json!({"matchConstraints": rules(&["CREATE"], "secrets"), "validations": [{"expression": "false", "message": "better not"}]});
    validating(&server, "warns.example.com", spec, json!({"validationActions": ["Warn"]})).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
    let answer = server.post("/api/v1/namespaces/default/secrets", &secret).await;
    assert_eq!(answer.code, 201);
    let warning = answer.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default();
    assert!(
        warning.contains("Validation failed for ValidatingAdmissionPolicy 'warns.example.com'"),
        "{warning}"
    );
    // Gone is gone.
    server
        .delete(&format!("{REGISTRATION}/validatingadmissionpolicybindings/keys.example.com"))
        .await
        .expect(200);
    server.post(MAPS, &map("b", json!({}))).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn params_selectors_failures_and_the_authorizer_count() {
    let server = Server::start().await;
    let spec = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConstraints": rules(&["CREATE"], "apps/deployments"),
        "validations": [{"expression": "object.spec.replicas <= int(params.data.max)"}],
    });
    let binding = json!({"validationActions": ["Deny"], "paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}});
    validating(&server, "limits.example.com", spec, binding).await;
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let deployment = |replicas: i64| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"generateName": "d-"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
    };
    let text = server.post(path, &deployment(1)).await.expect(422)["message"].to_string();
    assert!(text.contains("no params found"), "{text}");
    server.post(MAPS, &map("limits", json!({"max": "2"}))).await.expect(201);
    // A consistent list is answered when the caches show what was written before.
    server.get(MAPS).await.expect(200);
    server.post(path, &deployment(2)).await.expect(201);
    let text = server.post(path, &deployment(3)).await.expect(422)["message"].to_string();
    assert!(text.contains("failed expression: object.spec.replicas <= int(params.data.max)"), "{text}");

    let spec = json!({
        "matchConstraints": rules(&["CREATE"], "secrets"),
        "validations": [{"expression": "authorizer.group('').resource('nodes').check('delete').allowed()", "message": "only for admins"}],
    });
    validating(&server, "admins.example.com", spec, json!({"validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}})).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "u"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &role).await.expect(201);
    let secret = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}).to_string().into_bytes()
    };
    let user = UserInfo::new("u", &[]);
    let own = "/api/v1/namespaces/default/secrets";
    let json = "application/json";
    server.ask_as(&user, Method::POST, own, json, secret("a")).await.expect(422);
    server.ask(Method::POST, own, json, secret("a")).await.expect(201);
    let other = "/api/v1/namespaces/kube-public/secrets";
    server.ask_as(&user, Method::POST, other, json, secret("a")).await.expect(201);

    let spec = json!({"matchConstraints": rules(&["CREATE"], "configmaps"), "failurePolicy": "Ignore",
        "validations": [{"expression": "object.nope == 1"}]});
    validating(&server, "open.example.com", spec.clone(), json!({"validationActions": ["Deny"]})).await;
    server.post(MAPS, &map("m1", json!({}))).await.expect(201);
    let mut closed = spec;
    closed["failurePolicy"] = json!("Fail");
    validating(&server, "closed.example.com", closed, json!({"validationActions": ["Deny"]})).await;
    let text = server.post(MAPS, &map("m2", json!({}))).await.expect(422)["message"].to_string();
    assert!(text.contains("expression 'object.nope == 1' resulted in error: no such key: nope"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_policies_merge_and_patch() {
    let server = Server::start().await;
    let apply = |expression: &str| json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}});
    let patch = |expression: &str| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let spec = |mutations: Value, again: &str| json!({"matchConstraints": rules(&["CREATE"], "pods"), "mutations": mutations, "reinvocationPolicy": again});
    mutating(&server, "a.example.com", spec(json!([apply("Object{metadata: Object.metadata{labels: {'seen': string(has(object.metadata.annotations))}}}")]), "IfNeeded")).await;
    mutating(&server, "b.example.com", spec(json!([
        patch("[JSONPatch{op: 'add', path: '/metadata/annotations', value: {'by': request.userInfo.username}}]"),
        apply("Object{spec: Object.spec{containers: [Object.spec.containers{name: 'side', image: 'busybox'}]}}"),
    ]), "Never")).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    assert_eq!(made["metadata"]["annotations"]["by"], "admin");
    assert_eq!(made["metadata"]["labels"]["seen"], "true", "asked again after the other policy");
    let names: Vec<&str> = made["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(names, ["c", "side"]);
    assert_eq!(made["spec"]["containers"][1]["imagePullPolicy"], "Always", "defaults come after policies");

    mutating(
        &server,
        "c.example.com",
        json!({"matchConstraints": rules(&["CREATE"], "configmaps"), "reinvocationPolicy": "Never",
        "mutations": [apply("Object{nope: 'x'}")]}),
    )
    .await;
    let text = server.post(MAPS, &map("m", json!({}))).await.body["message"].to_string();
    assert!(text.contains("field not declared in schema"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_expressions_are_refused_when_they_are_written() {
    let server = Server::start().await;
    let spec = |expression: &str| json!({"matchConstraints": rules(&["CREATE"], "pods"), "validations": [{"expression": expression}]});
    let path = format!("{REGISTRATION}/validatingadmissionpolicies");
    let post = async |expression: &str| {
        let object = policy("ValidatingAdmissionPolicy", "p.example.com", spec(expression));
        let body = server.post(&path, &object).await.expect(422);
        let cause = &body["details"]["causes"][0];
        (cause["field"].as_str().unwrap().to_owned(), cause["message"].as_str().unwrap().to_owned())
    };
    let (field, message) = post("object.x +").await;
    assert_eq!(field, "spec.validations[0].expression");
    assert!(
        message.starts_with("Invalid value: \"object.x +\": compilation failed: ERROR: <input>:1:"),
        "{message}"
    );
    assert!(post("nope == 1").await.1.contains("undeclared reference to 'nope'"));
    assert!(post("1 + 1").await.1.ends_with("must evaluate to bool but got int"));
    server.stop().await;
}
