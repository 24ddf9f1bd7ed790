//! Flags of upstream's programs that are understood without changing much: what they would adjust is not there, or works
//! by itself. A value that asks for something which does not exist is refused with a sentence.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};

use super::go_duration;

/// The version that all programs speak.
const SPOKEN: &str = "1.36";

/// See the module.
#[derive(Args, Clone, Debug)]
pub struct AcceptedArgs {
    /// Taken for compatibility: client certificates are judged by --client-ca-file
    #[arg(long)]
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Taken for compatibility: authorities are named by flags, none is looked up
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub authentication_skip_lookup: Option<bool>,
    /// Taken for compatibility, as --authentication-skip-lookup
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub authentication_tolerate_lookup_failure: Option<bool>,
    /// Taken for compatibility: reviews of tokens are not kept
    #[arg(long, value_parser = go_duration)]
    pub authentication_token_webhook_cache_ttl: Option<Duration>,
    /// Taken for compatibility: access to metrics is judged with the program's own identity
    #[arg(long)]
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Taken for compatibility: reviews of access are not kept
    #[arg(long, value_parser = go_duration)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// Taken for compatibility: reviews of access are not kept
    #[arg(long, value_parser = go_duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// Taken for compatibility: a certificate that is made for one run is not written anywhere
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Taken for compatibility: users are never taken from a proxy's headers here
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Taken for compatibility, as --requestheader-client-ca-file
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Taken for compatibility, as --requestheader-client-ca-file
    #[arg(long, value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Taken for compatibility, as --requestheader-client-ca-file
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Taken for compatibility, as --requestheader-client-ca-file
    #[arg(long, value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Taken for compatibility, as --requestheader-client-ca-file
    #[arg(long, value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Taken for compatibility: the number of streams is the library's
    #[arg(long)]
    pub http2_max_streams_per_connection: Option<u32>,
    /// Taken for compatibility: the curves are the library's
    #[arg(long, value_delimiter = ',')]
    pub tls_curve_preferences: Vec<String>,
    /// Taken for compatibility; there are no gates
    #[arg(long, value_delimiter = ',')]
    pub feature_gates: Vec<String>,
    /// The version to behave like; there is one
    #[arg(long, value_delimiter = ',', value_parser = spoken_version)]
    pub emulated_version: Vec<String>,
    /// The oldest version to be compatible with; there is one
    #[arg(long, value_delimiter = ',', value_parser = spoken_version)]
    pub min_compatibility_version: Vec<String>,
    /// Taken for compatibility; the server's fairness limits requests, not the client
    #[arg(long)]
    pub kube_api_qps: Option<f64>,
    /// Taken for compatibility, as --kube-api-qps
    #[arg(long)]
    pub kube_api_burst: Option<i64>,
    /// Taken for compatibility: requests are sent as JSON
    #[arg(long)]
    pub kube_api_content_type: Option<String>,
    /// Taken for compatibility: nothing is profiled
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub profiling: Option<bool>,
    /// Taken for compatibility: nothing is profiled
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub contention_profiling: Option<bool>,
    /// Taken for compatibility: metrics keep the labels they have
    #[arg(long)]
    pub allow_metric_labels: Vec<String>,
    /// Taken for compatibility, as --allow-metric-labels
    #[arg(long)]
    pub allow_metric_labels_manifest: Option<PathBuf>,
    /// Metrics that are not shown, by their full names
    #[arg(long, value_delimiter = ',')]
    pub disabled_metrics: Vec<String>,
    /// Taken for compatibility: no metric is hidden
    #[arg(long)]
    pub show_hidden_metrics_for_version: Option<String>,
    /// The form of log lines
    #[arg(long, default_value = "text", value_parser = ["text"])]
    pub logging_format: String,
    /// Taken for compatibility: lines are not held back
    #[arg(long, value_parser = go_duration)]
    pub log_flush_frequency: Option<Duration>,
    /// Taken for compatibility: lines are not held back
    #[arg(long)]
    pub log_text_info_buffer_size: Option<String>,
    /// Taken for compatibility: all lines go to the error output
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub log_text_split_stream: Option<bool>,
    /// Taken for compatibility, as --log-text-info-buffer-size
    #[arg(long)]
    pub log_json_info_buffer_size: Option<String>,
    /// Taken for compatibility, as --log-text-split-stream
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub log_json_split_stream: Option<bool>,
    /// Taken for compatibility: -v holds for all modules
    #[arg(long)]
    pub vmodule: Option<String>,
}

/// `1.36` or `kube=1.36`.
fn spoken_version(text: &str) -> Result<String, String> {
    let version = text.rsplit_once('=').map_or(text, |(_, version)| version);
    if version.trim_start_matches('v') == SPOKEN {
        Ok(version.to_owned())
    } else {
        Err(format!("only {SPOKEN} is spoken"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_versions_are_refused() {
        assert!(spoken_version("kube=1.36").is_ok() && spoken_version("v1.36").is_ok());
        assert_eq!(spoken_version("kube=1.33"), Err("only 1.36 is spoken".to_owned()));
    }
}
