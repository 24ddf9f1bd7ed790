//! ResourceQuotas: recounts what a namespace uses when something is freed. Taking more is checked and noted by the API
//! server's admission; this controller finds what was given back.
//!
//! Charges and what they are for come over two watches, in no common order. So:
//! - a count that changes nothing is held against the quota on the server, which has the charge of whatever was seen to go,
//!   even if the cache does not show that charge yet;
//! - a count that changed something is looked at again soon, because it may have missed what was charged and not yet there;
//! - everything is counted anew from time to time, as upstream does.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use client::{Error, ListOptions, Resource};
use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Labels, Meta, Plan};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;

use crate::discovery::discover;
use crate::kinds::{
    ConfigMap, CronJob, DaemonSet, Deployment, Job, PersistentVolumeClaim, Pod, ReplicaSet,
    ReplicationController, Secret, Service, ServiceAccount, StatefulSet, kind, labels_json, none,
};

/// A ResourceQuota.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceQuota {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: QuotaSpec,
    /// What is.
    pub status: QuotaStatus,
}
kind!(ResourceQuota, RESOURCE_QUOTAS, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaSpec {
    /// The limits.
    pub hard: Labels,
    /// Which pods count.
    pub scopes: Vec<Box<str>>,
    /// Which pods count, in detail.
    pub scope_selector: Option<ScopeSelector>,
}

/// Which pods count, in detail.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeSelector {
    /// All must fit.
    pub match_expressions: Vec<ScopeRule>,
}

/// One rule about pods.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ScopeRule {
    /// The scope.
    pub scope_name: Box<str>,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: Box<str>,
    /// For the first two.
    pub values: Vec<Box<str>>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QuotaStatus {
    /// The limits that were looked at.
    pub hard: Labels,
    /// What is used.
    pub used: Labels,
}

/// What one quota depends on.
pub struct View {
    /// The quota.
    pub quota: Arc<ResourceQuota>,
    /// The namespace's pods.
    pub pods: Vec<Arc<Pod>>,
    /// Its services.
    pub services: Vec<Arc<Service>>,
    /// Its claims.
    pub claims: Vec<Arc<PersistentVolumeClaim>>,
    /// How many objects there are, by the name that the quota uses.
    pub counts: BTreeMap<String, i64>,
    /// When it is.
    pub now: Timestamp,
    /// After how long everything is counted anew.
    pub period: SignedDuration,
}

/// By when whatever was charged is there, and in the caches: how soon a count that changed something is looked at again.
const SETTLED: SignedDuration = SignedDuration::from_secs(5);

/// Decides on one quota.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let quota = &*view.quota;
    let used = used(view);
    let settled = is_noted(quota, &used);
    if let Ok(at) = view.now.checked_add(if settled { view.period } else { SETTLED }) {
        plan.look_again(at);
    }
    if !settled {
        let mut hard = labels_json(&quota.spec.hard);
        let mut new_used = json!(used);
        // What the quota no longer limits is taken out.
        for (name, _) in quota.status.hard.iter().filter(|(name, _)| quota.spec.hard.get(name).is_none()) {
            hard[name] = json!(null);
        }
        for (name, _) in quota.status.used.iter().filter(|(name, _)| !used.contains_key(name)) {
            new_used[name] = json!(null);
        }
        plan.set_status(quota, json!({"hard": hard, "used": new_used}));
    }
    plan
}

/// How much is used of what the quota limits.
fn used(view: &View) -> BTreeMap<&str, String> {
    view.quota.spec.hard.iter().map(|(name, _)| (name, usage(view, name).to_string())).collect()
}

/// Whether the quota's status says so already.
fn is_noted(quota: &ResourceQuota, used: &BTreeMap<&str, String>) -> bool {
    let same = |text: Option<&str>, new: &str| {
        let number = |text: &str| text.parse::<Quantity>().ok();
        text.is_some_and(|old| number(old) == number(new))
    };
    used.iter().all(|(name, new)| same(quota.status.used.get(name), new))
        && quota.status.used.iter().all(|(name, _)| used.contains_key(name))
        && quota.status.hard == quota.spec.hard
}

/// How much is used of one thing.
fn usage(view: &View, name: &str) -> Quantity {
    let whole = |count: usize| Quantity::new(count as i64);
    match name {
        "services.nodeports" => {
            let exposed = view
                .services
                .iter()
                .filter(|service| matches!(&*service.spec.kind, "NodePort" | "LoadBalancer"));
            whole(exposed.map(|service| service.spec.ports.len()).sum())
        }
        "services.loadbalancers" => {
            whole(view.services.iter().filter(|service| &*service.spec.kind == "LoadBalancer").count())
        }
        "requests.storage" => claims_size(view, None),
        _ => {
            if let Some((class, what)) = name.split_once(".storageclass.storage.k8s.io/") {
                return match what {
                    "requests.storage" => claims_size(view, Some(class)),
                    _ => whole(view.claims.iter().filter(|claim| is_of(claim, class)).count()),
                };
            }
            if let Some(count) = view.counts.get(name) {
                return Quantity::new(*count);
            }
            let counted = view.pods.iter().filter(|pod| is_charged(pod) && in_scope(&view.quota.spec, pod));
            if name == "pods" {
                return whole(counted.count());
            }
            let (kind, resource) = match name.split_once('.') {
                Some(("requests", resource)) => (true, resource),
                Some(("limits", resource)) => (false, resource),
                _ => (true, name),
            };
            counted.fold(Quantity::new(0), |sum, pod| sum.plus(pod_amount(pod, resource, kind)))
        }
    }
}

fn is_of(claim: &PersistentVolumeClaim, class: &str) -> bool {
    claim.spec.storage_class_name.as_deref() == Some(class)
}

fn claims_size(view: &View, class: Option<&str>) -> Quantity {
    let counted = view.claims.iter().filter(|claim| class.is_none_or(|class| is_of(claim, class)));
    let size = |claim: &Arc<PersistentVolumeClaim>| amount(&claim.spec.resources.requests, "storage");
    counted.map(size).fold(Quantity::new(0), Quantity::plus)
}

fn amount(list: &Labels, name: &str) -> Quantity {
    list.get(name).and_then(|text| text.parse().ok()).unwrap_or_else(|| Quantity::new(0))
}

/// A pod that ended gives back what it had.
fn is_charged(pod: &Pod) -> bool {
    !pod.is_finished()
}

/// What a pod takes of a resource: the larger of its init phase and its running phase, and the overhead.
fn pod_amount(pod: &Pod, resource: &str, requests: bool) -> Quantity {
    let of = |resources: &crate::kinds::Resources| {
        amount(if requests { &resources.requests } else { &resources.limits }, resource)
    };
    let zero = Quantity::new(0);
    let own = of(&pod.spec.resources);
    let mut total = if own.is_zero() {
        let mut running =
            pod.spec.containers.iter().fold(zero, |sum, container| sum.plus(of(&container.resources)));
        let (mut sidecars, mut peak) = (zero, zero);
        for container in &pod.spec.init_containers {
            let need = of(&container.resources);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = sidecars.plus(need);
                peak = peak.max(sidecars);
            } else {
                peak = peak.max(sidecars.plus(need));
            }
        }
        running = running.plus(sidecars);
        running.max(peak)
    } else {
        own
    };
    if requests || !total.is_zero() {
        total = total.plus(amount(&pod.spec.overhead, resource));
    }
    total
}

fn in_scope(spec: &QuotaSpec, pod: &Pod) -> bool {
    let best_effort = || {
        let all = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        let named = ["cpu", "memory"];
        all.into_iter().all(|container| {
            let has = |list: &Labels| named.iter().any(|name| list.get(name).is_some());
            !has(&container.resources.requests) && !has(&container.resources.limits)
        })
    };
    let holds = |scope: &str, operator: &str, values: &[Box<str>]| match scope {
        "Terminating" => pod.spec.active_deadline_seconds.is_some_and(|seconds| seconds >= 0),
        "NotTerminating" => pod.spec.active_deadline_seconds.is_none(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => {
            let class = &pod.spec.priority_class_name;
            match operator {
                "In" => values.contains(class),
                "NotIn" => !values.contains(class),
                "DoesNotExist" => class.is_empty(),
                _ => !class.is_empty(),
            }
        }
        _ => false,
    };
    let rules = spec.scope_selector.iter().flat_map(|selector| &selector.match_expressions);
    spec.scopes.iter().all(|scope| holds(scope, "Exists", &[]))
        && rules.into_iter().all(|rule| holds(&rule.scope_name, &rule.operator, &rule.values))
}

/// The kind that a name in a quota counts.
fn counted_kind(name: &str) -> Option<(String, String)> {
    let old = [
        "services",
        "configmaps",
        "secrets",
        "persistentvolumeclaims",
        "replicationcontrollers",
        "resourcequotas",
    ];
    match name.strip_prefix("count/") {
        Some(name) => {
            let (plural, group) = name.split_once('.').unwrap_or((name, ""));
            Some((plural.to_owned(), group.to_owned()))
        }
        None => old.contains(&name).then(|| (name.to_owned(), String::new())),
    }
}

fn gather(context: Context, period: SignedDuration) -> BoxFuture<'static, Result<Option<View>, Error>> {
    Box::pin(async move {
        let Some(quota) = context.object::<ResourceQuota>() else { return Ok(None) };
        let namespace = &*quota.metadata.namespace;
        let caches = &context.caches;
        let (services, claims) = (
            caches.of::<Service>().in_namespace(namespace),
            caches.of::<PersistentVolumeClaim>().in_namespace(namespace),
        );
        let pods = caches.of::<Pod>().in_namespace(namespace);
        let mut counts = BTreeMap::new();
        let mut kinds: Option<Vec<Resource>> = None;
        for (name, _) in quota.spec.hard.iter() {
            let Some((plural, group)) = counted_kind(name) else { continue };
            let cached = match (&*plural, &*group) {
                ("pods", "") => Some(pods.len()),
                ("services", "") => Some(services.len()),
                ("persistentvolumeclaims", "") => Some(claims.len()),
                ("configmaps", "") => Some(caches.of::<ConfigMap>().in_namespace(namespace).len()),
                ("secrets", "") => Some(caches.of::<Secret>().in_namespace(namespace).len()),
                ("replicationcontrollers", "") => {
                    Some(caches.of::<ReplicationController>().in_namespace(namespace).len())
                }
                ("resourcequotas", "") => Some(caches.of::<ResourceQuota>().in_namespace(namespace).len()),
                ("serviceaccounts", "") => Some(caches.of::<ServiceAccount>().in_namespace(namespace).len()),
                ("replicasets", "apps") => Some(caches.of::<ReplicaSet>().in_namespace(namespace).len()),
                ("deployments", "apps") => Some(caches.of::<Deployment>().in_namespace(namespace).len()),
                ("statefulsets", "apps") => Some(caches.of::<StatefulSet>().in_namespace(namespace).len()),
                ("daemonsets", "apps") => Some(caches.of::<DaemonSet>().in_namespace(namespace).len()),
                ("jobs", "batch") => Some(caches.of::<Job>().in_namespace(namespace).len()),
                ("cronjobs", "batch") => Some(caches.of::<CronJob>().in_namespace(namespace).len()),
                _ => None,
            };
            let count = match cached {
                Some(count) => count,
                None => {
                    if kinds.is_none() {
                        let found = discover(&context.reader).await?;
                        kinds = Some(found.kinds.into_iter().map(|kind| kind.resource).collect());
                    }
                    let fits =
                        |kind: &&Resource| kind.plural == plural && kind.group == group && kind.namespaced;
                    let Some(kind) = kinds.iter().flatten().find(fits) else { continue };
                    let api = context.reader.api(kind).within(namespace);
                    api.list_all::<serde::de::IgnoredAny>(&ListOptions { limit: 500, ..Default::default() })
                        .await?
                        .items
                        .len()
                }
            };
            counts.insert(name.to_owned(), count as i64);
        }
        let mut view = View { quota, pods, services, claims, counts, now: context.now, period };
        if is_noted(&view.quota, &used(&view)) {
            let Some(latest) = on_server(&context).await? else { return Ok(None) };
            view.quota = Arc::new(latest);
        }
        Ok(Some(view))
    })
}

/// The quota as the server has it. The controller may list quotas, not get one.
async fn on_server(context: &Context) -> Result<Option<ResourceQuota>, Error> {
    let api = context.reader.api(&ResourceQuota::RESOURCE).within(&context.key.namespace);
    let all = api.list_all::<ResourceQuota>(&ListOptions::default()).await?.items;
    Ok(all.into_iter().find(|quota| *quota.metadata.name == *context.key.name))
}

/// Something was given back: all quotas of the namespace are counted anew.
fn freed<K: Kind>(caches: &Caches, change: &Change<K>) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    quotas_of(caches, &change.latest().meta().namespace)
}

fn quotas_of(caches: &Caches, namespace: &str) -> Vec<Key> {
    caches.of::<ResourceQuota>().in_namespace(namespace).iter().map(|quota| quota.key()).collect()
}

/// Whether the limits are others than before. What admission charges must not bring a recount: the caches may not show yet what it
/// was charged for, and the count would take the charge back.
fn limits_changed(change: &Change<ResourceQuota>) -> bool {
    match (&change.old, &change.new) {
        // Admission charges what is used, so other limits in the status are somebody's mistake.
        (Some(old), Some(new)) => old.spec.hard != new.spec.hard || new.status.hard != new.spec.hard,
        _ => true,
    }
}

/// The controller, counting everything anew after `period`, though not all the time.
pub fn controller(period: SignedDuration) -> Controller {
    let period = period.max(SETTLED);
    Controller::reading("resourcequota-controller", move |context| gather(context, period), reconcile)
        .acting_as("resourcequota-controller")
        .for_changes_of::<ResourceQuota>(limits_changed)
        .watching::<Pod>(|caches, change| {
            let was = change.old.as_ref().is_some_and(|pod| is_charged(pod));
            let is = change.new.as_ref().is_some_and(|pod| is_charged(pod));
            if was && !is { quotas_of(caches, &change.latest().metadata.namespace) } else { Vec::new() }
        })
        .watching::<Service>(freed)
        .watching::<PersistentVolumeClaim>(freed)
        .watching::<ConfigMap>(freed)
        .watching::<Secret>(freed)
        .watching::<ReplicationController>(freed)
        .watching::<ServiceAccount>(freed)
        .watching::<ReplicaSet>(freed)
        .watching::<Deployment>(freed)
        .watching::<StatefulSet>(freed)
        .watching::<DaemonSet>(freed)
        .watching::<Job>(freed)
        .watching::<CronJob>(freed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, pod};
    use serde_json::Value;

    fn used(hard: Value, more: Value, pods: Vec<Pod>) -> Value {
        let mut spec = json!({"hard": hard});
        controller_runtime::merge(&mut spec, &more);
        let quota = Arc::new(object(json!({"metadata":{"name":"q","namespace":"n"},"spec":spec})));
        let view = View {
            quota,
            pods: pods.into_iter().map(Arc::new).collect(),
            services: vec![],
            claims: vec![],
            counts: [("count/configmaps".to_owned(), 4)].into(),
            now: crate::testing::now(),
            period: SignedDuration::from_mins(5),
        };
        reconcile(&view).status_change().unwrap()["used"].clone()
    }

    fn with(cpu: &str, phase: &str) -> Pod {
        pod(
            "p",
            json!({"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":cpu}}}],
            "initContainers":[{"name":"i","resources":{"requests":{"cpu":"300m"}}}]},"status":{"phase":phase}}),
        )
    }

    #[test]
    fn a_charge_of_admission_brings_no_recount() {
        let quota = |hard: &str, used: &str| {
            Some(Arc::new(object(json!({"metadata":{"name":"q","namespace":"n"},
                "spec":{"hard":{"services":hard}},"status":{"hard":{"services":"1"},"used":{"services":used}}}))))
        };
        let cases = [
            ("new", None, quota("1", "0"), true),
            ("charged", quota("1", "0"), quota("1", "1"), false),
            ("other limits", quota("1", "1"), quota("2", "1"), true),
            ("limits in the status that are not the quota's", quota("2", "1"), quota("2", "1"), true),
        ];
        for (name, old, new, expected) in cases {
            assert_eq!(limits_changed(&Change { old, new }), expected, "{name}");
        }
    }

    #[test]
    fn running_pods_are_summed_and_finished_ones_not() {
        let pods = || vec![with("250m", "Running"), with("500m", "Pending"), with("4", "Succeeded")];
        assert_eq!(
            used(json!({"requests.cpu":"2","pods":"10","count/configmaps":"9"}), json!({}), pods()),
            json!({"count/configmaps":"4","pods":"2","requests.cpu":"800m"})
        );
    }

    #[test]
    fn scopes_choose_the_pods() {
        let pods = || {
            vec![
                with("250m", "Running"),
                pod("b", json!({"spec":{"containers":[{"name":"c"}],"priorityClassName":"high"}})),
            ]
        };
        let count = |more: Value| used(json!({"pods":"10"}), more, pods())["pods"].clone();
        assert_eq!(count(json!({"scopes":["BestEffort"]})), "1");
        assert_eq!(count(json!({"scopes":["NotBestEffort"]})), "1");
        assert_eq!(count(json!({"scopes":["Terminating"]})), "0");
        let rule = json!({"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]}});
        assert_eq!(count(rule), "1");
    }
}
