//! The configuration files of `kelson kube-apiserver`, as they are and as they change while it runs: expressions about
//! tokens, webhooks that are asked under conditions, policies in a file, keys that rotate.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pki::table::names;
use serde_json::{Value, json};

use crate::apiserver::{Bench, Issuer, bearer, in_group, pki_text, refs, who_bears};
use crate::harness::in_own_network;
use crate::https;
use testing::has;

/// Waits until something is so.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn expressions_make_users_and_files_are_read_again() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let (one, two) = (Issuer::new(&bench.pki), Issuer::new(&bench.pki));
        let ca = pki_text(&bench, names::SERVER_CA);
        let by_claims = json!({
            "issuer": {"url": one.url, "audiences": ["kelson", "other"], "audienceMatchPolicy": "MatchAny", "certificateAuthority": ca},
            "claimValidationRules": [{"expression": "claims.exp - claims.iat <= 86400.0", "message": "lives too long"}],
            "claimMappings": {
                "username": {"expression": "claims.?name.orValue('u-' + claims.sub)"},
                "groups": {"expression": "claims.roles.map(r, 'role:' + r)"},
                "uid": {"expression": "claims.sub"},
                "extra": [{"key": "example.com/tenant", "valueExpression": "claims.tenant"}],
            },
            "userValidationRules": [{"expression": "!user.username.startsWith('system:')", "message": "reserved"}],
        });
        // Its keys are found where the issuer itself does not publish them.
        let elsewhere = json!({
            "issuer": {"url": "https://not.reached.example", "discoveryURL": format!("{}/.well-known/openid-configuration", two.url),
                "audiences": ["kelson"], "certificateAuthority": ca},
            "claimMappings": {"username": {"claim": "sub", "prefix": "two:"}},
        });
        let file = |issuers: &[&Value]| {
            json!({"apiVersion": "apiserver.config.k8s.io/v1beta1", "kind": "AuthenticationConfiguration", "jwt": issuers}).to_string()
        };
        let path = bench.write("authn.yaml", &file(&[&by_claims]));
        let (_api, curl) = bench.api(&[format!("--authentication-config={path}")]);

        let now = jiff::Timestamp::now().as_second();
        let claims = json!({"sub": "7", "aud": "other", "roles": ["a", "b"], "tenant": "t", "iat": now, "exp": now + 600});
        let user = who_bears(&curl, &one.token(claims.clone())).unwrap();
        assert!(user["username"] == "u-7" && user["uid"] == "7" && in_group(&user, "role:b"), "{user}");
        assert_eq!(user["extra"]["example.com/tenant"][0], "t");
        for (claim, value) in [
            ("exp", json!(now + 100_000)),
            ("name", json!("system:admin")),
            ("aud", json!("third")),
            ("roles", json!(5)),
        ] {
            let mut bad = claims.clone();
            bad[claim] = value;
            assert_eq!(who_bears(&curl, &one.token(bad)), Err(401), "{claim}");
        }

        let moved = Issuer {
            url: "https://not.reached.example".to_owned(),
            key: pki::PrivateKey::from_pem(two.key.to_pem().as_bytes()).unwrap(),
        };
        let token = moved.token(json!({"sub": "eve", "aud": "kelson"}));
        assert_eq!(who_bears(&curl, &token), Err(401));
        bench.write("authn.yaml", &file(&[&by_claims, &elsewhere]));
        eventually("another issuer is known", || who_bears(&curl, &token).is_ok());
        assert_eq!(who_bears(&curl, &token).unwrap()["username"], "two:eve");
        // What cannot be used changes nothing.
        bench.write("authn.yaml", "kind: Nothing\n");
        let reloads = |status: &str| {
            let metrics = curl.ask("/metrics", &refs(&bench.admin())).1;
            read_again(&metrics, "authentication", status) == 1
        };
        eventually("the bad file is counted", || reloads("failure"));
        assert!(reloads("success") && who_bears(&curl, &token).is_ok());
        // An issuer that is taken out is not believed any more, whoever was known a moment ago.
        bench.write("authn.yaml", &file(&[&by_claims]));
        eventually("the issuer is gone", || who_bears(&curl, &token) == Err(401));
        assert!(who_bears(&curl, &one.token(claims)).is_ok());
    });
}

#[test]
fn webhooks_are_asked_under_conditions_and_policies_stand_in_a_file() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let times = Arc::new(AtomicUsize::new(0));
        let (seen, count) = (asked.clone(), times.clone());
        let judge = https::serve(&bench.pki, move |path, review| {
            count.fetch_add(1, Ordering::SeqCst);
            seen.lock().unwrap().push(review.clone());
            let spec = &review["spec"];
            let status = match path {
                "/first" => json!({"allowed": spec["resourceAttributes"]["resource"] == "configmaps"}),
                _ => json!({"allowed": false, "denied": spec["resourceAttributes"]["namespace"] == "secret"}),
            };
            json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "status": status})
        });
        let webhook = |name: &str, kubeconfig: String, failure: &str, conditions: &[&str]| {
            let conditions: Vec<Value> = conditions.iter().map(|own| json!({"expression": own})).collect();
            json!({"type": "Webhook", "name": name, "webhook": {
                "timeout": "3s", "authorizedTTL": "1h", "unauthorizedTTL": "1h", "subjectAccessReviewVersion": "v1",
                "matchConditionSubjectAccessReviewVersion": "v1", "failurePolicy": failure,
                "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig}, "matchConditions": conditions}})
        };
        let file = |authorizers: &[Value]| {
            json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": authorizers}).to_string()
        };
        let user = "request.user == 'ann'";
        let first = webhook(
            "first",
            bench.webhook("first.kubeconfig", judge, "/first"),
            "NoOpinion",
            &["has(request.resourceAttributes)", user, "request.resourceAttributes.namespace != 'other'"],
        );
        let second =
            webhook("second", bench.webhook("second.kubeconfig", judge, "/second"), "NoOpinion", &[user]);
        let closed =
            webhook("closed", bench.webhook("closed.kubeconfig", 9, "/"), "Deny", &["request.user == 'bob'"]);
        let rbac = json!({"type": "RBAC", "name": "rbac"});
        let path = bench.write("authz.yaml", &file(&[second, first.clone(), closed, rbac.clone()]));
        let (api, curl) = bench.api(&[
            format!("--authorization-config={path}"),
            format!(
                "--token-auth-file={}",
                bench.write("tokens.csv", "a,ann,1\nb,bob,2\nc,cid,3\nd,dan,4,\"readers\"\n")
            ),
        ]);
        let may = |token: &str, path: &str| curl.ask(path, &refs(&bearer(token))).0 == 200;
        let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
        assert!(may("a", &maps("default")));
        let questions = times.load(Ordering::SeqCst);
        assert!(may("a", &maps("default")));
        assert_eq!(times.load(Ordering::SeqCst), questions, "what was said is remembered");
        assert!(!may("a", &maps("other")), "the first is not asked about it");
        assert!(!may("a", &maps("secret")), "the second says no before the first says yes");
        assert!(may(
            "a",
            &format!("{}?labelSelector=app%3Dx&fieldSelector=metadata.name%3Dy", maps("default"))
        ));
        let last = asked.lock().unwrap().last().cloned().unwrap();
        assert_eq!(
            last["spec"]["resourceAttributes"]["labelSelector"]["requirements"],
            json!([{"key": "app", "operator": "In", "values": ["x"]}])
        );
        assert_eq!(
            last["spec"]["resourceAttributes"]["fieldSelector"]["requirements"][0]["values"],
            json!(["y"])
        );
        let questions = times.load(Ordering::SeqCst);
        assert!(!may("b", &maps("default")), "who cannot be asked refuses");
        assert!(!may("c", &maps("default")));
        assert_eq!(times.load(Ordering::SeqCst), questions, "nobody is asked about others");
        // Without the second, there is nobody to say no.
        bench.write("authz.yaml", &file(&[first, rbac]));
        eventually("other authorizers decide", || may("a", &maps("secret")));
        bench.write("authz.yaml", "kind: Nothing\n");
        eventually("the bad file is counted", || {
            let metrics = curl.ask("/metrics", &refs(&bench.admin())).1;
            read_again(&metrics, "authorization", "failure") == 1
        });
        assert!(may("a", &maps("secret")));
        drop(api);

        let policy = |spec: Value| {
            json!({"apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy", "spec": spec})
                .to_string()
        };
        let text = [
            "# who may do what".to_owned(),
            policy(json!({"user": "ann", "namespace": "*", "resource": "*", "apiGroup": "*", "nonResourcePath": "*"})),
            policy(json!({"group": "readers", "namespace": "default", "resource": "configmaps", "readonly": true})),
        ]
        .join("\n");
        let (_api, curl) = bench.api(&[
            "--authorization-mode=Node,ABAC".to_owned(),
            format!("--authorization-policy-file={}", bench.write("abac.jsonl", &text)),
            format!("--token-auth-file={}", bench.dir.path().join("tokens.csv").display()),
        ]);
        let may = |token: &str, path: &str| curl.ask(path, &refs(&bearer(token))).0 == 200;
        assert!(may("a", &maps("other")) && may("a", "/metrics"));
        assert!(may("d", &maps("default")) && !may("d", &maps("other")) && !may("d", "/metrics"));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        assert_eq!(curl.post(&maps("default"), &map, &refs(&bearer("d"))).0, 403);
        assert_eq!(curl.post(&maps("default"), &map, &refs(&bearer("a"))).0, 201);
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": "default"}});
        let (_, said) =
            curl.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", &review, &refs(&bearer("a")));
        assert_eq!(said["status"]["resourceRules"][0]["verbs"], json!(["*"]), "{said}");
    });
}

#[test]
fn keys_rotate_on_a_running_server() {
    in_own_network(|| async {
        if !has("curl") || !has("etcdctl") {
            return;
        }
        let bench = Bench::new(false);
        let stored = |name: &str| {
            let mut command = std::process::Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", crate::apiserver::ETCD));
            command.arg(format!("--cacert={}", bench.certificate(names::ETCD_CA)));
            command.arg(format!("--cert={}", bench.certificate(names::APISERVER_ETCD_CLIENT)));
            command.arg(format!("--key={}", bench.key(names::APISERVER_ETCD_CLIENT)));
            command.args(["get", "--print-value-only", &format!("/registry/secrets/default/{name}")]);
            String::from_utf8_lossy(&command.output().expect("etcdctl runs").stdout).into_owned()
        };
        let key =
            |name: &str, text: &str| json!({"name": name, "secret": text.repeat(11)[..43].to_owned() + "="});
        let (old, new) = (key("old", "AAAA"), key("new", "BAQE"));
        let write = |keys: &[&Value]| {
            let text = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
                "resources": [{"resources": ["secrets"], "providers": [{"secretbox": {"keys": keys}}]}]});
            bench.write("encryption.yaml", &text.to_string())
        };
        let path = write(&[&old]);
        let flags = [
            format!("--encryption-provider-config={path}"),
            "--encryption-provider-config-automatic-reload=true".to_owned(),
        ];
        let (api, curl) = bench.api(&flags);
        let admin = bench.admin();
        let admin = refs(&admin);
        let secrets = "/api/v1/namespaces/default/secrets";
        let make = |name: &str| {
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"p": "x"}});
            assert_eq!(curl.post(secrets, &secret, &admin).0, 201);
        };
        make("a");
        assert!(stored("a").starts_with("k8s:enc:secretbox:v1:old:"));
        bench.write("encryption.yaml", "kind: Nothing\n");
        write(&[&new, &old]);
        let mut number = 0;
        eventually("the new key is used", || {
            number += 1;
            make(&format!("try-{number}"));
            stored(&format!("try-{number}")).starts_with("k8s:enc:secretbox:v1:new:")
        });
        // Written anew, though unchanged, the first one is under the new key; then the old key can go.
        let (_, mut first) = curl.ask(&format!("{secrets}/a"), &admin);
        for name in
            (0..number).map(|number| if number == 0 { "a".to_owned() } else { format!("try-{number}") })
        {
            first = curl.ask(&format!("{secrets}/{name}"), &admin).1;
            let text = first.to_string();
            let mut put = vec!["-X", "PUT", "-H", "Content-Type: application/json", "--data-binary", &text];
            put.extend(&admin);
            assert_eq!(curl.ask(&format!("{secrets}/{name}"), &put).0, 200);
            assert!(stored(&name).starts_with("k8s:enc:secretbox:v1:new:"), "{name}");
        }
        write(&[&new]);
        let counted = |status: &str, least: u64| {
            read_again(&curl.ask("/metrics", &admin).1, "encryption", status) >= least
        };
        eventually("the old key is dropped", || counted("success", 2));
        assert_eq!(first["data"]["p"], "eA==");
        assert_eq!(curl.ask(&format!("{secrets}/a"), &admin).1["data"]["p"], "eA==");
        // What another server sealed with a key that is not known here comes when the key does.
        let other = key("other", "CQkJ");
        write(&[&other, &new]);
        eventually("the other key is taken over", || counted("success", 3));
        make("foreign");
        assert!(stored("foreign").starts_with("k8s:enc:secretbox:v1:other:"));
        drop(api);
        write(&[&new]);
        let (_api, curl) = bench.api(&flags);
        assert_eq!(curl.ask(&format!("{secrets}/foreign"), &admin).0, 404, "no key opens it");
        write(&[&new, &other]);
        eventually("it is read again", || curl.ask(&format!("{secrets}/foreign"), &admin).0 == 200);
    });
}

/// How often a file was read again with this outcome.
fn read_again(metrics: &Value, what: &str, status: &str) -> u64 {
    let name = format!("apiserver_{what}_config_controller_automatic_reloads_total{{status=\"{status}\",");
    let line = metrics.as_str().and_then(|text| text.lines().find(|line| line.starts_with(&name)));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}
