//! `kelson kube-apiserver` as a program of its own, on a real etcd over TLS, asked by curl: every way to say who one
//! is, audit at each level, encryption at rest as etcdctl sees it, limits, and a stop that drains.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use pki::table::names;
use pki::{Algorithm, ClusterPki, PrivateKey};
use serde_json::{Value, json};

use crate::harness::in_own_network;
use crate::https::{self, Curl};
use testing::has;

pub(crate) const API: &str = "https://127.0.0.1:6443";
pub(crate) const ETCD: &str = "https://127.0.0.1:2379";

/// A process that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let command = command.stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().expect("the program starts"))
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended already
        let _ = self.0.wait();
    }
}

/// An etcd and what an API server on it needs.
pub(crate) struct Bench {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) pki: ClusterPki,
    _etcd: Running,
}

impl Bench {
    /// Starts etcd: the real one where there is one and it is wanted, ours otherwise.
    pub(crate) fn new(real: bool) -> Self {
        let dir = tempfile::Builder::new().prefix("kelson-e2e-").tempdir().unwrap();
        let pki = https::certificates(&dir.path().join("pki"));
        let mut command = if real && has("etcd") {
            Command::new("etcd")
        } else {
            let mut own = Command::new(env!("CARGO_BIN_EXE_kelson"));
            own.arg("etcd");
            own
        };
        let file = |path: PathBuf| path.display().to_string();
        command.args(["--name=one", "--client-cert-auth=true"]);
        command.arg(format!("--data-dir={}", file(dir.path().join("etcd"))));
        command.arg(format!("--listen-client-urls={ETCD}")).arg(format!("--advertise-client-urls={ETCD}"));
        command.arg(format!("--cert-file={}", file(pki.certificate_path(names::ETCD_SERVER))));
        command.arg(format!("--key-file={}", file(pki.key_path(names::ETCD_SERVER))));
        command.arg(format!("--trusted-ca-file={}", file(pki.certificate_path(names::ETCD_CA))));
        let etcd = Running::start(command, &dir.path().join("etcd.log"));
        Self { dir, pki, _etcd: etcd }
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) fn certificate(&self, name: &str) -> String {
        self.pki.certificate_path(name).display().to_string()
    }

    pub(crate) fn key(&self, name: &str) -> String {
        self.pki.key_path(name).display().to_string()
    }

    /// The command line that a cluster would have, and more.
    pub(crate) fn command(&self, more: &[String]) -> Command {
        let accounts = self.write("sa.key", &self.pki.service_account().to_pem());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.arg("kube-apiserver");
        for (flag, value) in [
            ("etcd-servers", ETCD.to_owned()),
            ("etcd-cafile", self.certificate(names::ETCD_CA)),
            ("etcd-certfile", self.certificate(names::APISERVER_ETCD_CLIENT)),
            ("etcd-keyfile", self.key(names::APISERVER_ETCD_CLIENT)),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", "6443".to_owned()),
            ("tls-cert-file", self.certificate(names::APISERVER)),
            ("tls-private-key-file", self.key(names::APISERVER)),
            ("client-ca-file", self.certificate(names::CLIENT_CA)),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-signing-key-file", accounts.clone()),
            ("service-account-key-file", accounts),
            ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
            ("authorization-mode", "Node,RBAC".to_owned()),
        ] {
            let given = |name: &str| more.iter().any(|own| own.starts_with(&format!("--{name}=")));
            if !(given(flag) || flag == "authorization-mode" && given("authorization-config")) {
                command.arg(format!("--{flag}={value}"));
            }
        }
        command.args(more);
        command
    }

    pub(crate) fn curl(&self) -> Curl {
        Curl { server: API.to_owned(), ca: self.pki.certificate_path(names::SERVER_CA) }
    }

    /// Starts an API server and waits until it is ready.
    pub(crate) fn api(&self, more: &[String]) -> (Running, Curl) {
        let log = self.dir.path().join("api.log");
        let api = Running::start(self.command(more), &log);
        let curl = self.curl();
        let deadline = Instant::now() + Duration::from_secs(60);
        while curl.ask("/readyz", &[]).0 != 200 {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(Instant::now() < deadline, "the API server did not become ready: {said}");
            std::thread::sleep(Duration::from_millis(50));
        }
        (api, curl)
    }

    /// What makes curl an administrator.
    pub(crate) fn admin(&self) -> Vec<String> {
        vec!["--cert".into(), self.certificate(names::ADMIN), "--key".into(), self.key(names::ADMIN)]
    }

    /// A kubeconfig that names a server of this test.
    pub(crate) fn webhook(&self, name: &str, port: u16, path: &str) -> String {
        let ca = self.certificate(names::SERVER_CA);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}{path}', certificate-authority: {ca}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        self.write(name, &text)
    }
}

pub(crate) fn refs(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// An OIDC issuer: its keys, and a way to sign.
pub(crate) struct Issuer {
    pub(crate) url: String,
    pub(crate) key: PrivateKey,
}

impl Issuer {
    pub(crate) fn new(pki: &ClusterPki) -> Self {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let jwk = serde_json::to_value(key.public().jwk().unwrap()).unwrap();
        let own = std::sync::Arc::new(std::sync::OnceLock::<String>::new());
        let known = own.clone();
        let port = https::serve(pki, move |path, _| {
            let url = known.get().cloned().unwrap_or_default();
            match path {
                "/.well-known/openid-configuration" => {
                    json!({"issuer": url, "jwks_uri": format!("{url}/keys"), "id_token_signing_alg_values_supported": ["ES256"]})
                }
                "/keys" => json!({"keys": [jwk]}),
                _ => Value::Null,
            }
        });
        let url = format!("https://127.0.0.1:{port}");
        own.set(url.clone()).unwrap();
        Self { url, key }
    }

    pub(crate) fn token(&self, mut claims: Value) -> String {
        claims["iss"] = json!(self.url);
        if claims["exp"].is_null() {
            claims["exp"] = json!(jiff::Timestamp::now().as_second() + 600);
        }
        let head = json!({"alg": self.key.jws_algorithm(), "kid": self.key.public().key_id(), "typ": "JWT"});
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", part(&head), part(&claims));
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(self.key.sign_jws(signed.as_bytes()).unwrap()))
    }
}

/// Who the server takes one for.
pub(crate) fn who(curl: &Curl, credentials: &[&str]) -> Result<Value, u16> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    match curl.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review, credentials) {
        (201, body) => Ok(body["status"]["userInfo"].clone()),
        (code, _) => Err(code),
    }
}

pub(crate) fn bearer(token: &str) -> [String; 2] {
    ["-H".to_owned(), format!("Authorization: Bearer {token}")]
}

pub(crate) fn who_bears(curl: &Curl, token: &str) -> Result<Value, u16> {
    who(curl, &refs(&bearer(token)))
}

pub(crate) fn in_group(user: &Value, group: &str) -> bool {
    user["groups"].as_array().is_some_and(|groups| groups.iter().any(|own| own == group))
}

#[test]
fn everyone_is_known_by_what_they_show() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(true);
        let (one, two) = (Issuer::new(&bench.pki), Issuer::new(&bench.pki));
        let judge = https::serve(&bench.pki, |path, review| {
            let mut answer =
                json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "status": {}});
            match path {
                "/token" if review["spec"]["token"] == "from-elsewhere" => {
                    answer["status"] = json!({"authenticated": true, "user": {"username": "hook", "uid": "h1", "groups": ["hooked"]}});
                }
                "/access" => {
                    let spec = &review["spec"];
                    let allowed =
                        spec["user"] == "hook" && spec["resourceAttributes"]["resource"] == "configmaps";
                    let denied =
                        spec["user"] == "hook" && spec["resourceAttributes"]["resource"] == "secrets";
                    answer["status"] =
                        json!({"allowed": allowed, "denied": denied, "reason": "asked elsewhere"});
                }
                _ => {}
            }
            answer
        });
        let ca = pki_text(&bench, names::SERVER_CA);
        let issuer = |own: &Issuer, prefix: &str| {
            json!({"issuer": {"url": own.url, "audiences": ["kelson"], "certificateAuthority": ca},
                "claimMappings": {"username": {"claim": "sub", "prefix": prefix}, "groups": {"claim": "groups", "prefix": prefix}}})
        };
        let authentication = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [issuer(&one, "one:"), issuer(&two, "two:")],
            "anonymous": {"enabled": true, "conditions": [{"path": "/livez"}, {"path": "/readyz"}, {"path": "/healthz"}]},
        });
        let authorization = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration",
            "authorizers": [
                {"type": "Node", "name": "node"},
                {"type": "Webhook", "name": "hook", "webhook": {
                    "timeout": "10s", "authorizedTTL": "5m", "unauthorizedTTL": "30s", "subjectAccessReviewVersion": "v1",
                    "matchConditionSubjectAccessReviewVersion": "v1", "failurePolicy": "NoOpinion",
                    "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": bench.webhook("access.kubeconfig", judge, "/access")}}},
                {"type": "RBAC", "name": "rbac"},
            ],
        });
        let (_api, curl) = bench.api(&[
            format!("--authentication-config={}", bench.write("authn.yaml", &authentication.to_string())),
            format!("--authorization-config={}", bench.write("authz.yaml", &authorization.to_string())),
            format!("--token-auth-file={}", bench.write("tokens.csv", "static-token,ann,7,\"dev,ops\"\n")),
            format!(
                "--authentication-token-webhook-config-file={}",
                bench.webhook("token.kubeconfig", judge, "/token")
            ),
            "--enable-bootstrap-token-auth=true".to_owned(),
            format!("--requestheader-client-ca-file={}", bench.certificate(names::FRONT_PROXY_CA)),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
            "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
            "--requestheader-group-headers=X-Remote-Group".to_owned(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        ]);
        let admin = bench.admin();
        let admin = refs(&admin);

        let user = who(&curl, &admin).unwrap();
        assert!(in_group(&user, "system:masters"), "client certificate: {user}");
        let user = who_bears(&curl, "static-token").unwrap();
        assert!(user["username"] == "ann" && user["uid"] == "7" && in_group(&user, "ops"), "{user}");
        assert_eq!(who_bears(&curl, "another-token"), Err(401));

        for (issuer, other, name) in [(&one, &two, "one"), (&two, &one, "two")] {
            let token = issuer.token(json!({"sub": "eve", "aud": "kelson", "groups": ["g"]}));
            let user = who_bears(&curl, &token).unwrap();
            assert_eq!(user["username"], format!("{name}:eve"));
            assert!(in_group(&user, &format!("{name}:g")), "{user}");
            // The same claims under the other's key, for somebody else, or out of date.
            let forged = Issuer {
                url: issuer.url.clone(),
                key: PrivateKey::from_pem(other.key.to_pem().as_bytes()).unwrap(),
            };
            assert_eq!(who_bears(&curl, &forged.token(json!({"sub": "eve", "aud": "kelson"}))), Err(401));
            assert_eq!(who_bears(&curl, &issuer.token(json!({"sub": "eve", "aud": "other"}))), Err(401));
            assert_eq!(
                who_bears(&curl, &issuer.token(json!({"sub": "eve", "aud": "kelson", "exp": 1}))),
                Err(401)
            );
        }

        let user = who_bears(&curl, "from-elsewhere").unwrap();
        assert!(user["username"] == "hook" && in_group(&user, "hooked"), "webhook: {user}");
        let hook = bearer("from-elsewhere");
        assert_eq!(
            curl.ask("/api/v1/namespaces/default/configmaps", &refs(&hook)).0,
            200,
            "the webhook allows"
        );
        let (code, refused) = curl.ask("/api/v1/namespaces/default/secrets", &refs(&hook));
        assert!(code == 403 && refused["message"].as_str().unwrap().contains("asked elsewhere"), "{refused}");
        assert_eq!(curl.ask("/api/v1/namespaces/default/pods", &refs(&hook)).0, 403, "nobody allows");

        let proxy = [
            "--cert",
            &bench.certificate(names::FRONT_PROXY_CLIENT),
            "--key",
            &bench.key(names::FRONT_PROXY_CLIENT),
            "-H",
            "X-Remote-User: far",
            "-H",
            "X-Remote-Uid: f1",
            "-H",
            "X-Remote-Group: away",
            "-H",
            "X-Remote-Extra-Scopes: view",
        ];
        let user = who(&curl, &proxy).unwrap();
        assert!(
            user["username"] == "far" && user["uid"] == "f1" && user["extra"]["scopes"][0] == "view",
            "{user}"
        );
        let mut pretender = vec!["-H", "X-Remote-User: far"];
        pretender.extend(&admin);
        assert_ne!(who(&curl, &pretender).unwrap()["username"], "far", "only the proxy's certificate counts");

        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:joining"}});
        assert_eq!(curl.post("/api/v1/namespaces/kube-system/secrets", &secret, &admin).0, 201);
        let deadline = Instant::now() + Duration::from_secs(10);
        let user = loop {
            match who_bears(&curl, "abcdef.0123456789abcdef") {
                Ok(user) => break user,
                Err(code) => assert!(Instant::now() < deadline, "bootstrap token: {code}"),
            }
        };
        assert!(
            user["username"] == "system:bootstrap:abcdef" && in_group(&user, "system:bootstrappers:joining"),
            "{user}"
        );

        assert_eq!(curl.ask("/livez", &[]).0, 200, "anonymous may ask for health");
        assert_eq!(curl.ask("/api", &[]).0, 401, "and for nothing else");

        let mut acting = vec![
            "-H",
            "Impersonate-User: bob",
            "-H",
            "Impersonate-Uid: u9",
            "-H",
            "Impersonate-Group: g1",
            "-H",
            "Impersonate-Extra-Scopes: read",
        ];
        acting.extend(&admin);
        let user = who(&curl, &acting).unwrap();
        assert!(
            user["username"] == "bob"
                && user["uid"] == "u9"
                && in_group(&user, "g1")
                && user["extra"]["scopes"][0] == "read",
            "{user}"
        );
        let ann = bearer("static-token");
        let mut acting = refs(&ann);
        acting.extend(["-H", "Impersonate-User: bob"]);
        assert_eq!(who(&curl, &acting), Err(403), "acting for others needs the right to");

        bound_tokens(&curl, &admin);
        let ann = bearer("static-token");
        let (code, keys) = curl.ask("/openid/v1/jwks", &admin);
        assert!(code == 200 && keys["keys"][0]["kid"].is_string(), "{keys}");
        let (code, found) = curl.ask("/.well-known/openid-configuration", &admin);
        assert!(code == 200 && found["issuer"] == "https://kubernetes.default.svc", "{found}");
        assert_eq!(curl.ask("/openid/v1/jwks", &refs(&ann)).0, 403, "the keys are for service accounts");
    });
}

pub(crate) fn pki_text(bench: &Bench, name: &str) -> String {
    std::fs::read_to_string(bench.pki.certificate_path(name)).unwrap()
}

/// Tokens that are good as long as a pod, a secret or a node is there.
fn bound_tokens(curl: &Curl, admin: &[&str]) {
    let core = "/api/v1/namespaces/default";
    let make = |path: &str, object: Value| {
        let (code, made) = curl.post(path, &object, admin);
        assert!(code == 201, "{path}: {made}");
        made
    };
    make(
        &format!("{core}/serviceaccounts"),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "app"}}),
    );
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"serviceAccountName": "app", "containers": [{"name": "c", "image": "i"}]}});
    let pod = make(&format!("{core}/pods"), pod);
    let secret = make(
        &format!("{core}/secrets"),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}),
    );
    let node = make("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}));
    for (kind, object, path) in [
        ("Pod", pod, format!("{core}/pods/p")),
        ("Secret", secret, format!("{core}/secrets/s")),
        ("Node", node, "/api/v1/nodes/n".into()),
    ] {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef":
            {"apiVersion": "v1", "kind": kind, "name": object["metadata"]["name"], "uid": object["metadata"]["uid"]}}});
        let issued = make(&format!("{core}/serviceaccounts/app/token"), request);
        let token = issued["status"]["token"].as_str().unwrap();
        let user = who_bears(curl, token).unwrap();
        assert_eq!(user["username"], "system:serviceaccount:default:app", "{kind}");
        if kind == "Pod" {
            assert_eq!(user["extra"]["authentication.kubernetes.io/pod-name"][0], "p");
        }
        let mut delete = vec![
            "-X",
            "DELETE",
            "-H",
            "Content-Type: application/json",
            "--data-binary",
            "{\"gracePeriodSeconds\": 0}",
        ];
        delete.extend(admin);
        assert_eq!(curl.ask(&path, &delete).0, 200, "{kind}");
        // What was good a moment ago is remembered for some seconds.
        let deadline = Instant::now() + Duration::from_secs(30);
        while who_bears(curl, token).is_ok() {
            assert!(Instant::now() < deadline, "a token outlives its {kind}");
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

#[test]
fn requests_are_audited_at_their_level_and_bounded() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitManagedFields: true\nrules:\n- level: None\n  resources: [{group: '', resources: [endpoints]}]\n- level: Metadata\n  resources: [{group: '', resources: [secrets]}]\n- level: Request\n  omitStages: [RequestReceived]\n  resources: [{group: '', resources: [serviceaccounts]}]\n- level: RequestResponse\n  resources: [{group: '', resources: [configmaps]}]\n- level: None\n";
        let log = bench.dir.path().join("audit.log");
        let (_api, curl) = bench.api(&[
            format!("--audit-policy-file={}", bench.write("policy.yaml", policy)),
            format!("--audit-log-path={}", log.display()),
            "--etcd-prefix=/elsewhere".to_owned(),
            "--request-timeout=3s".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--enable-admission-plugins=AlwaysPullImages,NodeRestriction".to_owned(),
            "--runtime-config=batch/v1=false".to_owned(),
            "--v=2".to_owned(),
        ]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let core = "/api/v1/namespaces/default";
        let object =
            |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        for (plural, kind) in
            [("secrets", "Secret"), ("serviceaccounts", "ServiceAccount"), ("endpoints", "Endpoints")]
        {
            assert_eq!(curl.post(&format!("{core}/{plural}"), &object(kind, "a"), &admin).0, 201, "{plural}");
        }
        let mut map = object("ConfigMap", "a");
        map["data"] = json!({"k": "v"});
        let mut acting = vec!["-H", "Impersonate-User: bob", "-H", "Impersonate-Group: system:masters"];
        acting.extend(&admin);
        assert_eq!(curl.post(&format!("{core}/configmaps"), &map, &acting).0, 201);

        let deadline = Instant::now() + Duration::from_secs(10);
        let events = loop {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let events: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if events
                .iter()
                .any(|one| one["objectRef"]["resource"] == "configmaps" && one["stage"] == "ResponseComplete")
            {
                break events;
            }
            assert!(Instant::now() < deadline, "no line for the ConfigMap: {text}");
            std::thread::sleep(Duration::from_millis(50));
        };
        let find = |resource: &str, stage: &str| {
            events.iter().find(|one| {
                one["objectRef"]["resource"] == resource
                    && one["stage"] == stage
                    && one["verb"] == "create"
                    && one["objectRef"]["name"] != "default"
            })
        };
        let secret = find("secrets", "ResponseComplete").expect("secrets are written about");
        assert!(secret["level"] == "Metadata" && secret.get("requestObject").is_none(), "{secret}");
        assert_eq!(secret["annotations"]["authorization.k8s.io/decision"], "allow");
        assert!(find("secrets", "RequestReceived").is_some());
        let account = find("serviceaccounts", "ResponseComplete").expect("accounts are written about");
        assert!(
            account["requestObject"]["metadata"]["name"] == "a" && account.get("responseObject").is_none(),
            "{account}"
        );
        assert!(find("serviceaccounts", "RequestReceived").is_none());
        let map = find("configmaps", "ResponseComplete").unwrap();
        assert_eq!(map["requestObject"]["data"]["k"], "v");
        assert!(
            map["responseObject"]["metadata"]["uid"].is_string()
                && map["responseObject"]["metadata"]["managedFields"].is_null(),
            "{map}"
        );
        assert!(map["user"]["username"] != "bob" && map["impersonatedUser"]["username"] == "bob", "{map}");
        assert!(find("endpoints", "ResponseComplete").is_none());

        // Chosen plug-ins and versions: pods need no account here, always pull, and there are no jobs.
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        let (code, made) = curl.post(&format!("{core}/pods"), &pod, &admin);
        assert!(code == 201 && made["spec"]["containers"][0]["imagePullPolicy"] == "Always", "{made}");
        assert_eq!(curl.ask("/apis/batch/v1", &admin).0, 404);

        // Bounds: size, depth, headers, time.
        let large = bench.write("large.json", &format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"l\"}},\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(4 << 20)));
        let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let head = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"d\",\"managedFields\":[{\"fieldsV1\":";
        let nested = bench.write("nested.json", &format!("{head}{}}}]}}}}", deep("{\"a\":", "}")));
        let yaml = bench.write("nested.yaml", &deep("[", "]"));
        for (file, want) in [(large, 413), (nested, 400), (yaml, 400)] {
            let kind = if file.ends_with("yaml") { "yaml" } else { "json" };
            let (kind, from) = (format!("Content-Type: application/{kind}"), format!("@{file}"));
            let mut more = vec!["-H", &kind, "--data-binary"];
            more.push(&from);
            more.extend(&admin);
            let (code, said) = curl.ask(&format!("{core}/configmaps"), &more);
            assert!(code == want && said["kind"] == "Status", "{want}: {code} {said}");
        }
        let long = format!("X-Long: {}", "y".repeat(300_000));
        let headers = bench.write("headers", &long);
        let (from, mut more) = (format!("@{headers}"), vec!["--http1.1", "-H"]);
        more.push(&from);
        more.extend(&admin);
        assert_eq!(curl.ask("/api/v1/namespaces", &more).0, 431, "too many headers");
        let mut slow = Command::new("sh");
        let upload = format!(
            "sleep 8 | curl -sS --max-time 20 --cacert {} --cert {} --key {} -X POST -H 'Content-Type: application/json' -T - -o /dev/null -w '%{{http_code}}' {API}{core}/configmaps",
            bench.certificate(names::SERVER_CA),
            bench.certificate(names::ADMIN),
            bench.key(names::ADMIN)
        );
        let output = slow.args(["-c", &upload]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "504", "a request that does not come in time");
    });
}

#[test]
fn secrets_are_unreadable_in_etcd_and_keys_rotate() {
    in_own_network(|| async {
        if !has("curl") || !has("etcdctl") {
            return;
        }
        let bench = Bench::new(true);
        let raw = |name: &str| {
            let mut command = Command::new("etcdctl");
            command.env("ETCDCTL_API", "3").arg(format!("--endpoints={ETCD}"));
            command.arg(format!("--cacert={}", bench.certificate(names::ETCD_CA)));
            command.arg(format!("--cert={}", bench.certificate(names::APISERVER_ETCD_CLIENT)));
            command.arg(format!("--key={}", bench.key(names::APISERVER_ETCD_CLIENT)));
            command.args(["get", "--print-value-only", &format!("/registry/secrets/default/{name}")]);
            command.output().expect("etcdctl runs").stdout
        };
        let key = |name: &str, byte: u8| json!({"name": name, "secret": base64::engine::general_purpose::STANDARD.encode([byte; 32])});
        let config = |providers: Value| {
            let text = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
                "resources": [{"resources": ["secrets"], "providers": providers}]});
            vec![format!(
                "--encryption-provider-config={}",
                bench.write("encryption.yaml", &text.to_string())
            )]
        };
        let admin = bench.admin();
        let admin = refs(&admin);
        let path = "/api/v1/namespaces/default/secrets";
        let secret = |name: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {"p": "hunter2"}});
        // Each turn writes with another provider and still reads what the ones before it wrote.
        let turns = [
            ("plain", json!([{"identity": {}}]), ""),
            ("cbc", json!([{"aescbc": {"keys": [key("k1", 1)]}}, {"identity": {}}]), "k8s:enc:aescbc:v1:k1:"),
            (
                "box",
                json!([{"secretbox": {"keys": [key("k2", 2)]}}, {"aescbc": {"keys": [key("k1", 1)]}}, {"identity": {}}]),
                "k8s:enc:secretbox:v1:k2:",
            ),
            (
                "gcm",
                json!([{"aesgcm": {"keys": [key("k4", 4), key("k3", 3)]}}, {"secretbox": {"keys": [key("k2", 2)]}}, {"aescbc": {"keys": [key("k1", 1)]}}, {"identity": {}}]),
                "k8s:enc:aesgcm:v1:k4:",
            ),
        ];
        let mut written: Vec<&str> = Vec::new();
        for (name, providers, mark) in turns {
            let (api, curl) = bench.api(&config(providers));
            let (code, made) = curl.post(path, &secret(name), &admin);
            assert!(code == 201, "{made}");
            written.push(name);
            let stored = raw(name);
            assert!(stored.starts_with(mark.as_bytes()), "{name}: {:?}", String::from_utf8_lossy(&stored));
            assert_eq!(stored.windows(6).any(|part| part == b"Secret"), mark.is_empty(), "{name}");
            for earlier in &written {
                let (code, found) = curl.ask(&format!("{path}/{earlier}"), &admin);
                assert!(
                    code == 200 && found["data"]["p"] == "aHVudGVyMg==",
                    "{earlier} under {name}: {found}"
                );
            }
            drop(api);
        }
        // Written anew, a secret is under the first key.
        let (api, curl) = bench.api(&config(
            json!([{"secretbox": {"keys": [key("k2", 2)]}}, {"aescbc": {"keys": [key("k1", 1)]}}]),
        ));
        let mut touch = vec![
            "-X",
            "PATCH",
            "-H",
            "Content-Type: application/merge-patch+json",
            "--data-binary",
            "{\"metadata\":{\"labels\":{\"a\":\"b\"}}}",
        ];
        touch.extend(&admin);
        assert_eq!(curl.ask(&format!("{path}/cbc"), &touch).0, 200);
        assert!(raw("cbc").starts_with(b"k8s:enc:secretbox:v1:k2:"));
        // Also when nothing is changed.
        drop((api, curl));
        let (_api, curl) = bench.api(&config(
            json!([{"aescbc": {"keys": [key("k1", 1)]}}, {"secretbox": {"keys": [key("k2", 2)]}}]),
        ));
        assert_eq!(curl.ask(&format!("{path}/cbc"), &touch).0, 200);
        assert!(raw("cbc").starts_with(b"k8s:enc:aescbc:v1:k1:"));
        assert_eq!(
            curl.ask(&format!("{path}/gcm"), &admin).0,
            404,
            "without its key a secret is not there to read"
        );
    });
}

#[test]
fn a_stop_says_so_first_and_ends_watches_cleanly() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let (mut api, curl) = bench.api(&["--shutdown-delay-duration=3s".to_owned()]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let mut watch = curl.command("/api/v1/namespaces?watch=1", &admin);
        let watch = watch.arg("-N").stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(curl.ask("/api/v1/namespaces", &admin).0, 200);
        api.signal(rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(3);
        while curl.ask("/readyz", &[]).0 != 500 {
            assert!(Instant::now() < deadline, "/readyz says no before the end");
        }
        assert_eq!(curl.ask("/livez", &[]).0, 200, "it still serves");
        let watched = watch.wait_with_output().unwrap();
        assert!(watched.status.success(), "the watch ends as if it were done: {:?}", watched.status);
        assert!(String::from_utf8_lossy(&watched.stdout).contains("\"ADDED\""));
        let ended = api.0.wait().unwrap();
        assert!(ended.success(), "{ended:?}");
    });
}

#[test]
fn bad_flags_are_one_clear_sentence() {
    in_own_network(|| async {
        let bench = Bench::new(false);
        let file = bench.write("empty.yaml", "kind: Nothing\n");
        for (flag, want) in [
            ("--no-such-flag=1".to_owned(), "--no-such-flag"),
            (
                "--enable-admission-plugins=PodSecurtiy".to_owned(),
                "unknown admission plug-in \"PodSecurtiy\"",
            ),
            ("--enable-admission-plugins=EventRateLimit".to_owned(), "not built into"),
            ("--authorization-mode=Maybe".to_owned(), "Maybe"),
            ("--tls-min-version=VersionTLS14".to_owned(), "VersionTLS14"),
            ("--runtime-config=nothing/v9=true".to_owned(), "nothing/v9"),
            (format!("--encryption-provider-config={file}"), "EncryptionConfiguration"),
            (format!("--authentication-config={file}"), "AuthenticationConfiguration"),
            ("--tls-cert-file=/nowhere".to_owned(), "/nowhere"),
            ("--service-node-port-range=5".to_owned(), "service-node-port-range"),
        ] {
            let output = bench.command(std::slice::from_ref(&flag)).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && said.contains(want), "{flag}: {said}");
        }
    });
}
