//! Who may approve and sign certificate requests, and what may never be asked for.

use apimachinery::meta::Meta;
use apimachinery::status::Status;
use base64::Engine;
use serde_json::Value;

use super::{Operation, Plugin, Request};
use crate::authz::Attributes;
use crate::server::ApiServer;

const GROUP: &str = "certificates.k8s.io";

fn is_request(request: &Request<'_>, subresource: &str) -> bool {
    let resource = &request.context.resource;
    resource.group() == GROUP
        && resource.plural() == "certificatesigningrequests"
        && request.subresource == subresource
}

fn parse(object: &Value) -> Option<pki::Csr> {
    let pem = object["spec"]["request"].as_str().unwrap_or_default();
    pki::Csr::from_pem(&base64::engine::general_purpose::STANDARD.decode(pem).ok()?).ok()
}

/// The common name that a request asks for, if it can be read.
pub fn common_name(object: &Value) -> Option<String> {
    parse(object).map(|csr| csr.subject.common_name)
}

/// Asks for a verb on the signer by name, or on all signers of its domain.
fn may(server: &ApiServer, request: &Request<'_>, verb: &str, signer: &str) -> bool {
    let wildcard = signer.split_once('/').map(|(domain, _)| format!("{domain}/*")).unwrap_or_default();
    [signer, wildcard.as_str()].into_iter().any(|name| {
        let asked = Attributes::resource(&request.context.user, verb, GROUP, "signers", "", name);
        server.authorize_now(&asked).is_allowed()
    })
}

/// Approving needs the verb `approve` on the signer.
pub struct CertificateApproval;

impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (new, old) else { return Ok(()) };
        if request.operation != Operation::Update || !is_request(request, "approval") {
            return Ok(());
        }
        let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
        if may(server, request, "approve", signer) {
            return Ok(());
        }
        Err(request.forbid(
            new.name(),
            &format!("user not permitted to approve requests with signerName {signer:?}"),
        ))
    }
}

/// Signing needs the verb `sign` on the signer.
pub struct CertificateSigning;

impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn validate(
        &self,
        server: &ApiServer,
        request: &Request<'_>,
        new: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let (Some(new), Some(old)) = (new, old) else { return Ok(()) };
        if request.operation != Operation::Update || !is_request(request, "status") {
            return Ok(());
        }
        let failed = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
            conditions.filter(|one| one["type"] == "Failed").cloned().collect::<Vec<_>>()
        };
        if new["status"]["certificate"] == old["status"]["certificate"] && failed(new) == failed(old) {
            return Ok(());
        }
        let signer = old["spec"]["signerName"].as_str().unwrap_or_default();
        if may(server, request, "sign", signer) {
            return Ok(());
        }
        Err(request
            .forbid(new.name(), &format!("user not permitted to sign requests with signerName {signer:?}")))
    }
}

/// Nobody asks for a certificate that makes a member of `system:masters`.
pub struct CertificateSubjectRestriction;

impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn validate(
        &self,
        _: &ApiServer,
        request: &Request<'_>,
        new: Option<&Value>,
        _: Option<&Value>,
    ) -> Result<(), Status> {
        let Some(new) = new.filter(|_| request.operation == Operation::Create && is_request(request, ""))
        else {
            return Ok(());
        };
        if new["spec"]["signerName"] != "kubernetes.io/kube-apiserver-client" {
            return Ok(());
        }
        let groups = parse(new).map(|csr| csr.subject.organizations).unwrap_or_default();
        if groups.iter().any(|group| group == crate::user::MASTERS) {
            let why =
                "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed";
            return Err(request.forbid(new.name(), why));
        }
        Ok(())
    }
}
