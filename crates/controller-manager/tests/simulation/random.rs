//! Numbers that only look random: the same seed gives the same ones.

use std::sync::{Arc, Mutex, PoisonError};

/// Shared by all who draw from one seed. (splitmix64)
#[derive(Clone)]
pub struct Random(Arc<Mutex<u64>>);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(seed)))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Whether something happens that does so in `percent` of a hundred cases.
    pub fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn millis(&self, longest: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.below(longest))
    }
}
