//! Starts a server for one test and asks it questions.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apiserver::config::{Advertise, KeyPair};
use apiserver::{ApiServer, Body, Config, UserInfo};
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use serde_json::{Value, json};

/// A server and what belongs to it.
pub struct Server {
    pub api: Arc<ApiServer>,
    pub store: Arc<dyn etcd::Store>,
    pub tasks: Tasks,
    pub dir: tempfile::TempDir,
    pub pki: ClusterPki,
    pub kubeconfig: PathBuf,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub body: Value,
}

impl Server {
    /// Starts a server whose namespace `default` has a default service account.
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// The same with another configuration.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let tasks = Tasks::new();
        let store = etcd::open(etcd::Config::default(), &tasks).unwrap();
        let server = Self::on(store, tasks, change).await;
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
        server
    }

    /// Starts another server on the same store.
    pub async fn beside(&self) -> Self {
        Self::on(self.store.clone(), Tasks::new(), |_| {}).await
    }

    async fn on(store: Arc<dyn etcd::Store>, tasks: Tasks, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = ClusterSpec {
            node_name: "local".to_owned(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            service_ips: vec!["10.0.0.1".parse().unwrap()],
            api_sans: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
            cluster_domain: "cluster.local".to_owned(),
            algorithm: Algorithm::EcdsaP256,
        };
        let pki = ClusterPki::ensure(&dir.path().join("pki"), &spec).unwrap();
        let pair = |name: &str| {
            let pair = pki.pair(name).unwrap();
            KeyPair { certificate: pair.certificate_pem().into_bytes(), key: pair.key_pem().into_bytes() }
        };
        let mut config = Config::new(store.clone(), pair(names::APISERVER));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        config.listeners.push(listener);
        config.client_ca = Some(pair(names::CLIENT_CA).certificate);
        config.service_accounts.signing_key = Some(pki.service_account().to_pem().into_bytes());
        config.advertise = Some(Advertise { address: "192.0.2.1".parse().unwrap(), port: address.port() });
        change(&mut config);
        let api = ApiServer::start(config, &tasks).await.unwrap();
        let kubeconfig = dir.path().join("kubeconfig");
        pki.kubeconfig(names::ADMIN, "local", &format!("https://{address}"))
            .unwrap()
            .write(&kubeconfig)
            .unwrap();
        Self { api, store, tasks, dir, pki, kubeconfig }
    }

    /// Asks as an administrator.
    pub async fn ask(&self, method: Method, path: &str, kind: &str, body: Vec<u8>) -> Answer {
        self.ask_as(&UserInfo::new("admin", &["system:masters"]), method, path, kind, body).await
    }

    /// Asks as anyone.
    pub async fn ask_as(
        &self,
        user: &UserInfo,
        method: Method,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> Answer {
        self.ask_with(user, method, path, &[("content-type", kind)], body).await
    }

    /// Asks as anyone with these headers.
    pub async fn ask_with(
        &self,
        user: &UserInfo,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(Body::from(body)).unwrap();
        let answer = self.api.handle(user.clone(), request).await;
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            body: serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    /// A page that is no JSON.
    pub async fn text(&self, path: &str) -> String {
        let request = Request::builder().uri(path).body(Body::Empty).unwrap();
        let answer = self.api.handle(UserInfo::new("admin", &["system:masters"]), request).await;
        assert_eq!(answer.status(), 200, "{path}");
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, "application/json", Vec::new()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.ask(Method::POST, path, "application/json", object.to_string().into_bytes()).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.ask(Method::PUT, path, "application/json", object.to_string().into_bytes()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Answer {
        let kind = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            kind => format!("application/{kind}-patch+json"),
        };
        self.ask(Method::PATCH, path, &kind, patch.to_string().into_bytes()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, "application/json", Vec::new()).await
    }

    /// Starts a watch.
    pub async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, "application/json").await
    }

    /// Starts a watch in another form.
    pub async fn watch_as(&self, path: &str, accept: &str) -> Watch {
        let request = Request::builder().uri(path).header("accept", accept).body(Body::Empty).unwrap();
        let answer = self.api.handle(UserInfo::new("admin", &["system:masters"]), request).await;
        assert_eq!(answer.status(), 200, "{path}");
        Watch { body: answer.into_body(), rest: Vec::new() }
    }

    /// Asks until the answer is the wanted one.
    pub async fn until(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let answer = self.get(path).await;
            if wanted(&answer) {
                return answer.body;
            }
            assert!(tokio::time::Instant::now() < deadline, "{path}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn stop(self) {
        assert!(self.tasks.drain(Duration::from_secs(20)).await.is_empty(), "every task ends");
    }
}

impl Answer {
    /// Checks the code and gives the body.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }
}

/// A running watch.
pub struct Watch {
    body: Body,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event, within ten seconds; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let mut stream = (&mut self.body).into_data_stream();
            let piece = tokio::time::timeout(Duration::from_secs(10), stream.next())
                .await
                .expect("an event in time")?;
            self.rest.extend_from_slice(&piece.unwrap());
        }
    }

    /// All bytes up to these, within ten seconds each piece.
    pub async fn until(&mut self, mark: &[u8]) -> Vec<u8> {
        while !self.rest.windows(mark.len()).any(|part| part == mark) {
            let mut stream = (&mut self.body).into_data_stream();
            let piece = tokio::time::timeout(Duration::from_secs(10), stream.next()).await;
            self.rest
                .extend_from_slice(&piece.expect("a piece in time").expect("the watch goes on").unwrap());
        }
        std::mem::take(&mut self.rest)
    }

    /// The type and name of the next event.
    pub async fn next_seen(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

/// A ConfigMap.
pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

/// A pod that asks for nothing.
pub fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}
