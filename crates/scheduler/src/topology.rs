//! Which domain each node is in, by topology key, as small numbers instead of strings.
//!
//! A cycle asks "in which zone is this node?" once per node and term. The first time a key is asked for, its values
//! get numbers and every node's number is written down; from then on the answer is one look into a vector, and
//! counts per domain are vectors, too. Numbers of domains without nodes are used again.

use std::collections::HashMap;

use client::Labels;

/// A domain within its topology.
pub type Domain = u32;
/// The domain of a node that lacks the key.
pub const NOWHERE: Domain = u32::MAX;
/// The key under which every node is a domain of its own.
pub const EACH_NODE: &str = "";

/// The domains of one topology key.
#[derive(Debug, Default)]
pub struct Topology {
    key: Box<str>,
    numbers: HashMap<Box<str>, Domain>,
    of_node: Vec<Domain>,
    nodes_in: Vec<u32>,
    unused: Vec<Domain>,
}

impl Topology {
    pub fn new<'a>(key: &str, nodes: impl Iterator<Item = (&'a str, &'a Labels)>) -> Self {
        let mut topology = Self { key: key.into(), ..Self::default() };
        for (name, labels) in nodes {
            topology.push(name, labels);
        }
        topology
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn of_node(&self, at: usize) -> Domain {
        self.of_node[at]
    }

    /// Domains that have a node, each with how many.
    pub fn domains(&self) -> impl Iterator<Item = Domain> {
        self.nodes_in.iter().enumerate().filter(|(_, nodes)| **nodes > 0).map(|(domain, _)| domain as Domain)
    }

    /// How many domains have a node.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether every node has the key.
    pub fn is_complete(&self) -> bool {
        self.nodes_in.iter().sum::<u32>() as usize == self.of_node.len()
    }

    /// One more than the highest number in use.
    pub fn width(&self) -> usize {
        self.nodes_in.len()
    }

    pub fn push(&mut self, name: &str, labels: &Labels) {
        let domain = self.enter(name, labels);
        self.of_node.push(domain);
    }

    /// The node at this place has other labels now.
    pub fn relabel(&mut self, at: usize, name: &str, labels: &Labels) {
        let before = self.of_node[at];
        self.of_node[at] = self.enter(name, labels);
        self.leave(before);
    }

    /// The node at this place is gone, and the last one has taken its place.
    pub fn swap_remove(&mut self, at: usize) {
        let before = self.of_node.swap_remove(at);
        self.leave(before);
    }

    fn enter(&mut self, name: &str, labels: &Labels) -> Domain {
        let value = if &*self.key == EACH_NODE { Some(name) } else { labels.get(&self.key) };
        let Some(value) = value else { return NOWHERE };
        let domain = match self.numbers.get(value) {
            Some(domain) => *domain,
            None => {
                let domain = self.unused.pop().unwrap_or_else(|| {
                    self.nodes_in.push(0);
                    (self.nodes_in.len() - 1) as Domain
                });
                self.numbers.insert(value.into(), domain);
                domain
            }
        };
        self.nodes_in[domain as usize] += 1;
        domain
    }

    fn leave(&mut self, domain: Domain) {
        if domain == NOWHERE {
            return;
        }
        let nodes = &mut self.nodes_in[domain as usize];
        *nodes -= 1;
        if *nodes == 0 {
            self.numbers.retain(|_, number| *number != domain);
            self.unused.push(domain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(value: &str) -> Labels {
        if value.is_empty() { Labels::default() } else { [("zone", value)].into_iter().collect() }
    }

    #[test]
    fn numbers_follow_nodes_and_are_used_again() {
        let labels = [zone("x"), zone("y"), zone("x"), zone("")];
        let nodes = ["a", "b", "c", "d"].into_iter().zip(&labels);
        let mut zones = Topology::new("zone", nodes);
        let domains =
            |zones: &Topology| (0..zones.of_node.len()).map(|at| zones.of_node(at)).collect::<Vec<_>>();
        assert_eq!((domains(&zones), zones.len(), zones.is_complete()), (vec![0, 1, 0, NOWHERE], 2, false));
        zones.swap_remove(1);
        assert_eq!((domains(&zones), zones.len()), (vec![0, NOWHERE, 0], 1));
        zones.relabel(1, "d", &zone("z"));
        assert_eq!((domains(&zones), zones.width(), zones.is_complete()), (vec![0, 1, 0], 2, true));
    }
}
