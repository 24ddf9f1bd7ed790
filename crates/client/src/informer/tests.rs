use std::collections::VecDeque;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::*;
use crate::{Body, Transport, TransportError, full_body, resources};

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
}

impl Projection for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn indices(&self, add: &mut dyn FnMut(&'static str, &str)) {
        if let Some(app) = self.metadata.labels.get("app") {
            add("app", app);
        }
    }
}

/// Answers each request with the next line of a script; the requests' URIs are kept.
struct Script {
    answers: Mutex<VecDeque<(u16, &'static str)>>,
    asked: Mutex<Vec<String>>,
}

impl Transport for Arc<Script> {
    fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>> {
        lock(&self.asked).push(request.uri().to_string());
        let answer = lock(&self.answers).pop_front();
        Box::pin(async move {
            match answer {
                Some((code, text)) => {
                    Ok(http::Response::builder().status(code).body(full_body(text)).expect("valid"))
                }
                None => std::future::pending().await,
            }
        })
    }
}

fn script(answers: &[(u16, &'static str)]) -> Arc<Script> {
    Arc::new(Script { answers: Mutex::new(answers.iter().copied().collect()), asked: Mutex::default() })
}

fn start(script: &Arc<Script>, tasks: &Tasks) -> (Informer<Pod>, Arc<Mutex<Vec<String>>>) {
    let client = Client::new(Arc::new(script.clone()), "test");
    let informer = Informer::<Pod>::start(&client, &resources::PODS, "", ListOptions::default(), tasks);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    informer.on_change(move |change| {
        let sign = match (&change.old, &change.new) {
            (None, Some(_)) => "+",
            (Some(_), Some(_)) => "~",
            _ => "-",
        };
        lock(&log).push(format!("{sign}{}", change.key().name));
    });
    (informer, seen)
}

const LIST_AB: &str = r#"{"metadata":{"resourceVersion":"5"},"items":[
    {"metadata":{"name":"a","namespace":"n","uid":"1","resourceVersion":"3"}},
    {"metadata":{"name":"b","namespace":"n","uid":"2","resourceVersion":"4"}}]}"#;

#[tokio::test(start_paused = true)]
async fn changes_after_the_list_are_told_and_kept() {
    let script = script(&[
        (200, LIST_AB),
        (
            200,
            "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"resourceVersion\":\"6\"}}}\n\
             {\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"b\",\"namespace\":\"n\",\"resourceVersion\":\"7\"}}}\n",
        ),
    ]);
    let tasks = Tasks::new();
    let (informer, seen) = start(&script, &tasks);
    informer.reached(7).await;
    assert_eq!(informer.list().len(), 1);
    let mut seen = lock(&seen).clone();
    seen[..2].sort();
    assert_eq!(seen, ["+a", "+b", "~a", "-b"]);
    tasks.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_watch_is_healed_by_the_difference_to_a_new_list() {
    let script = script(&[
        (200, LIST_AB),
        (410, r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#),
        (
            200,
            r#"{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a","namespace":"n","uid":"1","resourceVersion":"3"}},
               {"metadata":{"name":"c","namespace":"n","uid":"3","resourceVersion":"8"}}]}"#,
        ),
    ]);
    let tasks = Tasks::new();
    let (informer, seen) = start(&script, &tasks);
    informer.reached(9).await;
    assert_eq!(lock(&seen)[2..], ["-b", "+c"]);
    tasks.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_goes_on_where_it_stopped() {
    let script = script(&[
        (200, LIST_AB),
        (500, "oops"),
        (200, "{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"resourceVersion\":\"12\"}}}\n"),
    ]);
    let tasks = Tasks::new();
    let (informer, _) = start(&script, &tasks);
    informer.reached(12).await;
    let asked = lock(&script.asked).clone();
    assert!(asked[2].contains("resourceVersion=5"), "{asked:?}");
    tasks.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_decode_hides_no_other() {
    let script = script(&[(
        200,
        r#"{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":7}},{"metadata":{"name":"b"}}]}"#,
    )]);
    let tasks = Tasks::new();
    let (informer, _) = start(&script, &tasks);
    informer.synced().await;
    assert!(informer.get(&Key::cluster("b")).is_some());
    tasks.drain(Duration::from_secs(1)).await;
}

#[test]
fn objects_move_between_lists_as_they_change() {
    let pod = |app: &str| -> Arc<Pod> {
        let text = format!(r#"{{"metadata":{{"name":"a","namespace":"n","labels":{{"app":"{app}"}}}}}}"#);
        Arc::new(serde_json::from_str(&text).expect("valid"))
    };
    let mut objects = Objects::default();
    objects.insert(pod("x"));
    assert!(objects.lists.contains_key("app=x"));
    objects.insert(pod("y"));
    assert!(!objects.lists.contains_key("app=x"));
    assert_eq!(objects.lists["app=y"].len(), 1);
    objects.remove(&Key::new("n", "a"));
    assert!(objects.lists.is_empty() && objects.all.is_empty());
}
