//! Other people's programs judge the files: openssl, ignition-validate, haproxy. Where one is not installed the test
//! says SKIPPED; CI installs them all.

use std::fs;
use std::path::Path;
use std::process::Command;

use installer::assets::Target;
use pki::table::{INSTALL, Role};

use crate::configs;

fn run(program: &str, args: &[&str], dir: &Path) -> Option<(bool, String)> {
    let out = Command::new(testing::program(program)?).args(args).current_dir(dir).output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    Some((out.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn made(config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), config);
    configs::create(dir.path(), Target::IgnitionConfigs { per_node: true });
    dir
}

#[test]
fn ignition_validate_accepts_every_file() {
    for (name, config) in configs::ALL {
        let dir = made(&config());
        let mut files = vec!["bootstrap.ign".to_owned(), "master.ign".to_owned(), "worker.ign".to_owned()];
        for entry in fs::read_dir(dir.path().join("nodes")).unwrap() {
            files.push(format!("nodes/{}", entry.unwrap().file_name().to_string_lossy()));
        }
        for file in files {
            let Some((ok, text)) = run("ignition-validate", &[&file], dir.path()) else { return };
            assert!(ok && !text.to_lowercase().contains("warn"), "{name}: {file}: {text}");
        }
    }
}

#[test]
fn haproxy_accepts_its_configuration() {
    for (name, config) in configs::ALL {
        let dir = made(&config());
        let Some((ok, text)) = run("haproxy", &["-c", "-f", "haproxy.cfg"], dir.path()) else { return };
        assert!(ok && !text.contains("WARNING") && !text.contains("ALERT"), "{name}: {text}");
    }
}

#[test]
fn openssl_accepts_every_chain_and_name() {
    let dir = made(&configs::ha());
    let tls = tempfile::tempdir().unwrap();
    let (config, _) = ignition::parse(&fs::read(dir.path().join("bootstrap.ign")).unwrap()).unwrap();
    for file in &config.storage.files {
        if let Some(name) = file.path.strip_prefix("/etc/kubernetes/bootstrap-secrets/") {
            let content = ignition::decode_data_url(file.contents.source.as_deref().unwrap()).unwrap();
            fs::write(tls.path().join(name), content).unwrap();
        }
    }
    for row in INSTALL.iter().filter(|row| row.signer.is_some()) {
        let (ca, leaf) = (format!("{}.crt", row.signer.unwrap()), format!("{}.crt", row.name));
        for (purpose, fits) in [
            ("sslclient", matches!(row.role, Role::Client | Role::Peer)),
            ("sslserver", matches!(row.role, Role::Server | Role::Peer)),
        ] {
            let args = ["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &ca, &leaf];
            let Some((ok, text)) = run("openssl", &args, tls.path()) else { return };
            assert_eq!(ok, fits, "{} as {purpose}: {text}", row.name);
        }
    }
    let names = [
        ("kube-apiserver-server-ca", "kube-apiserver-lb-server", "-verify_hostname", "api.ocp4.example.com"),
        (
            "kube-apiserver-server-ca",
            "kube-apiserver-internal-lb-server",
            "-verify_hostname",
            "api-int.ocp4.example.com",
        ),
        ("kube-apiserver-server-ca", "kube-apiserver-service-network-server", "-verify_ip", "172.30.0.1"),
        ("kube-apiserver-server-ca", "kube-apiserver-localhost-server", "-verify_hostname", "localhost"),
        ("etcd-ca", "etcd-server", "-verify_ip", "192.168.126.100"),
        ("etcd-ca", "etcd-peer", "-verify_hostname", "master-2.ocp4.example.com"),
        ("root-ca", "machine-config-server", "-verify_hostname", "api-int.ocp4.example.com"),
        ("ingress-ca", "ingress", "-verify_hostname", "console-openshift-console.apps.ocp4.example.com"),
    ];
    for (ca, leaf, option, name) in names {
        let (ca, leaf) = (format!("{ca}.crt"), format!("{leaf}.crt"));
        let (ok, text) =
            run("openssl", &["verify", option, name, "-CAfile", &ca, &leaf], tls.path()).unwrap();
        assert!(ok, "{leaf} for {name}: {text}");
    }
}
