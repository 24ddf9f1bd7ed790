//! The sockets: UDP and TCP on every address, answers from the zone at once, others through the forwarder.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lifecycle::Tasks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tracing::{debug, info, warn};

use crate::answer::{answer, open_alias};
use crate::forward::Forwarders;
use crate::observed::Observed;
use crate::wire::{Code, Foreign, Query, Question, Response, kind};
use crate::zone::Zone;

const MOST_FORWARDED: usize = 256;
const MOST_CONNECTIONS: usize = 128;
const IDLE: Duration = Duration::from_secs(10);
const TCP_LIMIT: usize = 65_535;

/// What all sockets share.
pub struct Server {
    pub zone: RwLock<Zone>,
    pub observed: Arc<Observed>,
    forwarders: RwLock<Arc<Forwarders>>,
    log: bool,
    forwarded: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    turn: AtomicUsize,
}

/// An answer, or that someone else has to be asked.
enum Outcome {
    Answer(Vec<u8>),
    Forward,
    /// The answer is an alias that leads out of the zone.
    Complete {
        response: Response,
        target: String,
    },
}

impl Server {
    pub fn new(zone: Zone, forwarders: Forwarders, observed: Arc<Observed>, log: bool) -> Arc<Self> {
        Arc::new(Self {
            zone: RwLock::new(zone),
            observed,
            forwarders: RwLock::new(Arc::new(forwarders)),
            log,
            forwarded: Arc::new(Semaphore::new(MOST_FORWARDED)),
            connections: Arc::new(Semaphore::new(MOST_CONNECTIONS)),
            turn: AtomicUsize::new(0),
        })
    }

    /// From now on others are asked; what is under way ends as it began.
    pub fn set_forwarders(&self, forwarders: Forwarders) {
        *self.forwarders.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(forwarders);
    }

    fn note(&self, query: &Query, by_tcp: bool) {
        self.observed.asked(&query.question, by_tcp);
        if self.log {
            info!(name = query.question.name, kind = query.question.kind, by_tcp, "question");
        }
    }

    /// The answer of whoever knows names outside.
    async fn forward(&self, query: &Query, by_tcp: bool) -> Vec<u8> {
        let forwarders = self.forwarders.read().unwrap_or_else(PoisonError::into_inner).clone();
        match forwarders.of(&query.question.name) {
            Some(forwarder) => forwarder.resolve(query, by_tcp).await,
            None => Response::of(Code::Refused).encode(query, query.datagram_limit()),
        }
    }

    async fn send(&self, socket: &UdpSocket, bytes: &[u8], client: SocketAddr) {
        self.observed.answered(bytes);
        if let Err(error) = socket.send_to(bytes, client).await {
            debug!(%client, %error, "answer could not be sent");
        }
    }

    pub async fn serve_udp(self: Arc<Self>, socket: UdpSocket, tasks: Tasks) {
        let socket = Arc::new(socket);
        let mut buffer = vec![0; 4096];
        loop {
            let (length, client) = match socket.recv_from(&mut buffer).await {
                Ok(received) => received,
                // The kernel reports here that an earlier answer found nobody; that is the client's affair.
                Err(error) => {
                    debug!(%error, "receiving a question failed");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let query = match Query::parse(&buffer[..length]) {
                None => continue,
                Some(Err(bad)) => {
                    self.send(&socket, &bad.encode(), client).await;
                    continue;
                }
                Some(Ok(query)) => query,
            };
            self.note(&query, false);
            match self.decide(&query, query.datagram_limit()) {
                Outcome::Answer(bytes) => self.send(&socket, &bytes, client).await,
                outcome => {
                    let Ok(permit) = self.forwarded.clone().try_acquire_owned() else {
                        let busy = Response::of(Code::Failed).encode(&query, query.datagram_limit());
                        self.send(&socket, &busy, client).await;
                        continue;
                    };
                    let (server, socket) = (self.clone(), socket.clone());
                    tasks.spawn("dns/forward", move |stop| async move {
                        let _permit = permit;
                        let answer = server.finish(&query, outcome, false);
                        if let Some(bytes) = stop.or(answer).await {
                            server.send(&socket, &bytes, client).await;
                        }
                    });
                }
            }
        }
    }

    pub async fn serve_tcp(self: Arc<Self>, listener: TcpListener, tasks: Tasks) {
        loop {
            // A client beyond the limit waits in the kernel's queue.
            let Ok(permit) = self.connections.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, client)) => {
                    let server = self.clone();
                    tasks.spawn("dns/connection", move |stop| async move {
                        let _permit = permit;
                        if let Some(Err(error)) = stop.or(server.converse(stream)).await {
                            debug!(%client, %error, "connection ended");
                        }
                    });
                }
                Err(error) => {
                    warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        loop {
            let Ok(length) = tokio::time::timeout(IDLE, stream.read_u16()).await else { return Ok(()) };
            let mut request = vec![0; length?.into()];
            let Ok(read) = tokio::time::timeout(IDLE, stream.read_exact(&mut request)).await else {
                return Ok(());
            };
            read?;
            let answer = match Query::parse(&request) {
                None => return Ok(()),
                Some(Err(bad)) => bad.encode(),
                Some(Ok(query)) => {
                    self.note(&query, true);
                    match self.decide(&query, TCP_LIMIT) {
                        Outcome::Answer(bytes) => bytes,
                        outcome => self.finish(&query, outcome, true).await,
                    }
                }
            };
            self.observed.answered(&answer);
            let framed = [&(answer.len() as u16).to_be_bytes()[..], &answer].concat();
            let Ok(written) = tokio::time::timeout(IDLE, stream.write_all(&framed)).await else {
                return Ok(());
            };
            written?;
        }
    }

    /// Answers from the zone, or says what is missing.
    fn decide(&self, query: &Query, limit: usize) -> Outcome {
        let zone = self.zone.read().unwrap_or_else(PoisonError::into_inner);
        let Some(mut response) = answer(&query.question, &zone) else { return Outcome::Forward };
        if response.answers.is_empty() && !self.observed.is_complete() {
            return Outcome::Answer(Response::of(Code::Failed).encode(query, limit));
        }
        if matches!(query.question.kind, kind::A | kind::AAAA)
            && let Some(target) = open_alias(&response, &zone)
        {
            let target = target.to_owned();
            return Outcome::Complete { response, target };
        }
        // Clients take the first address: each gets another one.
        if response.answers.len() > 1
            && response.answers.iter().all(|record| record.data.kind() != kind::CNAME)
        {
            let count = response.answers.len();
            response.answers.rotate_left(self.turn.fetch_add(1, Ordering::Relaxed) % count);
        }
        Outcome::Answer(response.encode(query, limit))
    }

    async fn finish(&self, query: &Query, outcome: Outcome, by_tcp: bool) -> Vec<u8> {
        let limit = if by_tcp { TCP_LIMIT } else { query.datagram_limit() };
        match outcome {
            Outcome::Answer(bytes) => bytes,
            Outcome::Forward => self.forward(query, by_tcp).await,
            Outcome::Complete { mut response, target } => {
                let outside = Query::new(0, Question { name: target, kind: query.question.kind });
                let answer = self.forward(&outside, by_tcp).await;
                // Without an answer from outside, the alias alone is still true.
                response.answers.extend(Foreign::parse(&answer).map(|read| read.answers).unwrap_or_default());
                response.encode(query, limit)
            }
        }
    }
}
