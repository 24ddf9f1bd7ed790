//! Roles and cluster roles.

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name, pairs};
use crate::error::{CliError, message};
use crate::session::Session;

#[derive(Args, Debug)]
struct RuleFlags {
    /// Verb that applies to the resources contained in the rule
    #[arg(long, value_delimiter = ',')]
    verb: Vec<String>,
    /// Resource that the rule applies to
    #[arg(long, value_delimiter = ',')]
    resource: Vec<String>,
    /// Resource in the white list that the rule applies to
    #[arg(long, value_delimiter = ',')]
    resource_name: Vec<String>,
}

impl RuleFlags {
    /// One rule for each group, in the order in which the groups were named.
    async fn rules(&self, session: &Session) -> Result<Vec<Value>, CliError> {
        if self.verb.is_empty() {
            return Err(message("at least one verb must be specified"));
        }
        let mut verbs: Vec<&str> = Vec::new();
        for verb in &self.verb {
            if verb == "*" {
                verbs = vec!["*"];
                break;
            }
            if !verbs.contains(&verb.as_str()) {
                verbs.push(verb);
            }
        }
        let mut groups: Vec<(String, Vec<String>)> = Vec::new();
        for word in &self.resource {
            let (resource, subresource) = word.split_once('/').unwrap_or((word, ""));
            let (group, name) = if resource == "*" {
                ("*".to_owned(), "*".to_owned())
            } else {
                let found = session.resource(resource).await.map_err(|error| match error {
                    CliError::Message(text) => CliError::Plain(text),
                    other => other,
                })?;
                (found.group, found.name)
            };
            let name = if subresource.is_empty() { name } else { format!("{name}/{subresource}") };
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, names)) => {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                None => groups.push((group, vec![name])),
            }
        }
        Ok(groups
            .into_iter()
            .map(|(group, resources)| {
                let mut rule = json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
                if !self.resource_name.is_empty() {
                    rule["resourceNames"] = json!(self.resource_name);
                }
                rule
            })
            .collect())
    }
}

/// Create a role with single rule
#[derive(Args, Debug)]
pub struct Role {
    names: Vec<String>,
    #[command(flatten)]
    rule: RuleFlags,
    #[command(flatten)]
    pub common: Common,
}

impl Role {
    pub async fn object(&self, session: &Session) -> Result<Value, CliError> {
        let name = one_name("role", &self.names)?;
        if !self.rule.verb.is_empty() && self.rule.resource.is_empty() {
            return Err(message("at least one resource must be specified"));
        }
        let rules = self.rule.rules(session).await?;
        Ok(
            json!({"kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}, "rules": rules}),
        )
    }
}

/// Create a cluster role
#[derive(Args, Debug)]
pub struct ClusterRole {
    names: Vec<String>,
    #[command(flatten)]
    rule: RuleFlags,
    /// A partial url that user should have access to
    #[arg(long, value_delimiter = ',')]
    non_resource_url: Vec<String>,
    /// An aggregation label selector for combining ClusterRoles
    #[arg(long, default_value = "", hide_default_value = true)]
    aggregation_rule: String,
    #[command(flatten)]
    pub common: Common,
}

impl ClusterRole {
    pub async fn object(&self, session: &Session) -> Result<Value, CliError> {
        let name = one_name("clusterrole", &self.names)?;
        let mut object = json!({"kind": "ClusterRole", "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}, "rules": Value::Null});
        if !self.aggregation_rule.is_empty() {
            let labels = pairs(std::slice::from_ref(&self.aggregation_rule), "aggregation rule")?;
            object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
            return Ok(object);
        }
        let mut rules = self.rule.rules(session).await?;
        if rules.is_empty() && self.non_resource_url.is_empty() {
            return Err(message("one of resource or nonResourceURL must be specified"));
        }
        if !self.non_resource_url.is_empty() {
            rules.push(json!({"nonResourceURLs": self.non_resource_url, "verbs": self.rule.verb}));
        }
        object["rules"] = Value::Array(rules);
        Ok(object)
    }
}
