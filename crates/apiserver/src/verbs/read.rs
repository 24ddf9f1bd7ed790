//! GET of one object, and what GET, LIST and WATCH share: selections and revisions.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::status::{Cause, Details, Reason, Status};
use etcd::StoreError;
use http::{Response, StatusCode};

use crate::body::Body;
use crate::cache::entry::Entry;
use crate::cache::resource::Filter;
use crate::context::Context;
use crate::conversion::Age;
use crate::registry::Resource;
use crate::respond;
use crate::server::ApiServer;

/// How long a read waits for a revision that has not come yet.
pub const FRESHNESS: Duration = Duration::from_secs(3);

/// Which objects are meant.
#[derive(Clone)]
pub struct Selection {
    /// By label.
    pub labels: LabelSelector,
    /// By field.
    pub fields: FieldSelector,
}

impl Selection {
    /// Reads both selectors; unknown fields are refused. A request for one name, which is what was authorized, cannot
    /// select others.
    pub fn of(context: &Context) -> Result<Self, Status> {
        let selection = Self::parse(
            &context.resource,
            context.query.get("labelSelector").unwrap_or_default(),
            context.query.get("fieldSelector").unwrap_or_default(),
        )?;
        let (name, fields) = (context.info.name.as_str(), &selection.fields);
        if !name.is_empty() && !fields.is_everything() && fields.exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        Ok(selection)
    }

    /// Reads selectors for a resource.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = LabelSelector::parse(labels).map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(fields).map_err(|error| Status::bad_request(error.to_string()))?;
        for term in fields.terms() {
            if !resource.definition.selects_on(&term.field) {
                return Err(Status::bad_request(unknown_field(resource, &term.field)));
            }
        }
        Ok(Self { labels, fields })
    }

    /// Whether everything is meant.
    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Whether names say all that there is to know.
    pub fn is_by_name(&self) -> bool {
        let simple = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        self.labels.is_everything() && self.fields.terms().iter().all(|term| simple(&term.field))
    }

    /// The selection as a filter over entries. `name` further narrows it to one object.
    pub fn filter(self, resource: Arc<Resource>, name: Option<String>) -> Filter {
        if self.is_everything() && name.is_none() {
            return Arc::new(|_| true);
        }
        Arc::new(move |entry| {
            name.as_deref().is_none_or(|name| name == entry.name()) && self.matches(&resource, entry)
        })
    }

    /// Whether an entry is meant.
    pub fn matches(&self, resource: &Resource, entry: &Entry) -> bool {
        if !self.labels.is_everything() {
            let labels = entry.labels();
            let found = |key: &str| labels.iter().find(|(own, _)| **own == *key).map(|(_, value)| &**value);
            if !self.labels.matches_with(found) {
                return false;
            }
        }
        if self.fields.is_everything() {
            return true;
        }
        let definition = &resource.definition;
        let simple = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        if self.fields.terms().iter().all(|term| simple(&term.field)) {
            return self.fields.matches_with(|field| {
                Cow::Borrowed(if field == "metadata.name" { entry.name() } else { entry.namespace() })
            });
        }
        let read = |value: &serde_json::Value| -> Vec<(String, String)> {
            let labels = definition.field_labels.iter();
            labels.map(|label| (label.label().to_owned(), label.read(value).into_owned())).collect()
        };
        let lookup = |field: &str, pairs: &[(Box<str>, Box<str>)]| -> String {
            match field {
                "metadata.name" => entry.name().to_owned(),
                "metadata.namespace" => entry.namespace().to_owned(),
                _ => pairs
                    .iter()
                    .find(|(own, _)| **own == *field)
                    .map(|(_, value)| value.to_string())
                    .unwrap_or_default(),
            }
        };
        if resource.head_of(entry) > 0 {
            let paths = definition.field_labels.iter().flat_map(|label| label.paths());
            let pairs = entry.fields(paths, read);
            return self.fields.matches_with(|field| Cow::Owned(lookup(field, pairs)));
        }
        // Another version is stored: its fields are not those that the entry remembers.
        let value = resource.served_value(entry.parse());
        let pairs: Vec<(Box<str>, Box<str>)> =
            read(&value).into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        self.fields.matches_with(|field| Cow::Owned(lookup(field, &pairs)))
    }
}

/// Kinds that select on nothing of their own say what there is.
fn unknown_field(resource: &Resource, field: &str) -> String {
    if resource.group() == "batch" && resource.plural() == "jobs" {
        return format!("field label {field:?} not supported for Job");
    }
    if resource.definition.custom || !resource.definition.field_labels.is_empty() {
        return format!("field label not supported: {field}");
    }
    format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
}

/// The revision that a client names, `None` for nothing said.
pub fn revision(context: &Context) -> Result<Option<i64>, Status> {
    match context.query.get("resourceVersion").unwrap_or_default() {
        "" => Ok(None),
        text => parse_revision(text).map(Some),
    }
}

/// Reads a resource version.
pub fn parse_revision(text: &str) -> Result<i64, Status> {
    text.parse::<i64>().ok().filter(|revision| *revision >= 0).ok_or_else(|| {
        let why = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
        Status::failure(Reason::Unknown, format!("resourceVersion: Invalid value: {text:?}: {why}"))
    })
}

/// The answer to a store that failed.
pub fn store_failure(error: &StoreError) -> Status {
    match error {
        StoreError::Compacted { requested, compacted } => Status::expired(format!(
            "The resourceVersion for the provided watch is too old: {requested} ({compacted})"
        )),
        StoreError::FutureRevision { requested, current } => too_large(*requested, *current),
        StoreError::NoSpace => {
            Status::failure(Reason::InternalError, "etcdserver: mvcc: database space exceeded")
        }
        StoreError::TooLarge { size, limit } => Status::too_large(format!(
            "the object of {size} bytes is larger than the {limit} that can be stored"
        )),
        StoreError::Unavailable(_) | StoreError::Closed => {
            Status::unavailable(error.to_string()).retry_after(1)
        }
        other => Status::internal(other),
    }
}

/// The answer to a revision that has not come.
pub fn too_large(wanted: i64, reached: i64) -> Status {
    let text = format!("Too large resource version: {wanted}, current: {reached}");
    let mut status = Status::timeout(&text, 1);
    status.details = Some(Box::new(Details {
        causes: vec![Cause {
            reason: "ResourceVersionTooLarge".to_owned(),
            message: "Too large resource version".to_owned(),
            field: String::new(),
        }],
        retry_after_seconds: 1,
        ..Details::default()
    }));
    status
}

impl ApiServer {
    /// The object at a key, as the store has it now.
    pub async fn entry(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<Entry>>, Status> {
        let key = resource.key(namespace, name);
        let (found, _) = self.hub.store().get(&key, 0).await.map_err(|error| store_failure(&error))?;
        Ok(found
            .and_then(|kv| self.hub.open(&resource.prefix, kv.key, kv.value, kv.mod_revision))
            .map(Arc::new))
    }

    /// The object at a key as the cache has it.
    pub fn cached(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        self.hub.cache(&resource.prefix)?.get(&resource.key(namespace, name))
    }

    /// GET of an object.
    pub async fn get(&self, context: &Context) -> Result<Response<Body>, Status> {
        let resource = &context.resource;
        let (namespace, name) = (&context.info.namespace, &context.info.name);
        let wanted = revision(context)?;
        let age = if wanted.is_none() { Age::Fresh } else { Age::Known };
        let entry = match wanted {
            None => self.entry(resource, namespace, name).await?,
            Some(wanted) => {
                self.hub
                    .wait_for(wanted, FRESHNESS)
                    .await
                    .map_err(|late| too_large(late.wanted, late.reached))?;
                self.cached(resource, namespace, name)
            }
        };
        let entry = entry.ok_or_else(|| context.not_found())?;
        let entry = self.shown_as(resource, entry, age).await?;
        respond::object(context, StatusCode::OK, &entry)
    }
}
