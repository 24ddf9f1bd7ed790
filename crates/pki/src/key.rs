//! Key pairs: made, read, written, and used to sign.

mod rsa_keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, RsaKeyPair};
use serde::{Deserialize, Serialize};

use crate::der::{self, oid};
use crate::{PkiError, pem};

/// What kind of key to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Algorithm {
    /// ECDSA on P-256 with SHA-256: made in microseconds, accepted everywhere.
    #[default]
    #[serde(rename = "ECDSA")]
    EcdsaP256,
    /// RSA of 2048 bits, for peers that know nothing else.
    #[serde(rename = "RSA")]
    Rsa2048,
}

/// A private key with its PKCS#8 form, which is what is stored.
pub struct PrivateKey {
    pkcs8: Vec<u8>,
    signer: Signer,
}

enum Signer {
    Ecdsa(Box<EcdsaKeyPair>),
    Rsa(Box<RsaKeyPair>),
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "PrivateKey({:?})", self.algorithm())
    }
}

impl PrivateKey {
    /// Makes a new key.
    pub fn generate(algorithm: Algorithm) -> Result<Self, PkiError> {
        match algorithm {
            Algorithm::EcdsaP256 => {
                let pkcs8 = EcdsaKeyPair::generate_pkcs8(
                    &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
                    &SystemRandom::new(),
                )
                .map_err(|_| PkiError::Random)?;
                Self::from_pkcs8(pkcs8.as_ref().to_vec())
            }
            Algorithm::Rsa2048 => Self::from_pkcs8(rsa_keys::generate()?),
        }
    }

    /// Reads PKCS#8, SEC1 (`EC PRIVATE KEY`) or PKCS#1 (`RSA PRIVATE KEY`) PEM.
    pub fn from_pem(text: &[u8]) -> Result<Self, PkiError> {
        for block in pem::decode(text)? {
            match block.label.as_str() {
                "PRIVATE KEY" => return Self::from_pkcs8(block.der),
                "EC PRIVATE KEY" => return Self::from_pkcs8(wrap_sec1(&block.der)),
                "RSA PRIVATE KEY" => return Self::from_pkcs8(wrap_pkcs1(&block.der)),
                _ => {}
            }
        }
        Err(PkiError::NoBlock { wanted: "PRIVATE KEY" })
    }

    fn from_pkcs8(pkcs8: Vec<u8>) -> Result<Self, PkiError> {
        let random = SystemRandom::new();
        let ecdsa = EcdsaKeyPair::from_pkcs8(&signature::ECDSA_P256_SHA256_ASN1_SIGNING, &pkcs8, &random);
        let signer = match ecdsa {
            Ok(pair) => Signer::Ecdsa(Box::new(pair)),
            Err(_) => Signer::Rsa(Box::new(
                RsaKeyPair::from_pkcs8(&pkcs8)
                    .map_err(|_| PkiError::Key("neither ECDSA P-256 nor RSA of 2048 bits or more"))?,
            )),
        };
        Ok(Self { pkcs8, signer })
    }

    /// Which kind of key this is.
    pub fn algorithm(&self) -> Algorithm {
        match self.signer {
            Signer::Ecdsa(_) => Algorithm::EcdsaP256,
            Signer::Rsa(_) => Algorithm::Rsa2048,
        }
    }

    /// The key as PKCS#8 PEM.
    pub fn to_pem(&self) -> String {
        pem::encode("PRIVATE KEY", &self.pkcs8)
    }

    /// The key for rustls.
    pub fn to_der(&self) -> rustls_pki_types::PrivateKeyDer<'static> {
        rustls_pki_types::PrivatePkcs8KeyDer::from(self.pkcs8.clone()).into()
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        let (algorithm, raw) = match &self.signer {
            Signer::Ecdsa(pair) => {
                let parameters = [der::object_id(oid::EC_PUBLIC_KEY), der::object_id(oid::PRIME256V1)];
                (der::sequence(&[&parameters[0], &parameters[1]]), pair.public_key().as_ref())
            }
            Signer::Rsa(pair) => {
                (der::sequence(&[&der::object_id(oid::RSA), &der::null()]), pair.public_key().as_ref())
            }
        };
        PublicKey { spki: der::sequence(&[&algorithm, &der::bits(raw)]) }
    }

    /// The signature algorithm as certificates name it.
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match self.signer {
            Signer::Ecdsa(_) => der::sequence(&[&der::object_id(oid::ECDSA_SHA256)]),
            Signer::Rsa(_) => der::sequence(&[&der::object_id(oid::RSA_SHA256), &der::null()]),
        }
    }

    /// Signs with SHA-256; ECDSA signatures are in their ASN.1 form, as in certificates.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        let random = SystemRandom::new();
        match &self.signer {
            Signer::Ecdsa(pair) => {
                Ok(pair.sign(&random, message).map_err(|_| PkiError::Random)?.as_ref().to_vec())
            }
            Signer::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out)
                    .map_err(|_| PkiError::Random)?;
                Ok(out)
            }
        }
    }

    /// The `alg` of a token signed with this key.
    pub fn jws_algorithm(&self) -> &'static str {
        match self.signer {
            Signer::Ecdsa(_) => "ES256",
            Signer::Rsa(_) => "RS256",
        }
    }

    /// Signs a token: ECDSA signatures are the two numbers side by side, as RFC 7518 has them.
    pub fn sign_jws(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        match &self.signer {
            Signer::Rsa(_) => self.sign(message),
            Signer::Ecdsa(_) => {
                // The pair signs in the form it was made for, so the fixed form needs a second view of the key.
                let random = SystemRandom::new();
                let pair = EcdsaKeyPair::from_pkcs8(
                    &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
                    &self.pkcs8,
                    &random,
                )
                .map_err(|_| PkiError::Key("not ECDSA P-256"))?;
                Ok(pair.sign(&random, message).map_err(|_| PkiError::Random)?.as_ref().to_vec())
            }
        }
    }
}

/// A public key, as its SubjectPublicKeyInfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    spki: Vec<u8>,
}

/// A key of a JSON Web Key Set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the names are RFC 7517's
pub struct Jwk {
    #[serde(rename = "use")]
    pub use_: &'static str,
    pub kty: &'static str,
    pub kid: String,
    pub alg: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crv: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub y: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e: Option<String>,
}

impl PublicKey {
    /// Takes a SubjectPublicKeyInfo.
    pub fn from_spki(spki: Vec<u8>) -> Self {
        Self { spki }
    }

    /// Reads a `PUBLIC KEY` block, or takes the public half of a certificate or private key.
    pub fn from_pem(text: &[u8]) -> Result<Self, PkiError> {
        for block in pem::decode(text)? {
            match block.label.as_str() {
                "PUBLIC KEY" => return Ok(Self { spki: block.der }),
                "CERTIFICATE" => return Ok(crate::Certificate::from_der(block.der)?.public_key()),
                _ => {}
            }
        }
        PrivateKey::from_pem(text).map(|key| key.public())
    }

    /// The SubjectPublicKeyInfo.
    pub fn spki(&self) -> &[u8] {
        &self.spki
    }

    /// The key as PEM.
    pub fn to_pem(&self) -> String {
        pem::encode("PUBLIC KEY", &self.spki)
    }

    /// The key id that Kubernetes puts into tokens: the SHA-256 of the SubjectPublicKeyInfo.
    pub fn key_id(&self) -> String {
        URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, &self.spki))
    }

    /// The identifier that certificates use to name a signer's key.
    pub(crate) fn subject_key_id(&self) -> Vec<u8> {
        ring::digest::digest(&ring::digest::SHA256, &self.spki).as_ref()[..20].to_vec()
    }

    /// Checks a token's signature. `alg` must be the one this kind of key has; the token does not get to choose.
    pub fn verify_jws(&self, alg: &str, message: &[u8], signature: &[u8]) -> Result<bool, PkiError> {
        let parts = self.parts()?;
        let (expected, verifier): (_, &dyn signature::VerificationAlgorithm) = match parts {
            Parts::Ec(_) => ("ES256", &signature::ECDSA_P256_SHA256_FIXED),
            Parts::Rsa { .. } => ("RS256", &signature::RSA_PKCS1_2048_8192_SHA256),
        };
        let raw = match &parts {
            Parts::Ec(point) => point,
            Parts::Rsa { raw, .. } => raw,
        };
        let key = signature::UnparsedPublicKey::new(verifier, raw);
        Ok(alg == expected && key.verify(message, signature).is_ok())
    }

    /// The key as a member of a JSON Web Key Set.
    pub fn jwk(&self) -> Result<Jwk, PkiError> {
        let empty = Jwk {
            use_: "sig",
            kty: "",
            kid: self.key_id(),
            alg: "",
            crv: None,
            x: None,
            y: None,
            n: None,
            e: None,
        };
        let encode = |bytes: &[u8]| Some(URL_SAFE_NO_PAD.encode(bytes));
        Ok(match self.parts()? {
            Parts::Ec(point) => Jwk {
                kty: "EC",
                alg: "ES256",
                crv: Some("P-256"),
                x: encode(&point[1..33]),
                y: encode(&point[33..65]),
                ..empty
            },
            Parts::Rsa { modulus, exponent, .. } => {
                Jwk { kty: "RSA", alg: "RS256", n: encode(&modulus), e: encode(&exponent), ..empty }
            }
        })
    }

    fn parts(&self) -> Result<Parts, PkiError> {
        use x509_parser::prelude::FromDer as _;
        use x509_parser::public_key::PublicKey as Parsed;
        let (_, spki) = x509_parser::x509::SubjectPublicKeyInfo::from_der(&self.spki)
            .map_err(|error| PkiError::Parse { what: "public key", reason: error.to_string() })?;
        match spki.parsed() {
            Ok(Parsed::EC(point)) if point.data().len() == 65 && point.data()[0] == 4 => {
                Ok(Parts::Ec(point.data().to_vec()))
            }
            Ok(Parsed::RSA(key)) => {
                let trim = |bytes: &[u8]| {
                    bytes[bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len())..].to_vec()
                };
                Ok(Parts::Rsa {
                    raw: spki.subject_public_key.data.to_vec(),
                    modulus: trim(key.modulus),
                    exponent: trim(key.exponent),
                })
            }
            _ => Err(PkiError::Key("neither ECDSA P-256 nor RSA")),
        }
    }
}

enum Parts {
    Ec(Vec<u8>),
    Rsa { raw: Vec<u8>, modulus: Vec<u8>, exponent: Vec<u8> },
}

fn wrap_sec1(sec1: &[u8]) -> Vec<u8> {
    let algorithm = der::sequence(&[&der::object_id(oid::EC_PUBLIC_KEY), &der::object_id(oid::PRIME256V1)]);
    der::sequence(&[&der::unsigned(&[0]), &algorithm, &der::octets(sec1)])
}

fn wrap_pkcs1(pkcs1: &[u8]) -> Vec<u8> {
    let algorithm = der::sequence(&[&der::object_id(oid::RSA), &der::null()]);
    der::sequence(&[&der::unsigned(&[0]), &algorithm, &der::octets(pkcs1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_file() {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let again = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
        assert_eq!(key.public(), again.public());
    }

    #[test]
    fn a_token_signature_is_valid_only_for_its_key_text_and_algorithm() {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let other = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let signature = key.sign_jws(b"text").unwrap();
        assert_eq!(signature.len(), 64);
        assert!(key.public().verify_jws("ES256", b"text", &signature).unwrap());
        assert!(!key.public().verify_jws("ES256", b"texts", &signature).unwrap());
        assert!(!key.public().verify_jws("none", b"text", &signature).unwrap());
        assert!(!other.public().verify_jws("ES256", b"text", &signature).unwrap());
    }

    #[test]
    fn an_rsa_key_is_made_signs_and_survives_its_file() {
        let key = PrivateKey::generate(Algorithm::Rsa2048).unwrap();
        let again = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
        let signature = again.sign_jws(b"text").unwrap();
        assert!(key.public().verify_jws("RS256", b"text", &signature).unwrap());
        assert_eq!(key.public().jwk().unwrap().n.unwrap().len(), 342);
    }

    #[test]
    fn the_web_key_holds_the_point() {
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        let jwk = key.public().jwk().unwrap();
        assert_eq!((jwk.kty, jwk.crv), ("EC", Some("P-256")));
        assert_eq!(jwk.x.unwrap().len(), 43);
    }
}
