//! Finds devices for a pod's resource claims on a node; [`binding`] allocates and reserves them before it is bound.

mod binding;
mod extended;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{Key, resources};
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tracing::warn;

use super::matches_selector;
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::devices::allocation::{Taken, allocate, taken};
use crate::devices::{AllocatedDevice, AllocatedDevices, Allocation, Devices, ResourceClaim, claim_names};
use crate::events::{ClusterEvent, Events};
use crate::framework::{
    Action, Cycle, Filter, Hopeless, Plugin, PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, Prepared,
    Reasons, Remedy, Reserve, Score, Verdict, normalize_by_largest,
};
use crate::handle::Handle;
use crate::types::{NodeSelector, Pod};
use extended::{Extended, MadeUp, Realised};

/// No claim has more users than this.
const MOST_USERS: usize = 256;
/// The most alternatives of one request; the first is worth this much, each later one less.
const MOST_ALTERNATIVES: usize = 8;
const BINDING_TIMEOUT: Duration = Duration::from_secs(600);

pub struct DynamicResources {
    /// How long devices may take to become ready.
    binding_timeout: Duration,
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }
    fn wakes_on(&self) -> Events {
        let devices = Events::RESOURCE_CLAIM.and(Events::RESOURCE_SLICE).and(Events::DEVICE_CLASS);
        devices.and(Events::NODE).and(Events::POD_GONE)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            // Its own claim changed, or another's devices became free.
            ClusterEvent::ResourceClaimChanged { old, new } => {
                let own = |claim: &Arc<ResourceClaim>| {
                    claim.metadata.namespace == pod.metadata.namespace
                        && claim_names(pod).any(|(_, name)| name == Some(&claim.metadata.name))
                };
                let allocated = |claim: &Option<Arc<ResourceClaim>>| {
                    claim.as_ref().is_some_and(|claim| claim.status.allocation.is_some())
                };
                new.as_ref().is_some_and(own) || allocated(old) && !allocated(new)
            }
            ClusterEvent::PodGone(gone) => !gone.spec.resource_claims.is_empty(),
            ClusterEvent::NodeChanged { old, new } => old.metadata.labels != new.metadata.labels,
            _ => true,
        }
    }
    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        Some(self)
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn post_filter(&self) -> Option<&dyn PostFilter> {
        Some(self)
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }
}

/// The pod's claims and the devices that are not to be had.
struct Claims {
    claims: Vec<Arc<ResourceClaim>>,
    taken: Taken,
    /// Claims whose devices never became ready.
    given_up: HashSet<usize>,
    /// Claims whose devices some node that was looked at cannot reach.
    out_of_reach: Mutex<HashSet<usize>>,
    /// Resources that devices stand for.
    extended: Option<Extended>,
    /// What an earlier attempt left of a claim for these; it has to go first.
    left_behind: Option<Arc<ResourceClaim>>,
}

impl Claims {
    fn made_up(&self, pod: &Pod, node: &NodeInfo) -> Option<MadeUp> {
        self.extended.as_ref()?.on(pod, node)
    }
}

/// The plugin has looked at the pod, whatever it found.
struct Seen;

/// What was allocated for the chosen node: claim, devices, and the selector of nodes that reach them.
struct Chosen(Vec<Choice>);

type Choice = (Arc<ResourceClaim>, Option<(Vec<AllocatedDevice>, Value)>);

/// The objects of the pod's claims, or why they cannot be used yet.
fn find_claims(pod: &Pod, devices: &Devices) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let namespace = &pod.metadata.namespace;
    let mut claims = Vec::new();
    for (name, object) in claim_names(pod) {
        let object = object.ok_or_else(|| format!("waiting for dynamic resource controller to create the resourceclaim from template for {name:?}"))?;
        let claim = devices.claims.get(&Key::new(namespace, object));
        let claim = claim.ok_or_else(|| format!("resourceclaim {namespace}/{object} not found"))?;
        if claim.metadata.is_terminating() {
            return Err(format!("resourceclaim {object:?} is being deleted"));
        }
        let generated = pod
            .spec
            .resource_claims
            .iter()
            .any(|wanted| *wanted.name == *name && wanted.resource_claim_template_name.is_some());
        let owned = claim.metadata.controller().is_some_and(|owner| owner.uid == pod.metadata.uid);
        if generated && !owned {
            return Err(format!(
                "ResourceClaim {namespace}/{object} was not created for pod {namespace}/{} (pod is not owner)",
                pod.metadata.name
            ));
        }
        claims.push(claim.clone());
    }
    Ok(claims)
}

impl PreEnqueue for DynamicResources {
    fn holds_back(&self, pod: &Pod, cache: &Cache) -> Option<Reasons> {
        if pod.spec.resource_claims.is_empty() {
            return None;
        }
        find_claims(pod, &cache.devices).err().map(Reasons::from)
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        cycle.keep(Seen);
        let extended = match pod.requests.others.is_empty() {
            true => None,
            false => Extended::of(pod, &cache.devices),
        };
        if pod.pod.spec.resource_claims.is_empty() && extended.is_none() {
            return Prepared::Skip;
        }
        let claims = match find_claims(&pod.pod, &cache.devices) {
            Ok(claims) if claims.is_empty() && extended.is_none() => return Prepared::Skip,
            Ok(claims) => claims,
            Err(reason) => return Prepared::Never(reason.into()),
        };
        for claim in &claims {
            let full = claim.status.reserved_for.len() >= MOST_USERS && !claim.is_reserved_for(&pod.pod);
            if full {
                return Prepared::Never("resourceclaim in use".into());
            }
            if claim.status.allocation.is_none() && cache.devices.promised.contains_key(&claim.metadata.key())
            {
                let text =
                    format!("resourceclaim {} is in the process of being allocated", claim.metadata.name);
                return Prepared::Never(text.into());
            }
            for request in &claim.spec.devices.requests {
                for asked in request.exactly.iter().chain(&request.first_available) {
                    if claim.status.allocation.is_none()
                        && !cache.devices.classes.contains_key(&asked.device_class_name)
                    {
                        let text = format!(
                            "request {}: device class {} does not exist",
                            request.name, asked.device_class_name
                        );
                        return Prepared::Never(text.into());
                    }
                }
            }
        }
        let taken = taken(&cache.devices);
        let now = Timestamp::now();
        let late = |(_, claim): &(usize, &Arc<ResourceClaim>)| claim.has_given_up(self.binding_timeout, now);
        let given_up = claims.iter().enumerate().filter(late).map(|(index, _)| index).collect();
        let left_behind = extended.as_ref().and_then(|_| extended::left_behind(&pod.pod, &cache.devices));
        let out_of_reach = Mutex::default();
        cycle.keep(Claims { claims, taken, given_up, out_of_reach, extended, left_behind });
        Prepared::Check
    }
}

impl Filter for DynamicResources {
    fn filter(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(all) = cycle.get::<Claims>() else { return Verdict::Fits };
        let Claims { claims, taken, given_up, out_of_reach, .. } = all;
        let usable = |selector: &NodeSelector| matches_selector(selector, &node.node);
        let mut reachable = true;
        for (index, claim) in claims.iter().enumerate() {
            let allocation = claim.status.allocation.as_ref();
            let selector = allocation.and_then(|allocation| allocation.node_selector.as_ref());
            if given_up.contains(&index) || selector.is_some_and(|it| !usable(it)) {
                reachable = false;
                out_of_reach.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
            }
        }
        if !reachable {
            return Verdict::never("resourceclaim not available on the node");
        }
        if all.left_behind.is_some() {
            return Verdict::never("cannot schedule extended resource claim");
        }
        let mut open = open(claims);
        let made_up = all.made_up(&pod.pod, node);
        open.extend(made_up.iter().map(|made_up| &*made_up.claim));
        if open.is_empty() {
            return Verdict::Fits;
        }
        match allocate(&open, &node.node, &cache.devices, taken) {
            Ok(Some(_)) => Verdict::Fits,
            Ok(None) => Verdict::never("cannot allocate all claims"),
            Err(reason) => Verdict::never(reason),
        }
    }
}

impl PostFilter for DynamicResources {
    /// A claim that nobody uses, with devices where the pod cannot go, is taken back: others may be found for it.
    fn post_filter(&self, hopeless: &Hopeless<'_>, _cache: &mut Cache) -> Remedy {
        let pod = &hopeless.pod.pod;
        // As upstream tells it when another plugin had ruled out every node before this one was asked.
        if hopeless.cycle.get::<Seen>().is_none() {
            return Remedy::Unknown("not found".to_owned());
        }
        let Some(Claims { claims, out_of_reach, left_behind, .. }) = hopeless.cycle.get::<Claims>() else {
            return Remedy::None("no new claims to deallocate".to_owned());
        };
        if let Some(claim) = left_behind.clone() {
            let action: Action = Box::new(move |handle| Box::pin(extended::discard(claim, handle)));
            return Remedy::Act("deletion of ResourceClaim completed".to_owned(), action);
        }
        let out_of_reach = out_of_reach.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |claim: &&Arc<ResourceClaim>| {
            claim.status.reserved_for.iter().all(|consumer| consumer.uid == pod.metadata.uid)
        };
        let named = claims.iter().enumerate().filter(|(index, _)| out_of_reach.contains(index));
        match named.map(|(_, claim)| claim).find(idle) {
            Some(claim) => {
                let claim = claim.clone();
                let action: Action = Box::new(move |handle| Box::pin(take_back(claim, handle)));
                Remedy::Act("deallocation of ResourceClaim completed".to_owned(), action)
            }
            None => Remedy::None("still not schedulable".to_owned()),
        }
    }
}

/// Frees the devices of a claim, unless it changed meanwhile.
async fn take_back(claim: Arc<ResourceClaim>, handle: Handle) {
    let meta = &claim.metadata;
    let api = handle.client.api(&resources::RESOURCE_CLAIMS).within(&meta.namespace);
    let work = async {
        let mut object: Value = api.get(&meta.name).await?;
        if object["metadata"]["resourceVersion"].as_str() != Some(&meta.resource_version) {
            return Ok(());
        }
        if let Some(status) = object["status"].as_object_mut() {
            for field in ["allocation", "reservedFor", "devices"] {
                status.shift_remove(field);
            }
        }
        api.replace_sub::<IgnoredAny>(&meta.name, "status", &object).await.map(drop)
    };
    let outcome: Result<(), client::Error> = work.await;
    if let Err(error) = outcome {
        warn!(claim = %meta.key(), error = %telemetry::chain(&error), "cannot take devices back");
    }
}

impl PreScore for DynamicResources {
    /// Nodes differ only if some request has alternatives.
    fn pre_score(
        &self,
        cycle: &mut Cycle,
        _pod: &PlacedPod,
        _feasible: &[usize],
        _cache: &mut Cache,
    ) -> bool {
        let Some(Claims { claims, .. }) = cycle.get::<Claims>() else { return false };
        let requests = || open(claims).into_iter().flat_map(|claim| &claim.spec.devices.requests);
        requests().any(|request| !request.first_available.is_empty())
    }
}

impl Score for DynamicResources {
    /// The earlier an alternative stands in its list, the better.
    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> i64 {
        let Some(Claims { claims, taken, .. }) = cycle.get::<Claims>() else { return 0 };
        let open = open(claims);
        let Ok(Some(found)) = allocate(&open, &node.node, &cache.devices, taken) else { return 0 };
        let mut score = 0;
        for (claim, results) in open.iter().zip(&found) {
            for request in &claim.spec.devices.requests {
                let chosen = |name: &str| {
                    let full = format!("{}/{name}", request.name);
                    results.iter().any(|result| *result.request == full)
                };
                let taken = request.first_available.iter().position(|asked| chosen(&asked.name));
                score += taken.map_or(0, |place| MOST_ALTERNATIVES.saturating_sub(place));
            }
        }
        score as i64
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        normalize_by_largest(scores, false);
    }
}

fn open(claims: &[Arc<ResourceClaim>]) -> Vec<&ResourceClaim> {
    claims.iter().filter(|claim| claim.status.allocation.is_none()).map(|claim| &**claim).collect()
}

impl Reserve for DynamicResources {
    fn reserve(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        node: &str,
        cache: &mut Cache,
    ) -> Result<(), Reasons> {
        let Some(all) = cycle.get::<Claims>() else { return Ok(()) };
        let Claims { claims, taken, .. } = all;
        let info = cache.node(node).ok_or("the chosen node is gone")?;
        let made_up = all.made_up(&pod.pod, info);
        let mut open = open(claims);
        open.extend(made_up.iter().map(|made_up| &*made_up.claim));
        let found = allocate(&open, &info.node, &cache.devices, taken)?;
        let mut found = found.ok_or("cannot allocate all claims")?.into_iter();
        let mut chosen: Vec<Choice> = Vec::new();
        for claim in claims {
            let devices = match &claim.status.allocation {
                Some(_) => None,
                None => found.next().map(|results| {
                    let selector = node_selector(&results, &cache.devices, node);
                    (results, selector)
                }),
            };
            chosen.push((claim.clone(), devices));
        }
        // The made-up claim is the last, here as among those that were allocated.
        if let (Some(made_up), Some(results)) = (&made_up, found.next()) {
            let selector = node_selector(&results, &cache.devices, node);
            chosen.push((made_up.claim.clone(), Some((results, selector))));
        }
        for (claim, devices) in &chosen {
            if let Some((results, _)) = devices {
                let devices = AllocatedDevices { results: results.clone() };
                cache
                    .devices
                    .promised
                    .insert(claim.metadata.key(), Allocation { devices, ..Allocation::default() });
            }
        }
        cycle.keep(Chosen(chosen));
        if let Some(made_up) = made_up {
            cycle.keep(Realised { made_up });
        }
        Ok(())
    }

    fn unreserve(&self, cycle: &Cycle, _pod: &Pod, _node: &str, cache: &mut Cache) {
        let Some(Chosen(chosen)) = cycle.get::<Chosen>() else { return };
        for (claim, devices) in chosen {
            if devices.is_some() {
                cache.devices.promised.remove(&claim.metadata.key());
            }
        }
    }
}

/// The nodes from which all devices can be reached: one if any device is local to it, else whatever the slices say.
fn node_selector(results: &[AllocatedDevice], devices: &Devices, node: &str) -> Value {
    let mut terms: Vec<Value> = Vec::new();
    for result in results {
        let slice = devices.slices.values().map(|slice| &slice.spec).find(|slice| {
            slice.driver == result.driver
                && slice.pool.name == result.pool
                && slice.devices.iter().any(|device| device.name == result.device)
        });
        let Some(slice) = slice else { continue };
        let device = slice.devices.iter().find(|device| device.name == result.device);
        let nodes = match device {
            Some(device) if slice.per_device_node_selection => &device.nodes,
            _ => &slice.nodes,
        };
        if device.is_some_and(|device| device.binds_to_node) {
            return only(node);
        }
        if nodes.all_nodes == Some(true) {
            continue;
        }
        if let (None, Some(selector)) = (&nodes.node_name, &nodes.node_selector)
            && let [term] = &selector.node_selector_terms[..]
        {
            let written = |wishes: &[crate::types::Requirement]| -> Vec<Value> {
                wishes
                    .iter()
                    .map(|wish| json!({"key": wish.key, "operator": wish.operator, "values": wish.values}))
                    .collect()
            };
            let term = json!({"matchExpressions": written(&term.match_expressions), "matchFields": written(&term.match_fields)});
            if !terms.contains(&term) {
                terms.push(term);
            }
            continue;
        }
        return only(node);
    }
    match terms.len() {
        0 => Value::Null,
        1 => json!({"nodeSelectorTerms": terms}),
        // Terms are alternatives; several that must hold together are narrowed to the node at hand.
        _ => only(node),
    }
}

fn only(node: &str) -> Value {
    let name = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    json!({"nodeSelectorTerms": [{"matchFields": [name]}]})
}

/// Upstream's arguments; the search is bounded by steps instead of time, so the filter's is only checked.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, super::ArgsError> {
    let args: Args = super::decode_args(args)?;
    let read = |field: &str, value: Option<String>| match value {
        None => Ok(None),
        Some(text) => controller_runtime::program::go_duration(&text)
            .map(Some)
            .map_err(|error| super::ArgsError::new(field, error)),
    };
    read("filterTimeout", args.filter_timeout)?;
    let binding_timeout = read("bindingTimeout", args.binding_timeout)?.unwrap_or(BINDING_TIMEOUT);
    Ok(Arc::new(DynamicResources { binding_timeout }))
}
