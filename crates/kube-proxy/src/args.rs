//! The command line of `kube-proxy`, with upstream's flag names and defaults.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use serde::Deserialize;
use thiserror::Error;
use tracing::warn;

use crate::{Config, NodePortAddresses};

/// Routes Service traffic on this node.
#[derive(Args, Clone, Debug, Default)]
pub struct KubeProxyArgs {
    /// Configuration file (KubeProxyConfiguration); its values take the place of the flags.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Kubeconfig with the location of and the credentials for the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Name of this Node, if it is not the host's name.
    #[arg(long, default_value = "")]
    pub hostname_override: String,
    /// The pods' address range: traffic to cluster addresses from elsewhere is masqueraded.
    #[arg(long, default_value = "", value_name = "CIDR")]
    pub cluster_cidr: String,
    /// Masquerade all traffic to cluster addresses.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub masquerade_all: bool,
    /// Ranges of local addresses that answer on node ports, or "primary".
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    pub nodeport_addresses: Vec<String>,
    /// Address and port of the health check; empty to disable.
    #[arg(long, default_value = "0.0.0.0:10256", value_name = "IP:PORT")]
    pub healthz_bind_address: String,
    /// Address and port of the metrics; empty to disable.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "IP:PORT")]
    pub metrics_bind_address: String,
    /// Least time between two writings of the rules, in upstream's form ("1s", "500ms").
    #[arg(long, default_value = "50ms", value_name = "DURATION")]
    pub nftables_min_sync_period: String,
    /// How often the rules are compared with the kernel's, in upstream's form.
    #[arg(long, default_value = "30s", value_name = "DURATION")]
    pub nftables_sync_period: String,
    /// Only "nftables" is implemented; other modes are served by it.
    #[arg(long, default_value = "nftables", value_name = "MODE")]
    pub proxy_mode: String,
    /// Removes the rules and ends.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub cleanup: bool,
    /// Log verbosity.
    #[arg(short, long, default_value_t = 0)]
    pub v: u8,
    #[command(flatten)]
    pub without_effect: WithoutEffect,
}

/// Upstream's flags that tune what this proxy does not have: other modes, Go's client, global kernel settings. They are
/// taken, so that a command line made for upstream works, and named in the log.
#[derive(Args, Clone, Debug, Default)]
pub struct WithoutEffect {
    #[arg(long, hide = true)]
    bind_address: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    bind_address_hard_fail: Option<bool>,
    #[arg(long, hide = true)]
    config_sync_period: Option<String>,
    #[arg(long, hide = true)]
    conntrack_max_per_core: Option<i32>,
    #[arg(long, hide = true)]
    conntrack_min: Option<i32>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    conntrack_tcp_be_liberal: Option<bool>,
    #[arg(long, hide = true)]
    conntrack_tcp_timeout_close_wait: Option<String>,
    #[arg(long, hide = true)]
    conntrack_tcp_timeout_established: Option<String>,
    #[arg(long, hide = true)]
    conntrack_udp_timeout: Option<String>,
    #[arg(long, hide = true)]
    conntrack_udp_timeout_stream: Option<String>,
    #[arg(long, hide = true)]
    detect_local_mode: Option<String>,
    #[arg(long, hide = true)]
    feature_gates: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    iptables_localhost_nodeports: Option<bool>,
    #[arg(long, hide = true)]
    iptables_masquerade_bit: Option<i32>,
    #[arg(long, hide = true)]
    iptables_min_sync_period: Option<String>,
    #[arg(long, hide = true)]
    iptables_sync_period: Option<String>,
    #[arg(long, hide = true, value_delimiter = ',')]
    ipvs_exclude_cidrs: Vec<String>,
    #[arg(long, hide = true)]
    ipvs_min_sync_period: Option<String>,
    #[arg(long, hide = true)]
    ipvs_scheduler: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ipvs_strict_arp: Option<bool>,
    #[arg(long, hide = true)]
    ipvs_sync_period: Option<String>,
    #[arg(long, hide = true)]
    ipvs_tcp_timeout: Option<String>,
    #[arg(long, hide = true)]
    ipvs_tcpfin_timeout: Option<String>,
    #[arg(long, hide = true)]
    ipvs_udp_timeout: Option<String>,
    #[arg(long, hide = true)]
    kube_api_burst: Option<i32>,
    #[arg(long, hide = true)]
    kube_api_content_type: Option<String>,
    #[arg(long, hide = true)]
    kube_api_qps: Option<f32>,
    #[arg(long, hide = true)]
    oom_score_adj: Option<i32>,
    #[arg(long, hide = true)]
    pod_bridge_interface: Option<String>,
    #[arg(long, hide = true)]
    pod_interface_name_prefix: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    profiling: Option<bool>,
    #[arg(long, hide = true)]
    show_hidden_metrics_for_version: Option<String>,
}

impl WithoutEffect {
    fn is_given(&self) -> bool {
        format!("{self:?}") != format!("{:?}", Self::default())
    }
}

/// A flag or file that cannot be used.
#[derive(Debug, Error)]
pub enum ArgsError {
    #[error("--{flag} {value:?} is not {expected}")]
    Flag { flag: &'static str, value: String, expected: &'static str },
    #[error("configuration file {path} cannot be read")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("configuration file {path} is no KubeProxyConfiguration")]
    Parse {
        path: PathBuf,
        #[source]
        source: serde_yaml_ng::Error,
    },
    #[error("the host has no name that could be the Node's: pass --hostname-override")]
    NoName,
}

/// The fields of upstream's configuration file that have a meaning here.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    hostname_override: Option<String>,
    #[serde(rename = "clusterCIDR")]
    cluster_cidr: Option<String>,
    node_port_addresses: Option<Vec<String>>,
    healthz_bind_address: Option<String>,
    metrics_bind_address: Option<String>,
    client_connection: Option<Connection>,
    nftables: Option<Nftables>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Connection {
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Nftables {
    #[serde(rename = "masqueradeAll")]
    masquerade_all: Option<bool>,
    min_sync_period: Option<String>,
    sync_period: Option<String>,
}

impl KubeProxyArgs {
    /// Checks the flags and reads the configuration file, if there is one.
    pub fn complete(mut self) -> Result<Config, ArgsError> {
        if let Some(path) = self.config.take() {
            let text = std::fs::read_to_string(&path)
                .map_err(|source| ArgsError::Read { path: path.clone(), source })?;
            let file = serde_yaml_ng::from_str(&text).map_err(|source| ArgsError::Parse { path, source })?;
            self.merge(file);
        }
        if self.without_effect.is_given() {
            warn!(flags = ?self.without_effect, "some flags have no effect on this proxy");
        }
        if !matches!(self.proxy_mode.as_str(), "" | "nftables") {
            warn!(mode = %self.proxy_mode, "this proxy mode is served by nftables");
        }
        let node_name = match self.hostname_override.trim() {
            "" => host_name().ok_or(ArgsError::NoName)?,
            name => name.to_lowercase(),
        };
        // Upstream takes one range per family; the first of ours decides.
        let first = self.cluster_cidr.split(',').next().unwrap_or("").trim();
        let cluster_cidr =
            if first.is_empty() { None } else { Some(parse("cluster-cidr", first, "an address range")?) };
        Ok(Config {
            node_name,
            kubeconfig: self.kubeconfig,
            table: crate::TABLE.to_owned(),
            cluster_cidr,
            masquerade_all: self.masquerade_all,
            node_ports: node_ports(&self.nodeport_addresses)?,
            healthz: bind_address("healthz-bind-address", &self.healthz_bind_address, 10256)?,
            metrics: bind_address("metrics-bind-address", &self.metrics_bind_address, 10249)?,
            sync_period: duration("nftables-sync-period", &self.nftables_sync_period)?,
            min_sync_period: duration("nftables-min-sync-period", &self.nftables_min_sync_period)?,
        })
    }

    fn merge(&mut self, file: File) {
        let set = |flag: &mut String, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                *flag = value;
            }
        };
        set(&mut self.hostname_override, file.hostname_override);
        set(&mut self.cluster_cidr, file.cluster_cidr);
        set(&mut self.healthz_bind_address, file.healthz_bind_address);
        set(&mut self.metrics_bind_address, file.metrics_bind_address);
        let nftables = file.nftables.unwrap_or_default();
        set(&mut self.nftables_min_sync_period, nftables.min_sync_period.filter(|period| period != "0s"));
        set(&mut self.nftables_sync_period, nftables.sync_period.filter(|period| period != "0s"));
        self.masquerade_all = nftables.masquerade_all.unwrap_or(self.masquerade_all);
        if let Some(addresses) = file.node_port_addresses {
            self.nodeport_addresses = addresses;
        }
        let named = file.client_connection.unwrap_or_default().kubeconfig;
        if let Some(kubeconfig) = named.filter(|path| !path.as_os_str().is_empty()) {
            self.kubeconfig = Some(kubeconfig);
        }
    }
}

fn node_ports(addresses: &[String]) -> Result<NodePortAddresses, ArgsError> {
    let named: Vec<&str> = addresses.iter().map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
    if named.is_empty() || named == ["primary"] {
        return Ok(NodePortAddresses::Primary);
    }
    let ranges = named.into_iter().map(|text| parse("nodeport-addresses", text, "an address range"));
    Ok(NodePortAddresses::Ranges(ranges.collect::<Result<Vec<IpNet>, _>>()?))
}

fn bind_address(flag: &'static str, text: &str, port: u16) -> Result<Option<SocketAddr>, ArgsError> {
    match text.trim() {
        "" => Ok(None),
        text => match text.parse::<IpAddr>() {
            Ok(address) => Ok(Some(SocketAddr::new(address, port))),
            Err(_) => parse(flag, text, "an address with a port").map(Some),
        },
    }
}

fn parse<T: std::str::FromStr>(
    flag: &'static str,
    text: &str,
    expected: &'static str,
) -> Result<T, ArgsError> {
    text.parse().map_err(|_| ArgsError::Flag { flag, value: text.to_owned(), expected })
}

/// A sum of numbers with units, as Go writes durations.
fn duration(flag: &'static str, text: &str) -> Result<Duration, ArgsError> {
    let bad = || ArgsError::Flag { flag, value: text.to_owned(), expected: "a duration like 1s or 500ms" };
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit_end =
            rest[digits..].find(|char: char| char.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let seconds = match &rest[digits..unit_end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "" if number == 0.0 => 1.0,
            _ => return Err(bad()),
        };
        total += Duration::try_from_secs_f64(number * seconds).map_err(|_| bad())?;
        rest = &rest[unit_end..];
    }
    Ok(total)
}

fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_lowercase()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: KubeProxyArgs,
    }

    fn complete(line: &[&str]) -> Result<Config, ArgsError> {
        Line::parse_from(["kube-proxy"].iter().chain(line)).args.complete()
    }

    #[test]
    fn flags_become_a_config_and_wrong_ones_are_named() {
        let config = complete(&[
            "--hostname-override=Node-1",
            "--cluster-cidr=10.128.0.0/14",
            "--nodeport-addresses=127.0.0.0/8,10.0.0.0/8",
            "--healthz-bind-address=127.0.0.1",
            "--metrics-bind-address=",
            "--conntrack-min=0",
            "--profiling",
            "--masquerade-all=true",
            "--oom-score-adj=-999",
        ])
        .unwrap();
        assert_eq!(config.node_name, "node-1");
        assert_eq!(config.cluster_cidr, Some("10.128.0.0/14".parse().unwrap()));
        assert!(matches!(config.node_ports, NodePortAddresses::Ranges(ranges) if ranges.len() == 2));
        assert_eq!(config.healthz, Some("127.0.0.1:10256".parse().unwrap()));
        assert_eq!(config.metrics, None);
        assert!(config.masquerade_all);
        let error = complete(&["--cluster-cidr=ten"]).unwrap_err();
        assert_eq!(error.to_string(), "--cluster-cidr \"ten\" is not an address range");
    }

    #[test]
    fn go_durations_are_read() {
        let cases = [("1s", 1000), ("500ms", 500), ("1m30s", 90_000), ("1.5s", 1500), ("0", 0)];
        for (text, milliseconds) in cases {
            assert_eq!(duration("x", text).unwrap(), Duration::from_millis(milliseconds), "{text}");
        }
        for text in ["s", "1x", "5", "1s2"] {
            assert!(duration("x", text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_configuration_file_takes_the_place_of_flags() {
        let mut args = Line::parse_from(["kube-proxy", "--cluster-cidr=10.0.0.0/8"]).args;
        let text = "clusterCIDR: 10.128.0.0/14\nmetricsBindAddress: \"\"\nclientConnection: {kubeconfig: /etc/k}\n\
                    nftables: {masqueradeAll: true, minSyncPeriod: 1s}\n";
        args.merge(serde_yaml_ng::from_str(text).unwrap());
        let config = KubeProxyArgs { hostname_override: "n".into(), ..args }.complete().unwrap();
        assert_eq!(config.cluster_cidr, Some("10.128.0.0/14".parse().unwrap()));
        assert!(config.masquerade_all && config.metrics.is_some());
        assert_eq!(config.kubeconfig, Some("/etc/k".into()));
        assert_eq!(config.min_sync_period, Duration::from_secs(1));
    }
}
