//! Security contexts.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use crate::checks;

const SYSCTL: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";

fn id(context: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    if let Some(number) = context.get(field).and_then(Value::as_i64) {
        for complaint in names::is_user_id(number) {
            problems.invalid(&path.child(field), number, complaint);
        }
    }
}

fn profiles(context: &Value, path: &Path<'_>, problems: &mut Problems) {
    for (field, word) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let Some(profile) = context.get(field) else { continue };
        let at = path.child(field);
        let local = get_str(profile, "localhostProfile");
        match get_str(profile, "type") {
            "Localhost" => {
                if local.is_empty() {
                    let text = format!("must be set when {word} type is Localhost");
                    problems.required(&at.child("localhostProfile"), text);
                } else if field == "seccompProfile" {
                    super::volumes::relative_path(local, &at.child("localhostProfile"), problems);
                } else if local.trim() != local {
                    problems.invalid(
                        &at.child("localhostProfile"),
                        local,
                        "must not be padded with whitespace",
                    );
                }
            }
            other => {
                if profile.get("localhostProfile").is_some() {
                    let text = format!("can only be set when {word} type is Localhost");
                    problems.invalid(&at.child("localhostProfile"), local, text);
                }
                match other {
                    "RuntimeDefault" | "Unconfined" => {}
                    "" => {
                        problems.required(&at.child("type"), format!("type is required when {field} is set"))
                    }
                    _ => problems.not_supported(
                        &at.child("type"),
                        other,
                        &["Localhost", "RuntimeDefault", "Unconfined"],
                    ),
                }
            }
        }
    }
}

/// Checks `securityContext` of a container.
pub fn container(context: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["runAsUser", "runAsGroup"] {
        id(context, field, path, problems);
    }
    profiles(context, path, problems);
    checks::one_of(context, "procMount", false, &["Default", "Unmasked"], path, problems);
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            problems.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = get_list(&context["capabilities"], "add");
        if added.iter().any(|name| name == "CAP_SYS_ADMIN" || name == "SYS_ADMIN") {
            problems.invalid(
                path,
                context.clone(),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

/// Checks `securityContext` of a pod.
pub fn pod(context: &Value, spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(context, field, path, problems);
    }
    let list = path.child("supplementalGroups");
    for (index, group) in get_list(context, "supplementalGroups").iter().enumerate() {
        let group = group.as_i64().unwrap_or(0);
        for complaint in names::is_user_id(group) {
            problems.invalid(&list.index(index), group, complaint);
        }
    }
    profiles(context, path, problems);
    checks::one_of(context, "fsGroupChangePolicy", false, &["Always", "OnRootMismatch"], path, problems);
    checks::one_of(context, "supplementalGroupsPolicy", false, &["Merge", "Strict"], path, problems);
    checks::one_of(context, "seLinuxChangePolicy", false, &["MountOption", "Recursive"], path, problems);
    let list = path.child("sysctls");
    let mut seen = Vec::new();
    for (index, sysctl) in get_list(context, "sysctls").iter().enumerate() {
        let at = list.index(index);
        let name = get_str(sysctl, "name");
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        } else if !is_sysctl(name) {
            problems.invalid(
                &at.child("name"),
                name,
                format!("must have at most 253 characters and match regex {SYSCTL}"),
            );
        } else if seen.contains(&name) {
            problems.duplicate(&at.child("name"), name);
        }
        if spec["hostNetwork"] == true && (name.starts_with("net.") || name.starts_with("net/")) {
            problems.invalid(&at.child("name"), name, "may not be specified when 'hostNetwork' is true");
        }
        let shared = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        if spec["hostIPC"] == true && shared.iter().any(|start| name.replace('/', ".").starts_with(start)) {
            problems.invalid(&at.child("name"), name, "may not be specified when 'hostIPC' is true");
        }
        seen.push(name);
    }
}

fn is_sysctl(name: &str) -> bool {
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let b = part.as_bytes();
            let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
            !b.is_empty()
                && edge(b[0])
                && edge(b[b.len() - 1])
                && b.iter().all(|c| edge(*c) || matches!(c, b'-' | b'_'))
        })
}
