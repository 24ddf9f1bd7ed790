//! The simple bound on requests in flight, for servers without priority and fairness: so many that read, so many that write,
//! and nobody waits. Long-running requests do not count, and who may do everything is never refused.

use tokio::sync::{Semaphore, SemaphorePermit};

/// All places are taken.
#[derive(Debug)]
pub struct NoPlace;

/// See the module.
pub struct InFlightLimits {
    reading: Option<Semaphore>,
    writing: Option<Semaphore>,
}

impl InFlightLimits {
    /// 0 is no bound.
    pub fn new(reading: usize, writing: usize) -> Self {
        let bound = |most: usize| (most > 0).then(|| Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
        Self { reading: bound(reading), writing: bound(writing) }
    }

    /// Takes a place until the permit is dropped.
    pub fn enter(
        &self,
        read_only: bool,
        long_running: bool,
        master: bool,
    ) -> Result<Option<SemaphorePermit<'_>>, NoPlace> {
        let bound = if read_only { &self.reading } else { &self.writing };
        let Some(bound) = bound.as_ref().filter(|_| !long_running) else { return Ok(None) };
        match bound.try_acquire() {
            Ok(permit) => Ok(Some(permit)),
            Err(_) if master => Ok(None),
            Err(_) => Err(NoPlace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sort_has_its_own_bound() {
        let limits = InFlightLimits::new(1, 0);
        let first = limits.enter(true, false, false).unwrap();
        assert!(first.is_some());
        assert!(limits.enter(true, false, false).is_err());
        assert!(limits.enter(true, true, false).unwrap().is_none());
        assert!(limits.enter(true, false, true).unwrap().is_none());
        assert!(limits.enter(false, false, false).unwrap().is_none());
        drop(first);
        assert!(limits.enter(true, false, false).is_ok());
    }
}
