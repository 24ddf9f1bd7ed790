//! Tasks with names and owners, and the order in which they stop.
//!
//! Every background loop of a component is spawned on a [`Tasks`] and gets a [`Stop`]. Whoever owns the
//! `Tasks` asks it to stop and waits for it, with a deadline. A panic in one task is logged under the task's
//! name and never takes the process down; a task that must not end is spawned with [`Tasks::keep`], which
//! starts it again after a pause.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, warn};

/// How long [`Tasks::keep`] waits before it starts an ended task again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Tells a task that it is time to finish. Cheap to clone; children stop with their parent.
#[derive(Clone, Debug, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// A stop that nothing else triggers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves once stopping was requested.
    pub async fn requested(&self) {
        self.0.cancelled().await
    }

    /// Whether stopping was requested.
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Requests the stop of everything that holds this or a child of it.
    pub fn request(&self) {
        self.0.cancel()
    }

    /// A stop that is requested with this one, or alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Runs `work` until it ends (`Some`) or the stop is requested (`None`); the future is then dropped, so it
    /// must be safe to abandon at any await.
    pub async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.requested() => None,
            value = work => Some(value),
        }
    }
}

/// A group of named tasks with one owner.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    stop: Stop,
    tracker: TaskTracker,
    running: Arc<Mutex<Vec<Arc<str>>>>,
}

impl Tasks {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// A group that also stops when `stop` does.
    pub fn under(stop: &Stop) -> Self {
        Self { stop: stop.child(), ..Self::default() }
    }

    /// The stop that this group's tasks listen to.
    pub fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Starts a task. If it panics, the panic is logged and the task has ended.
    pub fn spawn<F>(&self, name: impl Into<Arc<str>>, start: impl FnOnce(Stop) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name = name.into();
        let work = AssertUnwindSafe(start(self.stop.clone())).catch_unwind();
        let entry = self.enter(name.clone());
        self.tracker.spawn(async move {
            let _entry = entry;
            if work.await.is_err() {
                error!(task = %name, "task panicked");
            }
        });
    }

    /// Starts a task that is started again whenever it ends or panics before the stop.
    pub fn keep<F>(&self, name: impl Into<Arc<str>>, mut start: impl FnMut(Stop) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name: Arc<str> = name.into();
        let stop = self.stop.clone();
        let entry = self.enter(name.clone());
        self.tracker.spawn(async move {
            let _entry = entry;
            while !stop.is_requested() {
                let outcome = AssertUnwindSafe(start(stop.clone())).catch_unwind().await;
                if stop.is_requested() {
                    break;
                }
                match outcome {
                    Ok(()) => warn!(task = %name, "task ended early, starting it again"),
                    Err(_) => error!(task = %name, "task panicked, starting it again"),
                }
                stop.or(tokio::time::sleep(RESTART_PAUSE)).await;
            }
        });
    }

    /// Requests the stop and waits for the tasks. Returns the names of those still running at the deadline.
    pub async fn drain(&self, deadline: Duration) -> Vec<Arc<str>> {
        self.stop.request();
        self.tracker.close();
        match tokio::time::timeout(deadline, self.tracker.wait()).await {
            Ok(()) => Vec::new(),
            Err(_) => self.names(),
        }
    }

    /// The names of the tasks that run now.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    fn enter(&self, name: Arc<str>) -> Entry {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(name.clone());
        Entry { name, running: self.running.clone() }
    }
}

/// A task's line in the list of running ones; dropped with the task, however it ends.
struct Entry {
    name: Arc<str>,
    running: Arc<Mutex<Vec<Arc<str>>>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(index) = running.iter().position(|name| Arc::ptr_eq(name, &self.name)) {
            running.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_panicking_task_leaves_the_others_running() {
        let tasks = Tasks::new();
        tasks.spawn("bad", |_| async { panic!("on purpose") });
        let seen = Arc::new(AtomicUsize::new(0));
        let count = seen.clone();
        tasks.spawn("good", |stop| async move {
            stop.requested().await;
            count.fetch_add(1, Ordering::SeqCst);
        });
        assert!(tasks.drain(Duration::from_secs(5)).await.is_empty());
        assert_eq!(seen.load(Ordering::SeqCst), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_task_is_started_again_after_a_panic() {
        let tasks = Tasks::new();
        let starts = Arc::new(AtomicUsize::new(0));
        let count = starts.clone();
        tasks.keep("loop", move |stop| {
            let count = count.clone();
            async move {
                assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "the first run panics");
                stop.requested().await;
            }
        });
        while starts.load(Ordering::SeqCst) < 2 {
            tokio::time::advance(RESTART_PAUSE).await;
            tokio::task::yield_now().await;
        }
        assert!(tasks.drain(Duration::from_secs(5)).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_stop_is_named_at_the_deadline() {
        let tasks = Tasks::new();
        tasks.spawn("stubborn", |_| std::future::pending());
        assert_eq!(tasks.drain(Duration::from_secs(1)).await, [Arc::from("stubborn")]);
    }
}
