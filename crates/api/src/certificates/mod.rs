//! Certificate signing requests.

use apimachinery::{
    field::{Path, Problems, go_quote},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{Change, Column, Definition, MetaCheck, Rules, Subresource, checks, print};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(
            "certificates.k8s.io",
            "v1",
            "CertificateSigningRequest",
            "certificatesigningrequests",
        )
        .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
        .checks_status(&[MetaCheck::Whole, MetaCheck::Change])
        .short(&["csr"])
        .with(Subresource::Approval)
        .status()
        .named(names::is_path_segment_name)
        .label("spec.signerName")
        .columns(vec![
            Column::age(),
            Column::path("SignerName", "spec.signerName"),
            Column::path("Requestor", "spec.username"),
            Column::new("RequestedDuration", |request, _| {
                match request["spec"]["expirationSeconds"].as_i64() {
                    Some(seconds) => apimachinery::time::human_duration(seconds).into(),
                    None => "<none>".into(),
                }
            }),
            Column::new("Condition", |request, _| condition(request).into()),
        ])
        .rules(Request),
    ]
}

fn condition(request: &Value) -> String {
    let mut words =
        vec![match (print::condition(request, "Approved"), print::condition(request, "Denied")) {
            (_, Some(_)) => "Denied",
            (Some(_), None) => "Approved",
            (None, None) => "Pending",
        }];
    if print::condition(request, "Failed").is_some() {
        words.push("Failed");
    }
    if get(request, "status.certificate").is_some() {
        words.push("Issued");
    }
    words.join(",")
}

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

struct Request;

impl Rules for Request {
    fn prepare_create(&self, request: &mut Value) {
        request["status"] = json!({});
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        // The request never changes; approval owns the verdicts, status owns the certificate.
        crate::prepare::copy_field(new, old, "spec");
        match subresource {
            "approval" => {
                let sent = get(new, "status.conditions").cloned();
                crate::prepare::copy_field(new, old, "status");
                match sent {
                    Some(sent) => apimachinery::meta::set(new, "status.conditions", sent),
                    None => {
                        apimachinery::meta::remove(new, "status.conditions");
                    }
                }
            }
            "status" => {
                for verdict in ["Approved", "Denied"] {
                    keep_verdicts(new, old, verdict);
                }
            }
            _ => {}
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        request_pem(spec, &path, problems);
        let list = path.child("usages");
        let usages = get_list(spec, "usages");
        if usages.is_empty() {
            problems.required(&list, "");
        }
        for (index, usage) in usages.iter().enumerate() {
            let text = usage.as_str().unwrap_or_default();
            if !USAGES.contains(&text) {
                problems.not_supported(&list.index(index), text, USAGES);
            }
        }
        for (index, usage) in usages.iter().enumerate() {
            if usages[..index].contains(usage) {
                problems.duplicate(&list.index(index), usage.clone());
            }
        }
        signer_name(get_str(spec, "signerName"), &path.child("signerName"), problems);
        if spec["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
            problems.invalid(
                &path.child("expirationSeconds"),
                spec["expirationSeconds"].clone(),
                "may not specify a duration less than 600 seconds (10 minutes)",
            );
        }
        conditions(change.new, problems);
        certificate(change.new, change.old, problems);
        if let Some(old) = change.old {
            verdicts(change, old, problems);
        }
    }
}

/// Verdicts that are as many as before stay what they were; others are told by the rules.
fn keep_verdicts(new: &mut Value, old: &Value, kind: &str) {
    let before = of_kind(old, kind);
    if before.len() != of_kind(new, kind).len() {
        return;
    }
    let list = new.get_mut("status").and_then(|status| status.get_mut("conditions"));
    let Some(list) = list.and_then(Value::as_array_mut) else { return };
    let own = list.iter_mut().filter(|condition| condition["type"] == kind);
    own.zip(before).for_each(|(own, before)| *own = before.clone());
}

fn of_kind<'a>(request: &'a Value, kind: &str) -> Vec<&'a Value> {
    get_list(request, "status.conditions").iter().filter(|condition| condition["type"] == kind).collect()
}

/// Approval owns the verdicts, status owns the certificate, and what was said stays said.
fn verdicts(change: &Change<'_>, old: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    let at = path.child("conditions");
    for kind in ["Approved", "Denied", "Failed"] {
        if of_kind(change.new, kind).len() < of_kind(old, kind).len() {
            problems.forbidden(&at, format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    for kind in ["Approved", "Denied"].iter().filter(|_| change.subresource != "approval") {
        let (after, before) = (of_kind(change.new, kind), of_kind(old, kind));
        if after.len() > before.len() {
            problems.forbidden(&at, format!("updates may not add a condition of type {kind:?}"));
        } else if after.len() == before.len() && after != before {
            problems.forbidden(&at, format!("updates may not modify a condition of type {kind:?}"));
        }
    }
    let (after, before) = (get(change.new, "status.certificate"), get(old, "status.certificate"));
    if after != before {
        let at = path.child("certificate");
        if change.subresource != "status" {
            problems.forbidden(&at, "updates may not set certificate content");
        } else if before.is_some() {
            problems.forbidden(&at, "updates may not modify existing certificate content");
        }
    }
}

fn request_pem(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text = spec.get("request").cloned().unwrap_or_default();
    let bytes = STANDARD.decode(text.as_str().unwrap_or_default()).unwrap_or_default();
    if let Err(why) = pki::csr::check(&bytes) {
        problems.invalid(&path.child("request"), text, why.to_string());
    }
}

/// What is issued is a row of certificates, unless it was something else before.
fn certificate(request: &Value, old: Option<&Value>, problems: &mut Problems) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let told = |request: &Value| {
        let bytes = STANDARD.decode(get_str(request, "status.certificate")).unwrap_or_default();
        if bytes.is_empty() {
            return None;
        }
        let blocks = pki::pem::decode(&bytes).unwrap_or_default();
        if blocks.is_empty() {
            return Some("must contain at least one CERTIFICATE PEM block".to_owned());
        }
        blocks.into_iter().find_map(|block| match block.label.as_str() {
            "CERTIFICATE" => pki::Certificate::from_der(block.der).err().map(|why| why.to_string()),
            other => Some(format!("only CERTIFICATE PEM blocks are allowed, found {other:?}")),
        })
    };
    if let Some(why) = told(request)
        && old.is_none_or(|old| told(old).is_none())
    {
        let path = Path::new("status");
        problems.invalid(&path.child("certificate"), "<certificate data>", why);
    }
}

/// `example.com/name`
pub fn signer_name(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.is_empty() {
        problems.required(path, "");
        return;
    }
    if text == "kubernetes.io/legacy-unknown" {
        problems.invalid(path, text, "the legacy signerName is not allowed via this API version");
        return;
    }
    let segments: Vec<&str> = text.split('/').collect();
    let [domain, name] = segments[..] else {
        problems.invalid(
            path,
            text,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
        return;
    };
    if domain.len() > 253 {
        problems.too_long(path, 253);
    }
    // The first label that is wrong is enough.
    let labels = |text: &str, check: fn(&str) -> Vec<String>, problems: &mut Problems| {
        let bad = text.split('.').map(|label| (label, check(label))).find(|(_, bad)| !bad.is_empty());
        if let Some((label, complaints)) = bad {
            for complaint in complaints {
                problems.invalid(path, text, format!("validating label {}: {complaint}", go_quote(label)));
            }
        }
    };
    labels(domain, names::is_dns1123_label, problems);
    if !domain.contains('.') {
        problems.invalid(path, domain, "should be a domain with at least two segments separated by dots");
    }
    labels(name, names::is_dns1123_subdomain, problems);
    let most = 253 + 1 + 253 + 63 + 1;
    if text.len() > most {
        problems.too_long(path, most);
    }
}

fn conditions(request: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    let list = path.child("conditions");
    let conditions = get_list(request, "status.conditions");
    let mut seen: Vec<&str> = Vec::new();
    for (index, condition) in conditions.iter().enumerate() {
        let at = list.index(index);
        let kind = get_str(condition, "type");
        if kind.is_empty() {
            problems.required(&at.child("type"), "");
        }
        let verdict = ["Approved", "Denied", "Failed"].contains(&kind);
        let allowed: &[&str] = if verdict { &["True"] } else { &["False", "True", "Unknown"] };
        checks::one_of(condition, "status", true, allowed, &at, problems);
        let opposite = |a: &str, b: &str| kind == a && seen.contains(&b);
        if opposite("Approved", "Denied") || opposite("Denied", "Approved") {
            problems.invalid(&list, kind, "Approved and Denied conditions are mutually exclusive");
        }
        if seen.contains(&kind) {
            problems.duplicate(&at.child("type"), kind);
        }
        seen.push(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_keeps_its_conditions_and_changes_nothing_else() {
        let definition = definitions().remove(0);
        let old = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"name": "a"}, "spec": {"signerName": "x.y/z"}, "status": {"certificate": "Cg=="},
        });
        let mut new = old.clone();
        new["spec"]["signerName"] = json!("other/signer");
        new["status"] =
            json!({"certificate": "AAAA", "conditions": [{"type": "Approved", "status": "True"}]});
        definition.prepare_update(&mut new, &old, "approval");
        assert_eq!(new["status"]["conditions"][0]["type"], "Approved");
        assert_eq!(new["status"]["certificate"], "Cg==");
        assert_eq!(new["spec"], old["spec"]);
    }
}
