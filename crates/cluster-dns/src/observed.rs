//! What can be seen of the server from outside: whether it is ready, and its counters under CoreDNS' names.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::wire::{Question, kind};

/// Kinds of questions that are counted apart.
const KINDS: [(u16, &str); 5] =
    [(kind::A, "A"), (kind::AAAA, "AAAA"), (kind::PTR, "PTR"), (kind::SRV, "SRV"), (0, "other")];
const CODES: [&str; 6] = ["NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"];

/// Shared by the server and whoever shows it.
#[derive(Debug, Default)]
pub struct Observed {
    /// Whether the zone holds the whole cluster; before that, absence means nothing.
    is_complete: AtomicBool,
    requests: [[AtomicU64; KINDS.len()]; 2],
    responses: [AtomicU64; CODES.len()],
    cache: [AtomicU64; 2],
}

impl Observed {
    /// Whether answers are whole.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }

    pub(crate) fn asked(&self, question: &Question, by_tcp: bool) {
        let index = KINDS.iter().position(|(kind, _)| *kind == question.kind).unwrap_or(KINDS.len() - 1);
        self.requests[usize::from(by_tcp)][index].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, bytes: &[u8]) {
        let code = bytes.get(3).map_or(0, |flags| usize::from(flags & 15));
        if let Some(counter) = self.responses.get(code) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn cache(&self, hit: bool) {
        self.cache[usize::from(hit)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counters in the text that Prometheus reads.
    pub fn metrics(&self, port: u16) -> String {
        let mut out = String::new();
        let server = format!("server=\"dns://:{port}\",zone=\".\",view=\"\"");
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "# TYPE coredns_build_info gauge\ncoredns_build_info{{version=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION")
        );
        let _ = writeln!(out, "# TYPE coredns_dns_requests_total counter");
        for (protocol, counters) in ["udp", "tcp"].iter().zip(&self.requests) {
            for ((_, kind), counter) in KINDS.iter().zip(counters) {
                let count = counter.load(Ordering::Relaxed);
                let _ = writeln!(
                    out,
                    "coredns_dns_requests_total{{{server},proto=\"{protocol}\",type=\"{kind}\"}} {count}"
                );
            }
        }
        let _ = writeln!(out, "# TYPE coredns_dns_responses_total counter");
        for (code, counter) in CODES.iter().zip(&self.responses) {
            let count = counter.load(Ordering::Relaxed);
            let _ = writeln!(out, "coredns_dns_responses_total{{{server},rcode=\"{code}\"}} {count}");
        }
        let [misses, hits] = &self.cache;
        for (name, counter) in [("hits", hits), ("misses", misses)] {
            let count = counter.load(Ordering::Relaxed);
            let _ = writeln!(
                out,
                "# TYPE coredns_cache_{name}_total counter\ncoredns_cache_{name}_total{{{server}}} {count}"
            );
        }
        out
    }
}
