//! Who may do what, and tokens.

use apiserver::UserInfo;
use apiserver::config::{AuditConfig, AuditLog};
use http::Method;
use serde_json::json;

use crate::harness::{Server, config_map, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_role_binding_opens_what_was_closed_and_nobody_grants_more_than_they_hold() {
    let server = Server::start().await;
    let ann = UserInfo::new("ann", &[]);
    let get = || server.ask_as(&ann, Method::GET, MAPS, "", Vec::new());
    let refused = get().await.expect(403);
    assert_eq!(
        refused["message"],
        "configmaps is forbidden: User \"ann\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
        "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"]}, {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]});
    server.post(&format!("{rbac}/roles"), &role).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "ann"}]});
    let made = server.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    // The policy follows the watch; a consistent list makes sure that it has arrived.
    server.get(&format!("{rbac}/rolebindings")).await.expect(200);
    assert_eq!(made["subjects"][0]["apiGroup"], "rbac.authorization.k8s.io");
    get().await.expect(200);
    let more = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "more"},
        "rules": [{"verbs": ["delete"], "apiGroups": [""], "resources": ["configmaps"]}]});
    let body = more.to_string().into_bytes();
    let refused = server.ask_as(&ann, Method::POST, &format!("{rbac}/roles"), "application/json", body).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_bound_to_its_account() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let issued = server.post(path, &asked).await.expect(201);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": issued["status"]["token"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let good = server.post(reviews, &review).await.expect(201);
    assert_eq!(good["status"]["user"]["username"], "system:serviceaccount:default:default");
    let mut forged = review.clone();
    forged["spec"]["token"] = json!(format!("{}x", issued["status"]["token"].as_str().unwrap()));
    assert_ne!(server.post(reviews, &forged).await.expect(201)["status"]["authenticated"], true);
    let short = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 60}});
    assert_eq!(server.post(path, &short).await.code, 422);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_reaches_only_what_its_pods_need() {
    let server = Server::start().await;
    for name in ["mine", "other"] {
        server.post(MAPS, &config_map(name)).await.expect(201);
    }
    let mut own = pod("p");
    own["spec"]["nodeName"] = json!("n1");
    own["spec"]["volumes"] = json!([{"name": "v", "configMap": {"name": "mine"}}]);
    server.post("/api/v1/namespaces/default/pods", &own).await.expect(201);
    server.get("/api/v1/pods").await.expect(200); // the graph follows the watch
    let kubelet = UserInfo::new("system:node:n1", &["system:nodes"]);
    let code =
        async |method: Method, path: &str| server.ask_as(&kubelet, method, path, "", Vec::new()).await.code;
    assert_eq!(code(Method::GET, &format!("{MAPS}/mine")).await, 200);
    assert_eq!(code(Method::GET, &format!("{MAPS}/other")).await, 403);
    assert_eq!(code(Method::GET, "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await, 200);
    assert_eq!(code(Method::GET, "/api/v1/pods").await, 403);
    assert_eq!(code(Method::DELETE, &format!("{MAPS}/mine")).await, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_see_health_and_nothing_else() {
    let server = Server::start().await;
    let anonymous = UserInfo::anonymous();
    let code = async |path: &str| server.ask_as(&anonymous, Method::GET, path, "", Vec::new()).await.code;
    assert_eq!(code("/readyz").await, 200);
    assert_eq!(code("/api/v1/pods").await, 403);
    assert_eq!(code("/metrics").await, 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rules_review_lists_what_each_binding_grants() {
    let server = Server::start().await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": "default"}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let ask = async |user: UserInfo| {
        let body = review.to_string().into_bytes();
        server.ask_as(&user, Method::POST, path, "application/json", body).await.expect(201)
    };
    let count = |answer: &serde_json::Value, list: &str| answer["status"][list].as_array().unwrap().len();
    let admin = ask(UserInfo::new("admin", &["system:masters", "system:authenticated"])).await;
    let plain = ask(UserInfo::new("ann", &["system:authenticated"])).await;
    // Administrators have what everybody has and everything else, each from its own binding.
    assert_eq!(count(&admin, "resourceRules"), count(&plain, "resourceRules") + 1);
    assert_eq!(count(&admin, "nonResourceRules"), count(&plain, "nonResourceRules") + 1);
    assert!(count(&plain, "nonResourceRules") > 1, "{plain}");
    assert_eq!((&plain["spec"], &plain["status"]["incomplete"]), (&json!({}), &json!(false)));
    let node = ask(UserInfo::new("system:node:n", &["system:nodes", "system:authenticated"])).await;
    assert_eq!(node["status"]["incomplete"], true);
    assert!(node["status"]["evaluationError"].as_str().unwrap().starts_with("node authorizer"));
    server.stop().await;
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Gives `user` a cluster role with these rules.
async fn grant(server: &Server, user: &str, rules: serde_json::Value) {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user}, "rules": rules});
    server.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}, "subjects": [{"kind": "User", "name": user}]});
    server.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
    server.get(&format!("{RBAC}/clusterrolebindings")).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_are_checked_whatever_of_them_changes_and_refusals_say_what_is_missing() {
    let server = Server::start().await;
    let rules = json!([
        {"verbs": ["create", "update", "patch"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"]},
        {"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "resourceNames": ["named"]},
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
    ]);
    grant(&server, "mk", rules).await;
    let mk = UserInfo::new("mk", &[]);
    let send = async |method: Method, path: &str, kind: &str, body: serde_json::Value| {
        server.ask_as(&mk, method, &format!("{RBAC}/{path}"), kind, body.to_string().into_bytes()).await
    };
    let role = |name: &str, rules: serde_json::Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let more = json!([{"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods", "secrets"]}]);
    // A right to one name is of no use for a role that has none yet.
    let refused =
        send(Method::POST, "clusterroles", "application/json", role("named", more)).await.expect(403);
    assert_eq!(
        refused["message"],
        "clusterroles.rbac.authorization.k8s.io \"named\" is forbidden: user \"mk\" (groups=[\"system:authenticated\"]) is attempting \
         to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}\n\
         {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\"]}"
    );
    let labels = json!({"metadata": {"labels": {"x": "y"}}});
    let merge = "application/merge-patch+json";
    send(Method::PATCH, "clusterroles/cluster-admin", merge, labels).await.expect(403);
    let few = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    send(Method::POST, "clusterroles", "application/json", role("few", few)).await.expect(201);
    let gathers = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let refused = send(Method::PATCH, "clusterroles/few", merge, gathers).await.expect(403);
    let why = refused["message"].as_str().unwrap();
    assert!(why.ends_with("must have cluster-admin privileges to use the aggregationRule"), "{why}");
    let bind = |kind: &str, name: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}, "subjects": [{"kind": "User", "name": "u"}]})
    };
    for (kind, name, code, message) in [
        ("ClusterRole", "nope", 404, "clusterrolebindings.rbac.authorization.k8s.io \"nope\" not found"),
        ("Role", "nope", 400, "Namespace parameter required."),
        ("Foo", "nope", 500, "unsupported role reference kind: \"Foo\""),
    ] {
        let answer = send(Method::POST, "clusterrolebindings", "application/json", bind(kind, name)).await;
        assert_eq!(answer.expect(code)["message"], message);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_act_as_others_may_be_bound_to_certain_requests() {
    let server = Server::start().await;
    let rules = json!([
        {"verbs": ["impersonate:user-info"], "apiGroups": ["authentication.k8s.io"], "resources": ["users"], "resourceNames": ["ann"]},
        {"verbs": ["impersonate:arbitrary-node"], "apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "resourceNames": ["n1"]},
        {"verbs": ["impersonate-on:user-info:create", "impersonate-on:arbitrary-node:create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ]);
    grant(&server, "bob", rules).await;
    let bob = UserInfo::new("bob", &[]);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let as_other = async |other: &[(&str, &str)]| {
        server.ask_with(&bob, Method::POST, path, other, review.clone().into_bytes()).await
    };
    let found = as_other(&[("impersonate-user", "ann")]).await.expect(201);
    assert_eq!(found["status"]["userInfo"], json!({"username": "ann", "groups": ["system:authenticated"]}));
    let found = as_other(&[("impersonate-user", "system:node:n1")]).await.expect(201);
    assert_eq!(found["status"]["userInfo"]["groups"], json!(["system:nodes", "system:authenticated"]));
    as_other(&[("impersonate-user", "system:node:n2")]).await.expect(403);
    as_other(&[("impersonate-user", "ann"), ("impersonate-group", "g")]).await.expect(403);
    let answer = server.ask_with(&bob, Method::GET, MAPS, &[("impersonate-user", "ann")], Vec::new()).await;
    assert_eq!(
        answer.expect(403)["message"],
        "configmaps is forbidden: User \"bob\" cannot impersonate-on:user-info:list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_gets_tokens_for_its_pods_only_and_mirrors_only_its_own() {
    let server = Server::start().await;
    let kubelet = UserInfo::new("system:node:n1", &["system:nodes"]);
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let uid = server.post("/api/v1/nodes", &node).await.expect(201)["metadata"]["uid"].clone();
    let mut own = pod("own");
    own["spec"]["nodeName"] = json!("n1");
    own["spec"]["volumes"] = json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]);
    let pods = "/api/v1/namespaces/default/pods";
    let own = server.post(pods, &own).await.expect(201);
    // Who may reach what follows the watch; a consistent list makes sure that it has arrived.
    server.get(pods).await.expect(200);
    let send = async |path: &str, body: &serde_json::Value| {
        server.ask_as(&kubelet, Method::POST, path, "application/json", body.to_string().into_bytes()).await
    };
    let token = |spec: serde_json::Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "own", "uid": own["metadata"]["uid"]});
    let unnamed = json!({"apiVersion": "v1", "kind": "Pod", "name": "own"});
    for (spec, refusal) in [
        (json!({}), "node requested token not bound to a pod"),
        (json!({"boundObjectRef": unnamed}), "node requested token with a pod binding without a uid"),
        (json!({"boundObjectRef": bound, "audiences": ["a", "b"]}), "node may only request 0 or 1 audiences"),
        (
            json!({"boundObjectRef": bound, "audiences": ["a"]}),
            "is not authorized to request tokens for this audience",
        ),
        (json!({"boundObjectRef": bound, "audiences": ["vault"]}), ""),
    ] {
        let answer = send(path, &token(spec)).await;
        match refusal {
            "" => assert_eq!(answer.code, 201, "{}", answer.body),
            _ => {
                let why = answer.expect(403)["message"].as_str().unwrap().to_owned();
                assert!(why.ends_with(refusal), "{why}");
            }
        }
    }
    let mut mirror = pod("mirror");
    mirror["spec"]["nodeName"] = json!("n1");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    send(pods, &mirror).await.expect(403);
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
    let mut wide = mirror.clone();
    wide["spec"]["volumes"] = json!([{"name": "c", "configMap": {"name": "x"}}]);
    let why = send(pods, &wide).await.expect(403)["message"].clone();
    assert_eq!(
        why,
        "pods \"mirror\" is forbidden: node \"n1\" can not create pods that reference configmaps"
    );
    send(pods, &mirror).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_stays_who_they_are_because_a_name_is_hard_to_read() {
    let server = Server::start().await;
    let admin = UserInfo::new("admin", &["system:masters"]);
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let other = [("impersonate-user", "j\u{fc}rgen")];
    let found = server.ask_with(&admin, Method::POST, path, &other, review.into_bytes()).await.expect(201);
    assert_eq!(found["status"]["userInfo"]["username"], "j\u{fc}rgen");
    server.ask_with(&admin, Method::GET, MAPS, &other, Vec::new()).await.expect(403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn to_run_something_in_a_pod_takes_the_right_to_create() {
    let server = Server::start().await;
    let all = json!(["pods/exec", "pods/attach", "pods/portforward"]);
    grant(&server, "gina", json!([{"verbs": ["get", "watch"], "apiGroups": [""], "resources": all}])).await;
    grant(&server, "carl", json!([{"verbs": ["get", "create"], "apiGroups": [""], "resources": all}])).await;
    server.post("/api/v1/namespaces/default/pods", &pod("p")).await.expect(201);
    let code = async |user: &str, path: &str| {
        let answer = server.ask_as(&UserInfo::new(user, &[]), Method::GET, path, "", Vec::new()).await;
        (answer.code, answer.body["message"].as_str().unwrap_or_default().to_owned())
    };
    for part in ["exec?command=ls", "attach", "portforward"] {
        let path = format!("/api/v1/namespaces/default/pods/p/{part}");
        assert_eq!(code("gina", &path).await, (403, "pods \"p\" is forbidden: ".to_owned()), "{part}");
        assert_eq!(code("carl", &path).await.0, 400, "{part}: it is on no node");
        let watched = format!("/api/v1/watch/namespaces/default/pods/p/{part}");
        assert_eq!(code("gina", &watched).await.0, 404, "{part}");
    }
    for path in ["watch/namespaces/default/pods/p/status", "proxy/namespaces/default/pods/p"] {
        assert_eq!(server.get(&format!("/api/v1/{path}")).await.code, 404, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_device_claim_is_written_by_those_whom_its_parts_concern() {
    let server = Server::start().await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let rule = |verb: &str, resource: &str| json!({"verbs": [verb], "apiGroups": ["resource.k8s.io"], "resources": [resource]});
    let status = || rule("patch", "resourceclaims/status");
    grant(&server, "plain", json!([status()])).await;
    grant(&server, "binder", json!([status(), rule("patch", "resourceclaims/binding")])).await;
    grant(&server, "driver", json!([status(), rule("arbitrary-node:patch", "resourceclaims/driver")])).await;
    let agent = "system:serviceaccount:default:agent";
    grant(&server, agent, json!([status(), rule("associated-node:patch", "resourceclaims/driver")])).await;
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}}});
    server.post(claims, &claim).await.expect(201);
    let path = format!("{claims}/c/status");
    let patch = async |user: &UserInfo, status: serde_json::Value| {
        let body = json!({"status": status}).to_string().into_bytes();
        server.ask_as(user, Method::PATCH, &path, "application/merge-patch+json", body).await
    };
    let named = |name: &str| UserInfo::new(name, &[]);
    let result = |more: serde_json::Value| {
        let mut one = json!({"request": "r", "driver": "d.example.com", "pool": "p", "device": "1"});
        one.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let on_n1 = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]);
        json!({"allocation": {"devices": {"results": [one]}, "nodeSelector": {"nodeSelectorTerms": on_n1}}})
    };
    let refused = patch(&named("plain"), result(json!({}))).await.expect(422);
    assert_eq!(
        refused["message"],
        "ResourceClaim.resource.k8s.io \"c\" is invalid: status.allocation: Forbidden: changing status.allocation or \
         status.reservedFor requires resource=\"resourceclaims/binding\", verb=\"patch\" permission: \
         resourceclaims.resource.k8s.io is forbidden: User \"plain\" cannot patch resource \"resourceclaims/binding\" \
         in API group \"resource.k8s.io\" at the cluster scope"
    );
    let refused = patch(&named("binder"), result(json!({"adminAccess": true}))).await.expect(422);
    let why = refused["message"].as_str().unwrap();
    assert!(
        why.contains("status.allocation.devices.results[0].adminAccess: Forbidden: admin access"),
        "{why}"
    );
    let scheduler = named("system:kube-scheduler");
    patch(&scheduler, result(json!({}))).await.expect(200);
    let ready = |status: &str| {
        let since = "2026-01-01T00:00:00Z";
        let condition = json!({"type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": since});
        json!({"devices": [{"driver": "d.example.com", "pool": "p", "device": "1", "conditions": [condition]}]})
    };
    let refused = patch(&scheduler, ready("True")).await.expect(422);
    let why = refused["message"].as_str().unwrap();
    assert!(
        why.contains("status.devices: Forbidden: changing status.devices requires resource=\"resourceclaims/driver\", \
            verb=\"[arbitrary-node:patch]\" permission: resourceclaims.resource.k8s.io \"d.example.com\" is forbidden: \
            User \"system:kube-scheduler\" cannot arbitrary-node:patch resource \"resourceclaims/driver\" in API group \
            \"resource.k8s.io\" in the namespace \"default\""),
        "{why}"
    );
    patch(&named("driver"), ready("True")).await.expect(200);
    let mut account = UserInfo::service_account("default", "agent");
    patch(&account, ready("False")).await.expect(422);
    account.extra.insert("authentication.kubernetes.io/node-name".to_owned(), vec!["n1".to_owned()]);
    patch(&account, ready("False")).await.expect(200);
    let controller = UserInfo::service_account("kube-system", "resource-claim-controller");
    let consumer = json!([{"resource": "pods", "name": "p", "uid": "u"}]);
    patch(&named("driver"), json!({"reservedFor": consumer})).await.expect(422);
    patch(&scheduler, json!({"reservedFor": consumer})).await.expect(200);
    patch(&controller, json!({"reservedFor": null})).await.expect(200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_log_says_why_and_of_watches_too_what_is_deprecated() {
    let logs = tempfile::tempdir().unwrap();
    let file = logs.path().join("audit.log");
    let log = AuditLog::at(file.clone());
    let server = Server::start_with(|config| {
        let policy = "rules: [{level: Metadata}]".to_owned();
        config.audit = Some(AuditConfig { policy, log: Some(log), webhook: None });
    })
    .await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let plural = "certificatesigningrequests";
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": plural, "kind": "Own"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "deprecated": true, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}]}});
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await.expect(201);
    let path = format!("/apis/example.com/v1/namespaces/default/{plural}");
    server.until(&path, |answer| answer.code == 200).await;
    drop(server.watch(&format!("{path}?watch=1")).await);
    let failed = server.get(&format!("{path}?watch=1&resourceVersion=nonsense")).await;
    assert!(failed.code >= 400, "{failed:?}");
    assert_eq!(failed.headers[http::header::WARNING], "299 - \"example.com/v1 Own is deprecated\"");
    // Of a kind that is only called like a built-in one, nobody notes when something was said.
    let own = json!({"apiVersion": "example.com/v1", "kind": "Own", "metadata": {"name": "a"}});
    server.post(&path, &own).await.expect(201);
    let said = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
    let told = server.patch(&format!("{path}/a/status"), "merge", &said).await.expect(200);
    assert_eq!(told["status"], said["status"]);
    assert_eq!(
        server.get(&format!("/apis/example.com/v1/watch/namespaces/default/{plural}/a/status")).await.code,
        405
    );
    let (ann, kubelet) = (UserInfo::new("ann", &[]), UserInfo::new("system:node:n1", &["system:nodes"]));
    for user in [&ann, &kubelet] {
        server.ask_as(user, Method::GET, &format!("{MAPS}/a"), "", Vec::new()).await.expect(403);
    }
    server.stop().await;
    let text = std::fs::read_to_string(&file).unwrap();
    let events: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let watched = |stage: &str| {
        let is = |event: &&serde_json::Value| event["verb"] == "watch" && event["stage"] == stage;
        events
            .iter()
            .filter(is)
            .filter(|event| event["objectRef"]["apiGroup"] == "example.com")
            .collect::<Vec<_>>()
    };
    assert_eq!(watched("ResponseStarted")[0]["annotations"]["k8s.io/deprecated"], "true");
    let failed = watched("ResponseComplete").into_iter().find(|event| event["responseStatus"]["code"] != 200);
    assert_eq!(failed.expect("the failed watch")["responseStatus"]["status"], "Failure");
    let reason = |user: &UserInfo| {
        let is = |event: &&serde_json::Value| {
            event["user"]["username"] == user.name && event["stage"] == "ResponseComplete"
        };
        events.iter().find(is).expect("an event")["annotations"].clone()
    };
    assert_eq!(
        reason(&ann),
        json!({"authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": ""})
    );
    assert_eq!(
        reason(&kubelet)["authorization.k8s.io/reason"],
        "no relationship found between node 'n1' and this object"
    );
}
