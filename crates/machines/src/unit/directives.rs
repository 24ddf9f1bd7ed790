//! What each assignment of a unit file means. A directive that is not in this list is refused with its name.

use std::time::Duration;

use thiserror::Error;

use super::command::{CommandError, words};
use super::syntax::{Assignment, SyntaxError};
use super::time::{Calendar, span};
use super::{
    Command, Condition, EnvironmentFile, KillMode, Kind, MadeDirectory, Output, Restart, Service, Specifiers,
    Timer, Type, Unit,
};

/// Why a unit cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum UnitError {
    #[error("{file}: {source}")]
    Syntax { file: String, source: SyntaxError },
    #[error("{file}:{line}: directive {key}= in section [{section}] is not supported")]
    Unknown { file: String, line: usize, section: String, key: String },
    #[error("{file}:{line}: section [{section}] is not supported in {unit}")]
    Section { file: String, line: usize, section: String, unit: String },
    #[error("{file}:{line}: {key}={value}: {reason}")]
    Value { file: String, line: usize, key: String, value: String, reason: String },
    #[error("units of the kind of {0} are not supported")]
    Suffix(String),
    #[error("{0} has no ExecStart=, and nothing else to do")]
    NothingToRun(String),
    #[error("{0} has more than one ExecStart=, which only Type=oneshot may have")]
    SeveralStarts(String),
    #[error("{0} says nothing about when it elapses")]
    NoTime(String),
}

/// A unit of this name without any text.
pub fn empty(name: &str) -> Result<Unit, UnitError> {
    let kind = match name.rsplit_once('.').map(|(_, suffix)| suffix) {
        Some("service") => Kind::Service(Box::default()),
        Some("target") => Kind::Target,
        Some("timer") => Kind::Timer(Timer {
            unit: format!("{}.service", name.trim_end_matches(".timer")),
            ..Timer::default()
        }),
        _ => return Err(UnitError::Suffix(name.to_owned())),
    };
    Ok(Unit::new(name, kind))
}

/// Reads a boolean as systemd does.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

/// Lays the assignments of one file over a unit.
pub fn apply(
    unit: &mut Unit,
    file: &str,
    assignments: &[Assignment],
    specifiers: &Specifiers,
) -> Result<(), UnitError> {
    for one in assignments {
        let (section, key, value) = (one.section.as_str(), one.key.as_str(), one.value.as_str());
        // Anything may carry notes of its own in sections and keys that begin so.
        if section.starts_with("X-") || key.starts_with("X-") {
            continue;
        }
        let outcome = match section {
            "Unit" => unit_section(unit, key, value, specifiers),
            "Install" => install_section(unit, key, value, specifiers),
            "Service" => match &mut unit.kind {
                Kind::Service(service) => service_section(service, key, value, specifiers),
                _ => return Err(wrong_section(unit, file, one)),
            },
            "Timer" => match &mut unit.kind {
                Kind::Timer(timer) => timer_section(timer, key, value, specifiers),
                _ => return Err(wrong_section(unit, file, one)),
            },
            _ => return Err(wrong_section(unit, file, one)),
        };
        match outcome {
            Ok(true) => {}
            Ok(false) => {
                return Err(UnitError::Unknown {
                    file: file.to_owned(),
                    line: one.line,
                    section: section.to_owned(),
                    key: key.to_owned(),
                });
            }
            Err(reason) => {
                return Err(UnitError::Value {
                    file: file.to_owned(),
                    line: one.line,
                    key: key.to_owned(),
                    value: value.to_owned(),
                    reason,
                });
            }
        }
    }
    Ok(())
}

fn wrong_section(unit: &Unit, file: &str, one: &Assignment) -> UnitError {
    UnitError::Section {
        file: file.to_owned(),
        line: one.line,
        section: one.section.clone(),
        unit: unit.name.clone(),
    }
}

/// What must be true of a unit once all of its text is read.
pub fn finish(unit: &mut Unit) -> Result<(), UnitError> {
    match &unit.kind {
        Kind::Service(service) => {
            if service.exec_start.is_empty()
                && (service.kind != Type::Oneshot || service.exec_stop.is_empty())
            {
                return Err(UnitError::NothingToRun(unit.name.clone()));
            }
            if service.exec_start.len() > 1 && service.kind != Type::Oneshot {
                return Err(UnitError::SeveralStarts(unit.name.clone()));
            }
        }
        Kind::Timer(timer) => {
            let spans = [&timer.on_active, &timer.on_boot, &timer.on_unit_active, &timer.on_unit_inactive];
            if timer.on_calendar.is_empty() && spans.iter().all(|list| list.is_empty()) {
                return Err(UnitError::NoTime(unit.name.clone()));
            }
        }
        Kind::Target => {}
    }
    unit.add_default_dependencies();
    Ok(())
}

/// `Ok(false)`: the directive is unknown. `Err`: what is wrong with its value.
type Outcome = Result<bool, String>;

fn names(list: &mut Vec<String>, value: &str, specifiers: &Specifiers) -> Outcome {
    if value.is_empty() {
        list.clear();
    }
    for word in words(value).map_err(text)? {
        list.push(specifiers.expand(&word).map_err(text)?);
    }
    Ok(true)
}

fn text(error: CommandError) -> String {
    error.to_string()
}

fn set<T>(place: &mut T, value: Option<T>, wanted: &str) -> Outcome {
    *place = value.ok_or_else(|| format!("expected {wanted}"))?;
    Ok(true)
}

fn flag(place: &mut bool, value: &str) -> Outcome {
    set(place, boolean(value), "yes or no")
}

fn time(place: &mut Duration, value: &str) -> Outcome {
    set(place, span(value).map(|span| span.unwrap_or(Duration::MAX)), "a time span")
}

fn time_limit(place: &mut Option<Duration>, value: &str) -> Outcome {
    // Zero and infinity both mean that there is no limit.
    set(place, span(value).map(|span| span.filter(|span| !span.is_zero())), "a time span")
}

fn unit_section(unit: &mut Unit, key: &str, value: &str, specifiers: &Specifiers) -> Outcome {
    let list = match key {
        "Wants" => &mut unit.wants,
        "Requires" => &mut unit.requires,
        "Requisite" => &mut unit.requisite,
        "BindsTo" => &mut unit.binds_to,
        "PartOf" => &mut unit.part_of,
        "Conflicts" => &mut unit.conflicts,
        "Before" => &mut unit.before,
        "After" => &mut unit.after,
        "OnFailure" => &mut unit.on_failure,
        "OnSuccess" => &mut unit.on_success,
        "Description" => {
            unit.description = specifiers.expand(value).map_err(text)?;
            return Ok(true);
        }
        // For readers; and mounts, which a machine has from its start.
        "Documentation" | "RequiresMountsFor" | "WantsMountsFor" => return Ok(true),
        "DefaultDependencies" => return flag(&mut unit.default_dependencies, value),
        "RefuseManualStart" => return flag(&mut unit.refuse_manual_start, value),
        "StartLimitIntervalSec" | "StartLimitInterval" => return time(&mut unit.start_limit.interval, value),
        "StartLimitBurst" => return set(&mut unit.start_limit.burst, value.parse().ok(), "a number"),
        // Both speak of isolating to a target, which is never done here.
        "AllowIsolate" | "IgnoreOnIsolate" => {
            return boolean(value).map(|_| true).ok_or("expected yes or no".into());
        }
        _ => {
            let (list, name) = match (key.strip_prefix("Condition"), key.strip_prefix("Assert")) {
                (Some(name), _) => (&mut unit.conditions, name),
                (_, Some(name)) => (&mut unit.assertions, name),
                _ => return Ok(false),
            };
            if value.is_empty() {
                list.clear();
                return Ok(true);
            }
            let value = specifiers.expand(value).map_err(text)?;
            return match Condition::parse(name, &value) {
                Some(condition) => {
                    list.push(condition);
                    Ok(true)
                }
                None => Ok(false),
            };
        }
    };
    names(list, value, specifiers)
}

fn install_section(unit: &mut Unit, key: &str, value: &str, specifiers: &Specifiers) -> Outcome {
    match key {
        "WantedBy" => names(&mut unit.install.wanted_by, value, specifiers),
        "RequiredBy" => names(&mut unit.install.required_by, value, specifiers),
        "Also" => names(&mut unit.install.also, value, specifiers),
        "Alias" => names(&mut unit.install.alias, value, specifiers),
        _ => Ok(false),
    }
}

fn commands(list: &mut Vec<Command>, value: &str, specifiers: &Specifiers) -> Outcome {
    if value.is_empty() {
        list.clear();
        return Ok(true);
    }
    list.extend(Command::parse(value, specifiers).map_err(text)?);
    Ok(true)
}

fn service_section(service: &mut Service, key: &str, value: &str, specifiers: &Specifiers) -> Outcome {
    match key {
        "Type" => {
            let kind = match value {
                "simple" | "idle" => Some(Type::Simple),
                "exec" => Some(Type::Exec),
                "oneshot" => Some(Type::Oneshot),
                "notify" => Some(Type::Notify),
                "forking" => Some(Type::Forking),
                _ => None,
            };
            if kind == Some(Type::Oneshot) {
                // A task that ends may take its time.
                service.timeout_start = None;
            }
            set(&mut service.kind, kind, "simple, exec, oneshot, notify or forking")
        }
        "ExecCondition" => commands(&mut service.exec_condition, value, specifiers),
        "ExecStartPre" => commands(&mut service.exec_start_pre, value, specifiers),
        "ExecStart" => commands(&mut service.exec_start, value, specifiers),
        "ExecStartPost" => commands(&mut service.exec_start_post, value, specifiers),
        "ExecReload" => commands(&mut service.exec_reload, value, specifiers),
        "ExecStop" => commands(&mut service.exec_stop, value, specifiers),
        "ExecStopPost" => commands(&mut service.exec_stop_post, value, specifiers),
        "Restart" => {
            let restart = match value {
                "no" => Some(Restart::No),
                "always" => Some(Restart::Always),
                "on-success" => Some(Restart::OnSuccess),
                "on-failure" => Some(Restart::OnFailure),
                "on-abnormal" => Some(Restart::OnAbnormal),
                "on-abort" => Some(Restart::OnAbort),
                _ => None,
            };
            set(&mut service.restart, restart, "no, always, on-success, on-failure, on-abnormal or on-abort")
        }
        "RestartSec" => time(&mut service.restart_delay, value),
        "RemainAfterExit" => flag(&mut service.remain_after_exit, value),
        "TimeoutSec" => {
            time_limit(&mut service.timeout_start, value)?;
            time_limit(&mut service.timeout_stop, value)
        }
        "TimeoutStartSec" => time_limit(&mut service.timeout_start, value),
        "TimeoutStopSec" => time_limit(&mut service.timeout_stop, value),
        "RuntimeMaxSec" => time_limit(&mut service.runtime_max, value),
        "PIDFile" => {
            let path = specifiers.expand(value).map_err(text)?;
            service.pid_file = Some(if path.starts_with('/') { path } else { format!("/run/{path}") });
            Ok(true)
        }
        "NotifyAccess" => match value {
            // Everyone in the unit's group is listened to, which contains what the narrower words allow.
            "none" | "main" | "exec" | "all" => Ok(true),
            _ => Err("expected none, main, exec or all".into()),
        },
        "Environment" => {
            if value.is_empty() {
                service.environment.clear();
            }
            for word in words(value).map_err(text)? {
                let (name, value) = word.split_once('=').ok_or("expected NAME=value")?;
                service.environment.push((name.to_owned(), specifiers.expand(value).map_err(text)?));
            }
            Ok(true)
        }
        "EnvironmentFile" => {
            if value.is_empty() {
                service.environment_files.clear();
                return Ok(true);
            }
            let (may_be_absent, path) = match value.strip_prefix('-') {
                Some(path) => (true, path),
                None => (false, value),
            };
            let path = specifiers.expand(path).map_err(text)?;
            service.environment_files.push(EnvironmentFile { path, may_be_absent });
            Ok(true)
        }
        "PassEnvironment" => names(&mut service.pass_environment, value, specifiers),
        "WorkingDirectory" => {
            let (may_be_absent, path) = match value.strip_prefix('-') {
                Some(path) => (true, path),
                None => (false, value),
            };
            let path =
                if path == "~" { "/root".to_owned() } else { specifiers.expand(path).map_err(text)? };
            service.working_directory = (!path.is_empty()).then_some((path, may_be_absent));
            Ok(true)
        }
        "User" => set(&mut service.user, Some(Some(value.to_owned())), "a user"),
        "Group" => set(&mut service.group, Some(Some(value.to_owned())), "a group"),
        "UMask" => set(
            &mut service.umask,
            u32::from_str_radix(value, 8).ok().filter(|mask| *mask <= 0o777),
            "an octal mask",
        ),
        "Nice" => set(
            &mut service.nice,
            value.parse().ok().filter(|nice| (-20..=19).contains(nice)).map(Some),
            "-20 to 19",
        ),
        "OOMScoreAdjust" => set(
            &mut service.oom_score_adjust,
            value.parse().ok().filter(|score| (-1000..=1000).contains(score)).map(Some),
            "-1000 to 1000",
        ),
        "TasksMax" => match value {
            "infinity" => set(&mut service.tasks_max, Some(None), ""),
            _ => set(&mut service.tasks_max, value.parse().ok().map(Some), "a number or infinity"),
        },
        // A unit's own groups below its cgroup are never touched, so delegation is always in force; and what each
        // group used is always counted.
        "Delegate" | "CPUAccounting" | "MemoryAccounting" | "TasksAccounting" | "IOAccounting"
        | "BlockIOAccounting" => boolean(value).map(|_| true).ok_or("expected yes or no".into()),
        "KillMode" => {
            let mode = match value {
                "control-group" => Some(KillMode::ControlGroup),
                "mixed" => Some(KillMode::Mixed),
                "process" => Some(KillMode::Process),
                "none" => Some(KillMode::None),
                _ => None,
            };
            set(&mut service.kill_mode, mode, "control-group, mixed, process or none")
        }
        "KillSignal" => set(&mut service.kill_signal, signal(value), "a signal"),
        "SendSIGKILL" => flag(&mut service.send_sigkill, value),
        "SuccessExitStatus" => {
            for word in value.split_whitespace() {
                match (word.parse(), signal(word)) {
                    (Ok(status), _) => service.success_statuses.push(status),
                    (_, Some(signal)) => service.success_signals.push(signal),
                    _ => return Err("expected exit codes and signals".into()),
                }
            }
            Ok(true)
        }
        "RestartPreventExitStatus" => {
            for word in value.split_whitespace() {
                service.restart_prevent.push(word.parse().map_err(|_| "expected exit codes")?);
            }
            Ok(true)
        }
        "StandardInput" => match value {
            "null" => Ok(true),
            _ => Err("only null is supported".into()),
        },
        "StandardOutput" => set(&mut service.stdout, output(value, &Output::Journal), OUTPUTS),
        "StandardError" => match value {
            "inherit" => set(&mut service.stderr, Some(None), ""),
            _ => set(&mut service.stderr, output(value, &service.stdout).map(Some), OUTPUTS),
        },
        "SyslogIdentifier" => {
            service.identifier = Some(specifiers.expand(value).map_err(text)?);
            Ok(true)
        }
        "RuntimeDirectory" => directories(service, "RuntimeDirectory", "/run", value, specifiers),
        "StateDirectory" => directories(service, "StateDirectory", "/var/lib", value, specifiers),
        "CacheDirectory" => directories(service, "CacheDirectory", "/var/cache", value, specifiers),
        "LogsDirectory" => directories(service, "LogsDirectory", "/var/log", value, specifiers),
        "ConfigurationDirectory" => directories(service, "ConfigurationDirectory", "/etc", value, specifiers),
        "RuntimeDirectoryMode" => directory_mode(service, "RuntimeDirectory", value),
        "StateDirectoryMode" => directory_mode(service, "StateDirectory", value),
        "RuntimeDirectoryPreserve" => match value {
            "restart" => Ok(true),
            _ => flag(&mut service.keep_runtime_directory, value),
        },
        "Slice" => match value {
            "system.slice" | "machine.slice" => Ok(true),
            _ => Err("only system.slice and machine.slice are there".into()),
        },
        _ => match key.strip_prefix("Limit").and_then(resource) {
            Some(resource) => {
                let (soft, hard) = value.split_once(':').unwrap_or((value, value));
                let limits = limit(soft).zip(limit(hard)).ok_or("expected a number or infinity")?;
                service.limits.push((resource, limits.0, limits.1));
                Ok(true)
            }
            None => Ok(false),
        },
    }
}

const OUTPUTS: &str = "journal, null, tty, journal+console, file:PATH, append:PATH or inherit";

fn output(value: &str, inherited: &Output) -> Option<Output> {
    Some(match value {
        "journal" | "syslog" | "kmsg" => Output::Journal,
        "null" => Output::Null,
        "tty" | "journal+console" | "kmsg+console" | "syslog+console" => Output::Console,
        "inherit" => inherited.clone(),
        _ => {
            let (kind, path) = value.split_once(':').filter(|(_, path)| path.starts_with('/'))?;
            let append = match kind {
                "file" | "truncate" => false,
                "append" => true,
                _ => return None,
            };
            Output::File { path: path.to_owned(), append }
        }
    })
}

fn directories(
    service: &mut Service,
    kind: &'static str,
    base: &str,
    value: &str,
    specifiers: &Specifiers,
) -> Outcome {
    let volatile = base == "/run";
    for word in words(value).map_err(text)? {
        let name = specifiers.expand(&word).map_err(text)?;
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err("expected a relative path".into());
        }
        service.directories.push(MadeDirectory { path: format!("{base}/{name}"), volatile, kind });
    }
    Ok(true)
}

fn directory_mode(service: &mut Service, kind: &'static str, value: &str) -> Outcome {
    let mode = u32::from_str_radix(value, 8).map_err(|_| "expected an octal mode")?;
    service.directory_modes.push((kind, mode & 0o7777));
    Ok(true)
}

fn limit(text: &str) -> Option<u64> {
    if text == "infinity" { Some(libc::RLIM_INFINITY) } else { text.parse().ok() }
}

fn resource(name: &str) -> Option<i32> {
    Some(match name {
        "NOFILE" => libc::RLIMIT_NOFILE,
        "NPROC" => libc::RLIMIT_NPROC,
        "CORE" => libc::RLIMIT_CORE,
        "MEMLOCK" => libc::RLIMIT_MEMLOCK,
        "STACK" => libc::RLIMIT_STACK,
        "AS" => libc::RLIMIT_AS,
        "FSIZE" => libc::RLIMIT_FSIZE,
        "DATA" => libc::RLIMIT_DATA,
        "CPU" => libc::RLIMIT_CPU,
        "SIGPENDING" => libc::RLIMIT_SIGPENDING,
        "MSGQUEUE" => libc::RLIMIT_MSGQUEUE,
        "NICE" => libc::RLIMIT_NICE,
        "RTPRIO" => libc::RLIMIT_RTPRIO,
        _ => return None,
    } as i32)
}

fn signal(name: &str) -> Option<i32> {
    Some(match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => libc::SIGHUP,
        "INT" => libc::SIGINT,
        "QUIT" => libc::SIGQUIT,
        "KILL" => libc::SIGKILL,
        "USR1" => libc::SIGUSR1,
        "USR2" => libc::SIGUSR2,
        "TERM" => libc::SIGTERM,
        "PIPE" => libc::SIGPIPE,
        "CONT" => libc::SIGCONT,
        _ => return None,
    })
}

fn timer_section(timer: &mut Timer, key: &str, value: &str, specifiers: &Specifiers) -> Outcome {
    let list = match key {
        "OnActiveSec" => &mut timer.on_active,
        "OnBootSec" | "OnStartupSec" => &mut timer.on_boot,
        "OnUnitActiveSec" => &mut timer.on_unit_active,
        "OnUnitInactiveSec" => &mut timer.on_unit_inactive,
        "OnCalendar" => {
            let word = Calendar::parse(value)
                .ok_or("of calendar expressions only minutely, hourly, daily, weekly, monthly and yearly are supported")?;
            timer.on_calendar.push(word);
            return Ok(true);
        }
        "Unit" => {
            timer.unit = specifiers.expand(value).map_err(text)?;
            return Ok(true);
        }
        "Persistent" => return flag(&mut timer.persistent, value),
        "RandomizedDelaySec" => return time(&mut timer.randomized_delay, value),
        // Timers here are exact.
        "AccuracySec" => return span(value).map(|_| true).ok_or("expected a time span".into()),
        _ => return Ok(false),
    };
    if value.is_empty() {
        list.clear();
        return Ok(true);
    }
    list.push(span(value).flatten().ok_or("expected a time span")?);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::syntax;

    fn read(name: &str, text: &str) -> Result<Unit, UnitError> {
        let specifiers = Specifiers { unit: name.to_owned(), ..Specifiers::default() };
        let mut unit = empty(name)?;
        let assignments = syntax::parse(text).unwrap();
        apply(&mut unit, name, &assignments, &specifiers)?;
        finish(&mut unit)?;
        Ok(unit)
    }

    #[test]
    fn an_unknown_directive_is_refused_by_name() {
        let error = read("a.service", "[Service]\nExecStart=/a\nMemoryDenyWriteExecute=yes\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "a.service:3: directive MemoryDenyWriteExecute= in section [Service] is not supported"
        );
        assert!(matches!(read("a.socket", ""), Err(UnitError::Suffix(_))));
        assert!(matches!(read("a.target", "[Service]\nUser=x\n"), Err(UnitError::Section { .. })));
        assert!(matches!(read("a.service", "[Service]\nUser=x\n"), Err(UnitError::NothingToRun(_))));
        let error = read("a.service", "[Service]\nExecStart=/a\nRestart=sometimes\n").unwrap_err();
        assert!(error.to_string().contains("Restart=sometimes: expected no, always"), "{error}");
    }

    #[test]
    fn lists_grow_and_an_empty_value_clears_them() {
        let unit = read(
            "a.service",
            "[Unit]\nAfter=b.service c.service\nAfter=d.service\n[Service]\nType=oneshot\nExecStart=/a\nExecStart=\nExecStart=/b\nLimitNOFILE=1048576\n",
        )
        .unwrap();
        assert_eq!(unit.after[..3], ["b.service", "c.service", "d.service"]);
        assert!(unit.requires.contains(&"sysinit.target".to_owned()));
        let service = unit.service().unwrap();
        assert_eq!(service.exec_start.len(), 1);
        assert_eq!(service.timeout_start, None);
        assert_eq!(service.limits, [(libc::RLIMIT_NOFILE as i32, 1 << 20, 1 << 20)]);
    }

    #[test]
    fn a_target_comes_after_what_it_gathers() {
        let unit = read("a.target", "[Unit]\nWants=b.service\nRequires=c.service\n").unwrap();
        assert!(unit.after.contains(&"b.service".to_owned()) && unit.after.contains(&"c.service".to_owned()));
        let unit = read("b.timer", "[Timer]\nOnBootSec=5min\nOnCalendar=daily\n").unwrap();
        assert!(matches!(unit.kind, Kind::Timer(timer) if timer.unit == "b.service"));
    }
}
