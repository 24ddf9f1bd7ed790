//! `kelson bootstrap approve-csr`: approves what kubelets ask for until the cluster stands; afterwards an operator or an
//! administrator decides.

use std::time::Duration;

use client::{Client, Resource};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{BootstrapError, MachineArgs, error_text};

const CSRS: Resource =
    Resource::cluster("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest");
const PAUSE: Duration = Duration::from_secs(1);
/// Only what kubelets ask for: anything else waits for a person.
const SIGNERS: &[&str] = &["kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"];

/// Approves until bootkube is done.
pub async fn run(args: &MachineArgs) -> Result<(), BootstrapError> {
    let client = args.client("approve-csr")?;
    let mut last = String::new();
    while !args.is_done() {
        if let Err(error) = approve_pending(&client).await {
            let text = error_text(&error);
            if text != last {
                println!("cannot approve requests: {text}");
                last = text;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    // One more look: a serving certificate is asked for after the client's, which let the node register.
    approve_pending(&client).await.unwrap_or_else(|error| println!("{}", error_text(&error)));
    Ok(())
}

/// Approves what is pending now.
pub async fn approve_pending(client: &Client) -> Result<(), client::Error> {
    let api = client.api(&CSRS);
    let list: Value = client.get_path(&CSRS.path(None, None, None)).await?;
    for request in list["items"].as_array().into_iter().flatten().filter(|request| is_wanted(request)) {
        let name = request["metadata"]["name"].as_str().unwrap_or_default();
        match api.replace_sub::<Value>(name, "approval", &approved(request, Timestamp::now())).await {
            Ok(_) => println!(
                "approved {name} ({}) for {}",
                request["spec"]["signerName"].as_str().unwrap_or_default(),
                request["spec"]["username"].as_str().unwrap_or_default()
            ),
            // Someone else decided, or it is gone: the next look shows which.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a request is a kubelet's and undecided.
pub fn is_wanted(request: &Value) -> bool {
    let decided = request["status"]["conditions"].as_array().is_some_and(|list| !list.is_empty());
    let signer = request["spec"]["signerName"].as_str().unwrap_or_default();
    !decided && SIGNERS.contains(&signer)
}

fn approved(request: &Value, now: Timestamp) -> Value {
    let mut out = request.clone();
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    out["status"]["conditions"] = json!([{
        "type": "Approved", "status": "True", "reason": "BootstrapApprove",
        "message": "approved by the bootstrap machine", "lastUpdateTime": now, "lastTransitionTime": now,
    }]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_undecided_requests_of_kubelets_are_wanted() {
        let request = |signer: &str, conditions: Value| json!({"spec": {"signerName": signer}, "status": {"conditions": conditions}});
        assert!(is_wanted(&request("kubernetes.io/kubelet-serving", Value::Null)));
        assert!(!is_wanted(&request("kubernetes.io/kubelet-serving", json!([{"type": "Denied"}]))));
        assert!(!is_wanted(&request("example.com/other", json!([]))));
    }
}
