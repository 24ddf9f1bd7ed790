//! Processes of units: starting them, hearing what they say, and learning how they end.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::WaitOptions;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::manager::Manager;
use super::restart::End;
use super::{host, service};
use crate::journal::{LONGEST_LINE, level};
use crate::sys::{self, Preparation};
use crate::unit;
use crate::unit::{Output, Service, Unit};

/// Children by number, and who waits for them.
#[derive(Debug, Default)]
pub struct Reaper {
    waiting: Mutex<HashMap<i32, oneshot::Sender<End>>>,
}

impl Reaper {
    /// Hears of the end of a process that was not reaped yet.
    pub fn watch(&self, pid: i32) -> oneshot::Receiver<End> {
        let (tell, hear) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, tell);
        hear
    }

    /// Reaps everything that ended, ours or orphaned. Says whether there was anything.
    pub fn reap(&self) -> bool {
        let mut any = false;
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            any = true;
            let end = match (status.exit_status(), status.terminating_signal()) {
                (_, Some(signal)) => End::Signaled(signal),
                (code, None) => End::Exited(code.unwrap_or_default()),
            };
            let waiter = self
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&pid.as_raw_nonzero().get());
            if let Some(tell) = waiter {
                // Who no longer waits does not want to know.
                let _ = tell.send(end);
            }
        }
        any
    }
}

/// A running process of a unit.
#[derive(Debug)]
pub struct Process {
    pub pid: i32,
    pub end: oneshot::Receiver<End>,
}

impl Process {
    /// Waits for the end. One that nobody can tell about any more is gone.
    pub async fn ended(&mut self) -> End {
        (&mut self.end).await.unwrap_or(End::Exited(0))
    }
}

/// Variables of a unit's processes.
pub fn environment(
    service: &Service,
    extra: &[(String, String)],
) -> Result<BTreeMap<String, String>, String> {
    let mut out = BTreeMap::from([
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    if let Some(user) = &service.user
        && let Some((_, _, home)) = host::account(user)
    {
        out.extend([
            ("HOME".to_owned(), home),
            ("USER".to_owned(), user.clone()),
            ("LOGNAME".to_owned(), user.clone()),
        ]);
    }
    for directory in &service.directories {
        let name = match directory.kind {
            "RuntimeDirectory" => "RUNTIME_DIRECTORY",
            "StateDirectory" => "STATE_DIRECTORY",
            "CacheDirectory" => "CACHE_DIRECTORY",
            "LogsDirectory" => "LOGS_DIRECTORY",
            _ => "CONFIGURATION_DIRECTORY",
        };
        let list: &mut String = out.entry(name.to_owned()).or_default();
        if !list.is_empty() {
            list.push(':');
        }
        list.push_str(&directory.path);
    }
    for name in &service.pass_environment {
        if let Ok(value) = std::env::var(name) {
            out.insert(name.clone(), value);
        }
    }
    out.extend(service.environment.iter().cloned());
    for file in &service.environment_files {
        match crate::files::read_bounded(file.path.as_ref(), 1 << 20) {
            Ok(Some(text)) => out.extend(unit::command::environment_file(&String::from_utf8_lossy(&text))),
            Ok(None) if file.may_be_absent => {}
            Ok(None) => return Err(format!("environment file {} is not there", file.path)),
            Err(error) => return Err(format!("cannot read environment file {}: {error}", file.path)),
        }
    }
    out.extend(extra.iter().cloned());
    Ok(out)
}

/// Starts a command of a unit.
pub fn spawn(
    manager: &Manager,
    unit: &Unit,
    service: &Service,
    command: &unit::Command,
    extra: &[(String, String)],
) -> Result<Process, String> {
    let environment = environment(service, extra)?;
    let mut child = Command::new(&command.program);
    child.arg0(command.name.as_deref().unwrap_or(&command.program)).args(command.expanded(&environment));
    child.env_clear().envs(&environment);
    let directory = service.working_directory.as_ref();
    match directory.filter(|(path, may_be_absent)| !may_be_absent || std::path::Path::new(path).is_dir()) {
        Some((path, _)) => child.current_dir(path),
        None => child.current_dir("/"),
    };
    let identity = match (&service.user, &service.group) {
        _ if command.privileged => None,
        (None, None) => None,
        (user, group) => Some(identity(user.as_deref(), group.as_deref())?),
    };
    let preparation = Preparation {
        new_session: true,
        groups: manager.groups.create(&unit.name, service.tasks_max),
        limits: service.limits.clone(),
        umask: service.umask,
        nice: service.nice,
        oom_score_adjust: service.oom_score_adjust,
        identity,
    };
    child.stdin(Stdio::null());
    let mut readers = Vec::new();
    let (stdout, reader) = stream(&service.stdout).map_err(|error| format!("cannot make a pipe: {error}"))?;
    readers.extend(reader);
    match &service.stderr {
        None => child.stderr(duplicate(&stdout).map_err(|error| error.to_string())?),
        Some(output) => {
            let (stderr, reader) = stream(output).map_err(|error| format!("cannot make a pipe: {error}"))?;
            readers.extend(reader);
            child.stderr(stderr.map_or_else(Stdio::null, Stdio::from))
        }
    };
    child.stdout(stdout.map_or_else(Stdio::null, Stdio::from));
    sys::prepare(&mut child, preparation);
    let process = child.spawn().map_err(|error| format!("cannot run {}: {error}", command.program))?;
    // Our copies of the writing ends go now, so that the streams end with the processes.
    drop(child);
    let pid = process.id().cast_signed();
    let end = manager.reaper.watch(pid);
    let identifier = service.identifier.clone().unwrap_or_else(|| service::base_name(&command.program));
    for reader in readers {
        manager.listen(&unit.name, &identifier, pid, reader, service.stdout == Output::Console);
    }
    Ok(Process { pid, end })
}

fn identity(user: Option<&str>, group: Option<&str>) -> Result<(u32, u32, Vec<u32>), String> {
    let (uid, own) = match user {
        Some(name) => {
            let (uid, gid, _) = host::account(name).ok_or_else(|| format!("there is no user {name}"))?;
            (uid, gid)
        }
        None => (0, 0),
    };
    let gid = match group {
        Some(name) => host::group(name).ok_or_else(|| format!("there is no group {name}"))?,
        None => own,
    };
    Ok((uid, gid, host::memberships(user.unwrap_or("root"), gid)))
}

/// The writing end for a child, and the reading end if the journal wants it.
fn stream(output: &Output) -> io::Result<(Option<OwnedFd>, Option<OwnedFd>)> {
    Ok(match output {
        Output::Null => (None, None),
        Output::Journal | Output::Console => {
            let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
            (Some(writer), Some(reader))
        }
        Output::File { path, append } => {
            let file =
                OpenOptions::new().create(true).write(true).append(*append).truncate(!append).open(path)?;
            (Some(file.into()), None)
        }
    })
}

fn duplicate(stream: &Option<OwnedFd>) -> io::Result<Stdio> {
    Ok(match stream {
        Some(fd) => Stdio::from(fd.try_clone()?),
        None => Stdio::null(),
    })
}

/// Takes a stream apart into messages until it ends.
pub async fn read_lines(reader: OwnedFd, mut take: impl FnMut(u8, &str)) {
    // The pipe was made here, and tokio takes any pipe.
    let Ok(mut reader) = pipe::Receiver::from_owned_fd(reader) else { return };
    let mut pending: Vec<u8> = Vec::new();
    let mut chunk = vec![0; 8192];
    loop {
        let read = match reader.read(&mut chunk).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        pending.extend_from_slice(&chunk[..read]);
        while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            say(&line[..end], &mut take);
        }
        if pending.len() >= LONGEST_LINE {
            let line = std::mem::take(&mut pending);
            say(&line, &mut take);
        }
    }
    if !pending.is_empty() {
        say(&pending, &mut take);
    }
}

fn say(line: &[u8], take: &mut impl FnMut(u8, &str)) {
    let text = String::from_utf8_lossy(line);
    let (priority, text) = level(text.trim_end());
    take(priority, text);
}
