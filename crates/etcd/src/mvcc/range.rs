//! Which keys a request is about.

use std::ops::Bound;

use bytes::Bytes;

use crate::store::prefix_end;

/// A set of neighbouring keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyRange {
    /// Exactly this key.
    One(Bytes),
    /// From the first (inclusive) to the second (exclusive).
    Span(Bytes, Bytes),
    /// This key and all after it.
    From(Bytes),
}

impl KeyRange {
    /// All keys with a prefix.
    pub fn prefix(prefix: Bytes) -> Self {
        match prefix_end(&prefix) {
            Some(end) => Self::Span(prefix, end),
            None => Self::From(prefix),
        }
    }

    /// The wire form: an empty end means one key, an end of one zero byte means everything from `key` on.
    pub fn from_wire(key: Bytes, end: Bytes) -> Self {
        match &end[..] {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Span(key, end),
        }
    }

    /// Whether the key is in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(only) => only == key,
            Self::Span(start, end) => start <= key && key < &end[..],
            Self::From(start) => start <= key,
        }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Span(start, end) if start >= end)
    }

    /// Whether every key of `other` is in this range.
    pub fn covers(&self, other: &KeyRange) -> bool {
        match (self, other) {
            (_, Self::One(key)) => self.contains(key),
            (Self::One(_), _) => other.is_empty(),
            (Self::Span(start, end), Self::Span(from, to)) => from >= to || (start <= from && to <= end),
            (Self::Span(..), Self::From(_)) => false,
            (Self::From(start), Self::Span(from, _) | Self::From(from)) => start <= from,
        }
    }

    /// Whether a key can be in both ranges.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        if self.is_empty() || other.is_empty() {
            return false;
        }
        let before = |one: &KeyRange, two: &KeyRange| match one {
            Self::One(key) => &key[..] < two.first(),
            Self::Span(_, end) => &end[..] <= two.first(),
            Self::From(_) => false,
        };
        !before(self, other) && !before(other, self)
    }

    /// The first key that could be in the range.
    pub fn first(&self) -> &[u8] {
        match self {
            Self::One(key) | Self::Span(key, _) | Self::From(key) => key,
        }
    }

    /// The bounds for a map lookup. The range must not be empty.
    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        match self {
            Self::One(key) => (Bound::Included(&key[..]), Bound::Included(&key[..])),
            Self::Span(start, end) => (Bound::Included(&start[..]), Bound::Excluded(&end[..])),
            Self::From(start) => (Bound::Included(&start[..]), Bound::Unbounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &'static str) -> KeyRange {
        KeyRange::One(key.into())
    }
    fn span(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange::Span(start.into(), end.into())
    }
    fn from(start: &'static str) -> KeyRange {
        KeyRange::From(start.into())
    }

    #[test]
    fn ranges_overlap_when_a_key_is_in_both() {
        let cases = [
            (one("a"), one("a"), true),
            (one("a"), one("b"), false),
            (span("a", "c"), one("c"), false),
            (span("a", "c"), one("b"), true),
            (span("a", "c"), span("c", "d"), false),
            (span("a", "c"), span("b", "d"), true),
            (from("b"), span("a", "b"), false),
            (from("b"), span("a", "c"), true),
            (span("c", "a"), from("a"), false),
        ];
        for (left, right, expected) in cases {
            assert_eq!(left.overlaps(&right), expected, "{left:?} {right:?}");
            assert_eq!(right.overlaps(&left), expected, "{right:?} {left:?}");
        }
    }

    #[test]
    fn covering_needs_every_key() {
        let cases = [
            (span("a", "c"), span("a", "c"), true),
            (span("a", "c"), span("a", "d"), false),
            (span("a", "c"), one("b"), true),
            (span("a", "c"), from("b"), false),
            (from("a"), from("b"), true),
            (from("b"), span("a", "c"), false),
            (one("a"), span("a", "b"), false),
        ];
        for (outer, inner, expected) in cases {
            assert_eq!(outer.covers(&inner), expected, "{outer:?} {inner:?}");
        }
    }
}
