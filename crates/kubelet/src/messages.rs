//! What a container left as its last words: the termination message file, or the end of its log.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use cri::ContainerStatus;

use crate::beneath::Dir;
use crate::labels;
use crate::server::log_reader::{LogReader, Options};
use crate::state::RuntimeView;

const MAX_MESSAGE: u64 = 4096;
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: u64 = 80;

/// The file of a container's message, in the pod's directory. Only this file is ever read, also when the container
/// mounts something of its own at the same path.
pub fn file(container: &str, attempt: u32) -> PathBuf {
    Path::new("containers").join(container).join(format!("{attempt}.message"))
}

/// Messages by container id: the files are read once, and may be gone later.
#[derive(Debug, Default)]
pub struct Messages(HashMap<String, String>);

impl Messages {
    /// Adds the container's own words to the status of an exited container.
    pub fn fill(&mut self, status: &mut ContainerStatus, pod_dir: &Path) {
        let message = self.0.entry(status.id.clone()).or_insert_with(|| read(status, pod_dir));
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

fn read(status: &ContainerStatus, pod_dir: &Path) -> String {
    let file = file(&status.metadata.name, status.metadata.attempt);
    // A file that is not there is a container that said nothing.
    let message = tail(pod_dir, &file).unwrap_or_default();
    let policy = status.annotations.get(labels::MESSAGE_POLICY).map(String::as_str);
    if message.is_empty() && policy == Some("FallbackToLogsOnError") && status.exit_code != 0 {
        return log_tail(&status.log_path).unwrap_or_default();
    }
    message
}

fn tail(dir: &Path, path: &Path) -> io::Result<String> {
    let mut file = Dir::trusted(dir)?.open_file(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_MESSAGE)))?;
    let mut text = Vec::new();
    file.take(MAX_MESSAGE).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The end of a log, without what the runtime added: a last line that the container did not end stays so.
fn log_tail(path: &Path) -> io::Result<String> {
    let options = Options { tail_lines: Some(MAX_LOG_LINES), ..Options::default() };
    let mut reader = LogReader::open(path, options)?;
    let mut text = Vec::new();
    while let Some(piece) = reader.read()?.filter(|piece| !piece.is_empty()) {
        text.extend_from_slice(&piece);
        text.drain(..text.len().saturating_sub(MAX_LOG));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::{ContainerMetadata, Mount};
    use std::os::unix::fs::symlink;

    const LOG: &str = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stderr F two words\n";

    /// A pod's directory with an exited container `c`, its message file and its log.
    fn exited() -> (tempfile::TempDir, PathBuf, ContainerStatus) {
        let dir = tempfile::tempdir().unwrap();
        let (message, log) = (dir.path().join(file("c", 2)), dir.path().join("logs/pod/c/2.log"));
        for path in [&message, &log] {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        }
        std::fs::write(&message, "").unwrap();
        std::fs::write(&log, LOG).unwrap();
        let status = ContainerStatus {
            id: "c".into(),
            metadata: ContainerMetadata { name: "c".into(), attempt: 2 },
            exit_code: 1,
            log_path: log,
            ..ContainerStatus::default()
        };
        (dir, message, status)
    }

    #[test]
    fn last_words_come_from_the_file_or_the_log() {
        let (dir, message, mut status) = exited();
        assert_eq!(read(&status, dir.path()), "");
        status.annotations.insert(labels::MESSAGE_POLICY.into(), "FallbackToLogsOnError".into());
        assert_eq!(read(&status, dir.path()), "one\ntwo words\n");
        // A line that was not ended is written in one part, and nothing is added to it.
        std::fs::write(&status.log_path, "2026-01-01T00:00:00Z stdout P DONE\n").unwrap();
        assert_eq!(read(&status, dir.path()), "DONE");
        let line = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(99));
        std::fs::write(&status.log_path, line.repeat(200)).unwrap();
        assert_eq!(read(&status, dir.path()).len(), MAX_LOG);
        std::fs::write(&message, "done").unwrap();
        assert_eq!(read(&status, dir.path()), "done");
        std::fs::write(&message, "y".repeat(5000)).unwrap();
        assert_eq!(read(&status, dir.path()).len() as u64, MAX_MESSAGE);
    }

    /// A volume of the pod mounted at the message's path, and links, pipes and devices in the place of the files.
    #[test]
    fn a_pod_cannot_make_us_read_another_file() {
        let (dir, message, mut status) = exited();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "2026-01-01T00:00:00Z stdout F of the host\n").unwrap();
        status.annotations.insert(labels::MESSAGE_POLICY.into(), "FallbackToLogsOnError".into());
        status.mounts = vec![Mount {
            container_path: "/dev/termination-log".into(),
            host_path: secret.clone(),
            ..Mount::default()
        }];
        assert_eq!(read(&status, dir.path()), "one\ntwo words\n");
        for path in [message, status.log_path.clone()] {
            std::fs::remove_file(&path).unwrap();
            symlink(&secret, &path).unwrap();
        }
        assert_eq!(read(&status, dir.path()), "");
        for path in [dir.path().join(file("c", 2)), status.log_path.clone()] {
            std::fs::remove_file(&path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }
        assert_eq!(read(&status, dir.path()), "", "a pipe is not waited for");
    }
}
