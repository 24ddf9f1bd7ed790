//! A rollout, followed by hand: each round's writes become the next view.

use super::*;

const TABLE: StaticPod = StaticPod {
    namespace: "openshift-etcd",
    name: "etcd",
    program: "cluster-etcd-operator",
    config_maps: &[needs("etcd-pod"), takes("extra")],
    secrets: &[needs("etcd-all-certs")],
    cert_config_maps: &[],
    cert_secrets: &[],
};

/// The objects of a cluster, changed by rounds as the driver would.
struct Scene {
    resource: Value,
    config_maps: Vec<Value>,
    secrets: Vec<Value>,
    pods: Vec<Value>,
    nodes: Vec<Value>,
    now: Timestamp,
}

fn object(kind: &str, name: &str, data: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": name, "namespace": "openshift-etcd"}, "data": {"x": data}})
}

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"node-role.kubernetes.io/master": ""}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

impl Scene {
    fn new(nodes: &[&str]) -> Self {
        Self {
            resource: json!({"spec": {}, "status": {}}),
            config_maps: vec![object("ConfigMap", "etcd-pod", "one")],
            secrets: vec![object("Secret", "etcd-all-certs", "certs")],
            pods: Vec::new(),
            nodes: nodes.iter().map(|name| node(name)).collect(),
            now: Timestamp::from_second(1_000_000).unwrap(),
        }
    }

    fn decide(&self, hold: Option<&str>) -> (Round, bool) {
        let view = View {
            resource: &self.resource,
            config_maps: &self.config_maps,
            secrets: &self.secrets,
            pods: &self.pods,
            nodes: &self.nodes,
            operator_image: "operator",
            hold: hold.map(str::to_owned),
            now: self.now,
        };
        let mut round = Round::default();
        let done = plan(&TABLE, &view, &mut round);
        (round, done)
    }

    /// Decides and does it.
    fn step(&mut self) -> bool {
        let (round, done) = self.decide(None);
        self.take(round);
        done
    }

    fn take(&mut self, round: Round) {
        for object in round.write {
            let list = if object["kind"] == "Secret" { &mut self.secrets } else { &mut self.config_maps };
            list.retain(|have| name_of(have) != name_of(&object));
            list.push(object);
        }
        self.pods.extend(round.create);
        for (field, value) in round.status {
            self.resource["status"][field] = value;
        }
        for (_, key) in round.delete {
            for list in [&mut self.config_maps, &mut self.secrets, &mut self.pods] {
                list.retain(|have| name_of(have) != &*key.name);
            }
        }
    }

    fn pod_names(&self) -> Vec<&str> {
        self.pods.iter().map(name_of).collect()
    }

    fn set_phase(&mut self, pod: &str, phase: &str) {
        let found = self.pods.iter_mut().find(|have| name_of(have) == pod);
        found.unwrap_or_else(|| panic!("no pod {pod}"))["status"] = json!({"phase": phase});
    }

    /// What the kubelet does with a revision.
    fn run(&mut self, node: &str, revision: i64, ready: &str) {
        let name = format!("etcd-{node}");
        self.pods.retain(|have| name_of(have) != name);
        self.pods.push(json!({
            "metadata": {"name": name, "labels": {"revision": revision.to_string()}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
        }));
    }

    fn revisions(&self) -> Vec<(i64, i64)> {
        let list = self.resource["status"]["nodeStatuses"].as_array().cloned().unwrap_or_default();
        let number = |node: &Value, field: &str| node[field].as_i64().unwrap_or(0);
        list.iter().map(|node| (number(node, "currentRevision"), number(node, "targetRevision"))).collect()
    }

    fn install(&mut self, node: &str, revision: i64) {
        self.set_phase(&format!("installer-{revision}-{node}"), "Succeeded");
        self.run(node, revision, "True");
        self.step();
    }
}

fn said(round: &Round, kind: &str) -> (String, String, String) {
    let found = round.conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (found.status.to_owned(), found.reason.clone(), found.message.clone())
}

#[test]
fn nodes_get_a_revision_one_after_another() {
    let mut scene = Scene::new(&["a", "b", "c"]);
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 1);
    assert_eq!(scene.revisions(), [(0, 1), (0, 0), (0, 0)]);
    assert_eq!(scene.pod_names(), ["installer-1-a"]);
    scene.step();
    assert_eq!(scene.pod_names(), ["installer-1-a"], "nothing twice");
    scene.set_phase("installer-1-a", "Succeeded");
    scene.run("a", 1, "False");
    assert!(!scene.step());
    assert_eq!(scene.revisions(), [(0, 1), (0, 0), (0, 0)], "it waits for the pod to be ready");
    scene.run("a", 1, "True");
    scene.step();
    scene.step();
    assert_eq!(scene.revisions(), [(1, 0), (0, 1), (0, 0)]);
    scene.install("b", 1);
    scene.step();
    scene.install("c", 1);
    assert!(scene.step());
    let (round, done) = scene.decide(None);
    assert!(done && round.write.is_empty() && round.create.is_empty(), "nothing more to do");
    let progressing = said(&round, "NodeInstallerProgressing");
    assert_eq!(progressing.0, "False");
    assert_eq!(progressing.2, "3 nodes are at revision 1");
}

#[test]
fn a_changed_input_is_a_new_revision_and_a_broken_one_stops_at_the_first_node() {
    let mut scene = Scene::new(&["a", "b"]);
    for node in ["a", "b"] {
        scene.step();
        scene.install(node, 1);
    }
    scene.config_maps.retain(|map| name_of(map) != "etcd-pod");
    scene.config_maps.push(object("ConfigMap", "etcd-pod", "broken"));
    scene.step();
    assert_eq!(
        scene.resource["status"]["latestAvailableRevisionReason"],
        "configmap \"etcd-pod\" has changed"
    );
    assert_eq!(scene.revisions(), [(1, 2), (1, 0)]);
    scene.set_phase("installer-2-a", "Succeeded");
    scene.run("a", 2, "False");
    scene.pods.iter_mut().find(|pod| name_of(pod) == "etcd-a").unwrap()["status"]["containerStatuses"] = json!([{
        "name": "etcd", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"exitCode": 1, "message": "unknown flag"}},
    }]);
    for _ in 0..3 {
        scene.step();
    }
    assert_eq!(scene.revisions(), [(1, 2), (1, 0)], "the other node keeps what works");
    let (round, _) = scene.decide(None);
    let degraded = said(&round, "StaticPodsDegraded");
    assert_eq!(degraded.0, "True");
    assert!(degraded.2.contains("pod/etcd-a") && degraded.2.contains("unknown flag"), "{}", degraded.2);
    // The repair does not wait for what will never be ready.
    scene.config_maps.retain(|map| name_of(map) != "etcd-pod");
    scene.config_maps.push(object("ConfigMap", "etcd-pod", "repaired"));
    scene.step();
    assert_eq!(scene.revisions(), [(1, 3), (1, 0)]);
    scene.install("a", 3);
    scene.step();
    assert_eq!(scene.revisions(), [(3, 0), (1, 3)]);
}

#[test]
fn a_failed_installer_is_told_and_tried_again_after_a_pause() {
    let mut scene = Scene::new(&["a"]);
    scene.step();
    scene.set_phase("installer-1-a", "Failed");
    let failed = scene.pods.iter_mut().find(|pod| name_of(pod) == "installer-1-a").unwrap();
    failed["status"]["containerStatuses"] = json!([{"name": "installer", "state": {"terminated": {"exitCode": 1, "message": "secret x is missing"}}}]);
    scene.step();
    let (round, _) = scene.decide(None);
    let degraded = said(&round, "NodeInstallerDegraded");
    assert_eq!((&*degraded.0, &*degraded.1), ("True", "InstallerPodFailed"));
    assert!(degraded.2.contains("secret x is missing"), "{}", degraded.2);
    assert!(round.create.is_empty() && round.again.is_some());
    scene.now += jiff::SignedDuration::from_secs(11);
    scene.step();
    assert_eq!(scene.pod_names(), ["installer-1-a", "installer-1-a-retry-1"]);
    scene.set_phase("installer-1-a-retry-1", "Failed");
    scene.step();
    scene.now += jiff::SignedDuration::from_secs(11);
    let (round, _) = scene.decide(None);
    assert!(round.create.is_empty(), "each pause is longer");
    scene.now += jiff::SignedDuration::from_secs(10);
    scene.step();
    scene.set_phase("installer-1-a-retry-2", "Succeeded");
    scene.run("a", 1, "True");
    scene.step();
    assert_eq!(scene.resource["status"]["nodeStatuses"], json!([{"nodeName": "a", "currentRevision": 1}]));
}

#[test]
fn what_is_missing_keeps_the_revision_back() {
    let mut scene = Scene::new(&["a"]);
    scene.secrets.clear();
    let (round, done) = scene.decide(None);
    assert!(!done && round.write.is_empty() && round.create.is_empty());
    assert_eq!(said(&round, "RevisionControllerDegraded").2, "missing: secret/etcd-all-certs");
    scene.secrets.push(object("Secret", "etcd-all-certs", "certs"));
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 1);
    scene.config_maps.push(object("ConfigMap", "extra", "new"));
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 2, "an optional input that came counts");
}

#[test]
fn one_who_is_killed_between_the_copies_and_the_status_goes_on_with_the_same_number() {
    let mut scene = Scene::new(&["a"]);
    scene.step();
    scene.install("a", 1);
    scene.config_maps.retain(|map| name_of(map) != "etcd-pod");
    scene.config_maps.push(object("ConfigMap", "etcd-pod", "two"));
    let (mut round, _) = scene.decide(None);
    round.status.clear();
    round.create.clear();
    scene.take(round);
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 2);
    // A status that was lost altogether never leads to a number that was used.
    scene.resource["status"] = json!({});
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 3);
}

#[test]
fn nodes_come_and_go_and_a_hold_holds() {
    let mut scene = Scene::new(&["a"]);
    let (round, _) = scene.decide(Some("a member is not healthy"));
    assert!(round.create.is_empty());
    assert_eq!(said(&round, "InstallerControllerDegraded").2, "a member is not healthy");
    scene.step();
    scene.install("a", 1);
    scene.nodes.push(node("b"));
    scene.step();
    assert_eq!(scene.revisions(), [(1, 0), (0, 1)]);
    scene.nodes.retain(|node| name_of(node) == "a");
    scene.step();
    assert_eq!(scene.revisions(), [(1, 0)]);
}

#[test]
fn redeployment_can_be_forced_once_per_reason() {
    let mut scene = Scene::new(&["a"]);
    scene.step();
    scene.install("a", 1);
    scene.resource["spec"]["forceRedeploymentReason"] = json!("because");
    scene.step();
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 2);
    scene.install("a", 2);
    for _ in 0..3 {
        scene.step();
    }
    assert_eq!(scene.resource["status"]["latestAvailableRevision"], 2);
}

#[test]
fn old_revisions_are_taken_away_and_those_in_use_stay() {
    let mut scene = Scene::new(&["a"]);
    for number in 1..=9 {
        scene.config_maps.retain(|map| name_of(map) != "etcd-pod");
        scene.config_maps.push(object("ConfigMap", "etcd-pod", &number.to_string()));
        scene.step();
        scene.install("a", number);
        scene.step();
    }
    let left: Vec<i64> = (1..=9)
        .filter(|number| by_name(&scene.config_maps, &format!("revision-status-{number}")).is_some())
        .collect();
    assert_eq!(left, [5, 6, 7, 8, 9]);
    assert!(by_name(&scene.secrets, "etcd-all-certs-4").is_none());
    assert!(by_name(&scene.secrets, "etcd-all-certs-5").is_some());
    assert!(by_name(&scene.secrets, "etcd-all-certs").is_some());
    assert!(by_name(&scene.pods, "revision-pruner-9-a").is_some());
}
