//! `wait-for-ceo`: ends once the member on the bootstrap machine is no longer needed and gone.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use client::{Client, Https, HttpsError};
use controller_runtime::program::{self, ProgramError};
use lifecycle::Stop;
use serde_json::Value;
use thiserror::Error;
use tracing::{info, warn};

use super::ETCDS;
use crate::library::conditions::find;

const PAUSE: Duration = Duration::from_secs(1);

/// Waits until etcd no longer needs the bootstrap machine
#[derive(Args, Clone, Debug)]
pub struct WaitForCeoArgs {
    /// How to reach the API server; without it the identity of the surrounding pod is used
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

/// Why the wait ended early.
#[derive(Debug, Error)]
pub enum WaitError {
    #[error("the API server cannot be addressed")]
    Program(#[from] ProgramError),
    #[error("the API server cannot be addressed")]
    Https(#[from] HttpsError),
    #[error("interrupted")]
    Interrupted,
}

impl WaitForCeoArgs {
    pub async fn run(self, stop: Stop) -> Result<(), WaitError> {
        telemetry::log_to_stderr("info");
        let client = Client::new(Https::new(program::https(self.kubeconfig.as_deref())?)?, "wait-for-ceo");
        stop.or(wait(&client)).await.ok_or(WaitError::Interrupted)
    }
}

async fn wait(client: &Client) {
    let mut last = String::new();
    loop {
        let said = match client.api(&ETCDS).find::<Value>("cluster").await {
            Ok(Some(etcd)) => {
                let conditions = &etcd["status"]["conditions"];
                match find(conditions, "EtcdBootstrapMemberRemoved") {
                    Some(condition) if condition["status"] == "True" => {
                        info!("the bootstrap member is removed");
                        return;
                    }
                    Some(condition) => condition["message"].as_str().unwrap_or_default().to_owned(),
                    None => "the operator has not said anything yet".to_owned(),
                }
            }
            Ok(None) => "there is no Etcd object yet".to_owned(),
            Err(error) => telemetry::chain(&error).to_string(),
        };
        if said != last {
            warn!(said, "waiting for the bootstrap member to be removed");
            last = said;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
