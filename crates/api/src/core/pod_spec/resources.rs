//! Requests and limits.

use apimachinery::{
    field::{Path, Problem, ProblemKind, Problems},
    meta::get_list,
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value};

use super::{Kept, amounts};
use crate::core::resource_names;

/// Checks the name of a resource.
type Name = fn(&str, &Path<'_>, &mut Problems);

/// What can be asked for a pod as a whole.
fn pod_level(name: &str, path: &Path<'_>, problems: &mut Problems) {
    let before = problems.len();
    resource_names::validate(name, path, problems);
    let known = matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    if problems.len() == before && !known {
        problems.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

/// Whether an amount is one of huge pages, and not a whole number of them.
fn is_broken(name: &str, quantity: Quantity) -> bool {
    let Some(size) = name.strip_prefix("hugepages-") else { return false };
    let size: i64 = size.parse::<Quantity>().map_or(0, Quantity::value);
    quantity.value().checked_rem(size) != Some(0) || size <= 0 || quantity.sign() < 0
}

/// Whether a pod spec asks anywhere for pages that are not whole.
pub fn have_broken_pages(spec: &Value) -> bool {
    let broken = |amounts: &Value| {
        let mut amounts = amounts.as_object().into_iter().flatten();
        amounts.any(|(name, amount)| {
            let amount = amount.as_str().and_then(|text| text.parse().ok());
            amount.is_some_and(|amount| is_broken(name, amount))
        })
    };
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    broken(&spec["overhead"])
        || lists.iter().flat_map(|list| get_list(spec, list)).any(|container| {
            broken(&container["resources"]["limits"]) || broken(&container["resources"]["requests"])
        })
}

/// Pages come whole.
fn huge_pages(name: &str, quantity: Option<Quantity>, kept: Kept, path: &Path<'_>, problems: &mut Problems) {
    if let Some(quantity) = quantity.filter(|quantity| !kept.broken_pages && is_broken(name, *quantity)) {
        let detail = format!("{quantity} is not positive integer multiple of {name}");
        problems.invalid(path, quantity.to_string(), detail);
    }
}

/// Checks `requests` and `limits` of a container. `claims` are the names of the pod's resource claims.
pub fn validate(resources: &Value, claims: &[&str], kept: Kept, path: &Path<'_>, problems: &mut Problems) {
    needs(resources, resource_names::validate_container, claims, kept, path, problems);
}

/// Checks what a pod asks for as a whole, and that its containers fit into it.
pub fn of_pod(spec: &Value, claims: &[&str], kept: Kept, path: &Path<'_>, problems: &mut Problems) {
    let resources = &spec["resources"];
    if resources.get("claims").is_some() {
        problems.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    needs(resources, pod_level, claims, kept, path, problems);
    let (requests, limits) = (amounts::read(&resources["requests"]), amounts::read(&resources["limits"]));
    for (name, sum) in amounts::of_containers(spec, "requests") {
        if let Some(own) = requests.get(&name).filter(|own| sum > **own) {
            let detail = format!("must be greater than or equal to aggregate container requests of {sum}");
            problems.invalid(&path.child("requests").key(&name), own.to_string(), detail);
        }
    }
    for (name, sum) in amounts::of_containers(spec, "limits") {
        if let Some(own) = limits.get(&name).filter(|own| name.starts_with("hugepages-") && sum > **own) {
            let detail = format!("must be greater than or equal to aggregate container limits of {sum}");
            problems.invalid(&path.child("limits").key(&name), own.to_string(), detail);
        }
    }
    for (index, container) in spec["containers"].as_array().into_iter().flatten().enumerate() {
        for (name, own) in amounts::read(&container["resources"]["limits"]) {
            if let Some(most) = limits.get(&name).filter(|most| own > **most) {
                // The place is upstream's: below the pod's resources.
                let list = path.child("containers");
                let at = list.index(index);
                let detail = format!("must be less than or equal to pod limits of {most}");
                problems.invalid(&at.key(&name).child("limits"), own.to_string(), detail);
            }
        }
    }
}

fn needs(
    resources: &Value,
    name: Name,
    claims: &[&str],
    kept: Kept,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    let empty = Map::new();
    let limits = resources.get("limits").and_then(Value::as_object).unwrap_or(&empty);
    let requests = resources.get("requests").and_then(Value::as_object).unwrap_or(&empty);
    let (limit_path, request_path) = (path.child("limits"), path.child("requests"));
    let mut huge = false;
    let mut base = false;
    for (resource, value) in limits {
        let at = limit_path.key(resource);
        name(resource, &at, problems);
        let limit = resource_names::amount(resource, value, &at, problems);
        huge_pages(resource, limit, kept, &at, problems);
        huge |= resource.starts_with("hugepages-");
        base |= resource == "cpu" || resource == "memory";
    }
    for (resource, value) in requests {
        let at = request_path.key(resource);
        name(resource, &at, problems);
        let text = value.as_str().unwrap_or_default();
        let request = resource_names::amount(resource, value, &at, problems);
        huge |= resource.starts_with("hugepages-");
        base |= resource == "cpu" || resource == "memory";
        let limit: Option<Quantity> =
            limits.get(resource).and_then(Value::as_str).and_then(|text| text.parse().ok());
        match (request, limit) {
            (Some(request), Some(limit)) => {
                if request != limit && !resource_names::may_overcommit(resource) {
                    problems.invalid(
                        &request_path,
                        text,
                        format!("must be equal to {resource} limit of {limit}"),
                    );
                } else if request > limit {
                    problems.invalid(
                        &request_path,
                        text,
                        format!("must be less than or equal to {resource} limit of {limit}"),
                    );
                }
            }
            (Some(_), None) if !resource_names::may_overcommit(resource) => {
                problems.required(&limit_path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        huge_pages(resource, request, kept, &at, problems);
    }
    if huge && !base {
        problems.forbidden(path, "HugePages require cpu or memory");
    }
    claim_names(resources, claims, &path.child("claims"), problems);
}

fn claim_names(resources: &Value, known: &[&str], path: &Path<'_>, problems: &mut Problems) {
    let list = resources.get("claims").and_then(Value::as_array).into_iter().flatten();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, claim) in list.enumerate() {
        let at = path.index(index);
        let name = claim["name"].as_str().unwrap_or_default();
        let request = claim["request"].as_str().unwrap_or_default();
        if name.is_empty() {
            problems.required(&at, "");
            continue;
        }
        if seen.contains(&(name, "")) {
            problems.duplicate(&at, name);
        } else {
            if !request.is_empty() {
                let complaints = names::is_dns1123_label(request);
                problems.invalid_each(&at.child("request"), request, complaints);
            }
            if seen.contains(&(name, request)) {
                problems.duplicate(&at, format!("{name}/{request}"));
            } else if request.is_empty() {
                for _ in seen.iter().filter(|(have, _)| *have == name) {
                    problems.duplicate(&at, name);
                }
            }
            seen.push((name, request));
        }
        if !known.contains(&name) {
            let mut known = known.to_vec();
            known.sort_unstable();
            known.dedup();
            let detail = match known[..] {
                [] => "must be one of the names in pod.spec.resourceClaims which is empty".to_owned(),
                _ => format!("must be one of the names in pod.spec.resourceClaims: {}", known.join(", ")),
            };
            problems.push(Problem {
                kind: ProblemKind::NotFound,
                path: at.to_string(),
                value: Some(name.into()),
                detail,
            });
        }
    }
}
