//! Values that many cached objects have in common, kept once.
//!
//! The thousand pods of a Deployment have the same labels, owner, tolerations and containers. A [`Shared`] is read like the value
//! itself; equal ones that are alive at the same time are one allocation. Which values are alive is known by weak
//! references, swept whenever their number has doubled.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde::{Deserialize, Deserializer};

/// See the module.
pub struct Shared<T>(Arc<T>);

/// The values of one type that are alive, by hash. Of two different ones with the same hash the second is not shared.
struct Pool<T> {
    known: HashMap<u64, Weak<T>>,
    sweep_at: usize,
}

/// Below this many values nothing is swept.
const FEW: usize = 1024;

static POOLS: LazyLock<Mutex<HashMap<TypeId, Box<dyn Any + Send>>>> = LazyLock::new(Mutex::default);
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl<T: Hash + Eq + Send + Sync + 'static> Shared<T> {
    pub fn new(value: T) -> Self {
        let hash = HASHER.hash_one(&value);
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let pool = pools
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::new(Pool::<T> { known: HashMap::new(), sweep_at: FEW }));
        let pool = pool.downcast_mut::<Pool<T>>().expect("the key is the type");
        let alive = pool.known.get(&hash).and_then(Weak::upgrade);
        match alive {
            Some(known) if *known == value => Self(known),
            Some(_) => Self(Arc::new(value)),
            None => {
                if pool.known.len() >= pool.sweep_at {
                    pool.known.retain(|_, value| value.strong_count() > 0);
                    pool.known.shrink_to_fit();
                    pool.sweep_at = FEW.max(pool.known.len() * 2);
                }
                let value = Arc::new(value);
                pool.known.insert(hash, Arc::downgrade(&value));
                Self(value)
            }
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Default + Hash + Eq + Send + Sync + 'static> Default for Shared<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<T: PartialEq> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<T: Eq> Eq for Shared<T> {}

impl<T: Hash> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<'de, T: Deserialize<'de> + Hash + Eq + Send + Sync + 'static> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        T::deserialize(input).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_dead_ones_are_swept() {
        let (one, other) = (Shared::new("a".to_owned()), Shared::new("a".to_owned()));
        assert!(Arc::ptr_eq(&one.0, &other.0));
        assert_ne!(one, Shared::new("b".to_owned()));
        assert_eq!(one.len(), 1);
        for number in 0..FEW * 4 {
            drop(Shared::new(number.to_string()));
        }
        let pools = POOLS.lock().unwrap();
        let pool = pools[&TypeId::of::<String>()].downcast_ref::<Pool<String>>().unwrap();
        assert!(pool.known.len() <= FEW, "{}", pool.known.len());
    }
}
