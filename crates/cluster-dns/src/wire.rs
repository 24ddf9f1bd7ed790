//! DNS messages as bytes: reading queries, writing answers, and walking foreign answers far enough to cache them.
//!
//! Names are kept in lower case without the final dot; the question is echoed byte for byte, because clients vary the case of
//! letters as a check. Input is hostile: every read is bounded, compression pointers only lead backwards.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest name in its dotted form.
const LONGEST_NAME: usize = 253;
const HEADER: usize = 12;
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;
const TYPE_OPT: u16 = 41;
const FLAG_RESPONSE: u16 = 0x8000;
const FLAG_AUTHORITATIVE: u16 = 0x0400;
const FLAG_TRUNCATED: u16 = 0x0200;
const FLAG_RECURSION_WANTED: u16 = 0x0100;
const FLAG_RECURSION_HERE: u16 = 0x0080;
/// Without EDNS, answers over UDP stop here.
const PLAIN_LIMIT: usize = 512;
/// Larger datagrams are likely to be fragmented on the way.
const LARGEST_DATAGRAM: usize = 1232;

/// Record types, as asked for and as answered.
pub mod kind {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const ANY: u16 = 255;
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    #[default]
    Ok = 0,
    Malformed = 1,
    Failed = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// Lower case, without the final dot.
    pub name: String,
    pub kind: u16,
}

/// A request as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub id: u16,
    pub recursion_wanted: bool,
    pub question: Question,
    /// The question's bytes, to be echoed.
    raw: Vec<u8>,
    /// The client's limit for datagrams, if it speaks EDNS.
    edns: Option<u16>,
}

/// A request that cannot be answered as asked; its id is echoed with the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadQuery {
    pub id: u16,
    pub code: Code,
}

/// A record of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: String,
    pub ttl: u32,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Ns(String),
    Cname(String),
    Ptr(String),
    Txt(String),
    Srv { priority: u16, weight: u16, port: u16, target: String },
    Soa { server: String, mailbox: String, serial: u32, minimum: u32 },
}

/// What we say to a question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub code: Code,
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
}

impl Query {
    /// Reads a request. `None`: not even worth an error (too short, or itself a response).
    pub fn parse(bytes: &[u8]) -> Option<Result<Self, BadQuery>> {
        let id = u16_at(bytes, 0)?;
        let flags = u16_at(bytes, 2)?;
        if bytes.len() < HEADER || flags & FLAG_RESPONSE != 0 {
            return None;
        }
        let bad = |code| Some(Err(BadQuery { id, code }));
        if flags >> 11 & 0xf != 0 {
            return bad(Code::NotImplemented);
        }
        if u16_at(bytes, 4) != Some(1) {
            return bad(Code::Malformed);
        }
        let Some((name, end)) = read_name(bytes, HEADER) else { return bad(Code::Malformed) };
        let (Some(kind), Some(class)) = (u16_at(bytes, end), u16_at(bytes, end + 2)) else {
            return bad(Code::Malformed);
        };
        if class != CLASS_IN && class != CLASS_ANY {
            return bad(Code::Refused);
        }
        let raw = bytes[HEADER..end + 4].to_vec();
        let Some(edns) = read_edns(bytes, end + 4) else { return bad(Code::Malformed) };
        let recursion_wanted = flags & FLAG_RECURSION_WANTED != 0;
        Some(Ok(Self { id, recursion_wanted, question: Question { name, kind }, raw, edns }))
    }

    /// A request of our own, with recursion.
    pub fn new(id: u16, question: Question) -> Self {
        let mut raw = Vec::new();
        write_name(&question.name, &mut raw);
        raw.extend(question.kind.to_be_bytes());
        raw.extend(CLASS_IN.to_be_bytes());
        Self { id, recursion_wanted: true, question, raw, edns: Some(LARGEST_DATAGRAM as u16) }
    }

    /// The request's bytes under another id.
    pub fn encode(&self, id: u16) -> Vec<u8> {
        let flags = if self.recursion_wanted { FLAG_RECURSION_WANTED } else { 0 };
        let mut out = Vec::with_capacity(HEADER + self.raw.len() + 11);
        for word in [id, flags, 1, 0, 0, u16::from(self.edns.is_some())] {
            out.extend(word.to_be_bytes());
        }
        out.extend(&self.raw);
        if let Some(size) = self.edns {
            write_opt(size, &mut out);
        }
        out
    }

    /// Makes an answer to the same question, asked by someone else, an answer to this request.
    pub fn adopt(&self, mut answer: Vec<u8>) -> Vec<u8> {
        if let Some(id) = answer.get_mut(..2) {
            id.copy_from_slice(&self.id.to_be_bytes());
        }
        // Same length: the questions differ in the case of letters at most.
        if let Some(question) = answer.get_mut(HEADER..HEADER + self.raw.len()) {
            question.copy_from_slice(&self.raw);
        }
        answer
    }

    /// The largest datagram that the client takes.
    pub fn datagram_limit(&self) -> usize {
        self.edns.map_or(PLAIN_LIMIT, |size| usize::from(size).clamp(PLAIN_LIMIT, LARGEST_DATAGRAM))
    }
}

impl BadQuery {
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER);
        for word in [self.id, FLAG_RESPONSE | self.code as u16, 0, 0, 0, 0] {
            out.extend(word.to_be_bytes());
        }
        out
    }
}

impl Response {
    /// An answer without records.
    pub fn of(code: Code) -> Self {
        Self { code, ..Self::default() }
    }

    /// Writes the answer to `query`. What does not fit into `limit` is left out, and the answer says so.
    pub fn encode(&self, query: &Query, limit: usize) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        out.extend(&query.raw);
        let room = limit.saturating_sub(if query.edns.is_some() { 11 } else { 0 });
        let mut counts = [0u16; 3];
        let mut truncated = false;
        for (index, section) in [&self.answers, &self.authority, &self.additional].into_iter().enumerate() {
            for record in section {
                let start = out.len();
                record.write(query, &mut out);
                if out.len() > room {
                    out.truncate(start);
                    // Additional records are a courtesy; their absence is no truncation.
                    truncated |= index < 2;
                    break;
                }
                counts[index] += 1;
            }
        }
        if query.edns.is_some() {
            write_opt(LARGEST_DATAGRAM as u16, &mut out);
        }
        let mut flags = FLAG_RESPONSE | FLAG_RECURSION_HERE | self.code as u16;
        for (is_set, flag) in [
            (self.authoritative, FLAG_AUTHORITATIVE),
            (truncated, FLAG_TRUNCATED),
            (query.recursion_wanted, FLAG_RECURSION_WANTED),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let additional = counts[2] + u16::from(query.edns.is_some());
        let words = [query.id, flags, 1, counts[0], counts[1], additional];
        for (index, word) in words.into_iter().enumerate() {
            out[index * 2..index * 2 + 2].copy_from_slice(&word.to_be_bytes());
        }
        out
    }
}

impl Record {
    fn write(&self, query: &Query, out: &mut Vec<u8>) {
        // Most records are about the question's name: a pointer to it is short and keeps the client's letters.
        if self.name == query.question.name {
            out.extend([0xc0, HEADER as u8]);
        } else {
            write_name(&self.name, out);
        }
        out.extend(self.data.kind().to_be_bytes());
        out.extend(CLASS_IN.to_be_bytes());
        out.extend(self.ttl.to_be_bytes());
        let length_at = out.len();
        out.extend([0, 0]);
        match &self.data {
            Data::A(address) => out.extend(address.octets()),
            Data::Aaaa(address) => out.extend(address.octets()),
            Data::Ns(name) | Data::Cname(name) | Data::Ptr(name) => write_name(name, out),
            Data::Txt(text) => {
                for part in text.as_bytes().chunks(255) {
                    out.push(part.len() as u8);
                    out.extend(part);
                }
            }
            Data::Srv { priority, weight, port, target } => {
                for word in [priority, weight, port] {
                    out.extend(word.to_be_bytes());
                }
                write_name(target, out);
            }
            Data::Soa { server, mailbox, serial, minimum } => {
                write_name(server, out);
                write_name(mailbox, out);
                for word in [*serial, 7200, 1800, 86400, *minimum] {
                    out.extend(word.to_be_bytes());
                }
            }
        }
        let length = (out.len() - length_at - 2) as u16;
        out[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
    }
}

impl Data {
    pub fn kind(&self) -> u16 {
        match self {
            Self::A(_) => kind::A,
            Self::Aaaa(_) => kind::AAAA,
            Self::Ns(_) => kind::NS,
            Self::Cname(_) => kind::CNAME,
            Self::Ptr(_) => kind::PTR,
            Self::Txt(_) => kind::TXT,
            Self::Srv { .. } => kind::SRV,
            Self::Soa { .. } => kind::SOA,
        }
    }
}

/// What can be known of someone else's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    pub id: u16,
    pub code: u8,
    pub truncated: bool,
    pub question: Question,
    /// Addresses and aliases in the answer, readable enough to be passed on.
    pub answers: Vec<Record>,
    /// Where the answer's lifetimes stand, and the smallest of them.
    pub ttl_offsets: Vec<usize>,
    pub smallest_ttl: Option<u32>,
}

impl Foreign {
    /// Reads an upstream's answer; `None` if it is not one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let flags = u16_at(bytes, 2)?;
        if flags & FLAG_RESPONSE == 0 || u16_at(bytes, 4)? != 1 {
            return None;
        }
        let (name, mut at) = read_name(bytes, HEADER)?;
        let question = Question { name, kind: u16_at(bytes, at)? };
        at += 4;
        let mut foreign = Self {
            id: u16_at(bytes, 0)?,
            code: (flags & 0xf) as u8,
            truncated: flags & FLAG_TRUNCATED != 0,
            question,
            answers: Vec::new(),
            ttl_offsets: Vec::new(),
            smallest_ttl: None,
        };
        let counts = [u16_at(bytes, 6)?, u16_at(bytes, 8)?, u16_at(bytes, 10)?];
        for (section, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                let (name, fixed) = read_name(bytes, at)?;
                let (kind, ttl) = (u16_at(bytes, fixed)?, u32_at(bytes, fixed + 4)?);
                let length = usize::from(u16_at(bytes, fixed + 8)?);
                let data = bytes.get(fixed + 10..fixed + 10 + length)?;
                if kind != TYPE_OPT {
                    foreign.ttl_offsets.push(fixed + 4);
                    foreign.smallest_ttl = Some(foreign.smallest_ttl.map_or(ttl, |least| least.min(ttl)));
                }
                if section == 0
                    && let Some(data) = read_data(bytes, fixed + 10, kind, data)
                {
                    foreign.answers.push(Record { name, ttl, data });
                }
                at = fixed + 10 + length;
            }
        }
        Some(foreign)
    }
}

fn read_data(bytes: &[u8], at: usize, kind: u16, data: &[u8]) -> Option<Data> {
    match kind {
        kind::A => Some(Data::A(<[u8; 4]>::try_from(data).ok()?.into())),
        kind::AAAA => Some(Data::Aaaa(<[u8; 16]>::try_from(data).ok()?.into())),
        kind::CNAME => Some(Data::Cname(read_name(bytes, at)?.0)),
        _ => None,
    }
}

/// Looks through the additional section for EDNS. `None`: malformed.
fn read_edns(bytes: &[u8], mut at: usize) -> Option<Option<u16>> {
    let records = u32::from(u16_at(bytes, 6)?) + u32::from(u16_at(bytes, 8)?) + u32::from(u16_at(bytes, 10)?);
    for _ in 0..records {
        let (_, fixed) = read_name(bytes, at)?;
        let (kind, size) = (u16_at(bytes, fixed)?, u16_at(bytes, fixed + 2)?);
        if kind == TYPE_OPT {
            return Some(Some(size));
        }
        at = fixed + 10 + usize::from(u16_at(bytes, fixed + 8)?);
    }
    Some(None)
}

fn write_opt(size: u16, out: &mut Vec<u8>) {
    out.push(0);
    out.extend(TYPE_OPT.to_be_bytes());
    out.extend(size.to_be_bytes());
    out.extend([0; 6]);
}

/// Writes a name; labels that DNS cannot carry are cut, which no valid Kubernetes name is.
fn write_name(name: &str, out: &mut Vec<u8>) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        let bytes = &label.as_bytes()[..label.len().min(63)];
        out.push(bytes.len() as u8);
        out.extend(bytes);
    }
    out.push(0);
}

/// Reads a name at an offset; returns it with the offset behind it.
fn read_name(bytes: &[u8], start: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut at = start;
    let mut end = None;
    // A pointer must lead before the place where the current run of labels began, so the walk ends.
    let mut run = start;
    loop {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=63 => {
                let label = bytes.get(at + 1..at + 1 + usize::from(length))?;
                if !name.is_empty() {
                    name.push('.');
                }
                // A dot or a byte beyond ASCII inside a label cannot be one of our names; keep it apart.
                name.extend(label.iter().map(|byte| match byte {
                    b'.' | 0x80.. => '\u{fffd}',
                    byte => char::from(byte.to_ascii_lowercase()),
                }));
                if name.len() > LONGEST_NAME {
                    return None;
                }
                at += 1 + usize::from(length);
            }
            0xc0.. => {
                let target = usize::from(u16_at(bytes, at)? & 0x3fff);
                end.get_or_insert(at + 2);
                if target >= run {
                    return None;
                }
                (at, run) = (target, target);
            }
            _ => return None,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests;
