//! The steps of a rule, in the kernel's own terms: load into registers, compare, look up, act.
//!
//! Registers are numbered 0 to 15, four bytes each; a longer value takes the ones that follow. Numbers that come from the
//! kernel (marks, states, random numbers) are in the machine's byte order, those from packets in network order.

use super::Family;
use crate::message::Attributes;

/// A register of four bytes, 0 to 15.
pub type Reg = u8;

/// What a rule or map element says about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// Facts about the packet that are not in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    Mark = 3,
    InputName = 6,
    OutputName = 7,
    Protocol = 16,
}

/// Facts about the packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    State = 0,
    Status = 2,
}

/// Which address of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Source,
    Destination,
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Meta {
        key: MetaKey,
        to: Reg,
    },
    SetMark {
        from: Reg,
    },
    Ct {
        key: CtKey,
        to: Reg,
    },
    /// The packet's source or destination address.
    Address {
        family: Family,
        which: Address,
        to: Reg,
    },
    DestinationPort {
        to: Reg,
    },
    /// The byte of TCP's flags; only for packets that are TCP.
    TcpFlags {
        to: Reg,
    },
    Equal {
        reg: Reg,
        value: Vec<u8>,
    },
    NotEqual {
        reg: Reg,
        value: Vec<u8>,
    },
    /// From the first value to the last, both included, compared byte by byte.
    Between {
        reg: Reg,
        from: Vec<u8>,
        to: Vec<u8>,
    },
    /// `reg = (reg & mask) ^ xor`.
    Bits {
        reg: Reg,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Load {
        to: Reg,
        value: Vec<u8>,
    },
    Verdict(Verdict),
    /// Goes on only if the key is in the set.
    In {
        set: String,
        key: Reg,
    },
    /// Goes on only if the key is not in the set.
    NotIn {
        set: String,
        key: Reg,
    },
    /// Goes on only if the key is in the map, with its data in `to`.
    Map {
        set: String,
        key: Reg,
        to: Reg,
    },
    /// Follows the verdict that the map has for the key.
    VerdictMap {
        set: String,
        key: Reg,
    },
    /// An even random number below `modulus`.
    Random {
        modulus: u32,
        to: Reg,
    },
    /// The routing table's word for the kind of an address (2: local to this host).
    AddressType {
        which: Address,
        to: Reg,
    },
    /// Adds the key to a set with a timeout, or starts its time anew.
    Remember {
        set: String,
        key: Reg,
    },
    DestinationNat {
        family: Family,
        address: Reg,
        port: Option<Reg>,
    },
    Masquerade,
    Counter,
    RejectReset,
    RejectPort {
        family: Family,
    },
}

const REG32_00: u32 = 8;
const REG_VERDICT: u32 = 0;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;
const RANDOM_FULLY: u32 = 16;
const DYNSET_UPDATE: u32 = 1;
const LOOKUP_INVERTED: u32 = 1;

/// The value of [`Expr::AddressType`] for an address of this host.
pub const TYPE_LOCAL: u32 = 2;
/// The bit of [`CtKey::State`] for a connection that was answered.
pub const STATE_ESTABLISHED: u32 = 2;
/// The bit of [`CtKey::State`] for what belongs to another connection, such as an error message.
pub const STATE_RELATED: u32 = 4;
/// The bit of [`CtKey::State`] for a connection's first packet.
pub const STATE_NEW: u32 = 8;
/// The bit of [`CtKey::Status`] for a connection whose destination was translated.
pub const STATUS_DST_NAT: u32 = 1 << 5;

impl Expr {
    /// The kernel's name of the step, and its attributes.
    pub(super) fn encode(&self) -> (&'static str, Attributes) {
        let mut out = Attributes::new();
        let name = match self {
            Self::Meta { key, to } => {
                out.be32(1, register(*to)).be32(2, *key as u32);
                "meta"
            }
            Self::SetMark { from } => {
                out.be32(2, MetaKey::Mark as u32).be32(3, register(*from));
                "meta"
            }
            Self::Ct { key, to } => {
                out.be32(1, register(*to)).be32(2, *key as u32);
                "ct"
            }
            Self::Address { family, which, to } => {
                let (source, destination, length) = match family {
                    Family::Ip => (12, 16, 4),
                    Family::Ip6 => (8, 24, 16),
                };
                let offset = if *which == Address::Source { source } else { destination };
                payload(&mut out, *to, 1, offset, length);
                "payload"
            }
            Self::DestinationPort { to } => {
                payload(&mut out, *to, 2, 2, 2);
                "payload"
            }
            Self::TcpFlags { to } => {
                payload(&mut out, *to, 2, 13, 1);
                "payload"
            }
            Self::Between { reg, from, to } => {
                out.be32(1, register(*reg)).be32(2, 0);
                out.nest(3, |data| value_data(data, from)).nest(4, |data| value_data(data, to));
                "range"
            }
            Self::Equal { reg, value } => compare(&mut out, *reg, 0, value),
            Self::NotEqual { reg, value } => compare(&mut out, *reg, 1, value),
            Self::Bits { reg, mask, xor } => {
                out.be32(1, register(*reg)).be32(2, register(*reg)).be32(3, mask.len() as u32);
                out.nest(4, |data| value_data(data, mask)).nest(5, |data| value_data(data, xor));
                "bitwise"
            }
            Self::Load { to, value } => {
                out.be32(1, register(*to)).nest(2, |data| value_data(data, value));
                "immediate"
            }
            Self::Verdict(verdict) => {
                out.be32(1, REG_VERDICT).nest(2, |data| verdict.encode(data));
                "immediate"
            }
            Self::In { set, key } => {
                out.text(1, set).be32(2, register(*key));
                "lookup"
            }
            Self::NotIn { set, key } => {
                out.text(1, set).be32(2, register(*key)).be32(5, LOOKUP_INVERTED);
                "lookup"
            }
            Self::Map { set, key, to } => {
                out.text(1, set).be32(2, register(*key)).be32(3, register(*to));
                "lookup"
            }
            Self::VerdictMap { set, key } => {
                out.text(1, set).be32(2, register(*key)).be32(3, REG_VERDICT);
                "lookup"
            }
            Self::Random { modulus, to } => {
                out.be32(1, register(*to)).be32(2, *modulus).be32(3, 1);
                "numgen"
            }
            Self::AddressType { which, to } => {
                out.be32(1, register(*to)).be32(2, 3);
                out.be32(3, if *which == Address::Source { 1 } else { 2 });
                "fib"
            }
            Self::Remember { set, key } => {
                out.text(1, set).be32(3, DYNSET_UPDATE).be32(4, register(*key));
                "dynset"
            }
            Self::DestinationNat { family, address, port } => {
                out.be32(1, 1).be32(2, *family as u32).be32(3, register(*address));
                if let Some(port) = port {
                    out.be32(5, register(*port));
                }
                "nat"
            }
            Self::Masquerade => {
                out.be32(1, RANDOM_FULLY);
                "masq"
            }
            Self::Counter => "counter",
            Self::RejectReset => {
                out.be32(1, 1).u8(2, 0);
                "reject"
            }
            Self::RejectPort { family } => {
                let code = if *family == Family::Ip { 3 } else { 4 };
                out.be32(1, 0).u8(2, code);
                "reject"
            }
        };
        (name, out)
    }
}

impl Verdict {
    pub(super) fn encode(&self, data: &mut Attributes) {
        let (code, chain) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Return => (-5, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
        };
        data.nest(DATA_VERDICT, |verdict| {
            verdict.be32(VERDICT_CODE, i32::cast_unsigned(code));
            if let Some(chain) = chain {
                verdict.text(VERDICT_CHAIN, chain);
            }
        });
    }
}

pub(super) fn value_data(data: &mut Attributes, value: &[u8]) {
    data.bytes(DATA_VALUE, value);
}

fn compare(out: &mut Attributes, reg: Reg, operator: u32, value: &[u8]) -> &'static str {
    out.be32(1, register(reg)).be32(2, operator).nest(3, |data| value_data(data, value));
    "cmp"
}

fn payload(out: &mut Attributes, to: Reg, base: u32, offset: u32, length: u32) {
    out.be32(1, register(to)).be32(2, base).be32(3, offset).be32(4, length);
}

fn register(reg: Reg) -> u32 {
    REG32_00 + u32::from(reg)
}
