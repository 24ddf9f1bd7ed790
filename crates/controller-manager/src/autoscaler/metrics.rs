//! Reads scales and metrics from the server and its extensions.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use client::{Resource, resources};
use controller_runtime::Context;
use jiff::SignedDuration;
use serde_json::Value;

use super::replicas::{Measured, Sample, source};
use super::{HorizontalPodAutoscaler, Scale};
use crate::discovery::discover;
use crate::kinds::Pod;

/// The resource of a kind: of the usual ones by heart, of others by asking the server.
async fn find_kind(context: &Context, api_version: &str, kind: &str) -> Result<Resource, String> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let known = [
        resources::DEPLOYMENTS,
        resources::REPLICA_SETS,
        resources::STATEFUL_SETS,
        resources::REPLICATION_CONTROLLERS,
        resources::SERVICES,
        resources::INGRESSES,
    ];
    let fits = |own: &&Resource| own.kind == kind && own.group == group;
    if let Some(resource) = known.iter().find(fits) {
        return Ok(resource.clone());
    }
    let found = discover(&context.reader).await.map_err(|error| telemetry::chain(&error).to_string())?;
    let found: Vec<Resource> = found.kinds.into_iter().map(|kind| kind.resource).collect();
    let missing = || format!("no matches for kind \"{kind}\" in group \"{group}\"");
    found.iter().find(fits).cloned().ok_or_else(missing)
}

/// The scale of the target, and the selector of its pods.
pub async fn scale_of(context: &Context, hpa: &HorizontalPodAutoscaler) -> Result<(Scale, String), String> {
    let target = &hpa.spec.scale_target_ref;
    let resource = find_kind(context, &target.api_version, &target.kind).await?;
    let path = resource.path(Some(&hpa.metadata.namespace), Some(&target.name), Some("scale"));
    let scale: Value =
        context.reader.get_path(&path).await.map_err(|error| telemetry::chain(&error).to_string())?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    let selector = scale["status"]["selector"].as_str().unwrap_or("").to_owned();
    if selector.is_empty() {
        return Err("the target's scale has no selector".to_owned());
    }
    Ok((Scale { resource: Some(resource), replicas, object: scale }, selector))
}

/// The pods that a selector in query form means.
pub fn pods_of(context: &Context, namespace: &str, selector: &str) -> Vec<Arc<Pod>> {
    let Ok(selector) = apimachinery::selector::LabelSelector::parse(selector) else { return Vec::new() };
    let mut pods = context.caches.of::<Pod>().in_namespace(namespace);
    pods.retain(|pod| selector.matches_with(|name| pod.metadata.labels.get(name)));
    pods
}

fn millis(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse::<Quantity>().ok()).map_or(0, Quantity::millis)
}

fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Why a metric cannot be had, in upstream's words.
fn unavailable(kind: &str, source: &Value, error: &dyn std::fmt::Display) -> String {
    let name = source["name"].as_str().or(source["metric"]["name"].as_str()).unwrap_or("");
    match kind {
        "Resource" | "ContainerResource" => {
            let what = if source["target"]["type"] == "Utilization" { "utilization" } else { "usage" };
            format!(
                "failed to get {name} {what}: unable to get metrics for resource {name}: unable to fetch metrics from \
                 resource metrics API: {error}"
            )
        }
        "Pods" => {
            format!("unable to get metric {name}: unable to fetch metrics from custom metrics API: {error}")
        }
        "Object" => {
            let object = &source["describedObject"];
            let text = |field: &str| object[field].as_str().unwrap_or("");
            format!(
                "unable to get metric {name}: {} on {} unable to fetch metrics from custom metrics API: {error}",
                text("kind"),
                text("name")
            )
        }
        _ => format!(
            "unable to get external metric {name}: unable to fetch metrics from external metrics API: {error}"
        ),
    }
}

/// What stands before the first failure when all are summed up.
pub fn failure_of<T, E>(metrics: &[Value], proposals: &[Result<T, E>]) -> String {
    let Some(at) = proposals.iter().position(Result::is_err) else { return String::new() };
    let Some((kind, source)) = metrics.get(at).map(source) else { return String::new() };
    let name = source["name"].as_str().or(source["metric"]["name"].as_str()).unwrap_or("");
    match kind {
        "Resource" => format!("failed to get {name} resource metric value: "),
        "ContainerResource" => {
            format!("failed to get {} container metric value: ", source["container"].as_str().unwrap_or(""))
        }
        "Pods" => "failed to get pods metric value: ".to_owned(),
        "Object" => "failed to get object metric value: ".to_owned(),
        "External" => format!("failed to get {name} external metric value: "),
        _ => String::new(),
    }
}

/// Reads one metric.
pub async fn measure(
    context: &Context,
    hpa: &HorizontalPodAutoscaler,
    metric: &Value,
    selector: &str,
) -> Result<Measured, (&'static str, String)> {
    let namespace = &hpa.metadata.namespace;
    let (kind, source) = source(metric);
    let name = source["metric"]["name"].as_str().unwrap_or("");
    let narrowed = apimachinery::selector::LabelSelector::from_object(&source["metric"]["selector"]).ok();
    let narrowed =
        narrowed.filter(|selector| !selector.is_everything()).map(|s| s.to_string()).unwrap_or_default();
    let custom = |rest: String| format!("/apis/custom.metrics.k8s.io/v1beta2/namespaces/{namespace}/{rest}");
    let (path, reason) = match kind {
        "Resource" | "ContainerResource" => (
            format!(
                "/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={}",
                escape(selector)
            ),
            "FailedGetResourceMetric",
        ),
        "Pods" => (
            custom(format!(
                "pods/*/{name}?labelSelector={}&metricLabelSelector={}",
                escape(selector),
                escape(&narrowed)
            )),
            "FailedGetPodsMetric",
        ),
        "Object" => {
            let object = &source["describedObject"];
            let text = |field: &str| object[field].as_str().unwrap_or("").to_owned();
            let reason = "FailedGetObjectMetric";
            let described =
                find_kind(context, &text("apiVersion"), &text("kind")).await.map_err(|why| (reason, why))?;
            let rest =
                format!("{described}/{}/{name}?metricLabelSelector={}", text("name"), escape(&narrowed));
            // What belongs to no namespace is asked for by its own place, but a namespace stands for itself.
            let path = if described.namespaced || &*described.plural == "namespaces" {
                custom(rest)
            } else {
                format!("/apis/custom.metrics.k8s.io/v1beta2/{rest}")
            };
            (path, reason)
        }
        "External" => (
            format!(
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}?labelSelector={}",
                escape(&narrowed)
            ),
            "FailedGetExternalMetric",
        ),
        other => return Err(("InvalidMetricSourceType", format!("unknown metric source type {other:?}"))),
    };
    let answer: Result<Value, _> = context.reader.get_path(&path).await;
    let answer = answer.map_err(|error| (reason, unavailable(kind, source, &telemetry::chain(&error))))?;
    let items = answer["items"].as_array().cloned().unwrap_or_default();
    if matches!(kind, "Object" | "External") {
        if items.is_empty() {
            return Err((reason, "no metrics returned".to_owned()));
        }
        return Ok(Measured::Total(items.iter().map(|item| millis(&item["value"])).sum()));
    }
    let resource = source["name"].as_str().unwrap_or("");
    let container = source["container"].as_str();
    let mut samples = HashMap::new();
    for item in items {
        let (pod, value) = if kind == "Pods" {
            (item["describedObject"]["name"].as_str(), millis(&item["value"]))
        } else {
            let containers = item["containers"].as_array().cloned().unwrap_or_default();
            let counted = containers.iter().filter(|own| container.is_none_or(|name| own["name"] == *name));
            (item["metadata"]["name"].as_str(), counted.map(|own| millis(&own["usage"][resource])).sum())
        };
        let Some(pod) = pod else { continue };
        let at = item["timestamp"].as_str().and_then(|text| text.parse().ok());
        let window =
            item["window"].as_str().and_then(apimachinery::time::parse_duration).unwrap_or(60_000_000_000);
        samples.insert(pod.into(), Sample { value, at, window: SignedDuration::from_nanos(window) });
    }
    Ok(Measured::PerPod(samples))
}
