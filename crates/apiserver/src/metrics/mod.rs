//! Counters under upstream's names, printed in the text form that Prometheus reads.
//!
//! What has few labels is an array of atomics; what has many is a [`family`]. Nothing is allocated to count once a
//! series is there. `names.txt` holds all names with their labels, and a test holds the page to it.

pub mod chain;
pub mod family;
pub mod histogram;
pub mod page;
mod process;
pub mod requests;

use self::chain::ChainMetrics;
use self::page::Page;
use self::requests::Requests;
use crate::reload::Reloads;

/// What the server counts.
#[derive(Default)]
pub struct Metrics {
    /// By what they ask for.
    pub requests: Requests,
    /// On the way of a request.
    pub chain: ChainMetrics,
    /// Of the authentication file.
    pub authentication_reloads: Reloads,
    /// Of the authorization file.
    pub authorization_reloads: Reloads,
    /// Of the encryption file.
    pub encryption_reloads: Reloads,
}

impl Metrics {
    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.requests.print(page);
        self.chain.print(page);
    }
}

pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !matches!(letter, '"' | '\\' | '\n')).take(128).collect()
}
