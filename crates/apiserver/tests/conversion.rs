//! Custom resources whose versions are made of each other by a webhook.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::Server;
use crate::hook::{self, Hook};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/endpoints.stable.example.com";

fn path(version: &str) -> String {
    format!("/apis/stable.example.com/{version}/namespaces/default/endpoints")
}

/// What the webhook was asked (wanted version and number of objects), and whether it answers.
#[derive(Default)]
struct Seen {
    asked: Mutex<Vec<(String, usize)>>,
    down: AtomicBool,
}

impl Seen {
    fn take(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// `hostPort` of v1 is `host` and `port` of v2, as in upstream's own test.
fn convert(object: &Value, wanted: &str) -> Value {
    let mut new = object.clone();
    new["apiVersion"] = json!(wanted);
    let map = new.as_object_mut().unwrap();
    if wanted.ends_with("/v2") {
        let whole = map.remove("hostPort").unwrap_or_default();
        if let Some((host, port)) = whole.as_str().unwrap_or_default().split_once(':') {
            map.insert("host".into(), json!(host));
            map.insert("port".into(), json!(port));
        }
    } else if let (Some(host), Some(port)) = (map.remove("host"), map.remove("port")) {
        map.insert(
            "hostPort".into(),
            json!(format!("{}:{}", host.as_str().unwrap(), port.as_str().unwrap())),
        );
    }
    new
}

fn webhook(server: &Server) -> (Hook, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let own = seen.clone();
    let hook = hook::serve(&server.pki, move |_, review| {
        let request = &review["request"];
        let wanted = request["desiredAPIVersion"].as_str().unwrap();
        let objects = request["objects"].as_array().unwrap();
        own.asked.lock().unwrap().push((wanted.rsplit('/').next().unwrap().to_owned(), objects.len()));
        let result = if own.down.load(Ordering::Relaxed) {
            json!({"status": "Failure", "message": "out for lunch"})
        } else {
            json!({"status": "Success"})
        };
        let converted: Vec<Value> = objects.iter().map(|object| convert(object, wanted)).collect();
        json!({"kind": "ConversionReview", "apiVersion": review["apiVersion"],
            "response": {"uid": request["uid"], "result": result, "convertedObjects": converted}})
    });
    (hook, seen)
}

fn crd(hook: &Hook, stored: &str) -> Value {
    let text = json!({"type": "string"});
    let version = |name: &str, properties: Value| {
        let selectable = if name == "v1" { ".hostPort" } else { ".host" };
        json!({"name": name, "served": true, "storage": name == stored,
            "selectableFields": [{"jsonPath": selectable}],
            "additionalPrinterColumns": [{"name": "Host", "type": "string", "jsonPath": selectable}],
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
    };
    let number = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "endpoints.stable.example.com"},
        "spec": {"group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "endpoints", "kind": "Endpoint"},
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1", "v1beta1"],
                "clientConfig": {"url": format!("https://127.0.0.1:{}/crdconvert", hook.port), "caBundle": hook.ca}}},
            "versions": [
                version("v1", json!({"hostPort": text, "spec": number, "status": number})),
                version("v2", json!({"host": text, "port": text, "spec": number, "status": number}))]},
    })
}

fn endpoint(version: &str, name: &str) -> Value {
    let mut object = json!({"kind": "Endpoint", "apiVersion": format!("stable.example.com/{version}"), "metadata": {"name": name}});
    if version == "v1" {
        object["hostPort"] = json!("localhost:8080");
    } else {
        object["host"] = json!("localhost");
        object["port"] = json!("8080");
    }
    object
}

/// Whether an object is all of its version, and nothing of the other one.
#[track_caller]
fn is_of(object: &Value, version: &str) {
    assert_eq!(object["apiVersion"], format!("stable.example.com/{version}"), "{object}");
    let (has, not) = if version == "v1" {
        (vec!["hostPort"], vec!["host", "port"])
    } else {
        (vec!["host", "port"], vec!["hostPort"])
    };
    assert!(has.iter().all(|field| object[*field].is_string()), "{object}");
    assert!(not.iter().all(|field| object.get(*field).is_none()), "{object}");
}

async fn start(stored: &str) -> (Server, Hook, Arc<Seen>) {
    let server = Server::start().await;
    let (hook, seen) = webhook(&server);
    server.post(CRDS, &crd(&hook, stored)).await.expect(201);
    server.until(&path("v2"), |answer| answer.code == 200).await;
    (server, hook, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_converted_whoever_asks_for_it() {
    let (server, _hook, seen) = start("v1").await;
    server.post(&path("v1"), &endpoint("v1", "a")).await.expect(201);
    assert_eq!(seen.take(), [], "nobody is asked for the stored version");
    let one = format!("{}/a", path("v2"));
    let read = server.get(&one).await.expect(200);
    is_of(&read, "v2");
    assert_eq!(seen.take(), [("v2".to_owned(), 1)]);
    // Written in the other version: stored in the first, shown in its own.
    is_of(&server.post(&path("v2"), &endpoint("v2", "b")).await.expect(201), "v2");
    assert_eq!(seen.take(), [("v1".to_owned(), 1), ("v2".to_owned(), 1)]);
    is_of(&server.get(&format!("{}/b", path("v1"))).await.expect(200), "v1");
    assert_eq!(seen.take(), []);
    let patched = server.patch(&one, "merge", &json!({"port": "9090"})).await.expect(200);
    assert_eq!(patched["port"], "9090");
    assert_eq!(patched["metadata"]["generation"], 2);
    let mut whole = patched.clone();
    whole["host"] = json!("elsewhere");
    server.put(&one, &whole).await.expect(200);
    assert_eq!(server.get(&format!("{}/a", path("v1"))).await.expect(200)["hostPort"], "elsewhere:9090");
    assert_eq!(server.put(&one, &whole).await.code, 409, "the revision is that of the stored object");
    // Dry runs, parts and tables.
    let dry = server.post(&format!("{}?dryRun=All", path("v2")), &endpoint("v2", "dry")).await.expect(201);
    is_of(&dry, "v2");
    assert_eq!(server.get(&format!("{}/dry", path("v2"))).await.code, 404);
    let status = server
        .patch(&format!("{one}/status"), "merge", &json!({"status": {"replicas": 2}}))
        .await
        .expect(200);
    is_of(&status, "v2");
    let scaled =
        server.patch(&format!("{one}/scale"), "merge", &json!({"spec": {"replicas": 3}})).await.expect(200);
    assert_eq!((&scaled["spec"]["replicas"], &scaled["status"]["replicas"]), (&json!(3), &json!(2)));
    let user = apiserver::UserInfo::new("admin", &["system:masters"]);
    let accept = [("accept", "application/json;as=Table;g=meta.k8s.io;v=v1")];
    let table = server.ask_with(&user, http::Method::GET, &path("v2"), &accept, Vec::new()).await.expect(200);
    assert_eq!(table["rows"][0]["cells"][1], "elsewhere", "{table}");
    // Selected by what the wanted version says.
    let found = server.get(&format!("{}?fieldSelector=host%3Delsewhere", path("v2"))).await.expect(200);
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    // A finalizer keeps it; then it goes.
    server.patch(&one, "merge", &json!({"metadata": {"finalizers": ["example.com/x"]}})).await.expect(200);
    is_of(&server.delete(&one).await.expect(200), "v2");
    server.patch(&one, "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(server.get(&one).await.code, 404);
    server.delete(&path("v2")).await.expect(200);
    assert_eq!(server.get(&path("v1")).await.expect(200)["items"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_objects_of_several_versions_is_all_of_one() {
    let (server, hook, seen) = start("v1").await;
    server.post(&path("v1"), &endpoint("v1", "cr-instance-1")).await.expect(201);
    // It is served a moment before its status says so, and that write would be in the way of the next one.
    let established = |answer: &crate::harness::Answer| {
        let conditions = answer.body["status"]["conditions"].as_array();
        conditions
            .is_some_and(|all| all.iter().any(|one| one["type"] == "Established" && one["status"] == "True"))
    };
    let mut new = server.until(CRD, established).await;
    new["spec"]["versions"] = crd(&hook, "v2")["spec"]["versions"].clone();
    let changed = server.put(CRD, &new).await.expect(200);
    assert_eq!(changed["status"]["storedVersions"], json!(["v1", "v2"]));
    // From when the new storage version is in force, v1 is no longer stored as it is.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        seen.take();
        let dry = format!("{}?dryRun=All", path("v1"));
        server.post(&dry, &endpoint("v1", "dry")).await.expect(201);
        if !seen.take().is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
    }
    server.post(&path("v1"), &endpoint("v1", "cr-instance-2")).await.expect(201);
    for version in ["v1", "v2"] {
        seen.take();
        let list = server.get(&path(version)).await.expect(200);
        let items = list["items"].as_array().unwrap();
        assert_eq!(items.len(), 2);
        items.iter().for_each(|item| is_of(item, version));
        assert_eq!(
            seen.take(),
            [(version.to_owned(), 1)],
            "only what is stored in the other version is sent"
        );
        server.get(&path(version)).await.expect(200);
        assert_eq!(seen.take(), [], "and not again for the next list");
    }
    // A write that changes nothing leaves the old version behind; one more changes nothing indeed.
    let one = format!("{}/cr-instance-1", path("v2"));
    let before = server.get(&one).await.expect(200);
    let after = server.put(&one, &before).await.expect(200);
    assert_ne!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    let again = server.put(&one, &after).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"]);
    seen.take();
    server.get(&path("v2")).await.expect(200);
    assert_eq!(seen.take(), [], "all are stored in v2 now");
    // Many go in one question.
    for number in 0..20 {
        server.post(&path("v2"), &endpoint("v2", &format!("n{number}"))).await.expect(201);
    }
    seen.take();
    assert_eq!(server.get(&path("v1")).await.expect(200)["items"].as_array().unwrap().len(), 22);
    assert_eq!(seen.take().iter().map(|(_, count)| count).sum::<usize>(), 21, "all but one that was kept");
    assert_eq!(
        server.get(&format!("{}?limit=5", path("v1"))).await.expect(200)["items"].as_array().unwrap().len(),
        5
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_of_another_version_get_converted_events_and_share_the_question() {
    let (server, _hook, seen) = start("v1").await;
    server.post(&path("v1"), &endpoint("v1", "a")).await.expect(201);
    let watched = format!("{}?watch=true", path("v2"));
    let mut watches =
        [server.watch(&watched).await, server.watch(&watched).await, server.watch(&watched).await];
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!(event["type"], "ADDED");
        is_of(&event["object"], "v2");
    }
    assert_eq!(seen.take(), [("v2".to_owned(), 1)]);
    let changed =
        server.patch(&format!("{}/a", path("v1")), "merge", &json!({"hostPort": "b:1"})).await.expect(200);
    server.delete(&format!("{}/a", path("v1"))).await.expect(200);
    seen.take();
    for watch in &mut watches {
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["host"]), (&json!("MODIFIED"), &json!("b")));
        assert_eq!(event["object"]["metadata"]["resourceVersion"], changed["metadata"]["resourceVersion"]);
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["port"]), (&json!("DELETED"), &json!("1")));
    }
    // Entering and leaving a selection is judged by the converted object.
    let mut chosen = server.watch(&format!("{watched}&fieldSelector=host%3Dhere")).await;
    server.post(&path("v1"), &endpoint("v1", "b")).await.expect(201);
    let place = format!("{}/b", path("v1"));
    for (value, kind) in [("here:1", "ADDED"), ("here:2", "MODIFIED"), ("there:2", "DELETED")] {
        server.patch(&place, "merge", &json!({"hostPort": value})).await.expect(200);
        let event = chosen.next().await.unwrap();
        assert_eq!(event["type"], kind);
        is_of(&event["object"], "v2");
        assert_eq!(event["object"]["host"], "here");
    }
    // When the webhook fails, so does the watch, and says why.
    seen.down.store(true, Ordering::Relaxed);
    server.post(&path("v1"), &endpoint("v1", "c")).await.expect(201);
    let event = loop {
        let event = watches[0].next().await.unwrap();
        if event["object"]["metadata"]["name"] != "b" {
            break event;
        }
    };
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(500)));
    assert!(watches[0].next().await.is_none());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_fails_keeps_nobody_from_the_stored_version() {
    let (server, _hook, seen) = start("v1").await;
    server.post(&path("v1"), &endpoint("v1", "a")).await.expect(201);
    seen.down.store(true, Ordering::Relaxed);
    let (one, other) = (format!("{}/a", path("v2")), format!("{}/a", path("v1")));
    let why = "conversion webhook for stable.example.com/v1, Kind=Endpoint failed: out for lunch";
    for failed in [server.get(&one).await, server.get(&path("v2")).await, server.delete(&one).await] {
        let status = failed.expect(500);
        assert_eq!(status["message"], why);
    }
    let refused = server.post(&path("v2"), &endpoint("v2", "b")).await.expect(500);
    assert_eq!(
        refused["message"],
        "conversion webhook for stable.example.com/v2, Kind=Endpoint failed: out for lunch"
    );
    is_of(&server.get(&other).await.expect(200), "v1");
    assert_eq!(server.get(&path("v1")).await.expect(200)["items"].as_array().unwrap().len(), 1);
    server.patch(&other, "merge", &json!({"hostPort": "x:1"})).await.expect(200);
    let page = server.text("/metrics").await;
    for line in [
        "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"endpoints.stable.example.com\",from_version=\"v2\",succeeded=\"false\",to_version=\"v1\"} 1",
        "apiserver_conversion_webhook_request_total{failure_type=\"conversion_webhook_malformed_response_failure\",result=\"failure\"} 4",
    ] {
        assert!(page.contains(line), "{line}");
    }
    // And the CRD can go, with all objects.
    server.delete(CRD).await.expect(200);
    server.until(CRD, |answer| answer.code == 404).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_webhook_a_version_shows_and_stores_what_it_declares() {
    let server = Server::start().await;
    let hook = Hook { port: 1, ca: String::new() };
    let mut crd = crd(&hook, "v2");
    crd["spec"]["conversion"] = json!({"strategy": "None"});
    server.post(CRDS, &crd).await.expect(201);
    server.until(&path("v2"), |answer| answer.code == 200).await;
    let made = server.post(&path("v1"), &endpoint("v1", "a")).await.expect(201);
    assert!(made.get("hostPort").is_none(), "the stored version has no such field: {made}");
    server.post(&path("v2"), &endpoint("v2", "b")).await.expect(201);
    assert!(server.get(&format!("{}/b", path("v1"))).await.expect(200).get("host").is_none());
    assert_eq!(server.get(&format!("{}/b", path("v2"))).await.expect(200)["host"], "localhost");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_are_asked_in_the_version_that_they_wrote_in() {
    let (server, _hook, _seen) = start("v1").await;
    let apply = async |version: &str, name: &str, manager: &str, more: Value| {
        let mut object = json!({"kind": "Endpoint", "apiVersion": format!("stable.example.com/{version}"), "metadata": {"name": name}});
        for (field, value) in more.as_object().unwrap() {
            object[field] = value.clone();
        }
        server.patch(&format!("{}/{name}?{manager}", path(version)), "apply", &object).await
    };
    let owned = |object: &Value| -> Vec<(String, String, Value)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
        let mut found: Vec<_> = entries
            .map(|entry| (text(&entry["manager"]), text(&entry["apiVersion"]), entry["fieldsV1"].clone()))
            .collect();
        found.sort_by(|one, two| one.0.cmp(&two.0));
        found
            .into_iter()
            .map(|(name, version, set)| (name, version.replace("stable.example.com/", ""), set))
            .collect()
    };
    let entry = |name: &str, version: &str, set: Value| (name.to_owned(), version.to_owned(), set);
    let port = |port: &str| json!({"host": "localhost", "port": port});
    apply("v1", "a", "fieldManager=m1", json!({"hostPort": "localhost:8080"})).await.expect(201);
    // Who says the same in another version owns it too.
    let both = apply("v2", "a", "fieldManager=m2", port("8080")).await.expect(200);
    let (one, two) = (json!({"f:hostPort": {}}), json!({"f:host": {}, "f:port": {}}));
    assert_eq!(owned(&both), [entry("m1", "v1", one), entry("m2", "v2", two.clone())]);
    let refused = apply("v2", "a", "fieldManager=m2", port("9")).await.expect(409);
    assert_eq!(refused["message"], "Apply failed with 1 conflict: conflict with \"m1\": .hostPort");
    let forced = apply("v2", "a", "fieldManager=m2&force=true", port("9")).await.expect(200);
    assert_eq!(owned(&forced), [entry("m2", "v2", two)]);
    let refused =
        apply("v1", "a", "fieldManager=m1", json!({"hostPort": "localhost:8080"})).await.expect(409);
    assert_eq!(refused["message"], "Apply failed with 1 conflict: conflict with \"m2\": .port");
    // A manager that moves to another version keeps what it says, and what it no longer says goes.
    let first = json!({"hostPort": "localhost:1", "spec": {"replicas": 1}});
    apply("v1", "b", "fieldManager=m4", first).await.expect(201);
    let moved = apply("v2", "b", "fieldManager=m4", port("1")).await.expect(200);
    assert!(moved.get("spec").is_none_or(|spec| spec.get("replicas").is_none()), "{moved}");
    assert_eq!(owned(&moved), [entry("m4", "v2", json!({"f:host": {}, "f:port": {}}))]);
    // Who writes without applying takes what it changes, in whatever version.
    let patch = format!("{}/b?fieldManager=u", path("v1"));
    let taken = server.patch(&patch, "merge", &json!({"hostPort": "z:2"})).await.expect(200);
    assert_eq!(owned(&taken), [entry("u", "v1", json!({"f:hostPort": {}}))]);
    server.stop().await;
}
