//! The time that objects are stamped with.

use std::time::Instant;

use jiff::{SignedDuration, Timestamp};

/// The machine's wall clock, except that where a test has stopped or turned tokio's clock it is as far off as that one:
/// then everything in the process agrees on the time. Otherwise both agree and nothing is added.
pub fn now() -> Timestamp {
    let (turned, true_) = (tokio::time::Instant::now().into_std(), Instant::now());
    let now = Timestamp::now();
    let ahead = SignedDuration::try_from(turned.saturating_duration_since(true_)).unwrap_or_default();
    let behind = SignedDuration::try_from(true_.saturating_duration_since(turned)).unwrap_or_default();
    now.checked_add(ahead - behind).unwrap_or(now)
}
