//! Ignition files: everything for the bootstrap machine, pointers or whole files for the others.

use std::net::IpAddr;

use ::release::crds;
use ignition::types::{Group, Owner};
use ignition::{Config, Directory, File, Link, Resource, User};
use serde_json::Value;

use crate::graph::{AssetError, AssetFile, Files, Inputs};
use crate::install_config::InstallConfig;
use crate::nodes::{Node, Role};
use crate::scene::{self, Scene};
use crate::{tls, units};

/// The version that all files have; every Ignition since 2.7 reads it.
pub const VERSION: &str = "3.2.0";

/// Assets whose every file goes into bootstrap.ign.
const WHOLE: &[&str] = &["manifests", "openshift", "bootstrap-manifests", "master-manifests", "kubeconfigs"];

/// What bootstrap.ign is made from.
pub fn bootstrap_parents() -> Vec<String> {
    let mut out: Vec<String> = scene::PARENTS.iter().chain(WHOLE).map(|name| (*name).to_owned()).collect();
    out.extend(pki::table::INSTALL.iter().map(|row| tls::asset_name(row.name)));
    out.extend(pki::table::BUNDLES.iter().map(|bundle| tls::asset_name(bundle.name)));
    out.extend(pki::table::KEYS.iter().map(|(name, _)| tls::asset_name(name)));
    out
}

/// What the pointers are made from.
pub fn pointer_parents() -> Vec<String> {
    let mut out: Vec<String> = scene::PARENTS.iter().map(|name| (*name).to_owned()).collect();
    out.push(tls::asset_name("root-ca"));
    out
}

/// What whole files for nodes are made from.
pub fn node_parents() -> Vec<String> {
    let mut out: Vec<String> = scene::PARENTS.iter().map(|name| (*name).to_owned()).collect();
    out.extend(["kubeconfigs".to_owned(), "master-manifests".to_owned()]);
    out.extend(["kube-apiserver-server-ca", "kubelet-client-ca"].iter().map(|name| tls::asset_name(name)));
    out
}

/// Public keys of the config, one per line.
pub fn ssh_keys(config: &InstallConfig) -> Vec<String> {
    config.ssh_key.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn empty() -> Config {
    let mut config = Config::default();
    config.ignition.version = VERSION.to_owned();
    config
}

/// A config that fetches the rest from the machine config server, trusting only the root CA.
pub fn pointer(scene: &Scene<'_>, role: &str) -> Result<Config, AssetError> {
    let mut config = empty();
    let url = format!("https://api-int.{}:22623/config/{role}", scene.domain());
    config.ignition.config.merge.push(Resource::at(&url));
    let authority = Resource::inline(scene.certificate("root-ca")?.as_bytes());
    config.ignition.security.tls.certificate_authorities.push(authority);
    Ok(config)
}

/// master.ign, worker.ign and, if there is one, arbiter.ign.
pub fn generate_pointers(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let mut roles = vec!["master", "worker"];
    if scene.config.arbiter_replicas() > 0 {
        roles.push("arbiter");
    }
    roles.iter().map(|role| finish(&format!("{role}.ign"), &pointer(&scene, role)?)).collect()
}

/// bootstrap.ign.
pub fn generate_bootstrap(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    check_objects(inputs)?;
    let mut config = empty();
    machine(&mut config, &scene);
    for path in [
        "/etc/kubernetes/bootstrap-secrets",
        "/etc/kubernetes/kubeconfigs",
        "/etc/kubernetes/manifests",
        "/opt/openshift",
    ] {
        config.storage.directories.push(Directory {
            path: path.to_owned(),
            mode: Some(0o700),
            ..Directory::default()
        });
    }
    for asset in bootstrap_parents().iter().filter(|name| name.starts_with("tls/")) {
        for file in inputs.files(asset) {
            let name = file.path.trim_start_matches("tls/");
            add(&mut config, &format!("/etc/kubernetes/bootstrap-secrets/{name}"), 0o600, &file.content);
        }
    }
    for file in inputs.files("kubeconfigs") {
        let name = file.path.trim_start_matches("auth/");
        add(&mut config, &format!("/etc/kubernetes/kubeconfigs/{name}"), 0o600, &file.content);
    }
    // bootkube gives the pods to the kubelet. Masters' static pods are for the config server, which hands them out.
    for asset in ["bootstrap-manifests", "manifests", "openshift", "master-manifests"] {
        for file in inputs.files(asset) {
            let mode = if file.secret { 0o600 } else { 0o644 };
            add(&mut config, &format!("/opt/openshift/{}", file.path), mode, &file.content);
        }
    }
    for (name, patch) in status_patches(inputs)? {
        add(&mut config, &format!("/opt/openshift/status/{name}.json"), 0o644, &serde_json::to_vec(&patch)?);
    }
    let environment = units::bootstrap_environment(&scene);
    add(&mut config, "/etc/kubernetes/bootstrap.env", 0o644, environment.as_bytes());
    let bootstrap: Vec<&Node> = scene.nodes.with_role(Role::Bootstrap).collect();
    for node in bootstrap {
        let standalone = units::kubelet_config(scene.config, true);
        add(&mut config, "/etc/kubernetes/kubelet.conf", 0o644, standalone.as_bytes());
        node_address(&mut config, node);
        let name = format!("{}.{}", node.name, scene.domain());
        add(&mut config, "/etc/hostname", 0o644, format!("{name}\n").as_bytes());
    }
    config.storage.files.push(File {
        path: "/etc/motd".to_owned(),
        append: vec![Resource::inline(units::BOOTSTRAP_MOTD.as_bytes())],
        ..File::default()
    });
    config.systemd.units = units::bootstrap();
    Ok(vec![secret(finish("bootstrap.ign", &config)?)])
}

/// nodes/<name>.ign: hostname, static address, and everything that a machine config server would have sent.
pub fn generate_nodes(inputs: &Inputs<'_>) -> Result<Files, AssetError> {
    let scene = Scene::read(inputs)?;
    let mut out = Files::new();
    for node in scene.nodes.nodes.iter().filter(|node| node.role != Role::Bootstrap) {
        let mut config = empty();
        machine(&mut config, &scene);
        let name = format!("{}.{}", node.name, scene.domain());
        add(&mut config, "/etc/hostname", 0o644, format!("{name}\n").as_bytes());
        let connection = units::network_connection(node, &scene);
        add(
            &mut config,
            "/etc/NetworkManager/system-connections/machine.nmconnection",
            0o600,
            connection.as_bytes(),
        );
        node_address(&mut config, node);
        let kubelet = units::kubelet_config(scene.config, false);
        add(&mut config, "/etc/kubernetes/kubelet.conf", 0o644, kubelet.as_bytes());
        let kubeconfig = inputs.file("kubeconfigs", "auth/kubelet-bootstrap.kubeconfig")?;
        add(&mut config, "/etc/kubernetes/kubeconfig", 0o600, kubeconfig);
        add(
            &mut config,
            "/etc/kubernetes/ca.crt",
            0o644,
            scene.certificate("kube-apiserver-server-ca")?.as_bytes(),
        );
        add(
            &mut config,
            "/etc/kubernetes/kubelet-ca.crt",
            0o644,
            scene.certificate("kubelet-client-ca")?.as_bytes(),
        );
        add(
            &mut config,
            "/etc/kubernetes/apiserver-url.env",
            0o644,
            units::api_environment(&scene).as_bytes(),
        );
        config.storage.directories.push(Directory {
            path: "/etc/kubernetes/manifests".to_owned(),
            mode: Some(0o755),
            ..Directory::default()
        });
        if node.role == Role::Master {
            for file in inputs.files("master-manifests") {
                let name = file.path.trim_start_matches("master-manifests/");
                add(&mut config, &format!("/etc/kubernetes/manifests/{name}"), 0o644, &file.content);
            }
            let proxy = inputs.file("kubeconfigs", "auth/kube-proxy.kubeconfig")?;
            add(&mut config, "/etc/kubernetes/kube-proxy.kubeconfig", 0o600, proxy);
        }
        config.systemd.units = units::node(node.role);
        out.push(secret(finish(&format!("nodes/{}.ign", node.name), &config)?));
    }
    Ok(out)
}

fn secret(file: AssetFile) -> AssetFile {
    AssetFile { secret: true, ..file }
}

fn add(config: &mut Config, path: &str, mode: u32, content: &[u8]) {
    config.storage.files.push(File::inline(path, mode, content));
}

/// What every machine has: its administrator, trust, credentials for images.
fn machine(config: &mut Config, scene: &Scene<'_>) {
    let keys = ssh_keys(scene.config);
    if !keys.is_empty() {
        config.passwd.users.push(User {
            name: "core".to_owned(),
            ssh_authorized_keys: keys,
            ..User::default()
        });
    }
    let bundle = &scene.config.additional_trust_bundle;
    if !bundle.trim().is_empty() {
        let path = "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt";
        add(config, path, 0o644, bundle.as_bytes());
    }
    if !scene.config.pull_secret.trim().is_empty() {
        add(config, "/var/lib/kubelet/config.json", 0o600, scene.config.pull_secret.trim().as_bytes());
    }
    if let Some(proxy) = &scene.config.proxy {
        let no_proxy = crate::manifests::no_proxy(scene);
        let text = units::proxy_environment(proxy, &no_proxy);
        add(config, "/etc/mco/proxy.env", 0o600, text.as_bytes());
    }
    // Where upstream's tools look for the pull secret of the container runtime.
    config.storage.links.push(Link {
        path: "/etc/kelson/registry-auth.json".to_owned(),
        target: "/var/lib/kubelet/config.json".to_owned(),
        ..Link::default()
    });
    config.passwd.groups.push(Group { name: "kelson".to_owned(), system: Some(true), ..Group::default() });
    config.storage.directories.push(Directory {
        path: "/var/lib/kelson".to_owned(),
        mode: Some(0o750),
        user: Owner { name: Some("root".to_owned()), ..Owner::default() },
        ..Directory::default()
    });
}

fn node_address(config: &mut Config, node: &Node) {
    let address = node.addresses.first();
    let text = units::node_ip_environment(address.copied().unwrap_or(IpAddr::from([0, 0, 0, 0])));
    add(config, "/etc/kubernetes/node-ip.env", 0o644, text.as_bytes());
}

/// Writes a config that our own validator accepts.
fn finish(path: &str, config: &Config) -> Result<AssetFile, AssetError> {
    let value = serde_json::to_value(config)?;
    let report = ignition::validate(&value);
    if report.has_errors() {
        return Err(AssetError::Ignition { path: path.to_owned(), report });
    }
    Ok(AssetFile::public(path, serde_json::to_vec(&value)?))
}

/// The objects of a file; a file that is not YAML is refused by name.
fn objects(file: &AssetFile) -> Result<Vec<Value>, AssetError> {
    use serde::Deserialize as _;
    let fail = |reason: String| AssetError::Unusable { path: file.path.clone(), reason };
    let text = std::str::from_utf8(&file.content).map_err(|error| fail(error.to_string()))?;
    let mut out = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|error| fail(error.to_string()))?;
        match value {
            Value::Null => {}
            object if object["kind"].is_string() && object["apiVersion"].is_string() => out.push(object),
            _ => return Err(fail("each document must have apiVersion and kind".to_owned())),
        }
    }
    Ok(out)
}

fn group_of(object: &Value) -> &str {
    object["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group)
}

fn manifest_files<'a>(inputs: &'a Inputs<'_>) -> impl Iterator<Item = &'a AssetFile> {
    ["manifests", "openshift"].into_iter().flat_map(|asset| inputs.files(asset))
}

/// No two files may describe one object: which of them won would be chance.
fn check_objects(inputs: &Inputs<'_>) -> Result<(), AssetError> {
    let mut seen: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new();
    for file in manifest_files(inputs) {
        for object in objects(file)? {
            let metadata = &object["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = format!(
                "{}/{} {}/{}",
                group_of(&object),
                text(&object["kind"]),
                text(&metadata["namespace"]),
                text(&metadata["name"])
            );
            if let Some(first) = seen.insert(name.clone(), file.path.clone()) {
                return Err(AssetError::SameObject { first, second: file.path.clone(), object: name });
            }
        }
    }
    Ok(())
}

/// The status of each object that has one, to be sent to the status subresource: creating an object drops it.
fn status_patches(inputs: &Inputs<'_>) -> Result<Vec<(String, Value)>, AssetError> {
    let mut out = Vec::new();
    for file in manifest_files(inputs) {
        for object in objects(file)? {
            let (group, kind) = (group_of(&object), object["kind"].as_str().unwrap_or_default());
            let plural = match (group, kind) {
                ("machine.openshift.io", "Machine") => Some("machines"),
                _ => crds::plural_of(group, kind),
            };
            if let (Some(plural), Some(status)) = (plural, object.get("status")) {
                let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
                let (namespace, name) = (text("namespace"), text("name"));
                let place = if namespace.is_empty() { name } else { format!("{namespace}_{name}") };
                let patch = serde_json::json!({"apiVersion": object["apiVersion"], "status": status});
                out.push((format!("{plural}.{group}_{place}"), patch));
            }
        }
    }
    Ok(out)
}
