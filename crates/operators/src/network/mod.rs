//! cluster-network-operator: from the two Network objects to the pods that make the network.
//!
//! `config.openshift.io` says which networks there are, `operator.openshift.io` how they are made. What is in force is kept in
//! ConfigMap `applied-cluster`: fields that cannot change under running pods are compared with it, and a change that cannot
//! be had leaves everything as it was.

mod config;
mod render;

use clap::{Args, Subcommand};
use client::{Error, Resource, resources};
use lifecycle::Stop;
use serde_json::{Value, json};

use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::driver::{About, Operator, Round, World};
use crate::library::program::{OperatorArgs, OperatorError, required_env};
use crate::library::workload::Rollout;
use config::NetworkConfig;
use render::Surroundings;

const CONFIG: Resource = Resource::cluster("config.openshift.io", "v1", "networks", "Network");
const INFRASTRUCTURES: Resource =
    Resource::cluster("config.openshift.io", "v1", "infrastructures", "Infrastructure");
const NAMESPACE: &str = "openshift-network-operator";
const APPLIED: &str = "applied-cluster";
/// What the installation was made from.
const INSTALL_CONFIG: (&str, &str) = ("kube-system", "cluster-config-v1");

static ABOUT: About = About {
    program: "network-operator",
    namespace: NAMESPACE,
    lease: "network-operator-lock",
    cluster_operator: "network",
    resource: Resource::cluster("operator.openshift.io", "v1", "networks", "Network"),
    name: "cluster",
    follows: &[
        (CONFIG, ""),
        (INFRASTRUCTURES, ""),
        (resources::DAEMON_SETS, render::POD_NETWORK.0),
        (resources::DAEMON_SETS, render::KUBE_PROXY.0),
        (resources::CONFIG_MAPS, INSTALL_CONFIG.0),
        (resources::CONFIG_MAPS, NAMESPACE),
    ],
    related: RELATED,
    resources_condition: "NetworkStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    of_cluster("operator.openshift.io", "networks", "cluster"),
    of_cluster("config.openshift.io", "networks", "cluster"),
    namespace(NAMESPACE),
    namespace(render::POD_NETWORK.0),
    namespace(render::KUBE_PROXY.0),
];

/// Keeps the pod network and the Service proxy as the Network objects say.
#[derive(Args, Clone, Debug)]
pub struct ClusterNetworkOperatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Runs the operator
    #[command(alias = "operator")]
    Start(Box<OperatorArgs>),
}

impl ClusterNetworkOperatorArgs {
    /// Runs the command.
    pub async fn run(self, stop: Stop) -> Result<(), OperatorError> {
        let Command::Start(args) = self.command;
        let operator = NetworkOperator {
            pod_network_image: required_env("POD_NETWORK_IMAGE")?,
            kube_proxy_image: required_env("KUBE_PROXY_IMAGE")?,
            version: required_env("RELEASE_VERSION")?,
        };
        args.run(operator, stop).await
    }
}

struct NetworkOperator {
    pod_network_image: String,
    kube_proxy_image: String,
    version: String,
}

impl Operator for NetworkOperator {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    async fn sync(&self, world: &World) -> Result<Round, Error> {
        let view = View {
            config: world.find(&CONFIG, "", "cluster").await?,
            operator: (*world.resource).clone(),
            infrastructure: world.find(&INFRASTRUCTURES, "", "cluster").await?,
            install_config: world.find(&resources::CONFIG_MAPS, INSTALL_CONFIG.0, INSTALL_CONFIG.1).await?,
            applied: world.find(&resources::CONFIG_MAPS, NAMESPACE, APPLIED).await?,
            pod_network: world
                .find(&resources::DAEMON_SETS, render::POD_NETWORK.0, render::POD_NETWORK.1)
                .await?,
            kube_proxy: world
                .find(&resources::DAEMON_SETS, render::KUBE_PROXY.0, render::KUBE_PROXY.1)
                .await?,
        };
        let (round, status) = self.decide(&view);
        if let Some(status) = status.filter(|status| view.config["status"] != *status) {
            let mut config = view.config;
            config["status"] = status;
            world.client.api(&CONFIG).replace_sub::<Value>("cluster", "status", &config).await?;
        }
        Ok(round)
    }
}

/// What is read.
#[derive(Default)]
struct View {
    config: Value,
    operator: Value,
    infrastructure: Value,
    install_config: Value,
    applied: Value,
    pod_network: Value,
    kube_proxy: Value,
}

impl NetworkOperator {
    /// What is to be done, and what the status of the configuration is to say.
    fn decide(&self, view: &View) -> (Round, Option<Value>) {
        let mut round = Round::default();
        let applied: Option<NetworkConfig> =
            view.applied["data"]["applied"].as_str().and_then(|text| serde_json::from_str(text).ok());
        let mut degraded = None;
        let wanted = match self.wanted(view, applied.as_ref()) {
            Ok(config) => Some(config),
            Err((reason, problems)) => {
                degraded = Some(Condition::not_fine("NetworkDegraded", reason, problems));
                applied
            }
        };
        let api_server = config::api_server(&view.infrastructure);
        if api_server.is_none() && degraded.is_none() {
            let message =
                "infrastructures.config.openshift.io \"cluster\" does not say status.apiServerInternalURI";
            degraded = Some(Condition::not_fine("NetworkDegraded", "BootstrapError", message));
        }
        round.conditions.push(degraded.unwrap_or_else(|| Condition::fine("NetworkDegraded")));
        let (Some(config), Some(api_server)) = (wanted, api_server) else {
            round.conditions.push(Condition::new("NetworkProgressing", "False", "NotDeployed", ""));
            let message = "no configuration of the network has been in force yet";
            round.conditions.push(Condition::not_fine("NetworkAvailable", "NotDeployed", message));
            return (round, None);
        };
        let around = Surroundings {
            pod_network_image: &self.pod_network_image,
            kube_proxy_image: &self.kube_proxy_image,
            api_server,
        };
        round.restore = render::objects(&config, &around);
        // Values made here serialise.
        let text = serde_json::to_string(&config).unwrap_or_default();
        round.write.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": APPLIED, "namespace": NAMESPACE},
            "data": {"applied": text},
        }));
        let wanted_sets = render::daemon_sets(&config);
        for set in [render::POD_NETWORK, render::KUBE_PROXY] {
            if !wanted_sets.contains(&set) {
                round.delete.push((resources::DAEMON_SETS, client::Key::new(set.0, set.1)));
            }
        }
        let found = |set: &(&str, &str)| {
            if *set == render::POD_NETWORK { &view.pod_network } else { &view.kube_proxy }
        };
        let rollouts: Vec<Rollout> = wanted_sets
            .iter()
            // The proxies of masters are static pods; where there is nobody else, there is nothing to roll out.
            .map(|set| Rollout::of_daemon_set(found(set), *set, *set == render::KUBE_PROXY))
            .collect();
        let under_way: Vec<&str> = rollouts.iter().filter_map(|one| one.progress.as_deref()).collect();
        let missing: Vec<&str> = rollouts.iter().filter_map(|one| one.missing.as_deref()).collect();
        round.conditions.push(match under_way.is_empty() {
            true => Condition::fine("NetworkProgressing"),
            false => Condition::not_fine("NetworkProgressing", "Deploying", under_way.join("\n")),
        });
        round.conditions.push(match missing.is_empty() {
            true => Condition::fine("NetworkAvailable"),
            false => Condition::not_fine("NetworkAvailable", "Startup", missing.join("\n")),
        });
        if under_way.is_empty() && missing.is_empty() {
            round.versions.push(("operator".to_owned(), self.version.clone()));
        }
        (round, Some(config.status()))
    }

    fn wanted(
        &self,
        view: &View,
        applied: Option<&NetworkConfig>,
    ) -> Result<NetworkConfig, (&'static str, String)> {
        if view.config.is_null() {
            return Err(("NoClusterConfig", "networks.config.openshift.io \"cluster\" not found".to_owned()));
        }
        if view.install_config.is_null() {
            let message =
                format!("configmaps {:?} not found in namespace {}", INSTALL_CONFIG.1, INSTALL_CONFIG.0);
            return Err(("BootstrapError", message));
        }
        let machines = config::machine_networks(&view.install_config)
            .map_err(|problem| ("BootstrapError", format!("configmap {}: {problem}", INSTALL_CONFIG.1)))?;
        let invalid = |problems: Vec<String>| ("InvalidOperatorConfig", problems.join("\n"));
        let config = NetworkConfig::merge(&view.config, &view.operator).map_err(invalid)?;
        let mut problems = config.clashes(&machines);
        problems.extend(applied.map(|applied| config.changes(applied)).unwrap_or_default());
        if problems.is_empty() { Ok(config) } else { Err(invalid(problems)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::conditions::Condition;

    fn operator() -> NetworkOperator {
        NetworkOperator {
            pod_network_image: "p".into(),
            kube_proxy_image: "k".into(),
            version: "5.0.0".into(),
        }
    }

    fn view() -> View {
        View {
            config: json!({"spec": {
                "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}],
                "serviceNetwork": ["172.30.0.0/16"], "networkType": "OVNKubernetes",
            }}),
            operator: json!({"spec": {"managementState": "Managed"}}),
            infrastructure: json!({"status": {"apiServerInternalURI": "https://api-int.a:6443"}}),
            install_config: json!({"data": {"install-config": "networking: {machineNetwork: [{cidr: 10.0.0.0/16}]}"}}),
            ..View::default()
        }
    }

    fn condition<'a>(round: &'a Round, kind: &str) -> &'a Condition {
        round.conditions.iter().find(|one| one.kind == kind).unwrap()
    }

    fn rolled_out(nodes: u32) -> Value {
        json!({"metadata": {"generation": 1}, "status": {
            "observedGeneration": 1, "desiredNumberScheduled": nodes, "updatedNumberScheduled": nodes,
            "numberAvailable": nodes, "numberReady": nodes,
        }})
    }

    #[test]
    fn the_network_is_available_once_it_was_rolled_out() {
        let mut view = view();
        let (round, status) = operator().decide(&view);
        assert_eq!(condition(&round, "NetworkProgressing").reason, "Deploying");
        assert_eq!(condition(&round, "NetworkAvailable").status, "False");
        assert!(round.versions.is_empty() && !round.restore.is_empty());
        assert_eq!(status.unwrap()["networkType"], "OVNKubernetes");
        view.pod_network = rolled_out(3);
        view.kube_proxy = rolled_out(0);
        let (round, _) = operator().decide(&view);
        assert_eq!(condition(&round, "NetworkAvailable").status, "True");
        assert_eq!(condition(&round, "NetworkProgressing").status, "False");
        assert_eq!(round.versions, [("operator".to_owned(), "5.0.0".to_owned())]);
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_made_of_it() {
        let cases: [(fn(&mut View), &str, &str); 4] = [
            (|view| view.install_config = Value::Null, "BootstrapError", "cluster-config-v1"),
            (|view| view.config = Value::Null, "NoClusterConfig", "networks.config.openshift.io"),
            (|view| view.infrastructure = Value::Null, "BootstrapError", "apiServerInternalURI"),
            (
                |view| view.config["spec"]["serviceNetwork"] = json!([]),
                "InvalidOperatorConfig",
                "serviceNetwork",
            ),
        ];
        for (spoil, reason, wanted) in cases {
            let mut view = view();
            spoil(&mut view);
            let (round, status) = operator().decide(&view);
            let degraded = condition(&round, "NetworkDegraded");
            assert_eq!(degraded.reason, reason);
            assert!(degraded.message.contains(wanted), "{}", degraded.message);
            assert!(round.restore.is_empty() && status.is_none());
        }
    }

    #[test]
    fn a_change_that_cannot_be_had_leaves_what_is_in_force() {
        let mut view = view();
        let (round, _) = operator().decide(&view);
        view.applied = round.write[0].clone();
        view.config["spec"]["clusterNetwork"][0]["cidr"] = json!("10.132.0.0/14");
        let (after, _) = operator().decide(&view);
        assert_eq!(condition(&after, "NetworkDegraded").reason, "InvalidOperatorConfig");
        assert_eq!(after.restore, round.restore, "what was lost of it still comes back");
        assert_eq!(after.write, round.write);
    }
}
