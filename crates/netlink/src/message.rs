//! Netlink messages as bytes: writing a header with attributes, and reading attributes back.
//!
//! Every number of a netlink header is in the machine's byte order; nftables and conntrack attributes are in network
//! order, which is why the writers of numbers name theirs.

use std::net::IpAddr;

/// Length of `struct nlmsghdr`.
pub const HEADER: usize = 16;

pub const NLM_F_REQUEST: u16 = 0x1;
pub const NLM_F_ACK: u16 = 0x4;
pub const NLM_F_REPLACE: u16 = 0x100;
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_DUMP: u16 = 0x300;
pub const NLM_F_CREATE: u16 = 0x400;
pub const NLM_F_APPEND: u16 = 0x800;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;

pub const NLMSG_ERROR: u16 = 2;
pub const NLMSG_DONE: u16 = 3;

/// Attributes under construction; also the body of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len() + 4).expect("an attribute is at most 64 KiB");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.pad()
    }

    /// A string with its final zero.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    pub fn u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A number in network order.
    pub fn be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// A number in network order.
    pub fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// A number in network order.
    pub fn be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub fn address(&mut self, kind: u16, value: IpAddr) -> &mut Self {
        match value {
            IpAddr::V4(v4) => self.bytes(kind, &v4.octets()),
            IpAddr::V6(v6) => self.bytes(kind, &v6.octets()),
        }
    }

    /// An attribute made of attributes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        fill(self);
        self.close(start, kind | NLA_F_NESTED)
    }

    /// Like [`nest`](Self::nest), with a fixed part before the inner attributes (veth's peer has one).
    pub fn nest_after(&mut self, kind: u16, fixed: &[u8], fill: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(fixed);
        self.pad();
        fill(self);
        self.close(start, kind | NLA_F_NESTED)
    }

    /// Appends attributes made earlier.
    pub fn append(&mut self, other: &Attributes) -> &mut Self {
        self.0.extend_from_slice(&other.0);
        self
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn close(&mut self, start: usize, kind: u16) -> &mut Self {
        let length = u16::try_from(self.0.len() - start).expect("a nested attribute is at most 64 KiB");
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self
    }

    fn pad(&mut self) -> &mut Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

/// One request: kind, flags, the protocol's fixed header, attributes.
#[derive(Clone, Debug)]
pub struct Message {
    pub kind: u16,
    pub flags: u16,
    pub body: Attributes,
}

impl Message {
    /// A request with `fixed` as the protocol's own header.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut body = Attributes(fixed.to_vec());
        body.pad();
        Self { kind, flags: flags | NLM_F_REQUEST, body }
    }

    /// Writes the message with its length and sequence number.
    pub fn write(&self, sequence: u32, out: &mut Vec<u8>) {
        let length = u32::try_from(HEADER + self.body.len()).expect("a message is at most 4 GiB");
        out.extend_from_slice(&length.to_ne_bytes());
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&self.flags.to_ne_bytes());
        out.extend_from_slice(&sequence.to_ne_bytes());
        out.extend_from_slice(&0u32.to_ne_bytes());
        out.extend_from_slice(&self.body.0);
    }
}

/// A message as the kernel sent it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    pub kind: u16,
    pub sequence: u32,
    pub body: &'a [u8],
}

/// Splits what one read brought into messages; stops at the first that is cut short.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(ne_u32(bytes, 0)?).ok()?;
        let body = bytes.get(HEADER..length)?;
        let message = Received { kind: ne_u16(bytes, 4)?, sequence: ne_u32(bytes, 8)?, body };
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// One attribute as the kernel sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub value: &'a [u8],
}

/// Walks attributes; stops at the first that is cut short.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let length = usize::from(ne_u16(bytes, 0)?);
        let value = bytes.get(4..length)?;
        let kind = ne_u16(bytes, 2)? & NLA_TYPE_MASK;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, value })
    })
}

/// The first attribute of a kind.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|attribute| attribute.kind == kind).map(|attribute| attribute.value)
}

/// A string attribute without its final zero.
pub fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

/// An address attribute.
pub fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(value).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(value).ok()?)),
        _ => None,
    }
}

pub fn ne_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub fn ne_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub fn ne_i32(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_are_read_back_as_written() {
        let mut body = Attributes::new();
        body.text(3, "eth0").nest(18, |info| {
            info.text(1, "veth").nest_after(2, &[7; 5], |peer| {
                peer.u32(9, 42);
            });
        });
        let outer: Vec<_> = attributes(&body.0).collect();
        assert_eq!(outer.len(), 2);
        assert_eq!(text(outer[0].value), Some("eth0"));
        let peer = find(outer[1].value, 2).unwrap();
        assert_eq!(&peer[..5], &[7; 5]);
        assert_eq!(
            ne_u32(find(&peer[8..], 9).unwrap(), 0),
            Some(42),
            "the fixed part is padded to four bytes"
        );
    }

    #[test]
    fn cut_input_ends_the_walk_without_a_panic() {
        let mut out = Vec::new();
        let mut message = Message::new(16, 0, &[0; 16]);
        message.body.text(3, "kelson0");
        message.write(1, &mut out);
        for cut in 0..out.len() {
            assert_eq!(messages(&out[..cut]).count(), 0, "{cut} bytes are no message");
            let _ = attributes(&out[..cut]).count();
        }
        assert_eq!(messages(&out).count(), 1);
        assert_eq!(attributes(&[0, 0, 1, 0, 9, 9]).count(), 0, "a length of zero must not loop");
    }
}
