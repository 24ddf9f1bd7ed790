//! Which pod has which address: one small file per pod, written before the address is used.
//!
//! A file appears whole (rename) and is removed last, so that at any instant a process may die and the next one knows
//! every address that could be in use. No fsync: after a power loss the pods are gone, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use cni::{PodRef, PortMapping};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::warn;

use crate::Ports;

/// Why leases could not be read or written.
#[derive(Debug, Error)]
pub enum LeaseError {
    #[error("lease directory {path} cannot be used")]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("lease {path} cannot be written")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("lease {path} cannot be removed")]
    Remove {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// One pod's address and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    pub sandbox_id: String,
    pub address: IpAddr,
    /// The host's end of the pod's link.
    pub link: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    #[serde(default)]
    pub host_ports: Vec<PortMapping>,
}

/// All leases of this node.
#[derive(Debug)]
pub struct Leases {
    directory: PathBuf,
    range: IpNet,
    by_sandbox: BTreeMap<String, Lease>,
    used: BTreeSet<IpAddr>,
    /// Where the search for a free address goes on: a freed address rests as long as possible.
    cursor: u128,
}

impl Leases {
    /// Reads the leases of earlier runs.
    pub fn load(directory: &Path, range: IpNet) -> Result<Self, LeaseError> {
        let fail = |source| LeaseError::Directory { path: directory.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fail)?;
        let mut leases = Self {
            directory: directory.to_owned(),
            range,
            by_sandbox: BTreeMap::new(),
            used: BTreeSet::new(),
            cursor: FIRST_POD,
        };
        for entry in fs::read_dir(directory).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let lease = fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice::<Lease>(&bytes)?));
            match lease {
                Ok(lease) => leases.insert(lease),
                // Files appear whole, so this one was damaged from outside; it says nothing that could be kept.
                Err(error) => warn!(path = %path.display(), %error, "unreadable lease ignored"),
            }
        }
        if let Some(highest) = leases.used.iter().filter_map(|address| offset(range, *address)).max() {
            leases.cursor = highest + 1;
        }
        Ok(leases)
    }

    pub fn get(&self, sandbox_id: &str) -> Option<&Lease> {
        self.by_sandbox.get(sandbox_id)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.by_sandbox.values()
    }

    /// The pod's lease, new (`true`) or the one it has.
    pub fn take(&mut self, pod: &PodRef) -> cni::Result<(Lease, bool)> {
        if let Some(lease) = self.by_sandbox.get(&pod.sandbox_id) {
            return Ok((lease.clone(), false));
        }
        if pod.sandbox_id.is_empty() || pod.sandbox_id.contains('/') {
            let reason = "it must be a file name".to_owned();
            return Err(cni::Error::Invalid { what: format!("sandbox id {:?}", pod.sandbox_id), reason });
        }
        let address = self.free().ok_or_else(|| cni::Error::Exhausted { range: self.range.to_string() })?;
        let lease = Lease {
            sandbox_id: pod.sandbox_id.clone(),
            address,
            link: link_name(&pod.sandbox_id),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            host_ports: pod.host_ports.clone(),
        };
        self.write(&lease).map_err(|error| cni::Error::failed("writing a lease", error))?;
        self.insert(lease.clone());
        Ok((lease, true))
    }

    /// Whether another pod holds one of the ports.
    pub fn check_ports(&self, sandbox_id: &str, wanted: &[PortMapping]) -> cni::Result<()> {
        let mut taken = Ports::new();
        for lease in self.by_sandbox.values().filter(|lease| lease.sandbox_id != sandbox_id) {
            for port in &lease.host_ports {
                let key =
                    (port.protocol as u8, port.host_port, port.host_ip.filter(|ip| !ip.is_unspecified()));
                taken.insert(key, lease.sandbox_id.clone());
            }
        }
        for port in wanted {
            let address = port.host_ip.filter(|ip| !ip.is_unspecified());
            let clash = taken.iter().find(|((protocol, number, other), _)| {
                *protocol == port.protocol as u8
                    && *number == port.host_port
                    && (other.is_none() || address.is_none() || *other == address)
            });
            if let Some((_, sandbox_id)) = clash {
                return Err(cni::Error::PortTaken { port: port.host_port, sandbox_id: sandbox_id.clone() });
            }
        }
        Ok(())
    }

    /// Takes the lease out of sight of the rules; its address stays used until [`release`](Self::release).
    pub fn hide(&mut self, sandbox_id: &str) {
        self.by_sandbox.remove(sandbox_id);
    }

    /// Removes the lease's file and frees its address.
    pub fn release(&mut self, lease: &Lease) -> Result<(), LeaseError> {
        let path = self.path(&lease.sandbox_id);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                self.insert(lease.clone());
                return Err(LeaseError::Remove { path, source });
            }
            _ => {}
        }
        self.by_sandbox.remove(&lease.sandbox_id);
        self.used.remove(&lease.address);
        Ok(())
    }

    /// Forgets everything and removes the directory.
    pub fn remove_all(&mut self) -> Result<(), LeaseError> {
        for lease in std::mem::take(&mut self.by_sandbox).into_values() {
            self.release(&lease)?;
        }
        match fs::remove_dir_all(&self.directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(LeaseError::Remove { path: self.directory.clone(), source })
            }
            _ => Ok(()),
        }
    }

    fn free(&mut self) -> Option<IpAddr> {
        let last = last_pod(self.range);
        let count = last.checked_sub(FIRST_POD)? + 1;
        let start = if self.cursor > last { FIRST_POD } else { self.cursor };
        // At most as many steps as there are leases, plus one.
        let tries = count.min(self.used.len() as u128 + 1);
        let found = (0..tries).find_map(|step| {
            let number = FIRST_POD + (start - FIRST_POD + step) % count;
            let address = nth(self.range, number)?;
            (!self.used.contains(&address)).then_some((number, address))
        });
        let (number, address) = found?;
        self.cursor = number + 1;
        Some(address)
    }

    fn insert(&mut self, lease: Lease) {
        self.used.insert(lease.address);
        self.by_sandbox.insert(lease.sandbox_id.clone(), lease);
    }

    fn write(&self, lease: &Lease) -> Result<(), LeaseError> {
        let path = self.path(&lease.sandbox_id);
        let draft = path.with_extension("draft");
        let write = || {
            fs::create_dir_all(&self.directory)?;
            fs::write(&draft, serde_json::to_vec(lease)?)?;
            fs::rename(&draft, &path)
        };
        write().map_err(|source| LeaseError::Write { path: path.clone(), source })
    }

    fn path(&self, sandbox_id: &str) -> PathBuf {
        self.directory.join(format!("{sandbox_id}.json"))
    }
}

/// Offsets 0 and 1 are the network's own address and the gateway.
const FIRST_POD: u128 = 2;

/// The first address of a range that has room for a gateway and a pod.
pub fn gateway(range: IpNet) -> Option<IpAddr> {
    if last_pod(range) < FIRST_POD { None } else { nth(range, 1) }
}

/// The name of the host's end of a sandbox's link.
pub fn link_name(sandbox_id: &str) -> String {
    // FNV-1a: the name must be the same for ever, and the kernel allows 15 bytes.
    let hash = sandbox_id.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{}{:011x}", crate::device::PREFIX, hash >> 20)
}

fn nth(range: IpNet, number: u128) -> Option<IpAddr> {
    match range.network() {
        IpAddr::V4(base) => {
            Some(Ipv4Addr::from(u32::from(base).checked_add(number.try_into().ok()?)?).into())
        }
        IpAddr::V6(base) => Some(Ipv6Addr::from(u128::from(base).checked_add(number)?).into()),
    }
}

fn offset(range: IpNet, address: IpAddr) -> Option<u128> {
    match (range.network(), address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            u32::from(address).checked_sub(base.into()).map(u128::from)
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => u128::from(address).checked_sub(base.into()),
        _ => None,
    }
}

/// The last usable offset: IPv4 keeps its broadcast address free.
fn last_pod(range: IpNet) -> u128 {
    let bits = range.max_prefix_len() - range.prefix_len();
    let size = 1u128.checked_shl(bits.into()).unwrap_or(u128::MAX);
    size.saturating_sub(if range.addr().is_ipv4() { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::Protocol;

    fn pod(id: &str) -> PodRef {
        PodRef { sandbox_id: id.to_owned(), ..PodRef::default() }
    }

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_distinct_rest_after_use_and_run_out() {
        let directory = tempfile::tempdir().unwrap();
        let mut leases = Leases::load(directory.path(), range("10.1.0.0/29")).unwrap();
        let take =
            |leases: &mut Leases, id: &str| leases.take(&pod(id)).map(|(lease, _)| lease.address.to_string());
        for (id, address) in [("a", "10.1.0.2"), ("b", "10.1.0.3"), ("a", "10.1.0.2"), ("c", "10.1.0.4")] {
            assert_eq!(take(&mut leases, id).unwrap(), address);
        }
        let lease = leases.get("a").unwrap().clone();
        leases.release(&lease).unwrap();
        assert_eq!(take(&mut leases, "d").unwrap(), "10.1.0.5", "the freed address rests");
        assert_eq!(take(&mut leases, "e").unwrap(), "10.1.0.6");
        assert_eq!(take(&mut leases, "f").unwrap(), "10.1.0.2");
        assert!(matches!(leases.take(&pod("g")), Err(cni::Error::Exhausted { .. })));
    }

    #[test]
    fn a_restart_finds_the_same_leases_and_a_damaged_file_stops_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut leases = Leases::load(directory.path(), range("10.1.0.0/24")).unwrap();
        let (before, is_new) = leases.take(&pod("a")).unwrap();
        assert!(is_new);
        fs::write(directory.path().join("broken.json"), b"{").unwrap();
        let mut again = Leases::load(directory.path(), range("10.1.0.0/24")).unwrap();
        assert_eq!(again.take(&pod("a")).unwrap(), (before, false));
        assert_eq!(again.take(&pod("b")).unwrap().0.address.to_string(), "10.1.0.3");
    }

    #[test]
    fn a_host_port_clashes_only_on_a_common_address_and_protocol() {
        let directory = tempfile::tempdir().unwrap();
        let mut leases = Leases::load(directory.path(), range("10.1.0.0/24")).unwrap();
        let port = |protocol, ip: Option<&str>| PortMapping {
            protocol,
            container_port: 80,
            host_port: 8080,
            host_ip: ip.map(|ip| ip.parse().unwrap()),
        };
        let held = PodRef { host_ports: vec![port(Protocol::Tcp, Some("10.0.0.1"))], ..pod("a") };
        leases.take(&held).unwrap();
        let cases = [
            (port(Protocol::Tcp, Some("10.0.0.1")), true),
            (port(Protocol::Tcp, None), true),
            (port(Protocol::Tcp, Some("0.0.0.0")), true),
            (port(Protocol::Tcp, Some("10.0.0.2")), false),
            (port(Protocol::Udp, Some("10.0.0.1")), false),
        ];
        for (wanted, clashes) in cases {
            assert_eq!(
                leases.check_ports("b", std::slice::from_ref(&wanted)).is_err(),
                clashes,
                "{wanted:?}"
            );
            assert!(leases.check_ports("a", &[wanted]).is_ok(), "a pod does not clash with itself");
        }
    }

    #[test]
    fn a_range_without_room_has_no_gateway() {
        assert_eq!(gateway(range("10.1.2.0/23")).unwrap().to_string(), "10.1.2.1");
        assert_eq!(gateway(range("10.1.0.4/30")).unwrap().to_string(), "10.1.0.5");
        assert_eq!(gateway(range("10.1.0.0/31")), None);
        assert_eq!(gateway(range("fd00::/64")).unwrap().to_string(), "fd00::1");
        assert!(link_name("x").len() <= 15);
    }
}
