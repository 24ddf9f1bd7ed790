//! Health checks: the page `/metrics/slis`.

use std::sync::atomic::Ordering;

use super::family::{Counters, Gauges};
use super::page::Page;

/// See the module.
pub struct Health {
    now: Gauges<2>,
    so_far: Counters<3>,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            now: Gauges::gauges(
                "kubernetes_healthcheck",
                "Whether a health check passed when it was last made.",
                ["name", "type"],
            ),
            so_far: Counters::counters(
                "kubernetes_healthchecks_total",
                "Health checks by outcome.",
                ["name", "status", "type"],
            ),
        }
    }
}

impl Health {
    /// A check was made; `kind` is `livez` or the like.
    pub fn checked(&self, name: &str, kind: &str, passed: bool) {
        self.now.of([name, kind]).store(i64::from(passed), Ordering::Relaxed);
        self.so_far.count([name, if passed { "success" } else { "error" }, kind]);
    }

    /// The whole page.
    pub fn text(&self) -> String {
        let mut page = Page::default();
        self.now.print(&mut page);
        self.so_far.print(&mut page);
        page.text
    }
}
