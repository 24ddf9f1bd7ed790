//! Extenders: programs beside the scheduler that are asked over HTTP which nodes suit a pod, which they prefer, who
//! may be sent away, and to bind. What they may be asked, and how their answers count, is upstream's protocol.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpStream;

use crate::framework::MAX_SCORE;
use crate::types::Pod;

/// Extenders score from 0 to this.
const MAX_EXTENDER_SCORE: i64 = 10;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// An answer names every node of the cluster at most.
const LONGEST_ANSWER: usize = 64 << 20;

/// One extender, as the configuration describes it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ExtenderFile {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub weight: i64,
    pub bind_verb: String,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tls_config: Value,
    #[serde(rename = "httpTimeout", skip_serializing_if = "Option::is_none")]
    pub http_timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    pub ignorable: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ManagedResource {
    pub name: Box<str>,
    pub ignored_by_scheduler: bool,
}

/// An extender that gave no usable answer.
#[derive(Debug, Error)]
pub enum ExtenderError {
    #[error("extender {url} cannot be reached")]
    Connect { url: String, source: std::io::Error },
    #[error("extender {url} did not answer")]
    Http { url: String, source: hyper::Error },
    #[error("extender {url} did not answer within {seconds} s")]
    Timeout { url: String, seconds: u64 },
    #[error("extender {url} answered with code {code}")]
    Code { url: String, code: u16 },
    #[error("extender {url} answered something that is not of its protocol")]
    Decode { url: String, source: serde_json::Error },
    #[error("extender {url} says: {message}")]
    Refused { url: String, message: String },
    #[error("extender {url} has an address that cannot be used")]
    Address { url: String },
}

impl ExtenderFile {
    pub fn check(&self) -> Result<(), String> {
        if self.url_prefix.is_empty() {
            return Err("urlPrefix: Required value: an extender must have an address".to_owned());
        }
        if self.enable_https || !self.tls_config.is_null() || self.url_prefix.starts_with("https:") {
            return Err("enableHTTPS: Invalid value: extenders are reached over plain HTTP only".to_owned());
        }
        if !self.prioritize_verb.is_empty() && self.weight <= 0 {
            return Err(format!(
                "weight: Invalid value: {}: must have a positive weight applied to it",
                self.weight
            ));
        }
        self.timeout().map(drop)
    }

    fn timeout(&self) -> Result<Duration, String> {
        match &self.http_timeout {
            None => Ok(DEFAULT_TIMEOUT),
            Some(text) => controller_runtime::program::go_duration(text)
                .map_err(|error| format!("httpTimeout: {error}")),
        }
    }

    /// Whether the pod asks for something that the extender manages; without such things it is asked about all pods.
    pub fn is_interested(&self, pod: &Pod) -> bool {
        if self.managed_resources.is_empty() {
            return true;
        }
        let managed: HashSet<&str> = self.managed_resources.iter().map(|resource| &*resource.name).collect();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        containers.flat_map(|it| it.resources.requests.keys()).any(|name| managed.contains(&**name))
    }

    async fn ask(&self, verb: &str, question: &Value) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.url_prefix.trim_end_matches('/'));
        let longest = self.timeout().unwrap_or(DEFAULT_TIMEOUT);
        let answer = tokio::time::timeout(longest, post(&url, question));
        answer.await.unwrap_or_else(|_| Err(ExtenderError::Timeout { url, seconds: longest.as_secs() }))
    }

    /// The nodes that suit the pod, and the reasons against the others; the flag says that nothing helps there.
    pub async fn filter(
        &self,
        pod: &Value,
        nodes: &[Box<str>],
        objects: &HashMap<Box<str>, Value>,
    ) -> Result<(Vec<Box<str>>, Vec<(Box<str>, String, bool)>), ExtenderError> {
        if self.filter_verb.is_empty() {
            return Ok((nodes.to_vec(), Vec::new()));
        }
        let answer: FilterAnswer =
            self.decode(self.ask(&self.filter_verb, &self.question(pod, nodes, objects)).await?)?;
        if !answer.error.is_empty() {
            return Err(ExtenderError::Refused { url: self.url_prefix.clone(), message: answer.error });
        }
        let fitting: Vec<Box<str>> = match (answer.node_names, answer.nodes) {
            (Some(names), _) if self.node_cache_capable => names,
            (_, Some(list)) => list.items.into_iter().map(|node| node.metadata.name).collect(),
            (Some(names), None) => names,
            (None, None) => Vec::new(),
        };
        let refused = answer.failed_nodes.into_iter().map(|(node, reason)| (node, reason, false));
        let never =
            answer.failed_and_unresolvable_nodes.into_iter().map(|(node, reason)| (node, reason, true));
        Ok((fitting, refused.chain(never).collect()))
    }

    /// What each node gets on top of the plugins' scores.
    pub async fn prioritize(
        &self,
        pod: &Value,
        nodes: &[Box<str>],
        objects: &HashMap<Box<str>, Value>,
    ) -> Result<HashMap<Box<str>, i64>, ExtenderError> {
        if self.prioritize_verb.is_empty() {
            return Ok(HashMap::new());
        }
        let answer = self.ask(&self.prioritize_verb, &self.question(pod, nodes, objects)).await?;
        let scores: Vec<HostScore> = self.decode(answer)?;
        let weigh =
            |score: HostScore| (score.host, score.score * self.weight * (MAX_SCORE / MAX_EXTENDER_SCORE));
        Ok(scores.into_iter().map(weigh).collect())
    }

    /// Has the extender bind the pod; false if it does not bind.
    pub async fn bind(&self, pod: &Pod, node: &str) -> Result<bool, ExtenderError> {
        if self.bind_verb.is_empty() || !self.is_interested(pod) {
            return Ok(false);
        }
        let meta = &pod.metadata;
        let question =
            json!({"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node});
        let answer: BindAnswer = self.decode(self.ask(&self.bind_verb, &question).await?)?;
        if answer.error.is_empty() {
            Ok(true)
        } else {
            Err(ExtenderError::Refused { url: self.url_prefix.clone(), message: answer.error })
        }
    }

    /// Whether the extender agrees that these pods leave the node; `None` if it is not asked.
    pub async fn preempt(
        &self,
        pod: &Value,
        node: &str,
        victims: &[(Value, Box<str>)],
    ) -> Result<Option<HashSet<Box<str>>>, ExtenderError> {
        if self.preempt_verb.is_empty() {
            return Ok(None);
        }
        let question = if self.node_cache_capable {
            let uids: Vec<Value> = victims.iter().map(|(_, uid)| json!({"uid": uid})).collect();
            json!({"pod": pod, "nodeNameToMetaVictims": {node: {"pods": uids, "numPDBViolations": 0}}})
        } else {
            let pods: Vec<&Value> = victims.iter().map(|(object, _)| object).collect();
            json!({"pod": pod, "nodeNameToVictims": {node: {"pods": pods, "numPDBViolations": 0}}})
        };
        let answer: PreemptAnswer = self.decode(self.ask(&self.preempt_verb, &question).await?)?;
        let kept = answer.node_name_to_meta_victims.get(node);
        Ok(Some(
            kept.map(|victims| victims.pods.iter().map(|pod| pod.uid.clone()).collect()).unwrap_or_default(),
        ))
    }

    fn question(&self, pod: &Value, nodes: &[Box<str>], objects: &HashMap<Box<str>, Value>) -> Value {
        if self.node_cache_capable {
            return json!({"pod": pod, "nodenames": nodes});
        }
        let items: Vec<&Value> = nodes.iter().filter_map(|name| objects.get(name)).collect();
        json!({"pod": pod, "nodes": {"apiVersion": "v1", "kind": "NodeList", "metadata": {}, "items": items}})
    }

    fn decode<T: serde::de::DeserializeOwned>(&self, answer: Value) -> Result<T, ExtenderError> {
        serde_json::from_value(answer)
            .map_err(|source| ExtenderError::Decode { url: self.url_prefix.clone(), source })
    }
}

/// Go's decoder takes field names in any case; extenders use these spellings.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FilterAnswer {
    #[serde(alias = "Nodes")]
    nodes: Option<NodeList>,
    #[serde(rename = "nodenames", alias = "NodeNames", alias = "nodeNames")]
    node_names: Option<Vec<Box<str>>>,
    #[serde(rename = "failedNodes", alias = "FailedNodes")]
    failed_nodes: HashMap<Box<str>, String>,
    #[serde(rename = "failedAndUnresolvableNodes", alias = "FailedAndUnresolvableNodes")]
    failed_and_unresolvable_nodes: HashMap<Box<str>, String>,
    #[serde(alias = "Error")]
    error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeList {
    items: Vec<Named>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    metadata: client::Metadata,
}

#[derive(Debug, Deserialize)]
struct HostScore {
    #[serde(alias = "Host")]
    host: Box<str>,
    #[serde(alias = "Score")]
    score: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct BindAnswer {
    #[serde(alias = "Error")]
    error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PreemptAnswer {
    #[serde(rename = "nodeNameToMetaVictims", alias = "NodeNameToMetaVictims")]
    node_name_to_meta_victims: HashMap<Box<str>, MetaVictims>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetaVictims {
    #[serde(alias = "Pods")]
    pods: Vec<MetaPod>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetaPod {
    #[serde(alias = "UID")]
    uid: Box<str>,
}

async fn post(url: &str, question: &Value) -> Result<Value, ExtenderError> {
    let uri: Uri = url.parse().map_err(|_| ExtenderError::Address { url: url.to_owned() })?;
    let authority = uri.authority().ok_or_else(|| ExtenderError::Address { url: url.to_owned() })?;
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await;
    let stream = stream.map_err(|source| ExtenderError::Connect { url: url.to_owned(), source })?;
    let failed = |source| ExtenderError::Http { url: url.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::post(path)
        .header(header::HOST, authority.as_str())
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(question.to_string())))
        .map_err(|_| ExtenderError::Address { url: url.to_owned() })?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        let code = answer.status().as_u16();
        if code != 200 {
            return Err(ExtenderError::Code { url: url.to_owned(), code });
        }
        let body = http_body_util::Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|_| ExtenderError::Code { url: url.to_owned(), code })?.to_bytes();
        serde_json::from_slice(&body).map_err(|source| ExtenderError::Decode { url: url.to_owned(), source })
    };
    // The connection serves this one exchange and is driven beside it.
    tokio::select! {
        answer = exchange => answer,
        Err(source) = connection => Err(failed(source)),
    }
}
