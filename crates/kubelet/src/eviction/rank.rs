//! Whom a shortage ends first, and what is said of it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::thresholds::{Observations, Signal, Threshold};
use crate::pod::{Pod, Quantity};
use crate::{admission, resources};

/// What a pod uses.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    pub memory: u64,
    pub processes: u64,
    /// Bytes and inodes of logs, of writable layers, and of volumes by name.
    pub logs: Disk,
    pub layers: Disk,
    pub volumes: BTreeMap<String, Disk>,
    /// By container: memory, and disk in logs and layer.
    pub containers: BTreeMap<String, (u64, Disk)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Disk {
    pub bytes: u64,
    pub inodes: u64,
}

impl Disk {
    pub fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, inodes: self.inodes + other.inodes }
    }
}

impl Usage {
    pub fn disk(&self) -> Disk {
        self.volumes.values().fold(self.logs.and(self.layers), |sum, one| sum.and(*one))
    }
}

/// A pod that can be ended, and what it uses.
pub struct Candidate {
    pub pod: Arc<Pod>,
    pub usage: Usage,
}

/// How much of the signal's resource a pod uses, and how much it asked for.
fn share(signal: Signal, one: &Candidate) -> (u64, u64) {
    let requested = |name: &str| u64::try_from(resources::requested(&one.pod, name)).unwrap_or(0);
    match signal {
        Signal::MemoryAvailable => (one.usage.memory, requested("memory")),
        Signal::PidAvailable => (one.usage.processes, 0),
        Signal::NodefsAvailable | Signal::ImagefsAvailable => {
            (one.usage.disk().bytes, requested("ephemeral-storage"))
        }
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => (one.usage.disk().inodes, 0),
    }
}

/// Those that use more than they asked for first, of these the least important, of these the greediest.
pub fn rank(signal: Signal, candidates: &mut [Candidate]) {
    candidates.sort_by_key(|one| {
        let (used, requested) = share(signal, one);
        let exceeds = signal != Signal::PidAvailable && used > requested;
        let over = i128::from(used) - i128::from(requested);
        (!exceeds, one.pod.spec.priority.unwrap_or(0), -over)
    });
}

/// Whether a shortage may end this pod at all.
pub fn is_evictable(pod: &Pod) -> bool {
    !admission::is_critical(pod)
}

/// What the pod's status and event say.
pub fn message(threshold: &Threshold, one: &Candidate, seen: &Observations) -> String {
    let resource = threshold.signal.resource();
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(seen) = seen.get(&threshold.signal) {
        let (quantity, available) = (binary(threshold.below.of(seen.capacity)), binary(seen.available));
        text += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    let containers = one.pod.spec.containers.iter().chain(&one.pod.spec.init_containers);
    for container in containers {
        let Some((memory, disk)) = one.usage.containers.get(&container.name) else { continue };
        let used = match resource {
            "memory" => *memory,
            "ephemeral-storage" => disk.bytes,
            _ => continue,
        };
        let request = container.resources.requests.get(resource);
        let number =
            request.and_then(Quantity::value).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
        if used > number {
            text += &format!(
                "Container {} was using {}, request is {}, has larger consumption of {resource}. ",
                container.name,
                binary(used),
                request.map_or("0", |request| request.0.as_str()),
            );
        }
    }
    text
}

/// The limit of its own that a pod has outgrown, whatever the node has left.
pub fn own_limit(one: &Candidate) -> Option<String> {
    let number = |quantity: &Quantity| u64::try_from(quantity.value()?).ok().filter(|number| *number > 0);
    for volume in &one.pod.spec.volumes {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref()) else { continue };
        let used = one.usage.volumes.get(&volume.name).map_or(0, |disk| disk.bytes);
        if number(limit).is_some_and(|limit| used > limit) {
            return Some(format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.0
            ));
        }
    }
    let of = |limits: &BTreeMap<String, Quantity>| limits.get("ephemeral-storage").and_then(number);
    let containers = &one.pod.spec.containers;
    // The whole pod is limited only where all of it is.
    let total: Option<u64> = containers.iter().map(|container| of(&container.resources.limits)).sum();
    if let Some(total) = total.filter(|total| *total > 0 && one.usage.disk().bytes > *total) {
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            binary(total)
        ));
    }
    for container in containers {
        let used = one.usage.containers.get(&container.name).map_or(0, |(_, disk)| disk.bytes);
        if of(&container.resources.limits).is_some_and(|limit| used > limit) {
            let limit =
                container.resources.limits.get("ephemeral-storage").map_or("", |limit| limit.0.as_str());
            return Some(format!(
                "Container {} exceeded its local ephemeral storage limit {limit:?}. ",
                container.name
            ));
        }
    }
    None
}

/// Whether the pod has a limit of its own that has to be watched.
pub fn has_own_limit(pod: &Pod) -> bool {
    let limits = |list: &BTreeMap<String, Quantity>| list.contains_key("ephemeral-storage");
    pod.spec.volumes.iter().any(|one| one.empty_dir.as_ref().is_some_and(|dir| dir.size_limit.is_some()))
        || pod.spec.containers.iter().any(|one| limits(&one.resources.limits))
}

/// Bytes as quantities are written: the largest unit that leaves no rest.
fn binary(mut number: u64) -> String {
    let mut unit = 0;
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    while number > 0 && number.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        number /= 1024;
        unit += 1;
    }
    format!("{number}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::super::thresholds::{Amount, Observation};
    use super::*;
    use serde_json::{Value, json};

    fn candidate(name: &str, priority: i32, spec: Value, memory: u64, disk: u64) -> Candidate {
        let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        pod.spec.priority = Some(priority);
        let layers = Disk { bytes: disk, inodes: 1 };
        let usage = Usage {
            memory,
            processes: memory,
            layers,
            containers: [("c".to_owned(), (memory, layers))].into(),
            ..Usage::default()
        };
        Candidate { pod: Arc::new(pod), usage }
    }

    fn asks(memory: &str) -> Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"memory": memory}}}]})
    }

    #[test]
    fn who_takes_more_than_asked_goes_first_and_the_unimportant_before_the_important() {
        let mut all = [
            candidate("within", 0, asks("1Gi"), 1 << 20, 0),
            candidate("important", 10, asks("1"), 3000, 0),
            candidate("greedy", 0, asks("1"), 2000, 0),
            candidate("modest", 0, asks("1"), 1000, 0),
        ];
        let names = |all: &[Candidate]| -> Vec<String> {
            all.iter().map(|one| one.pod.metadata.name.clone()).collect()
        };
        rank(Signal::MemoryAvailable, &mut all);
        assert_eq!(names(&all), ["greedy", "modest", "important", "within"]);
        rank(Signal::PidAvailable, &mut all);
        assert_eq!(names(&all), ["within", "greedy", "modest", "important"]);
        let critical = candidate("critical", 2_000_000_000, asks("1"), 1, 0);
        assert!(!is_evictable(&critical.pod) && is_evictable(&all[0].pod));
    }

    #[test]
    fn the_message_says_what_was_short_and_who_took_it() {
        let threshold = Threshold {
            signal: Signal::MemoryAvailable,
            below: Amount::Share(10_000),
            grace: None,
            reclaim: None,
        };
        let seen = [(Signal::MemoryAvailable, Observation { available: 1 << 20, capacity: 1 << 30 })].into();
        let one = candidate("a", 0, asks("1Ki"), 3 << 20, 0);
        assert_eq!(
            message(&threshold, &one, &seen),
            "The node was low on resource: memory. Threshold quantity: 107374182, available: 1Mi. \
             Container c was using 3Mi, request is 1Ki, has larger consumption of memory. "
        );
    }

    #[test]
    fn a_pod_outgrows_its_own_limits() {
        let limit = |limit: &str| json!({"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": limit}}}]});
        assert_eq!(own_limit(&candidate("a", 0, limit("2Mi"), 0, 2 << 20)), None);
        let text = own_limit(&candidate("a", 0, limit("1Mi"), 0, 2 << 20)).unwrap();
        assert_eq!(text, "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ");
        let mut spec = limit("1Mi");
        spec["containers"].as_array_mut().unwrap().push(json!({"name": "d"}));
        let text = own_limit(&candidate("a", 0, spec, 0, 2 << 20)).unwrap();
        assert_eq!(text, "Container c exceeded its local ephemeral storage limit \"1Mi\". ");
        let spec = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}], "containers": [{"name": "c"}]});
        let mut one = candidate("a", 0, spec, 0, 0);
        assert!(has_own_limit(&one.pod));
        one.usage.volumes.insert("v".into(), Disk { bytes: 1025, inodes: 1 });
        assert_eq!(own_limit(&one).unwrap(), "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ");
    }
}
