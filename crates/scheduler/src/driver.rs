//! Moves objects in and decisions out: informers feed the cache and the queue ([`feed`]), one loop runs the cycles,
//! bindings ([`binding`]) and reports ([`report`]) go out concurrently.

mod binding;
mod feed;
mod report;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, resources};
use controller_runtime::{Recorder, system_clock};
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore};
use tracing::{debug, warn};

use crate::cache::PlacedPod;
use crate::config::Settings;
use crate::events::{ClusterEvent, Events};
use crate::extender::{Extender, ExtenderError};
use crate::framework::{Code, Failure, Fit, Found, Framework, Help, Permission, Point, Reasons};
use crate::handle::{Handle, State};
use crate::metrics::{Metrics, Outcome, Standing};
use crate::preemption::{self, Preemption};
use crate::queue::{Queue, Refusal, Waiting};

/// How many bindings may be on their way at once.
const BINDINGS_IN_FLIGHT: usize = 256;
/// How many reports and preemptions may be.
const REPORTS_IN_FLIGHT: usize = 32;
/// How many cycles run before others get their turn.
const CYCLES_IN_A_ROW: usize = 16;

/// What a scheduler needs to run.
pub struct Config {
    pub client: Client,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
}

impl Config {
    /// Upstream's default profile.
    pub fn new(client: Client) -> Self {
        Self { client, settings: Settings::default(), metrics: Arc::default() }
    }
}

/// A profile at work.
struct Profile {
    name: &'static str,
    framework: Arc<Framework>,
}

/// A running scheduler.
struct Scheduler {
    handle: Handle,
    profiles: Vec<Profile>,
    extenders: Vec<Extender>,
    metrics: Arc<Metrics>,
    work: Notify,
    bindings: Arc<Semaphore>,
    reports: Arc<Semaphore>,
    tasks: Tasks,
}

/// Starts scheduling; it goes on until the tasks stop.
pub fn start(config: Config, tasks: &Tasks) -> Handle {
    let Config { client, settings, metrics } = config;
    let recorder = Recorder::start(client.clone(), "default-scheduler", system_clock(), tasks);
    let (mut profiles, mut recorders) = (Vec::new(), Vec::new());
    for profile in settings.profiles {
        // A name lives as long as the process; there are as many as the configuration has profiles.
        let name: &'static str = Box::leak(profile.scheduler_name.into_boxed_str());
        recorders.push((name, recorder.of(client.clone(), name)));
        profiles.push(Profile { name, framework: Arc::new(profile.framework) });
    }
    let frameworks = profiles.iter().map(|profile| profile.framework.clone()).collect();
    let queue = Queue::new(frameworks, settings.initial_backoff_seconds, settings.max_backoff_seconds);
    let queue = match settings.longest_wait {
        Some(longest) => queue.waiting_at_most(longest),
        None => queue,
    };
    let state = State { cache: crate::Cache::default(), queue, rotation: 0 };
    let handle = Handle::new(client, state, recorders);
    let scheduler = Arc::new(Scheduler {
        handle: handle.clone(),
        profiles,
        extenders: settings.extenders,
        metrics,
        work: Notify::new(),
        bindings: Arc::new(Semaphore::new(BINDINGS_IN_FLIGHT)),
        reports: Arc::new(Semaphore::new(REPORTS_IN_FLIGHT)),
        tasks: tasks.clone(),
    });
    let (watched, names) = (handle.clone(), scheduler.profiles.iter().map(|it| it.name).collect::<Vec<_>>());
    let measures = scheduler.profiles.iter().map(|it| (it.name, it.framework.measures.clone()));
    let (measures, bindings) = (measures.collect::<Vec<_>>(), scheduler.bindings.clone());
    scheduler.metrics.look_up(move || {
        let state = watched.lock();
        Standing {
            queue: state.queue.sizes(),
            incoming: state.queue.incoming().clone(),
            measures: measures.clone(),
            binding: BINDINGS_IN_FLIGHT - bindings.available_permits(),
            nodes: state.cache.nodes().len(),
            pods: state.cache.placed(),
            assumed: state.cache.assumed(),
            refused: state.queue.refused(&names, &state.cache),
        }
    });
    let sources = feed::Sources::start(&scheduler, tasks);
    tasks.keep("scheduler", move |stop| {
        let (scheduler, sources) = (scheduler.clone(), sources.clone());
        async move {
            // Deciding before the caches are filled would overcommit nodes.
            if stop.or(sources.synced()).await.is_some() {
                scheduler.run(&stop).await;
            }
        }
    });
    handle
}

/// What one look at the queue came to.
enum Step {
    Idle,
    Done,
    /// Others have to be asked before a node can be chosen.
    Ask(Box<Pending>),
    /// Others have to be asked before anybody is sent away.
    AskOfVictims(Box<Contested>),
}

/// A pod that fits nowhere, and who might leave for it if the extenders agree.
struct Contested {
    waiting: Waiting,
    failure: Failure,
    candidates: Vec<Preemption>,
}

/// A cycle that waits for the extenders' word.
struct Pending {
    waiting: Waiting,
    placed: Arc<PlacedPod>,
    found: Found,
    names: Vec<Box<str>>,
    began: Instant,
}

impl Scheduler {
    async fn run(self: &Arc<Self>, stop: &Stop) {
        let mut in_a_row = 0;
        while !stop.is_requested() {
            match self.step() {
                Step::Idle => {}
                Step::Done => {
                    in_a_row += 1;
                    if in_a_row == CYCLES_IN_A_ROW {
                        in_a_row = 0;
                        // Cycles are pure computation; between them others get their turn.
                        tokio::task::yield_now().await;
                    }
                    // So many bindings are on their way that more would only wait; and so does the queue's order.
                    if self.bindings.available_permits() == 0 {
                        drop(stop.or(self.bindings.acquire()).await);
                    }
                    continue;
                }
                Step::Ask(pending) => {
                    stop.or(self.consult(*pending)).await;
                    continue;
                }
                Step::AskOfVictims(contested) => {
                    stop.or(self.consult_about_victims(*contested)).await;
                    continue;
                }
            }
            let deadline = self.handle.lock().queue.next_deadline();
            let pause = match deadline {
                Some(at) => at.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO),
                None => Duration::from_secs(3600),
            };
            // Both are safe to abandon: a notification is kept, and the deadline is computed again.
            let _ = stop.or(tokio::time::timeout(pause, self.work.notified())).await;
        }
    }

    /// Tries one pod.
    fn step(self: &Arc<Self>) -> Step {
        let mut guard = self.handle.lock();
        let state = &mut *guard;
        let Some(waiting) = state.queue.pop(Timestamp::now()) else { return Step::Idle };
        let framework = &self.profiles[waiting.profile].framework;
        let began = Instant::now();
        let placed = Arc::new(PlacedPod::new(waiting.pod.clone()));
        match framework.find(&placed, &mut state.cache, state.rotation) {
            Ok(found) => {
                state.rotation = (state.rotation + found.evaluated) % state.cache.nodes().len().max(1);
                if self.extenders.iter().any(|extender| extender.is_interested(&waiting.pod)) {
                    let name = |at: &usize| state.cache.nodes()[*at].name().into();
                    let names = found.feasible.iter().map(name).collect();
                    return Step::Ask(Box::new(Pending { waiting, placed, found, names, began }));
                }
                self.settle(state, waiting, placed, found, &[], began);
            }
            Err(refused) => {
                let (failure, cycle) = *refused;
                let contested = self.unschedulable(state, waiting, &placed, failure, &cycle, began);
                return contested.map_or(Step::Done, Step::AskOfVictims);
            }
        }
        Step::Done
    }

    /// Chooses among the feasible nodes, sets everything aside there and sends the binding on its way.
    fn settle(
        self: &Arc<Self>,
        state: &mut State,
        waiting: Waiting,
        placed: Arc<PlacedPod>,
        found: Found,
        extra: &[i64],
        began: Instant,
    ) {
        let profile = &self.profiles[waiting.profile];
        let feasible = found.feasible.len();
        let (best, mut cycle) = profile.framework.choose(found, &placed, &mut state.cache, extra);
        let node: Box<str> = state.cache.nodes()[best].name().into();
        debug!(pod = %waiting.pod.metadata.key(), node = %node, feasible, "chose a node");
        self.metrics.decided(began.elapsed());
        let reserved = profile.framework.reserve(&mut cycle, &placed, &node, &mut state.cache);
        if let Err((plugin, reasons)) = reserved {
            return self.set_back(state, &waiting, plugin, &reasons, began);
        }
        let mut wait = HashMap::new();
        let (measures, permitting) = (&profile.framework.measures, Instant::now());
        for plugin in &profile.framework.permit {
            let Some(point) = plugin.permit() else { continue };
            let clock = cycle.clock();
            let permission = point.permit(&cycle, &placed, &node);
            let code = match permission {
                Permission::Granted => Code::Success,
                Permission::Wait(_) => Code::Wait,
                Permission::Denied(_) => Code::Refused,
            };
            measures.ran(clock, plugin.name(), Point::Permit, code);
            match permission {
                Permission::Granted => {}
                Permission::Wait(longest) => drop(wait.insert(plugin.name(), longest)),
                Permission::Denied(reasons) => {
                    measures.took(Point::Permit, code, permitting);
                    profile.framework.unreserve(&cycle, &waiting.pod, &node, &mut state.cache);
                    return self.set_back(state, &waiting, plugin.name(), &reasons, began);
                }
            }
        }
        let code = if wait.is_empty() { Code::Success } else { Code::Wait };
        measures.took(Point::Permit, code, permitting);
        state.cache.nominate(&waiting.pod, None);
        state.cache.assume(placed, &node);
        let permission = (!wait.is_empty()).then(|| {
            let longest = wait.values().min().copied().unwrap_or_default();
            (self.handle.hold(&waiting.pod.metadata.uid, wait.into_keys().collect::<HashSet<_>>()), longest)
        });
        let scheduler = self.clone();
        self.tasks.spawn("scheduler/bind", |_| async move {
            // The semaphore is never closed, so a permit always comes.
            let _permit = scheduler.bindings.clone().acquire_owned().await;
            scheduler.bind(&waiting, &node, &cycle, permission, began).await;
        });
    }

    /// A plugin refused the pod after a node was chosen.
    fn set_back(
        self: &Arc<Self>,
        state: &mut State,
        waiting: &Waiting,
        plugin: &'static str,
        reasons: &Reasons,
        began: Instant,
    ) {
        let profile = &self.profiles[waiting.profile];
        self.metrics.attempted(profile.name, Outcome::Unschedulable, began.elapsed());
        let place = profile.framework.plugins.iter().position(|other| other.name() == plugin);
        let plugins = place.map_or(0, |place| 1 << place);
        let refusal = Refusal { plugins, wakes_on: profile.framework.wakes_on(plugin) };
        state.queue.failed(&waiting.pod.metadata.uid, refusal, Timestamp::now());
        let (pod, message) = (waiting.pod.clone(), reasons.to_string());
        self.in_background("scheduler/report", move |scheduler| async move {
            scheduler.report(&pod, "Unschedulable", &message, None).await;
        });
    }

    /// No node can take the pod: perhaps others can be made to leave; the user is told in any case. Who has to be
    /// asked about those who leave is returned, and nothing is settled yet.
    fn unschedulable(
        self: &Arc<Self>,
        state: &mut State,
        waiting: Waiting,
        placed: &PlacedPod,
        mut failure: Failure,
        cycle: &crate::framework::Cycle,
        began: Instant,
    ) -> Option<Box<Contested>> {
        let profile = &self.profiles[waiting.profile];
        let contested = self.extenders.iter().any(|extender| extender.judges_victims(&waiting.pod));
        let (cache, start) = (&mut state.cache, state.rotation);
        let help = match failure.nodes {
            0 => Help::default(),
            _ => profile.framework.remedy(cycle, placed, &mut failure, cache, start, contested),
        };
        self.metrics.decided(began.elapsed());
        self.metrics.attempted(profile.name, Outcome::Unschedulable, began.elapsed());
        for action in help.actions {
            self.in_background("scheduler/remedy", move |scheduler| action(scheduler.handle.clone()));
        }
        let candidates = help.preempt;
        if contested && !candidates.is_empty() {
            return Some(Box::new(Contested { waiting, failure, candidates }));
        }
        self.conclude(state, waiting, &failure, candidates.into_iter().next());
        None
    }

    /// Sends a pod that fits nowhere back to the queue, its victims away, and tells the user.
    fn conclude(
        self: &Arc<Self>,
        state: &mut State,
        waiting: Waiting,
        failure: &Failure,
        preemption: Option<Preemption>,
    ) {
        let profile = &self.profiles[waiting.profile];
        let uid = waiting.pod.metadata.uid.clone();
        // Room is being made: the pod also waits for those who leave.
        let leaving = if preemption.is_some() { Events::POD_GONE } else { Events::NONE };
        let wakes_on = if failure.nodes == 0 { Events::NODE } else { failure.wakes_on.and(leaving) };
        let preempts =
            profile.framework.plugins.iter().position(|plugin| plugin.name() == "DefaultPreemption");
        let mut plugins = failure.plugins;
        if leaving != Events::NONE {
            plugins |= preempts.map_or(0, |place| 1 << place);
        }
        state.queue.failed(&uid, Refusal { plugins, wakes_on }, Timestamp::now());
        let nominated = match &preemption {
            Some(preemption) => Some(preemption.node.clone()),
            // What was kept for the pod did not help it.
            None => (!waiting.pod.status.nominated_node_name.is_empty()
                && failure.remedy.contains("nodes are available"))
            .then(|| "".into()),
        };
        let mut displaced = Vec::new();
        if let Some(node) = nominated.as_ref().filter(|node| !node.is_empty()) {
            let priority = waiting.pod.spec.priority;
            let lesser =
                state.cache.nominated(node).iter().filter(|other| other.pod.spec.priority < priority);
            displaced = lesser.map(|other| other.pod.clone()).collect();
            state.cache.nominate(&waiting.pod, Some(node));
        } else if nominated.is_some() {
            state.cache.nominate(&waiting.pod, None);
        }
        for other in &displaced {
            state.cache.nominate(other, None);
        }
        if let Some(preemption) = preemption {
            let pod = waiting.pod.clone();
            self.in_background("scheduler/preempt", move |scheduler| async move {
                scheduler.preempt(&pod, preemption, &displaced).await;
            });
        }
        let (pod, message) = (waiting.pod, failure.to_string());
        self.in_background("scheduler/report", move |scheduler| async move {
            scheduler.report(&pod, "Unschedulable", &message, nominated.as_deref()).await;
        });
    }

    /// Asks the extenders about the feasible nodes, then chooses.
    async fn consult(self: &Arc<Self>, pending: Pending) {
        let Pending { waiting, placed, found, names, began } = pending;
        let answers = self.ask_extenders(&waiting, names.clone()).await;
        if let Some(contested) = self.weigh(waiting, &placed, found, answers, began) {
            self.consult_about_victims(*contested).await;
        }
    }

    /// Makes a choice of the extenders' answers.
    fn weigh(
        self: &Arc<Self>,
        waiting: Waiting,
        placed: &Arc<PlacedPod>,
        mut found: Found,
        answers: Result<Consulted, ExtenderError>,
        began: Instant,
    ) -> Option<Box<Contested>> {
        let mut guard = self.handle.lock();
        let state = &mut *guard;
        let profile = &self.profiles[waiting.profile];
        let (left, refused, scores) = match answers {
            Ok(answers) => answers,
            Err(error) => {
                self.metrics.decided(began.elapsed());
                self.metrics.attempted(profile.name, Outcome::Error, began.elapsed());
                state.queue.retry(&waiting.pod.metadata.uid, Timestamp::now());
                let (pod, message) = (waiting.pod, telemetry::chain(&error).to_string());
                drop(guard);
                self.in_background("scheduler/report", move |scheduler| async move {
                    scheduler.report(&pod, "SchedulerError", &message, None).await;
                });
                return None;
            }
        };
        for (node, reason, never) in refused {
            found.failure.count(&reason.into(), 1);
            if let Some(at) = state.cache.node(&node).map(|node| node.at) {
                let fit = if never { Fit::Never } else { Fit::Refused };
                if let Some(known) = found.failure.fits.get_mut(at) {
                    *known = fit;
                }
            }
        }
        // Nodes may have come and gone meanwhile: places are looked up again by name.
        found.feasible = left.iter().filter_map(|name| Some(state.cache.node(name)?.at)).collect();
        if found.feasible.is_empty() {
            found.failure.nodes = state.cache.nodes().len();
            // Nobody knows what makes an extender change its mind: anything may.
            found.failure.plugins = 0;
            let Found { failure, cycle, .. } = found;
            return self.unschedulable(state, waiting, placed, failure, &cycle, began);
        }
        let extra: Vec<i64> = found
            .feasible
            .iter()
            .map(|at| scores.get(state.cache.nodes()[*at].name()).copied().unwrap_or(0))
            .collect();
        self.settle(state, waiting, placed.clone(), found, &extra, began);
        None
    }

    /// Asks the extenders who may be sent away, and carries out what is left.
    async fn consult_about_victims(self: &Arc<Self>, contested: Contested) {
        let Contested { waiting, mut failure, candidates } = contested;
        let agreed = self.ask_about_victims(&waiting, candidates).await;
        let mut state = self.handle.lock();
        let preemption = match agreed {
            Ok(agreed) => preemption::cheapest(agreed),
            Err(error) => {
                let error = telemetry::chain(&error).to_string();
                warn!(pod = %waiting.pod.metadata.key(), error, "cannot preempt");
                failure.remedy = format!("preemption: {error}");
                None
            }
        };
        if preemption.is_none() && failure.remedy.is_empty() {
            failure.remedy = "preemption: no candidate node for preemption".to_owned();
        }
        self.conclude(&mut state, waiting, &failure, preemption);
    }

    async fn ask_about_victims(
        &self,
        waiting: &Waiting,
        mut candidates: Vec<Preemption>,
    ) -> Result<Vec<Preemption>, ExtenderError> {
        let interested: Vec<&Extender> =
            self.extenders.iter().filter(|extender| extender.judges_victims(&waiting.pod)).collect();
        let read = async |pod: &crate::Pod| -> Value {
            let api = self.handle.client.api(&resources::PODS).within(&pod.metadata.namespace);
            api.get(&pod.metadata.name).await.unwrap_or_default()
        };
        let pod = read(&waiting.pod).await;
        let mut objects = HashMap::new();
        if interested.iter().any(|extender| !extender.node_cache_capable) {
            for victim in candidates.iter().flat_map(|candidate| &candidate.victims) {
                let object = read(victim).await;
                objects.insert(victim.metadata.uid.clone(), object);
            }
        }
        for extender in interested {
            if candidates.is_empty() {
                break;
            }
            // Who may be ignored leaves the choice as it was when it does not answer.
            let before = candidates.clone();
            candidates = match extender.preempt(&pod, candidates, &objects).await {
                Err(error) if extender.ignorable => {
                    warn!(error = %telemetry::chain(&error), "skipping an extender that may be ignored");
                    before
                }
                other => other?,
            };
        }
        Ok(candidates)
    }

    async fn ask_extenders(
        &self,
        waiting: &Waiting,
        mut names: Vec<Box<str>>,
    ) -> Result<Consulted, ExtenderError> {
        let meta = &waiting.pod.metadata;
        let interested: Vec<&Extender> =
            self.extenders.iter().filter(|extender| extender.is_interested(&waiting.pod)).collect();
        let api = self.handle.client.api(&resources::PODS).within(&meta.namespace);
        // The extender sees the whole object; if it cannot be read, it is gone and the binding will say so.
        let pod: Value = api.get(&meta.name).await.unwrap_or_default();
        let mut objects: HashMap<Box<str>, Value> = HashMap::new();
        if interested.iter().any(|extender| !extender.node_cache_capable) {
            let all = self.handle.client.api(&resources::NODES).list_all::<Value>(&Default::default()).await;
            for node in all.map(|list| list.items).unwrap_or_default() {
                let name = node["metadata"]["name"].as_str().unwrap_or_default().into();
                objects.insert(name, node);
            }
        }
        let mut refused = Vec::new();
        for extender in &interested {
            if names.is_empty() {
                break;
            }
            match extender.filter(&pod, &names, &objects).await {
                Ok((left, failed)) => {
                    names.retain(|name| left.contains(name));
                    refused.extend(failed);
                }
                Err(error) if extender.ignorable => {
                    warn!(error = %telemetry::chain(&error), "skipping an extender that may be ignored");
                }
                Err(error) => return Err(error),
            }
        }
        let mut scores: HashMap<Box<str>, i64> = HashMap::new();
        for extender in &interested {
            match extender.prioritize(&pod, &names, &objects).await {
                Ok(more) => {
                    more.into_iter().for_each(|(node, score)| *scores.entry(node).or_insert(0) += score)
                }
                // Preferences are no reason to stop.
                Err(error) => warn!(error = %telemetry::chain(&error), "an extender gave no scores"),
            }
        }
        Ok((names, refused, scores))
    }

    fn wake(&self, state: &mut State, event: &ClusterEvent) {
        if state.queue.wake(event, Timestamp::now()) {
            self.work.notify_one();
        }
    }

    fn in_background<F>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let scheduler = self.clone();
        self.tasks.spawn(name, |_| async move {
            // The semaphore is never closed, so a permit always comes.
            let _permit = scheduler.reports.clone().acquire_owned().await;
            work(scheduler.clone()).await;
        });
    }
}

/// Nodes that are left, why others are not (and whether nothing helps there), and scores.
type Consulted = (Vec<Box<str>>, Vec<(Box<str>, String, bool)>, HashMap<Box<str>, i64>);
