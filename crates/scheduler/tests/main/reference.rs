//! The scheduler against a naive reference, on random clusters: the same nodes must be feasible, with the same
//! scores ([`scores`]), and the same pods must leave where none is ([`victims`]).
//!
//! The reference is written from the API's documented rules, walks over everything, and shares no code with the
//! scheduler: it reads the objects' JSON.

mod scores;
mod victims;

use std::sync::Arc;

use scheduler::framework::Framework;
use scheduler::{Budget, Cache, PlacedPod, plugins};
use serde_json::{Value, json};

/// A small generator of numbers; the seed names the case.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn once_in(&mut self, sides: u64) -> bool {
        self.roll(sides) == 0
    }
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

fn random_node(dice: &mut Dice, number: u64) -> Value {
    let mut labels = json!({"host": format!("n{number}")});
    if !dice.once_in(5) {
        labels["zone"] = format!("z{}", dice.roll(3)).into();
    }
    let mut taints = Vec::new();
    if dice.once_in(5) {
        taints.push(json!({"key": "t", "value": "v", "effect": "NoSchedule"}));
    }
    if dice.once_in(3) {
        taints.push(json!({"key": "soft", "value": "v", "effect": "PreferNoSchedule"}));
    }
    let images = if dice.once_in(2) {
        json!([{"names": ["big:1"], "sizeBytes": (100 + 200 * dice.roll(5)) << 20}])
    } else {
        json!([])
    };
    json!({
        "metadata": {"name": format!("n{number}"), "labels": labels},
        "spec": {"unschedulable": dice.once_in(8), "taints": taints},
        "status": {
            "allocatable": {"cpu": format!("{}", 2 + dice.roll(3)), "memory": "8192Mi", "pods": "5"},
            "images": images,
        },
    })
}

fn random_pod(dice: &mut Dice, number: u64, node: Option<u64>) -> Value {
    let app = format!("a{}", dice.roll(3));
    let image = if dice.once_in(2) { "big:1" } else { "small" };
    let mut container = json!({"image": image, "resources": {"requests": {"cpu": format!("{}m", 100 * (1 + dice.roll(12)))}}});
    if dice.once_in(2) {
        container["resources"]["requests"]["memory"] = format!("{}Mi", 256 * (1 + dice.roll(8))).into();
    }
    if dice.once_in(4) {
        container["ports"] = json!([{"hostPort": 8000 + dice.roll(2), "protocol": "TCP"}]);
    }
    let mut spec = json!({"containers": [container]});
    if let Some(node) = node {
        spec["nodeName"] = format!("n{node}").into();
    }
    let key = |dice: &mut Dice| if dice.once_in(2) { "zone" } else { "host" };
    let term = |dice: &mut Dice| {
        let key = key(dice);
        json!({"labelSelector": {"matchLabels": {"app": format!("a{}", dice.roll(3))}}, "topologyKey": key})
    };
    if dice.once_in(4) {
        spec["affinity"]["podAntiAffinity"][REQUIRED] = json!([term(dice)]);
    }
    if dice.once_in(5) {
        spec["affinity"]["podAffinity"][REQUIRED] = json!([term(dice)]);
    }
    if dice.once_in(4) {
        let key = key(dice);
        spec["topologySpreadConstraints"] = json!([{
            "maxSkew": 1 + dice.roll(2), "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": app}},
        }]);
    }
    for (side, sides) in [("podAffinity", 4), ("podAntiAffinity", 4)] {
        if dice.once_in(sides) {
            let weight = 1 + dice.roll(100);
            spec["affinity"][side][PREFERRED] = json!([{"weight": weight, "podAffinityTerm": term(dice)}]);
        }
    }
    if dice.once_in(3) {
        let zone = |dice: &mut Dice| json!({"key": "zone", "operator": "In", "values": [format!("z{}", dice.roll(3))]});
        let wish = |dice: &mut Dice| {
            let weight = 1 + dice.roll(100);
            json!({"weight": weight, "preference": {"matchExpressions": [zone(dice)]}})
        };
        spec["affinity"]["nodeAffinity"][PREFERRED] = json!([wish(dice), wish(dice)]);
    }
    if dice.once_in(4) {
        let key = key(dice);
        let soft = json!({
            "maxSkew": 1 + dice.roll(2), "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": app}},
        });
        match spec["topologySpreadConstraints"].as_array_mut() {
            Some(all) => all.push(soft),
            None => spec["topologySpreadConstraints"] = json!([soft]),
        }
    }
    spec["priority"] = (10 * dice.roll(4)).into();
    if dice.once_in(5) {
        spec["nodeSelector"] = json!({"zone": format!("z{}", dice.roll(3))});
    }
    if dice.once_in(4) {
        spec["tolerations"] = json!([{"key": "t", "operator": "Exists"}]);
    }
    let start = format!("2026-01-01T00:{:02}:{:02}Z", number / 60 % 60, number % 60);
    json!({
        "metadata": {"name": format!("p{number}"), "uid": format!("p{number}"), "namespace": "n", "labels": {"app": app}},
        "spec": spec,
        "status": {"startTime": start},
    })
}

fn random_budget(dice: &mut Dice, number: u64) -> Value {
    json!({
        "metadata": {"name": format!("b{number}"), "namespace": "n"},
        "spec": {"selector": {"matchLabels": {"app": format!("a{}", dice.roll(3))}}},
        "status": {"disruptionsAllowed": dice.roll(2)},
    })
}

struct Naive<'a> {
    nodes: &'a [Value],
    placed: &'a [Value],
}

/// A cluster as the API has it, and as the scheduler sees it.
struct Case {
    nodes: Vec<Value>,
    placed: Vec<Value>,
    budgets: Vec<Value>,
    cache: Cache,
    framework: Framework,
    dice: Dice,
}

impl Case {
    /// The seed names the case; it has at most so many placed pods.
    fn new(seed: u64, most_pods: u64) -> Self {
        let mut dice = Dice(seed);
        let nodes: Vec<Value> = (0..2 + dice.roll(8)).map(|number| random_node(&mut dice, number)).collect();
        let count = nodes.len() as u64;
        let placed: Vec<Value> = (0..dice.roll(most_pods))
            .map(|number| {
                let node = dice.roll(count);
                random_pod(&mut dice, number, Some(node))
            })
            .collect();
        let budgets: Vec<Value> = (0..dice.roll(3)).map(|number| random_budget(&mut dice, number)).collect();
        let mut cache = Cache::default();
        for node in &nodes {
            cache.set_node(Arc::new(serde_json::from_value(node.clone()).unwrap()));
        }
        for pod in &placed {
            cache.set_pod(Arc::new(serde_json::from_value(pod.clone()).unwrap()));
        }
        for budget in &budgets {
            let budget: Budget = serde_json::from_value(budget.clone()).unwrap();
            cache.budgets.insert(budget.metadata.key(), Arc::new(budget));
        }
        Self { nodes, placed, budgets, cache, framework: plugins::default_framework(), dice }
    }

    fn pod(&mut self, number: u64) -> (Value, PlacedPod) {
        let pod = random_pod(&mut self.dice, number, None);
        let ours = PlacedPod::new(Arc::new(serde_json::from_value(pod.clone()).unwrap()));
        (pod, ours)
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn millis(pod: &Value) -> i64 {
    let text = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"].as_str().unwrap();
    text.trim_end_matches('m').parse().unwrap()
}

fn selects(term: &Value, pod: &Value) -> bool {
    term["labelSelector"]["matchLabels"]["app"] == pod["metadata"]["labels"]["app"]
}

impl Naive<'_> {
    fn on<'b>(&'b self, node: &'b Value) -> impl Iterator<Item = &'b Value> {
        self.placed.iter().filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"])
    }

    fn home(&self, pod: &Value) -> &Value {
        self.nodes.iter().find(|node| node["metadata"]["name"] == pod["spec"]["nodeName"]).unwrap()
    }

    /// Whether a placed pod is in the same domain as a node.
    fn shares(&self, pod: &Value, node: &Value, key: &str) -> bool {
        let (here, there) = (&node["metadata"]["labels"][key], &self.home(pod)["metadata"]["labels"][key]);
        !here.is_null() && here == there
    }

    fn selected(pod: &Value, node: &Value) -> bool {
        let zone = &pod["spec"]["nodeSelector"]["zone"];
        zone.is_null() || *zone == node["metadata"]["labels"]["zone"]
    }

    fn fits(&self, pod: &Value, node: &Value) -> bool {
        let tolerates = !list(&pod["spec"]["tolerations"]).is_empty();
        let used: i64 = self.on(node).map(millis).sum();
        let room = node["status"]["allocatable"]["cpu"].as_str().unwrap().parse::<i64>().unwrap() * 1000;
        let port = |pod: &Value| pod["spec"]["containers"][0]["ports"][0]["hostPort"].as_i64();
        node["spec"]["unschedulable"] == false
            && (!list(&node["spec"]["taints"]).iter().any(|taint| taint["effect"] == "NoSchedule")
                || tolerates)
            && Self::selected(pod, node)
            && self.on(node).count() < 5
            && used + millis(pod) <= room
            && (port(pod).is_none() || self.on(node).all(|other| port(other) != port(pod)))
            && self.near(pod, node)
            && self.away(pod, node)
            && self.spread(pod, node)
    }

    fn near(&self, pod: &Value, node: &Value) -> bool {
        list(&pod["spec"]["affinity"]["podAffinity"][REQUIRED]).iter().all(|term| {
            let key = term["topologyKey"].as_str().unwrap();
            let has_key = |node: &Value| !node["metadata"]["labels"][key].is_null();
            let matching = || self.placed.iter().filter(|other| selects(term, other));
            let nobody = !matching().any(|other| has_key(self.home(other)));
            has_key(node)
                && (matching().any(|other| self.shares(other, node, key)) || nobody && selects(term, pod))
        })
    }

    fn away(&self, pod: &Value, node: &Value) -> bool {
        let terms = |pod: &Value| list(&pod["spec"]["affinity"]["podAntiAffinity"][REQUIRED]).to_vec();
        let clash = |holder: &Value, other: &Value, placed: &Value| {
            terms(holder).iter().any(|term| {
                selects(term, other) && self.shares(placed, node, term["topologyKey"].as_str().unwrap())
            })
        };
        !self.placed.iter().any(|placed| clash(pod, placed, placed) || clash(placed, pod, placed))
    }

    fn spread(&self, pod: &Value, node: &Value) -> bool {
        let constraints = list(&pod["spec"]["topologySpreadConstraints"]);
        let hard: Vec<&Value> =
            constraints.iter().filter(|it| it["whenUnsatisfiable"] == "DoNotSchedule").collect();
        hard.iter().all(|constraint| {
            let key = constraint["topologyKey"].as_str().unwrap();
            let value = |node: &Value| node["metadata"]["labels"][key].as_str().map(str::to_owned);
            let Some(here) = value(node) else { return false };
            let eligible =
                || self.nodes.iter().filter(|node| value(node).is_some() && Self::selected(pod, node));
            let count = |domain: &str| {
                let in_domain = eligible().filter(|node| value(node).as_deref() == Some(domain));
                in_domain.flat_map(|node| self.on(node)).filter(|other| selects(constraint, other)).count()
                    as i64
            };
            let least = eligible().map(|node| count(&value(node).unwrap())).min().unwrap_or(0);
            let own = i64::from(selects(constraint, pod));
            count(&here) + own - least <= constraint["maxSkew"].as_i64().unwrap()
        })
    }
}

#[test]
fn the_same_nodes_are_feasible_as_by_the_rules_read_literally() {
    for seed in 0..300 {
        let mut case = Case::new(seed, 12);
        for number in 100..104 {
            let (pod, ours) = case.pod(number);
            let Case { nodes, placed, cache, framework, .. } = &mut case;
            let naive = Naive { nodes, placed };
            let mut found: Vec<String> = match framework.find(&ours, cache, 0) {
                Ok(found) => found.feasible.iter().map(|at| cache.nodes()[*at].name().to_owned()).collect(),
                Err(_) => Vec::new(),
            };
            found.sort();
            let fits = nodes.iter().filter(|node| naive.fits(&pod, node));
            let mut wanted: Vec<String> = fits.map(|node| name(node).to_owned()).collect();
            wanted.sort();
            assert_eq!(found, wanted, "seed {seed}, pod {pod}");
        }
    }
}
