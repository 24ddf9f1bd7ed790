//! Role-based access control: rules, bindings and who covers what. Pure; fed by the watch of the four RBAC kinds.
//!
//! [`Policy`] keeps parsed roles and bindings and an index from subject to bindings, so that a question costs a
//! look at the bindings of one user and its groups, however many the cluster has.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Attributes, Decision, Reason};
use crate::user::UserInfo;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// The verbs allowed.
    #[serde(deserialize_with = "nullable")]
    pub verbs: Vec<String>,
    /// The groups of the resources.
    #[serde(rename = "apiGroups", skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub groups: Vec<String>,
    /// `pods`, `pods/log`, `*/scale` or `*`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub resources: Vec<String>,
    /// Only these objects; empty is all.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "nullable")]
    pub resource_names: Vec<String>,
    /// URL paths; a trailing `*` matches the rest.
    #[serde(
        rename = "nonResourceURLs",
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "nullable"
    )]
    pub urls: Vec<String>,
}

fn nullable<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::<Vec<String>>::deserialize(from)?.unwrap_or_default())
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

impl Rule {
    /// Whether the rule allows what is asked, wherever it is bound.
    pub fn allows(&self, asked: &Attributes<'_>) -> bool {
        if !has(&self.verbs, asked.verb) {
            return false;
        }
        if !asked.is_resource {
            return self.urls.iter().any(|url| url_matches(url, asked.path));
        }
        has(&self.groups, asked.group)
            && self.resources.iter().any(|own| resource_matches(own, asked.resource, asked.subresource))
            && (self.resource_names.is_empty() || self.resource_names.iter().any(|own| own == asked.name))
    }

    /// Whether this rule alone grants everything of `other`, which names one verb, group, resource and name.
    fn covers(&self, other: &Rule) -> bool {
        let verbs = other.verbs.iter().all(|verb| has(&self.verbs, verb));
        if !other.urls.is_empty() {
            return verbs
                && other
                    .urls
                    .iter()
                    .all(|url| self.urls.iter().any(|own| own == url || url_matches(own, url)));
        }
        verbs
            && other.groups.iter().all(|group| has(&self.groups, group))
            && other.resources.iter().all(|wanted| {
                let (resource, subresource) = wanted.split_once('/').unwrap_or((wanted, ""));
                self.resources.iter().any(|own| own == wanted || resource_matches(own, resource, subresource))
            })
            && (self.resource_names.is_empty()
                || (!other.resource_names.is_empty()
                    && other.resource_names.iter().all(|name| self.resource_names.contains(name))))
    }

    /// Cuts the rule into rules with one verb, group, resource and name each.
    fn atoms(&self) -> Vec<Rule> {
        let mut atoms = Vec::new();
        for verb in &self.verbs {
            for url in &self.urls {
                atoms.push(Rule { verbs: vec![verb.clone()], urls: vec![url.clone()], ..Rule::default() });
            }
            for group in &self.groups {
                for resource in &self.resources {
                    let one = Rule {
                        verbs: vec![verb.clone()],
                        groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Rule::default()
                    };
                    if self.resource_names.is_empty() {
                        atoms.push(one.clone());
                    }
                    for name in &self.resource_names {
                        atoms.push(Rule { resource_names: vec![name.clone()], ..one.clone() });
                    }
                }
            }
        }
        atoms
    }
}

fn resource_matches(own: &str, resource: &str, subresource: &str) -> bool {
    if own == "*" {
        return true;
    }
    match own.split_once('/') {
        None => own == resource && subresource.is_empty(),
        Some((own_resource, own_subresource)) => {
            !subresource.is_empty()
                && own_subresource == subresource
                && (own_resource == "*" || own_resource == resource)
        }
    }
}

fn url_matches(own: &str, path: &str) -> bool {
    own == "*" || own == path || own.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

/// The parts of `wanted` that no rule of `owned` covers: what granting `wanted` would escalate.
pub fn missing(owned: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    wanted.iter().flat_map(Rule::atoms).filter(|atom| !owned.iter().any(|rule| rule.covers(atom))).collect()
}

/// Whom a binding names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Subject {
    /// User, Group or ServiceAccount.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The namespace of a service account.
    #[serde(default)]
    pub namespace: String,
}

/// Which role a binding grants.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoleRef {
    /// Role or ClusterRole.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// The index key of a subject: its kind and the name it has in a user's identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum SubjectKey {
    User(String),
    Group(String),
}

impl Subject {
    fn key(&self, binding_namespace: &str) -> Option<SubjectKey> {
        match self.kind.as_str() {
            "User" => Some(SubjectKey::User(self.name.clone())),
            "Group" => Some(SubjectKey::Group(self.name.clone())),
            "ServiceAccount" => {
                let namespace =
                    if self.namespace.is_empty() { binding_namespace } else { self.namespace.as_str() };
                Some(SubjectKey::User(format!("system:serviceaccount:{namespace}:{}", self.name)))
            }
            _ => None,
        }
    }
}

/// Namespace (empty for the cluster) and name.
type ObjectKey = (String, String);

#[derive(Debug, PartialEq, Eq)]
struct Binding {
    key: ObjectKey,
    /// Whom it names, and whether as a service account.
    subjects: Vec<(SubjectKey, bool)>,
    role: RoleRef,
}

impl Binding {
    /// Where the first subject stands that `user` is.
    fn subject(&self, user: &UserInfo) -> Option<usize> {
        self.subjects.iter().position(|(key, _)| match key {
            SubjectKey::User(name) => *name == user.name,
            SubjectKey::Group(name) => user.is_in(name),
        })
    }
}

/// What allowed a request: a binding, and whom it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    binding: Arc<Binding>,
    subject: Option<usize>,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { key: (namespace, name), subjects, role } = &*self.binding;
        match namespace.as_str() {
            "" => write!(f, "RBAC: allowed by ClusterRoleBinding {name:?}")?,
            namespace => write!(f, "RBAC: allowed by RoleBinding {:?}", format!("{name}/{namespace}"))?,
        }
        write!(f, " of {} {:?} to ", role.kind, role.name)?;
        match self.subject.and_then(|at| subjects.get(at)) {
            Some((SubjectKey::User(name), true)) => {
                let (namespace, account) = crate::user::split_service_account(name).unwrap_or(("", name));
                write!(f, "ServiceAccount \"{account}/{namespace}\"")
            }
            Some((SubjectKey::User(name), false)) => write!(f, "User {name:?}"),
            Some((SubjectKey::Group(name), _)) => write!(f, "Group {name:?}"),
            None => Ok(()),
        }
    }
}

/// All roles and bindings of the cluster.
#[derive(Default)]
pub struct Policy {
    roles: HashMap<ObjectKey, Arc<[Rule]>>,
    bindings: HashMap<ObjectKey, Arc<Binding>>,
    by_subject: HashMap<SubjectKey, HashSet<ObjectKey>>,
}

impl Policy {
    /// Sets a Role (`namespace` not empty) or ClusterRole.
    pub fn set_role(&mut self, namespace: &str, name: &str, rules: Vec<Rule>) {
        self.roles.insert((namespace.to_owned(), name.to_owned()), rules.into());
    }

    /// Forgets a role.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        self.roles.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Sets a RoleBinding (`namespace` not empty) or ClusterRoleBinding.
    pub fn set_binding(&mut self, namespace: &str, name: &str, role: RoleRef, subjects: &[Subject]) {
        self.remove_binding(namespace, name);
        let key = (namespace.to_owned(), name.to_owned());
        let subjects: Vec<(SubjectKey, bool)> = subjects
            .iter()
            .filter_map(|subject| Some((subject.key(namespace)?, subject.kind == "ServiceAccount")))
            .collect();
        for (subject, _) in &subjects {
            self.by_subject.entry(subject.clone()).or_default().insert(key.clone());
        }
        self.bindings.insert(key.clone(), Arc::new(Binding { key, subjects, role }));
    }

    /// Forgets a binding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let Some(old) = self.bindings.remove(&key) else { return };
        for (subject, _) in &old.subjects {
            if let Some(keys) = self.by_subject.get_mut(subject) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.by_subject.remove(subject);
                }
            }
        }
    }

    /// The rules of a role as a binding in `namespace` refers to it.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Option<Arc<[Rule]>> {
        let namespace = if role.kind == "Role" { namespace } else { "" };
        self.roles.get(&(namespace.to_owned(), role.name.clone())).cloned()
    }

    /// Calls `visit` for every rule that holds for `user` in `namespace` (empty: only cluster-wide ones), those of the
    /// cluster's bindings first, until it returns true. `missing` is told of bindings whose role is not there.
    fn any_rule(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&Rule, &Arc<Binding>) -> bool,
        mut missing: impl FnMut(&RoleRef),
    ) -> bool {
        let subjects = std::iter::once(SubjectKey::User(user.name.clone()))
            .chain(user.groups.iter().map(|group| SubjectKey::Group(group.clone())));
        let bound: Vec<&HashSet<ObjectKey>> =
            subjects.filter_map(|subject| self.by_subject.get(&subject)).collect();
        let places = [Some(""), Some(namespace).filter(|own| !own.is_empty())];
        for place in places.into_iter().flatten() {
            for key in bound.iter().copied().flatten().filter(|key| key.0 == place) {
                let Some(binding) = self.bindings.get(key) else { continue };
                let Some(rules) = self.rules_of(&binding.role, &key.0) else {
                    missing(&binding.role);
                    continue;
                };
                if rules.iter().any(|rule| visit(rule, binding)) {
                    return true;
                }
            }
        }
        false
    }

    /// Decides a question.
    pub fn authorize(&self, asked: &Attributes<'_>) -> Decision {
        let (mut grant, mut gone) = (None, Vec::new());
        let visit = |rule: &Rule, binding: &Arc<Binding>| {
            let allows = rule.allows(asked);
            if allows {
                grant = Some(Grant { binding: binding.clone(), subject: binding.subject(asked.user) });
            }
            allows
        };
        self.any_rule(asked.user, asked.namespace, visit, |role| gone.push(not_found(role)));
        if let Some(grant) = grant {
            return Decision::Allow(Reason::Bound(grant));
        }
        Decision::NoOpinion(match aggregate(gone) {
            gone if gone.is_empty() => gone,
            gone => format!("RBAC: {gone}"),
        })
    }

    /// Which roles that `user` is bound to in `namespace` are not there.
    pub fn gone_for(&self, user: &UserInfo, namespace: &str) -> String {
        let mut gone = Vec::new();
        self.any_rule(user, namespace, |_, _| false, |role| gone.push(not_found(role)));
        aggregate(gone)
    }

    /// Every rule that holds for `user` in `namespace`, once for each binding that grants it.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<Rule> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let visit = |rule: &Rule, binding: &Arc<Binding>| {
            // A binding may name the user and several of its groups.
            if seen.insert((Arc::as_ptr(binding), std::ptr::from_ref(rule))) {
                found.push(rule.clone());
            }
            false
        };
        self.any_rule(user, namespace, visit, |_| {});
        found
    }
}

fn not_found(role: &RoleRef) -> String {
    format!("{}.rbac.authorization.k8s.io {:?} not found", role.kind.to_lowercase(), role.name)
}

/// Several complaints as one.
fn aggregate(mut all: Vec<String>) -> String {
    all.sort_unstable();
    all.dedup();
    match all.as_slice() {
        [] | [_] => all.concat(),
        _ => format!("[{}]", all.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
        let list = |text: &str| -> Vec<String> {
            text.split(',')
                .filter(|word| !word.is_empty())
                .map(|word| if word == "core" { String::new() } else { word.to_owned() })
                .collect()
        };
        Rule {
            verbs: list(verbs),
            groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            urls: vec![],
        }
    }

    fn policy() -> Policy {
        let mut policy = Policy::default();
        policy.set_role("", "reader", vec![rule("get,list", "core", "pods,pods/log", "")]);
        policy.set_role("x", "one", vec![rule("*", "core", "configmaps", "only")]);
        policy.set_role("", "scaler", vec![rule("update", "apps", "*/scale", "")]);
        policy.set_role(
            "",
            "web",
            vec![Rule { verbs: vec!["get".into()], urls: vec!["/healthz/*".into()], ..Rule::default() }],
        );
        let bind = |kind: &str, name: &str| RoleRef { kind: kind.into(), name: name.into() };
        let subject = |kind: &str, name: &str| Subject {
            kind: kind.into(),
            name: name.into(),
            namespace: String::new(),
        };
        policy.set_binding("x", "readers", bind("ClusterRole", "reader"), &[subject("Group", "devs")]);
        policy.set_binding("x", "one", bind("Role", "one"), &[subject("ServiceAccount", "bot")]);
        policy.set_binding("", "scalers", bind("ClusterRole", "scaler"), &[subject("User", "ann")]);
        policy.set_binding("", "web", bind("ClusterRole", "web"), &[subject("Group", "devs")]);
        policy
    }

    #[test]
    fn rules_hold_where_they_are_bound_and_nowhere_else() {
        let policy = policy();
        let dev = UserInfo::new("dan", &["devs"]);
        let ann = UserInfo::new("ann", &[]);
        let bot = UserInfo::service_account("x", "bot");
        // user, verb, group, resource, namespace, name, allowed
        let cases = [
            (&dev, "get", "", "pods", "x", "p", true),
            (&dev, "get", "", "pods", "y", "p", false),
            (&dev, "get", "", "pods", "", "", false),
            (&dev, "get", "", "pods/log", "x", "p", true),
            (&dev, "get", "", "pods/exec", "x", "p", false),
            (&dev, "delete", "", "pods", "x", "p", false),
            (&dev, "get", "apps", "pods", "x", "p", false),
            (&ann, "update", "apps", "deployments/scale", "y", "d", true),
            (&ann, "update", "apps", "deployments", "y", "d", false),
            (&bot, "delete", "", "configmaps", "x", "only", true),
            (&bot, "delete", "", "configmaps", "x", "other", false),
            (&bot, "list", "", "configmaps", "x", "", false),
        ];
        for (user, verb, group, resource, namespace, name, allowed) in cases {
            let asked = Attributes::resource(user, verb, group, resource, namespace, name);
            assert_eq!(
                policy.authorize(&asked).is_allowed(),
                allowed,
                "{} {verb} {resource} {namespace}/{name}",
                user.name
            );
        }
    }

    #[test]
    fn a_yes_names_its_binding() {
        let policy = policy();
        let reason = |user: &UserInfo, verb, group, resource, name| {
            let decision = policy.authorize(&Attributes::resource(user, verb, group, resource, "x", name));
            assert!(matches!(decision, Decision::Allow(Reason::Bound(_))), "put in words too early");
            decision.reason().into_owned()
        };
        let (dev, ann) = (UserInfo::new("dan", &["devs"]), UserInfo::new("ann", &[]));
        let bot = UserInfo::service_account("x", "bot");
        for (said, want) in [
            (
                reason(&dev, "get", "", "pods", "p"),
                r#"RBAC: allowed by RoleBinding "readers/x" of ClusterRole "reader" to Group "devs""#,
            ),
            (
                reason(&ann, "update", "apps", "deployments/scale", "d"),
                r#"RBAC: allowed by ClusterRoleBinding "scalers" of ClusterRole "scaler" to User "ann""#,
            ),
            (
                reason(&bot, "get", "", "configmaps", "only"),
                r#"RBAC: allowed by RoleBinding "one/x" of Role "one" to ServiceAccount "bot/x""#,
            ),
        ] {
            assert_eq!(said, want);
        }
    }

    #[test]
    fn a_removed_binding_grants_nothing() {
        let mut policy = policy();
        policy.remove_binding("x", "readers");
        let dev = UserInfo::new("dan", &["devs"]);
        assert!(!policy.authorize(&Attributes::resource(&dev, "get", "", "pods", "x", "p")).is_allowed());
    }

    #[test]
    fn paths_match_by_prefix() {
        assert!(url_matches("/healthz/*", "/healthz/etcd"));
        assert!(!url_matches("/healthz", "/healthz/etcd"));
        assert!(url_matches("*", "/anything"));
    }

    #[test]
    fn granting_more_than_one_has_is_seen_atom_by_atom() {
        let owned = [rule("get,list", "core", "pods", ""), rule("*", "apps", "*", "")];
        let cases = [
            (rule("get", "core", "pods", ""), 0),
            (rule("get,delete", "core", "pods", ""), 1),
            (rule("get", "core", "pods", "one"), 0),
            (rule("get", "core", "*", ""), 1),
            (rule("update,get", "apps", "deployments/scale,deployments", ""), 0),
            (rule("get", "core,batch", "pods,jobs", ""), 3),
        ];
        for (wanted, count) in cases {
            assert_eq!(missing(&owned, std::slice::from_ref(&wanted)).len(), count, "{wanted:?}");
        }
        assert_eq!(missing(&[rule("get", "core", "pods", "a")], &[rule("get", "core", "pods", "")]).len(), 1);
    }
}
