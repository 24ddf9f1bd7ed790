//! `kelson cluster-version-operator start|image|version`, with upstream's flags.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use client::{Client, Https};
use controller_runtime::program::{ProgramArgs, ProgramError, Status};
use lifecycle::Stop;
use serde_json::Value;
use thiserror::Error;

use super::include::{Criteria, DEFAULT_PROFILE};
use super::operator::{FEATURE_GATES, Features, Operator};
use super::payload::{Payload, PayloadError};

/// Keeps the cluster as its release image describes it.
#[derive(Args, Clone, Debug)]
pub struct ClusterVersionOperatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Applies the release and keeps it applied
    Start(Box<StartArgs>),
    /// Prints the image of a component of this release
    Image(ImageArgs),
    /// Prints the version of this release
    Version(PayloadDir),
}

#[derive(Args, Clone, Debug)]
struct PayloadDir {
    /// Where the release's manifests are
    #[arg(long, env = "PAYLOAD_OVERRIDE", default_value = "/")]
    payload_dir: PathBuf,
}

#[derive(Args, Clone, Debug)]
struct ImageArgs {
    #[command(flatten)]
    payload: PayloadDir,
    /// The component's name
    component: String,
}

#[derive(Args, Clone, Debug)]
struct StartArgs {
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    payload: PayloadDir,
    /// The image that this operator runs from
    #[arg(long)]
    release_image: String,
    /// Where metrics are served; nothing is served when empty
    #[arg(long, default_value = "")]
    listen: String,
    /// Refused unless false: updates are asked for in the ClusterVersion
    #[arg(long, default_value = "false", value_parser = only_false)]
    enable_auto_update: String,
    /// Taken for compatibility: the node matters once another release is retrieved, which is refused
    #[arg(long, env = "NODE_NAME", default_value = "")]
    node_name: String,
    /// Objects that ask to be left out under this name are
    #[arg(long, env = "EXCLUDE_MANIFESTS")]
    exclude_manifests: Option<String>,
    /// Which of the release's objects are for this kind of cluster
    #[arg(long, env = "CLUSTER_PROFILE", default_value = DEFAULT_PROFILE)]
    cluster_profile: String,
    /// Capabilities that are enabled whatever the ClusterVersion says
    #[arg(long, value_delimiter = ',')]
    always_enable_capabilities: Vec<String>,
}

fn only_false(value: &str) -> Result<String, String> {
    match value {
        "false" => Ok(value.to_owned()),
        _ => Err("updates are only made when the ClusterVersion asks for them".to_owned()),
    }
}

/// Why the operator does not run.
#[derive(Debug, Error)]
pub enum ClusterVersionOperatorError {
    #[error("the operator cannot be started")]
    Program(#[from] ProgramError),
    #[error("the API server cannot be addressed")]
    Https(#[from] client::HttpsError),
    #[error("the release below {path} cannot be used", path = path.display())]
    Payload { path: PathBuf, source: Box<PayloadError> },
    #[error("the release has no image {component}; it has {}", known.join(", "))]
    NoImage { component: String, known: Vec<String> },
    #[error("metrics cannot be served on {listen:?}: --bind-address and --secure-port serve them")]
    Listen { listen: String },
    #[error("the answer cannot be written")]
    Output(#[from] std::io::Error),
}

struct Unmeasured;

impl Status for Unmeasured {
    fn metrics(&self) -> String {
        String::new()
    }
}

impl ClusterVersionOperatorArgs {
    /// Runs the command; `start` until the stop.
    pub async fn run(self, stop: Stop, out: &mut dyn Write) -> Result<(), ClusterVersionOperatorError> {
        match self.command {
            Command::Start(args) => args.run(stop).await,
            Command::Image(args) => {
                let payload = load(&args.payload.payload_dir, "", &Criteria::default())?;
                match payload.images.get(&args.component) {
                    Some(image) => Ok(writeln!(out, "{image}")?),
                    None => Err(ClusterVersionOperatorError::NoImage {
                        component: args.component,
                        known: payload.images.into_keys().collect(),
                    }),
                }
            }
            Command::Version(args) => {
                let payload = load(&args.payload_dir, "", &Criteria::default())?;
                Ok(writeln!(out, "{}", payload.version)?)
            }
        }
    }
}

fn load(path: &Path, image: &str, criteria: &Criteria) -> Result<Payload, ClusterVersionOperatorError> {
    Payload::load(path, image, criteria).map_err(|source| unusable(path, source))
}

fn unusable(path: &Path, source: PayloadError) -> ClusterVersionOperatorError {
    ClusterVersionOperatorError::Payload { path: path.to_owned(), source: Box::new(source) }
}

impl StartArgs {
    async fn run(self, stop: Stop) -> Result<(), ClusterVersionOperatorError> {
        self.program.start_logging();
        if !self.listen.is_empty() {
            return Err(ClusterVersionOperatorError::Listen { listen: self.listen });
        }
        let mut program = self.program.clone();
        program.leader_elect_resource_name.get_or_insert_with(|| "version".to_owned());
        if program.leader_elect_resource_namespace == "kube-system" {
            program.leader_elect_resource_namespace = "openshift-cluster-version".to_owned();
        }
        program.secure_port.get_or_insert(0);
        let client = Client::new(Https::new(program.https()?)?, "cluster-version-operator".to_owned());
        let version = Payload::version_below(&self.payload.payload_dir)
            .map_err(|source| unusable(&self.payload.payload_dir, source))?;
        let Some(features) = stop.or(required_features(&client, &version.to_string())).await else {
            return Ok(());
        };
        let criteria = Criteria {
            exclude_identifier: self.exclude_manifests.clone(),
            profile: Some(self.cluster_profile.clone()),
            feature_set: Some(features.set.clone()),
            feature_gates: Some(features.gates.clone()),
            ..Criteria::default()
        };
        let payload = load(&self.payload.payload_dir, &self.release_image, &criteria)?;
        tracing::info!(
            version = %payload.version, image = payload.image, objects = payload.manifests.len(), "release loaded"
        );
        let always_enable = self.always_enable_capabilities.clone();
        let ended = Stop::new();
        let finish = ended.clone();
        let running = stop.child();
        let outer = running.clone();
        let work = program.complete("cluster-version-operator", 0)?.run(
            &running,
            Arc::new(Unmeasured),
            |client, tasks| async move {
                let operator = Operator {
                    client,
                    payload,
                    features,
                    always_enable,
                    name: "version".to_owned(),
                    waiting: Default::default(),
                };
                let own = tasks.clone();
                tasks.spawn("cluster-version", move |stop| async move {
                    operator.run(&own, &stop).await;
                    finish.request();
                });
            },
        );
        tokio::select! {
            outcome = work => Ok(outcome?),
            // The operator ended by itself: its lease is given up before the process ends.
            () = ended.requested() => {
                outer.request();
                Ok(())
            }
        }
    }
}

/// What the cluster's FeatureGate opens; nothing on a cluster that has none. Waits for an API server that answers.
async fn required_features(client: &Client, version: &str) -> Features {
    loop {
        match client.api(&FEATURE_GATES).find::<Value>("cluster").await {
            Ok(Some(gate)) => return Features::of(&gate["spec"], &gate["status"], version),
            Ok(None) => return Features::default(),
            Err(error) => tracing::warn!(error = %telemetry::chain(&error), "waiting for the FeatureGate"),
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}
