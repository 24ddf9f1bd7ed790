//! What a path asks for. Pure.

use http::Method;

use crate::error::Refusal;

/// Names are at most this long.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Whether this is a registry at all, and whether one is let in.
    Base,
    Catalog,
    Tags {
        name: String,
    },
    Manifest {
        name: String,
        reference: Reference,
    },
    Blob {
        name: String,
        digest: Digest,
    },
    Uploads {
        name: String,
    },
    Upload {
        name: String,
        id: String,
    },
    Referrers {
        name: String,
        digest: Digest,
    },
    Token,
}

/// A tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    Tag(String),
    Digest(Digest),
}

impl std::fmt::Display for Reference {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tag(tag) => out.write_str(tag),
            Self::Digest(digest) => digest.fmt(out),
        }
    }
}

/// `sha256:` and 64 small hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix("sha256:")?;
        let small = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (hex.len() == 64 && hex.bytes().all(small)).then(|| Self(text.to_owned()))
    }

    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
    }

    /// From the hash itself.
    pub fn finish(hash: &[u8]) -> Self {
        use std::fmt::Write;
        Self(hash.iter().fold("sha256:".to_owned(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}"); // a String takes everything
            text
        }))
    }

    pub fn hex(&self) -> &str {
        self.0.trim_start_matches("sha256:")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

/// Whether a repository may be called this: parts of small letters and digits, with `.`, `_`, `__` or dashes between.
pub fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = part.as_bytes();
        let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
        let mut separators =
            part.split(|letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit());
        word(*first)
            && word(*last)
            && separators
                .all(|run| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'))
    };
    !name.is_empty() && name.len() <= MAX_NAME && name.split('/').all(part)
}

/// Whether a tag may be called this.
pub fn is_tag(tag: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !tag.is_empty() && tag.len() <= MAX_TAG && tag.bytes().all(inner) && !tag.starts_with(['.', '-'])
}

/// Reads a path. `None` is a path of no meaning.
pub fn route(path: &str) -> Option<Result<Route, Refusal>> {
    if path == "/token" {
        return Some(Ok(Route::Token));
    }
    let rest = path.strip_prefix("/v2")?;
    if matches!(rest, "" | "/") {
        return Some(Ok(Route::Base));
    }
    let rest = rest.strip_prefix('/')?;
    if rest == "_catalog" {
        return Some(Ok(Route::Catalog));
    }
    if let Some(name) = rest.strip_suffix("/tags/list") {
        return Some(named(name, |name| Ok(Route::Tags { name })));
    }
    if let Some(name) = rest.strip_suffix("/blobs/uploads/").or_else(|| rest.strip_suffix("/blobs/uploads")) {
        return Some(named(name, |name| Ok(Route::Uploads { name })));
    }
    let (before, last) = rest.rsplit_once('/')?;
    let digest = || Digest::parse(last).ok_or_else(|| Refusal::digest("it must be sha256: and 64 digits"));
    if let Some(name) = before.strip_suffix("/manifests") {
        let reference = match last.contains(':') {
            true => digest().map(Reference::Digest),
            false if is_tag(last) => Ok(Reference::Tag(last.to_owned())),
            false => {
                let status = http::StatusCode::BAD_REQUEST;
                Err(Refusal::new(status, "TAG_INVALID", "manifest tag did not match URI"))
            }
        };
        return Some(named(name, |name| Ok(Route::Manifest { name, reference: reference? })));
    }
    if let Some(name) = before.strip_suffix("/blobs/uploads") {
        let id = last.to_owned();
        let well = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        return Some(named(name, |name| match well {
            true => Ok(Route::Upload { name, id }),
            false => Err(Refusal::unknown_upload()),
        }));
    }
    if let Some(name) = before.strip_suffix("/blobs") {
        return Some(named(name, |name| Ok(Route::Blob { name, digest: digest()? })));
    }
    if let Some(name) = before.strip_suffix("/referrers") {
        return Some(named(name, |name| Ok(Route::Referrers { name, digest: digest()? })));
    }
    None
}

fn named(name: &str, make: impl FnOnce(String) -> Result<Route, Refusal>) -> Result<Route, Refusal> {
    if is_name(name) { make(name.to_owned()) } else { Err(Refusal::name(name)) }
}

impl Route {
    /// The repository and what is done to it: `pull`, `push` or `delete`.
    pub fn access(&self, method: &Method) -> Option<(&str, &'static str)> {
        let name = match self {
            Self::Base | Self::Catalog | Self::Token => return None,
            Self::Tags { name }
            | Self::Manifest { name, .. }
            | Self::Blob { name, .. }
            | Self::Uploads { name }
            | Self::Upload { name, .. }
            | Self::Referrers { name, .. } => name,
        };
        let upload = matches!(self, Self::Uploads { .. } | Self::Upload { .. });
        let action = match *method {
            _ if upload => "push",
            Method::GET | Method::HEAD => "pull",
            Method::DELETE => "delete",
            _ => "push",
        };
        Some((name, action))
    }
}

/// The value of a parameter of a query, decoded.
pub fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| decode(value))
}

fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |byte: Option<u8>| byte.and_then(|byte| (byte as char).to_digit(16));
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let rest = bytes.clone();
                match (hex(bytes.next()), hex(bytes.next())) {
                    (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                    _ => {
                        out.push(b'%');
                        bytes = rest;
                    }
                }
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_are_none() {
        for good in ["a", "a/b", "a.b/c_d/e__f/g--h", "0/1", "library/busybox"] {
            assert!(is_name(good), "{good}");
        }
        for bad in
            ["", "/a", "a/", "a//b", "..", "a/..", "a/../b", "A", "a b", "_a", "a_", "a..b", "a._b", "a\0"]
        {
            assert!(!is_name(bad), "{bad}");
        }
        assert!(!is_name(&"a".repeat(256)));
        for bad in ["", ".", "..", ".x", "-x", "a/b", "a:b", &"t".repeat(129)] {
            assert!(!is_tag(bad), "{bad}");
        }
        assert!(is_tag("v1.0_a-B") && is_tag("_x"));
    }

    #[test]
    fn paths_say_what_is_asked_for() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let found = |path: &str| route(path).unwrap().unwrap();
        assert_eq!(found("/v2/"), Route::Base);
        assert_eq!(found("/v2/a/b/tags/list"), Route::Tags { name: "a/b".into() });
        assert_eq!(
            found("/v2/a/manifests/latest"),
            Route::Manifest { name: "a".into(), reference: Reference::Tag("latest".into()) }
        );
        assert_eq!(
            found(&format!("/v2/a/blobs/{digest}")),
            Route::Blob { name: "a".into(), digest: Digest::parse(&digest).unwrap() }
        );
        assert_eq!(found("/v2/a/blobs/uploads/"), Route::Uploads { name: "a".into() });
        let id = "0".repeat(32);
        assert_eq!(
            found(&format!("/v2/a/blobs/uploads/{id}")),
            Route::Upload { name: "a".into(), id: id.clone() }
        );
        assert!(route("/v1/").is_none() && route("/v2").is_some() && route("/v2x").is_none());
        let refused = |path: &str| route(path).unwrap().unwrap_err().code;
        assert_eq!(refused("/v2/A/tags/list"), "NAME_INVALID");
        assert_eq!(refused("/v2/../manifests/x"), "NAME_INVALID");
        assert_eq!(refused("/v2/a/blobs/sha256:12"), "DIGEST_INVALID");
        assert_eq!(refused("/v2/a/blobs/uploads/..%2f..%2fx"), "BLOB_UPLOAD_UNKNOWN");
    }

    #[test]
    fn parameters_are_decoded() {
        assert_eq!(parameter(Some("n=3&last=a%2Fb+c"), "last").as_deref(), Some("a/b c"));
        assert_eq!(parameter(Some("last=%zz%4"), "last").as_deref(), Some("%zz%4"));
        assert_eq!(parameter(None, "n"), None);
    }
}
