//! Nobody grants more than they hold: checks on roles and bindings as they are written.

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use serde_json::Value;

use super::Attributes;
use super::rbac::{self, RoleRef, Rule};
use crate::context::Context;
use crate::server::ApiServer;
use crate::user::MASTERS;

const GROUP: &str = "rbac.authorization.k8s.io";

impl ApiServer {
    /// 403 if the write would give away what the writer does not have.
    pub(crate) fn check_escalation(
        &self,
        context: &Context,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let user = &context.user;
        if user.is_in(MASTERS) {
            return Ok(());
        }
        let plural = context.resource.plural();
        let namespace = new.namespace();
        let allowed = |verb: &str, resource: &str, namespace: &str, name: &str| {
            self.authorize_now(&Attributes::resource(user, verb, GROUP, resource, namespace, name))
                .is_allowed()
        };
        let is_role = matches!(plural, "roles" | "clusterroles");
        let unchanged = old.is_some_and(|old| {
            let fields: &[&str] =
                if is_role { &["rules", "aggregationRule"] } else { &["roleRef", "subjects"] };
            fields.iter().all(|field| old[*field] == new[*field])
        });
        if unchanged {
            return Ok(());
        }
        // Taken only where no other question is asked: the authorizers take it too, and a writer may wait between.
        let policy = || self.policy.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let wanted: Vec<Rule> = if is_role {
            if allowed("escalate", plural, namespace, new.name()) {
                return Ok(());
            }
            // An aggregated role may come to hold anything.
            if !new["aggregationRule"].is_null()
                && old.is_none_or(|old| old["aggregationRule"] != new["aggregationRule"])
            {
                vec![
                    Rule {
                        verbs: vec!["*".into()],
                        groups: vec!["*".into()],
                        resources: vec!["*".into()],
                        ..Rule::default()
                    },
                    Rule { verbs: vec!["*".into()], urls: vec!["*".into()], ..Rule::default() },
                ]
            } else {
                serde_json::from_value(new["rules"].clone()).unwrap_or_default()
            }
        } else {
            let Ok(role) = serde_json::from_value::<RoleRef>(new["roleRef"].clone()) else { return Ok(()) };
            let resource = if role.kind == "Role" { "roles" } else { "clusterroles" };
            if allowed("bind", resource, namespace, &role.name) {
                return Ok(());
            }
            match policy().rules_of(&role, namespace) {
                Some(rules) => rules.to_vec(),
                None => {
                    return Err(Status::not_found(GROUP, resource, &role.name));
                }
            }
        };
        let owned = policy().rules_for(user, namespace);
        let missing = rbac::missing(&owned, &wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = missing
            .iter()
            .map(|rule| {
                if rule.urls.is_empty() {
                    format!(
                        "{{APIGroups:{:?}, Resources:{:?}, Verbs:{:?}}}",
                        rule.groups, rule.resources, rule.verbs
                    )
                } else {
                    format!("{{NonResourceURLs:{:?}, Verbs:{:?}}}", rule.urls, rule.verbs)
                }
            })
            .collect();
        let why = format!(
            "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            user.groups,
            list.join("\n")
        );
        Err(Status::forbidden(GROUP, plural, new.name(), &why))
    }
}
