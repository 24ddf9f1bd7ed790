//! Which term each record of a log is of: the places where terms begin.

use super::{Index, Term};
use crate::log::codec::{Reader, put_number};

/// How many beginnings are kept: what is older is asked for by nobody but those who need a snapshot.
const KEPT: usize = 256;

/// The terms of a log that ends somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The first record of a term, and the term; in order, never empty.
    marks: Vec<(Index, Term)>,
    last: Index,
}

impl Terms {
    /// A log whose records are all of one term.
    pub fn of(term: Term, last: Index) -> Self {
        Self { marks: vec![(1, term)], last }
    }

    /// As [`Terms::encode`] wrote them, for a log that ends at `last`.
    pub fn read(bytes: &[u8], last: Index) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut marks: Vec<(Index, Term)> = Vec::new();
        while !reader.is_empty() {
            let mark = (reader.number().ok()?, reader.number().ok()?);
            if marks.last().is_some_and(|before| before.0 >= mark.0 || before.1 >= mark.1) {
                return None;
            }
            marks.push(mark);
        }
        (!marks.is_empty()).then_some(Self { marks, last })
    }

    /// The beginnings as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (first, term) in &self.marks {
            put_number(&mut out, *first);
            put_number(&mut out, *term);
        }
        out
    }

    /// The last record.
    pub fn last(&self) -> Index {
        self.last
    }

    /// The first record whose term is known.
    pub fn first_known(&self) -> Index {
        self.marks.first().map_or(1, |(first, _)| *first)
    }

    /// Its term.
    pub fn last_term(&self) -> Term {
        self.term(self.last).unwrap_or(0)
    }

    /// The term of a record; `None` if there is none or it is too long ago.
    pub fn term(&self, index: Index) -> Option<Term> {
        if index == 0 {
            return Some(0);
        }
        if index > self.last {
            return None;
        }
        self.marks.iter().rev().find(|(first, _)| *first <= index).map(|(_, term)| *term)
    }

    /// Where the last term begins.
    pub fn begin_of_last(&self) -> Index {
        self.marks.last().map_or(0, |(first, _)| *first)
    }

    /// Adds records of a term.
    pub fn append(&mut self, term: Term, count: u64) {
        if count == 0 {
            return;
        }
        if self.last == 0 {
            self.marks = vec![(1, term)];
        } else if self.last_term() < term {
            self.marks.push((self.last + 1, term));
            if self.marks.len() > KEPT {
                self.marks.remove(0);
            }
        }
        self.last += count;
    }

    /// Forgets the records after one.
    pub fn truncate(&mut self, index: Index) {
        self.last = self.last.min(index);
        while self.marks.len() > 1 && self.marks.last().is_some_and(|(first, _)| *first > self.last) {
            self.marks.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_the_term_that_began_last_before_it() {
        let mut terms = Terms::of(2, 3);
        terms.append(5, 2);
        terms.append(5, 1);
        terms.append(9, 1);
        let found: Vec<Option<Term>> = (0..=8).map(|index| terms.term(index)).collect();
        let expected = [Some(0), Some(2), Some(2), Some(2), Some(5), Some(5), Some(5), Some(9), None];
        assert_eq!(found, expected);
        assert_eq!(Terms::read(&terms.encode(), 7), Some(terms.clone()));
        assert_eq!(Terms::read(&[3, 3, 2, 4], 7), None, "not in order");
        terms.truncate(5);
        assert_eq!((terms.last(), terms.last_term(), terms.term(6)), (5, 5, None));
        terms.append(7, 1);
        assert_eq!((terms.term(5), terms.term(6)), (Some(5), Some(7)));
    }

    #[test]
    fn what_is_too_long_ago_is_not_known() {
        let mut terms = Terms::of(1, 1);
        for term in 2..300 {
            terms.append(term, 1);
        }
        assert_eq!((terms.term(1), terms.term(299)), (None, Some(299)));
    }
}
