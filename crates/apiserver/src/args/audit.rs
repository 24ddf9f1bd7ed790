//! The flags about auditing, completed into an [`AuditConfig`].

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{ArgsError, duration, read_text};
use crate::config::{AuditBatch, AuditConfig, AuditLog, AuditMode, AuditOutput, AuditWebhook};

/// The flags about auditing.
#[derive(Args, Clone, Debug)]
pub struct AuditArgs {
    /// The audit policy.
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    /// The audit log; `-` is standard output.
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// Rotate the audit log at this size in MiB.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Keep rotated audit logs for so many days; 0 is for ever.
    #[arg(long, default_value_t = 366)]
    pub audit_log_maxage: u64,
    /// Keep so many rotated audit logs; 0 is all.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// Whether rotated audit logs are packed with gzip.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub audit_log_compress: bool,
    /// The form of a line: `json`, or `legacy` for a part of it as text.
    #[arg(long, default_value = "json", value_parser = ["json", "legacy"])]
    pub audit_log_format: String,
    /// A kubeconfig of the server that audit events are sent to.
    #[arg(long)]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// After a failure the audit webhook is left alone for so long at first.
    #[arg(long, default_value = "10s")]
    pub audit_webhook_initial_backoff: String,
    /// When a request goes on after an event for the audit log: `batch`, `blocking` or `blocking-strict`.
    #[arg(long, default_value = "blocking", value_parser = ["batch", "blocking", "blocking-strict"])]
    pub audit_log_mode: String,
    /// The most events that wait for the audit log in batch mode.
    #[arg(long, default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// The most events of one batch.
    #[arg(long, default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// A batch waits at most this long to be filled.
    #[arg(long, default_value = "0s")]
    pub audit_log_batch_max_wait: String,
    /// Whether the rate of batches is bounded.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches a second.
    #[arg(long, default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f64,
    /// Batches at once.
    #[arg(long, default_value_t = 0)]
    pub audit_log_batch_throttle_burst: u32,
    /// Whether events for the audit log are cut to size.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub audit_log_truncate_enabled: bool,
    /// The most bytes of a batch.
    #[arg(long, default_value_t = 10_485_760)]
    pub audit_log_truncate_max_batch_size: usize,
    /// The most bytes of an event; a larger one loses its bodies.
    #[arg(long, default_value_t = 102_400)]
    pub audit_log_truncate_max_event_size: usize,
    /// The version of the events.
    #[arg(long, default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    pub audit_log_version: String,
    /// When a request goes on after an event for the audit webhook: `batch`, `blocking` or `blocking-strict`.
    #[arg(long, default_value = "batch", value_parser = ["batch", "blocking", "blocking-strict"])]
    pub audit_webhook_mode: String,
    /// The most events that wait for the audit webhook in batch mode.
    #[arg(long, default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// The most events of one batch.
    #[arg(long, default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// A batch waits at most this long to be filled.
    #[arg(long, default_value = "30s")]
    pub audit_webhook_batch_max_wait: String,
    /// Whether the rate of batches is bounded.
    #[arg(long, default_value_t = true, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches a second.
    #[arg(long, default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// Batches at once.
    #[arg(long, default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Whether events for the audit webhook are cut to size.
    #[arg(long, default_value_t = false, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub audit_webhook_truncate_enabled: bool,
    /// The most bytes of a batch.
    #[arg(long, default_value_t = 10_485_760)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// The most bytes of an event; a larger one loses its bodies.
    #[arg(long, default_value_t = 102_400)]
    pub audit_webhook_truncate_max_event_size: usize,
    /// The version of the events.
    #[arg(long, default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    pub audit_webhook_version: String,
}

impl AuditArgs {
    /// What can be judged without touching anything.
    pub fn check(&self) -> Result<(), ArgsError> {
        let wrong = |flag, why: &str| Err(ArgsError::Value { flag, why: why.to_owned() });
        if self.audit_policy_file.is_none() && self.audit_log_path.is_some() {
            return wrong("audit-log-path", "needs --audit-policy-file, or nothing would be written");
        }
        if self.audit_policy_file.is_none() && self.audit_webhook_config_file.is_some() {
            return wrong("audit-webhook-config-file", "needs --audit-policy-file, or nothing would be sent");
        }
        check("log", &self.log_output()?).and_then(|()| check("webhook", &self.webhook_output()?))
    }

    /// The configuration, if there is a policy and somewhere to write to.
    pub fn complete(&self) -> Result<Option<AuditConfig>, ArgsError> {
        let Some(policy) = &self.audit_policy_file else { return Ok(None) };
        let log = match &self.audit_log_path {
            Some(path) => Some(AuditLog {
                path: path.clone(),
                max_size: self.audit_log_maxsize,
                max_backup: self.audit_log_maxbackup,
                max_age_days: self.audit_log_maxage,
                compress: self.audit_log_compress,
                legacy: self.audit_log_format == "legacy",
                output: self.log_output()?,
            }),
            None => None,
        };
        let webhook = match &self.audit_webhook_config_file {
            Some(path) => Some(AuditWebhook {
                kubeconfig: read_text("audit-webhook-config-file", path)?,
                backoff: duration("audit-webhook-initial-backoff", &self.audit_webhook_initial_backoff)?,
                output: self.webhook_output()?,
            }),
            None => None,
        };
        if log.is_none() && webhook.is_none() {
            return Ok(None);
        }
        Ok(Some(AuditConfig { policy: read_text("audit-policy-file", policy)?, log, webhook }))
    }

    fn log_output(&self) -> Result<AuditOutput, ArgsError> {
        Ok(AuditOutput {
            mode: mode(&self.audit_log_mode),
            batch: AuditBatch {
                buffer_size: self.audit_log_batch_buffer_size,
                max_size: self.audit_log_batch_max_size,
                max_wait: duration("audit-log-batch-max-wait", &self.audit_log_batch_max_wait)?,
                throttle: self.audit_log_batch_throttle_enable,
                throttle_qps: self.audit_log_batch_throttle_qps,
                throttle_burst: self.audit_log_batch_throttle_burst,
            },
            truncate: self
                .audit_log_truncate_enabled
                .then_some((self.audit_log_truncate_max_event_size, self.audit_log_truncate_max_batch_size)),
        })
    }

    fn webhook_output(&self) -> Result<AuditOutput, ArgsError> {
        Ok(AuditOutput {
            mode: mode(&self.audit_webhook_mode),
            batch: AuditBatch {
                buffer_size: self.audit_webhook_batch_buffer_size,
                max_size: self.audit_webhook_batch_max_size,
                max_wait: duration("audit-webhook-batch-max-wait", &self.audit_webhook_batch_max_wait)?,
                throttle: self.audit_webhook_batch_throttle_enable,
                throttle_qps: self.audit_webhook_batch_throttle_qps,
                throttle_burst: self.audit_webhook_batch_throttle_burst,
            },
            truncate: self.audit_webhook_truncate_enabled.then_some((
                self.audit_webhook_truncate_max_event_size,
                self.audit_webhook_truncate_max_batch_size,
            )),
        })
    }
}

fn mode(text: &str) -> AuditMode {
    match text {
        "batch" => AuditMode::Batch,
        "blocking-strict" => AuditMode::BlockingStrict,
        _ => AuditMode::Blocking,
    }
}

/// Numbers that leave nothing to write.
fn check(plugin: &'static str, output: &AuditOutput) -> Result<(), ArgsError> {
    let flag = if plugin == "log" { "audit-log-mode" } else { "audit-webhook-mode" };
    let wrong = |why: String| Err(ArgsError::Value { flag, why });
    let batch = &output.batch;
    if output.mode == AuditMode::Batch {
        for (what, good) in [
            ("buffer size", batch.buffer_size > 0),
            ("max batch size", batch.max_size > 0),
            ("throttle QPS", !batch.throttle || batch.throttle_qps > 0.0),
            ("throttle burst", !batch.throttle || batch.throttle_burst > 0),
        ] {
            if !good {
                return wrong(format!("invalid audit batch {plugin} {what}, must be a positive number"));
            }
        }
    }
    match output.truncate {
        Some((0, _)) => {
            wrong(format!("invalid audit truncate {plugin} max event size, must be a positive number"))
        }
        Some((event, batch)) if batch < event => wrong(format!(
            "invalid audit truncate {plugin} max batch size, must be greater than max event size"
        )),
        _ => Ok(()),
    }
}
