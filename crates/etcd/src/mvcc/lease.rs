//! Leases: time to live, and the keys that die with them.
//!
//! Time comes in as a parameter. How much time a lease has left survives a restart by *checkpoints*: now and then, and when
//! the store is closed, the remaining seconds go into the log, and a lease that is kept alive after that gets its checkpoint
//! taken back first. So after a restart a lease has at least the time it really had left, at most the checkpoints' interval more, and
//! never more than it was granted. While the store is down no time passes for its leases, as with etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::store::StoreError;

/// A checkpoint is written when the last one overstates the time left by this much, unless configured otherwise.
pub const CHECKPOINT: Duration = Duration::from_secs(60);

/// The longest time to live, as etcd limits it.
pub const MAX_TTL: i64 = 9_000_000_000;

/// One lease.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Seconds granted.
    pub ttl: i64,
    /// When it ends unless kept alive.
    pub expires: Instant,
    /// The seconds left as the log knows them; `None` is all that were granted.
    pub checkpoint: Option<i64>,
    /// What is deleted with it.
    pub keys: BTreeSet<Bytes>,
}

impl Lease {
    /// Whole seconds left, rounded down as etcd does.
    pub fn remaining(&self, now: Instant) -> i64 {
        self.expires.saturating_duration_since(now).as_secs() as i64
    }

    /// The seconds that the lease would have after a restart.
    fn recorded(&self) -> i64 {
        self.checkpoint.unwrap_or(self.ttl).clamp(1, MAX_TTL)
    }

    /// The seconds to record, rounded up, if what is recorded is more than `tolerance` above them.
    fn overstated(&self, now: Instant, tolerance: Duration) -> Option<i64> {
        let left = self.expires.saturating_duration_since(now);
        let wanted = (left.as_millis().div_ceil(1000) as i64).max(1);
        let excess = self.recorded().saturating_sub(wanted);
        (excess > 0 && excess as u64 >= tolerance.as_secs()).then_some(wanted)
    }
}

/// Checks the seconds for which a lease may be granted.
pub fn check_ttl(ttl: i64) -> Result<(), StoreError> {
    if (1..=MAX_TTL).contains(&ttl) { Ok(()) } else { Err(StoreError::LeaseTtl(ttl)) }
}

/// All leases.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: BTreeMap<i64, Lease>,
    by_expiry: BTreeSet<(Instant, i64)>,
}

impl Leases {
    /// Adds a lease.
    pub fn grant(&mut self, id: i64, ttl: i64, now: Instant) {
        let expires = now + Duration::from_secs(ttl.clamp(1, MAX_TTL) as u64);
        self.by_expiry.insert((expires, id));
        self.by_id.insert(id, Lease { ttl, expires, checkpoint: None, keys: BTreeSet::new() });
    }

    /// Removes a lease and returns its keys.
    pub fn revoke(&mut self, id: i64) -> Option<BTreeSet<Bytes>> {
        let lease = self.by_id.remove(&id)?;
        self.by_expiry.remove(&(lease.expires, id));
        Some(lease.keys)
    }

    /// Starts a lease's time again. Returns the seconds granted.
    pub fn keep_alive(&mut self, id: i64, now: Instant) -> Option<i64> {
        let lease = self.by_id.get_mut(&id)?;
        if lease.expires <= now {
            return None;
        }
        self.by_expiry.remove(&(lease.expires, id));
        lease.expires = now + Duration::from_secs(lease.ttl.clamp(1, MAX_TTL) as u64);
        self.by_expiry.insert((lease.expires, id));
        Some(lease.ttl)
    }

    /// Notes what the log says about a lease's time; `None` is all of it.
    pub fn checkpoint(&mut self, id: i64, seconds: Option<i64>) {
        if let Some(lease) = self.by_id.get_mut(&id) {
            lease.checkpoint = seconds;
        }
    }

    /// The checkpoints to write: of leases of which the log overstates the time left by `tolerance` or more.
    pub fn due_checkpoints(&self, now: Instant, tolerance: Duration) -> Vec<(i64, i64)> {
        let due = self.by_id.iter().filter_map(|(id, lease)| Some((*id, lease.overstated(now, tolerance)?)));
        due.collect()
    }

    /// Whether any lease lives long enough to need checkpoints.
    pub fn wants_checkpoints(&self, tolerance: Duration) -> bool {
        self.by_id.values().any(|lease| lease.recorded() as u64 > tolerance.as_secs())
    }

    /// Starts every lease's time again, from what was recorded.
    pub fn restart(&mut self, now: Instant) {
        self.by_expiry.clear();
        for (id, lease) in &mut self.by_id {
            lease.expires = now + Duration::from_secs(lease.recorded() as u64);
            self.by_expiry.insert((lease.expires, *id));
        }
    }

    /// One lease.
    pub fn get(&self, id: i64) -> Option<&Lease> {
        self.by_id.get(&id)
    }

    /// All leases.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &Lease)> {
        self.by_id.iter().map(|(id, lease)| (*id, lease))
    }

    /// When the next lease ends.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|(when, _)| *when)
    }

    /// The leases that have ended.
    pub fn expired(&self, now: Instant) -> Vec<i64> {
        self.by_expiry.iter().take_while(|(when, _)| *when <= now).map(|(_, id)| *id).collect()
    }

    /// Notes that a key moved from one lease to another (0 is none).
    pub fn move_key(&mut self, key: &Bytes, from: i64, to: i64) {
        if from == to {
            return;
        }
        if let Some(lease) = self.by_id.get_mut(&from) {
            lease.keys.remove(key);
        }
        if let Some(lease) = self.by_id.get_mut(&to) {
            lease.keys.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_when_its_time_is_over_unless_kept_alive() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.grant(1, 10, start);
        leases.grant(2, 5, start);
        assert_eq!(leases.next_expiry(), Some(at(5)));
        assert_eq!(leases.keep_alive(2, at(4)), Some(5));
        assert_eq!(leases.expired(at(8)), Vec::<i64>::new());
        assert_eq!(leases.expired(at(9)), [2]);
        assert_eq!(leases.expired(at(10)), [2, 1]);
        assert_eq!(leases.keep_alive(2, at(9)), None, "an ended lease cannot be revived");
    }

    #[test]
    fn a_key_belongs_to_its_last_lease_only() {
        let now = Instant::now();
        let mut leases = Leases::default();
        leases.grant(1, 10, now);
        leases.grant(2, 10, now);
        let key = Bytes::from_static(b"k");
        leases.move_key(&key, 0, 1);
        leases.move_key(&key, 1, 2);
        assert_eq!(leases.revoke(1), Some(BTreeSet::new()));
        assert_eq!(leases.revoke(2), Some(BTreeSet::from([key])));
        assert_eq!(leases.revoke(2), None);
    }

    #[test]
    fn checkpoints_are_due_when_the_log_overstates_the_time_left() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut leases = Leases::default();
        leases.grant(1, 300, start);
        leases.grant(2, 30, start);
        assert!(leases.wants_checkpoints(CHECKPOINT));
        assert_eq!(leases.due_checkpoints(at(59), CHECKPOINT), []);
        assert_eq!(leases.due_checkpoints(at(60), CHECKPOINT), [(1, 240)]);
        // At the end every second counts, rounded up, and a lease that is over keeps one.
        let almost = start + Duration::from_millis(29_500);
        assert_eq!(leases.due_checkpoints(almost, Duration::ZERO), [(1, 271), (2, 1)]);
        leases.checkpoint(1, Some(240));
        assert_eq!(leases.due_checkpoints(at(119), CHECKPOINT), []);
        assert_eq!(leases.due_checkpoints(at(120), CHECKPOINT), [(1, 180)]);
        leases.restart(at(1000));
        assert_eq!(leases.get(1).map(|lease| lease.remaining(at(1000))), Some(240));
        assert_eq!(leases.get(2).map(|lease| lease.remaining(at(1000))), Some(30));
        leases.checkpoint(1, None);
        leases.restart(at(2000));
        assert_eq!(leases.get(1).map(|lease| lease.remaining(at(2000))), Some(300));
    }

    #[test]
    fn grants_are_checked() {
        assert_eq!(check_ttl(0), Err(StoreError::LeaseTtl(0)));
        assert_eq!(check_ttl(MAX_TTL + 1), Err(StoreError::LeaseTtl(MAX_TTL + 1)));
        assert_eq!(check_ttl(1), Ok(()));
    }
}
