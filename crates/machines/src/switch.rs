//! The switch of a cluster: a bridge in a network namespace of its own, kept alive by a mount under /run. Machines have
//! a cable to it each; the host has none.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use netlink::netns;
use netlink::route::{Kind, Mac, NewLink, Route, Routing, Target};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use thiserror::Error;

/// Why the switch is not as it should be.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum SwitchError {
    #[error("the network of the machines cannot be set up")]
    Net(#[from] netlink::Error),
    #[error("cannot {operation} {}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("link {0} is not there although it was made")]
    NoLink(String),
}

const BRIDGE: &str = "switch";
const MTU: u32 = 1500;
/// What a machine calls its end of the cable.
pub const MACHINE_LINK: &str = "eth0";

/// A cluster's switch.
#[derive(Debug, Clone)]
pub struct Switch {
    directory: PathBuf,
}

fn io_error<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SwitchError + 'a {
    move |source| SwitchError::Io { operation, path: path.to_owned(), source }
}

impl Switch {
    /// Of a cluster by its id.
    pub fn of(cluster: &str) -> Self {
        Self { directory: Path::new("/run/kelson/clusters").join(cluster) }
    }

    /// The namespace, as a file.
    pub fn namespace(&self) -> PathBuf {
        self.directory.join("switch")
    }

    fn exists(&self) -> bool {
        // Without its mount the file is an empty one of the file system it is on.
        const NSFS: i64 = 0x6e73_6673;
        rustix::fs::statfs(self.namespace()).is_ok_and(|found| found.f_type == NSFS)
    }

    /// Makes the switch, or finds it. The cluster's own services listen at `addresses`.
    pub fn ensure(&self, addresses: &[IpNet]) -> Result<(), SwitchError> {
        if !self.exists() {
            let namespace = self.namespace();
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory)
                .map_err(io_error("make", &self.directory))?;
            fs::write(&namespace, "").map_err(io_error("make", &namespace))?;
            let place = namespace.clone();
            netns::fresh(move || mount_bind("/proc/thread-self/ns/net", &place))?
                .map_err(|errno| io_error("mount", &namespace)(errno.into()))?;
        }
        let routing = Routing::open_in(&self.namespace())?;
        if routing.link(BRIDGE)?.is_none() {
            routing.create(&NewLink { name: BRIDGE, kind: Kind::Bridge, mac: None, mtu: MTU })?;
        }
        let bridge = link(&routing, BRIDGE)?;
        for address in addresses {
            routing.add_address(bridge, *address)?;
        }
        routing.set_up(link(&routing, "lo")?, &[])?;
        Ok(routing.set_up(bridge, &[])?)
    }

    /// Connects a machine's namespace, which is the calling thread's, and gives it its addresses.
    pub fn plug(
        &self,
        name: &str,
        mac: Mac,
        addresses: &[IpNet],
        gateways: &[IpAddr],
    ) -> Result<(), SwitchError> {
        let routing = Routing::open_in(&self.namespace())?;
        let port = port_name(name);
        // The cable of the boot before goes with its namespace, but not at once.
        netlink::if_present(routing.delete_link(&port))?;
        let here =
            PathBuf::from(format!("/proc/self/task/{}/ns/net", rustix::thread::gettid().as_raw_nonzero()));
        routing.create(&NewLink {
            name: &port,
            kind: Kind::Veth { peer: MACHINE_LINK, peer_mac: mac, netns: &here },
            mac: None,
            mtu: MTU,
        })?;
        let index = link(&routing, &port)?;
        routing.set_master(index, link(&routing, BRIDGE)?)?;
        routing.set_up(index, &[])?;
        let machine = Routing::open()?;
        machine.set_up(link(&machine, "lo")?, &[])?;
        let cable = link(&machine, MACHINE_LINK)?;
        machine.set_up(cable, &[])?;
        for address in addresses {
            machine.add_address(cable, *address)?;
        }
        for gateway in gateways {
            let to = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            // Both are networks.
            if let Ok(to) = to.parse() {
                machine.set_route(&Route {
                    to,
                    target: Target::Via { gateway: *gateway, index: cable },
                    source: None,
                })?;
            }
        }
        Ok(())
    }

    /// Takes the switch away; nothing may be connected any more.
    pub fn remove(&self) -> Result<(), SwitchError> {
        let namespace = self.namespace();
        while self.exists() {
            unmount(&namespace, UnmountFlags::DETACH)
                .map_err(|errno| io_error("unmount", &namespace)(errno.into()))?;
        }
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error("remove", &self.directory)(error))
            }
            _ => Ok(()),
        }
    }
}

fn link(routing: &Routing, name: &str) -> Result<u32, SwitchError> {
    match routing.link(name) {
        Ok(Some(link)) => Ok(link.index),
        Ok(None) => Err(SwitchError::NoLink(name.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// A machine's port of the switch: links have short names, machines may have long ones.
fn port_name(machine: &str) -> String {
    let hash = ring::digest::digest(&ring::digest::SHA256, machine.as_bytes());
    let hex: String = hash.as_ref().iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    format!("port{hex}")
}
