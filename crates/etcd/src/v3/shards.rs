//! The threads that serve connections.
//!
//! A connection stays on one thread, which has a runtime of its own. On a runtime with several threads every answer that
//! becomes ready wakes an idle one to look for work, and a profile of single puts showed more time in that than in the
//! puts. There is a thread for each core: with fewer, long ranges of one connection hold up all others.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lifecycle::Tasks;
use tokio::sync::mpsc;

/// More threads than this only wait for the state's lock.
const MOST: usize = 8;
/// How long connections may take to end after the stop.
const PATIENCE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce(&Tasks) + Send>;

/// Threads that tasks can be started on. They end after the last of their tasks, once this is dropped.
pub struct Shards {
    queues: Vec<mpsc::UnboundedSender<Job>>,
    next: AtomicUsize,
}

impl Shards {
    /// Starts the threads; what they run belongs to `tasks`.
    pub fn start(tasks: &Tasks) -> io::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = cores.clamp(1, MOST);
        let queues = (0..count).map(|number| start_one(number, tasks.clone())).collect::<io::Result<_>>()?;
        Ok(Self { queues, next: AtomicUsize::new(0) })
    }

    /// Calls `start` on one of the threads, within its runtime: what it spawns stays there.
    pub fn run(&self, start: impl FnOnce(&Tasks) + Send + 'static) {
        let number = self.next.fetch_add(1, Ordering::Relaxed) % self.queues.len();
        // A thread ends only after this is dropped; one that died takes its connections with it.
        let _ = self.queues[number].send(Box::new(start));
    }
}

fn start_one(number: usize, tasks: Tasks) -> io::Result<mpsc::UnboundedSender<Job>> {
    let (sender, mut queue) = mpsc::unbounded_channel::<Job>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name(format!("etcd-serve-{number}")).spawn(move || {
        runtime.block_on(async move {
            while let Some(job) = queue.recv().await {
                job(&tasks);
            }
            // The listener has stopped, and so will its connections.
            let late = tasks.drain(PATIENCE).await;
            if !late.is_empty() {
                tracing::warn!(connections = late.len(), "connections cut");
            }
        });
    })?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn tasks_run_on_the_threads_and_end_with_the_stop() {
        let tasks = Tasks::new();
        let shards = Shards::start(&tasks).expect("threads");
        let (sender, receiver) = channel();
        for _ in 0..3 {
            let sender = sender.clone();
            shards.run(move |tasks| {
                tasks.spawn("one", |stop| async move {
                    let name = std::thread::current().name().unwrap_or_default().to_owned();
                    let _ = sender.send(name);
                    stop.requested().await;
                });
            });
        }
        for _ in 0..3 {
            let name = receiver.recv_timeout(Duration::from_secs(5)).expect("a task runs");
            assert!(name.starts_with("etcd-serve-"), "{name}");
        }
        drop(shards);
        assert!(tasks.drain(Duration::from_secs(5)).await.is_empty());
    }
}
