//! The delay between tries of something that keeps failing: it doubles up to a maximum, and is forgotten after twice
//! the maximum without a failure.

use std::time::Duration;

use jiff::Timestamp;

/// First delay of crashing containers and failing pulls.
pub const FIRST: Duration = Duration::from_secs(10);
/// Longest delay of both.
pub const LONGEST: Duration = Duration::from_secs(300);

/// The memory of one thing's failures.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Backoff {
    delay: Duration,
    updated: Option<Timestamp>,
}

impl Backoff {
    /// When something that failed at `failed` may be tried again; `None` when it may be at once.
    pub fn until(&self, failed: Timestamp) -> Option<Timestamp> {
        if self.updated.is_none() || self.is_expired(failed) {
            return None;
        }
        failed.checked_add(jiff::SignedDuration::try_from(self.delay).ok()?).ok()
    }

    /// Notes a new try after a failure at `failed`: the next failure waits longer.
    pub fn next(&mut self, failed: Timestamp, now: Timestamp, first: Duration, longest: Duration) {
        self.delay = match self.updated {
            Some(_) if !self.is_expired_for(failed, longest) => (self.delay * 2).clamp(first, longest),
            _ => first,
        };
        self.updated = Some(now);
    }

    pub fn delay(&self) -> Duration {
        self.delay
    }

    fn is_expired(&self, at: Timestamp) -> bool {
        self.is_expired_for(at, LONGEST)
    }

    fn is_expired_for(&self, at: Timestamp, longest: Duration) -> bool {
        self.updated.is_some_and(|updated| {
            at.duration_since(updated)
                > jiff::SignedDuration::try_from(longest * 2).unwrap_or(jiff::SignedDuration::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn restarts_are_immediate_then_10_20_40_up_to_300_seconds_and_forget_after_ten_minutes() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.until(at(0)), None);
        let mut now = 0;
        let mut waits = Vec::new();
        for _ in 0..7 {
            backoff.next(at(now), at(now), FIRST, LONGEST);
            let failed = now + 1;
            let until = backoff.until(at(failed)).unwrap();
            waits.push(until.as_second() - failed);
            now = until.as_second();
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.until(at(now + 601)), None, "ran long enough to be forgiven");
    }
}
