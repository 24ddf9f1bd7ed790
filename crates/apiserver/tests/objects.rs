//! Create, read, update, patch, delete.

use serde_json::{Value, json};

use crate::harness::{Server, config_map, pod};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(flavor = "multi_thread")]
async fn writes_follow_the_rules_of_optimistic_concurrency() {
    let server = Server::start().await;
    let made = server.post(MAPS, &config_map("a")).await.expect(201);
    assert_eq!(made["metadata"]["namespace"], "default");
    assert!(!made["metadata"]["uid"].as_str().unwrap().is_empty());
    assert_eq!(server.post(MAPS, &config_map("a")).await.expect(409)["reason"], "AlreadyExists");
    let path = format!("{MAPS}/a");
    let read = server.get(&path).await.expect(200);
    assert_eq!(read, made);

    let mut changed = read.clone();
    changed["data"]["a"] = json!("c");
    let updated = server.put(&path, &changed).await.expect(200);
    assert_ne!(updated["metadata"]["resourceVersion"], read["metadata"]["resourceVersion"]);
    assert_eq!(server.put(&path, &changed).await.expect(409)["reason"], "Conflict");
    let again = server.put(&path, &updated).await.expect(200);
    assert_eq!(again, updated, "a write that changes nothing is none");

    let missing = server.get(&format!("{MAPS}/b")).await.expect(404);
    assert_eq!(missing["message"], "configmaps \"b\" not found");
    assert_eq!(missing["details"]["kind"], "configmaps");
    assert_eq!(server.post("/api/v1/namespaces/none/configmaps", &config_map("a")).await.code, 404);
    assert_eq!(server.delete(&path).await.expect(200)["status"], "Success");
    assert_eq!(server.get(&path).await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_patch_has_its_effect() {
    let server = Server::start().await;
    server.post(PODS, &pod("p")).await.expect(201);
    let path = format!("{PODS}/p");
    let merged = server.patch(&path, "merge", &json!({"metadata": {"labels": {"a": "1"}}})).await.expect(200);
    assert_eq!(merged["metadata"]["labels"]["a"], "1");
    let patch = json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}]);
    assert_eq!(server.patch(&path, "json", &patch).await.expect(200)["metadata"]["labels"]["b"], "2");
    let patch = json!({"spec": {"containers": [{"name": "c", "image": "other"}]}});
    let patched = server.patch(&path, "strategic-merge", &patch).await.expect(200);
    assert_eq!(patched["spec"]["containers"][0]["image"], "other");
    assert_eq!(
        patched["spec"]["containers"][0]["imagePullPolicy"], "Always",
        "the rest of the element stays"
    );
    let bad = json!([{"op": "test", "path": "/metadata/name", "value": "q"}]);
    assert_eq!(server.patch(&path, "json", &bad).await.code, 422);
    let immutable = json!({"spec": {"nodeSelector": {"a": "b"}}});
    assert_eq!(server.patch(&path, "merge", &immutable).await.expect(422)["reason"], "Invalid");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_owns_fields_and_tells_conflicts() {
    let server = Server::start().await;
    let path = format!("{MAPS}/x");
    let config = |value: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"k": value}});
    let ann = format!("{path}?fieldManager=ann");
    let bob = format!("{path}?fieldManager=bob");
    let made = server.patch(&ann, "apply", &config("1")).await.expect(201);
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], "ann");
    let conflict = server.patch(&bob, "apply", &config("2")).await.expect(409);
    assert_eq!(conflict["details"]["causes"][0]["field"], ".data.k");
    let forced = server.patch(&format!("{bob}&force=true"), "apply", &config("2")).await.expect(200);
    assert_eq!(forced["data"]["k"], "2");
    let same = server.patch(&bob, "apply", &config("2")).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], forced["metadata"]["resourceVersion"]);
    assert_eq!(server.patch(&path, "apply", &config("2")).await.code, 422, "a manager is required");
    server.stop().await;
}

/// Whoever writes an object, and however, it is stored in one form: controllers compare what came different ways.
#[tokio::test(flavor = "multi_thread")]
async fn an_applied_object_has_the_form_of_a_created_one() {
    let server = Server::start().await;
    let named = |name: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"},
                {"name": "d", "image": "i", "resources": {"requests": {"cpu": "0.5"}}}]}}}})
    };
    let all = "/apis/apps/v1/namespaces/default/deployments";
    let created = server.post(all, &named("created")).await.expect(201);
    let path = format!("{all}/applied?fieldManager=ann");
    let applied = server.patch(&path, "apply", &named("applied")).await.expect(201);
    assert_eq!(applied["spec"], created["spec"]);
    assert_eq!(applied["spec"]["template"]["spec"]["containers"][0]["resources"], json!({}));
    let again = server.patch(&path, "apply", &named("applied")).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], applied["metadata"]["resourceVersion"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_apply_made_is_as_any_other_writers() {
    let server = Server::start().await;
    let path = format!("{PODS}/p");
    let applied = server.patch(&format!("{path}?fieldManager=ann"), "apply", &pod("p")).await.expect(201);
    assert_eq!(applied["spec"]["containers"][0]["resources"], json!({}));
    let labels = json!({"metadata": {"labels": {"a": "1"}}});
    server.patch(&path, "strategic-merge", &labels).await.expect(200);
    let wrong = json!({"metadata": {"labels": "a"}});
    assert_eq!(
        server.patch(&path, "strategic-merge", &wrong).await.expect(422)["message"],
        " \"\" is invalid: patch: Invalid value: \"map[metadata:map[labels:a]]\": cannot restore map from string"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_cluster_ip_is_told_as_such_though_the_list_beside_it_is_old() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services";
    let headless = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}});
    server.post(services, &headless).await.expect(201);
    let change = json!({"spec": {"clusterIP": "10.0.0.12"}});
    let refused = server.patch(&format!("{services}/a"), "merge", &change).await.expect(422);
    assert_eq!(
        refused["message"],
        "Service \"a\" is invalid: spec.clusterIPs[0]: Invalid value: [\"10.0.0.12\"]: may not change once set"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_run_stores_nothing_and_generated_names_are_unique() {
    let server = Server::start().await;
    let dry = server.post(&format!("{MAPS}?dryRun=All"), &config_map("dry")).await.expect(201);
    assert!(dry["metadata"]["resourceVersion"].is_null());
    assert_eq!(server.get(&format!("{MAPS}/dry")).await.code, 404);
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-"}});
    let one = server.post(MAPS, &generated).await.expect(201);
    let two = server.post(MAPS, &generated).await.expect(201);
    assert_ne!(one["metadata"]["name"], two["metadata"]["name"]);
    assert_eq!(one["metadata"]["name"].as_str().unwrap().len(), 7);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn field_validation_is_strict_warns_or_ignores() {
    let server = Server::start().await;
    let mut odd = config_map("odd");
    odd["dta"] = json!({});
    let strict = server.post(&format!("{MAPS}?fieldValidation=Strict"), &odd).await.expect(400);
    assert!(
        strict["message"].as_str().unwrap().contains("strict decoding error: unknown field \"dta\""),
        "{strict}"
    );
    let warned = server.post(MAPS, &odd).await;
    assert_eq!(warned.code, 201);
    assert!(warned.headers["warning"].to_str().unwrap().contains("unknown field"), "{:?}", warned.headers);
    odd["metadata"]["name"] = json!("odd2");
    let ignored = server.post(&format!("{MAPS}?fieldValidation=Ignore"), &odd).await;
    assert!(!ignored.headers.contains_key("warning"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages_of_one_revision() {
    let server = Server::start().await;
    for index in 0..10 {
        server.post(MAPS, &config_map(&format!("m{index}"))).await.expect(201);
    }
    let first = server.get(&format!("{MAPS}?limit=4")).await.expect(200);
    assert_eq!(first["items"].as_array().unwrap().len(), 4);
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    server.delete(&format!("{MAPS}/m9")).await.expect(200);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = server.get(&format!("{MAPS}?limit=4&continue={token}")).await.expect(200);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let token = second["metadata"]["continue"].as_str().unwrap();
    let last = server.get(&format!("{MAPS}?limit=4&continue={token}")).await.expect(200);
    let names: Vec<&str> = [&first, &second, &last]
        .iter()
        .flat_map(|page| page["items"].as_array().unwrap())
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "m9"],
        "the deleted one is still in the snapshot"
    );
    assert!(last["metadata"]["continue"].is_null());
    assert_eq!(server.get(&format!("{MAPS}?fieldSelector=spec.nope=1")).await.code, 400);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_respects_grace_finalizers_and_preconditions() {
    let server = Server::start().await;
    let mut bound = pod("p");
    bound["spec"]["nodeName"] = json!("n");
    server.post(PODS, &bound).await.expect(201);
    let path = format!("{PODS}/p");
    let marked = server.delete(&path).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    server.delete(&format!("{path}?gracePeriodSeconds=0")).await.expect(200);
    assert_eq!(server.get(&path).await.code, 404);

    let mut kept = config_map("kept");
    kept["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let made = server.post(MAPS, &kept).await.expect(201);
    let path = format!("{MAPS}/kept");
    let wrong = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "other"}});
    let body = wrong.to_string().into_bytes();
    assert_eq!(server.ask(http::Method::DELETE, &path, "application/json", body).await.code, 409);
    assert_eq!(made["metadata"]["finalizers"][0], "example.com/hold");
    server.delete(&path).await.expect(200);
    assert!(server.get(&path).await.expect(200)["metadata"]["deletionTimestamp"].is_string());
    server.patch(&path, "merge", &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert_eq!(server.get(&path).await.code, 404, "the last finalizer lets it go");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_get_unique_addresses_and_ports() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let mut seen = std::collections::HashSet::new();
    for index in 0..20 {
        let made = server.post(services, &service(&format!("s{index}"))).await.expect(201);
        assert!(seen.insert(made["spec"]["clusterIP"].to_string()));
        assert!(seen.insert(made["spec"]["ports"][0]["nodePort"].to_string()));
    }
    let taken = server.get(&format!("{services}/s0")).await.expect(200)["spec"]["clusterIP"].clone();
    let mut clash = service("clash");
    clash["spec"]["clusterIP"] = taken.clone();
    let refused = server.post(services, &clash).await.expect(422);
    assert!(refused["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refused}");
    server.delete(&format!("{services}/s0")).await.expect(200);
    server.post(services, &clash).await.expect(201);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_and_ports_that_leaked_or_were_lost_are_repaired() {
    let server = Server::start().await;
    let key = |port: &str| bytes::Bytes::from(format!("/registry/ranges/servicenodeports/{port}"));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let made = server.post("/api/v1/namespaces/default/services", &service).await.expect(201);
    let (address, port) = (&made["spec"]["clusterIP"], made["spec"]["ports"][0]["nodePort"].to_string());
    let addresses = "/apis/networking.k8s.io/v1/ipaddresses";
    // As if a server had died between taking them and making their Service.
    let leaked = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.0.0.77", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            "ipaddress.kubernetes.io/ip-family": "IPv4"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "never"}}});
    server.post(addresses, &leaked).await.expect(201);
    let absent = etcd::Precondition::Absent;
    let leak = if port == "32001" { "32002" } else { "32001" };
    server.store.put(key(leak), "default/never".into(), 0, absent).await.unwrap();
    // And as if somebody had taken a key away.
    server.store.delete(key(&port), etcd::Precondition::None).await.unwrap();
    // What was written a moment ago could belong to a Service that is just being made.
    for index in 0..70 {
        server.post(MAPS, &config_map(&format!("later-{index}"))).await.expect(201);
    }
    let other = server.beside().await;
    let has = async |port: &str| server.store.get(&key(port), 0).await.unwrap().0.is_some();
    let repaired = tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while has(leak).await
            || !has(&port).await
            || server.get(&format!("{addresses}/10.0.0.77")).await.code != 404
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    repaired.await.expect("what leaked is free, what was lost is taken");
    let kept = format!("{addresses}/{}", address.as_str().unwrap());
    server.get(&kept).await.expect(200);
    other.stop().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_pod_knows_its_place_and_is_wanted_as_before() {
    let server = Server::start().await;
    let labels =
        json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o"});
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}});
    server.post("/api/v1/nodes", &node).await.expect(201);
    let made = server.post(PODS, &pod("p")).await.expect(201);
    let target = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": "n"}});
    server.post(&format!("{PODS}/p/binding"), &target).await.expect(201);
    let bound = server.get(&format!("{PODS}/p")).await.expect(200);
    let place = json!({"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z"});
    assert_eq!(bound["spec"]["nodeName"], "n");
    assert_eq!(bound["metadata"]["labels"], place);
    assert_eq!(bound["metadata"]["generation"], 1);
    assert_eq!(bound["metadata"]["managedFields"], made["metadata"]["managedFields"]);
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(bound["status"]["qosClass"], "BestEffort");
    let mut placed = pod("q");
    placed["spec"]["nodeName"] = json!("n");
    assert_eq!(server.post(PODS, &placed).await.expect(201)["metadata"]["labels"], place);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_stamped_when_its_phase_changes() {
    let server = Server::start().await;
    let volumes = "/api/v1/persistentvolumes";
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"}}});
    let made = server.post(volumes, &volume).await.expect(201);
    assert!(made["status"]["lastPhaseTransitionTime"].is_string(), "{}", made["status"]);
    let status = json!({"status": {"phase": "Available", "lastPhaseTransitionTime": null}});
    let moved = server.patch(&format!("{volumes}/v/status"), "merge", &status).await.expect(200);
    assert_eq!(moved["status"]["phase"], "Available");
    assert!(moved["status"]["lastPhaseTransitionTime"].is_string(), "{}", moved["status"]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_does_not_fit_its_certificate_is_warned_of() {
    let server = Server::start().await;
    let pki = server.dir.path().join("pki");
    let mut found = Vec::new();
    let mut left = vec![pki];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                left.push(entry);
            } else if entry.extension().is_some_and(|own| own == "crt")
                && entry.with_extension("key").exists()
            {
                let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
                found.push((read(&entry), read(&entry.with_extension("key"))));
            }
        }
    }
    assert!(found.len() > 1, "two key pairs to mix");
    let (one, two) = (&found[0], &found[1]);
    for (name, certificate, key, want) in [
        ("good", one.0.as_str(), one.1.as_str(), None),
        ("mixed", &one.0, &two.1, Some("private key does not match public key")),
        ("no-certificate", "x", &one.1, Some("failed to find any PEM data in certificate input")),
        ("no-key", &one.0, "x", Some("failed to find any PEM data in key input")),
        (
            "twice",
            &one.0,
            &one.0,
            Some("found a certificate rather than a key in the PEM for the private key"),
        ),
    ] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "type": "kubernetes.io/tls", "stringData": {"tls.crt": certificate, "tls.key": key}});
        let answer = server.post("/api/v1/namespaces/default/secrets", &secret).await;
        assert_eq!(answer.code, 201, "{name}");
        let warning = answer.headers.get("warning").map(|text| text.to_str().unwrap().to_owned());
        assert_eq!(warning, want.map(|want| format!("299 - \"tls: {want}\"")), "{name}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_has_openapi_documents_too() {
    let server = Server::start().await;
    let index = server.get("/openapi/v3").await.expect(200);
    for path in ["api", "apis", "apis/apps", "api/v1", "apis/apps/v1"] {
        let url = index["paths"][path]["serverRelativeURL"].as_str().unwrap_or_else(|| panic!("no {path}"));
        let document = server.get(url).await.expect(200);
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.keys().all(|own| own.starts_with(&format!("/{path}/"))), "{path}");
    }
    assert_eq!(server.get("/openapi/v3/apis/nobody").await.code, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_free_as_soon_as_its_object_is_gone() {
    let server = Server::start().await;
    for _ in 0..200 {
        server.post(MAPS, &config_map("x")).await.expect(201);
        server.delete(&format!("{MAPS}/x")).await.expect(200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_objects_are_tables_too() {
    let server = Server::start().await;
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web.x"}, "spec": {
        "replicas": 3, "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let user = apiserver::UserInfo::new("admin", &["system:masters"]);
    let made = server.post(path, &deployment).await;
    let warned = made
        .headers
        .get_all("warning")
        .iter()
        .any(|one| one.to_str().unwrap_or_default().contains("this is used in Pod names and hostnames"));
    assert!(warned, "a name with a dot");
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for (part, columns, third) in [
        ("status", vec!["Name", "Ready", "Up-to-date", "Available", "Age"], json!(0)),
        ("scale", vec!["Name", "Desired", "Available", "Age"], json!(0)),
    ] {
        let path = format!("{path}/web.x/{part}");
        let table = server.ask_with(&user, http::Method::GET, &path, &accept, Vec::new()).await.expect(200);
        assert_eq!(table["kind"], "Table", "{part}");
        let shown: Vec<&Value> = table["columnDefinitions"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|one| one["priority"] == 0)
            .map(|one| &one["name"])
            .collect();
        assert_eq!(shown, columns);
        assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][2]), (&json!("web.x"), &third));
    }
    assert_eq!(server.get(&format!("{path}?timeout=30s")).await.code, 200);
    let refused = server.get(&format!("{path}?timeout=xyz")).await.expect(400);
    assert_eq!(refused["message"], "invalid timeout specified in the request URL - timeout: \"xyz\"");
    server.stop().await;
}
