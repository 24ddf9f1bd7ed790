//! The rules of the format, with the place of every breach.
//!
//! Types, unknown keys and versions follow from [`schema`](crate::schema); what concerns several values is a
//! function here. Paths look like `$.storage.files.0.path`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::schema::{self, NEWEST_MINOR, SHARED_PATHS, Shape};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The config works, perhaps not as meant.
    Warning,
    /// The config is refused.
    Error,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// How bad.
    pub severity: Severity,
    /// Where.
    pub path: String,
    /// What.
    pub message: String,
}

/// All findings, in the order of the config.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The findings.
    pub entries: Vec<Entry>,
}

impl Report {
    /// Whether anything refuses the config.
    pub fn has_errors(&self) -> bool {
        self.entries.iter().any(|entry| entry.severity == Severity::Error)
    }

    fn error(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.entries.push(Entry { severity: Severity::Error, path: path.into(), message: message.into() });
    }

    fn warn(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.entries.push(Entry { severity: Severity::Warning, path: path.into(), message: message.into() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.entries.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            let severity = if entry.severity == Severity::Error { "error" } else { "warning" };
            write!(out, "{separator}{severity} at {}: {}", entry.path, entry.message)?;
        }
        Ok(())
    }
}

/// Checks a config against every rule.
pub fn validate(config: &Value) -> Report {
    let mut report = Report::default();
    let Some(minor) = check_version(config, &mut report) else { return report };
    check_shape(config, &schema::CONFIG, "$", minor, &mut report);
    if report.has_errors() {
        // What follows reads values by their types.
        return report;
    }
    check_references(config, &mut report);
    check_nodes(config, &mut report);
    check_units(config, &mut report);
    check_passwd(config, &mut report);
    check_proxy(config, &mut report);
    report
}

fn check_version(config: &Value, report: &mut Report) -> Option<u64> {
    const PATH: &str = "$.ignition.version";
    let Some(text) = config.get("ignition").and_then(|i| i.get("version")).and_then(Value::as_str) else {
        report.error(PATH, "a version is required");
        return None;
    };
    let parts: Vec<&str> = text.split('.').collect();
    let numbers: Option<Vec<u64>> = parts.iter().map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some([3, minor, 0]) if *minor <= NEWEST_MINOR => Some(*minor),
        Some([_, _, _]) => {
            report.error(PATH, format!("version {text} is not supported; 3.0.0 to 3.{NEWEST_MINOR}.0 are"));
            None
        }
        _ => {
            report.error(PATH, format!("{text:?} is not a version"));
            None
        }
    }
}

fn check_shape(value: &Value, shape: &Shape, path: &str, minor: u64, report: &mut Report) {
    let wrong = |report: &mut Report, wanted: &str| report.error(path, format!("must be {wanted}"));
    match (shape, value) {
        (_, Value::Null) => {}
        (Shape::Object(fields), Value::Object(object)) => {
            for (name, value) in object {
                let inner = format!("{path}.{name}");
                match fields.iter().find(|field| field.name == name) {
                    Some(field) if field.since <= minor => {
                        check_shape(value, &field.shape, &inner, minor, report);
                    }
                    Some(field) => {
                        report.warn(&inner, format!("this key is unused before version 3.{}.0", field.since))
                    }
                    None => report.warn(&inner, "unused key"),
                }
            }
        }
        (Shape::List(element, _), Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                check_shape(value, element, &format!("{path}.{index}"), minor, report);
            }
        }
        (Shape::Text, Value::String(_)) | (Shape::Flag, Value::Bool(_)) => {}
        (Shape::Number, Value::Number(number)) if number.is_i64() || number.is_u64() => {}
        (Shape::Object(_), _) => wrong(report, "an object"),
        (Shape::List(..), _) => wrong(report, "a list"),
        (Shape::Text, _) => wrong(report, "a text"),
        (Shape::Flag, _) => wrong(report, "true or false"),
        (Shape::Number, _) => wrong(report, "a whole number"),
    }
}

/// The elements of a list with their paths; absence is an empty list.
fn elements<'a>(config: &'a Value, section: &str, list: &str) -> Vec<(String, &'a Value)> {
    config
        .get(section)
        .and_then(|section| section.get(list))
        .and_then(Value::as_array)
        .map(|values| {
            values.iter().enumerate().map(|(i, v)| (format!("$.{section}.{list}.{i}"), v)).collect()
        })
        .unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}

const SCHEMES: &[&str] = &["http", "https", "tftp", "s3", "arn", "gs", "data"];

fn check_resource(resource: &Value, path: &str, source_required: bool, report: &mut Report) {
    let source = text(resource, "source");
    if source.is_none() && source_required {
        report.error(format!("{path}.source"), "a source is required");
    }
    let scheme = source.and_then(|url| url.split_once(':')).map(|(scheme, _)| scheme);
    if let Some(url) = source {
        match scheme {
            Some("data") => {
                if let Err(error) = crate::decode_data_url(url) {
                    report.error(format!("{path}.source"), format!("not a data URL: {error}"));
                }
            }
            Some(scheme) if SCHEMES.contains(&scheme) => {}
            _ => report
                .error(format!("{path}.source"), format!("the scheme must be one of {}", SCHEMES.join(", "))),
        }
    }
    let compression = text(resource, "compression");
    if compression.is_some_and(|name| name != "gzip") {
        report.error(format!("{path}.compression"), "must be empty or gzip");
    }
    if let Some(hash) = resource.get("verification").and_then(|v| text(v, "hash")) {
        check_hash(hash, &format!("{path}.verification.hash"), source.is_some(), report);
    }
    let headers =
        resource.get("httpHeaders").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !headers.is_empty() && !matches!(scheme, Some("http" | "https")) {
        report.error(format!("{path}.httpHeaders"), "headers need an http or https source");
    }
    for (index, header) in headers.iter().enumerate() {
        if text(header, "name").is_none() {
            report.error(format!("{path}.httpHeaders.{index}.name"), "a header needs a name");
        }
    }
}

fn check_hash(hash: &str, path: &str, has_source: bool, report: &mut Report) {
    if !has_source {
        report.error(path, "a hash needs a source");
    }
    let Some((function, digest)) = hash.split_once('-') else {
        report.error(path, "must have the form function-hexadecimal");
        return;
    };
    let length = match function {
        "sha256" => 64,
        "sha512" => 128,
        _ => {
            report.error(path, "the hash function must be sha256 or sha512");
            return;
        }
    };
    if digest.len() != length || !digest.bytes().all(|b| b.is_ascii_hexdigit()) {
        report.error(path, format!("a {function} hash has {length} hexadecimal digits"));
    }
}

fn check_references(config: &Value, report: &mut Report) {
    let header = &config["ignition"];
    let references = &header["config"];
    for (index, reference) in references["merge"].as_array().into_iter().flatten().enumerate() {
        check_resource(reference, &format!("$.ignition.config.merge.{index}"), true, report);
    }
    if references["replace"].is_object() {
        check_resource(&references["replace"], "$.ignition.config.replace", false, report);
    }
    let authorities = header["security"]["tls"]["certificateAuthorities"].as_array();
    let mut seen = Vec::new();
    for (index, authority) in authorities.into_iter().flatten().enumerate() {
        let path = format!("$.ignition.security.tls.certificateAuthorities.{index}");
        check_resource(authority, &path, true, report);
        if seen.contains(&&authority["source"]) {
            report.error(format!("{path}.source"), "this authority is listed twice");
        }
        seen.push(&authority["source"]);
    }
}

fn check_path(path: Option<&str>, place: &str, report: &mut Report) {
    let Some(path) = path else {
        report.error(place, "a path is required");
        return;
    };
    if !path.starts_with('/') {
        report.error(place, "the path must be absolute");
    } else if path != "/" && path[1..].split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        report.error(place, "the path must be clean: no empty, \".\" or \"..\" parts, no slash at the end");
    }
}

fn check_nodes(config: &Value, report: &mut Report) {
    // Path of a node in the file system → where in the config it was declared.
    let mut declared: BTreeMap<&str, String> = BTreeMap::new();
    let mut links = Vec::new();
    let mut directories = Vec::new();
    for kind in SHARED_PATHS {
        for (place, node) in elements(config, "storage", kind) {
            let path = text(node, "path");
            check_path(path, &format!("{place}.path"), report);
            if let Some(path) = path {
                if let Some(earlier) = declared.insert(path, place.clone()) {
                    report.error(format!("{place}.path"), format!("declared already at {earlier}"));
                }
                match *kind {
                    "links" => links.push(path),
                    "directories" => directories.push(path),
                    _ => {}
                }
            }
            check_owner(node, &place, report);
            check_mode(node, &place, report);
            if *kind == "files" {
                check_file(node, &place, report);
            }
        }
    }
    for (place, link) in elements(config, "storage", "links") {
        let target = text(link, "target");
        if target.is_none() {
            report.error(format!("{place}.target"), "a link needs a target");
        } else if flag(link, "hard") && target.is_some_and(|target| directories.contains(&target)) {
            report.error(format!("{place}.target"), "a directory cannot have a hard link");
        }
    }
    for (path, place) in &declared {
        let below = |link: &&&str| path.strip_prefix(**link).is_some_and(|rest| rest.starts_with('/'));
        if let Some(link) = links.iter().find(below) {
            report.error(format!("{place}.path"), format!("lies below the link {link}"));
        }
    }
    check_filesystems(config, report);
    check_unit_paths(config, &declared, report);
}

fn check_file(file: &Value, place: &str, report: &mut Report) {
    let contents = file.get("contents").filter(|contents| contents.is_object());
    if let Some(contents) = contents {
        check_resource(contents, &format!("{place}.contents"), false, report);
    }
    if flag(file, "overwrite") && contents.and_then(|c| text(c, "source")).is_none() {
        report.error(format!("{place}.overwrite"), "overwriting needs a source");
    }
    for (index, part) in file["append"].as_array().into_iter().flatten().enumerate() {
        check_resource(part, &format!("{place}.append.{index}"), false, report);
    }
}

fn check_owner(node: &Value, place: &str, report: &mut Report) {
    for kind in ["user", "group"] {
        let owner = &node[kind];
        if owner["id"].is_number() && text(owner, "name").is_some() {
            report.error(format!("{place}.{kind}"), "give an id or a name, not both");
        }
    }
}

fn check_mode(node: &Value, place: &str, report: &mut Report) {
    let Some(mode) = node["mode"].as_i64() else { return };
    let path = format!("{place}.mode");
    if !(0..=0o7777).contains(&mode) {
        report.error(path, "a mode lies between 0 and 07777 (4095)");
    } else if mode > 0o777 {
        report.warn(path, "setuid, setgid and sticky bits are not set before version 3.6.0");
    }
}

fn check_filesystems(config: &Value, report: &mut Report) {
    for (place, filesystem) in elements(config, "storage", "filesystems") {
        if text(filesystem, "device").is_none() {
            report.error(format!("{place}.device"), "a device is required");
        }
        if let Some(path) = text(filesystem, "path") {
            check_path(Some(path), &format!("{place}.path"), report);
        }
    }
    for (list, key) in [("disks", "device"), ("raid", "name"), ("luks", "name")] {
        for (place, element) in elements(config, "storage", list) {
            if text(element, key).is_none() {
                report.error(format!("{place}.{key}"), format!("a {key} is required"));
            }
        }
    }
}

const UNIT_SUFFIXES: &[&str] = &[
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "snapshot",
    "slice",
    "scope",
];

fn check_units(config: &Value, report: &mut Report) {
    let mut names = Vec::new();
    for (place, unit) in elements(config, "systemd", "units") {
        let name = text(unit, "name").unwrap_or_default();
        let suffix = name.rsplit_once('.').map(|(_, suffix)| suffix).unwrap_or_default();
        if !UNIT_SUFFIXES.contains(&suffix) {
            report.error(
                format!("{place}.name"),
                format!("a unit's name ends in one of {}", UNIT_SUFFIXES.join(", ")),
            );
        }
        if names.contains(&name) {
            report.error(format!("{place}.name"), "this unit is declared twice");
        }
        names.push(name);
        let contents = text(unit, "contents");
        if let Some(problem) = contents.and_then(unit_text_problem) {
            report.error(format!("{place}.contents"), problem);
        }
        let installs = contents.is_none_or(|text| text.lines().any(|line| line.trim() == "[Install]"));
        if flag(unit, "enabled") && !installs {
            report.warn(format!("{place}.contents"), "enabled, but it has no [Install] section");
        }
        let mut dropins = Vec::new();
        for (index, dropin) in unit["dropins"].as_array().into_iter().flatten().enumerate() {
            let place = format!("{place}.dropins.{index}");
            let name = text(dropin, "name").unwrap_or_default();
            if !name.ends_with(".conf") {
                report.error(format!("{place}.name"), "a drop-in's name ends in .conf");
            }
            if dropins.contains(&name) {
                report.error(format!("{place}.name"), "this drop-in is declared twice");
            }
            dropins.push(name);
            if let Some(problem) = text(dropin, "contents").and_then(unit_text_problem) {
                report.error(format!("{place}.contents"), problem);
            }
        }
    }
}

/// Why a text is not a unit: sections in brackets, then `key=value`, comments, continued lines.
fn unit_text_problem(text: &str) -> Option<String> {
    let mut section = false;
    let mut continued = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let number = number + 1;
        let is_comment = line.starts_with('#') || line.starts_with(';');
        if continued {
            continued = line.ends_with('\\') || is_comment;
            continue;
        }
        if line.is_empty() || is_comment {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            if !rest.ends_with(']') || rest.len() < 2 {
                return Some(format!("line {number}: a section is not closed"));
            }
            section = true;
            continue;
        }
        if !section {
            // systemd ignores it, with a word in its log; so does the reference implementation.
            continue;
        }
        if !line.contains('=') {
            return Some(format!("line {number}: neither a section nor an option"));
        }
        continued = line.ends_with('\\');
    }
    None
}

/// Ignition writes units itself; a file at the same place would fight with it.
fn check_unit_paths(config: &Value, declared: &BTreeMap<&str, String>, report: &mut Report) {
    for (place, unit) in elements(config, "systemd", "units") {
        let name = text(unit, "name").unwrap_or_default();
        let mut check = |path: String, has_text: bool, place: String| {
            if let Some(earlier) = declared.get(path.as_str()).filter(|_| has_text) {
                report.error(place, format!("{path} is also declared at {earlier}"));
            }
        };
        check(
            format!("/etc/systemd/system/{name}"),
            text(unit, "contents").is_some() || flag(unit, "mask"),
            format!("{place}.name"),
        );
        for (index, dropin) in unit["dropins"].as_array().into_iter().flatten().enumerate() {
            let file = text(dropin, "name").unwrap_or_default();
            check(
                format!("/etc/systemd/system/{name}.d/{file}"),
                text(dropin, "contents").is_some(),
                format!("{place}.dropins.{index}.name"),
            );
        }
    }
}

fn check_passwd(config: &Value, report: &mut Report) {
    for list in ["users", "groups"] {
        let mut names = Vec::new();
        for (place, element) in elements(config, "passwd", list) {
            let Some(name) = text(element, "name") else {
                report.error(format!("{place}.name"), "a name is required");
                continue;
            };
            if names.contains(&name) {
                report.error(format!("{place}.name"), format!("{name} is declared twice"));
            }
            names.push(name);
        }
    }
}

fn check_proxy(config: &Value, report: &mut Report) {
    let proxy = &config["ignition"]["proxy"];
    for key in ["httpProxy", "httpsProxy"] {
        let Some(url) = text(proxy, key) else { continue };
        let path = format!("$.ignition.proxy.{key}");
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("https") => {}
            Some("http") if key == "httpsProxy" => {
                report.warn(path, "requests for https go to an http proxy");
            }
            Some("http") => {}
            _ => report.error(path, "the scheme must be http or https"),
        }
    }
}

#[cfg(test)]
mod tests;
