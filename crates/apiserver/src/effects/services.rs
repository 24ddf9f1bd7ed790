//! Cluster IPs and node ports: taken when a Service is written, unique because each is a key of its own.
//!
//! An address is taken by creating its IPAddress object, a port by creating its key; two servers that choose the
//! same one cannot both succeed. [`repair`] gives back what no Service has and takes what a Service lacks.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use apimachinery::time;
use bytes::Bytes;
use etcd::{Committed, ListOptions, Precondition};
use ipnet::IpNet;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::context::Context;
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

const PORT_PREFIX: &str = "/registry/ranges/servicenodeports/";
const MANAGER: &str = "ipallocator.k8s.io";
/// How many free addresses or ports are looked for before giving up.
const TRIES: u32 = 4096;

/// What a write of a Service took, and what it gives back if it succeeds.
pub struct Taken {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    old: Option<(HashSet<IpAddr>, HashSet<u16>)>,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn cluster_ips(service: &Value) -> Vec<String> {
    let spec = &service["spec"];
    let mut found: Vec<String> =
        spec["clusterIPs"].as_array().into_iter().flatten().map(|one| text(one).to_owned()).collect();
    let first = text(&spec["clusterIP"]);
    if found.is_empty() && !first.is_empty() {
        found.push(first.to_owned());
    }
    found
}

fn addresses_of(service: &Value) -> HashSet<IpAddr> {
    cluster_ips(service).iter().filter_map(|one| one.parse().ok()).collect()
}

fn ports_of(service: &Value) -> HashSet<u16> {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().into_iter().flatten().map(|port| &port["nodePort"]);
    ports
        .chain(std::iter::once(&spec["healthCheckNodePort"]))
        .filter_map(|port| u16::try_from(port.as_u64()?).ok())
        .filter(|port| *port != 0)
        .collect()
}

fn is_headless(service: &Value) -> bool {
    cluster_ips(service).first().is_some_and(|one| one == "None")
}

fn wants_ports(service: &Value) -> bool {
    match text(&service["spec"]["type"]) {
        "NodePort" => true,
        "LoadBalancer" => service["spec"]["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Carries allocated values over when an update leaves them out.
fn inherit(new: &mut Value, old: &Value) {
    let (kind, before) = (text(&new["spec"]["type"]).to_owned(), text(&old["spec"]["type"]).to_owned());
    if kind != "ExternalName" && before != "ExternalName" && cluster_ips(new).is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old["spec"].get(field) {
                new["spec"][field] = value.clone();
            }
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if kind != "ExternalName" && new["spec"][field].is_null() && !old["spec"][field].is_null() {
            new["spec"][field] = old["spec"][field].clone();
        }
    }
    if wants_ports(new) && wants_ports(old) {
        let known: HashMap<(u64, String), u64> = old["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| {
                Some((
                    (port["port"].as_u64()?, text(&port["protocol"]).to_owned()),
                    port["nodePort"].as_u64()?,
                ))
            })
            .collect();
        for port in new.pointer_mut("/spec/ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let key = (port["port"].as_u64().unwrap_or(0), text(&port["protocol"]).to_owned());
            if port["nodePort"].as_u64().unwrap_or(0) == 0
                && let Some(known) = known.get(&key)
            {
                port["nodePort"] = json!(known);
            }
        }
        if new["spec"]["healthCheckNodePort"].is_null()
            && !old["spec"]["healthCheckNodePort"].is_null()
            && needs_health_port(new)
        {
            new["spec"]["healthCheckNodePort"] = old["spec"]["healthCheckNodePort"].clone();
        }
    }
}

fn needs_health_port(service: &Value) -> bool {
    text(&service["spec"]["type"]) == "LoadBalancer"
        && text(&service["spec"]["externalTrafficPolicy"]) == "Local"
}

fn invalid(service: &Value, field: &str, value: Value, why: String) -> Status {
    let mut problems = Problems::new();
    problems.invalid(&Path::new("spec").child(field), value, why);
    Status::invalid("", "Service", service.name(), &problems)
}

fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn of_family(range: &IpNet) -> &'static str {
    if matches!(range, IpNet::V4(_)) { "IPv4" } else { "IPv6" }
}

impl Taken {
    /// Fills in addresses and ports and takes them.
    pub async fn take(
        server: &ApiServer,
        new: &mut Value,
        old: Option<&Value>,
        dry_run: bool,
    ) -> Result<Self, Status> {
        if let Some(old) = old {
            inherit(new, old);
        }
        let mut taken = Self {
            addresses: Vec::new(),
            ports: Vec::new(),
            old: old.map(|old| (addresses_of(old), ports_of(old))),
        };
        if let Err(status) = taken.fill(server, new, dry_run).await {
            taken.undo(server).await;
            return Err(status);
        }
        Ok(taken)
    }

    async fn fill(&mut self, server: &ApiServer, new: &mut Value, dry_run: bool) -> Result<(), Status> {
        if text(&new["spec"]["type"]) == "ExternalName" {
            if let Some(spec) = new["spec"].as_object_mut() {
                for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                    spec.shift_remove(field);
                }
            }
            return Ok(());
        }
        self.fill_addresses(server, new, dry_run).await?;
        if wants_ports(new) {
            self.fill_ports(server, new, dry_run).await?;
        }
        Ok(())
    }

    fn had_address(&self, address: &IpAddr) -> bool {
        self.old.as_ref().is_some_and(|(addresses, _)| addresses.contains(address))
    }

    fn had_port(&self, port: u16) -> bool {
        self.old.as_ref().is_some_and(|(_, ports)| ports.contains(&port))
    }

    async fn fill_addresses(
        &mut self,
        server: &ApiServer,
        new: &mut Value,
        dry_run: bool,
    ) -> Result<(), Status> {
        let headless = is_headless(new);
        let mut given: Vec<IpAddr> = Vec::new();
        if !headless {
            for one in cluster_ips(new).iter().filter(|one| !one.is_empty()) {
                given.push(one.parse().map_err(|_| {
                    invalid(
                        new,
                        "clusterIPs",
                        json!(cluster_ips(new)),
                        "must be a valid IP address".to_owned(),
                    )
                })?);
            }
        }
        let ranges = server.service_ranges();
        // Who lists the addresses by hand may list both families.
        if headless
            && new["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty)
            && new["spec"]["ipFamilyPolicy"].is_null()
        {
            new["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        }
        let families = families(new, &given, &ranges);
        if new["spec"]["ipFamilies"].as_array().is_none_or(Vec::is_empty) {
            new["spec"]["ipFamilies"] = json!(families);
        }
        if new["spec"]["ipFamilyPolicy"].is_null() {
            new["spec"]["ipFamilyPolicy"] = json!("SingleStack");
        }
        if headless {
            new["spec"]["clusterIP"] = json!("None");
            new["spec"]["clusterIPs"] = json!(["None"]);
            return Ok(());
        }
        let mut addresses = Vec::new();
        for family_name in &families {
            let wanted = given.iter().find(|one| family(one) == *family_name).copied();
            let address = match wanted {
                Some(address) if self.had_address(&address) => address,
                Some(address) => {
                    if !ranges.iter().any(|range| range.contains(&address)) {
                        let why = format!(
                            "failed to allocate IP {address}: the provided network does not match the current range"
                        );
                        return Err(invalid(new, "clusterIPs", json!(cluster_ips(new)), why));
                    }
                    if !dry_run {
                        let began = Instant::now();
                        let free = server.take_address(address, new).await;
                        let range = ranges.iter().find(|range| range.contains(&address));
                        server.metrics.allocators.address(range, "static", matches!(free, Ok(true)), began);
                        if !free? {
                            let why =
                                format!("failed to allocate IP {address}: provided IP is already allocated");
                            return Err(invalid(new, "clusterIPs", json!(cluster_ips(new)), why));
                        }
                        self.addresses.push(address);
                    }
                    address
                }
                None => {
                    let began = Instant::now();
                    let address = server.take_any_address(family_name, &ranges, new, dry_run).await;
                    if !dry_run {
                        let inside = |range: &&IpNet| match &address {
                            Ok(address) => range.contains(address),
                            Err(_) => of_family(range) == *family_name,
                        };
                        let range = ranges.iter().find(inside);
                        server.metrics.allocators.address(range, "dynamic", address.is_ok(), began);
                        self.addresses.extend(&address);
                    }
                    address?
                }
            };
            addresses.push(address.to_string());
        }
        new["spec"]["clusterIP"] = json!(addresses.first());
        new["spec"]["clusterIPs"] = json!(addresses);
        Ok(())
    }

    async fn fill_ports(&mut self, server: &ApiServer, new: &mut Value, dry_run: bool) -> Result<(), Status> {
        let owner = format!("{}/{}", new.namespace(), new.name());
        let mut mine: HashSet<u16> = HashSet::new();
        let (first, last) = server.node_ports;
        // Given ones first, so that none of them is handed out to another port of the same Service.
        for port in ports_of(new) {
            if self.had_port(port) {
                mine.insert(port);
                continue;
            }
            if !(first..=last).contains(&port) {
                let why = format!(
                    "provided port is not in the valid range. The range of valid ports is {first}-{last}"
                );
                return Err(invalid_port(new, port, why));
            }
            if !dry_run {
                let free = server.take_port(port, &owner).await;
                server.metrics.allocators.port("static", matches!(free, Ok(true)));
                if !free? {
                    return Err(invalid_port(new, port, "provided port is already allocated".to_owned()));
                }
                self.ports.push(port);
            }
            mine.insert(port);
        }
        let mut by_number: HashMap<u64, u16> = HashMap::new();
        let mut ports = new["spec"]["ports"].as_array().cloned().unwrap_or_default();
        for port in &mut ports {
            let number = port["port"].as_u64().unwrap_or(0);
            let present = port["nodePort"].as_u64().unwrap_or(0) as u16;
            if present != 0 {
                by_number.insert(number, present);
                continue;
            }
            // The same port over TCP and UDP gets the same node port.
            let chosen = match by_number.get(&number) {
                Some(known) => *known,
                None => {
                    let chosen = server.take_any_port(&owner, &mine, dry_run).await?;
                    if !dry_run {
                        self.ports.push(chosen);
                    }
                    mine.insert(chosen);
                    by_number.insert(number, chosen);
                    chosen
                }
            };
            port["nodePort"] = json!(chosen);
        }
        new["spec"]["ports"] = Value::Array(ports);
        if needs_health_port(new) && new["spec"]["healthCheckNodePort"].as_u64().unwrap_or(0) == 0 {
            let chosen = server.take_any_port(&owner, &mine, dry_run).await?;
            if !dry_run {
                self.ports.push(chosen);
            }
            new["spec"]["healthCheckNodePort"] = json!(chosen);
        }
        Ok(())
    }

    /// The write happened: what the old Service had and the new one has not goes back.
    pub async fn keep(self, server: &ApiServer, service: &Value) {
        let Some((addresses, ports)) = self.old else { return };
        let (new_addresses, new_ports) = (addresses_of(service), ports_of(service));
        for address in addresses.difference(&new_addresses) {
            server.free_address(*address).await;
        }
        for port in ports.difference(&new_ports) {
            server.free_port(*port).await;
        }
    }

    /// The write did not happen: everything taken goes back.
    pub async fn undo(self, server: &ApiServer) {
        for address in self.addresses {
            server.free_address(address).await;
        }
        for port in self.ports {
            server.free_port(port).await;
        }
    }
}

fn invalid_port(service: &Value, port: u16, why: String) -> Status {
    let mut problems = Problems::new();
    let index = service["spec"]["ports"]
        .as_array()
        .and_then(|ports| ports.iter().position(|one| one["nodePort"] == u64::from(port)))
        .unwrap_or(0);
    let (spec, ports) = (Path::new("spec"), "ports");
    problems.invalid(&spec.child(ports).index(index).child("nodePort"), u64::from(port), why);
    Status::invalid("", "Service", service.name(), &problems)
}

/// The families that a Service gets: as it says, as its addresses are, or the first family of the cluster.
fn families(service: &Value, given: &[IpAddr], ranges: &[IpNet]) -> Vec<&'static str> {
    let mut found: Vec<&'static str> = Vec::new();
    let mut add = |name: &'static str| {
        if !found.contains(&name) {
            found.push(name);
        }
    };
    for one in service["spec"]["ipFamilies"].as_array().into_iter().flatten() {
        add(if one == "IPv6" { "IPv6" } else { "IPv4" });
    }
    given.iter().for_each(|one| add(family(one)));
    if found.is_empty() {
        found.push(ranges.first().map_or("IPv4", of_family));
    }
    if matches!(text(&service["spec"]["ipFamilyPolicy"]), "PreferDualStack" | "RequireDualStack") {
        for range in ranges {
            if !found.contains(&of_family(range)) {
                found.push(of_family(range));
            }
        }
    }
    // Addresses that others list by hand need no range of ours.
    let by_hand = service["spec"]["clusterIP"] == "None"
        && service["spec"]["selector"].as_object().is_none_or(serde_json::Map::is_empty);
    if by_hand && service["spec"]["ipFamilyPolicy"] == "RequireDualStack" && found.len() == 1 {
        found.push(if found[0] == "IPv4" { "IPv6" } else { "IPv4" });
    }
    found
}

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
        let object = json!({
            "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
            "metadata": {
                "name": address.to_string(),
                "uid": self.new_uid(),
                "creationTimestamp": time::seconds(crate::clock::now()),
                "labels": {"ipaddress.kubernetes.io/ip-family": family(&address), "ipaddress.kubernetes.io/managed-by": MANAGER},
            },
            "spec": {"parentRef": {"resource": "services", "namespace": service.namespace(), "name": service.name()}},
        });
        let key = resource.key("", &address.to_string());
        let put = self.hub.store().put(key, resource.encode(&object), 0, Precondition::Absent).await;
        match put.map_err(|error| store_failure(&error))? {
            Committed::Done { .. } => Ok(true),
            Committed::Conflict { .. } => Ok(false),
        }
    }

    async fn take_any_address(
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
                    if dry_run || self.take_address(address, service).await? {
                        return Ok(address);
                    }
                }
            }
        }
        Err(Status::internal(format!(
            "failed to allocate a serviceIP: no free {family_name} address in the service ranges"
        )))
    }

    async fn free_address(&self, address: IpAddr) {
        let Ok(resource) = self.builtin("networking.k8s.io", "ipaddresses") else { return };
        let key = resource.key("", &address.to_string());
        if let Err(error) = self.hub.store().delete(key, Precondition::None).await {
            debug!(%address, error = %telemetry::chain(&error), "cannot give an address back now; repair will");
        }
    }

    async fn take_port(&self, port: u16, owner: &str) -> Result<bool, Status> {
        let key = Bytes::from(format!("{PORT_PREFIX}{port}"));
        let put = self.hub.store().put(key, Bytes::from(owner.to_owned()), 0, Precondition::Absent).await;
        Ok(matches!(put.map_err(|error| store_failure(&error))?, Committed::Done { .. }))
    }

    async fn take_any_port(&self, owner: &str, mine: &HashSet<u16>, dry_run: bool) -> Result<u16, Status> {
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

    async fn free_port(&self, port: u16) {
        let key = Bytes::from(format!("{PORT_PREFIX}{port}"));
        if let Err(error) = self.hub.store().delete(key, Precondition::None).await {
            debug!(port, error = %telemetry::chain(&error), "cannot give a port back now; repair will");
        }
    }
}

/// Gives back what a removed Service had.
pub async fn release_all(server: &ApiServer, service: &Value) {
    for address in addresses_of(service) {
        server.free_address(address).await;
    }
    for port in ports_of(service) {
        server.free_port(port).await;
    }
}

/// Takes an address again whose object a client deleted while its Service has it, and says so as upstream's repair does.
pub async fn take_again(server: &ApiServer, ip_address: &Value) {
    let parent = &ip_address["spec"]["parentRef"];
    let (Some(namespace), Some(name)) = (parent["namespace"].as_str(), parent["name"].as_str()) else {
        return;
    };
    let Ok(address) = ip_address.name().parse::<IpAddr>() else { return };
    let Ok(services) = server.builtin("", "services") else { return };
    let Some(service) = server.cached(&services, namespace, name).map(|entry| services.parse(&entry)) else {
        return;
    };
    if !addresses_of(&service).contains(&address) {
        return;
    }
    match server.take_address(address, &service).await {
        Ok(true) => {
            let note = format!("Cluster IP [{}]: {address} is not allocated; repairing", family(&address));
            Box::pin(tell(server, &service, "ClusterIPNotAllocated", "ClusterIPAllocation", &note)).await;
        }
        Ok(false) => {} // somebody was quicker
        Err(status) => warn!(error = %status, %address, "cannot take an address again"),
    }
}

/// Records a warning about a Service.
async fn tell(server: &ApiServer, service: &Value, reason: &str, action: &str, note: &str) {
    const REPORTER: &str = "ipallocator-repair-controller";
    let now = crate::clock::now();
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": format!("{}.{:x}", service.name(), now.as_nanosecond()), "namespace": service.namespace()},
        "eventTime": time::micros(now), "reportingController": REPORTER, "reportingInstance": REPORTER,
        "type": "Warning", "reason": reason, "action": action, "note": note,
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": service.namespace(), "name": service.name(),
            "uid": service.uid(), "resourceVersion": service.resource_version()},
    });
    let Ok(resource) = server.builtin("events.k8s.io", "events") else { return };
    let user = std::sync::Arc::new(crate::user::UserInfo::loopback());
    let context = Context::internal(user, resource, "create", service.namespace(), "");
    if let Err(status) =
        server.create_object(&context, event, &crate::bootstrap::options("kube-apiserver")).await
    {
        warn!(error = %status, "cannot record an event");
    }
}

/// Makes addresses and ports agree with the Services: leaks go back, losses are taken again.
pub async fn repair(server: &ApiServer) -> Result<(), Status> {
    let failed = |error: etcd::StoreError| store_failure(&error);
    // What is taken is read before the Services, so that a Service made in between loses nothing.
    let taken_ports =
        server.hub.store().list(PORT_PREFIX.as_bytes(), ListOptions::default()).await.map_err(failed)?;
    let ips = server.builtin("networking.k8s.io", "ipaddresses")?;
    let taken_ips = server.hub.store().list(&ips.prefix, ListOptions::default()).await.map_err(failed)?;
    let services = server.builtin("", "services")?;
    let stored = server.hub.store().list(&services.prefix, ListOptions::default()).await.map_err(failed)?;
    let mut ports: HashMap<u16, String> = HashMap::new();
    let mut addresses: HashMap<IpAddr, Value> = HashMap::new();
    for item in stored.items {
        let Some(entry) = server.hub.open(&services.prefix, item.key, item.value, item.mod_revision) else {
            continue;
        };
        let service = services.parse(&entry);
        for port in ports_of(&service) {
            ports.insert(port, format!("{}/{}", service.namespace(), service.name()));
        }
        for address in addresses_of(&service) {
            addresses.insert(address, service.clone());
        }
    }
    // A key written in the last moment may belong to a Service that is just being created.
    let settled = stored.revision - 64;
    for item in &taken_ports.items {
        let name = String::from_utf8_lossy(&item.key[PORT_PREFIX.len()..]).into_owned();
        let known = name.parse().ok().is_some_and(|port: u16| ports.remove(&port).is_some());
        if !known && item.mod_revision < settled {
            info!(port = name, "giving back a node port that no Service has");
            server
                .hub
                .store()
                .delete(item.key.clone(), Precondition::ModRevision(item.mod_revision))
                .await
                .map_err(failed)?;
        }
    }
    for (port, owner) in ports {
        server.take_port(port, &owner).await?;
    }
    for item in &taken_ips.items {
        let name = String::from_utf8_lossy(&item.key[ips.prefix.len()..]).into_owned();
        let known = name.parse().ok().is_some_and(|address: IpAddr| addresses.remove(&address).is_some());
        let ours = item.value.windows(MANAGER.len()).any(|part| part == MANAGER.as_bytes());
        if !known && ours && item.mod_revision < settled {
            info!(address = name, "giving back an address that no Service has");
            server
                .hub
                .store()
                .delete(item.key.clone(), Precondition::ModRevision(item.mod_revision))
                .await
                .map_err(failed)?;
        }
    }
    for (address, service) in addresses {
        server.take_address(address, &service).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_keeps_what_it_does_not_mention() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30001}]}});
        let mut new = json!({"spec": {"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}});
        inherit(&mut new, &old);
        assert_eq!(new["spec"]["clusterIP"], "10.0.0.7");
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30001);
        assert!(new["spec"]["ports"][1]["nodePort"].is_null());
    }

    #[test]
    fn addresses_come_from_the_upper_part() {
        let range: IpNet = "172.30.0.0/16".parse().unwrap();
        let (low, high) = offsets(&range);
        assert_eq!(address_at(&range, low), "172.30.1.0".parse::<IpAddr>().unwrap());
        assert_eq!(address_at(&range, high), "172.30.255.254".parse::<IpAddr>().unwrap());
        let small: IpNet = "10.0.0.0/29".parse().unwrap();
        assert_eq!(offsets(&small), (1, 6));
    }

    #[test]
    fn families_follow_what_is_said() {
        let ranges: Vec<IpNet> = vec!["10.0.0.0/16".parse().unwrap(), "fd00::/108".parse().unwrap()];
        let none: [IpAddr; 0] = [];
        assert_eq!(families(&json!({"spec": {}}), &none, &ranges), ["IPv4"]);
        assert_eq!(
            families(&json!({"spec": {"ipFamilyPolicy": "PreferDualStack"}}), &none, &ranges),
            ["IPv4", "IPv6"]
        );
        assert_eq!(families(&json!({"spec": {"ipFamilies": ["IPv6"]}}), &none, &ranges), ["IPv6"]);
    }
}
