//! Every field of upstream's KubeletConfiguration (v1beta1 of v1.36), with the flag that sets it, its shape, and what
//! becomes of it here.
//!
//! A field is acted on, or taken because nothing that anyone can see depends on it, or offered with some values only. There
//! is no fourth kind: a value that would have to be ignored is refused by the field's name.

/// What a value looks like, in a file and on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Text,
    Number,
    Bool,
    /// `5m0s`.
    Duration,
    /// A size or another amount: `10Mi`, or a number.
    Quantity,
    /// Texts; with commas on the command line.
    List,
    /// Texts by name: `a=b,c=d`.
    Map,
    /// Switches by name: `a=true,b=false`.
    Switches,
    /// Thresholds by signal: `memory.available<100Mi`.
    Thresholds,
    /// `key=value:effect`.
    Taints,
    /// Anything that a flag cannot express.
    Structure,
}

/// What becomes of a value.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// The kubelet does as it says.
    Acts,
    /// Understood, and nothing visible depends on it: why.
    Taken(&'static str),
    /// These values and no others: why.
    Only(&'static [&'static str], &'static str),
}

/// A field, by its path in the file.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    pub path: &'static str,
    /// The flag that sets it too; empty if there is none.
    pub flag: &'static str,
    pub shape: Shape,
    pub rule: Rule,
}

const fn field(path: &'static str, flag: &'static str, shape: Shape, rule: Rule) -> Field {
    Field { path, flag, shape, rule }
}

use Rule::{Acts, Only, Taken};
use Shape::{Bool, Duration, List, Map, Number, Quantity, Structure, Switches, Taints, Text, Thresholds};

const NO_LIMIT: &str = "requests are limited by the server's fairness, not by the client";
const MEMORY_IS_READ: &str = "free memory is read every other second, which needs no notification";
const NO_CPU_MANAGER: &str = "processors are not given to containers exclusively";
const NO_TOPOLOGY: &str = "resources are not aligned by NUMA node";
const NO_SHUTDOWN: &str = "pods are not ended with the machine by the kubelet";
const LINES: &str = "log lines are not held back";

/// All of them, in upstream's order.
pub const FIELDS: &[Field] = &[
    field("enableServer", "enable-server", Bool, Acts),
    field("staticPodPath", "pod-manifest-path", Text, Acts),
    field("podLogsDir", "", Text, Acts),
    field("syncFrequency", "sync-frequency", Duration, Taken("pods are looked at when something happens")),
    field(
        "fileCheckFrequency",
        "file-check-frequency",
        Duration,
        Taken("the kernel reports changed manifests"),
    ),
    field("httpCheckFrequency", "http-check-frequency", Duration, Taken("manifests do not come by URL")),
    field("staticPodURL", "manifest-url", Text, Only(&[""], "manifests do not come by URL")),
    field(
        "staticPodURLHeader",
        "manifest-url-header",
        Structure,
        Only(&["{}", "null"], "manifests do not come by URL"),
    ),
    field("address", "address", Text, Acts),
    field("port", "port", Number, Acts),
    field("readOnlyPort", "read-only-port", Number, Only(&["0"], "nothing is served without authentication")),
    field("tlsCertFile", "tls-cert-file", Text, Acts),
    field("tlsPrivateKeyFile", "tls-private-key-file", Text, Acts),
    field("tlsCipherSuites", "tls-cipher-suites", List, Only(&["[]"], "the suites are those that are safe")),
    field(
        "tlsMinVersion",
        "tls-min-version",
        Text,
        Only(&["", "VersionTLS12"], "TLS 1.2 and 1.3 are spoken"),
    ),
    field(
        "tlsCurvePreferences",
        "tls-curve-preferences",
        List,
        Only(&["[]"], "the curves are the library's"),
    ),
    field("rotateCertificates", "rotate-certificates", Bool, Acts),
    field("serverTLSBootstrap", "rotate-server-certificates", Bool, Acts),
    field("authentication.x509.clientCAFile", "client-ca-file", Text, Acts),
    field("authentication.webhook.enabled", "authentication-token-webhook", Bool, Acts),
    field(
        "authentication.webhook.cacheTTL",
        "authentication-token-webhook-cache-ttl",
        Duration,
        Only(&["0s", "2m", "2m0s"], "reviews of tokens are kept for two minutes"),
    ),
    field("authentication.anonymous.enabled", "anonymous-auth", Bool, Acts),
    field("authorization.mode", "authorization-mode", Text, Acts),
    field(
        "authorization.webhook.cacheAuthorizedTTL",
        "authorization-webhook-cache-authorized-ttl",
        Duration,
        Only(&["0s", "5m", "5m0s"], "permissions are kept for five minutes"),
    ),
    field(
        "authorization.webhook.cacheUnauthorizedTTL",
        "authorization-webhook-cache-unauthorized-ttl",
        Duration,
        Only(&["0s", "30s"], "refusals are kept for thirty seconds"),
    ),
    field("registryPullQPS", "registry-qps", Number, Acts),
    field("registryBurst", "registry-burst", Number, Acts),
    field("imagePullCredentialsVerificationPolicy", "", Text, Acts),
    field("preloadedImagesVerificationAllowlist", "", List, Acts),
    field("eventRecordQPS", "event-qps", Number, Taken("equal events are counted, floods are cut off")),
    field("eventBurst", "event-burst", Number, Taken("equal events are counted, floods are cut off")),
    field(
        "enableDebuggingHandlers",
        "enable-debugging-handlers",
        Bool,
        Only(
            &["true"],
            "logs, exec, attach and port-forward are always served; enableServer: false serves nothing",
        ),
    ),
    field("enableContentionProfiling", "contention-profiling", Bool, Taken("nothing is profiled")),
    field("healthzPort", "healthz-port", Number, Acts),
    field("healthzBindAddress", "healthz-bind-address", Text, Acts),
    field("oomScoreAdj", "oom-score-adj", Number, Acts),
    field("clusterDomain", "cluster-domain", Text, Acts),
    field("clusterDNS", "cluster-dns", List, Acts),
    field(
        "streamingConnectionIdleTimeout",
        "streaming-connection-idle-timeout",
        Duration,
        Taken("a stream ends with its client or its process"),
    ),
    field("nodeStatusUpdateFrequency", "node-status-update-frequency", Duration, Acts),
    field("nodeStatusReportFrequency", "", Duration, Acts),
    field("nodeLeaseDurationSeconds", "", Number, Acts),
    field("imageMinimumGCAge", "minimum-image-ttl-duration", Duration, Acts),
    field("imageMaximumGCAge", "", Duration, Acts),
    field("imageGCHighThresholdPercent", "image-gc-high-threshold", Number, Acts),
    field("imageGCLowThresholdPercent", "image-gc-low-threshold", Number, Acts),
    field(
        "volumeStatsAggPeriod",
        "volume-stats-agg-period",
        Duration,
        Taken("volumes are measured when asked for"),
    ),
    field(
        "kubeletCgroups",
        "kubelet-cgroups",
        Text,
        Only(&["", "/"], "the kubelet stays in the cgroup it was started in"),
    ),
    field("systemCgroups", "system-cgroups", Text, Only(&[""], "processes of the system are not moved")),
    field("cgroupRoot", "cgroup-root", Text, Acts),
    field(
        "cgroupsPerQOS",
        "cgroups-per-qos",
        Bool,
        Only(&["true"], "pods are always below the cgroup of their class"),
    ),
    field(
        "cgroupDriver",
        "cgroup-driver",
        Text,
        Only(&["", "cgroupfs"], "cgroups are made directly, not by systemd"),
    ),
    field(
        "singleProcessOOMKill",
        "",
        Bool,
        Only(&["false", "null"], "a container is killed as a whole where the kernel can"),
    ),
    field("cpuManagerPolicy", "cpu-manager-policy", Text, Only(&["", "none"], NO_CPU_MANAGER)),
    field(
        "cpuManagerPolicyOptions",
        "cpu-manager-policy-options",
        Map,
        Only(&["{}", "null"], NO_CPU_MANAGER),
    ),
    field("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period", Duration, Taken(NO_CPU_MANAGER)),
    field("memoryManagerPolicy", "memory-manager-policy", Text, Only(&["", "None"], NO_TOPOLOGY)),
    field("topologyManagerPolicy", "topology-manager-policy", Text, Only(&["", "none"], NO_TOPOLOGY)),
    field("topologyManagerScope", "topology-manager-scope", Text, Only(&["", "container"], NO_TOPOLOGY)),
    field(
        "topologyManagerPolicyOptions",
        "topology-manager-policy-options",
        Map,
        Only(&["{}", "null"], NO_TOPOLOGY),
    ),
    field("qosReserved", "qos-reserved", Map, Only(&["{}", "null"], "memory is not reserved by class")),
    field(
        "runtimeRequestTimeout",
        "runtime-request-timeout",
        Duration,
        Taken("requests to the runtime in this process do not hang"),
    ),
    field("hairpinMode", "hairpin-mode", Text, Taken("the pod network turns traffic back to its pod")),
    field("maxPods", "max-pods", Number, Acts),
    field("podCIDR", "pod-cidr", Text, Acts),
    field("podPidsLimit", "pod-max-pids", Number, Acts),
    field("resolvConf", "resolv-conf", Text, Acts),
    field("runOnce", "runonce", Bool, Only(&["false"], "upstream has no such mode any more")),
    field("cpuCFSQuota", "cpu-cfs-quota", Bool, Only(&["true"], "limits of processor time are enforced")),
    field("cpuCFSQuotaPeriod", "cpu-cfs-quota-period", Duration, Only(&["100ms"], "the period is 100 ms")),
    field(
        "nodeStatusMaxImages",
        "node-status-max-images",
        Number,
        Only(&["50"], "the status names fifty images"),
    ),
    field("maxOpenFiles", "max-open-files", Number, Acts),
    field("contentType", "kube-api-content-type", Text, Taken("requests are sent as JSON")),
    field("kubeAPIQPS", "kube-api-qps", Number, Taken(NO_LIMIT)),
    field("kubeAPIBurst", "kube-api-burst", Number, Taken(NO_LIMIT)),
    field("serializeImagePulls", "serialize-image-pulls", Bool, Acts),
    field("maxParallelImagePulls", "", Number, Acts),
    field("evictionHard", "eviction-hard", Thresholds, Acts),
    field("evictionSoft", "eviction-soft", Thresholds, Acts),
    field("evictionSoftGracePeriod", "eviction-soft-grace-period", Map, Acts),
    field("evictionPressureTransitionPeriod", "eviction-pressure-transition-period", Duration, Acts),
    field("evictionMaxPodGracePeriod", "eviction-max-pod-grace-period", Number, Acts),
    field("evictionMinimumReclaim", "eviction-minimum-reclaim", Map, Acts),
    field("mergeDefaultEvictionSettings", "", Bool, Acts),
    field("podsPerCore", "pods-per-core", Number, Acts),
    field(
        "enableControllerAttachDetach",
        "enable-controller-attach-detach",
        Bool,
        Only(&["true"], "volumes are attached by the controller"),
    ),
    field(
        "protectKernelDefaults",
        "protect-kernel-defaults",
        Bool,
        Taken("the kernel's settings are neither changed nor required"),
    ),
    field(
        "makeIPTablesUtilChains",
        "make-iptables-util-chains",
        Bool,
        Taken("rules are nftables of the service proxy"),
    ),
    field("iptablesMasqueradeBit", "", Number, Taken("rules are nftables of the service proxy")),
    field("iptablesDropBit", "", Number, Taken("rules are nftables of the service proxy")),
    field(
        "featureGates",
        "feature-gates",
        Switches,
        Taken("there are no gates: features are as v1.36 has them"),
    ),
    field("failSwapOn", "fail-swap-on", Bool, Acts),
    field("memorySwap.swapBehavior", "", Text, Only(&["", "NoSwap"], "containers do not swap")),
    field("containerLogMaxSize", "container-log-max-size", Quantity, Acts),
    field("containerLogMaxFiles", "container-log-max-files", Number, Acts),
    field("containerLogMaxWorkers", "", Number, Taken("logs are rotated by one task")),
    field(
        "containerLogMonitorInterval",
        "",
        Duration,
        Only(&["10s"], "logs are looked at every ten seconds"),
    ),
    field(
        "configMapAndSecretChangeDetectionStrategy",
        "",
        Text,
        Only(&["", "Watch"], "objects of pods are watched"),
    ),
    field("systemReserved", "system-reserved", Map, Acts),
    field("kubeReserved", "kube-reserved", Map, Acts),
    field("reservedSystemCPUs", "reserved-cpus", Text, Only(&[""], NO_CPU_MANAGER)),
    field(
        "showHiddenMetricsForVersion",
        "show-hidden-metrics-for-version",
        Text,
        Taken("no metric is hidden"),
    ),
    field(
        "systemReservedCgroup",
        "system-reserved-cgroup",
        Text,
        Only(&[""], "reservations bound pods, not others"),
    ),
    field(
        "kubeReservedCgroup",
        "kube-reserved-cgroup",
        Text,
        Only(&[""], "reservations bound pods, not others"),
    ),
    field(
        "enforceNodeAllocatable",
        "enforce-node-allocatable",
        List,
        Only(&["[]", "[\"pods\"]", "[\"none\"]", "[\"\"]"], "reservations bound pods, not others"),
    ),
    field("allowedUnsafeSysctls", "allowed-unsafe-sysctls", List, Acts),
    field(
        "volumePluginDir",
        "volume-plugin-dir",
        Text,
        Taken("there are no FlexVolume plug-ins to look for"),
    ),
    field("providerID", "provider-id", Text, Acts),
    field("kernelMemcgNotification", "kernel-memcg-notification", Bool, Taken(MEMORY_IS_READ)),
    field("logging.format", "logging-format", Text, Only(&["", "text"], "log lines are text")),
    field("logging.flushFrequency", "log-flush-frequency", Structure, Taken(LINES)),
    field("logging.verbosity", "", Number, Acts),
    field("logging.vmodule", "vmodule", Structure, Taken("-v holds for all modules")),
    field(
        "logging.options.text.splitStream",
        "log-text-split-stream",
        Bool,
        Taken("all lines go to the error output"),
    ),
    field("logging.options.text.infoBufferSize", "log-text-info-buffer-size", Quantity, Taken(LINES)),
    field(
        "logging.options.json.splitStream",
        "log-json-split-stream",
        Bool,
        Taken("all lines go to the error output"),
    ),
    field("logging.options.json.infoBufferSize", "log-json-info-buffer-size", Quantity, Taken(LINES)),
    field("enableSystemLogHandler", "", Bool, Only(&["true", "false"], "")),
    field(
        "enableSystemLogQuery",
        "",
        Bool,
        Only(&["false"], "logs of the machine's services are not served"),
    ),
    field("shutdownGracePeriod", "", Duration, Only(&["0s"], NO_SHUTDOWN)),
    field("shutdownGracePeriodCriticalPods", "", Duration, Only(&["0s"], NO_SHUTDOWN)),
    field("shutdownGracePeriodByPodPriority", "", Structure, Only(&["[]", "null"], NO_SHUTDOWN)),
    field(
        "crashLoopBackOff.maxContainerRestartPeriod",
        "",
        Duration,
        Only(&["5m", "5m0s", "300s"], "a container that keeps ending is started every five minutes"),
    ),
    field("reservedMemory", "reserved-memory", Structure, Only(&["[]", "null", ""], NO_TOPOLOGY)),
    field("enableProfilingHandler", "", Bool, Taken("nothing is profiled")),
    field("enableDebugFlagsHandler", "", Bool, Taken("how much is logged is fixed at the start")),
    field("seccompDefault", "seccomp-default", Bool, Only(&["false"], "pods say which profile they want")),
    field(
        "memoryThrottlingFactor",
        "",
        Structure,
        Only(&["0.9", "null"], "memory is limited, not throttled"),
    ),
    field("memoryReservationPolicy", "", Text, Only(&["", "None"], "memory is limited, not reserved")),
    field("registerWithTaints", "register-with-taints", Taints, Acts),
    field("registerNode", "register-node", Bool, Acts),
    field("tracing", "", Structure, Only(&["null", "{}"], "nothing is traced")),
    field(
        "localStorageCapacityIsolation",
        "local-storage-capacity-isolation",
        Bool,
        Only(&["true"], "limits of local storage are part of admission"),
    ),
    field("containerRuntimeEndpoint", "container-runtime-endpoint", Text, Acts),
    field("imageServiceEndpoint", "image-service-endpoint", Text, Acts),
    field("failCgroupV1", "", Bool, Acts),
    field("userNamespaces.idsPerPod", "", Number, Only(&["65536", "null"], "a pod has 65536 ids")),
];

/// The field of a path.
pub fn find(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|field| field.path == path)
}

/// Whether some field is below this path.
pub fn has_below(path: &str) -> bool {
    FIELDS.iter().any(|field| field.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}
