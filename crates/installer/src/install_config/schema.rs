//! Every field of install-config.yaml, as data: type, default, choices, meaning.
//!
//! Unknown fields, wrong types and unsupported choices are found from this table, and `kelson explain` prints it.

use serde_json::Value;

use crate::problem::{Class, Problems};

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A string.
    Text,
    /// A whole number.
    Number,
    /// true or false.
    Flag,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An object with these fields.
    Object(&'static [Field]),
    /// A list.
    List(&'static Kind),
    /// An object with free keys and string values.
    Labels,
    /// Anything; whoever reads it checks it.
    Any,
}

/// One field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What stands if nothing is given; empty for nothing.
    pub default: &'static str,
    /// What it means.
    pub doc: &'static str,
}

use Kind::{Any, Choice, Flag, Labels, List, Number, Object, Text};

const fn field(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Field {
    Field { name, kind, default, doc }
}

/// Architectures of machines.
pub const ARCHITECTURES: &[&str] = &["amd64", "arm64", "ppc64le", "s390x"];
/// Feature sets besides the default one.
pub const FEATURE_SETS: &[&str] = &["", "TechPreviewNoUpgrade", "DevPreviewNoUpgrade", "CustomNoUpgrade"];
/// Sets of capabilities to start from.
pub const CAPABILITY_SETS: &[&str] =
    &["None", "v4.11", "v4.12", "v4.13", "v4.14", "v4.15", "v4.16", "v4.17", "v4.18", "vCurrent"];
/// Capabilities that can be switched on one by one.
pub const CAPABILITIES: &[&str] = &[
    "Build",
    "CSISnapshot",
    "CloudControllerManager",
    "CloudCredential",
    "Console",
    "DeploymentConfig",
    "ImageRegistry",
    "Ingress",
    "Insights",
    "MachineAPI",
    "NodeTuning",
    "OperatorLifecycleManager",
    "OperatorLifecycleManagerV1",
    "Storage",
    "baremetal",
    "marketplace",
    "openshift-samples",
];
/// Platforms that this installer makes assets for.
pub const PLATFORMS: &[&str] = &["none", "baremetal", "external", "local"];

const CREDENTIALS: Field = field(
    "credentials",
    List(&Object(&[
        field("hostName", Text, "", "node that the controller can switch off"),
        field("address", Text, "", "URL of its management controller"),
        field("username", Text, "", "user of the management controller"),
        field("password", Text, "", "password of the management controller"),
        field(
            "certificateVerification",
            Choice(&["Enabled", "Disabled"]),
            "Enabled",
            "whether the controller's certificate is checked",
        ),
    ])),
    "",
    "how to switch off a control plane node that does not answer, one entry per node",
);

const POOL: &[Field] = &[
    field("name", Text, "", "role of the machines: master, worker or arbiter"),
    field("replicas", Number, "3", "how many machines"),
    field("architecture", Choice(ARCHITECTURES), "amd64", "instruction set of the machines"),
    field("hyperthreading", Choice(&["Enabled", "Disabled"]), "Enabled", "simultaneous multithreading"),
    field("platform", Any, "{}", "settings of this pool that only one platform knows"),
    field("fencing", Object(&[CREDENTIALS]), "", "for a control plane of two machines without arbiter"),
];

const NETWORK_ENTRY: Kind = Object(&[field("cidr", Text, "", "block of addresses in CIDR notation")]);

const CLUSTER_NETWORK_ENTRY: Kind = Object(&[
    field("cidr", Text, "", "block of addresses in CIDR notation"),
    field("hostPrefix", Number, "23 (IPv4), 64 (IPv6)", "size of the part that each node gets"),
    field("hostSubnetLength", Number, "", "deprecated: host bits of each node's part; use hostPrefix"),
]);

const NETWORKING: &[Field] = &[
    field("networkType", Text, "OVNKubernetes", "pod network provider"),
    field("machineNetwork", List(&NETWORK_ENTRY), "10.0.0.0/16", "where the machines have their addresses"),
    field(
        "clusterNetwork",
        List(&CLUSTER_NETWORK_ENTRY),
        "10.128.0.0/14 with hostPrefix 23",
        "where pods get their addresses",
    ),
    field(
        "serviceNetwork",
        List(&Text),
        "172.30.0.0/16",
        "where Services get their addresses; the first is the API's, the tenth the cluster DNS's",
    ),
    field(
        "clusterNetworkMTU",
        Number,
        "",
        "packet size of the pod network; only where the platform fixes it",
    ),
    field(
        "ovnKubernetesConfig",
        Object(&[field(
            "ipv4",
            Object(&[field(
                "internalJoinSubnet",
                Text,
                "100.64.0.0/16",
                "addresses between the routers inside each node; never seen outside",
            )]),
            "",
            "IPv4 settings of the pod network provider",
        )]),
        "",
        "settings of the pod network provider",
    ),
    field("machineCIDR", Text, "", "deprecated: use machineNetwork"),
    field("type", Text, "", "deprecated: use networkType"),
    field("serviceCIDR", Text, "", "deprecated: use serviceNetwork"),
    field("clusterNetworks", List(&CLUSTER_NETWORK_ENTRY), "", "deprecated: use clusterNetwork"),
];

const BAREMETAL_HOST: Kind = Object(&[
    field("name", Text, "", "name of the machine"),
    field("role", Choice(&["", "master", "worker", "arbiter"]), "", "pool that the machine joins"),
    field(
        "bmc",
        Object(&[
            field("address", Text, "", "URL of the management controller"),
            field("username", Text, "", "its user"),
            field("password", Text, "", "its password"),
            field(
                "disableCertificateVerification",
                Flag,
                "false",
                "whether to believe any certificate of it",
            ),
        ]),
        "",
        "management controller of the machine",
    ),
    field("bootMACAddress", Text, "", "hardware address of the interface it boots from"),
    field("hardwareProfile", Text, "default", "deprecated: profile of the machine"),
    field("rootDeviceHints", Any, "", "how to find the disk to install to"),
    field("bootMode", Choice(&["", "UEFI", "UEFISecureBoot", "legacy"]), "UEFI", "firmware mode"),
    field("networkConfig", Any, "", "network state of the machine"),
]);

const BAREMETAL: &[Field] = &[
    field("apiVIPs", List(&Text), "", "addresses of the API, one per family, in the machine network"),
    field("ingressVIPs", List(&Text), "", "addresses of the ingress routers, one per family"),
    field("apiVIP", Text, "", "deprecated: use apiVIPs"),
    field("ingressVIP", Text, "", "deprecated: use ingressVIPs"),
    field("hosts", List(&BAREMETAL_HOST), "", "the machines"),
    field("libvirtURI", Text, "qemu:///system", "where the bootstrap machine is made"),
    field("externalBridge", Text, "baremetal", "bridge to the machine network"),
    field("provisioningBridge", Text, "provisioning", "bridge to the provisioning network"),
    field(
        "provisioningNetwork",
        Choice(&["Managed", "Unmanaged", "Disabled"]),
        "Managed",
        "who runs the network that machines boot from",
    ),
    field("provisioningNetworkCIDR", Text, "172.22.0.0/24", "addresses of the provisioning network"),
    field("provisioningDHCPRange", Text, ".10 to .254", "addresses given to booting machines: first,last"),
    field("bootstrapProvisioningIP", Text, ".2", "address of the bootstrap machine there"),
    field("clusterProvisioningIP", Text, ".3", "address of the provisioning services there"),
    field(
        "loadBalancer",
        Object(&[field(
            "type",
            Choice(&["OpenShiftManagedDefault", "UserManaged"]),
            "OpenShiftManagedDefault",
            "who runs the load balancer of the API",
        )]),
        "",
        "the load balancer of the API",
    ),
];

const EXTERNAL: &[Field] = &[
    field("platformName", Text, "Unknown", "name of the provider, for information"),
    field(
        "cloudControllerManager",
        Choice(&["", "External"]),
        "",
        "whether nodes wait for a cloud controller that you install",
    ),
];

const LOCAL: &[Field] = &[
    field("memoryMiB", Number, "2048", "memory of each machine made on this host"),
    field("cpus", Number, "2", "processors of each machine"),
    field("bridgeCIDR", Text, "the first machine network", "addresses of the bridge that joins the machines"),
];

const IMAGE_SOURCES: Kind = List(&Object(&[
    field("source", Text, "", "repository that images are named after"),
    field("mirrors", List(&Text), "", "repositories that hold copies"),
    field(
        "sourcePolicy",
        Choice(&["", "NeverContactSource", "AllowContactingSource"]),
        "AllowContactingSource",
        "whether the source itself may be asked",
    ),
]));

/// The whole file.
pub const ROOT: &[Field] = &[
    field("apiVersion", Text, "", "version of this format: v1"),
    field(
        "metadata",
        Object(&[
            field("name", Text, "", "name of the cluster; with baseDomain it makes the cluster domain"),
            field("annotations", Labels, "", "notes; not used"),
            field("labels", Labels, "", "labels; not used"),
            field("creationTimestamp", Any, "", "not used"),
        ]),
        "",
        "name of the cluster",
    ),
    field("baseDomain", Text, "", "DNS domain below which the cluster's names stand"),
    field("controlPlane", Object(POOL), "3 replicas named master", "machines of the control plane"),
    field("compute", List(&Object(POOL)), "one pool named worker with 3 replicas", "machines for workloads"),
    field(
        "arbiter",
        Object(POOL),
        "",
        "a small machine that completes the quorum of a two-node control plane",
    ),
    field("networking", Object(NETWORKING), "", "the networks of the cluster; they must not overlap"),
    field(
        "platform",
        Object(&[
            field("none", Object(&[]), "", "you make the machines, load balancer and DNS"),
            field(
                "baremetal",
                Object(BAREMETAL),
                "",
                "machines with management controllers, addresses that move",
            ),
            field("external", Object(EXTERNAL), "", "a provider whose integration you install yourself"),
            field("local", Object(LOCAL), "", "machines made on this host out of namespaces"),
        ]),
        "",
        "where the machines are: exactly one",
    ),
    field("pullSecret", Text, "", "credentials for image registries, as the JSON of a docker config"),
    field("sshKey", Text, "", "public keys that may log in to the machines as core, one per line"),
    field("additionalTrustBundle", Text, "", "certificates, in PEM, that every machine is to trust"),
    field(
        "additionalTrustBundlePolicy",
        Choice(&["Proxyonly", "Always"]),
        "Proxyonly",
        "whether the bundle is used without a proxy too",
    ),
    field(
        "proxy",
        Object(&[
            field("httpProxy", Text, "", "URL of the proxy for http"),
            field("httpsProxy", Text, "", "URL of the proxy for https"),
            field(
                "noProxy",
                Text,
                "",
                "names, addresses and networks to reach directly, separated by commas",
            ),
        ]),
        "",
        "proxy for the cluster's own requests",
    ),
    field("imageDigestSources", IMAGE_SOURCES, "", "mirrors of repositories, for images named by digest"),
    field("imageContentSources", IMAGE_SOURCES, "", "deprecated: use imageDigestSources"),
    field("publish", Choice(&["External", "Internal", "Mixed"]), "External", "who may reach the API"),
    field("fips", Flag, "false", "whether only validated cryptography is used"),
    field("featureSet", Choice(FEATURE_SETS), "", "set of features to switch on"),
    field("featureGates", List(&Text), "", "Name=true or Name=false, with featureSet CustomNoUpgrade"),
    field(
        "capabilities",
        Object(&[
            field("baselineCapabilitySet", Choice(CAPABILITY_SETS), "vCurrent", "set to start from"),
            field(
                "additionalEnabledCapabilities",
                List(&Choice(CAPABILITIES)),
                "",
                "capabilities besides those of the set",
            ),
        ]),
        "",
        "optional parts of the cluster",
    ),
    field(
        "credentialsMode",
        Choice(&["", "Mint", "Passthrough", "Manual"]),
        "",
        "how cloud credentials are made; clouds only",
    ),
    field(
        "cpuPartitioningMode",
        Choice(&["None", "AllNodes"]),
        "None",
        "whether platform processes can be bound to processors of their own",
    ),
    field(
        "bootstrapInPlace",
        Object(&[field("installationDisk", Text, "", "disk to install to")]),
        "",
        "a single node that bootstraps itself",
    ),
    field(
        "osImageStream",
        Choice(&["", "rhel-9", "rhel-10", "centos-10"]),
        "",
        "operating system of the machines",
    ),
];

/// Checks types, names and choices of a whole document.
pub fn check(document: &Value, problems: &mut Problems) {
    check_value(document, &Object(ROOT), "", problems);
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn check_value(value: &Value, kind: &Kind, path: &str, problems: &mut Problems) {
    let wanted = match (kind, value) {
        // YAML's empty value is an absent one.
        (_, Value::Null) | (Any, _) => return,
        (Text, Value::String(_)) | (Flag, Value::Bool(_)) => return,
        (Number, Value::Number(number)) if number.is_i64() => return,
        (Choice(choices), Value::String(text)) => {
            if !choices.contains(&text.as_str()) {
                let shown: Vec<&str> = choices.iter().copied().filter(|c| !c.is_empty()).collect();
                problems.unsupported(path, text, &shown);
            }
            return;
        }
        (Object(fields), Value::Object(object)) => {
            for (name, value) in object {
                let inner = join(path, name);
                match fields.iter().find(|field| field.name == name) {
                    Some(field) => check_value(value, &field.kind, &inner, problems),
                    None => problems.add(&inner, Class::Unknown, "", unknown_remedy(name, fields)),
                }
            }
            return;
        }
        (List(element), Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                check_value(value, element, &format!("{path}[{index}]"), problems);
            }
            return;
        }
        (Labels, Value::Object(object)) if object.values().all(Value::is_string) => return,
        (Text | Choice(_), _) => "a text",
        (Number, _) => "a whole number",
        (Flag, _) => "true or false",
        (Object(_), _) => "an object",
        (List(_), _) => "a list",
        (Labels, _) => "an object of texts",
    };
    let shown = match value {
        Value::Array(_) | Value::Object(_) => String::new(),
        // Secrets are texts too, so only numbers and flags are repeated.
        Value::String(_) => String::new(),
        other => other.to_string(),
    };
    problems.invalid(if path.is_empty() { "." } else { path }, shown, format!("must be {wanted}"));
}

/// Names the field that was probably meant.
fn unknown_remedy(name: &str, fields: &[Field]) -> String {
    let near = fields
        .iter()
        .map(|field| (distance(&name.to_lowercase(), &field.name.to_lowercase()), field.name))
        .min()
        .filter(|(distance, known)| *distance <= 2 || known.to_lowercase().contains(&name.to_lowercase()));
    match near {
        Some((_, known)) => format!("remove it, or did you mean {known}?"),
        None => "remove it; `kelson explain install-config` lists the fields".to_owned(),
    }
}

/// Edits between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut previous = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = previous + usize::from(x != *y);
            previous = row[j + 1];
            row[j + 1] = change.min(previous + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
