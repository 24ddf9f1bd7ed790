//! Running a program on a machine from the host: into its namespaces and its control group, and then the program.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::process::{Command, ExitStatus, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};
use thiserror::Error;

use super::{Place, cgroup};
use crate::sys::{self, Preparation};

/// Why nothing was run.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum ExecError {
    #[error("machine {0} is not running")]
    NotRunning(String),
    #[error("cannot enter machine {0}")]
    Enter(String, #[source] io::Error),
    #[error("cannot run {program} on machine {machine}")]
    Run {
        machine: String,
        program: String,
        #[source]
        source: io::Error,
    },
}

/// Runs a program with our own streams and waits for it.
pub fn exec(place: &Place, cluster: &str, program: &str, args: &[OsString]) -> Result<ExitStatus, ExecError> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::inherit());
    run(place, cluster, program, command, |command| command.status())
}

/// Runs a program and gives what it wrote.
pub fn output(
    place: &Place,
    cluster: &str,
    program: &str,
    args: &[&str],
) -> Result<std::process::Output, ExecError> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    run(place, cluster, program, command, |command| command.output())
}

fn run<T: Send>(
    place: &Place,
    cluster: &str,
    program: &str,
    mut command: Command,
    work: impl FnOnce(&mut Command) -> io::Result<T> + Send,
) -> Result<T, ExecError> {
    let name = place.name();
    let process = place.process().ok_or_else(|| ExecError::NotRunning(name.clone()))?;
    let enter = |error: io::Error| ExecError::Enter(name.clone(), error);
    let pid = Pid::from_raw(process.pid).ok_or_else(|| ExecError::NotRunning(name.clone()))?;
    let descriptor = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| enter(errno.into()))?;
    // A number that was given to another process meanwhile is noticed here.
    if !process.lives() {
        return Err(ExecError::NotRunning(name));
    }
    // Not in the group's own namespace root, which a version 2 hierarchy wants empty. Only the program joins, from
    // inside, not we.
    cgroup::Group::new(cluster, Some(&format!("{name}/exec.scope"))).create().map_err(enter)?;
    let own = std::fs::read_to_string("/proc/self/cgroup").map_err(enter)?;
    let groups = crate::init::mounts::group_files(&own, "exec.scope");
    let groups = groups.into_iter().filter_map(|path| CString::new(path).ok()).collect();
    sys::prepare(&mut command, Preparation { groups, umask: 0o022, ..Preparation::default() });
    command
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin")
        .env("HOME", "/root")
        .env("TERM", std::env::var_os("TERM").unwrap_or_default());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // A thread that shares its root directory with others may not change its mounts.
            sys::unshare(UnshareFlags::FS).map_err(enter)?;
            let spaces = ThreadNameSpaceType::MOUNT
                | ThreadNameSpaceType::PROCESS_ID
                | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
                | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
                | ThreadNameSpaceType::NETWORK
                | ThreadNameSpaceType::CONTROL_GROUP;
            move_into_thread_name_spaces(descriptor.as_fd(), spaces).map_err(|errno| enter(errno.into()))?;
            std::env::set_current_dir("/").map_err(enter)?;
            work(&mut command).map_err(|source| ExecError::Run {
                machine: name.clone(),
                program: program.to_owned(),
                source,
            })
        });
        match thread.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
