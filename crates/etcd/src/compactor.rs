//! Forgetting history by itself, by time or by number of revisions, as etcd's auto-compaction.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::Stop;
use tokio::time::Instant;

use crate::local::Etcd;
use crate::store::{Revision, Store};

/// How much history to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// That of the last while.
    Period(Duration),
    /// That many revisions.
    Revisions(i64),
}

/// How often revisions are counted.
const COUNT_EVERY: Duration = Duration::from_secs(300);

impl Retention {
    /// From etcd's two flags; `None` if they make no sense.
    pub fn parse(mode: &str, retention: &str) -> Option<Self> {
        let parsed = match mode {
            // A bare number is hours, as etcd has it.
            "periodic" => match retention.parse::<u64>() {
                Ok(hours) => Self::Period(Duration::from_secs(hours.checked_mul(3600)?)),
                Err(_) => Self::Period(duration(retention)?),
            },
            "revision" => Self::Revisions(retention.parse().ok().filter(|count| *count >= 0)?),
            _ => return None,
        };
        Some(parsed)
    }

    /// Whether nothing is ever forgotten.
    pub fn keeps_everything(&self) -> bool {
        matches!(self, Self::Period(Duration::ZERO) | Self::Revisions(0))
    }

    fn interval(&self) -> Duration {
        match self {
            // As etcd: a tenth, at most an hour of periods.
            Self::Period(period) => (*period / 10).clamp(Duration::from_secs(1), Duration::from_secs(360)),
            Self::Revisions(_) => COUNT_EVERY,
        }
    }
}

/// A duration as Go writes it: `1h30m`, `5m`, `10s`, `100ms`.
pub fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        total += match &rest[digits..unit_end] {
            "h" => Duration::from_secs(number.checked_mul(3600)?),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

/// The newest revision that is old enough, given when which revision was current; older entries are dropped.
fn old_enough(seen: &mut VecDeque<(Instant, Revision)>, now: Instant, period: Duration) -> Option<Revision> {
    let mut found = None;
    while let Some((when, revision)) = seen.front().copied() {
        if now.duration_since(when) < period {
            break;
        }
        found = Some(revision);
        seen.pop_front();
    }
    found
}

/// Compacts now and then until the stop.
pub async fn run(etcd: Arc<Etcd>, retention: Retention, stop: Stop) {
    let mut seen = VecDeque::new();
    let mut done = 0;
    while stop.or(tokio::time::sleep(retention.interval())).await.is_some() {
        let now = Instant::now();
        let target = match retention {
            Retention::Period(period) => {
                seen.push_back((now, etcd.revision()));
                old_enough(&mut seen, now, period)
            }
            Retention::Revisions(count) => Some(etcd.revision() - count),
        };
        // Only the member that decides does it.
        let target = target.filter(|target| *target > done && !etcd.shared.is_standby());
        let Some(target) = target else { continue };
        match etcd.compact(target).await {
            Ok(()) => tracing::debug!(revision = target, "compacted"),
            Err(error) => tracing::warn!(error = %telemetry::chain(&error), "not compacted"),
        }
        done = target;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retentions_are_read_as_etcd_reads_them() {
        let hours = |count: u64| Some(Retention::Period(Duration::from_secs(count * 3600)));
        assert_eq!(Retention::parse("periodic", "1"), hours(1));
        assert_eq!(Retention::parse("periodic", "0"), hours(0));
        assert_eq!(Retention::parse("periodic", "5m"), Some(Retention::Period(Duration::from_secs(300))));
        assert_eq!(Retention::parse("revision", "1000"), Some(Retention::Revisions(1000)));
        assert_eq!(Retention::parse("revision", "5m"), None);
        assert_eq!(Retention::parse("sometimes", "1"), None);
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(duration("100ms"), Some(Duration::from_millis(100)));
        assert_eq!(duration("5"), None);
        assert_eq!(duration(""), None);
        assert_eq!(duration("5x"), None);
    }

    #[test]
    fn only_what_is_older_than_the_period_is_forgotten() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut seen = VecDeque::from([(at(0), 5), (at(10), 7), (at(20), 9)]);
        assert_eq!(old_enough(&mut seen, at(31), Duration::from_secs(20)), Some(7));
        assert_eq!(seen.len(), 1);
        assert_eq!(old_enough(&mut seen, at(32), Duration::from_secs(20)), None);
    }
}
