//! The life of a directory: targets consume their inputs, edits win, runs repeat.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use installer::assets::Target;
use installer::create::{self, Options};
use installer::store::{Store, StoreError};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::configs;

const IGNITION: Target = Target::IgnitionConfigs { per_node: false };

/// Every file with its content, but not the lock.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                pending.push(path);
            } else if !name.ends_with(".lock") {
                out.insert(name, fs::read(path).unwrap());
            }
        }
    }
    out
}

fn names(dir: &Path) -> Vec<String> {
    tree(dir).into_keys().filter(|name| !name.starts_with('.')).collect()
}

/// A file inside bootstrap.ign.
fn in_bootstrap(dir: &Path, path: &str) -> Option<String> {
    let (config, _) = ignition::parse(&fs::read(dir.join("bootstrap.ign")).unwrap()).unwrap();
    let file = config.storage.files.iter().find(|file| file.path == path)?;
    let source = file.contents.source.as_deref().unwrap();
    Some(String::from_utf8(ignition::decode_data_url(source).unwrap()).unwrap())
}

#[test]
fn targets_consume_their_inputs() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::InstallConfig);
    assert_eq!(names(dir.path()), ["install-config.yaml"]);
    let outcome = configs::create(dir.path(), Target::Manifests);
    assert_eq!(outcome.consumed, ["install-config.yaml"]);
    let after = names(dir.path());
    assert!(after.contains(&"manifests/cluster-infrastructure-02-config.yml".to_owned()));
    assert!(after.contains(&"openshift/99_feature-gate.yaml".to_owned()));
    assert!(after.contains(&"nodes.yaml".to_owned()));
    configs::create(dir.path(), IGNITION);
    assert_eq!(
        names(dir.path()),
        [
            "README.md",
            "auth/kubeadmin-password",
            "auth/kubeconfig",
            "bootstrap.ign",
            "dns/hosts",
            "dns/ocp4.example.com.zone",
            "dns/reverse.zone",
            "haproxy.cfg",
            "master.ign",
            "metadata.json",
            "worker.ign",
        ]
    );
}

#[test]
fn a_second_run_gives_the_same_bytes() {
    for (name, config) in configs::ALL {
        let dir = tempfile::tempdir().unwrap();
        configs::write(dir.path(), &config());
        configs::create(dir.path(), IGNITION);
        let first = tree(dir.path());
        configs::create(dir.path(), IGNITION);
        assert!(first == tree(dir.path()), "{name}: a second run changed something");
        // Back to manifests and forth again: still the same cluster.
        configs::create(dir.path(), Target::Manifests);
        let outcome = configs::create(dir.path(), IGNITION);
        assert!(first == tree(dir.path()), "{name}: going back changed something");
        assert_eq!(outcome.warnings, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn an_edit_between_targets_wins() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::Manifests);
    let path = dir.path().join("manifests/cluster-scheduler-02-config.yml");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("mastersSchedulable: false"));
    fs::write(&path, text.replace("mastersSchedulable: false", "mastersSchedulable: true")).unwrap();
    fs::write(
        dir.path().join("openshift/99_extra.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: extra, namespace: default}\n",
    )
    .unwrap();
    configs::create(dir.path(), IGNITION);
    let scheduler =
        in_bootstrap(dir.path(), "/opt/openshift/manifests/cluster-scheduler-02-config.yml").unwrap();
    assert!(scheduler.contains("mastersSchedulable: true"));
    assert!(in_bootstrap(dir.path(), "/opt/openshift/openshift/99_extra.yaml").is_some());
    // The edit is part of the state now.
    let first = tree(dir.path());
    configs::create(dir.path(), IGNITION);
    assert!(first == tree(dir.path()));
}

#[test]
fn edited_addresses_reach_certificates_load_balancer_and_dns() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::Manifests);
    let path = dir.path().join("nodes.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("192.168.126.101", "192.168.126.201")).unwrap();
    configs::create(dir.path(), IGNITION);
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(read("haproxy.cfg").contains("server master-0 192.168.126.201:6443"));
    assert!(read("dns/ocp4.example.com.zone").contains("master-0 IN A 192.168.126.201"));
    let certificate = in_bootstrap(dir.path(), "/etc/kubernetes/bootstrap-secrets/etcd-server.crt").unwrap();
    let certificate = pki::Certificate::from_pem(certificate.as_bytes()).unwrap();
    assert!(certificate.sans.contains(&pki::San::parse("192.168.126.201")));
    fs::write(&path, text.replace("192.168.126.102", "192.168.126.101")).unwrap();
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err().to_string();
    assert!(error.contains("two nodes have the address 192.168.126.101"), "{error}");
}

#[test]
fn a_changed_config_makes_its_children_anew_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::Manifests);
    let identity: Value = serde_yaml_ng::from_str(
        &fs::read_to_string(dir.path().join("manifests/cvo-overrides.yaml")).unwrap(),
    )
    .unwrap();
    configs::write(dir.path(), &configs::single_node());
    let edited = dir.path().join("manifests/cluster-scheduler-02-config.yml");
    fs::write(&edited, fs::read_to_string(&edited).unwrap() + "# mine\n").unwrap();
    let outcome = configs::create(dir.path(), IGNITION);
    let discarded =
        outcome.warnings.iter().any(|w| w.starts_with("manifests: the edited files are discarded"));
    assert!(discarded, "{:?}", outcome.warnings);
    let text =
        in_bootstrap(dir.path(), "/opt/openshift/manifests/cluster-infrastructure-02-config.yml").unwrap();
    assert!(text.contains("controlPlaneTopology: SingleReplica"));
    let version = in_bootstrap(dir.path(), "/opt/openshift/manifests/cvo-overrides.yaml").unwrap();
    let version: Value = serde_yaml_ng::from_str(&version).unwrap();
    assert_eq!(
        version["spec"]["clusterID"], identity["spec"]["clusterID"],
        "the same name is the same cluster"
    );
}

#[test]
fn two_descriptions_of_one_object_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), Target::Manifests);
    fs::copy(dir.path().join("manifests/cluster-dns-02-config.yml"), dir.path().join("openshift/copy.yaml"))
        .unwrap();
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err().to_string();
    assert!(error.contains("config.openshift.io/DNS /cluster"), "{error}");
    fs::write(dir.path().join("openshift/copy.yaml"), "just text").unwrap();
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err().to_string();
    assert!(error.contains("openshift/copy.yaml is unusable"), "{error}");
}

#[test]
fn secrets_are_for_their_owner_and_nothing_temporary_stays() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    for target in [Target::Manifests, Target::IgnitionConfigs { per_node: true }] {
        configs::create(dir.path(), target);
        for name in tree(dir.path()).keys() {
            let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
            let secret = name.contains("secret")
                || name.starts_with("auth/")
                || name.starts_with("nodes/")
                || name == "bootstrap.ign"
                || name.ends_with("state.json");
            assert_eq!(mode, if secret { 0o600 } else { 0o640 }, "{name}");
            assert!(!name.contains(".tmp-"), "{name}");
        }
    }
}

#[test]
fn a_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let held = Store::open(dir.path()).unwrap();
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err();
    assert!(matches!(error, create::CreateError::Store(StoreError::InUse(_))), "{error}");
    drop(held);
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err().to_string();
    assert!(error.contains("there is no install-config.yaml"), "{error}");
}

#[test]
fn wrong_inputs_leave_the_directory_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha().replace("ocp4", "OCP4"));
    let before = tree(dir.path());
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert_eq!(before, tree(dir.path()));
    fs::rename(dir.path().join("install-config.yaml"), dir.path().join("install-config.yml")).unwrap();
    let error = configs::try_create(dir.path(), IGNITION).unwrap_err().to_string();
    assert!(error.contains("must be named install-config.yaml"), "{error}");
}

#[test]
fn a_directory_that_waited_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::ha());
    configs::create(dir.path(), IGNITION);
    let later = Timestamp::now() + SignedDuration::from_hours(24 * 31);
    let error = create::create(dir.path(), IGNITION, &Options::default(), later).unwrap_err().to_string();
    assert!(error.contains("certificates in the state expired"), "{error}");
}
