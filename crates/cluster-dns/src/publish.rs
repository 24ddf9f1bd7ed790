//! The Service under which pods find this server, and its EndpointSlice.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use client::resources::{ENDPOINT_SLICES, SERVICES};
use client::{Client, Patch};
use lifecycle::Stop;
use serde_json::{Value, json};
use tracing::{info, warn};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
const SLICE: &str = "kube-dns-kelson";
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The Service's manifest.
pub fn service(cluster_ip: IpAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
        },
        "spec": {
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    })
}

/// The slice's manifest: the addresses on which the server listens.
pub fn endpoint_slice(listen: &[SocketAddr]) -> Value {
    let port = listen.first().map_or(53, SocketAddr::port);
    let reachable =
        listen.iter().filter(|address| !address.ip().is_loopback() && !address.ip().is_unspecified());
    let endpoints: Vec<Value> = reachable
        .map(|address| json!({"addresses": [address.ip()], "conditions": {"ready": true, "serving": true}}))
        .collect();
    let is_v6 = listen.first().is_some_and(SocketAddr::is_ipv6);
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": SLICE,
            "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": "cluster-dns.kelson.io",
            },
        },
        "addressType": if is_v6 { "IPv6" } else { "IPv4" },
        "ports": [
            {"name": "dns", "port": port, "protocol": "UDP"},
            {"name": "dns-tcp", "port": port, "protocol": "TCP"},
        ],
        "endpoints": endpoints,
    })
}

/// Sees to it that both exist, trying until they do.
pub async fn publish(client: Client, cluster_ip: IpAddr, listen: Vec<SocketAddr>, stop: Stop) {
    let mut pause = Duration::from_millis(100);
    while let Some(outcome) = stop.or(attempt(&client, cluster_ip, &listen)).await {
        match outcome {
            Ok(()) => {
                info!(service = %format_args!("{NAMESPACE}/{NAME}"), %cluster_ip, "cluster DNS published");
                // The task must not end before the stop: whoever keeps it would start it again.
                return stop.requested().await;
            }
            Err(error) => warn!(error = %telemetry::chain(&error), "cluster DNS is not published yet"),
        }
        stop.or(tokio::time::sleep(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempt(client: &Client, cluster_ip: IpAddr, listen: &[SocketAddr]) -> Result<(), client::Error> {
    let services = client.api(&SERVICES).within(NAMESPACE);
    // A Service that is there is the administrator's; only its absence is ours to mend.
    if services.find::<Value>(NAME).await?.is_none() {
        if_absent(services.create::<Value>(&service(cluster_ip)).await)?;
    }
    let slices = client.api(&ENDPOINT_SLICES).within(NAMESPACE);
    let wanted = endpoint_slice(listen);
    match slices.find::<Value>(SLICE).await? {
        None => if_absent(slices.create::<Value>(&wanted).await),
        Some(found) if found["endpoints"] == wanted["endpoints"] && found["ports"] == wanted["ports"] => {
            Ok(())
        }
        Some(_) => {
            let change = json!({"endpoints": wanted["endpoints"], "ports": wanted["ports"]});
            slices.patch::<Value>(SLICE, Patch::Merge(&change)).await.map(drop)
        }
    }
}

fn if_absent(outcome: Result<Value, client::Error>) -> Result<(), client::Error> {
    match outcome {
        Err(error) if error.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}
