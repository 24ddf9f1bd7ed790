//! Extenders asked over HTTP and HTTPS by a scheduler at work.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use scheduler::config;
use scheduler::plugins::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::cluster::{Cluster, keys};

type Answer = Arc<dyn Fn(&str, &Value) -> Option<Value> + Send + Sync>;

/// An extender that notes what it is asked; where it has no answer it keeps silent.
struct Extender {
    url: String,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    tasks: Tasks,
}

impl Extender {
    async fn start(
        secure: bool,
        answer: impl Fn(&str, &Value) -> Option<Value> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tasks, asked) = (Tasks::new(), Arc::new(Mutex::new(Vec::new())));
        let (notes, answer): (_, Answer) = (asked.clone(), Arc::new(answer));
        let tls = secure.then(acceptor);
        let inner = tasks.clone();
        tasks.spawn("extender", |stop| async move {
            while let Some(Ok((stream, _))) = stop.or(listener.accept()).await {
                let (notes, answer, tls) = (notes.clone(), answer.clone(), tls.clone());
                inner.spawn("extender/connection", |stop| async move {
                    let work = async {
                        match tls {
                            None => serve(stream, notes, answer).await,
                            Some(tls) => {
                                if let Ok(stream) = tls.accept(stream).await {
                                    serve(stream, notes, answer).await;
                                }
                            }
                        }
                    };
                    stop.or(work).await;
                });
            }
        });
        let scheme = if secure { "https" } else { "http" };
        Self { url: format!("{scheme}://127.0.0.1:{port}/scheduler"), asked, tasks }
    }

    /// What was asked so far of a verb.
    fn asked(&self, verb: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(known, _)| known == verb).map(|(_, question)| question.clone()).collect()
    }

    async fn stop(self) {
        self.tasks.drain(Duration::from_secs(5)).await;
    }
}

fn acceptor() -> TlsAcceptor {
    let pair = &keys().serving;
    let chain = CertificateDer::pem_slice_iter(&pair.certificate).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(&pair.key).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}

async fn serve<S>(stream: S, notes: Arc<Mutex<Vec<(String, Value)>>>, answer: Answer)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handler = service_fn(move |request: Request<Incoming>| {
        let (notes, answer) = (notes.clone(), answer.clone());
        async move {
            let verb = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let question: Value = serde_json::from_slice(&body).unwrap();
            let said = answer(&verb, &question);
            notes.lock().unwrap().push((verb, question));
            match said {
                Some(said) => {
                    let body = Full::new(Bytes::from(said.to_string()));
                    Ok::<_, Infallible>(Response::new(body))
                }
                None => std::future::pending().await,
            }
        }
    });
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), handler).await;
}

fn node_names(question: &Value) -> Vec<String> {
    let names = question["nodenames"].as_array().into_iter().flatten();
    let items = question["nodes"]["items"].as_array().into_iter().flatten();
    let all = names.chain(items.map(|node| &node["metadata"]["name"]));
    all.map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extender_filters_scores_and_binds_over_https() {
    let extender = Extender::start(true, |verb, question| match verb {
        "filter" => {
            let left: Vec<String> = node_names(question).into_iter().filter(|name| name != "a").collect();
            Some(json!({"nodenames": left, "failedNodes": {"a": "not today"}}))
        }
        "prioritize" => Some(json!([{"Host": "b", "Score": 0}, {"Host": "c", "Score": 10}])),
        _ => Some(json!({"Error": "no such verb"})),
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let authority = dir.path().join("ca.crt");
    std::fs::write(&authority, &keys().authority).unwrap();
    let text = format!(
        "extenders: [{{urlPrefix: '{}', filterVerb: filter, prioritizeVerb: prioritize, weight: 5, \
         enableHTTPS: true, tlsConfig: {{caFile: '{}', serverName: localhost}}, nodeCacheCapable: true}}]",
        extender.url,
        authority.display()
    );
    let cluster = Cluster::start(&text, &Registry::default(), &["a", "b", "c"]).await;
    cluster.pod("p", "1", &json!({})).await;
    assert_eq!(cluster.node_of("p").await, "c");
    let asked = extender.asked("filter");
    assert_eq!(asked[0]["pod"]["metadata"]["name"], "p");
    assert!(asked[0]["nodes"].is_null(), "names are enough for who keeps nodes itself");
    // Only the node is left that the extender does not want.
    cluster.pod("q", "1", &json!({"nodeSelector": {"kubernetes.io/hostname": "a"}})).await;
    let (reason, message) = cluster.refusal("q").await;
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("1 not today") && message.starts_with("0/3 nodes are available"), "{message}");
    cluster.stop().await;
    extender.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_authority_a_late_answer_and_one_that_may_be_ignored() {
    let silent = Extender::start(false, |_, _| None).await;
    let strange = Extender::start(true, |_, _| Some(json!({}))).await;
    let dir = tempfile::tempdir().unwrap();
    let authority = dir.path().join("ca.crt");
    // The serving certificate is no authority of itself.
    std::fs::write(&authority, &keys().serving.certificate).unwrap();
    let extenders = |ignorable: bool| {
        format!(
            "podInitialBackoffSeconds: 1\nextenders: [{{urlPrefix: '{}', filterVerb: f, httpTimeout: 200ms, ignorable: {ignorable}}}, \
             {{urlPrefix: '{}', filterVerb: f, tlsConfig: {{caFile: '{}'}}, ignorable: true}}]",
            silent.url,
            strange.url,
            authority.display()
        )
    };
    let cluster = Cluster::start(&extenders(true), &Registry::default(), &["a"]).await;
    cluster.pod("p", "1", &json!({})).await;
    assert_eq!(cluster.node_of("p").await, "a");
    let question = &silent.asked("f")[0];
    assert_eq!(node_names(question), ["a"], "whoever keeps no nodes sees them whole");
    cluster.stop().await;
    let cluster = Cluster::start(&extenders(false), &Registry::default(), &["a"]).await;
    cluster.pod("p", "1", &json!({})).await;
    let (reason, message) = cluster.refusal("p").await;
    assert_eq!(reason, "SchedulerError");
    assert!(message.contains("did not answer within 200ms"), "{message}");
    assert!(strange.asked("f").is_empty(), "nothing is told to a stranger");
    cluster.stop().await;
    silent.stop().await;
    strange.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extender_manages_a_resource_and_binds_its_pods() {
    let extender = Extender::start(false, |verb, question| match verb {
        "filter" => Some(json!({"nodenames": node_names(question)})),
        "bind" => Some(json!({"Error": "the extender would not"})),
        _ => None,
    })
    .await;
    let text = format!(
        "extenders: [{{urlPrefix: '{}', filterVerb: filter, bindVerb: bind, nodeCacheCapable: true, \
         managedResources: [{{name: example.com/widget, ignoredByScheduler: true}}]}}]",
        extender.url
    );
    let cluster = Cluster::start(&text, &Registry::default(), &["a"]).await;
    cluster.pod("plain", "1", &json!({})).await;
    assert_eq!(cluster.node_of("plain").await, "a");
    assert!(extender.asked("filter").is_empty(), "the pod asks for nothing that the extender manages");
    // No node has widgets, but the scheduler leaves them to the extender.
    let widgets = json!({"example.com/widget": "3"});
    let container = json!({"name": "c", "image": "i", "resources": {"requests": widgets, "limits": widgets}});
    cluster.pod("q", "1", &json!({"containers": [container]})).await;
    let (reason, message) = cluster.refusal("q").await;
    assert_eq!(reason, "SchedulerError");
    assert!(message.contains("the extender would not"), "{message}");
    let asked = &extender.asked("bind")[0];
    assert_eq!(
        (&asked["PodName"], &asked["PodNamespace"], &asked["Node"]),
        (&json!("q"), &json!("default"), &json!("a"))
    );
    cluster.stop().await;
    extender.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extender_has_a_say_in_who_leaves() {
    // It gives up `a`, on which leaving would cost least, and agrees to all victims elsewhere.
    let extender = Extender::start(false, |verb, question| {
        assert_eq!(verb, "preempt");
        let mut kept = serde_json::Map::new();
        for (node, victims) in question["nodeNameToVictims"].as_object().unwrap() {
            let uids: Vec<Value> = victims["pods"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pod| json!({"uid": pod["metadata"]["uid"]}))
                .collect();
            if node != "a" {
                kept.insert(node.clone(), json!({"pods": uids, "numPDBViolations": 0}));
            }
        }
        Some(json!({"nodeNameToMetaVictims": kept}))
    })
    .await;
    let text = format!("extenders: [{{urlPrefix: '{}', preemptVerb: preempt}}]", extender.url);
    let cluster = Cluster::start(&text, &Registry::default(), &["a", "b"]).await;
    for (name, node) in [("va", "a"), ("vb", "b")] {
        let more = json!({"nodeSelector": {"kubernetes.io/hostname": node},
            "priorityClassName": if node == "b" { "low" } else { "" }});
        cluster.pod(name, "3", &more).await;
        cluster.node_of(name).await;
    }
    cluster.pod("p", "3", &json!({"priorityClassName": "high"})).await;
    cluster.until("vb", |pod| pod.is_none().then_some(())).await;
    assert_eq!(cluster.node_of("p").await, "b");
    assert_eq!(cluster.node_of("va").await, "a");
    cluster.stop().await;
    extender.stop().await;
}

#[test]
fn what_cannot_be_reached_securely_is_refused_with_a_sentence() {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    for (extender, part) in [
        ("{urlPrefix: 'ftp://x'}", "neither http nor https"),
        ("{urlPrefix: 'https://x'}", "tlsConfig.caFile: Required value"),
        ("{urlPrefix: 'https://x', tlsConfig: {caFile: /nowhere}}", "tlsConfig.caFile: Invalid value"),
        ("{urlPrefix: 'https://x', tlsConfig: {caData: '*'}}", "tlsConfig.caData: Invalid value"),
        ("{urlPrefix: 'https://x', enableHTTPS: true, tlsConfig: {certData: eA==}}", "given together"),
        ("{urlPrefix: 'https://x', tlsConfig: {magic: 1}}", "unknown field `magic`"),
        ("{urlPrefix: 'http://x', httpTimeout: soon}", "httpTimeout"),
        ("{urlPrefix: 'http://x', prioritizeVerb: p}", "positive weight"),
    ] {
        let error = match config::read(&format!("{head}extenders: [{extender}]")) {
            Ok(file) => config::build(&file, &Registry::default()).err().unwrap(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(part), "{extender}: {error}");
    }
}
