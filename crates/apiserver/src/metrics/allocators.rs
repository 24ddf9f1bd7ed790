//! Cluster IPs and node ports that were handed out.

use std::time::Instant;

use ipnet::IpNet;

use super::family::{Counters, Histograms};
use super::histogram::SHORT_SECONDS;
use super::page::Page;

/// See the module.
pub struct Allocators {
    addresses: Counters<2>,
    address_errors: Counters<2>,
    address_seconds: Histograms<1>,
    ports: Counters<1>,
    port_errors: Counters<1>,
    /// Node ports could not be compared with the Services.
    pub repair_errors: Counters<0>,
}

impl Default for Allocators {
    fn default() -> Self {
        Self {
            addresses: Counters::counters(
                "kube_apiserver_clusterip_allocator_allocation_total",
                "Cluster IPs that were taken, by whether they were asked for.",
                ["cidr", "scope"],
            ),
            address_errors: Counters::counters(
                "kube_apiserver_clusterip_allocator_allocation_errors_total",
                "Cluster IPs that could not be taken.",
                ["cidr", "scope"],
            ),
            address_seconds: Histograms::histograms(
                "kube_apiserver_clusterip_allocator_allocation_duration_seconds",
                "How long it took to take a cluster IP.",
                ["cidr"],
                SHORT_SECONDS,
            ),
            ports: Counters::counters(
                "kube_apiserver_nodeport_allocator_allocation_total",
                "Node ports that were taken, by whether they were asked for.",
                ["scope"],
            ),
            port_errors: Counters::counters(
                "kube_apiserver_nodeport_allocator_allocation_errors_total",
                "Node ports that could not be taken.",
                ["scope"],
            ),
            repair_errors: Counters::counters(
                "apiserver_nodeport_repair_reconcile_errors_total",
                "How often addresses and ports could not be compared with the Services.",
                [],
            ),
        }
    }
}

impl Allocators {
    /// An address of a range was taken, or not. `scope` is `static` for one that was asked for, or `dynamic`.
    pub fn address(&self, range: Option<&IpNet>, scope: &str, taken: bool, began: Instant) {
        let cidr = range.map(IpNet::to_string).unwrap_or_default();
        let count = if taken { &self.addresses } else { &self.address_errors };
        count.count([&cidr, scope]);
        self.address_seconds.time([&cidr], began.elapsed());
    }

    /// The same of a node port.
    pub fn port(&self, scope: &str, taken: bool) {
        let count = if taken { &self.ports } else { &self.port_errors };
        count.count([scope]);
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        self.addresses.print(page);
        self.address_errors.print(page);
        self.address_seconds.print(page);
        self.ports.print(page);
        self.port_errors.print(page);
        self.repair_errors.print(page);
    }
}
