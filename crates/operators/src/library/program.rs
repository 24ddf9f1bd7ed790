//! The main of every operator: `kelson cluster-<x>-operator operator`, with the flags of upstream's.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::decode;
use clap::Args;
use controller_runtime::program::{ProgramArgs, ProgramError, Status, go_duration};
use lifecycle::Stop;
use serde::Deserialize;
use thiserror::Error;

use super::driver::{Counters, Driver, Operator};

/// How often files that end the program are looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Where upstream's operators serve health and metrics.
const PORT: u16 = 8443;

/// Runs the operator
#[derive(Args, Clone, Debug)]
pub struct OperatorArgs {
    #[command(flatten)]
    program: ProgramArgs,
    /// A GenericOperatorConfig: the address to serve on and the election
    #[arg(long)]
    config: Option<PathBuf>,
    /// Where the lease is kept [default: the operator's namespace]
    #[arg(long)]
    namespace: Option<String>,
    /// The address and port for health and metrics
    #[arg(long)]
    listen: Option<String>,
    /// Ends when one of these files changes
    #[arg(long)]
    terminate_on_files: Vec<PathBuf>,
}

/// Why an operator does not run.
#[derive(Debug, Error)]
pub enum OperatorError {
    #[error("the operator cannot be started")]
    Program(#[from] ProgramError),
    #[error("the configuration {path} cannot be used: {reason}", path = path.display())]
    Config { path: PathBuf, reason: String },
    #[error("{listen:?} is not an address and a port")]
    Listen { listen: String },
    #[error("the environment variable {0} is not set: the Deployment has to say it")]
    Environment(&'static str),
}

/// A variable that the operator's Deployment sets.
pub fn required_env(name: &'static str) -> Result<String, OperatorError> {
    std::env::var(name).ok().filter(|value| !value.is_empty()).ok_or(OperatorError::Environment(name))
}

/// The part of upstream's configuration file that means something here; anything else is refused by name.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    api_version: String,
    kind: String,
    serving_info: ServingInfo,
    leader_election: Elected,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct ServingInfo {
    bind_address: String,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Elected {
    disable: bool,
    namespace: String,
    name: String,
    lease_duration: String,
    renew_deadline: String,
    retry_period: String,
}

fn read(path: &Path) -> Result<Config, OperatorError> {
    let wrong = |reason: String| OperatorError::Config { path: path.to_owned(), reason };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let value = decode::parse_yaml(&bytes).map_err(|error| wrong(error.to_string()))?;
    let config: Config = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    if !config.kind.is_empty() && config.kind != "GenericOperatorConfig" {
        return Err(wrong(format!("its kind is {}, not GenericOperatorConfig", config.kind)));
    }
    Ok(config)
}

struct Counted(Arc<Counters>, &'static str);

impl Status for Counted {
    fn metrics(&self) -> String {
        self.0.print(self.1)
    }
}

impl OperatorArgs {
    /// Runs the operator until the stop, or until another one leads.
    pub async fn run<O: Operator>(self, operator: O, stop: Stop) -> Result<(), OperatorError> {
        self.program.start_logging();
        let about = operator.about();
        let mut program = self.program;
        let config = self.config.as_deref().map(read).transpose()?.unwrap_or_default();
        let wrong =
            |reason: String| OperatorError::Config { path: self.config.clone().unwrap_or_default(), reason };
        let namespace = self.namespace.unwrap_or_else(|| about.namespace.to_owned());
        let or = |given: String, otherwise: &str| if given.is_empty() { otherwise.to_owned() } else { given };
        let election = config.leader_election;
        program.leader_elect &= !election.disable;
        program.leader_elect_resource_name.get_or_insert_with(|| or(election.name, about.lease));
        if program.leader_elect_resource_namespace == "kube-system" {
            program.leader_elect_resource_namespace = or(election.namespace, &namespace);
        }
        for (given, field) in [
            (&election.lease_duration, &mut program.leader_elect_lease_duration),
            (&election.renew_deadline, &mut program.leader_elect_renew_deadline),
            (&election.retry_period, &mut program.leader_elect_retry_period),
        ] {
            if !given.is_empty() {
                *field = go_duration(given).map_err(wrong)?;
            }
        }
        let listen = self.listen.or(Some(config.serving_info.bind_address)).filter(|text| !text.is_empty());
        if let Some(listen) = listen {
            let bad = || OperatorError::Listen { listen: listen.clone() };
            let (host, port) = listen.rsplit_once(':').ok_or_else(bad)?;
            if !host.is_empty() {
                program.bind_address = host.trim_matches(['[', ']']).parse().map_err(|_| bad())?;
            }
            program.secure_port = Some(port.parse().map_err(|_| bad())?);
        }
        if let (Some(certificate), Some(key)) = (config.serving_info.cert_file, config.serving_info.key_file)
        {
            program.tls_cert_file.get_or_insert(certificate);
            program.tls_private_key_file.get_or_insert(key);
        }
        let running = stop.child();
        let counters = Arc::<Counters>::default();
        let status = Arc::new(Counted(counters.clone(), about.program));
        let files = self.terminate_on_files;
        let ended = Stop::new();
        let watched = async {
            changed(&files).await;
            tracing::info!("a file changed, ending; whoever supervises this starts it again");
            ended.request();
        };
        let work = program.complete(about.program, PORT)?.run(&running, status, |client, tasks| async move {
            let own = tasks.clone();
            tasks.spawn("operator", move |stop| async move {
                Driver { operator, client, counters }.run(&own, &stop).await;
            });
        });
        tokio::pin!(work);
        tokio::select! {
            outcome = &mut work => return Ok(outcome?),
            () = watched => {}
        }
        // Its lease is given up before the process ends.
        running.request();
        Ok(work.await?)
    }
}

/// Resolves once one of the files is another one than at the start.
async fn changed(files: &[PathBuf]) {
    if files.is_empty() {
        return std::future::pending().await;
    }
    let look = || files.iter().map(|path| std::fs::read(path).ok()).collect::<Vec<_>>();
    let first = look();
    while look() == first {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_what_it_does_not_know_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        let config = with(
            "apiVersion: operator.openshift.io/v1alpha1\nkind: GenericOperatorConfig\nleaderElection: {namespace: openshift-x, leaseDuration: 30s}\n",
        )
        .unwrap();
        assert_eq!(
            (&*config.leader_election.namespace, &*config.leader_election.lease_duration),
            ("openshift-x", "30s")
        );
        assert!(with("kind: Other").is_err());
        assert!(with("unheardOf: 1").is_err());
    }
}
