//! Static pods: manifests in a directory, run whether or not there is an API server, and mirrored to it if there is.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{DeleteOptions, resources};
use lifecycle::Stop;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::host::SharedHost;
use crate::inotify::Watch;
use crate::pod::{HASH_ANNOTATION, MIRROR_ANNOTATION, Pod, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use crate::pods::Pods;

/// The directory is read again after this long even if the kernel reports nothing (network file systems).
const RESCAN: Duration = Duration::from_secs(60);
const MIRROR_RETRY: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub enum ManifestError {
    #[error("not YAML or JSON")]
    Yaml(#[from] serde_yaml_ng::Error),
    #[error("not a v1 Pod but {0:?}")]
    Kind(String),
    #[error("not a valid Pod")]
    Pod(#[from] serde_json::Error),
    #[error("metadata.name is missing")]
    NoName,
}

/// Reads a manifest and makes it this node's own.
pub fn parse(text: &str, node_name: &str) -> Result<Pod, ManifestError> {
    let mut value: Value = serde_yaml_ng::from_str(text)?;
    client::drop_nulls(&mut value);
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind != "Pod" || value["apiVersion"] != "v1" {
        return Err(ManifestError::Kind(kind.to_owned()));
    }
    let digest = Sha256::digest(format!("{node_name}\n{}", value));
    let hash: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    let name =
        value["metadata"]["name"].as_str().filter(|name| !name.is_empty()).ok_or(ManifestError::NoName)?;
    let name = format!("{name}-{}", node_name.to_lowercase());
    let metadata = &mut value["metadata"];
    metadata["name"] = json!(name);
    if metadata["namespace"].as_str().is_none_or(str::is_empty) {
        metadata["namespace"] = json!("default");
    }
    metadata["uid"] = json!(hash);
    let annotations = &mut metadata["annotations"];
    if !annotations.is_object() {
        *annotations = json!({});
    }
    annotations[HASH_ANNOTATION] = json!(hash);
    annotations[SOURCE_ANNOTATION] = json!("file");
    annotations[SEEN_ANNOTATION] = json!(jiff::Timestamp::now().to_string());
    let spec = &mut value["spec"];
    spec["nodeName"] = json!(node_name);
    let tolerations = &mut spec["tolerations"];
    if !tolerations.is_array() {
        *tolerations = json!([]);
    }
    if let Some(list) = tolerations.as_array_mut() {
        list.push(json!({"operator": "Exists", "effect": "NoExecute"}));
    }
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("status");
    }
    Ok(Pod::from_raw(serde_json::value::to_raw_value(&value)?)?)
}

/// The pods of all manifests in the directory. A file that is not a pod is reported and skipped.
fn read_directory(dir: &Path, node_name: &str) -> std::io::Result<Vec<Pod>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut pods = Vec::new();
    for path in files {
        let hidden = path.file_name().and_then(|name| name.to_str()).is_none_or(|name| name.starts_with('.'));
        if hidden || !path.is_file() {
            continue;
        }
        match std::fs::read_to_string(&path)
            .map_err(|error| error.to_string())
            .and_then(|text| parse(&text, node_name).map_err(|error| telemetry::chain(&error).to_string()))
        {
            Ok(pod) => pods.push(pod),
            Err(error) => warn!(path = %path.display(), error, "cannot use the manifest"),
        }
    }
    Ok(pods)
}

/// The static pods that were found last, by uid.
pub type Known = HashMap<String, Arc<Pod>>;

/// Reads the directory for the first time, before anyone asks which pods belong on this node. False if it cannot be
/// read: then nobody may conclude that a pod is not wanted.
pub fn load(host: &SharedHost, pods: &Arc<Pods>, dir: &Path, known: &mut Known) -> bool {
    match read_directory(dir, &host.config.node_name) {
        Ok(found) => apply(pods, known, found),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => apply(pods, known, Vec::new()),
        Err(error) => {
            // Unreadable is not empty: the pods stay.
            warn!(dir = %dir.display(), %error, "cannot read the manifests");
            return false;
        }
    }
    true
}

/// Keeps the static pods in line with the directory.
pub async fn follow(host: SharedHost, pods: Arc<Pods>, dir: PathBuf, mut known: Known, stop: Stop) {
    let watch = Watch::directory(&dir);
    if let Err(error) = &watch {
        debug!(dir = %dir.display(), %error, "cannot watch the manifests, reading them now and then");
    }
    let watch = watch.ok();
    loop {
        load(&host, &pods, &dir, &mut known);
        let changed = async {
            match &watch {
                Some(watch) => watch.changed().await,
                None => std::future::pending().await,
            }
        };
        if stop.or(tokio::time::timeout(RESCAN, changed)).await.is_none() {
            return;
        }
    }
}

fn apply(pods: &Arc<Pods>, known: &mut HashMap<String, Arc<Pod>>, found: Vec<Pod>) {
    let found: HashMap<String, Arc<Pod>> =
        found.into_iter().map(|pod| (pod.metadata.uid.clone(), Arc::new(pod))).collect();
    let mut changed = false;
    for (uid, pod) in known.iter() {
        if !found.contains_key(uid) {
            info!(pod = %pod.key(), "static pod removed");
            pods.order(pod.clone(), true);
            changed = true;
        }
    }
    for (uid, pod) in &found {
        if !known.contains_key(uid) {
            info!(pod = %pod.key(), "static pod found");
            pods.order(pod.clone(), false);
            changed = true;
        }
    }
    *known = found;
    if changed {
        pods.mirrors_changed.notify_one();
    }
}

/// Keeps the API server's mirrors in line with the static pods.
pub async fn mirror(
    host: SharedHost,
    pods: Arc<Pods>,
    node_uid: impl AsyncFn() -> Option<String>,
    stop: Stop,
) {
    loop {
        let mut pause = Duration::MAX;
        let (wanted, mirrors) = pods.static_pods();
        if !(wanted.is_empty() && mirrors.is_empty()) {
            match reconcile(&host, &wanted, &mirrors, &node_uid).await {
                Ok(()) => {}
                Err(error) => {
                    debug!(error = %telemetry::chain(&error), "cannot mirror static pods yet");
                    pause = MIRROR_RETRY;
                }
            }
        }
        let changed = pods.mirrors_changed.notified();
        // Either is only a reason to look again.
        if stop.or(tokio::time::timeout(pause, changed)).await.is_none() {
            return;
        }
    }
}

async fn reconcile(
    host: &SharedHost,
    wanted: &[Arc<Pod>],
    mirrors: &[Arc<Pod>],
    node_uid: &impl AsyncFn() -> Option<String>,
) -> Result<(), client::Error> {
    let api = |namespace: &str| host.config.client.api(&resources::PODS).within(namespace);
    for mirror in mirrors {
        let hash = mirror.metadata.annotations.get(MIRROR_ANNOTATION);
        let current = wanted.iter().any(|pod| pod.key() == mirror.key() && hash == Some(&pod.metadata.uid));
        let ending = current && mirror.metadata.deletion_timestamp.is_some();
        if !current || ending {
            let options = DeleteOptions::of_uid(&mirror.metadata.uid).grace(0);
            match api(&mirror.metadata.namespace).delete(&mirror.metadata.name, &options).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                _ => {}
            }
        }
    }
    for pod in wanted.iter().filter(|pod| !mirrors.iter().any(|mirror| mirror.key() == pod.key())) {
        let Some(raw) = &pod.raw else { continue };
        let Some(owner) = node_uid().await else { continue };
        let Ok(mut object) = serde_json::from_str::<Value>(raw.get()) else { continue };
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.shift_remove("uid");
        }
        object["metadata"]["annotations"][MIRROR_ANNOTATION] = json!(pod.metadata.uid);
        object["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Node", "name": host.config.node_name, "uid": owner, "controller": true,
        }]);
        match api(&pod.metadata.namespace).create::<serde::de::IgnoredAny>(&object).await {
            Err(error) if !error.is_already_exists() => return Err(error),
            _ => info!(pod = %pod.key(), "static pod mirrored"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: Web\n  creationTimestamp: null\nspec:\n  containers:\n  - name: c\n    image: a:1\n    command: null\n";

    #[test]
    fn a_manifest_becomes_this_nodes_pod() {
        let pod = parse(MANIFEST, "Node1").unwrap();
        assert_eq!(pod.metadata.name, "Web-node1");
        assert_eq!(pod.metadata.namespace, "default");
        assert!(pod.is_static() && !pod.is_mirror());
        assert_eq!(pod.metadata.annotations[HASH_ANNOTATION], pod.metadata.uid);
        assert_eq!(parse(MANIFEST, "Node1").unwrap().metadata.uid, pod.metadata.uid, "stable");
        assert_ne!(parse(&MANIFEST.replace("a:1", "a:2"), "Node1").unwrap().metadata.uid, pod.metadata.uid);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(matches!(parse("kind: Service\napiVersion: v1", "n"), Err(ManifestError::Kind(_))));
        assert!(matches!(parse("kind: Pod\napiVersion: v1", "n"), Err(ManifestError::NoName)));
        assert!(parse("{", "n").is_err());
    }

    #[test]
    fn a_directory_yields_its_pods() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.yaml"), MANIFEST).unwrap();
        std::fs::write(dir.path().join(".hidden.yaml"), MANIFEST).unwrap();
        std::fs::write(dir.path().join("bad.yaml"), "[").unwrap();
        assert_eq!(read_directory(dir.path(), "n").unwrap().len(), 1);
    }
}
