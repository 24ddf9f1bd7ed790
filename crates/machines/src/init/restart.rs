//! Whether a service that ended starts again. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::unit::{Restart, Service, StartLimit};

/// How a service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum End {
    Exited(i32),
    Signaled(i32),
    Timeout,
    /// It could not even be started.
    Resources,
}

impl End {
    /// Whether that is what the service wanted.
    pub fn is_success(self, service: &Service) -> bool {
        match self {
            Self::Exited(code) => code == 0 || service.success_statuses.contains(&code),
            // A oneshot that dies of a signal did not do its work; a daemon that was asked to go did.
            Self::Signaled(signal) => {
                let asked = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGPIPE].contains(&signal);
                service.success_signals.contains(&signal)
                    || (asked && service.kind != crate::unit::Type::Oneshot)
            }
            Self::Timeout | Self::Resources => false,
        }
    }

    /// As systemd calls it.
    pub fn result(self, service: &Service) -> &'static str {
        match self {
            _ if self.is_success(service) => "success",
            Self::Exited(_) => "exit-code",
            Self::Signaled(_) => "signal",
            Self::Timeout => "timeout",
            Self::Resources => "resources",
        }
    }

    /// For people.
    pub fn describe(self) -> String {
        match self {
            Self::Exited(code) => format!("exited with status {code}"),
            Self::Signaled(signal) => format!("was ended by signal {signal}"),
            Self::Timeout => "took too long".to_owned(),
            Self::Resources => "could not be started".to_owned(),
        }
    }
}

/// Whether a service that ended by itself starts again.
pub fn wanted(service: &Service, end: End) -> bool {
    if matches!(end, End::Exited(code) if service.restart_prevent.contains(&code)) {
        return false;
    }
    let success = end.is_success(service);
    match service.restart {
        Restart::No => false,
        Restart::Always => true,
        Restart::OnSuccess => success,
        Restart::OnFailure => !success,
        Restart::OnAbnormal => !success && matches!(end, End::Signaled(_) | End::Timeout),
        Restart::OnAbort => !success && matches!(end, End::Signaled(_)),
    }
}

/// Whether one more start now is within the limit; if so it is counted.
pub fn allowed(limit: StartLimit, starts: &mut VecDeque<Instant>, now: Instant) -> bool {
    if limit.interval.is_zero() || limit.burst == 0 {
        return true;
    }
    while starts.front().is_some_and(|start| now.saturating_duration_since(*start) > limit.interval) {
        starts.pop_front();
    }
    if starts.len() as u64 >= u64::from(limit.burst) {
        return false;
    }
    starts.push_back(now);
    true
}

/// The longest a stop may take before processes are killed.
pub fn stop_deadline(service: &Service) -> Duration {
    service.timeout_stop.unwrap_or(Duration::from_secs(365 * 86400))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Type;

    fn service(restart: Restart) -> Service {
        Service { restart, ..Service::default() }
    }

    #[test]
    fn restarts_follow_the_table() {
        let ends = [
            End::Exited(0),
            End::Exited(1),
            End::Signaled(libc::SIGTERM),
            End::Signaled(libc::SIGSEGV),
            End::Timeout,
        ];
        let row = |restart| ends.map(|end| wanted(&service(restart), end));
        assert_eq!(row(Restart::No), [false; 5]);
        assert_eq!(row(Restart::Always), [true; 5]);
        assert_eq!(row(Restart::OnSuccess), [true, false, true, false, false]);
        assert_eq!(row(Restart::OnFailure), [false, true, false, true, true]);
        assert_eq!(row(Restart::OnAbnormal), [false, false, false, true, true]);
        assert_eq!(row(Restart::OnAbort), [false, false, false, true, false]);
        let picky =
            Service { restart_prevent: vec![1], success_statuses: vec![3], ..service(Restart::Always) };
        assert!(!wanted(&picky, End::Exited(1)));
        assert!(End::Exited(3).is_success(&picky));
        let oneshot = Service { kind: Type::Oneshot, ..Service::default() };
        assert!(!End::Signaled(libc::SIGTERM).is_success(&oneshot));
    }

    #[test]
    fn starts_are_limited_within_the_interval() {
        let limit = StartLimit { interval: Duration::from_secs(10), burst: 2 };
        let start = Instant::now();
        let mut starts = VecDeque::new();
        assert!(allowed(limit, &mut starts, start) && allowed(limit, &mut starts, start));
        assert!(!allowed(limit, &mut starts, start + Duration::from_secs(5)));
        assert!(allowed(limit, &mut starts, start + Duration::from_secs(11)));
        let none = StartLimit { interval: Duration::ZERO, burst: 1 };
        assert!((0..9).all(|_| allowed(none, &mut starts, start)));
    }
}
