//! `kelson machine`: parse, call, print.

use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ipnet::IpNet;
use thiserror::Error;

use crate::cluster::{Cluster, ClusterError, Forward, Shared};
use crate::journal::Filter;
use crate::machine::Machine;
use crate::machine::exec::{self, ExecError};
use crate::systemctl::{Show, full_name};

/// Why a command failed.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum CliError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{program} ended with status {code}")]
    Status { program: String, code: i32 },
    #[error("the network {0} has no address left")]
    Full(IpNet),
    #[error("{0} is not an address of one of the machines' networks")]
    Elsewhere(IpAddr),
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
    #[error("cannot tell which program this is")]
    Program(#[source] std::io::Error),
}

/// Machines on this host that boot an ignition file
#[derive(Debug, Args)]
pub struct MachineArgs {
    /// Directory that holds the installation, or the machines
    #[arg(long, default_value = ".", global = true)]
    dir: PathBuf,
    #[command(subcommand)]
    command: MachineCommand,
}

#[derive(Debug, Subcommand)]
enum MachineCommand {
    /// Lists the machines and what they do
    List {
        /// Print JSON
        #[arg(short, long, value_parser = ["json", "text"], default_value = "text")]
        output: String,
    },
    /// Makes a machine that boots from an ignition file, without starting it
    Create {
        /// Name of the machine
        name: String,
        /// The file it boots from; without one it boots as it is
        #[arg(long, value_name = "FILE")]
        ignition: Option<PathBuf>,
        /// Its address; by default the next free one
        #[arg(long)]
        address: Option<IpAddr>,
        /// Network of the first machine's directory
        #[arg(long, value_name = "CIDR", default_value = "192.168.126.0/24")]
        network: IpNet,
        /// Memory it may use, in MiB
        #[arg(long, default_value_t = 0)]
        memory: u64,
        /// Processors it may use
        #[arg(long, default_value_t = 0)]
        cpus: u64,
        /// A port of the host's loopback that leads to one of the machine's: HOST_PORT:PORT
        #[arg(long, value_name = "HOST:PORT", value_parser = ports)]
        publish: Vec<(u16, u16)>,
    },
    /// Boots a machine
    Start { name: String },
    /// Powers a machine off
    Stop {
        name: String,
        /// Seconds to wait
        #[arg(long, default_value_t = 120)]
        timeout: u64,
    },
    /// Boots a machine again
    Reboot {
        name: String,
        /// Seconds to wait
        #[arg(long, default_value_t = 120)]
        timeout: u64,
    },
    /// Cuts a machine's power
    Kill { name: String },
    /// Runs a program on a machine
    Exec {
        name: String,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Shows what a machine prints while it boots and goes down
    Console { name: String },
    /// Shows the journal of a machine, running or not
    Logs {
        name: String,
        /// Only of these units
        #[arg(short, long)]
        unit: Vec<String>,
        /// Go on as messages come
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines
        #[arg(short = 'n', long)]
        tail: Option<usize>,
        /// short, cat or json
        #[arg(short, long, default_value = "short", value_parser = ["short", "cat", "json"])]
        output: String,
    },
    /// Removes a machine that is not running, with its disks
    Remove { name: String },
    /// Ends and removes all machines of the directory
    Destroy,
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let (host, port) = text.split_once(':').ok_or("expected HOST_PORT:PORT")?;
    let number = |text: &str| text.parse::<u16>().map_err(|error| error.to_string());
    Ok((number(host)?, number(port)?))
}

impl MachineArgs {
    /// Does it.
    pub fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let dir = self.dir.as_path();
        let open = || Cluster::open(dir);
        match self.command {
            MachineCommand::List { output } => list(&open()?, &output, out),
            MachineCommand::Create { name, ignition, address, network, memory, cpus, publish } => {
                let config = match &ignition {
                    Some(path) => std::fs::read(path).map_err(|error| CliError::Read(path.clone(), error))?,
                    None => br#"{"ignition":{"version":"3.4.0"}}"#.to_vec(),
                };
                let wanted = Wanted { name, address, network, memory, cpus, publish };
                let machine = create(dir, &wanted, &config)?;
                let address = machine.addresses.first().map(|net| net.addr().to_string()).unwrap_or_default();
                Ok(writeln!(out, "machine {} created with address {address}", machine.name)?)
            }
            MachineCommand::Start { name } => {
                open()?.start(&name)?;
                Ok(writeln!(out, "machine {name} started")?)
            }
            MachineCommand::Stop { name, timeout } => {
                open()?.stop(&name, Duration::from_secs(timeout))?;
                Ok(writeln!(out, "machine {name} stopped")?)
            }
            MachineCommand::Reboot { name, timeout } => {
                open()?.reboot(&name, Duration::from_secs(timeout))?;
                Ok(writeln!(out, "machine {name} rebooting")?)
            }
            MachineCommand::Kill { name } => {
                open()?.kill(&name)?;
                Ok(writeln!(out, "machine {name} killed")?)
            }
            MachineCommand::Exec { name, command } => {
                let cluster = open()?;
                let place = cluster.place(&name)?;
                let Some((program, args)) = command.split_first() else { return Ok(()) };
                let program = program.to_string_lossy().into_owned();
                let status = exec::exec(&place, &cluster.shared().id, &program, args)?;
                match status.success() {
                    true => Ok(()),
                    false => Err(CliError::Status { program, code: exit_code(status) }),
                }
            }
            MachineCommand::Console { name } => {
                let place = open()?.place(&name)?;
                let path = place.console();
                let text = std::fs::read(&path).map_err(|error| CliError::Read(path, error))?;
                Ok(out.write_all(&text)?)
            }
            MachineCommand::Logs { name, unit, follow, tail, output } => {
                let place = open()?.place(&name)?;
                let filter = Filter { units: unit.iter().map(|name| full_name(name)).collect(), boot: None };
                let show = Show { machine: name, output };
                Ok(show.journal(place.path(), filter, tail, follow)?)
            }
            MachineCommand::Remove { name } => {
                open()?.remove(&name)?;
                Ok(writeln!(out, "machine {name} removed")?)
            }
            MachineCommand::Destroy => {
                open()?.destroy()?;
                Ok(writeln!(out, "machines removed")?)
            }
        }
    }
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

fn list(cluster: &Cluster, output: &str, out: &mut dyn Write) -> Result<(), CliError> {
    let mut seen = Vec::new();
    for place in cluster.places()? {
        seen.push(cluster.seen(&place)?);
    }
    if output == "json" {
        return Ok(writeln!(out, "{}", serde_json::to_string_pretty(&seen).unwrap_or_default())?);
    }
    writeln!(out, "{:<20} {:<10} {:<16} {:<10} {:<6} DETAIL", "NAME", "ROLE", "ADDRESS", "STATE", "BOOTS")?;
    for one in seen {
        let address = one.machine.addresses.first().map(|net| net.addr().to_string()).unwrap_or_default();
        let role = if one.machine.role.is_empty() { "-" } else { &one.machine.role };
        writeln!(
            out,
            "{:<20} {:<10} {:<16} {:<10} {:<6} {}",
            one.machine.name, role, address, one.state, one.boots, one.detail
        )?;
    }
    Ok(())
}

/// A machine to be made by hand.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Wanted {
    pub name: String,
    pub address: Option<IpAddr>,
    pub network: IpNet,
    pub memory: u64,
    pub cpus: u64,
    pub publish: Vec<(u16, u16)>,
}

/// Makes a machine, and what machines of the directory share if it is the first.
pub fn create(dir: &Path, wanted: &Wanted, config: &[u8]) -> Result<Machine, CliError> {
    let program = std::env::current_exe().map_err(CliError::Program)?;
    let mut shared = match Cluster::open(dir) {
        Ok(cluster) => cluster.shared().clone(),
        Err(ClusterError::Absent(_)) => Shared {
            id: new_id(),
            domain: "machines.local".to_owned(),
            addresses: wanted
                .network
                .hosts()
                .take(1)
                .filter_map(|host| IpNet::new(host, wanted.network.prefix_len()).ok())
                .collect(),
            records: Vec::new(),
            forwards: Vec::new(),
            load_balancer: None,
        },
        Err(error) => return Err(error.into()),
    };
    let Some(router) = shared.addresses.first().copied() else { return Err(CliError::Full(wanted.network)) };
    let network = router.trunc();
    let taken: Vec<IpAddr> =
        shared.records.iter().flat_map(|record| record.addresses.clone()).chain([router.addr()]).collect();
    let address = match wanted.address {
        Some(address) if network.contains(&address) => address,
        Some(address) => return Err(CliError::Elsewhere(address)),
        // The first ones are for what is not a machine.
        None => network.hosts().skip(99).find(|host| !taken.contains(host)).ok_or(CliError::Full(network))?,
    };
    shared.records.push(crate::cluster::Record { name: wanted.name.clone(), addresses: vec![address] });
    for (host, port) in &wanted.publish {
        let listen = (std::net::Ipv4Addr::LOCALHOST, *host).into();
        shared.forwards.push(Forward { listen, to: (address, *port).into() });
    }
    let machine = Machine {
        name: wanted.name.clone(),
        role: String::new(),
        addresses: IpNet::new(address, network.prefix_len()).into_iter().collect(),
        gateways: vec![router.addr()],
        nameservers: vec![router.addr()],
        search: vec![shared.domain.clone()],
        memory_mib: wanted.memory,
        cpus: wanted.cpus,
    };
    let cluster = Cluster::ensure(dir, shared, &program)?;
    cluster.add(&machine, config)?;
    Ok(machine)
}

/// A name that no other cluster of this host has.
fn new_id() -> String {
    let mut bytes = [0; 5];
    // The kernel always has some; a failure leaves zeros, which the switch's directory then refuses to share.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("m-{hex}")
}
