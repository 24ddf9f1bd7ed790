//! The table as the sum of all Services' fragments, and the part of it that a change touches.
//!
//! Two Services may claim the same element (an external address, or the same pod behind both), so each element keeps its
//! claims; the first in key order holds. A change yields two small tables, before and after, with only the chains and
//! elements of the Services that changed: their difference is the transaction, whatever the number of other Services.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use client::Key;
use netlink::nft::{Batch, Table, Value};

use crate::plan::{Fragment, NodeCheck, UdpPort};
use crate::skeleton::{Frame, SetName, skeleton};

type Element = (SetName, Vec<u8>);

/// All fragments of one address family.
#[derive(Debug)]
pub struct Ruleset {
    skeleton: Table,
    fragments: BTreeMap<Key, Fragment>,
    claims: HashMap<Element, BTreeMap<Key, Value>>,
    before: Table,
    after: Table,
}

impl Ruleset {
    pub fn new(frame: &Frame) -> Self {
        let skeleton = skeleton(frame);
        Self {
            before: skeleton.clone(),
            after: skeleton.clone(),
            skeleton,
            fragments: BTreeMap::new(),
            claims: HashMap::new(),
        }
    }

    /// Puts a Service's new fragment in the place of its old one. Returns the UDP ports whose endpoints changed.
    pub fn set(&mut self, key: &Key, new: Fragment) -> Vec<UdpPort> {
        let old = self.fragments.remove(key).unwrap_or_default();
        if old == new {
            self.keep(key, new);
            return Vec::new();
        }
        // What a Service has more than once in one round counts from its first state to its last.
        for (name, chain) in &old.chains {
            if self.after.chains.remove(name).is_none() {
                self.before.chains.insert(name.clone(), chain.clone());
            }
        }
        for (name, set) in &old.sets {
            if self.after.sets.remove(name).is_none() {
                self.before.sets.insert(name.clone(), set.clone());
            }
        }
        self.after.chains.extend(new.chains.clone());
        self.after.sets.extend(new.sets.clone());
        let touched: BTreeSet<&Element> = old.elements.keys().chain(new.elements.keys()).collect();
        for element in touched {
            self.claim(key, element, new.elements.get(element));
        }
        let udp = changed_udp(&old.udp, &new.udp);
        self.keep(key, new);
        udp
    }

    /// What load balancers may ask this node about.
    pub fn checks(&self) -> impl Iterator<Item = (&Key, NodeCheck)> {
        self.fragments.iter().filter_map(|(key, fragment)| Some((key, fragment.check?)))
    }

    /// The Services that have a share.
    pub fn keys(&self) -> Vec<Key> {
        self.fragments.keys().cloned().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// What changed since the last call, as one transaction.
    pub fn take_change(&mut self) -> Batch {
        let before = std::mem::replace(&mut self.before, self.skeleton.clone());
        let after = std::mem::replace(&mut self.after, self.skeleton.clone());
        after.update(&before)
    }

    /// The whole table.
    pub fn table(&self) -> Table {
        let mut table = self.skeleton.clone();
        for fragment in self.fragments.values() {
            table.chains.extend(fragment.chains.clone());
            table.sets.extend(fragment.sets.clone());
        }
        for ((set, key), claims) in &self.claims {
            if let Some(value) = claims.values().next() {
                put(&mut table, *set, key.clone(), value.clone());
            }
        }
        table
    }

    fn keep(&mut self, key: &Key, fragment: Fragment) {
        if fragment != Fragment::default() {
            self.fragments.insert(key.clone(), fragment);
        }
    }

    fn claim(&mut self, key: &Key, element: &Element, value: Option<&Value>) {
        let claims = self.claims.entry(element.clone()).or_default();
        let held = claims.values().next().cloned();
        match value {
            Some(value) => claims.insert(key.clone(), value.clone()),
            None => claims.remove(key),
        };
        let holds = claims.values().next().cloned();
        if claims.is_empty() {
            self.claims.remove(element);
        }
        if held == holds {
            return;
        }
        let (set, bytes) = element;
        let pending = self.after.sets.get_mut(set.name()).and_then(|set| set.elements.remove(bytes));
        if pending.is_none()
            && let Some(held) = held
        {
            put(&mut self.before, *set, bytes.clone(), held);
        }
        if let Some(holds) = holds {
            put(&mut self.after, *set, bytes.clone(), holds);
        }
    }
}

fn put(table: &mut Table, set: SetName, key: Vec<u8>, value: Value) {
    if let Some(set) = table.sets.get_mut(set.name()) {
        set.elements.insert(key, value);
    }
}

fn changed_udp(old: &[UdpPort], new: &[UdpPort]) -> Vec<UdpPort> {
    let gone = old.iter().filter(|port| !new.iter().any(|other| other.fronts == port.fronts));
    let gone = gone.map(|port| UdpPort { endpoints: BTreeSet::new(), ..port.clone() });
    new.iter().filter(|port| !old.contains(port)).cloned().chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::nft::{Chain, Expr, Family, Verdict};

    fn fragment(name: &str, modulus: u32, shared: &[u8]) -> Fragment {
        let mut fragment = Fragment::default();
        let rules = vec![vec![Expr::Random { modulus, to: 0 }]];
        fragment.chains.insert(name.to_owned(), Chain { base: None, rules });
        let own = (SetName::ServiceIps, vec![modulus as u8; 12]);
        fragment.elements.insert(own, Value::Verdict(Verdict::Goto(name.to_owned())));
        fragment.elements.insert((SetName::Hairpin, shared.to_vec()), Value::None);
        fragment
    }

    fn ruleset() -> Ruleset {
        Ruleset::new(&Frame {
            table: crate::TABLE.to_owned(),
            family: Family::Ip,
            node_port_ranges: Vec::new(),
        })
    }

    fn steps(ruleset: &mut Ruleset) -> Vec<String> {
        ruleset.take_change().describe().to_vec()
    }

    #[test]
    fn a_change_touches_only_its_service() {
        let mut rules = ruleset();
        for number in 0..1000u32 {
            let name = format!("s{number}");
            rules.set(
                &Key::new("n", &name),
                fragment(&name, number % 200 + 1, &number.to_be_bytes().repeat(2)),
            );
        }
        rules.take_change();
        assert!(rules.take_change().is_empty());
        rules.set(&Key::new("n", "s5"), fragment("s5", 6, &[9; 8]));
        assert_eq!(
            steps(&mut rules),
            ["delete 1 elements of set kube-proxy hairpin", "add 1 elements to set kube-proxy hairpin"]
        );
    }

    #[test]
    fn a_shared_element_stays_until_its_last_claim_goes() {
        let mut rules = ruleset();
        let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
        rules.set(&a, fragment("a", 1, &[7; 8]));
        rules.set(&b, fragment("b", 2, &[7; 8]));
        rules.take_change();
        rules.set(&a, Fragment::default());
        assert!(!steps(&mut rules).iter().any(|step| step.contains("hairpin")));
        rules.set(&b, Fragment::default());
        assert!(
            steps(&mut rules).iter().any(|step| step.contains("delete 1 elements of set kube-proxy hairpin"))
        );
        assert_eq!(rules.table(), ruleset().table());
    }

    #[test]
    fn several_changes_of_a_service_in_one_round_end_in_its_last_state() {
        let mut rules = ruleset();
        let key = Key::new("n", "a");
        rules.set(&key, fragment("a", 1, &[1; 8]));
        rules.take_change();
        rules.set(&key, fragment("a", 2, &[1; 8]));
        rules.set(&key, Fragment::default());
        rules.set(&key, fragment("a", 1, &[1; 8]));
        assert_eq!(steps(&mut rules), Vec::<String>::new());
        rules.set(&key, fragment("b", 3, &[2; 8]));
        rules.set(&key, fragment("a", 4, &[1; 8]));
        assert_eq!(
            steps(&mut rules),
            [
                "delete 1 elements of set kube-proxy service-ips",
                "flush chain kube-proxy a",
                "add rule to chain kube-proxy a",
                "add 1 elements to set kube-proxy service-ips"
            ]
        );
    }
}
