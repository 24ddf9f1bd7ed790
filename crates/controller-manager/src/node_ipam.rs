//! Gives every node its range of pod addresses out of the cluster's.
//!
//! Which parts are taken is kept as a count for each, brought up to date by every change of a node: a cluster may have
//! many more nodes than its range has parts, and looking through all of them for each that asks would never end.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Change, Context, Controller, Key, Plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::Node;

/// A node that got nothing is looked at when a part becomes free; and, in case that one went elsewhere, after this long.
const ASK_AGAIN: SignedDuration = SignedDuration::from_mins(5);

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
        self.number_of(address).is_some()
    }

    /// The number of the part that an address is in.
    fn number_of(&self, address: IpAddr) -> Option<u64> {
        let (number, bits, v4) = match address {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32_u8, true),
            IpAddr::V6(v6) => (u128::from(v6), 128, false),
        };
        let high = |number: u128, prefix: u8| {
            number.checked_shr(u32::from(bits.saturating_sub(prefix))).unwrap_or(0)
        };
        if v4 != self.v4 || high(number, self.prefix) != high(self.first, self.prefix) {
            return None;
        }
        high(number - self.first, self.part).try_into().ok()
    }

    /// The numbers of the parts that another range touches: one, unless it was cut to another size.
    fn touched_by(&self, cidr: &str) -> std::ops::Range<u64> {
        let read = || {
            let (address, prefix) = cidr.split_once('/')?;
            Some((address.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?))
        };
        let Some((address, prefix)) = read() else { return 0..0 };
        match self.number_of(address) {
            Some(first) => {
                let more = u32::from(self.part.saturating_sub(prefix.max(self.prefix)));
                let count = 1_u64.checked_shl(more).unwrap_or(u64::MAX);
                let first = first / count * count;
                first..first.saturating_add(count).min(self.parts())
            }
            None => 0..0,
        }
    }
}

/// Which parts of a range are taken.
#[derive(Debug)]
struct Parts {
    range: Range,
    /// By how many nodes; parts that are free are not here.
    taken: HashMap<u64, u32>,
    /// All before this one are taken.
    next: u64,
}

impl Parts {
    fn take(&mut self, cidr: &str) {
        for number in self.range.touched_by(cidr) {
            *self.taken.entry(number).or_insert(0) += 1;
        }
    }

    /// Whether something became free.
    fn give_back(&mut self, cidr: &str) -> bool {
        let mut freed = false;
        for number in self.range.touched_by(cidr) {
            if let Some(count) = self.taken.get_mut(&number) {
                *count -= 1;
                if *count == 0 {
                    self.taken.remove(&number);
                    self.next = self.next.min(number);
                    freed = true;
                }
            }
        }
        freed
    }

    fn first_free(&mut self) -> Option<String> {
        while self.taken.contains_key(&self.next) {
            self.next += 1;
        }
        (self.next < self.range.parts()).then(|| self.range.part(self.next))
    }
}

/// The parts of all ranges, and who waits for one.
#[derive(Debug)]
struct Book {
    parts: Vec<Parts>,
    waiting: BTreeSet<Key>,
}

impl Book {
    fn new(ranges: Vec<Range>) -> Self {
        let parts = ranges.into_iter().map(|range| Parts { range, taken: HashMap::new(), next: 0 });
        Self { parts: parts.collect(), waiting: BTreeSet::new() }
    }

    /// Takes note of a node's ranges; returns the nodes to look at.
    fn changed(&mut self, change: &Change<Node>) -> Vec<Key> {
        let (old, new) = (change.old.as_deref().map(ranges_of), change.new.as_deref().map(ranges_of));
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        let mut freed = false;
        if old != new {
            for parts in &mut self.parts {
                new.iter().for_each(|cidr| parts.take(cidr));
                for cidr in &old {
                    freed |= parts.give_back(cidr);
                }
            }
        }
        let key = change.key();
        let mut look_at = Vec::new();
        match &change.new {
            Some(_) if new.is_empty() => look_at.push(key),
            _ => drop(self.waiting.remove(&key)),
        }
        if freed && let Some(next) = self.waiting.pop_first() {
            look_at.push(next);
        }
        look_at
    }

    /// One part of each range, or nothing if some range has none left; then the node waits.
    fn find(&mut self, key: &Key) -> Option<Vec<String>> {
        let found = self.parts.iter_mut().map(Parts::first_free).collect();
        match found {
            None => drop(self.waiting.insert(key.clone())),
            Some(_) => drop(self.waiting.remove(key)),
        }
        found
    }
}

/// The ranges that a node has.
fn ranges_of(node: &Node) -> Vec<&str> {
    let spec = &node.spec;
    match spec.pod_cidrs.is_empty() {
        true => Some(&*spec.pod_cidr).filter(|cidr| !cidr.is_empty()).into_iter().collect(),
        false => spec.pod_cidrs.iter().map(|cidr| &**cidr).collect(),
    }
}

/// What one node's ranges depend on.
pub struct View {
    /// A node without any.
    pub node: Arc<Node>,
    /// A free part of each of the cluster's ranges; nothing if one of them has none left.
    pub free: Option<Vec<String>>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let node = &*view.node;
    match &view.free {
        None => {
            plan.event(
                node,
                "CIDRNotAvailable",
                format!("Node {} status is now: CIDRNotAvailable", node.metadata.name),
            );
            plan.look_again(view.now.checked_add(ASK_AGAIN).unwrap_or(view.now));
        }
        Some(parts) => {
            if let Some(first) = parts.first() {
                plan.patch(node, json!({"spec": {"podCIDR": first, "podCIDRs": parts}}));
            }
        }
    }
    plan
}

/// The controller. One worker: two nodes must not be given the same range.
pub fn controller(ranges: Vec<Range>) -> Controller {
    let book = Arc::new(Mutex::new(Book::new(ranges)));
    let known = book.clone();
    let gather = move |context: &Context| {
        let node = context.object::<Node>()?;
        if !ranges_of(&node).is_empty() || node.metadata.is_terminating() {
            return None;
        }
        let free = book.lock().unwrap_or_else(PoisonError::into_inner).find(&context.key);
        Some(View { node, free, now: context.now })
    };
    Controller::new("node-ipam-controller", gather, reconcile)
        .acting_as("node-controller")
        .events_from("cidrAllocator")
        .workers(1)
        .watching::<Node>(move |_, change| {
            known.lock().unwrap_or_else(PoisonError::into_inner).changed(change)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};

    fn node(name: &str, cidr: &str) -> Arc<Node> {
        let cidrs: Vec<&str> = Some(cidr).filter(|cidr| !cidr.is_empty()).into_iter().collect();
        Arc::new(object(json!({"metadata":{"name":name},"spec":{"podCIDRs":cidrs}})))
    }

    fn book(cidr: &str, part: u8, taken: &[&str]) -> Book {
        let mut book = Book::new(vec![Range::new(cidr, part).unwrap()]);
        for (number, cidr) in taken.iter().enumerate() {
            let new = Some(node(&format!("n{number}"), cidr));
            assert!(book.changed(&Change { old: None, new }).is_empty());
        }
        book
    }

    #[test]
    fn a_node_gets_the_first_free_part() {
        let given = |taken: &[&str]| {
            let free = book("10.128.0.0/14", 23, taken).find(&Key::cluster("a"));
            let plan = reconcile(&View { node: node("a", ""), free, now: now() });
            plan.changes()[0].1["spec"]["podCIDR"].as_str().unwrap().to_owned()
        };
        assert_eq!(given(&[]), "10.128.0.0/23");
        assert_eq!(given(&["10.128.0.0/23", "10.128.2.0/23"]), "10.128.4.0/23");
        assert_eq!(given(&["10.128.2.0/23"]), "10.128.0.0/23");
        assert_eq!(
            given(&["10.128.1.0/24", "10.128.4.0/22", "192.168.0.0/24"]),
            "10.128.2.0/23",
            "of other sizes"
        );
        assert_eq!(given(&["10.128.0.0/16"]), "10.129.0.0/23");
    }

    #[test]
    fn a_full_range_is_told_and_whoever_waits_gets_what_is_given_back() {
        let mut book = book("10.0.0.0/24", 25, &["10.0.0.0/25", "10.0.0.128/25"]);
        let key = Key::cluster("a");
        let free = book.find(&key);
        let plan = reconcile(&View { node: node("a", ""), free, now: now() });
        assert_eq!(plan.events()[0].reason, "CIDRNotAvailable");
        assert!(plan.requeue_at.is_some());
        let gone = Change { old: Some(node("n1", "10.0.0.128/25")), new: None };
        assert_eq!(book.changed(&gone), std::slice::from_ref(&key));
        assert_eq!(book.find(&key), Some(vec!["10.0.0.128/25".to_owned()]));
        let has = Change { old: Some(node("a", "")), new: Some(node("a", "10.0.0.128/25")) };
        assert!(book.changed(&has).is_empty());
        assert_eq!(book.find(&Key::cluster("b")), None);
    }

    #[test]
    fn a_range_that_two_nodes_have_is_free_when_both_gave_it_back() {
        let mut book = book("10.0.0.0/24", 25, &["10.0.0.0/25", "10.0.0.0/25"]);
        for (name, free) in [("n0", "10.0.0.128/25"), ("n1", "10.0.0.0/25")] {
            book.changed(&Change { old: Some(node(name, "10.0.0.0/25")), new: None });
            assert_eq!(book.find(&Key::cluster("a")), Some(vec![free.to_owned()]));
        }
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
