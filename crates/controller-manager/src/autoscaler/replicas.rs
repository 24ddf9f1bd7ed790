//! From one metric to a size.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Autoscaling;
use crate::kinds::Pod;

/// What was measured.
#[derive(Clone, Debug)]
pub enum Measured {
    /// One value per pod, in thousandths, with its time and window.
    PerPod(HashMap<Box<str>, Sample>),
    /// One value for all, in thousandths.
    Total(i64),
}

/// One pod's value.
#[derive(Clone, Debug)]
pub struct Sample {
    pub value: i64,
    pub at: Option<Timestamp>,
    pub window: SignedDuration,
}

/// A size that a metric asks for.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub replicas: i64,
    /// The metric, in words.
    pub about: String,
    /// The metric as the status tells it.
    pub status: Value,
}

type Failure = (&'static str, String);

/// The part of a metric that its type names: `resource`, `pods` and so on.
pub fn source(metric: &Value) -> (&str, &Value) {
    let kind = metric["type"].as_str().unwrap_or("");
    let field = match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        _ => "external",
    };
    (kind, &metric[field])
}

fn millis(value: &Value) -> Option<i64> {
    value.as_str()?.parse::<Quantity>().ok().map(Quantity::millis)
}

/// What a metric proposes.
pub fn propose(
    metric: &Value,
    measured: &Measured,
    pods: &[Arc<Pod>],
    current: i64,
    settings: &Autoscaling,
    now: Timestamp,
) -> Result<Proposal, Failure> {
    let tolerance = settings.tolerance;
    let (kind, source) = source(metric);
    let target = &source["target"];
    let name = source["name"].as_str().or(source["metric"]["name"].as_str()).unwrap_or("").to_owned();
    let size = |value: i64| Quantity::from_millis(value).to_string();
    let (replicas, about, seen) = match measured {
        Measured::PerPod(samples) => {
            let container = source["container"].as_str();
            let is_cpu = kind.ends_with("Resource") && name == "cpu";
            let group = Group::of(pods, samples, is_cpu.then_some(settings), now);
            if let Some(percent) = target["averageUtilization"].as_i64() {
                let requests = requests_of(pods, &name, container)?;
                let sized = by_utilization(&group, &requests, percent, current, tolerance)?;
                let about = format!("{name} resource utilization (percentage of request)");
                (
                    sized.replicas,
                    about,
                    json!({"averageUtilization": sized.utilization, "averageValue": size(sized.average)}),
                )
            } else {
                let wanted = millis(&target["averageValue"])
                    .ok_or(("InvalidMetricSourceType", "the metric has no target".to_owned()))?;
                let sized = by_value(&group, wanted, current, tolerance)?;
                let about =
                    if kind == "Pods" { format!("pods metric {name}") } else { format!("{name} resource") };
                (sized.replicas, about, json!({"averageValue": size(sized.average)}))
            }
        }
        Measured::Total(total) => {
            let about = format!("{} metric {name}", kind.to_lowercase());
            if let Some(wanted) = millis(&target["averageValue"]).filter(|wanted| *wanted > 0) {
                let ratio = *total as f64 / (wanted as f64 * current.max(1) as f64);
                let replicas = if within(ratio, tolerance) {
                    current
                } else {
                    (*total as f64 / wanted as f64).ceil() as i64
                };
                (replicas, about, json!({"averageValue": size(total / current.max(1))}))
            } else {
                let wanted = millis(&target["value"])
                    .filter(|wanted| *wanted > 0)
                    .ok_or(("InvalidMetricSourceType", "the metric has no target".to_owned()))?;
                let ratio = *total as f64 / wanted as f64;
                let ready = pods.iter().filter(|pod| pod.is_ready()).count().max(1) as f64;
                let replicas = if within(ratio, tolerance) { current } else { (ratio * ready).ceil() as i64 };
                (replicas, about, json!({"value": size(*total)}))
            }
        }
    };
    let mut told = json!({"current": seen});
    for field in ["name", "container", "metric", "describedObject"] {
        if !source[field].is_null() {
            told[field] = source[field].clone();
        }
    }
    let field = match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        _ => "external",
    };
    Ok(Proposal { replicas, about, status: json!({"type": kind, field: told}) })
}

fn within(ratio: f64, tolerance: f64) -> bool {
    (1.0 - ratio).abs() <= tolerance
}

/// Pods by how much their samples can be trusted.
struct Group {
    ready: HashMap<Box<str>, i64>,
    unready: Vec<Box<str>>,
    missing: Vec<Box<str>>,
}

impl Group {
    fn of(
        pods: &[Arc<Pod>],
        samples: &HashMap<Box<str>, Sample>,
        cpu: Option<&Autoscaling>,
        now: Timestamp,
    ) -> Self {
        let mut group = Self { ready: HashMap::new(), unready: Vec::new(), missing: Vec::new() };
        for pod in pods.iter().filter(|pod| !pod.metadata.is_terminating() && &*pod.status.phase != "Failed")
        {
            let name = pod.metadata.name.clone();
            if &*pod.status.phase == "Pending" {
                group.unready.push(name);
                continue;
            }
            let Some(sample) = samples.get(&name) else {
                group.missing.push(name);
                continue;
            };
            if cpu.is_some_and(|settings| is_starting(pod, sample, settings, now)) {
                group.unready.push(name);
            } else {
                group.ready.insert(name, sample.value);
            }
        }
        group
    }
}

fn is_starting(pod: &Pod, sample: &Sample, settings: &Autoscaling, now: Timestamp) -> bool {
    let (Some(ready), Some(start)) = (pod.condition("Ready"), pod.status.start_time) else { return true };
    let unready = &*ready.status == "False";
    let turned = pod.status.turned_ready.unwrap_or(start);
    if start.checked_add(settings.cpu_start).is_ok_and(|end| now < end) {
        let full = turned.checked_add(sample.window).unwrap_or(turned);
        unready || sample.at.is_some_and(|at| at < full)
    } else {
        unready && start.checked_add(settings.first_ready).is_ok_and(|end| end > turned)
    }
}

/// Requests per pod, in thousandths.
fn requests_of(
    pods: &[Arc<Pod>],
    resource: &str,
    container: Option<&str>,
) -> Result<HashMap<Box<str>, i64>, Failure> {
    let mut all = HashMap::new();
    for pod in pods {
        let sidecars =
            pod.spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let mut sum = 0;
        for own in pod
            .spec
            .containers
            .iter()
            .chain(sidecars)
            .filter(|own| container.is_none_or(|name| *own.name == *name))
        {
            let request = own.resources.requests.get(resource).and_then(|text| text.parse::<Quantity>().ok());
            let request = request.ok_or_else(|| {
                let text = format!(
                    "missing request for {resource} in container {} of Pod {}",
                    own.name, pod.metadata.name
                );
                ("FailedGetResourceMetric", text)
            })?;
            sum += request.millis();
        }
        all.insert(pod.metadata.name.clone(), sum);
    }
    Ok(all)
}

struct Sized {
    replicas: i64,
    utilization: i64,
    average: i64,
}

fn no_samples() -> Failure {
    (
        "FailedGetResourceMetric",
        "did not receive metrics for targeted pods (pods might be unready)".to_owned(),
    )
}

fn by_utilization(
    group: &Group,
    requests: &HashMap<Box<str>, i64>,
    percent: i64,
    current: i64,
    tolerance: f64,
) -> Result<Sized, Failure> {
    if group.ready.is_empty() {
        return Err(no_samples());
    }
    let ratio = |samples: &HashMap<Box<str>, i64>| {
        let used: i64 =
            samples.iter().filter(|(name, _)| requests.contains_key(*name)).map(|(_, value)| value).sum();
        let asked: i64 = samples.keys().filter_map(|name| requests.get(name)).sum();
        let utilization = if asked > 0 { used * 100 / asked } else { 0 };
        (utilization as f64 / percent.max(1) as f64, utilization, used / samples.len().max(1) as i64)
    };
    let (first, utilization, average) = ratio(&group.ready);
    let full = |name: &str| requests.get(name).copied().unwrap_or(0) * percent.max(100) / 100;
    let replicas = size_by(group, first, &|samples| ratio(samples).0, &full, current, tolerance);
    Ok(Sized { replicas, utilization, average })
}

fn by_value(group: &Group, wanted: i64, current: i64, tolerance: f64) -> Result<Sized, Failure> {
    if group.ready.is_empty() {
        return Err(no_samples());
    }
    let average =
        |samples: &HashMap<Box<str>, i64>| samples.values().sum::<i64>() / samples.len().max(1) as i64;
    let ratio = |samples: &HashMap<Box<str>, i64>| average(samples) as f64 / wanted.max(1) as f64;
    let replicas = size_by(group, ratio(&group.ready), &ratio, &|_| wanted, current, tolerance);
    Ok(Sized { replicas, utilization: 0, average: average(&group.ready) })
}

/// Sizes by ratio; pods without a trusted sample are assumed to speak against a change.
fn size_by(
    group: &Group,
    first: f64,
    ratio: &dyn Fn(&HashMap<Box<str>, i64>) -> f64,
    full: &dyn Fn(&str) -> i64,
    current: i64,
    tolerance: f64,
) -> i64 {
    let grows_with_unready = !group.unready.is_empty() && first > 1.0;
    if !grows_with_unready && group.missing.is_empty() {
        return if within(first, tolerance) {
            current
        } else {
            (first * group.ready.len() as f64).ceil() as i64
        };
    }
    let mut samples = group.ready.clone();
    for name in &group.missing {
        samples.insert(name.clone(), if first < 1.0 { full(name) } else { 0 });
    }
    if grows_with_unready {
        samples.extend(group.unready.iter().map(|name| (name.clone(), 0)));
    }
    let second = ratio(&samples);
    if within(second, tolerance) || (first < 1.0) != (second < 1.0) {
        return current;
    }
    let replicas = (second * samples.len() as f64).ceil() as i64;
    let turned = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    if turned { current } else { replicas }
}
