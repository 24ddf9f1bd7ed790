//! Rejects nodes on which a host port that the pod wants is taken.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};
use crate::types::{Pod, Port};

pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }
}

/// The host ports that a pod takes while it runs.
pub fn host_ports(pod: &Pod) -> Vec<Port> {
    let sidecars = pod.spec.init_containers.iter().filter(|init| &*init.restart_policy == "Always");
    let ports = pod.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
    ports.filter(|port| port.host_port > 0).cloned().collect()
}

/// Two ports clash on the same protocol if either address means all, or they are the same.
fn clash(one: &Port, other: &Port) -> bool {
    let any = |port: &Port| matches!(&*port.host_ip, "" | "0.0.0.0" | "::");
    let protocol =
        |port: &Port| if port.protocol.is_empty() { "TCP".to_owned() } else { port.protocol.to_string() };
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (any(one) || any(other) || one.host_ip == other.host_ip)
}

impl Filter for NodePorts {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::PodGone, WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let taken = |port: &Port| {
            node.pods.iter().any(|placed| placed.host_ports.iter().any(|other| clash(port, other)))
        };
        if pod.host_ports.iter().any(taken) {
            Verdict::Refused(vec!["node(s) didn't have free ports for the requested pod ports".into()])
        } else {
            Verdict::Fits
        }
    }
}
