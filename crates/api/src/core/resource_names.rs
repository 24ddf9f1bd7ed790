//! What resources are called: which names need no domain, and where each may stand.

use apimachinery::{
    field::{Path, Problems},
    names,
    quantity::Quantity,
};
use serde_json::Value;

use crate::checks::NEGATIVE;

/// What is counted in whole things.
const COUNTS: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// What is measured, and may be bounded by a quota.
const AMOUNTS: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// A quota may bound it.
pub fn is_quota(name: &str) -> bool {
    COUNTS.contains(&name) || AMOUNTS.contains(&name) || is_huge(name)
}

/// A container may ask for it without naming a domain.
pub fn is_container(name: &str) -> bool {
    matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
}

/// It is Kubernetes' own, not a device or the like of somebody.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// `example.com/gpu`: of a domain that is not Kubernetes', with room for the prefix that quotas put before it.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::is_qualified_name(&format!("requests.{name}")).is_empty()
}

/// More of it may be promised than there is.
pub fn may_overcommit(name: &str) -> bool {
    is_native(name) && !name.starts_with("hugepages-")
}

/// A resource name: qualified, and known when it has no domain.
pub fn validate(name: &str, path: &Path<'_>, problems: &mut Problems) {
    let complaints = names::is_qualified_name(name);
    if complaints.is_empty() && !name.contains('/') && !is_quota(name) && name != "storage" {
        problems.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    problems.invalid_each(path, name, complaints);
}

/// One that a container may ask for.
pub fn validate_container(name: &str, path: &Path<'_>, problems: &mut Problems) {
    validate(name, path, problems);
    if !name.contains('/') {
        if !is_container(name) {
            problems.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        problems.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

/// One that a quota may bound.
pub fn validate_quota(name: &str, path: &Path<'_>, problems: &mut Problems) {
    validate(name, path, problems);
    if !name.contains('/') && !is_quota(name) {
        problems.invalid(path, name, "must be a standard resource for quota");
    }
}

/// An amount of a resource: not negative, and whole where it counts things.
pub fn amount(name: &str, value: &Value, path: &Path<'_>, problems: &mut Problems) -> Option<Quantity> {
    let text = value.as_str().unwrap_or_default();
    let quantity: Quantity = text.parse().ok()?;
    if quantity.sign() < 0 {
        problems.invalid(path, text, NEGATIVE);
    }
    if (COUNTS.contains(&name) || is_extended(name)) && quantity.millis() % 1000 != 0 {
        problems.invalid(path, text, "must be an integer");
    }
    Some(quantity)
}
