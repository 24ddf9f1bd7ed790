//! Credentials that a program supplies: `users[].user.exec` of a kubeconfig.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::kubeconfig::Access;
use crate::error::{CliError, message};

/// What a plug-in gave.
#[derive(Default)]
pub struct Credential {
    pub token: Option<String>,
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
}

/// Runs the program and reads its `ExecCredential`.
pub fn run(exec: &Value, access: &Access) -> Result<Credential, CliError> {
    let program = exec["command"].as_str().unwrap_or_default();
    if program.is_empty() {
        return Err(message("exec plugin: the kubeconfig names no command"));
    }
    let version = exec["apiVersion"].as_str().unwrap_or_default();
    if !matches!(version, "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1") {
        return Err(message(format!("exec plugin: invalid apiVersion {version:?}")));
    }
    let interactive = match exec["interactiveMode"].as_str() {
        Some("Never") => false,
        Some("Always") if !std::io::IsTerminal::is_terminal(&std::io::stdin()) => {
            return Err(message(
                "exec plugin cannot support interactive mode: standard input is not a terminal",
            ));
        }
        _ => std::io::IsTerminal::is_terminal(&std::io::stdin()),
    };
    let mut info =
        json!({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": interactive}});
    if exec["provideClusterInfo"] == true {
        let mut cluster = json!({"server": access.server});
        for (from, to) in [
            ("tls-server-name", "tls-server-name"),
            ("insecure-skip-tls-verify", "insecure-skip-tls-verify"),
            ("certificate-authority-data", "certificate-authority-data"),
            ("proxy-url", "proxy-url"),
        ] {
            if let Some(value) = access.cluster.get(from) {
                cluster[to] = value.clone();
            }
        }
        info["spec"]["cluster"] = cluster;
    }
    let mut command = Command::new(program);
    command
        .args(exec["args"].as_array().into_iter().flatten().filter_map(Value::as_str))
        .env("KUBERNETES_EXEC_INFO", info.to_string())
        .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
        .stderr(Stdio::inherit());
    for entry in exec["env"].as_array().into_iter().flatten() {
        command.env(entry["name"].as_str().unwrap_or_default(), entry["value"].as_str().unwrap_or_default());
    }
    let output = command.output().map_err(|error| {
        let hint = exec["installHint"].as_str().map(|hint| format!("\n\n{hint}")).unwrap_or_default();
        message(format!("getting credentials: exec: executable {program} failed: {error}{hint}"))
    })?;
    if !output.status.success() {
        let code = output.status.code().unwrap_or(-1);
        return Err(message(format!(
            "getting credentials: exec: executable {program} failed with exit code {code}"
        )));
    }
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| message(format!("getting credentials: decoding stdout: {error}")))?;
    if answer["kind"] != "ExecCredential" || answer["apiVersion"] != version {
        return Err(message(format!(
            "getting credentials: exec plugin is configured to use API version {version}, plugin returned version {}",
            answer["apiVersion"].as_str().unwrap_or("none")
        )));
    }
    let status = &answer["status"];
    let pem = |field: &str| status[field].as_str().map(|text| text.as_bytes().to_vec());
    let credential = Credential {
        token: status["token"].as_str().filter(|token| !token.is_empty()).map(str::to_owned),
        certificate: pem("clientCertificateData").zip(pem("clientKeyData")),
    };
    if credential.token.is_none() && credential.certificate.is_none() {
        return Err(message("getting credentials: exec plugin didn't return a token or cert/key pair"));
    }
    Ok(credential)
}
