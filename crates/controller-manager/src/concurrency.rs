//! How many objects of each controller are worked on at once: one flag per controller, as upstream has them.

use std::collections::HashMap;

use clap::Args;

macro_rules! flags {
    ($($field:ident for $controller:literal $(or $older:literal)?;)*) => {
        /// The `--concurrent-…-syncs` flags; what is not given is the controller's own number.
        #[derive(Args, Clone, Debug, Default)]
        pub struct Concurrency {
            $(
                #[doc = concat!("Objects that the ", $controller, " works on at once")]
                #[arg(long $(, alias = $older)?, value_name = "NUMBER")]
                pub $field: Option<usize>,
            )*
        }

        impl Concurrency {
            /// The numbers that were given, by controller.
            pub fn workers(&self) -> HashMap<&'static str, usize> {
                [$(($controller, self.$field)),*]
                    .into_iter()
                    .filter_map(|(controller, workers)| Some((controller, workers?.max(1))))
                    .collect()
            }
        }
    };
}

flags! {
    concurrent_deployment_syncs for "deployment-controller";
    concurrent_replicaset_syncs for "replicaset-controller";
    concurrent_rc_syncs for "replicationcontroller-controller" or "concurrent_rc_syncs";
    concurrent_statefulset_syncs for "statefulset-controller";
    concurrent_daemonset_syncs for "daemonset-controller";
    concurrent_job_syncs for "job-controller";
    concurrent_cron_job_syncs for "cronjob-controller";
    concurrent_endpoint_syncs for "endpoints-controller";
    concurrent_service_endpoint_syncs for "endpointslice-controller";
    mirroring_concurrent_service_endpoint_syncs for "endpointslice-mirroring-controller";
    concurrent_gc_syncs for "garbage-collector-controller";
    concurrent_namespace_syncs for "namespace-controller";
    concurrent_resource_quota_syncs for "resourcequota-controller";
    concurrent_serviceaccount_token_syncs for "serviceaccount-token-controller";
    concurrent_ttl_after_finished_syncs for "ttl-after-finished-controller";
    concurrent_horizontal_pod_autoscaler_syncs for "horizontal-pod-autoscaler-controller";
    concurrent_ephemeralvolume_syncs for "ephemeral-volume-controller";
    concurrent_resourceclaim_syncs for "resourceclaim-controller";
    concurrent_device_taint_eviction_syncs for "device-taint-eviction-controller";
    concurrent_validating_admission_policy_status_syncs for "validatingadmissionpolicy-status-controller";
}
