//! What the administrator says of registries: `registries.conf` (version 2) with its drop-in directory, and `certs.d`.
//!
//! The files are read for every pull, so that a change needs no restart. A file that cannot be understood stops the pull:
//! a mirror or a block that is silently left out is worse than a pod that waits.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;
use tracing::debug;

use crate::image::Reference;

/// Where the files are.
#[derive(Clone, Debug)]
pub struct Registries {
    /// `registries.conf`.
    pub file: PathBuf,
    /// `registries.conf.d`, whose files come later and win.
    pub directory: PathBuf,
    /// `certs.d`: a directory per `host:port` with authorities (`*.crt`) and identities (`*.cert`, `*.key`).
    pub certificates: Vec<PathBuf>,
    /// Credentials in Docker's form, for whoever asks without any, and for mirrors.
    pub auth_file: Option<PathBuf>,
}

impl Default for Registries {
    fn default() -> Self {
        Self {
            file: "/etc/containers/registries.conf".into(),
            directory: "/etc/containers/registries.conf.d".into(),
            certificates: vec!["/etc/containers/certs.d".into(), "/etc/docker/certs.d".into()],
            auth_file: Some("/var/lib/kubelet/config.json".into()),
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is not a registry configuration")]
    Parse {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("{path}: registry {registry:?}: {reason}")]
    Entry { path: PathBuf, registry: String, reason: &'static str },
    #[error("registry {prefix} is blocked by {path}")]
    Blocked { path: PathBuf, prefix: String },
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct File {
    unqualified_search_registries: Vec<String>,
    registry: Vec<Entry>,
    /// Of version 1; mixing is an error upstream too.
    registries: Option<toml::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Entry {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    mirror_by_digest_only: bool,
    mirror: Vec<Mirror>,
    #[serde(skip)]
    from: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Mirror {
    location: String,
    insecure: bool,
    pull_from_mirror: String,
}

/// One place to look for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Host and perhaps port.
    pub host: String,
    /// The repository there.
    pub repository: String,
    /// Certificates are not checked, and plain HTTP will do.
    pub insecure: bool,
    /// Not the registry that the reference names: credentials of that one are not for here.
    pub mirror: bool,
}

impl Registries {
    /// The places of an image in the order in which to ask them: mirrors, then the registry itself.
    pub fn sources(&self, reference: &Reference) -> Result<Vec<Source>, ConfigError> {
        sources(&self.read()?, reference)
    }

    fn read(&self) -> Result<Vec<Entry>, ConfigError> {
        let mut files = vec![self.file.clone()];
        let mut dropped: Vec<PathBuf> = match std::fs::read_dir(&self.directory) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(ConfigError::Read { path: self.directory.clone(), source }),
        };
        dropped.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
        dropped.sort();
        files.append(&mut dropped);
        let mut all: Vec<Entry> = Vec::new();
        for path in files {
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(ConfigError::Read { path, source }),
            };
            for entry in parse(&path, &text)? {
                all.retain(|known| known.prefix != entry.prefix);
                all.push(entry);
            }
        }
        Ok(all)
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, ConfigError> {
    let file: File = toml::from_str(text)
        .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
    let bad = |registry: &str, reason| ConfigError::Entry {
        path: path.to_owned(),
        registry: registry.to_owned(),
        reason,
    };
    if file.registries.is_some() {
        return Err(bad("", "the tables [registries.…] are of version 1 of this file: write [[registry]]"));
    }
    if file.unqualified_search_registries.iter().any(|name| name != "docker.io") {
        debug!(path = %path.display(), "short names mean docker.io, whatever unqualified-search-registries says");
    }
    let mut entries = file.registry;
    for entry in &mut entries {
        entry.from = path.to_owned();
        if entry.prefix.is_empty() {
            entry.prefix.clone_from(&entry.location);
        }
        if entry.prefix.is_empty() {
            return Err(bad("", "it has neither prefix nor location"));
        }
        if entry.location.is_empty() && !entry.prefix.starts_with("*.") {
            entry.location.clone_from(&entry.prefix);
        }
        for mirror in &entry.mirror {
            if mirror.location.is_empty() {
                return Err(bad(&entry.prefix, "a mirror has no location"));
            }
            if !["", "all", "digest-only", "tag-only"].contains(&mirror.pull_from_mirror.as_str()) {
                return Err(bad(&entry.prefix, "pull-from-mirror must be all, digest-only or tag-only"));
            }
            if entry.mirror_by_digest_only && !mirror.pull_from_mirror.is_empty() {
                return Err(bad(
                    &entry.prefix,
                    "pull-from-mirror and mirror-by-digest-only exclude each other",
                ));
            }
        }
        let locations = std::iter::once(&entry.location).chain(entry.mirror.iter().map(|m| &m.location));
        if locations.filter(|location| !location.is_empty()).any(|location| location.contains("://")) {
            return Err(bad(&entry.prefix, "a location is host, port and path, without a scheme"));
        }
    }
    Ok(entries)
}

/// How much of a name a prefix covers; `None` where it does not fit.
fn covers(prefix: &str, name: &str) -> Option<usize> {
    if let Some(domain) = prefix.strip_prefix('*') {
        let host = name.split('/').next().unwrap_or(name);
        let end = host.find(domain).map(|at| at + domain.len())?;
        return (end == host.len() || host[end..].starts_with(':')).then_some(end);
    }
    let rest = name.strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with(['/', ':', '@'])).then_some(prefix.len())
}

fn sources(entries: &[Entry], reference: &Reference) -> Result<Vec<Source>, ConfigError> {
    let place = |location: &str, insecure, mirror| {
        let (host, repository) = location.split_once('/').unwrap_or((location, ""));
        Source { host: host.to_owned(), repository: repository.to_owned(), insecure, mirror }
    };
    // Prefixes may end in a tag or a digest, so they are held against the whole reference.
    let full = reference.to_string();
    let best = entries
        .iter()
        .filter_map(|entry| Some((entry, covers(&entry.prefix, &full)?)))
        .max_by_key(|(entry, _)| (!entry.prefix.starts_with('*'), entry.prefix.len()));
    let Some((entry, covered)) = best else { return Ok(vec![place(&reference.name, false, false)]) };
    if entry.blocked {
        return Err(ConfigError::Blocked { path: entry.from.clone(), prefix: entry.prefix.clone() });
    }
    let rest = reference.name.get(covered.min(reference.name.len())..).unwrap_or_default();
    let by_digest = reference.digest.is_some();
    let mut all = Vec::new();
    for mirror in &entry.mirror {
        let wanted = match mirror.pull_from_mirror.as_str() {
            "digest-only" => by_digest,
            "tag-only" => !by_digest,
            _ => by_digest || !entry.mirror_by_digest_only,
        };
        if wanted {
            all.push(place(&format!("{}{rest}", mirror.location), mirror.insecure, true));
        }
    }
    // A prefix with a star and no location leaves the name as it is.
    let location = match entry.location.as_str() {
        "" => reference.name.clone(),
        location => format!("{location}{rest}"),
    };
    let own = place(&location, entry.insecure, false);
    let moved = own.host != reference.registry();
    all.push(Source { mirror: moved, ..own });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str, image: &str) -> Result<Vec<String>, String> {
        let entries = parse(Path::new("registries.conf"), text).map_err(|error| error.to_string())?;
        let found =
            sources(&entries, &Reference::parse(image).unwrap()).map_err(|error| error.to_string())?;
        Ok(found
            .into_iter()
            .map(|source| {
                let mark = if source.insecure { "!" } else { "" };
                format!("{mark}{}/{}", source.host, source.repository)
            })
            .collect())
    }

    const TEXT: &str = r#"
        unqualified-search-registries = ["docker.io"]
        [[registry]]
        prefix = "quay.example/team"
        location = "inner.example/copy"
        [[registry.mirror]]
        location = "mirror.example:5000/m"
        insecure = true
        [[registry.mirror]]
        location = "digests.example"
        pull-from-mirror = "digest-only"
        [[registry]]
        location = "plain.example:80"
        insecure = true
        [[registry]]
        prefix = "*.bad.example"
        blocked = true
        [[registry]]
        prefix = "good.bad.example"
    "#;

    #[test]
    fn mirrors_come_first_and_the_longest_prefix_decides() {
        let digest = format!("@sha256:{}", "a".repeat(64));
        let cases = [
            ("quay.example/team/app:1", vec!["!mirror.example:5000/m/app", "inner.example/copy/app"]),
            ("quay.example/teams/app:1", vec!["quay.example/teams/app"]),
            ("plain.example:80/x", vec!["!plain.example:80/x"]),
            ("good.bad.example/x", vec!["good.bad.example/x"]),
            ("nginx", vec!["docker.io/library/nginx"]),
        ];
        for (image, expected) in cases {
            assert_eq!(places(TEXT, image).unwrap(), expected, "{image}");
        }
        let by_digest = places(TEXT, &format!("quay.example/team/app{digest}")).unwrap();
        assert_eq!(
            by_digest,
            ["!mirror.example:5000/m/app", "digests.example/app", "inner.example/copy/app"]
        );
        assert!(places(TEXT, "x.bad.example/x").unwrap_err().contains("blocked"));
        assert_eq!(places(TEXT, "bad.example.org/x").unwrap(), ["bad.example.org/x"]);
    }

    #[test]
    fn what_cannot_be_meant_is_an_error() {
        for text in [
            "[[registry]]\n",
            "[[registry]]\nlocation = \"https://x\"\n",
            "[[registry]]\nlocation = \"x\"\n[[registry.mirror]]\n",
            "[[registry]]\nlocation = \"x\"\n[[registry.mirror]]\nlocation=\"y\"\npull-from-mirror = \"some\"\n",
            "[registries.search]\nregistries = [\"x\"]\n",
            "registry = 1\n",
        ] {
            assert!(places(text, "nginx").is_err(), "{text}");
        }
    }
}
