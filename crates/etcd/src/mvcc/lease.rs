//! Leases: time to live, and the keys that die with them.
//!
//! Time comes in as a parameter. After a restart every lease starts its full time again, as etcd does after a
//! change of leader: a lease may live longer than promised, never shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::store::StoreError;

/// The longest time to live, as etcd limits it.
pub const MAX_TTL: i64 = 9_000_000_000;

/// One lease.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Seconds granted.
    pub ttl: i64,
    /// When it ends unless kept alive.
    pub expires: Instant,
    /// What is deleted with it.
    pub keys: BTreeSet<Bytes>,
}

impl Lease {
    /// Whole seconds left, rounded down as etcd does.
    pub fn remaining(&self, now: Instant) -> i64 {
        self.expires.saturating_duration_since(now).as_secs() as i64
    }
}

/// All leases.
#[derive(Debug, Default)]
pub struct Leases {
    by_id: BTreeMap<i64, Lease>,
    by_expiry: BTreeSet<(Instant, i64)>,
}

impl Leases {
    /// Checks that a lease may be granted.
    pub fn check_grant(&self, id: i64, ttl: i64) -> Result<(), StoreError> {
        if !(1..=MAX_TTL).contains(&ttl) {
            return Err(StoreError::LeaseTtl(ttl));
        }
        if self.by_id.contains_key(&id) {
            return Err(StoreError::LeaseExists(id));
        }
        Ok(())
    }

    /// Adds a lease.
    pub fn grant(&mut self, id: i64, ttl: i64, now: Instant) {
        let expires = now + Duration::from_secs(ttl.clamp(1, MAX_TTL) as u64);
        self.by_expiry.insert((expires, id));
        self.by_id.insert(id, Lease { ttl, expires, keys: BTreeSet::new() });
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
        lease.expires = now + Duration::from_secs(lease.ttl.max(1) as u64);
        self.by_expiry.insert((lease.expires, id));
        Some(lease.ttl)
    }

    /// Starts every lease's time again.
    pub fn restart(&mut self, now: Instant) {
        self.by_expiry.clear();
        for (id, lease) in &mut self.by_id {
            lease.expires = now + Duration::from_secs(lease.ttl.max(1) as u64);
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
    fn grants_are_checked() {
        let mut leases = Leases::default();
        leases.grant(1, 10, Instant::now());
        assert_eq!(leases.check_grant(1, 10), Err(StoreError::LeaseExists(1)));
        assert_eq!(leases.check_grant(2, 0), Err(StoreError::LeaseTtl(0)));
        assert_eq!(leases.check_grant(2, MAX_TTL + 1), Err(StoreError::LeaseTtl(MAX_TTL + 1)));
        assert_eq!(leases.check_grant(2, 1), Ok(()));
    }
}
