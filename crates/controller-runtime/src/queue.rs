//! The work queue of one controller: keys, each at most once, with delays and per-key back-off.
//!
//! A key that is added while it is being worked on is handed out again afterwards, never twice at once. A delay
//! is kept only as the earliest one per key and is forgotten when the key is handed out, because the run that follows
//! says anew when it wants to be called. Nothing ticks while the queue is empty.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use client::Key;
use lifecycle::Stop;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::QueueMetrics;

const FIRST_RETRY: Duration = Duration::from_millis(5);
const LAST_RETRY: Duration = Duration::from_secs(1000);
/// All retries of a queue together: a hundred at once, then ten a second, as client-go's default limiter has it.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const RETRY_BURST: u32 = 100;

/// See the module.
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
    /// What the queue counts.
    pub metrics: QueueMetrics,
}

#[derive(Default)]
struct State {
    ready: VecDeque<(Key, Instant)>,
    /// In `ready`, or to be put there once its present run ends.
    dirty: HashSet<Key>,
    running: HashSet<Key>,
    delayed: BTreeSet<(Instant, Key)>,
    delay_of: HashMap<Key, Instant>,
    failures: HashMap<Key, u32>,
    /// When the retries granted so far will all have been paid for, at one per interval.
    paid_until: Option<Instant>,
}

impl Queue {
    /// An empty queue.
    pub fn new(name: &'static str) -> Self {
        Self { state: Mutex::default(), changed: Notify::new(), metrics: QueueMetrics::new(name) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Asks for a run of `key`.
    pub fn add(&self, key: Key) {
        let mut state = self.state();
        if state.add(key) {
            self.metrics.added(state.ready.len());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Asks for a run of `key` after `delay`; an earlier wish stands.
    pub fn add_after(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let due = Instant::now() + delay;
        let mut state = self.state();
        if let Some(&old) = state.delay_of.get(&key) {
            if old <= due {
                return;
            }
            state.delayed.remove(&(old, key.clone()));
        }
        state.delay_of.insert(key.clone(), due);
        state.delayed.insert((due, key));
        drop(state);
        self.changed.notify_one();
    }

    /// Asks for another run after a failure: 5 ms at first, twice as long each time, and with many keys failing not more
    /// than the queue's allowance. Returns the delay.
    pub fn retry(&self, key: Key) -> Duration {
        let delay = {
            let mut state = self.state();
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let delay =
                FIRST_RETRY.saturating_mul(1_u32.checked_shl(*failures).unwrap_or(u32::MAX)).min(LAST_RETRY);
            *failures = failures.saturating_add(1).min(30);
            delay.max(state.reserve(Instant::now()))
        };
        self.metrics.retried();
        self.add_after(key, delay);
        delay
    }

    /// Forgets the failures of `key`.
    pub fn forget(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// How often `key` failed in a row.
    pub fn failures(&self, key: &Key) -> u32 {
        self.state().failures.get(key).copied().unwrap_or(0)
    }

    /// Hands out the next key; `None` once the stop is requested. Call [`Queue::done`] for it.
    pub async fn next(&self, stop: &Stop) -> Option<Key> {
        loop {
            if stop.is_requested() {
                return None;
            }
            let due = {
                let mut state = self.state();
                state.wake(Instant::now());
                if let Some((key, since)) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.running.insert(key.clone());
                    state.cancel_delay(&key);
                    self.metrics.taken(state.ready.len(), since.elapsed());
                    let more = !state.ready.is_empty();
                    drop(state);
                    if more {
                        // One permit is stored at most: pass it on, or a burst would be worked on by one worker.
                        self.changed.notify_one();
                    }
                    return Some(key);
                }
                state.delayed.first().map(|(due, _)| *due)
            };
            let wait = async {
                match due {
                    Some(due) => {
                        tokio::select! {
                            () = self.changed.notified() => {}
                            () = tokio::time::sleep_until(due) => {}
                        }
                    }
                    None => self.changed.notified().await,
                }
            };
            stop.or(wait).await?;
        }
    }

    /// Ends the run of `key`.
    pub fn done(&self, key: &Key, took: Duration) {
        self.metrics.done(took);
        let mut state = self.state();
        state.running.remove(key);
        if state.dirty.contains(key) {
            state.ready.push_back((key.clone(), Instant::now()));
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Whether nothing is waiting, delayed or running.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.ready.is_empty() && state.running.is_empty() && state.delayed.is_empty()
    }
}

impl State {
    /// Whether the key became ready by this call.
    fn add(&mut self, key: Key) -> bool {
        if !self.dirty.insert(key.clone()) || self.running.contains(&key) {
            return false;
        }
        self.ready.push_back((key, Instant::now()));
        true
    }

    /// Takes a turn of the queue's common allowance; how long it is away.
    fn reserve(&mut self, now: Instant) -> Duration {
        let paid = self.paid_until.map_or(now, |until| until.max(now)) + RETRY_INTERVAL;
        self.paid_until = Some(paid);
        paid.saturating_duration_since(now + RETRY_INTERVAL * RETRY_BURST)
    }

    fn wake(&mut self, now: Instant) {
        while let Some((due, _)) = self.delayed.first() {
            if *due > now {
                break;
            }
            if let Some((_, key)) = self.delayed.pop_first() {
                self.delay_of.remove(&key);
                self.add(key);
            }
        }
    }

    fn cancel_delay(&mut self, key: &Key) {
        if let Some(due) = self.delay_of.remove(key) {
            self.delayed.remove(&(due, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new("n", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_running_runs_once_more_and_not_at_once() {
        let (queue, stop) = (Queue::new("t"), Stop::new());
        queue.add(key("a"));
        queue.add(key("a"));
        assert_eq!(queue.next(&stop).await, Some(key("a")));
        queue.add(key("a"));
        let early = tokio::time::timeout(Duration::from_secs(1), queue.next(&stop)).await;
        assert!(early.is_err(), "handed out twice at once");
        queue.done(&key("a"), Duration::ZERO);
        assert_eq!(queue.next(&stop).await, Some(key("a")));
        queue.done(&key("a"), Duration::ZERO);
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_delay_counts_and_a_run_forgets_it() {
        let (queue, stop) = (Queue::new("t"), Stop::new());
        queue.add_after(key("a"), Duration::from_secs(60));
        queue.add_after(key("a"), Duration::from_secs(10));
        queue.add_after(key("a"), Duration::from_secs(30));
        let start = Instant::now();
        assert_eq!(queue.next(&stop).await, Some(key("a")));
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.done(&key("a"), Duration::ZERO);
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn retries_double_up_to_a_limit_and_success_resets_them() {
        let queue = Queue::new("t");
        let delays: Vec<u128> = (0..3).map(|_| queue.retry(key("a")).as_millis()).collect();
        assert_eq!(delays, [5, 10, 20]);
        for _ in 0..40 {
            queue.retry(key("a"));
        }
        assert_eq!(queue.retry(key("a")), LAST_RETRY);
        queue.forget(&key("a"));
        assert_eq!(queue.retry(key("a")), FIRST_RETRY);
    }

    #[tokio::test(start_paused = true)]
    async fn many_failing_keys_share_ten_retries_a_second() {
        let queue = Queue::new("t");
        let late = (0..700).filter(|number| queue.retry(key(&number.to_string())) > Duration::from_secs(59));
        assert_eq!(late.count(), 10, "a hundred at once and 590 within 59 seconds");
    }
}
