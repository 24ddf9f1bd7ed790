//! The life of a service, from its conditions to its last process, as one story per start.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::Stop;
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::manager::{Active, Manager};
use super::process::{self, Process};
use super::restart::{self, End};
use crate::sys;
use crate::unit::{Command, KillMode, Service, Type, Unit};

/// Told once: whether the unit has started.
pub type Started = Option<oneshot::Sender<Result<(), String>>>;

fn tell(started: &mut Started, outcome: Result<(), String>) {
    if let Some(tell) = started.take() {
        // A job that was given up does not want to know.
        let _ = tell.send(outcome);
    }
}

/// The last part of a path.
pub fn base_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// Runs a service until it is stopped or ends for good.
pub async fn run(
    manager: Arc<Manager>,
    unit: Unit,
    stop: Stop,
    started: oneshot::Sender<Result<(), String>>,
) {
    let Some(service) = unit.service().cloned() else { return };
    let name = unit.name.as_str();
    let mut started = Some(started);
    loop {
        if !manager.may_start(name, unit.start_limit) {
            let reason = format!("{name} was started too often");
            manager.note(name, 3, &reason);
            manager.set(name, Active::Failed, "failed", "start-limit-hit");
            tell(&mut started, Err(reason));
            manager.failed(&unit);
            return;
        }
        let run = Run { manager: &manager, unit: &unit, service: &service, stop: &stop };
        let end = run.once(&mut started).await;
        let result = end.result(&service);
        manager.ended(name, end);
        if stop.is_requested() {
            let state = if end == End::Timeout { Active::Failed } else { Active::Inactive };
            manager.set(name, state, if state == Active::Failed { "failed" } else { "dead" }, result);
            tell(&mut started, Err(format!("{name} was stopped")));
            return;
        }
        let failed = !end.is_success(&service);
        if failed {
            let text = format!("{name} {}", end.describe());
            manager.note(name, 4, &text);
            tell(&mut started, Err(text));
        } else {
            tell(&mut started, Ok(()));
        }
        if !restart::wanted(&service, end) {
            let (state, sub) = if failed { (Active::Failed, "failed") } else { (Active::Inactive, "dead") };
            manager.set(name, state, sub, result);
            if failed {
                manager.failed(&unit);
            } else {
                manager.succeeded(&unit);
            }
            return;
        }
        manager.restarting(name, result);
        if stop.or(tokio::time::sleep(service.restart_delay)).await.is_none() {
            manager.set(name, Active::Inactive, "dead", result);
            return;
        }
    }
}

struct Run<'a> {
    manager: &'a Arc<Manager>,
    unit: &'a Unit,
    service: &'a Service,
    stop: &'a Stop,
}

/// What the service's processes say through their socket.
struct Notices {
    socket: UnixDatagram,
    path: String,
}

impl Drop for Notices {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Run<'_> {
    fn name(&self) -> &str {
        &self.unit.name
    }

    fn sub(&self, active: Active, sub: &'static str) {
        self.manager.set(self.name(), active, sub, "success");
    }

    /// From the first command to the last.
    async fn once(&self, started: &mut Started) -> End {
        let deadline = self.service.timeout_start.map(|limit| Instant::now() + limit);
        self.sub(Active::Activating, "start-pre");
        if let Err(reason) = self.make_directories() {
            self.manager.note(self.name(), 3, &reason);
            return End::Resources;
        }
        for command in &self.service.exec_condition {
            match self.command(command, deadline, &[]).await {
                End::Exited(0) => {}
                // Says that there is nothing to do here.
                End::Exited(code) if code < 255 => return End::Exited(0),
                end => return end,
            }
        }
        if let Err(end) = self.commands(&self.service.exec_start_pre, deadline, &[]).await {
            return self.clean_up(None, end, false).await;
        }
        self.sub(Active::Activating, "start");
        let notices = self.notices();
        let extra: Vec<(String, String)> =
            notices.iter().map(|notices| ("NOTIFY_SOCKET".to_owned(), notices.path.clone())).collect();
        let mut main = match self.start_main(deadline, &extra, notices.as_ref()).await {
            Ok(main) => main,
            Err((end, main)) => return self.clean_up(main, end, false).await,
        };
        if let Some(main) = &main {
            self.manager.set_main(self.name(), Some(main.pid));
        }
        let about = self.about(main.as_ref());
        if let Err(end) = self.commands(&self.service.exec_start_post, deadline, &about).await {
            return self.clean_up(main, end, true).await;
        }
        let stays = main.is_some() || self.service.remain_after_exit;
        if !stays {
            // A task that is done.
            return self.clean_up(None, End::Exited(0), true).await;
        }
        self.sub(Active::Active, if main.is_some() { "running" } else { "exited" });
        tell(started, Ok(()));
        let end = match &mut main {
            None => {
                self.stop.requested().await;
                End::Exited(0)
            }
            Some(process) => self.watch(process, notices.as_ref()).await,
        };
        if self.service.remain_after_exit && end.is_success(self.service) && !self.stop.is_requested() {
            self.manager.set_main(self.name(), None);
            self.sub(Active::Active, "exited");
            self.stop.requested().await;
            main = None;
        }
        let left = if self.stop.is_requested() { main } else { None };
        self.clean_up(left, end, true).await
    }

    /// Until the main process ends, the unit is to stop, or its time is over.
    async fn watch(&self, process: &mut Process, notices: Option<&Notices>) -> End {
        let limit = self.service.runtime_max.map(|limit| Instant::now() + limit);
        loop {
            tokio::select! {
                end = process.ended() => return end,
                () = self.stop.requested() => return End::Exited(0),
                () = until(limit) => return End::Timeout,
                notice = hear(notices) => drop(self.take_notice(&notice)),
            }
        }
    }

    fn take_notice(&self, notice: &str) -> bool {
        let mut ready = false;
        for line in notice.lines() {
            match line.split_once('=') {
                Some(("READY", "1")) => ready = true,
                Some(("STATUS", text)) => self.manager.set_status_text(self.name(), text),
                _ => {}
            }
        }
        ready
    }

    /// Starts the main process and waits until it counts as started.
    async fn start_main(
        &self,
        deadline: Option<Instant>,
        extra: &[(String, String)],
        notices: Option<&Notices>,
    ) -> Result<Option<Process>, (End, Option<Process>)> {
        match self.service.kind {
            Type::Oneshot => match self.commands(&self.service.exec_start, deadline, extra).await {
                Ok(()) => Ok(None),
                Err(end) => Err((end, None)),
            },
            Type::Forking => {
                if let Err(end) = self.commands(&self.service.exec_start, deadline, extra).await {
                    return Err((end, None));
                }
                self.forked().map_err(|end| (end, None))
            }
            Type::Simple | Type::Exec => self.spawn_main(extra).map(Some).map_err(|end| (end, None)),
            Type::Notify => {
                let mut process = self.spawn_main(extra).map_err(|end| (end, None))?;
                loop {
                    let end = tokio::select! {
                        // Who ends before it is ready has failed, even with success.
                        end = process.ended() => match end {
                            End::Exited(0) => return Err((End::Resources, None)),
                            other => return Err((other, None)),
                        },
                        () = self.stop.requested() => End::Exited(0),
                        () = until(deadline) => End::Timeout,
                        notice = hear(notices) => match self.take_notice(&notice) {
                            true => return Ok(Some(process)),
                            false => continue,
                        },
                    };
                    return Err((end, Some(process)));
                }
            }
        }
    }

    fn spawn_main(&self, extra: &[(String, String)]) -> Result<Process, End> {
        let Some(command) = self.service.exec_start.first() else { return Err(End::Resources) };
        process::spawn(self.manager, self.unit, self.service, command, extra).map_err(|reason| {
            self.manager.note(self.name(), 3, &reason);
            End::Resources
        })
    }

    /// The process that a forking service left: named by its file, or the only one there.
    fn forked(&self) -> Result<Option<Process>, End> {
        let pid = match &self.service.pid_file {
            Some(path) => {
                let text = fs::read_to_string(path).unwrap_or_default();
                let Ok(pid) = text.trim().parse::<i32>() else {
                    self.manager.note(self.name(), 3, &format!("there is no process number in {path}"));
                    return Err(End::Resources);
                };
                Some(pid)
            }
            None => self.manager.groups.processes(self.name()).into_iter().min(),
        };
        // Only what belongs to the unit may be taken for its main process; anything else could be another's.
        let ours = self.manager.groups.processes(self.name());
        Ok(pid
            .filter(|pid| ours.contains(pid))
            .map(|pid| Process { pid, end: self.manager.reaper.watch(pid) }))
    }

    fn about(&self, main: Option<&Process>) -> Vec<(String, String)> {
        main.map(|main| ("MAINPID".to_owned(), main.pid.to_string())).into_iter().collect()
    }

    async fn commands(
        &self,
        commands: &[Command],
        deadline: Option<Instant>,
        extra: &[(String, String)],
    ) -> Result<(), End> {
        for command in commands {
            let end = self.command(command, deadline, extra).await;
            if !end.is_success(self.service) && !command.may_fail {
                return Err(end);
            }
        }
        Ok(())
    }

    /// Runs one command to its end.
    async fn command(&self, command: &Command, deadline: Option<Instant>, extra: &[(String, String)]) -> End {
        let mut process = match process::spawn(self.manager, self.unit, self.service, command, extra) {
            Ok(process) => process,
            Err(reason) => {
                self.manager.note(self.name(), 3, &reason);
                return End::Resources;
            }
        };
        let end = tokio::select! {
            end = process.ended() => return end,
            () = self.stop.requested() => End::Exited(0),
            () = until(deadline) => End::Timeout,
        };
        self.terminate(Some(process), Duration::from_secs(10)).await;
        end
    }

    /// Ends what is left and runs what is to be run after it.
    async fn clean_up(&self, main: Option<Process>, end: End, was_started: bool) -> End {
        let mut outcome = end;
        let limit = restart::stop_deadline(self.service);
        self.sub(Active::Deactivating, "stop");
        // Stopping is not stopped by the wish to stop.
        let calm = Run { stop: &Stop::new(), ..*self };
        if was_started && !self.service.exec_stop.is_empty() {
            let about = self.about(main.as_ref());
            // Whether it worked shows in what is left.
            let _ = calm.commands(&self.service.exec_stop, Some(Instant::now() + limit), &about).await;
        }
        if !calm.terminate(main, limit).await {
            outcome = End::Timeout;
        }
        self.manager.set_main(self.name(), None);
        let extra = [("SERVICE_RESULT".to_owned(), outcome.result(self.service).to_owned())];
        let _ = calm.commands(&self.service.exec_stop_post, Some(Instant::now() + limit), &extra).await;
        self.manager.groups.remove(self.name());
        if !self.service.keep_runtime_directory {
            for directory in self.service.directories.iter().filter(|directory| directory.volatile) {
                let _ = fs::remove_dir_all(&directory.path);
            }
        }
        outcome
    }

    /// Ends the processes that KillMode= names. False if they had to be killed.
    async fn terminate(&self, main: Option<Process>, limit: Duration) -> bool {
        let (mode, group) = (self.service.kill_mode, || self.manager.groups.processes(self.name()));
        if mode == KillMode::None {
            return true;
        }
        let mut left: Vec<i32> = main.iter().map(|main| main.pid).collect();
        if mode == KillMode::ControlGroup {
            left.extend(group());
        }
        for pid in &left {
            let _ = sys::kill(*pid, self.service.kill_signal);
            // A stopped process hears nothing but this.
            let _ = sys::kill(*pid, libc::SIGCONT);
        }
        let deadline = Instant::now() + limit;
        let mut main = main;
        let mut in_time = true;
        if let Some(process) = &mut main
            && timeout_at(deadline, process.ended()).await.is_err()
        {
            in_time = false;
            if self.service.send_sigkill {
                let _ = sys::kill(process.pid, libc::SIGKILL);
                process.ended().await;
            }
        }
        if mode == KillMode::Process {
            return in_time;
        }
        if mode == KillMode::Mixed {
            group().iter().for_each(|pid| drop(sys::kill(*pid, libc::SIGKILL)));
        }
        if !self.manager.until_gone(&group, deadline).await && self.service.send_sigkill {
            in_time = false;
            group().iter().for_each(|pid| drop(sys::kill(*pid, libc::SIGKILL)));
            self.manager.until_gone(&group, Instant::now() + Duration::from_secs(10)).await;
        }
        in_time
    }

    fn notices(&self) -> Option<Notices> {
        let path = format!("/run/systemd/notify/{}", self.name());
        let _ = fs::remove_file(&path);
        match UnixDatagram::bind(&path) {
            Ok(socket) => {
                // A service that runs as another user speaks here too; one socket per unit says who it is.
                let _ = fs::set_permissions(&path, fs::Permissions::from_mode(0o666));
                Some(Notices { socket, path })
            }
            Err(error) => {
                self.manager.note(self.name(), 4, &format!("no notify socket: {error}"));
                None
            }
        }
    }

    fn make_directories(&self) -> Result<(), String> {
        for directory in &self.service.directories {
            let mode = self
                .service
                .directory_modes
                .iter()
                .find(|(kind, _)| *kind == directory.kind)
                .map_or(0o755, |(_, mode)| *mode);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(mode)
                .create(&directory.path)
                .map_err(|error| format!("cannot make {}: {error}", directory.path))?;
            if let Some(user) = &self.service.user
                && let Some((uid, gid, _)) = super::host::account(user)
            {
                std::os::unix::fs::chown(&directory.path, Some(uid), Some(gid))
                    .map_err(|error| format!("cannot give {} away: {error}", directory.path))?;
            }
        }
        Ok(())
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn hear(notices: Option<&Notices>) -> String {
    let mut buffer = [0; 4096];
    if let Some(notices) = notices
        && let Ok(read) = notices.socket.recv(&mut buffer).await
    {
        return String::from_utf8_lossy(&buffer[..read]).into_owned();
    }
    std::future::pending().await
}
