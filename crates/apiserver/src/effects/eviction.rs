//! Eviction: a delete that respects disruption budgets.

use std::sync::Arc;

use apimachinery::meta::Meta;
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use apimachinery::time;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::body::Body;
use crate::context::Context;
use crate::respond;
use crate::server::ApiServer;
use crate::store::WriteOptions;
use crate::verbs::create::{decode_as, read_body};
use crate::verbs::delete::DeleteOptions;

/// What a budget says to one more disruption.
#[derive(Debug, PartialEq)]
enum Verdict {
    /// Allowed; the budget after it.
    Allowed(Value),
    /// Not now.
    Refused(String),
}

impl ApiServer {
    /// POST to `pods/NAME/eviction`.
    pub(crate) async fn evict_pod(
        self: &Arc<Self>,
        context: &Context,
        body: Body,
    ) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        let schema = api::schemas::schemas()
            .get("io.k8s.api.policy.v1.Eviction")
            .ok_or_else(|| Status::internal("the Eviction kind is not known"))?;
        let mut eviction = decode_as(context, &bytes, "policy/v1", "Eviction", &schema)?;
        let options = |eviction: &Value| -> DeleteOptions {
            serde_json::from_value(eviction["deleteOptions"].clone()).unwrap_or_default()
        };
        let dry_run = context.dry_run()? || !options(&eviction).dry_run.is_empty();
        Box::pin(self.admission.admit_told(self, context, &mut eviction, dry_run)).await?;
        let mut options = options(&eviction);
        if dry_run {
            options.dry_run = vec!["All".to_owned()];
        }
        if !eviction.name().is_empty() && eviction.name() != context.info.name {
            return Err(Status::bad_request("name in URL does not match name in Eviction object"));
        }
        options.check()?;
        let pods = self.builtin("", "pods")?;
        let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
        let entry =
            self.entry(&pods, namespace, name).await?.ok_or_else(|| Status::not_found("", "pods", name))?;
        let pod = pods.parse(&entry);
        if !can_ignore_budget(&pod) {
            self.charge_budget(context, &pod, dry_run).await?;
        }
        // The budget was charged for this pod and no other of its name.
        let conditions = options.preconditions.get_or_insert_default();
        conditions.uid.get_or_insert_with(|| pod.uid().to_owned());
        let mut inner = Context::internal(context.user.clone(), pods, "delete", namespace, name);
        inner.query = context.query.clone();
        if !dry_run {
            self.mark_disrupted(context, namespace, name).await;
        }
        self.delete_object(&inner, &options).await?;
        let success = Status { code: 201, ..Status::success() };
        let mut response = respond::status(&success, &context.accepted);
        *response.status_mut() = StatusCode::CREATED;
        Ok(response)
    }

    /// Takes one disruption from the budget that covers the pod.
    async fn charge_budget(&self, context: &Context, pod: &Value, dry_run: bool) -> Result<(), Status> {
        let budgets = self.builtin("policy", "poddisruptionbudgets")?;
        let namespace = pod.namespace();
        let Some(cache) = self.hub.cache(&budgets.prefix) else { return Ok(()) };
        let mut covering = Vec::new();
        for entry in cache.snapshot(&budgets.collection(namespace), 0).entries {
            let budget = budgets.parse(&entry);
            let selector = LabelSelector::from_object(&budget["spec"]["selector"])
                .unwrap_or_else(|_| LabelSelector::nothing());
            if !budget["spec"]["selector"].is_null() && selector.matches(pod.labels()) {
                covering.push(budget);
            }
        }
        let [budget] = covering.as_slice() else {
            return match covering.len() {
                0 => Ok(()),
                _ => Err(Status::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                )),
            };
        };
        let ready = pod["status"]["conditions"]
            .as_array()
            .is_some_and(|list| list.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"));
        if !ready && budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow" {
            return Ok(());
        }
        if !ready && healthy_enough(budget) {
            return Ok(()); // an unready pod costs nothing while enough others are healthy
        }
        let mut inner = Context::internal(context.user.clone(), budgets, "update", namespace, budget.name());
        inner.info.subresource = "status".to_owned();
        let options = WriteOptions {
            dry_run,
            manager: context.field_manager(),
            subresource: "status".to_owned(),
            applied: false,
        };
        let pod_name = pod.name();
        self.update_object(&inner, &options, false, &mut |old| {
            let old = old.ok_or_else(|| inner.not_found())?;
            match disrupt(old, pod_name, crate::clock::now()) {
                Verdict::Allowed(new) => Ok(new),
                Verdict::Refused(why) => Err(Status::too_many_requests(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                    10,
                )
                .cause("DisruptionBudget", why, "")),
            }
        })
        .await?;
        Ok(())
    }

    /// Notes on the pod why it goes. The eviction does not depend on it.
    async fn mark_disrupted(&self, context: &Context, namespace: &str, name: &str) {
        let Ok(pods) = self.builtin("", "pods") else { return };
        let mut inner = Context::internal(context.user.clone(), pods, "update", namespace, name);
        inner.info.subresource = "status".to_owned();
        let options = WriteOptions {
            dry_run: false,
            manager: context.field_manager(),
            subresource: "status".to_owned(),
            applied: false,
        };
        let outcome = self
            .update_object(&inner, &options, false, &mut |old| {
                let mut new = old.ok_or_else(|| inner.not_found())?.clone();
                let condition = json!({
                    "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting", "lastProbeTime": null,
                    "lastTransitionTime": time::seconds(crate::clock::now()),
                });
                if !new["status"]["conditions"].is_array() {
                    new["status"]["conditions"] = json!([]);
                }
                if let Some(list) = new["status"]["conditions"].as_array_mut() {
                    list.retain(|own| own["type"] != "DisruptionTarget");
                    list.push(condition);
                }
                Ok(new)
            })
            .await;
        if let Err(status) = outcome {
            tracing::debug!(pod = %format!("{namespace}/{name}"), error = %status, "cannot note the eviction on the pod");
        }
    }
}

/// Pods that no longer or not yet do any work.
fn can_ignore_budget(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending") | None)
        || pod.is_terminating()
}

fn healthy_enough(budget: &Value) -> bool {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0
}

/// The budget after one more disruption.
fn disrupt(budget: &Value, pod: &str, now: Timestamp) -> Verdict {
    let status = &budget["status"];
    if status["observedGeneration"].as_i64().unwrap_or(0) < budget.generation() {
        return Verdict::Refused(format!(
            "The disruption budget {} is still being processed by the server.",
            budget.name()
        ));
    }
    let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
    if allowed <= 0 {
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        return Verdict::Refused(format!(
            "The disruption budget {} needs {} healthy pods and has {} currently",
            budget.name(),
            number("desiredHealthy"),
            number("currentHealthy")
        ));
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > 2000) {
        return Verdict::Refused(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller".to_owned(),
        );
    }
    let mut new = budget.clone();
    new["status"]["disruptionsAllowed"] = json!(allowed - 1);
    new["status"]["disruptedPods"][pod] = json!(time::seconds(now));
    Verdict::Allowed(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up() {
        let budget = json!({"metadata": {"name": "b", "generation": 1}, "status": {"observedGeneration": 1, "disruptionsAllowed": 1}});
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let Verdict::Allowed(after) = disrupt(&budget, "p", now) else { panic!("one disruption is allowed") };
        assert_eq!(after["status"]["disruptionsAllowed"], 0);
        assert_eq!(after["status"]["disruptedPods"]["p"], "2026-01-01T00:00:00Z");
        assert!(matches!(disrupt(&after, "q", now), Verdict::Refused(_)));
        let mut stale = budget;
        stale["metadata"]["generation"] = json!(2);
        assert!(matches!(disrupt(&stale, "p", now), Verdict::Refused(_)));
    }
}
