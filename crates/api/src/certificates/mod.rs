//! Certificate signing requests.

use crate::{Definition, Subresource};

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
        .label("spec.signerName"),
    ]
}
