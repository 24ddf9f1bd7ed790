//! The kube-controller-manager operator.

use client::{Error, Resource, resources};
use serde_json::{Value, json};

use crate::kube_apiserver::{CONFIG, MANAGED, find_in};
use crate::library::certificates::config_map;
use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::config::{LOG_LEVELS, Observation, flags, merged, observed, refused, texts};
use crate::library::driver::{About, Operator, Round, World};
use crate::library::operand::{
    CERTS, INFRASTRUCTURES, Images, NETWORKS, Pod, RESOURCES, https_get, kubeconfig, sync,
};
use crate::library::restore::embedded;
use crate::library::static_pod::{self, Read, StaticPod, needs};

const NAMESPACE: &str = "openshift-kube-controller-manager";
const OPERATOR: &str = "openshift-kube-controller-manager-operator";

const KUBE_CONTROLLER_MANAGERS: Resource =
    Resource::cluster("operator.openshift.io", "v1", "kubecontrollermanagers", "KubeControllerManager");

static ABOUT: About = About {
    program: "cluster-kube-controller-manager-operator",
    namespace: OPERATOR,
    lease: "kube-controller-manager-operator-lock",
    cluster_operator: "kube-controller-manager",
    resource: KUBE_CONTROLLER_MANAGERS,
    name: "cluster",
    follows: &[
        (resources::CONFIG_MAPS, NAMESPACE),
        (resources::SECRETS, NAMESPACE),
        (resources::PODS, NAMESPACE),
        (resources::NODES, ""),
        (resources::CONFIG_MAPS, MANAGED),
        (resources::SECRETS, MANAGED),
        (resources::SECRETS, CONFIG),
        (resources::SECRETS, OPERATOR),
        (INFRASTRUCTURES, ""),
        (NETWORKS, ""),
    ],
    related: RELATED,
    resources_condition: "KubeControllerManagerStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    of_cluster("operator.openshift.io", "kubecontrollermanagers", "cluster"),
    namespace(CONFIG),
    namespace(MANAGED),
    namespace(NAMESPACE),
    namespace(OPERATOR),
];

const TABLE: StaticPod = StaticPod {
    namespace: NAMESPACE,
    name: "kube-controller-manager",
    program: "cluster-kube-controller-manager-operator",
    config_maps: &[
        needs("kube-controller-manager-pod"),
        needs("config"),
        needs("controller-manager-kubeconfig"),
        needs("serviceaccount-ca"),
    ],
    secrets: &[needs("service-account-private-key")],
    cert_config_maps: &[needs("client-ca")],
    cert_secrets: &[needs("kube-controller-manager-client-cert-key"), needs("csr-signer")],
};

pub struct KubeControllerManagerOperator(pub Images);

struct Inputs {
    infrastructure: Value,
    network: Value,
    config_maps: Vec<Value>,
    secrets: Vec<Value>,
}

impl Inputs {
    async fn of(world: &World) -> Result<Self, Error> {
        let find = async |resource: Resource| world.find(&resource, "", "cluster").await;
        let list = async |resource: Resource, namespace: &str| world.list(&resource, namespace).await;
        let (infrastructure, network, config_maps, managed, config, own) = tokio::try_join!(
            find(INFRASTRUCTURES),
            find(NETWORKS),
            list(resources::CONFIG_MAPS, MANAGED),
            list(resources::SECRETS, MANAGED),
            list(resources::SECRETS, CONFIG),
            list(resources::SECRETS, OPERATOR),
        )?;
        let secrets = managed.into_iter().chain(config).chain(own).collect();
        Ok(Self { infrastructure, network, config_maps, secrets })
    }
}

impl Operator for KubeControllerManagerOperator {
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
        errors.extend(copies(&inputs, &mut round));
        round.conditions.push(Condition::of_errors("ResourceSyncControllerDegraded", "Error", &errors));
        let spec = &world.resource["spec"];
        let (config, mut errors) = observed(&spec["observedConfig"], observe(&inputs));
        let own = "kubecontrollermanagers.operator.openshift.io/cluster";
        errors.extend(refused(own, spec, LOG_LEVELS));
        errors.extend(refused(own, spec, &["/useMoreSecureServiceCA"]));
        round.conditions.push(Condition::of_errors("ConfigObservationDegraded", "Error", &errors));
        let server = inputs.infrastructure["status"]["apiServerInternalURI"].as_str();
        let complete = !config["extendedArguments"]["cluster-cidr"].is_null();
        if let (Some(server), true) = (server, complete) {
            let whole = merged(&[&defaults(), &config, &spec["unsupportedConfigOverrides"]]);
            round.write.push(config_map(NAMESPACE, "config", &[("config.yaml", whole.to_string())]));
            let client =
                |file: &str| format!("{CERTS}/secrets/kube-controller-manager-client-cert-key/{file}");
            let text = kubeconfig(
                server,
                &format!("{RESOURCES}/configmaps/serviceaccount-ca/ca-bundle.crt"),
                &client("tls.crt"),
                &client("tls.key"),
                "kube-controller-manager",
            );
            round.write.push(config_map(NAMESPACE, "controller-manager-kubeconfig", &[("kubeconfig", text)]));
            round.write.push(pod(&whole, &self.0.operand));
        }
        round.observed_config = Some(config);
        let done = static_pod::plan(&TABLE, &read.view(world, &self.0.operator, None), &mut round);
        if done {
            round.versions = self.0.versions("kube-controller-manager");
        }
        Ok(round)
    }
}

/// What others publish and this operand uses; and who signs for nodes, for everyone to know.
fn copies(inputs: &Inputs, round: &mut Round) -> Vec<String> {
    let table = [
        ("ConfigMap", MANAGED, "kube-apiserver-server-ca", NAMESPACE, "serviceaccount-ca"),
        ("ConfigMap", MANAGED, "kube-apiserver-client-ca", NAMESPACE, "client-ca"),
        (
            "Secret",
            MANAGED,
            "kube-controller-manager-client-cert-key",
            NAMESPACE,
            "kube-controller-manager-client-cert-key",
        ),
        ("Secret", OPERATOR, "csr-signer", NAMESPACE, "csr-signer"),
        ("Secret", CONFIG, "initial-service-account-private-key", NAMESPACE, "service-account-private-key"),
    ];
    let mut errors = Vec::new();
    for (kind, from, name, to, as_name) in table {
        let list = if kind == "Secret" { &inputs.secrets } else { &inputs.config_maps };
        let mut found = find_in(list, from, name).cloned().unwrap_or_default();
        if !found.is_null() {
            found["kind"] = json!(kind);
        }
        if !sync(round, &found, to, as_name) {
            errors.push(format!("{} {from}/{name} not found", kind.to_lowercase()));
        }
    }
    errors
}

fn observe(inputs: &Inputs) -> Vec<Observation> {
    let part = |field: &str| {
        let of = |part: &str| inputs.network[part][field].clone();
        let full = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
        Some(of("status")).filter(full).unwrap_or_else(|| of("spec"))
    };
    let networks = part("clusterNetwork");
    let networks = networks.as_array().cloned().unwrap_or_default();
    let cidrs: Vec<&str> = networks.iter().filter_map(|network| network["cidr"].as_str()).collect();
    let prefix = |six: bool| {
        let found = networks
            .iter()
            .find(|network| network["cidr"].as_str().is_some_and(|cidr| cidr.contains(':') == six));
        found.and_then(|network| network["hostPrefix"].as_i64())
    };
    let (four, six) = (prefix(false), prefix(true));
    let missing = |field: &str| Err(format!("networks.config.openshift.io/cluster: {field} not found"));
    let ranges = texts(&part("serviceNetwork"));
    let number = |value: Option<i64>| Ok(value.map(|value| json!([value.to_string()])));
    vec![
        Observation {
            path: &["extendedArguments", "cluster-cidr"],
            found: match cidrs.is_empty() {
                true => missing("clusterNetwork"),
                false => Ok(Some(json!([cidrs.join(",")]))),
            },
        },
        Observation {
            path: &["extendedArguments", "service-cluster-ip-range"],
            found: match ranges.is_empty() {
                true => missing("serviceNetwork"),
                false => Ok(Some(json!([ranges.join(",")]))),
            },
        },
        Observation {
            path: &["extendedArguments", "node-cidr-mask-size"],
            found: number(if four.is_some() && six.is_some() { None } else { four.or(six) }),
        },
        Observation {
            path: &["extendedArguments", "node-cidr-mask-size-ipv4"],
            found: number(four.filter(|_| six.is_some())),
        },
        Observation {
            path: &["extendedArguments", "node-cidr-mask-size-ipv6"],
            found: number(six.filter(|_| four.is_some())),
        },
        Observation {
            path: &["extendedArguments", "cluster-name"],
            found: Ok(inputs.infrastructure["status"]["infrastructureName"]
                .as_str()
                .map(|name| json!([name]))),
        },
    ]
}

/// The flags that do not depend on the cluster; equal in meaning to those of the bootstrap machine's.
fn defaults() -> Value {
    let own = format!("{RESOURCES}/configmaps/controller-manager-kubeconfig/kubeconfig");
    let signer = |file: &str| format!("{CERTS}/secrets/csr-signer/{file}");
    json!({"apiVersion": "kubecontrolplane.config.openshift.io/v1", "kind": "KubeControllerManagerConfig",
    "extendedArguments": {
        "kubeconfig": [own],
        "authentication-kubeconfig": [own],
        "authorization-kubeconfig": [own],
        "allocate-node-cidrs": ["true"],
        "client-ca-file": [format!("{CERTS}/configmaps/client-ca/ca-bundle.crt")],
        "cluster-signing-cert-file": [signer("tls.crt")],
        "cluster-signing-key-file": [signer("tls.key")],
        "cluster-signing-duration": ["720h"],
        "root-ca-file": [format!("{RESOURCES}/configmaps/serviceaccount-ca/ca-bundle.crt")],
        "service-account-private-key-file": [
            format!("{RESOURCES}/secrets/service-account-private-key/service-account.key"),
        ],
        "use-service-account-credentials": ["true"],
        "controllers": ["*", "bootstrapsigner", "tokencleaner"],
        "leader-elect": ["true"],
        "leader-elect-resource-lock": ["leases"],
        "leader-elect-retry-period": ["3s"],
        "secure-port": ["10257"],
    }})
}

fn pod(config: &Value, image: &str) -> Value {
    let mut command = vec!["kube-controller-manager".to_owned()];
    command.extend(flags(&config["extendedArguments"]));
    Pod {
        table: &TABLE,
        image,
        labels: json!({"app": "kube-controller-manager", "kube-controller-manager": "true"}),
        command,
        port: 10257,
        requests: ("60m", "200Mi"),
        liveness: https_get(10257, "/healthz", 45, 10, 8),
        readiness: https_get(10257, "/healthz", 1, 2, 3),
        grace: 30,
        writes: &[],
    }
    .config_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_become_flags_and_their_absence_is_told() {
        let inputs = |network: Value| Inputs {
            infrastructure: json!({"status": {"infrastructureName": "lab-x1"}}),
            network,
            config_maps: Vec::new(),
            secrets: Vec::new(),
        };
        let one = json!({"spec": {
            "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}], "serviceNetwork": ["172.30.0.0/16"],
        }});
        let (config, errors) = observed(&Value::Null, observe(&inputs(one)));
        assert_eq!(
            flags(&config["extendedArguments"]),
            [
                "--cluster-cidr=10.128.0.0/14",
                "--cluster-name=lab-x1",
                "--node-cidr-mask-size=23",
                "--service-cluster-ip-range=172.30.0.0/16"
            ]
        );
        assert!(errors.is_empty());
        let two = json!({"status": {
            "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}, {"cidr": "fd01::/48", "hostPrefix": 64}],
            "serviceNetwork": ["172.30.0.0/16", "fd02::/112"],
        }});
        let (config, _) = observed(&Value::Null, observe(&inputs(two)));
        let both = flags(&config["extendedArguments"]);
        assert!(both.contains(&"--node-cidr-mask-size-ipv6=64".to_owned()), "{both:?}");
        assert!(!both.iter().any(|flag| flag.starts_with("--node-cidr-mask-size=")), "{both:?}");
        let (_, errors) = observed(&Value::Null, observe(&inputs(json!({}))));
        assert_eq!(errors.len(), 2);
    }
}
