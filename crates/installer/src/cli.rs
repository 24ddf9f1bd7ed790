//! The command line: parse, call, print. Exit codes are the caller's; [`CliError::exit_code`] says which.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use jiff::Timestamp;
use thiserror::Error;

use crate::analyze;
use crate::assets::{self, Target};
use crate::create::{self, CreateError, Options, Outcome};
use crate::explain::{self, ExplainError};
use crate::gather::{self, GatherError};
use crate::install_config;
use crate::pki_report::{self, PkiReportError};
use crate::store;
use crate::survey::{self, Answers, SurveyError};
use crate::wait::{self, WaitError};

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// `create`.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A command of the bootstrap machine.
    #[error(transparent)]
    Bootstrap(#[from] crate::bootstrap::BootstrapError),
    /// The questions.
    #[error(transparent)]
    Survey(#[from] SurveyError),
    /// `explain`.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// `pki`.
    #[error(transparent)]
    Pki(#[from] PkiReportError),
    /// `gather`.
    #[error(transparent)]
    Gather(#[from] GatherError),
    /// `wait-for`.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A flag and the config that is there say different things.
    #[error("--{flag} does not fit install-config.yaml of this directory, which has {found}")]
    Contradiction {
        /// The flag.
        flag: &'static str,
        /// What the config has.
        found: String,
    },
    /// A file given by name.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Nobody reads the output any more.
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
}

impl CliError {
    /// 3: wrong install-config.yaml; 5: bootstrap wait failed; 6: install wait failed; 7: operators; 8: interrupted; 1: anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Create(error) => error.exit_code(),
            Self::Wait(error) => error.exit_code(),
            _ => 1,
        }
    }
}

/// The directory of an installation.
#[derive(Debug, Clone, Args)]
pub struct DirArgs {
    /// Directory that holds the installation's files and state
    #[arg(long, default_value = ".")]
    pub dir: PathBuf,
}

/// Makes the files that a cluster is installed from
#[derive(Debug, Args)]
pub struct CreateArgs {
    #[command(subcommand)]
    target: CreateTarget,
}

#[derive(Debug, Subcommand)]
enum CreateTarget {
    /// Asks for what install-config.yaml needs and writes it
    InstallConfig(InstallConfigArgs),
    /// Writes manifests, static pods and nodes.yaml, all open to edits
    Manifests(MakeArgs),
    /// Writes ignition files, kubeconfig, password, load balancer and DNS
    IgnitionConfigs(IgnitionArgs),
    /// Does all of the above, boots the machines (platform local), and waits for the cluster
    Cluster(ClusterArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KeyAlgorithm {
    Ecdsa,
    Rsa,
}

#[derive(Debug, Args)]
struct MakeArgs {
    #[command(flatten)]
    dir: DirArgs,
    /// Kind of keys to make; the first run's choice stays
    #[arg(long, value_enum)]
    key_algorithm: Option<KeyAlgorithm>,
    /// Release description (version, image, images) instead of the built-in one
    #[arg(long, value_name = "FILE")]
    release: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct IgnitionArgs {
    #[command(flatten)]
    make: MakeArgs,
    /// Also write nodes/NAME.ign: whole files with host name and static address
    #[arg(long)]
    per_node: bool,
}

#[derive(Debug, Args)]
struct ClusterArgs {
    #[command(flatten)]
    make: MakeArgs,
    /// One machine that is everything, without asking for more
    #[arg(long)]
    single_node: bool,
    /// Name of the cluster, if there is no install-config.yaml
    #[arg(long)]
    name: Option<String>,
    /// Domain that the cluster's names stand below, if there is no install-config.yaml
    #[arg(long)]
    base_domain: Option<String>,
    /// What is shown: text for people, or one JSON object per line for programs
    #[arg(short, long, value_parser = ["json", "text"], default_value = "text")]
    output: String,
}

/// A directory whose machines are to be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRequest {
    /// Where the installation is.
    pub dir: PathBuf,
    /// Whether a program reads what is said.
    pub json: bool,
}

/// Network of machines on this host. Nobody outside sees it, so every cluster may have the same.
const LOCAL_NETWORK: &str = "192.168.126.0/24";

#[derive(Debug, Args)]
struct InstallConfigArgs {
    #[command(flatten)]
    dir: DirArgs,
    /// Name of the cluster
    #[arg(long)]
    name: Option<String>,
    /// Domain that the cluster's names stand below
    #[arg(long)]
    base_domain: Option<String>,
    /// Where the machines are: none, local or external
    #[arg(long)]
    platform: Option<String>,
    /// Machines of the control plane
    #[arg(long)]
    control_plane_replicas: Option<i64>,
    /// Machines for workloads
    #[arg(long)]
    compute_replicas: Option<i64>,
    /// Network of the machines
    #[arg(long, value_name = "CIDR")]
    machine_network: Option<String>,
    /// File with the registries' credentials
    #[arg(long, value_name = "FILE")]
    pull_secret_file: Option<PathBuf>,
    /// File with public keys that may log in to the machines
    #[arg(long, value_name = "FILE")]
    ssh_key_file: Option<PathBuf>,
}

fn read(path: &PathBuf) -> Result<String, CliError> {
    fs::read_to_string(path).map_err(|source| CliError::Read { path: path.clone(), source })
}

impl MakeArgs {
    fn options(&self) -> Result<Options, CliError> {
        let algorithm = |kind| match kind {
            KeyAlgorithm::Ecdsa => pki::Algorithm::EcdsaP256,
            KeyAlgorithm::Rsa => pki::Algorithm::Rsa2048,
        };
        Ok(Options {
            key_algorithm: self.key_algorithm.map(algorithm),
            release: self.release.as_ref().map(read).transpose()?,
            install_config: None,
        })
    }
}

impl CreateArgs {
    /// Makes the target and says what was made. Gives what is to be booted, if that is wanted.
    pub fn run(self, out: &mut dyn Write) -> Result<Option<ClusterRequest>, CliError> {
        let now = Timestamp::now();
        match self.target {
            CreateTarget::InstallConfig(args) => args.run(out, now)?,
            CreateTarget::Manifests(args) => {
                let outcome = create::create(&args.dir.dir, Target::Manifests, &args.options()?, now)?;
                report(&outcome, out)?;
            }
            CreateTarget::IgnitionConfigs(args) => args.run(out, now)?,
            CreateTarget::Cluster(args) => {
                let request = ClusterRequest { dir: args.make.dir.dir.clone(), json: args.output == "json" };
                // A program gets one kind of lines; which files there are it can see.
                let mut nowhere = std::io::sink();
                let out: &mut dyn Write = if request.json { &mut nowhere } else { out };
                args.ensure_config(out, now)?;
                // Nobody serves pointers yet, so each machine gets a whole file.
                IgnitionArgs { make: args.make, per_node: true }.run(out, now)?;
                return Ok(Some(request));
            }
        }
        Ok(None)
    }
}

impl ClusterArgs {
    /// The config of the directory: the file, or what an earlier run made of it.
    fn config_text(&self) -> Result<Option<String>, CliError> {
        let path = self.make.dir.dir.join("install-config.yaml");
        if path.exists() {
            return read(&path).map(Some);
        }
        let state = store::read_state(&self.make.dir.dir).map_err(CreateError::from)?;
        let file = state.get("install-config").and_then(|files| files.first());
        Ok(file.map(|file| String::from_utf8_lossy(&file.content).into_owned()))
    }

    /// Flags say nothing else than a config that is there already. One that is wrong is reported by whoever uses it.
    fn check_config(&self, text: &str) -> Result<(), CliError> {
        let Ok((config, _)) = install_config::load(text) else { return Ok(()) };
        let differs = |flag: &'static str, found: String| Err(CliError::Contradiction { flag, found });
        let (masters, workers) = (config.control_plane_replicas(), config.compute_replicas());
        if self.single_node && (masters, workers) != (1, 0) {
            return differs("single-node", format!("{masters} control plane and {workers} compute machines"));
        }
        if self.name.as_ref().is_some_and(|name| *name != config.metadata.name) {
            return differs("name", config.metadata.name);
        }
        if self.base_domain.as_ref().is_some_and(|domain| *domain != config.base_domain) {
            return differs("base-domain", config.base_domain);
        }
        Ok(())
    }

    /// Writes install-config.yaml if there is none: from flags, or from answers at a terminal.
    fn ensure_config(&self, out: &mut dyn Write, now: Timestamp) -> Result<(), CliError> {
        let dir = &self.make.dir.dir;
        if let Some(text) = self.config_text()? {
            return self.check_config(&text);
        }
        let single = self.single_node;
        let default = |text: &str| single.then(|| text.to_owned());
        let answers = Answers {
            name: self.name.clone().or(default("single-node")),
            base_domain: self.base_domain.clone().or(default("kelson.local")),
            platform: Some("local".to_owned()),
            control_plane_replicas: single.then_some(1),
            compute_replicas: single.then_some(0),
            machine_network: Some(LOCAL_NETWORK.to_owned()),
            // Images are made from the binary: there is no registry to log in to.
            pull_secret: Some(r#"{"auths":{}}"#.to_owned()),
            // Nothing listens for it on these machines.
            ssh_key: Some(String::new()),
        };
        let text = survey::ask(answers, &mut survey::Terminal::open())?;
        let options = Options { install_config: Some(text), ..Options::default() };
        report(&create::create(dir, Target::InstallConfig, &options, now)?, out)
    }
}

impl IgnitionArgs {
    fn run(self, out: &mut dyn Write, now: Timestamp) -> Result<(), CliError> {
        let target = Target::IgnitionConfigs { per_node: self.per_node };
        let outcome = create::create(&self.make.dir.dir, target, &self.make.options()?, now)?;
        report(&outcome, out)
    }
}

impl InstallConfigArgs {
    fn run(self, out: &mut dyn Write, now: Timestamp) -> Result<(), CliError> {
        let mut options = Options::default();
        if !self.dir.dir.join("install-config.yaml").exists() {
            let answers = Answers {
                name: self.name,
                base_domain: self.base_domain,
                platform: self.platform,
                control_plane_replicas: self.control_plane_replicas,
                compute_replicas: self.compute_replicas,
                machine_network: self.machine_network,
                pull_secret: self.pull_secret_file.as_ref().map(read).transpose()?,
                ssh_key: self.ssh_key_file.as_ref().map(read).transpose()?,
            };
            options.install_config = Some(survey::ask(answers, &mut survey::Terminal::open())?);
        }
        report(&create::create(&self.dir.dir, Target::InstallConfig, &options, now)?, out)
    }
}

fn report(outcome: &Outcome, out: &mut dyn Write) -> Result<(), CliError> {
    for warning in &outcome.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    for path in &outcome.consumed {
        writeln!(out, "consumed {path}")?;
    }
    for path in &outcome.written {
        writeln!(out, "wrote {path}")?;
    }
    Ok(())
}

/// Prints the graph of assets for graphviz
#[derive(Debug, Args)]
pub struct GraphArgs {}

impl GraphArgs {
    /// Prints it.
    pub fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let graph = assets::graph(std::sync::Arc::default());
        let targets = [
            ("install-config", Target::InstallConfig.assets()),
            ("manifests", Target::Manifests.assets()),
            ("ignition-configs", Target::IgnitionConfigs { per_node: true }.assets()),
        ];
        Ok(out.write_all(graph.to_dot(&targets).as_bytes())?)
    }
}

/// Documents the fields of install-config.yaml
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// install-config, or a field: install-config.networking.clusterNetwork
    pub path: String,
}

impl ExplainArgs {
    /// Whether the path is ours and not a kind of the API.
    pub fn is_install_config(path: &str) -> bool {
        path.split('.').next().is_some_and(|first| first == "install-config" || first == "installconfig")
    }

    /// Prints the documentation.
    pub fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        Ok(out.write_all(explain::explain(&self.path)?.as_bytes())?)
    }
}

/// Shows and proves keys and certificates
#[derive(Debug, Args)]
pub struct PkiArgs {
    #[command(subcommand)]
    command: PkiCommand,
}

#[derive(Debug, Subcommand)]
enum PkiCommand {
    /// Prints the table of certificates; with --dir, what the directory holds of it
    Inspect {
        /// Directory of an installation, or of the keys of `kelson up`
        #[arg(long)]
        dir: Option<PathBuf>,
        /// Which table to print without --dir
        #[arg(long, value_enum, default_value = "install")]
        table: TableName,
        /// Print JSON
        #[arg(short, long, value_parser = ["json", "text"], default_value = "text")]
        output: String,
    },
    /// Proves every chain, name, usage, expiry and key, and says what is wrong
    Verify(DirArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TableName {
    Install,
    Local,
}

impl PkiArgs {
    /// Prints the report; findings are an error.
    pub fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let now = Timestamp::now();
        match self.command {
            PkiCommand::Inspect { dir: None, table, output } => {
                let table = match table {
                    TableName::Install => pki::table::INSTALL,
                    TableName::Local => pki::table::LOCAL,
                };
                let text = if output == "json" {
                    pki_report::table_json(table)?
                } else {
                    pki_report::table_text(table)
                };
                Ok(out.write_all(text.as_bytes())?)
            }
            PkiCommand::Inspect { dir: Some(dir), output, .. } => {
                let set = pki_report::read(&dir)?;
                let text = if output == "json" { set.to_json()? } else { set.to_text(now) };
                Ok(out.write_all(text.as_bytes())?)
            }
            PkiCommand::Verify(args) => {
                let count = pki_report::read(&args.dir)?.verify(now)?;
                Ok(writeln!(out, "{count} certificates: chains, names, usages, expiry and keys are sound")?)
            }
        }
    }
}

/// Bundles logs and state of an installation, without secrets
#[derive(Debug, Args)]
pub struct GatherArgs {
    #[command(flatten)]
    dir: DirArgs,
    /// File to write instead of log-bundle-TIME.tar.gz in the directory
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl GatherArgs {
    /// Writes the bundle and prints its name.
    pub async fn run(self, out: &mut (dyn Write + Send)) -> Result<(), CliError> {
        let now = Timestamp::now();
        let path = self.output.unwrap_or_else(|| {
            self.dir.dir.join(format!("log-bundle-{}.tar.gz", now.strftime("%Y%m%d%H%M%S")))
        });
        let count = gather::gather(&self.dir.dir, &path, now).await?;
        Ok(writeln!(out, "wrote {} with {count} files; secrets were left out", path.display())?)
    }
}

/// Names what went wrong first in an installation
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    #[command(flatten)]
    dir: DirArgs,
    /// Bundle to read instead of the directory
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl AnalyzeArgs {
    /// Prints the findings, the first one first.
    pub async fn run(self, out: &mut (dyn Write + Send)) -> Result<(), CliError> {
        let files = match &self.file {
            Some(file) => gather::read(file)?,
            None => gather::files(&self.dir.dir, Timestamp::now()).await?,
        };
        let findings = analyze::findings(&files);
        let Some((first, others)) = findings.split_first() else {
            return Ok(writeln!(out, "nothing is wrong as far as can be seen")?);
        };
        writeln!(out, "first: {first}")?;
        for other in others {
            writeln!(out, "also: {other}")?;
        }
        Ok(())
    }
}

/// Waits for a stage of an installation
#[derive(Debug, Args)]
pub struct WaitForArgs {
    #[command(subcommand)]
    stage: WaitStage,
}

#[derive(Debug, Subcommand)]
enum WaitStage {
    /// Returns when the bootstrap machine may be switched off
    BootstrapComplete(DirArgs),
    /// Returns when the cluster is installed
    InstallComplete(DirArgs),
}

impl WaitForArgs {
    /// Waits, saying what it waits for.
    pub async fn run(self, out: &mut (dyn Write + Send)) -> Result<(), CliError> {
        let (stage, dir) = match self.stage {
            WaitStage::BootstrapComplete(args) => (wait::Stage::Bootstrap, args.dir),
            WaitStage::InstallComplete(args) => (wait::Stage::Install, args.dir),
        };
        Ok(wait::wait(stage, &dir, out).await?)
    }
}
