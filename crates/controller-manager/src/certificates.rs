//! CertificateSigningRequests: approves what kubelets ask for themselves, signs what was approved, removes what is old.
//!
//! Signing is a pure function of request, authority and time, so it happens in `reconcile`; the review that an approval
//! needs is asked for in `gather`.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::Error;
use controller_runtime::{Context, Controller, Meta, Plan, time};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use pki::{Certificate, Csr, Pair, Usages};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{Condition, condition, kind, none};

const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const LEGACY: &str = "kubernetes.io/legacy-unknown";
/// No certificate is asked for with a shorter life than this.
const SHORTEST: i64 = 600;

/// A CertificateSigningRequest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CertificateSigningRequest {
    /// Metadata.
    pub metadata: Meta,
    /// What is asked for, and by whom.
    pub spec: RequestSpec,
    /// What was decided.
    pub status: RequestStatus,
}
kind!(CertificateSigningRequest, CERTIFICATE_SIGNING_REQUESTS, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestSpec {
    /// PEM in base64.
    pub request: Box<str>,
    /// Who is asked.
    pub signer_name: Box<str>,
    /// The life that is asked for.
    pub expiration_seconds: Option<i64>,
    /// What it is for.
    pub usages: Vec<Box<str>>,
    /// Who asks.
    pub username: Box<str>,
    /// The asker's identity.
    pub uid: Box<str>,
    /// The asker's groups.
    pub groups: Vec<Box<str>>,
    /// More about the asker.
    pub extra: BTreeMap<Box<str>, Vec<Box<str>>>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequestStatus {
    /// PEM in base64.
    pub certificate: Box<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

impl CertificateSigningRequest {
    fn has(&self, kind: &str) -> bool {
        condition(&self.status.conditions, kind).is_some_and(Condition::is_true)
    }

    fn parse(&self) -> Option<Csr> {
        Csr::from_pem(&STANDARD.decode(&*self.spec.request).ok()?).ok()
    }
}

/// What an approval depends on.
pub struct Asked {
    request: Arc<CertificateSigningRequest>,
    /// The message of the rule that allows it.
    allowed: Option<&'static str>,
    now: Timestamp,
}

fn approve(asked: &Asked) -> Plan {
    let mut plan = Plan::default();
    if let Some(message) = asked.allowed {
        let mut conditions = json!(asked.request.status.conditions);
        let approval = json!({"type": "Approved", "status": "True", "reason": "AutoApproved", "message": message,
            "lastUpdateTime": time(asked.now), "lastTransitionTime": time(asked.now)});
        conditions.as_array_mut().unwrap_or(&mut Vec::new()).push(approval);
        plan.update_sub(&*asked.request, "approval", json!({"status": {"conditions": conditions}}));
    }
    plan
}

/// Whether a kubelet asks for its own client certificate, as a node or (by token) on its way to become one.
fn is_kubelet_client(request: &CertificateSigningRequest, csr: &Csr) -> bool {
    let node = csr.subject.common_name.strip_prefix("system:node:").is_some_and(|name| !name.is_empty());
    &*request.spec.signer_name == KUBELET_CLIENT
        && node
        && csr.subject.organizations == ["system:nodes"]
        && csr.sans.is_empty()
        && are_usages(&request.spec.usages, &["client auth", "digital signature"], &["key encipherment"])
}

fn are_usages(given: &[Box<str>], required: &[&str], allowed: &[&str]) -> bool {
    required.iter().all(|usage| given.iter().any(|own| **own == **usage))
        && given.iter().all(|own| required.contains(&&**own) || allowed.contains(&&**own))
}

fn ask(context: Context) -> BoxFuture<'static, Result<Option<Asked>, Error>> {
    Box::pin(async move {
        let Some(request) = context.object::<CertificateSigningRequest>() else { return Ok(None) };
        let decided =
            request.has("Approved") || request.has("Denied") || !request.status.certificate.is_empty();
        let Some(csr) = request.parse().filter(|_| !decided) else { return Ok(None) };
        if !is_kubelet_client(&request, &csr) {
            return Ok(None);
        }
        let own = csr.subject.common_name == *request.spec.username;
        let rules = [
            (
                own,
                "selfnodeclient",
                "Auto approving self kubelet client certificate after SubjectAccessReview.",
            ),
            (true, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
        ];
        for (_, subresource, message) in rules.into_iter().filter(|(applies, _, _)| *applies) {
            let spec = &request.spec;
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
                "resourceAttributes": {"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
                    "verb": "create", "version": "*", "subresource": subresource}}});
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let answer: Value = context.reader.post_path(path, &review).await?;
            if answer["status"]["allowed"] == true {
                return Ok(Some(Asked { request, allowed: Some(message), now: context.now }));
            }
        }
        Ok(None)
    })
}

/// Who signs for each signer, and for how long at most. Requests to a signer that has no authority wait.
#[derive(Clone)]
pub struct Signers {
    /// For `kubernetes.io/kube-apiserver-client`.
    pub client: Option<Arc<Pair>>,
    /// For `kubernetes.io/kube-apiserver-client-kubelet`.
    pub kubelet_client: Option<Arc<Pair>>,
    /// For `kubernetes.io/kubelet-serving`.
    pub kubelet_serving: Option<Arc<Pair>>,
    /// For `kubernetes.io/legacy-unknown`.
    pub legacy: Option<Arc<Pair>>,
    /// The longest life.
    pub duration: SignedDuration,
}

impl Signers {
    /// One authority for all.
    pub fn one(authority: Arc<Pair>, duration: SignedDuration) -> Self {
        let all = || Some(authority.clone());
        Self { client: all(), kubelet_client: all(), kubelet_serving: all(), legacy: all(), duration }
    }

    /// The authority for a signer, if it is one of ours.
    fn of(&self, signer: &str) -> Option<&Arc<Pair>> {
        match signer {
            CLIENT => self.client.as_ref(),
            KUBELET_CLIENT => self.kubelet_client.as_ref(),
            KUBELET_SERVING => self.kubelet_serving.as_ref(),
            LEGACY => self.legacy.as_ref(),
            _ => None,
        }
    }
}

/// What a signature depends on.
pub struct Approved {
    request: Arc<CertificateSigningRequest>,
    authority: Arc<Pair>,
    /// The longest life.
    longest: SignedDuration,
    now: Timestamp,
}

fn sign(view: &Approved) -> Plan {
    let mut plan = Plan::default();
    let request = &*view.request;
    if !request.has("Approved")
        || request.has("Denied")
        || request.has("Failed")
        || !request.status.certificate.is_empty()
    {
        return plan;
    }
    let Some(csr) = request.parse() else {
        return refuse(request, "unable to parse the request", view.now);
    };
    if let Err(why) = may_sign(request, &csr) {
        return refuse(request, &why, view.now);
    }
    let longest = view.longest.as_secs();
    let seconds = request
        .spec
        .expiration_seconds
        .map_or(longest, |wanted| wanted.clamp(SHORTEST, longest.max(SHORTEST)));
    let names: Vec<&str> = request.spec.usages.iter().map(|usage| &**usage).collect();
    let signed = Usages::from_names(&names).and_then(|usages| {
        view.authority.sign_csr(&csr, &usages, SignedDuration::from_secs(seconds), view.now)
    });
    match signed {
        Ok(certificate) => {
            let text = STANDARD.encode(certificate.to_pem());
            plan.set_status(request, json!({"certificate": text}));
        }
        Err(error) => return refuse(request, &telemetry::chain(&error).to_string(), view.now),
    }
    plan
}

fn refuse(request: &CertificateSigningRequest, why: &str, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let mut conditions = json!(request.status.conditions);
    let failed = json!({"type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": why,
        "lastUpdateTime": time(now), "lastTransitionTime": time(now)});
    conditions.as_array_mut().unwrap_or(&mut Vec::new()).push(failed);
    plan.set_status(request, json!({"conditions": conditions}));
    plan
}

/// What each signer signs; the reasons are upstream's.
fn may_sign(request: &CertificateSigningRequest, csr: &Csr) -> Result<(), String> {
    let usages = &request.spec.usages;
    let check = |right: bool, why: &str| if right { Ok(()) } else { Err(why.to_owned()) };
    let organization = csr.subject.organizations == ["system:nodes"];
    let node = csr.subject.common_name.starts_with("system:node:");
    match &*request.spec.signer_name {
        CLIENT => {
            let optional = ["client auth", "digital signature", "key encipherment"];
            if let Some(other) = usages.iter().find(|usage| !optional.contains(&&***usage)) {
                return Err(format!("invalid usage for client certificate: {other}"));
            }
            let right = usages.iter().any(|usage| &**usage == "client auth");
            check(right, "missing required usage for client certificate: client auth")
        }
        KUBELET_CLIENT => {
            check(organization, NOT_NODES)?;
            check(csr.dns_names().next().is_none(), "DNS subjectAltNames are not allowed")?;
            check(csr.addresses().next().is_none(), "IP subjectAltNames are not allowed")?;
            check(csr.sans.is_empty(), "URI subjectAltNames are not allowed")?;
            check(node, NOT_NODE)?;
            let right = are_usages(usages, &["client auth", "digital signature"], &["key encipherment"]);
            check(right, "usages did not match [client auth digital signature key encipherment]")
        }
        KUBELET_SERVING => {
            check(organization, NOT_NODES)?;
            let some_place = csr.dns_names().next().is_some() || csr.addresses().next().is_some();
            check(some_place, "DNS or IP subjectAltName is required")?;
            let right = are_usages(usages, &["server auth", "digital signature"], &["key encipherment"]);
            check(right, "usages did not match [digital signature key encipherment server auth]")?;
            check(node, NOT_NODE)
        }
        _ => Ok(()),
    }
}

const NOT_NODES: &str = "subject organization is not system:nodes";
const NOT_NODE: &str = "subject common name does not begin with \"system:node:\"";

/// What a removal depends on.
pub struct Old {
    request: Arc<CertificateSigningRequest>,
    now: Timestamp,
}

fn clean(view: &Old) -> Plan {
    let mut plan = Plan::default();
    let request = &*view.request;
    let hours = |hours: i64, since: Option<Timestamp>| {
        let since = since.unwrap_or(request.metadata.created());
        since.checked_add(SignedDuration::from_hours(hours)).unwrap_or(Timestamp::MAX)
    };
    let decided = request.status.conditions.iter().filter_map(|condition| condition.last_update_time).max();
    let issued = !request.status.certificate.is_empty();
    let mut due = if issued || request.has("Denied") || request.has("Failed") {
        hours(1, decided)
    } else {
        hours(24, None)
    };
    let pem = STANDARD.decode(&*request.status.certificate).ok().filter(|_| issued);
    if let Some(certificate) = pem.and_then(|pem| Certificate::from_pem(&pem).ok()) {
        due = due.min(certificate.not_after);
    }
    if due > view.now {
        plan.look_again(due);
    } else {
        plan.delete(request);
    }
    plan
}

/// Approves what kubelets ask for.
pub fn approving() -> Controller {
    Controller::reading("certificatesigningrequest-approving-controller", ask, approve)
        .acting_as("certificate-controller")
        .for_kind::<CertificateSigningRequest>()
}

/// Signs what was approved.
pub fn signing(signers: Signers) -> Controller {
    let gather = move |context: &Context| {
        let request = context.object::<CertificateSigningRequest>()?;
        let authority = signers.of(&request.spec.signer_name)?.clone();
        Some(Approved { request, authority, longest: signers.duration, now: context.now })
    };
    Controller::new("certificatesigningrequest-signing-controller", gather, sign)
        .acting_as("certificate-controller")
        .for_kind::<CertificateSigningRequest>()
}

/// Removes what is old.
pub fn cleaning() -> Controller {
    let gather = |context: &Context| Some(Old { request: context.object()?, now: context.now });
    Controller::new("certificatesigningrequest-cleaner-controller", gather, clean)
        .acting_as("certificate-controller")
        .for_kind::<CertificateSigningRequest>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};
    use pki::{Algorithm, PrivateKey, Request, San, Subject};

    fn authority() -> Arc<Pair> {
        let request = Request {
            subject: Subject::new("ca", &[]),
            sans: Vec::new(),
            usages: Usages::authority(),
            is_ca: true,
            not_before: now() - SignedDuration::from_hours(1),
            not_after: now() + SignedDuration::from_hours(24 * 3650),
        };
        let key = Arc::new(PrivateKey::generate(Algorithm::EcdsaP256).unwrap());
        Arc::new(Pair::self_signed(&request, key).unwrap())
    }

    fn request(
        signer: &str,
        usages: &[&str],
        sans: &[San],
        conditions: Value,
    ) -> Arc<CertificateSigningRequest> {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let pem = Csr::create(&key, &Subject::new("system:node:a", &["system:nodes"]), sans).unwrap();
        Arc::new(object(json!({"metadata":{"name":"r","creationTimestamp":"2026-01-01T11:00:00Z"},
            "spec":{"request":STANDARD.encode(pem),"signerName":signer,"usages":usages,"username":"system:node:a",
                "expirationSeconds":3600},
            "status":{"conditions":conditions}})))
    }

    fn signed(request: Arc<CertificateSigningRequest>) -> Value {
        let longest = SignedDuration::from_hours(24 * 365);
        let plan = sign(&Approved { request, authority: authority(), longest, now: now() });
        plan.status_change().cloned().unwrap_or_default()
    }

    #[test]
    fn an_approved_request_is_signed_for_the_time_it_asks_for() {
        let approved = json!([{"type":"Approved","status":"True"}]);
        let status = signed(request(KUBELET_CLIENT, &["client auth", "digital signature"], &[], approved));
        let pem = STANDARD.decode(status["certificate"].as_str().unwrap()).unwrap();
        let certificate = Certificate::from_pem(&pem).unwrap();
        assert_eq!(certificate.not_after, now() + SignedDuration::from_hours(1));
        assert_eq!(certificate.subject.common_name, "system:node:a");
        assert!(
            signed(request(KUBELET_CLIENT, &["client auth", "digital signature"], &[], json!([]))).is_null()
        );
    }

    #[test]
    fn each_signer_may_have_its_own_authority() {
        let (all, serving) = (authority(), authority());
        let one = Signers::one(all.clone(), SignedDuration::from_hours(1));
        assert!(
            [CLIENT, KUBELET_CLIENT, KUBELET_SERVING, LEGACY].iter().all(|signer| one.of(signer).is_some())
        );
        assert!(one.of("example.com/own").is_none());
        let split = Signers { kubelet_serving: Some(serving.clone()), legacy: None, ..one };
        assert!(Arc::ptr_eq(split.of(KUBELET_SERVING).unwrap(), &serving));
        assert!(Arc::ptr_eq(split.of(CLIENT).unwrap(), &all));
        assert!(split.of(LEGACY).is_none(), "such a request waits");
    }

    #[test]
    fn what_a_signer_does_not_sign_fails() {
        let approved = || json!([{"type":"Approved","status":"True"}]);
        let serving = ["server auth", "digital signature"];
        assert_eq!(
            signed(request(KUBELET_SERVING, &serving, &[], approved()))["conditions"][1]["type"],
            "Failed"
        );
        let place = [San::parse("10.0.0.1")];
        assert!(signed(request(KUBELET_SERVING, &serving, &place, approved()))["certificate"].is_string());
        assert_eq!(
            signed(request(CLIENT, &["server auth"], &[], approved()))["conditions"][1]["type"],
            "Failed"
        );
    }

    #[test]
    fn old_requests_go() {
        let plan =
            |conditions: Value| clean(&Old { request: request(CLIENT, &[], &[], conditions), now: now() });
        assert_eq!(plan(json!([])).requeue_at.unwrap().to_string(), "2026-01-02T11:00:00Z");
        assert_eq!(
            plan(json!([{"type":"Denied","status":"True","lastUpdateTime":"2026-01-01T10:30:00Z"}]))
                .deletes(),
            ["r"]
        );
    }
}
