//! LimitRanges: defaults and bounds for what containers, pods and claims ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::core::pod_spec::amounts::{self, Amounts};
use apimachinery::meta::{Meta, MetaMut};
use apimachinery::status::Status;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::cache::entry::Entry;
use crate::server::ApiServer;

const NOTE: &str = "kubernetes.io/limit-ranger";

/// The plug-in.
pub struct LimitRanger;

impl LimitRanger {
    /// The ranges of the namespace.
    fn ranges(server: &ApiServer, request: &Request<'_>) -> Result<Vec<Arc<Entry>>, Status> {
        let ranges = server.builtin("", "limitranges")?;
        let Some(cache) = server.hub.cache(&ranges.prefix) else { return Ok(Vec::new()) };
        Ok(cache.snapshot(&ranges.collection(&request.context.info.namespace), 0).entries)
    }

    /// Whether a write decides what a pod or a claim may use. The rest of a pod's updates cannot.
    fn concerns(request: &Request<'_>, old: Option<&Value>) -> bool {
        let resource = &request.context.resource;
        let decides = match (request.operation, request.subresource) {
            (Operation::Create, "") => resource.is_core("pods") || resource.is_core("persistentvolumeclaims"),
            (Operation::Update, "") => resource.is_core("persistentvolumeclaims"),
            (Operation::Update, "resize") => resource.is_core("pods"),
            _ => false,
        };
        decides && !old.is_some_and(Meta::is_terminating)
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
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if Self::concerns(request, old) && request.context.resource.is_core("pods") {
            for range in Self::ranges(server, request)? {
                set_defaults(object, items(&range));
            }
        }
        Ok(())
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| Self::concerns(request, old)) else { return Ok(()) };
        for range in Self::ranges(server, request)? {
            let is_pod = request.context.resource.is_core("pods");
            let mut wrong: Vec<String> = Vec::new();
            for problem in items(&range).iter().flat_map(|item| violations(object, item, is_pod)) {
                if !wrong.contains(&problem) {
                    wrong.push(problem);
                }
            }
            let why = match wrong.len() {
                0 => continue,
                1 => wrong.remove(0),
                _ => format!("[{}]", wrong.join(", ")),
            };
            return Err(request.forbid(object.name(), &why));
        }
        Ok(())
    }
}

/// The items of a range.
fn items(range: &Entry) -> &[Value] {
    range.parsed()["spec"]["limits"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Fills in what containers leave out. Of a range's items the last one decides.
fn set_defaults(pod: &mut Value, items: &[Value]) {
    let all = |source: &str| -> BTreeMap<String, Value> {
        let items = items.iter().filter(|item| item["type"] == "Container");
        let given = items.flat_map(|item| item[source].as_object().into_iter().flatten());
        given.map(|(name, amount)| (name.clone(), amount.clone())).collect()
    };
    let given = [("requests", all("defaultRequest"), "request"), ("limits", all("default"), "limit")];
    let mut notes = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let path = format!("/spec/{list}");
        for container in pod.pointer_mut(&path).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (kind, defaults, word) in &given {
                let mut set = Vec::new();
                for (resource, amount) in defaults {
                    if container["resources"][*kind][resource.as_str()].is_null() {
                        container["resources"][*kind][resource.as_str()] = amount.clone();
                        set.push(resource.as_str());
                    }
                }
                if !set.is_empty() {
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

/// What a pod asks for as a whole: what it says itself of processors and memory, and what its containers need.
fn total(spec: &Value, kind: &str) -> Amounts {
    let mut sum = amounts::of_containers(spec, kind);
    let own = amounts::read(&spec["resources"][kind]);
    sum.extend(own.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")));
    sum
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
                        &amounts::read(&resources["requests"]),
                        &amounts::read(&resources["limits"]),
                        &mut wrong,
                    );
                }
            }
        }
        ("Pod", true) => {
            let spec = &object["spec"];
            check("Pod", item, &total(spec, "requests"), &total(spec, "limits"), &mut wrong);
        }
        ("PersistentVolumeClaim", false) => {
            let requests = amounts::read(&object["spec"]["resources"]["requests"]);
            for (verdict, bounds) in [("minimum", &item["min"]), ("maximum", &item["max"])] {
                for (name, bound) in amounts::read(bounds) {
                    let known = format!("{verdict} {name} usage per PersistentVolumeClaim is {bound}");
                    match requests.get(&name) {
                        None => wrong.push(format!("{known}.  No request is specified")),
                        Some(own)
                            if verdict == "minimum" && *own < bound
                                || verdict == "maximum" && *own > bound =>
                        {
                            wrong.push(format!("{known}, but request is {own}"));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
        _ => {}
    }
    wrong
}

fn check(what: &str, item: &Value, requests: &Amounts, limits: &Amounts, wrong: &mut Vec<String>) {
    for (name, least) in amounts::read(&item["min"]) {
        match (requests.get(&name), limits.get(&name)) {
            (None, _) => {
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
    for (name, most) in amounts::read(&item["max"]) {
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
    for (name, ratio) in amounts::read(&item["maxLimitRequestRatio"]) {
        let known = format!("{name} max limit to request ratio per {what} is {ratio}");
        let some = |amounts: &Amounts| amounts.get(&name).copied().filter(|amount| !amount.is_zero());
        match (some(requests), some(limits)) {
            (None, _) => wrong.push(format!("{known}, but no request is specified or request is 0")),
            (_, None) => wrong.push(format!("{known}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let own = limit.as_f64() / request.as_f64();
                if own > ratio.as_f64() {
                    wrong.push(format!("{known}, but provided ratio is {own:.6}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_pod_says_of_itself_is_bounded() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let mut spec = json!({"containers": [{"resources": cpu("1")}, {"resources": cpu("1")}]});
        assert_eq!(total(&spec, "requests")["cpu"].to_string(), "2");
        spec["resources"] = json!({"requests": {"cpu": "5", "hugepages-2Mi": "2Mi"}});
        assert_eq!(total(&spec, "requests").into_keys().collect::<Vec<_>>(), ["cpu"]);
        let item = json!({"type": "Pod", "max": {"cpu": "4"}, "min": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}});
        assert_eq!(
            violations(&json!({"spec": spec}), &item, true),
            [
                "maximum cpu usage per Pod is 4.  No limit is specified",
                "cpu max limit to request ratio per Pod is 2, but no limit is specified or limit is 0",
            ]
        );
        spec["resources"]["limits"] = json!({"cpu": "5"});
        assert_eq!(
            violations(&json!({"spec": spec}), &item, true),
            ["maximum cpu usage per Pod is 4, but limit is 5"]
        );
    }

    #[test]
    fn gaps_are_filled_and_bounds_hold() {
        let item = json!({
            "type": "Container",
            "default": {"cpu": "500m"}, "defaultRequest": {"cpu": "100m"},
            "min": {"cpu": "50m"}, "max": {"cpu": "1"},
        });
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}]}});
        set_defaults(&mut pod, std::slice::from_ref(&item));
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
