//! The map.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::ops;

use crate::index::Index;
pub use crate::iterators::{IntoIter, IntoKeys, IntoValues, Iter, IterMut, Keys, Values, ValuesMut};
use crate::{Equivalent, SHORT};

/// What only long maps have.
#[derive(Clone)]
struct Long<S> {
    hasher: S,
    index: Index,
}

/// A map that keeps its keys in the order in which they came.
pub struct IndexMap<K, V, S = RandomState> {
    entries: Vec<(K, V)>,
    long: Option<Box<Long<S>>>,
}

impl<K, V> IndexMap<K, V> {
    /// An empty one.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty one with room.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), long: None }
    }
}

impl<K, V, S> IndexMap<K, V, S> {
    /// An empty one with room. Its hasher is made when it is needed; whatever is given here is like any other.
    pub fn with_capacity_and_hasher(capacity: usize, _: S) -> Self {
        Self { entries: Vec::with_capacity(capacity), long: None }
    }

    /// How many entries there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many entries fit without more memory.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Makes room.
    pub fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
    }

    /// Gives back room.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.long = None;
    }

    /// The entry at a position.
    pub fn get_index(&self, position: usize) -> Option<(&K, &V)> {
        self.entries.get(position).map(|(key, value)| (key, value))
    }

    /// All entries.
    #[inline]
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.entries.iter())
    }

    /// All entries.
    #[inline]
    pub fn iter_mut(&mut self) -> IterMut<'_, K, V> {
        IterMut(self.entries.iter_mut())
    }

    /// All keys.
    #[inline]
    pub fn keys(&self) -> Keys<'_, K, V> {
        Keys(self.entries.iter())
    }

    /// All values.
    #[inline]
    pub fn values(&self) -> Values<'_, K, V> {
        Values(self.entries.iter())
    }

    /// All values.
    #[inline]
    pub fn values_mut(&mut self) -> ValuesMut<'_, K, V> {
        ValuesMut(self.entries.iter_mut())
    }

    /// All keys.
    pub fn into_keys(self) -> IntoKeys<K, V> {
        IntoKeys(self.entries.into_iter())
    }

    /// All values.
    pub fn into_values(self) -> IntoValues<K, V> {
        IntoValues(self.entries.into_iter())
    }
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> IndexMap<K, V, S> {
    /// Where a key is, or its hash if the map is long.
    #[inline]
    fn find<Q: ?Sized + Hash + Equivalent<K>>(&self, key: &Q) -> Result<usize, u64> {
        match &self.long {
            None => self.entries.iter().position(|(own, _)| key.equivalent(own)).ok_or(0),
            Some(long) => {
                let hash = long.hasher.hash_one(key);
                let wanted = |position: usize| key.equivalent(&self.entries[position].0);
                long.index.find(hash, wanted).ok_or(hash)
            }
        }
    }

    #[inline]
    fn position<Q: ?Sized + Hash + Equivalent<K>>(&self, key: &Q) -> Option<usize> {
        self.find(key).ok()
    }

    /// Makes the index anew: the map is long, or others are where entries were.
    #[cold]
    fn reindex(&mut self) {
        self.long = (self.entries.len() >= SHORT).then(|| {
            let hasher = S::default();
            let hashes = self.entries.iter().map(|(key, _)| hasher.hash_one(key)).collect();
            Box::new(Long { index: Index::of(hashes), hasher })
        });
    }

    /// Adds a key that is not there.
    #[inline]
    fn push(&mut self, key: K, value: V, hash: u64) {
        match &mut self.long {
            Some(long) => long.index.push(hash),
            None if self.entries.len() >= SHORT => {
                self.entries.push((key, value));
                return self.reindex();
            }
            None => {}
        }
        self.entries.push((key, value));
    }

    /// Whether a key is there.
    #[inline]
    pub fn contains_key<Q: ?Sized + Hash + Equivalent<K>>(&self, key: &Q) -> bool {
        self.position(key).is_some()
    }

    /// The value of a key.
    #[inline]
    pub fn get<Q: ?Sized + Hash + Equivalent<K>>(&self, key: &Q) -> Option<&V> {
        self.position(key).map(|position| &self.entries[position].1)
    }

    /// The value of a key.
    #[inline]
    pub fn get_mut<Q: ?Sized + Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<&mut V> {
        self.position(key).map(|position| &mut self.entries[position].1)
    }

    /// The key as it is here, and its value.
    pub fn get_key_value<Q: ?Sized + Hash + Equivalent<K>>(&self, key: &Q) -> Option<(&K, &V)> {
        self.position(key).and_then(|position| self.get_index(position))
    }

    /// Gives a key a value; a new one comes last. Returns the old value.
    #[inline]
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(position) => Some(std::mem::replace(&mut self.entries[position].1, value)),
            Err(hash) => {
                self.push(key, value, hash);
                None
            }
        }
    }

    /// Gives a key a value and a position. Returns the old value.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn shift_insert(&mut self, position: usize, key: K, value: V) -> Option<V> {
        let old = self.shift_remove(&key);
        self.entries.insert(position, (key, value));
        if self.long.is_some() || self.entries.len() > SHORT {
            self.reindex();
        }
        old
    }

    /// Takes out a key; the last entry takes its place.
    pub fn swap_remove<Q: ?Sized + Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<V> {
        self.swap_remove_entry(key).map(|(_, value)| value)
    }

    /// Takes out a key; the last entry takes its place.
    pub fn swap_remove_entry<Q: ?Sized + Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<(K, V)> {
        let position = self.position(key)?;
        Some(self.parts().swap_remove(position))
    }

    /// Takes out a key; all that come after it move up.
    pub fn shift_remove<Q: ?Sized + Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<V> {
        self.shift_remove_entry(key).map(|(_, value)| value)
    }

    /// Takes out a key; all that come after it move up.
    pub fn shift_remove_entry<Q: ?Sized + Hash + Equivalent<K>>(&mut self, key: &Q) -> Option<(K, V)> {
        let position = self.position(key)?;
        Some(self.parts().shift_remove(position))
    }

    /// Keeps what is wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(&K, &mut V) -> bool) {
        let before = self.entries.len();
        self.entries.retain_mut(|(key, value)| wanted(key, value));
        if self.long.is_some() && self.entries.len() != before {
            self.reindex();
        }
    }

    /// Sorts by key.
    pub fn sort_unstable_keys(&mut self)
    where
        K: Ord,
    {
        self.entries.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        if self.long.is_some() {
            self.reindex();
        }
    }

    /// The place of a key, taken or not.
    pub fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        match self.find(&key) {
            Ok(position) => Entry::Occupied(OccupiedEntry { parts: self.parts(), position }),
            Err(mut hash) => {
                // Whoever fills the place cannot hash.
                if self.long.is_none() && self.entries.len() >= SHORT {
                    self.reindex();
                    hash = self.long.as_ref().map_or(0, |long| long.hasher.hash_one(&key));
                }
                Entry::Vacant(VacantEntry { parts: self.parts(), key, hash })
            }
        }
    }

    fn parts(&mut self) -> Parts<'_, K, V> {
        Parts { entries: &mut self.entries, index: self.long.as_mut().map(|long| &mut long.index) }
    }
}

/// What can be changed without hashing.
struct Parts<'a, K, V> {
    entries: &'a mut Vec<(K, V)>,
    index: Option<&'a mut Index>,
}

impl<K, V> Parts<'_, K, V> {
    fn swap_remove(&mut self, position: usize) -> (K, V) {
        if let Some(index) = &mut self.index {
            index.swap_remove(position);
        }
        self.entries.swap_remove(position)
    }

    fn shift_remove(&mut self, position: usize) -> (K, V) {
        if let Some(index) = &mut self.index {
            index.shift_remove(position);
        }
        self.entries.remove(position)
    }
}

/// The place of a key.
pub enum Entry<'a, K, V> {
    /// It is there.
    Occupied(OccupiedEntry<'a, K, V>),
    /// It is not.
    Vacant(VacantEntry<'a, K, V>),
}

/// The place of a key that is there.
pub struct OccupiedEntry<'a, K, V> {
    parts: Parts<'a, K, V>,
    position: usize,
}

impl<'a, K, V> OccupiedEntry<'a, K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.parts.entries[self.position].0
    }

    /// Its value.
    pub fn get(&self) -> &V {
        &self.parts.entries[self.position].1
    }

    /// Its value.
    pub fn get_mut(&mut self) -> &mut V {
        &mut self.parts.entries[self.position].1
    }

    /// Its value.
    pub fn into_mut(self) -> &'a mut V {
        &mut self.parts.entries[self.position].1
    }

    /// Gives it another value; returns the old one.
    pub fn insert(&mut self, value: V) -> V {
        std::mem::replace(self.get_mut(), value)
    }

    /// Takes it out; the last entry takes its place.
    pub fn swap_remove(self) -> V {
        self.swap_remove_entry().1
    }

    /// Takes it out; the last entry takes its place.
    pub fn swap_remove_entry(mut self) -> (K, V) {
        self.parts.swap_remove(self.position)
    }

    /// Takes it out; all that come after it move up.
    pub fn shift_remove(self) -> V {
        self.shift_remove_entry().1
    }

    /// Takes it out; all that come after it move up.
    pub fn shift_remove_entry(mut self) -> (K, V) {
        self.parts.shift_remove(self.position)
    }
}

/// The place of a key that is not there.
pub struct VacantEntry<'a, K, V> {
    parts: Parts<'a, K, V>,
    key: K,
    hash: u64,
}

impl<'a, K, V> VacantEntry<'a, K, V> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// The key.
    pub fn into_key(self) -> K {
        self.key
    }

    /// Gives it a value; it comes last.
    pub fn insert(self, value: V) -> &'a mut V {
        if let Some(index) = self.parts.index {
            index.push(self.hash);
        }
        let position = self.parts.entries.len();
        self.parts.entries.push((self.key, value));
        &mut self.parts.entries[position].1
    }
}

impl<K, V, S> Default for IndexMap<K, V, S> {
    #[inline]
    fn default() -> Self {
        Self { entries: Vec::new(), long: None }
    }
}

impl<K: Clone, V: Clone, S: Clone> Clone for IndexMap<K, V, S> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), long: self.long.clone() }
    }
}

impl<K: fmt::Debug, V: fmt::Debug, S> fmt::Debug for IndexMap<K, V, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_map().entries(self.iter()).finish()
    }
}

/// Whatever the order.
impl<K: Hash + Eq, V: PartialEq, S: BuildHasher + Default> PartialEq for IndexMap<K, V, S> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self.entries.iter().enumerate().all(|(position, (key, value))| {
                // Mostly the order is the same as well.
                let (same_place, theirs) = &other.entries[position];
                if same_place == key { value == theirs } else { other.get(key) == Some(value) }
            })
    }
}

impl<K: Hash + Eq, V: Eq, S: BuildHasher + Default> Eq for IndexMap<K, V, S> {}

impl<K, V, Q, S> ops::Index<&Q> for IndexMap<K, V, S>
where
    K: Hash + Eq,
    Q: ?Sized + Hash + Equivalent<K>,
    S: BuildHasher + Default,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("no such key")
    }
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> Extend<(K, V)> for IndexMap<K, V, S> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> FromIterator<(K, V)> for IndexMap<K, V, S> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let entries = entries.into_iter();
        let mut map = Self { entries: Vec::with_capacity(entries.size_hint().0), long: None };
        map.extend(entries);
        map
    }
}

impl<K, V, S> IntoIterator for IndexMap<K, V, S> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        IntoIter(self.entries.into_iter())
    }
}

impl<'a, K, V, S> IntoIterator for &'a IndexMap<K, V, S> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<'a, K, V, S> IntoIterator for &'a mut IndexMap<K, V, S> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> IterMut<'a, K, V> {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a map should be, done simply.
    #[derive(Default)]
    struct Model(Vec<(String, u64)>);

    impl Model {
        fn position(&self, key: &str) -> Option<usize> {
            self.0.iter().position(|(own, _)| own == key)
        }

        fn insert(&mut self, key: &str, value: u64) -> Option<u64> {
            match self.position(key) {
                Some(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
                None => {
                    self.0.push((key.to_owned(), value));
                    None
                }
            }
        }
    }

    /// A sequence that looks random and is the same each time.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % limit
        }
    }

    fn check(map: &IndexMap<String, u64>, model: &Model) {
        let seen: Vec<(String, u64)> = map.iter().map(|(key, value)| (key.clone(), *value)).collect();
        assert_eq!(seen, model.0);
        for (key, value) in &model.0 {
            assert_eq!(map.get(key.as_str()), Some(value), "{key}");
        }
        assert!(map.long.is_some() || map.len() <= SHORT, "{} entries without an index", map.len());
    }

    #[test]
    fn behaves_like_a_list_of_unique_keys_whatever_its_length() {
        // The number of different keys decides how long the map gets.
        for keys in [3, SHORT as u64, SHORT as u64 + 2, 200] {
            let (mut map, mut model, mut chance) = (IndexMap::new(), Model::default(), Chance(keys));
            for step in 0..4_000 {
                let key = format!("key-{}", chance.below(keys));
                let at = model.position(&key);
                match chance.below(12) {
                    0..=3 => assert_eq!(map.insert(key.clone(), step), model.insert(&key, step)),
                    4..=5 => match map.entry(key.clone()) {
                        Entry::Vacant(place) => {
                            assert_eq!(place.key(), &key);
                            *place.insert(0) = step;
                            model.insert(&key, step);
                        }
                        Entry::Occupied(mut place) => {
                            assert_eq!(place.insert(step), model.0[at.unwrap()].1);
                            model.0[at.unwrap()].1 = step;
                        }
                    },
                    6 => assert_eq!(map.swap_remove(&key), at.map(|at| model.0.swap_remove(at).1)),
                    7 => assert_eq!(map.shift_remove(&key), at.map(|at| model.0.remove(at).1)),
                    8 => {
                        if let Entry::Occupied(place) = map.entry(key) {
                            let back = step % 2 == 0;
                            let at = at.unwrap();
                            let taken =
                                if back { place.swap_remove_entry() } else { place.shift_remove_entry() };
                            assert_eq!(
                                taken,
                                if back { model.0.swap_remove(at) } else { model.0.remove(at) }
                            );
                        }
                    }
                    9 => {
                        if let Some(at) = at {
                            model.0.remove(at);
                        }
                        let place = chance.below(model.0.len() as u64 + 1) as usize;
                        map.shift_insert(place, key.clone(), step);
                        model.0.insert(place, (key, step));
                    }
                    10 if step % 50 == 0 => {
                        map.retain(|_, value| *value % 3 != 0);
                        model.0.retain(|(_, value)| value % 3 != 0);
                    }
                    11 if step % 50 == 0 => {
                        map.sort_unstable_keys();
                        model.0.sort();
                    }
                    _ => assert_eq!(map.get(&key).copied(), at.map(|at| model.0[at].1)),
                }
                check(&map, &model);
            }
        }
    }

    #[test]
    fn maps_are_equal_whatever_the_order() {
        for length in [0, 1, 5, SHORT, SHORT + 1, 100] {
            let one: IndexMap<usize, usize> = (0..length).map(|number| (number, number)).collect();
            let mut other: IndexMap<usize, usize> =
                (0..length).rev().map(|number| (number, number)).collect();
            assert_eq!(one, other);
            assert_eq!(one, one.clone());
            if length > 0 {
                other.insert(0, 7);
                assert_ne!(one, other);
                other.swap_remove(&0);
                other.insert(length, 0);
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn a_short_map_is_small() {
        assert_eq!(size_of::<IndexMap<String, u64>>(), 32);
    }
}
