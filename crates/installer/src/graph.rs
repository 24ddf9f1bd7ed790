//! The asset graph: what is made from what, and which copy of it counts.
//!
//! An asset is its files. Each has a copy in the state (from the last run) and perhaps one on disk (the user's).
//! [`decide`] is pure: it walks the graph from the roots and returns every value, what to write, what was consumed
//! and what to say. The rules: a changed parent makes an asset anew and discards what is on disk, with a warning;
//! otherwise an edit on disk wins and counts as a change; otherwise the state's copy is taken; otherwise it is made.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::install_config::{self, ConfigError, InstallConfig};

/// One file of an asset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssetFile {
    /// Path below the directory.
    pub path: String,
    /// Content.
    pub content: Vec<u8>,
    /// Whether only its owner may read it.
    pub secret: bool,
}

impl AssetFile {
    /// A file that others of the group may read.
    pub fn public(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: content.into(), secret: false }
    }

    /// A file for its owner.
    pub fn secret(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { path: path.into(), content: content.into(), secret: true }
    }
}

/// The value of an asset, by path.
pub type Files = Vec<AssetFile>;

/// Where an asset's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In the state only.
    Internal,
    /// In the directory: these files, or all files of a directory if the name ends in a slash.
    Disk(Vec<String>),
}

impl Place {
    /// Whether a path belongs here.
    pub fn owns(&self, path: &str) -> bool {
        match self {
            Self::Internal => false,
            Self::Disk(names) => names
                .iter()
                .any(|name| path == name || (name.ends_with('/') && path.starts_with(name.as_str()))),
        }
    }
}

/// Why an asset could not be made.
#[derive(Debug, Error)]
pub enum AssetError {
    /// The config is missing.
    #[error("there is no install-config.yaml; write one, or let `kelson create install-config` ask for it")]
    NoConfig,
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A parent lacks a file: a fault of ours or a user who deleted it.
    #[error("{asset} has no file {path}")]
    NoFile {
        /// The parent.
        asset: String,
        /// The file.
        path: String,
    },
    /// Keys or certificates failed.
    #[error("cannot make keys and certificates")]
    Pki(#[from] pki::PkiError),
    /// A file of the user's does not parse.
    #[error("{path} is unusable: {reason}")]
    Unusable {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Two manifests describe one object.
    #[error("{first} and {second} both describe {object}")]
    SameObject {
        /// A file.
        first: String,
        /// Another.
        second: String,
        /// Which object.
        object: String,
    },
    /// YAML could not be written.
    #[error("cannot write YAML")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// JSON could not be written.
    #[error("cannot write JSON")]
    Json(#[from] serde_json::Error),
    /// No randomness.
    #[error("the system's random source failed")]
    Random,
    /// Hashing the password failed.
    #[error("cannot hash the password")]
    Password(#[from] bcrypt::BcryptError),
    /// An ignition config of ours or edited by the user is invalid.
    #[error("{path} is not a valid ignition config: {report}")]
    Ignition {
        /// Which.
        path: String,
        /// What is wrong.
        report: ignition::Report,
    },
}

/// Makes an asset's files.
pub type Generate = Box<dyn Fn(&Inputs<'_>) -> Result<Files, AssetError> + Send + Sync>;

/// A node of the graph.
pub struct Asset {
    /// Its name.
    pub name: String,
    /// What it is made from.
    pub parents: Vec<String>,
    /// What it is for.
    pub about: &'static str,
    /// Where its files are.
    pub place: Place,
    /// How it is made.
    pub generate: Generate,
}

/// What the making of an asset may look at.
pub struct Inputs<'a> {
    values: &'a BTreeMap<String, Files>,
    config: &'a OnceCell<InstallConfig>,
    /// What the asset was in the last run.
    pub previous: Option<&'a Files>,
    /// The time of this run.
    pub now: jiff::Timestamp,
}

impl Inputs<'_> {
    /// A parent's files.
    pub fn files(&self, asset: &str) -> &[AssetFile] {
        self.values.get(asset).map(Vec::as_slice).unwrap_or_default()
    }

    /// One file of a parent.
    pub fn file(&self, asset: &str, path: &str) -> Result<&[u8], AssetError> {
        self.files(asset)
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.content.as_slice())
            .ok_or_else(|| AssetError::NoFile { asset: asset.to_owned(), path: path.to_owned() })
    }

    /// One file of a parent, as text.
    pub fn text(&self, asset: &str, path: &str) -> Result<String, AssetError> {
        Ok(String::from_utf8_lossy(self.file(asset, path)?).into_owned())
    }

    /// The checked config, parsed once per run.
    pub fn config(&self) -> Result<&InstallConfig, AssetError> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let (config, _) = install_config::load(&self.text("install-config", "install-config.yaml")?)?;
        Ok(self.config.get_or_init(|| config))
    }
}

/// Files found on disk, with the secrecy that the last run gave them: the disk knows content, not intent.
fn adopt(found: &Files, before: Option<&Files>) -> Files {
    let known = |path: &str| before.and_then(|files| files.iter().find(|file| file.path == path));
    let adopted = |file: &AssetFile| AssetFile {
        secret: known(&file.path).is_some_and(|known| known.secret),
        ..file.clone()
    };
    found.iter().map(adopted).collect()
}

/// All assets, parents before children.
pub struct Graph {
    assets: Vec<Asset>,
}

/// What a run comes to.
#[derive(Debug, Default)]
pub struct Decision {
    /// Every value, for the state.
    pub values: BTreeMap<String, Files>,
    /// The targets' files, to be written.
    pub writes: Files,
    /// Paths of ancestors to be removed from the directory.
    pub consumed: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Names of what was made in this run.
    pub made: Vec<String>,
}

impl Graph {
    /// Takes assets in an order in which parents stand first.
    pub fn new(assets: Vec<Asset>) -> Self {
        Self { assets }
    }

    /// The assets.
    pub fn assets(&self) -> &[Asset] {
        &self.assets
    }

    /// The targets and everything that they are made from.
    pub fn closure(&self, targets: &[&str]) -> BTreeSet<String> {
        let mut wanted: BTreeSet<String> = targets.iter().map(|name| (*name).to_owned()).collect();
        for asset in self.assets.iter().rev() {
            if wanted.contains(&asset.name) {
                wanted.extend(asset.parents.iter().cloned());
            }
        }
        wanted
    }

    /// Decides what every asset up to the targets is. `disk` holds the files found in the directory.
    pub fn decide(
        &self,
        targets: &[&str],
        state: &BTreeMap<String, Files>,
        disk: &BTreeMap<String, Files>,
        now: jiff::Timestamp,
    ) -> Result<Decision, AssetError> {
        let wanted = self.closure(targets);
        let config = OnceCell::new();
        let mut dirty: BTreeSet<&str> = BTreeSet::new();
        // Assets outside this target keep what the state has.
        let mut decision = Decision { values: state.clone(), ..Decision::default() };
        for asset in self.assets.iter().filter(|asset| wanted.contains(&asset.name)) {
            let before = state.get(&asset.name);
            let found = disk.get(&asset.name);
            let parent_changed = asset.parents.iter().any(|parent| dirty.contains(parent.as_str()));
            let value = match (parent_changed, found, before) {
                (false, Some(found), before) => adopt(found, before),
                (false, None, Some(before)) => before.clone(),
                (_, _, _) => {
                    let inputs = Inputs { values: &decision.values, config: &config, previous: before, now };
                    let mut made = (asset.generate)(&inputs)?;
                    made.sort_by(|a, b| a.path.cmp(&b.path));
                    let found = found.map(|found| adopt(found, before));
                    if found.is_some_and(|found| found != made && Some(&found) != before) {
                        decision.warnings.push(format!(
                            "{}: the edited files are discarded, because what they are made from changed",
                            asset.name
                        ));
                    } else if before.is_some_and(|before| *before != made) {
                        decision
                            .warnings
                            .push(format!("{}: made anew, because what it is made from changed", asset.name));
                    }
                    decision.made.push(asset.name.clone());
                    made
                }
            };
            if before != Some(&value) {
                dirty.insert(&asset.name);
            }
            decision.values.insert(asset.name.clone(), value);
        }
        for asset in self.assets.iter().filter(|asset| wanted.contains(&asset.name)) {
            let is_target = targets.contains(&asset.name.as_str());
            if is_target && asset.place != Place::Internal {
                decision.writes.extend(decision.values[&asset.name].iter().cloned());
            } else if !is_target {
                let found = disk.get(&asset.name).map(Vec::as_slice).unwrap_or_default();
                decision.consumed.extend(found.iter().map(|file| file.path.clone()));
            }
        }
        Ok(decision)
    }

    /// The graph for people and for graphviz.
    pub fn to_dot(&self, targets: &[(&str, Vec<&str>)]) -> String {
        let mut out = String::from("digraph assets {\n  rankdir = LR;\n  node [shape = box];\n");
        for asset in &self.assets {
            let style = if asset.place == Place::Internal { ", style = dashed" } else { "" };
            out.push_str(&format!("  {:?} [tooltip = {:?}{style}];\n", asset.name, asset.about));
            for parent in &asset.parents {
                out.push_str(&format!("  {parent:?} -> {:?};\n", asset.name));
            }
        }
        for (target, members) in targets {
            out.push_str(&format!("  {:?} [shape = oval];\n", format!("create {target}")));
            for member in members {
                out.push_str(&format!("  {member:?} -> {:?};\n", format!("create {target}")));
            }
        }
        out.push_str("}\n");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// source → middle → end; each copies its parent's content and adds its own letter.
    fn graph() -> Graph {
        let copy = |name: &str, parent: Option<&str>, letter: &'static str| {
            let path = format!("{name}.txt");
            let parent_name = parent.map(str::to_owned);
            Asset {
                name: name.to_owned(),
                parents: parent.iter().map(|p| (*p).to_owned()).collect(),
                about: "test",
                place: Place::Disk(vec![path.clone()]),
                generate: Box::new(move |inputs| {
                    let mut content = match &parent_name {
                        Some(parent) => inputs.text(parent, &format!("{parent}.txt"))?,
                        None => String::new(),
                    };
                    content.push_str(letter);
                    Ok(vec![AssetFile::public(path.clone(), content)])
                }),
            }
        };
        Graph::new(vec![
            copy("source", None, "s"),
            copy("middle", Some("source"), "m"),
            copy("end", Some("middle"), "e"),
        ])
    }

    fn file(name: &str, content: &str) -> (String, Files) {
        (name.to_owned(), vec![AssetFile::public(format!("{name}.txt"), content)])
    }

    fn value(decision: &Decision, name: &str) -> String {
        String::from_utf8(decision.values[name][0].content.clone()).unwrap()
    }

    fn decide(state: &[(String, Files)], disk: &[(String, Files)], target: &str) -> Decision {
        let collect = |list: &[(String, Files)]| list.iter().cloned().collect();
        graph().decide(&[target], &collect(state), &collect(disk), jiff::Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn an_empty_directory_makes_everything_and_writes_the_target() {
        let decision = decide(&[], &[], "end");
        assert_eq!(value(&decision, "end"), "sme");
        assert_eq!(decision.writes.len(), 1);
        assert!(decision.warnings.is_empty() && decision.consumed.is_empty());
    }

    #[test]
    fn a_second_run_takes_the_state_and_consumes_ancestors_on_disk() {
        let state = [file("source", "s"), file("middle", "sm"), file("end", "old")];
        let decision = decide(&state, &[file("source", "s")], "end");
        assert_eq!(value(&decision, "end"), "old");
        assert_eq!(decision.consumed, ["source.txt"]);
        assert!(decision.made.is_empty());
    }

    #[test]
    fn an_edit_wins_and_makes_its_children_anew() {
        let state = [file("source", "s"), file("middle", "sm"), file("end", "sme")];
        let decision = decide(&state, &[file("middle", "edited-")], "end");
        assert_eq!(value(&decision, "end"), "edited-e");
        assert_eq!(decision.warnings.len(), 1);
    }

    #[test]
    fn an_edit_below_a_changed_parent_is_discarded_with_a_warning() {
        let state = [file("source", "s"), file("middle", "sm")];
        let decision = decide(&state, &[file("source", "S"), file("middle", "edited")], "end");
        assert_eq!(value(&decision, "middle"), "Sm");
        assert!(decision.warnings[0].contains("discarded"), "{:?}", decision.warnings);
    }
}
