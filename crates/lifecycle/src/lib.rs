//! Tasks with names and owners, and the order in which they stop.
//!
//! Every background loop of a component is spawned on a [`Tasks`] and gets a [`Stop`]. Whoever owns the
//! `Tasks` asks it to stop and waits for it, with a deadline. A panic in one task is logged under the task's
//! name and never takes the process down; a task that must not end is spawned with [`Tasks::keep`], which
//! starts it again after a pause. Whether a task is at work can be asked by its name: that is what health checks stand on.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use tokio::task::AbortHandle;
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
    running: Arc<Mutex<Vec<Arc<Task>>>>,
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
        let (task, entry) = self.enter(name.clone());
        let handle = self.tracker.spawn(async move {
            let _entry = entry;
            if work.await.is_err() {
                error!(task = %name, "task panicked");
            }
        });
        let _ = task.handle.set(handle.abort_handle()); // the only place that sets it
    }

    /// Starts a task that is started again whenever it ends or panics before the stop.
    pub fn keep<F>(&self, name: impl Into<Arc<str>>, mut start: impl FnMut(Stop) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let name: Arc<str> = name.into();
        let stop = self.stop.clone();
        let (task, entry) = self.enter(name.clone());
        let own = task.clone();
        let handle = self.tracker.spawn(async move {
            let _entry = entry;
            while !stop.is_requested() {
                own.works.store(true, Ordering::Release);
                let outcome = AssertUnwindSafe(start(stop.clone())).catch_unwind().await;
                own.works.store(false, Ordering::Release);
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
        let _ = task.handle.set(handle.abort_handle()); // the only place that sets it
    }

    /// Whether a task of this name is at work: it was started, and is neither over nor waiting to be started again.
    pub fn works(&self, name: &str) -> bool {
        self.entries().iter().any(|task| &*task.name == name && task.works.load(Ordering::Acquire))
    }

    /// Ends the tasks of this name at once, as a fault would; for tests of what is told of it.
    pub fn abort(&self, name: &str) {
        for task in self.entries().iter().filter(|task| &*task.name == name) {
            if let Some(handle) = task.handle.get() {
                handle.abort();
            }
        }
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
        self.entries().iter().map(|task| task.name.clone()).collect()
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Task>>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn enter(&self, name: Arc<str>) -> (Arc<Task>, Entry) {
        let task = Arc::new(Task { name, works: AtomicBool::new(true), handle: OnceLock::new() });
        self.entries().push(task.clone());
        (task.clone(), Entry { task, running: self.running.clone() })
    }
}

#[derive(Debug)]
struct Task {
    name: Arc<str>,
    works: AtomicBool,
    handle: OnceLock<AbortHandle>,
}

/// A task's line in the list of running ones; dropped with the task, however it ends.
struct Entry {
    task: Arc<Task>,
    running: Arc<Mutex<Vec<Arc<Task>>>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(index) = running.iter().position(|task| Arc::ptr_eq(task, &self.task)) {
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
        assert!(tasks.works("loop"));
        while tasks.works("loop") {
            tokio::task::yield_now().await;
        }
        assert_eq!(starts.load(Ordering::SeqCst), 1, "it waits to be started again");
        while starts.load(Ordering::SeqCst) < 2 {
            tokio::time::advance(RESTART_PAUSE).await;
            tokio::task::yield_now().await;
        }
        assert!(tasks.works("loop"));
        tasks.abort("loop");
        while !tasks.names().is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(!tasks.works("loop"));
        assert!(tasks.drain(Duration::from_secs(5)).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_the_stop_is_named_at_the_deadline() {
        let tasks = Tasks::new();
        tasks.spawn("stubborn", |_| std::future::pending());
        assert_eq!(tasks.drain(Duration::from_secs(1)).await, [Arc::from("stubborn")]);
    }
}
