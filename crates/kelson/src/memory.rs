//! Memory that nobody uses any more goes back to the system.
//!
//! At the start every component lists everything at once, and the allocator keeps the room that those answers took.
#![allow(unsafe_code)]

use std::time::Duration;

/// How long after the start its lists have certainly been read.
const SETTLED: Duration = Duration::from_secs(5);

/// Gives back, once, what the start left behind. Never ends, so that it can stand beside what the process waits for.
pub async fn settle() -> std::convert::Infallible {
    tokio::time::sleep(SETTLED).await;
    let trimmed = tokio::task::spawn_blocking(|| {
        // SAFETY: no memory of ours is touched; glibc takes its own locks.
        unsafe { libc::malloc_trim(0) }
    });
    // Without it the memory is only used again later.
    let _ = trimmed.await;
    std::future::pending().await
}
