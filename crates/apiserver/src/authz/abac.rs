//! Attribute-based access: a file with one policy per line. A policy that matches allows; none ever denies.

use serde::Deserialize;

use super::rbac::Rule;
use super::{Attributes, Decision, Reason};
use crate::user::{AUTHENTICATED, UserInfo};

/// A line that is no policy.
#[derive(Debug, thiserror::Error)]
#[error("line {line} is no policy")]
pub struct PolicyError {
    line: usize,
    #[source]
    source: serde_json::Error,
}

/// The policies of a file.
#[derive(Clone, Debug, Default)]
pub struct Policies(Vec<Policy>);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    spec: Policy,
}

impl Policies {
    /// Reads a policy file; blank lines and lines with `#` are left out.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let mut found = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |source| PolicyError { line: index + 1, source };
            let value: serde_json::Value = serde_json::from_str(line).map_err(wrong)?;
            let versioned = value.get("apiVersion").is_some();
            found.push(known(if versioned {
                serde_json::from_value::<Document>(value).map_err(wrong)?.spec
            } else {
                oldest(serde_json::from_value(value).map_err(wrong)?)
            }));
        }
        Ok(Self(found))
    }

    /// Whether a policy allows it.
    pub fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        match self.0.iter().any(|policy| policy.matches(asked)) {
            true => Decision::Allow(Reason::NONE),
            false => Decision::NoOpinion("No policy matched.".to_owned()),
        }
    }

    /// What a user may do in a namespace.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        let mut rules = Vec::new();
        let own = |policy: &&Policy| {
            policy.is_about(user) && (policy.namespace == "*" || policy.namespace == namespace)
        };
        for policy in self.0.iter().filter(own) {
            let verbs: &[&str] = if policy.readonly { &["get", "list", "watch"] } else { &["*"] };
            let verbs: Vec<String> = verbs.iter().map(|&verb| verb.to_owned()).collect();
            if !policy.resource.is_empty() {
                rules.push(Rule {
                    verbs: verbs.clone(),
                    groups: vec![policy.api_group.clone()],
                    resources: vec![policy.resource.clone()],
                    ..Rule::default()
                });
            }
            if !policy.path.is_empty() {
                rules.push(Rule { verbs, urls: vec![policy.path.clone()], ..Rule::default() });
            }
        }
        rules
    }
}

/// Whoever stands for everybody stands for those who are known.
fn known(mut policy: Policy) -> Policy {
    if policy.user == "*" || policy.group == "*" {
        policy.user = String::new();
        policy.group = AUTHENTICATED.to_owned();
    }
    policy
}

/// A policy without a version: nobody named means everybody, and what is left open is any.
fn oldest(mut policy: Policy) -> Policy {
    if policy.user.is_empty() && policy.group.is_empty() {
        policy.group = AUTHENTICATED.to_owned();
    }
    if policy.namespace.is_empty() && policy.resource.is_empty() {
        policy.path = "*".to_owned();
    }
    for field in [&mut policy.namespace, &mut policy.resource] {
        if field.is_empty() {
            *field = "*".to_owned();
        }
    }
    policy.api_group = "*".to_owned();
    policy
}

impl Policy {
    fn is_about(&self, user: &UserInfo) -> bool {
        let (user_fits, group_fits) = (self.user == user.name, user.is_in(&self.group));
        match (self.user.is_empty(), self.group.is_empty()) {
            (true, true) => false,
            (false, true) => user_fits,
            (true, false) => group_fits,
            (false, false) => user_fits && group_fits,
        }
    }

    fn matches(&self, asked: &Attributes<'_>) -> bool {
        let fits = |own: &str, value: &str| own == "*" || own == value;
        if !self.is_about(asked.user) || self.readonly && !matches!(asked.verb, "get" | "list" | "watch") {
            return false;
        }
        if asked.is_resource {
            return fits(&self.namespace, asked.namespace)
                && fits(&self.resource, asked.resource)
                && fits(&self.api_group, asked.group);
        }
        fits(&self.path, asked.path)
            || self.path.strip_suffix('*').is_some_and(|start| asked.path.starts_with(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
# comment
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"ann","namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"bob","namespace":"work","resource":"pods","readonly":true}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"dev","nonResourcePath":"/version*","readonly":true}}
{"user":"old","resource":"pods"}
"#;

    #[test]
    fn policies_allow_what_they_name() {
        let policies = Policies::parse(FILE).unwrap();
        let may = |user: &str, verb: &str, group: &str, resource: &str, namespace: &str| {
            let user = UserInfo::new(user, &[AUTHENTICATED]);
            policies
                .authorize(&Attributes::resource(&user, verb, group, resource, namespace, ""))
                .is_allowed()
        };
        for (user, verb, group, resource, namespace, want) in [
            ("ann", "delete", "apps", "deployments", "x", true),
            ("bob", "get", "", "pods", "work", true),
            ("bob", "get", "", "pods", "play", false),
            ("bob", "create", "", "pods", "work", false),
            ("bob", "get", "apps", "pods", "work", false),
            ("old", "create", "", "pods", "any", true),
            ("old", "create", "", "secrets", "any", false),
            ("eve", "get", "", "pods", "work", false),
        ] {
            assert_eq!(may(user, verb, group, resource, namespace), want, "{user} {verb} {resource}");
        }
        let dev = UserInfo::new("x", &["dev"]);
        let mut asked = Attributes::resource(&dev, "get", "", "", "", "");
        (asked.is_resource, asked.path) = (false, "/version/x");
        assert!(policies.authorize(&asked).is_allowed());
        asked.path = "/metrics";
        assert!(!policies.authorize(&asked).is_allowed());
        let rules = policies.rules_for(&UserInfo::new("bob", &[]), "work");
        assert_eq!(rules[0].verbs, ["get", "list", "watch"]);
    }

    #[test]
    fn a_bad_line_is_named() {
        let said = Policies::parse("{\"user\":\"a\"}\n\nnot json\n").unwrap_err().to_string();
        assert!(said.contains("line 3"), "{said}");
    }
}
