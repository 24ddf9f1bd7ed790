//! Jobs and cron jobs.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};
use crate::resource::{FileFlags, Selection, fetch_one};
use crate::session::Session;

/// Create a job with the specified name
#[derive(Args, Debug)]
pub struct Job {
    names: Vec<String>,
    /// Image name to run
    #[arg(long, default_value = "", hide_default_value = true)]
    image: String,
    /// The name of the resource to create a Job from (only cronjob is supported)
    #[arg(long, default_value = "", hide_default_value = true)]
    from: String,
    /// The command of the container
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

fn container(name: &str, image: &str, command: &[String]) -> Value {
    let mut container = json!({"name": name, "image": image});
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    container["resources"] = json!({});
    container
}

impl Job {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let name = one_name("job", &self.names)?;
        let object = match (self.image.is_empty(), self.from.is_empty()) {
            (true, true) | (false, false) => {
                return Err(message("either --image or --from must be specified"));
            }
            (false, true) => {
                let container = container(&name, &self.image, &self.command);
                json!({
                    "kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": name},
                    "spec": {"template": {"metadata": {}, "spec": {"containers": [container], "restartPolicy": "Never"}}},
                    "status": {},
                })
            }
            (true, false) => {
                if !self.command.is_empty() {
                    return Err(message("cannot specify --from and command"));
                }
                let selection =
                    Selection::new(session, std::slice::from_ref(&self.from), &FileFlags::default())?;
                let owner = fetch_one(session, selection).await?;
                if owner.resource.kind != "CronJob" {
                    return Err(message("--from must be an existing cronjob"));
                }
                let template = &owner.object["spec"]["jobTemplate"];
                let mut annotations = template["metadata"]["annotations"].clone();
                if !annotations.is_object() {
                    annotations = json!({});
                }
                annotations["cronjob.kubernetes.io/instantiate"] = "manual".into();
                let mut metadata = json!({"name": name, "annotations": annotations, "ownerReferences": [{
                    "kind": "CronJob", "apiVersion": "batch/v1", "name": owner.name, "uid": owner.object["metadata"]["uid"], "controller": true}]});
                if template["metadata"]["labels"].is_object() {
                    metadata["labels"] = template["metadata"]["labels"].clone();
                }
                json!({"kind": "Job", "apiVersion": "batch/v1", "metadata": metadata, "spec": template["spec"], "status": {}})
            }
        };
        self.common.finish(session, object, out).await
    }
}

/// Create a cron job with the specified name
#[derive(Args, Debug)]
pub struct CronJob {
    names: Vec<String>,
    /// Image name to run
    #[arg(long, default_value = "", hide_default_value = true)]
    image: String,
    /// A schedule in the Cron format the job should be run with
    #[arg(long, default_value = "", hide_default_value = true)]
    schedule: String,
    /// The job's restart policy; supported values: OnFailure, Never
    #[arg(long, default_value = "OnFailure")]
    restart: String,
    /// The command of the container
    #[arg(last = true)]
    command: Vec<String>,
    #[command(flatten)]
    pub common: Common,
}

impl CronJob {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("cronjob", &self.names)?;
        if self.image.is_empty() || self.schedule.is_empty() {
            let missing: Vec<&str> =
                [("image", self.image.is_empty()), ("schedule", self.schedule.is_empty())]
                    .into_iter()
                    .filter_map(|(name, missing)| missing.then_some(name))
                    .collect();
            return Err(message(format!("required flag(s) \"{}\" not set", missing.join("\", \""))));
        }
        let container = container(&name, &self.image, &self.command);
        Ok(json!({
            "kind": "CronJob", "apiVersion": "batch/v1", "metadata": {"name": name},
            "spec": {"schedule": self.schedule, "jobTemplate": {"metadata": {"name": name}, "spec": {"template": {"metadata": {},
                "spec": {"containers": [container], "restartPolicy": self.restart}}}}},
            "status": {},
        }))
    }
}
