//! Taking addresses and ports out of their ranges and giving them back.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use apimachinery::time;
use bytes::Bytes;
use etcd::{Committed, ListOptions, Precondition};
use ipnet::IpNet;
use serde_json::{Value, json};
use tracing::debug;

use super::families::{family, of_family};
use super::text;
use crate::managed;
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

/// Where the taken node ports are kept.
pub(super) const PORT_PREFIX: &str = "/registry/ranges/servicenodeports/";
/// Who the taken addresses say they belong to.
pub(super) const MANAGER: &str = "ipallocator.k8s.io";
/// How many free addresses or ports are looked for before giving up.
const TRIES: u32 = 4096;

/// The part of a range that is handed out without being asked for by address: its lower end is left to those who ask.
fn offsets(range: &IpNet) -> (u128, u128) {
    let bits = range.max_prefix_len() - range.prefix_len();
    let size: u128 = if bits >= 64 { 1 << 64 } else { 1 << bits };
    // The network address itself and the broadcast address of IPv4 are no hosts.
    let last = if matches!(range, IpNet::V4(_)) { size.saturating_sub(2) } else { size.saturating_sub(1) };
    let reserved = (size / 16).clamp(16, 256).min(last);
    (if reserved >= last { 1 } else { reserved }, last)
}

fn address_at(range: &IpNet, offset: u128) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from(u32::from(base).wrapping_add(offset as u32))),
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from(u128::from(base).wrapping_add(offset))),
    }
}

impl ApiServer {
    /// How many node ports Services have, and how many there are.
    pub(crate) async fn taken_ports(&self) -> Option<(u64, u64)> {
        let options = ListOptions { keys_only: true, ..ListOptions::default() };
        let taken = self.hub.store().list(PORT_PREFIX.as_bytes(), options).await.ok()?;
        let (first, last) = self.node_ports;
        Some((taken.items.len() as u64, u64::from(last - first) + 1))
    }

    /// The ranges that cluster IPs come from.
    pub(crate) fn service_ranges(&self) -> Vec<IpNet> {
        let mut ranges = self.service_cidrs.clone();
        if let Ok(resource) = self.builtin("networking.k8s.io", "servicecidrs")
            && let Some(cache) = self.hub.cache(&resource.prefix)
        {
            for entry in cache.snapshot(&resource.prefix, 0).entries {
                let object = entry.parse();
                if object.is_terminating() {
                    continue;
                }
                for cidr in object["spec"]["cidrs"].as_array().into_iter().flatten() {
                    if let Ok(range) = text(cidr).parse::<IpNet>()
                        && !ranges.contains(&range)
                    {
                        ranges.push(range);
                    }
                }
            }
        }
        ranges
    }

    /// Takes one address for a Service; false if somebody has it.
    pub(crate) async fn take_address(&self, address: IpAddr, service: &Value) -> Result<bool, Status> {
        let resource = self.builtin("networking.k8s.io", "ipaddresses")?;
        let mut object = json!({
            "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": address.to_string(),
                "uid": self.new_uid(),
                "creationTimestamp": time::seconds(crate::clock::now()),
                "labels": {"ipaddress.kubernetes.io/ip-family": family(&address), "ipaddress.kubernetes.io/managed-by": MANAGER},
            },
            "spec": {"parentRef": {"resource": "services", "namespace": service.namespace(), "name": service.name()}},
        });
        managed::created(&mut object, &resource, "kube-apiserver");
        let key = resource.key("", &address.to_string());
        let put = self.hub.store().put(key, resource.encode(&object), 0, Precondition::Absent).await;
        match put.map_err(|error| store_failure(&error))? {
            Committed::Done { .. } => Ok(true),
            Committed::Conflict { .. } => Ok(false),
        }
    }

    pub(super) async fn take_any_address(
        &self,
        family_name: &str,
        ranges: &[IpNet],
        service: &Value,
        dry_run: bool,
    ) -> Result<IpAddr, Status> {
        let resource = self.builtin("networking.k8s.io", "ipaddresses")?;
        for range in ranges {
            if of_family(range) != family_name {
                continue;
            }
            // Nobody gets what a dry run shows: the address of the range itself stands for any.
            if dry_run {
                return Ok(range.network());
            }
            let (low, high) = offsets(range);
            // The upper part first, from a random place; the lower part when that is full.
            for (from, to) in [(low, high), (1, low)] {
                let width = (to + 1).saturating_sub(from);
                if width == 0 {
                    continue;
                }
                let start = u128::from(u64::from_ne_bytes(self.random_bytes())) % width;
                for step in 0..u128::from(TRIES).min(width) {
                    let address = address_at(range, from + (start + step) % width);
                    if self.cached(&resource, "", &address.to_string()).is_some() {
                        continue;
                    }
                    if self.take_address(address, service).await? {
                        return Ok(address);
                    }
                }
            }
        }
        Err(Status::internal(format!(
            "failed to allocate a serviceIP: no free {family_name} address in the service ranges"
        )))
    }

    pub(super) async fn free_address(&self, address: IpAddr) {
        let Ok(resource) = self.builtin("networking.k8s.io", "ipaddresses") else { return };
        let key = resource.key("", &address.to_string());
        if let Err(error) = self.hub.store().delete(key, Precondition::None).await {
            debug!(%address, error = %telemetry::chain(&error), "cannot give an address back now; repair will");
        }
    }

    pub(super) async fn take_port(&self, port: u16, owner: &str) -> Result<bool, Status> {
        let key = Bytes::from(format!("{PORT_PREFIX}{port}"));
        let put = self.hub.store().put(key, Bytes::from(owner.to_owned()), 0, Precondition::Absent).await;
        Ok(matches!(put.map_err(|error| store_failure(&error))?, Committed::Done { .. }))
    }

    /// Whether somebody has a port, for who only wants to know.
    pub(super) async fn has_port(&self, port: u16) -> Result<bool, Status> {
        let key = format!("{PORT_PREFIX}{port}");
        let (found, _) =
            self.hub.store().get(key.as_bytes(), 0).await.map_err(|error| store_failure(&error))?;
        Ok(found.is_some())
    }

    pub(super) async fn take_any_port(
        &self,
        owner: &str,
        mine: &HashSet<u16>,
        dry_run: bool,
    ) -> Result<u16, Status> {
        let outcome = self.find_port(owner, mine, dry_run).await;
        if !dry_run {
            self.metrics.allocators.port("dynamic", outcome.is_ok());
        }
        outcome
    }

    async fn find_port(&self, owner: &str, mine: &HashSet<u16>, dry_run: bool) -> Result<u16, Status> {
        let (first, last) = self.node_ports;
        let width = u32::from(last - first) + 1;
        // As with addresses, the lower end is left to those who ask for a number.
        let reserved = (width / 32).clamp(16, 128).min(width.saturating_sub(1));
        for (from, to) in [(reserved, width), (0, reserved)] {
            let span = to - from;
            if span == 0 {
                continue;
            }
            let start = self.random_u32() % span;
            for step in 0..span {
                let port = first + (from + (start + step) % span) as u16;
                if mine.contains(&port) {
                    continue;
                }
                if dry_run || self.take_port(port, owner).await? {
                    return Ok(port);
                }
            }
        }
        Err(Status::internal("failed to allocate a nodePort: range is full"))
    }

    pub(super) async fn free_port(&self, port: u16) {
        let key = Bytes::from(format!("{PORT_PREFIX}{port}"));
        if let Err(error) = self.hub.store().delete(key, Precondition::None).await {
            debug!(port, error = %telemetry::chain(&error), "cannot give a port back now; repair will");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_from_the_upper_part() {
        let range: IpNet = "172.30.0.0/16".parse().unwrap();
        let (low, high) = offsets(&range);
        assert_eq!(address_at(&range, low), "172.30.1.0".parse::<IpAddr>().unwrap());
        assert_eq!(address_at(&range, high), "172.30.255.254".parse::<IpAddr>().unwrap());
        let small: IpNet = "10.0.0.0/29".parse().unwrap();
        assert_eq!(offsets(&small), (1, 6));
    }
}
