//! A plugin of another crate at the points behind the choice: PostFilter, Permit, PreBind, Bind, PostBind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::resources;
use futures::future::BoxFuture;
use scheduler::framework::{
    Bind, Bound, Cycle, Hopeless, Permission, Permit, Plugin, PostBind, PostFilter, PreBind, Reasons, Remedy,
};
use scheduler::plugins::Registry;
use scheduler::{Cache, Handle, PlacedPod, Pod};
use serde_json::{Value, json};

use crate::cluster::Cluster;

/// Notes where it is called. What it does depends on the pod's name.
#[derive(Default)]
struct Binder {
    calls: Mutex<Vec<String>>,
}

impl Binder {
    fn note(&self, point: &str, pod: &Pod, node: &str) {
        self.calls.lock().unwrap().push(format!("{point} {} {node}", pod.metadata.name));
    }

    fn noted(&self, pod: &str) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        let mine = calls.iter().filter(|call| call.split(' ').nth(1) == Some(pod));
        mine.map(|call| call.split(' ').next().unwrap().to_owned()).collect()
    }
}

impl Plugin for Binder {
    fn name(&self) -> &'static str {
        "Binder"
    }
    fn post_filter(&self) -> Option<&dyn PostFilter> {
        Some(self)
    }
    fn permit(&self) -> Option<&dyn Permit> {
        Some(self)
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }
    fn bind(&self) -> Option<&dyn Bind> {
        Some(self)
    }
    fn post_bind(&self) -> Option<&dyn PostBind> {
        Some(self)
    }
}

impl PostFilter for Binder {
    fn post_filter(&self, hopeless: &Hopeless<'_>, _cache: &mut Cache) -> Remedy {
        self.note("PostFilter", &hopeless.pod.pod, "");
        Remedy::None("binder: cannot help".to_owned())
    }
}

impl Permit for Binder {
    fn permit(&self, _cycle: &Cycle, pod: &PlacedPod, node: &str) -> Permission {
        self.note("Permit", &pod.pod, node);
        match &*pod.pod.metadata.name {
            "waits" => Permission::Wait(Duration::from_secs(30)),
            "too-long" => Permission::Wait(Duration::from_millis(50)),
            "denied" => Permission::Denied("not this one".into()),
            _ => Permission::Granted,
        }
    }
}

impl PreBind for Binder {
    fn pre_bind<'a>(
        &'a self,
        _cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        _handle: &'a Handle,
    ) -> BoxFuture<'a, Result<(), Reasons>> {
        self.note("PreBind", pod, node);
        let said = if &*pod.metadata.name == "unready" { Err("no disk yet".into()) } else { Ok(()) };
        Box::pin(async { said })
    }
}

impl Bind for Binder {
    fn bind<'a>(
        &'a self,
        _cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<Bound, client::Error>> {
        Box::pin(async move {
            if &*pod.metadata.name == "others" {
                return Ok(Bound::NotMine);
            }
            self.note("Bind", pod, node);
            let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
            let marked = json!({"example.com/bound-by": "Binder"});
            let metadata = json!({"name": pod.metadata.name, "annotations": marked});
            let binding =
                json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target});
            let api = handle.client.api(&resources::PODS).within(&pod.metadata.namespace);
            api.create_sub::<Value>(&pod.metadata.name, "binding", &binding).await?;
            Ok(Bound::Yes)
        })
    }
}

impl PostBind for Binder {
    fn post_bind(&self, _cycle: &Cycle, pod: &Pod, node: &str) {
        self.note("PostBind", pod, node);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_of_another_crate_permits_binds_and_hears_of_it() {
    let binder = Arc::new(Binder::default());
    let registry = {
        let binder = binder.clone();
        Registry::default().with("Binder", Arc::new(move |_| Ok(binder.clone())))
    };
    let text = "profiles:
- plugins:
    multiPoint: {enabled: [{name: Binder}]}
    bind: {enabled: [{name: Binder}, {name: DefaultBinder}], disabled: [{name: '*'}]}
";
    let cluster = Cluster::start(text, &registry, &["a"]).await;
    let none = json!({});
    cluster.pod("mine", "1", &none).await;
    assert_eq!(cluster.node_of("mine").await, "a");
    let bound = cluster.get(&resources::PODS, "mine").await.unwrap();
    assert_eq!(bound["metadata"]["annotations"]["example.com/bound-by"], "Binder");
    cluster.pod("others", "1", &none).await;
    cluster.node_of("others").await;
    for (pod, calls) in [
        ("mine", &["Permit", "PreBind", "Bind", "PostBind"][..]),
        ("others", &["Permit", "PreBind", "PostBind"]),
    ] {
        cluster.until(pod, |_| (binder.noted(pod).len() == calls.len()).then_some(())).await;
        assert_eq!(binder.noted(pod), calls, "{pod}");
    }

    cluster.pod("waits", "100m", &none).await;
    let uid = cluster.until("waits", |pod| Some(pod?["metadata"]["uid"].as_str()?.to_owned())).await;
    cluster
        .until("waits", |_| cluster.handle.waiting().iter().any(|other| **other == *uid).then_some(()))
        .await;
    assert!(!cluster.handle.allow(&uid, "SomebodyElse"));
    assert!(cluster.handle.allow(&uid, "Binder"));
    assert_eq!(cluster.node_of("waits").await, "a");

    for (pod, reason, part) in [
        ("too-long", "Unschedulable", "timeout"),
        ("denied", "Unschedulable", "not this one"),
        ("unready", "SchedulerError", "running PreBind plugin \"Binder\": no disk yet"),
    ] {
        cluster.pod(pod, "100m", &none).await;
        let (why, message) = cluster.refusal(pod).await;
        assert!(why == reason && message.contains(part), "{pod}: {why} {message}");
        assert!(!binder.noted(pod).contains(&"Bind".to_owned()), "{pod}");
    }

    cluster.pod("large", "9", &none).await;
    let (_, message) = cluster.refusal("large").await;
    assert!(message.contains("binder: cannot help"), "{message}");
    assert_eq!(binder.noted("large"), ["PostFilter"]);
    told(&cluster.metrics.to_string());
    cluster.stop().await;
}

/// What the metrics say of all that. Pods that were refused may have been tried more than once.
fn told(text: &str) {
    let value = |series: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} in\n{text}")).parse().unwrap()
    };
    let point = |point: &str, status: &str| {
        let labels = format!("extension_point=\"{point}\",profile=\"default-scheduler\",status=\"{status}\"");
        value(&format!("scheduler_framework_extension_point_duration_seconds_count{{{labels}}}"))
    };
    let profile = "profile=\"default-scheduler\"";
    assert_eq!(value(&format!("scheduler_schedule_attempts_total{{{profile},result=\"scheduled\"}}")), 3.0);
    assert!(
        value(&format!("scheduler_schedule_attempts_total{{{profile},result=\"unschedulable\"}}")) >= 3.0
    );
    assert!(value(&format!("scheduler_schedule_attempts_total{{{profile},result=\"error\"}}")) >= 1.0);
    assert_eq!(value("scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"}"), 3.0);
    assert_eq!(value("scheduler_permit_wait_duration_seconds_count{result=\"Success\"}"), 1.0);
    assert!(value("scheduler_permit_wait_duration_seconds_count{result=\"Unschedulable\"}") >= 1.0);
    for (name, status) in [("Bind", "Success"), ("PostBind", "Success")] {
        assert_eq!(point(name, status), 3.0, "{name}");
    }
    for (name, status) in [
        ("PreEnqueue", "Success"),
        ("PreFilter", "Success"),
        ("Filter", "Success"),
        ("PostFilter", "Unschedulable"),
        ("Reserve", "Success"),
        ("Unreserve", "Success"),
        ("Permit", "Wait"),
        ("Permit", "Unschedulable"),
        ("PreBind", "Error"),
    ] {
        assert!(point(name, status) >= 1.0, "{name} {status}");
    }
    // Nobody was sent away, but it was thought about.
    assert!(value("scheduler_preemption_attempts_total") >= 1.0);
    assert_eq!(value("scheduler_preemption_victims_count"), 0.0);
    assert!(value("scheduler_goroutines{operation=\"binding\"}") <= 1.0);
    let fit = "extension_point=\"Filter\",plugin=\"NodeResourcesFit\"";
    // There is one node: one call for each pod at least, and a second one while room there is kept for others.
    let calls = value(&format!("scheduler_plugin_evaluation_total{{{fit},{profile}}}"));
    assert!((7.0..=2.0 * point("Filter", "Success")).contains(&calls), "{calls}");
    // The first cycle is one of those whose plugins are timed.
    let timed = "scheduler_plugin_execution_duration_seconds_count";
    assert!(value(&format!("{timed}{{{fit},status=\"Success\"}}")) >= 1.0);
    assert!(
        value(&format!("{timed}{{extension_point=\"Bind\",plugin=\"Binder\",status=\"Success\"}}")) >= 1.0
    );
    assert_eq!(
        value("scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"}"),
        7.0
    );
}
