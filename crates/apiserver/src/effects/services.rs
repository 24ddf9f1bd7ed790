//! Cluster IPs and node ports: taken when a Service is written, unique because each is a key of its own.
//!
//! An address is taken by creating its IPAddress object, a port by creating its key; two servers that choose the
//! same one cannot both succeed. [`repair`] gives back what no Service has and takes what a Service lacks.

mod families;
mod pool;
mod repair;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use apimachinery::field::{Path, Problems};
use apimachinery::meta::Meta;
use apimachinery::status::Status;
use ipnet::IpNet;
use serde_json::{Value, json};

pub use self::families::judge;
use self::families::{families, family, is_host, of_family};
pub use self::repair::{release_all, repair, take_again};
use crate::server::ApiServer;

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
        // Also who wants no ports gets those that it names.
        if matches!(text(&new["spec"]["type"]), "NodePort" | "LoadBalancer") {
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
                    if !ranges.iter().any(|range| is_host(range, &address)) {
                        let own = ranges.iter().find(|range| of_family(range) == *family_name);
                        let why = match own.filter(|_| dry_run) {
                            Some(range) => format!(
                                "failed to allocate IP {address}: the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
                            ),
                            None => format!(
                                "failed to allocate IP {address}: the provided network does not match the current range"
                            ),
                        };
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
        let health = new["spec"]["healthCheckNodePort"].as_u64();
        let refuse = |port: u16, why: String| {
            if health == Some(u64::from(port)) {
                return Status::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {port}: {why}"
                ));
            }
            invalid_port(new, port, why)
        };
        for port in ports_of(new) {
            if self.had_port(port) {
                mine.insert(port);
                continue;
            }
            if !dry_run && !(first..=last).contains(&port) {
                let why = format!(
                    "provided port is not in the valid range. The range of valid ports is {first}-{last}"
                );
                return Err(refuse(port, why));
            }
            if !dry_run {
                let free = server.take_port(port, &owner).await;
                server.metrics.allocators.port("static", matches!(free, Ok(true)));
                if !free? {
                    return Err(refuse(port, "provided port is already allocated".to_owned()));
                }
                self.ports.push(port);
            } else if server.has_port(port).await? {
                return Err(invalid_port(new, port, "provided port is already allocated".to_owned()));
            }
            mine.insert(port);
        }
        let wanted = wants_ports(new);
        let mut by_number: HashMap<u64, u16> = HashMap::new();
        let mut ports = new["spec"]["ports"].as_array().cloned().unwrap_or_default();
        for port in &mut ports {
            let number = port["port"].as_u64().unwrap_or(0);
            let present = port["nodePort"].as_u64().unwrap_or(0) as u16;
            if present != 0 {
                by_number.insert(number, present);
                continue;
            }
            if !wanted {
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
}
