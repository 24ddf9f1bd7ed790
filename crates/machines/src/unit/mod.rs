//! Units: what runs on a machine and in which order, in the part of systemd's language that machine configs use.
//!
//! [`syntax`] reads text, [`directives`] gives the assignments their meaning, [`load`] finds a unit's files (fragment,
//! drop-ins, links), [`transaction`] decides what starts and in which order. Everything but `load` is pure. A directive
//! that is not known is an error with its name: a unit half understood is worse than one that does not start.

pub mod command;
pub mod condition;
pub mod directives;
pub mod install;
pub mod load;
pub mod syntax;
pub mod time;
pub mod transaction;

use std::time::Duration;

pub use command::{Command, Specifiers};
pub use condition::Condition;

/// A unit's part in the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// Runs something.
    Service(Box<Service>),
    /// A point that others gather around.
    Target,
    /// Starts another unit at times.
    Timer(Timer),
}

/// Everything that is true of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Unit {
    pub name: String,
    pub description: String,
    /// Where its text is; none for a unit that only has drop-ins.
    pub fragment: String,
    pub dropins: Vec<String>,
    pub wants: Vec<String>,
    pub requires: Vec<String>,
    pub requisite: Vec<String>,
    pub binds_to: Vec<String>,
    pub part_of: Vec<String>,
    pub conflicts: Vec<String>,
    pub before: Vec<String>,
    pub after: Vec<String>,
    pub on_failure: Vec<String>,
    pub on_success: Vec<String>,
    pub default_dependencies: bool,
    pub refuse_manual_start: bool,
    pub conditions: Vec<Condition>,
    pub assertions: Vec<Condition>,
    pub start_limit: StartLimit,
    pub install: Install,
    pub kind: Kind,
}

/// How often a unit may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartLimit {
    /// Within this time; zero turns the limit off.
    pub interval: Duration,
    /// This many starts.
    pub burst: u32,
}

impl Default for StartLimit {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), burst: 5 }
    }
}

/// What enabling does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Install {
    pub wanted_by: Vec<String>,
    pub required_by: Vec<String>,
    pub also: Vec<String>,
    pub alias: Vec<String>,
}

/// When a service counts as started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Type {
    /// Once its process exists.
    #[default]
    Simple,
    /// Once its program runs.
    Exec,
    /// Once its process has ended.
    Oneshot,
    /// Once it says so.
    Notify,
    /// Once its first process has ended and left another.
    Forking,
}

/// After which ends a service starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Restart {
    #[default]
    No,
    Always,
    OnSuccess,
    OnFailure,
    OnAbnormal,
    OnAbort,
}

/// Which of a service's processes a stop ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum KillMode {
    #[default]
    ControlGroup,
    Mixed,
    Process,
    None,
}

/// Where a stream goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Output {
    #[default]
    Journal,
    Null,
    /// To the journal and to the console.
    Console,
    File {
        path: String,
        append: bool,
    },
}

/// A directory that is made before a service starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MadeDirectory {
    pub path: String,
    /// Below /run: removed when the service stops.
    pub volatile: bool,
    pub kind: &'static str,
}

/// What a service runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Service {
    pub kind: Type,
    pub exec_condition: Vec<Command>,
    pub exec_start_pre: Vec<Command>,
    pub exec_start: Vec<Command>,
    pub exec_start_post: Vec<Command>,
    pub exec_reload: Vec<Command>,
    pub exec_stop: Vec<Command>,
    pub exec_stop_post: Vec<Command>,
    pub restart: Restart,
    pub restart_delay: Duration,
    pub remain_after_exit: bool,
    /// None: no limit.
    pub timeout_start: Option<Duration>,
    pub timeout_stop: Option<Duration>,
    pub runtime_max: Option<Duration>,
    pub pid_file: Option<String>,
    pub environment: Vec<(String, String)>,
    pub environment_files: Vec<EnvironmentFile>,
    pub pass_environment: Vec<String>,
    pub working_directory: Option<(String, bool)>,
    pub user: Option<String>,
    pub group: Option<String>,
    pub umask: u32,
    pub nice: Option<i32>,
    pub oom_score_adjust: Option<i32>,
    pub limits: Vec<(i32, u64, u64)>,
    pub tasks_max: Option<u64>,
    pub kill_mode: KillMode,
    pub kill_signal: i32,
    pub send_sigkill: bool,
    pub success_statuses: Vec<i32>,
    pub success_signals: Vec<i32>,
    pub restart_prevent: Vec<i32>,
    pub stdout: Output,
    pub stderr: Option<Output>,
    pub identifier: Option<String>,
    pub directories: Vec<MadeDirectory>,
    pub directory_modes: Vec<(&'static str, u32)>,
    pub keep_runtime_directory: bool,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            kind: Type::Simple,
            exec_condition: Vec::new(),
            exec_start_pre: Vec::new(),
            exec_start: Vec::new(),
            exec_start_post: Vec::new(),
            exec_reload: Vec::new(),
            exec_stop: Vec::new(),
            exec_stop_post: Vec::new(),
            restart: Restart::No,
            restart_delay: Duration::from_millis(100),
            remain_after_exit: false,
            timeout_start: Some(Duration::from_secs(90)),
            timeout_stop: Some(Duration::from_secs(90)),
            runtime_max: None,
            pid_file: None,
            environment: Vec::new(),
            environment_files: Vec::new(),
            pass_environment: Vec::new(),
            working_directory: None,
            user: None,
            group: None,
            umask: 0o022,
            nice: None,
            oom_score_adjust: None,
            limits: Vec::new(),
            tasks_max: None,
            kill_mode: KillMode::ControlGroup,
            kill_signal: libc::SIGTERM,
            send_sigkill: true,
            success_statuses: Vec::new(),
            success_signals: Vec::new(),
            restart_prevent: Vec::new(),
            stdout: Output::Journal,
            stderr: None,
            identifier: None,
            directories: Vec::new(),
            directory_modes: Vec::new(),
            keep_runtime_directory: false,
        }
    }
}

/// A file of variables.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct EnvironmentFile {
    pub path: String,
    pub may_be_absent: bool,
}

/// When a timer elapses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Timer {
    pub on_active: Vec<Duration>,
    pub on_boot: Vec<Duration>,
    pub on_unit_active: Vec<Duration>,
    pub on_unit_inactive: Vec<Duration>,
    pub on_calendar: Vec<time::Calendar>,
    /// What it starts; by default the service of its name.
    pub unit: String,
    pub persistent: bool,
    pub randomized_delay: Duration,
}

impl Unit {
    /// A unit that has no text yet.
    pub fn new(name: &str, kind: Kind) -> Self {
        Self {
            name: name.to_owned(),
            description: name.to_owned(),
            fragment: String::new(),
            dropins: Vec::new(),
            wants: Vec::new(),
            requires: Vec::new(),
            requisite: Vec::new(),
            binds_to: Vec::new(),
            part_of: Vec::new(),
            conflicts: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            on_failure: Vec::new(),
            on_success: Vec::new(),
            default_dependencies: true,
            refuse_manual_start: false,
            conditions: Vec::new(),
            assertions: Vec::new(),
            start_limit: StartLimit::default(),
            install: Install::default(),
            kind,
        }
    }

    /// The service, if it is one.
    pub fn service(&self) -> Option<&Service> {
        match &self.kind {
            Kind::Service(service) => Some(service),
            _ => None,
        }
    }

    /// Adds what systemd adds to every unit that does not say DefaultDependencies=no.
    pub fn add_default_dependencies(&mut self) {
        if !self.default_dependencies {
            return;
        }
        let add = |list: &mut Vec<String>, name: &str| {
            if !list.iter().any(|known| known == name) {
                list.push(name.to_owned());
            }
        };
        match &self.kind {
            Kind::Service(_) => {
                add(&mut self.requires, "sysinit.target");
                add(&mut self.after, "sysinit.target");
                add(&mut self.after, "basic.target");
            }
            Kind::Timer(timer) => {
                let unit = timer.unit.clone();
                add(&mut self.requires, "sysinit.target");
                add(&mut self.after, "sysinit.target");
                add(&mut self.before, "timers.target");
                add(&mut self.before, &unit);
            }
            Kind::Target => {
                // A target is reached once what it gathers is there, unless that says otherwise.
                let members: Vec<String> = self.wants.iter().chain(&self.requires).cloned().collect();
                for member in members {
                    if !self.before.contains(&member) {
                        add(&mut self.after, &member);
                    }
                }
            }
        }
        if self.name != "shutdown.target" {
            add(&mut self.conflicts, "shutdown.target");
            add(&mut self.before, "shutdown.target");
        }
    }
}
