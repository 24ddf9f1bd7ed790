//! Who may do what: everyone, or those of an htpasswd file, by password or by a token that they got for it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;

/// Tokens are good for this long, in seconds.
const TOKEN_LIFE: u64 = 300;
/// Checking a password is slow by design; the last ones that were right are remembered, by their hash.
const REMEMBERED: usize = 1000;

/// An htpasswd file that is none.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum HtpasswdError {
    #[error("line {0} is not user:password")]
    Line(usize),
    #[error("line {0}: only bcrypt passwords are accepted (htpasswd -B)")]
    NotBcrypt(usize),
}

/// Users and the hashes of their passwords.
#[derive(Debug, Default)]
pub struct Htpasswd {
    users: BTreeMap<String, String>,
    right: Mutex<Vec<[u8; 32]>>,
}

impl Htpasswd {
    pub fn parse(text: &str) -> Result<Self, HtpasswdError> {
        let mut users = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (user, hash) = line.split_once(':').ok_or(HtpasswdError::Line(number + 1))?;
            if !["$2a$", "$2b$", "$2y$"].iter().any(|kind| hash.starts_with(kind)) {
                return Err(HtpasswdError::NotBcrypt(number + 1));
            }
            users.insert(user.to_owned(), hash.to_owned());
        }
        Ok(Self { users, right: Mutex::default() })
    }

    /// Whether the password is the user's. Slow: call it where blocking is allowed.
    pub fn check(&self, user: &str, password: &str) -> bool {
        let Some(hash) = self.users.get(user) else { return false };
        let key = format!("{user}\0{hash}\0{password}");
        let mut seen = [0; 32];
        seen.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, key.as_bytes()).as_ref());
        let remembered = |right: &Vec<[u8; 32]>| right.contains(&seen);
        if self.right.lock().is_ok_and(|right| remembered(&right)) {
            return true;
        }
        // `$2y$` is what htpasswd calls `$2b$`.
        let right = bcrypt::verify(password, hash).unwrap_or(false);
        if right && let Ok(mut known) = self.right.lock() {
            if known.len() >= REMEMBERED {
                known.clear();
            }
            known.push(seen);
        }
        right
    }
}

/// How callers are told apart.
#[derive(Debug)]
pub enum Auth {
    /// Not at all.
    Open,
    /// By name and password on every request.
    Basic(Htpasswd),
    /// By a token that is given for name and password.
    Token(Htpasswd, Signer),
}

/// Signs tokens for as long as the process lives.
#[derive(Debug)]
pub struct Signer(hmac::Key);

/// What a token says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claims {
    sub: String,
    exp: u64,
    access: Vec<Access>,
}

/// What may be done to one repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    pub r#type: String,
    pub name: String,
    pub actions: Vec<String>,
}

impl Signer {
    pub fn new() -> Option<Self> {
        let mut key = [0; 32];
        SystemRandom::new().fill(&mut key).ok()?;
        Some(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// A token for these accesses, at a time in seconds.
    pub fn issue(&self, user: &str, access: Vec<Access>, now: u64) -> String {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "typ": "JWT"}).to_string());
        let claims = Claims { sub: user.to_owned(), exp: now.saturating_add(TOKEN_LIFE), access };
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap_or_default()); // strings and numbers
        let text = format!("{header}.{claims}");
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, text.as_bytes()).as_ref());
        format!("{text}.{signature}")
    }

    fn read(&self, token: &str, now: u64) -> Option<Claims> {
        let (text, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, text.as_bytes(), &signature).ok()?;
        let (_, claims) = text.split_once('.')?;
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        (claims.exp > now).then_some(claims)
    }
}

/// What the server does with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    /// Tell how to get in: the value of WWW-Authenticate, and whether what was shown was not enough rather than nothing.
    Challenge {
        how: String,
        denied: bool,
    },
}

/// Name and password of an Authorization header.
pub fn basic(header: Option<&str>) -> Option<(String, String)> {
    let (scheme, value) = header?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(value.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// The scopes of a token request: `repository:name:pull,push`.
pub fn scopes(query: Option<&str>) -> Vec<Access> {
    let values = query.unwrap_or_default().split('&').filter_map(|pair| pair.strip_prefix("scope="));
    let decoded = values.filter_map(|value| super::route::parameter(Some(&format!("s={value}")), "s"));
    decoded
        .take(100)
        .flat_map(|text| text.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|scope| {
            let (kind, rest) = scope.split_once(':')?;
            let (name, actions) = rest.rsplit_once(':')?;
            let actions = actions.split(',').map(str::to_owned).collect();
            Some(Access { r#type: kind.to_owned(), name: name.to_owned(), actions })
        })
        .collect()
}

impl Auth {
    /// Whether a request may go on. `own` is the server's address, for the token's place.
    pub fn judge(
        &self,
        header: Option<&str>,
        wanted: Option<(&str, &'static str)>,
        own: &str,
        now: u64,
    ) -> Verdict {
        match self {
            Self::Open => Verdict::Allowed,
            Self::Basic(users) => match basic(header) {
                Some((user, password)) if users.check(&user, &password) => Verdict::Allowed,
                shown => {
                    let how = "Basic realm=\"Registry Realm\"".to_owned();
                    Verdict::Challenge { how, denied: shown.is_some() }
                }
            },
            Self::Token(_, signer) => {
                let bearer = header
                    .and_then(|value| value.split_once(' '))
                    .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                let claims = bearer.and_then(|(_, token)| signer.read(token.trim(), now));
                let granted = |claims: &Claims| match wanted {
                    None => true,
                    Some((name, action)) => claims.access.iter().any(|access| {
                        access.r#type == "repository"
                            && access.name == name
                            && access.actions.iter().any(|known| known == action || known == "*")
                    }),
                };
                if claims.as_ref().is_some_and(granted) {
                    return Verdict::Allowed;
                }
                let scope = wanted.map_or(String::new(), |(name, action)| {
                    let actions = if action == "push" { "pull,push" } else { action };
                    format!(",scope=\"repository:{name}:{actions}\"")
                });
                let error = if claims.is_some() { ",error=\"insufficient_scope\"" } else { "" };
                let how = format!("Bearer realm=\"{own}/token\",service=\"kelson\"{scope}{error}");
                Verdict::Challenge { how, denied: bearer.is_some() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Htpasswd {
        let hash = bcrypt::hash("secret", 4).unwrap();
        Htpasswd::parse(&format!("# people\n\nann:{hash}\n")).unwrap()
    }

    #[test]
    fn only_the_right_password_is_right_also_the_second_time() {
        let users = users();
        for _ in 0..2 {
            assert!(
                users.check("ann", "secret")
                    && !users.check("ann", "Secret")
                    && !users.check("bob", "secret")
            );
        }
        assert_eq!(Htpasswd::parse("ann:plain").unwrap_err(), HtpasswdError::NotBcrypt(1));
        assert_eq!(Htpasswd::parse("ann").unwrap_err(), HtpasswdError::Line(1));
    }

    #[test]
    fn a_token_is_good_for_what_it_says_until_it_ends() {
        let auth = Auth::Token(users(), Signer::new().unwrap());
        let Auth::Token(_, signer) = &auth else { unreachable!() };
        let token = signer.issue("ann", scopes(Some("service=x&scope=repository%3Aa%2Fb%3Apull")), 1000);
        let header = format!("Bearer {token}");
        let allowed = |header: &str, wanted, now| {
            auth.judge(Some(header), wanted, "https://r", now) == Verdict::Allowed
        };
        assert!(allowed(&header, Some(("a/b", "pull")), 1000));
        assert!(!allowed(&header, Some(("a/b", "push")), 1000));
        assert!(!allowed(&header, Some(("a", "pull")), 1000));
        assert!(!allowed(&header, Some(("a/b", "pull")), 1301));
        let mut forged = token.clone();
        forged.replace_range(40..41, if &token[40..41] == "A" { "B" } else { "A" });
        assert!(!allowed(&format!("Bearer {forged}"), Some(("a/b", "pull")), 1000));
        let Verdict::Challenge { how, denied } = auth.judge(None, Some(("a/b", "push")), "https://r", 0)
        else {
            panic!("let in")
        };
        assert!(!denied && how.contains("scope=\"repository:a/b:pull,push\""), "{how}");
    }
}
