//! What a cluster has of its host: names that no other cluster has, and address ranges that nobody else uses.
//!
//! Names follow from the data directory: the usual one has the plain names, any other adds a few digits of its path's digest.
//! Ranges are chosen once, when the cluster is made, and kept with its data: Services and pods have addresses of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::{Context, bail};
use ipnet::{IpNet, Ipv4Net};
use netlink::route::Routing;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Layout;

/// Pods of all nodes; each node gets a part of it with this prefix.
const NODE_PREFIX: u8 = 23;
const PODS: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 128, 0, 0), 14);
const SERVICES: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(172, 30, 0, 0), 16);
/// The smallest ranges: a gateway and a few pods; the API's Service is the first address, the DNS' the tenth.
const LONGEST_PODS: u8 = 28;
const LONGEST_SERVICES: u8 = 28;

/// The address ranges of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ranges {
    #[serde(rename = "podCIDR")]
    pub pods: Ipv4Net,
    #[serde(rename = "serviceCIDR")]
    pub services: Ipv4Net,
}

/// What the user wants of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    pub pods: Option<Ipv4Net>,
    pub services: Option<Ipv4Net>,
}

impl Default for Ranges {
    fn default() -> Self {
        Self { pods: PODS, services: SERVICES }
    }
}

impl Ranges {
    /// The length of one node's prefix.
    pub fn node_prefix(&self) -> u8 {
        NODE_PREFIX.max(self.pods.prefix_len())
    }

    /// The pods of the first node.
    pub fn first_node(&self) -> Ipv4Net {
        Ipv4Net::new_assert(self.pods.network(), self.node_prefix())
    }

    /// The Service of the API server.
    pub fn api(&self) -> Ipv4Addr {
        nth(self.services, 1)
    }

    /// The Service of the cluster's DNS.
    pub fn dns(&self) -> Ipv4Addr {
        nth(self.services, 10)
    }
}

fn nth(range: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(range.network()).saturating_add(number))
}

/// Names of things that all programs of a host share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The device with the gateway's address, and the nftables table of the pod network.
    pub bridge: String,
    /// The nftables table of network policies.
    pub policy_table: String,
    /// The nftables table of Services.
    pub service_table: String,
    /// The control group of all pods.
    pub cgroup: String,
}

impl Names {
    pub fn of(layout: &Layout) -> Self {
        let is_usual = layout.root() == Layout::default_root(true, None);
        let id = (!is_usual).then(|| {
            let digest = Sha256::digest(layout.root().as_os_str().as_encoded_bytes());
            format!("{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2])
        });
        let named = |plain: &str, stem: &str| match &id {
            None => plain.to_owned(),
            Some(id) => format!("{stem}-{id}"),
        };
        let bridge = named("kelson0", "kelson");
        Self {
            policy_table: format!("{bridge}-policy"),
            bridge,
            service_table: named("kube-proxy", "kube-proxy"),
            cgroup: named("kelson", "kelson"),
        }
    }
}

/// All that a cluster has of its host.
#[derive(Clone, Debug)]
pub struct Place {
    pub names: Names,
    pub ranges: Ranges,
}

impl Place {
    /// That of the cluster in a data directory, chosen now if it has none yet.
    pub fn ensure(layout: &Layout, wish: Wish) -> anyhow::Result<Self> {
        Ok(Self { names: Names::of(layout), ranges: ensure(layout, wish)? })
    }

    /// That of a cluster that was made before.
    pub fn kept(layout: &Layout) -> anyhow::Result<Self> {
        Ok(Self { names: Names::of(layout), ranges: read(&layout.ranges())?.unwrap_or_default() })
    }
}

fn ensure(layout: &Layout, wish: Wish) -> anyhow::Result<Ranges> {
    let kept = read(&layout.ranges())?;
    // A cluster from before ranges were written down has the usual ones.
    let kept = kept.or_else(|| layout.store().exists().then(Ranges::default));
    if let Some(kept) = kept {
        let pairs = [("pod", wish.pods, kept.pods), ("Service", wish.services, kept.services)];
        for (what, wanted, has) in pairs {
            if let Some(wanted) = wanted.filter(|wanted| wanted.trunc() != has) {
                bail!(
                    "the cluster in {} has the {what} range {has}, which cannot become {wanted}; remove it with \
                     `kelson down --purge` or use another --data-dir",
                    layout.root().display()
                );
            }
        }
        return Ok(kept);
    }
    let ranges = choose(wish, &in_use(&Names::of(layout).bridge)?)?;
    let path = layout.ranges();
    let fresh = path.with_extension("json.new");
    fs::write(&fresh, serde_json::to_vec_pretty(&ranges)?)
        .and_then(|()| fs::rename(&fresh, &path))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ranges)
}

fn read(path: &Path) -> anyhow::Result<Option<Ranges>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(
            serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged", path.display()))?,
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Networks that this host has or knows a way to, but for our own device's.
fn in_use(own: &str) -> anyhow::Result<Vec<Ipv4Net>> {
    let routing = Routing::open().context("cannot look at the host's networks")?;
    let own = routing.link(own)?.map(|link| link.index);
    let addresses = routing.addresses()?.into_iter().filter(|(index, _)| Some(*index) != own);
    let mut used: Vec<IpNet> = addresses.map(|(_, net)| net).collect();
    used.extend(
        routing
            .routes()?
            .into_iter()
            .filter(|route| route.index != own || own.is_none())
            .map(|route| route.to),
    );
    let v4 = used.into_iter().filter_map(|net| match net {
        IpNet::V4(net) if net.prefix_len() > 0 => Some(net),
        _ => None,
    });
    Ok(v4.collect())
}

fn choose(wish: Wish, used: &[Ipv4Net]) -> anyhow::Result<Ranges> {
    let pods = match wish.pods {
        Some(range) => wanted("--pod-cidr", range, LONGEST_PODS, used)?,
        None => {
            let others = (0..64u8).map(|step| {
                Ipv4Net::new_assert(Ipv4Addr::new(10, step.wrapping_mul(4).wrapping_add(128), 0, 0), 14)
            });
            let avoid = wish.services.map(|services| services.trunc());
            free(others, used, avoid).context("no range for pods is free; choose one with --pod-cidr")?
        }
    };
    let services = match wish.services {
        Some(range) => wanted("--service-cidr", range, LONGEST_SERVICES, used)?,
        None => {
            let others =
                (16..=30u8).rev().map(|second| Ipv4Net::new_assert(Ipv4Addr::new(172, second, 0, 0), 16));
            free(others, used, Some(pods))
                .context("no range for Services is free; choose one with --service-cidr")?
        }
    };
    if overlap(pods, services) {
        bail!(
            "the pod range {pods} and the Service range {services} overlap; choose others with --pod-cidr and --service-cidr"
        );
    }
    Ok(Ranges { pods, services })
}

fn wanted(flag: &str, range: Ipv4Net, longest: u8, used: &[Ipv4Net]) -> anyhow::Result<Ipv4Net> {
    if range.prefix_len() > longest || range.prefix_len() < 8 {
        bail!("{flag} {range}: the prefix must be between /8 and /{longest}");
    }
    let range = range.trunc();
    // A wider network around the range is no reason: only neighbours inside it become invisible.
    if let Some(taken) = used.iter().find(|net| range.contains(&net.addr())) {
        bail!("{flag} {range} overlaps {taken}, which this host uses; choose another");
    }
    Ok(range)
}

/// The first range that meets no network of the host, or else only wider ones.
fn free(
    mut candidates: impl Iterator<Item = Ipv4Net> + Clone,
    used: &[Ipv4Net],
    avoid: Option<Ipv4Net>,
) -> Option<Ipv4Net> {
    let apart = |range: &Ipv4Net| avoid.is_none_or(|avoid| !overlap(*range, avoid));
    let alone = |range: &Ipv4Net| apart(range) && !used.iter().any(|net| overlap(*range, *net));
    let within = |range: &Ipv4Net| apart(range) && !used.iter().any(|net| range.contains(&net.addr()));
    candidates.clone().find(alone).or_else(|| candidates.find(within))
}

fn overlap(one: Ipv4Net, other: Ipv4Net) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// The usual port of the kubelet, or any that is free.
pub fn kubelet_port(address: IpAddr) -> anyhow::Result<u16> {
    const USUAL: u16 = 10250;
    let bind = |port| std::net::TcpListener::bind((address, port));
    let listener = bind(USUAL).or_else(|_| bind(0)).with_context(|| format!("{address} has no free port"))?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_are_the_usual_ones_where_they_are_free() {
        assert_eq!(choose(Wish::default(), &[net("192.168.1.5/24")]).unwrap(), Ranges::default());
        let other = choose(Wish::default(), &[net("10.128.0.0/23"), net("172.30.0.0/16")]).unwrap();
        assert_eq!(other, Ranges { pods: net("10.132.0.0/14"), services: net("172.29.0.0/16") });
        assert_eq!((other.api(), other.dns()), ([172, 29, 0, 1].into(), [172, 29, 0, 10].into()));
        assert_eq!(other.first_node(), net("10.132.0.0/23"));
        let wide = choose(Wish::default(), &[net("10.0.0.7/8")]).unwrap();
        assert_eq!(wide.pods, PODS, "a network that is everywhere is no reason to have no pods");
    }

    #[test]
    fn wishes_are_checked() {
        let wish = |pods: &str, services: &str| Wish { pods: Some(net(pods)), services: Some(net(services)) };
        let chosen = choose(wish("192.168.8.0/24", "192.168.9.0/24"), &[]).unwrap();
        assert_eq!((chosen.first_node(), chosen.node_prefix()), (net("192.168.8.0/24"), 24));
        for (pods, services, problem) in [
            ("10.1.0.0/30", "10.2.0.0/16", "between"),
            ("10.1.0.0/16", "10.1.2.0/24", "overlap"),
            ("10.1.0.0/16", "10.9.0.0/16", "this host uses"),
        ] {
            let refusal = choose(wish(pods, services), &[net("10.9.1.1/24")]).unwrap_err().to_string();
            assert!(refusal.contains(problem), "{refusal}");
        }
    }

    #[test]
    fn every_directory_has_names_of_its_own() {
        let usual = Names::of(&Layout::new("/var/lib/kelson"));
        assert_eq!((usual.bridge.as_str(), usual.service_table.as_str()), ("kelson0", "kube-proxy"));
        let (one, other) = (Names::of(&Layout::new("/a")), Names::of(&Layout::new("/b")));
        assert_ne!(one, other);
        assert!(one.bridge.len() <= 15, "the kernel allows no more");
    }
}
