//! The real API server in this process, with a scheduler beside it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apiserver::config::KeyPair;
use apiserver::{ApiServer, UserInfo};
use bytes::Bytes;
use client::{Body, Client, Resource, Transport, TransportError, resources};
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use scheduler::plugins::Registry;
use scheduler::{Config, Handle, Metrics, config};
use serde_json::{Value, json};

/// Longer than anything here takes; who waits this long waits in vain.
const DEADLINE: Duration = Duration::from_secs(30);

/// Made once: keys take longer to make than a cluster.
pub struct Keys {
    pub serving: KeyPair,
    pub authority: String,
}

pub fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let spec = ClusterSpec {
            node_name: "local".into(),
            node_ips: vec!["127.0.0.1".parse().unwrap()],
            service_ips: vec!["10.0.0.1".parse().unwrap()],
            api_sans: vec!["localhost".into()],
            cluster_domain: "cluster.local".into(),
            algorithm: Algorithm::EcdsaP256,
        };
        let pki = ClusterPki::ensure(dir.path(), &spec).unwrap();
        let pair = pki.pair(names::APISERVER).unwrap();
        Keys {
            serving: KeyPair {
                certificate: pair.certificate_pem().into_bytes(),
                key: pair.key_pem().into_bytes(),
            },
            authority: pki.pair(names::SERVER_CA).unwrap().certificate_pem(),
        }
    })
}

struct InProcess(Arc<ApiServer>);

impl Transport for InProcess {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        Box::pin(async move {
            let answer = self.0.handle(UserInfo::loopback(), request.map(apiserver::Body::Full)).await;
            Ok(answer.map(|body| body.map_err(TransportError::broken).boxed_unsync()))
        })
    }
}

pub struct Cluster {
    pub client: Client,
    pub handle: Handle,
    pub metrics: Arc<Metrics>,
    tasks: Tasks,
}

impl Cluster {
    /// A cluster with these nodes of 4 CPUs and a scheduler with this configuration (without its head).
    pub async fn start(text: &str, registry: &Registry, nodes: &[&str]) -> Self {
        let tasks = Tasks::new();
        let store = etcd::open(etcd::Config::default(), &tasks).unwrap();
        let server =
            ApiServer::start(apiserver::Config::new(store, keys().serving.clone()), &tasks).await.unwrap();
        let client = Client::new(Arc::new(InProcess(server)), "test");
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        let file = config::read(&format!("{head}{text}")).unwrap();
        let settings = config::build(&file, registry).unwrap();
        for name in nodes {
            let room = json!({"cpu": "4", "memory": "8Gi", "pods": "9", "example.com/widget": "0"});
            let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}});
            let api = client.api(&resources::NODES);
            api.create::<Value>(&node).await.unwrap();
            let free = json!({"spec": {"taints": null}});
            api.patch::<Value>(name, client::Patch::Merge(&free)).await.unwrap();
            let status = json!({"status": {"capacity": room, "allocatable": room}});
            api.patch_sub::<Value>(name, "status", client::Patch::Merge(&status)).await.unwrap();
        }
        for (name, value) in [("low", 10), ("high", 1000)] {
            let class = json!({"metadata": {"name": name}, "value": value});
            client.api(&resources::PRIORITY_CLASSES).create::<Value>(&class).await.unwrap();
        }
        let account = json!({"metadata": {"name": "default"}});
        let accounts = client.api(&resources::SERVICE_ACCOUNTS).within("default");
        accounts.create::<Value>(&account).await.unwrap();
        let config = Config { settings, ..Config::new(client.clone()) };
        let metrics = config.metrics.clone();
        let handle = scheduler::start(config, &tasks);
        Self { client, handle, metrics, tasks }
    }

    pub async fn stop(self) {
        let left = self.tasks.drain(Duration::from_secs(10)).await;
        assert!(left.is_empty(), "still running at the end: {left:?}");
    }

    pub async fn get(&self, resource: &Resource, name: &str) -> Option<Value> {
        self.client.api(resource).within("default").find(name).await.unwrap()
    }

    pub async fn pod(&self, name: &str, cpu: &str, more: &Value) {
        let mut spec = json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
            "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        self.client.api(&resources::PODS).within("default").create::<Value>(&pod).await.unwrap();
    }

    /// Waits until a pod looks so; `None` is a pod that is gone.
    pub async fn until<T>(&self, name: &str, mut look: impl FnMut(Option<&Value>) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let pod = self.get(&resources::PODS, name).await;
            if let Some(found) = look(pod.as_ref()) {
                return found;
            }
            assert!(tokio::time::Instant::now() < deadline, "in vain: {pod:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The node that a pod comes to.
    pub async fn node_of(&self, name: &str) -> String {
        self.until(name, |pod| Some(pod?["spec"]["nodeName"].as_str()?.to_owned())).await
    }

    /// Why a pod waits: reason and message of its condition.
    pub async fn refusal(&self, name: &str) -> (String, String) {
        self.until(name, |pod| {
            let conditions = pod?["status"]["conditions"].as_array()?;
            let condition = conditions.iter().find(|condition| condition["type"] == "PodScheduled")?;
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            (condition["status"] == "False").then(|| (text("reason"), text("message")))
        })
        .await
    }
}
