//! What the operators of the three Kubernetes programs share: their command line, their images, their pods.

use clap::{Args, Subcommand};
use client::Resource;
use lifecycle::Stop;
use serde_json::{Value, json};
use thiserror::Error;

use super::certificates::config_map;
use super::driver::{Operator, Round};
use super::program::{OperatorArgs, OperatorError, required_env};
use super::static_pod::StaticPod;
use super::static_pod::install::{InstallError, InstallerArgs};
use super::static_pod::prune::{PruneArgs, PruneError};

/// Where the revision's files are inside a pod.
pub const RESOURCES: &str = "/etc/kubernetes/static-pod-resources";
/// Where files that change without a revision are.
pub const CERTS: &str = "/etc/kubernetes/static-pod-certs";

pub const INFRASTRUCTURES: Resource =
    Resource::cluster("config.openshift.io", "v1", "infrastructures", "Infrastructure");
pub const NETWORKS: Resource = Resource::cluster("config.openshift.io", "v1", "networks", "Network");

/// What the operator's Deployment says of itself and of what it runs.
#[derive(Clone, Debug)]
pub struct Images {
    pub operand: String,
    pub operator: String,
    pub version: String,
    pub operand_version: String,
}

impl Images {
    pub fn from_env() -> Result<Self, OperatorError> {
        Ok(Self {
            operand: required_env("IMAGE")?,
            operator: required_env("OPERATOR_IMAGE")?,
            version: required_env("OPERATOR_IMAGE_VERSION")?,
            operand_version: required_env("OPERAND_IMAGE_VERSION")?,
        })
    }

    /// What is told once everything runs.
    pub fn versions(&self, operand: &str) -> Vec<(String, String)> {
        vec![
            ("raw-internal".to_owned(), self.version.clone()),
            (operand.to_owned(), self.operand_version.clone()),
            ("operator".to_owned(), self.version.clone()),
        ]
    }
}

/// The command line of an operator of a static pod.
#[derive(Args, Clone, Debug)]
pub struct StaticPodOperatorArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Operator(Box<OperatorArgs>),
    Installer(Box<InstallerArgs>),
    Prune(PruneArgs),
}

/// Why the command failed.
#[derive(Debug, Error)]
pub enum StaticPodOperatorError {
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error("the revision cannot be installed")]
    Install(#[from] InstallError),
    #[error(transparent)]
    Prune(#[from] PruneError),
}

impl StaticPodOperatorArgs {
    pub async fn run<O: Operator>(
        self,
        make: impl FnOnce(Images) -> O,
        stop: Stop,
    ) -> Result<(), StaticPodOperatorError> {
        match self.command {
            Command::Operator(args) => Ok(args.run(make(Images::from_env()?), stop).await?),
            Command::Installer(args) => Ok(args.run(stop).await?),
            Command::Prune(args) => Ok(args.run()?),
        }
    }
}

/// A static pod with one container.
pub struct Pod<'a> {
    pub table: &'a StaticPod,
    pub image: &'a str,
    pub labels: Value,
    pub command: Vec<String>,
    pub port: u16,
    pub requests: (&'a str, &'a str),
    pub liveness: Value,
    pub readiness: Value,
    pub grace: u32,
    /// Directories of the machine that may be written: name and path.
    pub writes: &'a [(&'a str, &'a str)],
}

/// A probe of the secure port.
pub fn https_get(port: u16, path: &str, delay: u32, period: u32, failures: u32) -> Value {
    json!({
        "httpGet": {"host": "localhost", "scheme": "HTTPS", "port": port, "path": path},
        "initialDelaySeconds": delay, "periodSeconds": period, "timeoutSeconds": 10,
        "failureThreshold": failures,
    })
}

impl Pod<'_> {
    /// The ConfigMap that holds it.
    pub fn config_map(self) -> Value {
        let table = self.table;
        let mut mounts = vec![
            json!({"name": "resource-dir", "mountPath": RESOURCES, "readOnly": true}),
            json!({"name": "cert-dir", "mountPath": CERTS, "readOnly": true}),
        ];
        let host = "/etc/kubernetes/static-pod-resources";
        let revision = format!("{host}/{}-REVISION", table.pod_config_map());
        let certs = format!("{host}/{}-certs", table.name);
        let mut volumes = vec![
            json!({"name": "resource-dir", "hostPath": {"path": revision, "type": "Directory"}}),
            json!({"name": "cert-dir", "hostPath": {"path": certs, "type": "DirectoryOrCreate"}}),
        ];
        for (name, path) in self.writes {
            mounts.push(json!({"name": name, "mountPath": path}));
            volumes.push(json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}));
        }
        let mut labels = self.labels;
        labels["revision"] = json!("REVISION");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": table.name, "namespace": table.namespace, "labels": labels,
                "annotations": {
                    "kubectl.kubernetes.io/default-container": table.name,
                    "target.workload.openshift.io/management": "{\"effect\": \"PreferredDuringScheduling\"}",
                },
            },
            "spec": {
                "hostNetwork": true,
                "priorityClassName": "system-node-critical", "priority": 2_000_001_000,
                "terminationGracePeriodSeconds": self.grace,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": table.name.trim_start_matches("openshift-"),
                    "image": self.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": self.command,
                    "ports": [{"containerPort": self.port, "hostPort": self.port, "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": self.requests.0, "memory": self.requests.1}},
                    "securityContext": {"privileged": true},
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "livenessProbe": self.liveness,
                    "readinessProbe": self.readiness,
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        });
        // A tree of maps and texts can always be written as text.
        let text = serde_json::to_string_pretty(&pod).unwrap_or_default();
        config_map(table.namespace, table.pod_config_map(), &[("pod.yaml", text)])
    }
}

/// Copies the content of an object of one namespace into another, if it is there.
pub fn sync(round: &mut Round, from: &Value, namespace: &str, name: &str) -> bool {
    if from.is_null() {
        return false;
    }
    let mut copy = json!({
        "apiVersion": "v1", "kind": from["kind"], "metadata": {"name": name, "namespace": namespace},
    });
    for field in ["type", "data", "binaryData"] {
        if !from[field].is_null() {
            copy[field] = from[field].clone();
        }
    }
    round.write.push(copy);
    true
}

/// The address at a distance from the beginning of a range.
pub fn nth_address(range: &str, distance: u128) -> Option<String> {
    let (base, _) = range.split_once('/')?;
    match base.parse::<std::net::IpAddr>().ok()? {
        std::net::IpAddr::V4(base) => {
            let sum = u32::from(base).checked_add(u32::try_from(distance).ok()?)?;
            Some(std::net::Ipv4Addr::from(sum).to_string())
        }
        std::net::IpAddr::V6(base) => {
            Some(std::net::Ipv6Addr::from(u128::from(base).checked_add(distance)?).to_string())
        }
    }
}

/// The host of a URL.
pub fn host_of(url: &str) -> Option<String> {
    let rest = url.split_once("://")?.1;
    let rest = rest.split('/').next()?;
    let host = rest.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
    let host = host.map_or(rest, |(host, _)| host).trim_matches(['[', ']']);
    (!host.is_empty()).then(|| host.to_owned())
}

/// A kubeconfig whose identity is in files beside it.
pub fn kubeconfig(server: &str, ca: &str, certificate: &str, key: &str, user: &str) -> String {
    let value = json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority": ca}}],
        "users": [{"name": user, "user": {"client-certificate": certificate, "client-key": key}}],
        "contexts": [{"name": user, "context": {"cluster": "cluster", "user": user}}],
        "current-context": user,
    });
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts() {
        assert_eq!(nth_address("172.30.0.0/16", 1).as_deref(), Some("172.30.0.1"));
        assert_eq!(nth_address("fd02::/112", 10).as_deref(), Some("fd02::a"));
        assert_eq!(nth_address("nonsense", 1), None);
        assert_eq!(host_of("https://api-int.lab.example:6443").as_deref(), Some("api-int.lab.example"));
        assert_eq!(host_of("https://[fd00::1]:6443/x").as_deref(), Some("fd00::1"));
        assert_eq!(host_of("api"), None);
    }
}
