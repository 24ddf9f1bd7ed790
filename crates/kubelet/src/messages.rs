//! What a container left as its last words: the termination message file, or the end of its log.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use cri::ContainerStatus;

use crate::labels;
use crate::state::RuntimeView;

const MAX_MESSAGE: u64 = 4096;
const MAX_LOG: u64 = 2048;
const MAX_LOG_LINES: usize = 80;

/// Messages by container id: the files are read once, and may be gone later.
#[derive(Debug, Default)]
pub struct Messages(HashMap<String, String>);

impl Messages {
    /// Adds the container's own words to the status of an exited container.
    pub fn fill(&mut self, status: &mut ContainerStatus) {
        let message = self.0.entry(status.id.clone()).or_insert_with(|| read(status));
        if !message.is_empty() {
            if !status.message.is_empty() {
                status.message.push_str(": ");
            }
            status.message.push_str(message);
        }
    }

    pub fn keep_only(&mut self, view: &RuntimeView) {
        self.0.retain(|id, _| view.by_id(id).is_some());
    }
}

fn read(status: &ContainerStatus) -> String {
    let annotation =
        |name: &str| status.annotations.get(name).map(String::as_str).filter(|text| !text.is_empty());
    let path = annotation(labels::MESSAGE_PATH).unwrap_or("/dev/termination-log");
    let mount = status.mounts.iter().find(|mount| mount.container_path == Path::new(path));
    let message = mount.map(|mount| tail(&mount.host_path, MAX_MESSAGE)).unwrap_or_default();
    let fall_back = annotation(labels::MESSAGE_POLICY) == Some("FallbackToLogsOnError");
    if message.is_empty() && fall_back && status.exit_code != 0 {
        return log_tail(&status.log_path);
    }
    message
}

fn tail(path: &Path, limit: u64) -> String {
    let mut text = Vec::new();
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        file.take(limit).read_to_end(&mut text)?;
        Ok(std::mem::take(&mut text))
    };
    // A file that is not there is a container that said nothing.
    let mut read = read;
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The last lines of a log in CRI's format, without times and stream names.
fn log_tail(path: &Path) -> String {
    // Each line carries about 40 bytes that are not the container's.
    let raw = tail(path, MAX_LOG * 3);
    let lines: Vec<&str> = raw.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).collect();
    let text = lines[lines.len().saturating_sub(MAX_LOG_LINES)..].join("\n");
    let start = text.len().saturating_sub(MAX_LOG as usize);
    text[text.ceil_char_boundary(start)..].to_owned() + if text.is_empty() { "" } else { "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::Mount;

    #[test]
    fn last_words_come_from_the_file_or_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("m"), dir.path().join("l"));
        std::fs::write(&file, "done").unwrap();
        std::fs::write(&log, "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two words\n")
            .unwrap();
        let mut status = ContainerStatus {
            id: "c".into(),
            exit_code: 1,
            log_path: log,
            mounts: vec![Mount {
                container_path: "/dev/termination-log".into(),
                host_path: file.clone(),
                ..Mount::default()
            }],
            ..ContainerStatus::default()
        };
        assert_eq!(read(&status), "done");
        std::fs::write(&file, "").unwrap();
        assert_eq!(read(&status), "");
        status.annotations.insert(labels::MESSAGE_POLICY.into(), "FallbackToLogsOnError".into());
        assert_eq!(read(&status), "one\ntwo words\n");
    }
}
