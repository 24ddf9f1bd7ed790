//! `kelson pod-network`: the pod network of a node as a program, with its policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use lifecycle::Stop;
use network_policy::{Attached, Frame, Guard, Policies};
use pod_network::PodNetwork;
use pod_network::agent::{Guarded, PodNetworkArgs};

pub async fn run(args: PodNetworkArgs, stop: Stop) -> anyhow::Result<()> {
    Ok(args.run(stop, guard).await?)
}

fn guard(parts: Guarded<'_>) -> Arc<dyn cni::Network> {
    let config = network_policy::Config {
        node_name: parts.args.node_name.clone(),
        frame: Frame { table: format!("{}-policy", parts.args.bridge), ranges: vec![parts.pod_cidr] },
    };
    let policies = Policies::start(config, parts.client, attached(&parts.network), parts.tasks);
    Arc::new(Guard::new(policies, parts.network))
}

/// The pods that are connected already, as policies know them.
pub fn attached(network: &PodNetwork) -> BTreeMap<String, Attached> {
    let attached = |lease: pod_network::Lease| Attached {
        namespace: lease.namespace,
        name: lease.name,
        uid: lease.uid,
        addresses: vec![lease.address],
    };
    network.leases().into_iter().map(|lease| (lease.sandbox_id.clone(), attached(lease))).collect()
}
