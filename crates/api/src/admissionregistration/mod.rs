//! Webhooks and policies that judge writes.

pub mod policy;
mod url;

use std::collections::HashSet;

use apimachinery::{
    field::{Path, Problem, ProblemKind, Problems},
    meta::{get, get_list, get_str},
    names, selector,
};
use serde_json::Value;

use self::url::Url;
use crate::{
    Change, Column, Definition, MetaCheck, Rules, checks,
    defaults::{Constant, Default, apply},
};

const GROUP: &str = "admissionregistration.k8s.io";
const CATEGORIES: &[&str] = &["api-extensions"];

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    let kind = |kind: &'static str, plural: &'static str| {
        Definition::cluster(GROUP, "v1", kind, plural)
            .categories(CATEGORIES)
            .generation()
            .versioned_updates()
            .any_finalizers()
            .checks_update(&[MetaCheck::Whole])
            .checks_status(&[])
    };
    let webhooks = || {
        vec![
            Column::new("Webhooks", |object, _| get_list(object, "webhooks").len().into()).integer(),
            Column::age(),
        ]
    };
    let policy = |name: &'static str, count: fn(&Value, jiff::Timestamp) -> Value| {
        vec![
            Column::new(name, count).integer(),
            Column::new("ParamKind", |object, _| match get(object, "spec.paramKind") {
                Some(kind) => format!("{}/{}", get_str(kind, "apiVersion"), get_str(kind, "kind")).into(),
                None => "<unset>".into(),
            }),
            Column::age(),
        ]
    };
    let binding = || {
        vec![
            Column::path("PolicyName", "spec.policyName"),
            Column::new("ParamRef", |object, _| match get(object, "spec.paramRef") {
                Some(reference) => match get_str(reference, "namespace") {
                    "" => get_str(reference, "name").into(),
                    namespace => format!("{namespace}/{}", get_str(reference, "name")).into(),
                },
                None => "<unset>".into(),
            }),
            Column::age(),
        ]
    };
    vec![
        kind("MutatingAdmissionPolicy", "mutatingadmissionpolicies")
            .columns(policy("Mutations", |object, _| get_list(object, "spec.mutations").len().into()))
            .rules(Policy { work: "mutations" }),
        kind("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")
            .columns(binding())
            .rules(Binding { actions: false }),
        kind("MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
            .columns(webhooks())
            .rules(Webhooks { mutating: true }),
        kind("ValidatingAdmissionPolicy", "validatingadmissionpolicies")
            .status_keeps(crate::StatusKeeps::Metadata)
            .status()
            .columns(policy("Validations", |object, _| get_list(object, "spec.validations").len().into()))
            .rules(Policy { work: "validations" }),
        kind("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings")
            .columns(binding())
            .rules(Binding { actions: true }),
        kind("ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
            .columns(webhooks())
            .rules(Webhooks { mutating: false }),
    ]
}

struct Webhooks {
    mutating: bool,
}

const WEBHOOK: &[Default] = &[
    ("webhooks.*.failurePolicy", Constant::Text("Fail")),
    ("webhooks.*.matchPolicy", Constant::Text("Equivalent")),
    ("webhooks.*.namespaceSelector", Constant::Empty),
    ("webhooks.*.objectSelector", Constant::Empty),
    ("webhooks.*.timeoutSeconds", Constant::Number(10)),
    ("webhooks.*.rules.*.scope", Constant::Text("*")),
    ("webhooks.*.clientConfig.service.port", Constant::Number(443)),
];

impl Rules for Webhooks {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, WEBHOOK);
        if self.mutating {
            apply(object, &[("webhooks.*.reinvocationPolicy", Constant::Text("Never"))]);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let list = Path::new("webhooks");
        let mut seen: Vec<&str> = Vec::new();
        for (index, webhook) in get_list(change.new, "webhooks").iter().enumerate() {
            let at = list.index(index);
            let name = get_str(webhook, "name");
            if name.is_empty() {
                problems.required(&at.child("name"), "");
            } else {
                problems.invalid_each(&at.child("name"), name, names::is_fully_qualified_name(name));
            }
            self.webhook(webhook, &at, problems);
            let versions = get_list(webhook, "admissionReviewVersions");
            let missing = "must specify one of v1, v1beta1";
            review_versions(versions, missing, &at.child("admissionReviewVersions"), problems);
            if !name.is_empty() && seen.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
            seen.push(name);
        }
    }
}

impl Webhooks {
    fn webhook(&self, webhook: &Value, path: &Path<'_>, problems: &mut Problems) {
        let list = path.child("rules");
        for (index, rule) in get_list(webhook, "rules").iter().enumerate() {
            rule_with_operations(rule, &list.index(index), problems);
        }
        checks::one_of(webhook, "failurePolicy", false, &["Fail", "Ignore"], path, problems);
        checks::one_of(webhook, "matchPolicy", false, &["Equivalent", "Exact"], path, problems);
        let effects = ["None", "NoneOnDryRun"];
        match webhook.get("sideEffects").and_then(Value::as_str) {
            None => problems.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun"),
            Some(text) if effects.contains(&text) => {}
            Some(text) => problems.not_supported(&path.child("sideEffects"), text, &effects),
        }
        if webhook["timeoutSeconds"].as_i64().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
            problems.invalid(
                &path.child("timeoutSeconds"),
                webhook["timeoutSeconds"].clone(),
                "the timeout value must be between 1 and 30 seconds",
            );
        }
        for field in ["namespaceSelector", "objectSelector"] {
            if let Some(value) = webhook.get(field) {
                selector::validate_object(value, &path.child(field), problems);
            }
        }
        if self.mutating {
            checks::one_of(webhook, "reinvocationPolicy", false, &["IfNeeded", "Never"], path, problems);
        }
        client_config(&webhook["clientConfig"], &path.child("clientConfig"), problems);
        let list = get_list(webhook, "matchConditions");
        let at = path.child("matchConditions");
        let mut failures = Vec::new();
        policy::conditions(list, &policy::Types::dynamic(false), &at.to_string(), &mut failures);
        conditions(list, &failures, &at, problems);
    }
}

/// The versions of reviews that a webhook reads; `missing` is said when there are none.
pub fn review_versions(versions: &[Value], missing: &str, path: &Path<'_>, problems: &mut Problems) {
    if versions.is_empty() {
        problems.required(path, missing);
        return;
    }
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let text = version.as_str().unwrap_or_default();
        if seen.insert(text) {
            problems.invalid_each(&path.index(index), text, names::is_dns1035_label(text));
        } else {
            problems.invalid(&path.index(index), text, "duplicate version");
        }
    }
    if !seen.contains("v1") && !seen.contains("v1beta1") {
        problems.invalid(path, versions.to_vec(), "must include at least one of v1, v1beta1");
    }
}

/// Where a webhook is: a URL or a Service, not both.
pub fn client_config(config: &Value, path: &Path<'_>, problems: &mut Problems) {
    match (config.get("url"), config.get("service")) {
        (Some(_), Some(_)) | (None, None) => {
            problems.required(path, "exactly one of url or service is required");
        }
        (Some(url), None) => {
            webhook_url(url.as_str().unwrap_or_default(), &path.child("url"), problems);
        }
        (None, Some(service)) => {
            let at = path.child("service");
            // Upstream takes each of the two for the other.
            for (field, said) in [("namespace", "name"), ("name", "namespace")] {
                if get_str(service, field).is_empty() {
                    problems.required(&at.child(said), "");
                }
            }
            let port = service["port"].as_i64().unwrap_or(0);
            for complaint in names::is_port_number(port) {
                problems.invalid(&at.child("port"), port, format!("port is not valid: {complaint}"));
            }
            url_path(get_str(service, "path"), &at.child("path"), problems);
        }
    }
}

fn webhook_url(text: &str, path: &Path<'_>, problems: &mut Problems) {
    const FORM: &str = "; desired format: https://host[/path]";
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(why) => {
            problems.required(path, format!("url must be a valid URL: {why}{FORM}"));
            return;
        }
    };
    if url.scheme != "https" {
        problems.invalid(path, url.scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        problems.invalid(path, "", format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        problems.invalid(path, user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        problems.invalid(path, url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        problems.invalid(path, url.query, "query parameters are not permitted in the URL");
    }
}

fn url_path(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.is_empty() || text == "/" {
        return;
    }
    if text == "//" {
        problems.invalid(path, text, "segment[0] may not be empty");
        return;
    }
    if !text.starts_with('/') {
        problems.invalid(path, text, "must start with a '/'");
    }
    // The first byte goes whatever it is.
    let rest = text.get(1..).unwrap_or_default();
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            problems.invalid(path, text, format!("segment[{index}] may not be empty"));
            continue;
        }
        for complaint in names::is_dns1123_subdomain(step) {
            problems.invalid(path, text, format!("segment[{index}]: {complaint}"));
        }
    }
}

fn rule_with_operations(rule: &Value, path: &Path<'_>, problems: &mut Problems) {
    let operations: Vec<&str> = get_list(rule, "operations").iter().filter_map(Value::as_str).collect();
    let at = path.child("operations");
    if operations.is_empty() {
        problems.required(&at, "");
    }
    if operations.len() > 1 && operations.contains(&"*") {
        problems.invalid(
            &at,
            Value::from(operations.clone()),
            "if '*' is present, must not specify other operations",
        );
    }
    let allowed = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (index, operation) in operations.iter().enumerate() {
        if !allowed.contains(operation) {
            problems.not_supported(&at.index(index), *operation, &allowed);
        }
    }
    for field in ["apiGroups", "apiVersions", "resources"] {
        let values = get_list(rule, field);
        let at = path.child(field);
        if values.is_empty() {
            problems.required(&at, "");
        }
        if field != "resources" && values.len() > 1 && values.iter().any(|value| value == "*") {
            let word = if field == "apiGroups" { "API groups" } else { "API versions" };
            problems.invalid(
                &at,
                Value::Array(values.to_vec()),
                format!("if '*' is present, must not specify other {word}"),
            );
        }
        for (index, value) in values.iter().enumerate().filter(|_| field != "apiGroups") {
            if value == "" {
                problems.required(&at.index(index), "");
            }
        }
    }
    checks::one_of(rule, "scope", false, &["*", "Cluster", "Namespaced"], path, problems);
}

/// Expressions that do not compile are invalid values; told are those at a place.
fn report(failures: &[policy::Failure], place: &Path<'_>, problems: &mut Problems) {
    let place = place.to_string();
    for failure in failures.iter().filter(|failure| failure.path == place) {
        problems.push(Problem {
            kind: ProblemKind::Invalid,
            path: failure.path.clone(),
            value: Some(failure.expression.clone().into()),
            detail: failure.message.clone(),
        });
    }
}

/// Names and expressions of match conditions; `failures` are those of the expressions.
fn conditions(list: &[Value], failures: &[policy::Failure], path: &Path<'_>, problems: &mut Problems) {
    if list.len() > 64 {
        problems.too_many(path, list.len(), 64);
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in list.iter().enumerate() {
        let at = path.index(index);
        if get_str(condition, "expression").trim().is_empty() {
            problems.required(&at.child("expression"), "");
        }
        report(failures, &at.child("expression"), problems);
        let name = get_str(condition, "name");
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        } else {
            problems.invalid_each(&at.child("name"), name, names::is_qualified_name(name));
            if seen.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
        }
        seen.push(name);
    }
}

fn match_resources(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::one_of_given(value, "matchPolicy", &["Equivalent", "Exact"], path, problems);
    for field in ["namespaceSelector", "objectSelector"] {
        match value.get(field) {
            Some(labels) => selector::validate_object(labels, &path.child(field), problems),
            None => problems.required(&path.child(field), ""),
        }
    }
    for field in ["resourceRules", "excludeResourceRules"] {
        let list = path.child(field);
        for (index, rule) in get_list(value, field).iter().enumerate() {
            let at = list.index(index);
            let names_path = at.child("resourceNames");
            let own = get_list(rule, "resourceNames");
            for (number, name) in own.iter().enumerate() {
                let text = name.as_str().unwrap_or_default();
                problems.invalid_each(&names_path.index(number), text, names::is_path_segment_name(text));
                if own[..number].contains(name) {
                    problems.duplicate(&names_path.index(number), text);
                }
            }
            rule_with_operations(rule, &list.index(index), problems);
        }
    }
}

/// What goes away cannot be changed.
fn mutating_operations(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    let allowed = ["*", "CONNECT", "CREATE", "UPDATE"];
    let rules = get_list(value, "resourceRules").iter();
    for operation in rules.flat_map(|rule| get_list(rule, "operations")) {
        if !allowed.iter().any(|known| operation == known) {
            problems.not_supported(&path.child("resourceRules.operations"), operation.clone(), &allowed);
        }
    }
}

const MATCHING: &[(&str, Constant)] = &[
    ("matchPolicy", Constant::Text("Equivalent")),
    ("namespaceSelector", Constant::Empty),
    ("objectSelector", Constant::Empty),
    ("resourceRules.*.scope", Constant::Text("*")),
    ("excludeResourceRules.*.scope", Constant::Text("*")),
];

struct Policy {
    work: &'static str,
}

impl Rules for Policy {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, &[("spec.failurePolicy", Constant::Text("Fail"))]);
        if let Some(constraints) = object.get_mut("spec").and_then(|spec| spec.get_mut("matchConstraints")) {
            apply(constraints, MATCHING);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            let status = Path::new("status");
            let list = status.child("typeChecking");
            let list = list.child("expressionWarnings");
            let warnings = get_list(change.new, "status.typeChecking.expressionWarnings");
            for (index, warning) in warnings.iter().enumerate() {
                let at = list.index(index);
                checks::required(warning, "fieldRef", &at, problems);
                checks::required(warning, "warning", &at, problems);
            }
            checks::conditions(&change.new["status"], &status, problems);
            return;
        }
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        checks::one_of_given(spec, "failurePolicy", &["Fail", "Ignore"], &path, problems);
        if let Some(kind) = spec.get("paramKind") {
            param_kind(kind, &path.child("paramKind"), problems);
        }
        match spec.get("matchConstraints") {
            None => problems.required(&path.child("matchConstraints"), ""),
            Some(value) => {
                let at = path.child("matchConstraints");
                match_resources(value, &at, problems);
                if get_list(value, "resourceRules").is_empty() {
                    problems.required(&at.child("resourceRules"), "");
                }
                if self.work == "mutations" {
                    mutating_operations(value, &at, problems);
                }
            }
        }
        // What is stored already keeps working; only what changed has to compile.
        let failures = if change.old.is_none_or(|old| old["spec"] != *spec) {
            policy::compile(spec, &policy::Types::dynamic(spec.get("paramKind").is_some())).1
        } else {
            Vec::new()
        };
        let list = get_list(spec, "matchConditions");
        conditions(list, &failures, &path.child("matchConditions"), problems);
        self.expressions(change.new, &failures, problems);
    }
}

impl Policy {
    /// That expressions are there, have names, compile, and come with what they need.
    fn expressions(&self, object: &Value, failures: &[policy::Failure], problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &object["spec"];
        let list = path.child("variables");
        for (index, variable) in get_list(spec, "variables").iter().enumerate() {
            let at = list.index(index);
            let name = get_str(variable, "name");
            if name.trim().is_empty() {
                problems.required(&at.child("name"), "name is not specified");
            } else if !cel::is_identifier(name) {
                problems.invalid(&at.child("name"), name, "must be a valid CEL identifier");
            }
            if get_str(variable, "expression").trim().is_empty() {
                problems.required(&at.child("expression"), "expression is not specified");
            }
            report(failures, &at.child("expression"), problems);
        }
        let work = get_list(spec, self.work);
        let list = path.child(self.work);
        let annotations = get_list(spec, "auditAnnotations");
        if work.is_empty() && annotations.is_empty() {
            if self.work == "validations" {
                let text = "validations or auditAnnotations must contain at least one item";
                problems.required(&list, text);
                problems.required(&path.child("auditAnnotations"), text);
            } else {
                problems.required(&list, "mutations must contain at least one item");
            }
        }
        for (index, item) in work.iter().enumerate() {
            let at = list.index(index);
            if self.work == "validations" {
                validation(item, &at, failures, problems);
            } else {
                mutation(item, &at, problems);
                for field in ["applyConfiguration", "jsonPatch"] {
                    report(failures, &at.child(field).child("expression"), problems);
                }
            }
        }
        let list = path.child("auditAnnotations");
        if annotations.len() > 20 {
            problems.invalid(
                &list,
                Value::from(annotations.to_vec()),
                "must not have more than 20 auditAnnotations",
            );
        }
        for (index, annotation) in annotations.iter().enumerate() {
            let at = list.index(index);
            let key = get_str(annotation, "key");
            let full = format!("{}/{key}", get_str(object, "metadata.name"));
            problems.invalid_each(&at.child("key"), &full, names::is_qualified_name(&full));
            if get_str(annotation, "valueExpression").trim().is_empty() {
                problems.required(&at.child("valueExpression"), "valueExpression is not specified");
            }
            report(failures, &at.child("valueExpression"), problems);
            if annotations[..index].iter().any(|other| get_str(other, "key") == key) {
                problems.duplicate(&at.child("key"), key);
            }
        }
        if self.work == "mutations" {
            checks::one_of(spec, "reinvocationPolicy", true, &["IfNeeded", "Never"], &path, problems);
        }
    }
}

fn validation(item: &Value, at: &Path<'_>, failures: &[policy::Failure], problems: &mut Problems) {
    if get_str(item, "expression").trim().is_empty() {
        problems.required(&at.child("expression"), "expression is not specified");
    }
    report(failures, &at.child("expression"), problems);
    for field in ["messageExpression", "message"] {
        report(failures, &at.child(field), problems);
        let text = get_str(item, field);
        if !text.is_empty() && text.trim().is_empty() {
            problems.invalid(&at.child(field), text, "must be non-empty if specified");
        }
    }
    let message = get_str(item, "message");
    if message.trim().contains('\n') {
        problems.invalid(&at.child("message"), message, "must not contain line breaks");
    }
    let reasons = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
    checks::one_of(item, "reason", false, &reasons, at, problems);
}

fn mutation(item: &Value, at: &Path<'_>, problems: &mut Problems) {
    checks::one_of(item, "patchType", true, &["ApplyConfiguration", "JSONPatch"], at, problems);
    let (own, other, word) = match get_str(item, "patchType") {
        "JSONPatch" => ("jsonPatch", "applyConfiguration", "JSONPatch"),
        "ApplyConfiguration" => ("applyConfiguration", "jsonPatch", "ApplyConfiguration"),
        _ => return,
    };
    match item.get(own) {
        None => problems.required(&at.child(own), format!("must be specified when patchType is {word}")),
        Some(patch) if get_str(patch, "expression").trim().is_empty() => {
            problems.required(&at.child(own).child("expression"), "");
        }
        Some(_) => {}
    }
    if item.get(other).is_some() {
        problems.invalid(
            &at.child(other),
            format!("{{{other}}}"),
            format!("must not be specified when patchType is {word}"),
        );
    }
}

fn param_kind(kind: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("apiVersion");
    let text = get_str(kind, "apiVersion");
    let (group, version) = text.split_once('/').unwrap_or(("", text));
    if text.is_empty() {
        problems.required(&at, "");
    } else if version.contains('/') {
        problems.invalid(&at, text, format!("unexpected GroupVersion string: {text}"));
    } else {
        let complaints = names::is_dns1123_subdomain(group);
        if !group.is_empty() && !complaints.is_empty() {
            problems.invalid(&at, group, complaints.join(","));
        }
        let complaints = names::is_dns1035_label(version);
        if version.is_empty() {
            problems.invalid(&at, text, "version must be specified");
        } else if !complaints.is_empty() {
            problems.invalid(&at, version, complaints.join(","));
        }
    }
    let at = path.child("kind");
    let text = get_str(kind, "kind");
    let complaints = names::is_dns1035_label(&text.to_lowercase());
    if text.is_empty() {
        problems.required(&at, "");
    } else if !complaints.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", complaints.join(","));
        problems.invalid(&at, text, why);
    }
}

struct Binding {
    actions: bool,
}

impl Rules for Binding {
    fn set_defaults(&self, object: &mut Value) {
        if let Some(resources) = object.get_mut("spec").and_then(|spec| spec.get_mut("matchResources")) {
            apply(resources, MATCHING);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        checks::required_syntax(spec, "policyName", names::is_dns1123_subdomain, &path, problems);
        if let Some(reference) = spec.get("paramRef") {
            let at = path.child("paramRef");
            let name = get_str(reference, "name");
            let both = !name.is_empty() && reference.get("selector").is_some();
            if !name.is_empty() {
                problems.invalid_each(&at.child("name"), name, names::is_path_segment_name(name));
            }
            if both {
                problems.forbidden(&at.child("name"), "name and selector are mutually exclusive");
            }
            if let Some(labels) = reference.get("selector") {
                selector::validate_object(labels, &at.child("selector"), problems);
            }
            if both {
                problems.forbidden(&at.child("selector"), "name and selector are mutually exclusive");
            }
            if name.is_empty() && reference.get("selector").is_none() {
                problems.required(&at, "one of name or selector must be specified");
            }
            let actions = ["Deny", "Allow"];
            checks::one_of_ordered(reference, "parameterNotFoundAction", true, &actions, &at, problems);
        }
        if let Some(value) = spec.get("matchResources") {
            let at = path.child("matchResources");
            match_resources(value, &at, problems);
            if !self.actions {
                mutating_operations(value, &at, problems);
            }
        }
        if self.actions {
            let list = path.child("validationActions");
            let actions = get_list(spec, "validationActions");
            if actions.is_empty() {
                problems.required(&list, "at least one validation action is required");
            }
            for (index, action) in actions.iter().enumerate() {
                let text = action.as_str().unwrap_or_default();
                if !["Audit", "Deny", "Warn"].contains(&text) {
                    problems.not_supported(&list.index(index), text, &["Audit", "Deny", "Warn"]);
                }
                if actions[..index].contains(action) {
                    problems.duplicate(&list.index(index), text);
                }
            }
            if actions.iter().any(|action| action == "Deny") && actions.iter().any(|action| action == "Warn")
            {
                problems.invalid(
                    &list,
                    Value::Array(actions.to_vec()),
                    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
                );
            }
        }
    }
}
