//! `kelson machine-approver`: approves the certificates of machines that somebody made a Machine for, once the bootstrap
//! machine and its approver are gone. What it does not know waits for `oc adm certificate approve`.

pub mod decide;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use client::{Client, Resource, resources};
use controller_runtime::program::{ProgramArgs, ProgramError, Status};
use jiff::Timestamp;
use lifecycle::Stop;
use serde_json::{Value, json};
use tracing::{info, warn};

const CSRS: Resource =
    Resource::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest");
/// Where Machines are.
const MACHINES: &str = "/apis/machine.openshift.io/v1beta1/namespaces/openshift-machine-api/machines";
const NAMESPACE: &str = "openshift-cluster-machine-approver";
const PORT: u16 = 9192;
const PAUSE: Duration = Duration::from_secs(1);

/// Approves certificates of machines that are known
#[derive(Args, Clone, Debug)]
pub struct MachineApproverArgs {
    #[command(flatten)]
    program: ProgramArgs,
}

struct Quiet;

impl Status for Quiet {
    fn metrics(&self) -> String {
        String::new()
    }
}

impl MachineApproverArgs {
    /// Runs until the stop, or until another one leads.
    pub async fn run(self, stop: Stop) -> Result<(), ProgramError> {
        self.program.start_logging();
        let mut program = self.program;
        if program.leader_elect_resource_namespace == "kube-system" {
            program.leader_elect_resource_namespace = NAMESPACE.to_owned();
        }
        program
            .leader_elect_resource_name
            .get_or_insert_with(|| "cluster-machine-approver-leader".to_owned());
        let frame = program.complete("machine-approver", PORT)?;
        frame
            .run(&stop, Arc::new(Quiet), |client, tasks| async move {
                tasks.spawn("approve", move |stop| async move { work(&client, &stop).await });
            })
            .await
    }
}

async fn work(client: &Client, stop: &Stop) {
    let mut said = BTreeSet::new();
    loop {
        if let Err(error) = round(client, &mut said).await {
            warn!(error = %telemetry::chain(&error), "requests cannot be decided now");
        }
        if stop.or(tokio::time::sleep(PAUSE)).await.is_none() {
            return;
        }
    }
}

/// Decides about what is pending now; `said` holds what was refused already, so that each is told once.
async fn round(client: &Client, said: &mut BTreeSet<(String, String)>) -> Result<(), client::Error> {
    let items = |list: Value| list["items"].as_array().cloned().unwrap_or_default();
    let requests = items(client.get_path(&CSRS.path(None, None, None)).await?);
    let pending: Vec<&Value> =
        requests.iter().filter(|one| decide::is_pending(one) && decide::is_kubelets(one)).collect();
    said.retain(|(name, _)| pending.iter().any(|one| one["metadata"]["name"].as_str() == Some(name)));
    if pending.is_empty() {
        return Ok(());
    }
    let machines = match client.get_path::<Value>(MACHINES).await {
        Ok(list) => items(list),
        // Without Machines nothing is known, and nothing approved.
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error),
    };
    let nodes = items(client.get_path(&resources::NODES.path(None, None, None)).await?);
    for request in pending {
        let name = request["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let now = Timestamp::now();
        match decide::decide(request, &machines, &nodes, now) {
            Ok(()) => match approve(client, request, now).await {
                Ok(()) => info!(request = name, "approved"),
                // Someone else decided, or it is gone.
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                Err(error) => return Err(error),
            },
            Err(reason) => {
                if said.insert((name.clone(), reason.clone())) {
                    info!(request = name, reason, "left to an administrator");
                }
            }
        }
    }
    Ok(())
}

async fn approve(client: &Client, request: &Value, now: Timestamp) -> Result<(), client::Error> {
    let name = request["metadata"]["name"].as_str().unwrap_or_default();
    let mut approved = request.clone();
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    approved["status"]["conditions"] = json!([{
        "type": "Approved", "status": "True", "reason": "NodeCSRApprove",
        "message": "This CSR was approved by the Node CSR Approver (cluster-machine-approver)",
        "lastUpdateTime": now, "lastTransitionTime": now,
    }]);
    client.api(&CSRS).replace_sub::<Value>(name, "approval", &approved).await.map(drop)
}
