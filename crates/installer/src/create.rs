//! `kelson create`: open the directory, decide, commit, report.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;

use crate::assets::{self, Target};
use crate::graph::{AssetError, AssetFile};
use crate::install_config;
use crate::release::Release;
use crate::store::{Store, StoreError};
use crate::tls::KeyPool;

/// Choices that are not part of install-config.yaml. What is not given stays as the last run had it.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The kind of keys.
    pub key_algorithm: Option<pki::Algorithm>,
    /// A release description instead of the built-in one.
    pub release: Option<String>,
    /// An install config, if none is in the directory.
    pub install_config: Option<String>,
}

/// What a run did.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Paths written, below the directory.
    pub written: Vec<String>,
    /// Paths consumed.
    pub consumed: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Why a run failed.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The assets.
    #[error(transparent)]
    Asset(#[from] AssetError),
    /// A directory that waited too long.
    #[error(
        "{count} certificates in the state expired, the first one ({name}) at {at}; start again in an empty directory"
    )]
    Expired {
        /// How many.
        count: usize,
        /// The first.
        name: String,
        /// When it ended.
        at: Timestamp,
    },
}

impl CreateError {
    /// Exit code: 3 for a wrong install-config.yaml, 1 for anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Asset(AssetError::Config(_)) | Self::Store(StoreError::Asset(AssetError::Config(_))) => 3,
            _ => 1,
        }
    }
}

/// Makes a target in a directory.
pub fn create(dir: &Path, target: Target, options: &Options, now: Timestamp) -> Result<Outcome, CreateError> {
    let store = Store::open(dir)?;
    let keys = Arc::new(KeyPool::default());
    let graph = assets::graph(keys.clone());
    let state = store.state()?;
    refuse_expired(&state, now)?;
    let mut disk = store.disk(&graph)?;
    // Choices made on the command line count like edits.
    if let Some(algorithm) = options.key_algorithm {
        let text = serde_json::to_vec(&algorithm).map_err(AssetError::Json)?;
        disk.insert("key-algorithm".to_owned(), vec![AssetFile::public("key-algorithm.json", text)]);
    }
    if let Some(release) = &options.release {
        let release = Release::parse(release)?;
        let text = serde_json::to_vec_pretty(&release).map_err(AssetError::Json)?;
        disk.insert("release".to_owned(), vec![AssetFile::public("release.json", text)]);
    }
    if let (Some(text), false) = (&options.install_config, disk.contains_key("install-config")) {
        let file = AssetFile::secret("install-config.yaml", text.clone());
        disk.insert("install-config".to_owned(), vec![file]);
    }
    let mut warnings = config_warnings(&disk, &state)?;
    let targets = target.assets();
    fill_keys(&graph, &targets, &state, &disk, &keys)?;
    let mut decision = graph.decide(&targets, &state, &disk, now)?;
    // The config holds the pull secret, wherever it came from.
    for file in decision.values.values_mut().flatten().chain(&mut decision.writes) {
        file.secret |= file.path == "install-config.yaml";
    }
    // Choices are not files of the directory.
    decision.consumed.retain(|path| dir.join(path).exists());
    store.commit(&decision)?;
    warnings.append(&mut decision.warnings);
    let written = decision.writes.into_iter().map(|file| file.path).collect();
    Ok(Outcome { written, consumed: decision.consumed, warnings })
}

type Values = std::collections::BTreeMap<String, crate::graph::Files>;

/// Checks a config on disk even if the target does not read it further, and returns its warnings.
fn config_warnings(disk: &Values, state: &Values) -> Result<Vec<String>, AssetError> {
    let Some(file) = disk.get("install-config").and_then(|files| files.first()) else {
        return Ok(Vec::new());
    };
    let text = String::from_utf8_lossy(&file.content);
    let (_, warnings) = install_config::load(&text)?;
    let unchanged =
        state.get("install-config").and_then(|f| f.first()).is_some_and(|f| f.content == file.content);
    if unchanged {
        return Ok(Vec::new());
    }
    Ok(warnings
        .iter()
        .map(|w| format!("install-config.yaml: {}: {:?} {}", w.path, w.value, w.remedy))
        .collect())
}

fn refuse_expired(state: &Values, now: Timestamp) -> Result<(), CreateError> {
    let mut expired = Vec::new();
    for (name, files) in state.iter().filter(|(name, _)| name.starts_with("tls/")) {
        for file in files.iter().filter(|file| file.path.ends_with(".crt")) {
            if let Ok(certificate) = pki::Certificate::from_pem(&file.content)
                && certificate.not_after < now
            {
                expired.push((name.trim_start_matches("tls/").to_owned(), certificate.not_after));
            }
        }
    }
    match expired.first() {
        None => Ok(()),
        Some((name, at)) => Err(CreateError::Expired { count: expired.len(), name: name.clone(), at: *at }),
    }
}

/// RSA keys are made ahead, on all processors; others are made where they are needed.
fn fill_keys(
    graph: &crate::graph::Graph,
    targets: &[&str],
    state: &Values,
    disk: &Values,
    keys: &KeyPool,
) -> Result<(), AssetError> {
    let chosen = disk.get("key-algorithm").or_else(|| state.get("key-algorithm"));
    let chosen = chosen.and_then(|files| files.first()).map(|file| serde_json::from_slice(&file.content));
    if !matches!(chosen, Some(Ok(pki::Algorithm::Rsa2048))) {
        return Ok(());
    }
    let with_keys = |name: &str| {
        let name = name.strip_prefix("tls/").unwrap_or_default();
        pki::table::INSTALL.iter().any(|row| row.name == name)
            || pki::table::KEYS.iter().any(|(key, _)| *key == name)
    };
    let missing =
        graph.closure(targets).into_iter().filter(|name| with_keys(name) && !state.contains_key(name));
    keys.fill(pki::Algorithm::Rsa2048, missing.count())
}
