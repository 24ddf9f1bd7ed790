//! `kelson node-ip wait`: waits until an interface has the node's address, which the kubelet registers it with.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{BootstrapError, until};

/// The address of this node
#[derive(Debug, Args)]
pub struct NodeIpArgs {
    #[command(subcommand)]
    command: NodeIpCommand,
}

#[derive(Debug, Subcommand)]
enum NodeIpCommand {
    /// Waits until an interface has the address
    Wait {
        /// The address
        #[arg(long, env = "KUBELET_NODE_IP")]
        address: IpAddr,
        /// Seconds to wait
        #[arg(long, default_value_t = 300)]
        timeout: u64,
    },
}

impl NodeIpArgs {
    /// Does it.
    pub async fn run(self) -> Result<(), BootstrapError> {
        let NodeIpCommand::Wait { address, timeout } = self.command;
        let limit = Duration::from_secs(timeout);
        let outcome =
            until("waiting for this machine's address", limit, Duration::from_millis(200), async || {
                // Only an address of this machine can be bound.
                UdpSocket::bind((address, 0)).map(drop).map_err(|error| format!("{address}: {error}"))
            });
        match outcome.await {
            Ok(()) => {
                println!("this machine has {address}");
                Ok(())
            }
            Err(BootstrapError::Late { .. }) => Err(BootstrapError::NoAddress(address)),
            Err(error) => Err(error),
        }
    }
}
