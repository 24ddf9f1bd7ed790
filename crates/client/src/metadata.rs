//! What every cached object knows of itself, kept small.

use std::fmt;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::{Shared, Short, Word};

/// Names an object within its resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for objects of the whole cluster.
    pub namespace: Word,
    pub name: Box<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of an object of the whole cluster.
    pub fn cluster(name: &str) -> Self {
        Self::new("", name)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(out, "{}", self.name)
        } else {
            write!(out, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The part of `metadata` that caches keep for every object. Annotations are left out on purpose: they are
/// large and few components read them; a projection that needs some declares them itself.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    pub name: Box<str>,
    pub namespace: Word,
    pub uid: Box<str>,
    pub resource_version: Short,
    pub generation: i64,
    pub creation_timestamp: Option<jiff::Timestamp>,
    pub deletion_timestamp: Option<jiff::Timestamp>,
    pub deletion_grace_period_seconds: Option<i64>,
    pub labels: Labels,
    pub finalizers: Vec<Box<str>>,
    pub owner_references: Owners,
}

impl Metadata {
    pub fn key(&self) -> Key {
        Key { namespace: self.namespace.clone(), name: self.name.clone() }
    }

    /// The revision of this version of the object; 0 when the server sent none.
    pub fn revision(&self) -> u64 {
        self.resource_version.parse().unwrap_or(0)
    }

    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The owner that controls this object, if any.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    pub api_version: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    pub controller: bool,
    pub block_owner_deletion: bool,
}

/// The owners of an object, read as a slice; siblings share them. `None` is an empty list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owners(Option<Shared<Box<[OwnerReference]>>>);

impl std::ops::Deref for Owners {
    type Target = [OwnerReference];

    fn deref(&self) -> &[OwnerReference] {
        self.0.as_deref().map_or(&[], |owners| owners)
    }
}

impl<'a> IntoIterator for &'a Owners {
    type Item = &'a OwnerReference;
    type IntoIter = std::slice::Iter<'a, OwnerReference>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'de> Deserialize<'de> for Owners {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let owners = Box::<[OwnerReference]>::deserialize(input)?;
        Ok(Self((!owners.is_empty()).then(|| Shared::new(owners))))
    }
}

type Pairs = Box<[(Box<str>, Box<str>)]>;

/// Labels (or any string map) as a sorted slice that equal ones share: a fraction of the memory of a tree, and equality is a
/// comparison. `None` is an empty map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Option<Shared<Pairs>>);

impl Labels {
    fn pairs(&self) -> &[(Box<str>, Box<str>)] {
        self.0.as_deref().map_or(&[], |pairs| pairs)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        let pairs = self.pairs();
        let index = pairs.binary_search_by(|(key, _)| (**key).cmp(name)).ok()?;
        Some(&pairs[index].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs().iter().map(|(key, value)| (&**key, &**value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<(Box<str>, Box<str>)> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        pairs.sort();
        Self((!pairs.is_empty()).then(|| Shared::new(pairs.into())))
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Labels;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map of strings")
            }

            fn visit_unit<E>(self) -> Result<Labels, E> {
                Ok(Labels::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Labels, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(0));
                while let Some(pair) = map.next_entry::<Box<str>, Box<str>>()? {
                    pairs.push(pair);
                }
                Ok(pairs.into_iter().collect())
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}

/// A component's own view of a kind: the fields it uses, read from the served JSON.
pub trait Projection: DeserializeOwned + Send + Sync + 'static {
    fn metadata(&self) -> &Metadata;

    /// Drops what the component can do without after reading, before the object is cached.
    fn shrink(&mut self) {}

    /// Names the lists in which caches file the object, as `add(index, value)`; see `Informer::indexed`.
    fn indices(&self, _add: &mut dyn FnMut(&'static str, &str)) {}
}
