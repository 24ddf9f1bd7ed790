//! Devices that pods claim.

mod claim_status;
mod slice;

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, MetaCheck, Rules, StatusKeeps, checks,
    core::resource_names,
    defaults::{Constant, apply},
};

const GROUP: &str = "resource.k8s.io";
/// What a taint does to pods that do not tolerate it.
const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];
const REQUEST: &str =
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(GROUP, "v1", "DeviceClass", "deviceclasses")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .answers_with_object()
            .generation()
            .rules(Class),
        Definition::namespaced(GROUP, "v1", "ResourceClaim", "resourceclaims")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .checks_status(&[])
            .answers_with_object()
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .columns(vec![Column::new("State", |claim, _| state(claim).into()), Column::age()])
            .rules(Claim { path: "spec" }),
        Definition::namespaced(GROUP, "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .answers_with_object()
            .rules(Claim { path: "spec.spec" }),
        Definition::cluster(GROUP, "v1", "ResourceSlice", "resourceslices")
            .answers_with_object()
            .generation()
            .label("spec.driver")
            .label("spec.nodeName")
            .columns(vec![
                Column::path("Node", "spec.nodeName"),
                Column::path("Driver", "spec.driver"),
                Column::path("Pool", "spec.pool.name"),
                Column::age(),
            ])
            .gated(&[
                "spec.devices.*.nodeAllocatableResourceMappings",
                "spec.devices.*.attributes.*.bools|ints|strings|versions",
            ])
            .rules(slice::Slice),
    ]
}

fn state(claim: &Value) -> String {
    let mut words = Vec::new();
    if get(claim, "metadata.deletionTimestamp").is_some() {
        words.push("deleted");
    }
    if get(claim, "status.allocation").is_none() {
        if get(claim, "metadata.deletionTimestamp").is_none() {
            words.push("pending");
        }
    } else {
        words.push("allocated");
        if !get_list(claim, "status.reservedFor").is_empty() {
            words.push("reserved");
        }
    }
    words.join(",")
}

fn selectors(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("selectors");
    let all = get_list(value, "selectors");
    if all.len() > 32 {
        problems.too_many(&list, all.len(), 32);
    }
    for (index, selector) in all.iter().enumerate() {
        let at = list.index(index);
        match selector.get("cel") {
            None => problems.required(&at.child("cel"), ""),
            Some(cel) if get_str(cel, "expression").len() > 10 * 1024 => {
                let at = at.child("cel");
                problems.too_long(&at.child("expression"), 10 * 1024);
            }
            Some(own) => {
                let source = get_str(own, "expression");
                if let Err(text) = cel::device::Selector::compile(source) {
                    let at = at.child("cel");
                    problems.invalid(&at.child("expression"), source, text);
                }
            }
        }
    }
}

struct Class;

impl Rules for Class {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        selectors(&change.new["spec"], &path, problems);
        let list = path.child("config");
        let config = get_list(change.new, "spec.config");
        if config.len() > 32 {
            problems.too_many(&list, config.len(), 32);
        }
        for (index, entry) in config.iter().enumerate() {
            opaque(entry, &list.index(index), problems);
        }
        let name = change.new["spec"].get("extendedResourceName").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !resource_names::is_extended(name)) {
            problems.invalid(
                &path.child("extendedResourceName"),
                name,
                "must be a valid extended resource name",
            );
        }
    }
}

/// A name, with or without the domain of who gives it.
fn qualified_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    let identifier = |text: &str, problems: &mut Problems| {
        if text.len() > 32 {
            problems.too_long(path, 32);
        }
        problems.invalid_each(path, text, names::is_c_identifier(text));
    };
    match name.split('/').collect::<Vec<_>>()[..] {
        [own] => identifier(own, problems),
        [domain, own] => {
            if domain.is_empty() {
                problems.invalid(path, "", "the domain must not be empty");
            } else {
                driver_name(domain, path, problems);
            }
            if own.is_empty() {
                problems.invalid(path, "", "the name must not be empty");
            } else {
                identifier(own, problems);
            }
        }
        _ => {}
    }
}

fn fully_qualified_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    qualified_name(name, path, problems);
    if !name.contains('/') {
        problems.invalid(
            path,
            name,
            "a fully qualified name must be a domain and a name separated by a slash",
        );
    }
}

fn opaque(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    match entry.get("opaque") {
        None => problems.required(&path.child("opaque"), ""),
        Some(opaque) => {
            let at = path.child("opaque");
            driver_name(get_str(opaque, "driver"), &at.child("driver"), problems);
            raw_object(opaque.get("parameters"), &at.child("parameters"), problems);
        }
    }
}

/// Data of a driver's own: an object, not too large.
fn raw_object(value: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    match value {
        None | Some(Value::Null) => problems.required(path, ""),
        Some(large) if large.to_string().len() > 10 * 1024 => problems.too_long(path, 10 * 1024),
        Some(Value::Object(_)) => {}
        Some(_) => problems.invalid(path, "<value omitted>", "must be a valid JSON object"),
    }
}

/// Names of domains, one below the other.
fn pool_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    if name.is_empty() {
        problems.required(path, "");
        return;
    }
    if name.len() > 253 {
        problems.too_long(path, 253);
    }
    for part in name.split('/') {
        problems.invalid_each(path, part, names::is_dns1123_subdomain(part));
    }
}

fn driver_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    if name.is_empty() {
        problems.required(path, "");
        return;
    }
    if name.len() > 63 {
        problems.too_long(path, 63);
    }
    // Capitals are warned of, where they are at all.
    problems.invalid_each(path, name, names::is_dns1123_subdomain(&name.to_lowercase()));
}

struct Claim {
    path: &'static str,
}

impl Rules for Claim {
    fn set_defaults(&self, object: &mut Value) {
        let count = |request: &mut Value| {
            apply(
                request,
                &[
                    ("allocationMode", Constant::Text("ExactCount")),
                    ("tolerations.*.operator", Constant::Text("Equal")),
                ],
            );
            if request["allocationMode"] == "ExactCount"
                && request.get("count").is_none_or(|count| count == 0)
            {
                request["count"] = 1.into();
            }
        };
        let mut spec = Some(object);
        for name in self.path.split('.') {
            spec = spec.and_then(|value| value.get_mut(name));
        }
        let requests = spec.and_then(|spec| spec.get_mut("devices")?.get_mut("requests"));
        for request in requests.and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(exactly) = request.get_mut("exactly") {
                count(exactly);
            }
            for sub in request.get_mut("firstAvailable").and_then(Value::as_array_mut).into_iter().flatten() {
                count(sub);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if self.path == "spec" {
            object["status"] = json!({});
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        if subresource == "status" {
            claim_status::prepare(new, old);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if let (Some(old), "spec") = (change.old, self.path) {
            if change.subresource == "status" {
                claim_status::validate(change.new, old, problems);
            } else {
                // Whoever may not change it anyway is told nothing else.
                checks::immutable_struct(change.new, old, "spec", "resource.ResourceClaimSpec", problems);
            }
            return;
        }
        let path = Path::new(self.path);
        let empty = Value::Null;
        let spec = get(change.new, self.path).unwrap_or(&empty);
        if self.path != "spec" {
            let metadata = &change.new["spec"]["metadata"];
            crate::metadata::of_template(metadata, &Path::new("spec").child("metadata"), problems);
        }
        devices(&spec["devices"], &path.child("devices"), problems);
        if let Some(old) = change.old {
            checks::immutable_struct(change.new, old, "spec", "resource.ResourceClaimTemplateSpec", problems);
        }
    }
}

fn devices(devices: &Value, path: &Path<'_>, problems: &mut Problems) {
    let requests = get_list(devices, "requests");
    slice::set(requests, 32, "name", &path.child("requests"), problems, |request, at, problems| {
        let name = get_str(request, "name");
        problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
        let subs = get_list(request, "firstAvailable");
        match (request.get("exactly"), !subs.is_empty()) {
            (Some(_), true) => problems.invalid(
                at,
                Value::Null,
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            ),
            (None, false) => {
                problems.required(at, "exactly one of `exactly` or `firstAvailable` is required")
            }
            (Some(exactly), false) => one_request(exactly, &at.child("exactly"), problems),
            (None, true) => {
                let list = at.child("firstAvailable");
                slice::set(subs, 8, "name", &list, problems, |sub, at, problems| {
                    let name = get_str(sub, "name");
                    problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
                    one_request(sub, at, problems);
                });
            }
        }
    });
    let list = path.child("constraints");
    let constraints = get_list(devices, "constraints");
    if constraints.len() > 32 {
        problems.too_many(&list, constraints.len(), 32);
    }
    for (index, constraint) in constraints.iter().enumerate().take_while(|_| constraints.len() <= 32) {
        let at = list.index(index);
        request_references(constraint, requests, &at, problems);
        let fields = ["matchAttribute", "distinctAttribute"];
        let given = fields.iter().find_map(|field| Some((*field, constraint.get(field)?.as_str()?)));
        match given {
            Some((field, name)) => fully_qualified_name(name, &at.child(field), problems),
            None => problems.required(
                &at,
                "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required, but multiple fields \
                 are set",
            ),
        }
    }
    let list = path.child("config");
    let config = get_list(devices, "config");
    if config.len() > 32 {
        problems.too_many(&list, config.len(), 32);
    }
    for (index, entry) in config.iter().enumerate().take_while(|_| config.len() <= 32) {
        request_references(entry, requests, &list.index(index), problems);
        opaque(entry, &list.index(index), problems);
    }
}

/// The requests that a constraint or a configuration is for.
fn request_references(owner: &Value, requests: &[Value], path: &Path<'_>, problems: &mut Problems) {
    let names = get_list(owner, "requests");
    slice::set(names, 32, "", &path.child("requests"), problems, |name, at, problems| {
        request_reference(name.as_str().unwrap_or_default(), requests, at, problems);
    });
}

/// `request` or `request/subrequest`, of those that the claim has.
fn request_reference(name: &str, requests: &[Value], path: &Path<'_>, problems: &mut Problems) {
    let segments: Vec<&str> = name.split('/').collect();
    if segments.len() > 2 {
        problems.invalid(path, name, REQUEST);
        return;
    }
    for segment in &segments {
        problems.invalid_each(path, segment, names::is_dns1123_label(segment));
    }
    let is = |entry: &Value, name: &str| get_str(entry, "name") == name;
    let found = requests.iter().find(|request| is(request, segments[0])).is_some_and(|request| {
        segments.get(1).is_none_or(|sub| get_list(request, "firstAvailable").iter().any(|have| is(have, sub)))
    });
    if !found {
        problems.invalid(path, name, REQUEST);
    }
}

fn one_request(request: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::required_syntax(request, "deviceClassName", names::is_dns1123_subdomain, path, problems);
    selectors(request, path, problems);
    let count = request["count"].as_i64().unwrap_or(0);
    match get_str(request, "allocationMode") {
        "All" => {
            if count != 0 {
                problems.invalid(
                    &path.child("count"),
                    count,
                    "must not be specified when allocationMode is 'All'",
                );
            }
        }
        "ExactCount" => {
            if count <= 0 {
                problems.invalid(&path.child("count"), count, "must be greater than zero");
            }
        }
        other => problems.not_supported(&path.child("allocationMode"), other, &["All", "ExactCount"]),
    }
    tolerations(get_list(request, "tolerations"), &path.child("tolerations"), problems);
}

fn tolerations(list: &[Value], path: &Path<'_>, problems: &mut Problems) {
    for (index, toleration) in list.iter().enumerate() {
        let at = path.index(index);
        let (key, value) = (get_str(toleration, "key"), get_str(toleration, "value"));
        if !key.is_empty() {
            problems.invalid_each(&at.child("key"), key, names::is_label_key(key));
        }
        checks::one_of(toleration, "operator", true, &["Equal", "Exists"], &at, problems);
        match get_str(toleration, "operator") {
            "Exists" if !value.is_empty() => {
                problems.invalid(&at.child("value"), value, "must be empty for operator `Exists`");
            }
            "Equal" => problems.invalid_each(&at.child("value"), value, names::is_label_value(value)),
            _ => {}
        }
        checks::one_of(toleration, "effect", false, EFFECTS, &at, problems);
    }
}
