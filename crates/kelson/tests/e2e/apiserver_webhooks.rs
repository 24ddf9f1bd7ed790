//! Admission webhooks of the test, named by their URLs and by a Service: what they are asked, what they change, what they
//! refuse, and what becomes of requests when they do not answer.

use std::process::Command;
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pki::table::names;
use serde_json::{Value, json};

use crate::apiserver::{Bench, pki_text, refs};
use crate::harness::in_own_network;
use crate::https::{self, Curl};
use testing::has;

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"k": "v"}})
}

/// A yes with a patch.
fn patch(review: &Value, operations: Value) -> Value {
    let mut answer = yes(review);
    answer["response"]["patchType"] = json!("JSONPatch");
    answer["response"]["patch"] = json!(STANDARD.encode(operations.to_string()));
    answer
}

fn yes(review: &Value) -> Value {
    json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": {"uid": review["request"]["uid"], "allowed": true}})
}

struct Hooks {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    port: u16,
}

impl Hooks {
    /// Serves hooks at an address.
    fn serve(bench: &Bench, address: &str) -> Self {
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let seen = asked.clone();
        let port = https::serve_on(&bench.pki, address, move |path, review| {
            let path = path.split('?').next().unwrap_or_default().to_owned();
            seen.lock().unwrap().push((path.clone(), review["request"].clone()));
            let request = &review["request"];
            let answer = match path.as_str() {
                "/label" => patch(review, json!([{"op": "add", "path": "/data/first", "value": "1"}])),
                // Counts how often it was asked, in the object itself.
                "/count" => {
                    let times = request["object"]["data"]["count"].as_str().unwrap_or_default().len() + 1;
                    patch(review, json!([{"op": "add", "path": "/data/count", "value": "x".repeat(times)}]))
                }
                "/last" => patch(review, json!([{"op": "add", "path": "/data/last", "value": "1"}])),
                "/judge" => {
                    let mut answer = yes(review);
                    answer["response"]["warnings"] = json!(["careful"]);
                    answer["response"]["auditAnnotations"] = json!({"seen": "yes"});
                    let object = if request["operation"] == "DELETE" {
                        &request["oldObject"]
                    } else {
                        &request["object"]
                    };
                    if object["metadata"]["labels"]["bad"] == "yes" {
                        answer["response"]["allowed"] = json!(false);
                        answer["response"]["status"] =
                            json!({"code": 418, "reason": "Teapot", "message": "not today"});
                    }
                    answer
                }
                "/nonsense" => json!({"hello": "world"}),
                _ => return (500, json!({})),
            };
            (200, answer)
        });
        Self { asked, port }
    }

    fn times(&self, path: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|(own, _)| own == path).count()
    }
}

fn put(curl: &Curl, admin: &[&str], kind: &str, name: &str, webhooks: &Value) {
    let plural = format!("{}s", kind.to_lowercase());
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": webhooks});
    let (code, said) = curl.post(&format!("/apis/admissionregistration.k8s.io/v1/{plural}"), &object, admin);
    assert_eq!(code, 201, "{said}");
}

#[test]
fn webhooks_change_and_refuse_what_is_written() {
    in_own_network(|| async {
        if !has("curl") || !has("ip") {
            return;
        }
        let bench = Bench::new(false);
        let hooks = Hooks::serve(&bench, "127.0.0.1");
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: '', resources: [configmaps]}]\n- level: None\n";
        let log = bench.dir.path().join("audit.log");
        let (_api, curl) = bench.api(&[
            format!("--audit-policy-file={}", bench.write("policy.yaml", policy)),
            format!("--audit-log-path={}", log.display()),
        ]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let ca = STANDARD.encode(pki_text(&bench, names::SERVER_CA));
        let hook = |name: &str, path: &str, more: Value| {
            let mut own = json!({
                "name": format!("{name}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
                "clientConfig": {"url": format!("https://127.0.0.1:{}{path}", hooks.port), "caBundle": ca},
                "rules": [{"operations": ["CREATE", "UPDATE", "DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            });
            for (field, value) in more.as_object().into_iter().flatten() {
                own[field] = value.clone();
            }
            own
        };
        let kinds = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
        put(
            &curl,
            &admin,
            kinds[0],
            "a",
            &json!([
                hook("label", "/label", json!({"objectSelector": {"matchLabels": {"mark": "me"}}})),
                hook(
                    "count",
                    "/count",
                    json!({"reinvocationPolicy": "IfNeeded", "objectSelector": {"matchLabels": {"mark": "me"}}})
                ),
                hook("last", "/last", json!({"objectSelector": {"matchLabels": {"mark": "me"}}})),
            ]),
        );
        put(
            &curl,
            &admin,
            kinds[1],
            "b",
            &json!([
                hook(
                    "judge",
                    "/judge",
                    json!({"matchConditions": [{"name": "not-quiet", "expression": "!has(request.name) || !request.name.startsWith('quiet')"}]})
                ),
                hook("open", "/broken", json!({"failurePolicy": "Ignore"})),
            ]),
        );

        let (code, made) = curl.post(CONFIGMAPS, &map("one", json!({"mark": "me"})), &admin);
        assert_eq!(code, 201, "{made}");
        assert_eq!(
            (&made["data"]["first"], &made["data"]["last"], &made["data"]["count"]),
            (&json!("1"), &json!("1"), &json!("xx")),
            "patched by three, one of which looked again: {made}"
        );
        let (code, plain) = curl.post(CONFIGMAPS, &map("two", json!({})), &admin);
        assert!(code == 201 && plain["data"] == json!({"k": "v"}), "the selector leaves it alone: {plain}");
        {
            let asked = hooks.asked.lock().unwrap();
            let (_, request) = asked.iter().find(|(path, _)| path == "/judge").unwrap();
            assert_eq!(request["operation"], "CREATE");
            assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "ConfigMap"}));
            assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
            assert_eq!((&request["name"], &request["namespace"]), (&json!("one"), &json!("default")));
            assert_eq!(request["object"]["data"]["last"], "1", "it sees what the others made");
            assert!(request["oldObject"].is_null() && request["dryRun"] == false);
            assert!(request["userInfo"]["groups"].to_string().contains("system:masters"));
            assert_eq!(request["options"]["kind"], "CreateOptions");
        }
        let mut head = vec!["-i"];
        head.extend(&admin);
        let said = curl.post(CONFIGMAPS, &map("three", json!({})), &head).1;
        assert!(said.as_str().unwrap().contains("careful"), "the warning arrives: {said}");
        let (code, refused) = curl.post(CONFIGMAPS, &map("four", json!({"bad": "yes"})), &admin);
        assert_eq!(
            (code, refused["message"].as_str().unwrap()),
            (418, "admission webhook \"judge.example.com\" denied the request: not today")
        );
        assert_eq!(
            curl.post(CONFIGMAPS, &map("quiet", json!({"bad": "yes"})), &admin).0,
            201,
            "its condition"
        );
        let mut delete = vec!["-X", "DELETE"];
        delete.extend(&admin);
        assert_eq!(curl.ask(&format!("{CONFIGMAPS}/quiet"), &delete).0, 200);
        let before = hooks.times("/judge");
        assert_eq!(curl.post(&format!("{CONFIGMAPS}?dryRun=All"), &map("dry", json!({})), &admin).0, 201);
        assert_eq!(
            hooks.times("/judge"),
            before + 1,
            "asked about what is not stored, for it has no side effects"
        );
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("\"judge.example.com/seen\":\"yes\""), "{text}");

        // Who cannot be asked, or says nonsense, refuses unless his failures are to be ignored.
        put(
            &curl,
            &admin,
            kinds[1],
            "c",
            &json!([hook(
                "closed",
                "/nonsense",
                json!({"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}]})
            )]),
        );
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
        let (code, said) = curl.post("/api/v1/namespaces/default/secrets", &secret, &admin);
        assert!(
            code == 500
                && said["message"]
                    .as_str()
                    .unwrap()
                    .contains("failed calling webhook \"closed.example.com\""),
            "{said}"
        );
        put(
            &curl,
            &admin,
            kinds[1],
            "d",
            &json!([hook(
                "effects",
                "/judge",
                json!({"sideEffects": "None", "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}], "clientConfig": {"url": "https://127.0.0.1:9/", "caBundle": ca}, "failurePolicy": "Fail"})
            )]),
        );
        assert_eq!(curl.post(CONFIGMAPS, &map("never", json!({})), &admin).0, 500);
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/d";
        assert_eq!(curl.ask(path, &delete).0, 200, "what configures admission can always be repaired");
        assert_eq!(curl.post(CONFIGMAPS, &map("again", json!({})), &admin).0, 201);

        // Behind a Service: its address leads to this machine, and its name stands in the certificate of the API server.
        let address = "10.0.0.1";
        let added =
            Command::new("ip").args(["address", "add", &format!("{address}/32"), "dev", "lo"]).status();
        assert!(added.unwrap().success());
        let behind = Hooks::serve(&bench, address);
        let service =
            json!({"name": "kubernetes", "namespace": "default", "path": "/label", "port": behind.port});
        put(
            &curl,
            &admin,
            kinds[0],
            "e",
            &json!([hook(
                "service",
                "",
                json!({"clientConfig": {"service": service, "caBundle": ca}, "objectSelector": {"matchLabels": {"by": "service"}}})
            )]),
        );
        let (code, made) = curl.post(CONFIGMAPS, &map("five", json!({"by": "service"})), &admin);
        assert!(code == 201 && made["data"]["first"] == "1", "{made}");
    });
}
