//! What each feasible node is worth: every default plugin's score, by its documented formula.

use serde_json::Value;

use super::{Case, Naive, PREFERRED, REQUIRED, list, millis, name, selects};

const MEBIBYTE: i64 = 1 << 20;
/// What a container that asks for no memory counts for.
const UNASKED_MEMORY: i64 = 200 * MEBIBYTE;

fn mebibytes(text: &Value) -> Option<i64> {
    Some(text.as_str()?.trim_end_matches("Mi").parse::<i64>().unwrap() * MEBIBYTE)
}

fn memory(pod: &Value) -> Option<i64> {
    mebibytes(&pod["spec"]["containers"][0]["resources"]["requests"]["memory"])
}

fn room(node: &Value) -> (i64, i64) {
    let allocatable = &node["status"]["allocatable"];
    let cpu = allocatable["cpu"].as_str().unwrap().parse::<i64>().unwrap() * 1000;
    (cpu, mebibytes(&allocatable["memory"]).unwrap())
}

/// Brings scores to 0..=100 by the largest.
fn by_largest(scores: Vec<i64>, reverse: bool) -> Vec<i64> {
    let largest = scores.iter().copied().max().unwrap_or(0);
    let scaled = scores.iter().map(|score| if largest == 0 { 0 } else { score * 100 / largest });
    scaled.map(|score| if reverse { 100 - score } else { score }).collect()
}

impl Naive<'_> {
    /// The weighted sums of the nodes, in their order.
    fn scores(&self, pod: &Value, feasible: &[&Value]) -> Vec<i64> {
        let each =
            |score: &dyn Fn(&Value) -> i64| feasible.iter().map(|node| score(node)).collect::<Vec<i64>>();
        let parts = [
            (3, by_largest(each(&|node| taints(node)), true)),
            (2, by_largest(each(&|node| wished(pod, node)), false)),
            (1, each(&|node| self.free(pod, node))),
            (1, each(&|node| self.evenness(pod, node))),
            (1, each(&|node| self.image(pod, node))),
            (2, self.neighbours(pod, feasible)),
            (2, self.evenly_spread(pod, feasible)),
        ];
        (0..feasible.len()).map(|at| parts.iter().map(|(weight, scores)| weight * scores[at]).sum()).collect()
    }

    fn used(&self, node: &Value, of: impl Fn(&Value) -> i64) -> i64 {
        self.on(node).map(of).sum()
    }

    /// How much of the node stays free.
    fn free(&self, pod: &Value, node: &Value) -> i64 {
        let counted = |pod: &Value| memory(pod).unwrap_or(UNASKED_MEMORY);
        let (cpu, bytes) = room(node);
        let share = |room: i64, used: i64| if used > room { 0 } else { (room - used) * 100 / room };
        let (cpu_used, bytes_used) =
            (self.used(node, millis) + millis(pod), self.used(node, counted) + counted(pod));
        (share(cpu, cpu_used) + share(bytes, bytes_used)) / 2
    }

    /// Whether the pod makes the use of processor and memory more alike.
    fn evenness(&self, pod: &Value, node: &Value) -> i64 {
        let asked = |pod: &Value| memory(pod).unwrap_or(0);
        let (cpu, bytes) = room(node);
        let balance = |more_cpu: i64, more_bytes: i64| {
            let one = ((self.used(node, millis) + more_cpu) as f64 / cpu as f64).min(1.0);
            let other = ((self.used(node, asked) + more_bytes) as f64 / bytes as f64).min(1.0);
            ((1.0 - ((one - other) / 2.0).abs()) * 100.0) as i64
        };
        50 + (50 + balance(millis(pod), asked(pod)) - balance(0, 0)) / 2
    }

    fn image(&self, pod: &Value, node: &Value) -> i64 {
        let wanted = pod["spec"]["containers"][0]["image"].as_str().unwrap();
        let size = |node: &Value| {
            let images = list(&node["status"]["images"]);
            images
                .iter()
                .find(|image| image["names"][0] == wanted)
                .map(|image| image["sizeBytes"].as_i64().unwrap())
        };
        let share =
            self.nodes.iter().filter(|node| size(node).is_some()).count() as f64 / self.nodes.len() as f64;
        let counted = size(node).map_or(0, |size| (size as f64 * share) as i64);
        let (least, most) = (23 * MEBIBYTE, 1000 * MEBIBYTE);
        100 * (counted.clamp(least, most) - least) / (most - least)
    }

    /// Preferences between pods, in both directions; required nearness of others counts as a wish of weight 1.
    fn neighbours(&self, pod: &Value, feasible: &[&Value]) -> Vec<i64> {
        let wishes = |pod: &Value| {
            let mut all = Vec::new();
            for (side, sign) in [("podAffinity", 1), ("podAntiAffinity", -1)] {
                for wish in list(&pod["spec"]["affinity"][side][PREFERRED]) {
                    all.push((wish["podAffinityTerm"].clone(), sign * wish["weight"].as_i64().unwrap()));
                }
            }
            all
        };
        let needs = |pod: &Value| list(&pod["spec"]["affinity"]["podAffinity"][REQUIRED]).to_vec();
        let sum = |node: &Value| {
            let mut sum = 0;
            for placed in self.placed {
                let near = |term: &Value| self.shares(placed, node, term["topologyKey"].as_str().unwrap());
                let own = wishes(pod).into_iter().filter(|(term, _)| selects(term, placed));
                let theirs = wishes(placed).into_iter().filter(|(term, _)| selects(term, pod));
                let needed =
                    needs(placed).into_iter().filter(|term| selects(term, pod)).map(|term| (term, 1));
                for (term, weight) in own.chain(theirs).chain(needed) {
                    sum += if near(&term) { weight } else { 0 };
                }
            }
            sum
        };
        let sums: Vec<i64> = feasible.iter().map(|node| sum(node)).collect();
        let (least, most) =
            (sums.iter().min().copied().unwrap_or(0), sums.iter().max().copied().unwrap_or(0));
        let scaled = |sum: &i64| match most - least {
            0 => 0,
            range => (100.0 * ((sum - least) as f64 / range as f64)) as i64,
        };
        sums.iter().map(scaled).collect()
    }

    fn evenly_spread(&self, pod: &Value, feasible: &[&Value]) -> Vec<i64> {
        let constraints = list(&pod["spec"]["topologySpreadConstraints"]);
        let soft: Vec<&Value> =
            constraints.iter().filter(|it| it["whenUnsatisfiable"] == "ScheduleAnyway").collect();
        if soft.is_empty() {
            return vec![0; feasible.len()];
        }
        let key = |constraint: &Value| constraint["topologyKey"].as_str().unwrap().to_owned();
        let has_all = |node: &Value| soft.iter().all(|it| !node["metadata"]["labels"][key(it)].is_null());
        let counts = |node: &Value| Naive::selected(pod, node) && has_all(node);
        let score = |node: &Value| {
            if !has_all(node) {
                return None;
            }
            let mut sum = 0.0;
            for constraint in &soft {
                let domain = |node: &Value| node["metadata"]["labels"][key(constraint)].clone();
                let mut domains: Vec<String> = feasible
                    .iter()
                    .filter(|node| has_all(node))
                    .map(|node| domain(node).to_string())
                    .collect();
                domains.sort();
                domains.dedup();
                let alike = self.nodes.iter().filter(|other| counts(other) && domain(other) == domain(node));
                let found =
                    alike.flat_map(|node| self.on(node)).filter(|other| selects(constraint, other)).count();
                let skew = constraint["maxSkew"].as_i64().unwrap();
                sum += found as f64 * ((domains.len() + 2) as f64).ln() + (skew - 1) as f64;
            }
            Some(sum.round() as i64)
        };
        let sums: Vec<Option<i64>> = feasible.iter().map(|node| score(node)).collect();
        let (least, most) = (
            sums.iter().flatten().min().copied().unwrap_or(0),
            sums.iter().flatten().max().copied().unwrap_or(0),
        );
        let scaled = |sum: &Option<i64>| match sum {
            None => 0,
            Some(_) if most == 0 => 100,
            Some(sum) => 100 * (most + least - sum) / most,
        };
        sums.iter().map(scaled).collect()
    }
}

/// Taints that would rather have other pods; nobody tolerates those here.
fn taints(node: &Value) -> i64 {
    list(&node["spec"]["taints"]).iter().filter(|taint| taint["effect"] == "PreferNoSchedule").count() as i64
}

fn wished(pod: &Value, node: &Value) -> i64 {
    let wishes = list(&pod["spec"]["affinity"]["nodeAffinity"][PREFERRED]);
    let granted = wishes.iter().filter(|wish| {
        wish["preference"]["matchExpressions"][0]["values"][0] == node["metadata"]["labels"]["zone"]
    });
    granted.map(|wish| wish["weight"].as_i64().unwrap()).sum()
}

/// What all nodes get alike is no difference: a plugin with nothing to say is left out.
fn above_lowest(scores: Vec<i64>) -> Vec<i64> {
    let lowest = scores.iter().copied().min().unwrap_or(0);
    scores.iter().map(|score| score - lowest).collect()
}

#[test]
fn nodes_score_the_same_as_by_the_formulas_and_the_best_is_chosen() {
    let mut compared = 0;
    for seed in 0..200 {
        let mut case = Case::new(seed, 12);
        for number in 100..104 {
            let (pod, ours) = case.pod(number);
            let Case { nodes, placed, cache, framework, .. } = &mut case;
            let naive = Naive { nodes, placed };
            let Ok(mut found) = framework.find(&ours, cache, 0) else { continue };
            let feasible: Vec<&Value> = found
                .feasible
                .iter()
                .map(|at| nodes.iter().find(|node| name(node) == cache.nodes()[*at].name()).unwrap())
                .collect();
            let wanted = above_lowest(naive.scores(&pod, &feasible));
            let places = found.feasible.clone();
            let got = above_lowest(framework.scores(&mut found.cycle, &ours, &places, cache, &[]));
            assert_eq!(got, wanted, "seed {seed}, nodes {feasible:?}, pod {pod}");
            let decision = framework.schedule(&ours, cache, 0).unwrap();
            let chosen = feasible.iter().position(|node| name(node) == &*decision.node).unwrap();
            assert_eq!(wanted.iter().max(), wanted.get(chosen), "seed {seed}, pod {pod}");
            compared += usize::from(feasible.len() > 1);
        }
    }
    assert!(compared > 150, "only {compared} choices were choices");
}
