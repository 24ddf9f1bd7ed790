//! What every cached object has: its key, its metadata, and the kind it is a projection of.
//!
//! A projection is a small struct that reads only the fields a component uses. It never holds the whole object;
//! parts that are passed on untouched (pod templates) stay as JSON text in [`Raw`].

use std::fmt;
use std::ops::Deref;

use client::{Key, Labels, Metadata, Projection, Resource, Short, Word};
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// Metadata with annotations: what controllers' projections hold. Everything else is `client::Metadata`'s.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Meta {
    base: Metadata,
    /// Annotations.
    pub annotations: Labels,
}

impl Deref for Meta {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        &self.base
    }
}

impl<'de> Deserialize<'de> for Meta {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        /// Both parts in one pass; `flatten` would buffer the whole object.
        #[derive(Deserialize, Default)]
        #[serde(default, rename_all = "camelCase")]
        struct Flat {
            name: Box<str>,
            namespace: Word,
            uid: Box<str>,
            resource_version: Short,
            generation: i64,
            creation_timestamp: Option<Timestamp>,
            deletion_timestamp: Option<Timestamp>,
            deletion_grace_period_seconds: Option<i64>,
            labels: Labels,
            annotations: Labels,
            finalizers: Vec<Box<str>>,
            owner_references: client::Owners,
        }
        let flat = Flat::deserialize(input)?;
        let base = Metadata {
            name: flat.name,
            namespace: flat.namespace,
            uid: flat.uid,
            resource_version: flat.resource_version,
            generation: flat.generation,
            creation_timestamp: flat.creation_timestamp,
            deletion_timestamp: flat.deletion_timestamp,
            deletion_grace_period_seconds: flat.deletion_grace_period_seconds,
            labels: flat.labels,
            finalizers: flat.finalizers,
            owner_references: flat.owner_references,
        };
        Ok(Self { base, annotations: flat.annotations })
    }
}

impl Meta {
    /// The part without annotations.
    pub fn base(&self) -> &Metadata {
        &self.base
    }

    /// Whether the finalizer is present.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| **finalizer == *name)
    }

    /// One annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name)
    }

    /// One label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name)
    }

    /// Birth, or the beginning of time for an object that was never stored.
    pub fn created(&self) -> Timestamp {
        self.creation_timestamp.unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether the owner with this uid controls the object.
    pub fn is_controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| *owner.uid == *uid)
    }

    /// Keeps only the annotations that `keep` wants.
    pub fn keep_annotations(&mut self, keep: impl Fn(&str) -> bool) {
        self.annotations = self.annotations.iter().filter(|(name, _)| keep(name)).collect();
    }

    /// Forgets labels and annotations, for caches that only follow owners.
    pub fn drop_labels(&mut self) {
        self.base.labels = Labels::default();
        self.annotations = Labels::default();
    }

    /// The list of finalizers without one.
    pub fn finalizers_without(&self, name: &str) -> Vec<&str> {
        self.finalizers.iter().map(|finalizer| &**finalizer).filter(|finalizer| *finalizer != name).collect()
    }

    /// The list of finalizers with one more.
    pub fn finalizers_with<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        let mut finalizers = self.finalizers_without(name);
        finalizers.push(name);
        finalizers
    }
}

/// A part of an object that is only passed on: its JSON text.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Raw(Box<RawValue>);

impl Raw {
    /// The text.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// The parsed value.
    pub fn value(&self) -> Value {
        // A RawValue was checked to be JSON when it was read.
        serde_json::from_str(self.0.get()).unwrap_or(Value::Null)
    }
}

impl Default for Raw {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl From<&Value> for Raw {
    fn from(value: &Value) -> Self {
        RawValue::from_string(value.to_string()).map(Self).unwrap_or_default()
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Raw {}

impl std::hash::Hash for Raw {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.text())
    }
}

/// A projection that knows which kind it projects.
pub trait Kind: Projection {
    /// The kind.
    const RESOURCE: Resource;

    /// The object's metadata with annotations.
    fn meta(&self) -> &Meta;

    /// The object's key.
    fn key(&self) -> Key {
        self.meta().key()
    }

    /// A reference to the object as the dependents that it controls carry it.
    fn controller_ref(&self) -> Value {
        serde_json::json!({
            "apiVersion": Self::RESOURCE.api_version(),
            "kind": Self::RESOURCE.kind,
            "name": self.meta().name,
            "uid": self.meta().uid,
            "controller": true,
            "blockOwnerDeletion": true,
        })
    }
}

/// A cached object of whatever kind, for those who only follow metadata.
pub trait Described: Send + Sync {
    /// Its metadata.
    fn described(&self) -> &Meta;
}

impl<K: Kind> Described for K {
    fn described(&self) -> &Meta {
        self.meta()
    }
}

/// Files an object under the owner that controls it, or under the orphans of its namespace.
pub fn index_by_controller(meta: &Meta, add: &mut dyn FnMut(&'static str, &str)) {
    match meta.controller() {
        Some(owner) => add("controller", &owner.uid),
        None => add("orphans", &meta.namespace),
    }
}

/// Seconds-precision time as metadata and most conditions carry it.
pub fn time(at: Timestamp) -> Value {
    Value::String(format!("{}", Timestamp::from_second(at.as_second()).unwrap_or(at)))
}

/// Microsecond-precision time as leases and events carry it.
pub fn micro_time(at: Timestamp) -> Value {
    Value::String(format!("{at:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_keeps_annotations_and_finds_the_controller() {
        let meta: Meta = serde_json::from_str(
            r#"{"name":"a","namespace":"n","labels":null,"creationTimestamp":null,"annotations":{"x":"1"},
                "ownerReferences":[{"apiVersion":"v1","kind":"X","name":"x","uid":"1"},
                                   {"apiVersion":"apps/v1","kind":"R","name":"r","uid":"2","controller":true}]}"#,
        )
        .unwrap();
        assert_eq!(meta.key().to_string(), "n/a");
        assert!(meta.is_controlled_by("2"));
        assert_eq!(meta.annotation("x"), Some("1"));
    }

    #[test]
    fn times_print_as_the_api_writes_them() {
        let at: Timestamp = "2026-01-02T03:04:05.678901Z".parse().unwrap();
        assert_eq!(time(at), "2026-01-02T03:04:05Z");
        assert_eq!(micro_time(at), "2026-01-02T03:04:05.678901Z");
    }
}
