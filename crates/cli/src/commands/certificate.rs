//! `certificate approve|deny`: the word of an administrator on requests for certificates.

use std::io::Write;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::flags::DryRun;
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, fetch_all};
use crate::session::{Ask, Session};

/// Modify certificate resources
#[derive(Args, Debug)]
pub struct Certificate {
    #[command(subcommand)]
    verdict: Verdict,
}

#[derive(Subcommand, Debug)]
enum Verdict {
    /// Approve a certificate signing request
    Approve(Requests),
    /// Deny a certificate signing request
    Deny(Requests),
}

#[derive(Args, Debug)]
struct Requests {
    /// Names of requests
    names: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Update the CSR even if it already has the condition
    #[arg(long)]
    force: bool,
}

const RETRIES: usize = 10;

impl Certificate {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let (requests, wanted, forbidden, word, reason, text) = match self.verdict {
            Verdict::Approve(requests) => {
                let text = "This CSR was approved by kubectl certificate approve.";
                (requests, "Approved", "Denied", "approved", "KubectlApprove", text)
            }
            Verdict::Deny(requests) => {
                let text = "This CSR was denied by kubectl certificate deny.";
                (requests, "Denied", "Approved", "denied", "KubectlDeny", text)
            }
        };
        if requests.names.is_empty() && requests.files.is_empty() {
            return Err(message("one or more CSRs must be specified as <name> or -f <filename>"));
        }
        let mut args = Vec::new();
        if !requests.names.is_empty() {
            args.push("certificatesigningrequests".to_owned());
            args.extend(requests.names.iter().cloned());
        }
        let mut selection = Selection::new(session, &args, &requests.files)?;
        selection.latest = true;
        let (infos, mut errors) = fetch_all(session, selection.plan(session).await?).await?;
        for info in infos {
            let decided = decide(session, &info, wanted, forbidden, reason, text, requests.force).await;
            match decided {
                Ok(()) => requests.output.report(&info.object, word, DryRun::None, out)?,
                Err(error) => errors.push(error),
            }
        }
        CliError::all(errors)
    }
}

async fn decide(
    session: &Session,
    info: &Info,
    wanted: &str,
    forbidden: &str,
    reason: &str,
    text: &str,
    force: bool,
) -> Result<(), CliError> {
    for attempt in 0.. {
        let mut request = info.fetch(session).await?;
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({"type": wanted, "status": "True", "reason": reason, "message": text, "lastUpdateTime": now});
        if !add(&mut request, &info.name, condition, forbidden)? && !force {
            return Ok(());
        }
        let ask = Ask::new(Method::PUT, info.subresource("approval")).json(&request);
        match session.json(ask).await {
            Err(error) if error.is_conflict() && attempt < RETRIES => {}
            outcome => return outcome.map(|_| ()),
        }
    }
    Ok(())
}

/// Adds the condition; whether it was missing.
fn add(request: &mut Value, name: &str, condition: Value, forbidden: &str) -> Result<bool, CliError> {
    let known = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
    if known.iter().any(|known| known["type"] == forbidden) {
        return Err(message(format!("certificate signing request \"{name}\" is already {forbidden}")));
    }
    if known.iter().any(|known| known["type"] == condition["type"]) {
        return Ok(false);
    }
    let mut conditions = known;
    conditions.push(condition);
    request["status"]["conditions"] = Value::Array(conditions);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_given_once_and_not_turned() {
        let mut request = json!({});
        assert!(add(&mut request, "x", json!({"type": "Approved"}), "Denied").expect("added"));
        assert!(!add(&mut request, "x", json!({"type": "Approved"}), "Denied").expect("known"));
        let error = add(&mut request, "x", json!({"type": "Denied"}), "Approved").expect_err("turned");
        assert_eq!(error.to_string(), "certificate signing request \"x\" is already Approved");
    }
}
