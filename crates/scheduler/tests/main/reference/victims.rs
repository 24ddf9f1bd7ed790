//! Who has to leave for whom: by trying it out, one pod at a time.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde_json::Value;

use super::{Case, Naive, name};

fn priority(pod: &Value) -> i64 {
    pod["spec"]["priority"].as_i64().unwrap()
}

fn started(pod: &Value) -> &str {
    pod["status"]["startTime"].as_str().unwrap()
}

/// What a choice costs, most telling first.
type Cost<'a> = (usize, i64, i64, usize, Reverse<&'a str>);

fn cost<'a>(victims: &[&'a Value], broken: usize) -> Cost<'a> {
    let highest = victims.iter().map(|pod| priority(pod)).max().unwrap();
    let sum = victims.iter().map(|pod| priority(pod) + (1 << 31)).sum();
    let oldest = victims.iter().filter(|pod| priority(pod) == highest).map(|pod| started(pod)).min().unwrap();
    (broken, highest, sum, victims.len(), Reverse(oldest))
}

/// Whose loss would break a budget, if those before them in the list were lost, too.
fn protected<'a>(pods: &[&'a Value], budgets: &[Value]) -> Vec<&'a str> {
    let mut left: HashMap<&str, i64> = budgets
        .iter()
        .map(|budget| (name(budget), budget["status"]["disruptionsAllowed"].as_i64().unwrap()))
        .collect();
    let mut protected = Vec::new();
    for pod in pods {
        let mut breaks = false;
        for budget in budgets {
            if budget["spec"]["selector"]["matchLabels"]["app"] == pod["metadata"]["labels"]["app"] {
                let left = left.get_mut(name(budget)).unwrap();
                *left -= 1;
                breaks |= *left < 0;
            }
        }
        if breaks {
            protected.push(name(pod));
        }
    }
    protected
}

/// The pods that have to leave a node, and how many of them break a budget; `None` if that does not help.
fn victims<'a>(
    nodes: &[Value],
    placed: &'a [Value],
    budgets: &[Value],
    pod: &Value,
    node: &Value,
) -> Option<(Vec<&'a Value>, usize)> {
    let without = |gone: &[&str]| -> Vec<Value> {
        placed.iter().filter(|other| !gone.contains(&name(other))).cloned().collect()
    };
    let fits = |gone: &[&str]| Naive { nodes, placed: &without(gone) }.fits(pod, node);
    let mut lesser: Vec<&Value> = placed
        .iter()
        .filter(|other| {
            other["spec"]["nodeName"] == node["metadata"]["name"] && priority(other) < priority(pod)
        })
        .collect();
    lesser.sort_by_key(|other| (Reverse(priority(other)), started(other)));
    let mut gone: Vec<&str> = lesser.iter().map(|other| name(other)).collect();
    if lesser.is_empty() || !fits(&gone) {
        return None;
    }
    let protected = protected(&lesser, budgets);
    let (first, then): (Vec<&Value>, Vec<&Value>) =
        lesser.iter().partition(|other| protected.contains(&name(other)));
    let mut leaving = Vec::new();
    for other in first.into_iter().chain(then) {
        let kept: Vec<&str> = gone.iter().copied().filter(|gone| *gone != name(other)).collect();
        if fits(&kept) {
            gone = kept;
        } else {
            leaving.push(other);
        }
    }
    let broken = leaving.iter().filter(|other| protected.contains(&name(other))).count();
    (!leaving.is_empty()).then_some((leaving, broken))
}

#[test]
fn the_same_pods_leave_as_when_everything_is_tried_out() {
    let (mut helped, mut hopeless) = (0, 0);
    for seed in 0..200 {
        // Crowded clusters, so that pods find no room.
        let mut case = Case::new(seed, 60);
        for number in 100..104 {
            let (pod, ours) = case.pod(number);
            let Case { nodes, placed, budgets, cache, framework, .. } = &mut case;
            let Err(refused) = framework.find(&ours, cache, 0) else { continue };
            let (mut failure, cycle) = *refused;
            let help = framework.remedy(&cycle, &ours, &mut failure, cache, 0, false);
            let tried: Vec<_> = nodes
                .iter()
                .filter_map(|node| {
                    let (leaving, broken) = victims(nodes, placed, budgets, &pod, node)?;
                    Some((name(node), cost(&leaving, broken), leaving))
                })
                .collect();
            let Some(preemption) = help.preempt.first() else {
                assert!(tried.is_empty(), "seed {seed}: {tried:?} would do for {pod}: {}", failure.remedy);
                hopeless += 1;
                continue;
            };
            let least = tried.iter().map(|(_, cost, _)| cost).min();
            let chosen = tried.iter().find(|(node, ..)| **node == *preemption.node);
            let (_, cost, leaving) =
                chosen.unwrap_or_else(|| panic!("seed {seed}: {preemption:?} for {pod}"));
            assert_eq!(Some(cost), least, "seed {seed}, pod {pod}");
            let mut ours: Vec<&str> =
                preemption.victims.iter().map(|victim| &*victim.metadata.name).collect();
            let mut wanted: Vec<&str> = leaving.iter().map(|victim| name(victim)).collect();
            ours.sort_unstable();
            wanted.sort_unstable();
            assert_eq!((ours, preemption.broken_budgets), (wanted, cost.0), "seed {seed}, pod {pod}");
            helped += 1;
        }
    }
    assert!(helped > 30 && hopeless > 30, "{helped} were helped, {hopeless} were not");
}
