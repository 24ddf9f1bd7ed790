//! Other people's programs read what this crate makes.

use std::path::Path;
use std::process::Command;

use pki::table::{LOCAL, Role};
use pki::{Algorithm, ClusterPki, ClusterSpec, Csr, PrivateKey};

fn spec(algorithm: Algorithm) -> ClusterSpec {
    ClusterSpec {
        node_name: "box".to_owned(),
        node_ips: vec!["192.0.2.7".parse().unwrap(), "fd00::7".parse().unwrap()],
        service_ips: vec!["172.30.0.1".parse().unwrap()],
        api_sans: vec!["api.test".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm,
    }
}

fn openssl(args: &[&str], dir: &Path) -> Option<(bool, String)> {
    let out = Command::new(testing::program("openssl")?).args(args).current_dir(dir).output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    Some((out.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn openssl_accepts_every_chain_for_its_purpose_only() {
    let dir = tempfile::tempdir().unwrap();
    ClusterPki::ensure(dir.path(), &spec(Algorithm::EcdsaP256)).unwrap();
    for row in LOCAL.iter().filter(|row| row.signer.is_some()) {
        let ca = format!("{}.crt", row.signer.unwrap());
        let leaf = format!("{}.crt", row.name);
        for (purpose, fits) in [
            ("sslclient", matches!(row.role, Role::Client | Role::Peer)),
            ("sslserver", matches!(row.role, Role::Server | Role::Peer)),
        ] {
            let args = ["verify", "-x509_strict", "-purpose", purpose, "-CAfile", &ca, &leaf];
            let Some((ok, text)) = openssl(&args, dir.path()) else { return };
            assert_eq!(ok, fits, "{} as {purpose}: {text}", row.name);
        }
    }
    let names =
        [("-verify_hostname", "kubernetes.default.svc"), ("-verify_ip", "fd00::7"), ("-verify_ip", "::1")];
    for (option, name) in names {
        let args = ["verify", option, name, "-CAfile", "server-ca.crt", "kube-apiserver.crt"];
        let (ok, text) = openssl(&args, dir.path()).unwrap();
        assert!(ok, "{name}: {text}");
    }
}

#[test]
fn openssl_and_we_read_each_others_requests_and_keys() {
    let dir = tempfile::tempdir().unwrap();
    let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
    let subject = pki::Subject::new("system:node:a", &["system:nodes", "b"]);
    let ours = Csr::create(&key, &subject, &[pki::San::parse("a.test")]).unwrap();
    std::fs::write(dir.path().join("ours.csr"), ours).unwrap();
    let args = ["req", "-in", "ours.csr", "-noout", "-verify", "-subject", "-text"];
    let Some((ok, text)) = openssl(&args, dir.path()) else { return };
    assert!(ok && text.contains("DNS:a.test"), "{text}");
    for algorithm in ["ec -pkeyopt ec_paramgen_curve:P-256", "rsa:2048"] {
        let mut args = vec!["req", "-new", "-nodes", "-keyout", "their.key", "-out", "their.csr", "-newkey"];
        args.extend(algorithm.split(' '));
        args.extend(["-subj", "/O=x/O=y/CN=them", "-addext", "subjectAltName=DNS:d,IP:10.0.0.1"]);
        let (ok, text) = openssl(&args, dir.path()).unwrap();
        assert!(ok, "{text}");
        let csr = Csr::from_pem(&std::fs::read(dir.path().join("their.csr")).unwrap()).unwrap();
        assert_eq!(csr.subject.organizations, ["x", "y"]);
        assert_eq!(csr.addresses().count() + csr.dns_names().count(), 2);
        let key = PrivateKey::from_pem(&std::fs::read(dir.path().join("their.key")).unwrap()).unwrap();
        assert_eq!(key.public(), csr.public_key);
        let signature = key.sign_jws(b"token").unwrap();
        assert!(key.public().verify_jws(key.jws_algorithm(), b"token", &signature).unwrap());
    }
    let (ok, text) =
        openssl(&["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sec1.key"], dir.path())
            .unwrap();
    assert!(ok, "{text}");
    PrivateKey::from_pem(&std::fs::read(dir.path().join("sec1.key")).unwrap()).unwrap();
}
