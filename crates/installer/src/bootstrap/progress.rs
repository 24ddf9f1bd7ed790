//! `kelson bootstrap progress`: tells `kelson wait-for bootstrap-complete`, through a ConfigMap, that the masters carry
//! the cluster.

use std::time::Duration;

use serde_json::{Value, json};

use super::cause::not_ready;
use super::{BootstrapError, MachineArgs, error_text, until};

/// Says when the masters carry the cluster
#[derive(Debug, clap::Args)]
pub struct ProgressArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Masters that must be ready
    #[arg(long, env = "MASTERS_TO_COMPLETE", default_value_t = 2)]
    pub masters_to_complete: usize,
}

const FOREVER: Duration = Duration::from_secs(365 * 86400);
const PAUSE: Duration = Duration::from_secs(1);

impl ProgressArgs {
    /// Waits for bootkube and the masters, then says so.
    pub async fn run(self) -> Result<(), BootstrapError> {
        until("waiting for bootkube", FOREVER, PAUSE, async || match self.machine.is_done() {
            true => Ok(()),
            false => Err("it is not done".to_owned()),
        })
        .await?;
        let client = self.machine.client("progress")?;
        let wanted = self.masters_to_complete;
        until("waiting for masters to be ready", FOREVER, PAUSE, async || {
            let path = "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fmaster";
            let list = client.get_path::<Value>(path).await.map_err(|error| error_text(&error))?;
            let nodes = list["items"].as_array().cloned().unwrap_or_default();
            let waiting: Vec<String> = nodes.iter().filter_map(not_ready).collect();
            if nodes.len() - waiting.len() >= wanted { Ok(()) } else { Err(waiting.join("; ")) }
        })
        .await?;
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "bootstrap", "namespace": "kube-system"}, "data": {"status": "complete"},
        });
        until("saying that bootstrapping is complete", FOREVER, PAUSE, async || {
            match client.post_path::<Value>("/api/v1/namespaces/kube-system/configmaps", &object).await {
                Ok(_) => Ok(()),
                Err(error) if error.is_already_exists() => Ok(()),
                Err(error) => Err(error_text(&error)),
            }
        })
        .await?;
        println!("bootstrap is complete");
        Ok(())
    }
}
