//! Gives Services of type LoadBalancer their load balancer, and takes it away when it is no longer wanted.
//!
//! A finalizer stands guard before anything is made outside the cluster, so no Service can go and leave it behind.
//! [`intent`] decides what the provider is asked for, [`reconcile`] what the API is told of its answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Plan};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;

use crate::kinds::{Node, Service, ServiceSpec};
use crate::provider::{CloudError, Ingress, Provider};

/// The controller's name.
pub const NAME: &str = "service-lb-controller";
/// Keeps a Service until its load balancer is gone.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// What the provider is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Nothing: the Service has no load balancer of ours, or it is as it should be.
    Nothing,
    /// Nothing yet: the guard comes first.
    Guard,
    /// To make it or adapt it.
    Ensure,
    /// To send traffic to other nodes.
    Hosts,
    /// To remove it.
    Release,
}

/// What was done last for a Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Synced {
    uid: Box<str>,
    spec: ServiceSpec,
    hosts: Vec<Host>,
    ingress: Vec<Ingress>,
}

/// A node that takes traffic.
type Host = (Box<str>, Box<str>);

/// What one Service's plan depends on.
pub struct View {
    service: Arc<Service>,
    intent: Intent,
    /// What the provider gave, or why it did not; for removals whether there was something.
    outcome: Result<Outcome, String>,
    hosts: usize,
    now: Timestamp,
}

/// What a provider answered.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// It was not asked.
    None,
    /// The load balancer is there.
    Present(Vec<Ingress>),
    /// It is not, and whether it was.
    Absent(bool),
}

/// Decides what the provider is asked for.
pub fn intent(service: &Service, synced: Option<&Synced>, hosts: &[Host]) -> Intent {
    let guarded = service.metadata.has_finalizer(FINALIZER);
    let going = service.metadata.is_terminating();
    if going || !service.wants_load_balancer() {
        let was_ours = guarded && (going || &*service.spec.kind != "LoadBalancer");
        return if was_ours { Intent::Release } else { Intent::Nothing };
    }
    if !guarded {
        return Intent::Guard;
    }
    match synced.filter(|synced| synced.uid == service.metadata.uid) {
        Some(synced)
            if synced.spec == service.spec && synced.ingress == service.status.load_balancer.ingress =>
        {
            if synced.hosts == hosts {
                Intent::Nothing
            } else {
                Intent::Hosts
            }
        }
        _ => Intent::Ensure,
    }
}

/// Decides what the API is told.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let service = &*view.service;
    let outcome = match &view.outcome {
        Ok(outcome) => outcome,
        Err(error) if view.intent == Intent::Hosts => {
            plan.warn(
                service,
                "UpdateLoadBalancerFailed",
                format!("Error updating load balancer with new hosts: {error}"),
            );
            plan.retry(error.clone());
            return plan;
        }
        Err(error) => {
            let what = if view.intent == Intent::Release { "delete" } else { "ensure" };
            plan.warn(
                service,
                "SyncLoadBalancerFailed",
                format!("Error syncing load balancer: failed to {what} load balancer: {error}"),
            );
            plan.retry(error.clone());
            return plan;
        }
    };
    match (view.intent, outcome) {
        (Intent::Guard, _) => {
            let finalizers = service.metadata.finalizers_with(FINALIZER);
            plan.update_sub(service, "status", json!({"metadata": {"finalizers": finalizers}}));
            plan.event(service, "EnsuringLoadBalancer", "Ensuring load balancer");
            plan.look_again(view.now);
        }
        (Intent::Ensure, Outcome::Present(ingress)) => {
            if view.hosts == 0 {
                no_hosts(service, &mut plan);
            }
            if *ingress == service.status.load_balancer.ingress {
                plan.event(service, "EnsuringLoadBalancer", "Ensuring load balancer");
            } else {
                plan.set_status(service, json!({"loadBalancer": {"ingress": ingress}}));
            }
            plan.event(service, "EnsuredLoadBalancer", "Ensured load balancer");
        }
        (Intent::Hosts, _) if view.hosts == 0 => no_hosts(service, &mut plan),
        (Intent::Hosts, _) => {
            plan.event(service, "UpdatedLoadBalancer", "Updated load balancer with new hosts");
        }
        (Intent::Release, outcome) => {
            if *outcome == Outcome::Absent(true) {
                plan.event(service, "DeletingLoadBalancer", "Deleting load balancer");
            }
            let finalizers = service.metadata.finalizers_without(FINALIZER);
            let change = json!({"metadata": {"finalizers": finalizers}, "status": {"loadBalancer": {"ingress": null}}});
            plan.update_sub(service, "status", change);
            plan.event(service, "DeletedLoadBalancer", "Deleted load balancer");
        }
        _ => {}
    }
    plan
}

fn no_hosts(service: &Service, plan: &mut Plan) {
    plan.warn(service, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer");
}

/// Whether a node takes traffic from load balancers. Readiness does not count: their own checks see to that.
fn takes_traffic(node: &Node) -> bool {
    !node.metadata.is_terminating()
        && node.metadata.label(EXCLUDED).is_none_or(|value| matches!(value, "false" | "False" | "0" | "f"))
        && !node.has_taint(DELETION_TAINT)
}

struct Driver {
    provider: Arc<dyn Provider>,
    synced: Mutex<HashMap<Key, Synced>>,
}

impl Driver {
    fn synced(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Synced>> {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn gather(self: Arc<Self>, context: Context) -> Option<View> {
        let Some(service) = context.object::<Service>() else {
            self.synced().remove(&context.key);
            return None;
        };
        let mut nodes = context.caches.of::<Node>().list();
        nodes.retain(|node| takes_traffic(node));
        nodes.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let hosts: Vec<Host> =
            nodes.iter().map(|node| (node.metadata.name.clone(), node.spec.provider_id.clone())).collect();
        let intent = intent(&service, self.synced().get(&context.key), &hosts);
        let balancers = self.provider.load_balancers()?;
        let outcome: Result<Outcome, CloudError> = match intent {
            Intent::Nothing => return None,
            Intent::Guard => Ok(Outcome::None),
            Intent::Ensure => {
                let all = context.caches.of::<Service>().list();
                balancers.ensure(&service, &all, &nodes).await.map(Outcome::Present)
            }
            Intent::Hosts => balancers.update(&service, &nodes).await.map(|()| Outcome::None),
            Intent::Release => balancers.delete(&service).await.map(Outcome::Absent),
        };
        let outcome = outcome.map_err(|error| telemetry::chain(&error).to_string());
        match &outcome {
            Ok(Outcome::Present(ingress)) => {
                let (uid, spec) = (service.metadata.uid.clone(), service.spec.clone());
                let synced = Synced { uid, spec, hosts: hosts.clone(), ingress: ingress.clone() };
                self.synced().insert(context.key.clone(), synced);
            }
            Ok(Outcome::None) if intent == Intent::Hosts => {
                if let Some(synced) = self.synced().get_mut(&context.key) {
                    synced.hosts = hosts.clone();
                }
            }
            Ok(Outcome::Absent(_)) => {
                self.synced().remove(&context.key);
            }
            _ => {}
        }
        Some(View { service, intent, outcome, hosts: hosts.len(), now: context.now })
    }
}

/// A Service's own change, and for those that wait for an address the end of another.
fn of_service(caches: &Caches, change: &Change<Service>) -> Vec<Key> {
    let had = |service: &Option<Arc<Service>>| {
        service.as_ref().is_some_and(|service| !service.status.load_balancer.ingress.is_empty())
    };
    let mut keys = vec![change.key()];
    if had(&change.old) && !had(&change.new) {
        let waits = |service: &&Arc<Service>| {
            service.wants_load_balancer() && service.status.load_balancer.ingress.is_empty()
        };
        keys.extend(caches.of::<Service>().list().iter().filter(waits).map(|service| service.key()));
    }
    keys
}

fn of_node(caches: &Caches, change: &Change<Node>) -> Vec<Key> {
    let host = |node: &Option<Arc<Node>>| {
        node.as_ref().filter(|node| takes_traffic(node)).map(|node| node.spec.provider_id.clone())
    };
    if host(&change.old) == host(&change.new) {
        return Vec::new();
    }
    let services = caches.of::<Service>().list();
    services.iter().filter(|service| service.wants_load_balancer()).map(|service| service.key()).collect()
}

/// The controller.
pub fn controller(provider: Arc<dyn Provider>, workers: usize) -> Controller {
    let driver = Arc::new(Driver { provider, synced: Mutex::default() });
    let gather = move |context: Context| -> BoxFuture<'static, _> {
        let driver = driver.clone();
        Box::pin(async move { Ok(driver.gather(context).await) })
    };
    Controller::reading(NAME, gather, reconcile)
        .acting_as("service-controller")
        .workers(workers)
        .watching::<Service>(of_service)
        .watching::<Node>(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn service(more: Value) -> Service {
        let mut value =
            json!({"metadata":{"name":"web","namespace":"n","uid":"s1"},"spec":{"type":"LoadBalancer"}});
        controller_runtime::merge(&mut value, &more);
        serde_json::from_value(value).unwrap()
    }

    fn ingress(ip: &str) -> Ingress {
        Ingress { ip: ip.into(), ip_mode: Some("VIP".into()), ..Ingress::default() }
    }

    fn guarded(more: Value) -> Service {
        let mut value = json!({"metadata":{"finalizers":[FINALIZER]}});
        controller_runtime::merge(&mut value, &more);
        service(value)
    }

    #[test]
    fn what_the_provider_is_asked_for() {
        let going = json!({"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}});
        let given = json!({"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]}}});
        let synced = |service: &Service, hosts: &[Host]| Synced {
            uid: "s1".into(),
            spec: service.spec.clone(),
            hosts: hosts.to_vec(),
            ingress: vec![ingress("192.0.2.1")],
        };
        let hosts = [("a".into(), "local://a".into())];
        let settled = guarded(given.clone());
        let done = synced(&settled, &hosts);
        let cases = [
            ("not wanted", service(json!({"spec":{"type":"NodePort"}})), None, Intent::Nothing),
            ("another's", service(json!({"spec":{"loadBalancerClass":"x/y"}})), None, Intent::Nothing),
            ("wanted", service(json!({})), None, Intent::Guard),
            ("guarded", guarded(json!({})), None, Intent::Ensure),
            ("after a restart", guarded(given.clone()), None, Intent::Ensure),
            ("settled", guarded(given.clone()), Some(&done), Intent::Nothing),
            ("its status was lost", guarded(json!({})), Some(&done), Intent::Ensure),
            ("going", guarded(going.clone()), None, Intent::Release),
            ("going without a guard", service(going), None, Intent::Nothing),
            ("no longer wanted", guarded(json!({"spec":{"type":"ClusterIP"}})), Some(&done), Intent::Release),
        ];
        for (name, service, synced, wanted) in cases {
            assert_eq!(intent(&service, synced, &hosts), wanted, "{name}");
        }
        assert_eq!(intent(&settled, Some(&done), &[]), Intent::Hosts, "the nodes changed");
        let mut ported = settled.clone();
        ported.spec.ports.push(Default::default());
        assert_eq!(intent(&ported, Some(&done), &hosts), Intent::Ensure, "the ports changed");
    }

    fn plan(service: Service, intent: Intent, outcome: Result<Outcome, String>) -> Plan {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        reconcile(&View { service: Arc::new(service), intent, outcome, hosts: 1, now })
    }

    fn reasons(plan: &Plan) -> Vec<&str> {
        plan.events().iter().map(|event| &*event.reason).collect()
    }

    #[test]
    fn the_guard_comes_before_the_address() {
        let first = plan(service(json!({})), Intent::Guard, Ok(Outcome::None));
        assert_eq!(first.changes()[0].1["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(reasons(&first), ["EnsuringLoadBalancer"]);
        assert!(first.requeue_at.is_some());
        let second =
            plan(guarded(json!({})), Intent::Ensure, Ok(Outcome::Present(vec![ingress("192.0.2.1")])));
        assert_eq!(
            second.status_change().unwrap(),
            &json!({"loadBalancer":{"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]}})
        );
        assert_eq!(reasons(&second), ["EnsuredLoadBalancer"]);
    }

    #[test]
    fn a_removed_load_balancer_lets_the_service_go() {
        let plan = plan(guarded(json!({})), Intent::Release, Ok(Outcome::Absent(true)));
        assert_eq!(plan.changes()[0].1["metadata"]["finalizers"], json!([]));
        assert_eq!(reasons(&plan), ["DeletingLoadBalancer", "DeletedLoadBalancer"]);
    }

    #[test]
    fn a_failure_is_told_and_tried_again() {
        let plan = plan(guarded(json!({})), Intent::Ensure, Err("no address is free".into()));
        assert_eq!(reasons(&plan), ["SyncLoadBalancerFailed"]);
        assert_eq!(plan.failure(), Some("no address is free"));
        assert!(plan.status().is_none());
    }
}
