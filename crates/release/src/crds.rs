//! Definitions of the kinds that manifests use, with schemas that validate.
//!
//! Fields are those of the served API, because unmodified tools and operators read them; descriptions are ours.

use serde_json::{Map, Value, json};

fn object(fields: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({"type": "object", "properties": properties})
}

fn requiring(mut schema: Value, names: &[&str]) -> Value {
    schema["required"] = json!(names);
    schema
}

fn about(mut schema: Value, description: &str) -> Value {
    schema["description"] = json!(description);
    schema
}

fn text() -> Value {
    json!({"type": "string"})
}

fn choice(values: &[&str]) -> Value {
    json!({"type": "string", "enum": values})
}

fn matching(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern})
}

fn number(minimum: i64) -> Value {
    json!({"type": "integer", "format": "int32", "minimum": minimum})
}

fn counter() -> Value {
    json!({"type": "integer", "format": "int64"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items, "x-kubernetes-list-type": "atomic"})
}

fn list_by(items: Value, keys: &[&str]) -> Value {
    json!({
        "type": "array", "items": requiring(items, keys),
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
    })
}

/// Content whose form belongs to someone else.
fn raw() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

fn conditions() -> Value {
    list_by(
        object(&[
            ("type", text()),
            ("status", choice(&["True", "False", "Unknown"])),
            ("reason", text()),
            ("message", text()),
            ("lastTransitionTime", json!({"type": "string", "format": "date-time"})),
            ("observedGeneration", counter()),
        ]),
        &["type"],
    )
}

fn reference() -> Value {
    requiring(object(&[("name", text())]), &["name"])
}

fn cidr() -> Value {
    matching("^([0-9]{1,3}\\.){3}[0-9]{1,3}/[0-9]{1,2}$|^[0-9a-fA-F:.]+/[0-9]{1,3}$")
}

fn cluster_network() -> Value {
    list(requiring(object(&[("cidr", cidr()), ("hostPrefix", number(0))]), &["cidr"]))
}

const PLATFORMS: &[&str] = &[
    "",
    "AWS",
    "Azure",
    "BareMetal",
    "GCP",
    "Libvirt",
    "OpenStack",
    "None",
    "VSphere",
    "oVirt",
    "IBMCloud",
    "KubeVirt",
    "EquinixMetal",
    "PowerVS",
    "AlibabaCloud",
    "Nutanix",
    "External",
];
const TOPOLOGIES: &[&str] =
    &["HighlyAvailable", "HighlyAvailableArbiter", "SingleReplica", "DualReplica", "External"];
const FEATURE_SETS: &[&str] =
    &["", "Default", "OKD", "CustomNoUpgrade", "DevPreviewNoUpgrade", "TechPreviewNoUpgrade"];

fn addresses() -> Vec<(&'static str, Value)> {
    vec![
        ("apiServerInternalIPs", list(text())),
        ("ingressIPs", list(text())),
        ("machineNetworks", list(cidr())),
    ]
}

fn infrastructure() -> (Value, Value) {
    let spec = object(&[
        ("cloudConfig", object(&[("name", text()), ("key", text())])),
        (
            "platformSpec",
            object(&[
                ("type", choice(PLATFORMS)),
                ("baremetal", object(&addresses())),
                ("external", object(&[("platformName", text())])),
                ("none", raw()),
            ]),
        ),
    ]);
    let mut baremetal = addresses();
    baremetal.extend([
        ("apiServerInternalIP", text()),
        ("ingressIP", text()),
        ("nodeDNSIP", text()),
        ("loadBalancer", object(&[("type", choice(&["OpenShiftManagedDefault", "UserManaged"]))])),
    ]);
    let controller = object(&[("state", choice(&["", "External", "None"]))]);
    let status = object(&[
        ("infrastructureName", text()),
        ("platform", choice(PLATFORMS)),
        (
            "platformStatus",
            requiring(
                object(&[
                    ("type", choice(PLATFORMS)),
                    ("baremetal", object(&baremetal)),
                    ("external", object(&[("cloudControllerManager", controller)])),
                    ("none", raw()),
                ]),
                &["type"],
            ),
        ),
        ("etcdDiscoveryDomain", text()),
        ("apiServerURL", text()),
        ("apiServerInternalURI", text()),
        ("controlPlaneTopology", choice(TOPOLOGIES)),
        ("infrastructureTopology", choice(&["HighlyAvailable", "SingleReplica"])),
        ("cpuPartitioning", choice(&["None", "AllNodes"])),
    ]);
    (spec, status)
}

fn network() -> (Value, Value) {
    let external = object(&[
        ("policy", object(&[("allowedCIDRs", list(text())), ("rejectedCIDRs", list(text()))])),
        ("autoAssignCIDRs", list(text())),
    ]);
    let spec = object(&[
        ("clusterNetwork", cluster_network()),
        ("serviceNetwork", list(cidr())),
        ("networkType", text()),
        ("externalIP", external),
        ("serviceNodePortRange", matching("^[0-9]{1,5}-[0-9]{1,5}$")),
        ("networkDiagnostics", raw()),
    ]);
    let status = object(&[
        ("clusterNetwork", cluster_network()),
        ("serviceNetwork", list(cidr())),
        ("networkType", text()),
        ("clusterNetworkMTU", number(0)),
        ("migration", raw()),
        ("conditions", conditions()),
    ]);
    (spec, status)
}

/// What operators of static pods add: how revisions are kept, and how far each node is.
fn static_pod(more: &[(&'static str, Value)]) -> (Value, Value) {
    let mut spec = operator_spec();
    spec.extend([
        ("forceRedeploymentReason", text()),
        ("failedRevisionLimit", json!({"type": "integer", "format": "int32"})),
        ("succeededRevisionLimit", json!({"type": "integer", "format": "int32"})),
    ]);
    spec.extend(more.iter().cloned());
    let node = object(&[
        ("nodeName", text()),
        ("nodeUID", text()),
        ("currentRevision", number(0)),
        ("targetRevision", number(0)),
        ("lastFailedRevision", number(0)),
        ("lastFailedTime", json!({"type": "string", "format": "date-time"})),
        ("lastFailedReason", text()),
        ("lastFailedCount", number(0)),
        ("lastFallbackCount", number(0)),
        ("lastFailedRevisionErrors", list(text())),
    ]);
    let mut status = operator_status();
    status.push(("latestAvailableRevisionReason", text()));
    status.push(("nodeStatuses", list_by(node, &["nodeName"])));
    (object(&spec), object(&status))
}

fn etcd_operator() -> (Value, Value) {
    static_pod(&[
        ("controlPlaneHardwareSpeed", choice(&["", "Standard", "Slower"])),
        (
            "backendQuotaGiB",
            json!({"type": "integer", "format": "int32", "minimum": 8, "maximum": 32, "default": 8,
            "x-kubernetes-validations": [{
                "rule": "self >= oldSelf", "message": "etcd backendQuotaGiB may not be decreased",
            }]}),
        ),
    ])
}

fn kube_apiserver_operator() -> (Value, Value) {
    static_pod(&[(
        "eventTTLMinutes",
        json!({"type": "integer", "format": "int32", "minimum": 5, "maximum": 180}),
    )])
}

fn kube_controller_manager_operator() -> (Value, Value) {
    static_pod(&[("useMoreSecureServiceCA", flag())])
}

fn kube_scheduler_operator() -> (Value, Value) {
    static_pod(&[])
}

fn api_server() -> (Value, Value) {
    const PROFILES: &[&str] = &["", "Default", "WriteRequestBodies", "AllRequestBodies", "None"];
    let named = object(&[("names", list(text())), ("servingCertificate", reference())]);
    let rule = object(&[("group", text()), ("profile", choice(PROFILES))]);
    let spec = object(&[
        ("servingCerts", object(&[("namedCertificates", list(named))])),
        ("clientCA", reference()),
        ("additionalCORSAllowedOrigins", list(text())),
        (
            "encryption",
            object(&[("type", choice(&["", "identity", "aescbc", "aesgcm", "KMS"])), ("kms", raw())]),
        ),
        ("tlsSecurityProfile", raw()),
        ("audit", object(&[("profile", choice(PROFILES)), ("customRules", list_by(rule, &["group"]))])),
    ]);
    (spec, raw())
}

fn network_operator() -> (Value, Value) {
    let ovn = object(&[
        ("mtu", number(0)),
        ("genevePort", number(1)),
        ("ipv4", object(&[("internalJoinSubnet", cidr()), ("internalTransitSwitchSubnet", cidr())])),
        ("ipv6", object(&[("internalJoinSubnet", cidr()), ("internalTransitSwitchSubnet", cidr())])),
        ("gatewayConfig", raw()),
        ("ipsecConfig", raw()),
        ("policyAuditConfig", raw()),
        ("egressIPConfig", raw()),
    ]);
    let mut spec = operator_spec();
    spec.extend([
        ("clusterNetwork", cluster_network()),
        ("serviceNetwork", list(cidr())),
        ("defaultNetwork", object(&[("type", text()), ("ovnKubernetesConfig", ovn)])),
        ("additionalNetworks", list(raw())),
        ("disableMultiNetwork", flag()),
        ("useMultiNetworkPolicy", flag()),
        ("deployKubeProxy", flag()),
        ("disableNetworkDiagnostics", flag()),
        ("kubeProxyConfig", raw()),
        ("exportNetworkFlows", raw()),
        ("migration", raw()),
    ]);
    (object(&spec), object(&operator_status()))
}

fn dns_operator() -> (Value, Value) {
    let policy = || choice(&["Random", "RoundRobin", "Sequential"]);
    let plugin = object(&[
        (
            "upstreams",
            json!({"type": "array", "items": text(), "maxItems": 15, "x-kubernetes-list-type": "atomic"}),
        ),
        ("policy", policy()),
        ("transportConfig", raw()),
        ("protocolStrategy", choice(&["TCP", ""])),
    ]);
    let zones = json!({"type": "array", "minItems": 1, "items": text(), "x-kubernetes-list-type": "atomic"});
    let server = object(&[("name", text()), ("zones", zones), ("forwardPlugin", plugin)]);
    let upstream = requiring(
        object(&[
            ("type", choice(&["", "SystemResolvConf", "Network"])),
            ("address", text()),
            ("port", json!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535})),
        ]),
        &["type"],
    );
    let resolvers = object(&[
        (
            "upstreams",
            json!({"type": "array", "items": upstream, "maxItems": 15, "x-kubernetes-list-type": "atomic"}),
        ),
        ("policy", policy()),
        ("transportConfig", raw()),
        ("protocolStrategy", choice(&["TCP", ""])),
    ]);
    let toleration = object(&[
        ("key", text()),
        ("operator", text()),
        ("value", text()),
        ("effect", text()),
        ("tolerationSeconds", counter()),
    ]);
    let labels = json!({"type": "object", "additionalProperties": {"type": "string"}});
    let seconds = || matching("^(0|([0-9]+(\\.[0-9]+)?(ns|us|µs|μs|ms|s|m|h))+)$");
    let spec = object(&[
        ("servers", list(server)),
        ("upstreamResolvers", resolvers),
        ("nodePlacement", object(&[("nodeSelector", labels), ("tolerations", list(toleration))])),
        ("managementState", matching("^(Managed|Unmanaged|Force|Removed)$")),
        ("operatorLogLevel", choice(&["Normal", "Debug", "Trace"])),
        ("logLevel", choice(&["Normal", "Debug", "Trace"])),
        ("cache", object(&[("positiveTTL", seconds()), ("negativeTTL", seconds())])),
    ]);
    let mut status = operator_status();
    status.extend([("clusterIP", text()), ("clusterDomain", text())]);
    (spec, object(&status))
}

fn operator_spec() -> Vec<(&'static str, Value)> {
    let level = || choice(&["", "Normal", "Debug", "Trace", "TraceAll"]);
    vec![
        ("managementState", matching("^(Managed|Unmanaged|Force|Removed)$")),
        ("logLevel", level()),
        ("operatorLogLevel", level()),
        ("unsupportedConfigOverrides", raw()),
        ("observedConfig", raw()),
    ]
}

fn operator_status() -> Vec<(&'static str, Value)> {
    let generation = object(&[
        ("group", text()),
        ("resource", text()),
        ("namespace", text()),
        ("name", text()),
        ("lastGeneration", counter()),
        ("hash", text()),
    ]);
    vec![
        ("observedGeneration", counter()),
        ("conditions", conditions()),
        ("version", text()),
        ("readyReplicas", number(0)),
        ("latestAvailableRevision", number(0)),
        ("generations", list(generation)),
    ]
}

fn dns() -> (Value, Value) {
    let zone = object(&[("id", text()), ("tags", raw())]);
    let spec = object(&[
        ("baseDomain", text()),
        ("publicZone", zone.clone()),
        ("privateZone", zone),
        ("platformSpec", object(&[("type", choice(PLATFORMS)), ("aws", raw())])),
    ]);
    (spec, raw())
}

fn proxy() -> (Value, Value) {
    let urls = || vec![("httpProxy", text()), ("httpsProxy", text()), ("noProxy", text())];
    let mut spec = urls();
    spec.extend([("readinessEndpoints", list(text())), ("trustedCA", reference())]);
    (object(&spec), object(&urls()))
}

fn feature_gate() -> (Value, Value) {
    let names = || list(text());
    let gates = || list(reference());
    let version =
        requiring(object(&[("version", text()), ("enabled", gates()), ("disabled", gates())]), &["version"]);
    let mut spec = object(&[
        ("featureSet", choice(FEATURE_SETS)),
        ("customNoUpgrade", object(&[("enabled", names()), ("disabled", names())])),
    ]);
    spec["x-kubernetes-validations"] = json!([{
        "rule": "!has(self.customNoUpgrade) || (has(self.featureSet) && self.featureSet == 'CustomNoUpgrade')",
        "message": "customNoUpgrade needs featureSet CustomNoUpgrade",
    }]);
    (spec, object(&[("featureGates", list_by(version, &["version"])), ("conditions", conditions())]))
}

fn ingress() -> (Value, Value) {
    let spec = object(&[
        ("domain", text()),
        ("appsDomain", text()),
        ("componentRoutes", list(raw())),
        ("requiredHSTSPolicies", list(raw())),
        ("loadBalancer", raw()),
    ]);
    let status = object(&[
        ("defaultPlacement", choice(&["", "ControlPlane", "Workers"])),
        ("componentRoutes", list(raw())),
    ]);
    (spec, status)
}

fn scheduler() -> (Value, Value) {
    let spec = object(&[
        ("mastersSchedulable", flag()),
        ("policy", reference()),
        ("profile", choice(&["", "LowNodeUtilization", "HighNodeUtilization", "NoScoring"])),
        ("profileCustomizations", raw()),
        ("defaultNodeSelector", text()),
    ]);
    (spec, raw())
}

fn image() -> (Value, Value) {
    let sources = object(&[
        ("insecureRegistries", list(text())),
        ("blockedRegistries", list(text())),
        ("allowedRegistries", list(text())),
        ("containerRuntimeSearchRegistries", list(text())),
    ]);
    let spec = object(&[
        ("allowedRegistriesForImport", list(object(&[("domainName", text()), ("insecure", flag())]))),
        ("externalRegistryHostnames", list(text())),
        ("additionalTrustedCA", reference()),
        ("registrySources", sources),
        ("imageStreamImportMode", choice(&["", "Legacy", "PreserveOriginal"])),
    ]);
    let status = object(&[("internalRegistryHostname", text()), ("externalRegistryHostnames", list(text()))]);
    (spec, status)
}

fn oauth() -> (Value, Value) {
    const KINDS: &[&str] = &[
        "BasicAuth",
        "GitHub",
        "GitLab",
        "Google",
        "HTPasswd",
        "Keystone",
        "LDAP",
        "OpenID",
        "RequestHeader",
    ];
    let mut provider = vec![
        ("name", text()),
        ("mappingMethod", choice(&["", "claim", "lookup", "add"])),
        ("type", choice(KINDS)),
        ("htpasswd", object(&[("fileData", reference())])),
    ];
    for kind in ["basicAuth", "github", "gitlab", "google", "keystone", "ldap", "openID", "requestHeader"] {
        provider.push((kind, raw()));
    }
    let spec = object(&[
        ("identityProviders", list(requiring(object(&provider), &["name", "type"]))),
        (
            "tokenConfig",
            object(&[
                ("accessTokenMaxAgeSeconds", number(0)),
                ("accessTokenInactivityTimeout", text()),
                ("accessTokenInactivityTimeoutSeconds", number(0)),
            ]),
        ),
        ("templates", raw()),
    ]);
    (spec, raw())
}

fn release() -> Value {
    object(&[
        ("architecture", text()),
        ("version", text()),
        ("image", text()),
        ("url", text()),
        ("channels", list(text())),
    ])
}

fn cluster_version() -> (Value, Value) {
    let set = || matching("^(None|v4\\.[0-9]{1,2}|vCurrent)$");
    let component = requiring(
        object(&[
            ("group", text()),
            ("kind", text()),
            ("namespace", text()),
            ("name", text()),
            ("unmanaged", flag()),
        ]),
        &["group", "kind", "name", "namespace", "unmanaged"],
    );
    let spec = requiring(
        object(&[
            ("clusterID", text()),
            ("channel", text()),
            ("upstream", text()),
            (
                "capabilities",
                object(&[("baselineCapabilitySet", set()), ("additionalEnabledCapabilities", list(text()))]),
            ),
            (
                "desiredUpdate",
                object(&[
                    ("architecture", text()),
                    ("version", text()),
                    ("image", text()),
                    ("force", flag()),
                ]),
            ),
            ("overrides", list(component)),
            ("signatureStores", list(object(&[("url", text()), ("ca", reference())]))),
        ]),
        &["clusterID"],
    );
    let entry = object(&[
        ("state", choice(&["Completed", "Partial"])),
        ("startedTime", text()),
        ("completionTime", json!({"type": "string", "nullable": true})),
        ("version", text()),
        ("image", text()),
        ("verified", flag()),
        ("acceptedRisks", text()),
    ]);
    let status = object(&[
        ("desired", release()),
        ("history", list(entry)),
        ("observedGeneration", counter()),
        ("versionHash", text()),
        (
            "capabilities",
            object(&[("enabledCapabilities", list(text())), ("knownCapabilities", list(text()))]),
        ),
        ("conditions", conditions()),
        ("availableUpdates", json!({"type": "array", "nullable": true, "items": release()})),
        ("conditionalUpdates", list(raw())),
    ]);
    (spec, status)
}

fn cluster_operator() -> (Value, Value) {
    let version = requiring(object(&[("name", text()), ("version", text())]), &["name", "version"]);
    let related = object(&[("group", text()), ("resource", text()), ("namespace", text()), ("name", text())]);
    let status = object(&[
        ("conditions", conditions()),
        ("versions", list(version)),
        ("relatedObjects", list(requiring(related, &["group", "name", "resource"]))),
        (
            "extension",
            json!({"nullable": true, "x-kubernetes-preserve-unknown-fields": true, "type": "object"}),
        ),
    ]);
    (object(&[]), status)
}

fn image_mirrors() -> (Value, Value) {
    let entry = object(&[
        ("source", text()),
        ("mirrors", json!({"type": "array", "items": text(), "x-kubernetes-list-type": "set"})),
        ("mirrorSourcePolicy", choice(&["NeverContactSource", "AllowContactingSource"])),
    ]);
    (object(&[("imageDigestMirrors", list(requiring(entry, &["source"])))]), raw())
}

fn machine_config() -> (Value, Value) {
    let spec = object(&[
        ("osImageURL", text()),
        ("baseOSExtensionsContainerImage", text()),
        ("config", about(raw(), "An Ignition config of version 3.")),
        ("kernelArguments", json!({"type": "array", "nullable": true, "items": text()})),
        ("extensions", json!({"type": "array", "nullable": true, "items": text()})),
        ("fips", flag()),
        ("kernelType", choice(&["", "default", "realtime", "64k-pages"])),
    ]);
    (spec, Value::Null)
}

fn machine_config_pool() -> (Value, Value) {
    let selector = || {
        object(&[
            ("matchLabels", json!({"type": "object", "additionalProperties": {"type": "string"}})),
            (
                "matchExpressions",
                list(requiring(
                    object(&[("key", text()), ("operator", text()), ("values", list(text()))]),
                    &["key", "operator"],
                )),
            ),
        ])
    };
    let configuration = || object(&[("name", text()), ("source", list(raw()))]);
    let spec = object(&[
        ("machineConfigSelector", selector()),
        ("nodeSelector", selector()),
        ("paused", flag()),
        (
            "maxUnavailable",
            json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ),
        ("configuration", configuration()),
        ("pinnedImageSets", list(reference())),
    ]);
    let mut status = vec![
        ("observedGeneration", counter()),
        ("configuration", configuration()),
        ("conditions", conditions()),
        ("certExpirys", list(object(&[("bundle", text()), ("subject", text()), ("expiry", text())]))),
    ];
    for count in [
        "machineCount",
        "updatedMachineCount",
        "readyMachineCount",
        "unavailableMachineCount",
        "degradedMachineCount",
    ] {
        status.push((count, number(0)));
    }
    (spec, object(&status))
}

/// One kind.
struct Kind {
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    about: &'static str,
    /// Spec, and status if it has one.
    schema: fn() -> (Value, Value),
    columns: &'static [(&'static str, &'static str)],
}

const CONFIG: &str = "config.openshift.io";
/// Columns of operators that roll out revisions.
const REVISIONS: &[(&str, &str)] = &[
    ("Revision", ".status.latestAvailableRevision"),
    ("Available", ".status.conditions[?(@.type==\"StaticPodsAvailable\")].status"),
    ("Progressing", ".status.conditions[?(@.type==\"NodeInstallerProgressing\")].status"),
];

const KINDS: &[Kind] = &[
    Kind {
        group: CONFIG,
        kind: "Infrastructure",
        plural: "infrastructures",
        short: &[],
        about: "Where the cluster runs, and how it is reached.",
        schema: infrastructure,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "Network",
        plural: "networks",
        short: &[],
        about: "The cluster's networks.",
        schema: network,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "DNS",
        plural: "dnses",
        short: &[],
        about: "The domain that the cluster's names stand below.",
        schema: dns,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "Proxy",
        plural: "proxies",
        short: &[],
        about: "The proxy for requests that leave the cluster.",
        schema: proxy,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "FeatureGate",
        plural: "featuregates",
        short: &[],
        about: "Which features are switched on.",
        schema: feature_gate,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "Ingress",
        plural: "ingresses",
        short: &[],
        about: "The domain of routes, and where routers run.",
        schema: ingress,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "Scheduler",
        plural: "schedulers",
        short: &[],
        about: "How pods are spread over nodes.",
        schema: scheduler,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "APIServer",
        plural: "apiservers",
        short: &[],
        about: "How the API servers serve: certificates, audit, encryption.",
        schema: api_server,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "Image",
        plural: "images",
        short: &[],
        about: "Which registries are trusted, and for what.",
        schema: image,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "OAuth",
        plural: "oauths",
        short: &[],
        about: "Who vouches for users.",
        schema: oauth,
        columns: &[],
    },
    Kind {
        group: CONFIG,
        kind: "ClusterVersion",
        plural: "clusterversions",
        short: &[],
        about: "The release that the cluster runs and the one that it goes to.",
        schema: cluster_version,
        columns: &[
            ("Version", ".status.history[?(@.state==\"Completed\")].version"),
            ("Available", ".status.conditions[?(@.type==\"Available\")].status"),
            ("Progressing", ".status.conditions[?(@.type==\"Progressing\")].status"),
            ("Status", ".status.conditions[?(@.type==\"Progressing\")].message"),
        ],
    },
    Kind {
        group: CONFIG,
        kind: "ClusterOperator",
        plural: "clusteroperators",
        short: &["co"],
        about: "How one operator is doing.",
        schema: cluster_operator,
        columns: &[
            ("Version", ".status.versions[?(@.name==\"operator\")].version"),
            ("Available", ".status.conditions[?(@.type==\"Available\")].status"),
            ("Progressing", ".status.conditions[?(@.type==\"Progressing\")].status"),
            ("Degraded", ".status.conditions[?(@.type==\"Degraded\")].status"),
        ],
    },
    Kind {
        group: CONFIG,
        kind: "ImageDigestMirrorSet",
        plural: "imagedigestmirrorsets",
        short: &["idms"],
        about: "Mirrors for images named by digest.",
        schema: image_mirrors,
        columns: &[],
    },
    Kind {
        group: "operator.openshift.io",
        kind: "DNS",
        plural: "dnses",
        short: &[],
        about: "How the DNS operator is to work.",
        schema: dns_operator,
        columns: &[],
    },
    Kind {
        group: "operator.openshift.io",
        kind: "Etcd",
        plural: "etcds",
        short: &[],
        about: "How the etcd operator is to work, and how far it is.",
        schema: etcd_operator,
        columns: REVISIONS,
    },
    Kind {
        group: "operator.openshift.io",
        kind: "KubeAPIServer",
        plural: "kubeapiservers",
        short: &[],
        about: "How the kube-apiserver operator is to work, and how far it is.",
        schema: kube_apiserver_operator,
        columns: REVISIONS,
    },
    Kind {
        group: "operator.openshift.io",
        kind: "KubeControllerManager",
        plural: "kubecontrollermanagers",
        short: &[],
        about: "How the kube-controller-manager operator is to work, and how far it is.",
        schema: kube_controller_manager_operator,
        columns: REVISIONS,
    },
    Kind {
        group: "operator.openshift.io",
        kind: "KubeScheduler",
        plural: "kubeschedulers",
        short: &[],
        about: "How the kube-scheduler operator is to work, and how far it is.",
        schema: kube_scheduler_operator,
        columns: REVISIONS,
    },
    Kind {
        group: "operator.openshift.io",
        kind: "Network",
        plural: "networks",
        short: &[],
        about: "How the network operator is to work.",
        schema: network_operator,
        columns: &[],
    },
    Kind {
        group: "machineconfiguration.openshift.io",
        kind: "MachineConfig",
        plural: "machineconfigs",
        short: &["mc"],
        about: "A part of a machine's configuration.",
        schema: machine_config,
        columns: &[("IgnitionVersion", ".spec.config.ignition.version")],
    },
    Kind {
        group: "machineconfiguration.openshift.io",
        kind: "MachineConfigPool",
        plural: "machineconfigpools",
        short: &["mcp"],
        about: "Machines that share a configuration.",
        schema: machine_config_pool,
        columns: &[
            ("Config", ".status.configuration.name"),
            ("Updated", ".status.conditions[?(@.type==\"Updated\")].status"),
            ("Updating", ".status.conditions[?(@.type==\"Updating\")].status"),
            ("Degraded", ".status.conditions[?(@.type==\"Degraded\")].status"),
        ],
    },
];

/// A kind's definition.
#[derive(Clone, Debug)]
pub struct Definition {
    pub group: &'static str,
    pub plural: &'static str,
    pub object: Value,
}

/// Every definition.
pub fn all() -> Vec<Definition> {
    let one = |kind: &Kind| Definition { group: kind.group, plural: kind.plural, object: definition(kind) };
    KINDS.iter().map(one).collect()
}

/// The plural of a kind that is defined here.
pub fn plural_of(group: &str, kind: &str) -> Option<&'static str> {
    KINDS.iter().find(|known| known.group == group && known.kind == kind).map(|known| known.plural)
}

fn definition(kind: &Kind) -> Value {
    let (spec, status) = (kind.schema)();
    let has_status = !status.is_null();
    let mut root = vec![
        ("apiVersion", text()),
        ("kind", text()),
        ("metadata", json!({"type": "object"})),
        ("spec", spec),
    ];
    if has_status {
        root.push(("status", status));
    }
    let root = about(requiring(object(&root), &["spec"]), kind.about);
    let mut version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": root},
    });
    if has_status {
        version["subresources"] = json!({"status": {}});
    }
    if !kind.columns.is_empty() {
        let columns: Vec<Value> = kind
            .columns
            .iter()
            .map(|(name, path)| json!({"name": name, "type": "string", "jsonPath": path}))
            .collect();
        version["additionalPrinterColumns"] = Value::Array(columns);
    }
    let mut names = json!({
        "kind": kind.kind, "listKind": format!("{}List", kind.kind),
        "plural": kind.plural, "singular": kind.kind.to_lowercase(),
    });
    if !kind.short.is_empty() {
        names["shortNames"] = json!(kind.short);
    }
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
        "spec": {"group": kind.group, "names": names, "scope": "Cluster", "versions": [version]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kubernetes refuses schemas that are not structural: every node has a type or says that it keeps everything.
    fn check_structural(schema: &Value, path: &str) {
        let keeps = schema["x-kubernetes-preserve-unknown-fields"] == true;
        let either = schema["x-kubernetes-int-or-string"] == true;
        assert!(schema["type"].is_string() || keeps || either, "{path} has no type");
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            check_structural(inner, &format!("{path}.{name}"));
        }
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().unwrap();
            assert!(
                schema["properties"].get(name).is_some(),
                "{path} requires {name}, which it does not have"
            );
        }
        if schema["type"] == "array" {
            check_structural(&schema["items"], &format!("{path}[]"));
        }
    }

    #[test]
    fn every_schema_is_structural() {
        for crd in all() {
            check_structural(&crd.object["spec"]["versions"][0]["schema"]["openAPIV3Schema"], crd.plural);
        }
    }
}
