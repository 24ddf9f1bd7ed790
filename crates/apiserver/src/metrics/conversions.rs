//! Conversion webhooks of CRDs.

use std::time::Duration;

use super::family::{Counters, Histograms};
use super::histogram::{CONVERSION_SECONDS, DOUBLING_SECONDS};
use super::page::Page;

/// What conversion webhooks were asked.
pub struct Conversions {
    by_crd: Histograms<4>,
    count: Counters<2>,
    seconds: Histograms<2>,
}

impl Default for Conversions {
    fn default() -> Self {
        let of = ["failure_type", "result"];
        Self {
            by_crd: Histograms::histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "How long conversions took, by CRD and versions.",
                ["crd_name", "from_version", "succeeded", "to_version"],
                DOUBLING_SECONDS,
            ),
            count: Counters::counters(
                "apiserver_conversion_webhook_request_total",
                "What conversion webhooks were asked, by what became of it.",
                of,
            ),
            seconds: Histograms::histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "How long conversion webhooks took.",
                of,
                CONVERSION_SECONDS,
            ),
        }
    }
}

impl Conversions {
    /// Counts a question. `failure` names what was wrong with the answer.
    pub fn converted(&self, [crd, from, to]: [&str; 3], failure: Option<&str>, took: Duration) {
        let succeeded = if failure.is_none() { "true" } else { "false" };
        self.by_crd.time([crd, from, succeeded, to], took);
        let result = if failure.is_none() { "success" } else { "failure" };
        self.count.count([failure.unwrap_or_default(), result]);
        self.seconds.time([failure.unwrap_or_default(), result], took);
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.by_crd.print(page);
        self.count.print(page);
        self.seconds.print(page);
    }
}
