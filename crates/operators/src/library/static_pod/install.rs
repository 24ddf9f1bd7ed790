//! `… installer`: lays a revision down on the machine it runs on, and the static pod last.

use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use client::{Client, Https, HttpsError, Resource, resources};
use controller_runtime::program::{self, ProgramError};
use lifecycle::Stop;
use serde_json::Value;
use thiserror::Error;
use tracing::{info, warn};

use super::{MANIFEST_DIR, RESOURCE_DIR};

/// How long the API server is asked before the installer gives up; another one is started then.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(500);

/// Lays a revision of a static pod down on this machine
#[derive(Args, Clone, Debug)]
pub struct InstallerArgs {
    /// How to reach the API server; without it the identity of the surrounding pod is used
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// How much to log, from 0 to 10
    #[arg(short, long = "v", default_value_t = 2)]
    verbosity: u8,
    /// The revision
    #[arg(long)]
    revision: i64,
    /// The operand's namespace
    #[arg(long)]
    namespace: String,
    /// The ConfigMap that holds the pod, without the revision
    #[arg(long)]
    pod: String,
    /// Where revisions are laid down
    #[arg(long, default_value = RESOURCE_DIR)]
    resource_dir: PathBuf,
    /// Where the kubelet finds static pods
    #[arg(long, default_value = MANIFEST_DIR)]
    pod_manifest_dir: PathBuf,
    /// Where what changes without a revision is laid down
    #[arg(long)]
    cert_dir: PathBuf,
    /// ConfigMaps of the revision
    #[arg(long)]
    configmaps: Vec<String>,
    /// ConfigMaps of the revision that may be missing
    #[arg(long)]
    optional_configmaps: Vec<String>,
    /// Secrets of the revision
    #[arg(long)]
    secrets: Vec<String>,
    /// Secrets of the revision that may be missing
    #[arg(long)]
    optional_secrets: Vec<String>,
    /// ConfigMaps without a revision
    #[arg(long)]
    cert_configmaps: Vec<String>,
    /// ConfigMaps without a revision that may be missing
    #[arg(long)]
    optional_cert_configmaps: Vec<String>,
    /// Secrets without a revision
    #[arg(long)]
    cert_secrets: Vec<String>,
    /// Secrets without a revision that may be missing
    #[arg(long)]
    optional_cert_secrets: Vec<String>,
    /// The node's name, for what is written
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Its address, for what is written
    #[arg(long, env = "NODE_IP", default_value = "")]
    node_ip: String,
}

/// Why a revision is not laid down.
#[derive(Debug, Error)]
pub enum InstallError {
    #[error("the API server cannot be addressed")]
    Program(#[from] ProgramError),
    #[error("the API server cannot be addressed")]
    Https(#[from] HttpsError),
    #[error("{kind} {name} cannot be read")]
    Request { kind: String, name: String, source: Box<client::Error> },
    #[error("{kind} {name} is missing")]
    Missing { kind: String, name: String },
    #[error("{kind} {name}: {key:?} is not a file's name, or not base64")]
    Content { kind: String, name: String, key: String },
    #[error("configmap {name} has no pod.yaml")]
    NoPod { name: String },
    #[error("the pod of configmap {name} cannot be read: {reason}")]
    Pod { name: String, reason: String },
    #[error("{path} cannot be {doing}", path = path.display())]
    Disk { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("interrupted")]
    Interrupted,
}

fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Disk { doing, path, source }
}

/// The files of one ConfigMap or Secret.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub name: String,
    pub files: Vec<(String, Vec<u8>)>,
    pub secret: bool,
}

/// The files that an object stands for. Keys become names of files, so whatever leads elsewhere is refused.
pub fn files_of(object: &Value, kind: &Resource, name: &str) -> Result<Files, InstallError> {
    let secret = *kind.kind == *"Secret";
    let wrong = |key: &str| InstallError::Content {
        kind: kind.kind.to_string(),
        name: name.to_owned(),
        key: key.to_owned(),
    };
    let mut files = Vec::new();
    for (field, encoded) in [("data", secret), ("binaryData", true)] {
        for (key, value) in object[field].as_object().into_iter().flatten() {
            let mut parts = Path::new(key).components();
            let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
            let text = value.as_str().filter(|_| plain).ok_or_else(|| wrong(key))?;
            let content = match encoded {
                true => STANDARD.decode(text).map_err(|_| wrong(key))?,
                false => text.as_bytes().to_vec(),
            };
            files.push((key.clone(), content));
        }
    }
    Ok(Files { name: name.to_owned(), files, secret })
}

/// The pod as it is written on one machine: the revision and the node stand where the words for them stood.
pub fn for_machine(pod: &str, revision: i64, node: &str, address: &str) -> String {
    let variable: String =
        node.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    let in_url = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    pod.replace("REVISION", &revision.to_string())
        .replace("NODE_URL_HOST", &in_url)
        .replace("NODE_IP", address)
        .replace("NODE_ENVVAR_NAME", &variable)
        .replace("NODE_NAME", node)
}

impl InstallerArgs {
    pub async fn run(self, stop: Stop) -> Result<(), InstallError> {
        telemetry::log_to_stderr(if self.verbosity > 3 { "debug" } else { "info" });
        let client =
            Client::new(Https::new(program::https(self.kubeconfig.as_deref())?)?, "static-pod-installer");
        let work = async {
            let revisioned = self
                .fetch_all(
                    &client,
                    &[
                        (&self.configmaps, resources::CONFIG_MAPS, false),
                        (&self.optional_configmaps, resources::CONFIG_MAPS, true),
                        (&self.secrets, resources::SECRETS, false),
                        (&self.optional_secrets, resources::SECRETS, true),
                    ],
                    Some(self.revision),
                )
                .await?;
            let certificates = self
                .fetch_all(
                    &client,
                    &[
                        (&self.cert_configmaps, resources::CONFIG_MAPS, false),
                        (&self.optional_cert_configmaps, resources::CONFIG_MAPS, true),
                        (&self.cert_secrets, resources::SECRETS, false),
                        (&self.optional_cert_secrets, resources::SECRETS, true),
                    ],
                    None,
                )
                .await?;
            self.lay_down(&revisioned, &certificates)
        };
        stop.or(work).await.unwrap_or(Err(InstallError::Interrupted))
    }

    async fn fetch_all(
        &self,
        client: &Client,
        wanted: &[(&Vec<String>, Resource, bool)],
        revision: Option<i64>,
    ) -> Result<Vec<Files>, InstallError> {
        let mut all = Vec::new();
        for (names, kind, optional) in wanted {
            for name in *names {
                let full = revision.map_or_else(|| name.clone(), |revision| format!("{name}-{revision}"));
                let fail = || (kind.kind.to_lowercase(), full.clone());
                match (self.fetch(client, kind, &full).await, optional) {
                    (Ok(Some(object)), _) => all.push(files_of(&object, kind, name)?),
                    (Ok(None), true) => {}
                    (Ok(None), false) => {
                        let (kind, name) = fail();
                        return Err(InstallError::Missing { kind, name });
                    }
                    (Err(source), _) => {
                        let (kind, name) = fail();
                        return Err(InstallError::Request { kind, name, source: Box::new(source) });
                    }
                }
            }
        }
        Ok(all)
    }

    /// Asks again while the API server cannot answer: it may be the one that is just being replaced.
    async fn fetch(
        &self,
        client: &Client,
        kind: &Resource,
        name: &str,
    ) -> Result<Option<Value>, client::Error> {
        let begin = tokio::time::Instant::now();
        loop {
            match client.api(kind).within(&self.namespace).find::<Value>(name).await {
                Err(error) if begin.elapsed() < PATIENCE && !error.is_forbidden() => {
                    warn!(%kind, name, error = %telemetry::chain(&error), "asking again");
                    tokio::time::sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Writes everything, the static pod last: what it needs is there when the kubelet sees it.
    fn lay_down(&self, revisioned: &[Files], certificates: &[Files]) -> Result<(), InstallError> {
        let name = format!("{}-{}", self.pod, self.revision);
        let pod = revisioned
            .iter()
            .find(|files| !files.secret && files.name == self.pod)
            .and_then(|files| files.files.iter().find(|(key, _)| key == "pod.yaml"))
            .ok_or_else(|| InstallError::NoPod { name: name.clone() })?;
        let wrong = |reason: String| InstallError::Pod { name: name.clone(), reason };
        let text = std::str::from_utf8(&pod.1).map_err(|error| wrong(error.to_string()))?;
        let text = for_machine(text, self.revision, &self.node_name, &self.node_ip);
        let object = apimachinery::decode::parse_yaml(text.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        if object["kind"] != "Pod" {
            return Err(wrong("it is not a Pod".to_owned()));
        }
        let directory = self.resource_dir.join(&name);
        for files in revisioned {
            write_directory(&directory, files)?;
        }
        for files in certificates {
            write_directory(&self.cert_dir, files)?;
        }
        let file = format!("{}.yaml", self.pod);
        write_file(&directory, &directory.join(&file), text.as_bytes(), 0o600)?;
        make_directory(&self.pod_manifest_dir)?;
        // Made beside the revision, where the kubelet does not look, and moved at once.
        write_file(&directory, &self.pod_manifest_dir.join(&file), text.as_bytes(), 0o600)?;
        info!(pod = file, revision = self.revision, "installed");
        Ok(())
    }
}

fn make_directory(path: &Path) -> Result<(), InstallError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(disk("made", path))
}

/// Writes the files of an object below `secrets/` or `configmaps/`: a directory of its own, exchanged as a whole, so that
/// whoever reads a certificate and its key finds two that belong together.
pub fn write_directory(root: &Path, files: &Files) -> Result<(), InstallError> {
    let parent = root.join(if files.secret { "secrets" } else { "configmaps" });
    make_directory(&parent)?;
    let target = parent.join(&files.name);
    let (mode, directory_mode) = if files.secret { (0o600, 0o700) } else { (0o644, 0o755) };
    if is_as(&target, files) {
        return Ok(());
    }
    let scratch = parent.join(format!(".{}.new", files.name));
    remove(&scratch)?;
    std::fs::DirBuilder::new().mode(directory_mode).create(&scratch).map_err(disk("made", &scratch))?;
    for (key, content) in &files.files {
        put(&scratch.join(key), content, mode)?;
    }
    sync_directory(&scratch)?;
    if target.exists() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        renameat_with(CWD, &scratch, CWD, &target, RenameFlags::EXCHANGE)
            .map_err(|error| disk("exchanged", &target)(error.into()))?;
        remove(&scratch)?;
    } else {
        std::fs::rename(&scratch, &target).map_err(disk("put in place", &target))?;
    }
    sync_directory(&parent)
}

/// Whether a directory holds just these files.
fn is_as(directory: &Path, files: &Files) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    let count = entries.filter(|entry| entry.is_ok()).count();
    count == files.files.len()
        && files
            .files
            .iter()
            .all(|(key, content)| std::fs::read(directory.join(key)).is_ok_and(|have| have == *content))
}

fn remove(path: &Path) -> Result<(), InstallError> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(disk("removed", path)(error)),
        _ => Ok(()),
    }
}

fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)
        .map_err(disk("written", path))?;
    file.write_all(content).and_then(|()| file.sync_all()).map_err(disk("written", path))
}

fn sync_directory(path: &Path) -> Result<(), InstallError> {
    std::fs::File::open(path).and_then(|file| file.sync_all()).map_err(disk("synchronized", path))
}

/// Writes a file whole or not at all, by way of another one in `beside` on the same filesystem.
fn write_file(beside: &Path, target: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    make_directory(beside)?;
    let scratch = beside.join(".installing");
    put(&scratch, content, mode)?;
    std::fs::rename(&scratch, target).map_err(disk("put in place", target))?;
    target.parent().map_or(Ok(()), sync_directory)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: InstallerArgs,
    }

    fn read(path: PathBuf) -> String {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn a_revision_is_laid_down_with_the_pod_last_and_its_words_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let flag = |name: &str, path: &str| format!("--{name}={}", root.join(path).display());
        let args = Line::parse_from([
            "installer".to_owned(),
            "--revision=7".to_owned(),
            "--namespace=openshift-etcd".to_owned(),
            "--pod=etcd-pod".to_owned(),
            "--node-name=master-0.lab".to_owned(),
            "--node-ip=fd00::1".to_owned(),
            flag("resource-dir", "resources"),
            flag("pod-manifest-dir", "manifests"),
            flag("cert-dir", "resources/etcd-certs"),
            "--configmaps=etcd-pod".to_owned(),
            "--secrets=etcd-all-certs".to_owned(),
        ])
        .args;
        let pod = json!({"data": {"pod.yaml": "kind: Pod\nmetadata: {name: etcd, labels: {revision: 'REVISION'}}\nx: NODE_NAME $(NODE_NODE_ENVVAR_NAME_X) NODE_URL_HOST NODE_IP\n"}});
        let maps = [files_of(&pod, &resources::CONFIG_MAPS, "etcd-pod").unwrap()];
        let secret = |text: &str| {
            let object = json!({"data": {"tls.key": STANDARD.encode(text)}});
            files_of(&object, &resources::SECRETS, "etcd-all-certs").unwrap()
        };
        args.lay_down(&maps, &[secret("one")]).unwrap();
        let written = read(root.join("manifests/etcd-pod.yaml"));
        assert_eq!(written, read(root.join("resources/etcd-pod-7/etcd-pod.yaml")));
        assert!(
            written.contains("revision: '7'")
                && written.contains("master-0.lab $(NODE_master_0_lab_X) [fd00::1] fd00::1")
        );
        let key = root.join("resources/etcd-certs/secrets/etcd-all-certs/tls.key");
        assert_eq!(read(key.clone()), "one");
        args.lay_down(&maps, &[secret("two")]).unwrap();
        assert_eq!(read(key.clone()), "two");
        let left: Vec<_> = std::fs::read_dir(root.join("resources/etcd-certs/secrets")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(key).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_broken_pod_is_not_handed_to_the_kubelet() {
        for text in ["", "kind: [", "kind: ConfigMap"] {
            let dir = tempfile::tempdir().unwrap();
            let flag = |name: &str| format!("--{name}={}", dir.path().join(name).display());
            let args = Line::parse_from([
                "installer".to_owned(),
                "--revision=1".to_owned(),
                "--namespace=n".to_owned(),
                "--pod=p".to_owned(),
                "--node-name=m".to_owned(),
                flag("resource-dir"),
                flag("pod-manifest-dir"),
                flag("cert-dir"),
            ])
            .args;
            let files =
                Files { name: "p".into(), files: vec![("pod.yaml".into(), text.into())], secret: false };
            assert!(args.lay_down(&[files], &[]).is_err(), "{text}");
            assert!(!dir.path().join("pod-manifest-dir").exists());
        }
    }

    #[test]
    fn keys_that_lead_elsewhere_are_refused() {
        for key in ["../x", "a/b", "..", "/etc/passwd", ""] {
            let object = json!({"data": {key: ""}});
            assert!(files_of(&object, &resources::CONFIG_MAPS, "n").is_err(), "{key}");
        }
        let broken = json!({"data": {"a": "%%%"}});
        assert!(files_of(&broken, &resources::SECRETS, "n").is_err());
    }
}
