//! Requests and limits as cgroup values, and as the status shows them.

use std::collections::BTreeMap;

use cri::{HugepageLimit, LinuxContainerResources};
use serde_json::{Map, Value, json};

use crate::pod::{Container, Pod, Quantity, ResourceRequirements, Role};
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

pub fn of_requirements(wanted: &ResourceRequirements) -> LinuxContainerResources {
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

/// What the whole pod is limited to, with its overhead. A limit holds only where every container has one, or the pod itself.
pub fn of_pod(pod: &Pod) -> LinuxContainerResources {
    let limit = |name: &str| {
        let own = |container: &Container| read(name, container.resources.limits.get(name));
        let of_pod = pod.spec.resources.as_ref().map_or(0, |whole| read(name, whole.limits.get(name)));
        let mut all = pod.spec.containers.iter().chain(&pod.spec.init_containers);
        let value = match of_pod {
            0 if all.any(|container| own(container) == 0) => 0,
            0 => aggregate(pod, own),
            of_pod => of_pod,
        };
        if value == 0 { 0 } else { value + read(name, pod.spec.overhead.get(name)) }
    };
    LinuxContainerResources {
        cpu_period: CFS_PERIOD,
        cpu_shares: shares(requested(pod, "cpu")),
        cpu_quota: quota(limit("cpu")),
        memory_limit_in_bytes: limit("memory"),
        ..LinuxContainerResources::default()
    }
}

/// What the pod costs beyond its containers.
pub fn overhead(pod: &Pod) -> Option<LinuxContainerResources> {
    let overhead = &pod.spec.overhead;
    let cpu = read("cpu", overhead.get("cpu"));
    (!overhead.is_empty()).then(|| LinuxContainerResources {
        cpu_period: CFS_PERIOD,
        cpu_shares: shares(cpu),
        cpu_quota: quota(cpu),
        memory_limit_in_bytes: read("memory", overhead.get("memory")),
        ..LinuxContainerResources::default()
    })
}

/// Milli-cores of `cpu`, whole units of all else; 0 for none.
fn read(name: &str, quantity: Option<&Quantity>) -> i64 {
    let value =
        if name == "cpu" { quantity.and_then(Quantity::millis) } else { quantity.and_then(Quantity::value) };
    value.unwrap_or(0).max(0)
}

/// What scheduler and admission count for a pod: what it asks for itself or what its containers do, and its overhead.
pub fn requested(pod: &Pod, name: &str) -> i64 {
    let asked = |wanted: &ResourceRequirements| {
        read(name, wanted.requests.get(name).or_else(|| wanted.limits.get(name)))
    };
    let of_pod = pod.spec.resources.as_ref().map_or(0, asked);
    let value =
        if of_pod > 0 { of_pod } else { aggregate(pod, |container: &Container| asked(&container.resources)) };
    value + read(name, pod.spec.overhead.get(name))
}

/// The larger of what init containers need at their peak and the sum of what runs together.
fn aggregate(pod: &Pod, of: impl Fn(&Container) -> i64) -> i64 {
    let apps: i64 = pod.spec.containers.iter().map(&of).sum();
    let (mut sidecars, mut peak) = (0, 0);
    for (role, container) in pod.containers() {
        match role {
            Role::Sidecar => {
                sidecars += of(container);
                peak = peak.max(sidecars);
            }
            Role::Init => peak = peak.max(sidecars + of(container)),
            Role::App | Role::Ephemeral => {}
        }
    }
    (apps + sidecars).max(peak)
}

/// What a running container really has, where that is not what its spec asks for now: a resize that was not made.
pub fn actual(container: &Container, runs_with: &LinuxContainerResources) -> Option<ResourceRequirements> {
    let asked = of_requirements(&container.resources);
    // A runtime that does not tell has what it was given.
    let told = runs_with.cpu_period != 0 || runs_with.cpu_shares != 0;
    let same = asked.cpu_shares == runs_with.cpu_shares
        && asked.cpu_quota == runs_with.cpu_quota.max(0)
        && asked.memory_limit_in_bytes == runs_with.memory_limit_in_bytes;
    if !told || same {
        return None;
    }
    let mut found = ResourceRequirements::default();
    let period = runs_with.cpu_period.max(1);
    let millis = |millis: i64| Quantity(format!("{millis}m"));
    if runs_with.cpu_shares > SMALLEST_SHARES {
        found.requests.insert("cpu".into(), millis((runs_with.cpu_shares * 1000 + 1023) / 1024));
    }
    if runs_with.cpu_quota > 0 {
        found.limits.insert("cpu".into(), millis(runs_with.cpu_quota * 1000 / period));
    }
    if runs_with.memory_limit_in_bytes > 0 {
        found.limits.insert("memory".into(), Quantity(runs_with.memory_limit_in_bytes.to_string()));
    }
    Some(found)
}

/// Adds `allocatedResources`, what the container was given, and `resources`, what it runs with, to its status.
pub fn add_to_status(
    status: &mut Value,
    given: &ResourceRequirements,
    runs_with: &ResourceRequirements,
    running: bool,
) {
    if !running {
        return;
    }
    let map = |values: &BTreeMap<String, Quantity>| -> Map<String, Value> {
        values.iter().map(|(name, quantity)| (name.clone(), json!(quantity.0))).collect()
    };
    let mut shown = Map::new();
    if !runs_with.limits.is_empty() {
        shown.insert("limits".into(), Value::Object(map(&runs_with.limits)));
    }
    if !runs_with.requests.is_empty() {
        shown.insert("requests".into(), Value::Object(map(&runs_with.requests)));
    }
    if !given.requests.is_empty() {
        status["allocatedResources"] = Value::Object(map(&given.requests));
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

    #[test]
    fn a_pods_own_limits_and_overhead_count() {
        let limits = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
        let values = |spec: Value| {
            let pod = pod(spec);
            let values = of_pod(&pod);
            (values.cpu_shares, values.cpu_quota, values.memory_limit_in_bytes, requested(&pod, "cpu"))
        };
        let two = json!([{"name": "a", "resources": limits("100m", "1Mi")},
                         {"name": "b", "resources": limits("200m", "2Mi")}]);
        assert_eq!(values(json!({"containers": two})), (307, 30_000, 3 << 20, 300));
        let overhead = json!({"cpu": "50m", "memory": "1Mi"});
        assert_eq!(values(json!({"containers": two, "overhead": overhead})), (358, 35_000, 4 << 20, 350));
        // An init container that needs more than all the others has it.
        let init = json!([{"name": "i", "resources": limits("1", "9Mi")}]);
        assert_eq!(
            values(json!({"containers": two, "initContainers": init})),
            (1024, 100_000, 9 << 20, 1000)
        );
        let one_without = json!([{"name": "a", "resources": limits("100m", "1Mi")}, {"name": "b"}]);
        assert_eq!(values(json!({"containers": one_without})), (102, 0, 0, 100));
        // The pod's own stand above those of its containers.
        let whole = json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "8Mi"}});
        let spec = json!({"containers": one_without, "resources": whole, "overhead": overhead});
        assert_eq!(values(spec), (563, 105_000, 9 << 20, 550));
        let pod = pod(json!({"containers": one_without, "overhead": overhead}));
        assert_eq!(super::overhead(&pod).unwrap().memory_limit_in_bytes, 1 << 20);
    }
}
