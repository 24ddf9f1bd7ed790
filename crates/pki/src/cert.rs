//! Certificates: issued by an [`Authority`] from a [`Request`], read back as a [`Certificate`].
//!
//! The encoder is ours because Kubernetes puts a user's groups into repeated `O` attributes of the subject, and the
//! usual generator keeps one value per attribute.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate, X509Name};

use crate::der::{self, oid};
use crate::key::{PrivateKey, PublicKey};
use crate::usage::{self, Usages};
use crate::{PkiError, pem};

/// Certificates are valid from a little before they are made, as clocks differ.
pub const BACKDATE: SignedDuration = SignedDuration::from_mins(5);

/// Who a certificate speaks for: the user (CN) and its groups (O).
#[derive(Debug, Clone, PartialEq, Eq, Default, Hash)]
pub struct Subject {
    /// CN, the user name.
    pub common_name: String,
    /// O, one per group.
    pub organizations: Vec<String>,
    /// OU, which carries no authority.
    pub units: Vec<String>,
}

impl Subject {
    /// A user with groups.
    pub fn new(common_name: &str, organizations: &[&str]) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: organizations.iter().map(|o| (*o).to_owned()).collect(),
            units: Vec::new(),
        }
    }

    pub(crate) fn read(name: &X509Name<'_>) -> Self {
        let text = |values: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| {
            values.into_iter().filter_map(|v| v.as_str().ok()).map(str::to_owned).collect::<Vec<_>>()
        };
        Self {
            common_name: text(name.iter_common_name().collect()).pop().unwrap_or_default(),
            organizations: text(name.iter_organization().collect()),
            units: text(name.iter_organizational_unit().collect()),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let attribute = |id: &[u8], value: &str| {
            der::tlv(der::SET, &der::sequence(&[&der::object_id(id), &der::utf8(value)]))
        };
        let mut content = Vec::new();
        for organization in &self.organizations {
            content.extend(attribute(oid::ORGANIZATION, organization));
        }
        for unit in &self.units {
            content.extend(attribute(oid::ORGANIZATIONAL_UNIT, unit));
        }
        if !self.common_name.is_empty() {
            content.extend(attribute(oid::COMMON_NAME, &self.common_name));
        }
        der::tlv(der::SEQUENCE, &content)
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for organization in &self.organizations {
            write!(out, "O={organization}, ")?;
        }
        for unit in &self.units {
            write!(out, "OU={unit}, ")?;
        }
        write!(out, "CN={}", self.common_name)
    }
}

/// A name or address that a certificate is valid for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum San {
    /// A host name, perhaps with a leading `*.`.
    Dns(String),
    /// An address.
    Ip(IpAddr),
    /// A URI.
    Uri(String),
    /// A mail address.
    Email(String),
}

impl San {
    /// An address if the text is one, a host name otherwise.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Dns(text.to_owned()), Self::Ip)
    }

    pub(crate) fn read(name: &GeneralName<'_>) -> Option<Self> {
        match name {
            GeneralName::DNSName(name) => Some(Self::Dns((*name).to_owned())),
            GeneralName::URI(name) => Some(Self::Uri((*name).to_owned())),
            GeneralName::RFC822Name(name) => Some(Self::Email((*name).to_owned())),
            GeneralName::IPAddress(bytes) => match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| Self::Ip(b.into())),
                16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| Self::Ip(b.into())),
                _ => None,
            },
            _ => None,
        }
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Email(text) => der::tlv(0x81, text.as_bytes()),
            Self::Dns(text) => der::tlv(0x82, text.as_bytes()),
            Self::Uri(text) => der::tlv(0x86, text.as_bytes()),
            Self::Ip(IpAddr::V4(address)) => der::tlv(0x87, &address.octets()),
            Self::Ip(IpAddr::V6(address)) => der::tlv(0x87, &address.octets()),
        }
    }
}

impl std::fmt::Display for San {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(text) | Self::Uri(text) | Self::Email(text) => out.write_str(text),
            Self::Ip(address) => write!(out, "{address}"),
        }
    }
}

/// All that a new certificate says, except who signs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who it speaks for.
    pub subject: Subject,
    /// Where it is valid.
    pub sans: Vec<San>,
    /// What it may be used for.
    pub usages: Usages,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// First instant of validity.
    pub not_before: Timestamp,
    /// Last instant of validity.
    pub not_after: Timestamp,
}

/// Extensions that a request or a certificate carries besides the identifiers of keys.
pub(crate) fn encode_wishes(sans: &[San], usages: &Usages, subject_is_empty: bool) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    if usages.key != 0 {
        out.push(extension(oid::KEY_USAGE, true, &der::flags(usages.key)));
    }
    if !usages.extended.is_empty() {
        let ids: Vec<u8> =
            usages.extended.iter().flat_map(|id| der::object_id(&usage::encode_dotted(id))).collect();
        out.push(extension(oid::EXTENDED_KEY_USAGE, false, &der::tlv(der::SEQUENCE, &ids)));
    }
    if !sans.is_empty() {
        let names: Vec<u8> = sans.iter().flat_map(San::encode).collect();
        out.push(extension(oid::SUBJECT_ALT_NAME, subject_is_empty, &der::tlv(der::SEQUENCE, &names)));
    }
    out
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if critical { der::boolean_true() } else { Vec::new() };
    der::sequence(&[&der::object_id(id), &critical, &der::octets(value)])
}

struct Issuer<'a> {
    /// The signer's subject exactly as its certificate has it: names are compared byte by byte.
    name: Vec<u8>,
    key_id: Vec<u8>,
    key: &'a PrivateKey,
}

fn issue(request: &Request, subject_key: &PublicKey, issuer: &Issuer<'_>) -> Result<Certificate, PkiError> {
    let mut serial = [0u8; 16];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut serial)
        .map_err(|_| PkiError::Random)?;
    serial[0] = serial[0] & 0x7f | 0x40; // positive and of constant length
    let subject = request.subject.encode();
    let mut extensions = encode_wishes(&request.sans, &request.usages, request.subject == Subject::default());
    let constraints = if request.is_ca { der::boolean_true() } else { Vec::new() };
    extensions.push(extension(oid::BASIC_CONSTRAINTS, true, &der::tlv(der::SEQUENCE, &constraints)));
    if request.is_ca {
        extensions.push(extension(oid::SUBJECT_KEY_ID, false, &der::octets(&subject_key.subject_key_id())));
    }
    extensions.push(extension(
        oid::AUTHORITY_KEY_ID,
        false,
        &der::sequence(&[&der::tlv(0x80, &issuer.key_id)]),
    ));
    let algorithm = issuer.key.signature_algorithm();
    let tbs = der::sequence(&[
        &der::tlv(0xa0, &der::unsigned(&[2])),
        &der::unsigned(&serial),
        &algorithm,
        &issuer.name,
        &der::sequence(&[&der::time(request.not_before), &der::time(request.not_after)]),
        &subject,
        subject_key.spki(),
        &der::tlv(0xa3, &der::tlv(der::SEQUENCE, &extensions.concat())),
    ]);
    let signature = der::bits(&issuer.key.sign(&tbs)?);
    Certificate::from_der(der::sequence(&[&tbs, &algorithm, &signature]))
}

/// A certificate and the facts in it that decisions are made on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    der: Vec<u8>,
    /// Who it speaks for.
    pub subject: Subject,
    /// Who signed it.
    pub issuer: Subject,
    /// Where it is valid.
    pub sans: Vec<San>,
    /// What it may be used for.
    pub usages: Usages,
    /// Whether it may sign others.
    pub is_ca: bool,
    /// First instant of validity.
    pub not_before: Timestamp,
    /// Last instant of validity.
    pub not_after: Timestamp,
    /// The serial number, in hexadecimal.
    pub serial: String,
    spki: Vec<u8>,
    raw_subject: Vec<u8>,
    raw_issuer: Vec<u8>,
}

impl Certificate {
    /// Reads DER.
    pub fn from_der(bytes: Vec<u8>) -> Result<Self, PkiError> {
        let bad = |reason: String| PkiError::Parse { what: "certificate", reason };
        let (rest, parsed) = X509Certificate::from_der(&bytes).map_err(|error| bad(error.to_string()))?;
        if !rest.is_empty() {
            return Err(bad("bytes follow the certificate".to_owned()));
        }
        let (sans, usages) = read_wishes(parsed.extensions().iter().map(|e| e.parsed_extension()));
        let second = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|error| bad(error.to_string()))
        };
        Ok(Self {
            subject: Subject::read(parsed.subject()),
            issuer: Subject::read(parsed.issuer()),
            sans,
            usages,
            is_ca: parsed.is_ca(),
            not_before: second(parsed.validity().not_before)?,
            not_after: second(parsed.validity().not_after)?,
            serial: parsed.raw_serial_as_string(),
            spki: parsed.public_key().raw.to_vec(),
            raw_subject: parsed.subject().as_raw().to_vec(),
            raw_issuer: parsed.issuer().as_raw().to_vec(),
            der: bytes,
        })
    }

    /// Reads the first `CERTIFICATE` block.
    pub fn from_pem(text: &[u8]) -> Result<Self, PkiError> {
        let block = pem::decode(text)?
            .into_iter()
            .find(|block| block.label == "CERTIFICATE")
            .ok_or(PkiError::NoBlock { wanted: "CERTIFICATE" })?;
        Self::from_der(block.der)
    }

    /// Reads every `CERTIFICATE` block.
    pub fn bundle_from_pem(text: &[u8]) -> Result<Vec<Self>, PkiError> {
        pem::certificates(text)?.into_iter().map(|der| Self::from_der(der.to_vec())).collect()
    }

    /// The certificate as PEM.
    pub fn to_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.der)
    }

    /// The certificate for rustls.
    pub fn to_der(&self) -> rustls_pki_types::CertificateDer<'static> {
        self.der.clone().into()
    }

    /// The certified key.
    pub fn public_key(&self) -> PublicKey {
        PublicKey::from_spki(self.spki.clone())
    }

    /// SHA-256 of the whole certificate, in hexadecimal.
    pub fn fingerprint(&self) -> String {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.der);
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether `signer` made this certificate: names match and the signature verifies.
    pub fn is_signed_by(&self, signer: &Self) -> bool {
        if self.raw_issuer != signer.raw_subject || !signer.is_ca {
            return false;
        }
        let (Ok((_, own)), Ok((_, theirs))) =
            (X509Certificate::from_der(&self.der), X509Certificate::from_der(&signer.der))
        else {
            return false;
        };
        own.verify_signature(Some(theirs.public_key())).is_ok()
    }

    /// Whether `now` lies in the validity.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }
}

pub(crate) fn read_wishes<'a>(
    extensions: impl Iterator<Item = &'a ParsedExtension<'a>>,
) -> (Vec<San>, Usages) {
    let mut sans = Vec::new();
    let mut usages = Usages::default();
    for parsed in extensions {
        match parsed {
            ParsedExtension::SubjectAlternativeName(names) => {
                sans = names.general_names.iter().filter_map(San::read).collect();
            }
            ParsedExtension::KeyUsage(bits) => usages.key = bits.flags,
            ParsedExtension::ExtendedKeyUsage(extended) => {
                let standard = [
                    (extended.any, "2.5.29.37.0"),
                    (extended.server_auth, usage::SERVER_AUTH),
                    (extended.client_auth, usage::CLIENT_AUTH),
                    (extended.code_signing, "1.3.6.1.5.5.7.3.3"),
                    (extended.email_protection, "1.3.6.1.5.5.7.3.4"),
                    (extended.time_stamping, "1.3.6.1.5.5.7.3.8"),
                    (extended.ocsp_signing, "1.3.6.1.5.5.7.3.9"),
                ];
                usages.extended = standard.iter().filter(|(set, _)| *set).map(|(_, id)| *id).collect();
                let other = extended.other.iter().map(|id| id.to_id_string());
                usages.extended.extend(other.filter_map(|id| Usages::known_extended(&id)));
            }
            _ => {}
        }
    }
    (sans, usages)
}

/// A certificate with its private key.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: Certificate,
    /// Its key.
    pub key: Arc<PrivateKey>,
}

impl Pair {
    /// Makes a certificate that its own key signs: the start of a chain.
    pub fn self_signed(request: &Request, key: Arc<PrivateKey>) -> Result<Self, PkiError> {
        let public = key.public();
        let issuer = Issuer { name: request.subject.encode(), key_id: public.subject_key_id(), key: &key };
        let certificate = issue(request, &public, &issuer)?;
        Ok(Self { certificate, key })
    }

    /// Signs a certificate for another key. Nothing outlives its signer.
    pub fn sign(&self, request: &Request, subject_key: &PublicKey) -> Result<Certificate, PkiError> {
        let issuer = Issuer {
            name: self.certificate.raw_subject.clone(),
            key_id: self.certificate.public_key().subject_key_id(),
            key: &self.key,
        };
        let not_after = request.not_after.min(self.certificate.not_after);
        issue(&Request { not_after, ..request.clone() }, subject_key, &issuer)
    }

    /// Signs a certificate for `key` and keeps both together.
    pub fn issue(&self, request: &Request, key: Arc<PrivateKey>) -> Result<Self, PkiError> {
        let certificate = self.sign(request, &key.public())?;
        Ok(Self { certificate, key })
    }

    /// Reads certificate and key and refuses a pair that does not fit together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, PkiError> {
        let certificate = Certificate::from_pem(certificate)?;
        let key = PrivateKey::from_pem(key)?;
        if key.public() != certificate.public_key() {
            return Err(PkiError::Key("it is not the key of the certificate beside it"));
        }
        Ok(Self { certificate, key: Arc::new(key) })
    }

    /// The certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        self.certificate.to_pem()
    }

    /// The key as PEM.
    pub fn key_pem(&self) -> String {
        self.key.to_pem()
    }
}
