//! How many seats a priority level wanted over time: those that are taken and those that are waited for.
//!
//! Each change adds what lasted until then; nothing runs in between. Figures are those of the last full period of ten
//! seconds, as upstream has them.

use std::time::{Duration, Instant};

/// Figures are made over so long.
const PERIOD: Duration = Duration::from_secs(10);
/// How much of the smoothed demand is left after a period, when there is less.
const KEPT: f64 = 0.977;

/// Bounds of the part of its seats that a level wants.
pub const DEMAND_RATIOS: &[f64] = &[0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.7, 2.0, 2.8, 4.0, 6.0];
/// Bounds of the part of its seats that are taken.
pub const TAKEN_RATIOS: &[f64] = &[0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// How long something was so, in nanoseconds, by how much of it there was.
#[derive(Clone, Debug)]
pub struct Lasting {
    /// Upper bounds.
    pub bounds: &'static [f64],
    /// One more than bounds.
    pub nanoseconds: Vec<u64>,
    /// Of times multiplied by how much there was.
    pub sum: f64,
}

impl Lasting {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, nanoseconds: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64, lasted: Duration) {
        let nanoseconds = lasted.as_nanos() as u64;
        self.nanoseconds[self.bounds.partition_point(|bound| *bound < value)] += nanoseconds;
        self.sum += value * nanoseconds as f64;
    }
}

/// Average, deviation and peak of a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "the line above says it")]
pub struct Period {
    pub average: f64,
    pub deviation: f64,
    pub peak: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Demand {
    wanted: usize,
    taken: usize,
    /// Until when everything is added up.
    until: Instant,
    /// Of the running period: when it began, and its sums in seats and seconds.
    began: Instant,
    area: f64,
    squares: f64,
    most: usize,
    /// The last full period.
    pub last: Period,
    /// Follows a rise at once and a fall slowly.
    pub smoothed: f64,
    /// By the part of the nominal seats that was wanted.
    pub wanted_for: Lasting,
    /// By the part of the nominal seats that was taken.
    pub taken_for: Lasting,
}

impl Default for Demand {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            wanted: 0,
            taken: 0,
            until: now,
            began: now,
            area: 0.0,
            squares: 0.0,
            most: 0,
            last: Period::default(),
            smoothed: 0.0,
            wanted_for: Lasting::new(DEMAND_RATIOS),
            taken_for: Lasting::new(TAKEN_RATIOS),
        }
    }
}

impl Demand {
    /// From now on so many seats are taken, and so many wanted with them.
    pub fn set(&mut self, now: Instant, seats: usize, taken: usize, wanted: usize) {
        self.look(now, seats);
        (self.taken, self.wanted) = (taken, wanted);
        self.most = self.most.max(wanted);
    }

    /// Everything up to now.
    pub fn look(&mut self, now: Instant, seats: usize) -> &Self {
        let lasted = now.saturating_duration_since(self.until);
        let part = |count: usize| count as f64 / seats.max(1) as f64;
        self.wanted_for.add(part(self.wanted), lasted);
        self.taken_for.add(part(self.taken), lasted);
        while now.saturating_duration_since(self.began) >= PERIOD {
            let end = self.began + PERIOD;
            self.add(end);
            let length = PERIOD.as_secs_f64();
            let average = self.area / length;
            let deviation = (self.squares / length - average * average).max(0.0).sqrt();
            self.last = Period { average, deviation, peak: self.most as f64 };
            // In all periods that went by since, nothing changed.
            let whole = (now.saturating_duration_since(end).as_nanos() / PERIOD.as_nanos()) as u32;
            self.smooth(average + deviation, 1);
            if whole > 0 {
                let same = self.wanted as f64;
                self.last = Period { average: same, deviation: 0.0, peak: same };
                self.smooth(same, whole.min(100_000));
            }
            self.began = end + PERIOD * whole;
            self.until = self.began;
            (self.area, self.squares, self.most) = (0.0, 0.0, self.wanted);
        }
        self.add(now);
        self
    }

    /// Adds what lasted until `end` to the running period.
    fn add(&mut self, end: Instant) {
        let (wanted, seconds) = (self.wanted as f64, end.saturating_duration_since(self.until).as_secs_f64());
        self.area += wanted * seconds;
        self.squares += wanted * wanted * seconds;
        self.until = self.until.max(end);
    }

    fn smooth(&mut self, level: f64, periods: u32) {
        let above = (self.smoothed - level).max(0.0);
        self.smoothed = level + above * KEPT.powi(periods as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_summed_up() {
        let mut demand = Demand::default();
        let start = demand.began;
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        demand.set(at(0), 4, 2, 2);
        demand.set(at(5), 4, 4, 6);
        assert_eq!(demand.last, Period::default(), "the first period is not over");
        demand.look(at(11), 4);
        assert_eq!(demand.last, Period { average: 4.0, deviation: 2.0, peak: 6.0 });
        assert_eq!(demand.smoothed, 6.0);
        demand.set(at(12), 4, 0, 0);
        demand.look(at(39), 4);
        assert_eq!(demand.last, Period::default(), "nothing was wanted for a whole period");
        assert!(demand.smoothed < 6.0 && demand.smoothed > 5.0, "{}", demand.smoothed);
        let total: u64 = demand.wanted_for.nanoseconds.iter().sum();
        assert_eq!(total, 39_000_000_000);
        let half = DEMAND_RATIOS.partition_point(|bound| *bound < 0.5);
        assert_eq!(demand.wanted_for.nanoseconds[half], 5_000_000_000);
        let above = DEMAND_RATIOS.partition_point(|bound| *bound < 1.5);
        assert_eq!(demand.wanted_for.nanoseconds[above], 7_000_000_000);
        assert_eq!(demand.taken_for.nanoseconds[TAKEN_RATIOS.len() - 1], 7_000_000_000);
    }
}
