//! Security contexts.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use super::Kept;
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
                // An empty path is taken for seccomp, as long as it is there.
                let missing = match field {
                    "seccompProfile" => profile.get("localhostProfile").is_none(),
                    _ => local.is_empty(),
                };
                if missing {
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
                let known = ["RuntimeDefault", "Unconfined"].contains(&other);
                match other {
                    _ if known => {}
                    "" => {
                        problems.required(&at.child("type"), format!("type is required when {field} is set"))
                    }
                    _ => problems.not_supported(
                        &at.child("type"),
                        other,
                        &["Localhost", "RuntimeDefault", "Unconfined"],
                    ),
                }
                // The one is shown whole, the other is not looked at when its type is wrong.
                let seccomp = field == "seccompProfile";
                if profile.get("localhostProfile").is_some() && (seccomp || known) {
                    let text = format!("can only be set when {word} type is Localhost");
                    let shown = match seccomp {
                        true => crate::go_form::shown(profile, "SeccompProfile"),
                        false => local.into(),
                    };
                    problems.invalid(&at.child("localhostProfile"), shown, text);
                }
            }
        }
    }
}

/// Who a process is on Windows.
fn windows(context: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(options) = context.get("windowsOptions") else { return };
    let path = path.child("windowsOptions");
    checks::syntax(options, "gmsaCredentialSpecName", names::is_dns1123_subdomain, &path, problems);
    if let Some(spec) = options.get("gmsaCredentialSpec").and_then(Value::as_str) {
        let at = path.child("gmsaCredentialSpec");
        if spec.is_empty() {
            problems.invalid(&at, spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > 64 * 1024 {
            problems.invalid(&at, spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    let Some(name) = options.get("runAsUserName").and_then(Value::as_str) else { return };
    let at = path.child("runAsUserName");
    let mut refuse = |why: &str| problems.invalid(&at, name, format!("runAsUserName{why}"));
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts[..] {
        _ if name.is_empty() => return refuse(" cannot be an empty string"),
        _ if name.contains(|c: char| c.is_ascii_control()) => {
            return refuse(" cannot contain control characters");
        }
        [user] => (None, user),
        [domain, user] => (Some(domain), user),
        _ => return refuse(" cannot contain more than one backslash"),
    };
    if domain.is_some_and(|domain| domain.len() >= 256) {
        refuse("'s Domain length must be under 256 characters");
    }
    let net_bios = |text: &str| {
        (1..=15).contains(&text.chars().count())
            && !text.starts_with('.')
            && !text.contains(['/', ':', '*', '?', '"', '<', '>', '|'])
    };
    if domain.is_some_and(|domain| !net_bios(domain) && !names::looks_like_subdomain(domain)) {
        refuse("'s Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        refuse("'s User cannot be empty");
    } else if user.len() > 104 {
        refuse("'s User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        refuse("'s User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        refuse("'s User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
}

/// Checks `securityContext` of a container.
pub fn container(context: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["runAsUser", "runAsGroup"] {
        id(context, field, path, problems);
    }
    windows(context, path, problems);
    profiles(context, path, problems);
    checks::one_of(context, "procMount", false, &["Default", "Unmasked"], path, problems);
    if context["allowPrivilegeEscalation"] == false {
        if context["privileged"] == true {
            problems.invalid(
                path,
                crate::go_form::shown(context, "SecurityContext"),
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
            );
        }
        let added = get_list(&context["capabilities"], "add");
        if added.iter().any(|name| name == "CAP_SYS_ADMIN" || name == "SYS_ADMIN") {
            problems.invalid(
                path,
                crate::go_form::shown(context, "SecurityContext"),
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN",
            );
        }
    }
}

/// Checks `securityContext` of a pod.
pub fn pod(context: &Value, spec: &Value, kept: Kept, path: &Path<'_>, problems: &mut Problems) {
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
    windows(context, path, problems);
    profiles(context, path, problems);
    checks::one_of(context, "fsGroupChangePolicy", false, &["Always", "OnRootMismatch"], path, problems);
    checks::one_of(context, "supplementalGroupsPolicy", false, &["Merge", "Strict"], path, problems);
    let policies: &[&str] =
        if kept.selinux_policies { &["MountOption", "Recursive"] } else { &["Recursive"] };
    checks::one_of(context, "seLinuxChangePolicy", false, policies, path, problems);
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
