//! The kube-apiserver operator: certificates, configuration and a static pod for each node of the control plane.

mod audit;
mod certificates;

use client::{Error, Resource, resources};
use serde_json::{Value, json};

use crate::library::certificates::config_map;
use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::config::{LOG_LEVELS, Observation, flags, merged, observed, refused, texts};
use crate::library::driver::{About, Operator, Round, World};
use crate::library::operand::{CERTS, INFRASTRUCTURES, Images, NETWORKS, Pod, RESOURCES, https_get};
use crate::library::restore::embedded;
use crate::library::static_pod::{self, Read, StaticPod, needs};

pub(crate) const NAMESPACE: &str = "openshift-kube-apiserver";
pub(crate) const OPERATOR: &str = "openshift-kube-apiserver-operator";
pub(crate) const CONFIG: &str = "openshift-config";
pub(crate) const MANAGED: &str = "openshift-config-managed";

const KUBE_API_SERVERS: Resource =
    Resource::cluster("operator.openshift.io", "v1", "kubeapiservers", "KubeAPIServer");
const API_SERVERS: Resource = Resource::cluster("config.openshift.io", "v1", "apiservers", "APIServer");

static ABOUT: About = About {
    program: "cluster-kube-apiserver-operator",
    namespace: OPERATOR,
    lease: "kube-apiserver-operator-lock",
    cluster_operator: "kube-apiserver",
    resource: KUBE_API_SERVERS,
    name: "cluster",
    follows: &[
        (resources::CONFIG_MAPS, NAMESPACE),
        (resources::SECRETS, NAMESPACE),
        (resources::PODS, NAMESPACE),
        (resources::NODES, ""),
        (resources::CONFIG_MAPS, CONFIG),
        (resources::SECRETS, CONFIG),
        (resources::CONFIG_MAPS, MANAGED),
        (resources::SECRETS, OPERATOR),
        (resources::CONFIG_MAPS, "openshift-etcd"),
        (INFRASTRUCTURES, ""),
        (NETWORKS, ""),
        (API_SERVERS, ""),
    ],
    related: RELATED,
    resources_condition: "KubeAPIServerStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    of_cluster("operator.openshift.io", "kubeapiservers", "cluster"),
    of_cluster("config.openshift.io", "apiservers", "cluster"),
    namespace(CONFIG),
    namespace(MANAGED),
    namespace(OPERATOR),
    namespace(NAMESPACE),
];

const TABLE: StaticPod = StaticPod {
    namespace: NAMESPACE,
    name: "kube-apiserver",
    program: "cluster-kube-apiserver-operator",
    config_maps: &[needs("kube-apiserver-pod"), needs("config"), needs("kube-apiserver-audit-policies")],
    secrets: &[],
    cert_config_maps: &[
        needs("client-ca"),
        needs("etcd-serving-ca"),
        needs("kubelet-serving-ca"),
        needs("aggregator-client-ca"),
        needs("sa-token-signing-certs"),
    ],
    cert_secrets: &[
        needs("etcd-client"),
        needs("localhost-serving-cert-certkey"),
        needs("service-network-serving-certkey"),
        needs("external-loadbalancer-serving-certkey"),
        needs("internal-loadbalancer-serving-certkey"),
        needs("kubelet-client"),
        needs("aggregator-client"),
        needs("bound-service-account-signing-key"),
    ],
};

pub struct KubeApiserverOperator(pub Images);

/// What is read beside the operand's namespace.
pub(crate) struct Inputs {
    pub infrastructure: Value,
    pub network: Value,
    pub api_server: Value,
    pub endpoints: Value,
    /// ConfigMaps and Secrets of other namespaces.
    pub config_maps: Vec<Value>,
    pub secrets: Vec<Value>,
}

impl Inputs {
    async fn of(world: &World) -> Result<Self, Error> {
        let find = async |resource: Resource| world.find(&resource, "", "cluster").await;
        let list = async |resource: Resource, namespace: &str| world.list(&resource, namespace).await;
        let endpoints =
            async { world.find(&resources::CONFIG_MAPS, "openshift-etcd", "etcd-endpoints").await };
        let (infrastructure, network, api_server, endpoints, config, managed, config_secrets, own) = tokio::try_join!(
            find(INFRASTRUCTURES),
            find(NETWORKS),
            find(API_SERVERS),
            endpoints,
            list(resources::CONFIG_MAPS, CONFIG),
            list(resources::CONFIG_MAPS, MANAGED),
            list(resources::SECRETS, CONFIG),
            list(resources::SECRETS, OPERATOR),
        )?;
        let config_maps = config.into_iter().chain(managed).collect();
        let secrets = config_secrets.into_iter().chain(own).collect();
        Ok(Self { infrastructure, network, api_server, endpoints, config_maps, secrets })
    }

    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&Value> {
        find_in(&self.config_maps, namespace, name)
    }

    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Value> {
        find_in(&self.secrets, namespace, name)
    }

    fn is_single(&self) -> bool {
        self.infrastructure["status"]["controlPlaneTopology"] == "SingleReplica"
    }

    pub fn service_networks(&self) -> Vec<String> {
        let of = |part: &str| texts(&self.network[part]["serviceNetwork"]);
        Some(of("status")).filter(|list| !list.is_empty()).unwrap_or_else(|| of("spec"))
    }
}

pub(crate) fn find_in<'a>(list: &'a [Value], namespace: &str, name: &str) -> Option<&'a Value> {
    list.iter()
        .find(|object| object["metadata"]["namespace"] == namespace && object["metadata"]["name"] == name)
}

impl Operator for KubeApiserverOperator {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    async fn sync(&self, world: &World) -> Result<Round, Error> {
        let (read, inputs) = tokio::try_join!(Read::of(world, &TABLE), Inputs::of(world))?;
        let mut round = Round::default();
        let mut errors = Vec::new();
        match embedded(include_str!("resources.yaml")) {
            Ok(objects) => round.restore = objects,
            Err(error) => errors.push(error.to_string()),
        }
        errors.extend(certificates::plan(&read, &inputs, world.now, &mut round));
        round.conditions.push(Condition::of_errors("CertRotationDegraded", "RotationError", &errors));
        let spec = &world.resource["spec"];
        let (config, mut errors) = observed(&spec["observedConfig"], observe(&inputs));
        errors.extend(refused(
            "apiservers.config.openshift.io/cluster",
            &inputs.api_server["spec"],
            &["/servingCerts/namedCertificates", "/clientCA/name", "/encryption/type"],
        ));
        let own = "kubeapiservers.operator.openshift.io/cluster";
        errors.extend(refused(own, spec, LOG_LEVELS));
        errors.extend(refused(own, spec, &["/eventTTLMinutes"]));
        round.conditions.push(Condition::of_errors("ConfigObservationDegraded", "Error", &errors));
        // Without servers to store in there is nothing to run.
        let complete = !config["apiServerArguments"]["etcd-servers"].is_null()
            && !config["apiServerArguments"]["service-cluster-ip-range"].is_null();
        if complete {
            let whole = merged(&[&defaults(), &config, &spec["unsupportedConfigOverrides"]]);
            round.write.push(config_map(NAMESPACE, "config", &[("config.yaml", whole.to_string())]));
            round.write.push(pod(&whole, &self.0.operand, inputs.is_single()));
        }
        match audit::policy(&inputs.api_server["spec"]["audit"]) {
            Ok(policy) => {
                let data = [("policy.yaml", policy.to_string())];
                round.write.push(config_map(NAMESPACE, "kube-apiserver-audit-policies", &data));
                round.conditions.push(Condition::fine("AuditPolicyDegraded"));
            }
            Err(reason) => {
                round.conditions.push(Condition::not_fine("AuditPolicyDegraded", "InvalidProfile", reason));
            }
        }
        round.observed_config = Some(config);
        let done = static_pod::plan(&TABLE, &read.view(world, &self.0.operator, None), &mut round);
        if done {
            round.versions = self.0.versions("kube-apiserver");
        }
        Ok(round)
    }
}

/// What follows from the cluster's configuration.
fn observe(inputs: &Inputs) -> Vec<Observation> {
    let list = |values: Vec<String>| Some(json!(values));
    let ranges = inputs.service_networks();
    vec![
        Observation { path: &["apiServerArguments", "etcd-servers"], found: etcd_servers(inputs).map(list) },
        Observation {
            path: &["apiServerArguments", "service-cluster-ip-range"],
            found: match ranges.is_empty() {
                true => Err("networks.config.openshift.io/cluster: serviceNetwork not found".to_owned()),
                false => Ok(Some(json!([ranges.join(",")]))),
            },
        },
        Observation {
            path: &["apiServerArguments", "service-node-port-range"],
            found: Ok(inputs.network["spec"]["serviceNodePortRange"]
                .as_str()
                .filter(|range| !range.is_empty())
                .map(|range| json!([range]))),
        },
        Observation {
            path: &["apiServerArguments", "cors-allowed-origins"],
            found: Ok(list(texts(&inputs.api_server["spec"]["additionalCORSAllowedOrigins"]))
                .filter(|list| list.as_array().is_some_and(|list| !list.is_empty()))),
        },
        Observation { path: &["apiServerArguments", "tls-min-version"], found: tls_version(inputs) },
    ]
}

/// The members on masters once there are enough of them, and until then whoever there is. The one beside it is always
/// among them: it may be the only one that a cut-off machine still reaches.
fn etcd_servers(inputs: &Inputs) -> Result<Vec<String>, String> {
    const BOOTSTRAP: &str = "alpha.installer.openshift.io/etcd-bootstrap";
    if inputs.endpoints.is_null() {
        return Err("configmap openshift-etcd/etcd-endpoints not found".to_owned());
    }
    let data = inputs.endpoints["data"].as_object().into_iter().flatten();
    let mut hosts: Vec<&str> = data.filter_map(|(_, host)| host.as_str()).collect();
    let needed = if inputs.is_single() { 1 } else { 3 };
    let bootstrap = inputs.endpoints["metadata"]["annotations"][BOOTSTRAP].as_str();
    if hosts.len() < needed && bootstrap.is_some() {
        return Err(format!(
            "configmap openshift-etcd/etcd-endpoints: {} of {needed} members are there yet",
            hosts.len()
        ));
    }
    if hosts.is_empty() {
        return Err("configmap openshift-etcd/etcd-endpoints: no members".to_owned());
    }
    hosts.sort_unstable();
    let url = |host: &str| match host.contains(':') {
        true => format!("https://[{host}]:2379"),
        false => format!("https://{host}:2379"),
    };
    let mut urls: Vec<String> = hosts.into_iter().map(url).collect();
    urls.push("https://localhost:2379".to_owned());
    Ok(urls)
}

fn tls_version(inputs: &Inputs) -> Result<Option<Value>, String> {
    let profile = &inputs.api_server["spec"]["tlsSecurityProfile"];
    match profile["type"].as_str().unwrap_or_default() {
        "" => Ok(None),
        "Intermediate" => Ok(Some(json!(["VersionTLS12"]))),
        "Modern" => Ok(Some(json!(["VersionTLS13"]))),
        "Custom" => match profile["custom"]["minTLSVersion"].as_str() {
            Some(version @ ("VersionTLS12" | "VersionTLS13")) => Ok(Some(json!([version]))),
            other => {
                Err(format!("apiservers.config.openshift.io/cluster: minTLSVersion {other:?} is not spoken"))
            }
        },
        other => Err(format!("apiservers.config.openshift.io/cluster: TLS profile {other} is not spoken")),
    }
}

/// The flags that do not depend on the cluster; equal in meaning to those of the bootstrap machine's server.
fn defaults() -> Value {
    let map = |name: &str, file: &str| format!("{CERTS}/configmaps/{name}/{file}");
    let secret = |name: &str, file: &str| format!("{CERTS}/secrets/{name}/{file}");
    let sni = |name: &str| format!("{},{}", secret(name, "tls.crt"), secret(name, "tls.key"));
    let issuer = "https://kubernetes.default.svc";
    json!({"apiVersion": "kubecontrolplane.config.openshift.io/v1", "kind": "KubeAPIServerConfig",
    "apiServerArguments": {
        "advertise-address": ["NODE_IP"],
        "secure-port": ["6443"],
        "etcd-cafile": [map("etcd-serving-ca", "ca-bundle.crt")],
        "etcd-certfile": [secret("etcd-client", "tls.crt")],
        "etcd-keyfile": [secret("etcd-client", "tls.key")],
        "tls-cert-file": [secret("service-network-serving-certkey", "tls.crt")],
        "tls-private-key-file": [secret("service-network-serving-certkey", "tls.key")],
        "tls-sni-cert-key": [
            sni("localhost-serving-cert-certkey"),
            sni("external-loadbalancer-serving-certkey"),
            sni("internal-loadbalancer-serving-certkey"),
        ],
        "client-ca-file": [map("client-ca", "ca-bundle.crt")],
        "kubelet-certificate-authority": [map("kubelet-serving-ca", "ca-bundle.crt")],
        "kubelet-client-certificate": [secret("kubelet-client", "tls.crt")],
        "kubelet-client-key": [secret("kubelet-client", "tls.key")],
        "kubelet-preferred-address-types": ["InternalIP,Hostname"],
        "proxy-client-cert-file": [secret("aggregator-client", "tls.crt")],
        "proxy-client-key-file": [secret("aggregator-client", "tls.key")],
        "requestheader-client-ca-file": [map("aggregator-client-ca", "ca-bundle.crt")],
        "requestheader-allowed-names": [pki::table::FRONT_PROXY_NAME],
        "requestheader-username-headers": ["X-Remote-User"],
        "requestheader-group-headers": ["X-Remote-Group"],
        "requestheader-extra-headers-prefix": ["X-Remote-Extra-"],
        "service-account-issuer": [issuer],
        "api-audiences": [issuer],
        "service-account-key-file": [
            map("sa-token-signing-certs", "service-account-001.pub"),
            secret("bound-service-account-signing-key", "service-account.pub"),
        ],
        "service-account-signing-key-file": [secret("bound-service-account-signing-key", "service-account.key")],
        "authorization-mode": ["Node,RBAC"],
        "enable-admission-plugins": ["NodeRestriction"],
        "node-registration-labels": ["node-role.kubernetes.io/master,node-role.kubernetes.io/control-plane,node-role.kubernetes.io/arbiter,node-role.kubernetes.io/worker"],
        "allow-privileged": ["true"],
        "enable-bootstrap-token-auth": ["true"],
        "anonymous-auth": ["true"],
        "endpoint-reconciler-type": ["lease"],
        "audit-policy-file": [format!("{RESOURCES}/configmaps/kube-apiserver-audit-policies/policy.yaml")],
        "audit-log-path": [format!("{AUDIT}/audit.log")],
        "audit-log-maxsize": ["200"],
        "audit-log-maxbackup": ["10"],
    }})
}

const AUDIT: &str = "/var/log/kube-apiserver";

/// How long a server that was told to end goes on serving: longer than a balancer that asks every two seconds needs to
/// notice. Alone there is nobody to notice it.
fn shutdown_delay(single: bool) -> Value {
    json!({"shutdown-delay-duration": [if single { "0s" } else { "10s" }]})
}

fn pod(config: &Value, image: &str, single: bool) -> Value {
    let arguments = merged(&[&shutdown_delay(single), &config["apiServerArguments"]]);
    let mut command = vec!["kube-apiserver".to_owned()];
    command.extend(flags(&arguments));
    Pod {
        table: &TABLE,
        image,
        labels: json!({"app": "openshift-kube-apiserver", "apiserver": "true"}),
        command,
        port: 6443,
        requests: ("265m", "1Gi"),
        liveness: https_get(6443, "/livez?exclude=etcd", 45, 10, 8),
        readiness: https_get(6443, "/readyz", 1, 2, 3),
        grace: if single { 15 } else { 135 },
        writes: &[("audit-dir", AUDIT)],
    }
    .config_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(single: bool, members: &[&str], bootstrap: bool) -> Inputs {
        let topology = if single { "SingleReplica" } else { "HighlyAvailable" };
        let data: serde_json::Map<String, Value> =
            members.iter().map(|host| ((*host).to_owned(), json!(host))).collect();
        let annotations = match bootstrap {
            true => json!({"alpha.installer.openshift.io/etcd-bootstrap": "10.0.0.100"}),
            false => json!({}),
        };
        Inputs {
            infrastructure: json!({"status": {"controlPlaneTopology": topology}}),
            network: json!({"spec": {"serviceNetwork": ["172.30.0.0/16"]}}),
            api_server: json!({}),
            endpoints: json!({"metadata": {"annotations": annotations}, "data": data}),
            config_maps: Vec::new(),
            secrets: Vec::new(),
        }
    }

    #[test]
    fn servers_are_the_members_once_there_are_enough() {
        assert!(etcd_servers(&inputs(false, &["10.0.0.1"], true)).is_err());
        assert!(etcd_servers(&inputs(true, &[], true)).is_err());
        assert_eq!(
            etcd_servers(&inputs(true, &["10.0.0.1"], true)).unwrap(),
            ["https://10.0.0.1:2379", "https://localhost:2379"]
        );
        // After the bootstrap machine went a member may be missing without taking the others away.
        assert_eq!(etcd_servers(&inputs(false, &["10.0.0.2", "10.0.0.1"], false)).unwrap().len(), 3);
    }

    #[test]
    fn a_failed_observer_keeps_the_servers() {
        let before = json!({"apiServerArguments": {"etcd-servers": ["https://old:2379"]}});
        let (config, errors) = observed(&before, observe(&inputs(false, &[], true)));
        assert_eq!(config["apiServerArguments"]["etcd-servers"], json!(["https://old:2379"]));
        assert_eq!(config["apiServerArguments"]["service-cluster-ip-range"], json!(["172.30.0.0/16"]));
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn the_pod_has_every_flag_and_an_override_wins() {
        let (config, _) = observed(&Value::Null, observe(&inputs(true, &["10.0.0.1"], false)));
        let force = json!({"apiServerArguments": {"v": ["4"], "anonymous-auth": ["false"]}});
        let map = pod(&merged(&[&defaults(), &config, &force]), "image", true);
        let pod: Value = serde_json::from_str(map["data"]["pod.yaml"].as_str().unwrap()).unwrap();
        let command = texts(&pod["spec"]["containers"][0]["command"]);
        for flag in [
            "--anonymous-auth=false",
            "--v=4",
            "--etcd-servers=https://10.0.0.1:2379",
            "--etcd-servers=https://localhost:2379",
            "--advertise-address=NODE_IP",
            "--shutdown-delay-duration=0s",
        ] {
            assert!(command.iter().any(|have| have == flag), "{flag} in {command:?}");
        }
        assert_eq!(pod["metadata"]["labels"]["revision"], "REVISION");
    }
}
