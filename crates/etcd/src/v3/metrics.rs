//! `/metrics`, under etcd's names, and what the gRPC side counts for it.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::counters::{Counter, Histogram};
use crate::v3::auth::Auth;
use crate::v3::http::CHECKS;
use crate::v3::maintenance::size_in_pages;
use crate::v3::service::{Service, VERSION};

/// Prometheus's usual classes.
const CALL: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

const UNARY: &str = "unary";
const SERVER_STREAM: &str = "server_stream";
const BIDI: &str = "bidi_stream";

/// Every method: path, kind. The busy ones come first.
const METHODS: &[(&str, &str)] = &[
    ("/etcdserverpb.KV/Range", UNARY),
    ("/etcdserverpb.KV/Txn", UNARY),
    ("/etcdserverpb.KV/Put", UNARY),
    ("/etcdserverpb.KV/DeleteRange", UNARY),
    ("/etcdserverpb.KV/Compact", UNARY),
    ("/etcdserverpb.Watch/Watch", BIDI),
    ("/etcdserverpb.Lease/LeaseGrant", UNARY),
    ("/etcdserverpb.Lease/LeaseRevoke", UNARY),
    ("/etcdserverpb.Lease/LeaseKeepAlive", BIDI),
    ("/etcdserverpb.Lease/LeaseTimeToLive", UNARY),
    ("/etcdserverpb.Lease/LeaseLeases", UNARY),
    ("/etcdserverpb.Cluster/MemberAdd", UNARY),
    ("/etcdserverpb.Cluster/MemberRemove", UNARY),
    ("/etcdserverpb.Cluster/MemberUpdate", UNARY),
    ("/etcdserverpb.Cluster/MemberList", UNARY),
    ("/etcdserverpb.Cluster/MemberPromote", UNARY),
    ("/etcdserverpb.Maintenance/Alarm", UNARY),
    ("/etcdserverpb.Maintenance/Status", UNARY),
    ("/etcdserverpb.Maintenance/Defragment", UNARY),
    ("/etcdserverpb.Maintenance/Hash", UNARY),
    ("/etcdserverpb.Maintenance/HashKV", UNARY),
    ("/etcdserverpb.Maintenance/Snapshot", SERVER_STREAM),
    ("/etcdserverpb.Maintenance/MoveLeader", UNARY),
    ("/etcdserverpb.Maintenance/Downgrade", UNARY),
    ("/etcdserverpb.Auth/AuthEnable", UNARY),
    ("/etcdserverpb.Auth/AuthDisable", UNARY),
    ("/etcdserverpb.Auth/AuthStatus", UNARY),
    ("/etcdserverpb.Auth/Authenticate", UNARY),
    ("/etcdserverpb.Auth/UserAdd", UNARY),
    ("/etcdserverpb.Auth/UserGet", UNARY),
    ("/etcdserverpb.Auth/UserList", UNARY),
    ("/etcdserverpb.Auth/UserDelete", UNARY),
    ("/etcdserverpb.Auth/UserChangePassword", UNARY),
    ("/etcdserverpb.Auth/UserGrantRole", UNARY),
    ("/etcdserverpb.Auth/UserRevokeRole", UNARY),
    ("/etcdserverpb.Auth/RoleAdd", UNARY),
    ("/etcdserverpb.Auth/RoleGet", UNARY),
    ("/etcdserverpb.Auth/RoleList", UNARY),
    ("/etcdserverpb.Auth/RoleDelete", UNARY),
    ("/etcdserverpb.Auth/RoleGrantPermission", UNARY),
    ("/etcdserverpb.Auth/RoleRevokePermission", UNARY),
    ("/v3lockpb.Lock/Lock", UNARY),
    ("/v3lockpb.Lock/Unlock", UNARY),
    ("/v3electionpb.Election/Campaign", UNARY),
    ("/v3electionpb.Election/Proclaim", UNARY),
    ("/v3electionpb.Election/Leader", UNARY),
    ("/v3electionpb.Election/Observe", SERVER_STREAM),
    ("/v3electionpb.Election/Resign", UNARY),
];

/// gRPC's codes by number.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// What is counted for one method.
#[derive(Debug)]
struct Method {
    started: Counter,
    handled: [AtomicU64; CODES.len()],
    took: Option<Histogram>,
}

/// What one check of `/livez` or `/readyz` found.
#[derive(Debug)]
pub struct Probe {
    kind: &'static str,
    name: &'static str,
    fine: Counter,
    failed: Counter,
    /// 0: it was never asked for; 1: fine; 2: failed.
    last: AtomicU8,
}

impl Probe {
    fn new(kind: &'static str, name: &'static str) -> Self {
        let (fine, failed) = (Counter::default(), Counter::default());
        Self { kind, name, fine, failed, last: AtomicU8::new(0) }
    }

    fn labels(&self) -> String {
        format!("name=\"{}\",type=\"{}\"", self.name, self.kind)
    }

    fn last(&self) -> Option<bool> {
        match self.last.load(Ordering::Relaxed) {
            0 => None,
            found => Some(found == 1),
        }
    }
}

/// What the gRPC side counts.
#[derive(Debug)]
pub struct GrpcCounters {
    methods: Vec<Method>,
    /// Bytes of requests.
    pub received: Counter,
    /// Bytes of answers.
    pub sent: Counter,
    /// Watch streams open now.
    pub watch_streams: Counter,
    /// Events sent to watches.
    pub events: Counter,
    /// `/health` answered with yes.
    pub healthy: Counter,
    /// `/health` answered with no.
    pub unhealthy: Counter,
    probes: Vec<Probe>,
    extensive: bool,
}

impl GrpcCounters {
    /// Nothing so far; `extensive` also measures how long calls take.
    pub fn new(extensive: bool) -> Self {
        let method = |_: &(&str, &str)| Method {
            started: Counter::default(),
            handled: Default::default(),
            took: extensive.then(|| Histogram::new(CALL)),
        };
        Self {
            methods: METHODS.iter().map(method).collect(),
            received: Counter::default(),
            sent: Counter::default(),
            watch_streams: Counter::default(),
            events: Counter::default(),
            healthy: Counter::default(),
            unhealthy: Counter::default(),
            probes: CHECKS
                .iter()
                .flat_map(|(kind, names)| names.iter().map(|name| Probe::new(kind, name)))
                .collect(),
            extensive,
        }
    }

    /// A call begins; what to give to [`GrpcCounters::handled`]. Unknown methods are not counted.
    pub fn started(&self, path: &str) -> Option<usize> {
        let index = METHODS.iter().position(|(known, _)| *known == path)?;
        self.methods[index].started.increment();
        Some(index)
    }

    /// A check of `/livez` or `/readyz` was asked for.
    pub fn probed(&self, kind: &str, name: &str, fine: bool) {
        let found = self.probes.iter().find(|probe| probe.kind == kind && probe.name == name);
        let Some(probe) = found else { return };
        if fine { &probe.fine } else { &probe.failed }.increment();
        probe.last.store(if fine { 1 } else { 2 }, Ordering::Relaxed);
    }

    /// How often a method has failed.
    fn failed(&self, path: &str) -> u64 {
        let index = METHODS.iter().position(|(known, _)| *known == path);
        let handled = index.map(|index| &self.methods[index].handled);
        handled.into_iter().flatten().skip(1).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// How often a method has succeeded.
    fn succeeded(&self, path: &str) -> u64 {
        let index = METHODS.iter().position(|(known, _)| *known == path);
        let handled = index.and_then(|index| self.methods[index].handled.first());
        handled.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Whether it is worth looking at the clock.
    pub fn is_extensive(&self) -> bool {
        self.extensive
    }

    /// A call has ended with a code.
    pub fn handled(&self, method: Option<usize>, code: u16, took: Option<Duration>) {
        let Some(method) = method.and_then(|index| self.methods.get(index)) else { return };
        if let Some(count) = method.handled.get(usize::from(code)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((histogram, took)) = method.took.as_ref().zip(took) {
            histogram.observe(took);
        }
    }
}

/// The text, metric by metric.
struct Page(String);

impl Page {
    // Writing to a string cannot fail.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn row(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.row(name, "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.row(name, "", value);
    }

    /// `labels` ends with a comma if there are any.
    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        let (classes, sum) = histogram.read();
        let mut count = 0;
        for (bound, at_most) in classes {
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            self.row(name, &format!("_bucket{{{labels}le=\"{bound}\"}}"), at_most);
            count = at_most;
        }
        let labels = match labels.strip_suffix(',') {
            Some(labels) => format!("{{{labels}}}"),
            None => String::new(),
        };
        self.row(name, &format!("_sum{labels}"), sum);
        self.row(name, &format!("_count{labels}"), count);
    }
}

/// The page.
pub fn page(service: &Service) -> String {
    let mut page = Page(String::with_capacity(16 << 10));
    server(&mut page, service);
    storage(&mut page, service);
    disk(&mut page, service);
    grpc(&mut page, &service.counters);
    process(&mut page);
    page.0
}

fn server(page: &mut Page, service: &Service) {
    let shared = &service.etcd.shared;
    let counters = &service.counters;
    let (last, applied) = (shared.last_index(), shared.read().index);
    page.family("etcd_cluster_version", "gauge", "Which version is running. 1 for 'cluster_version' label.");
    page.row("etcd_cluster_version", "{cluster_version=\"3.6\"}", 1);
    page.family("etcd_server_version", "gauge", "Which version is running. 1 for 'server_version' label.");
    page.row("etcd_server_version", &format!("{{server_version=\"{VERSION}\"}}"), 1);
    page.family(
        "etcd_server_id",
        "gauge",
        "Server or member ID in hexadecimal format. 1 for 'server_id' label.",
    );
    page.row("etcd_server_id", &format!("{{server_id=\"{:x}\"}}", service.identity.member_id), 1);
    let standing = service.replica.standing();
    let has_leader = standing.leader != 0;
    let (leads, learns) = (u8::from(standing.leads), u8::from(standing.learner));
    page.gauge("etcd_server_has_leader", "Whether the member that decides is there.", u8::from(has_leader));
    page.gauge("etcd_server_is_leader", "Whether this member decides.", leads);
    page.gauge("etcd_server_is_learner", "Whether this member is a learner.", learns);
    peers(page, service);
    page.counter("etcd_server_leader_changes_seen_total", "Leader changes seen.", service.replica.changes());
    page.counter(
        "etcd_server_heartbeat_send_failures_total",
        "Messages to other members that found no way.",
        service.replica.traffic().values().map(|traffic| traffic.lost.load(Ordering::Relaxed)).sum::<u64>(),
    );
    let promoted = counters.succeeded("/etcdserverpb.Cluster/MemberPromote");
    page.counter("etcd_server_learner_promote_successes", "Learners promoted.", promoted);
    let refused = counters.failed("/etcdserverpb.Cluster/MemberPromote");
    page.counter("etcd_server_learner_promote_failures", "Learners not promoted.", refused);
    probes(page, counters);
    page.gauge("etcd_server_proposals_applied_total", "Log records applied.", applied);
    page.gauge("etcd_server_proposals_committed_total", "Log records that are committed.", applied);
    page.gauge(
        "etcd_server_proposals_pending",
        "Log records that are not committed yet.",
        last.saturating_sub(applied),
    );
    let auth_revision = Auth::revision(&shared.read());
    page.gauge("etcd_debugging_auth_revision", "Changes of users and roles.", auth_revision);
    let failed = shared.counters.failed.get();
    page.counter("etcd_server_proposals_failed_total", "Writes that the disk refused.", failed);
    page.counter(
        "etcd_server_read_indexes_failed_total",
        "Reads that failed to find out the newest state.",
        0,
    );
    page.counter("etcd_server_slow_read_indexes_total", "Reads that waited long for the newest state.", 0);
    page.gauge("etcd_server_quota_backend_bytes", "The quota.", shared.config.quota_bytes);
    page.counter("etcd_server_health_success", "Health checks that succeeded.", counters.healthy.get());
    page.counter("etcd_server_health_failures", "Health checks that failed.", counters.unhealthy.get());
    let leases = &shared.counters;
    page.counter("etcd_debugging_lease_granted_total", "Leases granted.", leases.leases_granted.get());
    page.counter("etcd_debugging_lease_revoked_total", "Leases revoked.", leases.leases_revoked.get());
    page.counter("etcd_debugging_lease_renewed_total", "Leases kept alive.", leases.leases_renewed.get());
    page.counter("etcd_debugging_server_lease_expired_total", "Leases expired.", leases.leases_expired.get());
}

/// What `/livez` and `/readyz` found.
fn probes(page: &mut Page, counters: &GrpcCounters) {
    page.family("etcd_server_healthcheck", "gauge", "What a check found the last time.");
    for probe in &counters.probes {
        if let Some(last) = probe.last() {
            page.row("etcd_server_healthcheck", &format!("{{{}}}", probe.labels()), u8::from(last));
        }
    }
    page.family("etcd_server_healthchecks_total", "counter", "What checks found.");
    for probe in &counters.probes {
        for (status, count) in [("success", probe.fine.get()), ("error", probe.failed.get())] {
            let row = format!("{{{},status=\"{status}\"}}", probe.labels());
            page.row("etcd_server_healthchecks_total", &row, count);
        }
    }
}

/// What goes between members; nothing while there is one.
fn peers(page: &mut Page, service: &Service) {
    let local = service.identity.member_id;
    let known = service.replica.traffic();
    if known.is_empty() {
        return;
    }
    let between = |remote: u64| format!("{{Local=\"{local:x}\",Remote=\"{remote:x}\"}}");
    page.family("etcd_network_known_peers", "gauge", "The other members.");
    for id in known.keys() {
        page.row("etcd_network_known_peers", &between(*id), 1);
    }
    page.family("etcd_network_active_peers", "gauge", "The other members that are connected.");
    for (id, traffic) in &known {
        let connected = traffic.connected.load(Ordering::Relaxed);
        page.row("etcd_network_active_peers", &between(*id), u8::from(connected));
    }
    page.family("etcd_network_peer_sent_bytes_total", "counter", "Bytes sent to other members.");
    for (id, traffic) in &known {
        page.row("etcd_network_peer_sent_bytes_total", &format!("{{To=\"{id:x}\"}}"), traffic.sent.get());
    }
    page.family("etcd_network_peer_received_bytes_total", "counter", "Bytes received from other members.");
    for (id, traffic) in &known {
        let received = traffic.received.get();
        page.row("etcd_network_peer_received_bytes_total", &format!("{{From=\"{id:x}\"}}"), received);
    }
}

fn storage(page: &mut Page, service: &Service) {
    let shared = &service.etcd.shared;
    let counters = &shared.counters;
    let (keys, size, compacted) = {
        let state = shared.read();
        (state.keys.keys(), state.keys.bytes(), state.keys.compacted())
    };
    let watchers = shared.hub().attached();
    let pages = size_in_pages(size);
    page.gauge("etcd_mvcc_db_total_size_in_bytes", "Size of the data, history included, in pages.", pages);
    page.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Size of the data, history included.", size);
    page.gauge("etcd_mvcc_db_open_read_transactions", "Read transactions open: reads do not stay open.", 0);
    for prefix in ["etcd_mvcc", "etcd_debugging_mvcc"] {
        page.counter(&format!("{prefix}_put_total"), "Keys put.", counters.puts.get());
        page.counter(&format!("{prefix}_delete_total"), "Keys deleted.", counters.deletes.get());
        page.counter(&format!("{prefix}_range_total"), "Ranges read.", counters.ranges.get());
        page.counter(&format!("{prefix}_txn_total"), "Transactions.", counters.transactions.get());
    }
    page.gauge("etcd_debugging_mvcc_keys_total", "Keys with a history.", keys);
    page.gauge("etcd_debugging_mvcc_current_revision", "The newest revision.", shared.visible());
    page.gauge("etcd_debugging_mvcc_compact_revision", "The oldest revision kept.", compacted);
    page.gauge("etcd_debugging_mvcc_watcher_total", "Watches that have caught up.", watchers);
    let streams = service.counters.watch_streams.get();
    page.gauge("etcd_debugging_mvcc_watch_stream_total", "Watch streams.", streams);
    page.counter(
        "etcd_debugging_mvcc_events_total",
        "Events sent to watches.",
        service.counters.events.get(),
    );
}

fn disk(page: &mut Page, service: &Service) {
    let counters = &service.etcd.shared.counters;
    let rows = [
        ("etcd_disk_wal_fsync_duration_seconds", "How long fdatasync of the log took.", &counters.sync),
        (
            "etcd_disk_backend_commit_duration_seconds",
            "From writing a batch until it was visible.",
            &counters.commit,
        ),
        ("etcd_debugging_snap_save_total_duration_seconds", "How long snapshots took.", &counters.snapshot),
    ];
    for (name, help, histogram) in rows {
        page.family(name, "histogram", help);
        page.histogram(name, "", histogram);
    }
    page.gauge("etcd_disk_wal_write_bytes_total", "Bytes written to the log.", counters.log_bytes.get());
    page.gauge("etcd_disk_defrag_inflight", "Whether a defragmentation runs: none is needed.", 0);
}

fn grpc(page: &mut Page, counters: &GrpcCounters) {
    page.counter(
        "etcd_network_client_grpc_received_bytes_total",
        "Bytes of requests.",
        counters.received.get(),
    );
    page.counter("etcd_network_client_grpc_sent_bytes_total", "Bytes of answers.", counters.sent.get());
    let labels = |index: usize| {
        let (path, kind) = METHODS[index];
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        format!("grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"")
    };
    page.family("grpc_server_started_total", "counter", "Calls begun.");
    for (index, method) in counters.methods.iter().enumerate() {
        page.row("grpc_server_started_total", &format!("{{{}}}", labels(index)), method.started.get());
    }
    page.family("grpc_server_handled_total", "counter", "Calls ended, by code.");
    for (index, method) in counters.methods.iter().enumerate() {
        for (code, count) in CODES.iter().zip(&method.handled) {
            let count = count.load(Ordering::Relaxed);
            // All combinations would be a thousand rows; those that never were are as good as zero, except success.
            if count > 0 || *code == "OK" {
                let row = format!("{{grpc_code=\"{code}\",{}}}", labels(index));
                page.row("grpc_server_handled_total", &row, count);
            }
        }
    }
    if counters.extensive {
        page.family("grpc_server_handling_seconds", "histogram", "How long calls took.");
        for (index, method) in counters.methods.iter().enumerate() {
            if let Some(took) = &method.took {
                page.histogram("grpc_server_handling_seconds", &format!("{},", labels(index)), took);
            }
        }
    }
}

/// What Prometheus's clients say about every process.
fn process(page: &mut Page) {
    let Some(facts) = Process::read() else { return };
    page.counter("process_cpu_seconds_total", "CPU time in seconds.", facts.cpu_seconds);
    page.gauge("process_resident_memory_bytes", "Resident memory.", facts.resident);
    page.gauge("process_virtual_memory_bytes", "Virtual memory.", facts.virtual_bytes);
    page.gauge("process_start_time_seconds", "Start of the process since the Unix epoch.", facts.started);
    for name in ["process_open_fds", "os_fd_used"] {
        page.gauge(name, "Open file descriptors.", facts.descriptors);
    }
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        for name in ["process_max_fds", "os_fd_limit"] {
            page.gauge(name, "The most file descriptors.", limit);
        }
    }
}

struct Process {
    cpu_seconds: f64,
    resident: u64,
    virtual_bytes: u64,
    started: f64,
    descriptors: usize,
}

impl Process {
    fn read() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The name may hold anything; what follows its closing bracket are numbers.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let booted = std::fs::read_to_string("/proc/stat").ok()?;
        let booted: f64 = booted.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(Self {
            cpu_seconds: (number(11)? + number(12)?) as f64 / ticks,
            started: booted + number(19)? as f64 / ticks,
            virtual_bytes: number(20)?,
            resident: number(21)? * rustix::param::page_size() as u64,
            descriptors: std::fs::read_dir("/proc/self/fd").ok()?.count(),
        })
    }
}
