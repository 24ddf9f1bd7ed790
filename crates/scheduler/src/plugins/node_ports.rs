//! Rejects nodes on which a host port that the pod wants is taken.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreFilter, Prepared, Verdict};
use crate::types::{Pod, Port};

pub struct NodePorts;

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }
    fn wakes_on(&self) -> Events {
        Events::POD_GONE.and(Events::NODE_ADDED)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::PodGone(gone) => {
                let wanted = host_ports(pod);
                host_ports(gone).iter().any(|freed| wanted.iter().any(|port| clash(port, freed)))
            }
            _ => true,
        }
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
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
    fn protocol(port: &Port) -> &str {
        if port.protocol.is_empty() { "TCP" } else { &port.protocol }
    }
    let any = |port: &Port| matches!(&*port.host_ip, "" | "0.0.0.0");
    one.host_port == other.host_port
        && protocol(one) == protocol(other)
        && (any(one) || any(other) || one.host_ip == other.host_ip)
}

impl PreFilter for NodePorts {
    fn pre_filter(&self, _cycle: &mut Cycle, pod: &PlacedPod, _cache: &mut Cache) -> Prepared {
        if pod.host_ports.is_empty() { Prepared::Skip } else { Prepared::Check }
    }
}

impl Filter for NodePorts {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        if node.with_ports == 0 {
            return Verdict::Fits;
        }
        let taken = |port: &Port| {
            node.pods.iter().any(|placed| placed.host_ports.iter().any(|other| clash(port, other)))
        };
        if pod.host_ports.iter().any(taken) {
            Verdict::refused("node(s) didn't have free ports for the requested pod ports")
        } else {
            Verdict::Fits
        }
    }
}
