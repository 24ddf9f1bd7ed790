//! The Service `kubernetes` and who stands behind it.
//!
//! Servers that share a store each keep a key with a lease in it, where upstream's servers keep theirs; the endpoints are
//! the addresses of all keys. A server that stops takes its key back, one that dies loses it with the lease.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use bytes::Bytes;
use etcd::{ListOptions, Precondition};
use serde_json::{Value, json};
use tracing::warn;

use crate::bootstrap::reconcile;
use crate::config::Advertise;
use crate::server::ApiServer;
use crate::settings::Reconciler;
use crate::verbs::read::store_failure;

/// Where the keys of servers stand.
const LEASES: &str = "/registry/masterleases/";
/// How long a server may be silent.
const TTL_SECONDS: i64 = 15;
/// How often it speaks.
const RENEW: Duration = Duration::from_secs(10);

/// Makes the Service with the first address of the range, and brings its endpoints up to date.
pub async fn look_after(server: &Arc<ApiServer>) -> Result<(), Status> {
    let Some(range) = server.service_cidrs.first() else { return Ok(()) };
    let first = match range.network() {
        std::net::IpAddr::V4(base) => std::net::IpAddr::V4((u32::from(base) + 1).into()),
        std::net::IpAddr::V6(base) => std::net::IpAddr::V6((u128::from(base) + 1).into()),
    };
    let port = server.advertise.map(|own| own.port).or(server.secure_port).unwrap_or(6443);
    let node_port = server.settings.service_node_port;
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": first.to_string(),
            "type": if node_port == 0 { "ClusterIP" } else { "NodePort" }, "sessionAffinity": "None",
            "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    });
    if node_port != 0 {
        service["spec"]["ports"][0]["nodePort"] = json!(node_port);
    }
    reconcile(server, "", "services", "default", service, &|present, wanted| {
        let mut new = present.clone();
        if present["spec"]["type"] != wanted["spec"]["type"]
            || present["spec"]["ports"] != wanted["spec"]["ports"]
        {
            new["spec"]["type"] = wanted["spec"]["type"].clone();
            new["spec"]["ports"] = wanted["spec"]["ports"].clone();
        }
        new
    })
    .await?;
    match server.advertise {
        Some(own) => endpoints(server, own).await,
        None => Ok(()),
    }
}

/// Keeps the endpoints up to date while the server runs, if others share the store.
pub fn follow(server: &Arc<ApiServer>) {
    let (Reconciler::Lease, Some(own)) = (server.settings.reconciler, server.advertise) else { return };
    let server = server.clone();
    server.tasks.clone().keep("kubernetes-endpoints", move |stop| {
        let server = server.clone();
        async move {
            while stop.or(tokio::time::sleep(RENEW)).await.is_some() {
                // A server that leaves takes itself out, and must not come back by its own hand.
                if server.is_leaving() {
                    continue;
                }
                if let Err(status) = endpoints(&server, own).await {
                    warn!(error = %status, "cannot look after the endpoints of the kubernetes Service");
                }
            }
        }
    });
}

/// Takes this server out of the endpoints: nobody new shall be sent here.
pub async fn leave(server: &Arc<ApiServer>) {
    let Some(own) = server.advertise else { return };
    let address = own.address.to_string();
    let outcome = match server.settings.reconciler {
        Reconciler::Alone | Reconciler::None => return,
        Reconciler::Count => write(server, own, &|present| without(present, &address)).await,
        Reconciler::Lease => {
            let key = Bytes::from(format!("{LEASES}{address}"));
            let outcome = async {
                let store = server.hub.store();
                store.delete(key, Precondition::None).await.map_err(|error| store_failure(&error))?;
                let others = leases(server).await?;
                write(server, own, &|_| others.clone()).await
            };
            outcome.await
        }
    };
    if let Err(status) = outcome {
        warn!(error = %status, "cannot take this server out of the kubernetes Service");
    }
}

fn without(present: Vec<String>, own: &str) -> Vec<String> {
    present.into_iter().filter(|one| one != own).collect()
}

async fn endpoints(server: &Arc<ApiServer>, own: Advertise) -> Result<(), Status> {
    let address = own.address.to_string();
    match server.settings.reconciler {
        Reconciler::None => Ok(()),
        Reconciler::Alone => write(server, own, &|_| vec![address.clone()]).await,
        Reconciler::Count => {
            let with = |present: Vec<String>| {
                let mut all = without(present, &address);
                all.push(address.clone());
                all
            };
            write(server, own, &with).await
        }
        Reconciler::Lease => {
            renew(server, &address).await?;
            let all = leases(server).await?;
            if all.is_empty() {
                return Err(Status::internal("no server has a lease, not even this one"));
            }
            write(server, own, &|_| all.clone()).await
        }
    }
}

async fn renew(server: &Arc<ApiServer>, address: &str) -> Result<(), Status> {
    let store = server.hub.store();
    let failed = |error| store_failure(&error);
    let lease = store.grant_lease(TTL_SECONDS).await.map_err(failed)?;
    // As upstream's servers write it, so that they can read it.
    let value = json!({
        "kind": "Endpoints", "apiVersion": "v1", "metadata": {}, "subsets": [{"addresses": [{"ip": address}]}],
    });
    let key = Bytes::from(format!("{LEASES}{address}"));
    store.put(key, Bytes::from(value.to_string()), lease, Precondition::None).await.map_err(failed)?;
    Ok(())
}

async fn leases(server: &Arc<ApiServer>) -> Result<Vec<String>, Status> {
    let listing = server.hub.store().list(LEASES.as_bytes(), ListOptions::default()).await;
    let listing = listing.map_err(|error| store_failure(&error))?;
    let keys = listing.items.iter().filter_map(|item| item.key.strip_prefix(LEASES.as_bytes()));
    Ok(keys.map(|key| String::from_utf8_lossy(key).into_owned()).collect())
}

/// Writes the addresses that `decide` makes of the present ones, in both forms.
async fn write(
    server: &Arc<ApiServer>,
    own: Advertise,
    decide: &(dyn Fn(Vec<String>) -> Vec<String> + Send + Sync),
) -> Result<(), Status> {
    let sorted = |present: Vec<String>| {
        let mut all = decide(present);
        all.sort();
        all.dedup();
        all
    };
    let port = json!([{"name": "https", "port": own.port, "protocol": "TCP"}]);
    let subsets = |addresses: Vec<String>| -> Value {
        if addresses.is_empty() {
            return Value::Null;
        }
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!([{"addresses": addresses, "ports": port}])
    };
    let put = |object: &mut Value, field: &str, value: Value| match (value, object.as_object_mut()) {
        (Value::Null, Some(map)) => drop(map.shift_remove(field)),
        (value, _) => object[field] = value,
    };
    let mut object = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
    });
    put(&mut object, "subsets", subsets(sorted(Vec::new())));
    reconcile(server, "", "endpoints", "default", object, &|present, _| {
        let mut new = present.clone();
        put(&mut new, "subsets", subsets(sorted(texts(&present["subsets"][0]["addresses"], "/ip"))));
        new
    })
    .await?;
    let listed = |addresses: Vec<String>| -> Value {
        addresses.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect()
    };
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "kubernetes", "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": if own.address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": listed(sorted(Vec::new())), "ports": port,
    });
    reconcile(server, "discovery.k8s.io", "endpointslices", "default", slice, &|present, wanted| {
        let mut new = present.clone();
        new["endpoints"] = listed(sorted(texts(&present["endpoints"], "/addresses/0")));
        new["ports"] = wanted["ports"].clone();
        new
    })
    .await
}

fn texts(list: &Value, pointer: &str) -> Vec<String> {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|one| one.pointer(pointer)?.as_str()).map(str::to_owned).collect()
}
