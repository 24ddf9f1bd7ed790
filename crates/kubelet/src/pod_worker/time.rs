//! Small arithmetic on times.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub(super) fn sooner(wake: &mut Option<Timestamp>, at: Option<Timestamp>) {
    if let Some(at) = at {
        *wake = Some(wake.map_or(at, |known| known.min(at)));
    }
}

pub(super) fn later(now: Timestamp, delay: Duration) -> Timestamp {
    SignedDuration::try_from(delay)
        .ok()
        .and_then(|delay| now.checked_add(delay).ok())
        .unwrap_or(Timestamp::MAX)
}

pub(super) fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// `10s`, `1m20s`, `5m0s`, as Go prints durations.
pub(super) fn go_duration(delay: Duration) -> String {
    let seconds = delay.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}
