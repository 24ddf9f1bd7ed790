//! Nobody grants more than they hold: checks on roles and bindings as they are written.

use apimachinery::meta::Meta;
use apimachinery::status::{Reason, Status};
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
        let namespace = if context.resource.is_namespaced() { new.namespace() } else { "" };
        let allowed = |verb: &str, resource: &str, name: &str| {
            self.authorize_now(&Attributes::resource(user, verb, GROUP, resource, namespace, name))
                .is_allowed()
        };
        let is_role = matches!(plural, "roles" | "clusterroles");
        // The right to escalate a role is asked for by the request: who makes a new one names none yet.
        if is_role && allowed("escalate", plural, &context.info.name) {
            return Ok(());
        }
        if old.is_some_and(|old| only_collected(old, new)) {
            return Ok(());
        }
        // Taken only where no other question is asked: the authorizers take it too, and a writer may wait between.
        let policy = || self.policy.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let wanted: Vec<Rule> = if is_role {
            serde_json::from_value(new["rules"].clone()).unwrap_or_default()
        } else {
            let Ok(role) = serde_json::from_value::<RoleRef>(new["roleRef"].clone()) else { return Ok(()) };
            let resource = match role.kind.as_str() {
                "Role" => "roles",
                "ClusterRole" => "clusterroles",
                kind => {
                    let why = format!("unsupported role reference kind: {kind:?}");
                    return Err(Status::failure(Reason::Unknown, why));
                }
            };
            if allowed("bind", resource, &role.name) {
                return Ok(());
            }
            if resource == "roles" && namespace.is_empty() {
                return Err(Status::bad_request("Namespace parameter required."));
            }
            match policy().rules_of(&role, namespace) {
                Some(rules) => rules.to_vec(),
                None => return Err(Status::not_found(GROUP, plural, &role.name)),
            }
        };
        let owned = policy().rules_for(user, namespace);
        let missing = rbac::missing(&owned, &wanted);
        if !missing.is_empty() {
            let why = format!(
                "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
                user.name,
                quoted(&user.groups),
                descriptions(missing).join("\n")
            );
            return Err(Status::forbidden(GROUP, plural, new.name(), &why));
        }
        // An aggregated role may come to hold anything.
        let aggregates = |role: &Value| {
            role["aggregationRule"]["clusterRoleSelectors"].as_array().is_some_and(|list| !list.is_empty())
        };
        if (aggregates(new) || old.is_some_and(aggregates))
            && !rbac::missing(&owned, &everything()).is_empty()
        {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(Status::forbidden(GROUP, plural, new.name(), why));
        }
        Ok(())
    }
}

fn everything() -> [Rule; 2] {
    let all = || vec!["*".to_owned()];
    [
        Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), urls: all(), ..Rule::default() },
    ]
}

/// Whether nothing but what the garbage collector writes has changed.
fn only_collected(old: &Value, new: &Value) -> bool {
    let rest = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation"] {
                metadata.shift_remove(field);
            }
        }
        object
    };
    rest(old) == rest(new)
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ")
}

/// The rules in words, those that differ only in their verb together, sorted.
fn descriptions(rules: Vec<Rule>) -> Vec<String> {
    let mut together: Vec<Rule> = Vec::new();
    for rule in rules {
        let same = |own: &&mut Rule| {
            own.urls.is_empty() && Rule { verbs: rule.verbs.clone(), ..(**own).clone() } == rule
        };
        match together.iter_mut().find(same) {
            Some(own) => own.verbs.extend(rule.verbs),
            None => together.push(rule),
        }
    }
    let mut described: Vec<String> = together
        .iter()
        .map(|rule| {
            let parts = [
                ("APIGroups", &rule.groups),
                ("Resources", &rule.resources),
                ("NonResourceURLs", &rule.urls),
                ("ResourceNames", &rule.resource_names),
                ("Verbs", &rule.verbs),
            ];
            let parts: Vec<String> = parts
                .iter()
                .filter(|(_, words)| !words.is_empty())
                .map(|(name, words)| format!("{name}:[{}]", quoted(words)))
                .collect();
            format!("{{{}}}", parts.join(", "))
        })
        .collect();
    described.sort();
    described.dedup();
    described
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_rights_are_told_together_and_sorted() {
        let rules: Vec<Rule> = serde_json::from_value(json!([
            {"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["secrets", "pods"]},
            {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["b", "a"]},
            {"verbs": ["post", "get"], "nonResourceURLs": ["/x"]},
        ]))
        .unwrap();
        assert_eq!(
            descriptions(rbac::missing(&[], &rules)),
            [
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["a"], Verbs:["get"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], ResourceNames:["b"], Verbs:["get"]}"#,
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "delete"]}"#,
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["get"]}"#,
                r#"{NonResourceURLs:["/x"], Verbs:["post"]}"#,
            ]
        );
    }

    #[test]
    fn only_the_collectors_fields_are_free() {
        let old = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "rules": []});
        for (path, free) in [
            ("/metadata/finalizers", true),
            ("/metadata/ownerReferences", true),
            ("/metadata/labels", false),
            ("/rules", false),
        ] {
            let mut new = old.clone();
            let (parent, field) = path.rsplit_once('/').unwrap();
            new.pointer_mut(parent).unwrap()[field] = json!(["z"]);
            assert_eq!(only_collected(&old, &new), free, "{path}");
        }
    }
}
