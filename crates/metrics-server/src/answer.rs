//! Answers requests of the API: which path means what, and what metrics look like.

use std::collections::HashMap;

use client::{Client, Error, ListOptions, Metadata, resources};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::samples::{Pair, Samples};
use crate::text::{Reading, cores};

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "metrics.k8s.io/v1beta1";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Question {
    /// `/apis/metrics.k8s.io`.
    Group,
    /// `/apis/metrics.k8s.io/v1beta1`.
    Resources,
    /// Nodes, or one.
    Nodes { name: Option<String>, selector: Selection },
    /// Pods of a namespace or of all, or one.
    Pods { namespace: Option<String>, name: Option<String>, selector: Selection },
    /// Whether this works.
    Health,
}

/// The selectors of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selection {
    labels: Option<String>,
    fields: Option<String>,
}

/// Understands a path and query.
pub fn question(path: &str, query: &str) -> Option<Question> {
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| decode(value)).find(|value| !value.is_empty())
    };
    let selector = Selection { labels: value("labelSelector"), fields: value("fieldSelector") };
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let own = |part: &str| Some(part.to_owned());
    Some(match parts[..] {
        ["healthz" | "livez" | "readyz"] => Question::Health,
        ["apis", GROUP] => Question::Group,
        ["apis", GROUP, "v1beta1"] => Question::Resources,
        ["apis", GROUP, "v1beta1", "nodes"] => Question::Nodes { name: None, selector },
        ["apis", GROUP, "v1beta1", "nodes", name] => Question::Nodes { name: own(name), selector },
        ["apis", GROUP, "v1beta1", "pods"] => Question::Pods { namespace: None, name: None, selector },
        ["apis", GROUP, "v1beta1", "namespaces", namespace, "pods"] => {
            Question::Pods { namespace: own(namespace), name: None, selector }
        }
        ["apis", GROUP, "v1beta1", "namespaces", namespace, "pods", name] => {
            Question::Pods { namespace: own(namespace), name: own(name), selector }
        }
        _ => return None,
    })
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let digits = [rest.next().unwrap_or(b'0'), rest.next().unwrap_or(b'0')];
                let digits = String::from_utf8_lossy(&digits).into_owned();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// An object whose use is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Subject {
    metadata: Metadata,
    spec: SubjectSpec,
    status: SubjectStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SubjectSpec {
    node_name: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SubjectStatus {
    phase: Box<str>,
}

/// Why there is no answer.
pub enum Refusal {
    /// The API server refused, or could not be asked.
    Api(Error),
    /// There are no metrics of this.
    Missing(&'static str, String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Api(error)
    }
}

/// Answers a question.
pub async fn answer(question: Question, client: &Client, samples: &Samples) -> Result<Value, Refusal> {
    match question {
        Question::Health => Ok(json!("ok")),
        Question::Group => {
            let version = json!({"groupVersion": VERSION, "version": "v1beta1"});
            Ok(json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version],
                "preferredVersion": version}))
        }
        Question::Resources => Ok(resources_served()),
        Question::Nodes { name, selector } => {
            let nodes = subjects(client, &resources::NODES, None, name.as_deref(), &selector).await?;
            if name.is_none() && selector == Selection::default() {
                let names: Vec<Box<str>> = nodes.iter().map(|node| node.metadata.name.clone()).collect();
                samples.keep(&names);
            }
            let pairs = pairs_of(samples, nodes.iter().map(|node| &*node.metadata.name)).await;
            let found = nodes.iter().filter_map(|node| {
                let pair = pairs.get(&*node.metadata.name)?;
                node_metrics(node, pair)
            });
            finish("NodeMetrics", "nodes", name, found.collect())
        }
        Question::Pods { namespace, name, selector } => {
            let pods =
                subjects(client, &resources::PODS, namespace.as_deref(), name.as_deref(), &selector).await?;
            let running: Vec<&Subject> = pods.iter().filter(|pod| &*pod.status.phase == "Running").collect();
            let pairs = pairs_of(samples, running.iter().map(|pod| &*pod.spec.node_name)).await;
            let found = running.iter().filter_map(|pod| {
                let pair = pairs.get(&*pod.spec.node_name)?;
                pod_metrics(pod, pair)
            });
            finish("PodMetrics", "pods", name, found.collect())
        }
    }
}

fn finish(
    kind: &str,
    plural: &'static str,
    name: Option<String>,
    mut found: Vec<Value>,
) -> Result<Value, Refusal> {
    let Some(name) = name else {
        return Ok(
            json!({"kind": format!("{kind}List"), "apiVersion": VERSION, "metadata": {}, "items": found}),
        );
    };
    let Some(mut one) = found.pop() else { return Err(Refusal::Missing(plural, name)) };
    one["kind"] = json!(kind);
    one["apiVersion"] = json!(VERSION);
    Ok(one)
}

fn resources_served() -> Value {
    let one = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get", "list"]});
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION,
        "resources": [one("nodes", "NodeMetrics", false), one("pods", "PodMetrics", true)]})
}

async fn subjects(
    client: &Client,
    resource: &client::Resource,
    namespace: Option<&str>,
    name: Option<&str>,
    selector: &Selection,
) -> Result<Vec<Subject>, Error> {
    let api = client.api(resource).within(namespace.unwrap_or(""));
    if let Some(name) = name {
        return Ok(api.find(name).await?.into_iter().collect());
    }
    let options = ListOptions {
        label_selector: selector.labels.clone().unwrap_or_default(),
        field_selector: selector.fields.clone().unwrap_or_default(),
        ..ListOptions::default()
    };
    Ok(api.list_all::<Subject>(&options).await?.items)
}

async fn pairs_of<'a>(samples: &Samples, names: impl Iterator<Item = &'a str>) -> HashMap<&'a str, Pair> {
    let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    let asked = names.into_iter().map(|name| async move { Some((name, samples.of(name).await?)) });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

fn node_metrics(node: &Subject, pair: &Pair) -> Option<Value> {
    let (usage, at, window) = usage(&pair.before.node, &pair.after.node)?;
    Some(json!({"metadata": metadata(node), "timestamp": time(at), "window": span(window), "usage": usage}))
}

/// A pod's use, if that of all its containers is known; of a part of them it would mislead.
fn pod_metrics(pod: &Subject, pair: &Pair) -> Option<Value> {
    let of = &pod.metadata;
    let own = |(namespace, name, _): &&(Box<str>, Box<str>, Box<str>)| {
        **namespace == *of.namespace && *name == of.name
    };
    let mut keys: Vec<_> = pair.after.containers.keys().filter(own).collect();
    keys.sort();
    let mut containers = Vec::new();
    let (mut at, mut longest) = (Timestamp::UNIX_EPOCH, SignedDuration::ZERO);
    for key in keys {
        let (usage, taken, window) = usage(pair.before.containers.get(key)?, &pair.after.containers[key])?;
        (at, longest) = (at.max(taken), longest.max(window));
        containers.push(json!({"name": key.2, "usage": usage}));
    }
    if containers.is_empty() {
        return None;
    }
    Some(
        json!({"metadata": metadata(pod), "timestamp": time(at), "window": span(longest), "containers": containers}),
    )
}

fn usage(before: &Reading, after: &Reading) -> Option<(Value, Timestamp, SignedDuration)> {
    let (cores, window) = cores(before, after)?;
    let (_, at) = after.cpu?;
    let (nano, kibi) = ((cores * 1e9).round(), (after.memory? / 1024.0).ceil());
    Some((json!({"cpu": format!("{nano:.0}n"), "memory": format!("{kibi:.0}Ki")}), at, window))
}

fn metadata(subject: &Subject) -> Value {
    let of = &subject.metadata;
    let labels: serde_json::Map<String, Value> =
        of.labels.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let mut metadata = json!({"name": of.name, "creationTimestamp": time(Timestamp::now())});
    if !of.namespace.is_empty() {
        metadata["namespace"] = json!(of.namespace);
    }
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    metadata
}

fn time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// Go's text of a duration, in milliseconds' precision.
fn span(window: SignedDuration) -> String {
    let seconds = window.as_millis() as f64 / 1000.0;
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;
    use std::sync::Arc;

    #[test]
    fn paths_are_understood() {
        let pods = |namespace: Option<&str>, name: Option<&str>, labels: Option<&str>| Question::Pods {
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            selector: Selection { labels: labels.map(str::to_owned), fields: None },
        };
        let base = "/apis/metrics.k8s.io/v1beta1";
        let cases = [
            (base.to_owned(), "", Some(Question::Resources)),
            (
                format!("{base}/pods"),
                "labelSelector=app%3Dweb%2Ctier+in+%28a%29",
                Some(pods(None, None, Some("app=web,tier in (a)"))),
            ),
            (format!("{base}/namespaces/n/pods/p"), "", Some(pods(Some("n"), Some("p"), None))),
            (format!("{base}/secrets"), "", None),
            ("/api/v1/pods".to_owned(), "", None),
        ];
        for (path, query, wanted) in cases {
            assert_eq!(question(&path, query), wanted, "{path}?{query}");
        }
    }

    fn pair(before: &str, after: &str) -> Pair {
        let now = Timestamp::UNIX_EPOCH;
        Pair::of(Arc::new(parse(before, now)), Arc::new(parse(after, now)))
    }

    #[test]
    fn a_pods_use_is_that_of_all_its_containers() {
        let line = |container: &str, cpu: f64, at: i64| {
            format!(
                "container_cpu_usage_seconds_total{{container=\"{container}\",namespace=\"n\",pod=\"p\"}} {cpu} {at}\n\
                     container_memory_working_set_bytes{{container=\"{container}\",namespace=\"n\",pod=\"p\"}} 2048 {at}\n"
            )
        };
        let pod: Subject = serde_json::from_value(
            json!({"metadata":{"name":"p","namespace":"n","labels":{"app":"web"}},"status":{"phase":"Running"}}),
        )
        .unwrap();
        let both = pair(
            &(line("a", 1.0, 1000) + &line("b", 0.0, 1000)),
            &(line("a", 1.5, 3000) + &line("b", 0.002, 3000)),
        );
        let found = pod_metrics(&pod, &both).unwrap();
        assert_eq!(
            found["containers"],
            json!([{"name":"a","usage":{"cpu":"250000000n","memory":"2Ki"}},
            {"name":"b","usage":{"cpu":"1000000n","memory":"2Ki"}}])
        );
        assert_eq!((&found["window"], &found["metadata"]["labels"]), (&json!("2s"), &json!({"app":"web"})));
        let fresh = pair(&line("a", 1.0, 1000), &(line("a", 1.5, 3000) + &line("b", 0.5, 3000)));
        assert!(pod_metrics(&pod, &fresh).is_none(), "one container is not known yet");
    }
}
