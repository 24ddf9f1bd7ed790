//! The etcd operator: certificates and a static pod for each node of the control plane, and the members themselves.
//!
//! `members` decides who joins, is promoted and leaves; `pod` says how a member runs; `discover` runs on the machine and
//! waits until its member may start; `wait_for_ceo` is what the bootstrap machine ends with.

mod discover;
mod members;
mod pod;
mod wait_for_ceo;

use std::time::Duration;

use clap::{Args, Subcommand};
use client::{Error, Resource, resources};
use lifecycle::Stop;
use serde_json::{Value, json};
use thiserror::Error as ThisError;

use crate::library::certificates::{
    CertificateError, Wanted, bundle, config_map, keep, pair_of, secret, tls_secret,
};
use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::config::{LOG_LEVELS, refused};
use crate::library::driver::{About, Operator, Round, World};
use crate::library::program::{OperatorArgs, OperatorError, required_env};
use crate::library::restore::embedded;
use crate::library::static_pod::install::{InstallError, InstallerArgs};
use crate::library::static_pod::prune::{PruneArgs, PruneError};
use crate::library::static_pod::{self, Read, StaticPod, internal_ip, name_of, needs, takes};

use members::{Cluster, Step};

const NAMESPACE: &str = "openshift-etcd";
const CONFIG: &str = "openshift-config";
/// Days that the certificates of members and clients live.
const DAYS: i64 = 3 * 365;

pub const ETCDS: Resource = Resource::cluster("operator.openshift.io", "v1", "etcds", "Etcd");
const INFRASTRUCTURES: Resource =
    Resource::cluster("config.openshift.io", "v1", "infrastructures", "Infrastructure");
const KUBE_API_SERVERS: Resource =
    Resource::cluster("operator.openshift.io", "v1", "kubeapiservers", "KubeAPIServer");

static ABOUT: About = About {
    program: "cluster-etcd-operator",
    namespace: "openshift-etcd-operator",
    lease: "openshift-cluster-etcd-operator-lock",
    cluster_operator: "etcd",
    resource: ETCDS,
    name: "cluster",
    follows: &[
        (resources::CONFIG_MAPS, NAMESPACE),
        (resources::SECRETS, NAMESPACE),
        (resources::PODS, NAMESPACE),
        (resources::NODES, ""),
        (INFRASTRUCTURES, ""),
        (KUBE_API_SERVERS, ""),
    ],
    related: RELATED,
    resources_condition: "EtcdStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    of_cluster("operator.openshift.io", "etcds", "cluster"),
    namespace(CONFIG),
    namespace("openshift-config-managed"),
    namespace("openshift-etcd-operator"),
    namespace(NAMESPACE),
];

/// Certificates and where others are found change as nodes come; no member is started anew for that.
const TABLE: StaticPod = StaticPod {
    namespace: NAMESPACE,
    name: "etcd",
    program: "cluster-etcd-operator",
    config_maps: &[needs("etcd-pod"), needs("etcd-ca-bundle")],
    secrets: &[],
    cert_config_maps: &[needs("etcd-ca-bundle"), takes("etcd-discovery")],
    cert_secrets: &[needs("etcd-all-certs")],
};

/// Runs etcd on the nodes of the control plane.
#[derive(Args, Clone, Debug)]
pub struct ClusterEtcdOperatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Operator(Box<OperatorArgs>),
    Installer(Box<InstallerArgs>),
    Prune(PruneArgs),
    DiscoverEtcdInitialCluster(discover::DiscoverArgs),
    WaitForCeo(Box<wait_for_ceo::WaitForCeoArgs>),
}

/// Why the command failed.
#[derive(Debug, ThisError)]
pub enum EtcdOperatorError {
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error("the revision cannot be installed")]
    Install(#[from] InstallError),
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error("the member cannot be started")]
    Discover(#[from] discover::DiscoverError),
    #[error(transparent)]
    Wait(#[from] wait_for_ceo::WaitError),
}

impl ClusterEtcdOperatorArgs {
    pub async fn run(self, stop: Stop) -> Result<(), EtcdOperatorError> {
        match self.command {
            Command::Operator(args) => {
                let operator = EtcdOperator {
                    image: required_env("IMAGE")?,
                    operator_image: required_env("OPERATOR_IMAGE")?,
                    version: required_env("OPERATOR_IMAGE_VERSION")?,
                    operand_version: required_env("OPERAND_IMAGE_VERSION")?,
                };
                Ok(args.run(operator, stop).await?)
            }
            Command::Installer(args) => Ok(args.run(stop).await?),
            Command::Prune(args) => Ok(args.run()?),
            Command::DiscoverEtcdInitialCluster(args) => Ok(args.run(stop).await?),
            Command::WaitForCeo(args) => Ok(args.run(stop).await?),
        }
    }
}

struct EtcdOperator {
    image: String,
    operator_image: String,
    version: String,
    operand_version: String,
}

/// What the decisions about etcd are made from, beside what all static pods need.
struct Around {
    infrastructure: Value,
    /// What the API server's operator says of its nodes.
    api_servers: Value,
    /// Whether the bootstrap machine has seen the control plane run on others.
    handed_over: bool,
}

impl Around {
    async fn of(world: &World) -> Result<Self, Error> {
        let bootstrap = async {
            let config = world.find(&resources::CONFIG_MAPS, "kube-system", "bootstrap").await?;
            if config["data"]["status"] == "complete" {
                return Ok(true);
            }
            let event = world.find(&resources::CORE_EVENTS, "kube-system", "bootstrap-success").await?;
            Ok(!event.is_null())
        };
        let find = async |resource: Resource| world.find(&resource, "", "cluster").await;
        let (infrastructure, api_servers, handed_over) =
            tokio::try_join!(find(INFRASTRUCTURES), find(KUBE_API_SERVERS), bootstrap)?;
        Ok(Self { infrastructure, api_servers, handed_over })
    }

    /// How many voting members the masters need before the first one may go.
    fn needed(&self) -> usize {
        match self.infrastructure["status"]["controlPlaneTopology"].as_str() {
            Some("SingleReplica") => 1,
            _ => 3,
        }
    }

    /// Whether API servers run on enough masters to go on without the bootstrap machine's.
    fn api_servers_run(&self) -> bool {
        let nodes = self.api_servers["status"]["nodeStatuses"].as_array().into_iter().flatten();
        let current = nodes.filter(|node| node["currentRevision"].as_i64().unwrap_or(0) > 0).count();
        current >= if self.needed() == 1 { 1 } else { 2 }
    }
}

impl Operator for EtcdOperator {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    async fn sync(&self, world: &World) -> Result<Round, Error> {
        let (read, around) = tokio::try_join!(Read::of(world, &TABLE), Around::of(world))?;
        let mut round = Round::default();
        let mut errors = Vec::new();
        match embedded(include_str!("resources.yaml")) {
            Ok(objects) => round.restore = objects,
            Err(error) => errors.push(error.to_string()),
        }
        let client = match certificates(&read, world, &mut round) {
            Ok(client) => Some(client),
            Err(error) => {
                errors.push(telemetry::chain(&error).to_string());
                None
            }
        };
        round.conditions.push(Condition::of_errors("EtcdCertSignerControllerDegraded", "Error", &errors));
        let refused = refused("etcds.operator.openshift.io/cluster", &world.resource["spec"], LOG_LEVELS);
        round.conditions.push(Condition::of_errors("ConfigObservationDegraded", "Error", &refused));
        match pod::config_map(&world.resource["spec"], &self.image) {
            Ok(map) => {
                round.write.push(map);
                round.conditions.push(Condition::fine("EtcdPodDegraded"));
            }
            Err(reason) => {
                round.conditions.push(Condition::not_fine("EtcdPodDegraded", "InvalidConfiguration", reason));
            }
        }
        let endpoints = read.config_map("etcd-endpoints");
        let cluster = match &client {
            Some(client) => members::observe(client, endpoints, &read.nodes, &world.tasks).await,
            None => Err("there is no certificate to ask the members with".to_owned()),
        };
        let hold = self.members(&cluster, &client, &read, &around, world, &mut round).await;
        let done = static_pod::plan(&TABLE, &read.view(world, &self.operator_image, hold), &mut round);
        if done {
            let image = |name: &str| (name.to_owned(), self.version.clone());
            round.versions = vec![
                image("operator"),
                ("raw-internal".to_owned(), self.version.clone()),
                ("etcd".to_owned(), self.operand_version.clone()),
            ];
        }
        Ok(round)
    }
}

impl EtcdOperator {
    /// Takes the next step with the members, and says why no node may be changed now.
    async fn members(
        &self,
        cluster: &Result<Cluster, String>,
        client: &Option<members::Client>,
        read: &Read,
        around: &Around,
        world: &World,
        round: &mut Round,
    ) -> Option<String> {
        const CONTROLLER: &str = "ClusterMemberControllerDegraded";
        let cluster = match (cluster, client) {
            (Ok(cluster), Some(_)) => cluster,
            (Err(reason), _) => {
                round.conditions.push(Condition::new(
                    "EtcdMembersAvailable",
                    "Unknown",
                    "NoConnection",
                    reason.clone(),
                ));
                round.conditions.push(Condition::not_fine(CONTROLLER, "Error", reason.clone()));
                round.look_again(Duration::from_secs(2));
                // Before there is any member to ask nothing can be broken by waiting for it.
                return Some(format!("the members cannot be asked: {reason}"));
            }
            (Ok(_), None) => return Some("there is no certificate to ask the members with".to_owned()),
        };
        round.conditions.extend(cluster.conditions());
        let asked = members::View {
            cluster,
            nodes: &read.nodes,
            pods: &read.pods,
            needed: around.needed(),
            may_remove_bootstrap: around.handed_over && around.api_servers_run(),
        };
        let step = members::decide(&asked);
        let mut errors = Vec::new();
        if let (Some(step), Some(client)) = (&step, client) {
            match members::take(step, client, cluster, &world.tasks).await {
                Ok(()) => {
                    let (reason, message) = step.told();
                    round.events.push((reason, message));
                }
                // A learner that has not caught up yet is no failure.
                Err(_) if matches!(step, Step::Promote { .. }) => {}
                Err(error) => errors.push(format!("{step:?}: {error}")),
            }
        }
        round.conditions.push(Condition::of_errors(CONTROLLER, "Error", &errors));
        if step.is_some() || cluster.is_changing() {
            round.look_again(Duration::from_millis(300));
        } else {
            let calm = cluster.all_healthy() && !cluster.has_bootstrap();
            round.look_again(Duration::from_secs(if calm { 5 } else { 2 }));
        }
        round.conditions.push(cluster.bootstrap_condition());
        let existing = read.config_map("etcd-endpoints");
        round.write.extend(cluster.endpoints(existing));
        round.write.push(config_map(
            NAMESPACE,
            "etcd-discovery",
            &[("endpoints", cluster.client_urls().join(","))],
        ));
        round.conditions.push(Condition::fine("EtcdEndpointsDegraded"));
        let lacking = read.nodes.iter().map(name_of).find(|node| {
            let all = read.secret("etcd-all-certs").map(|secret| &secret["data"]);
            all.is_none_or(|data| data[format!("etcd-peer-{node}.crt")].is_null())
        });
        if let Some(node) = lacking {
            round.look_again(Duration::from_millis(50));
            return Some(format!("node {node:?} has no certificates yet"));
        }
        let latest = world.resource["status"]["latestAvailableRevision"].as_i64().unwrap_or(0);
        members::hold(&asked, &world.resource["status"]["nodeStatuses"], latest)
    }
}

/// Keeps the certificates of every node, and gives the client that the members are asked with.
fn certificates(read: &Read, world: &World, round: &mut Round) -> Result<members::Client, CertificateError> {
    let now = world.now;
    let signer = pair_of(read.secret("etcd-signer"), "openshift-etcd/etcd-signer")?;
    let known = read.config_map("etcd-ca-bundle").and_then(|map| map["data"]["ca-bundle.crt"].as_str());
    let own = signer.certificate_pem();
    // Earlier signers stay until they end: what they signed may still be shown.
    let ca = bundle(&[own.as_bytes(), known.unwrap_or_default().as_bytes()], now);
    for place in [NAMESPACE, CONFIG] {
        round.write.push(config_map(place, "etcd-ca-bundle", &[("ca-bundle.crt", ca.clone())]));
    }
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for node in &read.nodes {
        let name = name_of(node);
        let Some(address) = internal_ip(node) else { continue };
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let mut names = local.to_vec();
        names.extend([name.to_owned(), address.to_owned()]);
        let mut serving = names.clone();
        serving.extend(
            ["etcd", "etcd.openshift-etcd", "etcd.openshift-etcd.svc", "etcd.kube-system.svc"]
                .map(str::to_owned),
        );
        for (prefix, common_name, names) in
            [("etcd-peer", "system:etcd-peer", names), ("etcd-serving", "system:etcd-server", serving)]
        {
            let object = format!("{prefix}-{name}");
            let wanted = Wanted::peer(&format!("{common_name}:{name}"), names, DAYS);
            let (pair, new) = keep(read.secret(&object), &signer, &wanted, now)?;
            if new {
                round.write.push(tls_secret(NAMESPACE, &object, &pair));
            }
            all.push((format!("{object}.crt"), pair.certificate_pem().into_bytes()));
            all.push((format!("{object}.key"), pair.key_pem().into_bytes()));
        }
    }
    if !all.is_empty() {
        round.write.push(secret(NAMESPACE, "etcd-all-certs", &all));
    }
    let wanted = Wanted::client("system:etcd-client", &["etcd"], DAYS);
    let (pair, new) = keep(read.secret("etcd-client"), &signer, &wanted, now)?;
    if new {
        round.write.push(tls_secret(NAMESPACE, "etcd-client", &pair));
    }
    round.write.push(tls_secret(CONFIG, "etcd-client", &pair));
    Ok(members::Client {
        ca: ca.into_bytes(),
        certificate: pair.certificate_pem().into_bytes(),
        key: pair.key_pem().into_bytes(),
    })
}

/// An object with an annotation, for a round to write.
fn annotated(mut object: Value, name: &str, value: Value) -> Value {
    object["metadata"]["annotations"] = json!({name: value});
    object
}
