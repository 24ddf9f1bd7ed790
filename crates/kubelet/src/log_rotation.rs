//! Keeps container logs from filling the disk: a log that grew too large is renamed, and its writer told to begin anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cri::ContainerState;
use lifecycle::Stop;
use tracing::{debug, warn};

use crate::host::SharedHost;
use crate::pods::Pods;

const CHECK: Duration = Duration::from_secs(10);

/// Looks at the logs of running containers now and then.
pub async fn run(host: SharedHost, pods: Arc<Pods>, stop: Stop) {
    while stop.or(tokio::time::sleep(CHECK)).await.is_some() {
        for report in pods.reports() {
            for (name, id, state) in &report.containers {
                let Some(path) = report.log_paths.get(id).filter(|_| *state == ContainerState::Running)
                else {
                    continue;
                };
                let too_large =
                    std::fs::metadata(path).is_ok_and(|log| log.len() > host.config.log_max_bytes);
                if too_large && let Err(error) = rotate(&host, id, path).await {
                    warn!(container = name, error = %telemetry::chain(&error), "cannot rotate the log");
                }
            }
        }
    }
}

async fn rotate(host: &SharedHost, id: &str, path: &Path) -> cri::Result<()> {
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    let aside = sibling(path, &now);
    let failed = |error| cri::Error::failed(format!("renaming {}", path.display()), error);
    std::fs::rename(path, &aside).map_err(failed)?;
    if let Err(error) = host.config.runtime.reopen_container_log(id).await {
        // The writer still has the old file; putting the name back loses nothing.
        std::fs::rename(&aside, path).map_err(failed)?;
        return Err(error);
    }
    debug!(container = id, path = %path.display(), "log rotated");
    for old in surplus(rotated(path), host.config.log_max_files) {
        // Removed next time if it cannot be now.
        let _ = std::fs::remove_file(old);
    }
    Ok(())
}

fn sibling(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

/// The rotated files of a log, the oldest first.
fn rotated(path: &Path) -> Vec<PathBuf> {
    let Some((dir, name)) = path.parent().zip(path.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let prefix = format!("{name}.");
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

/// Those that are too many beside the current log.
fn surplus(mut rotated: Vec<PathBuf>, max_files: u32) -> Vec<PathBuf> {
    let kept = max_files.saturating_sub(1) as usize;
    rotated.truncate(rotated.len().saturating_sub(kept));
    rotated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        for name in ["0.log", "0.log.2", "0.log.1", "0.log.3", "1.log.0"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let old = rotated(&log);
        assert_eq!(old.len(), 3);
        assert_eq!(surplus(old, 2), [dir.path().join("0.log.1"), dir.path().join("0.log.2")]);
        assert_eq!(sibling(&log, "x"), dir.path().join("0.log.x"));
    }
}
