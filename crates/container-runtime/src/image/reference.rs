//! Names of images: `[registry/]repository[:tag][@digest]`, completed as Docker does.

use std::fmt;

use thiserror::Error;

/// Longer names are refused, as by everyone else.
const MAX_NAME: usize = 255;

/// A complete image reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Registry and repository: `docker.io/library/nginx`.
    pub name: String,
    /// Its tag; `latest` when neither tag nor digest was given.
    pub tag: Option<String>,
    /// Its digest: `sha256:…`.
    pub digest: Option<String>,
}

/// Not an image reference.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not an image reference: {reason}")]
pub struct BadReference {
    text: String,
    reason: &'static str,
}

impl Reference {
    /// Parses and completes.
    pub fn parse(text: &str) -> Result<Self, BadReference> {
        let bad = |reason| BadReference { text: text.to_owned(), reason };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) if is_digest(digest) => (rest, Some(digest.to_owned())),
            Some(_) => return Err(bad("the digest must be sha256: and 64 hexadecimal digits")),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (rest, None),
        };
        if let Some(tag) = &tag {
            let fits = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            if tag.is_empty() || tag.len() > 128 || !tag.chars().all(fits) {
                return Err(bad("the tag may have letters, digits, '_', '.' and '-' only"));
            }
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first, rest.to_owned())
            }
            Some(_) => ("docker.io", name.to_owned()),
            None => ("docker.io", format!("library/{name}")),
        };
        if name.len() > MAX_NAME || !is_host(registry) {
            return Err(bad("the registry must be a host name or an address, perhaps with a port"));
        }
        let part_fits = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.-".contains(c))
        };
        if name.is_empty() || !repository.split('/').all(part_fits) {
            return Err(bad("the name must be of lower-case letters, digits, '_', '.', '-' and '/'"));
        }
        let tag = if tag.is_none() && digest.is_none() { Some("latest".to_owned()) } else { tag };
        Ok(Self { name: format!("{registry}/{repository}"), tag, digest })
    }

    /// Host and perhaps port.
    pub fn registry(&self) -> &str {
        self.name.split_once('/').map_or(self.name.as_str(), |(registry, _)| registry)
    }

    /// `name:tag`, where there is a tag.
    pub fn tagged(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.name))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, "0"),
    };
    let inner = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => return address.parse::<std::net::Ipv6Addr>().is_ok() && port.parse::<u16>().is_ok(),
        None => host,
    };
    port.parse::<u16>().is_ok()
        && inner.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        })
}

/// Whether the text is a digest of the only algorithm in use.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|hex| {
        hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let cases = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
            ("kelson.local/demo", "kelson.local/demo:latest"),
            ("localhost/x:1", "localhost/x:1"),
            ("127.0.0.1:5000/a/b", "127.0.0.1:5000/a/b:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
            (&format!("quay.io/x/y@{digest}"), &format!("quay.io/x/y@{digest}")),
            (&format!("quay.io/x/y:1@{digest}"), &format!("quay.io/x/y:1@{digest}")),
        ];
        for (text, complete) in cases {
            assert_eq!(Reference::parse(text).unwrap().to_string(), complete);
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for text in [
            "",
            "Upper",
            "a b",
            "x:",
            "x:a/b:",
            "x@sha256:12",
            "/x",
            "x//y",
            "-x",
            "a b.c/x",
            "h.io:x/y",
            "h.io:99999/y",
            "u:p@h.io/x",
            "h.io#/x",
            "[::1/x",
            "a..b/x",
        ] {
            assert!(Reference::parse(text).is_err(), "{text}");
        }
    }
}
