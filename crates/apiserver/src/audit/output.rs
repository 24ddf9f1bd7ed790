//! Where events go: the log or a webhook, each cut to size, at once or in batches.
//!
//! Blocking outputs are done before the request goes on; with `blocking-strict` a request whose first event cannot be
//! kept is refused. A batch output has a bounded queue and one task; what does not fit is dropped and counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use lifecycle::{Stop, Tasks};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::warn;

use super::AuditError;
use super::log::{self, Log};
use crate::config::{AuditBatch, AuditConfig, AuditMode, AuditOutput};
use crate::outbound::Webhook;

/// Attempts to send a batch.
const ATTEMPTS: u32 = 5;
/// One attempt takes at most this.
const PATIENCE: Duration = Duration::from_secs(30);
/// Batches on their way at the same time.
const ON_THEIR_WAY: usize = 16;
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// Events that were lost, by who lost them.
#[derive(Debug, Default)]
pub struct Lost {
    /// The log could not be written.
    pub log: AtomicU64,
    /// The webhook did not take them.
    pub webhook: AtomicU64,
    /// The queue was full.
    pub buffered: AtomicU64,
    /// Too large even without bodies.
    pub truncate: AtomicU64,
}

enum Place {
    Log { log: Mutex<Log>, legacy: bool },
    Webhook { webhook: Webhook, backoff: Duration },
}

/// One output.
pub struct Output {
    place: Place,
    mode: AuditMode,
    /// The most bytes of an event and of a batch.
    sizes: Option<(usize, usize)>,
    queue: Option<mpsc::Sender<Arc<Value>>>,
    lost: Arc<Lost>,
}

/// Opens what is configured.
pub fn open(config: &AuditConfig, lost: &Arc<Lost>, tasks: &Tasks) -> Result<Vec<Arc<Output>>, AuditError> {
    let mut outputs = Vec::new();
    if let Some(own) = &config.log {
        let place = Place::Log { log: Mutex::new(Log::open(own)?), legacy: own.legacy };
        outputs.push(start(place, &own.output, lost, tasks));
    }
    if let Some(own) = &config.webhook {
        let webhook = Webhook::from_kubeconfig(&own.kubeconfig, tasks)?;
        outputs.push(start(Place::Webhook { webhook, backoff: own.backoff }, &own.output, lost, tasks));
    }
    Ok(outputs)
}

fn start(place: Place, config: &AuditOutput, lost: &Arc<Lost>, tasks: &Tasks) -> Arc<Output> {
    let (queue, inbox) = match config.mode {
        AuditMode::Batch => {
            let (queue, inbox) = mpsc::channel(config.batch.buffer_size.max(1));
            (Some(queue), Some(inbox))
        }
        AuditMode::Blocking | AuditMode::BlockingStrict => (None, None),
    };
    let output =
        Arc::new(Output { place, mode: config.mode, sizes: config.truncate, queue, lost: lost.clone() });
    if let Some(inbox) = inbox {
        let (own, batch, owner) = (output.clone(), config.batch.clone(), tasks.clone());
        tasks.spawn("audit-batches", move |stop| batches(own, inbox, batch, owner, stop));
    }
    output
}

impl Output {
    /// Takes an event. False only if it must not be lost and is.
    pub async fn take(&self, event: &Arc<Value>) -> bool {
        if self.queue.is_some() {
            self.enqueue(event);
            return true;
        }
        self.deliver(std::slice::from_ref(event), ATTEMPTS).await || self.mode != AuditMode::BlockingStrict
    }

    /// Takes an event where nobody can wait.
    pub fn take_aside(self: &Arc<Self>, event: &Arc<Value>, tasks: &Tasks) {
        if self.queue.is_some() {
            return self.enqueue(event);
        }
        let (own, event) = (self.clone(), event.clone());
        tasks.spawn("audit-event", move |_| async move {
            own.deliver(std::slice::from_ref(&event), ATTEMPTS).await;
        });
    }

    fn enqueue(&self, event: &Arc<Value>) {
        if let Some(queue) = &self.queue
            && queue.try_send(event.clone()).is_err()
        {
            self.lost.buffered.fetch_add(1, Ordering::Relaxed);
            warn!("the audit queue is full; an event was dropped");
        }
    }

    /// Writes or sends events, in as many batches as their sizes ask for.
    async fn deliver(&self, events: &[Arc<Value>], attempts: u32) -> bool {
        let (pieces, dropped) = self.pieces(events);
        self.lost.truncate.fetch_add(dropped, Ordering::Relaxed);
        let mut good = dropped == 0;
        for piece in pieces {
            good &= match &self.place {
                Place::Log { log, .. } => {
                    let written = log.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).write(&piece);
                    if let Err(error) = &written {
                        warn!(%error, "cannot write the audit log");
                        self.lost.log.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    }
                    written.is_ok()
                }
                Place::Webhook { webhook, backoff } => {
                    let sent = send(webhook, &piece, *backoff, attempts).await;
                    if !sent {
                        self.lost.webhook.fetch_add(piece.len() as u64, Ordering::Relaxed);
                    }
                    sent
                }
            };
        }
        good
    }

    /// Events as text, cut to size and into batches; and how many are too large.
    fn pieces(&self, events: &[Arc<Value>]) -> (Vec<Vec<String>>, u64) {
        let (mut pieces, mut piece, mut size, mut dropped) = (Vec::new(), Vec::new(), 0, 0);
        for event in events {
            let mut text = self.text(event);
            if let Some((largest, _)) = self.sizes
                && text.len() > largest
            {
                text = self.text(&truncated(event));
                if text.len() > largest {
                    dropped += 1;
                    warn!(audit_id = %event["auditID"], "an audit event is too large even without bodies");
                    continue;
                }
            }
            if self.sizes.is_some_and(|(_, most)| size + text.len() > most) && !piece.is_empty() {
                pieces.push(std::mem::take(&mut piece));
                size = 0;
            }
            size += text.len();
            piece.push(text);
        }
        if !piece.is_empty() {
            pieces.push(piece);
        }
        (pieces, dropped)
    }

    fn text(&self, event: &Value) -> String {
        match &self.place {
            Place::Log { legacy: true, .. } => log::legacy(event),
            Place::Log { .. } => event.to_string(),
            // What stands in a list does not say again what it is.
            Place::Webhook { .. } => {
                let bare: serde_json::Map<String, Value> = event
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter(|(field, _)| !matches!(field.as_str(), "kind" | "apiVersion"))
                    .map(|(field, value)| (field.clone(), value.clone()))
                    .collect();
                Value::Object(bare).to_string()
            }
        }
    }
}

/// An event without bodies.
fn truncated(event: &Value) -> Value {
    let mut event = event.clone();
    if let Some(map) = event.as_object_mut() {
        map.shift_remove("requestObject");
        map.shift_remove("responseObject");
    }
    event["annotations"][TRUNCATED] = json!("true");
    event
}

async fn send(webhook: &Webhook, items: &[String], backoff: Duration, attempts: u32) -> bool {
    let list = format!(
        "{{\"kind\":\"EventList\",\"apiVersion\":\"audit.k8s.io/v1\",\"metadata\":{{}},\"items\":[{}]}}\n",
        items.join(",")
    );
    let body = Bytes::from(list);
    let mut wait = backoff;
    for attempt in 1..=attempts {
        match webhook.post(body.clone(), PATIENCE).await {
            Ok(()) => return true,
            Err(error) => {
                warn!(attempt, error = %telemetry::chain(&error), "the audit webhook did not take events");
            }
        }
        if attempt < attempts {
            tokio::time::sleep(wait).await;
            wait = wait.mul_f64(1.5);
        }
    }
    false
}

/// How many batches may go now: refilled with time, up to a bound.
struct Throttle {
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Throttle {
    fn new(batch: &AuditBatch) -> Option<Self> {
        let burst = batch.throttle_burst as f64;
        batch.throttle.then(|| Self { rate: batch.throttle_qps, burst, tokens: burst, at: Instant::now() })
    }

    /// How long to wait for the next one, which is taken.
    fn take(&mut self, now: Instant) -> Duration {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + gained).min(self.burst) - 1.0;
        self.at = now;
        if self.tokens >= 0.0 { Duration::ZERO } else { Duration::from_secs_f64(-self.tokens / self.rate) }
    }
}

/// Collects events and hands on a batch when it is full or old enough. On a stop, what is left goes out once.
async fn batches(
    output: Arc<Output>,
    mut inbox: mpsc::Receiver<Arc<Value>>,
    config: AuditBatch,
    tasks: Tasks,
    stop: Stop,
) {
    let mut throttle = Throttle::new(&config);
    let permits = Arc::new(tokio::sync::Semaphore::new(ON_THEIR_WAY));
    let largest = config.max_size.max(1);
    let mut batch: Vec<Arc<Value>> = Vec::new();
    loop {
        // An empty batch waits for its first event, not for a clock.
        let Some(Some(first)) = stop.or(inbox.recv()).await else { break };
        batch.push(first);
        let deadline = Instant::now() + config.max_wait;
        let mut stopped = false;
        while batch.len() < largest {
            tokio::select! {
                biased;
                more = inbox.recv() => match more {
                    Some(event) => batch.push(event),
                    None => break,
                },
                () = stop.requested() => { stopped = true; break }
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        if stopped {
            break;
        }
        if let Some(throttle) = &mut throttle {
            let wait = throttle.take(Instant::now());
            if stop.or(tokio::time::sleep(wait)).await.is_none() {
                break;
            }
        }
        let full = std::mem::take(&mut batch);
        if matches!(output.place, Place::Log { .. }) {
            output.deliver(&full, 1).await;
            continue;
        }
        // A slow receiver does not hold up the queue, until too many batches are on their way.
        let Some(Ok(permit)) = stop.or(permits.clone().acquire_owned()).await else {
            batch = full;
            break;
        };
        let output = output.clone();
        tasks.spawn("audit-batch", move |stop| async move {
            if stop.or(output.deliver(&full, ATTEMPTS)).await.is_none() {
                output.deliver(&full, 1).await; // begun anew, for it is not known how far it came
            }
            drop(permit);
        });
    }
    inbox.close();
    while let Some(event) = inbox.recv().await {
        batch.push(event);
    }
    for last in batch.chunks(largest) {
        output.deliver(last, 1).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AuditLog;

    fn output(sizes: Option<(usize, usize)>) -> (Output, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(&AuditLog::at(dir.path().join("a.log"))).unwrap();
        let place = Place::Log { log: Mutex::new(log), legacy: false };
        (Output { place, mode: AuditMode::Blocking, sizes, queue: None, lost: Arc::default() }, dir)
    }

    #[test]
    fn events_are_cut_to_size() {
        let event = |size: usize| {
            Arc::new(json!({"kind": "Event", "auditID": "x", "requestObject": "y".repeat(size)}))
        };
        let (open, _dir) = output(None);
        assert_eq!(open.pieces(&[event(5000)]).0[0][0], event(5000).to_string());
        let (bounded, _dir) = output(Some((200, 250)));
        let (pieces, dropped) = bounded.pieces(&[event(100), event(5000), event(120)]);
        assert_eq!((pieces.len(), dropped), (2, 0), "{pieces:?}");
        let cut: Value = serde_json::from_str(&pieces[0][1]).unwrap();
        assert!(cut.get("requestObject").is_none() && cut["annotations"][TRUNCATED] == "true", "{cut}");
        let large = Arc::new(json!({"auditID": "z".repeat(300)}));
        assert_eq!(bounded.pieces(&[large]).1, 1);
    }

    #[test]
    fn batches_are_let_through_at_their_rate() {
        let batch =
            AuditBatch { throttle: true, throttle_qps: 2.0, throttle_burst: 2, ..AuditBatch::default() };
        let mut throttle = Throttle::new(&batch).unwrap();
        let now = throttle.at;
        assert_eq!([throttle.take(now), throttle.take(now)], [Duration::ZERO; 2]);
        assert_eq!(throttle.take(now), Duration::from_millis(500));
        assert_eq!(throttle.take(now + Duration::from_secs(10)), Duration::ZERO);
    }
}
