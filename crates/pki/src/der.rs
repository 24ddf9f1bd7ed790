//! The few DER forms that certificates and requests are made of.
//!
//! Writing only; reading is x509-parser's. Each function returns finished bytes, so a structure is an expression.

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
pub(crate) const OCTET_STRING: u8 = 0x04;

/// Object identifiers, already encoded.
pub(crate) mod oid {
    pub const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    pub const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
    pub const ORGANIZATIONAL_UNIT: &[u8] = &[0x55, 0x04, 0x0b];
    pub const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
    pub const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
    pub const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
    pub const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
    pub const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
    pub const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    pub const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    pub const PRIME256V1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    pub const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
    pub const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    pub const RSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b];
    pub const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
}

/// One tag, its length, its content.
pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    let length = content.len();
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let significant = &bytes[bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len() - 1)..];
        out.push(0x80 | significant.len() as u8);
        out.extend_from_slice(significant);
    }
    out.extend_from_slice(content);
    out
}

pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

pub(crate) fn object_id(encoded: &[u8]) -> Vec<u8> {
    tlv(0x06, encoded)
}

pub(crate) fn null() -> Vec<u8> {
    tlv(0x05, &[])
}

pub(crate) fn boolean_true() -> Vec<u8> {
    tlv(0x01, &[0xff])
}

pub(crate) fn utf8(text: &str) -> Vec<u8> {
    tlv(0x0c, text.as_bytes())
}

pub(crate) fn octets(content: &[u8]) -> Vec<u8> {
    tlv(OCTET_STRING, content)
}

/// A positive integer from its big-endian bytes, in the shortest form.
pub(crate) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let start = bytes.iter().position(|b| *b != 0).unwrap_or(bytes.len().saturating_sub(1));
    let mut content = bytes[start..].to_vec();
    if content.first().is_none_or(|first| first & 0x80 != 0) {
        content.insert(0, 0);
    }
    tlv(0x02, &content)
}

/// A bit string of whole bytes.
pub(crate) fn bits(content: &[u8]) -> Vec<u8> {
    tlv(0x03, &[&[0], content].concat())
}

/// A bit string of named flags: trailing zero bits are cut, as DER asks.
pub(crate) fn flags(set: u16) -> Vec<u8> {
    // Bit 0 of the ASN.1 list is the most significant bit of the first byte.
    let mut bytes = set.reverse_bits().to_be_bytes().to_vec();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    let unused = bytes.last().map_or(0, |last| last.trailing_zeros() as u8);
    let mut content = vec![unused];
    content.extend(bytes);
    tlv(0x03, &content)
}

/// A time in the form RFC 5280 prescribes: two-digit years until 2049, four-digit ones after.
pub(crate) fn time(at: jiff::Timestamp) -> Vec<u8> {
    let utc = at.to_zoned(jiff::tz::TimeZone::UTC);
    if (1950..2050).contains(&utc.year()) {
        tlv(0x17, utc.strftime("%y%m%d%H%M%SZ").to_string().as_bytes())
    } else {
        tlv(0x18, utc.strftime("%Y%m%d%H%M%SZ").to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_take_the_short_and_the_long_form() {
        assert_eq!(tlv(4, &[7; 3])[..2], [4, 3]);
        assert_eq!(tlv(4, &[7; 200])[..3], [4, 0x81, 200]);
        assert_eq!(tlv(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }

    #[test]
    fn integers_are_positive_and_short() {
        assert_eq!(unsigned(&[0, 0, 1]), [2, 1, 1]);
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0]), [2, 1, 0]);
    }

    #[test]
    fn flags_drop_unused_bits() {
        // digitalSignature (0) and keyEncipherment (2): 1010_0000, five unused bits.
        assert_eq!(flags(0b101), [3, 2, 5, 0xa0]);
        // keyCertSign (5), cRLSign (6)
        assert_eq!(flags(0b110_0000), [3, 2, 1, 0x06]);
    }
}
