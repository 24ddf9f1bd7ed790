//! `data:` URLs, RFC 2397.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;

/// Why a text is no data URL.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DataUrlError {
    /// Another scheme.
    #[error("it does not begin with data:")]
    Scheme,
    /// No payload.
    #[error("it has no comma before the payload")]
    Comma,
    /// Bad base64.
    #[error("its payload is not base64")]
    Base64,
    /// Bad `%xx`.
    #[error("its payload has a broken percent escape")]
    Percent,
}

/// Makes a URL that holds `content`.
pub fn encode(content: &[u8]) -> String {
    if content.is_empty() {
        return "data:,".to_owned();
    }
    format!("data:text/plain;charset=utf-8;base64,{}", STANDARD.encode(content))
}

/// Takes the content out of a URL.
pub fn decode(url: &str) -> Result<Vec<u8>, DataUrlError> {
    let rest = url.strip_prefix("data:").ok_or(DataUrlError::Scheme)?;
    let (header, payload) = rest.split_once(',').ok_or(DataUrlError::Comma)?;
    let bytes = percent_decode(payload)?;
    if header.rsplit(';').next() == Some("base64") && header.contains(";base64") {
        return STANDARD.decode(&bytes).map_err(|_| DataUrlError::Base64);
    }
    Ok(bytes)
}

fn percent_decode(text: &str) -> Result<Vec<u8>, DataUrlError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
        match (digit(bytes.next()), digit(bytes.next())) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return Err(DataUrlError::Percent),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_decoded_by_their_header() {
        assert_eq!(decode("data:,").unwrap(), b"");
        assert_eq!(decode("data:,a%20b").unwrap(), b"a b");
        assert_eq!(decode("data:text/plain;charset=utf-8;base64,aGk=").unwrap(), b"hi");
        assert_eq!(decode("data:;base64,aGk=").unwrap(), b"hi");
        assert_eq!(decode(&encode(b"x\0y")).unwrap(), b"x\0y");
        assert_eq!(decode("data:;base64"), Err(DataUrlError::Comma));
        assert_eq!(decode("data:,%4"), Err(DataUrlError::Percent));
        assert_eq!(decode("data:;base64,*"), Err(DataUrlError::Base64));
        assert_eq!(decode("http://x"), Err(DataUrlError::Scheme));
    }
}
