//! Certificate signing requests.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{Change, Column, Definition, Rules, Subresource, checks, print};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(
            "certificates.k8s.io",
            "v1",
            "CertificateSigningRequest",
            "certificatesigningrequests",
        )
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
        let conditions = |object: &Value, verdicts: bool| -> Vec<Value> {
            let list = get_list(object, "status.conditions").iter();
            list.filter(|condition| ["Approved", "Denied"].contains(&get_str(condition, "type")) == verdicts)
                .cloned()
                .collect()
        };
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
                // Approved and Denied stay as they were.
                let mut list = conditions(new, false);
                let mut kept = conditions(old, true);
                kept.append(&mut list);
                if !kept.is_empty() {
                    apimachinery::meta::set(new, "status.conditions", kept.into());
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
            if usages[..index].contains(usage) {
                problems.duplicate(&list.index(index), text);
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
        if let Some(old) = change.old {
            let path = Path::new("status");
            let before = get(old, "status.certificate");
            if before.is_some() && before != get(change.new, "status.certificate") {
                problems.forbidden(
                    &path.child("certificate"),
                    "updates may not modify existing certificate content",
                );
            }
        }
    }
}

fn request_pem(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text = get_str(spec, "request");
    let pem = STANDARD.decode(text).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    if !pem.contains("-----BEGIN CERTIFICATE REQUEST-----")
        && !pem.contains("-----BEGIN NEW CERTIFICATE REQUEST-----")
    {
        problems.invalid(&path.child("request"), text, "PEM block type must be CERTIFICATE REQUEST");
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
    problems.invalid_each(path, domain, names::is_dns1123_subdomain(domain));
    if domain.split('.').count() < 2 {
        problems.invalid(path, text, "should be a domain with at least two segments separated by dots");
    }
    problems.invalid_each(path, name, names::is_dns1123_subdomain(name));
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
