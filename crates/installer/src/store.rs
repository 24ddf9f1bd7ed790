//! The directory of one installation: its lock, its state file, and the files that users see.
//!
//! Invariants: the state is written before the files, each file beside its place and renamed, ancestors are removed
//! last; so a crash at any instant leaves a directory from which the same command makes the same result.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::graph::{AssetError, AssetFile, Decision, Files, Graph, Place};

/// The state file's name.
pub const STATE: &str = ".kelson_install_state.json";
const LOCK: &str = ".kelson_install.lock";

/// Why a directory could not be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another run.
    #[error("{} is in use by another run; wait for it, or use another --dir", .0.display())]
    InUse(PathBuf),
    /// A name that is nearly right.
    #[error("{} must be named install-config.yaml", .0.display())]
    WrongName(PathBuf),
    /// A state that is no state.
    #[error("the state file {} is unusable; remove it to start a new cluster", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: std::io::Error,
    },
    /// Writing failed.
    #[error("cannot write the assets")]
    Write(#[from] pki::PkiError),
    /// Making failed.
    #[error(transparent)]
    Asset(#[from] AssetError),
}

fn io(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { operation, path, source }
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    assets: BTreeMap<String, Vec<StateEntry>>,
}

#[derive(Serialize, Deserialize)]
struct StateEntry {
    path: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    secret: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

/// A directory that this run has to itself.
pub struct Store {
    dir: PathBuf,
    _lock: File,
}

impl Store {
    /// Makes the directory if needed and takes its lock.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        fs::DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(io("create", dir))?;
        let path = dir.join(LOCK);
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), _lock: lock }),
            Err(fs::TryLockError::WouldBlock) => Err(StoreError::InUse(dir.to_owned())),
            Err(fs::TryLockError::Error(source)) => Err(io("lock", &path)(source)),
        }
    }

    /// The last run's values.
    pub fn state(&self) -> Result<BTreeMap<String, Files>, StoreError> {
        read_state(&self.dir)
    }

    /// Files of assets that are in the directory.
    pub fn disk(&self, graph: &Graph) -> Result<BTreeMap<String, Files>, StoreError> {
        let misnamed = self.dir.join("install-config.yml");
        if misnamed.exists() && !self.dir.join("install-config.yaml").exists() {
            return Err(StoreError::WrongName(misnamed));
        }
        let mut found = BTreeMap::new();
        for asset in graph.assets() {
            let Place::Disk(names) = &asset.place else { continue };
            let mut files = Files::new();
            for name in names {
                self.read(name, &mut files)?;
            }
            files.sort_by(|a, b| a.path.cmp(&b.path));
            if !files.is_empty() {
                found.insert(asset.name.clone(), files);
            }
        }
        Ok(found)
    }

    fn read(&self, name: &str, files: &mut Files) -> Result<(), StoreError> {
        let path = self.dir.join(name);
        if !name.ends_with('/') {
            match fs::read(&path) {
                Ok(content) => files.push(AssetFile::public(name, content)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => return Err(io("read", &path)(source)),
            }
            return Ok(());
        }
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(io("read", &path)(source)),
        };
        for entry in entries {
            let entry = entry.map_err(io("read", &path))?;
            let file_name = entry.file_name().to_string_lossy().into_owned();
            // Hidden files are editors' and ours while we write.
            if file_name.starts_with('.') || entry.path().is_dir() {
                continue;
            }
            let content = fs::read(entry.path()).map_err(io("read", &entry.path()))?;
            files.push(AssetFile::public(format!("{name}{file_name}"), content));
        }
        Ok(())
    }

    /// Makes the decision true: state, files, then removal of what was consumed.
    pub fn commit(&self, decision: &Decision) -> Result<(), StoreError> {
        let path = self.dir.join(STATE);
        let text = state_text(&decision.values).map_err(AssetError::Json)?;
        // Every key of the installation is in it.
        pki::files::write_durably(&path, &text, pki::files::SECRET)?;
        for file in &decision.writes {
            let path = self.dir.join(&file.path);
            if let Some(parent) = path.parent() {
                let mut builder = fs::DirBuilder::new();
                builder.recursive(true).mode(0o750).create(parent).map_err(io("create", parent))?;
            }
            pki::files::write(&path, &file.content, if file.secret { 0o600 } else { 0o640 })?;
        }
        let mut parents = std::collections::BTreeSet::new();
        for consumed in &decision.consumed {
            if decision.writes.iter().any(|file| file.path == *consumed) {
                continue;
            }
            let path = self.dir.join(consumed);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(io("remove", &path)(error));
                }
                _ => {}
            }
            if let Some(parent) = path.parent().filter(|parent| *parent != self.dir) {
                parents.insert(parent.to_owned());
            }
        }
        for parent in parents {
            // A directory with files of the user's own stays.
            let _ = fs::remove_dir(parent);
        }
        Ok(())
    }
}

/// Reads the state of a directory without taking its lock.
pub fn read_state(dir: &Path) -> Result<BTreeMap<String, Files>, StoreError> {
    let path = dir.join(STATE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(source) => return Err(io("read", &path)(source)),
    };
    let state: StateFile =
        serde_json::from_slice(&text).map_err(|source| StoreError::State { path: path.clone(), source })?;
    let decode = |entry: StateEntry| {
        let content = match (entry.text, entry.base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(base64)) => STANDARD.decode(base64).unwrap_or_default(),
            (None, None) => Vec::new(),
        };
        AssetFile { path: entry.path, content, secret: entry.secret }
    };
    Ok(state
        .assets
        .into_iter()
        .map(|(name, entries)| (name, entries.into_iter().map(decode).collect()))
        .collect())
}

fn state_text(values: &BTreeMap<String, Files>) -> Result<Vec<u8>, serde_json::Error> {
    let encode = |file: &AssetFile| {
        let text = String::from_utf8(file.content.clone());
        StateEntry {
            path: file.path.clone(),
            secret: file.secret,
            base64: text.is_err().then(|| STANDARD.encode(&file.content)),
            text: text.ok(),
        }
    };
    let assets =
        values.iter().map(|(name, files)| (name.clone(), files.iter().map(encode).collect())).collect();
    let mut text = serde_json::to_vec_pretty(&StateFile { version: 1, assets })?;
    text.push(b'\n');
    Ok(text)
}
