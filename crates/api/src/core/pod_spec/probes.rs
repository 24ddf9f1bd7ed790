//! Probes and lifecycle hooks.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use crate::checks;

/// Which probe it is: they differ in what they may say.
#[derive(Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Probe {
    Liveness,
    Readiness,
    Startup,
}

/// Checks a probe.
pub fn validate(probe: &Value, kind: Probe, path: &Path<'_>, problems: &mut Problems) {
    handler(probe, None, path, problems);
    for field in
        ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"]
    {
        checks::non_negative(probe, field, path, problems);
    }
    if let Some(seconds) = probe.get("terminationGracePeriodSeconds") {
        if kind == Probe::Readiness {
            problems.invalid(
                &path.child("terminationGracePeriodSeconds"),
                seconds.clone(),
                "must not be set for readinessProbes",
            );
        } else if seconds.as_i64().is_some_and(|seconds| seconds <= 0) {
            problems.invalid(
                &path.child("terminationGracePeriodSeconds"),
                seconds.clone(),
                "must be greater than 0",
            );
        }
    }
    if kind != Probe::Readiness
        && let Some(threshold) = probe.get("successThreshold").and_then(Value::as_i64)
        && threshold != 1
    {
        problems.invalid(&path.child("successThreshold"), threshold, "must be 1");
    }
}

/// Checks `lifecycle`.
pub fn lifecycle(lifecycle: &Value, grace: Option<i64>, path: &Path<'_>, problems: &mut Problems) {
    for name in ["postStart", "preStop"] {
        if let Some(hook) = lifecycle.get(name) {
            handler(hook, grace, &path.child(name), problems);
        }
    }
}

/// Exactly one way to act.
fn handler(handler: &Value, grace: Option<i64>, path: &Path<'_>, problems: &mut Problems) {
    let mut count = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = handler.get(kind) else { continue };
        let at = path.child(kind);
        count += 1;
        if count > 1 {
            problems.forbidden(&at, "may not specify more than 1 handler type");
            continue;
        }
        match kind {
            "exec" => {
                if get_list(action, "command").is_empty() {
                    problems.required(&at.child("command"), "");
                }
            }
            "httpGet" => {
                if get_str(action, "path").is_empty() {
                    problems.required(&at.child("path"), "");
                }
                checks::port_or_name(&action["port"], &at.child("port"), problems);
                checks::one_of(action, "scheme", false, &["HTTP", "HTTPS"], &at, problems);
                for header in get_list(action, "httpHeaders") {
                    let name = get_str(header, "name");
                    problems.invalid_each(&at.child("httpHeaders"), name, names::is_http_header_name(name));
                }
            }
            "tcpSocket" => checks::port_or_name(&action["port"], &at.child("port"), problems),
            "grpc" => {
                let port = action["port"].as_i64().unwrap_or(0);
                for complaint in names::is_port_number(port) {
                    problems.invalid(&at.child("port"), port, complaint);
                }
            }
            _ => {
                let seconds = action["seconds"].as_i64().unwrap_or(0);
                if seconds < 0 || grace.is_some_and(|grace| seconds > grace) {
                    let text = format!(
                        "must be non-negative and less than terminationGracePeriodSeconds ({})",
                        grace.unwrap_or(0)
                    );
                    problems.invalid(&at, seconds, text);
                }
            }
        }
    }
    if count == 0 {
        problems.required(path, "must specify a handler type");
    }
}
