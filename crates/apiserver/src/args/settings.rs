//! The flags that become [`Settings`], one to one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use serde::Deserialize;

use super::{ArgsError, read_text};
use crate::admission::configuration::Configuration;
use crate::config_files::FileError;
use crate::front::Front;
use crate::metrics_filter::MetricsFilter;
use crate::proxy::tunnel::Egress;
use crate::settings::{Reconciler, Settings};

/// The highest chance that makes sense; upstream takes no higher one.
const GOAWAY_AT_MOST: f64 = 0.02;

/// A duration as Go programs write it.
pub(super) fn go_duration(text: &str) -> Result<Duration, String> {
    apimachinery::time::parse_duration(text)
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map(Duration::from_nanos)
        .ok_or_else(|| format!("{text:?} is no duration"))
}

/// See the module.
#[derive(Args, Clone, Debug)]
pub struct SettingsArgs {
    /// Regular expressions for the origins that browsers may come from.
    #[arg(long, value_delimiter = ',')]
    pub cors_allowed_origins: Vec<String>,
    /// Directives of the header Strict-Transport-Security.
    #[arg(long, value_delimiter = ',')]
    pub strict_transport_security_directives: Vec<String>,
    /// The chance that a request over HTTP/2 makes its client connect anew, up to 0.02.
    #[arg(long, default_value_t = 0.0)]
    pub goaway_chance: f64,
    /// Do not speak HTTP/2.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_http2_serving: bool,
    /// Streams of one HTTP/2 connection; 0 for the usual number.
    #[arg(long, default_value_t = 0)]
    pub http2_max_streams_per_connection: u32,
    /// The name that clients outside know this server by.
    #[arg(long)]
    pub external_hostname: Option<String>,
    /// Seconds that a watch lives at least, and at most twice as many; 0 for no end.
    #[arg(long, default_value_t = 1800)]
    pub min_request_timeout: u64,
    /// How long after the start /livez takes for done what is not done yet.
    #[arg(long, default_value = "0s", value_parser = go_duration)]
    pub livez_grace_period: Duration,
    /// How long the start waits for the store.
    #[arg(long, default_value = "1m0s", value_parser = go_duration)]
    pub storage_initialization_timeout: Duration,
    /// How long etcd may take to answer for /healthz and /livez.
    #[arg(long, default_value = "2s", value_parser = go_duration)]
    pub etcd_healthcheck_timeout: Duration,
    /// How long etcd may take to answer for /readyz.
    #[arg(long, default_value = "2s", value_parser = go_duration)]
    pub etcd_readycheck_timeout: Duration,
    /// 0 leaves the number of objects out of the metrics; it is counted when it is asked for.
    #[arg(long, default_value = "1m0s", value_parser = go_duration)]
    pub etcd_count_metric_poll_period: Duration,
    /// How old the size of etcd in the metrics may be; 0 leaves it out.
    #[arg(long, default_value = "30s", value_parser = go_duration)]
    pub etcd_db_metric_poll_interval: Duration,
    /// How many objects of a collection are deleted at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub delete_collection_workers: u16,
    /// Whether deletes leave work for the garbage collector.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_garbage_collector: bool,
    /// For how many seconds events share a lease.
    #[arg(long, default_value_t = 60)]
    pub lease_reuse_duration_seconds: u64,
    /// Whether requests are queued by priority; without, only their number is bounded.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_priority_and_fairness: bool,
    /// How long a kubelet may take to accept a connection.
    #[arg(long, default_value = "5s", value_parser = go_duration)]
    pub kubelet_timeout: Duration,
    /// The most bytes per second of an upgraded stream (exec, attach, port-forward); 0 for no bound.
    #[arg(long, default_value_t = 0)]
    pub max_connection_bytes_per_sec: u64,
    /// Keep redirects of aggregated servers from clients.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub aggregator_reject_forwarding_redirect: bool,
    /// Reach aggregated servers at their endpoints, not at their Service's address.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_aggregator_routing: bool,
    /// The node port of the Service `kubernetes`; 0 for none.
    #[arg(long, default_value_t = 0)]
    pub kubernetes_service_node_port: u16,
    /// Who keeps the endpoints of the Service `kubernetes`.
    #[arg(long, default_value = "lease", value_parser = ["lease", "master-count", "none"])]
    pub endpoint_reconciler_type: String,
    /// Whether containers may be privileged.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allow_privileged: bool,
    /// Metrics that are not shown, by their full names.
    #[arg(long, value_delimiter = ',')]
    pub disabled_metrics: Vec<String>,
    /// Values that are shown of a label: `metric,label='a,b'`.
    #[arg(long)]
    pub allow_metric_labels: Vec<String>,
    /// A file with the same.
    #[arg(long)]
    pub allow_metric_labels_manifest: Option<PathBuf>,
    /// How long pods stay on a node that is not ready, if they do not say.
    #[arg(long, default_value_t = 300)]
    pub default_not_ready_toleration_seconds: i64,
    /// Labels in the cluster's own domains that a node may register with, beside those that NodeRestriction lets it; it
    /// cannot change them later. Not upstream's: OpenShift's API server has such a list built in.
    #[arg(long, value_delimiter = ',')]
    pub node_registration_labels: Vec<String>,
    /// How long pods stay on a node that is not reachable, if they do not say.
    #[arg(long, default_value_t = 300)]
    pub default_unreachable_toleration_seconds: i64,
    /// How objects are stored: JSON if nothing is said, otherwise as named. Both are read, and upstream reads both.
    #[arg(long, default_value = "application/json", value_parser = ["", "application/json", "application/vnd.kubernetes.protobuf"])]
    pub storage_media_type: String,
    /// An EgressSelectorConfiguration: proxies on the way to nodes and webhooks, asked with HTTPConnect.
    #[arg(long)]
    pub egress_selector_config_file: Option<PathBuf>,
    /// While stopping, listen until running requests are done, and ask others to come back later.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub shutdown_send_retry_after: bool,
    /// Over which time a stopping server ends its watches.
    #[arg(long, default_value = "0s", value_parser = go_duration)]
    pub shutdown_watch_termination_grace_period: Duration,
}

/// The file of `--allow-metric-labels-manifest`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct LabelManifest {
    allow_list_mapping: BTreeMap<String, String>,
}

impl SettingsArgs {
    /// `in_flight` are the bounds on reading and writing requests.
    pub(super) fn complete(&self, in_flight: (usize, usize)) -> Result<Settings, ArgsError> {
        let wrong = |flag, why: &str| Err(ArgsError::Value { flag, why: why.to_owned() });
        if !(0.0..=GOAWAY_AT_MOST).contains(&self.goaway_chance) {
            return wrong("goaway-chance", "must be between 0 and 0.02");
        }
        if self.default_not_ready_toleration_seconds < 0 || self.default_unreachable_toleration_seconds < 0 {
            return wrong("default-not-ready-toleration-seconds", "must not be negative");
        }
        let settings = Settings {
            cors_origins: self.cors_allowed_origins.clone(),
            strict_transport: self.strict_transport_security_directives.clone(),
            goaway_chance: self.goaway_chance,
            http2: !self.disable_http2_serving,
            http2_streams: self.http2_max_streams_per_connection,
            external_host: self.external_hostname.clone().filter(|host| !host.is_empty()),
            min_watch: Duration::from_secs(self.min_request_timeout),
            livez_grace: self.livez_grace_period,
            store_patience: self.storage_initialization_timeout,
            store_health: self.etcd_healthcheck_timeout,
            store_ready: self.etcd_readycheck_timeout,
            count_objects: !self.etcd_count_metric_poll_period.is_zero(),
            size_every: Some(self.etcd_db_metric_poll_interval).filter(|every| !every.is_zero()),
            delete_workers: usize::from(self.delete_collection_workers),
            garbage_collection: self.enable_garbage_collector,
            lease_reuse: Duration::from_secs(self.lease_reuse_duration_seconds),
            in_flight: (!self.enable_priority_and_fairness).then_some(in_flight),
            kubelet_timeout: self.kubelet_timeout,
            stream_rate: self.max_connection_bytes_per_sec,
            reject_redirects: self.aggregator_reject_forwarding_redirect,
            route_to_endpoints: self.enable_aggregator_routing,
            service_node_port: self.kubernetes_service_node_port,
            reconciler: match self.endpoint_reconciler_type.as_str() {
                "none" => Reconciler::None,
                "master-count" => Reconciler::Count,
                _ => Reconciler::Lease,
            },
            privileged: self.allow_privileged,
            metrics: self.metrics()?,
            node_registration_labels: self.node_registration_labels.clone(),
            not_ready_seconds: self.default_not_ready_toleration_seconds,
            unreachable_seconds: self.default_unreachable_toleration_seconds,
            admission: Configuration::default(),
            egress: match &self.egress_selector_config_file {
                Some(path) => Egress::load(path)?,
                None => Egress::default(),
            },
            protobuf: self.storage_media_type == "application/vnd.kubernetes.protobuf",
            retry_after: self.shutdown_send_retry_after,
            watch_grace: self.shutdown_watch_termination_grace_period,
            ..Settings::default()
        };
        match Front::new(&settings) {
            Ok(_) => Ok(settings),
            Err(why) => Err(ArgsError::Value { flag: "cors-allowed-origins", why }),
        }
    }

    fn metrics(&self) -> Result<MetricsFilter, ArgsError> {
        let mut filter = MetricsFilter {
            disabled: self.disabled_metrics.iter().cloned().collect(),
            ..MetricsFilter::default()
        };
        if let Some(path) = &self.allow_metric_labels_manifest {
            let flag = "allow-metric-labels-manifest";
            let named: LabelManifest = serde_yaml_ng::from_str(&read_text(flag, path)?)
                .map_err(|error| ArgsError::File { flag, source: FileError::Malformed(error) })?;
            for (key, values) in named.allow_list_mapping {
                filter.allow(&key, &values).map_err(|why| ArgsError::Value { flag, why })?;
            }
        }
        for text in &self.allow_metric_labels {
            let flag = "allow-metric-labels";
            let (key, values) = text.split_once('=').unwrap_or((text, ""));
            filter.allow(key, values).map_err(|why| ArgsError::Value { flag, why })?;
        }
        Ok(filter)
    }
}
