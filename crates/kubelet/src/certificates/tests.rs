use std::sync::Arc;

use jiff::SignedDuration;
use pki::{Pair, PrivateKey, Request, Usages};

use super::*;

fn signed(key: &Arc<PrivateKey>, start: Timestamp, hours: i64) -> Vec<u8> {
    let request = Request {
        subject: Subject::new("system:node:n", &["system:nodes"]),
        sans: vec![San::parse("n"), San::parse("192.0.2.1")],
        usages: Usages::server(),
        is_ca: false,
        not_before: start,
        not_after: start + SignedDuration::from_hours(hours),
    };
    Pair::self_signed(&request, key.clone()).unwrap().certificate_pem().into_bytes()
}

#[test]
fn certificates_are_kept_under_upstreams_names() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(&directory.path().join("pki"), "kubelet-client");
    assert!(store.current().unwrap().is_none());
    let key = store.pending_key().unwrap();
    let again = store.pending_key().unwrap();
    assert_eq!(key.public().spki(), again.public().spki(), "a restart goes on with the same request");
    let key = Arc::new(key);
    let identity = Identity::new(&signed(&key, Timestamp::now(), 10), &key).unwrap();
    store.keep(&identity).unwrap();
    assert!(store.current_path().ends_with("kubelet-client-current.pem"));
    let target = std::fs::read_link(store.current_path()).unwrap();
    assert!(target.to_str().unwrap().starts_with("kubelet-client-20"), "{target:?}");
    let read = store.current().unwrap().unwrap();
    assert_eq!((read.pem == identity.pem, read.is_valid()), (true, true));
    assert!(read.is_for(&[San::parse("192.0.2.1"), San::parse("n")]) && !read.is_for(&[San::parse("n")]));
    assert_ne!(
        store.pending_key().unwrap().public().spki(),
        again.public().spki(),
        "another request, another key"
    );
    let other = PrivateKey::generate(pki::Algorithm::default()).unwrap();
    assert!(Identity::new(&signed(&key, Timestamp::now(), 1), &other).is_err());
}

#[test]
fn certificates_are_replaced_between_seven_and_nine_tenths_of_their_life() {
    let key = Arc::new(PrivateKey::generate(pki::Algorithm::default()).unwrap());
    let start = Timestamp::from_second(1_700_000_000).unwrap();
    for _ in 0..20 {
        let identity = Identity::new(&signed(&key, start, 100), &key).unwrap();
        let hours = identity.rotate_at().duration_since(start).as_secs() / 3600;
        assert!((70..=90).contains(&hours), "{hours}");
    }
}

#[test]
fn a_kubeconfig_is_used_while_its_certificate_lives() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::new(directory.path(), "kubelet-client");
    let path = directory.path().join("kubeconfig");
    assert!(!is_usable(&path));
    let server = HttpsConfig { server: "https://127.0.0.1:6443".into(), ..HttpsConfig::default() };
    let key = Arc::new(PrivateKey::generate(pki::Algorithm::default()).unwrap());
    write_kubeconfig(&path, &server, &store.current_path()).unwrap();
    for (start, usable) in [(Timestamp::now(), true), (Timestamp::from_second(1_700_000_000).unwrap(), false)]
    {
        store.keep(&Identity::new(&signed(&key, start, 10), &key).unwrap()).unwrap();
        assert_eq!(is_usable(&path), usable);
    }
}
