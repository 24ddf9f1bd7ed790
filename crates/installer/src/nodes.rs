//! The machines of the cluster with their names and addresses: nodes.yaml, made from the config, open to edits.
//!
//! Certificates, DNS records, load balancer and per-node ignition files follow from it.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::addresses;
use crate::graph::AssetError;
use crate::install_config::InstallConfig;

/// What a machine is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Role {
    Bootstrap,
    Master,
    Arbiter,
    Worker,
}

impl Role {
    /// Its name, which is also that of its machine config pool.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Master => "master",
            Self::Arbiter => "arbiter",
            Self::Worker => "worker",
        }
    }
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Short name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// One address per family.
    pub addresses: Vec<IpAddr>,
    /// Interface that the address belongs to, by hardware address; any wired one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

/// All machines, and the addresses that belong to none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Nodes {
    /// Where `api` and `api-int` lead: the load balancer, or an address that moves.
    pub api_addresses: Vec<IpAddr>,
    /// Where `*.apps` leads.
    pub ingress_addresses: Vec<IpAddr>,
    /// Routers, one per family.
    pub gateways: Vec<IpAddr>,
    /// Name servers of the machines.
    pub nameservers: Vec<IpAddr>,
    /// The machines.
    pub nodes: Vec<Node>,
}

/// Offsets of addresses in a network of 256 or more.
struct Layout {
    api: u128,
    ingress: u128,
    bootstrap: u128,
    workers: u128,
}

impl Nodes {
    /// Addresses counted from the start of each family's first machine network.
    pub fn plan(config: &InstallConfig) -> Self {
        let networks: Vec<IpNet> = first_of_each_family(config);
        let masters = config.control_plane_replicas().max(0) as u128;
        let arbiters = config.arbiter_replicas().max(0) as u128;
        let small = networks.iter().any(|net| addresses::size(net) < 256) || masters + arbiters > 40;
        let layout = if small {
            Layout { api: 2, ingress: 3, bootstrap: 4, workers: 5 + masters + arbiters }
        } else {
            Layout { api: 10, ingress: 11, bootstrap: 100, workers: 151 }
        };
        let at = |offset: u128| networks.iter().map(|net| addresses::nth(net, offset)).collect::<Vec<_>>();
        let mut nodes = vec![Node {
            name: "bootstrap".to_owned(),
            role: Role::Bootstrap,
            addresses: at(layout.bootstrap),
            mac: None,
        }];
        let mut add = |role: Role, count: u128, first: u128| {
            for index in 0..count {
                let host = host_of(config, role, index as usize);
                nodes.push(Node {
                    name: host.map_or_else(|| format!("{}-{index}", role.name()), |host| host.0.to_owned()),
                    role,
                    addresses: at(first + index),
                    mac: host.map(|host| host.1.to_owned()).filter(|mac| !mac.is_empty()),
                });
            }
        };
        add(Role::Master, masters, layout.bootstrap + 1);
        add(Role::Arbiter, arbiters, layout.bootstrap + 1 + masters);
        add(Role::Worker, config.compute_replicas().max(0) as u128, layout.workers);
        let given =
            |list: &[String]| list.iter().filter_map(|text| text.parse().ok()).collect::<Vec<IpAddr>>();
        let (mut api, mut ingress) = (at(layout.api), at(layout.ingress));
        if let Some(baremetal) = &config.platform.baremetal {
            (api, ingress) = (given(&baremetal.api_vips), given(&baremetal.ingress_vips));
        }
        Self { api_addresses: api, ingress_addresses: ingress, gateways: at(1), nameservers: at(1), nodes }
    }

    /// Reads the file, perhaps edited.
    pub fn parse(text: &str, config: &InstallConfig) -> Result<Self, AssetError> {
        let fail = |reason: String| AssetError::Unusable { path: "nodes.yaml".to_owned(), reason };
        let nodes: Self = serde_yaml_ng::from_str(text).map_err(|error| fail(error.to_string()))?;
        for (index, node) in nodes.nodes.iter().enumerate() {
            let earlier = &nodes.nodes[..index];
            if earlier.iter().any(|other| other.name == node.name) {
                return Err(fail(format!("two nodes are named {}", node.name)));
            }
            if let Some(address) =
                node.addresses.iter().find(|a| earlier.iter().any(|other| other.addresses.contains(a)))
            {
                return Err(fail(format!("two nodes have the address {address}")));
            }
            if node.addresses.is_empty() {
                return Err(fail(format!("{} has no address", node.name)));
            }
        }
        let wanted = [
            (Role::Bootstrap, 1),
            (Role::Master, config.control_plane_replicas()),
            (Role::Arbiter, config.arbiter_replicas()),
            (Role::Worker, config.compute_replicas()),
        ];
        for (role, count) in wanted {
            let found = nodes.with_role(role).count() as i64;
            if found != count {
                let name = role.name();
                return Err(fail(format!(
                    "it has {found} nodes of role {name}; install-config.yaml asks for {count}"
                )));
            }
        }
        Ok(nodes)
    }

    /// The file.
    pub fn to_yaml(&self) -> Result<String, AssetError> {
        const HEAD: &str = "# The machines and their addresses, counted from the start of the machine network.\n\
            # Change what differs; certificates, DNS records, load balancer and per-node files follow.\n";
        Ok(format!("{HEAD}{}", serde_yaml_ng::to_string(self)?))
    }

    /// Machines of one role.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.role == role)
    }

    /// Machines that run etcd at some time of the installation.
    pub fn etcd_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.role != Role::Worker)
    }
}

fn first_of_each_family(config: &InstallConfig) -> Vec<IpNet> {
    let mut out: Vec<IpNet> = Vec::new();
    for entry in &config.networking.machine_network {
        if let Ok(net) = entry.cidr.parse::<IpNet>()
            && !out.iter().any(|known| addresses::is_v6(known) == addresses::is_v6(&net))
        {
            out.push(net);
        }
    }
    out
}

/// Name and hardware address of a described machine.
fn host_of(config: &InstallConfig, role: Role, index: usize) -> Option<(&str, &str)> {
    let hosts = &config.platform.baremetal.as_ref()?.hosts;
    let masters = config.control_plane_replicas() as usize;
    let named = hosts.iter().filter(|host| host.role == role.name());
    let free = hosts.iter().filter(|host| host.role.is_empty());
    // Hosts without a role become masters first, then workers.
    let taken = match role {
        Role::Master => 0,
        _ => masters.saturating_sub(hosts.iter().filter(|host| host.role == "master").count()),
    };
    let host = named.chain(free.skip(taken)).nth(index)?;
    Some((host.name.as_str(), host.boot_mac_address.as_str()))
}
