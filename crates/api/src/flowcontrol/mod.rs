//! Priority and fairness of requests.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{
    Change, Column, Definition, MetaCheck, Rules, StatusKeeps, checks,
    defaults::{Constant, Default, apply, apply_over_zero},
    print,
};

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(GROUP, "v1", "FlowSchema", "flowschemas")
            .checks_update(&[MetaCheck::Whole])
            .checks_status(&[])
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .generation()
            .columns(vec![
                Column::path("PriorityLevel", "spec.priorityLevelConfiguration.name"),
                Column::count("MatchingPrecedence", "spec.matchingPrecedence"),
                Column::new("DistinguisherMethod", |schema, _| {
                    print::or(get_str(schema, "spec.distinguisherMethod.type"), "<none>").into()
                }),
                Column::age(),
                Column::new("MissingPL", |schema, _| {
                    print::condition(schema, "Dangling")
                        .map_or("?", |condition| get_str(condition, "status"))
                        .into()
                }),
            ])
            .rules(Schema),
        Definition::cluster(GROUP, "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations")
            .checks_update(&[MetaCheck::Whole])
            .checks_status(&[])
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .generation()
            .columns(vec![
                Column::path("Type", "spec.type"),
                Column::new("NominalConcurrencyShares", |level, _| {
                    shown(
                        level,
                        &["spec.limited.nominalConcurrencyShares", "spec.exempt.nominalConcurrencyShares"],
                    )
                }),
                Column::new("Queues", |level, _| {
                    shown(level, &["spec.limited.limitResponse.queuing.queues"])
                }),
                Column::new("HandSize", |level, _| {
                    shown(level, &["spec.limited.limitResponse.queuing.handSize"])
                }),
                Column::new("QueueLengthLimit", |level, _| {
                    shown(level, &["spec.limited.limitResponse.queuing.queueLengthLimit"])
                }),
                Column::age(),
            ])
            .rules(Level),
    ]
}

fn shown(object: &Value, paths: &[&str]) -> Value {
    let found = paths.iter().find_map(|path| get(object, path));
    found.cloned().unwrap_or_else(|| "<none>".into())
}

struct Schema;

/// Of conditions only their types are judged.
fn condition_types(object: &Value, problems: &mut Problems) {
    let list = Path::new("status.conditions");
    let conditions = get_list(object, "status.conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let at = list.index(index);
        let kind = get_str(condition, "type");
        if conditions[..index].iter().any(|other| get_str(other, "type") == kind) {
            problems.duplicate(&at.child("type"), kind);
        }
        if kind.is_empty() {
            problems.required(&at.child("type"), "");
        }
    }
}

impl Rules for Schema {
    fn set_defaults(&self, schema: &mut Value) {
        apply_over_zero(schema, &[("spec.matchingPrecedence", Constant::Number(1000))]);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        condition_types(change.new, problems);
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        let precedence = spec["matchingPrecedence"].as_i64().unwrap_or(0);
        if precedence <= 0 {
            problems.invalid(&path.child("matchingPrecedence"), precedence, "must be a positive value");
        } else if precedence > 10_000 {
            problems.invalid(&path.child("matchingPrecedence"), precedence, "must not be greater than 10000");
        }
        if let Some(method) = spec.get("distinguisherMethod") {
            let at = path.child("distinguisherMethod");
            if !["ByNamespace", "ByUser"].contains(&get_str(method, "type")) {
                let shown = crate::go_form::shown(method, "flowcontrol.FlowDistinguisherMethod");
                problems.not_supported(&at.child("type"), shown, &["ByNamespace", "ByUser"]);
            }
        }
        let at = path.child("priorityLevelConfiguration");
        let level = &spec["priorityLevelConfiguration"];
        if get_str(level, "name").is_empty() {
            problems.required(&at.child("name"), "must reference a priority level");
        } else {
            checks::syntax(level, "name", names::is_dns1123_subdomain, &at, problems);
        }
        let list = path.child("rules");
        for (index, rule) in get_list(spec, "rules").iter().enumerate() {
            let at = list.index(index);
            let subjects = at.child("subjects");
            if get_list(rule, "subjects").is_empty() {
                problems.required(&subjects, "subjects must contain at least one value");
            }
            for (number, subject) in get_list(rule, "subjects").iter().enumerate() {
                let at = subjects.index(number);
                let kind = get_str(subject, "kind");
                let field = match kind {
                    "User" => "user",
                    "Group" => "group",
                    "ServiceAccount" => "serviceAccount",
                    other => {
                        problems.not_supported(
                            &at.child("kind"),
                            other,
                            &["Group", "ServiceAccount", "User"],
                        );
                        continue;
                    }
                };
                for (other, kind) in
                    [("serviceAccount", "ServiceAccount"), ("user", "User"), ("group", "Group")]
                {
                    if other != field && subject.get(other).is_some() {
                        let text = format!("{other} is forbidden when subject kind is not '{kind}'");
                        problems.forbidden(&at.child(other), text);
                    }
                }
                let Some(who) = subject.get(field) else {
                    let text = format!("{field} is required when subject kind is '{kind}'");
                    problems.required(&at.child(field), text);
                    continue;
                };
                let at = at.child(field);
                let named = checks::required(who, "name", &at, problems);
                if field == "serviceAccount" {
                    let name = get_str(who, "name");
                    if named && name != "*" {
                        checks::syntax(who, "name", names::is_dns1123_subdomain, &at, problems);
                    }
                    if get_str(who, "namespace").is_empty() {
                        problems
                            .required(&at.child("namespace"), "must specify namespace for service account");
                    } else {
                        checks::syntax(who, "namespace", names::is_dns1123_label, &at, problems);
                    }
                }
            }
            if get_list(rule, "resourceRules").is_empty() && get_list(rule, "nonResourceRules").is_empty() {
                problems
                    .required(&at, "at least one of resourceRules and nonResourceRules has to be non-empty");
            }
            let rules = at.child("resourceRules");
            for (number, rule) in get_list(rule, "resourceRules").iter().enumerate() {
                let at = rules.index(number);
                verbs(rule, &at, problems);
                for field in ["apiGroups", "resources"] {
                    if get_list(rule, field).is_empty() {
                        let text = format!("resource rules must supply at least one {}", singular(field));
                        problems.required(&at.child(field), text);
                    } else {
                        only_star(rule, field, &at, problems);
                    }
                }
                let list = at.child("namespaces");
                for (index, namespace) in get_list(rule, "namespaces").iter().enumerate() {
                    let text = namespace.as_str().unwrap_or_default();
                    for complaint in names::is_dns1123_label(text).into_iter().filter(|_| text != "*") {
                        problems.invalid(
                            &list.index(index),
                            text,
                            format!("each member of this list must be '*' or a DNS-1123 label; {complaint}"),
                        );
                    }
                }
                if get_list(rule, "namespaces").is_empty() && rule["clusterScope"] != true {
                    problems.required(
                        &at.child("namespaces"),
                        "resource rules that are not cluster scoped must supply at least one namespace",
                    );
                }
            }
            let rules = at.child("nonResourceRules");
            for (number, rule) in get_list(rule, "nonResourceRules").iter().enumerate() {
                let at = rules.index(number);
                verbs(rule, &at, problems);
                let list = at.child("nonResourceURLs");
                let urls = get_list(rule, "nonResourceURLs");
                if urls.is_empty() {
                    problems.required(&list, "nonResourceURLs must contain at least one value");
                } else if urls.len() > 1 && urls.iter().any(|url| url == "*") {
                    only_star(rule, "nonResourceURLs", &at, problems);
                }
                for (index, url) in urls.iter().enumerate() {
                    if let Some(why) = url_problem(url.as_str().unwrap_or_default()) {
                        problems.invalid(&list.index(index), url.clone(), why);
                    }
                }
            }
        }
    }
}

fn singular(field: &str) -> &'static str {
    if field == "apiGroups" { "api group" } else { "resource" }
}

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Verbs are named, and known, unless all are meant.
fn verbs(rule: &Value, path: &Path<'_>, problems: &mut Problems) {
    let verbs = get_list(rule, "verbs");
    let known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if verbs.is_empty() {
        problems.required(&path.child("verbs"), "verbs must contain at least one value");
    } else if verbs.iter().any(|verb| verb == "*") {
        only_star(rule, "verbs", path, problems);
    } else if !verbs.iter().all(known) {
        problems.not_supported(&path.child("verbs"), Value::from(verbs), VERBS);
    }
}

/// Who says `*` says nothing else.
fn only_star(rule: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    let list = get_list(rule, field);
    if list.len() > 1 && list.iter().any(|one| one == "*") {
        let text = format!("if '*' is present, must not specify other {}", words(field));
        problems.invalid(&path.child(field), Value::from(list), text);
    }
}

fn words(field: &str) -> &str {
    match field {
        "apiGroups" => "api groups",
        "nonResourceURLs" => "non-resource URLs",
        other => other,
    }
}

fn url_problem(url: &str) -> Option<&'static str> {
    if url.is_empty() {
        return Some("must not be empty");
    }
    if url == "/" || url == "*" {
        return None;
    }
    if !url.starts_with('/') {
        return Some("must start with slash");
    }
    if url.contains(' ') {
        return Some("must not contain white-space");
    }
    if url.contains("//") {
        return Some("must not contain double slash");
    }
    let below = url.split_once('*').map(|(_, rest)| rest);
    if below.is_some_and(|rest| !rest.is_empty()) || below.is_some() && !url.ends_with("/*") {
        return Some("wildcard can only do suffix matching");
    }
    None
}

struct Level;

const LEVEL: &[Default] = &[
    ("spec.exempt.nominalConcurrencyShares", Constant::Number(0)),
    ("spec.exempt.lendablePercent", Constant::Number(0)),
    ("spec.limited.nominalConcurrencyShares", Constant::Number(30)),
    ("spec.limited.lendablePercent", Constant::Number(0)),
];

const QUEUES: &[Default] = &[
    ("spec.limited.limitResponse.queuing.handSize", Constant::Number(8)),
    ("spec.limited.limitResponse.queuing.queues", Constant::Number(64)),
    ("spec.limited.limitResponse.queuing.queueLengthLimit", Constant::Number(50)),
];

impl Rules for Level {
    fn set_defaults(&self, level: &mut Value) {
        apply(level, LEVEL);
        apply_over_zero(level, QUEUES);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        condition_types(change.new, problems);
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        let exempt = change.new.name() == "exempt";
        if get_str(spec, "type").is_empty() {
            problems.required(&path.child("type"), "");
            return;
        }
        if get_str(spec, "type") == "Exempt" && !exempt {
            problems.invalid(
                &path.child("type"),
                get_str(spec, "type"),
                "must be 'Exempt' if and only if `name` is 'exempt'",
            );
        }
        match get_str(spec, "type") {
            "Exempt" => {
                if spec.get("limited").is_some() {
                    problems.forbidden(&path.child("limited"), "must be nil if the type is not Limited");
                }
                if let Some(own) = spec.get("exempt") {
                    let at = path.child("exempt");
                    shares(own, &at, problems);
                    checks::in_range(own, "lendablePercent", 0, 100, &at, problems);
                }
            }
            "Limited" => {
                if spec.get("exempt").is_some() {
                    problems.forbidden(&path.child("exempt"), "must be nil if the type is Limited");
                }
                match spec.get("limited") {
                    None => {
                        problems.required(&path.child("limited"), "must not be empty when type is Limited")
                    }
                    Some(limited) => limited_rules(limited, &path.child("limited"), problems),
                }
            }
            other => problems.not_supported(&path.child("type"), other, &["Exempt", "Limited"]),
        }
    }
}

fn shares(level: &Value, path: &Path<'_>, problems: &mut Problems) {
    let shares = &level["nominalConcurrencyShares"];
    if shares.as_i64().is_some_and(|shares| shares < 0) {
        let at = path.child("nominalConcurrencyShares");
        problems.invalid(&at, shares.clone(), "must be a non-negative integer");
    }
}

fn limited_rules(limited: &Value, path: &Path<'_>, problems: &mut Problems) {
    shares(limited, path, problems);
    limit_response(&limited["limitResponse"], &path.child("limitResponse"), problems);
    checks::in_range(limited, "lendablePercent", 0, 100, path, problems);
    if let Some(limit) = limited["borrowingLimitPercent"].as_i64()
        && limit < 0
    {
        problems.invalid(
            &path.child("borrowingLimitPercent"),
            limit,
            "if specified, must be a non-negative integer",
        );
    }
}

fn limit_response(response: &Value, at: &Path<'_>, problems: &mut Problems) {
    match get_str(response, "type") {
        "Reject" => {
            if response.get("queuing").is_some() {
                problems.forbidden(
                    &at.child("queuing"),
                    "must be nil if limited.limitResponse.type is not Limited",
                );
            }
        }
        "Queue" => match response.get("queuing") {
            None => problems
                .required(&at.child("queuing"), "must not be empty if limited.limitResponse.type is Limited"),
            Some(queuing) => {
                let at = at.child("queuing");
                let number = |field: &str| queuing[field].as_i64().unwrap_or(0);
                for field in ["queueLengthLimit", "queues", "handSize"] {
                    if number(field) <= 0 {
                        problems.invalid(&at.child(field), number(field), "must be positive");
                    }
                }
                if number("queues") > 10_000_000 {
                    problems.invalid(
                        &at.child("queues"),
                        number("queues"),
                        "must not be greater than 10000000",
                    );
                }
                if number("handSize") > 0 && number("handSize") > number("queues") {
                    let text = format!("should not be greater than queues ({})", number("queues"));
                    problems.invalid(&at.child("handSize"), number("handSize"), text);
                }
            }
        },
        "" => problems.required(&at.child("type"), ""),
        other => problems.not_supported(&at.child("type"), other, &["Queue", "Reject"]),
    }
}
