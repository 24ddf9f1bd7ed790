//! Deprecated fields become today's; giving both with different values is a fault.

use serde_json::{Map, Value, json};

use crate::problem::Problems;

/// Rewrites every deprecated field of the document.
pub fn convert(document: &mut Value, problems: &mut Problems) {
    let Some(root) = document.as_object_mut() else { return };
    match root.get("apiVersion").and_then(Value::as_str) {
        Some("v1beta3" | "v1beta4") => {
            root.insert("apiVersion".to_owned(), json!("v1"));
        }
        Some("v1") => {}
        Some(other) if !other.is_empty() => {
            problems.invalid("apiVersion", other, "must be v1");
        }
        _ => problems.required("apiVersion", "set it to v1"),
    }
    if let Some(networking) = root.get_mut("networking").and_then(Value::as_object_mut) {
        convert_networking(networking, problems);
    }
    if let Some(baremetal) =
        root.get_mut("platform").and_then(|p| p.get_mut("baremetal")).and_then(Value::as_object_mut)
    {
        for (old, new) in [("apiVIP", "apiVIPs"), ("ingressVIP", "ingressVIPs")] {
            replace(baremetal, "platform.baremetal", old, new, |value| json!([value]), problems);
        }
    }
    if root.contains_key("imageContentSources") && root.contains_key("imageDigestSources") {
        problems.invalid(
            "imageContentSources",
            "",
            "cannot be given together with imageDigestSources; keep imageDigestSources",
        );
    }
    replace(root, "", "imageContentSources", "imageDigestSources", Value::clone, problems);
}

fn convert_networking(networking: &mut Map<String, Value>, problems: &mut Problems) {
    const AT: &str = "networking";
    replace(networking, AT, "type", "networkType", Value::clone, problems);
    replace(networking, AT, "clusterNetworks", "clusterNetwork", Value::clone, problems);
    replace(networking, AT, "machineCIDR", "machineNetwork", |value| json!([{"cidr": value}]), problems);
    replace(networking, AT, "serviceCIDR", "serviceNetwork", |value| json!([value]), problems);
    let entries = networking.get_mut("clusterNetwork").and_then(Value::as_array_mut);
    for (index, entry) in entries.into_iter().flatten().enumerate() {
        let Some(entry) = entry.as_object_mut() else { continue };
        let Some(bits) = entry.shift_remove("hostSubnetLength").and_then(|v| v.as_i64()) else { continue };
        let width =
            if entry.get("cidr").and_then(Value::as_str).is_some_and(|c| c.contains(':')) { 128 } else { 32 };
        let prefix = width - bits;
        let path = format!("networking.clusterNetwork[{index}].hostSubnetLength");
        match entry.get("hostPrefix").and_then(Value::as_i64) {
            Some(given) if given != prefix => {
                problems.invalid(
                    path,
                    bits,
                    format!("contradicts hostPrefix {given}; remove hostSubnetLength"),
                );
            }
            Some(_) => {}
            None => {
                problems.warn(path, bits, format!("is deprecated; use hostPrefix: {prefix}"));
                entry.insert("hostPrefix".to_owned(), json!(prefix));
            }
        }
    }
    // Names of network types were once written in any case.
    if let Some(Value::String(kind)) = networking.get_mut("networkType") {
        for known in ["OVNKubernetes", "OpenShiftSDN", "Kuryr"] {
            if kind.eq_ignore_ascii_case(known) {
                *kind = known.to_owned();
            }
        }
    }
}

fn replace(
    object: &mut Map<String, Value>,
    at: &str,
    old: &str,
    new: &str,
    change: impl Fn(&Value) -> Value,
    problems: &mut Problems,
) {
    let Some(value) = object.shift_remove(old) else { return };
    let path = if at.is_empty() { old.to_owned() } else { format!("{at}.{old}") };
    let changed = change(&value);
    match object.get(new) {
        Some(given) if *given != changed => {
            let shown = value.as_str().unwrap_or_default();
            problems.invalid(path, shown, format!("contradicts {new}; remove {old}"));
        }
        Some(_) => {}
        None => {
            problems.warn(path, "", format!("is deprecated; use {new}"));
            object.insert(new.to_owned(), changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_fields_become_new_ones_with_a_warning() {
        let mut document = json!({
            "apiVersion": "v1beta4",
            "networking": {"type": "ovnkubernetes", "machineCIDR": "10.0.0.0/24", "serviceCIDR": "172.30.0.0/16",
                           "clusterNetworks": [{"cidr": "10.128.0.0/14", "hostSubnetLength": 9}]},
            "platform": {"baremetal": {"apiVIP": "10.0.0.5"}},
            "imageContentSources": [{"source": "a/b"}],
        });
        let mut problems = Problems::default();
        convert(&mut document, &mut problems);
        assert_eq!(
            document,
            json!({
                "apiVersion": "v1",
                "networking": {"networkType": "OVNKubernetes", "clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}],
                               "machineNetwork": [{"cidr": "10.0.0.0/24"}], "serviceNetwork": ["172.30.0.0/16"]},
                "platform": {"baremetal": {"apiVIPs": ["10.0.0.5"]}},
                "imageDigestSources": [{"source": "a/b"}],
            })
        );
        let (errors, warnings) = problems.into_sorted();
        assert!(errors.is_empty());
        assert_eq!(warnings.len(), 7);
    }
}
