//! Service records: what a unit of the bootstrap machine did and how it went, as the analysis of a failed installation
//! reads it. `/var/log/openshift/SERVICE.json` is an array; each entry is written at once, so that a crash loses none.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Value, json};

/// Entries that are kept: the newest ones of a service that starts again and again.
const KEPT: usize = 500;

/// The record of one service.
#[derive(Debug, Clone)]
pub struct Records {
    path: PathBuf,
}

impl Records {
    /// Of a service, in a directory.
    pub fn new(directory: &Path, service: &str) -> Self {
        Self { path: directory.join(format!("{service}.json")) }
    }

    /// Adds an entry.
    pub fn add(&self, phase: &str, stage: Option<&str>, outcome: Option<Result<(), &str>>) {
        let mut entry = json!({"timestamp": Timestamp::now().to_string(), "phase": phase});
        if let Some(stage) = stage {
            entry["stage"] = json!(stage);
        }
        match outcome {
            Some(Ok(())) => entry["result"] = json!("success"),
            Some(Err(message)) => {
                entry["result"] = json!("failure");
                entry["errorMessage"] = json!(message);
            }
            None => {}
        }
        let text = fs::read(&self.path).unwrap_or_default();
        let mut all: Vec<Value> = serde_json::from_slice(&text).unwrap_or_default();
        all.push(entry);
        let surplus = all.len().saturating_sub(KEPT);
        all.drain(..surplus);
        // A machine without room for records still does its work; the journal says the same.
        if let Some(parent) = self.path.parent() {
            let _ = fs::create_dir_all(parent);
        }
        let temporary = self.path.with_extension("json.new");
        if fs::write(&temporary, serde_json::to_vec_pretty(&all).unwrap_or_default()).is_ok() {
            let _ = fs::rename(&temporary, &self.path);
        }
    }
}

/// What a record says last: a stage that goes on, a failure, or the end.
pub fn summary(text: &[u8]) -> Option<String> {
    let all: Vec<Value> = serde_json::from_slice(text).ok()?;
    let last = all.last()?;
    let stage = last["stage"].as_str().unwrap_or_default();
    Some(match (last["phase"].as_str()?, last["errorMessage"].as_str()) {
        (_, Some(message)) => format!("{stage} failed: {message}").trim_start().to_owned(),
        ("stage start", None) => format!("at {stage}"),
        ("service end", None) => "done".to_owned(),
        (phase, None) => format!("{phase} {stage}").trim_end().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_add_up_and_the_last_one_is_what_counts() {
        let directory = tempfile::tempdir().unwrap();
        let records = Records::new(&directory.path().join("log"), "bootkube");
        let read = || summary(&fs::read(directory.path().join("log/bootkube.json")).unwrap()).unwrap();
        records.add("service start", None, None);
        records.add("stage start", Some("manifests"), None);
        assert_eq!(read(), "at manifests");
        records.add("stage end", Some("manifests"), Some(Err("no API")));
        assert_eq!(read(), "manifests failed: no API");
        records.add("service end", None, Some(Ok(())));
        assert_eq!(read(), "done");
        for _ in 0..KEPT {
            records.add("service start", None, None);
        }
        let all: Vec<Value> =
            serde_json::from_slice(&fs::read(directory.path().join("log/bootkube.json")).unwrap()).unwrap();
        assert_eq!(all.len(), KEPT);
    }
}
