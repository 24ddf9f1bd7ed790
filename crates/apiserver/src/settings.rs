//! What can be adjusted about a server that is neither an identity nor a part: times, numbers, switches. Each field stands
//! for a flag of upstream's program and has its default, unless the comment says otherwise.

use std::time::Duration;

use crate::admission::configuration::Configuration;
use crate::metrics_filter::MetricsFilter;
use crate::proxy::tunnel::Egress;

/// Who keeps the endpoints of the `kubernetes` Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reconciler {
    /// This server is the only one: its address stands there as long as it runs, without further ado.
    #[default]
    Alone,
    /// Servers that share a store keep leases in it; whose lease ends is taken out.
    Lease,
    /// Every server adds itself.
    Count,
    /// Nobody.
    None,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Expressions for the origins that browsers may come from.
    pub cors_origins: Vec<String>,
    /// The directives of `Strict-Transport-Security`.
    pub strict_transport: Vec<String>,
    /// The chance that an answer over HTTP/2 asks the client to connect anew.
    pub goaway_chance: f64,
    /// Whether HTTP/2 is spoken.
    pub http2: bool,
    /// Streams of one HTTP/2 connection; 0 for the usual number.
    pub http2_streams: u32,
    /// What clients outside know this server by.
    pub external_host: Option<String>,
    /// Watches without a wish live between this and twice this; zero for no end.
    pub min_watch: Duration,
    /// For so long after the start /livez takes for done what is not done yet.
    pub livez_grace: Duration,
    /// How long the start waits for the store.
    pub store_patience: Duration,
    /// How long the store may take to answer a question after its health.
    pub store_health: Duration,
    /// The same for its readiness.
    pub store_ready: Duration,
    /// Whether objects are counted in the metrics.
    pub count_objects: bool,
    /// How old the store's size in the metrics may be; none: it is not told.
    pub size_every: Option<Duration>,
    /// How many objects of a collection are deleted at a time.
    pub delete_workers: usize,
    /// Whether deletes leave work for the garbage collector.
    pub garbage_collection: bool,
    /// For how long events share a lease.
    pub lease_reuse: Duration,
    /// Without priority and fairness: the most reading and writing requests in flight, 0 for no bound.
    pub in_flight: Option<(usize, usize)>,
    /// How long a kubelet may take to accept a connection.
    pub kubelet_timeout: Duration,
    /// The most bytes per second of a stream; 0 for no bound.
    pub stream_rate: u64,
    /// Whether redirects of aggregated servers are kept from clients.
    pub reject_redirects: bool,
    /// Whether aggregated servers are reached at their endpoints, not at their Service's address.
    pub route_to_endpoints: bool,
    /// The node port of the `kubernetes` Service; 0 for none.
    pub service_node_port: u16,
    /// Who keeps the endpoints of the `kubernetes` Service. Upstream's default is `Lease`.
    pub reconciler: Reconciler,
    /// Whether containers may be privileged. Upstream's default is no.
    pub privileged: bool,
    /// What of the metrics is shown.
    pub metrics: MetricsFilter,
    /// How long pods stay on a node that is not ready.
    pub not_ready_seconds: i64,
    /// NodeRestriction: labels of the cluster that a node may register with.
    pub node_registration_labels: Vec<String>,
    /// How long pods stay on a node that is not reachable.
    pub unreachable_seconds: i64,
    /// What admission plug-ins are told.
    pub admission: Configuration,
    /// The ways to others.
    pub egress: Egress,
    /// Whether built-in objects are stored in protobuf. Upstream's default is yes.
    pub protobuf: bool,
    /// Whether a stopping server goes on to listen, and asks clients to come back later.
    pub retry_after: bool,
    /// How often the namespaces of the system are looked for. No flag: upstream does it every minute.
    pub system_namespaces: Duration,
    /// Over which time a stopping server ends its watches.
    pub watch_grace: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            cors_origins: Vec::new(),
            strict_transport: Vec::new(),
            goaway_chance: 0.0,
            http2: true,
            http2_streams: 0,
            external_host: None,
            min_watch: Duration::from_secs(1800),
            livez_grace: Duration::ZERO,
            store_patience: Duration::from_secs(60),
            store_health: Duration::from_secs(2),
            store_ready: Duration::from_secs(2),
            count_objects: true,
            size_every: Some(Duration::from_secs(30)),
            delete_workers: 1,
            garbage_collection: true,
            lease_reuse: Duration::from_secs(60),
            in_flight: None,
            kubelet_timeout: Duration::from_secs(5),
            stream_rate: 0,
            reject_redirects: true,
            route_to_endpoints: false,
            service_node_port: 0,
            reconciler: Reconciler::default(),
            privileged: true,
            metrics: MetricsFilter::default(),
            not_ready_seconds: 300,
            node_registration_labels: Vec::new(),
            unreachable_seconds: 300,
            admission: Configuration::default(),
            egress: Egress::default(),
            protobuf: false,
            retry_after: false,
            system_namespaces: Duration::from_secs(60),
            watch_grace: Duration::ZERO,
        }
    }
}
