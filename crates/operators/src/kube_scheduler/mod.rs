//! The kube-scheduler operator.

use client::{Error, Resource, resources};
use serde_json::{Value, json};

use crate::kube_apiserver::{CONFIG, MANAGED, find_in};
use crate::library::certificates::config_map;
use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::config::{LOG_LEVELS, flags, merged, refused};
use crate::library::driver::{About, Operator, Round, World};
use crate::library::operand::{CERTS, INFRASTRUCTURES, Images, Pod, RESOURCES, https_get, kubeconfig, sync};
use crate::library::restore::embedded;
use crate::library::static_pod::{self, Read, StaticPod, needs};

const NAMESPACE: &str = "openshift-kube-scheduler";
const OPERATOR: &str = "openshift-kube-scheduler-operator";

const KUBE_SCHEDULERS: Resource =
    Resource::cluster("operator.openshift.io", "v1", "kubeschedulers", "KubeScheduler");
const SCHEDULERS: Resource = Resource::cluster("config.openshift.io", "v1", "schedulers", "Scheduler");

static ABOUT: About = About {
    program: "cluster-kube-scheduler-operator",
    namespace: OPERATOR,
    lease: "openshift-cluster-kube-scheduler-operator-lock",
    cluster_operator: "kube-scheduler",
    resource: KUBE_SCHEDULERS,
    name: "cluster",
    follows: &[
        (resources::CONFIG_MAPS, NAMESPACE),
        (resources::SECRETS, NAMESPACE),
        (resources::PODS, NAMESPACE),
        (resources::NODES, ""),
        (resources::CONFIG_MAPS, MANAGED),
        (resources::SECRETS, MANAGED),
        (INFRASTRUCTURES, ""),
        (SCHEDULERS, ""),
    ],
    related: RELATED,
    resources_condition: "KubeSchedulerStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    of_cluster("operator.openshift.io", "kubeschedulers", "cluster"),
    of_cluster("config.openshift.io", "schedulers", ""),
    namespace(CONFIG),
    namespace(NAMESPACE),
    namespace(OPERATOR),
];

const TABLE: StaticPod = StaticPod {
    namespace: NAMESPACE,
    name: "openshift-kube-scheduler",
    program: "cluster-kube-scheduler-operator",
    config_maps: &[
        needs("kube-scheduler-pod"),
        needs("config"),
        needs("scheduler-kubeconfig"),
        needs("serviceaccount-ca"),
    ],
    secrets: &[],
    cert_config_maps: &[],
    cert_secrets: &[needs("kube-scheduler-client-cert-key")],
};

pub struct KubeSchedulerOperator(pub Images);

impl Operator for KubeSchedulerOperator {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    async fn sync(&self, world: &World) -> Result<Round, Error> {
        let find = async |resource: Resource| world.find(&resource, "", "cluster").await;
        let list = async |resource: Resource| world.list(&resource, MANAGED).await;
        let (read, infrastructure, scheduler, maps, secrets) = tokio::try_join!(
            Read::of(world, &TABLE),
            find(INFRASTRUCTURES),
            find(SCHEDULERS),
            list(resources::CONFIG_MAPS),
            list(resources::SECRETS),
        )?;
        let mut round = Round::default();
        let mut errors = Vec::new();
        match embedded(include_str!("resources.yaml")) {
            Ok(objects) => round.restore = objects,
            Err(error) => errors.push(error.to_string()),
        }
        for (kind, list, name, as_name) in [
            ("ConfigMap", &maps, "kube-apiserver-server-ca", "serviceaccount-ca"),
            ("Secret", &secrets, "kube-scheduler-client-cert-key", "kube-scheduler-client-cert-key"),
        ] {
            let mut found = find_in(list, MANAGED, name).cloned().unwrap_or_default();
            if !found.is_null() {
                found["kind"] = json!(kind);
            }
            if !sync(&mut round, &found, NAMESPACE, as_name) {
                errors.push(format!("{} {MANAGED}/{name} not found", kind.to_lowercase()));
            }
        }
        round.conditions.push(Condition::of_errors("ResourceSyncControllerDegraded", "Error", &errors));
        // What is not understood leaves what runs as it is.
        let mut errors =
            refused("schedulers.config.openshift.io/cluster", &scheduler["spec"], &["/defaultNodeSelector"]);
        errors.extend(refused(
            "kubeschedulers.operator.openshift.io/cluster",
            &world.resource["spec"],
            LOG_LEVELS,
        ));
        match configuration(&scheduler["spec"]) {
            Ok(config) => {
                let data = [("config.yaml", config.to_string())];
                round.write.push(config_map(NAMESPACE, "config", &data));
            }
            Err(reason) => errors.push(reason),
        }
        round.conditions.push(Condition::of_errors("ConfigObservationDegraded", "Error", &errors));
        if let Some(server) = infrastructure["status"]["apiServerInternalURI"].as_str() {
            let client = |file: &str| format!("{CERTS}/secrets/kube-scheduler-client-cert-key/{file}");
            let text = kubeconfig(
                server,
                &format!("{RESOURCES}/configmaps/serviceaccount-ca/ca-bundle.crt"),
                &client("tls.crt"),
                &client("tls.key"),
                "kube-scheduler",
            );
            round.write.push(config_map(NAMESPACE, "scheduler-kubeconfig", &[("kubeconfig", text)]));
            round.write.push(pod(&world.resource["spec"]["unsupportedConfigOverrides"], &self.0.operand));
        }
        let done = static_pod::plan(&TABLE, &read.view(world, &self.0.operator, None), &mut round);
        if done {
            round.versions = self.0.versions("kube-scheduler");
        }
        Ok(round)
    }
}

/// The scheduler's own configuration, by the profile that the cluster's Scheduler names.
fn configuration(spec: &Value) -> Result<Value, String> {
    let plugins = |plugins: Value, config: Value| {
        let mut profile = json!({"schedulerName": "default-scheduler"});
        if !plugins.is_null() {
            profile["plugins"] = plugins;
        }
        if !config.is_null() {
            profile["pluginConfig"] = config;
        }
        profile
    };
    let profile = match spec["profile"].as_str().unwrap_or_default() {
        "" | "LowNodeUtilization" => plugins(Value::Null, Value::Null),
        // Nodes are filled one after another, so that others can be given back.
        "HighNodeUtilization" => plugins(
            json!({"score": {
                "disabled": [{"name": "NodeResourcesBalancedAllocation"}],
                "enabled": [{"name": "NodeResourcesFit", "weight": 5}],
            }}),
            json!([{"name": "NodeResourcesFit", "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "NodeResourcesFitArgs",
                "scoringStrategy": {
                    "type": "MostAllocated",
                    "resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}],
                },
            }}]),
        ),
        // The first node that fits is good enough.
        "NoScoring" => plugins(
            json!({"preScore": {"disabled": [{"name": "*"}]}, "score": {"disabled": [{"name": "*"}]}}),
            Value::Null,
        ),
        other => {
            return Err(format!(
                "schedulers.config.openshift.io/cluster: profile {other:?} is none of LowNodeUtilization, HighNodeUtilization, NoScoring"
            ));
        }
    };
    Ok(json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "kubeconfig": format!("{RESOURCES}/configmaps/scheduler-kubeconfig/kubeconfig"),
        },
        "leaderElection": {"leaderElect": true, "resourceLock": "leases"},
        "profiles": [profile],
    }))
}

fn pod(overrides: &Value, image: &str) -> Value {
    let own = format!("{RESOURCES}/configmaps/scheduler-kubeconfig/kubeconfig");
    let usual = json!({"extendedArguments": {
        "config": [format!("{RESOURCES}/configmaps/config/config.yaml")],
        "authentication-kubeconfig": [own],
        "authorization-kubeconfig": [own],
        "secure-port": ["10259"],
    }});
    let mut command = vec!["kube-scheduler".to_owned()];
    command.extend(flags(&merged(&[&usual, overrides])["extendedArguments"]));
    Pod {
        table: &TABLE,
        image,
        labels: json!({"app": "openshift-kube-scheduler", "scheduler": "true"}),
        command,
        port: 10259,
        requests: ("15m", "50Mi"),
        liveness: https_get(10259, "/healthz", 45, 10, 8),
        readiness: https_get(10259, "/healthz", 1, 2, 3),
        grace: 30,
        writes: &[],
    }
    .config_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_choose_plugins_and_an_unknown_one_is_refused() {
        let profile =
            |name: &str| configuration(&json!({"profile": name})).map(|it| it["profiles"][0].clone());
        assert_eq!(profile("").unwrap(), json!({"schedulerName": "default-scheduler"}));
        let high = profile("HighNodeUtilization").unwrap();
        assert_eq!(high["pluginConfig"][0]["args"]["scoringStrategy"]["type"], "MostAllocated");
        assert_eq!(profile("NoScoring").unwrap()["plugins"]["score"]["disabled"][0]["name"], "*");
        assert!(profile("Fancy").unwrap_err().contains("\"Fancy\""));
    }
}
