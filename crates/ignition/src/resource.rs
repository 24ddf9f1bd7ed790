//! Content from a [`Resource`]: fetched, unpacked, and compared with its hash, in that order.

use std::io::Read as _;

use thiserror::Error;

use crate::types::Resource;

/// Why content could not be had.
#[derive(Debug, Error)]
pub enum ResourceError {
    /// Fetching failed.
    #[error("cannot fetch {url}")]
    Fetch {
        /// From where.
        url: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Not gzip.
    #[error("the content is not gzip")]
    Gzip(#[source] std::io::Error),
    /// Another compression.
    #[error("compression {0:?} is unknown")]
    Compression(String),
    /// Another content.
    #[error("the content has hash {actual}, not {expected}")]
    Hash {
        /// As declared.
        expected: String,
        /// As found.
        actual: String,
    },
    /// Another hash function.
    #[error("hash function {0:?} is unknown")]
    HashFunction(String),
}

/// How remote content is brought.
pub type Fetch<'a> = dyn FnMut(&Resource) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> + 'a;

/// Brings and checks the content of a resource; data URLs need no fetching. A resource without source is empty.
pub fn read(resource: &Resource, fetch: &mut Fetch<'_>) -> Result<Vec<u8>, ResourceError> {
    let Some(url) = resource.source.as_deref() else { return Ok(Vec::new()) };
    let fail = |source| ResourceError::Fetch { url: url.to_owned(), source };
    let raw = if url.starts_with("data:") {
        crate::decode_data_url(url).map_err(|error| fail(error.into()))?
    } else {
        fetch(resource).map_err(fail)?
    };
    let content = match resource.compression.as_deref() {
        None | Some("") => raw,
        Some("gzip") => {
            let mut out = Vec::new();
            flate2::read::GzDecoder::new(raw.as_slice())
                .read_to_end(&mut out)
                .map_err(ResourceError::Gzip)?;
            out
        }
        Some(other) => return Err(ResourceError::Compression(other.to_owned())),
    };
    if let Some(expected) = &resource.verification.hash {
        let actual = hash_like(expected, &content)?;
        if !actual.eq_ignore_ascii_case(expected) {
            return Err(ResourceError::Hash { expected: expected.clone(), actual });
        }
    }
    Ok(content)
}

fn hash_like(expected: &str, content: &[u8]) -> Result<String, ResourceError> {
    let function = expected.split('-').next().unwrap_or_default();
    let algorithm = match function {
        "sha256" => &ring::digest::SHA256,
        "sha512" => &ring::digest::SHA512,
        other => return Err(ResourceError::HashFunction(other.to_owned())),
    };
    Ok(format!("{function}-{}", hex(ring::digest::digest(algorithm, content).as_ref())))
}

/// The value of `verification.hash` for this content.
pub fn sha512_hash(content: &[u8]) -> String {
    format!("sha512-{}", hex(ring::digest::digest(&ring::digest::SHA512, content).as_ref()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Verification;
    use std::io::Write as _;

    #[test]
    fn the_hash_is_that_of_the_unpacked_content() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(b"content").unwrap();
        let resource = Resource {
            compression: Some("gzip".to_owned()),
            verification: Verification { hash: Some(sha512_hash(b"content")) },
            ..Resource::inline(&packer.finish().unwrap())
        };
        let mut nothing = |_: &Resource| Err("no network".into());
        assert_eq!(read(&resource, &mut nothing).unwrap(), b"content");
        let wrong = Resource {
            verification: Verification { hash: Some(sha512_hash(b"other")) },
            ..Resource::inline(b"content")
        };
        assert!(matches!(read(&wrong, &mut nothing), Err(ResourceError::Hash { .. })));
        assert!(matches!(read(&Resource::at("http://x"), &mut nothing), Err(ResourceError::Fetch { .. })));
    }
}
