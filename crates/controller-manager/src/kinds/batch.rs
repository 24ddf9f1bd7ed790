//! Jobs and CronJobs.

use client::Labels;
use controller_runtime::{Meta, Raw, Selector};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Condition, kind};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A Job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Job {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: JobSpec,
    /// What is.
    pub status: JobStatus,
}
kind!(Job, JOBS, owned true, keep |name| name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSpec {
    /// Pods at once.
    pub parallelism: Option<i64>,
    /// Successes wanted.
    pub completions: Option<i64>,
    /// Time after which it fails.
    pub active_deadline_seconds: Option<i64>,
    /// What failures mean.
    pub pod_failure_policy: Option<PodFailurePolicy>,
    /// When it is done early.
    pub success_policy: Option<SuccessPolicy>,
    /// Failures allowed.
    pub backoff_limit: Option<i64>,
    /// Failures allowed per index.
    pub backoff_limit_per_index: Option<i64>,
    /// Indexes that may fail.
    pub max_failed_indexes: Option<i64>,
    /// Which pods belong to it.
    pub selector: Selector,
    /// What its pods are made from.
    pub template: Raw,
    /// How long it stays when it is finished.
    pub ttl_seconds_after_finished: Option<i64>,
    /// `NonIndexed` or `Indexed`.
    pub completion_mode: Option<Box<str>>,
    /// Whether no pods may run.
    pub suspend: Option<bool>,
    /// `TerminatingOrFailed` or `Failed`.
    pub pod_replacement_policy: Option<Box<str>>,
    /// Who manages it, if not we.
    pub managed_by: Option<Box<str>>,
}

/// What failures mean.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodFailurePolicy {
    /// The first that fits decides.
    pub rules: Vec<PodFailureRule>,
}

/// One rule about failures.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodFailureRule {
    /// `FailJob`, `FailIndex`, `Ignore` or `Count`.
    pub action: Box<str>,
    /// By exit code.
    pub on_exit_codes: Option<OnExitCodes>,
    /// By pod condition.
    pub on_pod_conditions: Vec<OnPodCondition>,
}

/// By exit code.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OnExitCodes {
    /// Only of this container.
    pub container_name: Option<Box<str>>,
    /// `In` or `NotIn`.
    pub operator: Box<str>,
    /// The codes.
    pub values: Vec<i64>,
}

/// By pod condition.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OnPodCondition {
    /// The condition.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// Its status.
    pub status: Box<str>,
}

/// When an indexed job is done early.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SuccessPolicy {
    /// Any of them suffices.
    pub rules: Vec<SuccessRule>,
}

/// One way to be done early.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SuccessRule {
    /// The indexes that count, all if absent.
    pub succeeded_indexes: Option<Box<str>>,
    /// How many of them, all if absent.
    pub succeeded_count: Option<i64>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobStatus {
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When work began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// When it succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Timestamp>,
    /// Running pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub active: i64,
    /// Succeeded pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub succeeded: i64,
    /// Failed pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: i64,
    /// Pods that are being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<i64>,
    /// Indexes that succeeded, compressed.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub completed_indexes: Box<str>,
    /// Indexes that failed, compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_indexes: Option<Box<str>>,
    /// Pods whose end is not yet counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted_terminated_pods: Option<Uncounted>,
    /// Ready pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

/// Pods whose end is not yet counted, by uid.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Uncounted {
    /// They succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub succeeded: Vec<Box<str>>,
    /// They failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Box<str>>,
}

impl Job {
    /// The condition that ended the job.
    pub fn finished(&self) -> Option<&Condition> {
        self.status
            .conditions
            .iter()
            .find(|condition| matches!(&*condition.kind, "Complete" | "Failed") && condition.is_true())
    }

    /// Whether pods have indexes.
    pub fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }
}

/// A CronJob.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CronJob {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: CronJobSpec,
    /// What is.
    pub status: CronJobStatus,
}
kind!(CronJob, CRON_JOBS, keep | name | name != LAST_APPLIED);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobSpec {
    /// When.
    pub schedule: Box<str>,
    /// In which time zone.
    pub time_zone: Option<Box<str>>,
    /// How late a start may be.
    pub starting_deadline_seconds: Option<i64>,
    /// `Allow`, `Forbid` or `Replace`.
    pub concurrency_policy: Box<str>,
    /// Whether nothing is started.
    pub suspend: Option<bool>,
    /// What its jobs are made from.
    pub job_template: JobTemplate,
    /// How many succeeded jobs are kept.
    pub successful_jobs_history_limit: Option<i64>,
    /// How many failed jobs are kept.
    pub failed_jobs_history_limit: Option<i64>,
}

/// What jobs are made from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobTemplate {
    /// Labels and annotations.
    pub metadata: TemplateMeta,
    /// The job's spec.
    pub spec: Raw,
}

/// Labels and annotations of a template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    /// Labels.
    pub labels: Labels,
    /// Annotations.
    pub annotations: Labels,
}

/// Of `status`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobStatus {
    /// Running jobs.
    pub active: Vec<JobReference>,
    /// The last start.
    pub last_schedule_time: Option<Timestamp>,
    /// The last success.
    pub last_successful_time: Option<Timestamp>,
}

/// A running job.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobReference {
    /// Group and version.
    pub api_version: Box<str>,
    /// Kind.
    pub kind: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Namespace.
    pub namespace: Box<str>,
    /// Revision.
    pub resource_version: Box<str>,
    /// Identity.
    pub uid: Box<str>,
}
