//! Volumes of a pod.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use super::env;
use crate::{
    checks,
    core::volume_sources::{self, Source},
};

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// A file mode, when given.
pub fn file_mode(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    if let Some(mode) = value.get(field).and_then(Value::as_i64)
        && !(0..=0o777).contains(&mode)
    {
        problems.invalid(&path.child(field), mode, FILE_MODE);
    }
}

/// A path inside a volume.
pub fn relative_path(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.starts_with('/') {
        problems.invalid(path, text, "must be a relative path");
    }
    no_backsteps(text, path, problems);
}

/// The same for a file of its own, whose name is not that of what the volume keeps there itself.
pub fn file_path(text: &str, path: &Path<'_>, problems: &mut Problems) {
    relative_path(text, path, problems);
    if text.starts_with("..") && !text.starts_with("../") {
        problems.invalid(path, text, "must not start with '..'");
    }
}

/// A path that does not climb.
pub fn no_backsteps(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.split('/').any(|part| part == "..") {
        problems.invalid(path, text, "must not contain '..'");
    }
}

/// A path in the container.
pub fn mount_path_rules(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.contains(':') {
        problems.invalid(path, text, "must not contain ':'");
    }
}

/// Checks the list and returns the names of those that can be mounted: a volume that is wrong is none.
pub fn validate<'a>(
    volumes: &'a [Value],
    sources: &[&[Source]],
    path: &Path<'_>,
    problems: &mut Problems,
) -> Vec<&'a str> {
    let mut good: Vec<&str> = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let found = problems.len();
        let at = path.index(index);
        let name = get_str(volume, "name");
        volume_sources::validate(volume, sources, &at, problems);
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        } else {
            problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
        }
        if good.contains(&name) {
            problems.duplicate(&at.child("name"), name);
        }
        if problems.len() == found {
            good.push(name);
        }
    }
    good
}

/// Keys and where their values go.
pub fn key_paths(source: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("items");
    for (index, item) in get_list(source, "items").iter().enumerate() {
        let at = list.index(index);
        checks::required(item, "key", &at, problems);
        if checks::required(item, "path", &at, problems) {
            file_path(get_str(item, "path"), &at.child("path"), problems);
        }
        file_mode(item, "mode", &at, problems);
    }
}

/// Several sources in one volume.
pub fn projected(volume: &Value, path: &Path<'_>, problems: &mut Problems) {
    file_mode(volume, "defaultMode", path, problems);
    let list = path.child("sources");
    let mut paths: Vec<String> = Vec::new();
    for (index, source) in get_list(volume, "sources").iter().enumerate() {
        let at = list.index(index);
        // Each is judged, also where there should be only one.
        for kind in PROJECTIONS {
            let Some(projection) = source.get(kind) else { continue };
            let here = at.child(kind);
            match kind {
                "secret" | "configMap" => {
                    checks::required(projection, "name", &here, problems);
                    key_paths(projection, &here, problems);
                    for item in get_list(projection, "items") {
                        conflict(
                            get_str(item, "path"),
                            get_str(projection, "name"),
                            &mut paths,
                            path,
                            problems,
                        );
                    }
                }
                "downwardAPI" => {
                    env::downward_items(projection, &here, problems);
                    for item in get_list(projection, "items") {
                        let text = get_str(item, "path");
                        conflict(text, text, &mut paths, path, problems);
                    }
                }
                "serviceAccountToken" => {
                    match projection["expirationSeconds"].as_i64() {
                        Some(seconds) if seconds < 600 => problems.invalid(
                            &here.child("expirationSeconds"),
                            seconds,
                            "may not specify a duration less than 10 minutes",
                        ),
                        Some(seconds) if seconds > 1 << 32 => problems.invalid(
                            &here.child("expirationSeconds"),
                            seconds,
                            "may not specify a duration larger than 2^32 seconds",
                        ),
                        _ => {}
                    }
                    if get_str(projection, "path").is_empty() {
                        problems.required(&path.child("path"), "");
                    } else {
                        file_path(get_str(projection, "path"), &path.child("path"), problems);
                    }
                }
                "clusterTrustBundle" => {
                    let (name, signer) = (get_str(projection, "name"), get_str(projection, "signerName"));
                    if !name.is_empty() && !signer.is_empty() {
                        problems.invalid(
                            &here,
                            projection.clone(),
                            "only one of name and signerName may be used",
                        );
                    } else if name.is_empty() && signer.is_empty() {
                        problems.required(&here, "either name or signerName must be specified");
                    }
                    checks::required(projection, "path", &here, problems);
                }
                _ => {}
            }
        }
        if PROJECTIONS.iter().filter(|kind| source.get(**kind).is_some()).count() > 1 {
            problems.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

/// What can be projected into a volume, in the order in which it is judged.
const PROJECTIONS: [&str; 5] =
    ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"];

fn conflict(text: &str, shown: &str, paths: &mut Vec<String>, path: &Path<'_>, problems: &mut Problems) {
    if text.is_empty() {
        return;
    }
    if paths.iter().any(|have| have == text) {
        problems.invalid(path, shown, "conflicting duplicate paths");
    } else {
        paths.push(text.to_owned());
    }
}
