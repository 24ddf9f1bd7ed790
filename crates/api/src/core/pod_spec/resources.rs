//! Requests and limits.

use apimachinery::{
    field::{Path, Problems},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value};

use crate::checks::NEGATIVE;

/// Resource names that a container may ask for without a domain.
fn is_container_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// May be asked for beyond what there is.
fn may_overcommit(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage")
}

fn name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    let complaints = names::is_qualified_name(name);
    if !complaints.is_empty() {
        problems.invalid_each(path, name, complaints);
        return;
    }
    if !name.contains('/') {
        if !is_container_resource(name) {
            problems.invalid(path, name, "must be a standard resource type or fully qualified");
            problems.invalid(path, name, "must be a standard resource for containers");
        }
    } else if name.contains("kubernetes.io/")
        && !name.starts_with("requests.")
        && !name.contains(".kubernetes.io/")
    {
        problems.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

fn amount(text: &str, name: &str, path: &Path<'_>, problems: &mut Problems) -> Option<Quantity> {
    let quantity: Quantity = text.parse().ok()?;
    if quantity.sign() < 0 {
        problems.invalid(path, text, NEGATIVE);
    }
    if name.contains('/') && !quantity.is_whole() {
        problems.invalid(path, text, "must be an integer");
    }
    Some(quantity)
}

/// Checks `requests` and `limits` of a container or pod.
pub fn validate(resources: &Value, path: &Path<'_>, problems: &mut Problems) {
    let empty = Map::new();
    let limits = resources.get("limits").and_then(Value::as_object).unwrap_or(&empty);
    let requests = resources.get("requests").and_then(Value::as_object).unwrap_or(&empty);
    let (limit_path, request_path) = (path.child("limits"), path.child("requests"));
    let mut huge = false;
    let mut base = false;
    for (resource, value) in limits {
        let at = limit_path.key(resource);
        name(resource, &at, problems);
        amount(value.as_str().unwrap_or_default(), resource, &at, problems);
        huge |= resource.starts_with("hugepages-");
        base |= resource == "cpu" || resource == "memory";
    }
    for (resource, value) in requests {
        let at = request_path.key(resource);
        name(resource, &at, problems);
        let text = value.as_str().unwrap_or_default();
        let request = amount(text, resource, &at, problems);
        huge |= resource.starts_with("hugepages-");
        base |= resource == "cpu" || resource == "memory";
        let limit: Option<Quantity> =
            limits.get(resource).and_then(Value::as_str).and_then(|text| text.parse().ok());
        match (request, limit) {
            (Some(request), Some(limit)) => {
                if request != limit && !may_overcommit(resource) {
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
            (Some(_), None) if !may_overcommit(resource) => {
                problems.required(&limit_path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    if huge && !base {
        problems.forbidden(path, "HugePages require cpu or memory");
    }
    let claims = resources.get("claims").and_then(Value::as_array).into_iter().flatten();
    let list = path.child("claims");
    let mut seen = Vec::new();
    for (index, claim) in claims.enumerate() {
        let at = list.index(index);
        let key = (claim["name"].as_str().unwrap_or_default(), claim["request"].as_str().unwrap_or_default());
        if key.0.is_empty() {
            problems.required(&at, "");
        } else if seen.contains(&key) {
            problems.duplicate(&at, key.0);
        }
        seen.push(key);
    }
}
