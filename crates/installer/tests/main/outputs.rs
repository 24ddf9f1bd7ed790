//! What the files say, by structure.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use installer::assets::Target;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::configs;

fn objects(dir: &Path, folder: &str) -> BTreeMap<String, Vec<Value>> {
    fs::read_dir(dir.join(folder))
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let documents = serde_yaml_ng::Deserializer::from_str(&text)
                .map(|d| Value::deserialize(d).unwrap())
                .collect();
            (path.file_name().unwrap().to_string_lossy().into_owned(), documents)
        })
        .collect()
}

fn manifests(config: &str) -> (tempfile::TempDir, BTreeMap<String, Vec<Value>>) {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), config);
    configs::create(dir.path(), Target::Manifests);
    let mut all = objects(dir.path(), "manifests");
    all.extend(objects(dir.path(), "openshift"));
    (dir, all)
}

#[test]
fn the_infrastructure_says_what_operators_read() {
    let (_dir, all) = manifests(&configs::ha());
    let object = &all["cluster-infrastructure-02-config.yml"][0];
    assert_eq!(object["spec"]["platformSpec"]["type"], "None");
    let status = &object["status"];
    assert_eq!(status["apiServerURL"], "https://api.ocp4.example.com:6443");
    assert_eq!(status["apiServerInternalURI"], "https://api-int.ocp4.example.com:6443");
    assert_eq!(status["controlPlaneTopology"], "HighlyAvailable");
    assert!(status["infrastructureName"].as_str().unwrap().starts_with("ocp4-"));
    let (_dir, all) = manifests(&configs::baremetal());
    let status = &all["cluster-infrastructure-02-config.yml"][0]["status"]["platformStatus"];
    assert_eq!(status["baremetal"]["apiServerInternalIPs"], json!(["192.168.126.5"]));
    let (_dir, all) = manifests(&configs::external());
    let status = &all["cluster-infrastructure-02-config.yml"][0]["status"]["platformStatus"];
    assert_eq!(status["external"]["cloudControllerManager"]["state"], "External");
}

#[test]
fn the_config_objects_have_their_golden_form() {
    let (_dir, all) = manifests(&configs::ha());
    let spec = |file: &str| &all[file][0]["spec"];
    assert_eq!(
        *spec("cluster-network-02-config.yml"),
        json!({"clusterNetwork": [{"cidr": "10.128.0.0/14", "hostPrefix": 23}], "serviceNetwork": ["172.30.0.0/16"],
               "networkType": "OVNKubernetes", "externalIP": {"policy": {}}})
    );
    assert_eq!(spec("cluster-network-03-config.yml")["defaultNetwork"], json!({"type": "OVNKubernetes"}));
    assert_eq!(spec("cluster-dns-02-config.yml")["baseDomain"], "ocp4.example.com");
    assert_eq!(spec("cluster-ingress-02-config.yml")["domain"], "apps.ocp4.example.com");
    assert_eq!(*spec("cluster-proxy-01-config.yaml"), json!({"trustedCA": {"name": ""}}));
    assert_eq!(*spec("99_feature-gate.yaml"), json!({"featureSet": ""}));
    assert_eq!(
        *spec("cluster-scheduler-02-config.yml"),
        json!({"mastersSchedulable": false, "policy": {"name": ""}})
    );
    assert_eq!(all["cvo-overrides.yaml"][0]["metadata"]["name"], "version");
    let subjects = |file: &str| {
        let object = &all[file][0];
        (object["subjects"][0]["name"].as_str().unwrap(), object["roleRef"]["name"].as_str().unwrap())
    };
    assert_eq!(
        subjects("02_rbac-node-bootstrapper.yaml"),
        ("system:bootstrapper", "system:node-bootstrapper")
    );
    assert_eq!(subjects("02_rbac-bootstrapper-proxier.yaml"), ("system:bootstrapper", "system:node-proxier"));
    assert_eq!(subjects("02_rbac-kubelet-api.yaml"), ("system:kube-apiserver", "system:kubelet-api-admin"));
}

#[test]
fn a_proxy_is_completed_with_what_it_must_not_see() {
    let text = configs::ha() + "proxy: {httpProxy: 'http://user:pw@proxy:3128', noProxy: 'example.org'}\n";
    let (_dir, all) = manifests(&text);
    let status = &all["cluster-proxy-01-config.yaml"][0]["status"];
    assert_eq!(
        status["noProxy"],
        ".cluster.local,.svc,10.128.0.0/14,127.0.0.1,172.30.0.0/16,192.168.126.0/24,api-int.ocp4.example.com,example.org,localhost"
    );
}

#[test]
fn the_cluster_never_sees_the_secrets_of_its_config() {
    let (dir, all) = manifests(&configs::baremetal());
    let kept = all["cluster-config.yaml"][0]["data"]["install-config"].as_str().unwrap();
    assert!(kept.contains("baseDomain: example.com"));
    assert!(!kept.contains("bmc-secret") && !kept.contains("dXNlcjpwYXNz"));
    // The pull secret is in its Secret, in base64, and nowhere else.
    for (file, documents) in &all {
        let text = serde_json::to_string(documents).unwrap();
        assert!(!text.contains("dXNlcjpwYXNz"), "{file}");
    }
    drop(dir);
}

#[test]
fn the_password_fits_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::Manifests);
    let secret = &objects(dir.path(), "openshift")["99_kubeadmin-password-secret.yaml"][0];
    configs::create(dir.path(), Target::IgnitionConfigs { per_node: false });
    let password = fs::read_to_string(dir.path().join("auth/kubeadmin-password")).unwrap();
    assert_eq!(password.len(), 23);
    use base64::Engine as _;
    let hash = base64::engine::general_purpose::STANDARD
        .decode(secret["data"]["kubeadmin"].as_str().unwrap())
        .unwrap();
    assert!(bcrypt::verify(&password, std::str::from_utf8(&hash).unwrap()).unwrap());
}

#[test]
fn every_flag_of_a_static_pod_has_its_reason_above_it() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::dual_stack());
    configs::create(dir.path(), Target::Manifests);
    let mut flags = 0;
    for folder in ["bootstrap-manifests", "master-manifests"] {
        for entry in fs::read_dir(dir.path().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (index, line) in
                lines.iter().enumerate().filter(|(_, line)| line.contains("- --") || line.contains("- '--"))
            {
                assert!(lines[index - 1].starts_with("# "), "{}: {line}", path.display());
                flags += 1;
            }
        }
    }
    assert!(flags > 80, "{flags}");
    let pods = objects(dir.path(), "bootstrap-manifests");
    let command = pods["kube-controller-manager-pod.yaml"][0]["spec"]["containers"][0]["command"].to_string();
    assert!(
        command.contains("--node-cidr-mask-size-ipv4=23")
            && command.contains("--node-cidr-mask-size-ipv6=64")
    );
    assert!(command.contains("--cluster-cidr=10.128.0.0/14,fd01::/48"));
}

/// Files that a pod or unit names must be in the config that the machine boots from.
#[test]
fn everything_that_bootstrap_refers_to_is_in_it() {
    for (name, config) in configs::ALL {
        let dir = tempfile::tempdir().unwrap();
        configs::write(dir.path(), &config());
        configs::create(dir.path(), Target::IgnitionConfigs { per_node: true });
        let (config, report) = ignition::parse(&fs::read(dir.path().join("bootstrap.ign")).unwrap()).unwrap();
        assert_eq!(report.entries, [], "{name}");
        let paths: Vec<&str> = config.storage.files.iter().map(|file| file.path.as_str()).collect();
        let content = |path: &str| {
            let file = config.storage.files.iter().find(|file| file.path == path).unwrap();
            String::from_utf8(ignition::decode_data_url(file.contents.source.as_deref().unwrap()).unwrap())
                .unwrap()
        };
        for pod in paths.iter().filter(|path| path.starts_with("/opt/openshift/bootstrap-manifests/")) {
            for word in content(pod).split(['=', ',', ' ', '\n', '\'']) {
                if let Some(secret) = word.strip_prefix("/etc/kubernetes/secrets/") {
                    let path = format!("/etc/kubernetes/bootstrap-secrets/{secret}");
                    assert!(paths.contains(&path.as_str()), "{name}: {pod} needs {path}");
                }
                if word.starts_with("/etc/kubernetes/kubeconfigs/") {
                    assert!(paths.contains(&word), "{name}: {pod} needs {word}");
                }
            }
        }
        for unit in &config.systemd.units {
            for word in unit.contents.as_deref().unwrap().split(['=', ' ', '\n']) {
                if word.ends_with("kubelet.conf") || word.ends_with("bootstrap.env") {
                    assert!(paths.contains(&word), "{name}: {} needs {word}", unit.name);
                }
            }
        }
        assert!(paths.contains(&"/opt/openshift/status/infrastructures.config.openshift.io_cluster.json"));
    }
}

#[test]
fn nodes_get_whole_configs_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::dual_stack());
    configs::create(dir.path(), Target::IgnitionConfigs { per_node: true });
    let (config, _) = ignition::parse(&fs::read(dir.path().join("nodes/master-1.ign")).unwrap()).unwrap();
    let root = tempfile::tempdir().unwrap();
    // What machines will do with it.
    let mut etc = config.clone();
    etc.storage.directories.retain(|directory| directory.user.name.is_none());
    ignition::apply::apply(&etc, root.path(), &mut |_| Err("no network".into())).unwrap();
    let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
    assert_eq!(read("etc/hostname"), "master-1.ocp4.example.com\n");
    let network = read("etc/NetworkManager/system-connections/machine.nmconnection");
    assert!(network.contains("address1=192.168.126.102/24,192.168.126.1"), "{network}");
    assert!(network.contains("address1=fd03::66/64,fd03::1"), "{network}");
    let kubeconfig = pki::Kubeconfig::load(&root.path().join("etc/kubernetes/kubeconfig")).unwrap();
    let access = kubeconfig.access(None).unwrap();
    assert_eq!(access.server, "https://api-int.ocp4.example.com:6443");
    let subject = pki::Certificate::from_pem(&access.client_certificate.unwrap()).unwrap().subject;
    assert_eq!(subject.to_string(), "CN=system:bootstrapper");
    assert!(read("etc/kubernetes/manifests/kube-proxy-pod.yaml").contains("kind: Pod"));
    assert!(
        read("etc/systemd/system/kubelet.service.d/10-role.conf").contains("node-role.kubernetes.io/master=")
    );
    assert!(!dir.path().join("nodes/bootstrap.ign").exists());
    assert!(dir.path().join("nodes/worker-1.ign").exists());
}

#[test]
fn pointers_fetch_from_the_config_server_and_trust_the_root_only() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::arbiter());
    configs::create(dir.path(), Target::IgnitionConfigs { per_node: false });
    for role in ["master", "worker", "arbiter"] {
        let text = fs::read(dir.path().join(format!("{role}.ign"))).unwrap();
        assert!(text.len() < 2000, "{} bytes", text.len());
        let (config, _) = ignition::parse(&text).unwrap();
        let source = config.ignition.config.merge[0].source.clone().unwrap();
        assert_eq!(source, format!("https://api-int.ocp4.example.com:22623/config/{role}"));
        let ca = config.ignition.security.tls.certificate_authorities[0].source.clone().unwrap();
        let ca = pki::Certificate::from_pem(&ignition::decode_data_url(&ca).unwrap()).unwrap();
        assert_eq!(ca.subject.common_name, "root-ca");
    }
}
