//! Priority and fairness: a bound on requests in flight, divided among priority levels and, within one, among flows.
//!
//! A request is classified by the first matching FlowSchema into a priority level and a flow. A level has seats;
//! when all are taken the request waits in one of the level's queues (chosen by shuffle sharding, so that one
//! flow cannot fill them all), or is refused. A freed seat goes to the queues in turn. Seats that nobody needs are lent
//! to other levels within their limits. A list of many objects takes several seats.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

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

/// A FlowSchema, read.
#[derive(Clone, Debug)]
struct Schema {
    name: String,
    uid: String,
    level: String,
    precedence: i64,
    distinguish: Option<Distinguish>,
    rules: Vec<SchemaRule>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distinguish {
    User,
    Namespace,
}

#[derive(Clone, Debug, Default)]
struct SchemaRule {
    users: Vec<String>,
    groups: Vec<String>,
    accounts: Vec<(String, String)>,
    resources: Vec<ResourceRule>,
    urls: Vec<(Vec<String>, Vec<String>)>,
}

/// Read once, because every request is held against it.
#[derive(Clone, Debug)]
struct ResourceRule {
    cluster_scope: bool,
    namespaces: Vec<String>,
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
}

impl ResourceRule {
    fn read(rule: &Value) -> Self {
        Self {
            cluster_scope: rule["clusterScope"] == true,
            namespaces: strings(&rule["namespaces"]),
            verbs: strings(&rule["verbs"]),
            groups: strings(&rule["apiGroups"]),
            resources: strings(&rule["resources"]),
        }
    }

    fn covers(&self, info: &RequestInfo) -> bool {
        let scope = if info.namespace.is_empty() {
            self.cluster_scope
        } else {
            has(&self.namespaces, &info.namespace)
        };
        scope
            && has(&self.verbs, info.verb)
            && has(&self.groups, &info.group)
            && self.resources.iter().any(|own| own == "*" || names_resource(own, info))
    }
}

/// Whether `pods` or `pods/status` is what a request is about.
fn names_resource(own: &str, info: &RequestInfo) -> bool {
    match own.split_once('/') {
        None => own == info.resource && info.subresource.is_empty(),
        Some((resource, subresource)) => resource == info.resource && subresource == info.subresource,
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

impl Schema {
    fn read(object: &Value) -> Option<Self> {
        let spec = &object["spec"];
        let rules = spec["rules"].as_array().into_iter().flatten().map(|rule| {
            let mut read = SchemaRule::default();
            for subject in rule["subjects"].as_array().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                match subject["kind"].as_str() {
                    Some("User") => read.users.push(text(&subject["user"]["name"])),
                    Some("Group") => read.groups.push(text(&subject["group"]["name"])),
                    Some("ServiceAccount") => {
                        let account = &subject["serviceAccount"];
                        read.accounts.push((text(&account["namespace"]), text(&account["name"])));
                    }
                    _ => {}
                }
            }
            let rules = rule["resourceRules"].as_array().into_iter().flatten();
            read.resources = rules.map(ResourceRule::read).collect();
            for url in rule["nonResourceRules"].as_array().into_iter().flatten() {
                read.urls.push((strings(&url["verbs"]), strings(&url["nonResourceURLs"])));
            }
            read
        });
        Some(Self {
            name: object["metadata"]["name"].as_str()?.to_owned(),
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            level: spec["priorityLevelConfiguration"]["name"].as_str()?.to_owned(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(1000),
            distinguish: match spec["distinguisherMethod"]["type"].as_str() {
                Some("ByUser") => Some(Distinguish::User),
                Some("ByNamespace") => Some(Distinguish::Namespace),
                _ => None,
            },
            rules: rules.collect(),
        })
    }

    fn matches(&self, user: &UserInfo, info: &RequestInfo) -> bool {
        self.rules.iter().any(|rule| rule.names(user) && rule.covers(info))
    }
}

impl SchemaRule {
    fn names(&self, user: &UserInfo) -> bool {
        let account = user.service_account_key();
        self.users.iter().any(|own| own == "*" || *own == user.name)
            || self.groups.iter().any(|own| own == "*" || user.is_in(own))
            || self.accounts.iter().any(|(namespace, name)| {
                account.is_some_and(|(own_namespace, own_name)| {
                    namespace == own_namespace && (name == "*" || name == own_name)
                })
            })
    }

    fn covers(&self, info: &RequestInfo) -> bool {
        if !info.is_resource {
            return self.urls.iter().any(|(verbs, urls)| {
                verbs.iter().any(|own| own == "*" || own == info.verb)
                    && urls.iter().any(|own| {
                        own == "*"
                            || *own == info.path
                            || own.strip_suffix('*').is_some_and(|prefix| info.path.starts_with(prefix))
                    })
            });
        }
        self.resources.iter().any(|rule| rule.covers(info))
    }
}

/// A priority level and who is in it.
///
/// Its seats are its own; those that nobody sits on it lends, up to its lendable part, to levels that are full and may
/// borrow more. It never waits for what it lent: who borrowed finishes, while it sits down on its own seats.
struct Level {
    uid: String,
    exempt: bool,
    reject: bool,
    shares: i64,
    hand_size: usize,
    queue_length: usize,
    lendable_percent: usize,
    /// Percent of its own seats that it may borrow; none: as many as there are.
    borrowing_percent: Option<usize>,
    /// What others may read without the lock: seats of its own, and how many of them are taken.
    seats: AtomicUsize,
    used: AtomicUsize,
    waiting: AtomicUsize,
    state: Mutex<LevelState>,
}

#[derive(Default)]
struct LevelState {
    /// Seats taken, the borrowed ones included.
    taken: usize,
    borrowed: usize,
    queues: Vec<VecDeque<(oneshot::Sender<Seat>, usize)>>,
    next: usize,
    refused: u64,
}

impl Level {
    fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let exempt = spec["type"] == "Exempt";
        let limited = if exempt { &spec["exempt"] } else { &spec["limited"] };
        let queuing = &limited["limitResponse"]["queuing"];
        let number = |value: &Value, default: i64| value.as_i64().unwrap_or(default).max(1) as usize;
        let percent = |value: &Value| value.as_u64().map(|percent| percent as usize);
        let queues = number(&queuing["queues"], 64).min(4096);
        let mut state = LevelState::default();
        state.queues.resize_with(queues, VecDeque::new);
        let shares = if exempt { 0 } else { 30 };
        Self {
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            exempt,
            reject: limited["limitResponse"]["type"] != "Queue",
            shares: limited["nominalConcurrencyShares"].as_i64().unwrap_or(shares).max(0),
            hand_size: number(&queuing["handSize"], 8).min(queues),
            queue_length: number(&queuing["queueLengthLimit"], 50),
            lendable_percent: percent(&limited["lendablePercent"]).unwrap_or(0).min(100),
            borrowing_percent: percent(&limited["borrowingLimitPercent"]),
            seats: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, LevelState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The shortest of the queues that this flow may use.
    fn queue_of(&self, flow: &str, state: &LevelState) -> usize {
        (0..self.hand_size)
            .map(|card| {
                let mut hasher = DefaultHasher::new();
                (flow, card).hash(&mut hasher);
                (hasher.finish() % state.queues.len() as u64) as usize
            })
            .min_by_key(|queue| state.queues[*queue].len())
            .unwrap_or(0)
    }

    /// Seats that it could lend now.
    fn lendable(&self) -> usize {
        let seats = self.seats.load(Ordering::Relaxed);
        let most = (seats * self.lendable_percent).div_ceil(100);
        most.min(seats.saturating_sub(self.used.load(Ordering::Relaxed)))
    }

    /// The most seats that it may have borrowed at a time.
    fn borrowing_limit(&self) -> usize {
        let seats = self.seats.load(Ordering::Relaxed);
        self.borrowing_percent.map_or(usize::MAX, |percent| (seats * percent).div_ceil(100))
    }
}

/// Seats that are lent across levels.
#[derive(Default)]
struct Pool {
    levels: RwLock<HashMap<String, Arc<Level>>>,
    lent: Mutex<usize>,
}

impl Pool {
    fn lent(&self) -> MutexGuard<'_, usize> {
        self.lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn all(&self) -> RwLockReadGuard<'_, HashMap<String, Arc<Level>>> {
        self.levels.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes seats for a request if there are any: the level's own, or borrowed ones.
    fn take(self: &Arc<Self>, level: &Arc<Level>, state: &mut LevelState, width: usize) -> Option<Seat> {
        let own = state.taken - state.borrowed;
        // A request that is wider than the level may run alone.
        let borrowed = if own == 0 || own + width <= level.seats.load(Ordering::Relaxed) {
            false
        } else if state.borrowed + width <= level.borrowing_limit() && self.borrow(level, width) {
            true
        } else {
            return None;
        };
        state.taken += width;
        if borrowed {
            state.borrowed += width;
        }
        level.used.store(state.taken - state.borrowed, Ordering::Relaxed);
        Some(Seat { held: Some(Held { level: level.clone(), pool: self.clone(), width, borrowed }) })
    }

    fn borrow(&self, level: &Arc<Level>, width: usize) -> bool {
        let mut lent = self.lent();
        let levels = self.all();
        let others = levels.values().filter(|other| !Arc::ptr_eq(other, level));
        let spare = others.map(|other| other.lendable()).sum::<usize>();
        if spare < *lent + width {
            return false;
        }
        *lent += width;
        true
    }

    /// Gives seats back that no one sits on any more.
    fn give_back(&self, held: &Held, state: &mut LevelState) {
        state.taken -= held.width;
        if held.borrowed {
            state.borrowed -= held.width;
            *self.lent() -= held.width;
        }
        held.level.used.store(state.taken - state.borrowed, Ordering::Relaxed);
    }

    /// Lets in who waits, queue after queue, as long as there are seats.
    fn dispatch(self: &Arc<Self>, level: &Arc<Level>, state: &mut LevelState) {
        while level.waiting.load(Ordering::Relaxed) > 0 {
            let count = state.queues.len();
            let Some(queue) =
                (0..count).map(|step| (state.next + step) % count).find(|at| !state.queues[*at].is_empty())
            else {
                return;
            };
            let Some((waiter, width)) = state.queues[queue].front() else { return };
            let gone = waiter.is_closed(); // gave up while waiting
            let seat = if gone { None } else { self.take(level, state, *width) };
            if !gone && seat.is_none() {
                return;
            }
            state.next = (queue + 1) % count;
            let Some((waiter, _)) = state.queues[queue].pop_front() else { return };
            level.waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some(seat) = seat
                && let Err(mut seat) = waiter.send(seat)
                && let Some(held) = seat.held.take()
            {
                // It gave up in this instant; the seat goes back without asking for the lock that is held.
                self.give_back(&held, state);
            }
        }
    }
}

struct Held {
    level: Arc<Level>,
    pool: Arc<Pool>,
    width: usize,
    borrowed: bool,
}

/// The right to run. Dropping it lets the next one in.
pub struct Seat {
    held: Option<Held>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Seat")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let pool = held.pool.clone();
        {
            let mut state = held.level.lock();
            pool.give_back(&held, &mut state);
            pool.dispatch(&held.level, &mut state);
        }
        // What is free now may be borrowed by a level where somebody waits.
        let waiting: Vec<Arc<Level>> = {
            let levels = pool.all();
            levels.values().filter(|one| one.waiting.load(Ordering::Relaxed) > 0).cloned().collect()
        };
        for level in waiting.iter().filter(|one| !Arc::ptr_eq(one, &held.level)) {
            pool.dispatch(level, &mut level.lock());
        }
    }
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

    /// Waits for the seats of a request: one, or more if it is a wide one.
    pub async fn admit(&self, class: &Classification, width: usize) -> Result<Seat, Refused> {
        let level = self.pool.all().get(&class.level.0).cloned();
        let Some(level) = level.filter(|level| !level.exempt) else { return Ok(Seat { held: None }) };
        let waiting = {
            let mut state = level.lock();
            // Who comes later does not pass those who wait.
            let first = level.waiting.load(Ordering::Relaxed) == 0;
            if first && let Some(seat) = self.pool.take(&level, &mut state, width) {
                return Ok(seat);
            }
            if level.reject {
                state.refused += 1;
                return Err(Refused::Full);
            }
            let queue = level.queue_of(&format!("{}/{}", class.schema.0, class.flow), &state);
            if state.queues[queue].len() >= level.queue_length {
                state.refused += 1;
                return Err(Refused::QueueFull);
            }
            let (sender, waiting) = oneshot::channel();
            state.queues[queue].push_back((sender, width));
            level.waiting.fetch_add(1, Ordering::Relaxed);
            // Some of those who wait may have given up.
            self.pool.dispatch(&level, &mut state);
            waiting
        };
        match tokio::time::timeout(WAIT, waiting).await {
            Ok(Ok(seat)) => Ok(seat),
            _ => Err(Refused::TimedOut),
        }
    }

    /// Level name, seats, seats taken, waiting and refused so far: for metrics.
    pub fn levels(&self) -> BTreeMap<String, [u64; 4]> {
        // The locks of levels are never asked for while that of the table is held.
        let levels: Vec<(String, Arc<Level>)> =
            self.pool.all().iter().map(|(name, level)| (name.clone(), level.clone())).collect();
        let read = |level: &Arc<Level>| {
            let state = level.lock();
            let read = |number: &AtomicUsize| number.load(Ordering::Relaxed) as u64;
            [read(&level.seats), state.taken as u64, read(&level.waiting), state.refused]
        };
        levels.iter().map(|(name, level)| (name.clone(), read(level))).collect()
    }
}

/// The objects that every cluster starts with: resource and object.
pub fn default_objects() -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    // name, shares, lendable percent, queues, hand size; no queues: requests are refused.
    let levels = [
        ("catch-all", 5, 0, 0, 0),
        ("system", 30, 33, 64, 6),
        ("node-high", 40, 25, 64, 6),
        ("leader-election", 10, 0, 16, 4),
        ("workload-high", 40, 50, 128, 6),
        ("workload-low", 100, 90, 128, 6),
        ("global-default", 20, 50, 128, 6),
    ];
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "annotations": {"apf.kubernetes.io/autoupdate-spec": "true"}},
            "spec": spec,
        })
    };
    let exempt = json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0, "lendablePercent": 0}});
    found.push(("prioritylevelconfigurations", object("PriorityLevelConfiguration", "exempt", exempt)));
    for (name, shares, lendable, queues, hand) in levels {
        let response = if queues == 0 {
            json!({"type": "Reject"})
        } else {
            json!({"type": "Queue", "queuing": {"queues": queues, "handSize": hand, "queueLengthLimit": 50}})
        };
        let spec = json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response,
        }});
        found.push(("prioritylevelconfigurations", object("PriorityLevelConfiguration", name, spec)));
    }
    let user = |name: &str| json!({"kind": "User", "user": {"name": name}});
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let account = |name: &str| json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "kube-system", "name": name}});
    let resources = |verbs: Value, groups: Value, names: Value, cluster: bool, namespaces: Value| {
        let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": names});
        if cluster {
            rule["clusterScope"] = json!(true);
        }
        if namespaces != json!([]) {
            rule["namespaces"] = namespaces;
        }
        rule
    };
    let everything = || resources(json!(["*"]), json!(["*"]), json!(["*"]), true, json!(["*"]));
    let any_url = || json!({"verbs": ["*"], "nonResourceURLs": ["*"]});
    let lock = json!(["get", "create", "update"]);
    let both = || vec![group("system:unauthenticated"), group("system:authenticated")];
    type Rule = (Vec<Value>, Vec<Value>, Vec<Value>);
    let schemas: Vec<(&str, i64, &str, Option<&str>, Vec<Rule>)> = vec![
        (
            "exempt",
            1,
            "exempt",
            None,
            vec![(vec![group("system:masters")], vec![everything()], vec![any_url()])],
        ),
        (
            "probes",
            2,
            "exempt",
            None,
            vec![(
                both(),
                vec![],
                vec![json!({"verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"]})],
            )],
        ),
        (
            "system-leader-election",
            100,
            "leader-election",
            Some("ByUser"),
            vec![(
                vec![user("system:kube-controller-manager"), user("system:kube-scheduler"), account("*")],
                vec![resources(
                    lock.clone(),
                    json!(["coordination.k8s.io"]),
                    json!(["leases"]),
                    false,
                    json!(["*"]),
                )],
                vec![],
            )],
        ),
        (
            "endpoint-controller",
            150,
            "workload-high",
            Some("ByUser"),
            vec![(
                vec![
                    user("system:kube-controller-manager"),
                    account("endpoint-controller"),
                    account("endpointslicemirroring-controller"),
                ],
                vec![resources(lock.clone(), json!([""]), json!(["endpoints"]), false, json!(["*"]))],
                vec![],
            )],
        ),
        (
            "workload-leader-election",
            200,
            "leader-election",
            Some("ByUser"),
            vec![(
                vec![account("*")],
                vec![
                    resources(
                        lock.clone(),
                        json!([""]),
                        json!(["endpoints", "configmaps"]),
                        false,
                        json!(["*"]),
                    ),
                    resources(lock, json!(["coordination.k8s.io"]), json!(["leases"]), false, json!(["*"])),
                ],
                vec![],
            )],
        ),
        (
            "system-node-high",
            400,
            "node-high",
            Some("ByUser"),
            vec![(
                vec![group("system:nodes")],
                vec![
                    resources(
                        json!(["*"]),
                        json!([""]),
                        json!(["nodes", "nodes/status"]),
                        true,
                        json!(["*"]),
                    ),
                    resources(
                        json!(["*"]),
                        json!(["coordination.k8s.io"]),
                        json!(["leases"]),
                        false,
                        json!(["*"]),
                    ),
                ],
                vec![],
            )],
        ),
        (
            "system-nodes",
            500,
            "system",
            Some("ByUser"),
            vec![(vec![group("system:nodes")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-controller-manager",
            800,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![user("system:kube-controller-manager")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-scheduler",
            800,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![user("system:kube-scheduler")], vec![everything()], vec![any_url()])],
        ),
        (
            "kube-system-service-accounts",
            900,
            "workload-high",
            Some("ByNamespace"),
            vec![(vec![account("*")], vec![everything()], vec![any_url()])],
        ),
        (
            "service-accounts",
            9000,
            "workload-low",
            Some("ByUser"),
            vec![(vec![group("system:serviceaccounts")], vec![everything()], vec![any_url()])],
        ),
        (
            "global-default",
            9900,
            "global-default",
            Some("ByUser"),
            vec![(both(), vec![everything()], vec![any_url()])],
        ),
        (
            "catch-all",
            10000,
            "catch-all",
            Some("ByUser"),
            vec![(both(), vec![everything()], vec![any_url()])],
        ),
    ];
    for (name, precedence, level, distinguisher, rules) in schemas {
        let rules: Vec<Value> = rules
            .into_iter()
            .map(|(subjects, resource_rules, urls)| {
                let mut rule = json!({"subjects": subjects});
                if !resource_rules.is_empty() {
                    rule["resourceRules"] = json!(resource_rules);
                }
                if !urls.is_empty() {
                    rule["nonResourceRules"] = json!(urls);
                }
                rule
            })
            .collect();
        let mut spec = json!({
            "priorityLevelConfiguration": {"name": level}, "matchingPrecedence": precedence, "rules": rules,
        });
        if let Some(kind) = distinguisher {
            spec["distinguisherMethod"] = json!({"type": kind});
        }
        found.push(("flowschemas", object("FlowSchema", name, spec)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_info::Query;

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
        let first = control.admit(&class, 1).await.unwrap();
        let second = control.admit(&class, 1);
        tokio::pin!(second);
        assert!(futures::poll!(second.as_mut()).is_pending());
        drop(first);
        let second = second.await.unwrap();
        assert_eq!(control.levels()["global-default"][1], 1);
        drop(second);
        assert_eq!(control.levels()["global-default"][1], 0);
    }

    #[tokio::test]
    async fn a_level_that_does_not_queue_refuses() {
        let control = lonely(1);
        let class =
            Classification { level: ("catch-all".into(), String::new()), ..Classification::default() };
        let _seat = control.admit(&class, 1).await.unwrap();
        assert_eq!(control.admit(&class, 1).await.unwrap_err(), Refused::Full);
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
            match futures::FutureExt::now_or_never(control.admit(class, 1)) {
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
        let waiting = control.admit(&b, 1);
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        drop(of_a);
        let seat = waiting.await.unwrap();
        assert_eq!(control.levels()["b"][1], 11);
        drop((of_b, seat));
        assert_eq!(control.levels()["b"][1], 0);
        assert_eq!(*control.pool.lent(), 0);
    }

    #[tokio::test]
    async fn a_wide_request_takes_its_seats_or_runs_alone() {
        let (control, a, _) = two(Value::Null);
        let wide = control.admit(&a, 8).await.unwrap();
        assert_eq!(seated(&control, &a, 99).await.len(), 2);
        drop(wide);
        let alone = control.admit(&a, 50).await.unwrap();
        assert!(seated(&control, &a, 99).await.is_empty());
        drop(alone);
        assert_eq!(control.levels()["a"][1], 0);
    }
}
