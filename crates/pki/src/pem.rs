//! PEM blocks: reading all of a file, writing one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::PkiError;

/// One `BEGIN`/`END` block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What stands after `BEGIN`: `CERTIFICATE`, `PRIVATE KEY`, …
    pub label: String,
    /// The decoded content.
    pub der: Vec<u8>,
}

/// Writes one block with 64 columns, as openssl does.
pub fn encode(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let mut out = String::with_capacity(body.len() + body.len() / 64 + 2 * label.len() + 32);
    out.push_str(&format!("-----BEGIN {label}-----\n"));
    for line in body.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}

/// Reads every block; text between blocks is ignored, as openssl prints some there.
pub fn decode(text: &[u8]) -> Result<Vec<Block>, PkiError> {
    let text = std::str::from_utf8(text).map_err(|_| PkiError::Pem("not text"))?;
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----")) {
            if open.is_some() {
                return Err(PkiError::Pem("a block begins inside another"));
            }
            open = Some((label.to_owned(), String::new()));
        } else if let Some(label) = line.strip_prefix("-----END ").and_then(|l| l.strip_suffix("-----")) {
            let (begun, body) = open.take().ok_or(PkiError::Pem("a block ends that never began"))?;
            if begun != label {
                return Err(PkiError::Pem("a block ends under another name than it began"));
            }
            let der = STANDARD.decode(body).map_err(|_| PkiError::Pem("a block is not base64"))?;
            blocks.push(Block { label: begun, der });
        } else if let Some((_, body)) = &mut open {
            // RFC 1421 headers (`Proc-Type: 4,ENCRYPTED`) hold a colon; base64 never does.
            if line.contains(':') {
                return Err(PkiError::Pem("encrypted or headed blocks are not read"));
            }
            body.push_str(line);
        }
    }
    if open.is_some() {
        return Err(PkiError::Pem("a block does not end"));
    }
    Ok(blocks)
}

/// The DER of each `CERTIFICATE` block, for rustls and for bundles.
pub fn certificates(text: &[u8]) -> Result<Vec<rustls_pki_types::CertificateDer<'static>>, PkiError> {
    Ok(decode(text)?
        .into_iter()
        .filter(|block| block.label == "CERTIFICATE")
        .map(|block| block.der.into())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_among_other_text() {
        let text = format!("subject=x\n{}noise\n{}", encode("A B", &[1; 100]), encode("C", &[]));
        let blocks = decode(text.as_bytes()).unwrap();
        assert_eq!(blocks.len(), 2);
        assert_eq!((blocks[0].label.as_str(), blocks[0].der.len()), ("A B", 100));
    }

    #[test]
    fn broken_blocks_are_refused() {
        for bad in ["-----BEGIN A-----\n", "-----END A-----\n", "-----BEGIN A-----\n*\n-----END A-----"] {
            assert!(decode(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
