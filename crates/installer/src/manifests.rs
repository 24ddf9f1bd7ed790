//! Objects that the cluster is born with: manifests/ for what describes it, openshift/ for what users often change.
//!
//! One row per file. A row whose function returns nothing is not written.

use ::release::crds;
use serde_json::{Value, json};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::graph::{AssetError, AssetFile, Files, Inputs};
use crate::ignition_configs;
use crate::scene::Scene;
use crate::tls;

type Make = fn(&Scene<'_>) -> Result<Option<Value>, AssetError>;

/// A file and how it is made.
pub struct Row {
    /// Path below the directory.
    pub path: &'static str,
    /// Whether only its owner may read it.
    secret: bool,
    make: Make,
}

const fn row(path: &'static str, make: Make) -> Row {
    Row { path, secret: false, make }
}

const fn secret(path: &'static str, make: Make) -> Row {
    Row { path, secret: true, make }
}

/// Namespaces that must be there before their operators are.
const NAMESPACES: &[&str] = &[
    "openshift-config",
    "openshift-config-managed",
    "openshift-etcd",
    "openshift-etcd-operator",
    "openshift-kube-apiserver",
    "openshift-kube-apiserver-operator",
    "openshift-kube-controller-manager",
    "openshift-kube-controller-manager-operator",
    "openshift-kube-scheduler",
    "openshift-kube-scheduler-operator",
    "openshift-cluster-version",
    "openshift-machine-api",
    "openshift-machine-config-operator",
    "openshift-infra",
    "openshift-node",
];

/// manifests/, in the order in which they are applied.
pub const CLUSTER: &[Row] = &[
    row("manifests/01_namespaces.yaml", namespaces),
    row("manifests/02_rbac-node-bootstrapper.yaml", |_| {
        Ok(Some(bind_bootstrapper("system:node-bootstrapper")))
    }),
    row("manifests/02_rbac-bootstrapper-proxier.yaml", |_| {
        Ok(Some(bind_bootstrapper("system:node-proxier")))
    }),
    row("manifests/02_rbac-kube-proxy.yaml", |_| {
        Ok(Some(bind_user("kelson:kube-proxy", "system:kube-proxy", "system:node-proxier")))
    }),
    row("manifests/02_rbac-node-renewal.yaml", |_| Ok(Some(node_renewal()))),
    row("manifests/02_rbac-kubelet-api.yaml", |_| {
        Ok(Some(bind_user(
            "kelson:kube-apiserver-to-kubelet",
            "system:kube-apiserver",
            "system:kubelet-api-admin",
        )))
    }),
    row("manifests/02_rbac-admin.yaml", |_| {
        Ok(Some(bind_user("kelson:cluster-admin", "system:admin", "cluster-admin")))
    }),
    row("manifests/0000_10_machine-api_01_machine.crd.yaml", |scene| Ok(machine_definition(scene))),
    row("manifests/cluster-infrastructure-02-config.yml", infrastructure),
    row("manifests/cluster-network-02-config.yml", network_config),
    row("manifests/cluster-network-03-config.yml", network_operator),
    row("manifests/cluster-dns-02-config.yml", dns),
    row("manifests/cluster-proxy-01-config.yaml", proxy),
    row("manifests/cluster-ingress-02-config.yml", ingress),
    row("manifests/cluster-scheduler-02-config.yml", scheduler),
    row("manifests/cluster-image-02-config.yml", |_| Ok(Some(config_object("Image", json!({}))))),
    row("manifests/cluster-oauth-02-config.yml", oauth),
    row("manifests/cvo-overrides.yaml", cluster_version),
    row("manifests/cluster-config.yaml", cluster_config),
    row("manifests/etcd-endpoints.yaml", etcd_endpoints),
    secret("manifests/etcd-signer-secret.yaml", |scene| {
        tls_secret(scene, "openshift-etcd", "etcd-signer", "etcd-signer")
    }),
    secret("manifests/kube-apiserver-operator-signer-secrets.yaml", api_server_signers),
    row("manifests/openshift-config-client-ca-configmaps.yaml", client_authorities),
    secret("manifests/csr-signer-secret.yaml", |scene| {
        tls_secret(scene, KCM_OPERATOR, "csr-signer", "kubelet-signer")
    }),
    secret("manifests/service-account-key-secrets.yaml", service_account_keys),
    row("manifests/sa-token-signing-certs-configmap.yaml", |scene| {
        let key = scene.text(&tls::asset_name("service-account"), "tls/service-account.pub")?;
        Ok(Some(config_map(MANAGED, "sa-token-signing-certs", "service-account-001.pub", key)))
    }),
    row("manifests/kube-system-configmap-root-ca.yaml", |scene| {
        Ok(Some(config_map("kube-system", "root-ca", "ca.crt", scene.certificate("root-ca")?)))
    }),
    row("manifests/machine-config-server-ca-configmap.yaml", |scene| {
        Ok(Some(config_map(MCO, "machine-config-server-ca", "ca-bundle.crt", scene.certificate("root-ca")?)))
    }),
    secret("manifests/machine-config-server-ca-secret.yaml", |scene| {
        tls_secret(scene, MCO, "machine-config-server-ca", "root-ca")
    }),
    secret("manifests/machine-config-server-tls-secret.yaml", |scene| {
        tls_secret(scene, MCO, "machine-config-server-tls", "machine-config-server")
    }),
    secret("manifests/ingress-default-certificate-secret.yaml", |scene| {
        tls_secret(scene, "openshift-config-managed", "router-certs-default", "ingress")
    }),
    secret("manifests/openshift-config-secret-pull-secret.yaml", pull_secret),
    row("manifests/user-ca-bundle-config.yaml", trust_bundle),
    row("manifests/image-digest-mirror-set.yaml", image_mirrors),
];

/// openshift/.
pub const OPENSHIFT: &[Row] = &[
    row("openshift/99_feature-gate.yaml", feature_gate),
    secret("openshift/99_kubeadmin-password-secret.yaml", kubeadmin),
    secret("openshift/99_openshift-cluster-api_master-user-data-secret.yaml", |scene| {
        user_data(scene, "master")
    }),
    secret("openshift/99_openshift-cluster-api_worker-user-data-secret.yaml", |scene| {
        user_data(scene, "worker")
    }),
    row("openshift/99_openshift-machineconfig_99-master-ssh.yaml", |scene| Ok(ssh_config(scene, "master"))),
    row("openshift/99_openshift-machineconfig_99-worker-ssh.yaml", |scene| Ok(ssh_config(scene, "worker"))),
    row("openshift/99_openshift-machineconfig_99-master-fips.yaml", |scene| Ok(fips_config(scene, "master"))),
    row("openshift/99_openshift-machineconfig_99-worker-fips.yaml", |scene| Ok(fips_config(scene, "worker"))),
    row("openshift/99_openshift-machineconfig_99-master-disable-hyperthreading.yaml", |scene| {
        Ok(hyperthreading_config(scene, "master"))
    }),
    row("openshift/99_openshift-machineconfig_99-worker-disable-hyperthreading.yaml", |scene| {
        Ok(hyperthreading_config(scene, "worker"))
    }),
    row("openshift/99_openshift-cluster-api_machines.yaml", |scene| Ok(machines(scene))),
    row("openshift/openshift-install-manifests.yaml", |scene| {
        Ok(Some(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "openshift-install-manifests", "namespace": "openshift-config"},
            "data": {"version": scene.release.version, "invoker": "user"},
        })))
    }),
];

const MCO: &str = "openshift-machine-config-operator";
const KCM_OPERATOR: &str = "openshift-kube-controller-manager-operator";
const CONFIG: &str = "openshift-config";
const MANAGED: &str = "openshift-config-managed";

/// Signers that the API servers' operator goes on signing with: the name of the Secret, and of the certificate.
const API_SERVER_SIGNERS: &[(&str, &str)] = &[
    ("localhost-serving-signer", "kube-apiserver-localhost-signer"),
    ("service-network-serving-signer", "kube-apiserver-service-network-signer"),
    ("loadbalancer-serving-signer", "kube-apiserver-lb-signer"),
    ("kube-apiserver-to-kubelet-signer", "kube-apiserver-to-kubelet-signer"),
    ("aggregator-client-signer", "aggregator-signer"),
    ("kube-control-plane-signer", "kube-control-plane-signer"),
];

/// Bundles that operators begin with: namespace and name of the ConfigMap, and whose certificate it holds.
const AUTHORITIES: &[(&str, &str, &str)] = &[
    (CONFIG, "admin-kubeconfig-client-ca", "admin-kubeconfig-signer"),
    (CONFIG, "kubelet-bootstrap-kubeconfig-ca", "kubelet-bootstrap-kubeconfig-signer"),
    (CONFIG, "initial-kube-apiserver-server-ca", "kube-apiserver-server-ca"),
    (CONFIG, "etcd-ca-bundle", "etcd-ca"),
    (MANAGED, "csr-controller-ca", "kubelet-signer"),
];

/// Assets that manifests/ is made from besides a scene.
pub fn cluster_parents() -> Vec<String> {
    let own = ["root-ca", "machine-config-server", "ingress", "etcd-signer", "kubelet-signer"];
    let keys = ["service-account", "bound-service-account-signing-key"];
    let signers = API_SERVER_SIGNERS.iter().map(|(_, row)| *row);
    let authorities = AUTHORITIES.iter().map(|(.., row)| *row);
    let mut names: Vec<&str> = own.into_iter().chain(keys).chain(signers).chain(authorities).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(tls::asset_name).collect()
}

/// Assets that openshift/ is made from besides a scene.
pub fn openshift_parents() -> Vec<String> {
    vec!["kubeadmin".to_owned(), tls::asset_name("root-ca")]
}

/// Writes the rows, and the CRDs first.
pub fn generate_cluster(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let mut files = generate(CLUSTER, inputs)?;
    for crd in crds::all() {
        let path = format!("manifests/00_crd_{}.{}.yaml", crd.plural, crd.group);
        files.push(AssetFile::public(path, to_yaml(&crd.object)?));
    }
    Ok(files)
}

/// Writes the rows.
pub fn generate_openshift(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    generate(OPENSHIFT, inputs)
}

fn generate(rows: &[Row], inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let mut files = Files::new();
    for row in rows {
        if let Some(value) = (row.make)(&scene)? {
            files.push(AssetFile {
                path: row.path.to_owned(),
                content: to_yaml(&value)?,
                secret: row.secret,
            });
        }
    }
    Ok(files)
}

/// YAML; a list of objects becomes a file of several documents.
pub fn to_yaml(value: &Value) -> Result<Vec<u8>, AssetError> {
    let documents = match value {
        Value::Array(list) => list.iter().map(serde_yaml_ng::to_string).collect::<Result<Vec<_>, _>>()?,
        one => vec![serde_yaml_ng::to_string(one)?],
    };
    Ok(documents.join("---\n").into_bytes())
}

fn namespaces(_: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let namespace = |name: &&str| {
        json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": name,
                // Nothing but the control plane runs in these, on every node that may carry it.
                "annotations": {"openshift.io/node-selector": "", "workload.openshift.io/allowed": "management"},
                "labels": {"openshift.io/run-level": "0", "pod-security.kubernetes.io/enforce": "privileged"},
            },
        })
    };
    Ok(Some(Value::Array(NAMESPACES.iter().map(namespace).collect())))
}

fn bind(name: &str, subject: Value, role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

fn bind_user(name: &str, user: &str, role: &str) -> Value {
    bind(name, json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}), role)
}

/// Machines join with this identity, and their first service proxy runs with it.
fn bind_bootstrapper(role: &str) -> Value {
    let name = format!("system-bootstrap-{}", role.trim_start_matches("system:"));
    bind_user(&name, pki::table::BOOTSTRAPPER_NAME, role)
}

/// Nodes renew their own certificates without anyone's approval.
fn node_renewal() -> Value {
    let subject = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"});
    bind(
        "system-bootstrap-node-renewal",
        subject,
        "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
    )
}

fn config_object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": {"name": "cluster"}, "spec": spec})
}

fn config_map(namespace: &str, name: &str, key: &str, value: String) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": {key: value},
    })
}

fn secret_object(namespace: &str, name: &str, kind: &str, data: &[(&str, String)]) -> Value {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), json!(STANDARD.encode(value)))).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "type": kind, "data": data,
    })
}

fn tls_secret(
    scene: &Scene<'_>,
    namespace: &str,
    name: &str,
    row: &str,
) -> Result<Option<Value>, AssetError> {
    let data = [("tls.crt", scene.certificate(row)?), ("tls.key", scene.key(row)?)];
    Ok(Some(secret_object(namespace, name, "kubernetes.io/tls", &data)))
}

fn api_server_signers(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let secret =
        |(name, row): &(&str, &str)| tls_secret(scene, "openshift-kube-apiserver-operator", name, row);
    let all: Result<Vec<Option<Value>>, AssetError> = API_SERVER_SIGNERS.iter().map(secret).collect();
    Ok(Some(all?.into_iter().flatten().collect()))
}

fn client_authorities(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let map = |(namespace, name, row): &(&str, &str, &str)| {
        Ok(config_map(namespace, name, "ca-bundle.crt", scene.certificate(row)?))
    };
    let all: Result<Vec<Value>, AssetError> = AUTHORITIES.iter().map(map).collect();
    Ok(Some(Value::Array(all?)))
}

/// The keys that tokens are signed with: one of the controller manager, one of the API servers.
fn service_account_keys(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let secret = |namespace: &str, name: &str, row: &str| {
        let public = scene.text(&tls::asset_name(row), &format!("tls/{row}.pub"))?;
        let data = [("service-account.key", scene.key(row)?), ("service-account.pub", public)];
        Ok::<_, AssetError>(secret_object(namespace, name, "Opaque", &data))
    };
    Ok(Some(json!([
        secret(CONFIG, "initial-service-account-private-key", "service-account")?,
        secret(
            "openshift-kube-apiserver",
            "bound-service-account-signing-key",
            "bound-service-account-signing-key"
        )?,
    ])))
}

/// Machines on this host are known by name and address from the beginning, so their certificates need nobody's approval.
/// On other platforms somebody else knows them, or nobody.
fn machines(scene: &Scene<'_>) -> Option<Value> {
    scene.config.platform.local.as_ref()?;
    let machine = |node: &crate::nodes::Node| {
        let host = format!("{}.{}", node.name, scene.domain());
        let mut addresses: Vec<Value> =
            node.addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        addresses.push(json!({"type": "Hostname", "address": host}));
        addresses.push(json!({"type": "InternalDNS", "address": host}));
        json!({
            "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine",
            "metadata": {
                "name": format!("{}-{}", scene.identity.infra_id, node.name),
                "namespace": "openshift-machine-api",
                "labels": {
                    "machine.openshift.io/cluster-api-cluster": scene.identity.infra_id,
                    "machine.openshift.io/cluster-api-machine-role": node.role.name(),
                    "machine.openshift.io/cluster-api-machine-type": node.role.name(),
                },
            },
            "spec": {"providerSpec": {}},
            "status": {"addresses": addresses},
        })
    };
    let nodes = scene.nodes.nodes.iter().filter(|node| node.role != crate::nodes::Role::Bootstrap);
    Some(nodes.map(machine).collect())
}

fn machine_definition(scene: &Scene<'_>) -> Option<Value> {
    scene.config.platform.local.as_ref()?;
    let address = json!({
        "type": "object", "required": ["type", "address"],
        "properties": {"type": {"type": "string"}, "address": {"type": "string"}},
    });
    // What a platform needs to make a machine is its own business, and kept as it is.
    let open = |properties: Value| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties});
    let schema = json!({
        "type": "object",
        "description": "A machine that somebody made for the cluster, with its names and addresses.",
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "spec": open(json!({"providerID": {"type": "string"}})),
            "status": open(json!({
                "addresses": {"type": "array", "items": address}, "phase": {"type": "string"},
                "nodeRef": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            })),
        },
    });
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.machine.openshift.io"},
        "spec": {
            "group": "machine.openshift.io", "scope": "Namespaced",
            "names": {"kind": "Machine", "listKind": "MachineList", "plural": "machines", "singular": "machine"},
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    }))
}

fn infrastructure(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let config = scene.config;
    let domain = scene.domain();
    let platform = config.platform_type();
    let mut spec = json!({"type": platform});
    let mut status = json!({"type": platform});
    if let Some(baremetal) = &config.platform.baremetal {
        let addresses = json!({
            "apiServerInternalIPs": baremetal.api_vips,
            "ingressIPs": baremetal.ingress_vips,
            "machineNetworks": config.networking.machine_network.iter().map(|n| &n.cidr).collect::<Vec<_>>(),
        });
        spec["baremetal"] = addresses.clone();
        status["baremetal"] = addresses;
        status["baremetal"]["apiServerInternalIP"] = json!(baremetal.api_vips.first());
        status["baremetal"]["ingressIP"] = json!(baremetal.ingress_vips.first());
        if let Some(balancer) = &baremetal.load_balancer {
            status["baremetal"]["loadBalancer"] = json!({"type": balancer.type_});
        }
    }
    if let Some(external) = &config.platform.external {
        spec["external"] = json!({"platformName": external.platform_name});
        let state = if external.cloud_controller_manager.is_empty() { "None" } else { "External" };
        status["external"] = json!({"cloudControllerManager": {"state": state}});
    }
    let mut object =
        config_object("Infrastructure", json!({"cloudConfig": {"name": ""}, "platformSpec": spec}));
    object["status"] = json!({
        "infrastructureName": scene.identity.infra_id,
        "platform": platform,
        "platformStatus": status,
        "etcdDiscoveryDomain": "",
        "apiServerURL": format!("https://api.{domain}:6443"),
        "apiServerInternalURI": format!("https://api-int.{domain}:6443"),
        "controlPlaneTopology": config.control_plane_topology(),
        "infrastructureTopology": config.infrastructure_topology(),
        "cpuPartitioning": config.cpu_partitioning_mode,
    });
    Ok(Some(object))
}

fn cluster_networks(scene: &Scene<'_>) -> Value {
    let networks = &scene.config.networking.cluster_network;
    networks.iter().map(|n| json!({"cidr": n.cidr, "hostPrefix": n.host_prefix})).collect()
}

fn network_config(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let networking = &scene.config.networking;
    Ok(Some(config_object(
        "Network",
        json!({
            "clusterNetwork": cluster_networks(scene),
            "serviceNetwork": networking.service_network,
            "networkType": networking.network_type,
            "externalIP": {"policy": {}},
        }),
    )))
}

/// Written always: the network operator needs both objects.
fn network_operator(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let networking = &scene.config.networking;
    let mut network = json!({"type": networking.network_type});
    let join = networking
        .ovn_kubernetes_config
        .as_ref()
        .and_then(|ovn| ovn.ipv4.as_ref())
        .and_then(|ipv4| ipv4.internal_join_subnet.as_ref());
    if let Some(join) = join {
        network["ovnKubernetesConfig"] = json!({"ipv4": {"internalJoinSubnet": join}});
    }
    Ok(Some(json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "Network", "metadata": {"name": "cluster"},
        "spec": {
            "managementState": "Managed",
            "clusterNetwork": cluster_networks(scene),
            "serviceNetwork": networking.service_network,
            "defaultNetwork": network,
        },
    })))
}

fn dns(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let spec = json!({"baseDomain": scene.domain(), "platformSpec": {"type": ""}});
    Ok(Some(config_object("DNS", spec)))
}

/// Names and networks that are never asked of the proxy, in the order of the alphabet.
pub fn no_proxy(scene: &Scene<'_>) -> String {
    let config = scene.config;
    let Some(proxy) = &config.proxy else { return String::new() };
    if proxy.no_proxy == "*" {
        return "*".to_owned();
    }
    let networking = &config.networking;
    let mut items: std::collections::BTreeSet<String> =
        ["127.0.0.1", "localhost", ".svc", ".cluster.local"].iter().map(|s| (*s).to_owned()).collect();
    items.insert(format!("api-int.{}", scene.domain()));
    items.extend(networking.machine_network.iter().map(|n| n.cidr.clone()));
    items.extend(networking.cluster_network.iter().map(|n| n.cidr.clone()));
    items.extend(networking.service_network.iter().cloned());
    items.extend(proxy.no_proxy.split(',').filter(|item| !item.is_empty()).map(str::to_owned));
    items.into_iter().collect::<Vec<_>>().join(",")
}

fn proxy(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let config = scene.config;
    let bundle = !config.additional_trust_bundle.trim().is_empty();
    let trusted = bundle && (config.additional_trust_bundle_policy == "Always" || config.proxy.is_some());
    let mut spec = json!({"trustedCA": {"name": if trusted { "user-ca-bundle" } else { "" }}});
    let mut object = match &config.proxy {
        None => return Ok(Some(config_object("Proxy", spec))),
        Some(proxy) => {
            for (key, value) in [
                ("httpProxy", &proxy.http_proxy),
                ("httpsProxy", &proxy.https_proxy),
                ("noProxy", &proxy.no_proxy),
            ] {
                if !value.is_empty() {
                    spec[key] = json!(value);
                }
            }
            config_object("Proxy", spec.clone())
        }
    };
    let mut status = spec;
    if let Some(status) = status.as_object_mut() {
        status.shift_remove("trustedCA");
        status.insert("noProxy".to_owned(), json!(no_proxy(scene)));
    }
    object["status"] = status;
    Ok(Some(object))
}

fn ingress(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let mut object = config_object("Ingress", json!({"domain": format!("apps.{}", scene.domain())}));
    let placement = if scene.config.masters_schedulable() { "ControlPlane" } else { "Workers" };
    object["status"] = json!({"defaultPlacement": placement});
    Ok(Some(object))
}

fn scheduler(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let spec = json!({"mastersSchedulable": scene.config.masters_schedulable(), "policy": {"name": ""}});
    Ok(Some(config_object("Scheduler", spec)))
}

/// No identity provider yet: the kubeadmin secret is the only way in until one is added here.
fn oauth(_: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    Ok(Some(config_object("OAuth", json!({"identityProviders": []}))))
}

fn cluster_version(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let mut spec = json!({
        "clusterID": scene.identity.cluster_id,
        "channel": scene.release.channel(),
        "upstream": "",
    });
    if let Some(capabilities) = &scene.config.capabilities {
        spec["capabilities"] = json!({
            "baselineCapabilitySet": capabilities.baseline_capability_set,
            "additionalEnabledCapabilities": capabilities.additional_enabled_capabilities,
        });
    }
    Ok(Some(json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion",
        "metadata": {"name": "version"}, "spec": spec,
    })))
}

fn cluster_config(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let text = serde_yaml_ng::to_string(&scene.config.without_secrets())?;
    Ok(Some(config_map("kube-system", "cluster-config-v1", "install-config", text)))
}

/// Where the API servers on masters find the first member of etcd.
fn etcd_endpoints(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let address = scene
        .nodes
        .with_role(crate::nodes::Role::Bootstrap)
        .find_map(|node| node.addresses.first())
        .map(ToString::to_string)
        .unwrap_or_default();
    Ok(Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "etcd-endpoints", "namespace": "openshift-etcd",
            "annotations": {"alpha.installer.openshift.io/etcd-bootstrap": address},
        },
        "data": {},
    })))
}

fn pull_secret(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let text = match scene.config.pull_secret.trim() {
        "" => "{\"auths\":{}}".to_owned(),
        text => text.to_owned(),
    };
    let data = [(".dockerconfigjson", text)];
    Ok(Some(secret_object("openshift-config", "pull-secret", "kubernetes.io/dockerconfigjson", &data)))
}

fn trust_bundle(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let bundle = &scene.config.additional_trust_bundle;
    if bundle.trim().is_empty() {
        return Ok(None);
    }
    Ok(Some(config_map("openshift-config", "user-ca-bundle", "ca-bundle.crt", bundle.clone())))
}

fn image_mirrors(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let sources = &scene.config.image_digest_sources;
    if sources.is_empty() {
        return Ok(None);
    }
    let entries: Vec<Value> = sources
        .iter()
        .map(|entry| {
            let mut value = json!({"source": entry.source, "mirrors": entry.mirrors});
            if !entry.source_policy.is_empty() {
                value["mirrorSourcePolicy"] = json!(entry.source_policy);
            }
            value
        })
        .collect();
    Ok(Some(json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ImageDigestMirrorSet",
        "metadata": {"name": "image-digest-mirror"}, "spec": {"imageDigestMirrors": entries},
    })))
}

fn feature_gate(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let config = scene.config;
    let mut spec = json!({"featureSet": config.feature_set});
    if config.feature_set == "CustomNoUpgrade" {
        let with = |value: &str| {
            let gates = config.feature_gates.iter().filter_map(|gate| gate.split_once('='));
            gates.filter(|(_, given)| *given == value).map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
        };
        spec["customNoUpgrade"] = json!({"enabled": with("true"), "disabled": with("false")});
    }
    Ok(Some(config_object("FeatureGate", spec)))
}

fn kubeadmin(scene: &Scene<'_>) -> Result<Option<Value>, AssetError> {
    let hash = scene.text("kubeadmin", "kubeadmin-hash")?;
    Ok(Some(secret_object("kube-system", "kubeadmin", "Opaque", &[("kubeadmin", hash)])))
}

fn user_data(scene: &Scene<'_>, role: &str) -> Result<Option<Value>, AssetError> {
    let pointer = ignition_configs::pointer(scene, role)?;
    let data = [("userData", serde_json::to_string(&pointer)?), ("disableTemplating", "true".to_owned())];
    Ok(Some(secret_object("openshift-machine-api", &format!("{role}-user-data"), "Opaque", &data)))
}

fn machine_config(role: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {
            "name": format!("99-{role}-{name}"),
            "labels": {"machineconfiguration.openshift.io/role": role},
        },
        "spec": spec,
    })
}

fn ssh_config(scene: &Scene<'_>, role: &str) -> Option<Value> {
    let keys = ignition_configs::ssh_keys(scene.config);
    let config = json!({
        "ignition": {"version": ignition_configs::VERSION},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": keys}]},
    });
    (!keys.is_empty()).then(|| machine_config(role, "ssh", json!({"config": config})))
}

fn fips_config(scene: &Scene<'_>, role: &str) -> Option<Value> {
    let config = json!({"ignition": {"version": ignition_configs::VERSION}});
    scene.config.fips.then(|| machine_config(role, "fips", json!({"config": config, "fips": true})))
}

fn hyperthreading_config(scene: &Scene<'_>, role: &str) -> Option<Value> {
    let config = scene.config;
    let pool = if role == "master" { config.control_plane.as_ref() } else { config.compute.first() };
    let disabled = pool.is_some_and(|pool| pool.hyperthreading == "Disabled");
    let spec = json!({
        "config": {"ignition": {"version": ignition_configs::VERSION}},
        "kernelArguments": ["nosmt", "smt-enabled=off"],
    });
    disabled.then(|| machine_config(role, "disable-hyperthreading", spec))
}
