//! All units of a machine: what is active, what is to become so, and the order of it.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use super::control::{self, UnitStatus};
use super::groups::Groups;
use super::host::ThisMachine;
use super::process::{Reaper, read_lines};
use super::restart::{self, End};
use super::timer;
use super::{BootError, DEFAULT_TARGET, Down, Phase, Reporter, service};
use crate::journal::Journal;
use crate::sys;
use crate::unit::load::Loader;
use crate::unit::{Kind, Specifiers, StartLimit, Unit, condition, install, transaction};

/// Whether a unit is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, clippy::enum_variant_names)] // systemd's words
pub enum Active {
    Inactive,
    Activating,
    Active,
    Deactivating,
    Failed,
}

impl Active {
    /// As systemctl prints it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inactive => "inactive",
            Self::Activating => "activating",
            Self::Active => "active",
            Self::Deactivating => "deactivating",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug)]
struct Record {
    unit: Unit,
    active: Active,
    sub: &'static str,
    result: &'static str,
    main: Option<i32>,
    status_text: String,
    since: Timestamp,
    starts: VecDeque<Instant>,
    restarts: u32,
    stop: Option<Stop>,
    last_end: Option<End>,
    active_at: Option<Instant>,
    inactive_at: Option<Instant>,
}

impl Record {
    fn new(unit: Unit) -> Self {
        Self {
            unit,
            active: Active::Inactive,
            sub: "dead",
            result: "success",
            main: None,
            status_text: String::new(),
            since: Timestamp::now(),
            starts: VecDeque::new(),
            restarts: 0,
            stop: None,
            last_end: None,
            active_at: None,
            inactive_at: None,
        }
    }
}

/// The units of this machine.
#[derive(Debug)]
pub struct Manager {
    pub groups: Groups,
    pub reaper: Reaper,
    loader: Loader,
    journal: Arc<Mutex<Journal>>,
    records: Mutex<BTreeMap<String, Record>>,
    /// The line of each unit that most likely says why it ended.
    last_words: Arc<Mutex<BTreeMap<String, String>>>,
    /// Counts changes of units and ends of processes; who waits for one looks again at each.
    changes: watch::Sender<u64>,
    tasks: Tasks,
    reporter: Reporter,
    booted: Instant,
    down: mpsc::Sender<Down>,
    orders: Mutex<Option<mpsc::Receiver<Down>>>,
}

impl Manager {
    pub fn new(
        specifiers: Specifiers,
        journal: Journal,
        groups: Groups,
        reporter: Reporter,
    ) -> Result<Self, BootError> {
        let (down, orders) = mpsc::channel(4);
        Ok(Self {
            groups,
            reaper: Reaper::default(),
            loader: Loader::new("/", specifiers),
            journal: Arc::new(Mutex::new(journal)),
            records: Mutex::default(),
            last_words: Arc::default(),
            changes: watch::Sender::new(0),
            tasks: Tasks::new(),
            reporter,
            booted: Instant::now(),
            down,
            orders: Mutex::new(Some(orders)),
        })
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message of init's own about a unit.
    pub fn note(&self, unit: &str, priority: u8, text: &str) {
        self.journal().write(unit, "init", Some(1), priority, text);
    }

    /// Puts what a process says into the journal.
    pub fn listen(&self, unit: &str, identifier: &str, pid: i32, reader: OwnedFd, console: bool) {
        let (unit, identifier, journal) = (unit.to_owned(), identifier.to_owned(), self.journal.clone());
        let last_words = self.last_words.clone();
        last_words.lock().unwrap_or_else(PoisonError::into_inner).remove(&unit);
        self.tasks.spawn(format!("log/{unit}"), move |_| async move {
            read_lines(reader, |priority, text| {
                remember(&mut last_words.lock().unwrap_or_else(PoisonError::into_inner), &unit, text);
                if console {
                    println!("{identifier}[{pid}]: {text}");
                }
                let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
                journal.write(&unit, &identifier, Some(pid), priority, text);
            })
            .await;
        });
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records().get_mut(name) {
            change(record);
        }
        self.changed();
    }

    /// Moves a unit to a state.
    pub fn set(&self, name: &str, active: Active, sub: &'static str, result: &'static str) {
        self.update(name, |record| {
            if record.active != active {
                record.since = Timestamp::now();
                match active {
                    Active::Active => record.active_at = Some(Instant::now()),
                    Active::Inactive | Active::Failed => record.inactive_at = Some(Instant::now()),
                    Active::Activating | Active::Deactivating => {}
                }
            }
            (record.active, record.sub, record.result) = (active, sub, result);
        });
        match active {
            Active::Active => self.note(name, 6, &format!("{name} is {active}", active = active.name())),
            Active::Failed => self.note(name, 3, &format!("{name} failed: {result}")),
            _ => {}
        }
    }

    /// Names the main process of a unit.
    pub fn set_main(&self, name: &str, pid: Option<i32>) {
        self.update(name, |record| record.main = pid);
    }

    /// What a unit says of itself.
    pub fn set_status_text(&self, name: &str, text: &str) {
        self.update(name, |record| record.status_text = text.chars().take(512).collect());
    }

    /// Remembers how a unit ended.
    pub fn ended(&self, name: &str, end: End) {
        self.update(name, |record| record.last_end = Some(end));
    }

    /// Counts a start against the limit.
    pub fn may_start(&self, name: &str, limit: StartLimit) -> bool {
        self.records()
            .get_mut(name)
            .is_none_or(|record| restart::allowed(limit, &mut record.starts, Instant::now()))
    }

    /// A unit waits for its next start.
    pub fn restarting(&self, name: &str, result: &'static str) {
        self.update(name, |record| record.restarts += 1);
        self.set(name, Active::Activating, "auto-restart", result);
    }

    /// Starts what is to start when a unit failed, and stops what cannot be without it.
    pub fn failed(self: &Arc<Self>, unit: &Unit) {
        self.start_all(&unit.on_failure);
        self.unbind(&unit.name);
    }

    /// The same for one that ended as it should.
    pub fn succeeded(self: &Arc<Self>, unit: &Unit) {
        self.start_all(&unit.on_success);
        self.unbind(&unit.name);
    }

    fn start_all(self: &Arc<Self>, names: &[String]) {
        for name in names {
            let (manager, name) = (self.clone(), name.clone());
            self.tasks.spawn(format!("start/{name}"), |_| async move {
                if let Err(reason) = manager.start(&name).await {
                    manager.note(&name, 4, &reason);
                }
            });
        }
    }

    fn unbind(self: &Arc<Self>, gone: &str) {
        let bound: Vec<String> = self
            .records()
            .iter()
            .filter(|(_, record)| record.unit.binds_to.iter().any(|name| name == gone))
            .filter(|(_, record)| matches!(record.active, Active::Active | Active::Activating))
            .map(|(name, _)| name.clone())
            .collect();
        for name in bound {
            self.note(&name, 5, &format!("{name} stops with {gone}"));
            let manager = self.clone();
            self.tasks.spawn(format!("stop/{name}"), |_| async move { manager.stop_one(&name).await });
        }
    }

    /// The unit, read once and again after daemon-reload.
    fn unit(&self, name: &str) -> Result<Unit, String> {
        if let Some(record) = self.records().get(name) {
            return Ok(record.unit.clone());
        }
        self.loader.load(name).map_err(|error| telemetry::chain(&error).to_string())
    }

    /// Reads all files again. What is active goes on as it is, under its new text.
    pub fn reload(&self) {
        let names: Vec<String> = self.records().keys().cloned().collect();
        for name in names {
            match self.loader.load(&name) {
                Ok(unit) => self.update(&name, |record| record.unit = unit),
                Err(error) => self.note(&name, 4, &telemetry::chain(&error).to_string()),
            }
        }
        self.records().retain(|_, record| record.active != Active::Inactive);
    }

    /// Waits until `done` says so, looking at every change.
    async fn wait<T>(&self, mut done: impl FnMut(&BTreeMap<String, Record>) -> Option<T>) -> T {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if let Some(value) = done(&self.records()) {
                return value;
            }
            // The sender lives as long as the manager that is borrowed here.
            let _ = changes.changed().await;
        }
    }

    /// Waits until no process is left; false if time ran out first.
    pub async fn until_gone(
        &self,
        processes: &(dyn Fn() -> Vec<i32> + Sync),
        deadline: tokio::time::Instant,
    ) -> bool {
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            if processes().is_empty() {
                return true;
            }
            // Processes that their own parents reap make no change that is seen here.
            let soon = deadline.min(tokio::time::Instant::now() + Duration::from_millis(100));
            if tokio::time::timeout_at(soon, changes.changed()).await.is_err()
                && tokio::time::Instant::now() >= deadline
            {
                return processes().is_empty();
            }
        }
    }

    /// Starts a unit and everything it pulls in; returns when the unit itself is there.
    pub async fn start(self: &Arc<Self>, name: &str) -> Result<(), String> {
        let plan =
            transaction::start(name, &mut |name| self.unit(name)).map_err(|error| error.to_string())?;
        for note in &plan.notes {
            self.note(name, 4, note);
        }
        for other in &plan.stops {
            let is_active = self.records().get(other).is_some_and(|record| record.active == Active::Active);
            if is_active {
                self.stop(other).await;
            }
        }
        let outcomes: BTreeMap<String, watch::Sender<Option<Result<(), String>>>> =
            plan.jobs.keys().map(|name| (name.clone(), watch::Sender::new(None))).collect();
        let mut mine = outcomes[name].subscribe();
        let outcomes = Arc::new(outcomes);
        for (name, job) in plan.jobs {
            let (manager, outcomes) = (self.clone(), outcomes.clone());
            self.tasks.spawn(format!("job/{name}"), |_| async move {
                let outcome = manager.run_job(&name, &job, &outcomes).await;
                outcomes[&name].send_replace(Some(outcome));
            });
        }
        let outcome = match mine.wait_for(Option::is_some).await {
            Ok(value) => value.clone(),
            Err(_) => None,
        };
        outcome.unwrap_or_else(|| Err(format!("{name}: the job was given up")))
    }

    /// The same, in a box: a timer that is started starts units.
    fn start_boxed<'a>(
        self: &'a Arc<Self>,
        name: &'a str,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(self.start(name))
    }

    async fn run_job(
        self: &Arc<Self>,
        name: &str,
        job: &transaction::Job,
        outcomes: &BTreeMap<String, watch::Sender<Option<Result<(), String>>>>,
    ) -> Result<(), String> {
        for earlier in &job.waits_for {
            let mut hear = outcomes[earlier].subscribe();
            let failed = match hear.wait_for(Option::is_some).await {
                Ok(value) => matches!(*value, Some(Err(_))),
                Err(_) => true,
            };
            if failed && job.needs.contains(earlier) {
                let reason = format!("{name} is not started: {earlier}, which it requires, did not start");
                self.note(name, 3, &reason);
                return Err(reason);
            }
        }
        self.activate(name).await
    }

    /// Makes one unit active, whatever else is.
    async fn activate(self: &Arc<Self>, name: &str) -> Result<(), String> {
        let settled = self
            .wait(|records| match records.get(name).map(|record| (record.active, record.sub)) {
                Some((Active::Activating, sub)) if sub != "auto-restart" => None,
                Some((Active::Deactivating, _)) => None,
                Some((state, _)) => Some(state),
                None => Some(Active::Inactive),
            })
            .await;
        if matches!(settled, Active::Active | Active::Activating) {
            return Ok(());
        }
        let unit = self.unit(name)?;
        self.records().entry(name.to_owned()).or_insert_with(|| Record::new(unit.clone()));
        let machine = ThisMachine { first_boot: false };
        if let Some(unmet) = condition::first_unmet(&unit.conditions, &machine) {
            self.note(
                name,
                6,
                &format!("{name} has nothing to do here: condition {:?} does not hold", unmet.test),
            );
            self.set(name, Active::Inactive, "dead", "exec-condition");
            return Ok(());
        }
        if let Some(unmet) = condition::first_unmet(&unit.assertions, &machine) {
            self.set(name, Active::Failed, "failed", "assert");
            return Err(format!("{name}: assertion {:?} does not hold", unmet.test));
        }
        let missing = unit
            .requisite
            .iter()
            .find(|other| self.records().get(*other).is_none_or(|record| record.active != Active::Active));
        if let Some(other) = missing {
            return Err(format!("{name} is not started: {other} is not active"));
        }
        match &unit.kind {
            Kind::Target => {
                self.set(name, Active::Active, "active", "success");
                Ok(())
            }
            Kind::Timer(_) => {
                let stop = Stop::new();
                self.update(name, |record| record.stop = Some(stop.clone()));
                self.set(name, Active::Active, "waiting", "success");
                let manager = self.clone();
                self.tasks
                    .spawn(format!("timer/{name}"), |_| async move { manager.run_timer(unit, stop).await });
                Ok(())
            }
            Kind::Service(_) => {
                let stop = Stop::new();
                self.update(name, |record| record.stop = Some(stop.clone()));
                self.set(name, Active::Activating, "start", "success");
                let (tell, hear) = oneshot::channel();
                let manager = self.clone();
                self.tasks.spawn(format!("service/{name}"), |_| service::run(manager, unit, stop, tell));
                hear.await.unwrap_or_else(|_| Err(format!("{name}: the start was given up")))
            }
        }
    }

    async fn run_timer(self: Arc<Self>, unit: Unit, stop: Stop) {
        let Kind::Timer(timer) = &unit.kind else { return };
        let active_since = Instant::now();
        let mut last_trigger = None;
        loop {
            let moment = {
                let records = self.records();
                let target = records.get(&timer.unit);
                let view = timer::View {
                    now: Instant::now(),
                    clock: Timestamp::now(),
                    booted: self.booted,
                    active_since,
                    last_trigger,
                    unit_active: target.and_then(|record| record.active_at),
                    unit_inactive: target.and_then(|record| record.inactive_at),
                };
                timer::next(timer, &view)
            };
            let mut changes = self.changes.subscribe();
            changes.mark_unchanged();
            tokio::select! {
                () = stop.requested() => break,
                _ = changes.changed() => continue,
                () = async {
                    match moment {
                        Some(moment) => tokio::time::sleep_until(moment.into()).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
            last_trigger = Some(Instant::now());
            if let Err(reason) = self.start_boxed(&timer.unit).await {
                self.note(&unit.name, 4, &reason);
            }
        }
        self.set(&unit.name, Active::Inactive, "dead", "success");
    }

    /// Stops a unit and what cannot be without it.
    pub async fn stop(self: &Arc<Self>, name: &str) {
        let active: BTreeMap<String, Unit> = self
            .records()
            .iter()
            .filter(|(other, record)| {
                *other == name
                    || matches!(record.active, Active::Active | Active::Activating | Active::Deactivating)
            })
            .map(|(name, record)| (name.clone(), record.unit.clone()))
            .collect();
        for one in transaction::stop(name, &active) {
            self.stop_one(&one).await;
        }
    }

    async fn stop_one(&self, name: &str) {
        let stop = match self.records().get_mut(name) {
            Some(record) => record.stop.clone(),
            None => return,
        };
        match stop {
            Some(stop) => stop.request(),
            None => self.set(name, Active::Inactive, "dead", "success"),
        }
        self.wait(|records| {
            let state = records.get(name).map(|record| record.active);
            matches!(state, None | Some(Active::Inactive | Active::Failed)).then_some(())
        })
        .await;
        self.update(name, |record| record.stop = None);
    }

    /// Forgets that units failed, and how often they started.
    pub fn reset_failed(&self, name: Option<&str>) {
        for (unit, record) in self.records().iter_mut() {
            if name.is_none_or(|name| name == unit) {
                record.starts.clear();
                if record.active == Active::Failed {
                    (record.active, record.sub) = (Active::Inactive, "dead");
                }
            }
        }
        self.changed();
    }

    /// What is known of a unit.
    pub fn status(&self, name: &str) -> UnitStatus {
        let unit = self.unit(name);
        let records = self.records();
        let record = records.get(name);
        let (load, description, fragment, dropins) = match &unit {
            Ok(unit) => ("loaded", unit.description.clone(), unit.fragment.clone(), unit.dropins.clone()),
            Err(reason) if reason.ends_with("is masked") => {
                ("masked", reason.clone(), String::new(), Vec::new())
            }
            Err(reason) if reason.ends_with("not found") => {
                ("not-found", reason.clone(), String::new(), Vec::new())
            }
            Err(reason) => ("bad-setting", reason.clone(), String::new(), Vec::new()),
        };
        UnitStatus {
            name: name.to_owned(),
            description,
            load: load.to_owned(),
            fragment,
            dropins,
            active: record.map_or("inactive", |record| record.active.name()).to_owned(),
            sub: record.map_or("dead", |record| record.sub).to_owned(),
            result: record.map_or("success", |record| record.result).to_owned(),
            main_pid: record.and_then(|record| record.main).unwrap_or_default(),
            status_text: record.map(|record| record.status_text.clone()).unwrap_or_default(),
            restarts: record.map_or(0, |record| record.restarts),
            since: record.map(|record| record.since.to_string()).unwrap_or_default(),
            last_end: record.and_then(|record| record.last_end).map(End::describe).unwrap_or_default(),
            enabled: install::is_enabled(Path::new("/"), name),
        }
    }

    /// All units that were looked at.
    pub fn statuses(&self) -> Vec<UnitStatus> {
        let names: Vec<String> = self.records().keys().cloned().collect();
        names.iter().map(|name| self.status(name)).collect()
    }

    /// Does what the presets say, once.
    pub fn apply_presets(&self) {
        for error in install::preset_all(Path::new("/"), &self.loader) {
            self.note("init.scope", 4, &telemetry::chain(&error).to_string());
        }
    }

    /// Runs work in the background.
    pub fn task(&self, name: String, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, |_| work);
    }

    /// Asks the machine to go down.
    pub fn go_down(&self, how: Down) {
        // A full queue holds the same wish already.
        let _ = self.down.try_send(how);
    }

    /// Boots into the default target and runs until the machine is to go down.
    pub async fn run(self: Arc<Self>) -> Result<Down, std::io::Error> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut child = signal(SignalKind::child())?;
        let mut poweroff = signal(SignalKind::from_raw(sys::poweroff_signal()))?;
        let mut reboot = signal(SignalKind::from_raw(sys::reboot_signal()))?;
        control::serve(self.clone(), &self.tasks)?;
        let manager = self.clone();
        self.reporter.report(Phase::Starting, "");
        self.tasks.spawn("boot", |_| async move {
            let target = manager.start(DEFAULT_TARGET).await;
            if let Err(reason) = &target {
                manager.note("init.scope", 2, reason);
            }
            manager.report(target.err()).await;
        });
        let down = loop {
            tokio::select! {
                _ = child.recv() => {
                    if self.reaper.reap() {
                        self.changed();
                    }
                }
                _ = poweroff.recv() => break Down::Poweroff,
                _ = reboot.recv() => break Down::Reboot,
                Some(how) = async { match &mut orders { Some(orders) => orders.recv().await, None => None } } => break how,
            }
        };
        self.reporter.report(Phase::Stopping, "");
        self.note("init.scope", 5, &format!("going down for {down:?}"));
        let units = self.clone();
        let stopping = async move { units.stop_everything().await };
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                () = &mut stopping => break,
                _ = child.recv() => {
                    if self.reaper.reap() {
                        self.changed();
                    }
                }
            }
        }
        Ok(down)
    }

    /// Keeps the host told: which units failed, or that all is well.
    async fn report(self: &Arc<Self>, mut first: Option<String>) {
        let mut last = None;
        loop {
            let failed = self.troubles();
            let state = match (&first, failed.is_empty()) {
                (Some(reason), _) => (Phase::Degraded, reason.clone()),
                (None, true) => (Phase::Running, String::new()),
                (None, false) => (Phase::Degraded, failed.join("; ")),
            };
            if last.as_ref() != Some(&state) {
                self.reporter.report(state.0, &state.1);
                last = Some(state);
            }
            let mut changes = self.changes.subscribe();
            changes.mark_unchanged();
            let _ = changes.changed().await;
            first = None;
        }
    }

    /// Units that failed, or that start again because they did, with the last that they said.
    fn troubles(&self) -> Vec<String> {
        let last_words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        let records = self.records();
        let ill = records.iter().filter_map(|(name, record)| match (record.active, record.sub) {
            (Active::Failed, _) => Some((name, record, "failed")),
            (Active::Activating, "auto-restart") if record.result != "success" => {
                Some((name, record, "restarts"))
            }
            _ => None,
        });
        ill.map(|(name, record, what)| {
            let words = last_words.get(name).map(|words| format!(": {words}")).unwrap_or_default();
            format!("{name} {what} ({}){words}", record.result)
        })
        .collect()
    }

    /// Stops all units, later starters first, and then every process that is left.
    async fn stop_everything(self: Arc<Self>) {
        let active: BTreeMap<String, Unit> =
            self.records().iter().map(|(name, record)| (name.clone(), record.unit.clone())).collect();
        for wave in transaction::waves(&active).into_iter().rev() {
            let stops = Tasks::new();
            for name in wave {
                let manager = self.clone();
                stops.spawn(format!("stop/{name}"), |_| async move { manager.stop_one(&name).await });
            }
            // Each stop has a deadline of its own, after which processes are killed.
            stops.drain(Duration::from_secs(3600)).await;
        }
        // Whatever still runs: containers, daemons that left their units.
        for (signal, patience) in [(libc::SIGTERM, 5), (libc::SIGKILL, 5)] {
            let _ = sys::kill(-1, signal);
            let deadline = tokio::time::Instant::now() + Duration::from_secs(patience);
            if self.until_gone(&others, deadline).await {
                break;
            }
        }
    }
}

/// Keeps the error that a process names, or else its last line.
fn remember(last_words: &mut BTreeMap<String, String>, unit: &str, line: &str) {
    let named = last_words.get(unit).is_some_and(|known| known.starts_with("error"));
    if !named && !line.trim().is_empty() {
        last_words.insert(unit.to_owned(), line.chars().take(300).collect());
    }
}

/// Every process but init.
fn others() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| *pid != 1)
        .filter(|pid| {
            // Kernel threads and the dead that wait for their parents have no command line to speak of.
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
        })
        .collect()
}

/// Does nothing until the machine is told to go down: what a machine does that could not be set up.
/// It listens before it says so: a signal that came earlier would be lost.
pub fn wait_for_orders(listening: impl FnOnce()) -> Result<Down, BootError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut poweroff = signal(SignalKind::from_raw(sys::poweroff_signal()))?;
        let mut reboot = signal(SignalKind::from_raw(sys::reboot_signal()))?;
        let mut child = signal(SignalKind::child())?;
        let reaper = Reaper::default();
        listening();
        loop {
            tokio::select! {
                _ = poweroff.recv() => return Ok(Down::Poweroff),
                _ = reboot.recv() => return Ok(Down::Reboot),
                _ = child.recv() => drop(reaper.reap()),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_named_beats_the_last_line() {
        let mut words = BTreeMap::new();
        for line in ["starting", "", "error: no such flag", "", "For more information, try '--help'."] {
            remember(&mut words, "a.service", line);
        }
        assert_eq!(words["a.service"], "error: no such flag");
        for line in ["one", "two", " "] {
            remember(&mut words, "b.service", line);
        }
        assert_eq!(words["b.service"], "two");
    }
}
