//! Network configurations: a directory of files, of which the first that can be used is the node's network.
//!
//! `*.conflist` holds a chain of plug-ins, `*.conf` and `*.json` a single one, which is a chain of one. Files are taken in the
//! order of their names, as other runtimes do.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use thiserror::Error;

/// A configuration is a page of text; whatever is larger is not one.
const LARGEST: u64 = 1 << 20;
/// A chain longer than this is a mistake.
const MOST_PLUGINS: usize = 32;

/// A version of the CNI protocol that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Answers have `ip4` and `ip6`.
    V0_1,
    /// As 0.1, with DNS.
    V0_2,
    /// Chains of plug-ins; answers list interfaces and addresses.
    V0_3_0,
    /// As 0.3.0.
    V0_3_1,
    /// With CHECK.
    V0_4,
    /// Without single-plug-in files.
    V1_0,
    /// With STATUS and GC.
    V1_1,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [(Version, &'static str); 7] = [
        (Self::V0_1, "0.1.0"),
        (Self::V0_2, "0.2.0"),
        (Self::V0_3_0, "0.3.0"),
        (Self::V0_3_1, "0.3.1"),
        (Self::V0_4, "0.4.0"),
        (Self::V1_0, "1.0.0"),
        (Self::V1_1, "1.1.0"),
    ];

    /// The version as it is written.
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(version, _)| *version == self).map_or("1.0.0", |(_, text)| text)
    }

    /// Reads a version.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| *known == text).map(|(version, _)| *version)
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
pub enum ConfError {
    /// The directory or file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is no JSON object.
    #[error("{path} is not JSON")]
    Json {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// A field is missing or wrong.
    #[error("{path}: {field} {problem}")]
    Field {
        /// Which file.
        path: PathBuf,
        /// Which field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// A network: plug-ins that are called one after another for every pod.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// The protocol that its plug-ins are spoken to in.
    pub version: Version,
    /// CHECK is not to be called.
    pub disable_check: bool,
    /// GC is not to be called.
    pub disable_gc: bool,
    /// Each plug-in's configuration, as written.
    pub plugins: Vec<Map<String, Value>>,
}

impl NetworkList {
    /// Reads one file. `single`: it configures one plug-in, not a chain.
    pub fn parse(path: &Path, bytes: &[u8], single: bool) -> Result<Self, ConfError> {
        let wrong = |field: &str, problem: &str| ConfError::Field {
            path: path.to_owned(),
            field: field.to_owned(),
            problem: problem.to_owned(),
        };
        let conf: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|source| ConfError::Json { path: path.to_owned(), source })?;
        let name = conf.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !is_name(&name) {
            return Err(wrong(
                "name",
                "must begin with a letter or digit and hold nothing but those, _, . and -",
            ));
        }
        let version = version_of(&conf).map_err(|problem| wrong("cniVersion", &problem))?;
        let flag = |field: &str| match conf.get(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            // Written as a string by some, and taken by other runtimes.
            Some(Value::String(text)) if matches!(text.as_str(), "true" | "false") => Ok(text == "true"),
            Some(_) => Err(wrong(field, "is neither true nor false")),
        };
        let (disable_check, disable_gc) = (flag("disableCheck")?, flag("disableGC")?);
        let plugins = match conf.get("plugins") {
            _ if single => vec![conf.clone()],
            Some(Value::Array(plugins)) if !plugins.is_empty() && plugins.len() <= MOST_PLUGINS => {
                let plugins: Option<Vec<_>> =
                    plugins.iter().map(|plugin| plugin.as_object().cloned()).collect();
                plugins.ok_or_else(|| wrong("plugins", "holds something that is no object"))?
            }
            Some(Value::Array(_)) => return Err(wrong("plugins", "must hold between 1 and 32 plug-ins")),
            _ => return Err(wrong("plugins", "is missing")),
        };
        for plugin in &plugins {
            let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
            // It becomes a file name.
            if !is_name(kind) {
                return Err(wrong("type", "of a plug-in is missing or no file name"));
            }
        }
        Ok(Self { name, version, disable_check, disable_gc, plugins })
    }

    /// The names of the plug-ins' programs.
    pub fn programs(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().filter_map(|plugin| plugin.get("type").and_then(Value::as_str))
    }
}

/// The protocol's rule for names, of networks and containers alike.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-'))
        && text.len() <= 255
}

/// The highest of `cniVersions` that is spoken here, else `cniVersion`; without either, the first version.
fn version_of(conf: &Map<String, Value>) -> Result<Version, String> {
    if let Some(Value::Array(versions)) = conf.get("cniVersions") {
        let known = versions.iter().filter_map(Value::as_str).filter_map(Version::parse).max();
        if let Some(version) = known {
            return Ok(version);
        }
    }
    match conf.get("cniVersion") {
        None => Ok(Version::V0_1),
        Some(Value::String(text)) if text.is_empty() => Ok(Version::V0_1),
        Some(Value::String(text)) => {
            Version::parse(text).ok_or_else(|| format!("{text:?} is not one that is spoken here"))
        }
        Some(_) => Err("is no string".to_owned()),
    }
}

/// The configurations of a directory, in order; files that cannot be used as the errors that they are.
pub fn read_dir(directory: &Path) -> Result<Vec<Result<(PathBuf, NetworkList), ConfError>>, ConfError> {
    let unreadable = |source| ConfError::Read { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        // Whoever brings the network makes the directory.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(unreadable(source)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    let read = |path: PathBuf| {
        let single = match path.extension().and_then(|extension| extension.to_str()) {
            Some("conflist") => false,
            Some("conf" | "json") => true,
            _ => return None,
        };
        Some(read_bounded(&path).map_err(|source| ConfError::Read { path: path.clone(), source }).and_then(
            |bytes| {
                let list = NetworkList::parse(&path, &bytes, single)?;
                Ok((path, list))
            },
        ))
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, single: bool) -> Result<NetworkList, String> {
        NetworkList::parse(Path::new("x"), text.as_bytes(), single).map_err(|error| error.to_string())
    }

    #[test]
    fn chains_and_single_plugins_are_read() {
        let list = parse(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"b"},{"type":"c"}]}"#, false)
            .unwrap();
        assert_eq!((list.version, list.plugins.len()), (Version::V1_0, 2));
        let single = parse(r#"{"cniVersion":"0.3.1","name":"a","type":"b"}"#, true).unwrap();
        assert_eq!(single.programs().collect::<Vec<_>>(), ["b"]);
        let newest = r#"{"cniVersion":"0.4.0","cniVersions":["0.4.0","1.1.0","9.0.0"],"name":"a","plugins":[{"type":"b"}]}"#;
        assert_eq!(parse(newest, false).unwrap().version, Version::V1_1);
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        let cases = [
            (r#"{"#, "is not JSON"),
            (r#"{"name":"../a","plugins":[{"type":"b"}]}"#, "name must begin"),
            (r#"{"name":"a"}"#, "plugins is missing"),
            (r#"{"name":"a","plugins":[]}"#, "between 1 and 32"),
            (r#"{"name":"a","plugins":[1]}"#, "no object"),
            (r#"{"name":"a","plugins":[{"type":"../../bin/sh"}]}"#, "type of a plug-in"),
            (r#"{"name":"a","cniVersion":"2.0.0","plugins":[{"type":"b"}]}"#, "\"2.0.0\" is not one"),
        ];
        for (text, wanted) in cases {
            let error = parse(text, false).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn files_come_in_the_order_of_their_names_and_others_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("20-b.conflist", r#"{"name":"b","plugins":[{"type":"x"}]}"#);
        write("10-a.conf", r#"{"name":"a","type":"x"}"#);
        write("05-broken.conflist", "{");
        write("00-note.txt", "{");
        let found = read_dir(directory.path()).unwrap();
        let names: Vec<Option<String>> =
            found.into_iter().map(|one| one.ok().map(|(_, list)| list.name)).collect();
        assert_eq!(names, [None, Some("a".to_owned()), Some("b".to_owned())]);
        assert!(read_dir(&directory.path().join("absent")).unwrap().is_empty());
    }
}
