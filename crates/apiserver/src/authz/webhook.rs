//! A remote server decides: it is sent a SubjectAccessReview, and its yes or no is remembered for a while.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apimachinery::selector::{FieldSelector, LabelSelector, Operator};
use cel::{Env, Program, Type, Val};
use serde_json::{Value, json};
use sha2::Digest;
use tracing::warn;

use super::{Attributes, Decision, Reason};
use crate::outbound::Webhook;

/// The most decisions remembered.
const REMEMBER_AT_MOST: usize = 8192;

/// Larger questions are not remembered: what is in them is the asker's choice.
const REMEMBER_BYTES: usize = 10_000;

/// What must hold for a webhook to be asked. Conditions see the question as `request`.
#[derive(Debug, Default)]
pub struct Conditions(Vec<Program>);

impl Conditions {
    /// Compiles one more.
    pub fn add(&mut self, source: &str) -> Result<(), String> {
        let env = Env::new().with("request", request_type());
        self.0.push(env.compile_as(source, &[Type::Bool])?);
        Ok(())
    }

    /// Whether all hold. One that does not hold counts more than one that fails.
    fn hold(&self, asked: &Attributes<'_>) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let request = request_value(asked);
        let values = [Val::json(&request)];
        let mut budget = cel::Budget::default();
        let mut failed = Vec::new();
        for program in &self.0 {
            match program.run(&&values[..], None, &mut budget) {
                Ok(Val::Bool(true)) => {}
                Ok(_) => return Ok(false),
                Err(error) => {
                    failed.push(format!("expression '{}' resulted in error: {error}", program.source()));
                }
            }
        }
        if failed.is_empty() { Ok(true) } else { Err(failed.join(", ")) }
    }
}

/// The type of `request`.
fn request_type() -> Type {
    let texts = |name: &str, fields: &[&str]| {
        Type::object(name, &fields.iter().map(|field| (*field, Type::String)).collect::<Vec<_>>())
    };
    let requirement = Type::object(
        "kubernetes.SelectorRequirement",
        &[("key", Type::String), ("operator", Type::String), ("values", Type::list(Type::String))],
    );
    let selector = |name: &str| {
        Type::object(
            name,
            &[("rawSelector", Type::String), ("requirements", Type::list(requirement.clone()))],
        )
    };
    let resource = Type::object(
        "kubernetes.ResourceAttributes",
        &[
            ("namespace", Type::String),
            ("verb", Type::String),
            ("group", Type::String),
            ("version", Type::String),
            ("resource", Type::String),
            ("subresource", Type::String),
            ("name", Type::String),
            ("fieldSelector", selector("kubernetes.FieldSelectorAttributes")),
            ("labelSelector", selector("kubernetes.LabelSelectorAttributes")),
        ],
    );
    Type::object(
        "kubernetes.SubjectAccessReviewSpec",
        &[
            ("resourceAttributes", resource),
            ("nonResourceAttributes", texts("kubernetes.NonResourceAttributes", &["path", "verb"])),
            ("user", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::list(Type::String))),
            ("uid", Type::String),
        ],
    )
}

/// The question as conditions see it: every text is there, also if it is empty.
fn request_value(asked: &Attributes<'_>) -> Value {
    let user = asked.user;
    let mut request = json!({"user": user.name, "groups": user.groups, "uid": user.uid, "extra": user.extra});
    if !asked.is_resource {
        request["nonResourceAttributes"] = json!({"path": asked.path, "verb": asked.verb});
        return request;
    }
    request["resourceAttributes"] = json!({
        "namespace": asked.namespace, "verb": asked.verb, "group": asked.group, "version": asked.version,
        "resource": asked.resource, "subresource": asked.subresource, "name": asked.name,
    });
    put_selectors(asked, &mut request["resourceAttributes"]);
    request
}

/// Adds what a list or watch is narrowed to, as far as it can be read: less of it only asks for more.
fn put_selectors(asked: &Attributes<'_>, attributes: &mut Value) {
    let fields = FieldSelector::parse(asked.field_selector).unwrap_or_else(|_| FieldSelector::everything());
    let terms: Vec<Value> = fields
        .terms()
        .iter()
        .map(|term| {
            let operator = if term.equal { "In" } else { "NotIn" };
            json!({"key": term.field, "operator": operator, "values": [term.value]})
        })
        .collect();
    if !terms.is_empty() {
        attributes["fieldSelector"] = json!({"requirements": terms});
    }
    let labels = LabelSelector::parse(asked.label_selector).unwrap_or_else(|_| LabelSelector::everything());
    let terms: Vec<Value> = labels
        .requirements()
        .iter()
        .filter_map(|one| {
            let operator = match one.operator {
                Operator::In | Operator::Equals => "In",
                Operator::NotIn | Operator::NotEquals => "NotIn",
                Operator::Exists => "Exists",
                Operator::DoesNotExist => "DoesNotExist",
                Operator::GreaterThan | Operator::LessThan => return None,
            };
            let mut term = json!({"key": one.key, "operator": operator});
            if !one.values.is_empty() {
                term["values"] = json!(one.values);
            }
            Some(term)
        })
        .collect();
    if !terms.is_empty() {
        attributes["labelSelector"] = json!({"requirements": terms});
    }
}

/// How a webhook authorizer is meant.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Its name in metrics.
    pub name: String,
    /// What must hold for it to be asked.
    pub conditions: Arc<Conditions>,
    /// A kubeconfig that names the server.
    pub kubeconfig: String,
    /// The version of SubjectAccessReview that it understands, `v1` or `v1beta1`.
    pub version: String,
    /// An answer is waited for so long.
    pub timeout: Duration,
    /// A yes is remembered so long.
    pub allowed_for: Duration,
    /// And a no.
    pub refused_for: Duration,
    /// Whether a webhook that cannot be asked is a no; otherwise others may know.
    pub failure_denies: bool,
}

impl WebhookConfig {
    /// Upstream's defaults.
    pub fn new(kubeconfig: String, version: &str) -> Self {
        Self {
            name: "webhook".to_owned(),
            conditions: Arc::default(),
            kubeconfig,
            version: version.to_owned(),
            timeout: Duration::from_secs(30),
            allowed_for: Duration::from_secs(300),
            refused_for: Duration::from_secs(30),
            failure_denies: false,
        }
    }
}

/// The server and what it said.
pub struct WebhookAuthorizer {
    config: WebhookConfig,
    webhook: Webhook,
    remembered: Mutex<HashMap<[u8; 32], (Instant, Decision)>>,
    /// Yes and no, remembered ones included.
    decided: [AtomicU64; 2],
}

impl WebhookAuthorizer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// How often it said yes and no.
    pub fn decisions(&self) -> [u64; 2] {
        self.decided.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// An authorizer that asks `webhook`.
    pub fn new(config: WebhookConfig, webhook: Webhook) -> Self {
        Self { config, webhook, remembered: Mutex::default(), decided: Default::default() }
    }

    /// Asks, or remembers.
    pub async fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        let decision = self.decide(asked).await;
        match decision {
            Decision::Allow(_) => self.decided[0].fetch_add(1, Ordering::Relaxed),
            Decision::Deny(_) => self.decided[1].fetch_add(1, Ordering::Relaxed),
            Decision::NoOpinion(_) => 0,
        };
        decision
    }

    async fn decide(&self, asked: &Attributes<'_>) -> Decision {
        let failed = |why: String| match self.config.failure_denies {
            true => Decision::Deny(why),
            false => Decision::NoOpinion(why),
        };
        match self.config.conditions.hold(asked) {
            Ok(true) => {}
            Ok(false) => return Decision::NoOpinion(String::new()),
            Err(error) => {
                warn!(webhook = self.config.name, error, "a match condition failed");
                return failed("a match condition of the authorization webhook failed".to_owned());
            }
        }
        let review = review(asked, &self.config.version);
        let digest: [u8; 32] = sha2::Sha256::digest(review["spec"].to_string()).into();
        if let Some(decision) = self.recall(&digest) {
            return decision;
        }
        match self.webhook.call(&review, self.config.timeout).await {
            Ok(answer) => {
                let decision = read(&answer);
                if asked.path.len() + asked.name.len() + asked.namespace.len() < REMEMBER_BYTES {
                    self.remember(digest, &decision);
                }
                decision
            }
            Err(error) => {
                warn!(webhook = self.config.name, error = %telemetry::chain(&error), "the authorization webhook failed");
                failed("the authorization webhook failed".to_owned())
            }
        }
    }

    fn recall(&self, digest: &[u8; 32]) -> Option<Decision> {
        let remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        remembered
            .get(digest)
            .filter(|(until, _)| *until > Instant::now())
            .map(|(_, decision)| decision.clone())
    }

    fn remember(&self, digest: [u8; 32], decision: &Decision) {
        let keep = if decision.is_allowed() { self.config.allowed_for } else { self.config.refused_for };
        let now = Instant::now();
        let mut remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if remembered.len() >= REMEMBER_AT_MOST {
            remembered.retain(|_, (until, _)| *until > now);
        }
        if remembered.len() < REMEMBER_AT_MOST && !keep.is_zero() {
            remembered.insert(digest, (now + keep, decision.clone()));
        }
    }
}

/// The question in the form that webhooks understand.
fn review(asked: &Attributes<'_>, version: &str) -> Value {
    let user = asked.user;
    // The older version says `group` for the list of groups.
    let groups = if version == "v1beta1" { "group" } else { "groups" };
    let mut spec = json!({"user": user.name, groups: user.groups});
    if !user.uid.is_empty() {
        spec["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        spec["extra"] = json!(user.extra);
    }
    let mut put = |part: &str, fields: &[(&str, &str)]| {
        spec[part] = json!({});
        for (field, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
            spec[part][*field] = json!(value);
        }
    };
    if asked.is_resource {
        put(
            "resourceAttributes",
            &[
                ("namespace", asked.namespace),
                ("verb", asked.verb),
                ("group", asked.group),
                ("version", asked.version),
                ("resource", asked.resource),
                ("subresource", asked.subresource),
                ("name", asked.name),
            ],
        );
        put_selectors(asked, &mut spec["resourceAttributes"]);
    } else {
        put("nonResourceAttributes", &[("path", asked.path), ("verb", asked.verb)]);
    }
    json!({
        "apiVersion": format!("authorization.k8s.io/{version}"), "kind": "SubjectAccessReview",
        "metadata": {}, "spec": spec,
    })
}

fn read(answer: &Value) -> Decision {
    let status = &answer["status"];
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    match (status["allowed"] == true, status["denied"] == true) {
        (true, false) => Decision::Allow(Reason::Text(reason)),
        (false, true) => Decision::Deny(reason),
        (false, false) => Decision::NoOpinion(reason),
        (true, true) => Decision::Deny("the authorization webhook both allowed and denied".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::UserInfo;

    #[test]
    fn the_question_has_the_form_of_its_version() {
        let ann = UserInfo::new("ann", &["dev"]);
        let asked = Attributes::resource(&ann, "get", "apps", "deployments/scale", "ns", "web");
        let new = review(&asked, "v1");
        assert_eq!(new["apiVersion"], "authorization.k8s.io/v1");
        assert_eq!(new["spec"]["groups"][0], "dev");
        let part = &new["spec"]["resourceAttributes"];
        assert_eq!((&part["resource"], &part["subresource"]), (&json!("deployments"), &json!("scale")));
        assert_eq!(review(&asked, "v1beta1")["spec"]["group"][0], "dev");
        let mut path = Attributes::resource(&ann, "get", "", "", "", "");
        (path.is_resource, path.path) = (false, "/metrics");
        assert_eq!(review(&path, "v1")["spec"]["nonResourceAttributes"]["path"], "/metrics");
    }

    #[test]
    fn conditions_decide_whether_it_is_asked() {
        let ann = UserInfo::new("ann", &["dev"]);
        let mut list = Attributes::resource(&ann, "list", "", "pods", "ns", "");
        (list.field_selector, list.label_selector) = ("spec.nodeName=a", "app in (x,y),!old");
        let mut path = Attributes::resource(&ann, "get", "", "", "", "");
        (path.is_resource, path.path) = (false, "/metrics");
        for (sources, asked, want) in [
            (&["request.user == 'ann'"][..], &list, Ok(true)),
            (
                &["'dev' in request.groups", "request.resourceAttributes.namespace == 'kube-system'"],
                &list,
                Ok(false),
            ),
            (&["has(request.resourceAttributes)"], &path, Ok(false)),
            (&["request.nonResourceAttributes.path == '/metrics'"], &path, Ok(true)),
            // What does not hold counts more than what fails.
            (&["request.resourceAttributes.name == ''", "request.user == 'eve'"], &path, Ok(false)),
            (&["request.resourceAttributes.name == ''"], &path, Err(())),
            (
                &[
                    "request.resourceAttributes.fieldSelector.requirements.exists(r, r.key == 'spec.nodeName' && r.values == ['a'])",
                ],
                &list,
                Ok(true),
            ),
            (
                &[
                    "request.resourceAttributes.labelSelector.requirements.all(r, r.operator in ['In', 'DoesNotExist'])",
                ],
                &list,
                Ok(true),
            ),
        ] {
            let mut conditions = Conditions::default();
            sources.iter().for_each(|source| conditions.add(source).unwrap());
            assert_eq!(conditions.hold(asked).map_err(|_| ()), want, "{sources:?}");
        }
    }

    #[test]
    fn answers_become_decisions() {
        let said = |status: Value| read(&json!({"status": status}));
        assert_eq!(said(json!({"allowed": true, "reason": "r"})), Decision::Allow(Reason::Text("r".into())));
        assert_eq!(said(json!({"allowed": false})), Decision::NoOpinion(String::new()));
        assert_eq!(said(json!({"denied": true})), Decision::Deny(String::new()));
        assert!(!said(json!({"allowed": true, "denied": true})).is_allowed());
        assert!(!read(&json!(null)).is_allowed());
    }
}
