//! Who may do what.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names, selector,
};
use serde_json::Value;

use crate::{Change, Column, Definition, Effect, MetaCheck, Rules};

const GROUP: &str = "rbac.authorization.k8s.io";

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    let role = |definition: Definition, namespaced: bool| {
        definition
            .named(names::is_path_segment_name)
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .create_on_update()
            .effects(&[Effect::CheckEscalation])
            .columns(vec![Column::created_at()])
            .rules(Role { namespaced })
    };
    let binding = |definition: Definition, namespaced: bool| {
        definition
            .named(names::is_path_segment_name)
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .create_on_update()
            .effects(&[Effect::CheckEscalation])
            .columns(binding_columns())
            .rules(Binding { namespaced })
    };
    vec![
        binding(Definition::cluster(GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings"), false),
        role(Definition::cluster(GROUP, "v1", "ClusterRole", "clusterroles"), false),
        binding(Definition::namespaced(GROUP, "v1", "RoleBinding", "rolebindings"), true),
        role(Definition::namespaced(GROUP, "v1", "Role", "roles"), true),
    ]
}

fn binding_columns() -> Vec<Column> {
    vec![
        Column::new("Role", |binding, _| {
            format!("{}/{}", get_str(binding, "roleRef.kind"), get_str(binding, "roleRef.name")).into()
        }),
        Column::age(),
        Column::new("Users", |binding, _| subjects(binding, "User").into()).wide(),
        Column::new("Groups", |binding, _| subjects(binding, "Group").into()).wide(),
        Column::new("ServiceAccounts", |binding, _| subjects(binding, "ServiceAccount").into()).wide(),
    ]
}

fn subjects(binding: &Value, kind: &str) -> String {
    let list = get_list(binding, "subjects").iter().filter(|subject| subject["kind"] == kind);
    let names: Vec<String> = list
        .map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", get_str(subject, "namespace"), get_str(subject, "name")),
            _ => get_str(subject, "name").to_owned(),
        })
        .collect();
    names.join(", ")
}

struct Role {
    namespaced: bool,
}

impl Rules for Role {
    /// Clients have always seen null where there is no rule.
    fn set_defaults(&self, role: &mut Value) {
        if let Some(role) = role.as_object_mut()
            && role.get("rules").and_then(Value::as_array).is_none_or(Vec::is_empty)
        {
            role.insert("rules".into(), Value::Null);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let list = Path::new("rules");
        for (index, rule) in get_list(change.new, "rules").iter().enumerate() {
            policy_rule(rule, self.namespaced, &list.index(index), problems);
        }
        if let Some(rule) = change.new.get("aggregationRule") {
            let path = Path::new("aggregationRule");
            let path = path.child("clusterRoleSelectors");
            let selectors = get_list(rule, "clusterRoleSelectors");
            if selectors.is_empty() {
                problems.required(
                    &path,
                    "at least one clusterRoleSelector required if aggregationRule is non-nil",
                );
            }
            for (index, value) in selectors.iter().enumerate() {
                selector::validate_object(value, &path.index(index), problems);
                if selector::LabelSelector::from_object(value).is_err() {
                    problems.invalid(&path.index(index), Value::Null, "invalid label selector.");
                }
            }
        }
    }
}

fn policy_rule(rule: &Value, namespaced: bool, path: &Path<'_>, problems: &mut Problems) {
    let list = |field: &str| get_list(rule, field);
    if list("verbs").is_empty() {
        problems.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    let urls = list("nonResourceURLs");
    if !urls.is_empty() {
        let shown = Value::Array(urls.to_vec());
        let at = path.child("nonResourceURLs");
        if namespaced {
            problems.invalid(&at, shown.clone(), "namespaced rules cannot apply to non-resource URLs");
        }
        if !list("apiGroups").is_empty() || !list("resources").is_empty() || !list("resourceNames").is_empty()
        {
            problems.invalid(
                &at,
                shown,
                "rules cannot apply to both regular resources and non-resource URLs",
            );
        }
        return;
    }
    if list("apiGroups").is_empty() {
        problems.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if list("resources").is_empty() {
        problems.required(&path.child("resources"), "resource rules must supply at least one resource");
    }
}

struct Binding {
    namespaced: bool,
}

impl Rules for Binding {
    fn set_defaults(&self, binding: &mut Value) {
        if let Some(role) = binding.get_mut("roleRef").and_then(Value::as_object_mut)
            && role.get("apiGroup").is_none_or(|group| group == "")
        {
            role.insert("apiGroup".into(), GROUP.into());
        }
        if let Some(Value::Array(subjects)) = binding.get_mut("subjects") {
            for subject in subjects {
                let person = subject["kind"] == "User" || subject["kind"] == "Group";
                if person && subject.get("apiGroup").is_none() {
                    subject["apiGroup"] = GROUP.into();
                }
            }
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("roleRef");
        let role = &change.new["roleRef"];
        if get_str(role, "apiGroup") != GROUP {
            problems.not_supported(&path.child("apiGroup"), get_str(role, "apiGroup"), &[GROUP]);
        }
        let kinds: &[&str] = if self.namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        let kind = get_str(role, "kind");
        if !kinds.contains(&kind) {
            problems.not_one_of(&path.child("kind"), kind, kinds);
        }
        crate::checks::required_syntax(role, "name", names::is_path_segment_name, &path, problems);
        let list = Path::new("subjects");
        for (index, subject) in get_list(change.new, "subjects").iter().enumerate() {
            self.subject(subject, &list.index(index), problems);
        }
        if let Some(old) = change.old
            && old.get("roleRef") != change.new.get("roleRef")
        {
            let shown = crate::go_form::shown(role, "rbac.RoleRef");
            problems.invalid(&path, shown, "cannot change roleRef");
        }
    }
}

impl Binding {
    fn subject(&self, subject: &Value, path: &Path<'_>, problems: &mut Problems) {
        let (name, group) = (get_str(subject, "name"), get_str(subject, "apiGroup"));
        if name.is_empty() {
            problems.required(&path.child("name"), "");
        }
        match get_str(subject, "kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    problems.invalid_each(&path.child("name"), name, names::is_dns1123_subdomain(name));
                }
                if !group.is_empty() {
                    problems.not_supported(&path.child("apiGroup"), group, &[""]);
                }
                if !self.namespaced && get_str(subject, "namespace").is_empty() {
                    problems.required(&path.child("namespace"), "");
                }
            }
            "User" | "Group" => {
                if group != GROUP {
                    problems.not_supported(&path.child("apiGroup"), group, &[GROUP]);
                }
            }
            other => {
                problems.not_one_of(&path.child("kind"), other, &["ServiceAccount", "User", "Group"]);
            }
        }
    }
}
