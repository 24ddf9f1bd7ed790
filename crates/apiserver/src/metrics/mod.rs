//! Counters under upstream's names, printed in the text form that Prometheus reads.
//!
//! What has few labels is an array of atomics; what has many is a [`family`]. Nothing is allocated to count once a
//! series is there. `names.txt` holds all names with their labels, and a test holds the page to it.

pub mod admission;
pub mod allocators;
pub mod calls;
pub mod chain;
pub mod conversions;
pub mod family;
pub mod flows;
pub mod health;
pub mod histogram;
pub mod page;
mod process;
pub mod requests;
mod stored;
pub mod watches;

use self::admission::AdmissionMetrics;
use self::allocators::Allocators;
use self::chain::ChainMetrics;
use self::conversions::Conversions;
use self::family::Counters;
use self::health::Health;
use self::page::Page;
use self::requests::Requests;
use self::watches::Watches;
use crate::reload::Reloads;

/// What the server counts.
pub struct Metrics {
    /// By what they ask for.
    pub requests: Requests,
    /// Events and beginnings.
    pub watches: Watches,
    /// On the way of a request.
    pub chain: ChainMetrics,
    /// In admission.
    pub admission: AdmissionMetrics,
    /// Of custom resources, by webhooks.
    pub conversions: Conversions,
    /// Of addresses and ports.
    pub allocators: Allocators,
    /// On a page of their own.
    pub health: Health,
    /// APIServices that became unavailable, by name and reason.
    pub unavailable: Counters<2>,
    /// Of the authentication file.
    pub authentication_reloads: Reloads,
    /// Of the authorization file.
    pub authorization_reloads: Reloads,
    /// Of the encryption file.
    pub encryption_reloads: Reloads,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            requests: Requests::default(),
            watches: Watches::default(),
            chain: ChainMetrics::default(),
            admission: AdmissionMetrics::default(),
            conversions: Conversions::default(),
            allocators: Allocators::default(),
            health: Health::default(),
            unavailable: Counters::counters(
                "aggregator_unavailable_apiservice_total",
                "APIServices that became unavailable, by why.",
                ["name", "reason"],
            ),
            authentication_reloads: Reloads::default(),
            authorization_reloads: Reloads::default(),
            encryption_reloads: Reloads::default(),
        }
    }
}

impl Metrics {
    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.requests.print(page);
        self.watches.print(page);
        self.chain.print(page);
        self.admission.print(page);
        self.conversions.print(page);
        self.allocators.print(page);
        self.unavailable.print(page);
    }
}

pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !matches!(letter, '"' | '\\' | '\n')).take(128).collect()
}
