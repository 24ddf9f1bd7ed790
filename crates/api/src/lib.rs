//! Every kind that the API serves, declared once each.
//!
//! A [`Definition`] says everything that is true of a kind: names, scope, verbs, subresources, schema, where it is
//! stored, columns, defaults, rules, field labels and the effects that need the world. [`builtins`] lists the kinds
//! of Kubernetes; [`Definition::from_crd`] makes the same type from a CRD. Hooks are pure.
#![warn(missing_docs)]

pub mod checks;
pub mod columns;
pub mod custom;
pub mod defaults;
pub mod definition;
pub mod go_form;
pub mod metadata;
pub mod openapi;
pub mod print;
pub mod schemas;

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod events;
pub mod flowcontrol;
mod gates;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod resource;
pub mod scheduling;
pub mod storage;

mod builtins;
#[cfg(test)]
mod codec_tests;
mod difference;
mod prepare;
#[cfg(test)]
mod rules_tests;

pub use builtins::builtins;
pub use columns::{Cell, Column};
pub use definition::Rules;
pub use definition::{
    Change, Definition, Effect, Names, ScalePaths, Scope, StatusKeeps, Storage, Subresource, SubresourceKind,
    Verb, Verbs,
};
pub use metadata::MetaCheck;
