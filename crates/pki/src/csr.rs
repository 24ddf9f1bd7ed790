//! Certificate signing requests: made by nodes, checked and signed by controllers.
//!
//! A [`Csr`] in hand has a valid signature of its own. Whether its subject may have what it asks for is the
//! signer controller's decision; [`Pair::sign_csr`] only carries that decision out.

use jiff::{SignedDuration, Timestamp};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::{OID_PKCS1_RSAENCRYPTION, OID_SIG_ED25519};
use x509_parser::prelude::{FromDer as _, GeneralName};

use crate::cert::{BACKDATE, Certificate, Pair, Request, San, Subject, encode_wishes, read_wishes};
use crate::der::{self, oid};
use crate::key::{PrivateKey, PublicKey};
use crate::usage::Usages;
use crate::{PkiError, pem};

/// Up to here the time by which a certificate is dated back is given on top of what was asked for; it would be too large a
/// part of it. Upstream's signers draw the line there, too.
const SHORT: SignedDuration = SignedDuration::from_hours(8);

/// A request whose signature was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csr {
    /// Who the certificate is to speak for.
    pub subject: Subject,
    /// Where it is to be valid.
    pub sans: Vec<San>,
    /// Usages named inside the request; Kubernetes signs those of the API object instead.
    pub usages: Usages,
    /// The key to certify.
    pub public_key: PublicKey,
}

/// Whether a text is a request that its key signed, and if not, why: what is asked of a request before anybody
/// decides about it. A signature of a kind that is not known here is left to the signer to judge.
pub fn check(text: &[u8]) -> Result<(), Malformed> {
    let blocks = pem::decode(text).map_err(|_| Malformed::Block)?;
    let block =
        blocks.first().filter(|block| block.label == "CERTIFICATE REQUEST").ok_or(Malformed::Block)?;
    if declared_len(&block.der).is_none_or(|len| len > block.der.len()) {
        return Err(Malformed::Truncated);
    }
    let (rest, request) = X509CertificationRequest::from_der(&block.der).map_err(|_| Malformed::Structure)?;
    if !rest.is_empty() {
        return Err(Malformed::Trailing);
    }
    match request.verify_signature() {
        Err(x509_parser::error::X509Error::SignatureVerificationError) => {
            let key = &request.certification_request_info.subject_pki.algorithm.algorithm;
            Err(Malformed::Signature(match key {
                key if *key == OID_PKCS1_RSAENCRYPTION => Signer::Rsa,
                key if *key == OID_SIG_ED25519 => Signer::Ed25519,
                _ => Signer::Ecdsa,
            }))
        }
        _ => Ok(()),
    }
}

/// How long the first DER value says it is, its own head included.
fn declared_len(der: &[u8]) -> Option<usize> {
    let first = usize::from(*der.get(1)?);
    if first < 0x80 {
        return Some(2 + first);
    }
    let bytes = der.get(2..2 + (first & 0x7f))?;
    let len =
        bytes.iter().try_fold(0usize, |len, byte| len.checked_mul(256)?.checked_add(usize::from(*byte)))?;
    len.checked_add(2 + bytes.len())
}

/// What is wrong with the text of a request, in the words of Go's parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There is no such block.
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Block,
    /// It ends too early.
    #[error("asn1: syntax error: data truncated")]
    Truncated,
    /// It is something else.
    #[error("asn1: structure error: tags don't match")]
    Structure,
    /// Something follows it.
    #[error("asn1: syntax error: trailing data")]
    Trailing,
    /// The requester does not hold the key.
    #[error("{0}")]
    Signature(Signer),
}

/// Whose signature is wrong: Go's parser has other words for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Signer {
    /// An RSA key.
    #[error("crypto/rsa: verification error")]
    Rsa,
    /// A key on one of the curves of NIST.
    #[error("x509: ECDSA verification failure")]
    Ecdsa,
    /// A key on Edwards' curve.
    #[error("x509: Ed25519 verification failure")]
    Ed25519,
}

impl Csr {
    /// Reads a `CERTIFICATE REQUEST` block and checks that the requester holds the key.
    pub fn from_pem(text: &[u8]) -> Result<Self, PkiError> {
        let block = pem::decode(text)?
            .into_iter()
            .find(|b| b.label == "CERTIFICATE REQUEST" || b.label == "NEW CERTIFICATE REQUEST")
            .ok_or(PkiError::NoBlock { wanted: "CERTIFICATE REQUEST" })?;
        let bad = |reason: String| PkiError::Parse { what: "certificate request", reason };
        let (rest, request) =
            X509CertificationRequest::from_der(&block.der).map_err(|error| bad(error.to_string()))?;
        if !rest.is_empty() {
            return Err(bad("bytes follow the request".to_owned()));
        }
        request.verify_signature().map_err(|_| PkiError::RequestSignature)?;
        let (mut sans, mut usages) = (Vec::new(), Usages::default());
        if let Some(extensions) = request.requested_extensions() {
            let extensions: Vec<&ParsedExtension<'_>> = extensions.collect();
            for extension in &extensions {
                refuse_what_is_never_signed(extension)?;
            }
            (sans, usages) = read_wishes(extensions.into_iter());
        }
        let info = &request.certification_request_info;
        Ok(Self {
            subject: Subject::read(&info.subject),
            sans,
            usages,
            public_key: PublicKey::from_spki(info.subject_pki.raw.to_vec()),
        })
    }

    /// Makes a request, as kubelets and tools do.
    pub fn create(key: &PrivateKey, subject: &Subject, sans: &[San]) -> Result<String, PkiError> {
        let extensions = encode_wishes(sans, &Usages::default(), false).concat();
        let attributes = if extensions.is_empty() {
            Vec::new()
        } else {
            let list = der::tlv(der::SEQUENCE, &extensions);
            der::sequence(&[&der::object_id(oid::EXTENSION_REQUEST), &der::tlv(der::SET, &list)])
        };
        let info = der::sequence(&[
            &der::unsigned(&[0]),
            &subject.encode(),
            key.public().spki(),
            &der::tlv(0xa0, &attributes),
        ]);
        let signature = der::bits(&key.sign(&info)?);
        let request = der::sequence(&[&info, &key.signature_algorithm(), &signature]);
        Ok(pem::encode("CERTIFICATE REQUEST", &request))
    }

    /// Host names asked for.
    pub fn dns_names(&self) -> impl Iterator<Item = &str> {
        self.sans.iter().filter_map(|san| match san {
            San::Dns(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Addresses asked for.
    pub fn addresses(&self) -> impl Iterator<Item = std::net::IpAddr> {
        self.sans.iter().filter_map(|san| match san {
            San::Ip(address) => Some(*address),
            _ => None,
        })
    }
}

/// A name that cannot be carried over must not vanish silently, and nobody becomes an authority by asking.
fn refuse_what_is_never_signed(extension: &ParsedExtension<'_>) -> Result<(), PkiError> {
    match extension {
        ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
            Err(PkiError::Unsupported("the right to sign others".to_owned()))
        }
        ParsedExtension::SubjectAlternativeName(names) => {
            match names.general_names.iter().find(|name| San::read(name).is_none()) {
                Some(GeneralName::IPAddress(_)) => {
                    Err(PkiError::Unsupported("an address of odd length".to_owned()))
                }
                Some(other) => Err(PkiError::Unsupported(format!("the alternative name {other}"))),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

impl Pair {
    /// Signs a checked request for `lifetime` from `now`, with the usages that were approved.
    pub fn sign_csr(
        &self,
        csr: &Csr,
        usages: &Usages,
        lifetime: SignedDuration,
        now: Timestamp,
    ) -> Result<Certificate, PkiError> {
        let request = Request {
            subject: csr.subject.clone(),
            sans: csr.sans.clone(),
            usages: usages.clone(),
            is_ca: false,
            not_before: now - BACKDATE,
            not_after: if lifetime > SHORT { now - BACKDATE + lifetime } else { now + lifetime },
        };
        self.sign(&request, &csr.public_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Algorithm;
    use std::sync::Arc;

    fn authority() -> Pair {
        let now = Timestamp::now();
        let request = Request {
            subject: Subject::new("ca", &[]),
            sans: Vec::new(),
            usages: Usages::authority(),
            is_ca: true,
            not_before: now - BACKDATE,
            not_after: now + SignedDuration::from_hours(24),
        };
        Pair::self_signed(&request, Arc::new(PrivateKey::generate(Algorithm::EcdsaP256).unwrap())).unwrap()
    }

    #[test]
    fn a_node_request_is_read_and_signed_with_all_its_groups() {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let subject = Subject::new("system:node:a", &["system:nodes", "second"]);
        let sans = [San::parse("a"), San::parse("10.0.0.1"), San::parse("fd00::1")];
        let csr = Csr::from_pem(Csr::create(&key, &subject, &sans).unwrap().as_bytes()).unwrap();
        assert_eq!((&csr.subject, csr.sans.as_slice()), (&subject, sans.as_slice()));
        let ca = authority();
        let now = Timestamp::now();
        let signed = ca.sign_csr(&csr, &Usages::peer(), SignedDuration::from_hours(48), now).unwrap();
        assert_eq!(signed.subject, subject);
        assert_eq!(signed.usages, Usages::peer());
        assert_eq!(signed.not_after, ca.certificate.not_after, "nothing outlives its signer");
        let ends = |hours| {
            let lifetime = SignedDuration::from_hours(hours);
            let signed = ca.sign_csr(&csr, &Usages::peer(), lifetime, now).unwrap();
            signed.not_after.as_second() - signed.not_before.as_second()
        };
        assert_eq!(ends(20), 20 * 3600, "the time by which it is dated back is part of its life");
        assert_eq!(ends(8), 8 * 3600 + 300, "unless it is short");
        assert!(signed.is_signed_by(&ca.certificate));
        assert!(!signed.is_signed_by(&authority().certificate));
    }

    /// A request of this key, changed after it was signed.
    fn changed(algorithm: Algorithm) -> String {
        let key = PrivateKey::generate(algorithm).unwrap();
        let text = Csr::create(&key, &Subject::new("system:node:a", &[]), &[]).unwrap();
        let mut der = pem::decode(text.as_bytes()).unwrap().remove(0).der;
        let at = der.windows(6).position(|w| w == b"node:a").unwrap();
        der[at + 5] = b'b';
        pem::encode("CERTIFICATE REQUEST", &der)
    }

    #[test]
    fn a_request_changed_after_signing_is_refused() {
        let text = changed(Algorithm::EcdsaP256);
        assert!(matches!(Csr::from_pem(text.as_bytes()), Err(PkiError::RequestSignature)));
    }

    #[test]
    fn a_wrong_signature_is_told_as_go_does_for_its_key() {
        let ed25519 = der::sequence(&[&der::object_id(&[0x2b, 0x65, 0x70])]);
        let key = der::sequence(&[&ed25519, &der::bits(&[1; 32])]);
        let subject = Subject::new("system:node:a", &[]).encode();
        let info = der::sequence(&[&der::unsigned(&[0]), &subject, &key, &der::tlv(0xa0, &[])]);
        let request = der::sequence(&[&info, &ed25519, &der::bits(&[1; 64])]);
        for (text, said) in [
            (changed(Algorithm::EcdsaP256), "x509: ECDSA verification failure"),
            (changed(Algorithm::Rsa2048), "crypto/rsa: verification error"),
            (pem::encode("CERTIFICATE REQUEST", &request), "x509: Ed25519 verification failure"),
        ] {
            assert_eq!(check(text.as_bytes()).unwrap_err().to_string(), said);
        }
    }
}
