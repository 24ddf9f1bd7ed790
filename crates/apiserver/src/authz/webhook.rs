//! A remote server decides: it is sent a SubjectAccessReview, and its yes or no is remembered for a while.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::Digest;
use tracing::warn;

use super::{Attributes, Decision};
use crate::outbound::Webhook;

/// The most decisions remembered.
const REMEMBER_AT_MOST: usize = 8192;

/// How a webhook authorizer is meant.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
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
}

impl WebhookAuthorizer {
    /// An authorizer that asks `webhook`.
    pub fn new(config: WebhookConfig, webhook: Webhook) -> Self {
        Self { config, webhook, remembered: Mutex::default() }
    }

    /// Asks, or remembers.
    pub async fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        let review = review(asked, &self.config.version);
        let digest: [u8; 32] = sha2::Sha256::digest(review["spec"].to_string()).into();
        if let Some(decision) = self.recall(&digest) {
            return decision;
        }
        match self.webhook.call(&review, self.config.timeout).await {
            Ok(answer) => {
                let decision = read(&answer);
                self.remember(digest, &decision);
                decision
            }
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "the authorization webhook failed");
                let why = "the authorization webhook failed".to_owned();
                if self.config.failure_denies { Decision::Deny(why) } else { Decision::NoOpinion(why) }
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
        if !asked.field_selector.is_empty() {
            spec["resourceAttributes"]["fieldSelector"] = json!({"rawSelector": asked.field_selector});
        }
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
        (true, false) => Decision::Allow(reason),
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
    fn answers_become_decisions() {
        let said = |status: Value| read(&json!({"status": status}));
        assert_eq!(said(json!({"allowed": true, "reason": "r"})), Decision::Allow("r".into()));
        assert_eq!(said(json!({"allowed": false})), Decision::NoOpinion(String::new()));
        assert_eq!(said(json!({"denied": true})), Decision::Deny(String::new()));
        assert!(!said(json!({"allowed": true, "denied": true})).is_allowed());
        assert!(!read(&json!(null)).is_allowed());
    }
}
