//! Calls to other servers: webhooks, token issuers, aggregated servers.

use std::sync::LazyLock;
use std::time::Instant;

use super::family::{Counters, Histograms};
use super::histogram::{CALL_BYTES, CALL_SECONDS};
use super::page::Page;

/// Calls of this process to other servers; like the process's memory, they are not those of one server in it.
pub static CALLS: LazyLock<Calls> = LazyLock::new(Calls::default);

/// A call on its way.
pub struct Call<'a> {
    /// Who is asked.
    pub host: &'a str,
    /// How.
    pub method: &'a str,
    /// Bytes of the question.
    pub sent: usize,
    /// Since when.
    pub began: Instant,
}

/// What other servers were asked.
pub struct Calls {
    count: Counters<3>,
    seconds: Histograms<2>,
    sent: Histograms<2>,
    received: Histograms<2>,
}

impl Default for Calls {
    fn default() -> Self {
        let of = ["host", "verb"];
        let (took, sent, got) =
            ("How long other servers took.", "Bytes sent to them.", "Bytes of their answers.");
        Self {
            count: Counters::counters(
                "rest_client_requests_total",
                "What other servers were asked, by what became of it.",
                ["code", "host", "method"],
            ),
            seconds: Histograms::histograms("rest_client_request_duration_seconds", took, of, CALL_SECONDS),
            sent: Histograms::histograms("rest_client_request_size_bytes", sent, of, CALL_BYTES),
            received: Histograms::histograms("rest_client_response_size_bytes", got, of, CALL_BYTES),
        }
    }
}

impl Calls {
    /// An answer came.
    pub fn answered(&self, call: &Call<'_>, code: &str, received: usize) {
        self.ended(call, code);
        self.received.of([call.host, call.method]).observe(received as f64);
    }

    /// None came.
    pub fn failed(&self, call: &Call<'_>) {
        self.ended(call, "<error>");
    }

    fn ended(&self, call: &Call<'_>, code: &str) {
        self.count.count([code, call.host, call.method]);
        self.seconds.time([call.host, call.method], call.began.elapsed());
        self.sent.of([call.host, call.method]).observe(call.sent as f64);
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.count.print(page);
        self.seconds.print(page);
        self.sent.print(page);
        self.received.print(page);
    }
}
