//! ResourceSlices: what devices a driver offers, where they can be used, and what they are made of.

use std::{collections::HashSet, hash::Hash};

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value, json};

use super::{driver_name, pool_name, qualified_name};
use crate::{Change, Rules, checks, core::pod_spec::affinity::node_selector};

const PLACES: &str =
    "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
const DEVICE_PLACES: &str = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when \
                             `perDeviceNodeSelection` is set to true in the ResourceSlice spec";
const VALUE: &str = "exactly one value must be specified";
/// Longest domain, a slash and the longest name: what is longer is shown shortened.
const KEY_LEN: usize = 63 + 1 + 32;

pub struct Slice;

impl Rules for Slice {
    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let name = get_str(change.new, "spec.driver");
        if name == name.to_lowercase() {
            return Vec::new();
        }
        let name = apimachinery::field::go_quote(name);
        vec![format!("spec.driver: driver names should be lowercase; {name} contains uppercase characters")]
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        driver_name(get_str(spec, "driver"), &path.child("driver"), problems);
        pool(&spec["pool"], &path.child("pool"), problems);
        if let Some(old) = change.old {
            for field in ["spec.pool.name", "spec.driver", "spec.nodeName"] {
                checks::immutable(change.new, old, field, problems);
            }
        }
        placed(spec, &path, problems);
        let (devices, counters) = (get_list(spec, "devices"), get_list(spec, "sharedCounters"));
        if spec.get("devices").is_some() && spec.get("sharedCounters").is_some() {
            problems.invalid(&path, "", "only one of `sharedCounters` or `devices` is allowed");
        }
        let advanced = |device: &Value| {
            !get_list(device, "taints").is_empty() || !get_list(device, "consumesCounters").is_empty()
        };
        let most = if devices.iter().any(advanced) { 64 } else { 128 };
        let each = spec["perDeviceNodeSelection"] == true;
        let before = change.old.map(|old| get_list(&old["spec"], "devices")).unwrap_or_default();
        set(devices, most, "name", &path.child("devices"), problems, |value, at, problems| {
            let old = before.iter().find(|have| have["name"] == value["name"]);
            device(value, old, each, at, problems);
        });
        set(counters, 8, "name", &path.child("sharedCounters"), problems, |value, at, problems| {
            checks::required_syntax(value, "name", names::is_dns1123_label, at, problems);
            counters_of(value, at, problems);
        });
    }
}

/// Checks each entry of a list that has names, and that no name comes twice.
pub fn set(
    list: &[Value],
    most: usize,
    key: &str,
    path: &Path<'_>,
    problems: &mut Problems,
    mut check: impl FnMut(&Value, &Path<'_>, &mut Problems),
) {
    if list.len() > most {
        problems.too_many(path, list.len(), most);
        return;
    }
    for (index, value) in list.iter().enumerate() {
        check(value, &path.index(index), problems);
    }
    let name = |value| match key {
        "" => Value::as_str(value).unwrap_or_default(),
        key => get_str(value, key),
    };
    unique(list, name, Value::from, path, problems);
}

/// Tells the entries of a list whose key was there before.
pub fn unique<'a, K: Copy + Eq + Hash>(
    list: &'a [Value],
    key: impl Fn(&'a Value) -> K,
    shown: impl Fn(K) -> Value,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    let mut seen = HashSet::new();
    for (index, value) in list.iter().enumerate() {
        let key = key(value);
        if !seen.insert(key) {
            problems.duplicate(&path.index(index), shown(key));
        }
    }
}

fn pool(pool: &Value, path: &Path<'_>, problems: &mut Problems) {
    pool_name(get_str(pool, "name"), &path.child("name"), problems);
    let count = pool["resourceSliceCount"].as_i64().unwrap_or(0);
    if count <= 0 {
        problems.invalid(&path.child("resourceSliceCount"), count, "must be greater than zero");
    }
    let generation = pool["generation"].as_i64().unwrap_or(0);
    if generation < 0 {
        problems.invalid(&path.child("generation"), generation, "must be greater than or equal to zero");
    }
}

/// A switch that can only be on. Returns whether it is.
fn only_true(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) -> bool {
    let on = value.get(field).and_then(Value::as_bool);
    if on == Some(false) {
        problems.invalid(&path.child(field), false, "must be either unset or set to true");
    }
    on == Some(true)
}

fn placed(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let mut set = Vec::new();
    if let Some(name) = spec.get("nodeName").and_then(Value::as_str) {
        let at = path.child("nodeName");
        if name.is_empty() {
            problems.invalid(&at, name, "must be either unset or set to a non-empty string");
        } else {
            set.push("`nodeName`");
            problems.invalid_each(&at, name, names::is_dns1123_subdomain(name));
        }
    }
    if let Some(selector) = spec.get("nodeSelector") {
        set.push("`nodeSelector`");
        let at = path.child("nodeSelector");
        node_selector(selector, &at, problems);
        if get_list(selector, "nodeSelectorTerms").len() != 1 {
            let terms = selector.get("nodeSelectorTerms").cloned().unwrap_or_default();
            problems.invalid(
                &at.child("nodeSelectorTerms"),
                terms,
                "must have exactly one node selector term",
            );
        }
    }
    if only_true(spec, "allNodes", path, problems) {
        set.push("`allNodes`");
    }
    if only_true(spec, "perDeviceNodeSelection", path, problems) {
        set.push("`perDeviceNodeSelection`");
    }
    match set.len() {
        0 => problems.required(path, PLACES),
        1 => {}
        _ => problems.invalid(
            path,
            format!("{{{}}}", set.join(", ")),
            format!("{PLACES}, but multiple fields are set"),
        ),
    }
}

fn device(device: &Value, old: Option<&Value>, each: bool, path: &Path<'_>, problems: &mut Problems) {
    let name = get_str(device, "name");
    problems.invalid_each(&path.child("name"), name, names::is_dns1123_label(name));
    let empty = Map::new();
    let attributes = checks::map(device, "attributes").unwrap_or(&empty);
    let capacity = checks::map(device, "capacity").unwrap_or(&empty);
    let count = attributes.len() + capacity.len();
    if count > 32 {
        problems.invalid(path, count, "the total number of attributes and capacities must not exceed 32");
    }
    let at = path.child("attributes");
    for (key, value) in attributes {
        qualified_name(key, &at, problems);
        attribute(value, &at.key(&shortened(key, KEY_LEN)), problems);
    }
    let shared = device["allowMultipleAllocations"] == true;
    let at = path.child("capacity");
    for (key, value) in capacity {
        qualified_name(key, &at, problems);
        let key = shortened(key, KEY_LEN);
        let at = at.key(&key);
        let at = at.child("requestPolicy");
        match value.get("requestPolicy") {
            Some(policy) if shared => request_policy(value, policy, &at, problems),
            Some(_) => problems.forbidden(&at, "allowMultipleAllocations must be true"),
            None => {}
        }
    }
    if old.is_none_or(|old| old.get("taints") != device.get("taints")) {
        taints(get_list(device, "taints"), &path.child("taints"), problems);
    }
    let consumed = get_list(device, "consumesCounters");
    set(consumed, 2, "counterSet", &path.child("consumesCounters"), problems, |value, at, problems| {
        checks::required_syntax(value, "counterSet", names::is_dns1123_label, at, problems);
        counters_of(value, at, problems);
    });
    device_place(device, each, path, problems);
    binding_conditions(device, path, problems);
}

fn device_place(device: &Value, each: bool, path: &Path<'_>, problems: &mut Problems) {
    if !each {
        if ["nodeName", "nodeSelector", "allNodes"].iter().any(|field| device.get(*field).is_some()) {
            problems.invalid(
                path,
                Value::Null,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set \
                 to true in the ResourceSlice spec",
            );
        }
        return;
    }
    let mut set = Vec::new();
    if let Some(name) = device.get("nodeName").and_then(Value::as_str) {
        let at = path.child("nodeName");
        if name.is_empty() {
            problems.invalid(&at, name, "must not be empty");
        } else {
            set.push("`nodeName`");
            problems.invalid_each(&at, name, names::is_dns1123_subdomain(name));
        }
    }
    if let Some(selector) = device.get("nodeSelector") {
        set.push("`nodeSelector`");
        node_selector(selector, &path.child("nodeSelector"), problems);
    }
    if only_true(device, "allNodes", path, problems) {
        set.push("`allNodes`");
    }
    match set.len() {
        0 => problems.required(path, DEVICE_PLACES),
        1 => {}
        _ => problems.invalid(path, format!("{{{}}}", set.join(", ")), DEVICE_PLACES),
    }
}

fn shortened(key: &str, most: usize) -> String {
    if key.len() <= most {
        return key.to_owned();
    }
    let left = most - 3;
    let (head, tail) = (left.div_ceil(2), key.len() - left / 2);
    match (key.get(..head), key.get(tail..)) {
        (Some(head), Some(tail)) => format!("{head}...{tail}"),
        _ => key.to_owned(),
    }
}

fn attribute(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    let given = |field: &str| value.get(field).filter(|value| !value.is_null());
    if let Some(text) = given("string").and_then(Value::as_str)
        && text.len() > 64
    {
        problems.too_long(&path.child("string"), 64);
    }
    if let Some(text) = given("version").and_then(Value::as_str) {
        let at = path.child("version");
        if !is_semver(text) {
            problems.invalid(&at, text, "must be a string compatible with semver.org spec 2.0.0");
        }
        if text.len() > 64 {
            problems.too_long(&at, 64);
        }
    }
    match ["bool", "int", "string", "version"].iter().filter(|field| given(field).is_some()).count() {
        0 => problems.invalid(path, "", VALUE),
        1 => {}
        _ => {
            let shown = json!({
                "IntValue": given("int"), "BoolValue": given("bool"),
                "StringValue": given("string"), "VersionValue": given("version"),
                "IntValues": null, "BoolValues": null, "StringValues": null, "VersionValues": null,
            });
            problems.invalid(path, shown, VALUE);
        }
    }
}

/// `1.2.3-alpha.1+build.5`
fn is_semver(text: &str) -> bool {
    let number = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'))
    };
    let word = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let core: Vec<&str> = core.split('.').collect();
    let identifier =
        |text: &str| word(text) && (number(text) || text.bytes().any(|byte| !byte.is_ascii_digit()));
    core.len() == 3
        && core.into_iter().all(number)
        && pre.is_none_or(|pre| pre.split('.').all(identifier))
        && build.is_none_or(|build| build.split('.').all(word))
}

fn counters_of(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("counters");
    match checks::map(value, "counters") {
        Some(counters) if counters.len() > 32 => problems.too_many(&at, counters.len(), 32),
        Some(counters) if !counters.is_empty() => {
            for name in counters.keys() {
                problems.invalid_each(&at, name, names::is_dns1123_label(name));
            }
        }
        _ => problems.required(&at, ""),
    }
}

fn taints(list: &[Value], path: &Path<'_>, problems: &mut Problems) {
    if list.len() > 16 {
        problems.too_many(path, list.len(), 16);
        return;
    }
    for (index, taint) in list.iter().enumerate() {
        let at = path.index(index);
        let (key, value) = (get_str(taint, "key"), get_str(taint, "value"));
        problems.invalid_each(&at.child("key"), key, names::is_label_key(key));
        problems.invalid_each(&at.child("value"), value, names::is_label_value(value));
        checks::one_of(taint, "effect", true, super::EFFECTS, &at, problems);
    }
}

/// The conditions that a device waits for before its pod is bound, and those that say it never will be ready.
pub fn binding_conditions(device: &Value, path: &Path<'_>, problems: &mut Problems) {
    let (good, bad) = ("bindingConditions", "bindingFailureConditions");
    for field in [good, bad] {
        let at = path.child(field);
        let list = get_list(device, field);
        if list.len() > 4 {
            problems.too_many(&at, list.len(), 4);
            continue;
        }
        for (index, name) in list.iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            problems.invalid_each(&at.index(index), name, names::is_label_key(name));
        }
    }
    let (conditions, failures) = (get_list(device, good), get_list(device, bad));
    for (field, list) in [(good, conditions), (bad, failures)] {
        let at = path.child(field);
        for (index, name) in list.iter().enumerate() {
            if list[..index].contains(name) {
                problems.duplicate(&at.index(index), name.clone());
            }
            if field == bad && conditions.contains(name) {
                problems.invalid(
                    &at.index(index),
                    name.clone(),
                    "bindingFailureConditions must not overlap with bindingConditions",
                );
            }
        }
    }
    for (field, list, other, others) in [(good, conditions, bad, failures), (bad, failures, good, conditions)]
    {
        if list.is_empty() && !others.is_empty() {
            let shown = device.get(field).cloned().unwrap_or_default();
            problems.invalid(&path.child(field), shown, format!("{field} are required to use {other}"));
        }
    }
}

fn quantity(value: Option<&Value>) -> Option<Quantity> {
    value?.as_str()?.parse().ok()
}

/// Which shares of a capacity can be asked for.
fn request_policy(capacity: &Value, policy: &Value, path: &Path<'_>, problems: &mut Problems) {
    let most = quantity(capacity.get("value")).unwrap_or(Quantity::ZERO);
    let default = quantity(policy.get("default"));
    let (values, range) = (get_list(policy, "validValues"), policy.get("validRange"));
    match (values.is_empty(), range) {
        (false, Some(_)) => problems.forbidden(
            path,
            "exactly one policy can be specified, cannot specify \"validValues\" and \"validRange\" at the \
             same time",
        ),
        (false, None) => match default {
            None => problems.required(&path.child("default"), "required when validValues is defined"),
            Some(default) => valid_values(default, most, values, &path.child("validValues"), problems),
        },
        (true, Some(range)) => match default {
            None => problems.required(&path.child("default"), "required when validRange is defined"),
            Some(default) => valid_range(default, most, range, &path.child("validRange"), problems),
        },
        (true, None) => {}
    }
}

fn valid_values(
    default: Quantity,
    most: Quantity,
    values: &[Value],
    path: &Path<'_>,
    problems: &mut Problems,
) {
    let values: Vec<Quantity> =
        values.iter().map(|value| quantity(Some(value)).unwrap_or(Quantity::ZERO)).collect();
    for (index, pair) in values.windows(2).enumerate() {
        if pair[0] > pair[1] {
            let at = path.index(index + 1);
            problems.invalid(&at, pair[1].to_string(), "values must be sorted in ascending order");
        }
    }
    if values.len() > 10 {
        problems.too_many(path, values.len(), 10);
    } else {
        for (index, value) in values.iter().enumerate() {
            if *value > most {
                let detail = format!("option is larger than capacity value: {most}");
                problems.invalid(&path.index(index), value.to_string(), detail);
            }
        }
        for (index, value) in values.iter().enumerate() {
            if values[..index].iter().any(|have| have.value() == value.value()) {
                problems.duplicate(&path.index(index), value.value().to_string());
            }
        }
    }
    if values.len() > 10 || !values.contains(&default) {
        problems.invalid(
            path,
            default.to_string(),
            "default value is not valid according to the requestPolicy",
        );
    }
}

fn valid_range(default: Quantity, most: Quantity, range: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("min");
    let Some(min) = quantity(range.get("min")) else {
        problems.required(&at, "required when validRange is defined");
        return;
    };
    if min > most {
        problems.invalid(&at, min.to_string(), format!("min is larger than capacity value: {most}"));
    }
    if default < min {
        problems.invalid(&at, default.to_string(), format!("default is less than min: {min}"));
    }
    let max = quantity(range.get("max"));
    if let Some(max) = max {
        let at = path.child("max");
        if min > max {
            problems.invalid(&at, min.to_string(), format!("min is larger than max: {max}"));
        }
        if max > most {
            problems.invalid(&at, max.to_string(), format!("max is larger than capacity value: {most}"));
        }
        if default > max {
            problems.invalid(&at, default.to_string(), format!("default is more than max: {max}"));
        }
    }
    let Some(step) = quantity(range.get("step")) else { return };
    let at = path.child("step");
    let first = min.plus(step);
    if first > most {
        let detail = format!("one step {first} is larger than capacity value: {most}");
        problems.invalid(&at, step.to_string(), detail);
    }
    for value in [Some(default), max].into_iter().flatten() {
        let beyond = value.value().wrapping_sub(min.value());
        if beyond.checked_rem(step.value()).is_none_or(|rest| rest != 0) {
            let detail = format!("value is not a multiple of a given step ({step}) from ({min})");
            problems.invalid(&at, value.to_string(), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_semantic() {
        for good in ["1.2.3", "0.0.0", "1.0.0-alpha.1", "1.0.0+b.7", "1.0.0-0a.x-y+001"] {
            assert!(is_semver(good), "{good}");
        }
        for bad in ["", "1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", "1.2.3.4", "v1.2.3", "1.2.x"] {
            assert!(!is_semver(bad), "{bad}");
        }
    }

    #[test]
    fn long_keys_are_shown_shortened() {
        assert_eq!(shortened("abc", 16), "abc");
        assert_eq!(shortened("0123456789abcdefghij", 16), "0123456...efghij");
    }
}
