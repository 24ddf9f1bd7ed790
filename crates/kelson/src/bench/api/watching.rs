//! Watchers of one collection while clients change it: what arrives, how late, and whether all of it does.
//!
//! Each change carries the moment when it was sent, and its answer the revision that it made. A watcher has to see
//! those revisions and no others, each once and in order: with equal counts and sums, and an order that only rises,
//! the two sets are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use http::Method;
use lifecycle::{Stop, Tasks};
use measure::Latencies;

use super::load::{Done, Limit, Load};
use super::objects::{self, Kind};

/// How long watchers may take to see the last change.
const TAIL: Duration = Duration::from_secs(20);
/// Every so many events the delay is measured.
const SAMPLE: u64 = 16;

/// Who watches and who writes.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub watchers: usize,
    pub writers: usize,
    /// Changes per second; without it as many as the server takes.
    pub rate: Option<u32>,
    pub time: Duration,
}

/// What the watchers saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// From the request that changed an object to the event of it.
    pub delays: Latencies,
    pub events: u64,
    pub changes: u64,
    pub lost: u64,
    pub duplicates: u64,
    pub disordered: u64,
    /// Watches that the server ended.
    pub cut: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub seconds: f64,
}

/// What one watcher saw.
#[derive(Default)]
struct Tally {
    delays: Latencies,
    events: u64,
    sum: u64,
    last: u64,
    duplicates: u64,
    disordered: u64,
    errors: u64,
    cut: bool,
}

impl Tally {
    fn event(&mut self, line: &[u8], epoch: Instant) {
        let Some(revision) =
            objects::read_revision(line).filter(|_| !line.starts_with(b"{\"type\":\"ERROR\""))
        else {
            self.errors += 1;
            return;
        };
        if revision == self.last {
            self.duplicates += 1;
            return;
        }
        if revision < self.last {
            self.disordered += 1;
        }
        self.last = revision;
        self.sum = self.sum.wrapping_add(revision);
        self.events += 1;
        if self.events % SAMPLE == 1
            && let Some(sent) = objects::read_count(line)
        {
            self.delays.push(epoch.elapsed().saturating_sub(Duration::from_micros(sent)));
        }
    }
}

/// Events are lines.
async fn follow(mut stream: RecvStream, epoch: Instant, total: Arc<AtomicU64>, stop: Stop) -> Tally {
    let mut tally = Tally::default();
    let mut rest = BytesMut::new();
    loop {
        let piece = match stop.or(stream.data()).await {
            None => return tally,
            Some(Some(Ok(piece))) => piece,
            Some(_) => {
                tally.cut = true;
                return tally;
            }
        };
        // Fails only when the connection is gone, which the next read tells.
        let _ = stream.flow_control().release_capacity(piece.len());
        let before = tally.events;
        lines(&mut rest, piece, |line| tally.event(line, epoch));
        total.fetch_add(tally.events - before, Ordering::Relaxed);
    }
}

/// Calls `each` for every complete line; `rest` keeps what is not complete yet.
fn lines(rest: &mut BytesMut, mut piece: Bytes, mut each: impl FnMut(&[u8])) {
    if !rest.is_empty() {
        let Some(end) = memchr::memchr(b'\n', &piece) else { return rest.extend_from_slice(&piece) };
        rest.extend_from_slice(&piece[..end]);
        each(rest);
        rest.clear();
        piece.advance(end + 1);
    }
    while let Some(end) = memchr::memchr(b'\n', &piece) {
        each(&piece[..end]);
        piece.advance(end + 1);
    }
    rest.extend_from_slice(&piece);
}

/// Watches a namespace's ConfigMaps while they change.
pub async fn run(load: &Load, tasks: &Tasks, namespace: &str, plan: Plan) -> anyhow::Result<Seen> {
    let kind = Kind::ConfigMap;
    let path = kind.path(namespace);
    let first = load.caller(0);
    for writer in 0..plan.writers {
        let name = objects::name(writer, WATCHED);
        first.ensure(&path, kind.object().fill(&name, 0)).await?;
    }
    // A page of one object says which revision there is.
    let page = first.get(&format!("{path}?limit=1")).await?.expect()?;
    let revision = objects::read_revision(&page).context("the list has no resource version")?;
    let (epoch, total, watching) = (Instant::now(), Arc::new(AtomicU64::new(0)), tasks.stop().child());
    let (sender, mut receiver) = tokio::sync::mpsc::channel(plan.watchers.max(1));
    for number in 0..plan.watchers {
        let url = format!("{path}?watch=true&resourceVersion={revision}&timeoutSeconds=600");
        let stream = load.caller(number).open(&url).await?;
        let (total, watching, sender) = (total.clone(), watching.clone(), sender.clone());
        tasks.spawn("bench/watch", move |_| async move {
            // The receiver waits for all watchers.
            let _ = sender.send(follow(stream, epoch, total, watching).await).await;
        });
    }
    drop(sender);
    let sum = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let done = write(load, &path, plan, epoch, sum.clone()).await;
    let changes = done.times.len() as u64;
    let wanted = changes * plan.watchers as u64;
    let (deadline, mut before) = (Instant::now() + TAIL, 0);
    let mut ended = Instant::now();
    while total.load(Ordering::Relaxed) < wanted && Instant::now() < deadline {
        let now = total.load(Ordering::Relaxed);
        if now != before {
            (before, ended) = (now, Instant::now());
        } else if ended.elapsed() > Duration::from_secs(3) {
            break; // nothing comes any more
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    if total.load(Ordering::Relaxed) >= wanted {
        ended = Instant::now();
    }
    watching.request();
    let mut seen = Seen {
        changes,
        errors: done.errors,
        first_error: done.first_error,
        seconds: ended.duration_since(began).as_secs_f64(),
        ..Seen::default()
    };
    let sum = sum.load(Ordering::Relaxed);
    while let Some(tally) = receiver.recv().await {
        seen.delays.extend(&tally.delays);
        seen.events += tally.events;
        seen.duplicates += tally.duplicates;
        seen.disordered += tally.disordered;
        seen.errors += tally.errors;
        seen.cut += u64::from(tally.cut);
        seen.lost += changes.saturating_sub(tally.events);
        // As many, but not the same: at least one is missing and one too many.
        if tally.events == changes && tally.sum != sum {
            seen.lost += 1;
            seen.duplicates += 1;
        }
    }
    Ok(seen)
}

/// The number of the objects that are watched; no other scenario comes so far.
const WATCHED: u64 = 99_999_999;

async fn write(load: &Load, path: &str, plan: Plan, epoch: Instant, sum: Arc<AtomicU64>) -> Done {
    let template = Arc::new(Kind::ConfigMap.patch());
    let urls: Arc<[String]> =
        (0..plan.writers).map(|writer| format!("{path}/{}", objects::name(writer, WATCHED))).collect();
    let began = Instant::now();
    load.run(plan.writers, Limit::Time(plan.time), move |caller, client, number| {
        let (template, urls, sum) = (template.clone(), urls.clone(), sum.clone());
        async move {
            if let Some(rate) = plan.rate {
                let due = began + Duration::from_secs_f64(number as f64 / f64::from(rate));
                tokio::time::sleep_until(due.into()).await;
            }
            let body = template.fill("", epoch.elapsed().as_micros() as u64);
            let kind = Kind::ConfigMap.patch_type();
            let answer = caller.call(Method::PATCH, &urls[client], kind, body).await?.expect()?;
            let revision = objects::read_revision(&answer).context("the answer has no resource version")?;
            sum.fetch_add(revision, Ordering::Relaxed);
            Ok(())
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_across_pieces() {
        let (mut rest, mut found) = (BytesMut::new(), Vec::new());
        for piece in ["a", "b\nc\n", "", "d", "\ne"] {
            lines(&mut rest, Bytes::from(piece), |line| {
                found.push(String::from_utf8(line.to_vec()).unwrap())
            });
        }
        assert_eq!(found, ["ab", "c", "d"]);
        assert_eq!(&rest[..], b"e");
    }

    #[test]
    fn what_comes_twice_or_too_late_is_told() {
        let mut tally = Tally::default();
        let event = |revision: u64| {
            format!(r#"{{"type":"MODIFIED","object":{{"metadata":{{"resourceVersion":"{revision}"}}}}}}"#)
        };
        for revision in [3, 4, 4, 6, 5] {
            tally.event(event(revision).as_bytes(), Instant::now());
        }
        tally.event(br#"{"type":"ERROR","object":{"kind":"Status"}}"#, Instant::now());
        assert_eq!((tally.events, tally.duplicates, tally.disordered, tally.errors), (4, 1, 1, 1));
        assert_eq!(tally.sum, 18);
    }
}
