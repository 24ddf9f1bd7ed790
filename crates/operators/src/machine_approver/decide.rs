//! Whether a machine's request for a certificate is approved. Pure.
//!
//! A machine that joins asks with an identity that all share, so what it asks for is compared with the Machines that
//! somebody made: its name must be one of theirs, and no node may have it yet. For serving certificates the node asks itself,
//! and may only ask for names and addresses of its Machine. Whatever does not fit is left to a person.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// Signs what kubelets use as clients.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signs what kubelets serve with.
const SERVING: &str = "kubernetes.io/kubelet-serving";
/// Who may ask for a machine's first certificate.
const BOOTSTRAPPERS: [&str; 2] =
    ["system:bootstrapper", "system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"];
/// A Machine joins soon after it was made, or somebody looks after it.
const OLDEST: SignedDuration = SignedDuration::from_hours(2);
/// Clocks of two machines differ a little.
const SKEW: SignedDuration = SignedDuration::from_secs(10);

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: &Value, pointer: &str) -> BTreeSet<String> {
    let list = value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether somebody has decided already.
pub fn is_pending(request: &Value) -> bool {
    request.pointer("/status/conditions").and_then(Value::as_array).is_none_or(Vec::is_empty)
}

/// Whether kubelets ask for such certificates at all.
pub fn is_kubelets(request: &Value) -> bool {
    [CLIENT, SERVING].contains(&text(request, "/spec/signerName"))
}

/// Approves, or says why not.
pub fn decide(request: &Value, machines: &[Value], nodes: &[Value], now: Timestamp) -> Result<(), String> {
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text(request, "/spec/request"))
        .map_err(|_| "the request is not base64".to_owned())?;
    let wanted = pki::Csr::from_pem(&bytes).map_err(|error| error.to_string())?;
    let name = wanted
        .subject
        .common_name
        .strip_prefix("system:node:")
        .filter(|name| !name.is_empty())
        .ok_or("it is not for a node")?;
    if wanted.subject.organizations != ["system:nodes"] {
        return Err("it is not for the group system:nodes alone".to_owned());
    }
    let machine = machines
        .iter()
        .find(|machine| names(machine).contains(name))
        .ok_or_else(|| format!("no Machine has the name {name}"))?;
    match text(request, "/spec/signerName") {
        CLIENT => client(request, &wanted, name, machine, nodes, now),
        SERVING => serving(request, &wanted, name, machine),
        other => Err(format!("{other} does not sign for kubelets")),
    }
}

/// Names that a Machine has.
fn names(machine: &Value) -> BTreeSet<&str> {
    addresses(machine, &["Hostname", "InternalDNS", "ExternalDNS"])
}

fn addresses<'a>(machine: &'a Value, kinds: &[&str]) -> BTreeSet<&'a str> {
    let list = machine.pointer("/status/addresses").and_then(Value::as_array);
    let list = list.map(Vec::as_slice).unwrap_or_default();
    let is_wanted = |address: &&Value| kinds.contains(&text(address, "/type"));
    list.iter().filter(is_wanted).map(|address| text(address, "/address")).collect()
}

fn usages(request: &Value, needed: &str) -> Result<(), String> {
    let found = texts(request, "/spec/usages");
    let allowed = ["digital signature", "key encipherment", needed];
    if !found.contains(needed) || found.iter().any(|usage| !allowed.contains(&usage.as_str())) {
        return Err(format!("its usages are not those of a kubelet: {found:?}"));
    }
    Ok(())
}

fn client(
    request: &Value,
    wanted: &pki::Csr,
    name: &str,
    machine: &Value,
    nodes: &[Value],
    now: Timestamp,
) -> Result<(), String> {
    let user = text(request, "/spec/username");
    if !BOOTSTRAPPERS.contains(&user) {
        return Err(format!("{user} may not ask for a machine's first certificate"));
    }
    if !wanted.sans.is_empty() {
        return Err("a client has no alternative names".to_owned());
    }
    usages(request, "client auth")?;
    if nodes.iter().any(|node| text(node, "/metadata/name") == name) {
        return Err(format!("node {name} is there already"));
    }
    let made: Timestamp = text(machine, "/metadata/creationTimestamp")
        .parse()
        .map_err(|_| "its Machine does not say when it was made".to_owned())?;
    let age = now.duration_since(made);
    if age < -SKEW || age > OLDEST {
        return Err(format!("its Machine was made at {made}, too long ago to join by itself"));
    }
    Ok(())
}

fn serving(request: &Value, wanted: &pki::Csr, name: &str, machine: &Value) -> Result<(), String> {
    let user = text(request, "/spec/username");
    if user != format!("system:node:{name}") || !texts(request, "/spec/groups").contains("system:nodes") {
        return Err(format!("{user} asks for the certificate of node {name}"));
    }
    usages(request, "server auth")?;
    let (known_names, known) = (names(machine), addresses(machine, &["InternalIP", "ExternalIP"]));
    let known: BTreeSet<IpAddr> = known.iter().filter_map(|address| address.parse().ok()).collect();
    if let Some(other) = wanted.dns_names().find(|name| !known_names.contains(name)) {
        return Err(format!("{other} is not a name of its Machine"));
    }
    if let Some(other) = wanted.addresses().find(|address| !known.contains(address)) {
        return Err(format!("{other} is not an address of its Machine"));
    }
    if wanted.dns_names().count() + wanted.addresses().count() != wanted.sans.len() || wanted.sans.is_empty()
    {
        return Err("it asks for no names and addresses, or for other things".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pki::{San, Subject};
    use serde_json::json;

    use super::*;

    const NAME: &str = "worker-0.c.example.com";

    fn now() -> Timestamp {
        "2026-11-18T08:00:00Z".parse().unwrap()
    }

    fn machine(made: &str) -> Value {
        json!({"metadata": {"name": "worker-0", "creationTimestamp": made}, "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.126.151"}, {"type": "Hostname", "address": NAME}]}})
    }

    fn request(signer: &str, user: &str, subject: &Subject, sans: &[San], usage: &str) -> Value {
        let key = pki::PrivateKey::generate(pki::Algorithm::EcdsaP256).unwrap();
        let pem = pki::Csr::create(&key, subject, sans).unwrap();
        json!({"spec": {
            "signerName": signer, "username": user, "groups": ["system:nodes", "system:authenticated"],
            "usages": ["digital signature", usage],
            "request": base64::engine::general_purpose::STANDARD.encode(pem),
        }})
    }

    fn node() -> Subject {
        Subject::new(&format!("system:node:{NAME}"), &["system:nodes"])
    }

    #[test]
    fn a_machine_that_was_made_joins_once_and_soon() {
        let fresh = [machine("2026-11-18T07:59:00Z")];
        let ask = |user: &str, subject: &Subject| request(CLIENT, user, subject, &[], "client auth");
        let good = ask("system:bootstrapper", &node());
        assert_eq!(decide(&good, &fresh, &[], now()), Ok(()));
        let there = [json!({"metadata": {"name": NAME}})];
        assert!(decide(&good, &fresh, &there, now()).unwrap_err().contains("there already"));
        assert!(decide(&good, &[], &[], now()).unwrap_err().contains("no Machine"));
        assert!(
            decide(&good, &[machine("2026-11-18T05:00:00Z")], &[], now()).unwrap_err().contains("too long")
        );
        assert!(decide(&ask("someone", &node()), &fresh, &[], now()).is_err());
        let admin = Subject::new(&format!("system:node:{NAME}"), &["system:nodes", "system:masters"]);
        assert!(decide(&ask("system:bootstrapper", &admin), &fresh, &[], now()).is_err());
        let other = Subject::new("system:admin", &["system:nodes"]);
        assert!(decide(&ask("system:bootstrapper", &other), &fresh, &[], now()).is_err());
    }

    #[test]
    fn a_node_serves_under_the_names_of_its_machine_only() {
        let old = [machine("2020-01-01T00:00:00Z")];
        let user = format!("system:node:{NAME}");
        let (name, address) = (San::Dns(NAME.to_owned()), San::Ip("192.168.126.151".parse().unwrap()));
        let ask = |user: &str, sans: &[San], usage: &str| request(SERVING, user, &node(), sans, usage);
        assert_eq!(
            decide(&ask(&user, &[name.clone(), address.clone()], "server auth"), &old, &[], now()),
            Ok(())
        );
        let api = San::Dns("api.c.example.com".to_owned());
        assert!(
            decide(&ask(&user, &[api], "server auth"), &old, &[], now()).unwrap_err().contains("not a name")
        );
        let elsewhere = San::Ip("192.168.126.10".parse().unwrap());
        assert!(
            decide(&ask(&user, &[elsewhere], "server auth"), &old, &[], now())
                .unwrap_err()
                .contains("not an address")
        );
        assert!(decide(&ask(&user, &[], "server auth"), &old, &[], now()).is_err());
        assert!(
            decide(&ask("system:node:other", std::slice::from_ref(&name), "server auth"), &old, &[], now())
                .is_err()
        );
        assert!(decide(&ask(&user, &[name], "client auth"), &old, &[], now()).is_err());
    }

    #[test]
    fn what_is_not_a_request_is_not_approved() {
        let junk = json!({"spec": {"signerName": CLIENT, "request": "!"}});
        assert!(decide(&junk, &[], &[], now()).is_err());
        assert!(is_pending(&junk) && is_kubelets(&junk));
        assert!(!is_pending(&json!({"status": {"conditions": [{"type": "Denied"}]}})));
    }
}
