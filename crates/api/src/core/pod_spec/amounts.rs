//! What the containers of a pod ask for together.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use serde_json::Value;

/// Amounts by the name of the resource.
pub type Amounts = BTreeMap<String, Quantity>;

/// Reads `requests`, `limits` or the like; what is no quantity is left out.
pub fn read(value: &Value) -> Amounts {
    let map = value.as_object().into_iter().flatten();
    map.filter_map(|(name, amount)| Some((name.clone(), amount.as_str()?.parse().ok()?))).collect()
}

/// Adds more of everything.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let so_far = sum.get(name).copied().unwrap_or(Quantity::ZERO);
        sum.insert(name.clone(), so_far.plus(*amount));
    }
}

fn raise(sum: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let so_far = sum.get(name).copied().unwrap_or(*amount);
        sum.insert(name.clone(), so_far.max(*amount));
    }
}

/// The `requests` or `limits` of all containers and sidecars together, or more if an init container needs more beside the
/// sidecars that run by then.
pub fn of_containers(spec: &Value, kind: &str) -> Amounts {
    let list = |field: &str| spec[field].as_array().into_iter().flatten();
    let (mut sum, mut sidecars, mut starting) = (Amounts::new(), Amounts::new(), Amounts::new());
    for container in list("containers") {
        add(&mut sum, &read(&container["resources"][kind]));
    }
    for container in list("initContainers") {
        let mut own = read(&container["resources"][kind]);
        if container["restartPolicy"] == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut starting, &sidecars);
        } else {
            add(&mut own, &sidecars);
            raise(&mut starting, &own);
        }
    }
    raise(&mut sum, &starting);
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_needs_all_that_runs_at_once() {
        let cpu = |amount: &str| json!({"requests": {"cpu": amount}});
        let mut spec = json!({
            "containers": [{"resources": cpu("1")}, {"resources": cpu("1")}],
            "initContainers": [{"resources": cpu("1"), "restartPolicy": "Always"}, {"resources": cpu("3")}],
        });
        assert_eq!(of_containers(&spec, "requests")["cpu"].to_string(), "4");
        spec["initContainers"][1]["resources"] = cpu("1");
        assert_eq!(of_containers(&spec, "requests")["cpu"].to_string(), "3");
        // A sidecar that comes after an init container does not run beside it.
        spec["initContainers"] =
            json!([{"resources": cpu("3")}, {"resources": cpu("1"), "restartPolicy": "Always"}]);
        assert_eq!(of_containers(&spec, "requests")["cpu"].to_string(), "3");
        assert!(of_containers(&spec, "limits").is_empty());
    }
}
