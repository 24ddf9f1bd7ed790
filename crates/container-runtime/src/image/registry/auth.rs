//! Challenges of registries and the credentials that answer them.
//!
//! A registry answers 401 with `WWW-Authenticate: Bearer realm="…",service="…",scope="…"` or `Basic`. For the first a token
//! is asked of the realm. Only the registry that was asked may challenge: whoever it redirects to gets nothing
//! (CVE-2020-15157), and a secure registry cannot send us to an insecure realm.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cri::AuthConfig;
use http::HeaderValue;
use serde::Deserialize;
use thiserror::Error;

/// Why no answer to a challenge was found.
#[derive(Debug, Error)]
pub enum AuthError {
    #[error("the registry asks for authentication in no way that is known here: {0:?}")]
    Unknown(String),
    #[error(
        "the registry names {realm:?} as the place of its tokens, which is no place to send credentials to"
    )]
    Realm { realm: String },
    #[error("the answer of {realm} holds no token")]
    NoToken { realm: String },
    #[error("the credentials hold characters that no header can carry")]
    Header,
}

/// What a registry wants to see.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer { realm: String, service: String, scope: String },
}

/// Reads the challenges of an answer and chooses: tokens before passwords.
pub fn choose(headers: &[&str]) -> Result<Challenge, AuthError> {
    let mut basic = false;
    for header in headers {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            let (mut realm, mut service, mut scope) = (String::new(), String::new(), String::new());
            for (key, value) in parameters(rest) {
                match key.to_ascii_lowercase().as_str() {
                    "realm" => realm = value,
                    "service" => service = value,
                    "scope" => scope = value,
                    _ => {}
                }
            }
            return Ok(Challenge::Bearer { realm, service, scope });
        }
        basic |= scheme.eq_ignore_ascii_case("basic");
    }
    match basic {
        true => Ok(Challenge::Basic),
        false => Err(AuthError::Unknown(headers.join(", "))),
    }
}

/// `key="value", key=value`: values may be quoted and then hold commas.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while let Some((key, after)) = rest.split_once('=') {
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => {
                let mut value = String::new();
                let mut characters = quoted.char_indices();
                let mut end = quoted.len();
                while let Some((at, character)) = characters.next() {
                    match character {
                        '"' => {
                            end = at + 1;
                            break;
                        }
                        '\\' => value.extend(characters.next().map(|(_, character)| character)),
                        character => value.push(character),
                    }
                }
                (value, &quoted[end..])
            }
            None => {
                let (value, left) = after.split_once(',').unwrap_or((after, ""));
                (value.trim().to_owned(), left)
            }
        };
        all.push((key.trim().to_owned(), value));
        rest = left.trim_start_matches([' ', ',']);
    }
    all
}

/// A request for a token.
#[derive(Debug, PartialEq, Eq)]
pub struct TokenRequest {
    pub url: String,
    /// A form to post; otherwise the URL is read.
    pub form: Option<String>,
    /// Whether name and password go along.
    pub basic: bool,
}

/// How to ask the realm. `secure` says whether the registry itself was reached securely.
pub fn token_request(
    challenge: (&str, &str, &str),
    wanted_scope: &str,
    auth: Option<&AuthConfig>,
    secure: bool,
) -> Result<TokenRequest, AuthError> {
    let (realm, service, scope) = challenge;
    let is_place = realm.starts_with("https://") || (!secure && realm.starts_with("http://"));
    if !is_place || realm.contains('@') || realm.contains('#') {
        return Err(AuthError::Realm { realm: realm.to_owned() });
    }
    // The registry's own words, if it has any: it knows what its token must say.
    let scope = if scope.is_empty() { wanted_scope } else { scope };
    if let Some(auth) = auth.filter(|auth| !auth.identity_token.is_empty()) {
        let form = format!(
            "grant_type=refresh_token&service={}&client_id=kelson&scope={}&refresh_token={}",
            encode(service),
            encode(scope),
            encode(&auth.identity_token)
        );
        return Ok(TokenRequest { url: realm.to_owned(), form: Some(form), basic: false });
    }
    let joint = if realm.contains('?') { '&' } else { '?' };
    let mut url = format!("{realm}{joint}service={}&scope={}", encode(service), encode(scope));
    let basic = auth.and_then(AuthConfig::basic);
    if let Some((name, _)) = &basic {
        url.push_str(&format!("&account={}", encode(name)));
    }
    Ok(TokenRequest { url, form: None, basic: basic.is_some() })
}

/// A text as part of a query.
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The token in the realm's answer, as a header.
pub fn token_in(answer: &[u8], realm: &str) -> Result<HeaderValue, AuthError> {
    let missing = || AuthError::NoToken { realm: realm.to_owned() };
    let answer: TokenAnswer = serde_json::from_slice(answer).map_err(|_| missing())?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token);
    secret_header(&format!("Bearer {}", token.filter(|token| !token.is_empty()).ok_or_else(missing)?))
}

/// Name and password as a header.
pub fn basic_header(auth: &AuthConfig) -> Option<Result<HeaderValue, AuthError>> {
    let (name, password) = auth.basic()?;
    Some(secret_header(&format!("Basic {}", STANDARD.encode(format!("{name}:{password}")))))
}

/// A header that nothing prints.
pub fn secret_header(text: &str) -> Result<HeaderValue, AuthError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| AuthError::Header)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: &str, scope: &str) -> Challenge {
        Challenge::Bearer { realm: realm.into(), service: service.into(), scope: scope.into() }
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let header =
            r#"Bearer realm="https://auth.example/token",service="reg",scope="repository:a/b:pull,push""#;
        assert_eq!(
            choose(&["Basic realm=\"x\"", header]).unwrap(),
            bearer("https://auth.example/token", "reg", "repository:a/b:pull,push")
        );
        assert_eq!(
            choose(&[r#"bearer realm="https://a/\"q\"", service=reg"#]).unwrap(),
            bearer("https://a/\"q\"", "reg", "")
        );
        assert_eq!(choose(&["BASIC realm=x"]).unwrap(), Challenge::Basic);
        for broken in ["Negotiate", "", "Digest realm=\"x\""] {
            assert!(choose(&[broken]).is_err(), "{broken}");
        }
        for broken in ["Bearer realm=\"", "Bearer =", "Bearer realm", "Bearer realm=\"a\\"] {
            assert!(choose(&[broken]).is_ok(), "{broken}: the realm is judged later");
        }
    }

    #[test]
    fn credentials_go_to_no_doubtful_realm() {
        let auth = AuthConfig { username: "u".into(), password: "p".into(), ..AuthConfig::default() };
        for realm in ["http://a/t", "ftp://a", "", "https://u:p@a/t", "//a"] {
            assert!(token_request((realm, "", ""), "", Some(&auth), true).is_err(), "{realm}");
        }
        let request = token_request(("http://a/t?x=1", "s v", "sc"), "", Some(&auth), false).unwrap();
        assert_eq!(request.url, "http://a/t?x=1&service=s%20v&scope=sc&account=u");
        assert!(request.basic);
        let refresh = AuthConfig { identity_token: "r&r".into(), ..AuthConfig::default() };
        let request = token_request(("https://a/t", "s", ""), "w", Some(&refresh), true).unwrap();
        assert_eq!(request.url, "https://a/t");
        assert!(request.form.unwrap().ends_with("scope=w&refresh_token=r%26r"));
    }

    #[test]
    fn tokens_have_two_names() {
        assert_eq!(token_in(br#"{"access_token":"a"}"#, "r").unwrap(), "Bearer a");
        assert_eq!(token_in(br#"{"token":"t","access_token":"a"}"#, "r").unwrap(), "Bearer t");
        for bad in ["{}", "", "{\"token\":\"\"}", "{\"token\":\"a\\nb\"}"] {
            assert!(token_in(bad.as_bytes(), "r").is_err(), "{bad}");
        }
    }
}
