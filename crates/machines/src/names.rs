//! Names for the machines of a cluster: the few records that they need before the cluster has DNS of its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cluster_dns::wire::{Code, Data, Query, Question, Response, kind};
use lifecycle::{Stop, Tasks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;

use crate::cluster::Record;

const TTL: u32 = 30;
const IDLE: Duration = Duration::from_secs(10);
const MOST_CONNECTIONS: usize = 64;

/// Names that can change while they are served.
#[derive(Debug)]
pub struct Names {
    domain: String,
    zone: RwLock<Zone>,
}

/// A zone of fixed records.
#[derive(Debug, Default)]
struct Zone {
    domain: String,
    forward: BTreeMap<String, Vec<IpAddr>>,
    /// By the name that stands behind `*.`.
    wildcards: BTreeMap<String, Vec<IpAddr>>,
    reverse: BTreeMap<String, String>,
}

impl Zone {
    fn new(domain: &str, records: &[Record]) -> Self {
        let mut out = Self { domain: domain.to_ascii_lowercase(), ..Self::default() };
        for record in records {
            let name = format!("{}.{}", record.name, out.domain).to_ascii_lowercase();
            match name.strip_prefix("*.") {
                Some(below) => out.wildcards.entry(below.to_owned()).or_default().extend(&record.addresses),
                None => {
                    out.forward.entry(name.clone()).or_default().extend(&record.addresses);
                    // The first name of an address is its own; later ones lead to it as well.
                    for address in &record.addresses {
                        out.reverse.entry(reverse_name(*address)).or_insert_with(|| name.clone());
                    }
                }
            }
        }
        out
    }

    /// Answers a question. Names of other domains are refused: nothing here leads out.
    fn answer(&self, question: &Question) -> Response {
        let name = question.name.as_str();
        if let Some(target) = self.reverse.get(name) {
            let wanted = matches!(question.kind, kind::PTR | kind::ANY);
            return answer(wanted.then(|| (name, Data::Ptr(target.clone()))).into_iter());
        }
        if name.ends_with(".in-addr.arpa") || name.ends_with(".ip6.arpa") {
            return Response { authoritative: true, ..Response::of(Code::NoSuchName) };
        }
        if name != self.domain && !name.ends_with(&format!(".{}", self.domain)) {
            return Response::of(Code::Refused);
        }
        // An explicit name beats the wildcard; the wildcard does not cover the name it stands below.
        let found = self.forward.get(name).or_else(|| {
            let mut below = name;
            loop {
                below = below.split_once('.')?.1;
                if let Some(addresses) = self.wildcards.get(below) {
                    return Some(addresses);
                }
            }
        });
        match found {
            Some(addresses) => answer(addresses.iter().filter_map(|address| {
                let data = match address {
                    IpAddr::V4(address) => Data::A(*address),
                    IpAddr::V6(address) => Data::Aaaa(*address),
                };
                (question.kind == kind::ANY || data.kind() == question.kind).then_some((name, data))
            })),
            // The domain itself and what lies between it and a name exist without records.
            None if name == self.domain || self.has_below(name) => answer(std::iter::empty()),
            None => Response { authoritative: true, ..Response::of(Code::NoSuchName) },
        }
    }

    fn has_below(&self, name: &str) -> bool {
        let suffix = format!(".{name}");
        let names = self.forward.keys().chain(self.wildcards.keys());
        self.wildcards.contains_key(name) || names.into_iter().any(|known| known.ends_with(&suffix))
    }
}

impl Names {
    /// Records with names below a domain.
    pub fn new(domain: &str, records: &[Record]) -> Self {
        Self { domain: domain.to_owned(), zone: RwLock::new(Zone::new(domain, records)) }
    }

    /// Other records from now on.
    pub fn set(&self, records: &[Record]) {
        *self.zone.write().unwrap_or_else(PoisonError::into_inner) = Zone::new(&self.domain, records);
    }

    /// Answers datagrams until the stop.
    pub async fn serve_udp(self: Arc<Self>, socket: UdpSocket, stop: Stop) {
        let mut buffer = vec![0; 4096];
        while let Some(received) = stop.or(socket.recv_from(&mut buffer)).await {
            let Ok((length, client)) = received else {
                // An earlier answer found nobody; that is the client's affair.
                tokio::task::yield_now().await;
                continue;
            };
            if let Some(bytes) = self.reply(&buffer[..length], Query::datagram_limit) {
                let _ = socket.send_to(&bytes, client).await;
            }
        }
    }

    /// Answers connections until the stop.
    pub async fn serve_tcp(self: Arc<Self>, listener: TcpListener, stop: Stop) {
        let (tasks, room) = (Tasks::under(&stop), Arc::new(Semaphore::new(MOST_CONNECTIONS)));
        while let Some(accepted) = stop.or(listener.accept()).await {
            let (Ok((stream, _)), Ok(permit)) = (accepted, room.clone().try_acquire_owned()) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let names = self.clone();
            tasks.spawn("names/connection", move |stop| async move {
                let _permit = permit;
                // A connection that breaks is the client's affair.
                let _ = stop.or(names.converse(stream)).await;
            });
        }
    }

    async fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        while let Ok(length) = tokio::time::timeout(IDLE, stream.read_u16()).await {
            let mut request = vec![0; length?.into()];
            let Ok(read) = tokio::time::timeout(IDLE, stream.read_exact(&mut request)).await else { break };
            read?;
            let Some(bytes) = self.reply(&request, |_| usize::from(u16::MAX)) else { break };
            stream.write_all(&[&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()).await?;
        }
        Ok(())
    }

    fn reply(&self, request: &[u8], limit: impl Fn(&Query) -> usize) -> Option<Vec<u8>> {
        Some(match Query::parse(request)? {
            Ok(query) => self
                .zone
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .answer(&query.question)
                .encode(&query, limit(&query)),
            Err(bad) => bad.encode(),
        })
    }
}

fn answer<'a>(records: impl Iterator<Item = (&'a str, Data)>) -> Response {
    let answers = records
        .map(|(name, data)| cluster_dns::wire::Record { name: name.to_owned(), ttl: TTL, data })
        .collect();
    Response { authoritative: true, answers, ..Response::default() }
}

fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let digits: Vec<String> = address
                .octets()
                .iter()
                .rev()
                .flat_map(|byte| [byte & 15, byte >> 4])
                .map(|digit| format!("{digit:x}"))
                .collect();
            format!("{}.ip6.arpa", digits.join("."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(name: &str, kind: u16) -> Response {
        let record = |name: &str, address: &str| Record {
            name: name.into(),
            addresses: vec![address.parse().unwrap()],
        };
        let records = [
            record("api", "10.0.0.10"),
            record("*.apps", "10.0.0.11"),
            record("x.apps", "10.0.0.12"),
            record("m-0", "10.0.0.101"),
        ];
        Zone::new("c.example.com", &records).answer(&Question { name: name.into(), kind })
    }

    #[test]
    fn explicit_names_beat_the_wildcard_which_does_not_cover_its_own_name() {
        let address = |name: &str| match &ask(name, kind::A).answers[..] {
            [cluster_dns::wire::Record { data: Data::A(address), .. }] => address.to_string(),
            other => format!("{other:?}"),
        };
        assert_eq!(address("api.c.example.com"), "10.0.0.10");
        assert_eq!(address("a.b.apps.c.example.com"), "10.0.0.11");
        assert_eq!(address("x.apps.c.example.com"), "10.0.0.12");
        let apps = ask("apps.c.example.com", kind::A);
        assert_eq!((apps.code, apps.answers.len()), (Code::Ok, 0));
        assert_eq!(
            ask("api.c.example.com", kind::AAAA),
            Response { authoritative: true, ..Response::default() }
        );
        assert_eq!(ask("gone.c.example.com", kind::A).code, Code::NoSuchName);
        assert_eq!(ask("example.org", kind::A).code, Code::Refused);
    }

    #[test]
    fn addresses_have_names() {
        let found = ask("101.0.0.10.in-addr.arpa", kind::PTR);
        assert_eq!(found.answers[0].data, Data::Ptr("m-0.c.example.com".into()));
        assert_eq!(ask("1.0.0.10.in-addr.arpa", kind::PTR).code, Code::NoSuchName);
    }
}
