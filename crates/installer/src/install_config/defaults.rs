//! What stands where nothing was given.

use serde_json::{Value, json};

use crate::addresses;

/// Fills every absent field that has a default.
pub fn fill(document: &mut Value) {
    let Some(root) = document.as_object_mut() else { return };
    set(document_entry(root, "metadata"), "name", json!(""));
    let control_plane = document_entry(root, "controlPlane");
    set(control_plane, "name", json!("master"));
    pool(control_plane, 3);
    root.entry("compute").or_insert_with(|| json!([{"name": "worker"}]));
    if let Some(Value::Array(pools)) = root.get_mut("compute") {
        for entry in pools {
            set(entry, "name", json!("worker"));
            pool(entry, 3);
        }
    }
    if let Some(arbiter) = root.get_mut("arbiter") {
        set(arbiter, "name", json!("arbiter"));
        pool(arbiter, 0);
    }
    networking(document_entry(root, "networking"));
    let machine_network = root["networking"]["machineNetwork"][0]["cidr"].clone();
    platform(document_entry(root, "platform"), &machine_network);
    root.entry("additionalTrustBundlePolicy").or_insert_with(|| json!("Proxyonly"));
    root.entry("publish").or_insert_with(|| json!("External"));
    root.entry("cpuPartitioningMode").or_insert_with(|| json!("None"));
    if let Some(capabilities) = root.get_mut("capabilities") {
        set(capabilities, "baselineCapabilitySet", json!("vCurrent"));
    }
}

fn document_entry<'a>(root: &'a mut serde_json::Map<String, Value>, name: &str) -> &'a mut Value {
    root.entry(name).or_insert_with(|| json!({}))
}

/// Sets a field of an object unless it is there.
fn set(object: &mut Value, name: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.entry(name).or_insert(value);
    }
}

fn pool(entry: &mut Value, replicas: i64) {
    set(entry, "replicas", json!(replicas));
    set(entry, "architecture", json!("amd64"));
    set(entry, "hyperthreading", json!("Enabled"));
}

fn networking(networking: &mut Value) {
    set(networking, "networkType", json!("OVNKubernetes"));
    set(networking, "machineNetwork", json!([{"cidr": "10.0.0.0/16"}]));
    set(networking, "clusterNetwork", json!([{"cidr": "10.128.0.0/14"}]));
    set(networking, "serviceNetwork", json!(["172.30.0.0/16"]));
    for entry in networking["clusterNetwork"].as_array_mut().into_iter().flatten() {
        let six = entry["cidr"].as_str().is_some_and(|cidr| cidr.contains(':'));
        set(entry, "hostPrefix", json!(if six { 64 } else { 23 }));
    }
}

fn platform(platform: &mut Value, machine_network: &Value) {
    if let Some(local) = platform.get_mut("local") {
        set(local, "memoryMiB", json!(2048));
        set(local, "cpus", json!(2));
        set(local, "bridgeCIDR", machine_network.clone());
    }
    if let Some(external) = platform.get_mut("external") {
        set(external, "platformName", json!("Unknown"));
    }
    let Some(baremetal) = platform.get_mut("baremetal") else { return };
    for (name, value) in [
        ("libvirtURI", "qemu:///system"),
        ("externalBridge", "baremetal"),
        ("provisioningBridge", "provisioning"),
        ("provisioningNetwork", "Managed"),
        ("provisioningNetworkCIDR", "172.22.0.0/24"),
    ] {
        set(baremetal, name, json!(value));
    }
    if baremetal["provisioningNetwork"] == "Disabled" {
        return;
    }
    let network = baremetal["provisioningNetworkCIDR"].as_str().and_then(|cidr| cidr.parse().ok());
    if let Some(network) = network {
        let address = |offset| addresses::nth(&network, offset).to_string();
        let last = addresses::size(&network).saturating_sub(2).min(254);
        set(baremetal, "bootstrapProvisioningIP", json!(address(2)));
        set(baremetal, "clusterProvisioningIP", json!(address(3)));
        if baremetal["provisioningNetwork"] == "Managed" {
            set(baremetal, "provisioningDHCPRange", json!(format!("{},{}", address(10), address(last))));
        }
    }
}
