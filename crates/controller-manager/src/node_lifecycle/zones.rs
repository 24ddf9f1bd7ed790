//! How fast nodes may be emptied: slowly in a zone that is well, hardly or not in one where much is down at once, for
//! then it is more likely that something else is broken than all those machines.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// The flags.
#[derive(Clone, Copy, Debug)]
pub struct EvictionRates {
    /// Nodes per second in a zone that is well.
    pub usual: f32,
    /// Nodes per second in a large zone where much is down.
    pub reduced: f32,
    /// The part of a zone that must be down for that.
    pub unhealthy: f32,
    /// Zones up to this size are then not emptied at all.
    pub small: usize,
}

impl Default for EvictionRates {
    fn default() -> Self {
        Self { usual: 0.1, reduced: 0.01, unhealthy: 0.55, small: 50 }
    }
}

/// How many nodes of a zone report and how many do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Ready ones.
    pub up: usize,
    /// Others.
    pub down: usize,
}

impl EvictionRates {
    /// Nodes per second that may be emptied in a zone, given whether some other zone is not entirely down.
    pub fn rate(&self, zone: Health, others_live: bool) -> f32 {
        let size = zone.up + zone.down;
        if zone.up == 0 && zone.down > 0 {
            return if others_live { self.usual } else { 0.0 };
        }
        let much = zone.down > 2 && zone.down as f32 / size as f32 >= self.unhealthy;
        match (much, size > self.small) {
            (false, _) => self.usual,
            (true, true) => self.reduced,
            (true, false) => 0.0,
        }
    }
}

/// Whether a node may be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Now.
    Now,
    /// Not before.
    At(Timestamp),
    /// Not while the zone is as it is.
    Never,
    /// Nobody: every node is silent, so we are more likely cut off. What was begun is taken back.
    TakenBack,
}

/// Hands out turns to nodes, per zone.
#[derive(Debug, Default)]
pub struct Turns {
    /// When the next of a zone may be emptied.
    next: HashMap<Box<str>, Timestamp>,
    /// Nodes that have their turn and have not used it yet.
    granted: HashMap<Box<str>, ()>,
}

impl Turns {
    /// Asks for a node's turn. A turn that was given stays given until it is used.
    pub fn ask(&mut self, zone: &str, node: &str, rate: f32, now: Timestamp) -> Eviction {
        if self.granted.contains_key(node) {
            return Eviction::Now;
        }
        if rate <= 0.0 {
            return Eviction::Never;
        }
        match self.next.get(zone) {
            Some(next) if *next > now => Eviction::At(*next),
            _ => {
                let pause = SignedDuration::from_secs_f32(1.0 / rate);
                self.next.insert(zone.into(), now.checked_add(pause).unwrap_or(now));
                self.granted.insert(node.into(), ());
                Eviction::Now
            }
        }
    }

    /// The node needs no turn (any more).
    pub fn done(&mut self, node: &str) {
        self.granted.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_zone_decides_the_rate() {
        let rates = EvictionRates::default();
        let cases = [
            ("well", Health { up: 9, down: 1 }, true, 0.1),
            ("two of three down are few", Health { up: 1, down: 2 }, true, 0.1),
            ("small and much down", Health { up: 2, down: 4 }, true, 0.0),
            ("large and much down", Health { up: 40, down: 60 }, true, 0.01),
            ("entirely down", Health { up: 0, down: 7 }, true, 0.1),
            ("like all others", Health { up: 0, down: 7 }, false, 0.0),
        ];
        for (name, health, others_live, wanted) in cases {
            assert_eq!(rates.rate(health, others_live), wanted, "{name}");
        }
    }

    #[test]
    fn nodes_of_a_zone_take_turns() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let later = |seconds: i64| now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        let mut turns = Turns::default();
        assert_eq!(turns.ask("z", "a", 0.1, now), Eviction::Now);
        assert_eq!(turns.ask("z", "b", 0.1, now), Eviction::At(later(10)));
        assert_eq!(turns.ask("other", "c", 0.1, now), Eviction::Now, "zones do not wait for each other");
        assert_eq!(turns.ask("z", "a", 0.1, later(1)), Eviction::Now, "a turn stays given until used");
        turns.done("a");
        assert_eq!(turns.ask("z", "b", 0.1, later(10)), Eviction::Now);
        assert_eq!(turns.ask("z", "d", 0.0, later(99)), Eviction::Never);
    }
}
