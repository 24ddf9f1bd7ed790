//! The audit log as a file: one line per event, rotated by size, old files packed and dropped.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tracing::warn;

use super::AuditError;
use crate::config::AuditLog;

/// How the moment of a rotation stands in a file's name.
const MOMENT: &str = "%Y-%m-%dT%H-%M-%S.%3f";

/// A file that is rotated by size.
pub struct Log {
    path: PathBuf,
    out: Box<dyn Write + Send>,
    written: u64,
    limit: u64,
    keep: usize,
    max_age: Option<Duration>,
    compress: bool,
}

impl Log {
    /// Opens it, or standard output.
    pub fn open(config: &AuditLog) -> Result<Self, AuditError> {
        let path = config.path.clone();
        let to_stdout = path == Path::new("-");
        let (out, written) = if to_stdout {
            (Box::new(std::io::stdout()) as Box<dyn Write + Send>, 0)
        } else {
            open_file(&path).map_err(|source| AuditError::Open { path: path.clone(), source })?
        };
        let limit = if to_stdout { u64::MAX } else { config.max_size.max(1) << 20 };
        let max_age = (config.max_age_days > 0)
            .then(|| Duration::from_secs(config.max_age_days.saturating_mul(86_400)));
        let keep = if config.max_backup == 0 { usize::MAX } else { config.max_backup };
        Ok(Self { path, out, written, limit, keep, max_age, compress: config.compress })
    }

    /// Writes lines, in one piece where they fit.
    pub fn write(&mut self, lines: &[String]) -> std::io::Result<()> {
        for line in lines {
            if self.written > 0 && self.written + line.len() as u64 > self.limit {
                self.out.flush()?;
                self.rotate(Timestamp::now())?;
            }
            self.out.write_all(line.as_bytes())?;
            self.out.write_all(b"\n")?;
            self.written += line.len() as u64 + 1;
        }
        self.out.flush()
    }

    fn rotate(&mut self, now: Timestamp) -> std::io::Result<()> {
        let (stem, extension) = parts(&self.path);
        let aside = self.path.with_file_name(format!("{stem}-{}{extension}", now.strftime(MOMENT)));
        std::fs::rename(&self.path, &aside)?;
        (self.out, self.written) = open_file(&self.path)?;
        if self.compress {
            pack(&aside)?;
        }
        for old in self.too_old(now)? {
            // Somebody else may have taken it away.
            if let Err(error) = std::fs::remove_file(&old) {
                warn!(path = %old.display(), %error, "cannot remove an old audit log");
            }
        }
        Ok(())
    }

    /// Rotated files beyond the number or the age that are kept.
    fn too_old(&self, now: Timestamp) -> std::io::Result<Vec<PathBuf>> {
        let (stem, extension) = parts(&self.path);
        let directory =
            self.path.parent().filter(|own| !own.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let moment = name
                .strip_prefix(&format!("{stem}-"))
                .and_then(|rest| rest.strip_suffix(".gz").unwrap_or(rest).strip_suffix(&extension));
            if let Some(moment) = moment.filter(|text| text.len() == "2006-01-02T15-04-05.000".len()) {
                found.push((moment.to_owned(), path));
            }
        }
        found.sort_by(|one, two| two.0.cmp(&one.0));
        let oldest = self
            .max_age
            .and_then(|age| now.checked_sub(jiff::SignedDuration::try_from(age).ok()?).ok())
            .map(|moment| moment.strftime(MOMENT).to_string());
        let drop = |index: usize, moment: &str| {
            index >= self.keep || oldest.as_deref().is_some_and(|oldest| moment < oldest)
        };
        let aged = found.into_iter().enumerate().filter(|(index, (moment, _))| drop(*index, moment));
        Ok(aged.map(|(_, (_, path))| path).collect())
    }
}

fn parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|own| format!(".{}", own.to_string_lossy())).unwrap_or_default();
    (stem, extension)
}

fn pack(path: &Path) -> std::io::Result<()> {
    let packed = PathBuf::from(format!("{}.gz", path.display()));
    let mut encoder =
        flate2::write::GzEncoder::new(std::fs::File::create(&packed)?, flate2::Compression::default());
    std::io::copy(&mut std::fs::File::open(path)?, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    std::fs::remove_file(path)
}

fn open_file(path: &Path) -> std::io::Result<(Box<dyn Write + Send>, u64)> {
    // Who asked for what is not for everyone.
    let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let size = file.metadata()?.len();
    Ok((Box::new(std::io::BufWriter::new(file)), size))
}

/// The older form of a line: a part of an event, as text.
pub fn legacy(event: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let or = |value: &Value, default: &str| match value.as_str() {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => default.to_owned(),
    };
    let groups = |user: &Value, default: &str| match user["groups"].as_array() {
        Some(groups) if !groups.is_empty() => {
            groups.iter().map(|group| format!("{:?}", text(group))).collect::<Vec<_>>().join(",")
        }
        _ => default.to_owned(),
    };
    let other = &event["impersonatedUser"];
    let response = match event["responseStatus"]["code"].as_u64() {
        Some(code) => code.to_string(),
        None => "<deferred>".to_owned(),
    };
    format!(
        "{} AUDIT: id={:?} stage={:?} ip={:?} method={:?} user={:?} groups={:?} as={:?} asgroups={:?} user-agent={:?} namespace={:?} uri={:?} response=\"{response}\"",
        text(&event["requestReceivedTimestamp"]),
        text(&event["auditID"]),
        text(&event["stage"]),
        or(&event["sourceIPs"][0], "<unknown>"),
        text(&event["verb"]),
        or(&event["user"]["username"], "<none>"),
        groups(&event["user"], "<none>"),
        or(&other["username"], "<self>"),
        groups(other, "<lookup>"),
        text(&event["userAgent"]),
        or(&event["objectRef"]["namespace"], "<none>"),
        text(&event["requestURI"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_full_log_is_put_aside_packed_and_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let mut config = AuditLog::at(path.clone());
        (config.max_size, config.max_backup, config.compress) = (1, 2, true);
        let mut log = Log::open(&config).unwrap();
        let line = "x".repeat(600 << 10);
        for _ in 0..5 {
            log.write(std::slice::from_ref(&line)).unwrap();
            std::thread::park_timeout(Duration::from_millis(3)); // names differ by the millisecond
        }
        let mut names: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names.len(), 3, "{names:?}");
        assert!(names[0].starts_with("audit-2") && names[0].ends_with(".log.gz"), "{names:?}");
        assert_eq!(names[2], "audit.log");
    }

    #[test]
    fn the_older_form_names_who_and_what() {
        let event = json!({"requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z", "auditID": "i", "stage": "ResponseComplete",
            "sourceIPs": ["10.0.0.1"], "verb": "get", "user": {"username": "ann", "groups": ["a", "b"]}, "userAgent": "t",
            "objectRef": {"namespace": "ns"}, "requestURI": "/api", "responseStatus": {"code": 200}});
        assert_eq!(
            legacy(&event),
            "2026-01-01T00:00:00.000000Z AUDIT: id=\"i\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" method=\"get\" user=\"ann\" groups=\"\\\"a\\\",\\\"b\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"t\" namespace=\"ns\" uri=\"/api\" response=\"200\""
        );
    }
}
