//! `kelson cloud-controller-manager` as the keeper of routes: the provider `local` on a machine with an interface towards
//! the nodes. The scenes have none, because this loop would have its say on every node's condition.

use std::process::Command;

use netlink::route::{Kind, NewLink, Routing};
use pki::table::names;
use serde_json::json;

use crate::apiserver::{API, Bench, Running};
use crate::harness::{eventually, in_own_network};

const RANGE: &str = "10.128.4.0/24";
const ADDRESS: &str = "192.0.2.77";

#[test]
fn a_node_is_reached_through_a_route_while_it_is_there() {
    in_own_network(|| async {
        let routing = Routing::open().expect("netlink answers");
        let new = NewLink { name: "nodes", kind: Kind::Bridge, mac: None, mtu: 1500 };
        routing.create(&new).expect("an interface");
        let index = routing.link("nodes").expect("links can be listed").expect("it was made").index;
        routing.set_up(index, &[]).expect("it comes up");
        routing.add_address(index, "192.0.2.1/24".parse().expect("a range")).expect("an address");

        let bench = Bench::new(false);
        let (_api, curl) = bench.api(&[]);
        let config =
            bench.pki.kubeconfig(names::CONTROLLER_MANAGER, "routes", API).expect("the row is there");
        let kubeconfig = bench.write("cloud.kubeconfig", &config.to_yaml().expect("text"));
        let cloud = bench.write("cloud.yaml", &json!({"routes": "nodes"}).to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.args(["cloud-controller-manager", "--cloud-provider=local", "--leader-elect=false"]);
        command.args(["--controllers=node-route-controller", "--allocate-node-cidrs=true"]);
        command.args(["--cluster-cidr=10.128.0.0/14", "--configure-cloud-routes=true"]);
        command.arg("--use-service-account-credentials=true");
        command.arg(format!("--cloud-config={cloud}")).arg(format!("--kubeconfig={kubeconfig}"));
        let _cloud = Running::start(command, &bench.dir.path().join("cloud.log"));

        let admin = bench.admin();
        let admin: Vec<&str> = admin.iter().map(String::as_str).collect();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "far"},
            "spec": {"podCIDR": RANGE, "podCIDRs": [RANGE]},
            "status": {"addresses": [{"type": "InternalIP", "address": ADDRESS}]}});
        assert_eq!(curl.post("/api/v1/nodes", &node, &admin).0, 201);
        eventually("the node is told that it is reached", || async {
            let (_, node) = curl.ask("/api/v1/nodes/far", &admin);
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let told = conditions.iter().any(|own| {
                own["type"] == "NetworkUnavailable"
                    && own["status"] == "False"
                    && own["reason"] == "RouteCreated"
            });
            let log = || std::fs::read_to_string(bench.dir.path().join("cloud.log")).unwrap_or_default();
            if told { Ok(()) } else { Err(format!("{node}\n{}", log())) }
        })
        .await;
        let gateway = || {
            let routes = routing.routes().expect("routes can be listed");
            let found = routes.into_iter().find(|route| route.to.to_string() == RANGE);
            found.and_then(|route| route.gateway).map(|gateway| gateway.to_string())
        };
        assert_eq!(gateway().as_deref(), Some(ADDRESS));
        assert_eq!(curl.ask("/api/v1/nodes/far", &[&admin[..], &["-X", "DELETE"]].concat()).0, 200);
        eventually("the route goes with the node", || async {
            match gateway() {
                None => Ok(()),
                Some(gateway) => Err(format!("it still leads to {gateway}")),
            }
        })
        .await;
    });
}
