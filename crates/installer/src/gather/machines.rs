//! What machines on this host left on their disks: service records, journals by unit, logs of their pods, and what each
//! said of itself last. Machines of other platforms keep theirs; only the API tells of them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;

use super::{Entry, without_keys};

/// The end of a file says how it went; a bundle stays small enough to be sent.
const MOST: u64 = 1 << 20;

/// Everything of the machines below a directory, as far as it can be read.
pub(super) fn entries(dir: &Path) -> Vec<Entry> {
    let mut out = Vec::new();
    for machine in directory(&dir.join("local/machines")) {
        let name = file_name(&machine);
        // As upstream lays it out: the first machine by itself, the others by name.
        let base = if name == "bootstrap" { name } else { format!("control-plane/{name}") };
        let mut add = |path: String, content: Vec<u8>| {
            out.push(Entry { path: format!("{base}/{path}"), content: without_keys(&content) });
        };
        for (file, to) in [
            ("shared/status.json", "status.json"),
            ("state.json", "state.json"),
            ("console.log", "console.log"),
            ("monitor.log", "monitor.log"),
        ] {
            if let Ok(text) = tail(&machine.join(file)) {
                add(to.to_owned(), text);
            }
        }
        for record in directory(&machine.join("var/log/openshift")) {
            if let (true, Ok(text)) = (record.extension().is_some_and(|kind| kind == "json"), tail(&record)) {
                add(format!("services/{}", file_name(&record)), text);
            }
        }
        for (unit, text) in journals(&machine.join("var/log/journal")) {
            add(format!("journals/{unit}.log"), text.into_bytes());
        }
        for pod in directory(&machine.join("var/log/pods")) {
            for container in directory(&pod) {
                for log in directory(&container) {
                    if let Ok(text) = tail(&log) {
                        let path = [&pod, &container, &log].map(|path| file_name(path)).join("/");
                        add(format!("pods/{path}"), text);
                    }
                }
            }
        }
    }
    out
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What is in a directory, by name. One that is not there has nothing; links lead elsewhere and are not followed.
fn directory(path: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let is_plain = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| !kind.is_symlink());
    let mut out: Vec<_> = entries.filter(is_plain).map(|entry| entry.path()).collect();
    out.sort();
    out
}

/// The end of a file.
fn tail(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(MOST)))?;
    let mut out = Vec::new();
    file.take(MOST).read_to_end(&mut out)?;
    Ok(out)
}

/// A journal, unit by unit: one line of time and text per message.
fn journals(path: &Path) -> BTreeMap<String, String> {
    // Older files carry higher numbers; the newest has none.
    let mut files = directory(path);
    files.sort_by_key(|file| {
        let number = file_name(file).split('.').nth(1).and_then(|text| text.parse::<i64>().ok());
        std::cmp::Reverse(number.unwrap_or(0))
    });
    let mut out: BTreeMap<String, String> = BTreeMap::new();
    for file in files {
        let Ok(text) = tail(&file) else { continue };
        // The first line of a tail may be half of one, which is no JSON.
        let lines =
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        for entry in lines {
            let unit = entry["_SYSTEMD_UNIT"].as_str().filter(|unit| !unit.is_empty()).unwrap_or("init");
            let micros = entry["__REALTIME_TIMESTAMP"].as_str().and_then(|text| text.parse().ok());
            let time = micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()).unwrap_or_default();
            let message = entry["MESSAGE"].as_str().unwrap_or_default();
            let name: String =
                unit.chars().map(|char| if char == '/' { '_' } else { char }).take(200).collect();
            out.entry(name).or_default().push_str(&format!("{time} {message}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_journals_and_pod_logs_are_found_without_a_running_machine() {
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join("local/machines/bootstrap");
        let write = |path: &str, text: &str| {
            let path = machine.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("var/log/openshift/bootkube.json", "[]");
        write(
            "var/log/journal/system.json",
            "{\"_SYSTEMD_UNIT\":\"kubelet.service\",\"__REALTIME_TIMESTAMP\":\"1000000\",\"MESSAGE\":\"hello\"}\nhalf",
        );
        write(
            "var/log/pods/ns_pod_uid/etcd/0.log",
            "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\nend\n",
        );
        std::os::unix::fs::symlink("/etc/passwd", machine.join("var/log/openshift/link.json")).unwrap();
        let found: BTreeMap<String, String> = entries(dir.path())
            .into_iter()
            .map(|entry| (entry.path, String::from_utf8(entry.content).unwrap()))
            .collect();
        assert_eq!(found["bootstrap/journals/kubelet.service.log"], "1970-01-01T00:00:01Z hello\n");
        assert_eq!(found["bootstrap/pods/ns_pod_uid/etcd/0.log"], "(private key left out)\nend\n");
        assert!(found.contains_key("bootstrap/services/bootkube.json"), "{found:?}");
        assert!(!found.keys().any(|path| path.contains("link")), "{found:?}");
    }
}
