//! `kelson gather`: what someone else needs to understand a failed installation, and nothing that opens the cluster.
//!
//! A file goes in whole only if this installer made it as a public one or it is a log; anything else is listed by
//! size and digest. Objects of kind Secret lose their data wherever they stand. Machines on this host give what is on their
//! disks ([`machines`]); of all, the API tells what it knows ([`api`]).

mod api;
mod machines;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;
use thiserror::Error;

use crate::analyze;
use crate::install_config;
use crate::store::{self, StoreError};

/// Why there is no bundle.
#[derive(Debug, Error)]
pub enum GatherError {
    /// Nothing to gather.
    #[error("{} holds no installation", .0.display())]
    Nothing(PathBuf),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Its word.
        #[source]
        source: io::Error,
    },
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> GatherError {
    let path = path.to_owned();
    move |source| GatherError::Io { operation, path, source }
}

/// One entry of the bundle.
struct Entry {
    path: String,
    content: Vec<u8>,
}

/// Writes the bundle and returns how many files are in it.
pub async fn gather(dir: &Path, output: &Path, now: Timestamp) -> Result<usize, GatherError> {
    let entries = collect(dir, output, now).await?;
    write(output, &entries, now).map_err(io_error("write", output))?;
    Ok(entries.len())
}

/// What a bundle of a directory would hold, by path.
pub async fn files(dir: &Path, now: Timestamp) -> Result<analyze::Files, GatherError> {
    let entries = collect(dir, Path::new(""), now).await?;
    Ok(entries.into_iter().map(|entry| (entry.path, entry.content)).collect())
}

/// Reads a bundle.
pub fn read(bundle: &Path) -> Result<analyze::Files, GatherError> {
    let inner = || {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(bundle)?));
        let mut out = analyze::Files::new();
        let mut room = LARGEST_BUNDLE;
        for entry in archive.entries()? {
            let entry = entry?;
            let path = entry.path()?.to_string_lossy().into_owned();
            // A bundle may come from anyone.
            let mut content = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(entry, room + 1), &mut content)?;
            room = room.checked_sub(content.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
            out.insert(path.strip_prefix("log-bundle/").unwrap_or(&path).to_owned(), content);
        }
        Ok(out)
    };
    inner().map_err(io_error("read", bundle))
}

/// Of all files together, once unpacked.
const LARGEST_BUNDLE: u64 = 1 << 30;

async fn collect(dir: &Path, output: &Path, now: Timestamp) -> Result<Vec<Entry>, GatherError> {
    let state = store::read_state(dir)?;
    let mut entries = Vec::new();
    let mut withheld = Vec::new();
    let mut public: BTreeSet<&str> = BTreeSet::new();
    for file in state.values().flatten() {
        if file.secret {
            withheld.push(describe(&file.path, &file.content));
        } else {
            public.insert(&file.path);
            entries.push(Entry {
                path: format!("state/{}", file.path),
                content: redact(&file.path, &file.content),
            });
        }
        if file.path == "install-config.yaml" {
            entries.extend(config_entry(&file.content));
        }
    }
    for (path, content) in files_of(dir)? {
        if path == output.strip_prefix(dir).unwrap_or(output).to_string_lossy()
            || path.starts_with(".kelson_install")
        {
            continue;
        }
        let known = public.contains(path.as_str()) || path.ends_with(".log");
        if known {
            entries.push(Entry { content: redact(&path, &content), path: format!("directory/{path}") });
        } else {
            withheld.push(describe(&path, &content));
        }
    }
    if entries.is_empty() && withheld.is_empty() {
        return Err(GatherError::Nothing(dir.to_owned()));
    }
    withheld.sort();
    withheld.dedup();
    entries.push(Entry {
        path: "withheld.txt".to_owned(),
        content: format!("# path, bytes, SHA-256 of what was left out\n{}", withheld.concat()).into_bytes(),
    });
    entries.extend(machines::entries(dir));
    let (answers, problem) = api::entries(dir).await;
    entries.extend(answers);
    let problem = problem.map(|problem| format!("the API was not asked for all: {problem}\n"));
    entries.push(Entry {
        path: "log-bundle.log".to_owned(),
        content: format!(
            "gathered at {now} by kelson {}\n{}",
            env!("CARGO_PKG_VERSION"),
            problem.unwrap_or_default()
        )
        .into_bytes(),
    });
    Ok(entries)
}

fn describe(path: &str, content: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, content);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{path} {} {hex}\n", content.len())
}

fn config_entry(content: &[u8]) -> Option<Entry> {
    let (config, _) = install_config::load(&String::from_utf8_lossy(content)).ok()?;
    let text = serde_yaml_ng::to_string(&config.without_secrets()).ok()?;
    Some(Entry { path: "install-config.yaml".to_owned(), content: text.into_bytes() })
}

/// Takes the data out of Secrets and keys out of texts, in files that users may have added.
fn redact(path: &str, content: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(content) else { return b"(binary, left out)\n".to_vec() };
    if path.contains("manifests/") || path.starts_with("openshift/") {
        let mut documents = Vec::new();
        for document in serde_yaml_ng::Deserializer::from_str(text) {
            match Value::deserialize(document) {
                Ok(mut object) => {
                    if object["kind"] == "Secret" {
                        object["data"] = Value::String("(left out)".to_owned());
                        object["stringData"] = Value::Null;
                        object["metadata"]["annotations"] = Value::Null;
                        documents.push(serde_yaml_ng::to_string(&object).unwrap_or_default());
                    }
                }
                Err(_) => return b"(not YAML, left out)\n".to_vec(),
            }
        }
        if !documents.is_empty() {
            return documents.join("---\n").into_bytes();
        }
    }
    without_keys(text.as_bytes())
}

/// A text without the private keys in it.
fn without_keys(content: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(content);
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for line in text.lines() {
        inside |= line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
        if !inside {
            out.push_str(line);
            out.push('\n');
        }
        if inside && line.contains("-----END") {
            out.push_str("(private key left out)\n");
            inside = false;
        }
    }
    out.into_bytes()
}

/// Files of the directory and one level below, which is as deep as installations go.
fn files_of(dir: &Path) -> Result<Vec<(String, Vec<u8>)>, GatherError> {
    let mut out = Vec::new();
    let mut pending = vec![(dir.to_owned(), 0)];
    while let Some((next, depth)) = pending.pop() {
        for entry in fs::read_dir(&next).map_err(io_error("read", &next))? {
            let path = entry.map_err(io_error("read", &next))?.path();
            if path.is_dir() {
                if depth == 0 {
                    pending.push((path, 1));
                }
                continue;
            }
            let name = path.strip_prefix(dir).unwrap_or(&path).to_string_lossy().into_owned();
            if name.ends_with(".tar.gz") {
                continue;
            }
            out.push((name, fs::read(&path).map_err(io_error("read", &path))?));
        }
    }
    out.sort();
    Ok(out)
}

fn write(output: &Path, entries: &[Entry], now: Timestamp) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file: File =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(output)?;
    let packer = flate2::write::GzEncoder::new(file, flate2::Compression::default());
    let mut archive = tar::Builder::new(packer);
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(u64::try_from(now.as_second()).unwrap_or(0));
        archive.append_data(&mut header, format!("log-bundle/{}", entry.path), entry.content.as_slice())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}
