//! What the pods of each scenario ask for.

use clap::ValueEnum;
use serde_json::{Value, json};

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// A kind of pods to schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Only CPU and memory
    Basic,
    /// Pods of an application keep off each other's nodes
    AntiAffinity,
    /// Zones differ by at most one pod
    Spread,
    /// Pods would like to be in a zone with others of their kind
    PreferredAffinity,
}

impl Scenario {
    pub fn name(self) -> &'static str {
        match self {
            Self::Basic => "basic",
            Self::AntiAffinity => "anti-affinity",
            Self::Spread => "spread",
            Self::PreferredAffinity => "preferred-affinity",
        }
    }

    /// How many pods the scenario has unless told otherwise.
    pub fn pods(self) -> usize {
        if self == Self::Basic { 5000 } else { 2000 }
    }

    /// Applications that the pods belong to. Pods that keep off each other need as many nodes as there are of them,
    /// so that each application gets at most half of the nodes.
    fn applications(self, pods: usize, nodes: usize) -> usize {
        match self {
            Self::AntiAffinity => (pods * 2).div_ceil(nodes.max(1)).max(1),
            Self::Basic | Self::Spread | Self::PreferredAffinity => 1,
        }
    }

    /// The pod with this number, of so many on so many nodes.
    pub fn pod(self, number: usize, pods: usize, nodes: usize) -> Value {
        let application = number % self.applications(pods, nodes);
        let labels = json!({"app": format!("{}-{application}", self.name())});
        let peers = |key: &str| json!({"labelSelector": {"matchLabels": labels}, "topologyKey": key});
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod_name(self, number), "labels": labels},
            "spec": {
                // Nobody runs it, so nobody would confirm its end.
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "main", "image": "kelson.local/demo",
                    "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
                }],
            },
        });
        let spec = &mut pod["spec"];
        match self {
            Self::Basic => {}
            Self::AntiAffinity => {
                spec["affinity"] = json!({"podAntiAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [peers(HOSTNAME)]}});
            }
            Self::Spread => {
                let mut constraint = peers(ZONE);
                constraint["maxSkew"] = json!(1);
                constraint["whenUnsatisfiable"] = json!("DoNotSchedule");
                spec["topologySpreadConstraints"] = json!([constraint]);
            }
            Self::PreferredAffinity => {
                spec["affinity"] = json!({"podAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution":
                        [{"weight": 1, "podAffinityTerm": peers(ZONE)}]}});
            }
        }
        pod
    }
}

pub fn pod_name(scenario: Scenario, number: usize) -> String {
    format!("{}-{number}", scenario.name())
}

/// The number in a name, if it is a pod of this scenario.
pub fn pod_number(scenario: Scenario, name: &str) -> Option<usize> {
    name.strip_prefix(scenario.name())?.strip_prefix('-')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_application_has_room_to_keep_off_itself() {
        for (pods, nodes) in [(2000, 1000), (20, 5), (1, 1), (7, 3), (10_000, 5000)] {
            let pod =
                |number| Scenario::AntiAffinity.pod(number, pods, nodes)["metadata"]["labels"]["app"].clone();
            let largest = (0..pods).filter(|number| pod(*number) == pod(0)).count();
            assert!(largest <= nodes, "{pods} pods on {nodes} nodes: {largest} of one application");
        }
    }

    #[test]
    fn names_are_read_back() {
        for scenario in Scenario::value_variants() {
            assert_eq!(pod_number(*scenario, &pod_name(*scenario, 17)), Some(17));
            assert_eq!(scenario.to_possible_value().unwrap().get_name(), scenario.name());
        }
        assert_eq!(pod_number(Scenario::Basic, "spread-1"), None);
    }
}
