//! `scale`: the number of replicas, through the subresource that every scalable kind has.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::json;
use tokio::time::Instant;

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag, timeout};
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, fetch_all};
use crate::session::{Ask, Session};

/// Set a new size for a deployment, replica set, or replication controller
#[derive(Args, Debug)]
pub struct Scale {
    /// TYPE/NAME or TYPE NAME
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    /// The new desired number of replicas
    #[arg(long)]
    replicas: Option<i64>,
    /// Precondition for current size
    #[arg(long, default_value = "-1", hide_default_value = true)]
    current_replicas: i64,
    /// Precondition for resource version
    #[arg(long, default_value = "", hide_default_value = true)]
    resource_version: String,
    /// The length of time to wait before giving up on a scale operation, zero means don't wait
    #[arg(long, default_value = "0s")]
    timeout: String,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
}

impl Scale {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        let Some(replicas) = self.replicas else {
            return Err(message("required flag(s) \"replicas\" not set"));
        };
        if replicas < 0 {
            return Err(message(
                "The --replicas=COUNT flag is required, and COUNT must be greater than or equal to 0",
            ));
        }
        let mut selection = Selection::new(session, &self.args, &self.files)?;
        selection.labels = self.selector.clone();
        selection.select_all = self.all;
        selection.latest = true;
        let (infos, errors) = fetch_all(session, selection.plan(session).await?).await?;
        if infos.is_empty() {
            CliError::all(errors)?;
            return Err(message("no objects passed to scale"));
        }
        for mut info in infos {
            if dry_run != DryRun::Client {
                self.one(session, &info, replicas, dry_run).await?;
            }
            info.object["spec"]["replicas"] = replicas.into();
            self.output.report(&info.object, "scaled", dry_run, out)?;
        }
        CliError::all(errors)
    }

    async fn one(
        &self,
        session: &Session,
        info: &Info,
        replicas: i64,
        dry_run: DryRun,
    ) -> Result<(), CliError> {
        let path = info.subresource("scale");
        let mut ask = if self.current_replicas < 0 && self.resource_version.is_empty() {
            let patch = json!({"spec": {"replicas": replicas}});
            Ask::new(Method::PATCH, path).body(crate::write::MERGE, patch.to_string())
        } else {
            let mut scale = session.json(Ask::get(path.clone())).await?;
            let now = scale["spec"]["replicas"].as_i64().unwrap_or(0);
            if self.current_replicas >= 0 && now != self.current_replicas {
                return Err(message(format!("Expected replicas to be {}, was {now}", self.current_replicas)));
            }
            let version = scale["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            if !self.resource_version.is_empty() && version != self.resource_version {
                return Err(message(format!(
                    "Expected resource version to be {}, was {version}",
                    self.resource_version
                )));
            }
            scale["spec"]["replicas"] = replicas.into();
            Ask::new(Method::PUT, path).json(&scale)
        };
        if dry_run == DryRun::Server {
            ask = ask.query("dryRun", "All");
        }
        session.json(ask).await?;
        let limit = timeout(&self.timeout)?;
        if limit.is_zero() || dry_run != DryRun::None {
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            let scale = session.json(Ask::get(info.subresource("scale"))).await?;
            if scale["status"]["replicas"].as_i64().unwrap_or(0) == replicas {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Err(message("timed out waiting for the condition"))
    }
}
