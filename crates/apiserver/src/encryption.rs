//! Encryption at rest: what the store keeps of chosen resources is unreadable without the keys.
//!
//! The configuration is upstream's `EncryptionConfiguration`. The first provider of a resource writes; all of them
//! read, so keys rotate by putting the new one first. Stored values begin with `k8s:enc:<provider>:v1:<key>:`; what
//! stands in the clear is read only where `identity` is among the providers. The bytes behind the mark are those
//! that upstream writes, so that either server reads what the other one stored:
//!
//! | provider    | bytes                                           | bound to the object's key |
//! |-------------|-------------------------------------------------|---------------------------|
//! | `aesgcm`    | 12 bytes of nonce, ciphertext, tag              | yes                       |
//! | `aescbc`    | 16 bytes of IV, ciphertext padded as in PKCS #7 | no                        |
//! | `secretbox` | 24 bytes of nonce, tag, ciphertext              | no                        |

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use aes::{Aes128, Aes192, Aes256};
use base64::Engine;
use bytes::Bytes;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit};
use crypto_secretbox::XSalsa20Poly1305;
use crypto_secretbox::aead::{Aead, KeyInit};
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;

use crate::cache::Open;
use crate::metrics::family::{Counters, Histograms};
use crate::metrics::histogram::CIPHER_SECONDS;
use crate::metrics::page::Page;

/// Every encrypted value begins so, whoever encrypted it.
const MARK: &[u8] = b"k8s:enc:";
const CBC_IV: usize = 16;
const BOX_NONCE: usize = 24;

/// Why the configuration or a value cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// Not YAML, or not in the right form.
    #[error("the encryption configuration is malformed")]
    Malformed(#[from] serde_yaml_ng::Error),
    /// Another kind of document.
    #[error("the encryption configuration is no EncryptionConfiguration but {0:?}")]
    Kind(String),
    /// A key has the wrong length or is no base64.
    #[error("key {name:?} of provider {provider} is not usable: {why}")]
    Key {
        /// The provider.
        provider: &'static str,
        /// The key's name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A provider that is not built in.
    #[error("encryption provider {0:?} is not supported (aesgcm, aescbc, secretbox and identity are)")]
    Provider(String),
    /// A rule without resources, providers or keys.
    #[error("the encryption configuration names no {0}")]
    Empty(&'static str),
    /// No key fits.
    #[error("no configured key opens the value")]
    NoKey,
    /// Encryption failed.
    #[error("the value could not be encrypted")]
    Seal,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    #[allow(dead_code, reason = "part of the form; every version reads alike")]
    api_version: String,
    #[serde(default)]
    resources: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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

/// One key of one provider, or none at all.
enum Provider {
    Identity,
    Keyed { prefix: String, cipher: Cipher },
}

enum Cipher {
    AesGcm(Box<LessSafeKey>),
    AesCbc(Vec<u8>),
    SecretBox(Box<XSalsa20Poly1305>),
}

struct Rules {
    resources: Vec<String>,
    providers: Arc<[Provider]>,
}

/// What is in force for one resource; nothing if no rule names it.
type Slot = Arc<RwLock<Option<Arc<[Provider]>>>>;

/// A resource and what is in force for it.
struct Declared {
    group: String,
    plural: String,
    slot: Slot,
}

/// The configured providers.
pub struct Encryption {
    rules: RwLock<Vec<Rules>>,
    /// By the prefix that things are stored below; filled as resources are declared.
    declared: RwLock<HashMap<Bytes, Declared>>,
    random: SystemRandom,
    counted: Arc<Transformations>,
}

impl Encryption {
    /// Reads an `EncryptionConfiguration`.
    pub fn parse(text: &str) -> Result<Self, EncryptionError> {
        Ok(Self {
            rules: RwLock::new(rules(text)?),
            declared: RwLock::default(),
            random: SystemRandom::new(),
            counted: Arc::default(),
        })
    }

    /// Uses another configuration from now on, for writing and for reading.
    pub fn replace(&self, text: &str) -> Result<(), EncryptionError> {
        let new = rules(text)?;
        let declared = self.declared.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for one in declared.values() {
            let providers = choose(&new, &one.group, &one.plural);
            *one.slot.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = providers;
        }
        *self.rules.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
        Ok(())
    }

    /// Chooses the providers of a resource that is stored below `prefix`: the first rule that names it counts.
    /// Returns the function that opens what is stored there.
    pub fn declare(&self, prefix: &Bytes, group: &str, plural: &str) -> Open {
        let rules = self.rules.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let slot: Slot = Arc::new(RwLock::new(choose(&rules, group, plural)));
        let (counted, resource) = (self.counted.clone(), dotted(group, plural));
        let declared = Declared { group: group.to_owned(), plural: plural.to_owned(), slot: slot.clone() };
        self.declared
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .insert(prefix.clone(), declared);
        Arc::new(move |key, value| {
            let providers = slot.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            match providers {
                Some(providers) => {
                    let (began, mark) = (Instant::now(), mark(&value).to_owned());
                    let opened = open(&providers, key, value);
                    counted.add(&resource, "from_storage", &mark, opened.is_ok(), began);
                    opened.map_err(|error| error.to_string())
                }
                None => Ok(value),
            }
        })
    }

    fn chosen(&self, prefix: &[u8]) -> Option<Arc<[Provider]>> {
        let declared = self.declared.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        declared.get(prefix)?.slot.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The bytes to store.
    pub fn seal(&self, prefix: &[u8], key: &[u8], value: &Bytes) -> Result<Bytes, EncryptionError> {
        match self.chosen(prefix).as_deref().and_then(|providers| providers.first()) {
            None => Ok(value.clone()),
            Some(Provider::Identity) => {
                self.counted.add(&self.resource(prefix), "to_storage", "identity", true, Instant::now());
                Ok(value.clone())
            }
            Some(Provider::Keyed { prefix: own, cipher }) => {
                let (began, mut out) = (Instant::now(), own.clone().into_bytes());
                let sealed = cipher.seal(&self.random, key, value, &mut out);
                let (resource, mark) = (self.resource(prefix), mark(own.as_bytes()));
                self.counted.add(&resource, "to_storage", mark, sealed.is_ok(), began);
                sealed.map(|()| out.into())
            }
        }
    }

    fn resource(&self, prefix: &[u8]) -> String {
        let declared = self.declared.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        declared.get(prefix).map(|own| dotted(&own.group, &own.plural)).unwrap_or_default()
    }

    /// What was sealed and opened.
    pub fn print(&self, page: &mut Page) {
        self.counted.count.print(page);
        self.counted.seconds.print(page);
    }

    /// Whether something else is written below `prefix` now than what is stored: without the first provider's mark.
    /// `None` for what no rule names.
    pub fn is_outdated(&self, prefix: &[u8], stored: &[u8]) -> Option<bool> {
        Some(match self.chosen(prefix)?.first()? {
            Provider::Identity => stored.starts_with(MARK),
            Provider::Keyed { prefix, .. } => !stored.starts_with(prefix.as_bytes()),
        })
    }
}

/// How often values were sealed and opened, and how long that took.
struct Transformations {
    count: Counters<4>,
    seconds: Histograms<2>,
}

impl Default for Transformations {
    fn default() -> Self {
        Self {
            count: Counters::counters(
                "apiserver_storage_transformation_operations_total",
                "Values that were encrypted or decrypted, by outcome.",
                ["resource", "status", "transformation_type", "transformer_prefix"],
            ),
            seconds: Histograms::histograms(
                "apiserver_storage_transformation_duration_seconds",
                "How long that took.",
                ["transformation_type", "transformer_prefix"],
                CIPHER_SECONDS,
            ),
        }
    }
}

impl Transformations {
    fn add(&self, resource: &str, direction: &str, mark: &str, good: bool, began: Instant) {
        let status = if good { "OK" } else { "Unknown" };
        self.count.count([resource, status, direction, mark]);
        if good {
            self.seconds.time([direction, mark], began.elapsed());
        }
    }
}

/// `secrets`, or `things.example.com`.
fn dotted(group: &str, plural: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// Which provider made a value, without its key's name.
fn mark(value: &[u8]) -> &str {
    let known = value.starts_with(MARK).then(|| value.iter().take(64).enumerate());
    let colons = known.into_iter().flatten().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    match colons.into_iter().nth(3).and_then(|end| std::str::from_utf8(&value[..=end]).ok()) {
        Some(mark) => mark,
        None => "identity",
    }
}

fn choose(rules: &[Rules], group: &str, plural: &str) -> Option<Arc<[Provider]>> {
    let rule = rules.iter().find(|rule| rule.resources.iter().any(|own| names(own, group, plural)))?;
    Some(rule.providers.clone())
}

fn rules(text: &str) -> Result<Vec<Rules>, EncryptionError> {
    let document: Document = serde_yaml_ng::from_str(text)?;
    if !document.kind.is_empty() && document.kind != "EncryptionConfiguration" {
        return Err(EncryptionError::Kind(document.kind));
    }
    let mut rules = Vec::new();
    for rule in document.resources {
        if rule.resources.is_empty() {
            return Err(EncryptionError::Empty("resources"));
        }
        let mut providers = Vec::new();
        for (name, value) in rule.providers.into_iter().flatten() {
            match name.as_str().unwrap_or_default() {
                "identity" => providers.push(Provider::Identity),
                "aesgcm" => providers.extend(keyed("aesgcm", value, aes_gcm)?),
                "aescbc" => providers.extend(keyed("aescbc", value, aes_cbc)?),
                "secretbox" => providers.extend(keyed("secretbox", value, secret_box)?),
                other => return Err(EncryptionError::Provider(other.to_owned())),
            }
        }
        if providers.is_empty() {
            return Err(EncryptionError::Empty("providers"));
        }
        rules.push(Rules { resources: rule.resources, providers: providers.into() });
    }
    Ok(rules)
}

/// Whether `resource` of a rule (`secrets`, `things.example.com`, `*.apps`, `*.`, `*.*`) names this one.
fn names(own: &str, group: &str, plural: &str) -> bool {
    match own.split_once('.') {
        None => group.is_empty() && own == plural,
        Some(("*", "*")) => true,
        Some((resource, of)) => of == group && (resource == "*" || resource == plural),
    }
}

/// The bytes that were sealed.
fn open(providers: &[Provider], key: &[u8], value: Bytes) -> Result<Bytes, EncryptionError> {
    for provider in providers {
        match provider {
            Provider::Identity if !value.starts_with(MARK) => return Ok(value),
            Provider::Identity => {}
            Provider::Keyed { prefix, cipher } => {
                if let Some(sealed) = value.strip_prefix(prefix.as_bytes())
                    && let Some(plain) = cipher.open(key, sealed)
                {
                    return Ok(plain.into());
                }
            }
        }
    }
    Err(EncryptionError::NoKey)
}

impl Cipher {
    fn seal(
        &self,
        random: &SystemRandom,
        key: &[u8],
        plain: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncryptionError> {
        let fill = |bytes: &mut [u8]| random.fill(bytes).map_err(|_| EncryptionError::Seal);
        match self {
            Self::AesGcm(secret) => {
                let mut nonce = [0; aead::NONCE_LEN];
                fill(&mut nonce)?;
                let mut sealed = plain.to_vec();
                secret
                    .seal_in_place_append_tag(
                        Nonce::assume_unique_for_key(nonce),
                        Aad::from(key),
                        &mut sealed,
                    )
                    .map_err(|_| EncryptionError::Seal)?;
                out.extend_from_slice(&nonce);
                out.extend_from_slice(&sealed);
            }
            Self::AesCbc(secret) => {
                let mut iv = [0; CBC_IV];
                fill(&mut iv)?;
                out.extend_from_slice(&iv);
                let wrong = |_| EncryptionError::Seal;
                out.extend_from_slice(&match secret.len() {
                    16 => cbc::Encryptor::<Aes128>::new_from_slices(secret, &iv)
                        .map_err(wrong)?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                    24 => cbc::Encryptor::<Aes192>::new_from_slices(secret, &iv)
                        .map_err(wrong)?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                    _ => cbc::Encryptor::<Aes256>::new_from_slices(secret, &iv)
                        .map_err(wrong)?
                        .encrypt_padded_vec_mut::<Pkcs7>(plain),
                });
            }
            Self::SecretBox(secret) => {
                let mut nonce = [0; BOX_NONCE];
                fill(&mut nonce)?;
                out.extend_from_slice(&nonce);
                out.extend_from_slice(
                    &secret.encrypt(&nonce.into(), plain).map_err(|_| EncryptionError::Seal)?,
                );
            }
        }
        Ok(())
    }

    fn open(&self, key: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::AesGcm(secret) => {
                let (nonce, sealed) = sealed.split_first_chunk::<{ aead::NONCE_LEN }>()?;
                let mut sealed = sealed.to_vec();
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let length = secret.open_in_place(nonce, Aad::from(key), &mut sealed).ok()?.len();
                sealed.truncate(length);
                Some(sealed)
            }
            Self::AesCbc(secret) => {
                let (iv, sealed) = sealed.split_first_chunk::<CBC_IV>()?;
                match secret.len() {
                    16 => cbc::Decryptor::<Aes128>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(sealed),
                    24 => cbc::Decryptor::<Aes192>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(sealed),
                    _ => cbc::Decryptor::<Aes256>::new_from_slices(secret, iv)
                        .ok()?
                        .decrypt_padded_vec_mut::<Pkcs7>(sealed),
                }
                .ok()
            }
            Self::SecretBox(secret) => {
                let (nonce, sealed) = sealed.split_first_chunk::<BOX_NONCE>()?;
                secret.decrypt(nonce.into(), sealed).ok()
            }
        }
    }
}

/// The keys of a provider, in order.
fn keyed(
    provider: &'static str,
    value: serde_yaml_ng::Value,
    cipher: fn(&[u8]) -> Result<Cipher, &'static str>,
) -> Result<Vec<Provider>, EncryptionError> {
    let keys: Keys = serde_yaml_ng::from_value(value)?;
    if keys.keys.is_empty() {
        return Err(EncryptionError::Empty("keys"));
    }
    let one = |key: NamedKey| {
        let wrong = |why| EncryptionError::Key { provider, name: key.name.clone(), why };
        if key.name.is_empty() || key.name.contains(':') {
            return Err(wrong("its name must not be empty and must not contain a colon"));
        }
        let secret = base64::engine::general_purpose::STANDARD
            .decode(key.secret.trim())
            .map_err(|_| wrong("the secret is no base64"))?;
        let cipher = cipher(&secret).map_err(wrong)?;
        Ok(Provider::Keyed { prefix: format!("k8s:enc:{provider}:v1:{}:", key.name), cipher })
    };
    keys.keys.into_iter().map(one).collect()
}

fn aes_gcm(secret: &[u8]) -> Result<Cipher, &'static str> {
    let why = "the secret must have 16 or 32 bytes";
    let algorithm = match secret.len() {
        16 => &aead::AES_128_GCM,
        32 => &aead::AES_256_GCM,
        _ => return Err(why),
    };
    let unbound = UnboundKey::new(algorithm, secret).map_err(|_| why)?;
    Ok(Cipher::AesGcm(Box::new(LessSafeKey::new(unbound))))
}

fn aes_cbc(secret: &[u8]) -> Result<Cipher, &'static str> {
    match secret.len() {
        16 | 24 | 32 => Ok(Cipher::AesCbc(secret.to_vec())),
        _ => Err("the secret must have 16, 24 or 32 bytes"),
    }
}

fn secret_box(secret: &[u8]) -> Result<Cipher, &'static str> {
    let cipher = XSalsa20Poly1305::new_from_slice(secret).map_err(|_| "the secret must have 32 bytes")?;
    Ok(Cipher::SecretBox(Box::new(cipher)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 2] =
        ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "HwEDBQcJCwgKDAIEBg8NHh0cGxoZGBcWFRQTEhEQDg4="];
    const PREFIX: Bytes = Bytes::from_static(b"/registry/secrets/");

    fn config(provider: &str, order: &[usize], identity: bool) -> Arc<Encryption> {
        let keys: String = order
            .iter()
            .map(|index| format!("      - name: key{index}\n        secret: {}\n", KEYS[*index]))
            .collect();
        let identity = if identity { "  - identity: {}\n" } else { "" };
        let text = format!(
            "kind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - {provider}:\n      keys:\n{keys}{identity}"
        );
        Arc::new(Encryption::parse(&text).unwrap())
    }

    #[test]
    fn values_are_sealed_opened_and_survive_rotation() {
        let key = b"/registry/secrets/a/b";
        let plain = Bytes::from_static(b"{\"kind\":\"Secret\"}");
        for provider in ["aesgcm", "aescbc", "secretbox"] {
            let (old, rotated) = (config(provider, &[0], true), config(provider, &[1, 0], false));
            let open_old = old.declare(&PREFIX, "", "secrets");
            let open_rotated = rotated.declare(&PREFIX, "", "secrets");
            let sealed = old.seal(&PREFIX, key, &plain).unwrap();
            assert!(sealed.starts_with(format!("k8s:enc:{provider}:v1:key0:").as_bytes()));
            assert!(!sealed.windows(6).any(|part| part == b"Secret"), "{provider}");
            assert_eq!(open_rotated(key, sealed.clone()).unwrap(), plain);
            let again = rotated.seal(&PREFIX, key, &plain).unwrap();
            assert!(again.starts_with(format!("k8s:enc:{provider}:v1:key1:").as_bytes()));
            assert!(open_old(key, again).is_err(), "{provider}: the new key is not known to the old server");
            let elsewhere = open_old(b"/registry/secrets/other", sealed.clone());
            assert_eq!(elsewhere.is_err(), provider == "aesgcm", "only aesgcm is bound to its key");
            assert!(open_old(key, sealed.slice(..sealed.len() - 1)).is_err(), "{provider}: cut off");
            assert_eq!(open_old(key, plain.clone()).unwrap(), plain, "identity reads what is in the clear");
            assert!(open_rotated(key, plain.clone()).is_err(), "and nothing else does");
            let open_pods = old.declare(&Bytes::from_static(b"/registry/pods/"), "", "pods");
            assert_eq!(open_pods(b"/registry/pods/a", plain.clone()).unwrap(), plain);
            assert_eq!(old.seal(b"/registry/pods/", key, &plain).unwrap(), plain);
        }
    }

    #[test]
    fn another_configuration_takes_over_while_in_use() {
        let key = b"/registry/secrets/a/b";
        let plain = Bytes::from_static(b"{}");
        let own = config("aesgcm", &[0], false);
        let open = own.declare(&PREFIX, "", "secrets");
        let pods = Bytes::from_static(b"/registry/pods/");
        own.declare(&pods, "", "pods");
        let first = own.seal(&PREFIX, key, &plain).unwrap();
        assert!(own.replace("kind: Nothing").is_err());
        assert_eq!(open(key, first.clone()).unwrap(), plain, "what was in force stays");
        let secret = |index: usize| format!("{{name: key{index}, secret: {}}}", KEYS[index]);
        own.replace(&format!(
            "kind: EncryptionConfiguration\nresources: [{{resources: [secrets, pods], providers: [secretbox: {{keys: [{}]}}, aesgcm: {{keys: [{}]}}]}}]",
            secret(1), secret(0)
        ))
        .unwrap();
        assert_eq!(own.is_outdated(&PREFIX, &first), Some(true));
        assert_eq!(open(key, first).unwrap(), plain);
        let second = own.seal(&PREFIX, key, &plain).unwrap();
        assert!(second.starts_with(b"k8s:enc:secretbox:v1:key1:"));
        assert!(own.seal(&pods, key, &plain).unwrap().starts_with(b"k8s:enc:secretbox"));
    }

    #[test]
    fn rules_name_resources_by_group_and_wildcard() {
        for (own, group, plural, want) in [
            ("secrets", "", "secrets", true),
            ("secrets", "example.com", "secrets", false),
            ("things.example.com", "example.com", "things", true),
            ("*.apps", "apps", "deployments", true),
            ("*.apps", "", "pods", false),
            ("*.", "", "pods", true),
            ("*.", "apps", "deployments", false),
            ("*.*", "apps", "deployments", true),
            ("*.*", "", "pods", true),
        ] {
            assert_eq!(names(own, group, plural), want, "{own} {group}/{plural}");
        }
    }

    #[test]
    fn bad_configurations_say_what_is_wrong() {
        let rule =
            |providers: &str| format!("resources: [{{resources: [secrets], providers: [{providers}]}}]");
        for (text, want) in [
            (rule("kms: {name: x}"), "\"kms\" is not supported"),
            (rule("aescbc: {keys: [{name: a, secret: AAAA}]}"), "16, 24 or 32"),
            (rule("secretbox: {keys: [{name: a, secret: AAAA}]}"), "32 bytes"),
            (rule("aesgcm: {keys: [{name: a, secret: '!'}]}"), "base64"),
            (rule("aesgcm: {keys: []}"), "no keys"),
            (rule(""), "no providers"),
            ("kind: Secret".to_owned(), "no EncryptionConfiguration"),
        ] {
            let said = Encryption::parse(&text).err().expect(want).to_string();
            assert!(said.contains(want), "{said}");
        }
    }
}
