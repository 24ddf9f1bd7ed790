//! Who may do what, and tokens.

use apiserver::UserInfo;
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
