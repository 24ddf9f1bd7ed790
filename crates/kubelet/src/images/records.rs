//! Who may use the images that this kubelet pulled: upstream's files below `image_manager/`.
//!
//! An image pulled with a pod's secret is for pods that show the same credential; others have to pull it themselves, which
//! their registry allows or not. An image without a record was there before us (preloaded), unless a pull of it was begun.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tracing::warn;

use super::Offered;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Secrets that are remembered for one image, as upstream has it.
const MAX_SECRETS: usize = 100;

/// What a pull was allowed by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Nothing, or the node's own credentials: every pod may.
    Node,
    Secret(SecretAccess),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecretAccess {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Pulled {
    kind: String,
    api_version: String,
    last_updated_time: String,
    image_ref: String,
    credential_mapping: BTreeMap<String, Allowed>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Allowed {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretAccess>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

impl Allowed {
    fn add(&mut self, access: Access) {
        match access {
            // Then secrets say nothing more.
            Access::Node => *self = Self { node_pods_accessible: true, kubernetes_secrets: Vec::new() },
            Access::Secret(secret) if !self.node_pods_accessible => {
                let place = |one: &SecretAccess| (one.namespace.clone(), one.name.clone());
                self.kubernetes_secrets.retain(|known| place(known) != place(&secret));
                self.kubernetes_secrets.push(secret);
                let excess = self.kubernetes_secrets.len().saturating_sub(MAX_SECRETS);
                self.kubernetes_secrets.drain(..excess);
            }
            Access::Secret(_) => {}
        }
    }

    fn holds(&self, offered: &[Offered]) -> bool {
        self.node_pods_accessible
            || offered.iter().any(|one| {
                let hash = one.hash();
                self.kubernetes_secrets.iter().any(|known| known.credential_hash == hash)
            })
    }
}

/// The files, and which pulls run.
#[derive(Debug)]
pub struct Records {
    root: PathBuf,
    running: Mutex<BTreeMap<String, usize>>,
}

/// A pull that was begun. A crash leaves its file, so that what it brought is not taken for preloaded.
pub struct Intent<'a> {
    records: &'a Records,
    image: String,
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let mut running = self.records.lock();
        let left = running.get(&self.image).copied().unwrap_or(1) - 1;
        if left > 0 {
            running.insert(self.image.clone(), left);
            return;
        }
        running.remove(&self.image);
        let _ = fs::remove_file(self.records.intent_path(&self.image)); // it may never have been written
    }
}

impl Records {
    pub fn open(root: PathBuf) -> Self {
        for name in ["pulling", "pulled"] {
            let path = root.join(name);
            if let Err(error) = make_private(&path) {
                warn!(path = %path.display(), %error, "who pulled images cannot be kept");
            }
        }
        Self { root, running: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, usize>> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn intent_path(&self, image: &str) -> PathBuf {
        self.root.join("pulling").join(file_name(image))
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.root.join("pulled").join(file_name(id))
    }

    fn read(&self, id: &str) -> Option<Pulled> {
        serde_json::from_slice(&fs::read(self.record_path(id)).ok()?).ok()
    }

    fn write(&self, path: &Path, value: &impl Serialize) {
        let write = || -> io::Result<()> {
            let temporary = path.with_extension("tmp");
            fs::write(&temporary, serde_json::to_vec(value)?)?;
            fs::rename(&temporary, path)
        };
        if let Err(error) = write() {
            // Less is allowed then, never more.
            warn!(path = %path.display(), %error, "cannot record who pulled an image");
        }
    }

    /// Says that a pull begins.
    pub fn intend(&self, image: &str) -> Intent<'_> {
        let count = {
            let mut running = self.lock();
            let count = running.entry(image.to_owned()).or_insert(0);
            *count += 1;
            *count
        };
        if count == 1 {
            let intent =
                serde_json::json!({"kind": "ImagePullIntent", "apiVersion": API_VERSION, "image": image});
            self.write(&self.intent_path(image), &intent);
        }
        Intent { records: self, image: image.to_owned() }
    }

    /// Says that an image is here, and by what right.
    pub fn pulled(&self, id: &str, name: &str, access: Access) {
        let _running = self.lock();
        let mut record = self.read(id).unwrap_or_default();
        record.credential_mapping.entry(name.to_owned()).or_default().add(access);
        record.kind = "ImagePulledRecord".into();
        record.api_version = API_VERSION.into();
        record.image_ref = id.to_owned();
        record.last_updated_time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        self.write(&self.record_path(id), &record);
    }

    /// Whether an image was here before any pull of ours.
    pub fn is_preloaded(&self, image: &str, id: &str) -> bool {
        !self.record_path(id).exists() && !self.intent_path(image).exists()
    }

    /// Whether a pod with these credentials may use an image under a name.
    pub fn allows(&self, id: &str, name: &str, offered: &[Offered]) -> bool {
        self.read(id).is_some_and(|record| {
            record.credential_mapping.get(name).is_some_and(|allowed| allowed.holds(offered))
        })
    }

    /// Forgets an image that was removed.
    pub fn forget(&self, id: &str) {
        let _ = fs::remove_file(self.record_path(id)); // most were never pulled by us
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn file_name(text: &str) -> String {
    Sha256::digest(text.as_bytes())
        .iter()
        .fold(String::from("sha256-"), |name, byte| format!("{name}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::super::Credentials;
    use super::*;

    fn offered(password: &str) -> Vec<Offered> {
        let text = format!(r#"{{"auths":{{"r.io":{{"username":"u","password":"{password}"}}}}}}"#);
        let mut all = Credentials::default();
        all.add_secret("ns", "s", &[(".dockerconfigjson".to_owned(), text.into_bytes())].into());
        all.for_image("r.io/app")
    }

    #[test]
    fn an_image_pulled_with_a_secret_is_for_those_who_have_it() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::open(directory.path().join("image_manager"));
        assert!(records.is_preloaded("r.io/app:1", "sha256:1"));
        let intent = records.intend("r.io/app:1");
        assert!(!records.is_preloaded("r.io/app:1", "sha256:1"), "a pull was begun");
        records.pulled("sha256:1", "r.io/app", offered("a")[0].access());
        drop(intent);
        assert!(!records.is_preloaded("r.io/app:1", "sha256:1"), "a pull was done");
        assert!(records.allows("sha256:1", "r.io/app", &offered("a")));
        assert!(!records.allows("sha256:1", "r.io/app", &offered("b")));
        assert!(!records.allows("sha256:1", "r.io/app", &[]));
        assert!(!records.allows("sha256:1", "r.io/other", &offered("a")), "another name, another right");
        records.pulled("sha256:1", "r.io/app", Access::Node);
        assert!(records.allows("sha256:1", "r.io/app", &[]));
        let reopened = Records::open(directory.path().join("image_manager"));
        assert!(reopened.allows("sha256:1", "r.io/app", &[]));
        reopened.forget("sha256:1");
        assert!(reopened.is_preloaded("r.io/app:1", "sha256:1"));
        assert_eq!(fs::read_dir(directory.path().join("image_manager/pulling")).unwrap().count(), 0);
    }
}
