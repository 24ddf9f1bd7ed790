//! LimitRanges: defaults and bounds for what containers, pods and claims ask for.

use std::collections::BTreeMap;

use apimachinery::meta::{Meta, MetaMut};
use apimachinery::quantity::Quantity;
use apimachinery::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::server::ApiServer;

const NOTE: &str = "kubernetes.io/limit-ranger";

/// The plug-in.
pub struct LimitRanger;

impl LimitRanger {
    fn items(server: &ApiServer, request: &Request<'_>) -> Result<Vec<Value>, Status> {
        let ranges = server.builtin("", "limitranges")?;
        let Some(cache) = server.hub.cache(&ranges.prefix) else { return Ok(Vec::new()) };
        let entries = cache.snapshot(&ranges.collection(&request.context.info.namespace), 0).entries;
        Ok(entries
            .iter()
            .flat_map(|entry| entry.parsed()["spec"]["limits"].as_array().cloned().unwrap_or_default())
            .collect())
    }

    fn concerns(request: &Request<'_>) -> bool {
        request.operation == Operation::Create
            && (request.is("", "pods") || request.is("", "persistentvolumeclaims"))
    }
}

impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn mutate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: &mut Value,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        if request.operation == Operation::Create && request.is("", "pods") {
            for item in Self::items(server, request)? {
                set_defaults(object, &item);
            }
        }
        Ok(())
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| Self::concerns(request)) else { return Ok(()) };
        let mut wrong = Vec::new();
        for item in Self::items(server, request)? {
            wrong.extend(violations(object, &item, request.is("", "pods")));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let why = if wrong.len() == 1 { wrong.remove(0) } else { format!("[{}]", wrong.join(", ")) };
        Err(request.forbid(object.name(), &why))
    }
}

fn quantities(value: &Value) -> BTreeMap<String, Quantity> {
    let map = value.as_object().into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?))).collect()
}

/// Fills in what containers leave out.
fn set_defaults(pod: &mut Value, item: &Value) {
    if item["type"] != "Container" {
        return;
    }
    let mut notes = Vec::new();
    for list in ["containers", "initContainers"] {
        let path = format!("/spec/{list}");
        for container in pod.pointer_mut(&path).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (kind, source, word) in
                [("requests", "defaultRequest", "request"), ("limits", "default", "limit")]
            {
                let mut set = Vec::new();
                for (resource, amount) in item[source].as_object().into_iter().flatten() {
                    if container["resources"][kind][resource.as_str()].is_null() {
                        container["resources"][kind][resource.as_str()] = amount.clone();
                        set.push(resource.clone());
                    }
                }
                if !set.is_empty() {
                    set.sort();
                    let what = if list == "containers" { "container" } else { "init container" };
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod.set_annotation(NOTE, &note);
    }
}

/// What is outside of the bounds of one item.
fn violations(object: &Value, item: &Value, is_pod: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    match (item["type"].as_str().unwrap_or_default(), is_pod) {
        ("Container", true) => {
            for list in ["containers", "initContainers"] {
                for container in object["spec"][list].as_array().into_iter().flatten() {
                    let resources = &container["resources"];
                    check(
                        "Container",
                        item,
                        &quantities(&resources["requests"]),
                        &quantities(&resources["limits"]),
                        &mut wrong,
                    );
                }
            }
        }
        ("Pod", true) => {
            let total = |kind: &str| {
                let mut sum: BTreeMap<String, Quantity> = BTreeMap::new();
                for container in object["spec"]["containers"].as_array().into_iter().flatten() {
                    for (name, amount) in quantities(&container["resources"][kind]) {
                        let so_far = sum.get(&name).copied().unwrap_or(Quantity::ZERO);
                        sum.insert(name, so_far.plus(amount));
                    }
                }
                for container in object["spec"]["initContainers"].as_array().into_iter().flatten() {
                    for (name, amount) in quantities(&container["resources"][kind]) {
                        let so_far = sum.get(&name).copied().unwrap_or(Quantity::ZERO);
                        let always = container["restartPolicy"] == "Always";
                        sum.insert(name, if always { so_far.plus(amount) } else { so_far.max(amount) });
                    }
                }
                sum
            };
            check("Pod", item, &total("requests"), &total("limits"), &mut wrong);
        }
        ("PersistentVolumeClaim", false) => {
            let requests = quantities(&object["spec"]["resources"]["requests"]);
            for (name, least) in quantities(&item["min"]) {
                let own = requests.get(&name).copied().unwrap_or(Quantity::ZERO);
                if own < least {
                    wrong.push(format!(
                        "minimum {name} usage per PersistentVolumeClaim is {least}, but request is {own}"
                    ));
                }
            }
            for (name, most) in quantities(&item["max"]) {
                let own = requests.get(&name).copied().unwrap_or(Quantity::ZERO);
                if own > most {
                    wrong.push(format!(
                        "maximum {name} usage per PersistentVolumeClaim is {most}, but request is {own}"
                    ));
                }
            }
        }
        _ => {}
    }
    wrong
}

fn check(
    what: &str,
    item: &Value,
    requests: &BTreeMap<String, Quantity>,
    limits: &BTreeMap<String, Quantity>,
    wrong: &mut Vec<String>,
) {
    for (name, least) in quantities(&item["min"]) {
        match (requests.get(&name), limits.get(&name)) {
            (None, None) => {
                wrong.push(format!("minimum {name} usage per {what} is {least}.  No request is specified"))
            }
            (Some(own), _) if *own < least => {
                wrong.push(format!("minimum {name} usage per {what} is {least}, but request is {own}"));
            }
            (_, Some(own)) if *own < least => {
                wrong.push(format!("minimum {name} usage per {what} is {least}, but limit is {own}"));
            }
            _ => {}
        }
    }
    for (name, most) in quantities(&item["max"]) {
        match (requests.get(&name), limits.get(&name)) {
            (_, None) => {
                wrong.push(format!("maximum {name} usage per {what} is {most}.  No limit is specified"))
            }
            (_, Some(own)) if *own > most => {
                wrong.push(format!("maximum {name} usage per {what} is {most}, but limit is {own}"));
            }
            (Some(own), _) if *own > most => {
                wrong.push(format!("maximum {name} usage per {what} is {most}, but request is {own}"));
            }
            _ => {}
        }
    }
    for (name, ratio) in quantities(&item["maxLimitRequestRatio"]) {
        match (requests.get(&name), limits.get(&name)) {
            (Some(request), Some(limit)) if !request.is_zero() => {
                let own = limit.as_f64() / request.as_f64();
                if own > ratio.as_f64() {
                    wrong.push(format!("{name} max limit to request ratio per {what} is {ratio}, but provided ratio is {own:.6}"));
                }
            }
            (None, _) => wrong.push(format!("{name} max limit to request ratio per {what} is {ratio}, but no request is specified or request is 0")),
            (_, None) => wrong.push(format!("{name} max limit to request ratio per {what} is {ratio}, but no limit is specified or limit is 0")),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gaps_are_filled_and_bounds_hold() {
        let item = json!({
            "type": "Container",
            "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"},
            "min": {"cpu": "50m"}, "max": {"cpu": "1"},
        });
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}]}});
        set_defaults(&mut pod, &item);
        assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"], "100m");
        assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"], "500m");
        assert!(pod.annotation(NOTE).unwrap().contains("cpu request for container a"));
        assert_eq!(violations(&pod, &item, true), ["maximum cpu usage per Container is 1, but limit is 2"]);
        let small = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "10m"}, "limits": {"cpu": "1"}}}]}});
        assert_eq!(
            violations(&small, &item, true),
            ["minimum cpu usage per Container is 50m, but request is 10m"]
        );
    }
}
