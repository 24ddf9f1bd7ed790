//! The node's lease in kube-node-lease: proof of life, cheap enough to give every ten seconds.

use std::time::Duration;

use client::resources;
use jiff::Timestamp;
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::warn;

use super::Known;
use crate::host::SharedHost;

const NAMESPACE: &str = "kube-node-lease";
const RETRY: Duration = Duration::from_millis(200);
const RETRY_LONGEST: Duration = Duration::from_secs(7);

/// Renews the lease until the stop.
pub async fn renew(host: SharedHost, known: watch::Receiver<Known>, stop: Stop) {
    let interval = host.config.node_lease_duration / 4;
    let mut lease: Option<Value> = None;
    let mut pause = RETRY;
    let Some(Some(uid)) = stop.or(super::uid_of(known)).await else { return };
    loop {
        let wait = match write(&host, &mut lease, &uid).await {
            Ok(()) => {
                pause = RETRY;
                interval
            }
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "cannot renew the node's lease");
                // Someone else wrote it, or it is gone: begin from what the server has.
                lease = None;
                pause = (pause * 2).min(RETRY_LONGEST);
                pause
            }
        };
        if stop.or(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

async fn write(host: &SharedHost, lease: &mut Option<Value>, node_uid: &str) -> Result<(), client::Error> {
    let api = host.config.client.api(&resources::LEASES).within(NAMESPACE);
    let name = &host.config.node_name;
    let renew_time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
    if lease.is_none() {
        *lease = api.find(name).await?;
    }
    let written = match lease.take() {
        Some(mut known) => {
            known["spec"]["renewTime"] = json!(renew_time);
            known["spec"]["holderIdentity"] = json!(name);
            known["spec"]["leaseDurationSeconds"] = json!(host.config.node_lease_duration.as_secs());
            api.replace(name, &known).await?
        }
        None => {
            let fresh = json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": name, "namespace": NAMESPACE,
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
                },
                "spec": {
                    "holderIdentity": name, "renewTime": renew_time,
                    "leaseDurationSeconds": host.config.node_lease_duration.as_secs(),
                },
            });
            api.create(&fresh).await?
        }
    };
    *lease = Some(written);
    Ok(())
}
