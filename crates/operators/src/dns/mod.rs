//! cluster-dns-operator: from the DNS object to the servers on every node and the Service that leads to them.

mod corefile;

use std::net::IpAddr;

use clap::{Args, Subcommand};
use client::{Error, Resource, resources};
use ipnet::IpNet;
use lifecycle::Stop;
use serde_json::{Value, json};

use crate::library::cluster_operator::{Related, namespace, of_cluster};
use crate::library::conditions::Condition;
use crate::library::driver::{About, Operator, Round, World};
use crate::library::program::{OperatorArgs, OperatorError, required_env};
use crate::library::workload::{self, Rollout};

const NETWORKS: Resource = Resource::cluster("config.openshift.io", "v1", "networks", "Network");
const NAMESPACE: &str = "openshift-dns";
const NAME: &str = "dns-default";
/// What the Service's pods are known by.
const LABEL: &str = "dns.operator.openshift.io/daemonset-dns";
/// Which address of the Services' is the DNS server's.
const TENTH: u32 = 10;

static ABOUT: About = About {
    program: "dns-operator",
    namespace: "openshift-dns-operator",
    lease: "dns-operator-lock",
    cluster_operator: "dns",
    resource: Resource::cluster("operator.openshift.io", "v1", "dnses", "DNS"),
    name: "default",
    follows: &[
        (NETWORKS, ""),
        (resources::DAEMON_SETS, NAMESPACE),
        (resources::CONFIG_MAPS, NAMESPACE),
        (resources::SERVICES, NAMESPACE),
    ],
    related: RELATED,
    resources_condition: "DNSStaticResourcesDegraded",
    removable: false,
};

const RELATED: &[Related] = &[
    namespace("openshift-dns-operator"),
    of_cluster("operator.openshift.io", "dnses", "default"),
    namespace(NAMESPACE),
];

/// Keeps the cluster DNS as the DNS object says.
#[derive(Args, Clone, Debug)]
pub struct ClusterDnsOperatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Runs the operator
    #[command(alias = "operator")]
    Start(Box<OperatorArgs>),
}

impl ClusterDnsOperatorArgs {
    /// Runs the command.
    pub async fn run(self, stop: Stop) -> Result<(), OperatorError> {
        let Command::Start(args) = self.command;
        let operator =
            DnsOperator { image: required_env("IMAGE")?, version: required_env("RELEASE_VERSION")? };
        args.run(operator, stop).await
    }
}

struct DnsOperator {
    image: String,
    version: String,
}

/// What is read.
#[derive(Default)]
struct View {
    dns: Value,
    network: Value,
    service: Value,
    config_map: Value,
    daemon_set: Value,
}

impl Operator for DnsOperator {
    fn about(&self) -> &'static About {
        &ABOUT
    }

    async fn sync(&self, world: &World) -> Result<Round, Error> {
        Ok(self.decide(&View {
            dns: (*world.resource).clone(),
            network: world.find(&NETWORKS, "", "cluster").await?,
            service: world.find(&resources::SERVICES, NAMESPACE, NAME).await?,
            config_map: world.find(&resources::CONFIG_MAPS, NAMESPACE, NAME).await?,
            daemon_set: world.find(&resources::DAEMON_SETS, NAMESPACE, NAME).await?,
        }))
    }
}

impl DnsOperator {
    fn decide(&self, view: &View) -> Round {
        let mut round = Round::default();
        let mut problems = Vec::new();
        let address = cluster_ip(&view.network);
        if address.is_none() {
            problems
                .push("networks.config.openshift.io \"cluster\" does not say spec.serviceNetwork".to_owned());
        }
        let taken = view.service["spec"]["clusterIP"].as_str();
        if let (Some(address), Some(taken)) = (address, taken)
            && taken != address.to_string()
        {
            problems.push(format!(
                "service {NAMESPACE}/{NAME} has the address {taken}, not {address}: delete it"
            ));
        }
        // What cannot be had leaves the file that is in force.
        let file = match corefile::render(&view.dns["spec"]) {
            Ok(file) => Some(file),
            Err(wrong) => {
                problems.extend(wrong);
                view.config_map["data"]["Corefile"].as_str().map(str::to_owned)
            }
        };
        let reason = if address.is_none() { "MissingClusterIP" } else { "InvalidDNSConfig" };
        round.conditions.push(Condition::of_errors("DNSDegraded", reason, &problems));
        let (Some(address), Some(file)) = (address, file) else {
            round.conditions.push(Condition::new("DNSProgressing", "False", "NotDeployed", ""));
            let message = "no configuration of the DNS has been in force yet";
            round.conditions.push(Condition::not_fine("DNSAvailable", "NotDeployed", message));
            return round;
        };
        round.restore = self.objects(&view.dns["spec"], address);
        round.write.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": owned()},
            "data": {"Corefile": file},
        }));
        round.status.insert("clusterIP".to_owned(), json!(address));
        round.status.insert("clusterDomain".to_owned(), json!(corefile::DOMAIN));
        let rollout = Rollout::of_daemon_set(&view.daemon_set, (NAMESPACE, NAME), false);
        round.conditions.push(match &rollout.progress {
            None => Condition::fine("DNSProgressing"),
            Some(message) => Condition::not_fine("DNSProgressing", "Reconciling", message.clone()),
        });
        round.conditions.push(match (&rollout.missing, taken) {
            (None, Some(_)) => Condition::fine("DNSAvailable"),
            (Some(message), _) => {
                Condition::not_fine("DNSAvailable", "DaemonSetUnavailable", message.clone())
            }
            (None, None) => {
                Condition::not_fine("DNSAvailable", "NoService", "the DNS service has no address yet")
            }
        });
        if rollout == Rollout::default() && taken.is_some() {
            round.versions.push(("operator".to_owned(), self.version.clone()));
            round.versions.push(("coredns".to_owned(), self.version.clone()));
        }
        round
    }

    fn objects(&self, spec: &Value, address: IpAddr) -> Vec<Value> {
        let account = (NAMESPACE, "dns");
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "openshift-dns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": owned()},
            "spec": {
                "clusterIP": address,
                "selector": {LABEL: "default"},
                "ports": [
                    {"name": "dns", "port": 53, "targetPort": "dns", "protocol": "UDP"},
                    {"name": "dns-tcp", "port": 53, "targetPort": "dns-tcp", "protocol": "TCP"},
                ],
            },
        });
        vec![
            workload::namespace(NAMESPACE, "The servers of the cluster's names."),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account.1, "namespace": account.0}}),
            role,
            workload::cluster_role_binding("openshift-dns", "openshift-dns", account),
            service,
            self.daemon_set(spec),
        ]
    }

    fn daemon_set(&self, spec: &Value) -> Value {
        let placement = &spec["nodePlacement"];
        let selector = match &placement["nodeSelector"] {
            Value::Object(labels) if !labels.is_empty() => json!(labels),
            _ => json!({"kubernetes.io/os": "linux"}),
        };
        let tolerations = match &placement["tolerations"] {
            Value::Array(list) if !list.is_empty() => json!(list),
            _ => json!([{"key": "node-role.kubernetes.io/master", "operator": "Exists"}]),
        };
        let probe = |path: &str, port: u16, period: u32, failures: u32| {
            json!({
                "httpGet": {"path": path, "port": port, "scheme": "HTTP"},
                "periodSeconds": period, "timeoutSeconds": 3, "failureThreshold": failures, "successThreshold": 1,
            })
        };
        let container = json!({
            "name": "dns", "image": self.image, "imagePullPolicy": "IfNotPresent",
            "command": ["/usr/bin/coredns"], "args": ["-conf", "/etc/coredns/Corefile"],
            "ports": [
                {"name": "dns", "containerPort": corefile::PORT, "protocol": "UDP"},
                {"name": "dns-tcp", "containerPort": corefile::PORT, "protocol": "TCP"},
            ],
            "readinessProbe": probe("/ready", 8181, 3, 3),
            "livenessProbe": probe("/health", 8080, 10, 5),
            "resources": {"requests": {"cpu": "10m", "memory": "30Mi"}},
            "securityContext": {
                "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [{"name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true}],
        });
        let mut set = workload::daemon_set(
            (NAMESPACE, NAME),
            json!({
                "metadata": {},
                "spec": {
                    "serviceAccountName": "dns", "priorityClassName": "system-node-critical",
                    // Names outside the cluster are the machine's resolvers' affair.
                    "dnsPolicy": "Default",
                    "nodeSelector": selector, "tolerations": tolerations,
                    "terminationGracePeriodSeconds": 40,
                    "containers": [container],
                    "volumes": [{"name": "config-volume", "configMap": {"name": NAME,
                        "items": [{"key": "Corefile", "path": "Corefile"}]}}],
                },
            }),
        );
        set["metadata"]["labels"] = owned();
        set["spec"]["selector"]["matchLabels"] = json!({LABEL: "default"});
        set["spec"]["template"]["metadata"]["labels"] = json!({LABEL: "default"});
        set
    }
}

fn owned() -> Value {
    json!({"dns.operator.openshift.io/owning-dns": "default"})
}

/// The tenth address of the first Service network.
fn cluster_ip(network: &Value) -> Option<IpAddr> {
    let first = [&network["status"], &network["spec"]]
        .into_iter()
        .find_map(|part| part["serviceNetwork"][0].as_str())?;
    let range: IpNet = first.parse().ok()?;
    let address = match range.network() {
        IpAddr::V4(base) => IpAddr::from(std::net::Ipv4Addr::from(u32::from(base).checked_add(TENTH)?)),
        IpAddr::V6(base) => {
            IpAddr::from(std::net::Ipv6Addr::from(u128::from(base).checked_add(TENTH.into())?))
        }
    };
    range.contains(&address).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View {
            dns: json!({"spec": {}}),
            network: json!({"spec": {"serviceNetwork": ["172.30.0.0/16"]}}),
            ..View::default()
        }
    }

    fn decide(view: &View) -> Round {
        DnsOperator { image: "i".into(), version: "5.0.0".into() }.decide(view)
    }

    fn condition<'a>(round: &'a Round, kind: &str) -> &'a Condition {
        round.conditions.iter().find(|one| one.kind == kind).unwrap()
    }

    #[test]
    fn the_dns_is_available_at_the_tenth_address_once_it_was_rolled_out() {
        let mut view = view();
        let round = decide(&view);
        assert_eq!(round.status["clusterIP"], "172.30.0.10");
        assert_eq!(condition(&round, "DNSAvailable").status, "False");
        assert!(round.versions.is_empty());
        view.service = json!({"spec": {"clusterIP": "172.30.0.10"}});
        view.daemon_set = json!({"metadata": {"generation": 1}, "status": {
            "observedGeneration": 1, "desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3,
        }});
        let round = decide(&view);
        assert_eq!(condition(&round, "DNSAvailable").status, "True");
        assert_eq!(round.versions.len(), 2);
        view.service["spec"]["clusterIP"] = json!("172.30.9.9");
        let round = decide(&view);
        assert!(condition(&round, "DNSDegraded").message.contains("172.30.9.9, not 172.30.0.10"));
    }

    #[test]
    fn a_wrong_object_leaves_the_file_that_is_in_force() {
        let mut view = view();
        view.dns["spec"]["servers"] =
            json!([{"name": "a", "zones": ["a"], "forwardPlugin": {"upstreams": ["x"]}}]);
        let round = decide(&view);
        assert_eq!(condition(&round, "DNSDegraded").reason, "InvalidDNSConfig");
        assert!(round.restore.is_empty(), "there never was one");
        view.config_map = json!({"data": {"Corefile": "as it was"}});
        let round = decide(&view);
        assert_eq!(round.write[0]["data"]["Corefile"], "as it was");
        view.network = Value::Null;
        assert_eq!(condition(&decide(&view), "DNSDegraded").reason, "MissingClusterIP");
    }

    #[test]
    fn placement_is_the_administrators() {
        let mut view = view();
        view.dns["spec"]["nodePlacement"] = json!({
            "nodeSelector": {"node-role.kubernetes.io/worker": ""}, "tolerations": [{"operator": "Exists"}],
        });
        let set = decide(&view).restore.pop().unwrap();
        assert_eq!(
            set["spec"]["template"]["spec"]["nodeSelector"],
            json!({"node-role.kubernetes.io/worker": ""})
        );
        assert_eq!(set["spec"]["template"]["spec"]["tolerations"], json!([{"operator": "Exists"}]));
    }
}
