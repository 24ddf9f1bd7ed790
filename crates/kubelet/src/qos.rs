//! Quality of service: which pods are sacrificed first when memory runs out, and where their cgroups stand.

use crate::pod::{Container, Pod, Quantity};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl Class {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// The class that the requests and limits of all containers make.
pub fn class(pod: &Pod) -> Class {
    let positive =
        |quantity: Option<&Quantity>| quantity.and_then(Quantity::millis).filter(|millis| *millis > 0);
    let (mut any, mut guaranteed) = (false, true);
    let requirements: Vec<_> = match &pod.spec.resources {
        Some(whole) => vec![whole],
        None => {
            pod.spec.init_containers.iter().chain(&pod.spec.containers).map(|one| &one.resources).collect()
        }
    };
    for wanted in requirements {
        for name in ["cpu", "memory"] {
            let limit = positive(wanted.limits.get(name));
            // A limit alone is also the request.
            let request = positive(wanted.requests.get(name)).or(limit);
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (any, guaranteed) {
        (false, _) => Class::BestEffort,
        (true, true) => Class::Guaranteed,
        (true, false) => Class::Burstable,
    }
}

/// The pod's cgroup, relative to the hierarchy's root.
pub fn cgroup_parent(pod: &Pod) -> String {
    let uid = &pod.metadata.uid;
    match class(pod) {
        Class::Guaranteed => format!("/kubepods/pod{uid}"),
        Class::Burstable => format!("/kubepods/burstable/pod{uid}"),
        Class::BestEffort => format!("/kubepods/besteffort/pod{uid}"),
    }
}

/// The kernel's preference for killing a container's processes when memory runs out: the smaller its share of the
/// machine, the sooner.
pub fn oom_score_adj(pod: &Pod, container: &Container, machine_memory: u64) -> i64 {
    if pod.spec.priority.is_some_and(|priority| priority >= 2_000_001_000) {
        return -997;
    }
    match class(pod) {
        Class::Guaranteed => -997,
        Class::BestEffort => 1000,
        Class::Burstable => {
            let request =
                container.resources.requests.get("memory").or(container.resources.limits.get("memory"));
            let bytes = request.and_then(Quantity::value).unwrap_or(0).max(0);
            let adjust = 1000 - (1000 * i128::from(bytes)) / i128::from(machine_memory.max(1));
            (adjust as i64).clamp(3, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn classes_follow_requests_and_limits() {
        let cases = [
            (json!([{"name": "a"}]), Class::BestEffort, 1000),
            (json!([{"name": "a", "resources": {"requests": {"cpu": "1"}}}]), Class::Burstable, 999),
            (
                json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]),
                Class::Guaranteed,
                -997,
            ),
            (
                json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, {"name": "b"}]),
                Class::Burstable,
                500,
            ),
            (
                json!([{"name": "a", "resources": {"requests": {"cpu": "1", "memory": "2Gi"},
                                                   "limits": {"cpu": "1", "memory": "3Gi"}}}]),
                Class::Burstable,
                3,
            ),
        ];
        for (containers, wanted, adjust) in cases {
            let pod: Pod =
                serde_json::from_value(json!({"metadata": {}, "spec": {"containers": containers}})).unwrap();
            assert_eq!(class(&pod), wanted, "{containers}");
            assert_eq!(oom_score_adj(&pod, &pod.spec.containers[0], 2 << 30), adjust, "{containers}");
        }
    }
}
