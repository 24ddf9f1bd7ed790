//! Priority and fairness: a bound on requests in flight, divided among priority levels and, within one, among flows.
//!
//! A request is classified by the first matching FlowSchema into a priority level and a flow. A level has seats;
//! when all are taken the request waits in one of the level's queues (chosen by shuffle sharding, so that one
//! flow cannot fill them all), or is refused. A freed seat goes to the queues in turn. Seats that nobody needs are lent
//! to other levels within their limits. A list of many objects takes several seats.

mod defaults;
pub mod demand;
mod level;
mod schema;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

pub use self::defaults::default_objects;
pub use self::level::{Figures, Seat};
use self::level::{Level, Pool};
use self::schema::{Distinguish, Schema};
use crate::metrics::histogram::Histogram;
use crate::request_info::RequestInfo;
use crate::user::UserInfo;

/// Nobody waits for a seat longer than this.
const WAIT: Duration = Duration::from_secs(15);

/// How a request was classified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classification {
    /// The matching FlowSchema and its uid.
    pub schema: (String, String),
    /// Its priority level and that one's uid.
    pub level: (String, String),
    /// What tells flows of one schema apart.
    pub flow: String,
}

/// Why a request may not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The level is full and its queues are too.
    QueueFull,
    /// The level does not queue.
    Full,
    /// Waited too long.
    TimedOut,
}

/// Classifies and admits requests.
pub struct FlowControl {
    total_seats: i64,
    schemas: RwLock<Arc<Vec<Schema>>>,
    pool: Arc<Pool>,
}

impl FlowControl {
    /// With so many seats in all.
    pub fn new(total_seats: usize) -> Self {
        let this = Self { total_seats: total_seats as i64, schemas: RwLock::default(), pool: Arc::default() };
        for (resource, object) in default_objects() {
            this.set(resource, &object);
        }
        this
    }

    /// Sets a FlowSchema or PriorityLevelConfiguration.
    pub fn set(&self, resource: &str, object: &Value) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if resource == "flowschemas" {
            let Some(schema) = Schema::read(object) else { return };
            let mut schemas = self.schemas.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let mut next: Vec<Schema> = schemas.iter().filter(|own| own.name != name).cloned().collect();
            next.push(schema);
            next.sort_by(|one, two| (one.precedence, &one.name).cmp(&(two.precedence, &two.name)));
            *schemas = Arc::new(next);
        } else {
            let mut levels = self.pool.levels.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            let level = Level::read(object);
            // Who holds or waits for a seat of the old one finishes with the old one.
            levels.insert(name.to_owned(), Arc::new(level));
            self.divide(&levels);
        }
    }

    /// Forgets one; the mandatory ones stay as built in.
    pub fn remove(&self, resource: &str, name: &str) {
        if matches!(name, "exempt" | "catch-all") {
            return;
        }
        if resource == "flowschemas" {
            let mut schemas = self.schemas.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            *schemas = Arc::new(schemas.iter().filter(|own| own.name != name).cloned().collect());
        } else {
            let mut levels = self.pool.levels.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            levels.remove(name);
            self.divide(&levels);
        }
    }

    fn divide(&self, levels: &HashMap<String, Arc<Level>>) {
        let shares: i64 = levels.values().map(|level| level.shares).sum();
        for level in levels.values() {
            let seats = (self.total_seats * level.shares + shares.max(1) - 1) / shares.max(1);
            let least = usize::from(!level.exempt);
            level.seats.store((seats.max(0) as usize).max(least), Ordering::Relaxed);
        }
    }

    /// The schema, level and flow of a request.
    pub fn classify(&self, user: &UserInfo, info: &RequestInfo) -> Classification {
        let schemas = self.schemas.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let levels = self.pool.all();
        let found =
            schemas.iter().find(|schema| levels.contains_key(&schema.level) && schema.matches(user, info));
        let Some(schema) = found else { return Classification::default() };
        let flow = match schema.distinguish {
            Some(Distinguish::User) => user.name.clone(),
            Some(Distinguish::Namespace) => info.namespace.clone(),
            None => String::new(),
        };
        let level_uid = levels.get(&schema.level).map(|level| level.uid.clone()).unwrap_or_default();
        Classification {
            schema: (schema.name.clone(), schema.uid.clone()),
            level: (schema.level.clone(), level_uid),
            flow,
        }
    }

    /// Whether requests of a class are never held back.
    pub fn is_exempt(&self, class: &Classification) -> bool {
        self.pool.all().get(&class.level.0).is_none_or(|level| level.exempt)
    }

    /// Waits for the seats of a request: one, or more if it is a wide one. Who waits is counted in `queue`.
    pub async fn admit(
        &self,
        class: &Classification,
        width: usize,
        queue: &Queue,
        reading: bool,
    ) -> Result<Seat, Refused> {
        let level = self.pool.all().get(&class.level.0).cloned();
        let Some(level) = level else { return Ok(Seat::nowhere()) };
        let (waiting, _counted) = {
            let mut state = level.lock();
            // Who comes later does not pass those who wait.
            let first = level.waiting.load(Ordering::Relaxed) == 0;
            if first && let Some(seat) = self.pool.take(&level, &mut state, width) {
                return Ok(seat);
            }
            if level.reject {
                return Err(Refused::Full);
            }
            let chosen = level.queue_of(&format!("{}/{}", class.schema.0, class.flow), &state);
            if state.queues[chosen].len() >= level.queue_length {
                return Err(Refused::QueueFull);
            }
            let (sender, waiting) = oneshot::channel();
            state.queues[chosen].push_back((sender, width));
            state.wanted += width;
            level.waiting.fetch_add(1, Ordering::Relaxed);
            level.note(&mut state);
            let counted = queue.enter(state.queues[chosen].len(), width, reading);
            // Some of those who wait may have given up.
            self.pool.dispatch(&level, &mut state);
            (waiting, counted)
        };
        match tokio::time::timeout(WAIT, waiting).await {
            Ok(Ok(seat)) => Ok(seat),
            _ => Err(Refused::TimedOut),
        }
    }

    /// What each level has and wants.
    pub fn levels(&self) -> BTreeMap<String, Figures> {
        // The locks of levels are never asked for while that of the table is held.
        let levels: Vec<(String, Arc<Level>)> =
            self.pool.all().iter().map(|(name, level)| (name.clone(), level.clone())).collect();
        let total = usize::try_from(self.total_seats).unwrap_or(0);
        levels.iter().map(|(name, level)| (name.clone(), level.figures(total))).collect()
    }
}

/// Bounds of the lengths of queues.
const LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Who waits, for those who count.
#[derive(Debug)]
pub struct Queue {
    /// Readers and writers.
    pub requests: [AtomicI64; 2],
    /// What they want.
    pub seats: AtomicI64,
    /// How long the queue was that a request came into, itself included.
    pub lengths: Histogram,
}

impl Default for Queue {
    fn default() -> Self {
        let (requests, seats) = (Default::default(), AtomicI64::new(0));
        Self { requests, seats, lengths: Histogram::new(LENGTHS) }
    }
}

impl Queue {
    fn enter(&self, length: usize, width: usize, reading: bool) -> Waiting<'_> {
        let (requests, width) = (&self.requests[usize::from(!reading)], width as i64);
        self.lengths.observe(length as f64);
        requests.fetch_add(1, Ordering::Relaxed);
        self.seats.fetch_add(width, Ordering::Relaxed);
        Waiting { requests, seats: &self.seats, width }
    }
}

/// Somebody who waits; dropping it ends that.
struct Waiting<'a> {
    requests: &'a AtomicI64,
    seats: &'a AtomicI64,
    width: i64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.requests.fetch_sub(1, Ordering::Relaxed);
        self.seats.fetch_sub(self.width, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::request_info::Query;

    /// Seats of a request that reads.
    async fn admit(control: &FlowControl, class: &Classification, width: usize) -> Result<Seat, Refused> {
        control.admit(class, width, &Queue::default(), true).await
    }

    fn taken(control: &FlowControl, level: &str) -> usize {
        control.pool.all()[level].lock().taken
    }

    fn info(path: &str) -> RequestInfo {
        RequestInfo::parse(&http::Method::GET, path, &Query::default())
    }

    #[test]
    fn requests_find_their_level() {
        let control = FlowControl::new(600);
        let cases = [
            (UserInfo::loopback(), "/api/v1/pods", "exempt"),
            (UserInfo::new("ann", &[]), "/healthz", "probes"),
            (UserInfo::new("ann", &[]), "/api/v1/pods", "global-default"),
            (UserInfo::new("system:node:a", &["system:nodes"]), "/api/v1/nodes/a", "system-node-high"),
            (UserInfo::new("system:node:a", &["system:nodes"]), "/api/v1/pods", "system-nodes"),
            (UserInfo::service_account("kube-system", "x"), "/api/v1/pods", "kube-system-service-accounts"),
            (UserInfo::service_account("other", "x"), "/api/v1/pods", "service-accounts"),
            (
                UserInfo::new("system:kube-scheduler", &[]),
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x",
                "system-leader-election",
            ),
        ];
        for (user, path, schema) in cases {
            assert_eq!(control.classify(&user, &info(path)).schema.0, schema, "{} {path}", user.name);
        }
    }

    #[tokio::test]
    async fn a_full_level_queues_and_a_freed_seat_goes_on() {
        let control = lonely(8); // global-default gets one seat
        let class = control.classify(&UserInfo::new("ann", &[]), &info("/api/v1/pods"));
        let first = admit(&control, &class, 1).await.unwrap();
        let queue = Queue::default();
        let second = control.admit(&class, 1, &queue, false);
        tokio::pin!(second);
        assert!(futures::poll!(second.as_mut()).is_pending());
        assert_eq!((queue.requests[1].load(Ordering::Relaxed), queue.lengths.count()), (1, 1));
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(queue.requests[1].load(Ordering::Relaxed), 0);
        assert_eq!(taken(&control, "global-default"), 1);
        drop(second);
        assert_eq!(taken(&control, "global-default"), 0);
    }

    #[tokio::test]
    async fn who_is_exempt_is_counted_and_never_waits() {
        let control = FlowControl::new(8);
        let class = control.classify(&UserInfo::loopback(), &info("/api/v1/pods"));
        let seats: Vec<Seat> = seated(&control, &class, 30).await;
        assert_eq!((seats.len(), taken(&control, "exempt")), (30, 30));
        drop(seats);
        assert_eq!(taken(&control, "exempt"), 0);
        let figures = &control.levels()["workload-low"];
        assert_eq!((figures.nominal, figures.lower, figures.upper, figures.current), (4, 0, 12, 4));
    }

    #[tokio::test]
    async fn a_level_that_does_not_queue_refuses() {
        let control = lonely(1);
        let class =
            Classification { level: ("catch-all".into(), String::new()), ..Classification::default() };
        let _seat = admit(&control, &class, 1).await.unwrap();
        assert_eq!(admit(&control, &class, 1).await.unwrap_err(), Refused::Full);
    }

    fn level(name: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name}, "spec": {"type": "Limited", "limited": spec}})
    }

    /// A control whose levels lend nothing.
    fn lonely(seats: usize) -> FlowControl {
        let control = FlowControl::new(seats);
        for (resource, mut object) in default_objects() {
            if resource == "prioritylevelconfigurations" && object["spec"]["type"] == "Limited" {
                object["spec"]["limited"]["lendablePercent"] = json!(0);
                control.set(resource, &object);
            }
        }
        control
    }

    /// Two levels of ten seats each; `a` lends half of them, `b` may borrow `limit` percent.
    fn two(limit: Value) -> (FlowControl, Classification, Classification) {
        let control = FlowControl { total_seats: 20, schemas: RwLock::default(), pool: Arc::default() };
        let queue = json!({"type": "Queue", "queuing": {"queues": 2, "handSize": 1, "queueLengthLimit": 50}});
        let spec = |lendable: u64, limit: Value| {
            json!({"nominalConcurrencyShares": 10, "lendablePercent": lendable, "borrowingLimitPercent": limit,
                "limitResponse": queue})
        };
        control.set("prioritylevelconfigurations", &level("a", spec(50, Value::Null)));
        control.set("prioritylevelconfigurations", &level("b", spec(0, limit)));
        let class =
            |name: &str| Classification { level: (name.into(), String::new()), ..Classification::default() };
        (control, class("a"), class("b"))
    }

    async fn seated(control: &FlowControl, class: &Classification, most: usize) -> Vec<Seat> {
        let mut seats = Vec::new();
        while seats.len() < most {
            match futures::FutureExt::now_or_never(admit(control, class, 1)) {
                Some(Ok(seat)) => seats.push(seat),
                _ => break,
            }
        }
        seats
    }

    #[tokio::test]
    async fn seats_that_nobody_needs_are_lent() {
        let (control, a, b) = two(Value::Null);
        assert_eq!(seated(&control, &b, 99).await.len(), 15, "its own ten and five of the other level");
        let (control, a2, b2) = two(json!(20));
        assert_eq!(seated(&control, &b2, 99).await.len(), 12, "two more than its own, as its limit says");
        assert_eq!(seated(&control, &a2, 99).await.len(), 10, "the other has nothing to lend");
        // What was lent does not keep the lender from its own seats.
        let (control, a3, b3) = two(Value::Null);
        let borrowed = seated(&control, &b3, 99).await;
        assert_eq!(seated(&control, &a3, 99).await.len(), 10);
        drop((borrowed, a, b));
    }

    #[tokio::test]
    async fn a_seat_that_comes_free_elsewhere_is_borrowed_by_who_waits() {
        let (control, a, b) = two(Value::Null);
        let of_a = seated(&control, &a, 10).await;
        let of_b = seated(&control, &b, 10).await;
        let waiting = admit(&control, &b, 1);
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(of_a);
        let seat = waiting.await.unwrap();
        assert_eq!(taken(&control, "b"), 11);
        drop((of_b, seat));
        assert_eq!(taken(&control, "b"), 0);
        assert_eq!(*control.pool.lent(), 0);
    }

    #[tokio::test]
    async fn a_wide_request_takes_its_seats_or_runs_alone() {
        let (control, a, _) = two(Value::Null);
        let wide = admit(&control, &a, 8).await.unwrap();
        assert_eq!(seated(&control, &a, 99).await.len(), 2);
        drop(wide);
        let alone = admit(&control, &a, 50).await.unwrap();
        assert!(seated(&control, &a, 99).await.is_empty());
        drop(alone);
        assert_eq!(taken(&control, "a"), 0);
    }
}
