//! What a pod may not say on the system that it names.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
};
use serde_json::Value;

const NOT_ON_WINDOWS: &str = "cannot be set for a windows pod";
/// Of the pod's security context, in the order in which it is complained of; a slash begins a field of the spec.
const POD: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "/hostUsers",
    "/hostPID",
    "/hostIPC",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "/shareProcessNamespace",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const CONTAINER: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Checks `os` and what follows from it.
pub fn validate(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(os) = spec.get("os") else { return };
    match get_str(os, "name") {
        "" => problems.required(&path.child("os").child("name"), ""),
        "linux" | "windows" => {}
        other => problems.not_supported(&path.child("os"), other, &["linux", "windows"]),
    }
    let context = spec.get("securityContext").unwrap_or(&Value::Null);
    match get_str(os, "name") {
        "linux" => {
            let at = path.child("securityContext");
            on_linux(context, &at, problems);
            each_context(spec, path, problems, on_linux);
        }
        "windows" => {
            if spec.get("resources").is_some() {
                problems.forbidden(&path.child("resources"), "may not be set for a windows pod");
            }
            for field in POD {
                let at = path.child("securityContext");
                let (below, name, here) = match field.strip_prefix('/') {
                    Some(name) => (spec, name, path),
                    None => (context, *field, &at),
                };
                if below.get(name).is_some_and(|value| value != &Value::Null) {
                    problems.forbidden(&here.child(name), NOT_ON_WINDOWS);
                }
            }
            each_context(spec, path, problems, |context, at, problems| {
                for field in CONTAINER.iter().filter(|field| context.get(**field).is_some()) {
                    problems.forbidden(&at.child(field), NOT_ON_WINDOWS);
                }
            });
        }
        _ => {}
    }
}

fn on_linux(context: &Value, path: &Path<'_>, problems: &mut Problems) {
    if context.get("windowsOptions").is_some() {
        problems.forbidden(&path.child("windowsOptions"), "windows options cannot be set for a linux pod");
    }
}

/// Processes of the host itself, on Windows: all containers are such ones, or none is.
pub fn host_processes(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let asked = |owner: &Value| owner["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let of_pod = asked(spec);
    let (mut all, mut hosts) = (0, 0);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let list_path = path.child(list);
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let own = asked(container);
            if let (Some(pod), Some(own)) = (of_pod, own)
                && pod != own
            {
                let at = list_path.index(index);
                problems.invalid(
                    &at.child("securityContext").child("windowsOptions").child("hostProcess"),
                    own,
                    format!("pod hostProcess value must be identical if both are specified, was {pod}"),
                );
            }
            all += 1;
            hosts += usize::from(own.or(of_pod) == Some(true));
        }
    }
    if hosts == 0 {
        return;
    }
    if hosts != all {
        let why =
            "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        problems.invalid(path, "", why);
    }
    if spec["hostNetwork"] != true {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        problems.invalid(&path.child("hostNetwork"), false, why);
    }
}

fn each_context(
    spec: &Value,
    path: &Path<'_>,
    problems: &mut Problems,
    check: fn(&Value, &Path<'_>, &mut Problems),
) {
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        let all = path.child(list);
        for (index, container) in get_list(spec, list).iter().enumerate() {
            if let Some(context) = container.get("securityContext") {
                let at = all.index(index);
                check(context, &at.child("securityContext"), problems);
            }
        }
    }
}
