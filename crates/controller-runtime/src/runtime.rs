//! Runs controllers: hands keys to workers, decides, executes, and waits for the caches before a key is looked at again.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{Client, Informers, Key};
use futures::FutureExt;
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use tracing::{debug, warn};

use crate::caches::{Caches, Expect};
use crate::controller::{Context, Controller, Decide, State};
use crate::executor::{Executor, Failure};
use crate::metrics;
use crate::pace::Paces;
use crate::plan::Plan;
use crate::queue::Queue;
use crate::recorder::Recorder;

/// The wall clock, as a parameter.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The machine's clock.
pub fn system_clock() -> Clock {
    Arc::new(Timestamp::now)
}

/// How long own writes are waited for. A watch that is this far behind is broken, and the informer will list anew.
const CATCH_UP: Duration = Duration::from_secs(300);

/// Makes the client of a service account in `kube-system`.
pub type Clients = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// Runs controllers over shared caches.
pub struct Runtime {
    caches: Caches,
    clients: Clients,
    recorder: Recorder,
    clock: Clock,
    tasks: Tasks,
    running: Mutex<Vec<Arc<Running>>>,
}

/// A controller with its queue.
struct Running {
    name: &'static str,
    decide: Decide,
    queue: Arc<Queue>,
    executor: Executor,
    caches: Caches,
    clock: Clock,
    tells_failures: bool,
    paces: Paces,
    state: State,
}

impl Runtime {
    /// A runtime whose informers use `shared` and whose controllers use the clients that `clients` makes.
    pub fn new(shared: Client, clients: Clients, clock: Clock, tasks: &Tasks) -> Self {
        let recorder = Recorder::start(shared.clone(), "kube-controller-manager", clock.clone(), tasks);
        let caches = Caches::new(Informers::new(shared, tasks.clone()));
        Self { caches, clients, recorder, clock, tasks: tasks.clone(), running: Mutex::default() }
    }

    /// The caches.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// The client of a service account.
    pub fn client_of(&self, identity: &str) -> Client {
        (self.clients)(identity)
    }

    /// The clock that decisions are taken by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The tasks that the runtime runs on.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Starts a controller. Its workers begin once the caches that it declared are filled.
    pub fn start(&self, controller: Controller) {
        let client = (self.clients)(controller.identity);
        let running = Arc::new(Running {
            name: controller.name,
            decide: controller.decide,
            queue: Arc::new(Queue::new(controller.name)),
            executor: Executor {
                recorder: self.recorder.of(client.clone(), controller.component),
                shared: self.caches.informers().client().clone(),
                client,
            },
            caches: self.caches.clone(),
            clock: self.clock.clone(),
            tells_failures: controller.tells_failures,
            paces: Paces::default(),
            state: controller.state,
        });
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push(running.clone());
        let ready: Vec<_> = controller
            .subscriptions
            .into_iter()
            .map(|subscribe| subscribe(&self.caches, &running.queue))
            .collect();
        let ready = futures::future::join_all(ready).map(drop).shared();
        for key in controller.seeds {
            running.queue.add(key);
        }
        for number in 0..controller.workers {
            let (running, ready) = (running.clone(), ready.clone());
            self.tasks.keep(format!("{}/{number}", controller.name), move |stop| {
                let (running, ready) = (running.clone(), ready.clone());
                async move {
                    if stop.or(ready).await.is_some() {
                        running.work(&stop).await;
                    }
                }
            });
        }
    }

    /// The queues' metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        metrics::print(running.iter().map(|running| &running.queue.metrics))
    }

    /// Whether no controller has anything to do now or later.
    pub fn is_idle(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().all(|running| running.queue.is_idle())
    }

    /// The names of the controllers that were started.
    pub fn names(&self) -> Vec<&'static str> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.iter().map(|running| running.name).collect()
    }

    /// What a controller would do now about a key. Nothing if there is no such controller.
    pub async fn explain(&self, controller: &str, key: &Key) -> Option<Result<String, client::Error>> {
        let running = {
            let all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().find(|running| running.name == controller)?.clone()
        };
        Some((running.decide)(running.context(key)).await.map(|plan| plan.to_string()))
    }
}

impl Running {
    async fn work(&self, stop: &Stop) {
        while let Some(key) = self.queue.next(stop).await {
            let begin = tokio::time::Instant::now();
            // A panic is a bug in one decision; the key is tried again later, the worker goes on with the others.
            let outcome = AssertUnwindSafe(stop.or(self.process(&key, stop))).catch_unwind().await;
            if outcome.is_err() {
                warn!(controller = self.name, %key, "reconcile panicked");
                self.queue.retry(key.clone());
            }
            self.queue.done(&key, begin.elapsed());
        }
    }

    fn context(&self, key: &Key) -> Context {
        Context {
            caches: self.caches.clone(),
            key: key.clone(),
            now: (self.clock)(),
            failure: None,
            reader: self.executor.client.clone(),
        }
    }

    async fn process(&self, key: &Key, stop: &Stop) {
        let mut plan = match (self.decide)(self.context(key)).await {
            Ok(plan) => plan,
            Err(error) => {
                debug!(controller = self.name, %key, error = %telemetry::chain(&error), "cannot look");
                return self.try_again(key, &telemetry::chain(&error).to_string(), false);
            }
        };
        if let Some(wait) = self.pace(key, &mut plan) {
            self.queue.add_after(key.clone(), wait);
        }
        let mut outcome = self.executor.execute(&plan).await;
        match outcome.failure.take() {
            None => match plan.failure() {
                Some(because) => self.try_again(key, because, false),
                None => self.queue.forget(key),
            },
            Some(failure) => {
                let (message, is_conflict) = (failure.message.clone(), failure.is_conflict);
                if self.tells_failures && !is_conflict {
                    self.tell_failure(key, failure, &mut outcome.expect).await;
                }
                self.try_again(key, &message, is_conflict);
            }
        }
        self.look_again(key, &plan);
        self.catch_up(&outcome.expect, stop).await;
    }

    /// Takes out of the plan what was undone too often at once; returns when that may be tried again.
    fn pace(&self, key: &Key, plan: &mut Plan) -> Option<Duration> {
        let now = tokio::time::Instant::now();
        let wait = self.paces.hold(plan, key, (self.state)(&self.caches, key), now)?;
        if plan.is_held() && !self.tells_failures {
            plan.without_status();
        }
        self.queue.metrics.held();
        debug!(controller = self.name, %key, ?wait, "what was done is undone again and again, will wait");
        Some(wait)
    }

    /// Decides once more, knowing of the failure, and writes only the status that tells of it.
    async fn tell_failure(&self, key: &Key, failure: Failure, expect: &mut Vec<Expect>) {
        let context = Context { failure: Some(Arc::new(failure)), ..self.context(key) };
        let Ok(plan) = (self.decide)(context).await else { return };
        if let Some(status) = plan.status() {
            let mut outcome = crate::executor::Outcome::default();
            self.executor.status(status, &mut outcome).await;
            expect.append(&mut outcome.expect);
        }
    }

    fn try_again(&self, key: &Key, because: &str, is_conflict: bool) {
        let delay = self.queue.retry(key.clone());
        let failures = self.queue.failures(key);
        if is_conflict || failures < 3 {
            debug!(controller = self.name, %key, because, ?delay, "will try again");
        } else {
            warn!(controller = self.name, %key, because, ?delay, failures, "cannot be reconciled, will try again");
        }
    }

    fn look_again(&self, key: &Key, plan: &Plan) {
        if let Some(at) = plan.requeue_at {
            let wait = at.duration_since((self.clock)());
            self.queue.add_after(key.clone(), Duration::try_from(wait).unwrap_or(Duration::ZERO));
        }
    }

    async fn catch_up(&self, expect: &[Expect], stop: &Stop) {
        let all = futures::future::join_all(expect.iter().map(|expected| self.caches.show(expected)));
        if let Some(Err(_)) = stop.or(tokio::time::timeout(CATCH_UP, all)).await {
            warn!(controller = self.name, ?expect, "the caches do not show own writes");
        }
    }
}
