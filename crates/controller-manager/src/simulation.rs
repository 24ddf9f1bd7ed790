//! All controllers together, against an API server in memory and a kubelet that obeys at once, on a clock that stands
//! still until everyone is idle. Conflicts are injected and watches cut; everything must converge and then stay quiet.

use std::sync::Arc;
use std::time::Duration;

use client::{Resource, resources};
use controller_runtime::Clock;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Tasks;
use serde_json::{Value, json};

use crate::manager::{Config, Manager, start};
use crate::testing::server::Server;

/// A cluster of one ready node and nothing else.
pub struct Cluster {
    pub server: Server,
    pub manager: Manager,
    config: Config,
    tasks: Tasks,
}

/// A clock that follows tokio's, which tests can stop and turn.
fn clock() -> Clock {
    let (begin, epoch) = (tokio::time::Instant::now(), crate::testing::now());
    Arc::new(move || -> Timestamp {
        let passed = SignedDuration::try_from(begin.elapsed()).unwrap_or_default();
        epoch.checked_add(passed).unwrap_or(epoch)
    })
}

impl Cluster {
    pub fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub fn start_with(adjust: impl FnOnce(&mut Config)) -> Self {
        let clock = clock();
        let server = Server::new(clock.clone());
        server.create(&resources::NODES, json!({"metadata": {"name": "node-1"}, "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T12:00:00Z"}]}}));
        server.create(&resources::NAMESPACES, json!({"metadata": {"name": "web"}}));
        let client = server.client();
        let mut config = Config::new(Arc::new(move |_: &str| client.clone()));
        config.clock = clock;
        config.cluster_cidrs = vec!["10.128.0.0/14".into()];
        config.node_cidr_masks = vec![23];
        config.root_ca = Some("PEM".into());
        adjust(&mut config);
        let tasks = Tasks::new();
        let manager = start(&config, &tasks);
        Self { server, manager, config, tasks }
    }

    /// Stops all controllers wherever they are and starts them anew, knowing nothing.
    pub async fn restart(self) -> Self {
        self.tasks.drain(Duration::from_secs(5)).await;
        let tasks = Tasks::new();
        let manager = start(&self.config, &tasks);
        Self { manager, tasks, ..self }
    }

    /// Plays kubelet and scheduler: binds and runs every pod, and ends those that are being deleted.
    pub fn play_node(&self) {
        for pod in self.server.list(&resources::PODS) {
            let field = |name: &str| pod["metadata"][name].as_str().unwrap_or("").to_owned();
            let (namespace, name) = (field("namespace"), field("name"));
            let deleted = pod["metadata"]["deletionTimestamp"].is_string();
            if pod["status"]["phase"] == "Running" && pod["spec"]["restartPolicy"] == "Never" && !deleted {
                let ended = json!({"status": {"phase": "Succeeded"}});
                self.server.change(&resources::PODS, &namespace, &name, ended);
            }
            if pod["status"]["phase"].is_null() {
                let ip = format!("10.128.0.{}", self.server.writes() % 250 + 1);
                self.server.change(
                    &resources::PODS,
                    &namespace,
                    &name,
                    json!({"spec": {"nodeName": "node-1"},
                    "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": [
                        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}]}}),
                );
            }
        }
    }

    /// Lets time pass until `done` says so, with a limit of simulated time; returns whether it did.
    pub async fn until(&self, seconds: u64, done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..seconds * 20 {
            if done(self) {
                return true;
            }
            self.play_node();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        done(self)
    }

    /// Asserts that nothing is written any more.
    pub async fn assert_quiet(&self) {
        // What the last change calls for is still to be told.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = self.server.writes();
        // Not longer: the node is never heard of again, which would be news.
        tokio::time::sleep(Duration::from_secs(20)).await;
        let writes = self.server.writes() - before;
        assert_eq!(writes, 0, "something is still written though nothing changes");
    }

    pub fn count(&self, resource: &Resource, namespace: &str) -> usize {
        let all = self.server.list(resource);
        all.iter().filter(|object| object["metadata"]["namespace"].as_str() == Some(namespace)).count()
    }

    pub fn status(&self, resource: &Resource, name: &str) -> Value {
        self.server.get(resource, "web", name).map(|object| object["status"].clone()).unwrap_or_default()
    }

    pub async fn stop(self) {
        let left = self.tasks.drain(Duration::from_secs(5)).await;
        assert!(left.is_empty(), "still running: {left:?}");
    }
}

pub fn deployment(replicas: i64, image: &str) -> Value {
    json!({"metadata": {"name": "app", "namespace": "web"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}}, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}}})
}

fn available(cluster: &Cluster, updated: i64) -> bool {
    let status = cluster.status(&resources::DEPLOYMENTS, "app");
    status["availableReplicas"] == updated
        && status["updatedReplicas"] == updated
        && status["replicas"] == updated
}

#[tokio::test(start_paused = true)]
async fn a_deployment_comes_up_rolls_and_goes() {
    let cluster = Cluster::start();
    cluster.server.create(
        &resources::SERVICES,
        json!({"metadata": {"name": "app", "namespace": "web"}, "spec": {
        "selector": {"app": "web"}, "clusterIP": "172.30.0.7", "ports": [{"port": 80, "protocol": "TCP"}]}}),
    );
    cluster.server.create(&resources::DEPLOYMENTS, deployment(4, "v1"));
    assert!(
        cluster.until(30, |c| available(c, 4)).await,
        "{}",
        cluster.status(&resources::DEPLOYMENTS, "app")
    );
    assert_eq!(cluster.count(&resources::PODS, "web"), 4);
    cluster.assert_quiet().await;
    let told =
        cluster.manager.explain("deployment-controller", &controller_runtime::Key::new("web", "app")).await;
    assert_eq!(told.unwrap().unwrap(), "nothing to do\n");
    let slices = cluster.server.list(&resources::ENDPOINT_SLICES);
    assert_eq!(slices[0]["endpoints"].as_array().map(Vec::len), Some(4), "{slices:?}");
    let node = cluster.server.get(&resources::NODES, "", "node-1").unwrap();
    assert_eq!(node["spec"]["podCIDR"], "10.128.0.0/23");
    assert!(cluster.server.get(&resources::SERVICE_ACCOUNTS, "web", "default").is_some());
    assert!(cluster.server.get(&resources::CONFIG_MAPS, "web", "kube-root-ca.crt").is_some());

    let change = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    cluster.server.change(&resources::DEPLOYMENTS, "web", "app", change);
    assert!(cluster.until(60, |c| available(c, 4) && c.count(&resources::REPLICA_SETS, "web") == 2).await);
    let images: Vec<Value> = cluster
        .server
        .list(&resources::PODS)
        .iter()
        .map(|pod| pod["spec"]["containers"][0]["image"].clone())
        .collect();
    assert!(cluster.until(60, |c| c.count(&resources::PODS, "web") == 4).await, "{images:?}");
    cluster.assert_quiet().await;

    cluster.server.remove(&resources::DEPLOYMENTS, "web", "app", "Background");
    let gone = |c: &Cluster| c.count(&resources::PODS, "web") + c.count(&resources::REPLICA_SETS, "web") == 0;
    assert!(cluster.until(60, gone).await);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn conflicts_and_cut_watches_heal() {
    let cluster = Cluster::start();
    cluster.server.create(&resources::DEPLOYMENTS, deployment(10, "v1"));
    cluster.server.refuse_every(3);
    for round in 0..5 {
        cluster.until(1, |_| false).await;
        cluster.server.cut_watches();
        if round == 2 {
            let change =
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
            cluster.server.change(&resources::DEPLOYMENTS, "web", "app", change);
        }
    }
    assert!(cluster.until(120, |c| available(c, 10) && c.count(&resources::PODS, "web") == 10).await);
    cluster.server.refuse_every(0);
    cluster.until(5, |_| false).await;
    assert_eq!(cluster.count(&resources::PODS, "web"), 10, "no pod too many");
    cluster.assert_quiet().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn foreground_and_orphan_deletion_do_as_told() {
    let cluster = Cluster::start();
    cluster.server.create(&resources::DEPLOYMENTS, deployment(2, "v1"));
    assert!(cluster.until(30, |c| available(c, 2)).await);
    cluster.server.remove(&resources::DEPLOYMENTS, "web", "app", "Orphan");
    assert!(cluster.until(30, |c| c.count(&resources::DEPLOYMENTS, "web") == 0).await);
    cluster.until(5, |_| false).await;
    assert_eq!(
        (cluster.count(&resources::REPLICA_SETS, "web"), cluster.count(&resources::PODS, "web")),
        (1, 2)
    );

    let set =
        cluster.server.list(&resources::REPLICA_SETS)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    cluster.server.remove(&resources::REPLICA_SETS, "web", &set, "Foreground");
    let gone = |c: &Cluster| c.count(&resources::PODS, "web") + c.count(&resources::REPLICA_SETS, "web") == 0;
    assert!(cluster.until(30, gone).await);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_is_emptied_and_goes() {
    let cluster = Cluster::start();
    cluster.server.create(&resources::DEPLOYMENTS, deployment(3, "v1"));
    assert!(cluster.until(30, |c| available(c, 3)).await);
    cluster.server.remove(&resources::NAMESPACES, "", "web", "Background");
    let gone = |c: &Cluster| c.server.get(&resources::NAMESPACES, "", "web").is_none();
    assert!(cluster.until(60, gone).await, "{:?}", cluster.server.get(&resources::NAMESPACES, "", "web"));
    assert_eq!(cluster.count(&resources::PODS, "web"), 0);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn jobs_and_sets_reach_their_goal_under_conflicts() {
    let cluster = Cluster::start();
    let template = |app: &str, policy: &str| {
        json!({"metadata": {"labels": {"app": app}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "v1"}]}})
    };
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    cluster.server.create(&resources::JOBS, json!({"metadata": {"name": "j", "namespace": "web"}, "spec": {
        "completions": 7, "parallelism": 3, "completionMode": "Indexed", "backoffLimit": 6, "selector": selector("j"),
        "template": template("j", "Never")}}));
    cluster.server.create(&resources::STATEFUL_SETS, json!({"metadata": {"name": "s", "namespace": "web"}, "spec": {
        "replicas": 3, "serviceName": "s", "selector": selector("s"), "updateStrategy": {"type": "RollingUpdate"},
        "podManagementPolicy": "OrderedReady", "template": template("s", "Always")}}));
    cluster.server.create(&resources::DAEMON_SETS, json!({"metadata": {"name": "d", "namespace": "web"}, "spec": {
        "selector": selector("d"), "updateStrategy": {"type": "RollingUpdate"}, "template": template("d", "Always")}}));
    cluster.server.refuse_every(4);
    let done = |c: &Cluster| {
        let job = c.status(&resources::JOBS, "j");
        let conditions = job["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|condition| condition["type"] == "Complete")
            && c.status(&resources::STATEFUL_SETS, "s")["readyReplicas"] == 3
            && c.status(&resources::DAEMON_SETS, "d")["numberAvailable"] == 1
    };
    assert!(cluster.until(120, done).await, "{}", cluster.status(&resources::JOBS, "j"));
    cluster.server.refuse_every(0);
    cluster.until(5, |_| false).await;
    let job = cluster.status(&resources::JOBS, "j");
    assert_eq!(
        (&job["succeeded"], &job["completedIndexes"]),
        (&json!(7), &json!("0-6")),
        "each counted once"
    );
    let names: Vec<String> = (0..3).map(|ordinal| format!("s-{ordinal}")).collect();
    assert!(names.iter().all(|name| cluster.server.get(&resources::PODS, "web", name).is_some()));
    let change = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
    cluster.server.change(&resources::STATEFUL_SETS, "web", "s", change.clone());
    cluster.server.change(&resources::DAEMON_SETS, "web", "d", change);
    let rolled = |c: &Cluster| {
        let sets = c.status(&resources::STATEFUL_SETS, "s");
        let images = |app: &str| {
            let pods = c.server.list(&resources::PODS);
            let own = pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == app);
            own.into_iter().all(|pod| pod["spec"]["containers"][0]["image"] == "v2")
        };
        sets["readyReplicas"] == 3
            && sets["currentRevision"] == sets["updateRevision"]
            && images("s")
            && images("d")
    };
    assert!(cluster.until(120, rolled).await, "{}", cluster.status(&resources::STATEFUL_SETS, "s"));
    cluster.until(5, |_| false).await;
    cluster.assert_quiet().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_run_of_a_schedule_that_cannot_be_started_yet_is_not_forgotten() {
    let cluster = Cluster::start();
    cluster.server.break_creates(Some(&resources::JOBS));
    cluster.server.create(
        &resources::CRON_JOBS,
        json!({"metadata": {"name": "c", "namespace": "web"}, "spec": {"schedule": "* * * * *",
            "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": {"completions": 1, "parallelism": 1,
                "backoffLimit": 6, "completionMode": "NonIndexed", "selector": {"matchLabels": {"app": "c"}},
                "template": {"metadata": {"labels": {"app": "c"}}, "spec": {
                    "restartPolicy": "Never", "containers": [{"name": "c", "image": "v1"}]}}}}}}),
    );
    // A minute has come, and a few tries are over.
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert_eq!(cluster.status(&resources::CRON_JOBS, "c")["lastScheduleTime"], Value::Null);
    cluster.server.break_creates(None);
    let started = |c: &Cluster| {
        c.count(&resources::JOBS, "web") == 1
            && c.status(&resources::CRON_JOBS, "c")["lastScheduleTime"].is_string()
    };
    assert!(cluster.until(50, started).await, "{}", cluster.status(&resources::CRON_JOBS, "c"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarts_in_the_middle_lose_and_double_nothing() {
    let mut cluster = Cluster::start();
    cluster.server.create(&resources::DEPLOYMENTS, deployment(12, "v1"));
    for round in 0..12 {
        // A moment that is a little longer each time, so that each run ends at another write.
        for _ in 0..round * 3 {
            tokio::task::yield_now().await;
        }
        cluster.play_node();
        if round == 6 {
            let change =
                json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "v2"}]}}}});
            cluster.server.change(&resources::DEPLOYMENTS, "web", "app", change);
        }
        cluster = cluster.restart().await;
        assert!(cluster.count(&resources::PODS, "web") <= 15, "more pods than the surge allows");
    }
    assert!(cluster.until(120, |c| available(c, 12) && c.count(&resources::PODS, "web") == 12).await);
    assert!(cluster.count(&resources::REPLICA_SETS, "web") <= 2, "one per template");
    cluster.assert_quiet().await;
    cluster.stop().await;
}

/// What is used of the quota `few`, and pods as admission charges them before they are there.
fn charged(cluster: &Cluster, pods: &str) {
    cluster.server.change(
        &resources::RESOURCE_QUOTAS,
        "web",
        "few",
        json!({"status": {"used": {"pods": pods}}}),
    );
}

fn few_used(cluster: &Cluster) -> Value {
    cluster.status(&resources::RESOURCE_QUOTAS, "few")["used"]["pods"].clone()
}

async fn with_quota() -> Cluster {
    let cluster = Cluster::start();
    let quota = json!({"metadata": {"name": "few", "namespace": "web"}, "spec": {"hard": {"pods": "5"}}});
    cluster.server.create(&resources::RESOURCE_QUOTAS, quota);
    assert!(cluster.until(10, |c| few_used(c) == "0").await);
    cluster.until(7, |_| false).await; // the look after a change is over
    cluster
}

fn lone_pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "web"}, "spec": {"containers": [{"name": "c", "image": "v1"}]}})
}

#[tokio::test(start_paused = true)]
async fn a_charge_that_is_heard_of_after_its_pod_went_is_given_back() {
    let cluster = with_quota().await;
    cluster.server.hold(&resources::RESOURCE_QUOTAS);
    charged(&cluster, "1");
    cluster.server.create(&resources::PODS, lone_pod("brief"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.server.remove(&resources::PODS, "web", "brief", "Background");
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.server.release();
    assert!(cluster.until(3, |c| few_used(c) == "0").await, "{}", few_used(&cluster));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_charge_for_what_is_still_to_come_is_not_lost() {
    let cluster = with_quota().await;
    charged(&cluster, "1");
    cluster.server.create(&resources::PODS, lone_pod("first"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    // One more is admitted while the first goes: the count that follows cannot know of it.
    charged(&cluster, "2");
    cluster.server.remove(&resources::PODS, "web", "first", "Background");
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.server.create(&resources::PODS, lone_pod("second"));
    assert!(cluster.until(8, |c| few_used(c) == "1").await, "{}", few_used(&cluster));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_charge_for_what_never_came_is_given_back_in_time() {
    let cluster = with_quota().await;
    charged(&cluster, "1");
    assert!(cluster.until(400, |c| few_used(c) == "0").await, "{}", few_used(&cluster));
    cluster.stop().await;
}
