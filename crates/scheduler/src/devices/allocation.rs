//! Finds devices for claims on a node: a search that goes back when a choice turns out badly.
//!
//! Requests are satisfied in order, each by devices of complete pools that the node can reach, that nobody has, that
//! match class and selectors, whose taints are tolerated, and for which the pool's shared counters suffice. Among
//! alternatives the first that works is taken. The first solution is the answer; the search is bounded.

use std::collections::{BTreeMap, HashMap, HashSet};

use apimachinery::quantity::Quantity;

use super::capacity::{Amounts, share};
use super::selector::attribute;
use super::{
    AllocatedDevice, Constraint, Device, Devices, Exactly, Nodes, Request, ResourceClaim, ResourceSliceSpec,
};
use crate::plugins::matches_selector;
use crate::types::Node;

/// The most steps of one search; what takes longer counts as impossible.
const MOST_STEPS: usize = 100_000;
/// The most devices of one claim, as upstream has it.
const MOST_DEVICES: usize = 32;

/// Driver, pool and name.
pub type DeviceId = (Box<str>, Box<str>, Box<str>);

/// The devices that someone has.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    whole: HashSet<DeviceId>,
    /// What is used of devices that several may have.
    shares: HashMap<DeviceId, Amounts>,
}

impl Taken {
    fn contains(&self, id: &DeviceId) -> bool {
        self.whole.contains(id) || self.shares.contains_key(id)
    }

    fn add(&mut self, result: &AllocatedDevice) {
        let id = (result.driver.clone(), result.pool.clone(), result.device.clone());
        if result.share_id.is_none() {
            self.whole.insert(id);
            return;
        }
        let used = self.shares.entry(id).or_default();
        for (name, amount) in &result.consumed_capacity {
            let sum = used.get(name).map_or(*amount, |before| before.plus(*amount));
            used.insert(name.clone(), sum);
        }
    }

    /// The opposite of [`Taken::add`]; `last` if nobody else has a share.
    fn remove(&mut self, result: &AllocatedDevice, last: bool) {
        let id = (result.driver.clone(), result.pool.clone(), result.device.clone());
        if result.share_id.is_none() {
            self.whole.remove(&id);
        } else if last {
            self.shares.remove(&id);
        } else if let Some(used) = self.shares.get_mut(&id) {
            for (name, amount) in &result.consumed_capacity {
                if let Some(sum) = used.get_mut(name) {
                    *sum = sum.minus(*amount);
                }
            }
        }
    }
}

pub fn taken(devices: &Devices) -> Taken {
    let by_status = devices.claims.values().filter_map(|claim| claim.status.allocation.as_ref());
    let results =
        by_status.chain(devices.promised.values()).flat_map(|allocation| &allocation.devices.results);
    let mut taken = Taken::default();
    results.filter(|result| !result.admin_access).for_each(|result| taken.add(result));
    taken
}

/// A device that the node can reach.
struct Candidate<'a> {
    slice: &'a ResourceSliceSpec,
    device: &'a Device,
    id: DeviceId,
}

/// Devices per claim, in the claims' order, or why there are none.
pub fn allocate(
    claims: &[&ResourceClaim],
    node: &Node,
    devices: &Devices,
    taken: &Taken,
) -> Result<Option<Vec<Vec<AllocatedDevice>>>, String> {
    let candidates = candidates(node, devices)?;
    let mut search = Search {
        devices,
        used: taken.clone(),
        counters: free_counters(devices, taken),
        candidates,
        chosen: vec![Vec::new(); claims.len()],
        steps: 0,
        matching: HashMap::new(),
    };
    let found = search.claim(claims, 0)?;
    Ok(found.then(|| {
        search
            .chosen
            .iter()
            .map(|chosen| chosen.iter().map(|choice| choice.result.clone()).collect())
            .collect()
    }))
}

fn reaches(nodes: &Nodes, node: &Node) -> bool {
    nodes.all_nodes == Some(true)
        || nodes.node_name.as_ref().is_some_and(|name| *name == node.metadata.name)
        || nodes.node_selector.as_ref().is_some_and(|selector| matches_selector(selector, node))
}

/// The slices of the newest generation of each pool, if all of them are there.
fn complete_pools(devices: &Devices) -> Vec<&ResourceSliceSpec> {
    let mut pools: BTreeMap<(&str, &str), Vec<&ResourceSliceSpec>> = BTreeMap::new();
    let mut slices: Vec<_> = devices.slices.values().collect();
    slices.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    for slice in slices {
        let spec = &slice.spec;
        let pool = pools.entry((&spec.driver, &spec.pool.name)).or_default();
        let newest = pool.first().map_or(i64::MIN, |first| first.pool.generation);
        if spec.pool.generation > newest {
            pool.clear();
        }
        if spec.pool.generation >= newest {
            pool.push(spec);
        }
    }
    let complete = |pool: &Vec<&ResourceSliceSpec>| {
        pool.first().is_some_and(|first| pool.len() as i64 >= first.pool.resource_slice_count)
    };
    pools.into_values().filter(complete).flatten().collect()
}

fn candidates<'a>(node: &Node, devices: &'a Devices) -> Result<Vec<Candidate<'a>>, String> {
    let mut all = Vec::new();
    for slice in complete_pools(devices) {
        for device in &slice.devices {
            let nodes = if slice.per_device_node_selection { &device.nodes } else { &slice.nodes };
            if reaches(nodes, node) {
                let id = (slice.driver.clone(), slice.pool.name.clone(), device.name.clone());
                all.push(Candidate { slice, device, id });
            }
        }
    }
    Ok(all)
}

/// Driver, pool, counter set and counter.
type CounterId<'a> = (&'a str, &'a str, &'a str, &'a str);

/// What is left of the counters that devices of a pool share.
fn free_counters<'a>(devices: &'a Devices, taken: &Taken) -> HashMap<CounterId<'a>, Quantity> {
    let mut free = HashMap::new();
    let slices = complete_pools(devices);
    for slice in &slices {
        for set in &slice.shared_counters {
            for (name, counter) in &set.counters {
                free.insert((&*slice.driver, &*slice.pool.name, &*set.name, &**name), counter.value);
            }
        }
    }
    for slice in &slices {
        for device in &slice.devices {
            let id = (slice.driver.clone(), slice.pool.name.clone(), device.name.clone());
            if taken.contains(&id) {
                consume(&mut free, slice, device, false);
            }
        }
    }
    free
}

fn consume<'a>(
    free: &mut HashMap<CounterId<'a>, Quantity>,
    slice: &'a ResourceSliceSpec,
    device: &'a Device,
    give_back: bool,
) {
    for set in &device.consumes_counters {
        for (name, counter) in &set.counters {
            let id = (&*slice.driver, &*slice.pool.name, &*set.counter_set, &**name);
            if let Some(left) = free.get_mut(&id) {
                *left = if give_back { left.plus(counter.value) } else { left.minus(counter.value) };
            }
        }
    }
}

struct Search<'a> {
    devices: &'a Devices,
    candidates: Vec<Candidate<'a>>,
    used: Taken,
    counters: HashMap<CounterId<'a>, Quantity>,
    /// Per claim: what was chosen, and which candidate it is.
    chosen: Vec<Vec<Choice>>,
    steps: usize,
    /// Which candidates match class and selectors, by the address of what is asked.
    matching: HashMap<usize, Vec<usize>>,
}

/// A device with its place among the candidates.
#[derive(Clone)]
struct Choice {
    result: AllocatedDevice,
    at: usize,
    /// Whether nobody had a share of the device before.
    first: bool,
}

impl<'a> Search<'a> {
    fn claim(&mut self, claims: &[&ResourceClaim], at: usize) -> Result<bool, String> {
        match claims.get(at) {
            None => Ok(true),
            Some(_) => self.request(claims, at, 0),
        }
    }

    fn request(&mut self, claims: &[&ResourceClaim], claim: usize, at: usize) -> Result<bool, String> {
        let spec = &claims[claim].spec.devices;
        let Some(request) = spec.requests.get(at) else { return self.claim(claims, claim + 1) };
        let Request { name, exactly, first_available } = request;
        if let Some(asked) = exactly {
            return self.begin(claims, claim, at, asked, name.to_string());
        }
        for asked in first_available {
            if self.begin(claims, claim, at, asked, format!("{name}/{}", asked.name))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn begin(
        &mut self,
        claims: &[&ResourceClaim],
        claim: usize,
        request: usize,
        asked: &Exactly,
        name: String,
    ) -> Result<bool, String> {
        let matching = self.matching(asked)?;
        let (options, wanted) = match &*asked.allocation_mode {
            // All of them, and at least one.
            "All" => (matching.clone(), matching.len()),
            _ => (matching, asked.count.max(1) as usize),
        };
        if wanted == 0 || options.len() < wanted || self.chosen[claim].len() + wanted > MOST_DEVICES {
            return Ok(false);
        }
        self.pick(claims, claim, request, asked, &name, &options, wanted)
    }

    /// Chooses `wanted` of the options from the first on, then goes on with the next request.
    #[allow(clippy::too_many_arguments, reason = "the state of a recursion, spelled out")]
    fn pick(
        &mut self,
        claims: &[&ResourceClaim],
        claim: usize,
        request: usize,
        asked: &Exactly,
        name: &str,
        options: &[usize],
        wanted: usize,
    ) -> Result<bool, String> {
        if wanted == 0 {
            return self.request(claims, claim, request + 1);
        }
        for (index, option) in options.iter().enumerate() {
            if options.len() - index < wanted {
                break;
            }
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return Ok(false);
            }
            if !self.take(*option, claim, claims[claim], asked, name) {
                continue;
            }
            if self.pick(claims, claim, request, asked, name, &options[index + 1..], wanted - 1)? {
                return Ok(true);
            }
            self.put_back(*option, claim, asked);
        }
        Ok(false)
    }

    fn take(
        &mut self,
        option: usize,
        claim: usize,
        spec: &ResourceClaim,
        asked: &Exactly,
        name: &str,
    ) -> bool {
        let candidate = &self.candidates[option];
        let (slice, device) = (candidate.slice, candidate.device);
        let shared = device.allow_multiple_allocations && !asked.admin_access;
        if !asked.admin_access && self.used.whole.contains(&candidate.id) {
            return false;
        }
        let used = self.used.shares.get(&candidate.id).filter(|_| shared);
        let first = used.is_none();
        let Some(amounts) = share(device, &asked.capacity, used) else { return false };
        let chosen = &self.chosen[claim];
        let agrees = |constraint: &Constraint| {
            !concerns(constraint, name)
                || chosen.iter().all(|other| {
                    !concerns(constraint, &other.result.request)
                        || agree(constraint, device, self.candidates[other.at].device)
                }) && has_attribute(constraint, device)
        };
        if !spec.spec.devices.constraints.iter().all(agrees) {
            return false;
        }
        // Who shares a device that is in use already takes nothing more of what its pool shares.
        if !asked.admin_access && first {
            consume(&mut self.counters, slice, device, false);
            let enough = device.consumes_counters.iter().all(|set| {
                set.counters.keys().all(|counter| {
                    let id = (&*slice.driver, &*slice.pool.name, &*set.counter_set, &**counter);
                    self.counters.get(&id).is_some_and(|left| left.sign() >= 0)
                })
            });
            if !enough {
                consume(&mut self.counters, slice, device, true);
                return false;
            }
        }
        let (driver, pool, name_of_device) = candidate.id.clone();
        let result = AllocatedDevice {
            request: name.into(),
            driver,
            pool,
            device: name_of_device,
            admin_access: asked.admin_access,
            tolerations: asked.tolerations.clone(),
            binding_conditions: device.binding_conditions.clone(),
            binding_failure_conditions: device.binding_failure_conditions.clone(),
            // The identity is made when the share is written.
            share_id: shared.then(|| "".into()),
            consumed_capacity: if shared { amounts } else { Amounts::new() },
        };
        if !asked.admin_access {
            self.used.add(&result);
        }
        self.chosen[claim].push(Choice { result, at: option, first });
        true
    }

    fn put_back(&mut self, option: usize, claim: usize, asked: &Exactly) {
        let Some(choice) = self.chosen[claim].pop() else { return };
        if !asked.admin_access {
            let candidate = &self.candidates[option];
            self.used.remove(&choice.result, choice.first);
            if choice.first {
                consume(&mut self.counters, candidate.slice, candidate.device, true);
            }
        }
    }

    fn matching(&mut self, asked: &Exactly) -> Result<Vec<usize>, String> {
        let key = std::ptr::from_ref(asked) as usize;
        if let Some(known) = self.matching.get(&key) {
            return Ok(known.clone());
        }
        let class = self.devices.classes.get(&asked.device_class_name);
        let class =
            class.ok_or_else(|| format!("device class {} does not exist", asked.device_class_name))?;
        let mut all = Vec::new();
        for (at, candidate) in self.candidates.iter().enumerate() {
            let (driver, device) = (&candidate.slice.driver, candidate.device);
            let tolerated = device
                .taints
                .iter()
                .filter(|taint| &*taint.effect != "None")
                .all(|taint| asked.tolerations.iter().any(|it| it.toleration.tolerates(taint)));
            if tolerated
                && self.devices.compiler.matches(&class.spec.selectors, driver, device)?
                && self.devices.compiler.matches(&asked.selectors, driver, device)?
            {
                all.push(at);
            }
        }
        self.matching.insert(key, all.clone());
        Ok(all)
    }
}

/// A constraint may name a request, or one of its alternatives.
fn concerns(constraint: &Constraint, request: &str) -> bool {
    let parent = request.split_once('/').map_or(request, |(parent, _)| parent);
    constraint.requests.is_empty()
        || constraint.requests.iter().any(|name| **name == *request || **name == *parent)
}

fn has_attribute(constraint: &Constraint, device: &Device) -> bool {
    let named = constraint.match_attribute.as_deref().or(constraint.distinct_attribute.as_deref());
    named.is_none_or(|name| attribute(&device.attributes, name).is_some())
}

fn agree(constraint: &Constraint, one: &Device, other: &Device) -> bool {
    let same = |name: &str| {
        attribute(&one.attributes, name).is_some()
            && attribute(&one.attributes, name) == attribute(&other.attributes, name)
    };
    constraint.match_attribute.as_deref().is_none_or(same)
        && constraint.distinct_attribute.as_deref().is_none_or(|name| !same(name))
}
