//! From a chosen node to a bound pod, and from a chosen victim to a free place.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{DeleteOptions, Patch, resources};
use controller_runtime::time;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use super::Scheduler;
use crate::events::ClusterEvent;
use crate::framework::{Bound, Code, Cycle, Framework, Point, Reasons};
use crate::handle::{News, permission};
use crate::metrics::Outcome;
use crate::preemption::Preemption;
use crate::queue::Waiting;
use crate::types::Pod;

/// Why a binding did not come about.
enum Failed {
    /// A plugin said no.
    Refused(Reasons),
    /// A plugin could not do what has to be done before.
    Unready {
        plugin: &'static str,
        reasons: Reasons,
    },
    Request(client::Error),
    Extender(crate::extender::ExtenderError),
}

fn code<T, E>(result: &Result<T, E>) -> Code {
    if result.is_ok() { Code::Success } else { Code::Error }
}

type Answer = oneshot::Receiver<Result<(), Reasons>>;

impl Scheduler {
    pub(super) async fn bind(
        self: &Arc<Self>,
        waiting: &Waiting,
        node: &str,
        cycle: &Cycle,
        wait: Option<(Answer, Duration)>,
        began: Instant,
    ) {
        let profile = &self.profiles[waiting.profile];
        let (pod, meta) = (&waiting.pod, &waiting.pod.metadata);
        let outcome = self.try_to_bind(waiting, node, cycle, wait).await;
        let failed = match outcome {
            Ok(()) => {
                debug!(pod = %meta.key(), node, "bound");
                self.handle.lock().queue.remove(&meta.uid);
                let took = Timestamp::now().duration_since(waiting.free_since.unwrap_or(waiting.since));
                self.metrics.attempted(profile.name, Outcome::Scheduled, began.elapsed());
                self.metrics.bound(waiting.attempts, took.try_into().unwrap_or_default());
                let message = format!("Successfully assigned {} to {node}", meta.key());
                let news =
                    News { warning: false, reason: "Scheduled", action: "Binding", message, related: None };
                self.handle.record(pod, profile.name, news);
                let (measures, began) = (&profile.framework.measures, Instant::now());
                for plugin in &profile.framework.post_bind {
                    if let Some(point) = plugin.post_bind() {
                        let clock = cycle.clock();
                        point.post_bind(cycle, pod, node);
                        measures.ran(clock, plugin.name(), Point::PostBind, Code::Success);
                    }
                }
                measures.took(Point::PostBind, Code::Success, began);
                return;
            }
            Err(failed) => failed,
        };
        let gone = matches!(&failed, Failed::Request(error) if error.is_not_found());
        {
            let mut state = self.handle.lock();
            profile.framework.unreserve(cycle, pod, node, &mut state.cache);
            state.cache.forget(&meta.uid);
            match gone {
                true => state.queue.remove(&meta.uid),
                false => state.queue.retry(&meta.uid, Timestamp::now()),
            }
            // What was set aside is free again; others may have been refused because of it.
            self.wake(&mut state, &ClusterEvent::PodGone(pod.clone()));
        }
        let outcome = if let Failed::Refused(_) = failed { Outcome::Unschedulable } else { Outcome::Error };
        self.metrics.attempted(profile.name, outcome, began.elapsed());
        if gone {
            return;
        }
        let (reason, message) = match failed {
            Failed::Refused(reasons) => ("Unschedulable", reasons.to_string()),
            Failed::Unready { plugin, reasons } => {
                ("SchedulerError", format!("running PreBind plugin {plugin:?}: {reasons}"))
            }
            Failed::Request(error) => {
                ("SchedulerError", format!("binding rejected: {}", telemetry::chain(&error)))
            }
            Failed::Extender(error) => ("SchedulerError", telemetry::chain(&error).to_string()),
        };
        warn!(pod = %meta.key(), node, message, "binding failed");
        self.report(pod, reason, &message, None).await;
    }

    async fn try_to_bind(
        &self,
        waiting: &Waiting,
        node: &str,
        cycle: &Cycle,
        wait: Option<(Answer, Duration)>,
    ) -> Result<(), Failed> {
        let (framework, pod) = (&self.profiles[waiting.profile].framework, &*waiting.pod);
        if let Some((answer, longest)) = wait {
            self.expect(pod, node).await;
            let began = Instant::now();
            let outcome = permission(answer, longest).await;
            let code = if outcome.is_ok() { Code::Success } else { Code::Refused };
            self.metrics.permitted(code, began.elapsed());
            self.handle.release(&pod.metadata.uid);
            outcome.map_err(Failed::Refused)?;
        }
        let preparing =
            || framework.pre_bind.iter().filter_map(|plugin| Some((plugin.name(), plugin.pre_bind()?)));
        if preparing().any(|(_, point)| point.takes_time(cycle, pod)) {
            self.expect(pod, node).await;
        }
        let began = Instant::now();
        let mut outcome = Ok(());
        for (plugin, point) in preparing() {
            let clock = cycle.clock();
            let ready = point.pre_bind(cycle, pod, node, &self.handle).await;
            framework.measures.ran(clock, plugin, Point::PreBind, code(&ready));
            if let Err(reasons) = ready {
                outcome = Err(Failed::Unready { plugin, reasons });
                break;
            }
        }
        framework.measures.took(Point::PreBind, code(&outcome), began);
        outcome?;
        for extender in &self.extenders {
            if extender.bind(pod, node).await.map_err(Failed::Extender)? {
                return Ok(());
            }
        }
        let began = Instant::now();
        let bound = self.bind_with_plugins(framework, pod, node, cycle).await;
        let code = match &bound {
            Ok(Bound::Yes) => Code::Success,
            Ok(Bound::NotMine) => Code::Skip,
            Err(_) => Code::Error,
        };
        framework.measures.took(Point::Bind, code, began);
        match bound.map_err(Failed::Request)? {
            Bound::Yes => Ok(()),
            Bound::NotMine => Err(Failed::Refused("no plugin binds the pod".into())),
        }
    }

    async fn bind_with_plugins(
        &self,
        framework: &Framework,
        pod: &Pod,
        node: &str,
        cycle: &Cycle,
    ) -> Result<Bound, client::Error> {
        for plugin in &framework.bind {
            let Some(point) = plugin.bind() else { continue };
            let clock = cycle.clock();
            let bound = point.bind(cycle, pod, node, &self.handle).await;
            framework.measures.ran(clock, plugin.name(), Point::Bind, code(&bound));
            if bound? == Bound::Yes {
                return Ok(Bound::Yes);
            }
        }
        Ok(Bound::NotMine)
    }

    /// Tells the API for which node something lengthy is done, so that others know and a restart remembers.
    async fn expect(&self, pod: &Pod, node: &str) {
        let meta = &pod.metadata;
        if *pod.status.nominated_node_name == *node {
            return;
        }
        let patch = json!({"status": {"nominatedNodeName": node}});
        let api = self.handle.client.api(&resources::PODS).within(&meta.namespace);
        if let Err(error) = api.patch_sub::<IgnoredAny>(&meta.name, "status", Patch::Merge(&patch)).await {
            debug!(pod = %meta.key(), error = %telemetry::chain(&error), "cannot tell the expected node");
        }
    }

    /// Sends the victims away.
    pub(super) async fn preempt(&self, pod: &Pod, preemption: Preemption, displaced: &[Arc<Pod>]) {
        let meta = &pod.metadata;
        self.metrics.preempted(preemption.victims.len());
        info!(pod = %meta.key(), node = %preemption.node, victims = preemption.victims.len(), "preempting");
        for other in displaced {
            let none = json!({"status": {"nominatedNodeName": null}});
            let api = self.handle.client.api(&resources::PODS).within(&other.metadata.namespace);
            let patched =
                api.patch_sub::<IgnoredAny>(&other.metadata.name, "status", Patch::Merge(&none)).await;
            if let Err(error) = patched {
                debug!(pod = %other.metadata.key(), error = %telemetry::chain(&error), "cannot take a nomination back");
            }
        }
        for victim in &preemption.victims {
            if let Err(error) = self.evict(pod, victim, &preemption.node).await
                && !error.is_not_found()
                && !error.is_conflict()
            {
                warn!(pod = %victim.metadata.key(), error = %telemetry::chain(&error), "cannot preempt");
            }
        }
    }

    async fn evict(&self, pod: &Pod, victim: &Pod, node: &str) -> Result<(), client::Error> {
        let meta = &victim.metadata;
        // A victim that waits for a permission has no place in the API yet: it goes back to the queue.
        if self.handle.reject(&meta.uid, "preempted".into()) {
            return Ok(());
        }
        let api = self.handle.client.api(&resources::PODS).within(&meta.namespace);
        let condition = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", pod.spec.scheduler_name),
            "observedGeneration": meta.generation, "lastTransitionTime": time(Timestamp::now()),
        }]}});
        api.patch_sub::<IgnoredAny>(&meta.name, "status", Patch::Strategic(&condition)).await?;
        api.delete(&meta.name, &DeleteOptions::of_uid(&*meta.uid)).await?;
        let message = format!("Preempted by pod {} on node {node}", pod.metadata.uid);
        let news =
            News { warning: false, reason: "Preempted", action: "Preempting", message, related: Some(pod) };
        self.handle.record(victim, &pod.spec.scheduler_name, news);
        Ok(())
    }
}
