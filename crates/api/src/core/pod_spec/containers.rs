//! Containers of all three kinds.

use std::collections::HashSet;

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
};
use serde_json::Value;

use super::{
    Kept, env, probes,
    probes::Probe,
    resources, security,
    validate::claim_names,
    volumes::{mount_path_rules, relative_path},
};
use crate::checks;

/// What a container may refer to in its pod.
pub struct Pod<'a> {
    /// The spec.
    pub spec: &'a Value,
    /// Names of its volumes.
    pub volumes: Vec<&'a str>,
    /// What the stored spec has.
    pub kept: Kept,
}

impl Pod<'_> {
    fn source_of(&self, volume: &str) -> Option<&Value> {
        get_list(self.spec, "volumes").iter().find(|have| have["name"] == volume)
    }
}

/// Checks all containers.
pub fn validate(pod: &Pod<'_>, path: &Path<'_>, problems: &mut Problems) {
    let mut taken: Vec<&str> = Vec::new();
    let containers = get_list(pod.spec, "containers");
    let list = path.child("containers");
    if containers.is_empty() {
        problems.required(&list, "");
    }
    for (index, container) in containers.iter().enumerate() {
        let at = list.index(index);
        common(container, pod, &at, problems);
        unique_name(container, &mut taken, &at, problems);
        probes_of(container, pod, &at, problems);
        restart_policy(container, false, &at, problems);
    }
    host_ports(containers, &list, problems);

    let list = path.child("initContainers");
    let init = get_list(pod.spec, "initContainers");
    for (index, container) in init.iter().enumerate() {
        let at = list.index(index);
        common(container, pod, &at, problems);
        unique_name(container, &mut taken, &at, problems);
        restart_policy(container, true, &at, problems);
        host_ports(std::slice::from_ref(container), &list, problems);
        if is_sidecar(container) {
            probes_of(container, pod, &at, problems);
        } else {
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if container.get(field).is_some() {
                    problems.forbidden(
                        &at.child(field),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
        }
        if !is_sidecar(container) && !pod.kept.init_restarts {
            let list = at.child("resizePolicy");
            for (number, policy) in get_list(container, "resizePolicy").iter().enumerate() {
                if is_restarting(policy) {
                    problems.invalid(
                        &list.index(number).child("restartPolicy"),
                        "RestartContainer",
                        "must not be set to 'RestartContainer' for non-sidecar initContainers",
                    );
                }
            }
        }
    }

    let list = path.child("ephemeralContainers");
    for (index, container) in get_list(pod.spec, "ephemeralContainers").iter().enumerate() {
        let at = list.index(index);
        common(container, pod, &at, problems);
        no_space_around_image(container, &at, problems);
        unique_name(container, &mut taken, &at, problems);
        let target = get_str(container, "targetContainerName");
        let named = |list: &str| get_list(pod.spec, list).iter().any(|other| other["name"] == target);
        if !target.is_empty() && !named("containers") && !named("initContainers") {
            problems.not_found(&at.child("targetContainerName"), target);
        }
        ephemeral(container, &at, problems);
    }
}

/// Whether an init container runs beside the others as long as they do.
pub fn is_sidecar(container: &Value) -> bool {
    get_str(container, "restartPolicy") == "Always"
}

/// Whether a change of resources restarts the container.
pub fn is_restarting(policy: &Value) -> bool {
    get_str(policy, "restartPolicy") == "RestartContainer"
}

fn unique_name<'a>(container: &'a Value, taken: &mut Vec<&'a str>, path: &Path<'_>, problems: &mut Problems) {
    let name = get_str(container, "name");
    if !name.is_empty() && taken.contains(&name) {
        problems.duplicate(&path.child("name"), name);
    }
    taken.push(name);
}

/// Templates may have spaces there, for those who fill them in.
pub fn no_space_around_image(container: &Value, path: &Path<'_>, problems: &mut Problems) {
    let image = get_str(container, "image");
    if image.trim() != image {
        problems.invalid(&path.child("image"), image, "must not have leading or trailing whitespace");
    }
}

fn common(container: &Value, pod: &Pod<'_>, path: &Path<'_>, problems: &mut Problems) {
    checks::required_syntax(container, "name", names::is_dns1123_label, path, problems);
    checks::required(container, "image", path, problems);
    checks::one_of_ordered(
        container,
        "terminationMessagePolicy",
        true,
        &["File", "FallbackToLogsOnError"],
        path,
        problems,
    );
    checks::one_of(container, "imagePullPolicy", true, &["Always", "IfNotPresent", "Never"], path, problems);
    ports(get_list(container, "ports"), &path.child("ports"), problems);
    env::validate(get_list(container, "env"), &path.child("env"), problems);
    env::validate_from(get_list(container, "envFrom"), &path.child("envFrom"), problems);
    mounts(container, pod, path, problems);
    devices(container, pod, path, problems);
    if let Some(needs) = container.get("resources") {
        resources::validate(needs, &claim_names(pod.spec), pod.kept, &path.child("resources"), problems);
    }
    if let Some(context) = container.get("securityContext") {
        security::container(context, &path.child("securityContext"), problems);
    }
    let list = path.child("resizePolicy");
    let mut seen = Vec::new();
    for (index, policy) in get_list(container, "resizePolicy").iter().enumerate() {
        let resource = get_str(policy, "resourceName");
        if seen.contains(&resource) {
            problems.duplicate(&list.index(index), resource);
        }
        seen.push(resource);
        if resource.is_empty() {
            problems.required(&list, "");
        } else if !["cpu", "memory"].contains(&resource) {
            problems.not_supported(&list, resource, &["cpu", "memory"]);
        }
        let restart = get_str(policy, "restartPolicy");
        if restart.is_empty() {
            problems.required(&list, "");
        } else if !["NotRequired", "RestartContainer"].contains(&restart) {
            problems.not_supported(&list, restart, &["NotRequired", "RestartContainer"]);
        }
        if get_str(pod.spec, "restartPolicy") == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            problems.invalid(&list, restart, why);
        }
    }
}

fn probes_of(container: &Value, pod: &Pod<'_>, path: &Path<'_>, problems: &mut Problems) {
    let grace = pod.spec["terminationGracePeriodSeconds"].as_i64();
    if let Some(lifecycle) = container.get("lifecycle") {
        probes::lifecycle(lifecycle, grace, &path.child("lifecycle"), problems);
    }
    for (field, kind) in [
        ("livenessProbe", Probe::Liveness),
        ("readinessProbe", Probe::Readiness),
        ("startupProbe", Probe::Startup),
    ] {
        if let Some(probe) = container.get(field) {
            probes::validate(probe, kind, &path.child(field), problems);
        }
    }
}

fn restart_policy(container: &Value, init: bool, path: &Path<'_>, problems: &mut Problems) {
    checks::one_of(container, "restartPolicy", false, &["Always", "Never", "OnFailure"], path, problems);
    let rules = get_list(container, "restartPolicyRules");
    if !rules.is_empty() && container.get("restartPolicy").is_none() {
        problems
            .required(&path.child("restartPolicy"), "must specify restartPolicy when restart rules are used");
        if init {
            return;
        }
    }
    if rules.len() > 20 {
        problems.too_many(&path.child("restartPolicyRules"), rules.len(), 20);
    }
    let list = path.child("restartPolicyRules");
    for (index, rule) in rules.iter().enumerate() {
        let at = list.index(index);
        let action = get_str(rule, "action");
        if !["Restart", "RestartAllContainers"].contains(&action) {
            problems.not_supported(&at.child("action"), action, &["Restart", "RestartAllContainers"]);
        }
        let Some(codes) = rule.get("exitCodes") else {
            problems.required(&at.child("exitCodes"), "must be specified");
            continue;
        };
        let at = at.child("exitCodes");
        let operator = get_str(codes, "operator");
        if !["In", "NotIn"].contains(&operator) {
            problems.not_supported(&at.child("operator"), operator, &["In", "NotIn"]);
        }
        let values = get_list(codes, "values");
        if values.len() > 255 {
            problems.too_many(&at.child("values"), values.len(), 255);
        }
    }
}

fn ports(ports: &[Value], path: &Path<'_>, problems: &mut Problems) {
    let mut seen: HashSet<&str> = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let at = path.index(index);
        let name = get_str(port, "name");
        if !name.is_empty() {
            let complaints = names::is_port_name(name);
            let known = !seen.insert(name);
            if complaints.is_empty() && known {
                problems.duplicate(&at.child("name"), name);
            }
            problems.invalid_each(&at.child("name"), name, complaints);
        }
        match port["containerPort"].as_i64().unwrap_or(0) {
            0 => problems.required(&at.child("containerPort"), ""),
            number => {
                for complaint in names::is_port_number(number) {
                    problems.invalid(&at.child("containerPort"), number, complaint);
                }
            }
        }
        let host = port["hostPort"].as_i64().unwrap_or(0);
        if host != 0 {
            for complaint in names::is_port_number(host) {
                problems.invalid(&at.child("hostPort"), host, complaint);
            }
        }
        checks::one_of(port, "protocol", true, &["SCTP", "TCP", "UDP"], &at, problems);
    }
}

fn host_ports(containers: &[Value], path: &Path<'_>, problems: &mut Problems) {
    let mut seen: HashSet<String> = HashSet::new();
    for (index, container) in containers.iter().enumerate() {
        for (number, port) in get_list(container, "ports").iter().enumerate() {
            let host = port["hostPort"].as_i64().unwrap_or(0);
            if host == 0 {
                continue;
            }
            let key = format!("{}/{}/{host}", get_str(port, "protocol"), get_str(port, "hostIP"));
            if seen.contains(&key) {
                let at = path.index(index);
                let ports = at.child("ports");
                problems.duplicate(&ports.index(number).child("hostPort"), key.as_str());
            }
            seen.insert(key);
        }
    }
}

fn mounts(container: &Value, pod: &Pod<'_>, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("volumeMounts");
    let mut seen: Vec<&str> = Vec::new();
    for (index, mount) in get_list(container, "volumeMounts").iter().enumerate() {
        let at = list.index(index);
        let name = get_str(mount, "name");
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        }
        if !pod.volumes.contains(&name) {
            problems.not_found(&at.child("name"), name);
        }
        let target = get_str(mount, "mountPath");
        if target.is_empty() {
            problems.required(&at.child("mountPath"), "");
        } else if seen.contains(&target) {
            problems.invalid(&at.child("mountPath"), target, "must be unique");
        }
        mount_path_rules(target, &at.child("mountPath"), problems);
        seen.push(target);
        for field in ["subPath", "subPathExpr"] {
            let sub = get_str(mount, field);
            if !sub.is_empty() {
                relative_path(sub, &at.child(field), problems);
            }
        }
        if !get_str(mount, "subPath").is_empty() && !get_str(mount, "subPathExpr").is_empty() {
            problems.invalid(
                &at.child("subPathExpr"),
                get_str(mount, "subPathExpr"),
                "subPathExpr and subPath are mutually exclusive",
            );
        }
        checks::one_of(
            mount,
            "mountPropagation",
            false,
            &["Bidirectional", "HostToContainer", "None"],
            &list,
            problems,
        );
        let privileged = container["securityContext"]["privileged"] == true;
        if get_str(mount, "mountPropagation") == "Bidirectional" && !privileged {
            problems.forbidden(
                &list.child("mountPropagation"),
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
        checks::one_of(
            mount,
            "recursiveReadOnly",
            false,
            &["Disabled", "Enabled", "IfPossible"],
            &list,
            problems,
        );
        let recursive = get_str(mount, "recursiveReadOnly");
        if ["Enabled", "IfPossible"].contains(&recursive) && mount["readOnly"] != true {
            problems
                .forbidden(&list.child("recursiveReadOnly"), "may only be specified when readOnly is true");
        }
        let spread = !["", "None"].contains(&get_str(mount, "mountPropagation"));
        if ["Enabled", "IfPossible"].contains(&recursive) && spread {
            let why = "may only be specified when mountPropagation is None or not specified";
            problems.forbidden(&list.child("recursiveReadOnly"), why);
        }
    }
}

fn devices(container: &Value, pod: &Pod<'_>, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("volumeDevices");
    let mounted: Vec<&str> =
        get_list(container, "volumeMounts").iter().map(|mount| get_str(mount, "name")).collect();
    let (mut names_seen, mut paths_seen): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for (index, device) in get_list(container, "volumeDevices").iter().enumerate() {
        let at = list.index(index);
        let (name, target) = (get_str(device, "name"), get_str(device, "devicePath"));
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        }
        if names_seen.contains(&name) {
            problems.invalid(&at.child("name"), name, "must be unique");
        } else {
            match pod.source_of(name).filter(|_| pod.volumes.contains(&name)) {
                None => problems.not_found(&at.child("name"), name),
                Some(source)
                    if source.get("persistentVolumeClaim").is_none() && source.get("ephemeral").is_none() =>
                {
                    problems.invalid(
                        &at.child("name"),
                        name,
                        "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                    );
                }
                Some(_) => {}
            }
        }
        if target.is_empty() {
            problems.required(&at.child("devicePath"), "");
        } else if paths_seen.contains(&target) {
            problems.invalid(&at.child("devicePath"), target, "must be unique");
        } else if target.split('/').any(|part| part == "..") {
            problems.invalid(&at.child("devicePath"), target, "can not contain backsteps ('..')");
        }
        if mounted.contains(&name) {
            problems.invalid(&at.child("name"), name, "must not already exist in volumeMounts");
        }
        names_seen.push(name);
        paths_seen.push(target);
    }
}

/// Ephemeral containers may say little.
fn ephemeral(container: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in [
        "ports",
        "resources",
        "resizePolicy",
        "restartPolicy",
        "restartPolicyRules",
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
    ] {
        let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
        if container.get(field).is_some_and(|value| field != "resources" || !empty(value)) {
            problems.forbidden(&path.child(field), "cannot be set for an Ephemeral Container");
        }
    }
    let list = path.child("volumeMounts");
    for (index, mount) in get_list(container, "volumeMounts").iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if mount.get(field).is_some() {
                problems
                    .forbidden(&list.index(index).child(field), "cannot be set for an Ephemeral Container");
            }
        }
    }
}
