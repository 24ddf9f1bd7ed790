//! kube-proxy: makes Service addresses lead to their endpoints on this node, by nftables.
//!
//! The path of a change: informers note which Service is affected ([`sync`]), [`endpoints`] chooses who serves it, [`plan`]
//! computes the Service's share of the table, [`ruleset`] turns the difference into one kernel transaction. Everything up to
//! the transaction is pure.
//!
//! What must stay true: the kernel's table is always the plan of some revision, never a mixture; rules stay when the process
//! dies, and the next one replaces them in one step; the work for a change depends on the Service that changed, not
//! on the number of Services.

mod args;
mod endpoints;
mod health;
mod node_check;
mod plan;
mod ruleset;
mod skeleton;
mod sync;
mod types;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use client::Client;
use ipnet::IpNet;
use lifecycle::{Stop, Tasks};
use netlink::nft::{Family, Nftables, Table};
use thiserror::Error;

pub use args::{ArgsError, KubeProxyArgs};
pub use skeleton::TABLE;

/// How the proxy works. Made by [`KubeProxyArgs::complete`] or by hand.
#[derive(Clone, Debug)]
pub struct Config {
    /// The Node that this proxy runs on.
    pub node_name: String,
    /// How to reach the API server, for whoever makes the client.
    pub kubeconfig: Option<PathBuf>,
    /// The nftables table; [`TABLE`] where no other proxy serves the same network.
    pub table: String,
    /// Addresses of pods; traffic to cluster addresses from elsewhere gets the node's address.
    pub cluster_cidr: Option<IpNet>,
    pub masquerade_all: bool,
    pub node_ports: NodePortAddresses,
    /// Where `/healthz` and `/livez` answer.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` answers.
    pub metrics: Option<SocketAddr>,
    /// How soon rules come back that someone else removed or changed; a firewall that is loaded anew does that.
    pub sync_period: Duration,
    /// Changes within this time share a transaction.
    pub min_sync_period: Duration,
}

/// Which of the host's addresses answer on node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The Node's internal addresses.
    Primary,
    /// All local addresses in these ranges. Loopback works for endpoints on this node, if the pod network routes it.
    Ranges(Vec<IpNet>),
}

impl Config {
    /// The defaults of upstream's nftables mode, without servers.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            kubeconfig: None,
            table: TABLE.to_owned(),
            cluster_cidr: None,
            masquerade_all: false,
            node_ports: NodePortAddresses::Primary,
            healthz: None,
            metrics: None,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_millis(50),
        }
    }
}

/// Why the proxy could not start, or its rules could not be removed.
#[derive(Debug, Error)]
pub enum Error {
    #[error("nftables cannot be used: load the modules (modprobe nf_tables nft_nat) and run as root")]
    Nftables(#[source] netlink::Error),
    #[error("cannot listen on {address} for {purpose}")]
    Listen {
        purpose: &'static str,
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("service rules cannot be removed")]
    Remove(#[source] netlink::Error),
}

/// Keeps the node's Service rules until the stop; the rules stay. Fails only at the start.
pub async fn run(config: Config, client: Client, stop: Stop) -> Result<(), Error> {
    let nftables = Nftables::open().map_err(Error::Nftables)?;
    nftables.tables(Family::Ip).map_err(Error::Nftables)?;
    let tasks = Tasks::under(&stop);
    let health = health::Health::default();
    health::serve(&config, &health, &tasks).await?;
    sync::Proxy::start(config, &client, &tasks, health, nftables).run(&stop).await;
    tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

/// Removes every rule that a proxy made in a table.
pub fn remove_rules(table: &str) -> Result<(), Error> {
    let nftables = Nftables::open().map_err(Error::Nftables)?;
    for family in [Family::Ip, Family::Ip6] {
        if nftables.tables(family).map_err(Error::Remove)?.iter().any(|name| name == table) {
            nftables.commit(&Table::new(family, table).remove()).map_err(Error::Remove)?;
        }
    }
    Ok(())
}
