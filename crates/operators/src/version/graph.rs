//! The order of a release's objects: which may be applied side by side, and what waits for what.
//!
//! A file is called `0000_NN_component_…`: NN is its run level. Objects of one component and level are applied one
//! after the other; what else holds depends on the [`Order`].

use std::collections::BTreeSet;
use std::ops::Range;

use super::manifest::Manifest;

/// How much of the order of the files is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Run levels one after the other, components of a level side by side.
    Levels,
    /// Components side by side, whatever their level.
    Flat,
    /// As `Flat`, and the components in an order that differs from seed to seed, so that none waits for ever behind
    /// one that fails.
    Permuted { seed: u64 },
}

/// Objects that are applied one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Indexes of the objects, in order.
    pub tasks: Vec<usize>,
    /// Nodes that must have succeeded before.
    pub after: BTreeSet<usize>,
}

/// Nodes, each after those that it waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    pub nodes: Vec<Node>,
}

/// Level and component of a file that has both.
fn place(file: &str) -> Option<(&str, &str)> {
    let (level, rest) = file.strip_prefix("0000_")?.split_once('_')?;
    let (component, _) = rest.split_once('_')?;
    let digits = !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_digit());
    let words = component
        .split('-')
        .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    (digits && words).then_some((level, component))
}

/// A stretch of objects with one place; objects of files without one stand alone.
struct Group {
    tasks: Range<usize>,
    level: Option<String>,
}

fn groups(manifests: &[&Manifest], range: Range<usize>) -> Vec<Group> {
    let mut groups: Vec<(Group, Option<(&str, &str)>)> = Vec::new();
    for index in range {
        let at = place(&manifests[index].file);
        match groups.last_mut() {
            Some((group, last)) if at.is_some() && *last == at => group.tasks.end = index + 1,
            _ => {
                let level = at.map(|(level, _)| level.to_owned());
                groups.push((Group { tasks: index..index + 1, level }, at));
            }
        }
    }
    groups.into_iter().map(|(group, _)| group).collect()
}

impl Graph {
    /// The graph of objects that stand in the order of their files.
    pub fn new(manifests: &[&Manifest], order: Order) -> Self {
        let mut graph = Self::default();
        let mut barrier = BTreeSet::new();
        for stage in stages(manifests) {
            barrier = match order {
                Order::Levels => graph.levels(groups(manifests, stage), barrier),
                Order::Flat => graph.side_by_side(serial_runs(groups(manifests, stage)), &barrier),
                Order::Permuted { seed } => {
                    let mut nodes = serial_runs(groups(manifests, stage));
                    shuffle(&mut nodes, seed);
                    graph.side_by_side(nodes, &barrier)
                }
            };
        }
        graph
    }

    /// Adds nodes that all wait for `barrier`; returns them.
    fn side_by_side(&mut self, nodes: Vec<Vec<usize>>, barrier: &BTreeSet<usize>) -> BTreeSet<usize> {
        let first = self.nodes.len();
        self.nodes.extend(nodes.into_iter().map(|tasks| Node { tasks, after: barrier.clone() }));
        (first..self.nodes.len()).collect()
    }

    /// Adds one level after the other. Neighbouring levels of a single component are one node.
    fn levels(&mut self, groups: Vec<Group>, mut barrier: BTreeSet<usize>) -> BTreeSet<usize> {
        let mut rest = groups.into_iter().peekable();
        let mut lone: Option<Vec<usize>> = None;
        while let Some(group) = rest.next() {
            let mut level = vec![group.tasks.clone()];
            while let Some(next) = rest.next_if(|next| next.level.is_some() && next.level == group.level) {
                level.push(next.tasks);
            }
            if level.len() == 1 {
                lone.get_or_insert_default().extend(group.tasks);
                continue;
            }
            if let Some(tasks) = lone.take() {
                barrier = self.side_by_side(vec![tasks], &barrier);
            }
            barrier = self.side_by_side(level.into_iter().map(Vec::from_iter).collect(), &barrier);
        }
        match lone {
            Some(tasks) => self.side_by_side(vec![tasks], &barrier),
            None => barrier,
        }
    }
}

/// Jobs let nothing pass: each is a stage of its own between what stands before and behind it.
fn stages(manifests: &[&Manifest]) -> Vec<Range<usize>> {
    let mut stages: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for (index, manifest) in manifests.iter().enumerate() {
        if manifest.is("batch", "Job") && manifest.version == "v1" {
            stages.push(start..index);
            stages.push(index..index + 1);
            start = index + 1;
        }
    }
    stages.push(start..manifests.len());
    stages.retain(|stage| !stage.is_empty());
    stages
}

/// One node a group, but neighbours whose level has no other component stay in order.
fn serial_runs(groups: Vec<Group>) -> Vec<Vec<usize>> {
    let shared = |at: usize| {
        let same = |other: Option<&Group>| {
            other.is_some_and(|other| other.level.is_some() && other.level == groups[at].level)
        };
        same(groups.get(at + 1)) || at > 0 && same(groups.get(at - 1))
    };
    let mut nodes: Vec<Vec<usize>> = Vec::new();
    let mut open = false;
    for (at, group) in groups.iter().enumerate() {
        match (open && !shared(at)).then(|| nodes.last_mut()).flatten() {
            Some(last) => last.extend(group.tasks.clone()),
            None => nodes.push(group.tasks.clone().collect()),
        }
        open = !shared(at);
    }
    nodes
}

/// Fisher and Yates on splitmix64: the same seed gives the same order on every machine.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for at in (1..items.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        items.swap(at, (word % (at as u64 + 1)) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::manifest::parse;

    fn manifests(files: &[&str]) -> Vec<Manifest> {
        files
            .iter()
            .enumerate()
            .map(|(index, file)| {
                let (api, kind) =
                    if file.contains("job") { ("batch/v1", "Job") } else { ("v1", "ConfigMap") };
                let text = format!("{{apiVersion: {api}, kind: {kind}, metadata: {{name: o{index}}}}}");
                parse(file, text.as_bytes()).unwrap().remove(0)
            })
            .collect()
    }

    fn graph(files: &[&str], order: Order) -> Vec<(Vec<usize>, Vec<usize>)> {
        let manifests = manifests(files);
        let manifests: Vec<&Manifest> = manifests.iter().collect();
        let graph = Graph::new(&manifests, order);
        graph.nodes.into_iter().map(|node| (node.tasks, node.after.into_iter().collect())).collect()
    }

    const FILES: &[&str] =
        &["0000_10_a_1.yaml", "0000_20_a_1.yaml", "0000_20_a_2.yaml", "0000_20_b_1.yaml", "0000_30_c_1.yaml"];

    #[test]
    fn levels_are_barriers_and_components_of_one_run_side_by_side() {
        assert_eq!(
            graph(FILES, Order::Levels),
            [(vec![0], vec![]), (vec![1, 2], vec![0]), (vec![3], vec![0]), (vec![4], vec![1, 2])]
        );
    }

    #[test]
    fn lone_components_of_neighbouring_levels_are_one_node() {
        assert_eq!(
            graph(&["0000_10_a_1.yaml", "0000_20_b_1.yaml", "other.yaml", "0000_30_a_1.yaml"], Order::Levels),
            [(vec![0, 1, 2, 3], vec![])]
        );
    }

    #[test]
    fn a_first_install_keeps_no_levels_apart() {
        assert_eq!(
            graph(FILES, Order::Flat),
            [(vec![0], vec![]), (vec![1, 2], vec![]), (vec![3], vec![]), (vec![4], vec![])]
        );
    }

    #[test]
    fn a_job_lets_nothing_pass() {
        assert_eq!(
            graph(
                &["0000_10_a_1.yaml", "0000_10_b_1.yaml", "0000_10_b_job.yaml", "0000_10_c_1.yaml"],
                Order::Flat
            ),
            [(vec![0], vec![]), (vec![1], vec![]), (vec![2], vec![0, 1]), (vec![3], vec![2])]
        );
    }

    #[test]
    fn a_permutation_loses_nothing_and_differs_by_seed() {
        let files: Vec<String> = (0..20).map(|at| format!("0000_10_c{at:02}_1.yaml")).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let one = graph(&files, Order::Permuted { seed: 1 });
        let two = graph(&files, Order::Permuted { seed: 2 });
        assert_ne!(one, two);
        assert_eq!(one, graph(&files, Order::Permuted { seed: 1 }));
        let mut tasks: Vec<usize> = two.into_iter().flat_map(|(tasks, _)| tasks).collect();
        tasks.sort_unstable();
        assert_eq!(tasks, Vec::from_iter(0..20));
    }

    #[test]
    fn every_node_waits_only_for_earlier_ones() {
        for order in [Order::Levels, Order::Flat, Order::Permuted { seed: 7 }] {
            for (at, (_, after)) in graph(FILES, order).into_iter().enumerate() {
                assert!(after.iter().all(|before| *before < at));
            }
        }
    }
}
