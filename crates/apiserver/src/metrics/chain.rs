//! What is counted on a request's way: who asks, who decides, how long it waits, what admission takes.
//!
//! Everything that has few label values is an array of atomics; what has names is found under a read lock by what the
//! request borrows, so that counting allocates nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::flows::Flows;
use super::histogram::{ADMISSION_SECONDS, FILTER_SECONDS, Histogram, SHORT_SECONDS, SLI_SECONDS};
use super::page::Page;
use crate::admission::Operation;
use crate::authz::{Authorizer, Decision};
use crate::impersonate::Mode;

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
    /// By flow schema.
    pub flows: Flows,
    /// All of admission.
    pub steps: Steps,
    validations: [Histogram; FIELD_VALIDATIONS.len()],
    /// Handshakes that failed.
    pub handshake_errors: AtomicU64,
    /// How long the steps took, by [`FILTERS`].
    filters: [Histogram; FILTERS.len()],
    /// Yes and no of each authorizer, by [`AUTHORIZERS`].
    decisions: [[AtomicU64; 2]; AUTHORIZERS.len()],
    /// Allowed by [`Mode`], and denied.
    impersonation: [Timed; Mode::ALL.len() + 1],
    /// Each right that is asked for: allowed and denied, by [`Mode`].
    impersonation_rights: [[Timed; 2]; Mode::ALL.len()],
}

/// Steps that requests wait for.
const FILTERS: [&str; 3] = ["authentication", "authorization", "priorityandfairness"];
/// Those who decide in this process, in upstream's words: name and type.
const AUTHORIZERS: [(&str, &str); 5] = [
    ("alwaysallow", "AlwaysAllow"),
    ("alwaysdeny", "AlwaysDeny"),
    ("node", "Node"),
    ("rbac", "RBAC"),
    ("abac", "ABAC"),
];
/// How often and how long, by labels.
fn print_decided<'a>(
    page: &mut Page,
    name: &str,
    help: &str,
    timed: impl Iterator<Item = (String, &'a Timed)> + Clone,
) {
    let seen = timed.filter(|(_, own)| own.count.load(Ordering::Relaxed) > 0);
    let counts = seen.clone().map(|(labels, own)| (labels, own.count.load(Ordering::Relaxed)));
    page.many(&format!("{name}_total"), "counter", &format!("{help}, by result."), counts);
    let seconds = format!("{name}_duration_seconds");
    page.head(&seconds, "histogram", &format!("{help}: how long that took."));
    seen.for_each(|(labels, own)| own.seconds.print(page, &seconds, &labels));
}

impl Default for ChainMetrics {
    fn default() -> Self {
        Self {
            users: Default::default(),
            authentication: [0, 1].map(|_| Timed::new()),
            authorization: [0, 1, 2].map(|_| Timed::new()),
            flows: Flows::default(),
            steps: Steps::default(),
            validations: FIELD_VALIDATIONS.map(|_| Histogram::new(SLI_SECONDS)),
            handshake_errors: AtomicU64::new(0),
            filters: FILTERS.map(|_| Histogram::new(FILTER_SECONDS)),
            decisions: Default::default(),
            impersonation: std::array::from_fn(|_| Timed::new()),
            impersonation_rights: std::array::from_fn(|_| std::array::from_fn(|_| Timed::new())),
        }
    }
}

impl ChainMetrics {
    /// Somebody was known, or was not.
    pub fn authenticated(&self, user: Option<&str>, took: Duration) {
        self.authentication[usize::from(user.is_none())].add(took);
        self.filters[0].time(took);
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
        self.filters[1].time(took);
    }

    /// A request waited for its seats.
    pub fn waited(&self, took: Duration) {
        self.filters[2].time(took);
    }

    /// One of the authorizers decided. Webhooks count their own decisions.
    pub fn decided(&self, authorizer: &Authorizer, decision: &Decision) {
        let index = match authorizer {
            Authorizer::AlwaysAllow => 0,
            Authorizer::AlwaysDeny => 1,
            Authorizer::Node => 2,
            Authorizer::Rbac => 3,
            Authorizer::Abac(_) => 4,
            Authorizer::Webhook(_) => return,
        };
        match decision {
            Decision::Allow(_) => self.decisions[index][0].fetch_add(1, Ordering::Relaxed),
            Decision::Deny(_) => self.decisions[index][1].fetch_add(1, Ordering::Relaxed),
            Decision::NoOpinion(_) => 0,
        };
    }

    /// Decisions of those who decide in this process: labels and how often.
    pub fn decisions(&self) -> impl Iterator<Item = (String, u64)> {
        AUTHORIZERS.iter().zip(&self.decisions).flat_map(|((name, kind), counts)| {
            ["allowed", "denied"].iter().zip(counts).filter_map(move |(decision, count)| {
                let count = count.load(Ordering::Relaxed);
                let labels = || format!("decision=\"{decision}\",name=\"{name}\",type=\"{kind}\"");
                (count > 0).then(|| (labels(), count))
            })
        })
    }

    /// Somebody asked in another's name.
    pub fn impersonated(&self, mode: Option<Mode>, took: Duration) {
        self.impersonation[mode.map_or(Mode::ALL.len(), |mode| mode as usize)].add(took);
    }

    /// For that, a right was asked for.
    pub fn impersonation_right(&self, mode: Mode, allowed: bool, took: Duration) {
        self.impersonation_rights[mode as usize][usize::from(!allowed)].add(took);
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
        let decided = |decision: &str, mode: &str| format!("decision=\"{decision}\",mode=\"{mode}\"");
        let attempts = Mode::ALL.iter().map(|mode| decided("allowed", mode.name()));
        let attempts = attempts.chain([decided("denied", "")]).zip(&self.impersonation);
        print_decided(
            page,
            "apiserver_impersonation_attempts",
            "Whether users may ask in the name of others",
            attempts,
        );
        let rights = Mode::ALL.iter().zip(&self.impersonation_rights).flat_map(|(mode, timed)| {
            ["allowed", "denied"].into_iter().map(|word| decided(word, mode.name())).zip(timed)
        });
        let name = "apiserver_impersonation_authorization_attempts";
        print_decided(page, name, "Whether they have each right that this needs", rights);
        let name = "apiserver_admission_step_admission_duration_seconds";
        page.head(name, "histogram", "Admission by operation and step (admit, validate).");
        self.steps.print(page, name, "");
        let name = "field_validation_request_duration_seconds";
        page.head(name, "histogram", "Writes by what is done about unknown and duplicate fields.");
        for (rule, histogram) in FIELD_VALIDATIONS.iter().zip(&self.validations) {
            histogram.print(page, name, &format!("field_validation=\"{rule}\""));
        }
        let name = "apiserver_request_filter_duration_seconds";
        page.head(name, "histogram", "How long requests were in each of these steps.");
        for (filter, histogram) in FILTERS.iter().zip(&self.filters) {
            histogram.print(page, name, &format!("filter=\"{filter}\""));
        }
        page.one(
            "apiserver_tls_handshake_errors_total",
            "counter",
            "TLS handshakes that failed.",
            value(&self.handshake_errors),
        );
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
        chain.steps.add(true, Operation::Update, true, took);
        chain.validated("Strict", took);
        let mut page = Page::default();
        chain.print(&mut page);
        for line in [
            "authenticated_user_requests{username=\"admin\"} 1",
            "authenticated_user_requests{username=\"email_id\"} 1",
            "authentication_attempts{result=\"failure\"} 1",
            "authorization_attempts_total{result=\"no-opinion\"} 1",
            "step_admission_duration_seconds_count{operation=\"UPDATE\",rejected=\"true\",type=\"validate\"} 1",
            "field_validation_request_duration_seconds_count{field_validation=\"Strict\"} 1",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
    }
}
