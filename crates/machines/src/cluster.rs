//! The machines of one directory: what they share (operating system, switch, services), and starting and ending them.
//!
//! Everything is below `DIR/local`: `cluster.json`, `os/` (the tree that all boot from) and `machines/NAME/`. What is
//! outside of it carries the cluster's id: control groups `kelson/ID`, and `/run/kelson/clusters/ID`.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::machine::boot::Surroundings;
use crate::machine::monitor::{self, MonitorError};
use crate::machine::{Machine, Phase, Place, ProcessId, State, cgroup, is_name, os};
use crate::switch::{Switch, SwitchError};
use crate::{network, sys};

/// Why the machines are not as they should be.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ClusterError {
    #[error("there are no machines in {}", .0.display())]
    Absent(PathBuf),
    #[error("there is no machine {0}")]
    NoMachine(String),
    #[error("machine {0} is there already")]
    Exists(String),
    #[error("{0:?} is not a machine's name: lower-case letters, digits and dashes")]
    Name(String),
    #[error("machine {0} is running")]
    Running(String),
    #[error("machine {0} is not running")]
    NotRunning(String),
    #[error("machine {0} does not go down")]
    Stubborn(String),
    #[error("cannot use {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error(transparent)]
    Network(#[from] network::NetworkError),
    #[error("cannot remove the control groups of the machines")]
    Groups(#[source] io::Error),
    #[error("machines need root: namespaces, mounts and control groups")]
    NotRoot,
}

/// What all machines share: `cluster.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Shared {
    /// Unique on this host; part of every name outside the directory.
    pub id: String,
    /// Below which the names of `records` are.
    #[serde(default)]
    pub domain: String,
    /// Addresses of the switch itself: router, name server, load balancer.
    pub addresses: Vec<IpNet>,
    /// Names that the name server knows. `*.x` stands for every name directly below `x`.
    #[serde(default)]
    pub records: Vec<Record>,
    /// Ports of the host's loopback that lead to the machines' network.
    #[serde(default)]
    pub forwards: Vec<Forward>,
    /// Load balancer configuration, a file below the cluster's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<PathBuf>,
}

/// A name and its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Record {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// A port of the host that leads to the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Forward {
    pub listen: SocketAddr,
    pub to: SocketAddr,
}

/// What is seen of a machine.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Seen {
    /// What it is made of.
    #[serde(flatten)]
    pub machine: Machine,
    /// One word: running, degraded, emergency, stopped, crashed, …
    pub state: String,
    /// What it waits for, or what went wrong.
    pub detail: String,
    /// Its first process.
    pub pid: Option<i32>,
    /// How often it booted.
    pub boots: u64,
}

/// A directory's machines.
#[derive(Debug, Clone)]
pub struct Cluster {
    base: PathBuf,
    shared: Shared,
}

fn at<'a>(path: &'a Path) -> impl FnOnce(io::Error) -> ClusterError + 'a {
    move |source| ClusterError::Io { path: path.to_owned(), source }
}

impl Cluster {
    /// Opens what is there.
    pub fn open(dir: &Path) -> Result<Self, ClusterError> {
        let base = absolute(dir)?.join("local");
        let path = base.join("cluster.json");
        let text = crate::files::read_bounded(&path, 1 << 20)
            .map_err(at(&path))?
            .ok_or_else(|| ClusterError::Absent(dir.to_owned()))?;
        let shared = serde_json::from_slice(&text).map_err(|error| at(&path)(error.into()))?;
        Ok(Self { base, shared })
    }

    /// Opens or makes, with what machines are to share.
    pub fn ensure(dir: &Path, shared: Shared, program: &Path) -> Result<Self, ClusterError> {
        if !rustix::process::geteuid().is_root() {
            return Err(ClusterError::NotRoot);
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))?;
        let base = absolute(dir)?.join("local");
        let machines = base.join("machines");
        // The machines' disks hold keys: nobody but root goes in.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&machines).map_err(at(&machines))?;
        let tree = base.join("os");
        os::build(&tree, program).map_err(at(&tree))?;
        let cluster = Self { base, shared };
        cluster.save()?;
        Ok(cluster)
    }

    fn save(&self) -> Result<(), ClusterError> {
        let path = self.base.join("cluster.json");
        let text = serde_json::to_vec_pretty(&self.shared).map_err(|error| at(&path)(error.into()))?;
        crate::files::replace(&path, &text, 0o600).map_err(at(&path))
    }

    /// What the machines share.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Where everything is.
    pub fn base(&self) -> &Path {
        &self.base
    }

    fn program(&self) -> PathBuf {
        self.base.join("os/usr/bin/kelson")
    }

    fn around(&self) -> Surroundings {
        Surroundings { cluster: self.shared.id.clone(), os: self.base.join("os") }
    }

    /// The directory of a machine that is there.
    pub fn place(&self, name: &str) -> Result<Place, ClusterError> {
        if !is_name(name) {
            return Err(ClusterError::Name(name.to_owned()));
        }
        let path = self.base.join("machines").join(name);
        if !path.join("machine.json").exists() {
            return Err(ClusterError::NoMachine(name.to_owned()));
        }
        Ok(Place::new(path))
    }

    /// All machines by name.
    pub fn places(&self) -> Result<Vec<Place>, ClusterError> {
        let path = self.base.join("machines");
        let mut out = Vec::new();
        for entry in fs::read_dir(&path).map_err(at(&path))? {
            let entry = entry.map_err(at(&path))?;
            if entry.path().join("machine.json").exists() {
                out.push(Place::new(entry.path()));
            }
        }
        out.sort_by_key(Place::name);
        Ok(out)
    }

    /// Adds a machine that boots from an ignition file.
    pub fn add(&self, machine: &Machine, ignition: &[u8]) -> Result<Place, ClusterError> {
        let name = machine.name.as_str();
        if !is_name(name) {
            return Err(ClusterError::Name(name.to_owned()));
        }
        let path = self.base.join("machines").join(name);
        if path.join("machine.json").exists() {
            return Err(ClusterError::Exists(name.to_owned()));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(at(&path))?;
        let place = Place::new(path);
        crate::files::replace(&place.ignition(), ignition, 0o600).map_err(at(place.path()))?;
        place.set_machine(machine).map_err(at(place.path()))?;
        Ok(place)
    }

    /// Makes sure that the switch and its services run.
    pub fn ensure_network(&self) -> Result<(), ClusterError> {
        Switch::of(&self.shared.id).ensure(&self.shared.addresses)?;
        network::ensure(&self.base, &self.program())?;
        // One that ran already may know an older list of names and ports.
        Ok(network::reload(&self.base)?)
    }

    /// Boots a machine, or takes over one that lost its monitor.
    pub fn start(&self, name: &str) -> Result<(), ClusterError> {
        let place = self.place(name)?;
        if place.process().is_some() && place.lock().map_err(at(place.path()))?.is_none() {
            return Err(ClusterError::Running(name.to_owned()));
        }
        self.ensure_network()?;
        match monitor::start(&place, &self.around(), &self.program()) {
            Err(MonitorError::Running(name)) => Err(ClusterError::Running(name)),
            other => Ok(other?),
        }
    }

    /// Asks a machine to power off and waits until it did.
    pub fn stop(&self, name: &str, patience: Duration) -> Result<(), ClusterError> {
        self.signal(name, sys::poweroff_signal())?;
        self.wait_down(name, patience)
    }

    /// Asks a machine to boot again and waits until it goes down for that.
    pub fn reboot(&self, name: &str, patience: Duration) -> Result<(), ClusterError> {
        let process = self.signal(name, sys::reboot_signal())?;
        if wait_gone(process, patience) { Ok(()) } else { Err(ClusterError::Stubborn(name.to_owned())) }
    }

    /// Cuts a machine's power.
    pub fn kill(&self, name: &str) -> Result<(), ClusterError> {
        self.signal(name, libc::SIGKILL)?;
        self.wait_down(name, Duration::from_secs(30))
    }

    fn signal(&self, name: &str, signal: i32) -> Result<ProcessId, ClusterError> {
        let place = self.place(name)?;
        let gone = || ClusterError::NotRunning(name.to_owned());
        let process = place.process().ok_or_else(gone)?;
        let pid = Pid::from_raw(process.pid).ok_or_else(gone)?;
        let descriptor =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| at(place.path())(errno.into()))?;
        // A number that was given to another process meanwhile is noticed here.
        if !process.lives() {
            return Err(gone());
        }
        match signal {
            libc::SIGKILL => pidfd_send_signal(&descriptor, Signal::KILL).map_err(io::Error::from),
            // Real-time signals have no names; the descriptor above keeps the number from being another's.
            other => sys::kill(process.pid, other),
        }
        .map_err(at(place.path()))?;
        Ok(process)
    }

    /// Waits until the machine is down and its monitor has written that.
    fn wait_down(&self, name: &str, patience: Duration) -> Result<(), ClusterError> {
        let place = self.place(name)?;
        let deadline = Instant::now() + patience;
        if let Some(process) = place.process()
            && !wait_gone(process, patience)
        {
            return Err(ClusterError::Stubborn(name.to_owned()));
        }
        // The monitor holds its lock to the end; where there is none the state is as the machine left it.
        while Instant::now() < deadline {
            if place.lock().map_err(at(place.path()))?.is_some() {
                return Ok(());
            }
            pause();
        }
        Err(ClusterError::Stubborn(name.to_owned()))
    }

    /// What is seen of one machine.
    pub fn seen(&self, place: &Place) -> Result<Seen, ClusterError> {
        let machine = place.machine().map_err(at(place.path()))?;
        let state: Option<State> = place.state().map_err(at(place.path()))?;
        let pid = place.process().map(|process| process.pid);
        let status = place.status();
        let (word, detail) = match (pid, &state, status) {
            (Some(_), _, Some(status)) => (word(&status.phase), status.detail),
            (Some(_), _, None) => ("booting".to_owned(), String::new()),
            (None, None, _) => ("created".to_owned(), String::new()),
            (None, Some(state), _) => match state.phase {
                Phase::Running => ("crashed".to_owned(), "its monitor and it are gone".to_owned()),
                other => (word(&other), state.reason.clone()),
            },
        };
        Ok(Seen { machine, state: word, detail, pid, boots: state.map_or(0, |state| state.boots) })
    }

    /// Removes one machine that is not running, with its disks.
    pub fn remove(&self, name: &str) -> Result<(), ClusterError> {
        let place = self.place(name)?;
        if place.process().is_some() {
            return Err(ClusterError::Running(name.to_owned()));
        }
        cgroup::Group::new(&self.shared.id, Some(name)).remove().map_err(ClusterError::Groups)?;
        fs::remove_dir_all(place.path()).map_err(at(place.path()))
    }

    /// Ends all machines and removes everything, also outside the directory.
    pub fn destroy(self) -> Result<(), ClusterError> {
        let places = self.places()?;
        for place in &places {
            match self.kill(&place.name()) {
                Ok(()) | Err(ClusterError::NotRunning(_)) => {}
                Err(error) => return Err(error),
            }
        }
        network::stop(&self.base)?;
        // The kernel takes a moment to let go of a group whose last process was just reaped.
        let deadline = Instant::now() + Duration::from_secs(10);
        let group = cgroup::Group::new(&self.shared.id, None);
        while let Err(error) = group.remove() {
            if Instant::now() > deadline {
                return Err(ClusterError::Groups(error));
            }
            pause();
        }
        Switch::of(&self.shared.id).remove()?;
        fs::remove_dir_all(&self.base).map_err(at(&self.base))
    }
}

fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ClusterError> {
    path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ClusterError::Absent(path.to_owned()),
        _ => at(path)(error),
    })
}

/// A short rest between two looks at something that makes no sound.
pub(crate) fn pause() {
    let rest = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let _ = poll(&mut [], Some(&rest));
}

/// Waits for the end of a process that is not our child.
pub(crate) fn wait_gone(process: ProcessId, patience: Duration) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return true };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return !process.lives() };
    if !process.lives() {
        return true;
    }
    let patience =
        Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: i64::from(patience.subsec_nanos()) };
    matches!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&patience)), Ok(count) if count > 0)
}
