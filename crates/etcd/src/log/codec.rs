//! Mutations as bytes: numbers as little-endian base-128, byte strings with their length before them.
//!
//! Values that are large stay where they are: decoding can make them slices of the file's mapping instead of copies.
//!
//! Decoding takes any bytes and never panics, reads past the end or allocates more than the input's size.

use bytes::Bytes;

use crate::log::Damage;
use crate::mutation::Mutation;
use crate::store::Revision;

/// From this size on a value is kept in a file only, if there is one.
pub const LARGE: usize = 512;

const PUT: u8 = 1;
const DELETE: u8 = 2;
const GRANT_LEASE: u8 = 3;
const REVOKE_LEASE: u8 = 4;
const COMPACT: u8 = 5;
const SET: u8 = 6;
const UNSET: u8 = 7;
const CHECKPOINT_LEASE: u8 = 8;

/// Appends a number.
pub fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a byte string with its length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends one mutation.
pub fn put_mutation(out: &mut Vec<u8>, mutation: &Mutation) {
    match mutation {
        Mutation::Put { key, value, lease } => {
            out.push(PUT);
            put_bytes(out, key);
            put_number(out, *lease as u64);
            put_bytes(out, value);
        }
        Mutation::Delete { key } => {
            out.push(DELETE);
            put_bytes(out, key);
        }
        Mutation::GrantLease { id, ttl } => {
            out.push(GRANT_LEASE);
            put_number(out, *id as u64);
            put_number(out, *ttl as u64);
        }
        Mutation::CheckpointLease { id, seconds } => {
            out.push(CHECKPOINT_LEASE);
            put_number(out, *id as u64);
            // No lease has zero seconds left: it stands for no record.
            put_number(out, seconds.unwrap_or(0) as u64);
        }
        Mutation::RevokeLease { id } => {
            out.push(REVOKE_LEASE);
            put_number(out, *id as u64);
        }
        Mutation::Compact { revision } => {
            out.push(COMPACT);
            put_number(out, *revision as u64);
        }
        Mutation::Setting { name, value: Some(value) } => {
            out.push(SET);
            put_bytes(out, name);
            put_bytes(out, value);
        }
        Mutation::Setting { name, value: None } => {
            out.push(UNSET);
            put_bytes(out, name);
        }
    }
}

/// Where the bytes being read also are, and stay.
#[derive(Clone, Copy, Debug)]
struct Home<'a> {
    mapping: &'a Bytes,
    /// Where in it the bytes end that are being read.
    end: usize,
}

/// Reads what the functions above wrote.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    home: Option<Home<'a>>,
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of some bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, home: None }
    }

    /// Reads bytes that are also in a mapping, from `at` on: large values become slices of that.
    pub fn mapped(bytes: &'a [u8], mapping: Option<&'a Bytes>, at: usize) -> Self {
        let end = at + bytes.len();
        let home = mapping.filter(|mapping| mapping.len() >= end).map(|mapping| Home { mapping, end });
        Self { rest: bytes, home }
    }

    /// Reads what the next byte string holds.
    pub fn nested(&mut self) -> Result<Reader<'a>, Damage> {
        let inner = self.slice()?;
        let home = self.home.map(|home| Home { end: home.end - self.rest.len(), ..home });
        Ok(Reader { rest: inner, home })
    }

    /// The next byte string: a slice of the mapping if it is large and there is one, memory of its own otherwise.
    pub fn value(&mut self) -> Result<Bytes, Damage> {
        let value = self.slice()?;
        Ok(match self.home {
            Some(home) if value.len() >= LARGE => {
                let end = home.end - self.rest.len();
                home.mapping.slice(end - value.len()..end)
            }
            _ => Bytes::copy_from_slice(value),
        })
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many bytes are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Result<u8, Damage> {
        let (first, rest) = self.rest.split_first().ok_or(Damage::Short)?;
        self.rest = rest;
        Ok(*first)
    }

    /// The next number.
    pub fn number(&mut self) -> Result<u64, Damage> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            if shift == 63 && byte > 1 {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Damage::Malformed("number"))
    }

    /// The next signed number.
    pub fn signed(&mut self) -> Result<i64, Damage> {
        Ok(self.number()? as i64)
    }

    /// The next byte string, still in the input.
    pub fn slice(&mut self) -> Result<&'a [u8], Damage> {
        let length = usize::try_from(self.number()?).map_err(|_| Damage::Short)?;
        if length > self.rest.len() {
            return Err(Damage::Short);
        }
        let (slice, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(slice)
    }

    /// The next byte string as memory of its own, so that a small value does not keep a big buffer alive.
    pub fn bytes(&mut self) -> Result<Bytes, Damage> {
        Ok(Bytes::copy_from_slice(self.slice()?))
    }

    /// The next mutation.
    pub fn mutation(&mut self) -> Result<Mutation, Damage> {
        Ok(match self.byte()? {
            PUT => {
                let key = self.bytes()?;
                let lease = self.signed()?;
                Mutation::Put { key, lease, value: self.value()? }
            }
            DELETE => Mutation::Delete { key: self.bytes()? },
            GRANT_LEASE => Mutation::GrantLease { id: self.signed()?, ttl: self.signed()? },
            CHECKPOINT_LEASE => Mutation::CheckpointLease {
                id: self.signed()?,
                seconds: Some(self.signed()?).filter(|seconds| *seconds != 0),
            },
            REVOKE_LEASE => Mutation::RevokeLease { id: self.signed()? },
            COMPACT => Mutation::Compact { revision: self.signed()? },
            SET => Mutation::Setting { name: self.bytes()?, value: Some(self.bytes()?) },
            UNSET => Mutation::Setting { name: self.bytes()?, value: None },
            _ => return Err(Damage::Malformed("mutation")),
        })
    }
}

/// One transaction as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The revision that its changes of keys have.
    pub revision: Revision,
    /// What it did, in order.
    pub mutations: Vec<Mutation>,
}

impl Record {
    /// Reads one record from all of some bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        Self::read(Reader::new(bytes))
    }

    /// Reads one record from all that a reader has.
    pub fn read(mut reader: Reader<'_>) -> Result<Self, Damage> {
        let revision = reader.signed()?;
        let mut mutations = Vec::new();
        while !reader.is_empty() {
            mutations.push(reader.mutation()?);
        }
        Ok(Self { revision, mutations })
    }

    /// The record's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, self.revision as u64);
        for mutation in &self.mutations {
            put_mutation(&mut out, mutation);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    fn mutation() -> impl Strategy<Value = Mutation> {
        prop_oneof![
            (bytes(), bytes(), any::<i64>()).prop_map(|(key, value, lease)| Mutation::Put {
                key,
                value,
                lease
            }),
            bytes().prop_map(|key| Mutation::Delete { key }),
            (any::<i64>(), any::<i64>()).prop_map(|(id, ttl)| Mutation::GrantLease { id, ttl }),
            any::<i64>().prop_map(|id| Mutation::RevokeLease { id }),
            (any::<i64>(), proptest::option::of(1..i64::MAX))
                .prop_map(|(id, seconds)| Mutation::CheckpointLease { id, seconds }),
            any::<i64>().prop_map(|revision| Mutation::Compact { revision }),
            (bytes(), proptest::option::of(bytes()))
                .prop_map(|(name, value)| Mutation::Setting { name, value }),
        ]
    }

    #[test]
    fn large_values_become_slices_of_the_mapping() {
        let put = |size| Mutation::Put { key: "k".into(), value: vec![7; size].into(), lease: 0 };
        let record = Record { revision: 3, mutations: vec![put(LARGE - 1), put(LARGE), put(2 * LARGE)] };
        let mut payload = Vec::new();
        put_bytes(&mut payload, &record.encode());
        let mapping = Bytes::from([&[9; 33], &payload[..], &[9; 5]].concat());
        let read = |mapping| {
            let mut reader = Reader::mapped(&payload, mapping, 33);
            Record::read(reader.nested().expect("nested")).expect("readable")
        };
        assert_eq!(read(Some(&mapping)), record);
        assert_eq!(read(None), record);
        let inside = mapping.as_ptr_range();
        let homed: Vec<bool> = read(Some(&mapping))
            .mutations
            .iter()
            .map(|mutation| matches!(mutation, Mutation::Put { value, .. } if inside.contains(&value.as_ptr())))
            .collect();
        assert_eq!(homed, [false, true, true]);
    }

    proptest! {
        #[test]
        fn a_record_reads_back_as_it_was_written(
            revision in any::<i64>(),
            mutations in proptest::collection::vec(mutation(), 0..6),
        ) {
            let record = Record { revision, mutations };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn any_bytes_are_a_record_or_an_error(input in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(record) = Record::decode(&input) {
                prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
            }
        }
    }
}
