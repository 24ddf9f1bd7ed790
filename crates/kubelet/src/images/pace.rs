//! How many pulls run at once and how many may start in a second.

use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::{ImageSettings, PullFailure};

pub struct Pace {
    /// None: as many as are asked for.
    slots: Option<Semaphore>,
    bucket: Option<Mutex<Bucket>>,
}

struct Bucket {
    rate: f64,
    size: f64,
    tokens: f64,
    since: Instant,
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_secs_f64();
        self.since = now;
        self.tokens = (self.tokens + passed * self.rate).min(self.size);
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

impl Pace {
    pub fn new(settings: &ImageSettings) -> Self {
        let slots = match (settings.serialize, settings.max_parallel) {
            (true, _) => Some(1),
            (false, many) => many.filter(|many| *many > 0),
        };
        let bucket = (settings.pull_qps > 0).then(|| {
            let size = f64::from(settings.pull_burst.max(1));
            let rate = f64::from(settings.pull_qps);
            Mutex::new(Bucket { rate, size, tokens: size, since: Instant::now() })
        });
        Self { slots: slots.map(|count| Semaphore::new(count as usize)), bucket }
    }

    /// Waits for a turn; too many in a second is an error, as upstream has it.
    pub(super) async fn turn(&self) -> Result<Option<SemaphorePermit<'_>>, PullFailure> {
        let permit = match &self.slots {
            // Never closed.
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        };
        if let Some(bucket) = &self.bucket
            && !bucket.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take(Instant::now())
        {
            return Err(PullFailure { text: "pull QPS exceeded".into(), unavailable: false });
        }
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let start = Instant::now();
        let mut bucket = Bucket { rate: 5.0, size: 3.0, tokens: 3.0, since: start };
        let taken = (0..5).filter(|_| bucket.take(start)).count();
        assert_eq!(taken, 3);
        assert!(bucket.take(start + Duration::from_millis(250)));
        assert!(!bucket.take(start + Duration::from_millis(260)));
    }

    #[tokio::test]
    async fn serialized_pulls_wait_for_each_other() {
        let pace = Pace::new(&ImageSettings::default());
        let first = pace.turn().await.unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), pace.turn()).await.is_err());
        drop(first);
        pace.turn().await.unwrap();
    }
}
