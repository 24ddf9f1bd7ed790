//! When timers elapse. Deciding is pure; the manager waits.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::unit::Timer;

/// What a timer's next moment depends on.
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub now: Instant,
    pub clock: Timestamp,
    pub booted: Instant,
    /// When the timer itself was started.
    pub active_since: Instant,
    /// When it last started its unit.
    pub last_trigger: Option<Instant>,
    /// When its unit last became active, and inactive.
    pub unit_active: Option<Instant>,
    pub unit_inactive: Option<Instant>,
}

/// The next moment, if there is one.
pub fn next(timer: &Timer, view: &View) -> Option<Instant> {
    let fresh = |moment: Instant| view.last_trigger.is_none_or(|last| moment > last).then_some(moment);
    let after = |base: Option<Instant>, spans: &[Duration]| {
        let base = base?;
        spans.iter().filter_map(|span| base.checked_add(*span)).filter_map(fresh).min()
    };
    let calendar = timer.on_calendar.iter().filter_map(|word| {
        let at = word.next(view.clock)?;
        let wait = u64::try_from(at.as_millisecond() - view.clock.as_millisecond()).ok()?;
        view.now.checked_add(Duration::from_millis(wait))
    });
    [
        after(Some(view.active_since), &timer.on_active),
        after(Some(view.booted), &timer.on_boot),
        after(view.unit_active, &timer.on_unit_active),
        after(view.unit_inactive, &timer.on_unit_inactive),
        calendar.min(),
    ]
    .into_iter()
    .flatten()
    .min()
    .map(|moment| moment.max(view.now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::time::Calendar;

    #[test]
    fn the_earliest_moment_that_was_not_used_counts() {
        let booted = Instant::now();
        let seconds = |count: u64| Duration::from_secs(count);
        let timer =
            Timer { on_boot: vec![seconds(10)], on_unit_active: vec![seconds(60)], ..Timer::default() };
        let mut view = View {
            now: booted + seconds(1),
            clock: "2024-01-01T00:00:30Z".parse().unwrap(),
            booted,
            active_since: booted,
            last_trigger: None,
            unit_active: None,
            unit_inactive: None,
        };
        assert_eq!(next(&timer, &view), Some(booted + seconds(10)));
        view.last_trigger = Some(booted + seconds(10));
        view.unit_active = Some(booted + seconds(11));
        assert_eq!(next(&timer, &view), Some(booted + seconds(71)));
        // A moment that was missed is now.
        view.now = booted + seconds(100);
        assert_eq!(next(&timer, &view), Some(view.now));
        let daily = Timer { on_calendar: vec![Calendar::Minutely], ..Timer::default() };
        assert_eq!(next(&daily, &view), Some(view.now + seconds(30)));
        assert_eq!(next(&Timer::default(), &view), None);
    }
}
