//! Environment variables.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::Value;

use crate::checks;

const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that a downward API volume may show.
pub const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Checks `env`.
pub fn validate(list: &[Value], path: &Path<'_>, problems: &mut Problems) {
    for (index, variable) in list.iter().enumerate() {
        let path = path.index(index);
        checks::required_syntax(variable, "name", names::is_env_var_name, &path, problems);
        if let Some(source) = variable.get("valueFrom") {
            value_from(source, !get_str(variable, "value").is_empty(), &path.child("valueFrom"), problems);
        }
    }
}

fn value_from(source: &Value, has_value: bool, path: &Path<'_>, problems: &mut Problems) {
    let mut count = 0;
    if let Some(reference) = source.get("fieldRef") {
        count += 1;
        field_ref(reference, ENV_FIELDS, &path.child("fieldRef"), problems);
    }
    if let Some(reference) = source.get("resourceFieldRef") {
        count += 1;
        resource_field_ref(reference, false, &path.child("resourceFieldRef"), problems);
    }
    for kind in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = source.get(kind) {
            count += 1;
            let path = path.child(kind);
            let name = get_str(reference, "name");
            problems.invalid_each(&path.child("name"), name, names::is_dns1123_subdomain(name));
            checks::required_syntax(reference, "key", names::is_config_map_key, &path, problems);
        }
    }
    if let Some(reference) = source.get("fileKeyRef") {
        count += 1;
        let path = path.child("fileKeyRef");
        checks::required_syntax(reference, "key", names::is_env_var_name, &path, problems);
        checks::required_syntax(reference, "volumeName", names::is_dns1123_label, &path, problems);
        if checks::required(reference, "path", &path, problems) {
            let at = path.child("path");
            super::volumes::no_backsteps(get_str(reference, "path"), &at, problems);
        }
    }
    if count == 0 {
        problems.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if has_value {
        problems.invalid(path, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        problems.invalid(path, "", "may not have more than one field specified at a time");
    }
}

/// Checks a reference to a field of the pod.
pub fn field_ref(reference: &Value, allowed: &[&str], path: &Path<'_>, problems: &mut Problems) {
    let field = get_str(reference, "fieldPath");
    for part in ["apiVersion", "fieldPath"] {
        if !checks::required(reference, part, path, problems) {
            return;
        }
    }
    let version = get_str(reference, "apiVersion");
    if version != "v1" {
        let text = format!("error converting fieldPath: unsupported pod version: {version}");
        problems.invalid(&path.child("fieldPath"), field, text);
        return;
    }
    let subscript = field.split_once("['").and_then(|(name, rest)| Some((name, rest.strip_suffix("']")?)));
    if let Some((name, key)) = subscript {
        match name {
            "metadata.annotations" => {
                problems.invalid_each(path, key, names::is_qualified_name(&key.to_lowercase()));
            }
            "metadata.labels" => problems.invalid_each(path, key, names::is_qualified_name(key)),
            _ => problems.invalid(path, name, "does not support subscript"),
        }
        return;
    }
    let known = ENV_FIELDS.contains(&field) || VOLUME_FIELDS.contains(&field);
    if !known {
        problems.invalid(
            &path.child("fieldPath"),
            field,
            format!("error converting fieldPath: field label not supported: {field}"),
        );
    } else if !allowed.contains(&field) {
        problems.not_supported(&path.child("fieldPath"), field, allowed);
    }
}

/// Checks a reference to a request or limit.
pub fn resource_field_ref(reference: &Value, in_volume: bool, path: &Path<'_>, problems: &mut Problems) {
    if in_volume && get_str(reference, "containerName").is_empty() {
        problems.required(&path.child("containerName"), "");
        return;
    }
    let resource = get_str(reference, "resource");
    let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if resource.is_empty() {
        problems.required(&path.child("resource"), "");
    } else if !RESOURCES.contains(&resource) && !huge {
        problems.not_supported(&path.child("resource"), resource, RESOURCES);
    }
    let divisor = get(reference, "divisor").and_then(Value::as_str).unwrap_or("0");
    if resource.ends_with(".cpu") && !["0", "1m", "1"].contains(&divisor) {
        problems.invalid(
            &path.child("divisor"),
            resource,
            "only divisor's values 1m and 1 are supported with the cpu resource",
        );
    }
}

/// Checks `envFrom`.
pub fn validate_from(list: &[Value], path: &Path<'_>, problems: &mut Problems) {
    for (index, source) in list.iter().enumerate() {
        let at = path.index(index);
        checks::syntax(source, "prefix", names::is_env_var_name, &at, problems);
        let mut count = 0;
        for kind in ["configMapRef", "secretRef"] {
            if let Some(reference) = source.get(kind) {
                count += 1;
                checks::required_syntax(
                    reference,
                    "name",
                    names::is_dns1123_subdomain,
                    &at.child(kind),
                    problems,
                );
            }
        }
        if count == 0 {
            problems.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`");
        } else if count > 1 {
            problems.invalid(path, "", "may not have more than one field specified at a time");
        }
    }
}

/// Checks the items of a downward API volume. Which of them it is, upstream does not say.
pub fn downward_items(items: &Value, path: &Path<'_>, problems: &mut Problems) {
    for file in get_list(items, "items") {
        if checks::required(file, "path", path, problems) {
            super::volumes::file_path(get_str(file, "path"), &path.child("path"), problems);
        }
        match (file.get("fieldRef"), file.get("resourceFieldRef")) {
            (Some(reference), other) => {
                field_ref(reference, VOLUME_FIELDS, &path.child("fieldRef"), problems);
                if other.is_some() {
                    problems.invalid(
                        path,
                        "resource",
                        "fieldRef and resourceFieldRef can not be specified simultaneously",
                    );
                }
            }
            (None, Some(reference)) => {
                resource_field_ref(reference, true, &path.child("resourceFieldRef"), problems);
            }
            (None, None) => problems.required(path, "one of fieldRef and resourceFieldRef is required"),
        }
        super::volumes::file_mode(file, "mode", path, problems);
    }
}

/// Files that variables are read from lie in a volume that the pod itself fills.
pub fn files(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let volumes = get_list(spec, "volumes");
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        let list = path.child(field);
        for (index, container) in get_list(spec, field).iter().enumerate() {
            let at = list.index(index);
            let variables = at.child("env");
            for (number, variable) in get_list(container, "env").iter().enumerate() {
                let Some(file) = get(variable, "valueFrom.fileKeyRef") else { continue };
                let at = variables.index(number);
                let at = at.child("valueFrom");
                let at = at.child("fileKeyRef");
                let at = at.child("volumeName");
                let name = get_str(file, "volumeName");
                match volumes.iter().rfind(|volume| volume["name"] == name) {
                    None => problems.not_found(&at, name),
                    Some(volume) if volume.get("emptyDir").is_none() => {
                        problems.invalid(&at, name, "referenced volume must be of type emptyDir");
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
