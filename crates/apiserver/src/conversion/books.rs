//! Field owners of other versions. What a manager owns is recorded in the version that it wrote in; whether a write takes something of
//! it is seen when the object before and after is looked at in that version.
//!
//! Owners are found by pure functions that cannot wait for a webhook. They write down here what they would like to have converted
//! and go on as well as they can; whoever called them has it converted and calls again.

use std::sync::{Mutex, MutexGuard, OnceLock};

use apimachinery::apply::Version;
use apimachinery::meta::{self, MetaMut};
use apimachinery::status::Status;
use serde_json::Value;

use super::Converter;
use crate::context::Context;
use crate::server::ApiServer;

/// A write asks for versions of so many objects at most.
const WISHES: usize = 64;

/// Objects of one write in other versions. Nearly no request has any, and so there is little room for them.
#[derive(Default)]
pub struct Books(OnceLock<Box<Mutex<Pages>>>);

#[derive(Default)]
struct Pages {
    /// A version, an object, and the object in that version.
    known: Vec<(String, Value, Value)>,
    wished: Vec<(String, Value)>,
}

impl Books {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.get_or_init(Box::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The object in a version; `None` if the CRD has no such version.
    pub fn find(&self, converter: &Converter, object: &Value, version: &str) -> Option<Version> {
        let schema = converter.versions.iter().find(|one| one.names.api_version() == version)?.schema.clone();
        let mut pages = self.pages();
        let same = |own: &str, other: &Value| own == version && meta::same(other, object);
        if let Some((.., found)) = pages.known.iter().find(|(own, other, _)| same(own, other)) {
            return Some(Version::Made(found.clone(), schema));
        }
        if !pages.wished.iter().any(|(own, other)| same(own, other)) {
            pages.wished.push((version.to_owned(), object.clone()));
        }
        Some(Version::Awaited)
    }
}

impl ApiServer {
    /// Converts what was wished for. False if that was nothing, and so what was found is final.
    pub async fn fulfil(&self, context: &Context) -> Result<bool, Status> {
        let Some(converter) = &context.resource.converter else { return Ok(false) };
        let wished = std::mem::take(&mut context.books.pages().wished);
        if wished.is_empty() {
            return Ok(false);
        }
        for (version, object) in wished {
            let mut sent = object.clone();
            let revision = sent.take_meta("resourceVersion");
            let mut found = converter.objects(vec![sent], &version).await?.pop().unwrap_or_default();
            if let Some(revision) = revision {
                found.put_meta("resourceVersion", revision);
            }
            let mut pages = context.books.pages();
            if pages.known.len() >= WISHES {
                return Err(Status::internal("the field owners of too many versions have to be looked at"));
            }
            pages.known.push((version, object, found));
        }
        Ok(true)
    }
}
