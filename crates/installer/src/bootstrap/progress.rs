//! `kelson bootstrap progress`: tells `kelson wait-for bootstrap-complete`, through a ConfigMap, that the masters carry
//! the cluster.

use std::time::Duration;

use serde_json::{Value, json};

use super::{BootstrapError, MachineArgs, error_text, until};

/// Says when the masters carry the cluster
#[derive(Debug, clap::Args)]
pub struct ProgressArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Masters that must have an API server, as its operator says
    #[arg(long, env = "MASTERS_TO_COMPLETE", default_value_t = 2)]
    pub masters_to_complete: usize,
}

const FOREVER: Duration = Duration::from_secs(365 * 86400);
const PAUSE: Duration = Duration::from_secs(1);

impl ProgressArgs {
    /// Waits for bootkube and for API servers on masters, then says so.
    pub async fn run(self) -> Result<(), BootstrapError> {
        until("waiting for bootkube", FOREVER, PAUSE, async || match self.machine.is_done() {
            true => Ok(()),
            false => Err("it is not done".to_owned()),
        })
        .await?;
        let client = self.machine.client("progress")?;
        // One master is all there is: bootkube saw its pods. Of several, two must go on when this machine leaves.
        if self.masters_to_complete > 1 {
            const PATH: &str = "/apis/operator.openshift.io/v1/kubeapiservers/cluster";
            until("waiting for API servers on masters", FOREVER, PAUSE, async || {
                let operator = client.get_path::<Value>(PATH).await.map_err(|error| error_text(&error))?;
                let found = installed(&operator);
                let wanted = self.masters_to_complete;
                if found >= wanted { Ok(()) } else { Err(format!("{found} of {wanted} have a revision")) }
            })
            .await?;
        }
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

/// How many masters have a revision of the API server.
fn installed(operator: &Value) -> usize {
    let nodes = operator["status"]["nodeStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    nodes.iter().filter(|node| node["currentRevision"].as_i64().unwrap_or_default() > 0).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_masters_with_a_revision_count() {
        let nodes = json!([{"nodeName": "a", "currentRevision": 3}, {"nodeName": "b", "currentRevision": 0}, {"nodeName": "c"}]);
        assert_eq!(installed(&json!({"status": {"nodeStatuses": nodes}})), 1);
        assert_eq!(installed(&json!({})), 0);
    }
}
