//! `kelson bootstrap bootkube`: from static pods of this machine to a control plane on the masters, stage by stage.
//!
//! Each stage leaves a mark, `.done/NAME` of the asset directory, so that a restart goes on behind it, and a start and an end
//! in the service record. The names are upstream's. Until the masters carry the API this machine's own is asked; from then on
//! the one behind the load balancer, because this machine's has gone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{Client, Patch, Resource};
use serde_json::{Value, json};

use super::cluster_bootstrap::{StartArgs, copy_file, remove_files};
use super::records::Records;
use super::{BootstrapError, MachineArgs, at, connect, error_text, manifests, until};

/// Brings the control plane from this machine to the masters
#[derive(Debug, clap::Args)]
pub struct BootkubeArgs {
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Who asks the API behind the load balancer
    #[arg(long, default_value = "/etc/kubernetes/kubeconfigs/lb-int.kubeconfig")]
    pub internal_kubeconfig: PathBuf,
    /// Who asks the API as people do
    #[arg(long, default_value = "/etc/kubernetes/kubeconfigs/admin.kubeconfig")]
    pub external_kubeconfig: PathBuf,
    /// Where the kubelet looks for static pods
    #[arg(long, default_value = "/etc/kubernetes/manifests")]
    pub pod_manifest_path: PathBuf,
    /// Where this machine's etcd says how it is
    #[arg(long, default_value = "http://localhost:2381/health")]
    pub etcd_health: http::Uri,
    /// Pods that must run on masters before this machine's control plane goes
    #[arg(long, value_delimiter = ',', default_value = REQUIRED_PODS)]
    pub required_pods: Vec<String>,
    /// Where the record of the stages is kept
    #[arg(long, default_value = "/var/log/openshift")]
    pub record_dir: PathBuf,
}

/// As upstream's bootkube.sh has them.
const REQUIRED_PODS: &str = "openshift-kube-apiserver/kube-apiserver,\
    openshift-kube-scheduler/openshift-kube-scheduler,\
    openshift-kube-controller-manager/kube-controller-manager,\
    openshift-cluster-version/cluster-version-operator";

const ETCD_POD: &str = "etcd-pod.yaml";
const PAUSE: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(1200);

/// The stages in their order, for whoever looks at the marks.
pub const STAGES: &[&str] = &[
    "openshift-manifests",
    "etcd-bootstrap",
    "resolve-api-url",
    "resolve-api-int-url",
    "wait-for-etcd",
    "cb-bootstrap",
    "cvo-overrides",
    "wait-for-ceo",
    "check-api-url",
    "check-api-int-url",
];

impl BootkubeArgs {
    /// Runs the stages that are not done yet.
    pub async fn run(self) -> Result<(), BootstrapError> {
        let records = Records::new(&self.record_dir, "bootkube");
        records.add("service start", None, None);
        let outcome = self.stages(&records).await;
        let text = outcome.as_ref().err().map(|error| error_text(error));
        records.add("service end", None, Some(text.as_deref().map_or(Ok(()), Err)));
        outcome
    }

    async fn stages(&self, records: &Records) -> Result<(), BootstrapError> {
        let assets = self.machine.asset_dir.as_path();
        let stage = Stages { marks: assets.join(".done"), records };
        let local = self.machine.client("bootkube")?;
        stage.run("openshift-manifests", async || merge_manifests(assets)).await?;
        stage
            .run("etcd-bootstrap", async || {
                let from = assets.join("bootstrap-manifests").join(ETCD_POD);
                copy_file(&from, &self.pod_manifest_path, 0o600).map(drop)
            })
            .await?;
        stage.try_once("resolve-api-url", async || resolve(&self.external_kubeconfig).await).await?;
        stage.try_once("resolve-api-int-url", async || resolve(&self.internal_kubeconfig).await).await?;
        stage.run("wait-for-etcd", async || wait_for_etcd(&self.etcd_health).await).await?;
        stage
            .run("cb-bootstrap", async || {
                let start = StartArgs::of_bootkube(
                    assets,
                    &self.machine.kubeconfig,
                    &self.pod_manifest_path,
                    &self.required_pods,
                );
                // Operators wait for what the installer says in these, so they cannot wait for the pods.
                let statuses = assets.join("status");
                tokio::try_join!(start.run(), set_status(&local, &statuses)).map(drop)
            })
            .await?;
        let internal = connect(&self.internal_kubeconfig, "bootkube")?;
        stage.run("cvo-overrides", async || restore_overrides(&internal, assets).await).await?;
        stage
            .run("wait-for-ceo", async || {
                wait_for_etcd_operator(&internal).await?;
                remove_files(&[self.pod_manifest_path.join(ETCD_POD)])
            })
            .await?;
        stage.try_once("check-api-url", async || check(&self.external_kubeconfig).await).await?;
        stage.try_once("check-api-int-url", async || check(&self.internal_kubeconfig).await).await?;
        let done = assets.join(".bootkube.done");
        std::fs::write(&done, "").map_err(at("write", &done))
    }
}

struct Stages<'a> {
    marks: PathBuf,
    records: &'a Records,
}

impl Stages<'_> {
    /// Runs a stage once: its mark says that it is done.
    async fn run(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<(), BootstrapError>,
    ) -> Result<(), BootstrapError> {
        match self.attempt(name, work).await? {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// Runs a stage whose failure is written down and does not stop the others: it tells why a later one fails.
    async fn try_once(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<(), BootstrapError>,
    ) -> Result<(), BootstrapError> {
        if let Some(error) = self.attempt(name, work).await? {
            println!("bootkube: {name}: {}", error_text(&error));
        }
        Ok(())
    }

    async fn attempt(
        &self,
        name: &str,
        work: impl AsyncFnOnce() -> Result<(), BootstrapError>,
    ) -> Result<Option<BootstrapError>, BootstrapError> {
        let mark = self.marks.join(name);
        if mark.exists() {
            return Ok(None);
        }
        println!("bootkube: {name}");
        self.records.add("stage start", Some(name), None);
        let outcome = work().await;
        let text = outcome.as_ref().err().map(|error| error_text(error));
        self.records.add("stage end", Some(name), Some(text.as_deref().map_or(Ok(()), Err)));
        match outcome {
            Ok(()) => {
                std::fs::create_dir_all(&self.marks).map_err(at("make", &self.marks))?;
                std::fs::write(&mark, "").map_err(at("write", &mark))?;
                Ok(None)
            }
            Err(error) => Ok(Some(error)),
        }
    }
}

/// What users may change is created together with the rest.
fn merge_manifests(assets: &Path) -> Result<(), BootstrapError> {
    let (from, to) = (assets.join("openshift"), assets.join("manifests"));
    let entries = match std::fs::read_dir(&from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("read", &from)(error)),
    };
    for entry in entries {
        let entry = entry.map_err(at("read", &from))?;
        copy_file(&entry.path(), &to, 0o600)?;
    }
    Ok(())
}

/// The server that a kubeconfig names.
fn server_of(kubeconfig: &Path) -> Result<http::Uri, BootstrapError> {
    let fail = |source: Box<dyn std::error::Error + Send + Sync>| BootstrapError::Kubeconfig {
        path: kubeconfig.to_owned(),
        source,
    };
    let loaded = pki::Kubeconfig::load(kubeconfig).map_err(|error| fail(error.into()))?;
    let cluster = loaded.clusters.first().ok_or_else(|| fail("it names no cluster".into()))?;
    cluster.cluster.server.parse().map_err(|error: http::uri::InvalidUri| fail(error.into()))
}

/// Whether the name of the API leads anywhere.
async fn resolve(kubeconfig: &Path) -> Result<(), BootstrapError> {
    let server = server_of(kubeconfig)?;
    let (host, port) = (server.host().unwrap_or_default(), server.port_u16().unwrap_or(6443));
    let fail = |reason: String| BootstrapError::Name { name: host.to_owned(), reason };
    let found = tokio::net::lookup_host((host, port)).await.map_err(|error| fail(error.to_string()))?;
    match found.map(|address| address.ip().to_string()).collect::<Vec<_>>().as_slice() {
        [] => Err(fail("it has no address".to_owned())),
        addresses => {
            println!("{host} is {}", addresses.join(", "));
            Ok(())
        }
    }
}

/// Whether the API answers by its name, once.
async fn check(kubeconfig: &Path) -> Result<(), BootstrapError> {
    super::wait_for_api(&connect(kubeconfig, "bootkube")?, Duration::ZERO).await
}

async fn wait_for_etcd(health: &http::Uri) -> Result<(), BootstrapError> {
    let (host, port) = (health.host().unwrap_or("localhost").to_owned(), health.port_u16().unwrap_or(80));
    let path = health.path().to_owned();
    until("waiting for etcd", LONG, PAUSE, async || {
        let limit = Duration::from_secs(5);
        let answer = tokio::time::timeout(limit, get(&host, port, &path)).await;
        let answer = answer.unwrap_or_else(|_| Err("it does not answer".to_owned()))?;
        let healthy = serde_json::from_str::<Value>(&answer).is_ok_and(|said| said["health"] == "true");
        if healthy { Ok(()) } else { Err(format!("it says {}", answer.trim())) }
    })
    .await
}

/// The body of a plain answer of this machine; no more than a health page is read.
async fn get(host: &str, port: u16, path: &str) -> Result<String, String> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let text = |error: std::io::Error| error.to_string();
    let mut stream = tokio::net::TcpStream::connect((host, port)).await.map_err(text)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = String::new();
    stream.take(1 << 16).read_to_string(&mut answer).await.map_err(text)?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    Ok(body.to_owned())
}

/// Creating an object drops its status, so it is sent a second time, to the status subresource.
async fn set_status(client: &Client, directory: &Path) -> Result<(), BootstrapError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at("read", directory)(error)),
    };
    for entry in entries {
        let path = entry.map_err(at("read", directory))?.path();
        let bad = |reason: String| BootstrapError::Manifest { path: path.clone(), reason };
        // PLURAL.GROUP_NAME.json, or PLURAL.GROUP_NAMESPACE_NAME.json
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (resource, name) = stem.rsplit_once('_').ok_or_else(|| bad("its name names no object".into()))?;
        let (resource, namespace) = match resource.split_once('_') {
            Some((resource, namespace)) => (resource, Some(namespace)),
            None => (resource, None),
        };
        let (plural, group) = resource.split_once('.').ok_or_else(|| bad("its name names no kind".into()))?;
        let text = std::fs::read(&path).map_err(at("read", &path))?;
        let patch: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        let resource = Resource {
            group: group.to_owned().into(),
            version: version_of(&patch).into(),
            plural: plural.to_owned().into(),
            kind: String::new().into(),
            namespaced: namespace.is_some(),
        };
        let api = match namespace {
            Some(namespace) => client.api(&resource).within(namespace),
            None => client.api(&resource),
        };
        let what = format!("setting the status of {plural}.{group} {name}");
        until(&what, LONG, PAUSE, async || {
            let sent = api.patch_sub::<Value>(name, "status", Patch::Merge(&patch)).await;
            sent.map(drop).map_err(|error| error_text(&error))
        })
        .await?;
        println!("set the status of {plural}.{group} {name}");
    }
    Ok(())
}

/// The version that an object is written in.
fn version_of(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or("v1");
    version.rsplit('/').next().unwrap_or(version).to_owned()
}

const CLUSTER_VERSIONS: Resource =
    Resource::cluster("config.openshift.io", "v1", "clusterversions", "ClusterVersion");

/// What the user's ClusterVersion leaves unmanaged; nothing if it does not say.
fn original_overrides(assets: &Path) -> Result<Value, BootstrapError> {
    let all = manifests::read(&assets.join("manifests"))?;
    let version = all.iter().find(|one| one.object["kind"] == "ClusterVersion");
    Ok(version.map(|one| one.object["spec"]["overrides"].clone()).unwrap_or_default())
}

/// The operator manages everything again but what the user took from it. It goes through the load balancer: from here on
/// the masters serve.
async fn restore_overrides(client: &Client, assets: &Path) -> Result<(), BootstrapError> {
    let patch = json!({"spec": {"overrides": original_overrides(assets)?}});
    let api = client.api(&CLUSTER_VERSIONS);
    until("restoring the overrides of ClusterVersion version", LONG, PAUSE, async || {
        let sent = api.patch::<Value>("version", Patch::Merge(&patch)).await;
        sent.map(drop).map_err(|error| error_text(&error))
    })
    .await
}

/// The etcd operator says when this machine's member is no longer one.
async fn wait_for_etcd_operator(client: &Client) -> Result<(), BootstrapError> {
    const PATH: &str = "/apis/operator.openshift.io/v1/etcds/cluster";
    until("waiting for the etcd operator", LONG, PAUSE, async || {
        let etcd = client.get_path::<Value>(PATH).await.map_err(|error| error_text(&error))?;
        bootstrap_member_removed(&etcd)
    })
    .await
}

fn bootstrap_member_removed(etcd: &Value) -> Result<(), String> {
    let conditions = etcd["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    match conditions.iter().find(|one| one["type"] == "EtcdBootstrapMemberRemoved") {
        Some(one) if one["status"] == "True" => Ok(()),
        Some(one) => Err(one["message"].as_str().unwrap_or("the bootstrap member is there").to_owned()),
        None => Err("Etcd cluster has no condition EtcdBootstrapMemberRemoved yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stages_run_once_and_those_that_only_tell_do_not_stop_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(directory.path(), "bootkube");
        let stage = Stages { marks: directory.path().join(".done"), records: &records };
        let fail = async || Err(BootstrapError::RequiredPod("x".to_owned()));
        stage.try_once("check-api-url", fail).await.unwrap();
        assert!(stage.run("cb-bootstrap", fail).await.is_err());
        assert!(!directory.path().join(".done/cb-bootstrap").exists());
        stage.run("cb-bootstrap", async || Ok(())).await.unwrap();
        // Done: what would fail is not run again.
        stage.run("cb-bootstrap", fail).await.unwrap();
        let text = std::fs::read_to_string(directory.path().join("bootkube.json")).unwrap();
        let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
        let results: Vec<&str> = entries.iter().filter_map(|one| one["result"].as_str()).collect();
        assert_eq!(results, ["failure", "failure", "success"]);
    }

    #[test]
    fn the_users_overrides_are_what_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let manifests = directory.path().join("manifests");
        std::fs::create_dir(&manifests).unwrap();
        let text = "apiVersion: config.openshift.io/v1\nkind: ClusterVersion\nmetadata: {name: version}\nspec: {clusterID: a}\n";
        std::fs::write(manifests.join("cvo-overrides.yaml"), text).unwrap();
        assert_eq!(original_overrides(directory.path()).unwrap(), Value::Null);
        std::fs::write(
            manifests.join("cvo-overrides.yaml"),
            text.replace("clusterID: a", "overrides: [{kind: Deployment, unmanaged: true}]"),
        )
        .unwrap();
        assert_eq!(original_overrides(directory.path()).unwrap()[0]["kind"], "Deployment");
    }

    #[test]
    fn the_bootstrap_member_is_gone_when_the_operator_says_so() {
        let etcd = |status: &str| json!({"status": {"conditions": [{"type": "EtcdBootstrapMemberRemoved", "status": status, "message": "m"}]}});
        assert!(bootstrap_member_removed(&json!({})).is_err());
        assert_eq!(bootstrap_member_removed(&etcd("False")).unwrap_err(), "m");
        assert!(bootstrap_member_removed(&etcd("True")).is_ok());
    }
}
