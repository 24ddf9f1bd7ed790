//! The quality-of-service class of a pod.

use apimachinery::{meta::get, quantity::Quantity};
use serde_json::Value;

fn amount(list: Option<&Value>, name: &str) -> Option<Quantity> {
    list?.get(name)?.as_str()?.parse().ok()
}

/// `Guaranteed`, `Burstable` or `BestEffort`, from cpu and memory of all containers (or of the pod as a whole).
pub fn class(spec: &Value) -> &'static str {
    let pod_level = get(spec, "resources")
        .filter(|resources| resources.get("requests").is_some() || resources.get("limits").is_some());
    let mut parts: Vec<&Value> = Vec::new();
    match pod_level {
        Some(resources) => parts.push(resources),
        None => {
            let empty = &Value::Null;
            for list in ["containers", "initContainers"] {
                let containers = spec.get(list).and_then(Value::as_array).into_iter().flatten();
                parts.extend(containers.map(|container| container.get("resources").unwrap_or(empty)));
            }
        }
    }
    let mut any = false;
    let mut guaranteed = true;
    for resources in parts {
        let (requests, limits) = (resources.get("requests"), resources.get("limits"));
        for name in ["cpu", "memory"] {
            let request = amount(requests, name).filter(|quantity| !quantity.is_zero());
            let limit = amount(limits, name).filter(|quantity| !quantity.is_zero());
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes_follow_requests_and_limits() {
        let class_of = |resources: Value| class(&json!({"containers": [{"resources": resources}]}));
        assert_eq!(class_of(json!({})), "BestEffort");
        assert_eq!(class_of(json!({"requests": {"cpu": "1"}})), "Burstable");
        let full = json!({"cpu": "1", "memory": "1Gi"});
        assert_eq!(class_of(json!({"limits": full, "requests": full})), "Guaranteed");
        assert_eq!(
            class_of(json!({"limits": full, "requests": {"cpu": "500m", "memory": "1Gi"}})),
            "Burstable"
        );
    }
}
