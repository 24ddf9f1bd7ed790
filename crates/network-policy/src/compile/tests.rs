//! Policies as values: objects in, verdicts about connections out.

use serde_json::{Value, json};

use super::*;
use crate::model::Connection;

/// Two namespaces of pods a, b, c. Those of `x` are on this node, those of `y` elsewhere.
struct World {
    pods: Vec<Arc<Pod>>,
    namespaces: Vec<Arc<Namespace>>,
    attached: Vec<Attached>,
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn address(namespace: &str, pod: &str) -> IpAddr {
    let place = if namespace == "x" { 0 } else { 1 };
    let number = NAMES.iter().position(|name| *name == pod).unwrap() as u8;
    [10, 0, place, 10 + number].into()
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn world() -> World {
    let mut world = World { pods: Vec::new(), namespaces: Vec::new(), attached: Vec::new() };
    for namespace in ["x", "y"] {
        world.namespaces.push(read(json!({"metadata": {"name": namespace, "labels": {"ns": namespace}}})));
        for (number, name) in NAMES.iter().enumerate() {
            let address = address(namespace, name);
            let uid = format!("{namespace}-{name}");
            world.pods.push(read(json!({
                "metadata": {"name": name, "namespace": namespace, "uid": uid, "labels": {"pod": name}},
                "spec": {
                    "nodeName": if namespace == "x" { "here" } else { "there" },
                    "containers": [{"ports": [{"name": "serve", "containerPort": 80 + number, "protocol": "TCP"}]}],
                },
                "status": {"podIPs": [{"ip": address}]},
            })));
            if namespace == "x" {
                let (namespace, name) = (namespace.to_owned(), (*name).to_owned());
                world.attached.push(Attached { namespace, name, uid, addresses: vec![address] });
            }
        }
    }
    world
}

fn policy(namespace: &str, name: &str, spec: Value) -> Arc<NetworkPolicy> {
    read(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}))
}

impl World {
    fn model(&self, policies: &[Arc<NetworkPolicy>]) -> Model {
        let World { pods, namespaces, attached } = self;
        compile(&View { node: "here", policies, pods, namespaces, attached })
    }
}

fn tcp(source: impl Into<IpAddr>, destination: impl Into<IpAddr>, port: u16) -> Connection {
    Connection { source: source.into(), destination: destination.into(), protocol: 6, port }
}

/// Who of all pods reaches `x/a` at port 80.
fn callers(spec: Value) -> Vec<String> {
    let model = world().model(&[policy("x", "p", spec)]);
    let all = ["x", "y"].into_iter().flat_map(|namespace| NAMES.map(|name| (namespace, name)));
    let reaches = |&(namespace, name): &(&str, &str)| {
        model.permits(&tcp(address(namespace, name), address("x", "a"), 80))
    };
    all.filter(reaches).map(|(namespace, name)| format!("{namespace}/{name}")).collect()
}

#[test]
fn peers_are_what_their_selectors_say() {
    let from = |peers: Value| {
        callers(json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": [{"from": peers}]}))
    };
    let everyone = ["x/a", "x/b", "x/c", "y/a", "y/b", "y/c"];
    assert_eq!(callers(json!({"podSelector": {}})), ["x/a"], "isolated, but for itself");
    assert_eq!(
        callers(json!({"podSelector": {"matchLabels": {"pod": "b"}}})),
        everyone,
        "another pod's policy"
    );
    assert_eq!(callers(json!({"podSelector": {}, "ingress": [{}]})), everyone, "an empty rule");
    assert_eq!(from(json!([])), everyone, "no peers are all peers");
    assert_eq!(from(json!([{"podSelector": {}}])), ["x/a", "x/b", "x/c"], "the policy's own namespace");
    assert_eq!(from(json!([{"namespaceSelector": {}}])), everyone);
    assert_eq!(from(json!([{"podSelector": {"matchLabels": {"pod": "b"}}}])), ["x/a", "x/b"]);
    let y = json!({"matchLabels": {"ns": "y"}});
    assert_eq!(from(json!([{"namespaceSelector": y}])), ["x/a", "y/a", "y/b", "y/c"]);
    let b_or_c = json!({"matchExpressions": [{"key": "pod", "operator": "In", "values": ["b", "c"]}]});
    assert_eq!(from(json!([{"namespaceSelector": y, "podSelector": b_or_c}])), ["x/a", "y/b", "y/c"], "both");
    assert_eq!(
        from(json!([{"namespaceSelector": y}, {"podSelector": b_or_c}])),
        ["x/a", "x/b", "x/c", "y/a", "y/b", "y/c"],
        "either"
    );
    let not_b = json!({"matchExpressions": [{"key": "pod", "operator": "NotIn", "values": ["b"]}]});
    assert_eq!(from(json!([{"podSelector": not_b}])), ["x/a", "x/c"]);
    assert_eq!(from(json!([{}])), ["x/a"], "a peer that names nobody");
}

#[test]
fn blocks_leave_out_their_exceptions_and_may_overlap() {
    let spec = |blocks: Value| json!({"podSelector": {}, "ingress": [{"from": blocks}]});
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    assert_eq!(callers(spec(json!([block("10.0.1.0/24", &[])]))), ["x/a", "y/a", "y/b", "y/c"]);
    assert_eq!(callers(spec(json!([block("10.0.1.0/24", &["10.0.1.11/32"])]))), ["x/a", "y/a", "y/c"]);
    let overlapping = json!([block("10.0.1.0/24", &["10.0.1.11/32"]), block("10.0.1.11/32", &[])]);
    assert_eq!(callers(spec(overlapping)), ["x/a", "y/a", "y/b", "y/c"]);
    assert_eq!(callers(spec(json!([block("fd00::/8", &[])]))), ["x/a"], "of the other family");
    let all = pieces(&IpBlock { cidr: "0.0.0.0/0".into(), except: vec!["0.0.0.0/1".into()] });
    let upper = Block { is_v4: true, first: 1 << 31, last: u32::MAX.into() };
    assert_eq!(all, [upper]);
}

#[test]
fn ports_are_numbers_ranges_names_and_protocols() {
    let open = |ports: Value| {
        let spec = json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": [{"ports": ports}]});
        let model = world().model(&[policy("x", "p", spec)]);
        let reaches = |protocol, port| {
            let (source, destination) = (address("y", "a"), address("x", "b"));
            model.permits(&Connection { source, destination, protocol, port })
        };
        [(6, 79), (6, 80), (6, 81), (6, 443), (17, 80), (132, 80), (1, 0)]
            .into_iter()
            .filter(|(protocol, port)| reaches(*protocol, *port))
            .collect::<Vec<_>>()
    };
    assert_eq!(open(json!([{"port": 80}])), [(6, 80)], "TCP unless it is told");
    assert_eq!(
        open(json!([{"port": 80, "protocol": "UDP"}, {"port": 80, "protocol": "SCTP"}])),
        [(17, 80), (132, 80)]
    );
    assert_eq!(open(json!([{"port": 79, "endPort": 80}])), [(6, 79), (6, 80)]);
    assert_eq!(open(json!([{"port": 79}, {"port": 81, "endPort": 500}])), [(6, 79), (6, 81), (6, 443)]);
    assert_eq!(open(json!([{"protocol": "TCP"}])), [(6, 79), (6, 80), (6, 81), (6, 443)]);
    assert_eq!(open(json!([{"port": "serve"}])), [(6, 81)], "what the name means in b");
    assert_eq!(open(json!([{"port": "serve", "protocol": "UDP"}])), [], "a name has its protocol");
    assert_eq!(open(json!([{"port": "nothing"}])), []);
    assert_eq!(open(json!([])).len(), 7, "no ports are all packets");
}

#[test]
fn egress_is_a_direction_of_its_own() {
    let world = world();
    let to = |policies: &[Arc<NetworkPolicy>], port: u16| {
        let model = world.model(policies);
        let reaches = |name: &&str| model.permits(&tcp(address("x", "a"), address("y", name), port));
        NAMES.into_iter().filter(|name| reaches(name)).collect::<Vec<_>>()
    };
    let only = |spec: Value| [policy("x", "p", spec)];
    assert_eq!(to(&only(json!({"podSelector": {}})), 80), NAMES, "without a type: ingress");
    assert_eq!(to(&only(json!({"podSelector": {}, "policyTypes": ["Egress"]})), 80).len(), 0);
    assert_eq!(to(&only(json!({"podSelector": {}, "egress": [{}]})), 80), NAMES);
    let to_b = json!([{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"pod": "b"}}}]}]);
    assert_eq!(to(&only(json!({"podSelector": {}, "egress": to_b, "policyTypes": ["Egress"]})), 80), ["b"]);
    assert_eq!(
        to(&only(json!({"podSelector": {}, "egress": to_b, "policyTypes": ["Ingress"]})), 80),
        NAMES,
        "rules of a direction that the policy is not for"
    );
    let named = json!([{"ports": [{"port": "serve"}]}]);
    let by_name = only(json!({"podSelector": {}, "egress": named, "policyTypes": ["Egress"]}));
    assert_eq!((to(&by_name, 80), to(&by_name, 81)), (vec!["a"], vec!["b"]), "what it means where it leads");
    let named_to_b = json!([{"to": to_b[0]["to"], "ports": [{"port": "serve"}]}]);
    let by_name = only(json!({"podSelector": {}, "egress": named_to_b, "policyTypes": ["Egress"]}));
    assert_eq!((to(&by_name, 80).len(), to(&by_name, 81)), (0, vec!["b"]));
}

#[test]
fn policies_add_up_and_both_ends_must_agree() {
    let world = world();
    let from = |pod: &str| json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": pod}}}]}]});
    let policies = [policy("x", "1", from("b")), policy("x", "2", from("c")), policy("y", "1", from("a"))];
    let model = world.model(&policies);
    let reaches = |from: (&str, &str)| model.permits(&tcp(address(from.0, from.1), address("x", "a"), 80));
    assert!(reaches(("x", "b")) && reaches(("x", "c")) && !reaches(("y", "a")));
    let deny =
        policy("x", "deny", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "policyTypes": ["Egress"]}));
    let model = world.model(&[policies[0].clone(), deny]);
    assert!(!model.permits(&tcp(address("x", "b"), address("x", "a"), 80)), "a lets b in, b may not go out");
}

#[test]
fn a_pod_the_api_does_not_know_stays_shut() {
    let mut world = world();
    world.attached[1].uid = "of an earlier pod with this name".to_owned();
    let model = world.model(&[]);
    assert_eq!(model.admitted, [address("x", "a"), address("x", "c")].into());
    let static_pod = json!({"metadata": {"name": "b", "namespace": "x", "uid": "mirror", "ownerReferences": [
        {"kind": "Node", "name": "here", "controller": true}]}, "spec": {"nodeName": "here"}});
    world.pods[1] = read(static_pod);
    assert_eq!(world.model(&[]).admitted.len(), 3, "the kubelet's uid of a static pod is not the API's");
}

#[test]
fn host_network_pods_and_ended_ones_are_no_peers() {
    let mut world = world();
    let change = |pod: &Arc<Pod>, change: fn(&mut Pod)| {
        let mut pod = (**pod).clone();
        change(&mut pod);
        Arc::new(pod)
    };
    world.pods[3] = change(&world.pods[3], |pod| pod.spec.host_network = true);
    world.pods[4] = change(&world.pods[4], |pod| pod.status.phase = "Succeeded".into());
    let model = world.model(&[policy(
        "x",
        "p",
        json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    )]);
    let members: Vec<_> = model.pods.values().flatten().copied().collect();
    assert_eq!(members, [address("x", "a"), address("x", "b"), address("x", "c"), address("y", "c")]);
}

#[test]
fn the_number_of_rules_does_not_grow_with_pods() {
    use crate::table::{Frame, table};
    use netlink::nft::Family;
    let mut world = world();
    let policies =
        [policy("x", "p", json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}))];
    let frame = Frame { table: "t".to_owned(), ranges: vec![] };
    let before = table(&frame, &world.model(&policies), Family::Ip);
    for number in 0..200u8 {
        let (namespace, name, uid) = ("x".to_owned(), format!("more-{number}"), format!("u{number}"));
        world.pods.push(read(
            json!({"metadata": {"name": name, "namespace": "x", "uid": uid}, "spec": {"nodeName": "here"}}),
        ));
        world.attached.push(Attached { namespace, name, uid, addresses: vec![[10, 0, 3, number].into()] });
    }
    let after = table(&frame, &world.model(&policies), Family::Ip);
    assert_eq!(before.chains, after.chains);
    assert_eq!(before.sets.keys().collect::<Vec<_>>(), after.sets.keys().collect::<Vec<_>>());
    let step = after.update(&before);
    assert_eq!(step.len(), 5, "elements of five sets: {:?}", step.describe());
}

/// A hundred namespaces with ten policies each, and 250 pods of this node in them.
fn crowd(pods: usize) -> (World, Vec<Arc<NetworkPolicy>>) {
    let mut world = World { pods: Vec::new(), namespaces: Vec::new(), attached: Vec::new() };
    let mut policies = Vec::new();
    for number in 0..100 {
        let namespace = format!("n{number}");
        world.namespaces.push(read(
            json!({"metadata": {"name": namespace, "labels": {"team": format!("t{}", number % 20)}}}),
        ));
        for role in 0..10 {
            let to = json!({"matchLabels": {"role": format!("r{role}")}});
            let from = json!([
                {"podSelector": {"matchLabels": {"role": format!("r{}", (role + 1) % 10)}}},
                {"namespaceSelector": {"matchLabels": {"team": format!("t{role}")}}},
            ]);
            let spec = json!({"podSelector": to, "ingress": [{"from": from, "ports": [{"port": 80}, {"port": "web"}]}]});
            policies.push(policy(&namespace, &format!("p{role}"), spec));
        }
    }
    for number in 0..pods {
        let (namespace, name) = (format!("n{}", number % 100), format!("pod-{number}"));
        let address: IpAddr = [10, 0, (number / 250) as u8, (number % 250) as u8].into();
        let labels = json!({"role": format!("r{}", number % 10)});
        world.pods.push(read(json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels},
            "spec": {"nodeName": "here", "containers": [{"ports": [{"name": "web", "containerPort": 8080}]}]},
        })));
        world.attached.push(Attached { namespace, uid: name.clone(), name, addresses: vec![address] });
    }
    (world, policies)
}

#[test]
fn one_pod_more_among_a_thousand_policies_is_a_handful_of_messages() {
    use crate::table::{Frame, table};
    use netlink::nft::Family;
    let frame = Frame { table: "t".to_owned(), ranges: vec![] };
    let rules = |pods| {
        let (world, policies) = crowd(pods);
        table(&frame, &world.model(&policies), Family::Ip)
    };
    let (before, after) = (rules(250), rules(251));
    let change = after.update(&before);
    // Its own place (admitted, isolated, itself, ingress), and the sets of peers that select it: that of the role before its own in its
    // namespace, and those of its team.
    assert!(change.len() <= 20, "{:?}", change.describe());
    assert!(
        change.describe().iter().all(|step| step.starts_with("add 1 elements")),
        "{:?}",
        change.describe()
    );
}

/// Prints how long a change takes to compile; run with `--ignored --nocapture`, best in release.
#[test]
#[ignore = "a measurement"]
fn measure_a_thousand_policies() {
    use crate::table::{Frame, table};
    use netlink::nft::Family;
    let (world, policies) = crowd(250);
    let frame = Frame { table: "t".to_owned(), ranges: vec![] };
    for _ in 0..3 {
        let started = std::time::Instant::now();
        let model = world.model(&policies);
        let compiled = started.elapsed();
        let rules = table(&frame, &model, Family::Ip);
        let elements: usize = rules.sets.values().map(|set| set.elements.len()).sum();
        let (chains, sets) = (rules.chains.len(), rules.sets.len());
        println!(
            "compiled in {compiled:?}, {chains} chains, {sets} sets, {elements} elements in {:?}",
            started.elapsed()
        );
    }
}
