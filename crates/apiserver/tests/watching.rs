//! Watches: order, selectors, streaming lists, bookmarks, history.

use serde_json::json;

use crate::harness::{Server, config_map};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread")]
async fn a_selector_turns_changes_into_entering_and_leaving() {
    let server = Server::start().await;
    let mut watch = server.watch(&format!("{MAPS}?watch=true&labelSelector=a%3Db")).await;
    server.post(MAPS, &config_map("x")).await.expect(201);
    let path = format!("{MAPS}/x");
    for labels in [json!({"a": "b"}), json!({"a": "b", "c": "d"}), json!({"a": null})] {
        server.patch(&path, "merge", &json!({"metadata": {"labels": labels}})).await.expect(200);
    }
    server.delete(&path).await.expect(200);
    for want in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(watch.next_seen().await, (want.to_owned(), "x".to_owned()));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_ends_with_a_marked_bookmark() {
    let server = Server::start().await;
    server.post(MAPS, &config_map("x")).await.expect(201);
    let query =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = server.watch(&format!("{MAPS}?{query}")).await;
    assert_eq!(watch.next_seen().await, ("ADDED".to_owned(), "x".to_owned()));
    let mark = watch.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    server.post(MAPS, &config_map("y")).await.expect(201);
    assert_eq!(watch.next_seen().await, ("ADDED".to_owned(), "y".to_owned()));
    let refused = server.get(&format!("{MAPS}?watch=true&sendInitialEvents=true")).await;
    assert_eq!(refused.code, 422);
    server.stop().await;
}

/// The garbage collector of upstream watches all kinds like this.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_alone_is_streamed_in_protobuf_too() {
    let server = Server::start().await;
    server.post(MAPS, &config_map("seen")).await.expect(201);
    let query =
        "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let accept = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut watch = server.watch_as(&format!("{MAPS}?{query}"), accept).await;
    let sent = watch.until(b"k8s.io/initial-events-end").await;
    let has = |text: &str| sent.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("PartialObjectMetadata") && has("ADDED") && has("seen") && has("BOOKMARK"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_an_old_revision_replays_what_came_after() {
    let server = Server::start().await;
    let made = server.post(MAPS, &config_map("x")).await.expect(201);
    let path = format!("{MAPS}/x");
    server.patch(&path, "merge", &json!({"data": {"n": "1"}})).await.expect(200);
    server.delete(&path).await.expect(200);
    let revision = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = server.watch(&format!("{MAPS}?watch=true&resourceVersion={revision}")).await;
    assert_eq!(watch.next_seen().await.0, "MODIFIED");
    let deleted = watch.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    let number = |value: &serde_json::Value| value.as_str().unwrap().parse::<i64>().unwrap();
    assert!(
        number(&deleted["object"]["metadata"]["resourceVersion"])
            > number(&made["metadata"]["resourceVersion"]) + 1
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_at_its_timeout_and_with_the_server() {
    let server = Server::start().await;
    let mut short = server.watch(&format!("{MAPS}?watch=true&timeoutSeconds=1")).await;
    assert!(short.next().await.is_none());
    let mut long = server.watch(&format!("{MAPS}?watch=true")).await;
    let tasks = server.tasks.clone();
    let stopping = async { tasks.drain(std::time::Duration::from_secs(20)).await };
    let (left, end) = tokio::join!(stopping, long.next());
    assert!(left.is_empty() && end.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn many_watchers_see_the_same_order_without_gaps() {
    let server = Server::start().await;
    server.post(MAPS, &config_map("x")).await.expect(201);
    let start =
        server.get(MAPS).await.expect(200)["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(server.watch(&format!("{MAPS}?watch=true&resourceVersion={start}")).await);
    }
    let mut wanted = Vec::new();
    for index in 0..50 {
        let patched = server
            .patch(&format!("{MAPS}/x"), "merge", &json!({"data": {"n": index.to_string()}}))
            .await
            .expect(200);
        wanted.push(patched["metadata"]["resourceVersion"].clone());
    }
    for watch in &mut watches {
        for revision in &wanted {
            assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["resourceVersion"], *revision);
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_of_the_future_waits_and_a_list_of_it_times_out() {
    let server = Server::start().await;
    let made = server.post(MAPS, &config_map("x")).await.expect(201);
    let now: i64 = made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let late = server.get(&format!("{MAPS}?resourceVersion={}", now + 1000)).await;
    assert_eq!((late.code, late.body["reason"].as_str()), (504, Some("Timeout")));
    let mut watch = server.watch(&format!("{MAPS}?watch=true&resourceVersion={}", now + 2)).await;
    let path = format!("{MAPS}/x");
    let mut last = now;
    for n in 0..20 {
        let patch = json!({"data": {"n": n.to_string()}});
        let new = server.patch(&path, "merge", &patch).await.expect(200);
        last = new["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        if last > now + 2 {
            break;
        }
    }
    assert!(last > now + 2);
    let first = watch.next().await.unwrap();
    assert_eq!(first["object"]["metadata"]["resourceVersion"], last.to_string());
    let query = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let refused = server.get(&format!("{MAPS}?{query}&resourceVersion={}", last + 1000)).await;
    assert_eq!((refused.code, &refused.body["type"]), (200, &json!("ERROR")));
    assert_eq!(refused.body["object"]["code"], 504);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_one_name_gets_no_other() {
    let server = Server::start().await;
    for name in ["x", "y"] {
        server.post(MAPS, &config_map(name)).await.expect(201);
    }
    let one = "/api/v1/watch/namespaces/default/configmaps/x";
    let mut watch = server.watch(one).await;
    assert_eq!(watch.next_seen().await, ("ADDED".to_owned(), "x".to_owned()));
    for selector in ["metadata.name!%3Dzz", "metadata.name%3Dy"] {
        let refused = server.get(&format!("{one}?fieldSelector={selector}")).await.expect(400);
        assert_eq!(refused["message"], "fieldSelector metadata.name doesn't match requested name");
    }
    let got = server.get(&format!("{MAPS}/x?watch=true")).await.expect(200);
    assert_eq!(got["metadata"]["name"], "x", "a GET by name is no watch");
    // A name inside of a value is none that was asked for.
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "r"},
        "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["x"]}]});
    server.post(&format!("{rbac}/roles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": "b"}, "subjects": [{"kind": "User", "name": "ann"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}});
    server.post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    server.get(&format!("{rbac}/rolebindings")).await.expect(200);
    let ann = apiserver::UserInfo::new("ann", &[]);
    let list = async |selector: &str| {
        let path = format!("{MAPS}?fieldSelector={selector}");
        server.ask_as(&ann, http::Method::GET, &path, "", Vec::new()).await.code
    };
    assert_eq!(list("metadata.name%3Dx").await, 200);
    assert_eq!(list("metadata.namespace!%3Da%5C%2Cmetadata.name%3Dx").await, 403);
    server.stop().await;
}
