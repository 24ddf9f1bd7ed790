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
    cluster.stop().await;
}
