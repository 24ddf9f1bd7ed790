//! A machine as the host sees it: a directory with what it is made of, what it is doing, and its disks.

pub mod boot;
pub mod cgroup;
pub mod exec;
pub mod monitor;
pub mod os;

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::init::Status;

/// What a machine is made of: `machine.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Machine {
    /// Its name among the machines of its cluster.
    pub name: String,
    /// What it is for; free text.
    #[serde(default)]
    pub role: String,
    /// Its addresses on the switch, with the networks' prefixes.
    pub addresses: Vec<IpNet>,
    /// Its routers.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
    /// Its name servers.
    #[serde(default)]
    pub nameservers: Vec<IpAddr>,
    /// Where it looks for names without dots.
    #[serde(default)]
    pub search: Vec<String>,
    /// How much memory it may use; no limit if zero.
    #[serde(default)]
    pub memory_mib: u64,
    /// How many processors it may use; no limit if zero.
    #[serde(default)]
    pub cpus: u64,
}

impl Machine {
    /// Its hardware address: the same after every boot, different for each machine of a switch.
    pub fn mac(&self) -> [u8; 6] {
        let hash = ring::digest::digest(&ring::digest::SHA256, self.name.as_bytes());
        let hash = hash.as_ref();
        // Locally administered, for one station.
        [0x02, hash[0], hash[1], hash[2], hash[3], hash[4]]
    }
}

/// What the monitor knows: `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// What the machine does.
    pub phase: Phase,
    /// Its PID 1 as the host numbers it, and when that began (to tell it from another of the same number).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessId>,
    /// How often it booted.
    pub boots: u64,
    /// Since when.
    pub since: Timestamp,
    /// Why it is not running.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Whether a machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Phase {
    Running,
    Stopped,
    Crashed,
}

/// A process that cannot be mistaken for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct ProcessId {
    pub pid: i32,
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything, also spaces and brackets; what follows its last bracket does not.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        if matches!(fields.first(), Some(&"Z" | &"X")) {
            return None;
        }
        Some(Self { pid, started: fields.get(19)?.parse().ok()? })
    }

    /// Whether it still lives.
    pub fn lives(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now == *self)
    }
}

/// The directory of a machine.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
}

impl Place {
    /// At a path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What it is made of.
    pub fn machine(&self) -> io::Result<Machine> {
        let path = self.file("machine.json");
        let text = crate::files::read_bounded(&path, 1 << 20)?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", path.display()))
        })?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Writes what it is made of.
    pub fn set_machine(&self, machine: &Machine) -> io::Result<()> {
        crate::files::replace(&self.file("machine.json"), &serde_json::to_vec_pretty(machine)?, 0o600)
    }

    /// The file that it boots from.
    pub fn ignition(&self) -> PathBuf {
        self.file("config.ign")
    }

    /// What its PID 1 writes: its console.
    pub fn console(&self) -> PathBuf {
        self.file("console.log")
    }

    /// What the monitor last knew.
    pub fn state(&self) -> io::Result<Option<State>> {
        match crate::files::read_bounded(&self.file("state.json"), 1 << 20)? {
            Some(text) => Ok(Some(serde_json::from_slice(&text)?)),
            None => Ok(None),
        }
    }

    fn set_state(&self, state: &State) -> io::Result<()> {
        crate::files::replace(&self.file("state.json"), &serde_json::to_vec(state)?, 0o644)
    }

    /// What the machine says of itself.
    pub fn status(&self) -> Option<Status> {
        let text = crate::files::read_bounded(&self.file("shared/status.json"), 1 << 16).ok()??;
        serde_json::from_slice(&text).ok()
    }

    /// Its PID 1, if it lives.
    pub fn process(&self) -> Option<ProcessId> {
        self.state().ok()??.process.filter(ProcessId::lives)
    }

    /// Takes the right to be the monitor; `None` if there is one.
    pub fn lock(&self) -> io::Result<Option<std::fs::File>> {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(self.file("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Whether a text can be a machine's name: a label of a host name, which is also a file's name.
pub fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}
