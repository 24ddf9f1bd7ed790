//! NetworkPolicies cut real packets: from a pod's first on, through Services, and while the cluster's process is dead.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::first_light::{create, phase, pod, ready};
use crate::harness::{Cluster, eventually, in_own_network};

/// What is dropped gives no sign; what is not is there at once.
const SILENCE: Duration = Duration::from_millis(500);

/// The network namespace of a running pod: that of a process in its container.
pub async fn namespace_of(pods: &Api<Pod>, name: &str) -> PathBuf {
    let uid = ready(pods, name).await.metadata.uid.unwrap();
    let wanted = format!("HOSTNAME={name}");
    let is_it = |process: &PathBuf| {
        let environment = std::fs::read(process.join("environ")).unwrap_or_default();
        std::fs::read_to_string(process.join("cgroup")).is_ok_and(|group| group.contains(&uid))
            && environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let mut processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    processes.find(is_it).expect("a process of the pod").join("ns/net")
}

pub fn reaches(namespace: &Path, to: SocketAddr) -> bool {
    let connect = move || TcpStream::connect_timeout(&to, SILENCE).is_ok();
    netlink::netns::within(namespace, connect).expect("the pod's namespace")
}

async fn apply(client: &Client, namespace: &str, name: &str, spec: Value) {
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name}, "spec": spec});
    let api = Api::<NetworkPolicy>::namespaced(client.clone(), namespace);
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&policy)).await.unwrap();
}

fn labelled(name: &str, access: bool) -> Pod {
    let mut pod = pod(
        name,
        json!({"containers": [{
            "ports": [{"name": "web", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}}]}),
    );
    if access {
        pod.metadata.labels.get_or_insert_default().insert("access".to_owned(), "yes".to_owned());
    }
    pod
}

async fn address(pods: &Api<Pod>, name: &str) -> SocketAddr {
    let ip = ready(pods, name).await.status.unwrap().pod_ip.unwrap();
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 8080)
}

#[test]
fn a_policy_holds_from_the_first_packet_and_without_its_process() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up();
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        // Everything is shut before any pod is there; probes reach their pods all the same.
        apply(&client, "default", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]})).await;
        for (name, access) in [("web", false), ("friend", true), ("stranger", false)] {
            create(&pods, &labelled(name, access)).await;
        }
        let web = address(&pods, "web").await;
        let friend = namespace_of(&pods, "friend").await;
        let stranger = namespace_of(&pods, "stranger").await;
        let both = || (reaches(&friend, web), reaches(&stranger, web));
        assert_eq!(both(), (false, false));
        let service: Service = serde_json::from_value(json!({"metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}))
        .unwrap();
        let services = Api::<Service>::default_namespaced(client.clone());
        let made = services.create(&PostParams::default(), &service).await.unwrap();
        let front = SocketAddr::new(made.spec.unwrap().cluster_ip.unwrap().parse().unwrap(), 80);
        let from = json!([{"from": [{"podSelector": {"matchLabels": {"access": "yes"}}}], "ports": [{"port": "web"}]}]);
        apply(
            &client,
            "default",
            "allow",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": from}),
        )
        .await;
        eventually("the friend is let in", || async {
            if reaches(&friend, web) && reaches(&friend, front) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        assert!(!reaches(&stranger, web) && !reaches(&stranger, front));

        // A label decides, at once and both ways; an open connection does not outlive it.
        let label = |value: Value| json!({"metadata": {"labels": {"access": value}}});
        pods.patch("stranger", &PatchParams::default(), &Patch::Merge(label("yes".into()))).await.unwrap();
        eventually("the stranger is let in", || async {
            if reaches(&stranger, web) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        pods.patch("stranger", &PatchParams::default(), &Patch::Merge(label(Value::Null))).await.unwrap();
        eventually("the stranger is out again", || async {
            if reaches(&stranger, web) { Err("still in".to_owned()) } else { Ok(()) }
        })
        .await;

        // Nobody is there to enforce, and it is enforced.
        kill_process(Pid::from_raw(cluster.pid()).unwrap(), Signal::KILL).unwrap();
        eventually("the process is gone", || async {
            if cluster.status()["running"] == false { Ok(()) } else { Err("still running".to_owned()) }
        })
        .await;
        assert_eq!(both(), (true, false));
        cluster.up();
        assert_eq!(both(), (true, false));
        let client = cluster.client().await;
        let pods = Api::<Pod>::default_namespaced(client.clone());
        ready(&pods, "web").await;
        assert_eq!(both(), (true, false));

        // A new pod's first packet, of a namespace that lets nothing out: nothing was ever open.
        let shut: Namespace = serde_json::from_value(json!({"metadata": {"name": "shut"}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &shut).await.unwrap();
        apply(
            &client,
            "default",
            "allow",
            json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{}]}),
        )
        .await;
        eventually("everyone is let in", || async {
            if reaches(&stranger, web) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        let words = ["demo", "http-get", &format!("http://{web}/")];
        let once = json!({"restartPolicy": "Never", "containers": [{"command": words}]});
        let inside = Api::<Pod>::namespaced(client.clone(), "shut");
        apply(&client, "shut", "deny", json!({"podSelector": {}, "policyTypes": ["Egress"]})).await;
        create(&inside, &pod("caller", once.clone())).await;
        create(&pods, &pod("caller", once)).await;
        phase(&pods, "caller", "Succeeded").await;
        phase(&inside, "caller", "Failed").await;

        Api::<NetworkPolicy>::default_namespaced(client.clone())
            .delete("deny", &DeleteParams::default())
            .await
            .unwrap();
        let friend_at = address(&pods, "friend").await;
        eventually("what no policy selects is open", || async {
            if reaches(&stranger, friend_at) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
        let status = cluster.kelson("down", &["--purge"]);
        assert!(status.status.success());
        let tables = netlink::nft::Nftables::open().unwrap().tables(netlink::nft::Family::Ip).unwrap();
        assert_eq!(tables, Vec::<String>::new(), "nothing is left");
    });
}
