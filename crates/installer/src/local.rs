//! What `platform.local` makes of an installation: the machines, their network, and the way in from this host, as plain
//! values. Whoever makes machines reads them; this crate knows no machines.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use thiserror::Error;

use crate::graph::AssetError;
use crate::identity::Identity;
use crate::install_config::{self, ConfigError};
use crate::nodes::{Node, Nodes, Role};
use crate::store::{self, StoreError};

/// Why there is no plan.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum LocalError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Asset(#[from] AssetError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{} holds no installation; run `kelson create ignition-configs` first", .0.display())]
    Absent(std::path::PathBuf),
    #[error(
        "its platform is {0}, whose machines are not made by this command: boot them from the ignition files; README.md there says how"
    )]
    Platform(&'static str),
    #[error("cannot read the identity of the installation")]
    Identity(#[from] serde_json::Error),
    #[error("cannot use the kubeconfig in auth/")]
    Kubeconfig(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// An installation on this host.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Plan {
    pub infra_id: String,
    pub domain: String,
    pub nodes: Nodes,
    pub networks: Vec<IpNet>,
    pub memory_mib: u64,
    pub cpus: u64,
}

impl Plan {
    /// Of a directory in which the ignition files were made.
    pub fn read(dir: &Path) -> Result<Self, LocalError> {
        let state = store::read_state(dir)?;
        let text = |asset: &str| {
            let file = state.get(asset).and_then(|files| files.first());
            let file = file.ok_or_else(|| LocalError::Absent(dir.to_owned()))?;
            Ok::<_, LocalError>(String::from_utf8_lossy(&file.content).into_owned())
        };
        let (config, _) = install_config::load(&text("install-config")?)?;
        let Some(local) = &config.platform.local else {
            return Err(LocalError::Platform(config.platform_type()));
        };
        let identity: Identity = serde_json::from_str(&text("identity")?)?;
        Ok(Self {
            infra_id: identity.infra_id,
            domain: config.cluster_domain(),
            nodes: Nodes::parse(&text("nodes")?, &config)?,
            networks: config
                .networking
                .machine_network
                .iter()
                .filter_map(|net| net.cidr.parse().ok())
                .collect(),
            memory_mib: u64::try_from(local.memory_mib).unwrap_or_default(),
            cpus: u64::try_from(local.cpus).unwrap_or_default(),
        })
    }

    /// An address with its network's prefix.
    pub fn in_network(&self, address: IpAddr) -> Option<IpNet> {
        let network = self.networks.iter().find(|network| network.contains(&address))?;
        IpNet::new(address, network.prefix_len()).ok()
    }

    /// What listens on the switch: router and name server, load balancer.
    pub fn switch_addresses(&self) -> Vec<IpNet> {
        let nodes = &self.nodes;
        let all = nodes
            .gateways
            .iter()
            .chain(&nodes.nameservers)
            .chain(&nodes.api_addresses)
            .chain(&nodes.ingress_addresses);
        let mut out: Vec<IpNet> = Vec::new();
        for address in all.filter_map(|address| self.in_network(*address)) {
            if !out.contains(&address) {
                out.push(address);
            }
        }
        out
    }

    /// Names below the domain, with their addresses.
    pub fn records(&self) -> Vec<(String, Vec<IpAddr>)> {
        crate::surroundings::records(&self.nodes)
    }

    /// The ignition file of a machine, below the directory.
    pub fn ignition_of(&self, node: &Node) -> String {
        match node.role {
            Role::Bootstrap => "bootstrap.ign".to_owned(),
            _ => format!("nodes/{}.ign", node.name),
        }
    }

    /// Where the API is on the switch.
    pub fn api(&self) -> Option<SocketAddr> {
        self.nodes.api_addresses.first().map(|address| SocketAddr::new(*address, 6443))
    }
}

/// Makes the administrator's kubeconfig lead through a port of this host; names stay those of the certificates.
pub fn lead_kubeconfig(dir: &Path, domain: &str, port: u16) -> Result<(), LocalError> {
    let fail = |error: Box<dyn std::error::Error + Send + Sync>| LocalError::Kubeconfig(error);
    let path = dir.join("auth/kubeconfig");
    let mut kubeconfig = pki::Kubeconfig::load(&path).map_err(|error| fail(error.into()))?;
    for cluster in &mut kubeconfig.clusters {
        cluster.cluster.server = format!("https://127.0.0.1:{port}");
        cluster.cluster.tls_server_name = Some(format!("api.{domain}"));
    }
    kubeconfig.write(&path).map_err(|error| fail(error.into()))
}
