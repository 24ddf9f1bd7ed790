//! The way of the controllers to the API server, and everything that can go wrong on it.
//!
//! Requests are refused with a conflict or a server error before they take effect; answers are lost after they did;
//! watches are refused as expired, cut, late, or say things twice; and at a chosen write the whole manager dies, so that
//! it never learns what became of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apiserver::{ApiServer, UserInfo};
use bytes::Bytes;
use client::{Body, Client, Transport, TransportError, full_body};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Notify;

use super::random::Random;
use super::undo;

/// How many writes are remembered for the message of a failed test.
const REMEMBERED: usize = 60;
/// More than this is more than anybody could need in the time that passes between two looks.
const SPINNING: u64 = 1000;

/// What goes wrong, and what was written. Shared by all clients of the manager.
pub struct Faults {
    random: Random,
    active: AtomicBool,
    /// Every write is undone at once.
    undoing: AtomicBool,
    /// Writes of each controller while they were undone.
    undone: Mutex<BTreeMap<String, u64>>,
    writes: AtomicU64,
    /// The manager dies with this write; 0 is never.
    dies_at: AtomicU64,
    pub death: Notify,
    log: Mutex<VecDeque<String>>,
}

impl Faults {
    pub fn new(random: Random) -> Arc<Self> {
        Arc::new(Self {
            random,
            active: AtomicBool::new(false),
            undoing: AtomicBool::new(false),
            undone: Mutex::default(),
            writes: AtomicU64::new(0),
            dies_at: AtomicU64::new(0),
            death: Notify::new(),
            log: Mutex::default(),
        })
    }

    pub fn set(&self, active: bool) {
        self.active.store(active, Ordering::SeqCst);
        if !active {
            self.dies_at.store(0, Ordering::SeqCst);
        }
    }

    /// Undoes every write from now on, or none any more; how often each controller wrote since the last call.
    pub fn undo(&self, undoing: bool) -> BTreeMap<String, u64> {
        self.undoing.store(undoing, Ordering::SeqCst);
        std::mem::take(&mut self.undone.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts a write; whether there were so many that nothing else would ever happen.
    fn undone(&self, who: &str) -> bool {
        let mut undone = self.undone.lock().unwrap_or_else(PoisonError::into_inner);
        let count = undone.entry(who.to_owned()).or_default();
        *count += 1;
        *count > SPINNING
    }

    /// Lets the manager die at one of its next writes.
    pub fn die_within(&self, writes: u64) {
        self.dies_at.store(self.writes() + 1 + self.random.below(writes), Ordering::SeqCst);
    }

    /// Writes that took effect, without events and leases.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// The last writes, newest last.
    pub fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    fn note(&self, line: String) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == REMEMBERED {
            log.pop_front();
        }
        log.push_back(line);
    }

    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    fn happens(&self, percent: u64) -> bool {
        self.is_active() && self.random.chance(percent)
    }
}

/// A client that nothing happens to.
pub fn clean(server: &Arc<ApiServer>, identity: UserInfo, name: &str) -> Client {
    Client::new(
        Arc::new(Line { server: server.clone(), identity, name: name.to_owned(), faults: None }),
        name,
    )
}

/// A client to which everything happens.
pub fn faulty(server: &Arc<ApiServer>, identity: UserInfo, name: &str, faults: &Arc<Faults>) -> Client {
    let line = Line { server: server.clone(), identity, name: name.to_owned(), faults: Some(faults.clone()) };
    Client::new(Arc::new(line), name)
}

struct Line {
    server: Arc<ApiServer>,
    identity: UserInfo,
    name: String,
    faults: Option<Arc<Faults>>,
}

impl Line {
    async fn pass(&self, request: Request<Bytes>) -> Response<Body> {
        let response = self.server.handle(self.identity.clone(), request.map(apiserver::Body::Full)).await;
        response.map(|body| body.map_err(TransportError::broken).boxed_unsync())
    }

    async fn disturb(
        &self,
        faults: &Arc<Faults>,
        request: Request<Bytes>,
    ) -> Result<Response<Body>, TransportError> {
        let path = request.uri().path().to_owned();
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if *request.method() == Method::GET {
            if is_watch && faults.happens(5) {
                return Ok(status(410, "Expired", "too old resource version"));
            }
            if faults.happens(2) {
                return Err(TransportError::broken("the request was lost"));
            }
            let response = self.pass(request).await;
            return Ok(if is_watch { response.map(|body| unsteady(body, faults.clone())) } else { response });
        }
        // Events are of no consequence for what converges. They are not kept, because the store lets them expire by the
        // machine's clock, which does not follow the simulated one.
        if path.contains("/events") {
            let mut response = Response::new(full_body(request.into_body()));
            *response.status_mut() = http::StatusCode::CREATED;
            return Ok(response);
        }
        if path.contains("/leases/") {
            return Ok(self.pass(request).await);
        }
        if faults.happens(8) {
            return Ok(match faults.random.below(3) {
                0 => status(500, "InternalError", "the server stumbled"),
                1 => status(503, "ServiceUnavailable", "the server is starting"),
                _ => status(409, "Conflict", "someone else was faster"),
            });
        }
        if faults.undoing.load(Ordering::SeqCst) {
            faults.note(format!("{} {} {path}, undone", self.name, request.method()));
            if faults.undone(&self.name) {
                // The simulated clock stands still while somebody works: who spins would do so for ever.
                std::future::pending::<()>().await;
            }
            return Ok(undo::pass(&self.server, &self.identity, request).await);
        }
        let (method, subject) = (request.method().clone(), request.uri().path().to_owned());
        let body = String::from_utf8_lossy(&request.body()[..request.body().len().min(400)]).into_owned();
        let response = self.pass(request).await;
        let code = response.status().as_u16();
        faults.note(format!("{} {method} {subject} -> {code} {body}", self.name));
        if !response.status().is_success() {
            return Ok(response);
        }
        let number = faults.writes.fetch_add(1, Ordering::SeqCst) + 1;
        let dies_at = faults.dies_at.load(Ordering::SeqCst);
        if dies_at != 0 && number >= dies_at {
            faults.note(format!("--- the manager dies at write {number}"));
            faults.death.notify_one();
            std::future::pending::<()>().await;
        }
        if faults.happens(4) {
            faults.note("--- the answer was lost".to_owned());
            return Err(TransportError::broken("the answer was lost"));
        }
        // A proxy that sends an update twice gets a conflict for the second one.
        if matches!(method, Method::PUT | Method::PATCH) && faults.happens(3) {
            faults.note("--- answered with a conflict though it was done".to_owned());
            return Ok(status(409, "Conflict", "the object has been modified"));
        }
        Ok(response)
    }
}

impl Transport for Line {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        Box::pin(async move {
            match &self.faults {
                Some(faults) => self.disturb(faults, request).await,
                None => Ok(self.pass(request).await),
            }
        })
    }
}

/// A watch whose pieces come late or twice, and which ends in the middle, well or badly.
fn unsteady(body: Body, faults: Arc<Faults>) -> Body {
    let frames =
        futures::stream::unfold((body, faults, None::<Bytes>), |(mut body, faults, again)| async move {
            if let Some(bytes) = again {
                return Some((Ok(http_body::Frame::data(bytes)), (body, faults, None)));
            }
            let frame = body.frame().await?;
            if faults.happens(2) {
                return None;
            }
            if faults.happens(2) {
                return Some((Err(TransportError::broken("the watch was cut")), (body, faults, None)));
            }
            if faults.happens(10) {
                tokio::time::sleep(Duration::from_millis(faults.random.below(3000))).await;
            }
            let mut again = None;
            let frame = frame.map(|frame| match frame.into_data() {
                Ok(bytes) => {
                    // Only whole lines can be said twice.
                    if bytes.ends_with(b"\n") && faults.happens(5) {
                        again = Some(bytes.clone());
                    }
                    http_body::Frame::data(bytes)
                }
                Err(_) => http_body::Frame::data(Bytes::new()),
            });
            Some((frame, (body, faults, again)))
        });
    StreamBody::new(frames.boxed()).boxed_unsync()
}

fn status(code: u16, reason: &str, message: &str) -> Response<Body> {
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
    });
    let mut response = Response::new(full_body(body.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).expect("a valid code");
    response
}
