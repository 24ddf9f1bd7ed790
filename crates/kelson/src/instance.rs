//! The one process that runs a data directory's cluster, as other processes see it.
//!
//! The kernel's file lock is the truth about whether it runs: it goes with the process however that ends. The
//! file beside it only says who holds the lock.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::up::Layout;

/// What a running instance says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub pid: i32,
    pub version: String,
    pub started: jiff::Timestamp,
    pub api: SocketAddr,
    pub kubeconfig: PathBuf,
    pub node: Option<String>,
}

/// The right to run the cluster of a data directory. Released when dropped or when the process ends.
pub struct Claim {
    _lock: File,
    layout: Layout,
}

impl Claim {
    /// Takes the data directory, or says who has it.
    pub fn take(layout: &Layout) -> anyhow::Result<Self> {
        let root = layout.root();
        // Keys, secrets and logs are in it: for nobody else, also where it was there before.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)
            .and_then(|()| fs::set_permissions(root, Permissions::from_mode(0o700)))
            .with_context(|| {
                format!("cannot create the data directory {}; choose another with --data-dir", root.display())
            })?;
        let path = layout.lock();
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(&path).with_context(|| {
                format!(
                    "cannot write in the data directory {}; choose another with --data-dir",
                    root.display()
                )
            })?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let who = read(layout).map(|instance| format!(" (pid {})", instance.pid)).unwrap_or_default();
            bail!(
                "a cluster already runs in {}{who}; see it with `kelson status`, stop it with `kelson down`",
                root.display()
            );
        }
        // What an earlier process said of itself is not true of this one, and its number may be anyone's by now.
        let _ = fs::remove_file(layout.instance()); // usually there is none
        lock.set_len(0)
            .and_then(|()| (&lock).write_all(std::process::id().to_string().as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { _lock: lock, layout: layout.clone() })
    }

    pub fn announce(&self, instance: &Instance) -> anyhow::Result<()> {
        let path = self.layout.instance();
        let fresh = path.with_extension("json.new");
        fs::write(&fresh, serde_json::to_vec_pretty(instance)?)
            .and_then(|()| fs::rename(&fresh, &path))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// What the last instance of this directory said, whether or not it still runs.
pub fn read(layout: &Layout) -> Option<Instance> {
    serde_json::from_slice(&fs::read(layout.instance()).ok()?).ok()
}

/// The process that holds the lock, once that is known to be held: it may be starting and not have announced itself.
pub fn owner(layout: &Layout) -> Option<i32> {
    fs::read_to_string(layout.lock()).ok()?.trim().parse().ok()
}

/// Whether a process runs this directory's cluster now.
pub fn is_running(layout: &Layout) -> bool {
    let Ok(lock) = File::open(layout.lock()) else { return false };
    // A shared lock is refused exactly while the owner holds its exclusive one.
    flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_runs_one_cluster_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path().join("data"));
        assert!(!is_running(&layout));
        let claim = Claim::take(&layout).unwrap();
        assert!(is_running(&layout));
        let refusal = Claim::take(&layout).err().unwrap().to_string();
        assert!(refusal.contains("already runs"), "{refusal}");
        assert_eq!(owner(&layout), i32::try_from(std::process::id()).ok());
        drop(claim);
        assert!(!is_running(&layout));
        Claim::take(&layout).unwrap();
    }
}
