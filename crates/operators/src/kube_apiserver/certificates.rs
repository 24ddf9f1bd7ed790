//! The certificates of the API servers and of the control plane's clients, from the signers of the installation.

use jiff::Timestamp;
use pki::Pair;
use serde_json::Value;

use super::{CONFIG, Inputs, MANAGED, NAMESPACE, OPERATOR};
use crate::library::certificates::{CertificateError, Wanted, bundle, config_map, keep, pair_of, tls_secret};
use crate::library::driver::Round;
use crate::library::operand::{host_of, nth_address, sync};
use crate::library::static_pod::Read;

/// Days that a serving certificate, and that of a client, lives.
const SERVING: i64 = 30;
const CLIENT: i64 = 365;

/// Writes all certificates and bundles; what cannot be made is told and does not stop the others.
pub fn plan(read: &Read, inputs: &Inputs, now: Timestamp, round: &mut Round) -> Vec<String> {
    let mut errors: Vec<String> = Vec::new();
    let mut note = |error: CertificateError| errors.push(telemetry::chain(&error).to_string());
    let signer = |name: &str| pair_of(inputs.secret(OPERATOR, name), &format!("{OPERATOR}/{name}"));
    let text = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<String>>();

    let mut network = text(&[
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "openshift",
        "openshift.default",
        "openshift.default.svc",
        "openshift.default.svc.cluster.local",
    ]);
    network.extend(inputs.service_networks().iter().filter_map(|range| nth_address(range, 1)));
    let status = &inputs.infrastructure["status"];
    let url = |field: &str| status[field].as_str().and_then(host_of);
    let addresses =
        crate::library::config::texts(&status["platformStatus"]["baremetal"]["apiServerInternalIPs"]);
    let balanced = |field: &str| url(field).into_iter().chain(addresses.clone()).collect::<Vec<String>>();
    const SERVER: &str = "system:kube-apiserver";
    let of_server = |names: Vec<String>| Wanted::server(SERVER, names, SERVING);

    // The Secret, its signer, and what its certificate says.
    let wanted: Vec<(&str, &str, &str, Wanted)> = vec![
        (
            NAMESPACE,
            "localhost-serving-cert-certkey",
            "localhost-serving-signer",
            of_server(text(&["localhost", "127.0.0.1", "::1"])),
        ),
        (NAMESPACE, "service-network-serving-certkey", "service-network-serving-signer", of_server(network)),
        (
            NAMESPACE,
            "external-loadbalancer-serving-certkey",
            "loadbalancer-serving-signer",
            of_server(balanced("apiServerURL")),
        ),
        (
            NAMESPACE,
            "internal-loadbalancer-serving-certkey",
            "loadbalancer-serving-signer",
            of_server(balanced("apiServerInternalURI")),
        ),
        (
            NAMESPACE,
            "kubelet-client",
            "kube-apiserver-to-kubelet-signer",
            Wanted::client(SERVER, &[], CLIENT),
        ),
        (
            NAMESPACE,
            "aggregator-client",
            "aggregator-client-signer",
            Wanted::client(pki::table::FRONT_PROXY_NAME, &[], SERVING),
        ),
        (
            OPERATOR,
            "kube-controller-manager-client-cert-key",
            "kube-control-plane-signer",
            Wanted::client("system:kube-controller-manager", &[], CLIENT),
        ),
        (
            OPERATOR,
            "kube-scheduler-client-cert-key",
            "kube-control-plane-signer",
            Wanted::client("system:kube-scheduler", &[], CLIENT),
        ),
    ];
    for (namespace, name, by, wanted) in wanted {
        let served = wanted.names.is_empty() && wanted.usages == pki::Usages::server();
        if served {
            note(CertificateError::NoSigner(format!("{name}: no names are known to serve")));
            continue;
        }
        let existing = match namespace {
            NAMESPACE => read.secret(name),
            _ => inputs.secret(namespace, name),
        };
        let kept = signer(by).and_then(|signer| keep(existing, &signer, &wanted, now));
        match kept {
            Ok((pair, new)) => {
                if new {
                    round.write.push(tls_secret(namespace, name, &pair));
                }
                // Others take theirs where everyone looks.
                if namespace == OPERATOR {
                    round.write.push(tls_secret(MANAGED, name, &pair));
                }
            }
            Err(error) => note(error),
        }
    }

    let pem = |pair: Result<Pair, CertificateError>| {
        pair.map(|pair| pair.certificate_pem().into_bytes()).unwrap_or_default()
    };
    let published = |namespace: &str, name: &str, key: &str| {
        let map = inputs.config_map(namespace, name);
        map.and_then(|map| map["data"][key].as_str()).unwrap_or_default().as_bytes().to_vec()
    };
    let own = |name: &str| {
        let map = read.config_map(name);
        map.and_then(|map| map["data"]["ca-bundle.crt"].as_str()).unwrap_or_default().as_bytes().to_vec()
    };
    const KEY: &str = "ca-bundle.crt";
    // Who signed before stays in the bundle until it ends: what it signed is still shown.
    let bundles: [(&str, Vec<Vec<u8>>); 3] = [
        (
            "client-ca",
            vec![
                published(CONFIG, "admin-kubeconfig-client-ca", KEY),
                published(MANAGED, "csr-controller-ca", KEY),
                pem(signer("kube-control-plane-signer")),
                published(CONFIG, "kubelet-bootstrap-kubeconfig-ca", KEY),
                own("client-ca"),
            ],
        ),
        ("kubelet-serving-ca", vec![published(MANAGED, "csr-controller-ca", KEY), own("kubelet-serving-ca")]),
        ("aggregator-client-ca", vec![pem(signer("aggregator-client-signer")), own("aggregator-client-ca")]),
    ];
    for (name, parts) in bundles {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bundle = bundle(&parts, now);
        if bundle.is_empty() {
            note(CertificateError::NoSigner(format!("{NAMESPACE}/{name}: no authority is known")));
            continue;
        }
        round.write.push(config_map(NAMESPACE, name, &[(KEY, bundle.clone())]));
        let public = match name {
            "client-ca" => "kube-apiserver-client-ca",
            "aggregator-client-ca" => "kube-apiserver-aggregator-client-ca",
            _ => name,
        };
        round.write.push(config_map(MANAGED, public, &[(KEY, bundle)]));
    }
    let servers = [
        pem(signer("localhost-serving-signer")),
        pem(signer("service-network-serving-signer")),
        pem(signer("loadbalancer-serving-signer")),
        published(CONFIG, "initial-kube-apiserver-server-ca", KEY),
    ];
    let parts: Vec<&[u8]> = servers.iter().map(Vec::as_slice).collect();
    round.write.push(config_map(MANAGED, "kube-apiserver-server-ca", &[(KEY, bundle(&parts, now))]));

    let mut copy = |from: Option<&Value>, kind: &str, name: &str, what: &str| {
        let mut from = from.cloned().unwrap_or_default();
        if !from.is_null() {
            from["kind"] = kind.into();
        }
        if !sync(round, &from, NAMESPACE, name) {
            note(CertificateError::NoSigner(what.to_owned()));
        }
    };
    copy(inputs.secret(CONFIG, "etcd-client"), "Secret", "etcd-client", "openshift-config/etcd-client");
    copy(
        inputs.config_map(CONFIG, "etcd-ca-bundle"),
        "ConfigMap",
        "etcd-serving-ca",
        "openshift-config/etcd-ca-bundle",
    );
    copy(
        inputs.config_map(MANAGED, "sa-token-signing-certs"),
        "ConfigMap",
        "sa-token-signing-certs",
        "openshift-config-managed/sa-token-signing-certs",
    );
    errors
}
