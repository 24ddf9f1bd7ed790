//! What a certificate may be used for, in X.509's bits and in Kubernetes' words.

use serde::Serialize;

use crate::PkiError;

/// Key usage bits and extended usages of one certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Usages {
    /// Key usage bits; bit 0 is digitalSignature, as in RFC 5280.
    pub key: u16,
    /// Object identifiers of extended usages, in their dotted form.
    pub extended: Vec<&'static str>,
}

const DIGITAL_SIGNATURE: u16 = 1;
const KEY_ENCIPHERMENT: u16 = 1 << 2;
const CERT_SIGN: u16 = 1 << 5;
const CRL_SIGN: u16 = 1 << 6;

/// Identifier of serverAuth.
pub const SERVER_AUTH: &str = "1.3.6.1.5.5.7.3.1";
/// Identifier of clientAuth.
pub const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";

/// `KeyUsage` of certificates.k8s.io/v1 with the bit or the extended usage that it stands for.
const NAMES: &[(&str, Result<u16, &str>)] = &[
    ("signing", Ok(DIGITAL_SIGNATURE)),
    ("digital signature", Ok(DIGITAL_SIGNATURE)),
    ("content commitment", Ok(1 << 1)),
    ("key encipherment", Ok(KEY_ENCIPHERMENT)),
    ("data encipherment", Ok(1 << 3)),
    ("key agreement", Ok(1 << 4)),
    ("cert sign", Ok(CERT_SIGN)),
    ("crl sign", Ok(CRL_SIGN)),
    ("encipher only", Ok(1 << 7)),
    ("decipher only", Ok(1 << 8)),
    ("any", Err("2.5.29.37.0")),
    ("server auth", Err(SERVER_AUTH)),
    ("client auth", Err(CLIENT_AUTH)),
    ("code signing", Err("1.3.6.1.5.5.7.3.3")),
    ("email protection", Err("1.3.6.1.5.5.7.3.4")),
    ("s/mime", Err("1.3.6.1.5.5.7.3.4")),
    ("ipsec end system", Err("1.3.6.1.5.5.7.3.5")),
    ("ipsec tunnel", Err("1.3.6.1.5.5.7.3.6")),
    ("ipsec user", Err("1.3.6.1.5.5.7.3.7")),
    ("timestamping", Err("1.3.6.1.5.5.7.3.8")),
    ("ocsp signing", Err("1.3.6.1.5.5.7.3.9")),
    ("microsoft sgc", Err("1.3.6.1.4.1.311.10.3.3")),
    ("netscape sgc", Err("2.16.840.1.113730.4.1")),
];

impl Usages {
    /// For a certificate that signs others.
    pub fn authority() -> Self {
        Self { key: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT | CERT_SIGN | CRL_SIGN, extended: Vec::new() }
    }

    /// For TLS servers.
    pub fn server() -> Self {
        Self { key: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT, extended: vec![SERVER_AUTH] }
    }

    /// For TLS clients.
    pub fn client() -> Self {
        Self { key: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT, extended: vec![CLIENT_AUTH] }
    }

    /// For those who call and are called, such as etcd members.
    pub fn peer() -> Self {
        Self { key: DIGITAL_SIGNATURE | KEY_ENCIPHERMENT, extended: vec![SERVER_AUTH, CLIENT_AUTH] }
    }

    /// From the `spec.usages` of a CertificateSigningRequest.
    pub fn from_names<S: AsRef<str>>(names: &[S]) -> Result<Self, PkiError> {
        let mut usages = Self::default();
        for name in names {
            let (_, meaning) = NAMES
                .iter()
                .find(|(known, _)| *known == name.as_ref())
                .ok_or_else(|| PkiError::Usage(name.as_ref().to_owned()))?;
            match *meaning {
                Ok(bit) => usages.key |= bit,
                Err(id) if usages.extended.contains(&id) => {}
                Err(id) => usages.extended.push(id),
            }
        }
        Ok(usages)
    }

    /// Kubernetes' words for these usages, for people.
    pub fn names(&self) -> Vec<&'static str> {
        let mut out: Vec<&'static str> = Vec::new();
        let mut seen = (0u16, Vec::new());
        for (name, meaning) in NAMES.iter().skip(1) {
            match *meaning {
                Ok(bit) if self.key & bit != 0 && seen.0 & bit == 0 => {
                    seen.0 |= bit;
                    out.push(name);
                }
                Err(id) if self.extended.contains(&id) && !seen.1.contains(&id) => {
                    seen.1.push(id);
                    out.push(name);
                }
                _ => {}
            }
        }
        out
    }

    /// The identifier of an extended usage, if it is one of Kubernetes'.
    pub(crate) fn known_extended(dotted: &str) -> Option<&'static str> {
        NAMES.iter().filter_map(|(_, meaning)| meaning.err()).find(|id| *id == dotted)
    }
}

/// Encodes a dotted object identifier.
pub(crate) fn encode_dotted(dotted: &str) -> Vec<u8> {
    let arcs: Vec<u64> = dotted.split('.').filter_map(|arc| arc.parse().ok()).collect();
    let (first, rest) = match arcs.as_slice() {
        [a, b, rest @ ..] => (a * 40 + b, rest),
        _ => return Vec::new(),
    };
    let mut out = Vec::new();
    for arc in std::iter::once(first).chain(rest.iter().copied()) {
        let mut groups = vec![(arc & 0x7f) as u8];
        let mut left = arc >> 7;
        while left > 0 {
            groups.push((left & 0x7f) as u8 | 0x80);
            left >>= 7;
        }
        out.extend(groups.iter().rev());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_to_bits_and_back() {
        let usages = Usages::from_names(&["digital signature", "key encipherment", "client auth"]).unwrap();
        assert_eq!(usages, Usages::client());
        assert_eq!(usages.names(), ["digital signature", "key encipherment", "client auth"]);
        assert!(matches!(Usages::from_names(&["fly"]), Err(PkiError::Usage(name)) if name == "fly"));
    }

    #[test]
    fn dotted_identifiers_are_encoded_in_base_128() {
        assert_eq!(encode_dotted(SERVER_AUTH), [0x2b, 6, 1, 5, 5, 7, 3, 1]);
        assert_eq!(encode_dotted("2.16.840.1.113730.4.1"), [0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1]);
    }
}
