//! JSON Web Tokens: sign, verify, and keys as PEM and JWK. RS256 and ES256 (plus their larger siblings to verify).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair, UnparsedPublicKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use sha2::Digest;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};

/// Why a token or key was not taken.
#[derive(Debug, thiserror::Error)]
pub enum JwtError {
    /// Three parts with dots, each base64url.
    #[error("token is malformed")]
    Malformed,
    /// No known key signed it.
    #[error("signature is invalid")]
    Signature,
    /// The key cannot be used.
    #[error("key is not usable: {0}")]
    Key(&'static str),
    /// An algorithm that is not allowed.
    #[error("signed with {0:?}, which is not allowed")]
    Algorithm(String),
    /// Signing failed.
    #[error("signing failed")]
    Signing,
}

/// A public key that verifies tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyingKey {
    /// The key id.
    pub id: String,
    kind: KeyKind,
    /// RSA: PKCS#1 RSAPublicKey; EC: the uncompressed point.
    bits: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    P256,
    P384,
}

const EC_P256_SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const EC_P384_SPKI: [u8; 23] = [
    0x30, 0x76, 0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81,
    0x04, 0x00, 0x22, 0x03, 0x62, 0x00,
];
const RSA_ALGORITHM: [u8; 15] =
    [0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

impl VerifyingKey {
    fn new(kind: KeyKind, bits: Vec<u8>) -> Self {
        let mut key = Self { id: String::new(), kind, bits };
        key.id = BASE64.encode(sha2::Sha256::digest(key.spki()));
        key
    }

    /// Reads every public key of a PEM text: public keys, certificates, or private keys whose public half is taken.
    pub fn from_pem(pem: &[u8]) -> Result<Vec<Self>, JwtError> {
        let mut keys = Vec::new();
        for spki in SubjectPublicKeyInfoDer::pem_slice_iter(pem).flatten() {
            keys.push(Self::from_spki(&spki)?);
        }
        for certificate in CertificateDer::pem_slice_iter(pem).flatten() {
            let (_, parsed) = X509Certificate::from_der(&certificate)
                .map_err(|_| JwtError::Key("malformed certificate"))?;
            keys.push(Self::from_spki(parsed.public_key().raw)?);
        }
        if keys.is_empty() {
            keys.push(SigningKey::from_pem(pem)?.public);
        }
        Ok(keys)
    }

    fn from_spki(der: &[u8]) -> Result<Self, JwtError> {
        let (_, info) =
            SubjectPublicKeyInfo::from_der(der).map_err(|_| JwtError::Key("malformed public key"))?;
        let bits = info.subject_public_key.data.to_vec();
        let kind = match (info.algorithm.algorithm.to_id_string().as_str(), bits.len()) {
            ("1.2.840.113549.1.1.1", _) => KeyKind::Rsa,
            ("1.2.840.10045.2.1", 65) => KeyKind::P256,
            ("1.2.840.10045.2.1", 97) => KeyKind::P384,
            _ => return Err(JwtError::Key("neither RSA nor ECDSA P-256 or P-384")),
        };
        Ok(Self::new(kind, bits))
    }

    /// Reads a JSON Web Key.
    pub fn from_jwk(jwk: &Value) -> Result<Self, JwtError> {
        let part = |name: &str| -> Result<Vec<u8>, JwtError> {
            let text = jwk[name].as_str().ok_or(JwtError::Key("incomplete JWK"))?;
            BASE64.decode(text.trim_end_matches('=')).map_err(|_| JwtError::Key("malformed JWK"))
        };
        let mut key = match (jwk["kty"].as_str(), jwk["crv"].as_str()) {
            (Some("RSA"), _) => {
                Self::new(KeyKind::Rsa, der(0x30, &[integer(&part("n")?), integer(&part("e")?)]))
            }
            (Some("EC"), Some(curve @ ("P-256" | "P-384"))) => {
                let (kind, size) = if curve == "P-256" { (KeyKind::P256, 32) } else { (KeyKind::P384, 48) };
                let mut point = vec![4];
                for coordinate in [part("x")?, part("y")?] {
                    point.resize(point.len() + size - coordinate.len().min(size), 0);
                    point.extend(coordinate);
                }
                Self::new(kind, point)
            }
            _ => return Err(JwtError::Key("unknown key type")),
        };
        if let Some(id) = jwk["kid"].as_str() {
            key.id = id.to_owned();
        }
        Ok(key)
    }

    /// The key as a JSON Web Key.
    pub fn to_jwk(&self) -> Value {
        match self.kind {
            KeyKind::Rsa => {
                let (modulus, exponent) = rsa_parts(&self.bits).unwrap_or_default();
                json!({"use": "sig", "kty": "RSA", "kid": self.id, "alg": "RS256",
                       "n": BASE64.encode(modulus), "e": BASE64.encode(exponent)})
            }
            KeyKind::P256 | KeyKind::P384 => {
                let half = (self.bits.len() - 1) / 2;
                let (curve, algorithm) =
                    if self.kind == KeyKind::P256 { ("P-256", "ES256") } else { ("P-384", "ES384") };
                json!({"use": "sig", "kty": "EC", "kid": self.id, "crv": curve, "alg": algorithm,
                       "x": BASE64.encode(&self.bits[1..=half]), "y": BASE64.encode(&self.bits[half + 1..])})
            }
        }
    }

    fn spki(&self) -> Vec<u8> {
        match self.kind {
            KeyKind::P256 => [&EC_P256_SPKI[..], &self.bits].concat(),
            KeyKind::P384 => [&EC_P384_SPKI[..], &self.bits].concat(),
            KeyKind::Rsa => {
                let bits = [&[0][..], &self.bits].concat();
                der(0x30, &[RSA_ALGORITHM.to_vec(), der(0x03, &[bits])])
            }
        }
    }

    fn verify(&self, algorithm: &str, message: &[u8], signed: &[u8]) -> Result<(), JwtError> {
        let method: &dyn signature::VerificationAlgorithm = match (self.kind, algorithm) {
            (KeyKind::Rsa, "RS256") => &signature::RSA_PKCS1_2048_8192_SHA256,
            (KeyKind::Rsa, "RS384") => &signature::RSA_PKCS1_2048_8192_SHA384,
            (KeyKind::Rsa, "RS512") => &signature::RSA_PKCS1_2048_8192_SHA512,
            (KeyKind::Rsa, "PS256") => &signature::RSA_PSS_2048_8192_SHA256,
            (KeyKind::Rsa, "PS384") => &signature::RSA_PSS_2048_8192_SHA384,
            (KeyKind::Rsa, "PS512") => &signature::RSA_PSS_2048_8192_SHA512,
            (KeyKind::P256, "ES256") => &signature::ECDSA_P256_SHA256_FIXED,
            (KeyKind::P384, "ES384") => &signature::ECDSA_P384_SHA384_FIXED,
            _ => return Err(JwtError::Signature),
        };
        UnparsedPublicKey::new(method, &self.bits).verify(message, signed).map_err(|_| JwtError::Signature)
    }
}

fn der(tag: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let length: usize = parts.iter().map(Vec::len).sum();
    let mut out = vec![tag];
    if length < 128 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    parts.iter().for_each(|part| out.extend(part));
    out
}

fn integer(bytes: &[u8]) -> Vec<u8> {
    let lead = if bytes.first().is_some_and(|first| first & 0x80 != 0) { vec![0] } else { vec![] };
    der(0x02, &[lead, bytes.to_vec()])
}

/// Modulus and exponent of a PKCS#1 RSAPublicKey.
fn rsa_parts(bits: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let (_, key) = x509_parser::der_parser::der::parse_der_sequence(bits).ok()?;
    let items = key.as_sequence().ok()?;
    let number = |index: usize| -> Option<Vec<u8>> {
        let bytes = items.get(index)?.as_slice().ok()?;
        Some(bytes.iter().copied().skip_while(|byte| *byte == 0).collect())
    };
    Some((number(0)?, number(1)?))
}

enum Private {
    Rsa(Box<RsaKeyPair>),
    P256(Box<EcdsaKeyPair>),
}

/// A private key that signs tokens.
pub struct SigningKey {
    private: Private,
    /// Its public half.
    pub public: VerifyingKey,
}

impl SigningKey {
    /// Reads the first private key of a PEM text (PKCS#8, PKCS#1 RSA or SEC1 EC P-256).
    pub fn from_pem(pem: &[u8]) -> Result<Self, JwtError> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| JwtError::Key("no private key"))?;
        let random = SystemRandom::new();
        let curve = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let refuse = |_| JwtError::Key("neither RSA (2048 bits or more) nor ECDSA P-256");
        let private = match &key {
            PrivateKeyDer::Pkcs1(der) => {
                Private::Rsa(Box::new(RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(refuse)?))
            }
            PrivateKeyDer::Pkcs8(der) => {
                match EcdsaKeyPair::from_pkcs8(curve, der.secret_pkcs8_der(), &random) {
                    Ok(key) => Private::P256(Box::new(key)),
                    Err(_) => Private::Rsa(Box::new(
                        RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(refuse)?,
                    )),
                }
            }
            PrivateKeyDer::Sec1(der) => {
                let inner = self::der(0x04, &[der.secret_sec1_der().to_vec()]);
                let algorithm = EC_P256_SPKI[2..23].to_vec();
                let wrapped = self::der(0x30, &[vec![0x02, 0x01, 0x00], algorithm, inner]);
                Private::P256(Box::new(EcdsaKeyPair::from_pkcs8(curve, &wrapped, &random).map_err(refuse)?))
            }
            _ => return Err(JwtError::Key("unknown private key form")),
        };
        let public = match &private {
            Private::Rsa(key) => VerifyingKey::new(KeyKind::Rsa, key.public_key().as_ref().to_vec()),
            Private::P256(key) => VerifyingKey::new(KeyKind::P256, key.public_key().as_ref().to_vec()),
        };
        Ok(Self { private, public })
    }

    /// A signed token with these claims.
    pub fn sign(&self, claims: &Value) -> Result<String, JwtError> {
        let algorithm = match self.private {
            Private::Rsa(_) => "RS256",
            Private::P256(_) => "ES256",
        };
        let header = json!({"alg": algorithm, "kid": self.public.id});
        let mut token = BASE64.encode(header.to_string());
        token.push('.');
        token.push_str(&BASE64.encode(claims.to_string()));
        let random = SystemRandom::new();
        let signed = match &self.private {
            Private::Rsa(key) => {
                let mut out = vec![0; key.public().modulus_len()];
                key.sign(&signature::RSA_PKCS1_SHA256, &random, token.as_bytes(), &mut out)
                    .map_err(|_| JwtError::Signing)?;
                out
            }
            Private::P256(key) => {
                key.sign(&random, token.as_bytes()).map_err(|_| JwtError::Signing)?.as_ref().to_vec()
            }
        };
        token.push('.');
        token.push_str(&BASE64.encode(signed));
        Ok(token)
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SigningKey({})", self.public.id)
    }
}

/// The claims of a token whose signature was not looked at: only good to see who is said to have issued it.
pub fn unverified_claims(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
}

/// What a token says that it is signed with.
pub fn algorithm(token: &str) -> Option<String> {
    let header = BASE64.decode(token.split('.').next()?).ok()?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    header["alg"].as_str().map(str::to_owned)
}

/// The claims of a token that one of `keys` signed. Times and audiences are the caller's to check.
pub fn verify(token: &str, keys: &[VerifyingKey]) -> Result<Value, JwtError> {
    let (message, signed) = token.rsplit_once('.').ok_or(JwtError::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(JwtError::Malformed)?;
    let part = |text: &str| BASE64.decode(text).map_err(|_| JwtError::Malformed);
    let header: Value = serde_json::from_slice(&part(header)?).map_err(|_| JwtError::Malformed)?;
    let signed = part(signed)?;
    let algorithm = header["alg"].as_str().ok_or(JwtError::Malformed)?;
    let wanted = header["kid"].as_str();
    let by_id = |key: &&VerifyingKey| wanted.is_none_or(|id| id == key.id);
    let others = |key: &&VerifyingKey| wanted.is_some_and(|id| id != key.id);
    keys.iter()
        .filter(by_id)
        .chain(keys.iter().filter(others))
        .find(|key| key.verify(algorithm, message.as_bytes(), &signed).is_ok())
        .ok_or(JwtError::Signature)?;
    serde_json::from_slice(&part(claims)?).map_err(|_| JwtError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SigningKey {
        let random = SystemRandom::new();
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&signature::ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let body = base64::engine::general_purpose::STANDARD.encode(pkcs8.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n");
        SigningKey::from_pem(pem.as_bytes()).unwrap()
    }

    #[test]
    fn only_the_signing_key_verifies() {
        let (one, two) = (key(), key());
        let token = one.sign(&json!({"sub": "x"})).unwrap();
        assert_eq!(verify(&token, &[two.public.clone(), one.public.clone()]).unwrap()["sub"], "x");
        assert!(matches!(verify(&token, &[two.public]), Err(JwtError::Signature)));
        let mut forged = token.clone();
        forged.replace_range(forged.len() - 3.., "AAA");
        assert!(verify(&forged, std::slice::from_ref(&one.public)).is_err());
    }

    #[test]
    fn a_key_survives_its_jwk() {
        let key = key().public;
        assert_eq!(VerifyingKey::from_jwk(&key.to_jwk()).unwrap(), key);
    }

    #[test]
    fn nonsense_is_malformed() {
        for token in ["", "a", "a.b", "a.b.c", "....", "e30.e30."] {
            assert!(verify(token, &[]).is_err(), "{token}");
        }
    }
}
