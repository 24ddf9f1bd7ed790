//! What is counted on a request's way: who asks, who decides, how long it waits, what admission takes.
//!
//! Everything that has few label values is an array of atomics; what has names is found under a read lock by what the
//! request borrows, so that counting allocates nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use super::clean;
use super::histogram::{ADMISSION_SECONDS, FLOW_SECONDS, Histogram, REQUEST_SECONDS, SHORT_SECONDS};
use super::page::Page;
use crate::admission::Operation;
use crate::authz::Decision;
use crate::flowcontrol::{Classification, Refused};

/// Names that stand for themselves in `authenticated_user_requests`; others are `email_id` or `other`.
const USERS: [&str; 7] = [
    "admin",
    "client",
    "kube_proxy",
    "kubelet",
    "system:serviceaccount:kube-system:default",
    "email_id",
    "other",
];
const OPERATIONS: [&str; 4] = ["CREATE", "UPDATE", "DELETE", "CONNECT"];
const FIELD_VALIDATIONS: [&str; 3] = ["Ignore", "Strict", "Warn"];

/// How often, and how long each time.
struct Timed {
    count: AtomicU64,
    seconds: Histogram,
}

impl Timed {
    fn new() -> Self {
        Self { count: AtomicU64::new(0), seconds: Histogram::new(SHORT_SECONDS) }
    }

    fn add(&self, took: Duration) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.seconds.time(took);
    }
}

/// The requests of one flow schema.
struct Flow {
    schema: String,
    level: String,
    dispatched: AtomicU64,
    /// By reason: full, time-out, queue full.
    refused: [AtomicU64; 3],
    waited: Histogram,
    ran: Histogram,
}

/// Times of admission by step (admit, validate), operation and outcome.
pub struct Steps([[[Histogram; 2]; 4]; 2]);

impl Default for Steps {
    fn default() -> Self {
        let one = |_| Histogram::new(ADMISSION_SECONDS);
        Self([0, 1].map(|_| [0, 1, 2, 3].map(|_| [0, 1].map(one))))
    }
}

impl Steps {
    /// Counts a step.
    pub fn add(&self, validating: bool, operation: Operation, refused: bool, took: Duration) {
        self.0[usize::from(validating)][operation as usize][usize::from(refused)].time(took);
    }

    /// The lines; `labels` end with a comma if there are some.
    pub fn print(&self, page: &mut Page, name: &str, labels: &str) {
        for (step, operations) in ["admit", "validate"].iter().zip(&self.0) {
            for (operation, outcomes) in OPERATIONS.iter().zip(operations) {
                for (refused, histogram) in ["false", "true"].iter().zip(outcomes) {
                    if histogram.count() > 0 {
                        let own = format!(
                            "{labels}operation=\"{operation}\",rejected=\"{refused}\",type=\"{step}\""
                        );
                        histogram.print(page, name, &own);
                    }
                }
            }
        }
    }
}

/// See the module.
pub struct ChainMetrics {
    users: [AtomicU64; USERS.len()],
    /// Known, unknown.
    authentication: [Timed; 2],
    /// Allowed, denied, nobody knew.
    authorization: [Timed; 3],
    flows: RwLock<HashMap<String, Arc<Flow>>>,
    /// All of admission.
    pub steps: Steps,
    validations: [Histogram; FIELD_VALIDATIONS.len()],
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
}

impl Default for ChainMetrics {
    fn default() -> Self {
        Self {
            users: Default::default(),
            authentication: [0, 1].map(|_| Timed::new()),
            authorization: [0, 1, 2].map(|_| Timed::new()),
            flows: RwLock::default(),
            steps: Steps::default(),
            validations: FIELD_VALIDATIONS.map(|_| Histogram::new(REQUEST_SECONDS)),
            handshake_errors: AtomicU64::new(0),
        }
    }
}

impl ChainMetrics {
    /// Somebody was known, or was not.
    pub fn authenticated(&self, user: Option<&str>, took: Duration) {
        self.authentication[usize::from(user.is_none())].add(took);
        let Some(user) = user else { return };
        let known = USERS[..5].iter().position(|own| *own == user);
        let index = known.unwrap_or(if user.contains('@') { 5 } else { 6 });
        self.users[index].fetch_add(1, Ordering::Relaxed);
    }

    /// It was decided what somebody may do.
    pub fn authorized(&self, decision: &Decision, took: Duration) {
        let index = match decision {
            Decision::Allow(_) => 0,
            Decision::Deny(_) => 1,
            Decision::NoOpinion(_) => 2,
        };
        self.authorization[index].add(took);
    }

    fn flow(&self, class: &Classification) -> Arc<Flow> {
        let known = |flows: &HashMap<String, Arc<Flow>>| {
            flows.get(&class.schema.0).filter(|flow| flow.level == class.level.0).cloned()
        };
        if let Some(flow) = known(&self.flows.read().unwrap_or_else(|poisoned| poisoned.into_inner())) {
            return flow;
        }
        let flow = Arc::new(Flow {
            schema: class.schema.0.clone(),
            level: class.level.0.clone(),
            dispatched: AtomicU64::new(0),
            refused: Default::default(),
            waited: Histogram::new(FLOW_SECONDS),
            ran: Histogram::new(FLOW_SECONDS),
        });
        let mut flows = self.flows.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        flows.insert(class.schema.0.clone(), flow.clone());
        flow
    }

    /// A request got its seats, after a while.
    pub fn dispatched(&self, class: &Classification, waited: Duration) {
        let flow = self.flow(class);
        flow.dispatched.fetch_add(1, Ordering::Relaxed);
        flow.waited.time(waited);
    }

    /// A request got none.
    pub fn refused(&self, class: &Classification, why: Refused) {
        let index = match why {
            Refused::Full => 0,
            Refused::TimedOut => 1,
            Refused::QueueFull => 2,
        };
        self.flow(class).refused[index].fetch_add(1, Ordering::Relaxed);
    }

    /// A request that had seats gave them back.
    pub fn ran(&self, class: &Classification, took: Duration) {
        self.flow(class).ran.time(took);
    }

    /// A write was done under a rule about its fields.
    pub fn validated(&self, rule: &str, took: Duration) {
        if let Some(index) = FIELD_VALIDATIONS.iter().position(|own| *own == rule) {
            self.validations[index].time(took);
        }
    }

    /// Everything of this file.
    pub fn print(&self, page: &mut Page) {
        let value = |own: &AtomicU64| own.load(Ordering::Relaxed);
        let users = USERS.iter().zip(&self.users).filter(|(_, count)| value(count) > 0);
        page.many(
            "authenticated_user_requests",
            "counter",
            "Requests of known users, by user.",
            users.map(|(user, count)| (format!("username=\"{user}\""), value(count))),
        );
        let sides: [(&str, &str, &str, &[Timed], &[&str]); 2] = [
            (
                "authentication_attempts",
                "authentication_duration_seconds",
                "Whether requests say who they are from",
                &self.authentication,
                &["success", "failure"],
            ),
            (
                "authorization_attempts_total",
                "authorization_duration_seconds",
                "Whether users may do what they ask for",
                &self.authorization,
                &["allowed", "denied", "no-opinion"],
            ),
        ];
        for (count, seconds, help, timed, results) in sides {
            let labelled = |result: &&str| format!("result=\"{result}\"");
            let lines = results.iter().zip(timed).filter(|(_, own)| value(&own.count) > 0);
            page.many(
                count,
                "counter",
                &format!("{help}, by result."),
                lines.clone().map(|(result, own)| (labelled(result), value(&own.count))),
            );
            page.head(seconds, "histogram", &format!("{help}: how long that took."));
            lines.for_each(|(result, own)| own.seconds.print(page, seconds, &labelled(result)));
        }
        self.print_flows(page);
        let name = "apiserver_admission_step_admission_duration_seconds";
        page.head(name, "histogram", "Admission by operation and step (admit, validate).");
        self.steps.print(page, name, "");
        let name = "field_validation_request_duration_seconds";
        page.head(name, "histogram", "Writes by what is done about unknown and duplicate fields.");
        for (rule, histogram) in FIELD_VALIDATIONS.iter().zip(&self.validations) {
            histogram.print(page, name, &format!("field_validation=\"{rule}\""));
        }
        page.one(
            "apiserver_tls_handshake_errors_total",
            "counter",
            "TLS handshakes that failed.",
            value(&self.handshake_errors),
        );
    }

    fn print_flows(&self, page: &mut Page) {
        let flows = self.flows.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let mut flows: Vec<Arc<Flow>> = flows.into_values().collect();
        flows.sort_by(|one, two| one.schema.cmp(&two.schema));
        let labels = |flow: &Flow| {
            format!("flow_schema=\"{}\",priority_level=\"{}\"", clean(&flow.schema), clean(&flow.level))
        };
        page.many(
            "apiserver_flowcontrol_dispatched_requests_total",
            "counter",
            "Requests that got their seats.",
            flows.iter().map(|flow| (labels(flow), flow.dispatched.load(Ordering::Relaxed))),
        );
        let reasons = ["concurrency-limit", "time-out", "queue-full"];
        let refused = flows.iter().flat_map(|flow| {
            let counted = reasons.iter().zip(&flow.refused);
            counted.filter_map(move |(reason, count)| {
                let count = count.load(Ordering::Relaxed);
                (count > 0).then(|| (format!("{},reason=\"{reason}\"", labels(flow)), count))
            })
        });
        page.many(
            "apiserver_flowcontrol_rejected_requests_total",
            "counter",
            "Requests refused so far.",
            refused,
        );
        let name = "apiserver_flowcontrol_request_wait_duration_seconds";
        page.head(name, "histogram", "How long requests waited for their seats.");
        for flow in &flows {
            flow.waited.print(page, name, &format!("execute=\"true\",{}", labels(flow)));
        }
        let name = "apiserver_flowcontrol_request_execution_seconds";
        page.head(name, "histogram", "How long requests had their seats.");
        for flow in &flows {
            flow.ran.print(page, name, &labels(flow));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_on_the_way_is_on_the_page() {
        let chain = ChainMetrics::default();
        let took = Duration::from_millis(3);
        chain.authenticated(Some("admin"), took);
        chain.authenticated(Some("a@b"), took);
        chain.authenticated(None, took);
        chain.authorized(&Decision::NoOpinion(String::new()), took);
        let class = Classification {
            schema: ("s".into(), String::new()),
            level: ("l".into(), String::new()),
            ..Classification::default()
        };
        chain.dispatched(&class, took);
        chain.refused(&class, Refused::QueueFull);
        chain.ran(&class, took);
        chain.steps.add(true, Operation::Update, true, took);
        chain.validated("Strict", took);
        let mut page = Page::default();
        chain.print(&mut page);
        for line in [
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 1",
            "authentication_attempts{result=\"failure\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 1",
            "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"s\",priority_level=\"l\"} 1",
            "rejected_requests_total{flow_schema=\"s\",priority_level=\"l\",reason=\"queue-full\"} 1",
            "step_admission_duration_seconds_count{operation=\"UPDATE\",rejected=\"true\",type=\"validate\"} 1",
            "field_validation_request_duration_seconds_count{field_validation=\"Strict\"} 1",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
    }
}
