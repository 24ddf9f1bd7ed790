//! Proving a set of certificates against its table: presence, key, chain, subject, names, usages, time.
//!
//! Findings are sentences for people; an empty list is the proof.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::cert::{Certificate, San};
use crate::key::PrivateKey;
use crate::table::{CertSpec, Facts, Role};

/// What was found under one row's name: PEM texts, as files have them.
#[derive(Debug, Clone, Default)]
pub struct Material {
    /// The certificate's text.
    pub certificate: Option<Vec<u8>>,
    /// The key's text.
    pub key: Option<Vec<u8>>,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The certificate's name.
    pub name: String,
    /// What is wrong with it, in words.
    pub text: String,
}

/// Checks every row. Without `facts` the names in certificates are not compared with what they should be.
pub fn verify(
    table: &[CertSpec],
    material: &BTreeMap<String, Material>,
    facts: Option<&Facts>,
    now: Timestamp,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut parsed: BTreeMap<&str, Certificate> = BTreeMap::new();
    for row in table {
        let mut say = |text: String| findings.push(Finding { name: row.name.to_owned(), text });
        let Some(found) = material.get(row.name) else {
            say("it is missing".to_owned());
            continue;
        };
        let certificate = match found.certificate.as_deref().map(Certificate::from_pem) {
            None => {
                say("its certificate is missing".to_owned());
                continue;
            }
            Some(Err(error)) => {
                say(format!("its certificate cannot be read: {error}"));
                continue;
            }
            Some(Ok(certificate)) => certificate,
        };
        match found.key.as_deref().map(PrivateKey::from_pem) {
            None => say("its private key is missing".to_owned()),
            Some(Err(error)) => say(format!("its private key cannot be read: {error}")),
            Some(Ok(key)) if key.public() != certificate.public_key() => {
                say("its private key belongs to another certificate".to_owned());
            }
            Some(Ok(_)) => {}
        }
        check_time(&certificate, now, &mut say);
        check_signer(row, &certificate, &parsed, &mut say);
        check_words(row, &certificate, facts, now, &mut say);
        parsed.insert(row.name, certificate);
    }
    findings
}

fn check_time(certificate: &Certificate, now: Timestamp, say: &mut dyn FnMut(String)) {
    if now < certificate.not_before {
        say(format!("it is not valid before {}", certificate.not_before));
    }
    if now > certificate.not_after {
        say(format!("it expired at {}", certificate.not_after));
    }
}

fn check_signer(
    row: &CertSpec,
    certificate: &Certificate,
    parsed: &BTreeMap<&str, Certificate>,
    say: &mut dyn FnMut(String),
) {
    let (name, signer) = match row.signer {
        None => (row.name, Some(certificate)),
        Some(name) => (name, parsed.get(name)),
    };
    let Some(signer) = signer else {
        return say(format!("its signer {name} cannot be read, so its chain is unproven"));
    };
    if !certificate.is_signed_by(signer) {
        say(format!("it is not signed by {name}: {} signed it", certificate.issuer));
    }
    if certificate.not_after > signer.not_after {
        say(format!("it outlives its signer {name}, which ends at {}", signer.not_after));
    }
}

fn check_words(
    row: &CertSpec,
    certificate: &Certificate,
    facts: Option<&Facts>,
    now: Timestamp,
    say: &mut dyn FnMut(String),
) {
    let is_authority = row.role == Role::Authority;
    if certificate.is_ca != is_authority {
        say(if is_authority { "it may not sign others" } else { "it could sign others" }.to_owned());
    }
    let (have, want) = (&certificate.usages, row.role.usages());
    if *have != want {
        say(format!("it is for {}; it should be for {}", have.names().join(", "), want.names().join(", ")));
    }
    let wanted = match facts.map(|facts| row.request(facts, now)) {
        None => return,
        Some(Err(error)) => return say(format!("what it should say is unknown: {error}")),
        Some(Ok(wanted)) => wanted,
    };
    if certificate.subject != wanted.subject {
        say(format!("it speaks for {}; it should speak for {}", certificate.subject, wanted.subject));
    }
    let list = |sans: Vec<&San>| sans.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let missing: Vec<&San> = wanted.sans.iter().filter(|san| !certificate.sans.contains(san)).collect();
    if !missing.is_empty() {
        say(format!("it is not valid for {}", list(missing)));
    }
    let extra: Vec<&San> = certificate.sans.iter().filter(|san| !wanted.sans.contains(san)).collect();
    if !extra.is_empty() {
        say(format!("it is valid for {} although nothing asks for that", list(extra)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterPki, ClusterSpec};
    use crate::key::Algorithm;
    use crate::table::LOCAL;
    use jiff::SignedDuration;

    fn spec() -> ClusterSpec {
        ClusterSpec {
            node_name: "box".to_owned(),
            node_ips: vec!["192.0.2.7".parse().unwrap()],
            service_ips: vec!["172.30.0.1".parse().unwrap()],
            api_sans: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            algorithm: Algorithm::EcdsaP256,
        }
    }

    fn material() -> BTreeMap<String, Material> {
        let dir = tempfile::tempdir().unwrap();
        let pki = ClusterPki::ensure(dir.path(), &spec()).unwrap();
        LOCAL
            .iter()
            .map(|row| {
                let pair = pki.pair(row.name).unwrap();
                let material = Material {
                    certificate: Some(pair.certificate_pem().into_bytes()),
                    key: Some(pair.key_pem().into_bytes()),
                };
                (row.name.to_owned(), material)
            })
            .collect()
    }

    fn texts(material: &BTreeMap<String, Material>, facts: &Facts, now: Timestamp) -> Vec<String> {
        verify(LOCAL, material, Some(facts), now).iter().map(|f| format!("{}: {}", f.name, f.text)).collect()
    }

    #[test]
    fn a_sound_set_has_no_findings_and_each_damage_has_its_sentence() {
        let now = Timestamp::now();
        let (good, other) = (material(), material());
        let facts = spec().facts();
        assert_eq!(texts(&good, &facts, now), Vec::<String>::new());
        let damaged = |change: &dyn Fn(&mut BTreeMap<String, Material>)| {
            let mut set = good.clone();
            change(&mut set);
            texts(&set, &facts, now).join("\n")
        };
        assert!(damaged(&|set| drop(set.remove("admin"))).contains("admin: it is missing"));
        let swapped = damaged(&|set| set.get_mut("admin").unwrap().key = other["admin"].key.clone());
        assert_eq!(swapped, "admin: its private key belongs to another certificate");
        let foreign = damaged(&|set| drop(set.insert("admin".to_owned(), other["admin"].clone())));
        assert!(foreign.contains("it is not signed by client-ca"), "{foreign}");
        let wrong = damaged(&|set| drop(set.insert("admin".to_owned(), good["kube-apiserver"].clone())));
        assert!(wrong.contains("it should speak for O=system:masters, CN=system:admin"), "{wrong}");
        assert!(
            wrong.contains("it should be for digital signature, key encipherment, client auth"),
            "{wrong}"
        );
        let broken = damaged(&|set| set.get_mut("client-ca").unwrap().certificate = Some(b"x".to_vec()));
        assert!(broken.contains("its signer client-ca cannot be read"), "{broken}");
        let late = texts(&good, &facts, now + SignedDuration::from_hours(24 * 400));
        assert!(late.iter().any(|text| text.starts_with("admin: it expired at")), "{late:?}");
        let mut more = spec();
        more.api_sans.push("new.name".to_owned());
        let missing = texts(&good, &more.facts(), now);
        assert_eq!(missing, ["kube-apiserver: it is not valid for new.name"]);
    }
}
