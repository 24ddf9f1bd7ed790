//! Encryption at rest: what the store keeps of chosen resources is unreadable without the keys.
//!
//! The configuration is upstream's `EncryptionConfiguration`. The first provider of a resource writes; all of them
//! read, so keys rotate by putting the new one first. Stored values begin with `k8s:enc:<provider>:v1:<key>:`.

use std::sync::Arc;

use base64::Engine;
use bytes::Bytes;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;

use crate::cache::Open;

/// Why the configuration or a value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// Not YAML, or not in the right form.
    #[error("the encryption configuration is malformed")]
    Malformed(#[from] serde_yaml_ng::Error),
    /// A key has the wrong length or is no base64.
    #[error("key {name:?} of provider {provider} is not usable")]
    Key {
        /// The provider.
        provider: &'static str,
        /// The key's name.
        name: String,
    },
    /// A provider that is not built in.
    #[error("encryption provider {0} is not supported")]
    Provider(String),
    /// No key fits.
    #[error("no configured key opens the value")]
    NoKey,
    /// Encryption failed.
    #[error("the value could not be encrypted")]
    Seal,
}

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    resources: Vec<Rule>,
}

#[derive(Deserialize)]
struct Rule {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<serde_yaml_ng::Mapping>,
}

#[derive(Deserialize)]
struct Keys {
    #[serde(default)]
    keys: Vec<NamedKey>,
}

#[derive(Deserialize)]
struct NamedKey {
    name: String,
    secret: String,
}

enum Provider {
    Identity,
    AesGcm { prefix: String, key: Box<LessSafeKey> },
}

struct Rules {
    resources: Vec<String>,
    providers: Vec<Provider>,
}

/// The configured providers.
pub struct Encryption {
    rules: Vec<Rules>,
    random: SystemRandom,
}

impl Encryption {
    /// Reads an `EncryptionConfiguration`.
    pub fn parse(text: &str) -> Result<Self, EncryptionError> {
        let document: Document = serde_yaml_ng::from_str(text)?;
        let mut rules = Vec::new();
        for rule in document.resources {
            let mut providers = Vec::new();
            for entry in rule.providers {
                for (name, value) in entry {
                    match name.as_str().unwrap_or_default() {
                        "identity" => providers.push(Provider::Identity),
                        "aesgcm" => {
                            let keys: Keys = serde_yaml_ng::from_value(value)?;
                            for key in keys.keys {
                                providers.push(aes_gcm(&key)?);
                            }
                        }
                        other => return Err(EncryptionError::Provider(other.to_owned())),
                    }
                }
            }
            rules.push(Rules { resources: rule.resources, providers });
        }
        Ok(Self { rules, random: SystemRandom::new() })
    }

    fn providers(&self, prefix: &[u8]) -> &[Provider] {
        let resource = resource_of(prefix);
        self.rules
            .iter()
            .find(|rule| rule.resources.iter().any(|own| *own == resource || own == "*." || own == "*.*"))
            .map_or(&[], |rule| &rule.providers)
    }

    /// The bytes to store.
    pub fn seal(&self, prefix: &[u8], key: &[u8], value: &Bytes) -> Result<Bytes, EncryptionError> {
        match self.providers(prefix).first() {
            None | Some(Provider::Identity) => Ok(value.clone()),
            Some(Provider::AesGcm { prefix, key: secret }) => {
                let mut nonce = [0; aead::NONCE_LEN];
                self.random.fill(&mut nonce).map_err(|_| EncryptionError::Seal)?;
                let mut sealed = value.to_vec();
                secret
                    .seal_in_place_append_tag(
                        Nonce::assume_unique_for_key(nonce),
                        Aad::from(key),
                        &mut sealed,
                    )
                    .map_err(|_| EncryptionError::Seal)?;
                Ok(Bytes::from([prefix.as_bytes(), &nonce, &sealed].concat()))
            }
        }
    }

    /// The bytes that were sealed.
    pub fn open(&self, prefix: &[u8], key: &[u8], value: Bytes) -> Result<Bytes, EncryptionError> {
        if !value.starts_with(b"k8s:enc:") {
            return Ok(value);
        }
        for provider in self.providers(prefix) {
            let Provider::AesGcm { prefix, key: secret } = provider else { continue };
            let Some(body) = value.strip_prefix(prefix.as_bytes()) else { continue };
            let Some((nonce, sealed)) = body.split_first_chunk::<{ aead::NONCE_LEN }>() else { continue };
            let mut sealed = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            if let Ok(plain) = secret.open_in_place(nonce, Aad::from(key), &mut sealed) {
                return Ok(Bytes::copy_from_slice(plain));
            }
        }
        Err(EncryptionError::NoKey)
    }

    /// A function that opens what is stored below a prefix.
    pub fn opener(self: &Arc<Self>, prefix: &Bytes) -> Open {
        let (own, prefix) = (self.clone(), prefix.clone());
        Arc::new(move |key, value| own.open(&prefix, key, value).map_err(|error| error.to_string()))
    }
}

/// `secrets` of `/registry/secrets/`, `things.example.com` of `/registry/example.com/things/`.
fn resource_of(prefix: &[u8]) -> String {
    let text = String::from_utf8_lossy(prefix);
    let parts: Vec<&str> = text.trim_matches('/').split('/').skip(1).collect();
    match parts.as_slice() {
        [group, plural] if group.contains('.') => format!("{plural}.{group}"),
        ["services", "specs"] => "services".to_owned(),
        ["services", plural] => (*plural).to_owned(),
        ["minions"] => "nodes".to_owned(),
        ["controllers"] => "replicationcontrollers".to_owned(),
        [plural, ..] => (*plural).to_owned(),
        [] => String::new(),
    }
}

fn aes_gcm(key: &NamedKey) -> Result<Provider, EncryptionError> {
    let broken = || EncryptionError::Key { provider: "aesgcm", name: key.name.clone() };
    let secret = base64::engine::general_purpose::STANDARD.decode(key.secret.trim()).map_err(|_| broken())?;
    let algorithm = match secret.len() {
        16 => &aead::AES_128_GCM,
        32 => &aead::AES_256_GCM,
        _ => return Err(broken()),
    };
    let unbound = UnboundKey::new(algorithm, &secret).map_err(|_| broken())?;
    Ok(Provider::AesGcm {
        prefix: format!("k8s:enc:aesgcm:v1:{}:", key.name),
        key: Box::new(LessSafeKey::new(unbound)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 2] =
        ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "HwEDBQcJCwgKDAIEBg8NHh0cGxoZGBcWFRQTEhEQDg4="];

    fn config(order: &[usize]) -> Encryption {
        let keys: String = order
            .iter()
            .map(|index| format!("      - name: key{index}\n        secret: {}\n", KEYS[*index]))
            .collect();
        let text = format!(
            "resources:\n- resources: [secrets]\n  providers:\n  - aesgcm:\n      keys:\n{keys}  - identity: {{}}\n"
        );
        Encryption::parse(&text).unwrap()
    }

    #[test]
    fn values_are_sealed_opened_and_survive_rotation() {
        let (old, rotated) = (config(&[0]), config(&[1, 0]));
        let (prefix, key) = (b"/registry/secrets/", b"/registry/secrets/a/b");
        let plain = Bytes::from_static(b"{\"kind\":\"Secret\"}");
        let sealed = old.seal(prefix, key, &plain).unwrap();
        assert!(sealed.starts_with(b"k8s:enc:aesgcm:v1:key0:"));
        assert_eq!(rotated.open(prefix, key, sealed.clone()).unwrap(), plain);
        assert!(rotated.seal(prefix, key, &plain).unwrap().starts_with(b"k8s:enc:aesgcm:v1:key1:"));
        assert!(old.open(prefix, b"/registry/secrets/other", sealed).is_err(), "bound to its key");
        assert_eq!(old.seal(b"/registry/pods/", key, &plain).unwrap(), plain);
        assert_eq!(
            old.open(prefix, key, plain.clone()).unwrap(),
            plain,
            "what was stored in the clear stays readable"
        );
    }
}
