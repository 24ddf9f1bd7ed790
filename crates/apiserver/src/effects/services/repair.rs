//! What Services have and what is taken, brought back to agreement.

use std::collections::HashMap;
use std::net::IpAddr;

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use apimachinery::time;
use etcd::{ListOptions, Precondition};
use serde_json::{Value, json};
use tracing::{info, warn};

use super::families::family;
use super::pool::{MANAGER, PORT_PREFIX};
use super::{addresses_of, ports_of};
use crate::context::Context;
use crate::server::ApiServer;
use crate::verbs::read::store_failure;

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
    let leaked_ports = taken_ports.items.iter().filter(|item| {
        name_in::<u16>(&item.key, PORT_PREFIX.len()).is_none_or(|port| ports.remove(&port).is_none())
    });
    give_back(server, leaked_ports.filter(|item| item.mod_revision < settled)).await?;
    for (port, owner) in ports {
        server.take_port(port, &owner).await?;
    }
    let leaked_ips = taken_ips.items.iter().filter(|item| {
        let known = name_in::<IpAddr>(&item.key, ips.prefix.len())
            .is_some_and(|address| addresses.remove(&address).is_some());
        !known && item.value.windows(MANAGER.len()).any(|part| part == MANAGER.as_bytes())
    });
    give_back(server, leaked_ips.filter(|item| item.mod_revision < settled)).await?;
    for (address, service) in addresses {
        server.take_address(address, &service).await?;
    }
    Ok(())
}

/// What the rest of a key says.
fn name_in<T: std::str::FromStr>(key: &[u8], prefix: usize) -> Option<T> {
    std::str::from_utf8(key.get(prefix..)?).ok()?.parse().ok()
}

/// Frees what no Service has, unless somebody has taken it meanwhile.
async fn give_back(server: &ApiServer, leaked: impl Iterator<Item = &etcd::KeyValue>) -> Result<(), Status> {
    for item in leaked {
        info!(key = %String::from_utf8_lossy(&item.key), "giving back what no Service has");
        let unchanged = Precondition::ModRevision(item.mod_revision);
        let deleted = server.hub.store().delete(item.key.clone(), unchanged).await;
        deleted.map_err(|error| store_failure(&error))?;
    }
    Ok(())
}
