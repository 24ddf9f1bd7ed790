//! Devices that pods claim.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Rules, StatusKeeps, checks,
    defaults::{Constant, apply},
};

const GROUP: &str = "resource.k8s.io";

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(GROUP, "v1", "DeviceClass", "deviceclasses")
            .answers_with_object()
            .generation()
            .rules(Class),
        Definition::namespaced(GROUP, "v1", "ResourceClaim", "resourceclaims")
            .answers_with_object()
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .columns(vec![Column::new("State", |claim, _| state(claim).into()), Column::age()])
            .rules(Claim { path: "spec" }),
        Definition::namespaced(GROUP, "v1", "ResourceClaimTemplate", "resourceclaimtemplates")
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
            .rules(Slice),
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
            Some(cel) if get_str(cel, "expression").is_empty() => {
                let at = at.child("cel");
                problems.required(&at.child("expression"), "");
            }
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
    }
}

fn opaque(entry: &Value, path: &Path<'_>, problems: &mut Problems) {
    match entry.get("opaque") {
        None => problems.required(&path.child("opaque"), ""),
        Some(opaque) => {
            let at = path.child("opaque");
            driver_name(get_str(opaque, "driver"), &at.child("driver"), problems);
            match opaque.get("parameters") {
                None | Some(Value::Null) => problems.required(&at.child("parameters"), ""),
                Some(Value::Object(_)) => {}
                Some(_) => problems.invalid(
                    &at.child("parameters"),
                    "<value omitted>",
                    "must be a valid JSON object",
                ),
            }
        }
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
    problems.invalid_each(path, name, names::is_dns1123_subdomain(name));
}

struct Claim {
    path: &'static str,
}

impl Rules for Claim {
    fn set_defaults(&self, object: &mut Value) {
        let count = |request: &mut Value| {
            apply(request, &[("allocationMode", Constant::Text("ExactCount"))]);
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

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new(self.path);
        let empty = Value::Null;
        let spec = get(change.new, self.path).unwrap_or(&empty);
        if self.path != "spec" {
            let metadata = &change.new["spec"]["metadata"];
            crate::metadata::of_template(metadata, &Path::new("spec").child("metadata"), problems);
        }
        if change.subresource != "status" {
            devices(&spec["devices"], &path.child("devices"), problems);
        }
        if let Some(old) = change.old
            && get(old, "spec") != get(change.new, "spec")
        {
            problems.invalid(&Path::new("spec"), change.new["spec"].clone(), crate::metadata::IMMUTABLE);
        }
    }
}

fn devices(devices: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("requests");
    let requests = get_list(devices, "requests");
    if requests.len() > 32 {
        problems.too_many(&list, requests.len(), 32);
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, request) in requests.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(request, "name");
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        } else {
            problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
            if seen.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
        }
        seen.push(name);
        match (request.get("exactly"), !get_list(request, "firstAvailable").is_empty()) {
            (Some(_), true) => problems.invalid(
                &at,
                request.clone(),
                "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
            ),
            (None, false) => {
                problems.required(&at, "exactly one of `exactly` or `firstAvailable` is required")
            }
            (Some(exactly), false) => one_request(exactly, &at.child("exactly"), problems),
            (None, true) => {
                let list = at.child("firstAvailable");
                let subs = get_list(request, "firstAvailable");
                for (number, sub) in subs.iter().enumerate() {
                    let at = list.index(number);
                    if subs[..number].iter().any(|have| have["name"] == sub["name"]) {
                        problems.duplicate(&at, sub["name"].clone());
                    }
                    checks::required_syntax(sub, "name", names::is_dns1123_label, &at, problems);
                    one_request(sub, &at, problems);
                }
            }
        }
    }
    let list = path.child("constraints");
    for (index, constraint) in get_list(devices, "constraints").iter().enumerate() {
        let at = list.index(index);
        let names = at.child("requests");
        let requests = get_list(constraint, "requests");
        for (number, name) in requests.iter().enumerate() {
            if requests[..number].contains(name) {
                problems.duplicate(&names.index(number), name.clone());
            }
            let text = name.as_str().unwrap_or_default();
            if !seen.contains(&text.split('/').next().unwrap_or(text)) {
                problems.invalid(
                    &names.index(number),
                    text,
                    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
                );
            }
        }
    }
    let list = path.child("config");
    for (index, entry) in get_list(devices, "config").iter().enumerate() {
        opaque(entry, &list.index(index), problems);
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
    affinity(request, path, problems);
}

fn affinity(request: &Value, path: &Path<'_>, problems: &mut Problems) {
    crate::core::pod_spec::affinity::tolerations(
        get_list(request, "tolerations"),
        &path.child("tolerations"),
        problems,
    );
}

struct Slice;

impl Rules for Slice {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        driver_name(get_str(spec, "driver"), &path.child("driver"), problems);
        let at = path.child("pool");
        checks::required(&spec["pool"], "name", &at, problems);
        if spec["pool"]["resourceSliceCount"].as_i64().unwrap_or(0) <= 0 {
            problems.invalid(
                &at.child("resourceSliceCount"),
                spec["pool"]["resourceSliceCount"].clone(),
                "must be greater than zero",
            );
        }
        checks::non_negative(&spec["pool"], "generation", &at, problems);
        let placed = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"]
            .iter()
            .filter(|field| spec.get(**field).is_some_and(|value| value != false))
            .count();
        if placed != 1 {
            problems.invalid(
                &path,
                Value::Null,
                "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
            );
        }
        let list = path.child("devices");
        let devices = get_list(spec, "devices");
        if devices.len() > 128 {
            problems.too_many(&list, devices.len(), 128);
        }
        let mut seen: Vec<&str> = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            let at = list.index(index);
            let name = get_str(device, "name");
            if name.is_empty() {
                problems.required(&at.child("name"), "");
            } else {
                problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
            }
            if seen.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
            seen.push(name);
        }
        if let Some(old) = change.old {
            for field in ["spec.driver", "spec.pool.name", "spec.nodeName"] {
                checks::immutable(change.new, old, field, problems);
            }
        }
    }
}
