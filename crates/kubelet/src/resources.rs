//! Requests and limits as cgroup values, and as the status shows them.

use std::collections::BTreeMap;

use cri::{HugepageLimit, LinuxContainerResources};
use serde_json::{Map, Value, json};

use crate::pod::{Container, Pod, Quantity, ResourceRequirements};
use crate::qos;

const CFS_PERIOD: i64 = 100_000;
const SMALLEST_QUOTA: i64 = 1000;
const SMALLEST_SHARES: i64 = 2;
const LARGEST_SHARES: i64 = 262_144;

/// The weight that a request of this many milli-cores gets.
pub fn shares(millis: i64) -> i64 {
    if millis <= 0 { SMALLEST_SHARES } else { (millis * 1024 / 1000).clamp(SMALLEST_SHARES, LARGEST_SHARES) }
}

/// The CFS quota of a limit of this many milli-cores; 0 for none.
pub fn quota(millis: i64) -> i64 {
    if millis <= 0 { 0 } else { (millis * CFS_PERIOD / 1000).max(SMALLEST_QUOTA) }
}

/// The cgroup values of one container.
pub fn of_container(
    pod: &Pod,
    container: &Container,
    machine_memory: u64,
    pids_limit: i64,
) -> LinuxContainerResources {
    let mut values = of_requirements(&container.resources);
    values.oom_score_adj = qos::oom_score_adj(pod, container, machine_memory);
    values.pids_limit = pids_limit;
    values
}

fn of_requirements(wanted: &ResourceRequirements) -> LinuxContainerResources {
    let limit_cpu = wanted.limits.get("cpu").and_then(Quantity::millis).unwrap_or(0);
    let request_cpu = wanted.requests.get("cpu").and_then(Quantity::millis).unwrap_or(limit_cpu);
    let memory = wanted.limits.get("memory").and_then(Quantity::value).unwrap_or(0);
    LinuxContainerResources {
        cpu_period: CFS_PERIOD,
        cpu_quota: quota(limit_cpu),
        cpu_shares: shares(request_cpu),
        memory_limit_in_bytes: memory,
        // Without swap accounting of our own, memory and swap together are limited to the memory limit.
        memory_swap_limit_in_bytes: memory,
        hugepage_limits: hugepages(&wanted.limits),
        ..LinuxContainerResources::default()
    }
}

fn hugepages(limits: &BTreeMap<String, Quantity>) -> Vec<HugepageLimit> {
    limits
        .iter()
        .filter_map(|(name, quantity)| {
            let size = Quantity(name.strip_prefix("hugepages-")?.to_owned()).value()?;
            let page_size = match size {
                size if size >= 1 << 30 => format!("{}GB", size >> 30),
                size if size >= 1 << 20 => format!("{}MB", size >> 20),
                size => format!("{}KB", size >> 10),
            };
            Some(HugepageLimit { page_size, limit: quantity.value()?.max(0) as u64 })
        })
        .collect()
}

/// What the whole pod is limited to: the sum of its containers where all have a limit.
pub fn of_pod(pod: &Pod) -> LinuxContainerResources {
    let mut sum = LinuxContainerResources { cpu_period: CFS_PERIOD, ..LinuxContainerResources::default() };
    if let Some(whole) = &pod.spec.resources {
        let values = of_requirements(whole);
        return LinuxContainerResources { oom_score_adj: 0, ..values };
    }
    let (mut request, mut limit, mut memory) = (0, Some(0), Some(0));
    for container in &pod.spec.containers {
        let one = &container.resources;
        let cpu_limit = one.limits.get("cpu").and_then(Quantity::millis).filter(|millis| *millis > 0);
        request += one.requests.get("cpu").and_then(Quantity::millis).or(cpu_limit).unwrap_or(0);
        limit = limit.zip(cpu_limit).map(|(sum, one)| sum + one);
        let bytes = one.limits.get("memory").and_then(Quantity::value).filter(|bytes| *bytes > 0);
        memory = memory.zip(bytes).map(|(sum, one)| sum + one);
    }
    sum.cpu_shares = shares(request);
    sum.cpu_quota = limit.map_or(0, quota);
    sum.memory_limit_in_bytes = memory.unwrap_or(0);
    sum
}

/// What scheduler and admission count for a pod: the larger of its init peak and the sum of what runs together.
pub fn requested(pod: &Pod, name: &str) -> i64 {
    let of = |container: &Container| {
        let wanted = &container.resources;
        let quantity = wanted.requests.get(name).or_else(|| wanted.limits.get(name));
        let value = if name == "cpu" {
            quantity.and_then(Quantity::millis)
        } else {
            quantity.and_then(Quantity::value)
        };
        value.unwrap_or(0).max(0)
    };
    let apps: i64 = pod.spec.containers.iter().map(of).sum();
    let (mut sidecars, mut peak) = (0, 0);
    for container in &pod.spec.init_containers {
        if container.restart_policy.is_some() {
            sidecars += of(container);
            peak = peak.max(sidecars);
        } else {
            peak = peak.max(sidecars + of(container));
        }
    }
    (apps + sidecars).max(peak)
}

/// Adds `allocatedResources` and `resources` to a container's status.
pub fn add_to_status(status: &mut Value, container: &Container, running: bool) {
    let wanted = &container.resources;
    let map = |values: &BTreeMap<String, Quantity>| -> Map<String, Value> {
        values.iter().map(|(name, quantity)| (name.clone(), json!(quantity.0))).collect()
    };
    if !running || wanted.requests.is_empty() && wanted.limits.is_empty() {
        if running {
            status["resources"] = json!({});
        }
        return;
    }
    let mut shown = Map::new();
    if !wanted.limits.is_empty() {
        shown.insert("limits".into(), Value::Object(map(&wanted.limits)));
    }
    if !wanted.requests.is_empty() {
        shown.insert("requests".into(), Value::Object(map(&wanted.requests)));
        status["allocatedResources"] = Value::Object(map(&wanted.requests));
    }
    status["resources"] = Value::Object(shown);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn requests_and_limits_become_cgroup_values() {
        let pod = pod(json!({"containers": [{"name": "a", "resources": {
            "requests": {"cpu": "250m"}, "limits": {"cpu": "1500m", "memory": "64Mi", "hugepages-2Mi": "4Mi"}}}]}));
        let values = of_container(&pod, &pod.spec.containers[0], 1 << 30, 0);
        assert_eq!((values.cpu_shares, values.cpu_quota, values.cpu_period), (256, 150_000, 100_000));
        assert_eq!(values.memory_limit_in_bytes, 64 << 20);
        assert_eq!(values.hugepage_limits, [HugepageLimit { page_size: "2MB".into(), limit: 4 << 20 }]);
        assert_eq!((shares(0), shares(1), quota(1), quota(0)), (2, 2, 1000, 0));
    }

    #[test]
    fn a_pod_is_counted_by_its_peak() {
        let pod = pod(json!({
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
                {"name": "i", "resources": {"requests": {"cpu": "1"}}}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "300m"}}}]}));
        assert_eq!(requested(&pod, "cpu"), 1100);
    }
}
