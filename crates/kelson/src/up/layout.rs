//! Where everything of one cluster lives on disk. All paths hang off the data directory.

use std::path::{Path, PathBuf};

/// The folders and files of a data directory.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `/var/lib/kelson` for root, the user's own data folder otherwise.
    pub fn default_root(is_root: bool, home: Option<PathBuf>) -> PathBuf {
        match home {
            Some(home) if !is_root => home.join(".local/share/kelson"),
            _ => PathBuf::from("/var/lib/kelson"),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    pub fn store(&self) -> PathBuf {
        self.root.join("etcd")
    }

    pub fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    pub fn static_pods(&self) -> PathBuf {
        self.root.join("manifests")
    }

    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub fn runtime(&self) -> PathBuf {
        self.root.join("runtime")
    }

    pub fn network(&self) -> PathBuf {
        self.root.join("network")
    }

    /// The address ranges that were chosen for the cluster.
    pub fn ranges(&self) -> PathBuf {
        self.root.join("ranges.json")
    }

    /// Directories that claims were given as volumes.
    pub fn volumes(&self) -> PathBuf {
        self.root.join("volumes")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.root.join("logs/pods")
    }

    pub fn log(&self) -> PathBuf {
        self.root.join("kelson.log")
    }

    /// Who did what.
    pub fn audit(&self) -> PathBuf {
        self.root.join("audit")
    }

    /// What Secrets are encrypted with in the store.
    pub fn secrets_key(&self) -> PathBuf {
        self.pki().join("secrets.key")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("admin.kubeconfig")
    }

    /// Held locked by the process that runs the cluster.
    pub fn lock(&self) -> PathBuf {
        self.root.join("kelson.lock")
    }

    /// What that process tells others about itself.
    pub fn instance(&self) -> PathBuf {
        self.root.join("instance.json")
    }
}
