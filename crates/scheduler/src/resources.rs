//! Amounts of the things that nodes have and pods ask for.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

use crate::types::{Container, Pod, ResourceList};

/// What upstream counts, for scoring, when a container asks for nothing.
const UNASKED_MILLI_CPU: i64 = 100;
const UNASKED_MEMORY: i64 = 200 << 20;

/// The name of a resource, the common ones without text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    Cpu,
    Memory,
    EphemeralStorage,
    Pods,
    Other(Box<str>),
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::EphemeralStorage,
            "pods" => Self::Pods,
            other => Self::Other(other.into()),
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        Ok(Self::from(&*Box::<str>::deserialize(input)?))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Pods => "pods",
            Self::Other(name) => name,
        })
    }
}

/// A vector of amounts: CPU in thousandths, the others in units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Extended resources and huge pages; empty for nearly every pod.
    pub others: BTreeMap<Box<str>, i64>,
}

impl Resources {
    pub fn get(&self, name: &Name) -> i64 {
        match name {
            Name::Cpu => self.milli_cpu,
            Name::Memory => self.memory,
            Name::EphemeralStorage => self.ephemeral_storage,
            Name::Pods => self.pods,
            Name::Other(name) => self.others.get(name).copied().unwrap_or(0),
        }
    }

    pub fn from_list(list: &ResourceList) -> Self {
        let mut amounts = Self::default();
        for (name, quantity) in list.iter() {
            match name {
                "cpu" => amounts.milli_cpu = quantity.millis(),
                "memory" => amounts.memory = quantity.value(),
                "ephemeral-storage" => amounts.ephemeral_storage = quantity.value(),
                "pods" => amounts.pods = quantity.value(),
                _ => {
                    amounts.others.insert(name.into(), quantity.value());
                }
            }
        }
        amounts
    }

    pub fn add(&mut self, other: &Self) {
        self.combine(other, |mine, theirs| mine.saturating_add(theirs));
    }

    pub fn subtract(&mut self, other: &Self) {
        self.combine(other, |mine, theirs| mine.saturating_sub(theirs));
    }

    /// Raises each amount to the other's if that is larger.
    pub fn raise_to(&mut self, other: &Self) {
        self.combine(other, i64::max);
    }

    fn combine(&mut self, other: &Self, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        self.pods = with(self.pods, other.pods);
        for (name, amount) in &other.others {
            let mine = self.others.entry(name.clone()).or_insert(0);
            *mine = with(*mine, *amount);
        }
    }

    /// What a pod asks for in all: its containers and sidecars together, or its most demanding init container
    /// beside the sidecars started before it, whichever is more; pod-level requests replace that sum; overhead
    /// comes on top.
    pub fn of_pod(pod: &Pod) -> Self {
        total(pod, |container| Self::from_list(&container.resources.requests))
    }

    /// The same with upstream's assumption for containers that ask for no CPU or memory; used for scores only.
    pub fn of_pod_for_scoring(pod: &Pod) -> Self {
        total(pod, |container| {
            let mut asked = Self::from_list(&container.resources.requests);
            if !container.resources.requests.contains_key("cpu") {
                asked.milli_cpu = UNASKED_MILLI_CPU;
            }
            if !container.resources.requests.contains_key("memory") {
                asked.memory = UNASKED_MEMORY;
            }
            asked
        })
    }
}

fn total(pod: &Pod, of: impl Fn(&Container) -> Resources) -> Resources {
    let spec = &pod.spec;
    let mut sidecars = Resources::default();
    let mut peak = Resources::default();
    for container in &spec.init_containers {
        let asked = of(container);
        if &*container.restart_policy == "Always" {
            sidecars.add(&asked);
            peak.raise_to(&sidecars);
        } else {
            let mut during = sidecars.clone();
            during.add(&asked);
            peak.raise_to(&during);
        }
    }
    let mut sum = sidecars;
    for container in &spec.containers {
        sum.add(&of(container));
    }
    sum.raise_to(&peak);
    let whole = Resources::from_list(&spec.resources.requests);
    for name in spec.resources.requests.keys() {
        match name {
            "cpu" => sum.milli_cpu = whole.milli_cpu,
            "memory" => sum.memory = whole.memory,
            _ => {
                sum.others.insert(name.into(), whole.others.get(name).copied().unwrap_or(0));
            }
        }
    }
    sum.add(&Resources::from_list(&spec.overhead));
    sum.pods = 1;
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({ "spec": json })).unwrap()
    }

    fn asks(cpu: &str) -> serde_json::Value {
        serde_json::json!({"resources": {"requests": {"cpu": cpu, "memory": "1Mi"}}})
    }

    #[test]
    fn init_containers_count_by_their_peak_and_sidecars_beside() {
        let mut sidecar = asks("100m");
        sidecar["restartPolicy"] = "Always".into();
        let pod = pod(serde_json::json!({
            "initContainers": [sidecar, asks("2")],
            "containers": [asks("500m"), asks("500m")],
            "overhead": {"cpu": "50m"},
        }));
        assert_eq!(Resources::of_pod(&pod).milli_cpu, 2150);
    }

    #[test]
    fn a_request_for_the_whole_pod_replaces_the_sum() {
        let pod = pod(serde_json::json!({
            "containers": [asks("500m")], "resources": {"requests": {"cpu": "3"}},
        }));
        let all = Resources::of_pod(&pod);
        assert_eq!((all.milli_cpu, all.memory, all.pods), (3000, 1 << 20, 1));
    }

    #[test]
    fn a_silent_container_weighs_something_in_scores_only() {
        let pod = pod(serde_json::json!({"containers": [{}]}));
        assert_eq!(Resources::of_pod(&pod).milli_cpu, 0);
        assert_eq!(Resources::of_pod_for_scoring(&pod).milli_cpu, UNASKED_MILLI_CPU);
    }
}
