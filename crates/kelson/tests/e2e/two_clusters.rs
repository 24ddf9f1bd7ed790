//! Two clusters on one host: neither knows of the other, and the end of one is nothing to the other.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, PostParams};
use netlink::nft::{Family, Nftables};
use netlink::route::Routing;
use serde_json::json;

use crate::first_light::{create, exec, pod, ready};
use crate::harness::{Cluster, eventually, in_own_network, text};
use crate::network_policy::{namespace_of, reaches};

/// A pod that serves, and one beside it that reaches it by its Service.
struct Scene {
    pods: Api<Pod>,
    address: SocketAddr,
    front: SocketAddr,
    caller: PathBuf,
}

impl Scene {
    async fn new(cluster: &Cluster) -> Self {
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        for name in ["web", "caller"] {
            create(&pods, &pod(name, json!({}))).await;
        }
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}))
        .unwrap();
        let services = Api::<Service>::default_namespaced(client);
        let made = services.create(&PostParams::default(), &service).await.unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let scene = Self {
            address: SocketAddr::new(ip(&ready(&pods, "web").await.status.unwrap().pod_ip.unwrap()), 8080),
            front: SocketAddr::new(ip(&made.spec.unwrap().cluster_ip.unwrap()), 80),
            caller: namespace_of(&pods, "caller").await,
            pods,
        };
        eventually("the Service answers", || async {
            if scene.works() { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        scene
    }

    fn works(&self) -> bool {
        reaches(&self.caller, self.address) && reaches(&self.caller, self.front)
    }
}

/// Links and tables of the host, pods' links aside.
fn belongings() -> (Vec<String>, Vec<String>) {
    let links = Routing::open().unwrap().links().unwrap().into_iter().map(|link| link.name);
    let mut links: Vec<String> = links.filter(|name| !name.starts_with("kpod")).collect();
    let mut tables = Nftables::open().unwrap().tables(Family::Ip).unwrap();
    links.sort();
    tables.sort();
    (links, tables)
}

#[test]
fn a_second_cluster_lives_beside_the_first_and_leaves_it_alone() {
    in_own_network(|| async {
        let (first, second) = (Cluster::new(), Cluster::new());
        first.up();
        let one = Scene::new(&first).await;
        let before = belongings();
        second.up_with(&["--bind", "127.0.0.1:7443"]);
        let other = Scene::new(&second).await;
        assert_ne!((one.address, one.front), (other.address, other.front), "ranges of their own");
        assert!(one.works() && other.works());
        assert_eq!(
            exec(&other.pods, "web", &["cat", "/etc/hostname"]).await.trim(),
            "web",
            "its own kubelet"
        );
        assert_eq!(exec(&one.pods, "web", &["hostname"]).await.trim(), "web");

        let refused = first.kelson("up", &["--pod-cidr", "10.9.0.0/16"]);
        assert!(text(&refused).contains("already runs"), "{}", text(&refused));
        let purged = second.kelson("down", &["--purge"]);
        assert!(purged.status.success(), "{}", text(&purged));
        assert_eq!(belongings(), before, "the second is gone, and only the second");
        assert!(one.works());
        assert_eq!(exec(&one.pods, "web", &["hostname"]).await.trim(), "web");

        // The ranges belong to the cluster, and can be chosen while it is made.
        let wish = ["--bind", "127.0.0.1:7443", "--pod-cidr", "10.9.0.0/16", "--service-cidr", "10.8.0.0/24"];
        second.up_with(&wish);
        let chosen = Scene::new(&second).await;
        assert!(chosen.address.ip().to_string().starts_with("10.9.0."), "{}", chosen.address);
        assert!(chosen.front.ip().to_string().starts_with("10.8.0."), "{}", chosen.front);
        assert!(second.kelson("down", &[]).status.success());
        let refused = second.kelson("up", &["--bind", "127.0.0.1:7443", "--pod-cidr", "10.128.0.0/14"]);
        assert!(text(&refused).contains("has the pod range 10.9.0.0/16"), "{}", text(&refused));
        assert!(one.works());
    });
}
