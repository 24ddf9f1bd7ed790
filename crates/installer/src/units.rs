//! What runs on machines besides pods: units and the files they read.
//!
//! Units call /usr/local/bin/kelson, which the machine's image carries, and nothing else: there need be no shell. What they
//! call is in [`crate::bootstrap`].

use std::net::IpAddr;

use ignition::Unit;
use ignition::types::Dropin;
use serde_json::json;

use crate::install_config::{InstallConfig, Proxy};
use crate::nodes::{Node, Role};
use crate::scene::Scene;

/// Shown to whoever logs in on the bootstrap machine.
pub const BOOTSTRAP_MOTD: &str = include_str!("../files/motd");

fn unit(name: &str, enabled: bool, contents: &str) -> Unit {
    Unit {
        name: name.to_owned(),
        enabled: enabled.then_some(true),
        contents: Some(contents.to_owned()),
        ..Unit::default()
    }
}

fn common() -> Vec<Unit> {
    vec![unit("node-ip.service", true, include_str!("../files/node-ip.service"))]
}

/// Units of the bootstrap machine.
pub fn bootstrap() -> Vec<Unit> {
    let mut units = common();
    units.push(unit("kubelet.service", true, include_str!("../files/kubelet-bootstrap.service")));
    units.push(unit("bootkube.service", true, include_str!("../files/bootkube.service")));
    units.push(unit("approve-csr.service", true, include_str!("../files/approve-csr.service")));
    units.push(unit("progress.service", true, include_str!("../files/progress.service")));
    units
}

/// Units of a machine that joins.
pub fn node(role: Role) -> Vec<Unit> {
    let mut units = common();
    let (labels, taints) = match role {
        Role::Worker => ("node-role.kubernetes.io/worker=", ""),
        Role::Arbiter => ("node-role.kubernetes.io/arbiter=", "node-role.kubernetes.io/arbiter=:NoSchedule"),
        Role::Master | Role::Bootstrap => (
            "node-role.kubernetes.io/master=,node-role.kubernetes.io/control-plane=",
            "node-role.kubernetes.io/master=:NoSchedule",
        ),
    };
    let mut kubelet = unit("kubelet.service", true, include_str!("../files/kubelet.service"));
    kubelet.dropins.push(Dropin {
        name: "10-role.conf".to_owned(),
        contents: Some(format!(
            "# What this machine is for.\n[Service]\nEnvironment=NODE_LABELS={labels}\nEnvironment=NODE_TAINTS={taints}\n"
        )),
    });
    units.push(kubelet);
    units
}

/// KubeletConfiguration. On the bootstrap machine the kubelet stands alone: no API server, only files.
pub fn kubelet_config(config: &InstallConfig, standalone: bool) -> String {
    let mut value = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "staticPodPath": "/etc/kubernetes/manifests",
        "cgroupDriver": "cgroupfs",
        // The machine's owner decides about swap; containers do not use it.
        "failSwapOn": false,
        "clusterDomain": "cluster.local",
        "clusterDNS": config.dns_service_ips(),
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": !standalone}},
        "maxPods": 250,
        "podPidsLimit": 4096,
        "serializeImagePulls": false,
    });
    if config.platform.local.is_some() {
        // The disk is that of whoever lent it: a tenth of it may be more than the whole cluster ever needs.
        value["evictionHard"] = json!({
            "memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%",
        });
    }
    if standalone {
        value["authorization"] = json!({"mode": "AlwaysAllow"});
    } else {
        value["authentication"]["x509"] = json!({"clientCAFile": "/etc/kubernetes/kubelet-ca.crt"});
        value["authorization"] = json!({"mode": "Webhook"});
        value["rotateCertificates"] = json!(true);
        value["serverTLSBootstrap"] = json!(true);
        value["kubeAPIQPS"] = json!(50);
        value["kubeAPIBurst"] = json!(100);
        value["systemReserved"] = json!({"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"});
    }
    // Values made here always serialise.
    serde_yaml_ng::to_string(&value).unwrap_or_default()
}

/// What the bootstrap machine's units read.
pub fn bootstrap_environment(scene: &Scene<'_>) -> String {
    let masters = scene.config.control_plane_replicas();
    // A single master is all there will be; of several, two carry the API on while the bootstrap machine leaves.
    let enough = if masters == 1 { 1 } else { 2 };
    format!("MASTERS_TO_COMPLETE={enough}\n")
}

/// Where operators find the API before cluster DNS works.
pub fn api_environment(scene: &Scene<'_>) -> String {
    format!("KUBERNETES_SERVICE_HOST='api-int.{}'\nKUBERNETES_SERVICE_PORT='6443'\n", scene.domain())
}

/// Proxy settings for units.
pub fn proxy_environment(proxy: &Proxy, no_proxy: &str) -> String {
    let mut out = String::new();
    for (name, value) in [
        ("HTTP_PROXY", proxy.http_proxy.as_str()),
        ("HTTPS_PROXY", &proxy.https_proxy),
        ("NO_PROXY", no_proxy),
    ] {
        if !value.is_empty() {
            out.push_str(&format!("{name}={value}\n"));
        }
    }
    out
}

/// The address that the kubelet reports, and how /proc spells it if it is IPv6.
pub fn node_ip_environment(address: IpAddr) -> String {
    let hex = match address {
        IpAddr::V4(_) => String::new(),
        IpAddr::V6(address) => address.octets().iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    format!("KUBELET_NODE_IP={address}\nKUBELET_NODE_IP_HEX={hex}\n")
}

/// A NetworkManager keyfile with the machine's addresses.
pub fn network_connection(node: &Node, scene: &Scene<'_>) -> String {
    let mut out =
        String::from("[connection]\nid=machine\ntype=ethernet\nautoconnect-priority=100\n\n[ethernet]\n");
    if let Some(mac) = &node.mac {
        out.push_str(&format!("mac-address={mac}\n"));
    }
    for (section, six) in [("ipv4", false), ("ipv6", true)] {
        out.push_str(&format!("\n[{section}]\n"));
        let Some(address) = node.addresses.iter().find(|address| address.is_ipv6() == six) else {
            out.push_str("method=disabled\n");
            continue;
        };
        let prefix = prefix_of(scene.config, *address);
        out.push_str("method=manual\n");
        let gateway = scene.nodes.gateways.iter().find(|gateway| gateway.is_ipv6() == six);
        let gateway = gateway.map(|gateway| format!(",{gateway}")).unwrap_or_default();
        out.push_str(&format!("address1={address}/{prefix}{gateway}\n"));
        let servers = scene.nodes.nameservers.iter().filter(|server| server.is_ipv6() == six);
        let servers: String = servers.map(|server| format!("{server};")).collect();
        if !servers.is_empty() {
            out.push_str(&format!("dns={servers}\n"));
        }
        out.push_str(&format!("dns-search={};\n", scene.domain()));
    }
    out
}

fn prefix_of(config: &InstallConfig, address: IpAddr) -> u8 {
    let networks = config.networking.machine_network.iter();
    networks
        .filter_map(|entry| entry.cidr.parse::<ipnet::IpNet>().ok())
        .find(|net| net.contains(&address))
        .map_or(if address.is_ipv6() { 64 } else { 24 }, |net| net.prefix_len())
}
