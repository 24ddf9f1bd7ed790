//! `kelson cluster-bootstrap start`: a control plane from a directory of assets. Its manifests become static pods, its
//! objects are created, and once the pods that must be there run on masters, the static pods go again.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand};
use client::Client;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{BootstrapError, at, connect, error_text, manifests, until, wait_for_api};

/// Brings up a control plane from a directory of assets
#[derive(Debug, Args)]
pub struct ClusterBootstrapArgs {
    #[command(subcommand)]
    command: ClusterBootstrapCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterBootstrapCommand {
    /// Starts the control plane, creates every manifest, waits for pods on masters, and takes it down again
    Start(StartArgs),
}

#[derive(Debug, Args)]
pub(super) struct StartArgs {
    /// Directory with tls, auth, bootstrap-manifests and manifests
    #[arg(long)]
    asset_dir: PathBuf,
    /// Where the kubelet looks for static pods
    #[arg(long, default_value = "/etc/kubernetes/manifests")]
    pod_manifest_path: PathBuf,
    /// Where the static pods look for keys
    #[arg(long, default_value = "/etc/kubernetes/bootstrap-secrets")]
    secrets_dir: PathBuf,
    /// Kubeconfig; by default auth/kubeconfig-loopback or auth/kubeconfig of the assets
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Pods that must run on masters: NAMESPACE/NAME, comma-separated; alternatives with | between them
    #[arg(long, value_delimiter = ',')]
    required_pods: Vec<String>,
    /// Take the control plane down as soon as the pods run, without waiting for all manifests
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    tear_down_early: bool,
    /// Event to wait for before the control plane is taken down
    #[arg(long, default_value = "")]
    tear_down_event: String,
    /// Seconds for creating all manifests
    #[arg(long, default_value_t = 3600)]
    assets_create_timeout: u64,
}

impl ClusterBootstrapArgs {
    /// Does it.
    pub async fn run(self) -> Result<(), BootstrapError> {
        let ClusterBootstrapCommand::Start(args) = self.command;
        args.run().await
    }
}

const API_TIMEOUT: Duration = Duration::from_secs(1200);
const PODS_TIMEOUT: Duration = Duration::from_secs(1200);
const PAUSE: Duration = Duration::from_secs(1);

impl StartArgs {
    /// As bootkube starts it: every manifest is created before this machine's control plane goes.
    pub(super) fn of_bootkube(
        asset_dir: &Path,
        kubeconfig: &Path,
        pod_manifest_path: &Path,
        required_pods: &[String],
    ) -> Self {
        Self {
            asset_dir: asset_dir.to_owned(),
            pod_manifest_path: pod_manifest_path.to_owned(),
            secrets_dir: PathBuf::from("/etc/kubernetes/bootstrap-secrets"),
            kubeconfig: Some(kubeconfig.to_owned()),
            required_pods: required_pods.to_vec(),
            tear_down_early: false,
            tear_down_event: String::new(),
            assets_create_timeout: 3600,
        }
    }

    pub(super) async fn run(self) -> Result<(), BootstrapError> {
        let required: Vec<Required> = self
            .required_pods
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| Required::parse(text))
            .collect::<Result<_, _>>()?;
        for part in ["tls", "auth"] {
            copy(&self.asset_dir.join(part), &self.secrets_dir, 0o600)?;
        }
        println!("Starting temporary bootstrap control plane...");
        let made = copy(&self.asset_dir.join("bootstrap-manifests"), &self.pod_manifest_path, 0o600)?;
        let outcome = self.bring_up(&required).await;
        if outcome.is_ok() {
            println!("Tearing down temporary bootstrap control plane...");
            // The store stays until the masters' members have all that it holds.
            let is_etcd = |path: &Path| path.file_name().is_some_and(|name| name == "etcd-pod.yaml");
            let made: Vec<PathBuf> = made.into_iter().filter(|path| !is_etcd(path)).collect();
            remove_files(&made)?;
        }
        outcome
    }

    async fn bring_up(&self, required: &[Required]) -> Result<(), BootstrapError> {
        let loopback = self.asset_dir.join("auth/kubeconfig-loopback");
        let fallback = self.asset_dir.join("auth/kubeconfig");
        let path = self.kubeconfig.clone().unwrap_or(if loopback.exists() { loopback } else { fallback });
        let client = connect(&path, "cluster-bootstrap")?;
        wait_for_api(&client, API_TIMEOUT).await?;
        let objects = manifests::read(&self.asset_dir.join("manifests"))?;
        let limit = Duration::from_secs(self.assets_create_timeout);
        let create = manifests::create_all(&client, &objects, limit);
        let pods = wait_for_pods(&client, required);
        if self.tear_down_early && !required.is_empty() {
            tokio::pin!(create);
            // The rest is created by whoever runs then; what failed until now is not hidden.
            tokio::select! {
                done = &mut create => { done?; wait_for_pods(&client, required).await?; }
                ready = pods => ready?,
            }
        } else {
            let (created, ready) = tokio::join!(create, pods);
            created?;
            ready?;
        }
        println!("All self-hosted control plane components successfully started");
        event(&client, "bootstrap-success", "Required control plane pods have been created").await?;
        if !self.tear_down_event.is_empty() {
            let path = format!("/api/v1/namespaces/kube-system/events/{}", self.tear_down_event);
            let what = format!("waiting for event {}", self.tear_down_event);
            until(&what, PODS_TIMEOUT, PAUSE, async || {
                client.get_path::<Value>(&path).await.map(drop).map_err(|error| error_text(&error))
            })
            .await?;
        }
        event(&client, "bootstrap-finished", "Bootstrapping is finished").await
    }
}

/// Copies the files of a directory; gives where they went. One that is not there has none.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<Vec<PathBuf>, BootstrapError> {
    let entries = match fs::read_dir(from) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("read", from)(error)),
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(at("make", to))?;
    let mut out = Vec::new();
    for entry in entries {
        let entry = entry.map_err(at("read", from))?;
        if entry.file_type().is_ok_and(|kind| kind.is_file()) {
            out.push(copy_file(&entry.path(), to, mode)?);
        }
    }
    Ok(out)
}

/// Copies one file into a directory; gives where it went. One that is there as it should be is left alone: a kubelet would
/// take the new file for a new pod.
pub(super) fn copy_file(from: &Path, to: &Path, mode: u32) -> Result<PathBuf, BootstrapError> {
    // Hidden until whole: the kubelet reads the directory at any time, and skips names with a dot in front.
    let name = from.file_name().unwrap_or_default();
    let target = to.join(name);
    let text = fs::read(from).map_err(at("read", from))?;
    if fs::read(&target).is_ok_and(|there| there == text) {
        return Ok(target);
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(to).map_err(at("make", to))?;
    let hidden = to.join(format!(".{}", name.to_string_lossy()));
    fs::write(&hidden, text).map_err(at("write", &hidden))?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(mode)).map_err(at("write", &hidden))?;
    fs::rename(&hidden, &target).map_err(at("write", &target))?;
    Ok(target)
}

/// Removes files; one that is not there is removed.
pub(super) fn remove_files(paths: &[PathBuf]) -> Result<(), BootstrapError> {
    for path in paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at("remove", path)(error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// One requirement: any of these pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Required(Vec<(String, String)>);

impl Required {
    fn parse(text: &str) -> Result<Self, BootstrapError> {
        let one = |part: &str| {
            let (namespace, name) = part.split_once('/').filter(|(a, b)| !a.is_empty() && !b.is_empty())?;
            Some((namespace.to_owned(), name.to_owned()))
        };
        let all: Option<Vec<_>> = text.split('|').map(one).collect();
        all.map(Self).ok_or_else(|| BootstrapError::RequiredPod(text.to_owned()))
    }

    /// What is missing of it; nothing if a pod runs and is ready on a master.
    fn missing(&self, pods: &[Value], masters: &[String]) -> Option<String> {
        let mut seen = "DoesNotExist".to_owned();
        for pod in pods {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
            // Static pods carry the node's name behind their own.
            let matches = self
                .0
                .iter()
                .any(|(wanted, prefix)| *wanted == namespace && name.starts_with(prefix.as_str()));
            let on_master = masters.contains(&text(&pod["spec"]["nodeName"]));
            if !matches || !on_master {
                continue;
            }
            let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let ready = conditions
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            match pod["status"]["phase"].as_str() {
                Some("Running") if ready => return None,
                Some("Running") => seen = "RunningNotReady".to_owned(),
                Some(phase) => seen = phase.to_owned(),
                None => seen = "Unknown".to_owned(),
            }
        }
        let names: Vec<String> =
            self.0.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        Some(format!("Pod Status: {} {seen}", names.join("|")))
    }
}

async fn wait_for_pods(client: &Client, required: &[Required]) -> Result<(), BootstrapError> {
    if required.is_empty() {
        return Ok(());
    }
    until("waiting for pods on masters", PODS_TIMEOUT, PAUSE, async || {
        let get = async |path: &str| client.get_path::<Value>(path).await.map_err(|error| error_text(&error));
        let items = |list: Value| list["items"].as_array().cloned().unwrap_or_default();
        let nodes = items(get("/api/v1/nodes?labelSelector=node-role.kubernetes.io%2Fmaster").await?);
        let masters: Vec<String> =
            nodes.iter().filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned)).collect();
        let pods = items(get("/api/v1/pods").await?);
        let missing: Vec<String> = required.iter().filter_map(|one| one.missing(&pods, &masters)).collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
    })
    .await
}

async fn event(client: &Client, name: &str, message: &str) -> Result<(), BootstrapError> {
    let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let object = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": "kube-system"},
        "involvedObject": {"kind": "Namespace", "namespace": "kube-system", "name": "kube-system"},
        "reason": "BootstrapStatus", "message": message, "type": "Normal", "count": 1,
        "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "cluster-bootstrap"},
    });
    until("telling the cluster", Duration::from_secs(60), PAUSE, async || {
        match client.post_path::<Value>("/api/v1/namespaces/kube-system/events", &object).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_already_exists() => Ok(()),
            Err(error) => Err(error_text(&error)),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_required_pod_counts_when_it_is_ready_on_a_master() {
        let required = Required::parse("ns/kube-apiserver|other/api").unwrap();
        assert!(Required::parse("nothing").is_err());
        let pod = |node: &str, phase: &str, ready: &str| {
            json!({"metadata": {"namespace": "ns", "name": "kube-apiserver-master-0"}, "spec": {"nodeName": node},
                   "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}})
        };
        let masters = ["master-0".to_owned()];
        let missing = |pods: &[Value]| required.missing(pods, &masters);
        assert_eq!(missing(&[pod("master-0", "Running", "True")]), None);
        assert!(missing(&[pod("bootstrap", "Running", "True")]).unwrap().ends_with("DoesNotExist"));
        assert!(missing(&[pod("master-0", "Running", "False")]).unwrap().ends_with("RunningNotReady"));
        assert!(missing(&[pod("master-0", "Pending", "False")]).unwrap().ends_with("Pending"));
    }

    #[test]
    fn files_are_copied_whole_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::write(from.join("a.yaml"), "x").unwrap();
        let made = copy(&from, &to, 0o600).unwrap();
        assert_eq!(made, [to.join("a.yaml")]);
        assert_eq!(fs::metadata(&made[0]).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(copy(&directory.path().join("none"), &to, 0o600).unwrap().is_empty());
    }
}
