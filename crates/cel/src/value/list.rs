//! Lists. Adding two makes a pair of them and copies nothing, as upstream does: its cost says so.

use std::rc::Rc;

use serde_json::Value as Json;

use super::Val;
use crate::constant::ConstantList;
use crate::error::Error;
use crate::functions::Run;
use crate::types::Type;

/// What an item takes, beside what it points to.
pub const ITEM: usize = size_of::<Val<'_>>();
/// Pairs of pairs nest at most this deep, so that finding an item is cheap and dropping a list needs little stack.
const DEEPEST: u32 = 64;

/// A list.
#[derive(Clone)]
pub enum List<'a> {
    /// JSON with the type of its items.
    Json(&'a [Json], &'a Type),
    /// Written in the source.
    Constant(&'a ConstantList),
    /// Made by the expression, and how many values are in it, all the way down.
    Items(Rc<[Val<'a>]>, u64),
    /// One list after the other.
    Pair(Rc<Pair<'a>>),
}

/// Two lists, none of them empty, as one.
pub struct Pair<'a> {
    first: List<'a>,
    second: List<'a>,
    len: usize,
    depth: u32,
    weight: u64,
}

impl<'a> From<Vec<Val<'a>>> for List<'a> {
    fn from(items: Vec<Val<'a>>) -> Self {
        let weight = items.iter().fold(1, |sum: u64, item| sum.saturating_add(item.weight()));
        List::Items(items.into(), weight)
    }
}

impl<'a> List<'a> {
    /// One list after the other.
    pub fn add(run: &mut Run<'_>, first: &List<'a>, second: &List<'a>) -> Result<List<'a>, Error> {
        if first.is_empty() {
            return Ok(second.clone());
        }
        if second.is_empty() {
            return Ok(first.clone());
        }
        let len = first.len().saturating_add(second.len());
        let depth = first.depth().max(second.depth()) + 1;
        if depth > DEEPEST {
            run.allow(len.saturating_mul(ITEM))?;
            return Ok(first.iter().chain(second.iter()).collect::<Result<Vec<_>, _>>()?.into());
        }
        let weight = first.bulk().saturating_add(second.bulk());
        Ok(List::Pair(Rc::new(Pair { first: first.clone(), second: second.clone(), len, depth, weight })))
    }

    fn depth(&self) -> u32 {
        if let List::Pair(pair) = self { pair.depth } else { 0 }
    }

    /// See [`Val::weight`].
    pub(super) fn weight(&self) -> u64 {
        match self {
            List::Json(..) | List::Constant(_) => 1,
            List::Items(_, weight) => *weight,
            List::Pair(pair) => pair.weight,
        }
    }

    /// The weight as a part of a longer list, where every item counts.
    fn bulk(&self) -> u64 {
        self.weight().max(self.len() as u64)
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        match self {
            List::Json(items, _) => items.len(),
            List::Constant(list) => list.items().len(),
            List::Items(items, _) => items.len(),
            List::Pair(pair) => pair.len,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An item.
    pub fn get(&self, index: usize) -> Result<Val<'a>, Error> {
        let bounds = || Error::Index(index as i64);
        let (mut list, mut place) = (self, index);
        while let List::Pair(pair) = list {
            list = if place < pair.first.len() {
                &pair.first
            } else {
                place -= pair.first.len();
                &pair.second
            };
        }
        match list {
            List::Json(items, kind) => Val::typed(items.get(place).ok_or_else(bounds)?, kind),
            List::Constant(list) => Ok(list.items().get(place).ok_or_else(bounds)?.value()),
            List::Items(items, _) => items.get(place).cloned().ok_or_else(bounds),
            List::Pair(_) => Err(bounds()),
        }
    }

    /// The items, one after the other.
    pub fn iter(&self) -> Iter<'_, 'a> {
        Iter { list: self, next: 0, rest: Vec::new() }
    }

    /// All items.
    pub fn items(&self) -> Result<Vec<Val<'a>>, Error> {
        self.iter().collect()
    }
}

impl<'l, 'a> IntoIterator for &'l List<'a> {
    type Item = Result<Val<'a>, Error>;
    type IntoIter = Iter<'l, 'a>;

    fn into_iter(self) -> Iter<'l, 'a> {
        self.iter()
    }
}

/// Goes through a list.
pub struct Iter<'l, 'a> {
    list: &'l List<'a>,
    next: usize,
    rest: Vec<&'l List<'a>>,
}

impl<'a> Iterator for Iter<'_, 'a> {
    type Item = Result<Val<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let List::Pair(pair) = self.list {
                self.rest.push(&pair.second);
                self.list = &pair.first;
            }
            if self.next < self.list.len() {
                self.next += 1;
                return Some(self.list.get(self.next - 1));
            }
            self.list = self.rest.pop()?;
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(from: i64, to: i64) -> List<'static> {
        (from..to).map(Val::Int).collect::<Vec<_>>().into()
    }

    /// On both sides, and deeper than the stack would be.
    #[test]
    fn lists_may_be_added_again_and_again() {
        let count = 10_000;
        for left in [true, false] {
            let mut run = Run::new(0, 100_000_000, None);
            let mut list = numbers(0, 0);
            for number in 0..count {
                let number = if left { number } else { count - 1 - number };
                let one = numbers(number, number + 1);
                let (first, second) = if left { (&list, &one) } else { (&one, &list) };
                list = List::add(&mut run, first, second).expect("there is room");
                assert!(list.depth() <= DEEPEST);
            }
            assert_eq!(list.len(), count as usize);
            assert!(Val::List(list.clone()).equals(&Val::List(numbers(0, count))));
            for index in [0, 1, 63, 64, 5000, count - 1] {
                assert!(matches!(list.get(index as usize), Ok(Val::Int(found)) if found == index));
            }
            assert!(matches!(list.get(count as usize), Err(Error::Index(10_000))));
        }
    }

    #[test]
    fn adding_a_list_to_itself_copies_nothing() {
        let mut run = Run::new(0, 0, None);
        let mut list = numbers(0, 3);
        for _ in 0..40 {
            list = List::add(&mut run, &list, &list).expect("nothing is made");
        }
        assert_eq!(list.len(), 3 << 40);
        assert!(Val::List(list.clone()).weight() >= 3 << 40);
        assert!(matches!(list.get((3 << 40) - 2), Ok(Val::Int(1))));
        assert_eq!(list.iter().take(7).filter(|item| matches!(item, Ok(Val::Int(0)))).count(), 3);
    }
}
