//! The plugins of one profile, in order, and the cycle over them: find feasible nodes, choose one, reserve it.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Code, Cycle, Failure, Filter, Help, Hopeless, Measures, Plugin, Point, Prepared, Queued, Reasons, Remedy,
    Verdict,
};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::types::Pod;

/// Below this many nodes all are looked at; above, the share shrinks with the cluster.
const ALWAYS_LOOK_AT: usize = 100;

/// Whether a node can take a pod, without the reasons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    Fits,
    Refused,
    Never,
}

/// Nodes that can take a pod.
pub struct Found {
    pub cycle: Cycle,
    /// Places in the cache.
    pub feasible: Vec<usize>,
    pub evaluated: usize,
    /// What was said of the others, should extenders refuse the rest.
    pub failure: Failure,
}

/// A pod's new home.
#[derive(Debug, PartialEq)]
pub struct Decision {
    pub node: Box<str>,
    /// How many nodes were looked at, and how many could have taken the pod.
    pub evaluated: usize,
    pub feasible: usize,
}

/// What the filters said of all nodes.
struct Tally {
    judged: u64,
    /// By place in the framework's list.
    refused: Vec<u64>,
    /// Whether the calls are timed.
    timing: bool,
    times: Vec<(usize, Code, Duration)>,
}

/// The filters that a pod needs, by place in the framework's list.
pub struct Filters<'a>(Vec<(usize, &'a dyn Filter)>);

impl Filters<'_> {
    /// Those that look at the node's pods.
    pub fn of_pods(&self) -> Self {
        Self(self.0.iter().copied().filter(|(_, filter)| filter.heeds_pods()).collect())
    }

    /// Whether a node can take a pod; reasons left aside.
    pub fn fit(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Fit {
        for (_, filter) in &self.0 {
            match filter.filter(cycle, pod, node, cache) {
                Verdict::Fits => {}
                Verdict::Refused(_) => return Fit::Refused,
                Verdict::Never(_) => return Fit::Never,
            }
        }
        Fit::Fits
    }

    /// Why a node cannot take a pod, if it cannot.
    pub fn refusal(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Option<Reasons> {
        self.0.iter().find_map(|(_, filter)| match filter.filter(cycle, pod, node, cache) {
            Verdict::Fits => None,
            Verdict::Refused(reasons) | Verdict::Never(reasons) => Some(reasons),
        })
    }

    fn judge(
        &self,
        cycle: &Cycle,
        pod: &PlacedPod,
        node: &NodeInfo,
        cache: &Cache,
        failure: &mut Failure,
        tally: &mut Tally,
    ) -> Fit {
        tally.judged += 1;
        for (place, filter) in &self.0 {
            let began = tally.timing.then(Instant::now);
            let verdict = filter.filter(cycle, pod, node, cache);
            if let Some(began) = began {
                tally.times.push((*place, Code::from(&verdict), began.elapsed()));
            }
            let (reasons, fit) = match verdict {
                Verdict::Fits => continue,
                Verdict::Refused(reasons) => (reasons, Fit::Refused),
                Verdict::Never(reasons) => (reasons, Fit::Never),
            };
            failure.count(&reasons, 1);
            tally.refused[*place] += 1;
            return fit;
        }
        Fit::Fits
    }
}

/// The plugins of one profile at each point, in order.
#[derive(Clone, Default)]
pub struct Framework {
    /// Every plugin once; refusals name their plugin by its place here.
    pub plugins: Vec<Arc<dyn Plugin>>,
    pub pre_enqueue: Vec<Arc<dyn Plugin>>,
    pub queue_sort: Option<Arc<dyn Plugin>>,
    pub pre_filter: Vec<Arc<dyn Plugin>>,
    pub filter: Vec<Arc<dyn Plugin>>,
    pub post_filter: Vec<Arc<dyn Plugin>>,
    pub pre_score: Vec<Arc<dyn Plugin>>,
    pub score: Vec<(Arc<dyn Plugin>, i64)>,
    pub reserve: Vec<Arc<dyn Plugin>>,
    pub permit: Vec<Arc<dyn Plugin>>,
    pub pre_bind: Vec<Arc<dyn Plugin>>,
    pub bind: Vec<Arc<dyn Plugin>>,
    pub post_bind: Vec<Arc<dyn Plugin>>,
    /// 0 means: adapt to the size of the cluster.
    pub percentage_of_nodes_to_score: usize,
    pub measures: Arc<Measures>,
}

impl Framework {
    pub fn holds_back(&self, pod: &Pod, cache: &Cache) -> Option<(&'static str, Reasons)> {
        self.pre_enqueue.iter().find_map(|plugin| {
            let reasons = plugin.pre_enqueue()?.holds_back(pod, cache)?;
            Some((plugin.name(), reasons))
        })
    }

    pub fn compare(&self, one: Queued<'_>, other: Queued<'_>) -> Ordering {
        let sort = self.queue_sort.as_ref().and_then(|plugin| plugin.queue_sort());
        sort.map_or(Ordering::Equal, |sort| sort.compare(one, other))
    }

    fn number(&self, plugin: &dyn Plugin) -> u64 {
        let place = self.plugins.iter().position(|other| other.name() == plugin.name());
        place.map_or(0, |place| 1 << place)
    }

    /// Whether a change may help a pod that these plugins refused.
    pub fn may_help(&self, plugins: u64, pod: &Pod, event: &ClusterEvent) -> bool {
        let refused = |place: usize| plugins & (1 << place) != 0;
        let mut named = self.plugins.iter().enumerate().filter(|(place, _)| refused(*place));
        // Nobody in particular refused it: anything may help.
        plugins == 0
            || named
                .any(|(_, plugin)| plugin.wakes_on().contains(event.kind()) && plugin.may_help(pod, event))
    }

    /// Chooses a node. `start` is where to begin among the nodes (it spreads the work when not all are looked
    /// at, and the choice among equals); the caller moves it on from cycle to cycle.
    pub fn schedule(&self, pod: &PlacedPod, cache: &mut Cache, start: usize) -> Result<Decision, Failure> {
        let found = self.find(pod, cache, start).map_err(|refused| refused.0)?;
        let (evaluated, feasible) = (found.evaluated, found.feasible.len());
        let (best, _) = self.choose(found, pod, cache, &[]);
        Ok(Decision { node: cache.nodes()[best].name().into(), evaluated, feasible })
    }

    /// Finds nodes that can take the pod, or says why there are none.
    pub fn find(
        &self,
        pod: &PlacedPod,
        cache: &mut Cache,
        start: usize,
    ) -> Result<Found, Box<(Failure, Cycle)>> {
        let total = cache.nodes().len();
        let mut failure = Failure { nodes: total, ..Failure::default() };
        let mut cycle = self.measures.cycle();
        let only = match self.begin(&mut cycle, pod, cache, &mut failure) {
            Some(only) => only,
            None => return Err(Box::new((failure, cycle))),
        };
        let began = Instant::now();
        if let Some(found) = self.try_nominated(&cycle, pod, cache) {
            self.measures.took(Point::Filter, Code::Success, began);
            return Ok(Found { cycle, feasible: vec![found], evaluated: 1, failure });
        }
        let wanted = self.nodes_to_find(only.as_ref().map_or(total, HashSet::len));
        failure.fits = vec![Fit::Fits; total];
        let filters = self.filters(&cycle);
        let narrowed = failure.plugins;
        let mut tally = Tally {
            judged: 0,
            refused: vec![0; self.filter.len()],
            timing: cycle.sampled,
            times: Vec::new(),
        };
        let mut feasible = Vec::new();
        let mut evaluated = 0;
        for offset in 0..total {
            let at = (start + offset) % total;
            let node = &cache.nodes()[at];
            if only.as_ref().is_some_and(|only| !only.contains(node.name())) {
                failure.fits[at] = Fit::Never;
                continue;
            }
            evaluated += 1;
            let fit = match cache.with_nominated(node, &pod.pod) {
                // Room that was made for a more important pod is not free, though that pod is not there yet.
                Some(kept) => match filters.judge(&cycle, pod, &kept, cache, &mut failure, &mut tally) {
                    Fit::Fits => filters.judge(&cycle, pod, node, cache, &mut failure, &mut tally),
                    refused => refused,
                },
                None => filters.judge(&cycle, pod, node, cache, &mut failure, &mut tally),
            };
            // One node is enough to see what the calls cost.
            tally.timing = false;
            failure.fits[at] = fit;
            if fit == Fit::Fits {
                feasible.push(at);
                if feasible.len() == wanted {
                    break;
                }
            }
        }
        self.note_filters(&filters, &tally, began);
        for (place, plugin) in self.filter.iter().enumerate() {
            if tally.refused[place] > 0 {
                failure.plugins |= self.number(&**plugin);
                failure.wakes_on = failure.wakes_on.and(plugin.wakes_on());
            }
        }
        if let Some(only) = &only {
            let absent = total - only.iter().filter(|name| cache.node(name).is_some()).count();
            if absent > 0 {
                let mut names: Vec<&str> = self.refusing(narrowed).map(|plugin| plugin.name()).collect();
                names.sort_unstable();
                let reason = format!("node(s) didn't satisfy plugin(s) [{}]", names.join(" "));
                failure.count(&reason.into(), absent);
            }
        }
        if feasible.is_empty() {
            return Err(Box::new((failure, cycle)));
        }
        Ok(Found { cycle, feasible, evaluated, failure })
    }

    fn note_filters(&self, filters: &Filters<'_>, tally: &Tally, began: Instant) {
        let time = began.elapsed();
        for (place, code, time) in &tally.times {
            self.measures.spent(self.filter[*place].name(), Point::Filter, *code, *time);
        }
        let mut book = self.measures.lock();
        book.took(Point::Filter, Code::Success, time);
        // Each filter is asked of the nodes that those before it have let pass.
        let mut left = tally.judged;
        let asked = filters.0.iter().map(|(place, _)| {
            let before = left;
            left -= tally.refused[*place];
            (*place, self.filter[*place].name(), before)
        });
        book.asked(Point::Filter, asked);
    }

    fn refusing(&self, plugins: u64) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.plugins
            .iter()
            .enumerate()
            .filter(move |(place, _)| plugins & (1 << place) != 0)
            .map(|(_, it)| it)
    }

    /// The node that was kept for the pod is tried first, and alone.
    fn try_nominated(&self, cycle: &Cycle, pod: &PlacedPod, cache: &Cache) -> Option<usize> {
        let name = &*pod.pod.status.nominated_node_name;
        if name.is_empty() {
            return None;
        }
        let node = cache.node(name)?;
        let filters = self.filters(cycle);
        let fits = |node: &NodeInfo| filters.fit(cycle, pod, node, cache) == Fit::Fits;
        let kept = cache.with_nominated(node, &pod.pod);
        (fits(node) && kept.is_none_or(|kept| fits(&kept))).then_some(node.at)
    }

    /// What the filters work out once for a pod; the names of the only nodes worth a look, if not all are. `None` if
    /// it is clear already that no node can take the pod.
    fn begin(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        cache: &mut Cache,
        failure: &mut Failure,
    ) -> Option<Option<HashSet<Box<str>>>> {
        let began = Instant::now();
        let mut asked = 0;
        let only = self.prepare(cycle, pod, cache, failure, &mut asked);
        let code = match (&only, failure.fits.first()) {
            (Some(_), _) => Code::Success,
            (None, Some(Fit::Refused)) => Code::Refused,
            (None, _) => Code::Never,
        };
        let time = began.elapsed();
        let mut book = self.measures.lock();
        book.took(Point::PreFilter, code, time);
        let places = self.pre_filter.iter().enumerate().filter(|(place, _)| asked & (1 << place) != 0);
        book.asked(Point::PreFilter, places.map(|(place, plugin)| (place, plugin.name(), 1)));
        only
    }

    /// The same; `asked` are the plugins that had something to look at.
    fn prepare(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        cache: &mut Cache,
        failure: &mut Failure,
        asked: &mut u64,
    ) -> Option<Option<HashSet<Box<str>>>> {
        let mut only: Option<HashSet<Box<str>>> = None;
        for (place, plugin) in self.pre_filter.iter().enumerate() {
            let Some(point) = plugin.pre_filter() else { continue };
            let began = cycle.clock();
            let prepared = point.pre_filter(cycle, pod, cache);
            let code = match prepared {
                Prepared::Check | Prepared::Only(_) => Code::Success,
                Prepared::Skip => Code::Skip,
                Prepared::Refused(_) => Code::Refused,
                Prepared::Never(_) => Code::Never,
            };
            self.measures.ran(began, plugin.name(), Point::PreFilter, code);
            if code != Code::Skip {
                *asked |= 1 << place;
            }
            let refusal = match prepared {
                Prepared::Check => continue,
                Prepared::Skip => {
                    let place = self.filter.iter().position(|other| other.name() == plugin.name());
                    cycle.skipped_filters |= place.map_or(0, |place| 1 << place);
                    continue;
                }
                Prepared::Only(names) => {
                    failure.plugins |= self.number(&**plugin);
                    failure.wakes_on = failure.wakes_on.and(plugin.wakes_on());
                    let left = match only.take() {
                        Some(before) => before.intersection(&names).cloned().collect(),
                        None => names,
                    };
                    if left.is_empty() {
                        (Reasons::from("node(s) didn't satisfy plugin(s) simultaneously"), Fit::Never)
                    } else {
                        only = Some(left);
                        continue;
                    }
                }
                Prepared::Refused(reasons) => (reasons, Fit::Refused),
                Prepared::Never(reasons) => (reasons, Fit::Never),
            };
            failure.plugins |= self.number(&**plugin);
            failure.wakes_on = failure.wakes_on.and(plugin.wakes_on());
            failure.everywhere = Some(refusal.0);
            failure.fits = vec![refusal.1; cache.nodes().len()];
            return None;
        }
        Some(only)
    }

    /// The filters that this pod needs.
    pub fn filters(&self, cycle: &Cycle) -> Filters<'_> {
        let all =
            self.filter.iter().enumerate().filter(|(place, _)| cycle.skipped_filters & (1 << place) == 0);
        Filters(all.filter_map(|(place, plugin)| Some((place, plugin.filter()?))).collect())
    }

    /// The place of the node with the highest weighted sum; the first among equals, whose order rotates. `extra`
    /// is added to the sums, in the order of the feasible nodes.
    pub fn choose(&self, found: Found, pod: &PlacedPod, cache: &mut Cache, extra: &[i64]) -> (usize, Cycle) {
        let Found { mut cycle, feasible, .. } = found;
        if let [only] = feasible[..] {
            return (only, cycle);
        }
        let totals = self.scores(&mut cycle, pod, &feasible, cache, extra);
        let highest = totals.iter().copied().max().unwrap_or(0);
        let winner = totals.iter().position(|total| *total == highest).unwrap_or(0);
        (feasible[winner], cycle)
    }

    /// The weighted sums for the nodes at these places.
    pub fn scores(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        feasible: &[usize],
        cache: &mut Cache,
        extra: &[i64],
    ) -> Vec<i64> {
        let began = Instant::now();
        let mut asked = 0u64;
        for (own, plugin) in self.pre_score.iter().enumerate() {
            let Some(point) = plugin.pre_score() else { continue };
            let clock = cycle.clock();
            let needed = point.pre_score(cycle, pod, feasible, cache);
            let code = if needed { Code::Success } else { Code::Skip };
            self.measures.ran(clock, plugin.name(), Point::PreScore, code);
            if needed {
                asked |= 1 << own;
            } else {
                let place = self.score.iter().position(|(other, _)| other.name() == plugin.name());
                cycle.skipped_scores |= place.map_or(0, |place| 1 << place);
            }
        }
        let scoring = Instant::now();
        let mut totals = vec![0i64; feasible.len()];
        let mut scores = vec![0i64; feasible.len()];
        for (place, (plugin, weight)) in self.score.iter().enumerate() {
            if cycle.skipped_scores & (1 << place) != 0 {
                continue;
            }
            let Some(point) = plugin.score() else { continue };
            let mut nodes = scores.iter_mut().zip(feasible);
            if cycle.sampled
                && let Some((score, at)) = nodes.next()
            {
                let clock = cycle.clock();
                *score = point.score(cycle, pod, &cache.nodes()[*at], cache);
                self.measures.ran(clock, plugin.name(), Point::Score, Code::Success);
            }
            for (score, at) in nodes {
                *score = point.score(cycle, pod, &cache.nodes()[*at], cache);
            }
            point.normalize(cycle, &mut scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * weight;
            }
        }
        for (total, more) in totals.iter_mut().zip(extra) {
            *total += more;
        }
        let (before, time) = (scoring - began, scoring.elapsed());
        let mut book = self.measures.lock();
        book.took(Point::PreScore, Code::Success, before);
        book.took(Point::Score, Code::Success, time);
        let places = self.pre_score.iter().enumerate().filter(|(place, _)| asked & (1 << place) != 0);
        book.asked(Point::PreScore, places.map(|(place, plugin)| (place, plugin.name(), 1)));
        let places = self.score.iter().enumerate().filter(|(_, (plugin, _))| plugin.score().is_some());
        let places = places.filter(|(place, _)| cycle.skipped_scores & (1 << place) == 0);
        let times = feasible.len() as u64;
        book.asked(Point::Score, places.map(|(place, (plugin, _))| (place, plugin.name(), times)));
        totals
    }

    /// Asks those who may help a pod that fits nowhere; the first who makes others leave is the last to be asked.
    pub fn remedy(
        &self,
        cycle: &Cycle,
        pod: &PlacedPod,
        failure: &mut Failure,
        cache: &mut Cache,
        start: usize,
        every_candidate: bool,
    ) -> Help {
        let mut told = Vec::new();
        let fits = std::mem::take(&mut failure.fits);
        let hopeless = Hopeless { framework: self, cycle, pod, fits: &fits, start, every_candidate };
        let mut help = Help::default();
        let began = Instant::now();
        let mut outcome = Code::Refused;
        for (place, plugin) in self.post_filter.iter().enumerate() {
            let Some(point) = plugin.post_filter() else { continue };
            let clock = cycle.clock();
            let remedy = point.post_filter(&hopeless, cache);
            let code = match remedy {
                Remedy::Preempt(_) => Code::Success,
                Remedy::None(_) | Remedy::Act(..) => Code::Refused,
                Remedy::Unknown(_) => Code::Error,
            };
            self.measures.ran(clock, plugin.name(), Point::PostFilter, code);
            self.measures.lock().asked(Point::PostFilter, std::iter::once((place, plugin.name(), 1)));
            if code != Code::Refused {
                outcome = code;
            }
            match remedy {
                Remedy::None(reason) => told.push(reason),
                Remedy::Act(reason, action) => {
                    told.push(reason);
                    help.actions.push(action);
                }
                Remedy::Unknown(reason) => {
                    told = vec![reason];
                    break;
                }
                Remedy::Preempt(candidates) => {
                    // Room is made: nothing else has to be explained.
                    told.clear();
                    help.preempt = candidates;
                    break;
                }
            }
        }
        self.measures.took(Point::PostFilter, outcome, began);
        told.retain(|reason| !reason.is_empty());
        failure.remedy = told.join(", ");
        help
    }

    /// Sets things aside on the chosen node; if one plugin cannot, all give back what they have.
    pub fn reserve(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        node: &str,
        cache: &mut Cache,
    ) -> Result<(), (&'static str, Reasons)> {
        let began = Instant::now();
        for plugin in &self.reserve {
            let Some(point) = plugin.reserve() else { continue };
            let clock = cycle.clock();
            let reserved = point.reserve(cycle, pod, node, cache);
            let code = if reserved.is_ok() { Code::Success } else { Code::Refused };
            self.measures.ran(clock, plugin.name(), Point::Reserve, code);
            if let Err(reasons) = reserved {
                self.measures.took(Point::Reserve, code, began);
                self.unreserve(cycle, &pod.pod, node, cache);
                return Err((plugin.name(), reasons));
            }
        }
        self.measures.took(Point::Reserve, Code::Success, began);
        Ok(())
    }

    /// In the opposite order, as upstream does.
    pub fn unreserve(&self, cycle: &Cycle, pod: &Pod, node: &str, cache: &mut Cache) {
        let began = Instant::now();
        for plugin in self.reserve.iter().rev() {
            if let Some(point) = plugin.reserve() {
                let clock = cycle.clock();
                point.unreserve(cycle, pod, node, cache);
                self.measures.ran(clock, plugin.name(), Point::Unreserve, Code::Success);
            }
        }
        self.measures.took(Point::Unreserve, Code::Success, began);
    }

    /// The changes that may help a pod that these plugins refused.
    pub fn wakes_on(&self, plugin: &str) -> Events {
        let named = self.plugins.iter().find(|other| other.name() == plugin);
        named.map_or(Events::ALL, |plugin| plugin.wakes_on())
    }

    pub(super) fn nodes_to_find(&self, total: usize) -> usize {
        if total < ALWAYS_LOOK_AT {
            return total;
        }
        let percentage = match self.percentage_of_nodes_to_score {
            0 => 50usize.saturating_sub(total / 125).max(5),
            fixed => fixed.min(100),
        };
        (total * percentage / 100).max(ALWAYS_LOOK_AT)
    }
}
