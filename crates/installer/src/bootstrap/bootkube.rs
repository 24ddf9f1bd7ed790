//! `kelson bootstrap bootkube`: from an API server that answers to masters that have registered, stage by stage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{Client, Patch, Resource};
use serde_json::Value;

use super::records::Records;
use super::{BootstrapError, MachineArgs, at, error_text, manifests, until, wait_for_api};

/// Gives the API every manifest and waits for the masters
#[derive(Debug, clap::Args)]
pub struct BootkubeArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Masters that must register
    #[arg(long, env = "CONTROL_PLANE_REPLICAS", default_value_t = 3)]
    pub control_plane_replicas: usize,
    /// Where the record of the stages is kept
    #[arg(long, default_value = "/var/log/openshift")]
    pub record_dir: PathBuf,
}

const PAUSE: Duration = Duration::from_millis(500);

impl BootkubeArgs {
    /// Runs the stages that are not done yet.
    pub async fn run(self) -> Result<(), BootstrapError> {
        let records = Records::new(&self.record_dir, "bootkube");
        records.add("service start", None, None);
        let outcome = self.stages(&records).await;
        let text = outcome.as_ref().err().map(|error| error_text(error));
        records.add("service end", None, Some(text.as_deref().map_or(Ok(()), Err)));
        outcome
    }

    async fn stages(&self, records: &Records) -> Result<(), BootstrapError> {
        let assets = self.machine.asset_dir.as_path();
        let client = self.machine.client("bootkube")?;
        let stage = Stages { marks: assets.join(".done"), records };
        stage.run("wait-for-api", async || wait_for_api(&client, Duration::from_secs(1200)).await).await?;
        stage
            .run("manifests", async || {
                let mut all = manifests::read(&assets.join("manifests"))?;
                all.extend(manifests::read(&assets.join("openshift"))?);
                manifests::create_all(&client, &all, Duration::from_secs(900)).await
            })
            .await?;
        stage.run("status", async || set_status(&client, &assets.join("status")).await).await?;
        stage.run("masters", async || wait_for_masters(&client, self.control_plane_replicas).await).await?;
        let done = assets.join(".bootkube.done");
        std::fs::write(&done, "").map_err(at("write", &done))
    }
}

struct Stages<'a> {
    marks: PathBuf,
    records: &'a Records,
}

impl Stages<'_> {
    /// Runs a stage once: its mark says that it is done.
    async fn run(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<(), BootstrapError>,
    ) -> Result<(), BootstrapError> {
        let mark = self.marks.join(name);
        if mark.exists() {
            return Ok(());
        }
        println!("bootkube: {name}");
        self.records.add("stage start", Some(name), None);
        let outcome = work().await;
        let text = outcome.as_ref().err().map(|error| error_text(error));
        self.records.add("stage end", Some(name), Some(text.as_deref().map_or(Ok(()), Err)));
        outcome?;
        std::fs::create_dir_all(&self.marks).map_err(at("make", &self.marks))?;
        std::fs::write(&mark, "").map_err(at("write", &mark))
    }
}

/// Creating an object drops its status, so it is sent a second time, to the status subresource.
async fn set_status(client: &Client, directory: &Path) -> Result<(), BootstrapError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("read", directory)(error)),
    };
    for entry in entries {
        let path = entry.map_err(at("read", directory))?.path();
        let bad = |reason: String| BootstrapError::Manifest { path: path.clone(), reason };
        // PLURAL.GROUP_NAME.json
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (resource, name) = stem.rsplit_once('_').ok_or_else(|| bad("its name names no object".into()))?;
        let (plural, group) = resource.split_once('.').ok_or_else(|| bad("its name names no kind".into()))?;
        let text = std::fs::read(&path).map_err(at("read", &path))?;
        let patch: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let resource = Resource {
            group: group.to_owned().into(),
            version: "v1".into(),
            plural: plural.to_owned().into(),
            kind: String::new().into(),
            namespaced: false,
        };
        let api = client.api(&resource);
        let what = format!("setting the status of {plural}.{group} {name}");
        until(&what, Duration::from_secs(120), PAUSE, async || {
            let sent = api.patch_sub::<Value>(name, "status", Patch::Merge(&patch)).await;
            sent.map(drop).map_err(|error| error_text(&error))
        })
        .await?;
        println!("set the status of {plural}.{group} {name}");
    }
    Ok(())
}

async fn wait_for_masters(client: &Client, wanted: usize) -> Result<(), BootstrapError> {
    const PATH: &str = "/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fmaster";
    until("waiting for masters to register", Duration::from_secs(1800), PAUSE, async || {
        let list = client.get_path::<Value>(PATH).await.map_err(|error| error_text(&error))?;
        let found = list["items"].as_array().map_or(0, Vec::len);
        if found >= wanted { Ok(()) } else { Err(format!("{found} of {wanted}")) }
    })
    .await
}
