//! `kelson wait-for`: asks the new cluster, through auth/kubeconfig, until a stage is reached or its time is over.
//!
//! Whether a stage is reached is decided by pure functions on the objects read; the loop only asks and waits.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{Client, Https, HttpsConfig};
use serde_json::Value;
use thiserror::Error;
use tokio::time::Instant;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The bootstrap machine may go.
    Bootstrap,
    /// The cluster is installed.
    Install,
}

/// Why waiting ended without the stage.
#[derive(Debug, Error)]
pub enum WaitError {
    /// No way in.
    #[error("cannot use {}; run `kelson create ignition-configs` first", path.display())]
    Kubeconfig {
        /// The kubeconfig.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Time over.
    #[error("{what} within {} minutes; last seen: {seen}", minutes)]
    Late {
        /// What was waited for, as a sentence that was not true.
        what: &'static str,
        /// The limit.
        minutes: u64,
        /// The last answer.
        seen: String,
        /// Exit code.
        code: u8,
    },
    /// Someone asked for the end.
    #[error("interrupted; the machines go on, and the same command does too")]
    Interrupted,
    /// The output is gone.
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
}

impl WaitError {
    /// 5: bootstrap; 6: installation; 7: operators; 8: interrupted; 1: anything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Late { code, .. } => *code,
            Self::Interrupted => 8,
            _ => 1,
        }
    }
}

/// What an answer means: reached, or not and why.
/// Whether something is as it should be, or what is missing.
pub type Verdict = Result<(), String>;

struct Step {
    path: &'static str,
    waiting: &'static str,
    late: &'static str,
    minutes: u64,
    code: u8,
    judge: fn(Option<&Value>) -> Verdict,
    /// How long it must stay true.
    settle: Duration,
}

const BOOTSTRAP: &[Step] = &[
    Step {
        path: "/version",
        waiting: "waiting for the API",
        late: "the API did not answer",
        minutes: 20,
        code: 5,
        judge: |answer| answer.map(drop).ok_or_else(|| "no answer".to_owned()),
        settle: Duration::ZERO,
    },
    Step {
        path: "/api/v1/namespaces/kube-system/configmaps/bootstrap",
        waiting: "waiting for the bootstrap machine to finish",
        late: "the bootstrap machine did not finish",
        minutes: 45,
        code: 5,
        judge: judge_bootstrap,
        settle: Duration::ZERO,
    },
];

const INSTALL: &[Step] = &[
    Step {
        path: "/apis/config.openshift.io/v1/clusterversions/version",
        waiting: "waiting for the cluster version",
        late: "the cluster version did not become available",
        minutes: 40,
        code: 6,
        judge: judge_version,
        settle: Duration::ZERO,
    },
    Step {
        path: "/apis/config.openshift.io/v1/clusteroperators",
        waiting: "waiting for the operators to settle",
        late: "the operators did not settle",
        minutes: 30,
        code: 7,
        judge: judge_operators,
        settle: Duration::from_secs(30),
    },
];

/// Waits for a stage, saying what it waits for whenever that changes.
pub async fn wait(stage: Stage, dir: &Path, out: &mut (dyn Write + Send)) -> Result<(), WaitError> {
    let path = dir.join("auth/kubeconfig");
    let fail = |source: Box<dyn std::error::Error + Send + Sync>| WaitError::Kubeconfig {
        path: path.clone(),
        source,
    };
    let kubeconfig = pki::Kubeconfig::load(&path).map_err(|error| fail(error.into()))?;
    let config = HttpsConfig::from_kubeconfig(&kubeconfig, None).map_err(|error| fail(error.into()))?;
    let transport = Https::new(config).map_err(|error| fail(error.into()))?;
    let client = Client::new(transport, "kelson-wait-for");
    let steps = match stage {
        Stage::Bootstrap => BOOTSTRAP,
        Stage::Install => INSTALL,
    };
    for step in steps {
        run_step(&client, step, out).await?;
    }
    match stage {
        Stage::Bootstrap => {
            writeln!(out, "the bootstrap machine is no longer needed: take it out of the load balancer")?
        }
        Stage::Install => writeln!(out, "installed; export KUBECONFIG={}", path.display())?,
    }
    Ok(())
}

async fn run_step(client: &Client, step: &Step, out: &mut (dyn Write + Send)) -> Result<(), WaitError> {
    writeln!(out, "{} (up to {} minutes)", step.waiting, step.minutes)?;
    let end = Instant::now() + Duration::from_secs(60 * step.minutes);
    let mut seen = String::new();
    let mut true_since = None;
    loop {
        let verdict = match client.get_path::<Value>(step.path).await {
            Ok(answer) => (step.judge)(Some(&answer)),
            Err(error) if error.is_not_found() => (step.judge)(None),
            Err(error) => Err(error.to_string()),
        };
        match verdict {
            Ok(()) => {
                let since = *true_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= step.settle {
                    return Ok(());
                }
            }
            Err(now) => {
                true_since = None;
                if now != seen {
                    writeln!(out, "  {now}")?;
                    seen = now;
                }
            }
        }
        if Instant::now() >= end {
            return Err(WaitError::Late { what: step.late, minutes: step.minutes, seen, code: step.code });
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Whether ConfigMap kube-system/bootstrap says that the bootstrap machine may go.
pub fn judge_bootstrap(answer: Option<&Value>) -> Verdict {
    match answer.map(|object| &object["data"]["status"]) {
        Some(status) if status == "complete" => Ok(()),
        Some(status) => Err(format!("ConfigMap kube-system/bootstrap says {status}")),
        None => Err("ConfigMap kube-system/bootstrap is not there yet".to_owned()),
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Whether ClusterVersion version says that the release is there.
pub fn judge_version(answer: Option<&Value>) -> Verdict {
    let Some(object) = answer else { return Err("ClusterVersion version is not there yet".to_owned()) };
    for (kind, wanted) in [("Available", "True"), ("Failing", "False"), ("Progressing", "False")] {
        let found = condition(object, kind);
        if found.is_none_or(|condition| condition["status"] != wanted) {
            let message = found.and_then(|c| c["message"].as_str()).unwrap_or("no message");
            return Err(format!("ClusterVersion is not {kind}={wanted}: {message}"));
        }
    }
    Ok(())
}

/// Whether every ClusterOperator is available and at rest.
pub fn judge_operators(answer: Option<&Value>) -> Verdict {
    let operators = answer.and_then(|list| list["items"].as_array()).map(Vec::as_slice).unwrap_or_default();
    let unsettled: Vec<String> = operators
        .iter()
        .filter(|operator| {
            let is =
                |kind: &str, status: &str| condition(operator, kind).is_some_and(|c| c["status"] == status);
            is("Progressing", "True") || is("Degraded", "True") || !is("Available", "True")
        })
        .map(|operator| operator["metadata"]["name"].as_str().unwrap_or("?").to_owned())
        .collect();
    if operators.is_empty() {
        return Err("there are no ClusterOperators yet".to_owned());
    }
    if unsettled.is_empty() { Ok(()) } else { Err(format!("unsettled: {}", unsettled.join(", "))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stages_are_judged_by_what_the_objects_say() {
        assert!(judge_bootstrap(None).is_err());
        assert!(judge_bootstrap(Some(&json!({"data": {"status": "pending"}}))).is_err());
        assert!(judge_bootstrap(Some(&json!({"data": {"status": "complete"}}))).is_ok());
        let version = |available: &str, progressing: &str| {
            json!({"status": {"conditions": [
                {"type": "Available", "status": available}, {"type": "Failing", "status": "False"},
                {"type": "Progressing", "status": progressing, "message": "working towards 1"}]}})
        };
        assert!(judge_version(Some(&version("True", "False"))).is_ok());
        assert_eq!(
            judge_version(Some(&version("True", "True"))).unwrap_err(),
            "ClusterVersion is not Progressing=False: working towards 1"
        );
        let operator = |degraded: &str| {
            json!({"items": [{"metadata": {"name": "dns"}, "status": {"conditions": [
                {"type": "Available", "status": "True"}, {"type": "Degraded", "status": degraded}]}}]})
        };
        assert!(judge_operators(Some(&operator("False"))).is_ok());
        assert_eq!(judge_operators(Some(&operator("True"))).unwrap_err(), "unsettled: dns");
        assert!(judge_operators(Some(&json!({"items": []}))).is_err());
    }
}
