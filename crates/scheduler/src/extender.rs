//! Extenders: programs beside the scheduler that are asked over HTTP which nodes suit a pod, which they prefer, who
//! may be sent away, and to bind. What they may be asked, and how their answers count, is upstream's protocol;
//! [`link`] carries it.

mod link;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;

use crate::framework::MAX_SCORE;
use crate::preemption::Preemption;
use crate::types::Pod;
use link::{Link, TlsFile};

/// Extenders score from 0 to this.
const MAX_EXTENDER_SCORE: i64 = 10;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<TlsFile>,
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
    #[error("extender {url} did not answer within {longest:?}")]
    Timeout { url: String, longest: Duration },
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
    /// Whether the pod asks for something that the extender manages; without such things it is asked about all pods.
    pub fn is_interested(&self, pod: &Pod) -> bool {
        if self.managed_resources.is_empty() {
            return true;
        }
        let managed: HashSet<&str> = self.managed_resources.iter().map(|resource| &*resource.name).collect();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        containers.flat_map(|it| it.resources.requests.keys()).any(|name| managed.contains(name))
    }
}

/// An extender with the means to reach it.
pub struct Extender {
    file: ExtenderFile,
    link: Link,
    longest: Duration,
}

impl std::ops::Deref for Extender {
    type Target = ExtenderFile;

    fn deref(&self) -> &ExtenderFile {
        &self.file
    }
}

impl Extender {
    /// Checks what the configuration says, and reads the files that it names.
    pub fn new(file: &ExtenderFile) -> Result<Self, String> {
        if file.url_prefix.is_empty() {
            return Err("urlPrefix: Required value: an extender must have an address".to_owned());
        }
        if !file.prioritize_verb.is_empty() && file.weight <= 0 {
            return Err(format!(
                "weight: Invalid value: {}: must have a positive weight applied to it",
                file.weight
            ));
        }
        let longest = match &file.http_timeout {
            None => DEFAULT_TIMEOUT,
            Some(text) => controller_runtime::program::go_duration(text)
                .map_err(|error| format!("httpTimeout: {error}"))?,
        };
        let link = Link::new(&file.url_prefix, file.enable_https, file.tls_config.as_ref())?;
        Ok(Self { file: file.clone(), link, longest })
    }

    async fn ask(&self, verb: &str, question: &Value) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.url_prefix.trim_end_matches('/'));
        let answer = tokio::time::timeout(self.longest, self.link.post(&url, question));
        answer.await.unwrap_or_else(|_| Err(ExtenderError::Timeout { url, longest: self.longest }))
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

    /// Whether the extender wants a word in who has to leave.
    pub fn judges_victims(&self, pod: &Pod) -> bool {
        !self.preempt_verb.is_empty() && self.is_interested(pod)
    }

    /// Those of the candidates that the extender agrees to, each with the victims that it names. `objects` are the
    /// victims as the API has them, by uid.
    pub async fn preempt(
        &self,
        pod: &Value,
        candidates: Vec<Preemption>,
        objects: &HashMap<Box<str>, Value>,
    ) -> Result<Vec<Preemption>, ExtenderError> {
        let mut all = serde_json::Map::new();
        for candidate in &candidates {
            let uids = candidate.victims.iter().map(|victim| &victim.metadata.uid);
            let pods: Vec<Value> = match self.node_cache_capable {
                true => uids.map(|uid| json!({"uid": uid})).collect(),
                false => uids.filter_map(|uid| objects.get(uid).cloned()).collect(),
            };
            let victims = json!({"pods": pods, "numPDBViolations": candidate.broken_budgets});
            all.insert(candidate.node.to_string(), victims);
        }
        let field = if self.node_cache_capable { "nodeNameToMetaVictims" } else { "nodeNameToVictims" };
        let question = json!({"pod": pod, field: all});
        let mut answer: PreemptAnswer = self.decode(self.ask(&self.preempt_verb, &question).await?)?;
        let agreed = candidates.into_iter().filter_map(|mut candidate| {
            let kept = answer.node_name_to_meta_victims.remove(&candidate.node)?;
            let named: HashSet<&str> = kept.pods.iter().map(|pod| &*pod.uid).collect();
            candidate.victims.retain(|victim| named.contains(&*victim.metadata.uid));
            candidate.broken_budgets = kept.broken_budgets;
            Some(candidate)
        });
        Ok(agreed.collect())
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
    #[serde(rename = "numPDBViolations", alias = "NumPDBViolations")]
    broken_budgets: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MetaPod {
    #[serde(alias = "UID")]
    uid: Box<str>,
}
