//! Gives every node its range of pod addresses out of the cluster's.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use controller_runtime::{Context, Controller, Key, Plan};
use serde_json::json;

use crate::kinds::Node;

/// A range of addresses and the size of the parts that nodes get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: u128,
    prefix: u8,
    part: u8,
    v4: bool,
}

impl Range {
    /// Reads `10.128.0.0/14` with parts of, say, `/23`.
    pub fn new(cidr: &str, part: u8) -> Option<Self> {
        let (address, prefix) = cidr.split_once('/')?;
        let (address, prefix): (IpAddr, u8) = (address.parse().ok()?, prefix.parse().ok()?);
        let (number, bits, v4) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32, true),
            IpAddr::V6(v6) => (u128::from(v6), 128, false),
        };
        if prefix > part || part > bits {
            return None;
        }
        let host_bits = u32::from(bits - prefix);
        let first = number.checked_shr(host_bits).unwrap_or(0).checked_shl(host_bits).unwrap_or(0);
        Some(Self { first, prefix, part, v4 })
    }

    /// How many nodes it is enough for.
    pub fn parts(&self) -> u64 {
        1_u64.checked_shl(u32::from(self.part - self.prefix)).unwrap_or(u64::MAX)
    }

    /// The part with this number.
    pub fn part(&self, index: u64) -> String {
        let bits: u8 = if self.v4 { 32 } else { 128 };
        let offset = u128::from(index).checked_shl(u32::from(bits - self.part)).unwrap_or(0);
        let number = self.first + offset;
        let address = if self.v4 {
            IpAddr::from((number as u32).to_be_bytes())
        } else {
            IpAddr::from(number.to_be_bytes())
        };
        format!("{address}/{}", self.part)
    }

    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (number, bits, v4) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32_u8, true),
            IpAddr::V6(v6) => (u128::from(v6), 128, false),
        };
        let shift = u32::from(bits - self.prefix);
        v4 == self.v4 && number.checked_shr(shift).unwrap_or(0) == self.first.checked_shr(shift).unwrap_or(0)
    }
}

/// What one node's ranges depend on: all the others'.
pub struct View {
    /// The node.
    pub node: Arc<Node>,
    /// Ranges in use, as text.
    pub taken: HashSet<Box<str>>,
    /// One per address family.
    pub ranges: Vec<Range>,
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let node = &*view.node;
    if !node.spec.pod_cidrs.is_empty() || !node.spec.pod_cidr.is_empty() || node.metadata.is_terminating() {
        return plan;
    }
    let mut parts = Vec::new();
    for range in &view.ranges {
        match (0..range.parts())
            .map(|index| range.part(index))
            .find(|part| !view.taken.contains(part.as_str()))
        {
            Some(part) => parts.push(part),
            None => {
                plan.event(
                    node,
                    "CIDRNotAvailable",
                    format!("Node {} status is now: CIDRNotAvailable", node.metadata.name),
                );
                plan.retry("no range of pod addresses is free");
                return plan;
            }
        }
    }
    if let Some(first) = parts.first() {
        plan.patch(node, json!({"spec": {"podCIDR": first, "podCIDRs": parts}}));
    }
    plan
}

/// The controller. One worker: two nodes must not be given the same range.
pub fn controller(ranges: Vec<Range>) -> Controller {
    let gather = move |context: &Context| {
        let node = context.object::<Node>()?;
        let all = context.caches.of::<Node>().list();
        let taken = all
            .iter()
            .flat_map(|node| node.spec.pod_cidrs.iter().chain([&node.spec.pod_cidr]))
            .cloned()
            .collect();
        Some(View { node, taken, ranges: ranges.clone() })
    };
    Controller::new("node-ipam-controller", gather, reconcile)
        .acting_as("node-controller")
        .events_from("cidrAllocator")
        .workers(1)
        .watching::<Node>(|_, change| match &change.new {
            Some(node) if node.spec.pod_cidrs.is_empty() => vec![Key::cluster(&node.metadata.name)],
            _ => Vec::new(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    fn plan(taken: &[&str], cidr: &str, part: u8) -> Plan {
        let node = Arc::new(object(json!({"metadata":{"name":"a"}})));
        let taken = taken.iter().map(|text| (*text).into()).collect();
        reconcile(&View { node, taken, ranges: vec![Range::new(cidr, part).unwrap()] })
    }

    #[test]
    fn a_node_gets_the_first_free_part() {
        let given =
            |taken: &[&str]| plan(taken, "10.128.0.0/14", 23).changes()[0].1["spec"]["podCIDR"].clone();
        assert_eq!(given(&[]), "10.128.0.0/23");
        assert_eq!(given(&["10.128.0.0/23", "10.128.2.0/23"]), "10.128.4.0/23");
    }

    #[test]
    fn a_full_range_is_told_and_tried_again() {
        let plan = plan(&["10.0.0.0/25", "10.0.0.128/25"], "10.0.0.0/24", 25);
        assert_eq!(plan.events()[0].reason, "CIDRNotAvailable");
        assert!(plan.failure().is_some());
    }

    #[test]
    fn parts_of_both_families_are_cut_right() {
        let v6 = Range::new("fd00:10::/48", 64).unwrap();
        assert_eq!(v6.part(1), "fd00:10:0:1::/64");
        assert!(v6.contains("fd00:10::5".parse().unwrap()));
        assert!(!v6.contains("fd00:11::5".parse().unwrap()));
        assert!(Range::new("10.0.0.0/24", 23).is_none());
    }
}
