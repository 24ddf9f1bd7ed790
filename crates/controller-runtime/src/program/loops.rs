//! What programs of several loops share: kube-controller-manager and cloud-controller-manager differ in their loops, not in
//! how these are chosen, whom they act as, and how they start.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::{ArgAction, Args};
use client::Client;
use lifecycle::{Stop, Tasks};
use tracing::warn;

use super::{Identities, ProgramArgs, ProgramError, Selection, Status, go_duration};

/// Makes the client of a service account in `kube-system`; the empty name means the program's own identity.
pub type ClientFor = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// Flags that every program of several loops takes.
#[derive(Args, Clone, Debug)]
pub struct LoopArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Controllers to run: names, `*` for all that run by default, `-name` to leave one out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Act as one service account per controller
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub use_service_account_credentials: bool,
    /// Give nodes ranges of pod addresses
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allocate_node_cidrs: bool,
    /// How those ranges are chosen; there is one way
    #[arg(long, default_value = "RangeAllocator", value_parser = ["RangeAllocator"])]
    pub cidr_allocator_type: String,
    /// Ranges of pod addresses, one per family
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Have the cloud route those ranges; needs --allocate-node-cidrs and --cluster-cidr
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub configure_cloud_routes: bool,
    /// How often routes are compared
    #[arg(long, default_value = "10s", value_parser = go_duration)]
    pub route_reconciliation_period: Duration,
    /// How often a cloud is asked for the machines of nodes that are not ready
    #[arg(long, default_value = "5s", value_parser = go_duration)]
    pub node_monitor_period: Duration,
    /// Services that are worked on at once
    #[arg(long, default_value_t = 1)]
    pub concurrent_service_syncs: usize,
    /// The cluster's name
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Taken for compatibility: nothing is listed anew at intervals
    #[arg(long, value_parser = go_duration)]
    pub min_resync_period: Option<Duration>,
    /// Taken for compatibility: controllers start together
    #[arg(long, value_parser = go_duration)]
    pub controller_start_interval: Option<Duration>,
    /// Refused: loops do not move between programs
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true",
        value_parser = no_migration)]
    pub enable_leader_migration: bool,
    /// Refused, as --enable-leader-migration
    #[arg(long, value_parser = no_migration_file)]
    pub leader_migration_config: Option<String>,
    /// Refused: volumes are made by the class `local` and by CSI drivers
    #[arg(long, value_parser = no_volume_plugin)]
    pub external_cloud_volume_plugin: Option<String>,
}

fn no_migration(text: &str) -> Result<bool, String> {
    match text {
        "false" => Ok(false),
        _ => Err("loops do not move between programs here: each has its own lease".to_owned()),
    }
}

fn no_migration_file(_: &str) -> Result<String, String> {
    Err("loops do not move between programs here: each has its own lease".to_owned())
}

fn no_volume_plugin(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Ok(String::new())
    } else {
        Err("there are no volume plug-ins of clouds: use a CSI driver".to_owned())
    }
}

/// Loops that may not run yet.
struct Late<M>(OnceLock<M>);

impl<M: Status> Status for Late<M> {
    fn metrics(&self) -> String {
        self.0.get().map(M::metrics).unwrap_or_default()
    }
}

impl LoopArgs {
    /// Which loops run, with `aliases` (older name, name) understood.
    pub fn selection(&self, known: &[&str], aliases: &[(&str, &str)]) -> Result<Selection, ProgramError> {
        let newer = |word: &String| {
            let (minus, name) = word.strip_prefix('-').map_or(("", &**word), |name| ("-", name));
            let name = aliases.iter().find(|(older, _)| *older == name).map_or(name, |(_, newer)| newer);
            format!("{minus}{name}")
        };
        let selection = Selection::new(self.controllers.iter().map(newer));
        let unknown: Vec<String> = selection.unknown(known).into_iter().map(str::to_owned).collect();
        if unknown.is_empty() { Ok(selection) } else { Err(ProgramError::Unknown { names: unknown }) }
    }

    /// Runs the loops until the stop, or until another one leads. `prepare` reads the flags, and what it gives starts them.
    pub async fn run<M, E, S>(
        &self,
        name: &'static str,
        port: u16,
        stop: &Stop,
        prepare: impl FnOnce(ClientFor) -> Result<S, E>,
    ) -> Result<(), E>
    where
        M: Status,
        E: From<ProgramError>,
        S: FnOnce(&Tasks) -> M,
    {
        let program = self.program.complete(name, port)?;
        let own = program.client.clone();
        let identities = if self.use_service_account_credentials {
            Some(Identities::new(name, own.clone(), self.program.https()?))
        } else {
            None
        };
        let begin = prepare(Arc::new(move |name: &str| match (&identities, name) {
            (Some(identities), name) if !name.is_empty() => identities.client(name),
            _ => own.clone(),
        }))?;
        let late = Arc::new(Late(OnceLock::new()));
        let status = late.clone();
        let lead = |_, tasks: Tasks| async move {
            if late.0.set(begin(&tasks)).is_err() {
                warn!("the loops run already");
            }
        };
        program.run(stop, status, lead).await?;
        Ok(())
    }
}
