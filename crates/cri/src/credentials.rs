//! Registry credentials as Docker writes them down, and which of them fit an image.
//!
//! A configuration (`{"auths": {"registry.example/team": {"auth": "…"}}}`, or the legacy form without the outer
//! object) becomes a [`Keyring`]; [`Keyring::lookup`] gives what fits an image, the longest place first. Pull secrets,
//! the node's own file, credential providers and the command line all end here.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use thiserror::Error;

use crate::AuthConfig;

/// The place under which Docker keeps the credentials of its own registry.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// A configuration that cannot be read. Says nothing of its content, which is secret.
#[derive(Debug, Error)]
#[error("not a Docker configuration: line {line}, column {column}")]
pub struct BadConfig {
    line: usize,
    column: usize,
}

impl From<serde_json::Error> for BadConfig {
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column() }
    }
}

/// Where credentials are for: a host, perhaps a port, perhaps the beginning of a repository. Host names may have `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    host: String,
    port: String,
    path: String,
}

impl Place {
    /// Reads `https://registry.example:5000/v1/team`, in which everything but the host may be missing.
    fn parse(text: &str) -> Self {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        // Docker's own place has the version of a protocol in it.
        let path = match path.strip_prefix("/v1").or_else(|| path.strip_prefix("/v2")) {
            Some(below) if below.starts_with('/') => below,
            _ => path,
        };
        let (host, port) = split_port(authority);
        Self { host: host.to_owned(), port: port.to_owned(), path: path.trim_end_matches('/').to_owned() }
    }

    /// Whether it is the place of an image named `registry/repository`.
    fn holds(&self, image: &str) -> bool {
        let target = Self::parse(image);
        let (ours, theirs): (Vec<&str>, Vec<&str>) =
            (self.host.split('.').collect(), target.host.split('.').collect());
        self.port == target.port
            && target.path.starts_with(&self.path)
            && ours.len() == theirs.len()
            && ours.iter().zip(&theirs).all(|(pattern, text)| glob(pattern.as_bytes(), text.as_bytes()))
    }
}

fn split_port(authority: &str) -> (&str, &str) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (authority, ""),
    }
}

/// Whether a part of a host name fits a pattern in which `*` stands for any text and `?` for one character.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    // The last star and what it has eaten: going back to it is enough, so the cost is bounded by the product.
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, eaten)) => {
                    p = at + 1;
                    t = eaten + 1;
                    star = Some((at, eaten + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Credentials and their places. Prints nothing secret.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// The longest place first.
    entries: Vec<(Place, AuthConfig)>,
}

impl Keyring {
    /// Adds the content of a `.dockerconfigjson`, a `config.json` or an `auth.json`.
    pub fn add_config(&mut self, json: &[u8]) -> Result<(), BadConfig> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            auths: Entries,
        }
        self.add_entries(serde_json::from_slice::<Config>(json)?.auths);
        Ok(())
    }

    /// Adds the content of a legacy `.dockercfg`.
    pub fn add_legacy(&mut self, json: &[u8]) -> Result<(), BadConfig> {
        self.add_entries(serde_json::from_slice(json)?);
        Ok(())
    }

    /// Adds credentials for a place.
    pub fn add(&mut self, place: &str, auth: AuthConfig) {
        let entry = (Place::parse(place), auth);
        // Reversed, so that a longer path comes before its beginning; equal places in the order of their adding.
        let at = self.entries.partition_point(|(place, _)| *place >= entry.0);
        self.entries.insert(at, entry);
    }

    fn add_entries(&mut self, entries: Entries) {
        for (place, entry) in entries.0 {
            if let Some(auth) = entry.auth(&place) {
                self.add(&place, auth);
            }
        }
    }

    /// Adds everything of another keyring, behind what is equal here.
    pub fn extend(&mut self, other: Self) {
        for (place, auth) in other.entries {
            let at = self.entries.partition_point(|(known, _)| *known >= place);
            self.entries.insert(at, (place, auth));
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What fits an image (`registry/repository`, without tag or digest), in the order in which to try.
    pub fn lookup(&self, image: &str) -> Vec<&AuthConfig> {
        let fitting: Vec<_> =
            self.entries.iter().filter(|(place, _)| place.holds(image)).map(|(_, auth)| auth).collect();
        if fitting.is_empty() && is_default_registry(image) {
            let kept = self.entries.iter().filter(|(place, _)| place.host == DEFAULT_REGISTRY);
            return kept.map(|(_, auth)| auth).collect();
        }
        fitting
    }
}

/// Whether an image is of Docker's registry, said or not.
fn is_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("", _)) => false,
        Some((first, _)) => first == "docker.io" || first == DEFAULT_REGISTRY || !first.contains(['.', ':']),
    }
}

/// The entries in their order: a repeated place is two credentials.
#[derive(Default)]
struct Entries(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of credentials")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Entries(all))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    identitytoken: String,
    registrytoken: String,
}

impl Entry {
    /// `None` where the entry holds nothing, as a credential helper leaves it.
    fn auth(self, place: &str) -> Option<AuthConfig> {
        let (mut username, mut password) = (self.username, self.password);
        if let Some((name, secret)) = decode_basic(&self.auth) {
            (username, password) = (name, secret);
        }
        let auth = AuthConfig {
            username,
            password,
            server_address: place.to_owned(),
            identity_token: self.identitytoken,
            registry_token: self.registrytoken,
            auth: String::new(),
        };
        (!auth.is_empty()).then_some(auth)
    }
}

/// Name and password of the `auth` field: base64 of both with a colon between, padded or not.
pub fn decode_basic(auth: &str) -> Option<(String, String)> {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD_NO_PAD;
    let bytes = STANDARD_NO_PAD.decode(auth.trim().trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (name, secret) = text.split_once(':')?;
    Some((name.to_owned(), secret.trim_end_matches('\0').to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keyring: &Keyring, image: &str) -> Vec<String> {
        keyring.lookup(image).iter().map(|auth| auth.username.clone()).collect()
    }

    #[test]
    fn the_longest_place_is_tried_first() {
        let mut keyring = Keyring::default();
        for (place, name) in [
            ("registry.example", "host"),
            ("https://registry.example/v2/team/app", "app"),
            ("registry.example/team", "team"),
            ("registry.example:5000", "port"),
            ("*.wild.example", "wild"),
        ] {
            keyring.add(place, AuthConfig { username: name.into(), ..AuthConfig::default() });
        }
        assert_eq!(names(&keyring, "registry.example/team/app"), ["app", "team", "host"]);
        assert_eq!(names(&keyring, "registry.example/other"), ["host"]);
        assert_eq!(names(&keyring, "registry.example:5000/team"), ["port"]);
        assert_eq!(names(&keyring, "a.wild.example/x"), ["wild"]);
        assert_eq!(names(&keyring, "a.b.wild.example/x"), Vec::<String>::new());
        assert_eq!(names(&keyring, "registry.example.evil/x"), Vec::<String>::new());
    }

    #[test]
    fn configurations_of_both_forms_are_understood() {
        let mut keyring = Keyring::default();
        let text = br#"{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"r.io":{"username":"a","password":"b"},
            "helper.io":{}, "token.io": {"identitytoken": "t"}}}"#;
        keyring.add_config(text).unwrap();
        keyring.add_legacy(br#"{"old.io":{"auth":"bzpw","email":"x"}}"#).unwrap();
        assert_eq!(names(&keyring, "docker.io/library/nginx"), ["u"]);
        assert_eq!(names(&keyring, "nginx"), ["u"]);
        assert_eq!(names(&keyring, "r.io/x"), ["a"]);
        assert_eq!(names(&keyring, "old.io/x"), ["o"]);
        assert!(names(&keyring, "helper.io/x").is_empty());
        assert_eq!(keyring.lookup("token.io/x")[0].identity_token, "t");
        let error = keyring.add_config(br#"{"auths":{"x":{"password":17}}}"#).unwrap_err();
        assert!(!error.to_string().contains("17"));
        assert!(!format!("{keyring:?}").contains("\"p\""));
    }

    #[test]
    fn patterns_cost_no_more_than_their_product() {
        let pattern = "*a".repeat(2000);
        assert!(!glob(pattern.as_bytes(), "b".repeat(5000).as_bytes()));
        assert!(glob(b"a*c", b"abbc") && !glob(b"a*c", b"abb") && glob(b"?", b"x"));
    }
}
