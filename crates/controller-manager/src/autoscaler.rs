//! HorizontalPodAutoscalers: size a workload by what its metrics say.
//!
//! `gather` reads the scale and the metrics, `replicas` turns one metric into a proposal, `behavior` bounds how fast the
//! size may change; here the largest proposal is taken and told.

mod behavior;
mod metrics;
mod replicas;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use client::{Error, Resource};
use controller_runtime::{Context, Controller, Failure, Meta, Plan, Verb, Write, difference, time};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{Condition, Pod, kind, none, set_condition};
use behavior::History;
use replicas::Proposal;

/// A HorizontalPodAutoscaler.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct HorizontalPodAutoscaler {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: AutoscalerSpec,
    /// What is.
    pub status: AutoscalerStatus,
}
kind!(HorizontalPodAutoscaler, HORIZONTAL_POD_AUTOSCALERS, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerSpec {
    /// What is sized.
    pub scale_target_ref: TargetRef,
    /// The smallest size.
    pub min_replicas: Option<i64>,
    /// The largest size.
    pub max_replicas: i64,
    /// What is measured.
    pub metrics: Vec<Value>,
    /// How fast the size may change.
    pub behavior: Option<behavior::Behavior>,
}

/// What is sized.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// Group and version.
    pub api_version: Box<str>,
    /// Kind.
    pub kind: Box<str>,
    /// Name.
    pub name: Box<str>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AutoscalerStatus {
    /// The last change.
    pub last_scale_time: Option<Timestamp>,
    /// Present size.
    pub current_replicas: i64,
    /// Wanted size.
    pub desired_replicas: i64,
    /// What was measured.
    pub current_metrics: Value,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// How all autoscalers behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Autoscaling {
    /// How often metrics are looked at.
    pub period: SignedDuration,
    /// How long recommendations are remembered before shrinking.
    pub stabilization: SignedDuration,
    /// The ratio within which nothing is done.
    pub tolerance: f64,
    /// How long after its start a pod's use of CPU counts only if it was ready all along.
    pub cpu_start: SignedDuration,
    /// How long after its start a pod may first become ready.
    pub first_ready: SignedDuration,
}

impl Default for Autoscaling {
    fn default() -> Self {
        Self {
            period: SignedDuration::from_secs(15),
            stabilization: SignedDuration::from_mins(5),
            tolerance: 0.1,
            cpu_start: SignedDuration::from_mins(5),
            first_ready: SignedDuration::from_secs(30),
        }
    }
}

/// The scale of a target.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    resource: Option<Resource>,
    replicas: i64,
    /// As it was read, to be put back with another size: its role allows no patch.
    object: Value,
}

/// The reason of the event when a target does not get its size.
const FAILED: &str = "FailedRescale";

/// What one autoscaler depends on.
pub struct View {
    hpa: Arc<HorizontalPodAutoscaler>,
    /// The target's scale, or why there is none.
    scale: Result<Scale, String>,
    /// What each metric proposes, or why it cannot be had.
    proposals: Vec<Result<Proposal, (&'static str, String)>>,
    history: History,
    settings: Autoscaling,
    /// Why the target could not be given the size just decided on.
    failure: Option<Arc<Failure>>,
    now: Timestamp,
}

/// Decides on one autoscaler. Returns the plan and the size that was recommended before it was bounded.
fn decide(view: &View) -> (Plan, Option<i64>) {
    let hpa = &*view.hpa;
    let mut plan = Plan::default();
    plan.look_again(view.now.checked_add(view.settings.period).unwrap_or(view.now));
    let mut conditions = hpa.status.conditions.clone();
    let mut tell = |kind: &str, status: &str, reason: &str, text: String| {
        set_condition(&mut conditions, Condition::new(kind, status, reason, text, view.now));
    };
    let scale = match &view.scale {
        Ok(scale) => scale,
        Err(why) => {
            tell(
                "AbleToScale",
                "False",
                "FailedGetScale",
                format!("the HPA controller was unable to get the target's current scale: {why}"),
            );
            plan.warn(hpa, "FailedGetScale", why.clone());
            finish(
                view,
                hpa.status.current_replicas,
                hpa.status.desired_replicas,
                None,
                conditions,
                &mut plan,
            );
            return (plan, None);
        }
    };
    tell(
        "AbleToScale",
        "True",
        "SucceededGetScale",
        "the HPA controller was able to get the target's current scale".into(),
    );
    let (current, least) = (scale.replicas, hpa.spec.min_replicas.unwrap_or(1));
    let (mut recommended, mut outside) = (None, None);
    let desired = if current == 0 && least != 0 {
        tell(
            "ScalingActive",
            "False",
            "ScalingDisabled",
            "scaling is disabled since the replica count of the target is zero".into(),
        );
        0
    } else if current > hpa.spec.max_replicas {
        outside = Some("Current number of replicas above Spec.MaxReplicas");
        hpa.spec.max_replicas
    } else if current < least {
        outside = Some("Current number of replicas below Spec.MinReplicas");
        least
    } else {
        let best =
            view.proposals.iter().filter_map(|proposal| proposal.as_ref().ok()).max_by_key(|p| p.replicas);
        let failure = view.proposals.iter().find_map(|proposal| proposal.as_ref().err());
        match (best, failure) {
            // With a metric missing the others may only make it larger.
            (Some(best), failure) if failure.is_none() || best.replicas >= current => {
                let text =
                    format!("the HPA was able to successfully calculate a replica count from {}", best.about);
                tell("ScalingActive", "True", "ValidMetricFound", text);
                recommended = Some(best.replicas);
                let bounded = behavior::bound(view, current, best.replicas);
                tell("AbleToScale", "True", bounded.able.0, bounded.able.1);
                tell(
                    "ScalingLimited",
                    if bounded.limited { "True" } else { "False" },
                    bounded.reason.0,
                    bounded.reason.1,
                );
                bounded.replicas
            }
            (_, Some((reason, why))) => {
                let text = format!("the HPA was unable to compute the replica count: {why}");
                tell("ScalingActive", "False", reason, text);
                plan.warn(hpa, reason, why.clone());
                let failed = view.proposals.iter().filter(|proposal| proposal.is_err()).count();
                let text = format!(
                    "invalid metrics ({failed} invalid out of {}), first error is: {}{why}",
                    view.proposals.len(),
                    metrics::failure_of(&hpa.spec.metrics, &view.proposals),
                );
                plan.warn(hpa, "FailedComputeMetricsReplicas", text);
                current
            }
            (_, None) => {
                tell("ScalingActive", "False", "InvalidMetricSourceType", "no metric is given".into());
                current
            }
        }
    };
    if let Some(failure) = view.failure.as_ref().filter(|_| desired != current) {
        let text = format!("the HPA controller was unable to update the target scale: {}", failure.message);
        tell("AbleToScale", "False", "FailedUpdateScale", text);
        finish(view, current, hpa.status.desired_replicas, None, conditions, &mut plan);
        return (plan, None);
    }
    let mut scaled_at = None;
    if let (true, Some(resource)) = (desired != current, &scale.resource) {
        let reason = view.proposals.iter().filter_map(|p| p.as_ref().ok()).max_by_key(|p| p.replicas);
        let direction = if desired > current { "above" } else { "below" };
        let why = match (outside, reason) {
            (Some(outside), _) => outside.to_owned(),
            (None, Some(best)) if desired > current => format!("{} {direction} target", best.about),
            (None, _) => "All metrics below target".to_owned(),
        };
        let key = controller_runtime::Key::new(&hpa.metadata.namespace, &hpa.spec.scale_target_ref.name);
        let mut body = scale.object.clone();
        body["spec"]["replicas"] = json!(desired);
        plan.write(Write::new(resource, key, Some("scale"), Verb::Replace(body))).announce(
            hpa,
            Some(("SuccessfulRescale", format!("New size: {desired}; reason: {why}"))),
            Some((FAILED, format!("New size: {desired}; reason: {why}; error: {{error}}"))),
        );
        tell(
            "AbleToScale",
            "True",
            "SucceededRescale",
            format!("the HPA controller was able to update the target scale to {desired}"),
        );
        scaled_at = Some(view.now);
    }
    finish(view, current, desired, scaled_at, conditions, &mut plan);
    (plan, recommended)
}

fn finish(
    view: &View,
    current: i64,
    desired: i64,
    scaled_at: Option<Timestamp>,
    conditions: Vec<Condition>,
    plan: &mut Plan,
) {
    let hpa = &*view.hpa;
    let metrics: Vec<&Value> = view
        .proposals
        .iter()
        .filter_map(|proposal| proposal.as_ref().ok())
        .map(|proposal| &proposal.status)
        .collect();
    let status =
        |at: Option<Timestamp>, current: i64, desired: i64, metrics: Value, conditions: &[Condition]| {
            let mut status =
                json!({"currentReplicas": current, "desiredReplicas": desired, "conditions": conditions});
            if let Some(at) = at {
                status["lastScaleTime"] = time(at);
            }
            if metrics.as_array().is_some_and(|metrics| !metrics.is_empty()) {
                status["currentMetrics"] = metrics;
            }
            status
        };
    let old = &hpa.status;
    let before = status(
        old.last_scale_time,
        old.current_replicas,
        old.desired_replicas,
        old.current_metrics.clone(),
        &old.conditions,
    );
    let after = status(scaled_at.or(old.last_scale_time), current, desired, json!(metrics), &conditions);
    if let Some(change) = difference(&before, &after) {
        plan.set_status(hpa, change);
    }
}

type Histories = Arc<Mutex<HashMap<Box<str>, History>>>;

fn gather(
    histories: Histories,
    settings: Autoscaling,
    context: Context,
) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let Some(hpa) = context.object::<HorizontalPodAutoscaler>() else { return Ok(None) };
        let (scale, selector) = match metrics::scale_of(&context, &hpa).await {
            Ok((scale, selector)) => (Ok(scale), selector),
            Err(why) => (Err(why), String::new()),
        };
        let mut proposals = Vec::new();
        if let Ok(scale) = &scale {
            let pods = metrics::pods_of(&context, &hpa.metadata.namespace, &selector);
            for metric in &hpa.spec.metrics {
                let measured = metrics::measure(&context, &hpa, metric, &selector).await;
                proposals.push(measured.and_then(|measured| {
                    replicas::propose(metric, &measured, &pods, scale.replicas, &settings, context.now)
                }));
            }
        }
        let history = {
            let mut histories = histories.lock().unwrap_or_else(PoisonError::into_inner);
            let history = histories.entry(hpa.metadata.uid.clone()).or_default();
            if let Ok(scale) = &scale {
                history.settle(scale.replicas);
            }
            history.clone()
        };
        let failure = context.failure.clone().filter(|failure| failure.reason == FAILED);
        Ok(Some(View { hpa, scale, proposals, history, settings, failure, now: context.now }))
    })
}

/// The controller.
pub fn controller(settings: Autoscaling) -> Controller {
    let histories: Histories = Arc::default();
    let remembered = histories.clone();
    let reconcile = move |view: &View| {
        let (plan, recommended) = decide(view);
        if view.failure.is_some() {
            return plan;
        }
        let mut histories = remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let history = histories.entry(view.hpa.metadata.uid.clone()).or_default();
        let current = view.scale.as_ref().map_or(0, |scale| scale.replicas);
        let scaled = plan.writes().find_map(|write| match &write.verb {
            Verb::Replace(body) => body["spec"]["replicas"].as_i64(),
            _ => None,
        });
        history.remember(view.now, recommended, current, scaled);
        plan
    };
    Controller::reading(
        "horizontal-pod-autoscaler-controller",
        move |context| gather(histories.clone(), settings, context),
        reconcile,
    )
    .acting_as("horizontal-pod-autoscaler")
    .telling_failures()
    .for_kind::<HorizontalPodAutoscaler>()
    .reading_kind::<Pod>()
}

#[cfg(test)]
mod tests;
