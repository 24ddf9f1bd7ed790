//! The monitor of a machine: its parent on the host. It boots the machine, boots it again when it asks for that, and
//! writes down why it went down. It outlives the command that started it, and the machine outlives it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use thiserror::Error;

use super::boot::{self, BootError, Surroundings};
use super::{Phase, Place, ProcessId, State};
use crate::cluster::pause;
use crate::sys::{self, Preparation};

/// The word that makes the binary a monitor.
pub const WORD: &str = "machine-monitor";

/// What a monitor tells whoever started it: that the machine boots, or that another monitor has it.
const STARTED: &str = "started";
const RUNNING: &str = "running";

/// How long another monitor may take from its lock to the machine's first process.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);

/// Why a machine could not be started.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum MonitorError {
    #[error("machine {0} has a monitor already")]
    Running(String),
    #[error("cannot read or write {}", .0.display())]
    Io(std::path::PathBuf, #[source] io::Error),
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error("cannot start the monitor of machine {0}")]
    Spawn(String, #[source] io::Error),
    #[error("machine {name} did not start: {reason}")]
    Failed { name: String, reason: String },
}

/// What the end of PID 1 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Reboot,
    Poweroff,
    Crash,
}

/// How the kernel tells a PID namespace's parent what was meant: by the signal that ended its init.
fn outcome_of(status: ExitStatus) -> Outcome {
    match status.signal() {
        Some(libc::SIGHUP) => Outcome::Reboot,
        Some(libc::SIGINT) => Outcome::Poweroff,
        _ => Outcome::Crash,
    }
}

/// Starts a monitor in the background and waits until the machine boots.
pub fn start(place: &Place, around: &Surroundings, program: &Path) -> Result<(), MonitorError> {
    let name = place.name();
    let fail = |error| MonitorError::Spawn(name.clone(), error);
    let log_path = place.path().join("monitor.log");
    let log = fs::OpenOptions::new().create(true).append(true).open(&log_path).map_err(fail)?;
    let mut command = Command::new(program);
    command
        .args([
            OsString::from(WORD),
            place.path().into(),
            around.cluster.clone().into(),
            around.os.clone().into(),
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log);
    sys::prepare(&mut command, Preparation { new_session: true, umask: 0o022, ..Preparation::default() });
    let mut child = command.spawn().map_err(fail)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        io::BufReader::new(stdout.take(1 << 16)).read_line(&mut line).map_err(fail)?;
    }
    match line.trim() {
        STARTED => Ok(()),
        RUNNING => {
            let _ = child.wait();
            Err(MonitorError::Running(name))
        }
        reason => {
            // It says why and ends.
            let _ = child.wait();
            let reason = if reason.is_empty() { "see monitor.log in its directory" } else { reason };
            Err(MonitorError::Failed { name, reason: reason.to_owned() })
        }
    }
}

/// Is a monitor: `machine-monitor DIRECTORY CLUSTER OS`.
pub fn main(args: &[OsString]) -> ExitCode {
    let [directory, cluster, os] = args else {
        eprintln!("error: {WORD} is started by `kelson machine start`");
        return ExitCode::FAILURE;
    };
    let around = Surroundings { cluster: cluster.to_string_lossy().into_owned(), os: os.into() };
    match run(&Place::new(directory), &around) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = telemetry::chain(&error).to_string();
            let told = match error {
                MonitorError::Running(_) => RUNNING.to_owned(),
                _ => text.replace('\n', " "),
            };
            // Whoever started us reads the first; the log has the second.
            let _ = writeln!(io::stdout(), "{told}");
            eprintln!("{}: {text}", Timestamp::now());
            ExitCode::FAILURE
        }
    }
}

fn run(place: &Place, around: &Surroundings) -> Result<(), MonitorError> {
    let fail = |error| MonitorError::Io(place.path().to_owned(), error);
    let _lock = lock(place).map_err(fail)?.ok_or_else(|| MonitorError::Running(place.name()))?;
    let mut boots = place.state().map_err(fail)?.map_or(0, |state| state.boots);
    let mut told = false;
    let mut adopted = place.process();
    loop {
        let outcome = match adopted.take() {
            // Its monitor died before it did. It was not our child, so how it ends is not told; what it wrote is.
            Some(process) => {
                tell(&mut told);
                wait_for_stranger(process);
                Outcome::Crash
            }
            None => {
                let machine = place.machine().map_err(fail)?;
                let child = match boot::boot(place, &machine, around) {
                    Ok(child) => child,
                    Err(error) => {
                        let reason = telemetry::chain(&error).to_string();
                        set(place, Phase::Crashed, None, boots, &reason).map_err(fail)?;
                        return Err(error.into());
                    }
                };
                boots += 1;
                let process = ProcessId::of(child.id().cast_signed());
                set(place, Phase::Running, process, boots, "").map_err(fail)?;
                tell(&mut told);
                wait(child).map_err(fail)?
            }
        };
        match outcome {
            Outcome::Reboot => {}
            Outcome::Poweroff => return set(place, Phase::Stopped, None, boots, "powered off").map_err(fail),
            Outcome::Crash => {
                return set(place, Phase::Crashed, None, boots, "its first process was killed").map_err(fail);
            }
        }
    }
}

/// Becomes the machine's monitor, or finds that a machine with a monitor runs. One whose lock is held but that does
/// not run is just being booted by another, whose starter may have been killed meanwhile, or somebody only looks:
/// which of the two it becomes is waited for.
fn lock(place: &Place) -> io::Result<Option<fs::File>> {
    let deadline = Instant::now() + BOOT_PATIENCE;
    loop {
        if let Some(lock) = place.lock()? {
            return Ok(Some(lock));
        }
        if place.process().is_some() || Instant::now() > deadline {
            return Ok(None);
        }
        pause();
    }
}

fn tell(told: &mut bool) {
    if !*told {
        *told = true;
        // Whoever started us may have gone.
        let _ = writeln!(io::stdout(), "{STARTED}");
        let _ = io::stdout().flush();
    }
}

fn wait(mut child: Child) -> io::Result<Outcome> {
    Ok(outcome_of(child.wait()?))
}

fn wait_for_stranger(process: ProcessId) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // Between looking and opening it may have gone; its successor of that number is not waited for.
    if process.lives() {
        let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None);
    }
}

fn set(place: &Place, phase: Phase, process: Option<ProcessId>, boots: u64, reason: &str) -> io::Result<()> {
    place.set_state(&State { phase, process, boots, since: Timestamp::now(), reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signal_tells_a_reboot_from_a_poweroff_and_both_from_a_crash() {
        assert_eq!(outcome_of(ExitStatus::from_raw(libc::SIGHUP)), Outcome::Reboot);
        assert_eq!(outcome_of(ExitStatus::from_raw(libc::SIGINT)), Outcome::Poweroff);
        assert_eq!(outcome_of(ExitStatus::from_raw(libc::SIGKILL)), Outcome::Crash);
        assert_eq!(outcome_of(ExitStatus::from_raw(0)), Outcome::Crash);
    }
}
