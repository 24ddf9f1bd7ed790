use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::cert::San;

fn spec() -> ClusterSpec {
    ClusterSpec {
        node_name: "box".to_owned(),
        node_ips: vec!["192.0.2.7".parse().unwrap()],
        service_ips: vec!["172.30.0.1".parse().unwrap()],
        api_sans: vec!["10.128.0.1".to_owned(), "api.test".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm: Algorithm::EcdsaP256,
    }
}

fn days(count: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * count)
}

fn fingerprints(pki: &ClusterPki) -> BTreeMap<&'static str, String> {
    pki.pairs.iter().map(|(name, pair)| (*name, pair.certificate.fingerprint())).collect()
}

#[test]
fn a_second_run_finds_everything_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let first = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    assert_eq!(first.made().len(), table::LOCAL.len() + 1);
    let second = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    assert!(second.made().is_empty(), "{:?}", second.made());
    assert_eq!(fingerprints(&first), fingerprints(&second));
    assert_eq!(first.service_account().public(), second.service_account().public());
}

#[test]
fn every_file_is_private_and_none_is_temporary() {
    let dir = tempfile::tempdir().unwrap();
    ClusterPki::ensure(dir.path(), &spec()).unwrap();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        assert!(!entry.file_name().to_string_lossy().starts_with('.'));
    }
}

#[test]
fn each_leaf_says_what_its_row_says_and_chains_to_its_signer() {
    let dir = tempfile::tempdir().unwrap();
    let pki = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    for row in table::LOCAL {
        let pair = pki.pair(row.name).unwrap();
        let signer = &pki.pair(row.signer.unwrap_or(row.name)).unwrap().certificate;
        assert!(pair.certificate.is_signed_by(signer), "{}", row.name);
        assert_eq!(pair.certificate.usages, row.role.usages(), "{}", row.name);
    }
    let server = &pki.pair(names::APISERVER).unwrap().certificate;
    for name in ["localhost", "::1", "kubernetes.default.svc.cluster.local", "172.30.0.1", "box", "api.test"]
    {
        assert!(server.sans.contains(&San::parse(name)), "{name}");
    }
    let kubelet = &pki.pair(names::KUBELET).unwrap().certificate;
    assert_eq!(kubelet.subject.to_string(), "O=system:nodes, CN=system:node:box");
}

#[test]
fn a_new_address_gives_the_same_keys_a_new_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let before = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    let mut changed = spec();
    changed.api_sans.push("192.0.2.99".to_owned());
    let after = ClusterPki::ensure(dir.path(), &changed).unwrap();
    assert_eq!(after.made(), [names::APISERVER]);
    let key = |pki: &ClusterPki| pki.pair(names::APISERVER).unwrap().key.public();
    assert_eq!(key(&before), key(&after));
}

#[test]
fn leaves_get_new_keys_near_their_end_and_authorities_keep_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let now = Timestamp::now();
    let first = ClusterPki::ensure_at(dir.path(), &spec(), now).unwrap();
    assert!(first.next_renewal() < now + days(365) && first.next_renewal() > now + days(200));
    let second = ClusterPki::ensure_at(dir.path(), &spec(), now + days(340)).unwrap();
    assert_eq!(second.made().len(), table::LOCAL.iter().filter(|row| row.signer.is_some()).count());
    assert_ne!(first.pair("admin").unwrap().key.public(), second.pair("admin").unwrap().key.public());
    let third = ClusterPki::ensure_at(dir.path(), &spec(), now + days(3600)).unwrap();
    let (old, new) = (first.pair(names::CLIENT_CA).unwrap(), third.pair(names::CLIENT_CA).unwrap());
    assert_eq!(old.key.public(), new.key.public());
    assert!(new.certificate.not_after > old.certificate.not_after);
    assert!(second.pair("admin").unwrap().certificate.is_signed_by(&new.certificate));
}

#[test]
fn a_damaged_leaf_is_made_again_but_a_damaged_authority_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    ClusterPki::ensure(dir.path(), &spec()).unwrap();
    std::fs::write(dir.path().join("admin.crt"), "half").unwrap();
    let pki = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    assert_eq!(pki.made(), [names::ADMIN]);
    // A crash after the key of an authority was written, before its certificate was:
    std::fs::remove_file(dir.path().join("client-ca.crt")).unwrap();
    let again = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    assert_eq!(again.made(), [names::CLIENT_CA]);
    std::fs::write(dir.path().join("client-ca.key"), "half").unwrap();
    assert!(ClusterPki::ensure(dir.path(), &spec()).is_err());
}

#[test]
fn a_kubeconfig_carries_the_row_and_loads_again() {
    let dir = tempfile::tempdir().unwrap();
    let pki = ClusterPki::ensure(dir.path(), &spec()).unwrap();
    let config = pki.kubeconfig(names::ADMIN, "kelson", "https://127.0.0.1:6443").unwrap();
    let path = dir.path().join("admin.kubeconfig");
    config.write(&path).unwrap();
    let access = Kubeconfig::load(&path).unwrap().access(None).unwrap();
    assert_eq!(access.server, "https://127.0.0.1:6443");
    let subject = Certificate::from_pem(&access.client_certificate.unwrap()).unwrap().subject;
    assert_eq!(subject.organizations, ["system:masters"]);
}
