//! Whether a node has room for a pod, and how evenly the pod would fill it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{ArgsError, decode_args};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, PreScore, Reasons, Score, Verdict};
use crate::resources::{Name, Resources};
use crate::types::Pod;

/// A resource that counts in a score.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Weighed {
    name: Name,
    #[serde(default)]
    weight: i64,
}

fn cpu_and_memory() -> Vec<Weighed> {
    [Name::Cpu, Name::Memory].map(|name| Weighed { name, weight: 1 }).into()
}

/// Weights are from 1 to 100, and 1 if nothing is said.
fn check_weights(field: &str, resources: &mut [Weighed]) -> Result<(), ArgsError> {
    for (index, resource) in resources.iter_mut().enumerate() {
        if resource.weight == 0 {
            resource.weight = 1;
        }
        if !(1..=100).contains(&resource.weight) {
            return Err(ArgsError::new(
                format!("{field}[{index}].weight"),
                format!(
                    "Invalid value: {}: resource weight of {} not in valid range [1, 100]",
                    resource.weight, resource.name
                ),
            ));
        }
    }
    Ok(())
}

/// A point of a function that is straight between its points.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShapePoint {
    pub utilization: i64,
    pub score: i64,
}

/// Utilisation from 0 to 100 in, score from 0 to [`MAX_SCORE`] out.
#[derive(Clone, Debug)]
pub struct Shape(Vec<(i64, i64)>);

impl Shape {
    /// Checks that utilisation rises within 0..=100 and scores are within 0..=10.
    pub fn new(field: &str, points: &[ShapePoint]) -> Result<Self, ArgsError> {
        let wrong = |index: usize, part: &str, text: String| {
            Err(ArgsError::new(format!("{field}[{index}].{part}"), text))
        };
        if points.is_empty() {
            return Err(ArgsError::new(field, "Required value: at least one point must be specified"));
        }
        for (index, point) in points.iter().enumerate() {
            if !(0..=100).contains(&point.utilization) {
                return wrong(
                    index,
                    "utilization",
                    format!("Invalid value: {}: not in valid range [0, 100]", point.utilization),
                );
            }
            if !(0..=10).contains(&point.score) {
                return wrong(
                    index,
                    "score",
                    format!("Invalid value: {}: not in valid range [0, 10]", point.score),
                );
            }
            if index > 0 && points[index - 1].utilization >= point.utilization {
                return wrong(
                    index,
                    "utilization",
                    format!(
                        "Invalid value: {}: utilization values must be sorted in increasing order",
                        point.utilization
                    ),
                );
            }
        }
        Ok(Self(points.iter().map(|point| (point.utilization, point.score * MAX_SCORE / 10)).collect()))
    }

    pub fn at(&self, utilization: i64) -> i64 {
        let after = self.0.iter().position(|(x, _)| utilization <= *x);
        match after {
            Some(0) => self.0[0].1,
            Some(index) => {
                let ((x0, y0), (x1, y1)) = (self.0[index - 1], self.0[index]);
                y0 + (y1 - y0) * (utilization - x0) / (x1 - x0)
            }
            None => self.0.last().map_or(0, |(_, score)| *score),
        }
    }

    /// The score of `asked` out of `room`.
    pub fn of_share(&self, asked: i64, room: i64) -> i64 {
        self.at(if room == 0 || asked > room { 100 } else { asked * 100 / room })
    }
}

/// How a node's fill is scored.
#[derive(Clone, Debug)]
enum Strategy {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Shape),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<StrategyArgs>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct StrategyArgs {
    r#type: String,
    resources: Vec<Weighed>,
    requested_to_capacity_ratio: Option<RatioArgs>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RatioArgs {
    shape: Vec<ShapePoint>,
}

/// Room for the pod's requests; by default the emptier node scores higher.
pub struct Fit {
    ignored: HashSet<String>,
    ignored_groups: HashSet<String>,
    strategy: Strategy,
    resources: Vec<Weighed>,
}

impl Default for Fit {
    fn default() -> Self {
        Self {
            ignored: HashSet::new(),
            ignored_groups: HashSet::new(),
            strategy: Strategy::LeastAllocated,
            resources: cpu_and_memory(),
        }
    }
}

impl Fit {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let args: FitArgs = decode_args(args)?;
        if let Some(group) = args.ignored_resource_groups.iter().find(|group| group.contains('/')) {
            return Err(ArgsError::new(
                "ignoredResourceGroups",
                format!("Invalid value: {group:?}: resource group name can't contain '/'"),
            ));
        }
        let mut fit = Self {
            ignored: args.ignored_resources.into_iter().collect(),
            ignored_groups: args.ignored_resource_groups.into_iter().collect(),
            ..Self::default()
        };
        if let Some(strategy) = args.scoring_strategy {
            fit.strategy = match &*strategy.r#type {
                "" | "LeastAllocated" => Strategy::LeastAllocated,
                "MostAllocated" => Strategy::MostAllocated,
                "RequestedToCapacityRatio" => {
                    let shape = strategy.requested_to_capacity_ratio.unwrap_or_default().shape;
                    let field = "scoringStrategy.requestedToCapacityRatio.shape";
                    Strategy::RequestedToCapacityRatio(Shape::new(field, &shape)?)
                }
                other => {
                    return Err(ArgsError::new(
                        "scoringStrategy.type",
                        format!(
                            "Unsupported value: {other:?}: supported values: \"LeastAllocated\", \"MostAllocated\", \"RequestedToCapacityRatio\""
                        ),
                    ));
                }
            };
            if !strategy.resources.is_empty() {
                fit.resources = strategy.resources;
            }
            check_weights("scoringStrategy.resources", &mut fit.resources)?;
        }
        Ok(Arc::new(fit))
    }

    fn ignores(&self, name: &str) -> bool {
        !(self.ignored.is_empty() && self.ignored_groups.is_empty())
            && (self.ignored.contains(name)
                || name.split_once('/').is_some_and(|(group, _)| self.ignored_groups.contains(group)))
    }

    /// What is short on a node, and whether it would be so even on the empty one.
    fn short(&self, asked: &Resources, node: &NodeInfo, cache: &Cache) -> (Option<Reasons>, bool) {
        let (used, room) = (&node.requested, &node.allocatable);
        let mut short: Option<Reasons> = None;
        let mut never = false;
        // A full cluster says no thousands of times per pod, nearly always for one reason.
        let mut add = |reason: Cow<'static, str>| {
            short = Some(match short.take() {
                None => Reasons::One(reason),
                Some(before) => before.and(reason),
            });
        };
        if node.pods.len() as i64 + 1 > room.pods {
            add("Too many pods".into());
        }
        for (reason, asked, used, room) in [
            ("Insufficient cpu", asked.milli_cpu, used.milli_cpu, room.milli_cpu),
            ("Insufficient memory", asked.memory, used.memory, room.memory),
            (
                "Insufficient ephemeral-storage",
                asked.ephemeral_storage,
                used.ephemeral_storage,
                room.ephemeral_storage,
            ),
        ] {
            if asked > 0 && asked > room.saturating_sub(used) {
                add(reason.into());
                never |= asked > room;
            }
        }
        for (name, asked) in &asked.others {
            let amount = |of: &Resources| of.others.get(name).copied().unwrap_or(0);
            // What the node does not have and devices stand for is not this plugin's to judge.
            let by_devices = || amount(room) == 0 && cache.devices.class_for(name).is_some();
            let lacks = *asked > 0 && *asked > amount(room) - amount(used);
            if lacks && !self.ignores(name) && !by_devices() {
                add(format!("Insufficient {name}").into());
                never |= *asked > amount(room);
            }
        }
        (short, never)
    }
}

impl Plugin for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }
    fn wakes_on(&self) -> Events {
        Events::POD_GONE.and(Events::POD_CHANGED).and(Events::NODE)
    }
    /// A node helps if the pod would fit on it empty; of a changed node, only if it offers more than before.
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        let fits_empty = |room: &Resources| {
            let asked = Resources::of_pod(pod);
            asked.milli_cpu <= room.milli_cpu
                && asked.memory <= room.memory
                && asked.ephemeral_storage <= room.ephemeral_storage
                && asked.others.iter().all(|(name, amount)| {
                    // A resource that the node does not have may be one that devices stand for.
                    self.ignores(name) || room.others.get(name).is_none_or(|room| amount <= room)
                })
        };
        match event {
            ClusterEvent::NodeAdded(node) => fits_empty(&Resources::from_list(&node.status.allocatable)),
            ClusterEvent::NodeChanged { old, new } => {
                old.status.allocatable != new.status.allocatable
                    && fits_empty(&Resources::from_list(&new.status.allocatable))
            }
            _ => true,
        }
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

impl Filter for Fit {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let (asked, used, room) = (&pod.requests, &node.requested, &node.allocatable);
        // The usual answer first, without a list in which to write what is short.
        let plain = asked.others.is_empty()
            && (node.pods.len() as i64) < room.pods
            && (asked.milli_cpu == 0 || asked.milli_cpu <= room.milli_cpu - used.milli_cpu)
            && (asked.memory == 0 || asked.memory <= room.memory - used.memory)
            && (asked.ephemeral_storage == 0
                || asked.ephemeral_storage <= room.ephemeral_storage - used.ephemeral_storage);
        if plain {
            return Verdict::Fits;
        }
        let (short, never) = self.short(asked, node, cache);
        let Some(reasons) = short else { return Verdict::Fits };
        if never { Verdict::Never(reasons) } else { Verdict::Refused(reasons) }
    }
}

impl Score for Fit {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for Weighed { name, weight } in &self.resources {
            let asked = pod.requests_for_scoring.get(name);
            let room = node.allocatable.get(name);
            // Extended resources count only if the pod asks for them.
            if room == 0 || asked == 0 && matches!(name, Name::Other(_)) {
                continue;
            }
            let filled = node.requested_for_scoring.get(name) + asked;
            let score = match &self.strategy {
                Strategy::LeastAllocated if filled > room => 0,
                Strategy::LeastAllocated => (room - filled) * MAX_SCORE / room,
                Strategy::MostAllocated => filled.min(room) * MAX_SCORE / room,
                Strategy::RequestedToCapacityRatio(shape) => {
                    let score = shape.of_share(filled, room);
                    if score == 0 {
                        continue;
                    }
                    score
                }
            };
            sum += score * weight;
            weights += weight;
        }
        match (&self.strategy, weights) {
            (_, 0) => 0,
            (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BalancedArgs {
    resources: Vec<Weighed>,
}

/// Prefers nodes on which the pod makes the use of resources more even.
pub struct BalancedAllocation {
    resources: Vec<Weighed>,
}

impl Default for BalancedAllocation {
    fn default() -> Self {
        Self { resources: cpu_and_memory() }
    }
}

impl BalancedAllocation {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let mut resources = decode_args::<BalancedArgs>(args)?.resources;
        check_weights("resources", &mut resources)?;
        if let Some(index) = resources.iter().position(|resource| resource.weight != 1) {
            return Err(ArgsError::new(
                format!("resources[{index}].weight"),
                format!("Invalid value: {}: must be 1", resources[index].weight),
            ));
        }
        Ok(Arc::new(if resources.is_empty() { Self::default() } else { Self { resources } }))
    }

    /// From half of [`MAX_SCORE`] to all of it: the closer the shares, the higher.
    fn evenness(&self, pod: &PlacedPod, node: &NodeInfo, with_pod: bool) -> i64 {
        let share = |resource: &Weighed| {
            let (asked, room) = (pod.requests.get(&resource.name), node.allocatable.get(&resource.name));
            if room == 0 || asked == 0 && matches!(resource.name, Name::Other(_)) {
                return None;
            }
            let filled = node.requested.get(&resource.name) + if with_pod { asked } else { 0 };
            Some((filled as f64 / room as f64).min(1.0))
        };
        let (mut count, mut sum, mut squares, mut first, mut second) = (0, 0.0, 0.0, 0.0, 0.0);
        for value in self.resources.iter().filter_map(share) {
            match count {
                0 => first = value,
                1 => second = value,
                _ => {}
            }
            count += 1;
            sum += value;
            squares += value * value;
        }
        let deviation = match count {
            0 | 1 => 0.0,
            2 => ((first - second) / 2.0f64).abs(),
            _ => (squares / f64::from(count) - (sum / f64::from(count)).powi(2)).max(0.0).sqrt(),
        };
        ((1.0 - deviation) * MAX_SCORE as f64) as i64
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        "NodeResourcesBalancedAllocation"
    }
    fn wakes_on(&self) -> Events {
        Events::NONE
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

impl PreScore for BalancedAllocation {
    /// A pod that asks for nothing makes nothing more even; scoring it would crowd such pods on one node.
    fn pre_score(
        &self,
        _cycle: &mut Cycle,
        pod: &PlacedPod,
        _feasible: &[usize],
        _cache: &mut Cache,
    ) -> bool {
        self.resources.iter().any(|resource| pod.requests.get(&resource.name) != 0)
    }
}

impl Score for BalancedAllocation {
    /// What the pod changes for the better or worse, around three quarters of [`MAX_SCORE`].
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        let (after, before) = (self.evenness(pod, node, true), self.evenness(pod, node, false));
        MAX_SCORE / 2 + (MAX_SCORE / 2 + after - before) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_straight_between_their_points() {
        let points =
            [(0, 0), (50, 10), (100, 5)].map(|(utilization, score)| ShapePoint { utilization, score });
        let shape = Shape::new("shape", &points).unwrap();
        let scores: Vec<i64> = [0, 25, 50, 75, 100].map(|x| shape.at(x)).into();
        assert_eq!(scores, [0, 50, 100, 75, 50]);
        assert_eq!(shape.of_share(3, 2), 50, "more than all is all");
        let wrong = |points: &[(i64, i64)]| {
            let points: Vec<ShapePoint> = points
                .iter()
                .map(|(utilization, score)| ShapePoint { utilization: *utilization, score: *score })
                .collect();
            Shape::new("shape", &points).unwrap_err().to_string()
        };
        assert_eq!(wrong(&[]), "shape: Required value: at least one point must be specified");
        assert_eq!(
            wrong(&[(101, 1)]),
            "shape[0].utilization: Invalid value: 101: not in valid range [0, 100]"
        );
        assert_eq!(wrong(&[(0, 11)]), "shape[0].score: Invalid value: 11: not in valid range [0, 10]");
        assert!(wrong(&[(5, 1), (5, 2)]).contains("sorted in increasing order"));
    }
}
