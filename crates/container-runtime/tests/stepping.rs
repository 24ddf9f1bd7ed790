//! Death after every system call.
//!
//! A process makes a pod and removes it again, under ptrace; at the n-th stop of a system call it is killed, or its shim is.
//! Then the next runtime must open, and a purge must leave nothing. `n` walks over the whole of it: every few stops
//! normally, every single one with `KELSON_EVERY_STEP=1`.
#![allow(unsafe_code)] // ptrace has no safe wrapper; it is used on processes that this file starts

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use container_runtime::Runtime;
use cri::RuntimeService;

use crate::fixture::{Fixture, config, eventually};

/// The word that makes the test binary the process that makes and removes a pod.
pub const STEP: &str = "step-process";
/// The word that makes it the one that watches and kills that.
pub const TRACE: &str = "trace-process";

/// How many stops are tried of a walk that is not complete.
const SAMPLES: u64 = 24;

crate::tests![
    the_runtime_may_die_after_every_system_call,
    the_shim_may_die_after_every_system_call,
    recovery_may_die_after_every_system_call,
];

/// Makes a pod with a container, runs a command in it, and removes it. Errors are expected: the shim may be killed.
pub async fn step(directory: &Path) -> ExitCode {
    let runtime = Runtime::open(config(directory)).await.unwrap();
    let logs = directory.join("scratch");
    fs::create_dir_all(&logs).unwrap();
    let fixture = Fixture { directory: tempfile::TempDir::new_in(&logs).unwrap(), runtime };
    let _ = rustix::process::getpriority_process(None); // where the counting starts
    let mut sandbox_config = fixture.sandbox_config("pod");
    sandbox_config.linux.security_context.namespace_options.pid = cri::NamespaceMode::Pod;
    if let Ok(sandbox) = fixture.runtime.run_pod_sandbox(&sandbox_config).await {
        let container = fixture.container_config(&["sleep", "infinity"]);
        if let Ok(id) = fixture.runtime.create_container(&sandbox, &container, &sandbox_config).await {
            let _ = fixture.runtime.start_container(&id).await;
            let _ = fixture.runtime.exec_sync(&id, &["true".to_owned()], Duration::from_secs(5)).await;
            let _ = fixture.runtime.stop_container(&id, Duration::ZERO).await;
        }
        let _ = fixture.runtime.remove_pod_sandbox(&sandbox).await;
    }
    fixture.runtime.close().await;
    ExitCode::SUCCESS
}

/// Whom to kill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Runtime,
    Shim,
}

/// A process as seen from the first one: 0 is the runtime, 1 the shim that starts, 2 the shim that serves, 3 what it forks.
struct Tracee {
    group: i32,
    depth: u32,
}

/// `trace-process VICTIM N FROM-START DIR`: prints how many stops were counted.
pub fn trace(args: &[String]) -> ExitCode {
    let [victim, count, from_start, directory] = args else { return ExitCode::FAILURE };
    let victim = if victim == "shim" { Victim::Shim } else { Victim::Runtime };
    let mut tracer = Tracer {
        victim,
        stop_at: count.parse().unwrap(),
        counting: from_start == "true",
        counted: 0,
        killed: false,
        known: HashMap::new(),
    };
    println!("{}", tracer.run(Path::new(directory)).unwrap());
    ExitCode::SUCCESS
}

struct Tracer {
    victim: Victim,
    stop_at: u64,
    counting: bool,
    counted: u64,
    killed: bool,
    known: HashMap<i32, Tracee>,
}

fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: the requests used here read or write only what `data` points to, which the callers keep alive.
    match unsafe { libc::ptrace(request, pid, address, data) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

impl Tracer {
    fn run(&mut self, directory: &Path) -> io::Result<u64> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(STEP).arg(directory).stdout(Stdio::null()).stdin(Stdio::null());
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)) };
        let main = command.spawn()?.id() as i32;
        wait(main)?;
        self.known.insert(main, Tracee { group: main, depth: 0 });
        let mut options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        if self.victim == Victim::Shim {
            // Not EXITKILL: what is left of the pod lives on.
            options = libc::PTRACE_O_TRACESYSGOOD
                | libc::PTRACE_O_TRACECLONE
                | libc::PTRACE_O_TRACEFORK
                | libc::PTRACE_O_TRACEVFORK
                | libc::PTRACE_O_TRACEEXEC;
        }
        ptrace(libc::PTRACE_SETOPTIONS, main, 0, options as usize)?;
        ptrace(libc::PTRACE_SYSCALL, main, 0, 0)?;
        loop {
            let (pid, status) = wait(-1)?;
            if !libc::WIFSTOPPED(status) {
                self.known.remove(&pid);
                if pid == main {
                    return Ok(self.counted);
                }
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let mut deliver = 0;
            if signal == libc::SIGTRAP | 0x80 {
                self.at_system_call(pid)?;
            } else if status >> 16 == 0 && !matches!(signal, libc::SIGTRAP | libc::SIGSTOP) {
                deliver = signal as usize;
            }
            self.learn(pid);
            let go = if self.killed { libc::PTRACE_CONT } else { libc::PTRACE_SYSCALL };
            let _ = ptrace(go, pid, 0, deliver); // killed meanwhile
        }
    }

    /// Who a new process is, from its family.
    fn learn(&mut self, pid: i32) {
        if self.known.contains_key(&pid) {
            return;
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| -> Option<i32> {
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        };
        let (Some(group), Some(parent)) = (field("Tgid:"), field("PPid:")) else { return };
        let depth = match (self.known.get(&group), self.known.get(&parent)) {
            (Some(group), _) => group.depth,
            (None, Some(parent)) => parent.depth + 1,
            (None, None) => return,
        };
        self.known.insert(pid, Tracee { group, depth });
    }

    fn at_system_call(&mut self, pid: i32) -> io::Result<()> {
        self.learn(pid);
        let Some(tracee) = self.known.get(&pid) else { return Ok(()) };
        if !self.counting {
            // SAFETY: plain data, filled by the kernel.
            let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::ptrace_syscall_info>();
            ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, &raw mut info as usize)?;
            // SAFETY: an entry has this variant.
            let number = if info.op == libc::PTRACE_SYSCALL_INFO_ENTRY {
                unsafe { info.u.entry.nr }
            } else {
                u64::MAX
            };
            self.counting = tracee.depth == 0 && number == libc::SYS_getpriority as u64;
            return Ok(());
        }
        let is_victim = match self.victim {
            Victim::Runtime => tracee.depth == 0,
            Victim::Shim => matches!(tracee.depth, 1 | 2),
        };
        if !is_victim || self.killed {
            return Ok(());
        }
        self.counted += 1;
        if self.counted == self.stop_at {
            self.killed = true;
            // SAFETY: takes plain numbers; the process is ours and stopped, so its number is its own.
            unsafe { libc::kill(tracee.group, libc::SIGKILL) };
        }
        Ok(())
    }
}

fn wait(pid: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the write.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            pid => return Ok((pid, status)),
        }
    }
}

/// Runs the process until its `stop_at`-th stop; gives how many stops were counted.
async fn traced(directory: &Path, victim: Victim, stop_at: u64, from_start: bool) -> u64 {
    let mut command = tokio::process::Command::new(std::env::current_exe().unwrap());
    let victim = if victim == Victim::Shim { "shim" } else { "runtime" };
    command.args([TRACE, victim, &stop_at.to_string(), &from_start.to_string()]).arg(directory);
    let output =
        tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.trim().parse().unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The next runtime opens, and its purge leaves nothing.
async fn nothing_is_left(directory: &Path, what: &str) {
    let opened = tokio::time::timeout(Duration::from_secs(30), Runtime::open(config(directory))).await;
    let runtime = opened
        .unwrap_or_else(|_| panic!("{what}: opening takes for ever"))
        .unwrap_or_else(|error| panic!("{what}: {}", telemetry::chain(&error)));
    runtime.purge().await.unwrap_or_else(|error| panic!("{what}: {}", telemetry::chain(&error)));
    runtime.close().await;
    assert_clean(directory, what).await;
}

/// No sandbox, snapshot, mount, shim or cgroup of a runtime in this directory.
pub async fn assert_clean(directory: &Path, what: &str) {
    for place in ["state", "root/snapshots"] {
        let left: Vec<PathBuf> =
            fs::read_dir(directory.join(place)).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "{what}: {left:?}");
    }
    let name = directory.to_string_lossy().into_owned();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains(&name)).collect();
    assert!(mounts.is_empty(), "{what}: {mounts:?}");
    let processes = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        all.filter(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&format!("shim\0{name}"))
        })
        .count()
    };
    eventually(&format!("{what}: no shim is left"), || processes() == 0).await;
    let group = config(directory).cgroup_root;
    let places = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let left: Vec<PathBuf> = places
        .chain(["/sys/fs/cgroup".into()])
        .map(|place| place.join(group.trim_matches('/')))
        .filter(|path| path.exists())
        .collect();
    assert!(left.is_empty(), "{what}: {left:?}");
}

fn stride(total: u64) -> usize {
    let every = std::env::var_os("KELSON_EVERY_STEP").is_some();
    if every { 1 } else { usize::try_from((total / SAMPLES).max(1)).unwrap() }
}

async fn walk(fixture: &Fixture, victim: Victim, prepare: Option<u64>) {
    let directory = fixture.directory.path().join("stepping");
    fs::create_dir(&directory).unwrap();
    let from_start = prepare.is_some();
    traced(&directory, victim, u64::MAX, from_start).await; // makes the built-in images
    let total = traced(&directory, victim, u64::MAX, from_start).await;
    nothing_is_left(&directory, "without a death").await;
    assert!(total > 100, "only {total} stops");
    for stop in (1..=total).step_by(stride(total)) {
        if let Some(half_way) = prepare {
            traced(&directory, Victim::Runtime, half_way + stop % 97, false).await;
        }
        traced(&directory, victim, stop, from_start).await;
        nothing_is_left(&directory, &format!("{victim:?} killed at stop {stop} of {total}")).await;
    }
}

async fn the_runtime_may_die_after_every_system_call(fixture: &Fixture) {
    walk(fixture, Victim::Runtime, None).await;
}

async fn the_shim_may_die_after_every_system_call(fixture: &Fixture) {
    walk(fixture, Victim::Shim, None).await;
}

/// The second death is while opening what the first one left.
async fn recovery_may_die_after_every_system_call(fixture: &Fixture) {
    walk(fixture, Victim::Runtime, Some(150)).await;
}
