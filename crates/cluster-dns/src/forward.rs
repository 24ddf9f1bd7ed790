//! Names of the world outside: passed to the host's resolvers, with a small memory.
//!
//! The same question asked by several clients is passed on once; so a resolver that passes questions back to us only waits
//! for itself until the deadline, and nothing multiplies.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::OnceCell;
use tracing::debug;

use crate::corefile::{Cache, Policy};
use crate::observed::Observed;
use crate::wire::{Code, Foreign, Query, Question, Response};

/// One resolver's time for an answer; every resolver is tried once.
const PATIENCE: Duration = Duration::from_secs(2);
const MOST_ANSWERS: usize = 512;
/// What is kept where nothing else was said.
pub const CACHE: Cache = Cache { success: Duration::from_secs(30), denial: Duration::from_secs(30) };
const LARGEST_KEPT: usize = 2048;
/// Upstream codes that are answers, not failures.
const FINAL_CODES: [u8; 2] = [Code::Ok as u8, Code::NoSuchName as u8];

/// What makes two requests the same: the question, whether the client speaks EDNS, and whether by TCP.
type Asked = (Question, usize, bool);
type Flight = Arc<OnceCell<Option<Arc<[u8]>>>>;

/// Who is asked about which names: zones, the most particular first.
#[derive(Default)]
pub struct Forwarders(pub Vec<(String, Forwarder)>);

impl Forwarders {
    /// The one for a name (lower case, without the final dot).
    pub fn of(&self, name: &str) -> Option<&Forwarder> {
        let is_in = |zone: &str| {
            zone.is_empty()
                || name.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        self.0.iter().find(|(zone, _)| is_in(zone)).map(|(_, forwarder)| forwarder)
    }
}

pub struct Forwarder {
    upstreams: Vec<SocketAddr>,
    policy: Policy,
    cache: Cache,
    observed: Arc<Observed>,
    turn: AtomicUsize,
    kept: Mutex<HashMap<Asked, Kept>>,
    flights: Mutex<HashMap<Asked, Flight>>,
    ids: RandomState,
}

struct Kept {
    answer: Arc<[u8]>,
    ttl_offsets: Box<[usize]>,
    since: Instant,
    until: Instant,
}

impl Forwarder {
    pub fn new(upstreams: Vec<SocketAddr>, policy: Policy, cache: Cache, observed: Arc<Observed>) -> Self {
        Self {
            upstreams,
            policy,
            cache,
            observed,
            turn: AtomicUsize::new(0),
            kept: Mutex::default(),
            flights: Mutex::default(),
            ids: RandomState::new(),
        }
    }

    /// The resolvers in the order in which they are to be asked now.
    fn in_order(&self) -> impl Iterator<Item = &SocketAddr> {
        let first = match self.policy {
            Policy::Sequential => 0,
            Policy::RoundRobin => self.turn.fetch_add(1, Ordering::Relaxed) % self.upstreams.len().max(1),
            Policy::Random => self.ids.hash_one(Instant::now()) as usize % self.upstreams.len().max(1),
        };
        self.upstreams.iter().cycle().skip(first).take(self.upstreams.len())
    }

    /// The answer's bytes, ready for the client.
    pub async fn resolve(&self, query: &Query, by_tcp: bool) -> Vec<u8> {
        if self.upstreams.is_empty() {
            // A cluster without a way out: no other name exists here. Resolvers take that for an answer; a failure they
            // would retry for seconds.
            return Response::of(Code::NoSuchName).encode(query, query.datagram_limit());
        }
        let asked = (query.question.clone(), query.datagram_limit(), by_tcp);
        if let Some(answer) = self.remembered(&asked, Instant::now()) {
            self.observed.cache(true);
            return query.adopt(answer);
        }
        self.observed.cache(false);
        let flight = lock(&self.flights).entry(asked.clone()).or_default().clone();
        let outcome = flight.get_or_init(|| self.ask_all(query, by_tcp)).await.clone();
        lock(&self.flights).remove(&asked);
        match outcome {
            Some(answer) => {
                self.remember(asked, &answer, Instant::now());
                query.adopt(answer.to_vec())
            }
            None => Response::of(Code::Failed).encode(query, query.datagram_limit()),
        }
    }

    async fn ask_all(&self, query: &Query, by_tcp: bool) -> Option<Arc<[u8]>> {
        let mut last = None;
        for upstream in self.in_order() {
            let id = self.ids.hash_one((Instant::now(), upstream)) as u16;
            let exchange = async {
                if by_tcp {
                    ask_tcp(*upstream, &query.encode(id)).await
                } else {
                    ask_udp(*upstream, query, id).await
                }
            };
            let answer = match tokio::time::timeout(PATIENCE, exchange).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => {
                    debug!(%upstream, %error, "resolver failed");
                    continue;
                }
                Err(_) => {
                    debug!(%upstream, "resolver did not answer");
                    continue;
                }
            };
            match Foreign::parse(&answer) {
                Some(read) if read.id == id && read.question == query.question => {
                    let is_final = FINAL_CODES.contains(&read.code);
                    last = Some(answer.into());
                    if is_final {
                        break;
                    }
                }
                _ => debug!(%upstream, "resolver answered something else"),
            }
        }
        last
    }

    fn remembered(&self, asked: &Asked, now: Instant) -> Option<Vec<u8>> {
        let mut kept = lock(&self.kept);
        let found = kept.get(asked)?;
        if found.until <= now {
            kept.remove(asked);
            return None;
        }
        let age = now.duration_since(found.since).as_secs() as u32;
        let mut answer = found.answer.to_vec();
        for at in &found.ttl_offsets {
            if let Some(field) = answer.get_mut(*at..at + 4) {
                let ttl = u32::from_be_bytes([field[0], field[1], field[2], field[3]]);
                field.copy_from_slice(&ttl.saturating_sub(age).to_be_bytes());
            }
        }
        Some(answer)
    }

    fn remember(&self, asked: Asked, answer: &Arc<[u8]>, now: Instant) {
        let Some(read) = Foreign::parse(answer) else { return };
        // A name that is not there, or has nothing of the kind.
        let is_denial = read.code == Code::NoSuchName as u8 || read.answers.is_empty();
        let most = if is_denial { self.cache.denial } else { self.cache.success };
        let seconds = read.smallest_ttl.unwrap_or(0).min(u32::try_from(most.as_secs()).unwrap_or(u32::MAX));
        if seconds == 0 || read.truncated || !FINAL_CODES.contains(&read.code) || answer.len() > LARGEST_KEPT
        {
            return;
        }
        let mut kept = lock(&self.kept);
        if kept.len() >= MOST_ANSWERS {
            kept.retain(|_, found| found.until > now);
        }
        if kept.len() < MOST_ANSWERS {
            let until = now + Duration::from_secs(seconds.into());
            let ttl_offsets = read.ttl_offsets.into();
            kept.insert(asked, Kept { answer: answer.clone(), ttl_offsets, since: now, until });
        }
    }
}

async fn ask_udp(upstream: SocketAddr, query: &Query, id: u16) -> io::Result<Vec<u8>> {
    let local = if upstream.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local).await?;
    socket.connect(upstream).await?;
    socket.send(&query.encode(id)).await?;
    let mut buffer = vec![0; 4096];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // Anything that is not the answer to this question may be forged: wait on.
        if Foreign::parse(&buffer[..length])
            .is_some_and(|read| read.id == id && read.question == query.question)
        {
            buffer.truncate(length);
            return Ok(buffer);
        }
    }
}

async fn ask_tcp(upstream: SocketAddr, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(upstream).await?;
    let length = u16::try_from(request.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], request].concat()).await?;
    let mut answer = vec![0; stream.read_u16().await?.into()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The resolvers that a `resolv.conf` names, without those that are ourselves.
pub fn upstreams(resolv_conf: &str, ourselves: &[std::net::IpAddr]) -> Vec<SocketAddr> {
    let lines = resolv_conf.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let named = lines.filter(|rest| rest.starts_with([' ', '\t'])).filter_map(|rest| {
        // A zone (`%eth0`) cannot be kept in an address; such resolvers are left out.
        rest.split_whitespace().next()?.parse().ok()
    });
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in named {
        let upstream = SocketAddr::new(address, 53);
        if !ourselves.contains(&address) && !found.contains(&upstream) {
            found.push(upstream);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Data, Record, kind};

    #[test]
    fn resolvers_are_read_from_the_hosts_file_but_never_ourselves() {
        let text = "# generated\nsearch example.com\nnameserver 10.128.0.1\nnameserver\t192.0.2.53 # x\n\
                    nameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver 2001:db8::53\nnameserverx 1.1.1.1\n";
        let found = upstreams(text, &[[10, 128, 0, 1].into()]);
        assert_eq!(found, ["192.0.2.53:53".parse().unwrap(), "[2001:db8::53]:53".parse().unwrap()]);
    }

    #[test]
    fn a_kept_answer_ages_and_ends() {
        let upstreams = vec!["192.0.2.1:53".parse().unwrap()];
        let forwarder = Forwarder::new(upstreams, Policy::Sequential, CACHE, Default::default());
        let query = Query::new(5, Question { name: "example.com".to_owned(), kind: kind::A });
        let record = Record { name: "example.com".to_owned(), ttl: 20, data: Data::A([192, 0, 2, 7].into()) };
        let response = Response { answers: vec![record], ..Response::default() };
        let asked = (query.question.clone(), query.datagram_limit(), false);
        let now = Instant::now();
        forwarder.remember(asked.clone(), &response.encode(&query, 512).into(), now);
        let later = forwarder.remembered(&asked, now + Duration::from_secs(8)).unwrap();
        assert_eq!(Foreign::parse(&later).unwrap().smallest_ttl, Some(12));
        assert!(forwarder.remembered(&asked, now + Duration::from_secs(21)).is_none());
        forwarder.remember(asked.clone(), &Response::of(Code::Failed).encode(&query, 512).into(), now);
        assert!(forwarder.remembered(&asked, now).is_none(), "failures are not kept");
    }

    #[test]
    fn a_name_goes_to_the_most_particular_zone_and_resolvers_take_turns() {
        let forwarder = |count: u8, policy| {
            let upstreams = (1..=count).map(|number| SocketAddr::from(([192, 0, 2, number], 53))).collect();
            Forwarder::new(upstreams, policy, CACHE, Default::default())
        };
        let zones = [("a.corp.test", 1), ("corp.test", 2), ("", 3)];
        let all = Forwarders(
            zones.map(|(zone, count)| (zone.to_owned(), forwarder(count, Policy::RoundRobin))).into(),
        );
        for (name, count) in [("x.a.corp.test", 1), ("corp.test", 2), ("b.corp.test", 2), ("xcorp.test", 3)] {
            assert_eq!(all.of(name).unwrap().upstreams.len(), count, "{name}");
        }
        assert!(Forwarders::default().of("x").is_none());
        let turns = forwarder(3, Policy::RoundRobin);
        let first = |forwarder: &Forwarder| *forwarder.in_order().next().unwrap();
        assert_ne!(first(&turns), first(&turns));
        let one = forwarder(3, Policy::Sequential);
        assert_eq!(first(&one), first(&one));
        assert_eq!(one.in_order().count(), 3);
    }
}
