//! PID 1 of a machine: mounts what the kernel gives, applies the ignition file once, runs units until it is told to
//! stop, reaps what nobody waits for.
//!
//! One thread, on purpose: a process that forks and prepares its children must not have others.

mod control;
mod fetch;
mod firstboot;
mod groups;
mod host;
mod manager;
pub(crate) mod mounts;
mod process;
mod restart;
mod service;
mod timer;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use control::{Reply, Request, UnitStatus, call};

use crate::journal::Journal;
use crate::unit::Specifiers;
use manager::Manager;

/// Where the host sees what the machine does: a directory that it shares with it.
pub const SHARED: &str = "/run/machine";
/// Where the ignition file is at first boot.
pub const CONFIG: &str = "/run/ignition/user.ign";
/// Written when the ignition file was applied.
pub const RESULT: &str = "/etc/.ignition-result.json";
/// What a machine boots into.
pub const DEFAULT_TARGET: &str = "default.target";

/// How far a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Phase {
    Booting,
    Ignition,
    Starting,
    Running,
    Degraded,
    Emergency,
    Stopping,
}

/// What a machine says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// How far it is.
    pub phase: Phase,
    /// What it waits for, or what went wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// This boot.
    pub boot_id: String,
}

/// Tells the host how far the machine is.
#[derive(Debug, Clone)]
pub struct Reporter {
    boot_id: String,
}

impl Reporter {
    fn report(&self, phase: Phase, detail: &str) {
        let status = Status { phase, detail: detail.to_owned(), boot_id: self.boot_id.clone() };
        let text = serde_json::to_vec(&status).unwrap_or_default();
        // Nobody may be looking; the machine boots all the same.
        let _ = crate::files::replace(&Path::new(SHARED).join("status.json"), &text, 0o644);
        if !detail.is_empty() {
            println!("{phase:?}: {detail}");
        }
    }
}

/// Why a machine went down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Down {
    Poweroff,
    Reboot,
}

/// Runs a machine. Returns only if it could not.
pub fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("error: init is the first process of a machine and nothing else");
        return ExitCode::FAILURE;
    }
    match boot() {
        Ok(down) => {
            let command = match down {
                Down::Poweroff => rustix::system::RebootCommand::PowerOff,
                Down::Reboot => rustix::system::RebootCommand::Restart,
            };
            rustix::fs::sync();
            // In a PID namespace this ends init with a signal that tells its parent which of the two was meant.
            if let Err(errno) = rustix::system::reboot(command) {
                eprintln!("cannot go down: {errno}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot boot: {}", telemetry::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

type BootError = Box<dyn std::error::Error>;

fn boot() -> Result<Down, BootError> {
    mounts::mount_kernel_files()?;
    let boot_id = host::read_line("/proc/sys/kernel/random/uuid").replace('-', "");
    let reporter = Reporter { boot_id: boot_id.clone() };
    reporter.report(Phase::Booting, "");
    host::set_hostname()?;
    mounts::make_directories()?;
    let machine_id = host::machine_id()?;
    let mut journal = Journal::open(Path::new("/"), &boot_id)?;
    journal.write(
        "init.scope",
        "init",
        Some(1),
        6,
        &format!("booting, machine {machine_id}, boot {boot_id}"),
    );
    let mut first_boot = false;
    if !Path::new(RESULT).exists() {
        first_boot = true;
        if let Err(error) = firstboot::run(&reporter, &mut journal) {
            let text = telemetry::chain(&error).to_string();
            journal.write("ignition.service", "ignition", Some(1), 2, &text);
            return manager::wait_for_orders(|| reporter.report(Phase::Emergency, &text));
        }
        host::set_hostname()?;
    }
    let groups = groups::Groups::prepare();
    let specifiers = Specifiers { unit: String::new(), hostname: host::hostname(), machine_id, boot_id };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async move {
        let manager = Arc::new(Manager::new(specifiers, journal, groups, reporter)?);
        if first_boot {
            manager.apply_presets();
        }
        Ok(manager.run().await?)
    })
}
