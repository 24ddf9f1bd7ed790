//! Flags of `kelson kube-controller-manager` that change nothing here: what they would adjust is not there, or works by
//! itself. A value that asks for something which does not exist is refused with a sentence.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use controller_runtime::program::go_duration;

/// See the module.
#[derive(Args, Clone, Debug, Default)]
pub struct CompatibilityArgs {
    /// The cloud's loops run in cloud-controller-manager
    #[arg(long, value_parser = outside)]
    pub cloud_provider: Option<String>,
    /// Taken for compatibility, as --cloud-provider
    #[arg(long)]
    pub cloud_config: Option<PathBuf>,
    /// Taken for compatibility: attachments are compared when something changes, not at intervals
    #[arg(long, value_parser = go_duration)]
    pub attach_detach_reconcile_sync_period: Option<Duration>,
    /// Taken for compatibility, as --attach-detach-reconcile-sync-period
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_attach_detach_reconcile_sync: Option<bool>,
    /// Taken for compatibility: the interval of listing namespaces anew, which is not done
    #[arg(long, value_parser = go_duration)]
    pub namespace_sync_period: Option<Duration>,
    /// Taken for compatibility: claims are bound when something changes
    #[arg(long, value_parser = go_duration)]
    pub pvclaimbinder_sync_period: Option<Duration>,
    /// Taken for compatibility: changes that come while an object is worked on are one piece of work anyway
    #[arg(long, value_parser = go_duration)]
    pub endpoint_updates_batch_period: Option<Duration>,
    /// Taken for compatibility, as --endpoint-updates-batch-period
    #[arg(long, value_parser = go_duration)]
    pub endpointslice_updates_batch_period: Option<Duration>,
    /// Taken for compatibility, as --endpoint-updates-batch-period
    #[arg(long, value_parser = go_duration)]
    pub mirroring_endpointslice_updates_batch_period: Option<Duration>,
    /// Taken for compatibility: there are no such plug-ins
    #[arg(long)]
    pub flex_volume_plugin_dir: Option<PathBuf>,
    /// Refused: the class `local` makes directories
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_parser = no_host_paths)]
    pub enable_hostpath_provisioner: Option<bool>,
    /// Taken for compatibility: no volume is scrubbed by a pod, the policy Recycle is of the past
    #[arg(long)]
    pub pv_recycler_increment_timeout_nfs: Option<u32>,
    /// Taken for compatibility, as --pv-recycler-increment-timeout-nfs
    #[arg(long)]
    pub pv_recycler_minimum_timeout_hostpath: Option<u32>,
    /// Taken for compatibility, as --pv-recycler-increment-timeout-nfs
    #[arg(long)]
    pub pv_recycler_minimum_timeout_nfs: Option<u32>,
    /// Taken for compatibility, as --pv-recycler-increment-timeout-nfs
    #[arg(long)]
    pub pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,
    /// Taken for compatibility, as --pv-recycler-increment-timeout-nfs
    #[arg(long)]
    pub pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,
    /// Taken for compatibility, as --pv-recycler-increment-timeout-nfs
    #[arg(long)]
    pub pv_recycler_timeout_increment_hostpath: Option<u32>,
}

fn outside(text: &str) -> Result<String, String> {
    match text {
        "" | "external" => Ok(text.to_owned()),
        _ => Err("no cloud is built in: run cloud-controller-manager and say external here".to_owned()),
    }
}

fn no_host_paths(text: &str) -> Result<bool, String> {
    match text {
        "false" => Ok(false),
        _ => Err("directories of nodes are made by the StorageClass local".to_owned()),
    }
}
