//! A plan: the writes that close the difference between what is wanted and what is, as a value.
//!
//! Writes stand in stages. Those of one stage are done at the same time (creates with a slow start), the next stage
//! begins when the one before succeeded entirely. The status comes last, and is computed anew after a failure, so
//! that it can tell of it. Every write to an existing object carries the uid and, where it was decided on content,
//! the revision that the decision was based on: a stale plan fails, it does not misfire.

use std::fmt;

use client::{Key, Propagation, Resource, Short};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::meta::{Kind, Meta};
use crate::pace::Pace;

/// What a reconcile wants to be done.
#[derive(Default)]
pub struct Plan {
    stages: Vec<Vec<Write>>,
    status: Option<Write>,
    events: Vec<Event>,
    /// When to look again though nothing changed.
    pub requeue_at: Option<Timestamp>,
    /// How far the work on the key has come, where that shows only there: the same write at another stage of the work
    /// is no repetition.
    pub progress: u64,
    failure: Option<String>,
    /// Something was taken out, because it has to wait.
    held: bool,
}

/// One write.
#[derive(Clone, Debug)]
pub struct Write {
    /// The kind written to.
    pub resource: Resource,
    /// The object; the name is empty for a create with a generated name.
    pub key: Key,
    /// The subresource, if any.
    pub subresource: Option<&'static str>,
    /// What to do.
    pub verb: Verb,
    /// Events to record about its outcome.
    pub announce: Option<Announce>,
    /// Absence of the object, or presence for a create, is as good as success.
    pub tolerant: bool,
    /// How fast it may be repeated, where that is not the usual pace.
    pub pace: Option<Pace>,
    /// Events to record when it is tried.
    pub telling: Vec<Event>,
}

/// The kinds of write.
#[derive(Clone, Debug)]
pub enum Verb {
    /// Create this object (or, with a subresource, post this body to it).
    Create(Value),
    /// Read the object, merge this into it (RFC 7386), and put it back, if it still has this identity. What upstream's
    /// components do with an update, and what their roles allow.
    Update {
        /// The merge patch.
        change: Value,
        /// The object's identity.
        uid: Box<str>,
        /// The revision that the decision was based on; nothing to accept any.
        revision: Option<Short>,
    },
    /// Put this object as it is.
    Replace(Value),
    /// Patch the object in the server.
    Patch {
        /// The form of the patch.
        form: PatchForm,
        /// The patch.
        body: Value,
    },
    /// Delete the object.
    Delete {
        /// Only if it has this identity.
        uid: Option<Box<str>>,
        /// Only if it has this revision.
        revision: Option<Short>,
        /// What happens to dependents; nothing for the kind's own default.
        propagation: Option<Propagation>,
        /// Another grace period than the object's own.
        grace_period_seconds: Option<i64>,
    },
    /// Delete all objects of the kind in the key's namespace.
    DeleteCollection,
}

/// The forms of patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// RFC 7386.
    Merge,
    /// Kubernetes' own, which merges lists by key.
    Strategic,
    /// RFC 6902.
    Json,
    /// Server-side apply, forced, with this field manager.
    Apply(&'static str),
}

/// Events about the outcome of a write. In the texts `{name}` stands for the written object's name and `{error}` for
/// the failure.
#[derive(Clone, Debug)]
pub struct Announce {
    /// The object that the events are filed under.
    pub about: Reference,
    /// Reason and text on success.
    pub success: Option<(&'static str, String)>,
    /// Reason and text on failure.
    pub failure: Option<(&'static str, String)>,
}

/// Refers to an object in an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace and name.
    pub key: Key,
    /// Identity.
    pub uid: Box<str>,
    /// Revision.
    pub revision: Short,
}

impl Reference {
    /// As it stands in an event.
    pub fn to_value(&self) -> Value {
        serde_json::json!({
            "kind": self.kind, "namespace": self.key.namespace, "name": self.key.name, "uid": self.uid,
            "apiVersion": self.api_version, "resourceVersion": self.revision,
        })
    }

    /// A reference to a cached object.
    pub fn to<T: Kind>(object: &T) -> Self {
        Self::of(&T::RESOURCE, object.meta())
    }

    /// A reference from kind and metadata.
    pub fn of(resource: &Resource, meta: &Meta) -> Self {
        Self {
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            key: meta.key(),
            uid: meta.uid.clone(),
            revision: meta.resource_version.clone(),
        }
    }
}

/// An event to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub about: Reference,
    /// `Warning` instead of `Normal`.
    pub warning: bool,
    /// Upstream's reason word.
    pub reason: String,
    /// The sentence.
    pub message: String,
}

impl Plan {
    /// A plan with nothing to do.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Adds a write to the present stage.
    pub fn write(&mut self, write: Write) -> &mut Write {
        if self.stages.is_empty() {
            self.stages.push(Vec::new());
        }
        let stage = self.stages.last_mut().unwrap_or_else(|| unreachable!("a stage was just made"));
        stage.push(write);
        stage.last_mut().unwrap_or_else(|| unreachable!("a write was just added"))
    }

    /// Begins the next stage: what follows waits for the success of what stands so far.
    pub fn then(&mut self) -> &mut Self {
        if self.stages.last().is_some_and(|stage| !stage.is_empty()) {
            self.stages.push(Vec::new());
        }
        self
    }

    /// Creates an object. `object` needs no `apiVersion` and `kind`: they are put in front.
    pub fn create(&mut self, resource: &Resource, object: Value) -> &mut Write {
        let field = |name| object.pointer(name).and_then(Value::as_str).unwrap_or("");
        let key = Key::new(field("/metadata/namespace"), field("/metadata/name"));
        let mut whole = json!({"apiVersion": resource.api_version(), "kind": resource.kind});
        if let (Value::Object(whole), Value::Object(object)) = (&mut whole, object) {
            whole.extend(object);
        }
        self.write(Write::new(resource, key, None, Verb::Create(whole)))
    }

    /// Posts a body to a subresource of an object (evictions, tokens, bindings).
    pub fn post(
        &mut self,
        resource: &Resource,
        key: Key,
        subresource: &'static str,
        body: Value,
    ) -> &mut Write {
        self.write(Write::new(resource, key, Some(subresource), Verb::Create(body)))
    }

    /// Changes an object by a merge patch, if it still is as it was seen.
    pub fn update<T: Kind>(&mut self, object: &T, change: Value) -> &mut Write {
        self.write(update_of(&T::RESOURCE, object.meta(), None, change))
    }

    /// Changes an object of a kind known only at run time.
    pub fn update_meta(&mut self, resource: &Resource, meta: &Meta, change: Value) -> &mut Write {
        self.write(update_of(resource, meta, None, change))
    }

    /// Changes a subresource of an object, before the next stage.
    pub fn update_sub<T: Kind>(&mut self, object: &T, sub: &'static str, change: Value) -> &mut Write {
        self.write(update_of(&T::RESOURCE, object.meta(), Some(sub), change))
    }

    /// Patches an object in the server, whatever its revision but only with its present uid.
    pub fn patch<T: Kind>(&mut self, object: &T, change: Value) -> &mut Write {
        self.patch_meta(&T::RESOURCE, object.meta(), None, PatchForm::Merge, change)
    }

    /// Patches an object, also of a kind known only at run time. The uid is added to merge patches.
    pub fn patch_meta(
        &mut self,
        resource: &Resource,
        meta: &Meta,
        subresource: Option<&'static str>,
        form: PatchForm,
        mut body: Value,
    ) -> &mut Write {
        if matches!(form, PatchForm::Merge | PatchForm::Strategic) {
            body["metadata"]["uid"] = json!(meta.uid);
        }
        self.write(Write::new(resource, meta.key(), subresource, Verb::Patch { form, body }))
    }

    /// Deletes an object if it has the uid that was seen. An object that is gone already is no failure.
    pub fn delete<T: Kind>(&mut self, object: &T) -> &mut Write {
        self.delete_meta(&T::RESOURCE, object.meta(), None)
    }

    /// Deletes an object, also of a kind known only at run time.
    pub fn delete_meta(
        &mut self,
        resource: &Resource,
        meta: &Meta,
        propagation: Option<Propagation>,
    ) -> &mut Write {
        let verb = Verb::Delete {
            uid: Some(meta.uid.clone()),
            revision: None,
            propagation,
            grace_period_seconds: None,
        };
        self.write(Write::new(resource, meta.key(), None, verb)).tolerant()
    }

    /// Writes the status last. The merge patch is applied to the object (`{"status": …}`).
    pub fn set_status<T: Kind>(&mut self, object: &T, status: Value) -> &mut Self {
        self.status = Some(update_of(&T::RESOURCE, object.meta(), Some("status"), json!({"status": status})));
        self
    }

    /// Records an event.
    pub fn event<T: Kind>(&mut self, about: &T, reason: &str, message: impl Into<String>) -> &mut Self {
        self.record(Reference::to(about), false, reason, message)
    }

    /// Records a warning.
    pub fn warn<T: Kind>(&mut self, about: &T, reason: &str, message: impl Into<String>) -> &mut Self {
        self.record(Reference::to(about), true, reason, message)
    }

    /// Records an event about whatever is referred to.
    pub fn record(
        &mut self,
        about: Reference,
        warning: bool,
        reason: &str,
        message: impl Into<String>,
    ) -> &mut Self {
        self.events.push(Event { about, warning, reason: reason.to_string(), message: message.into() });
        self
    }

    /// Looks again at `at`, or earlier if that was asked for before.
    pub fn look_again(&mut self, at: Timestamp) -> &mut Self {
        self.requeue_at = Some(self.requeue_at.map_or(at, |earlier| earlier.min(at)));
        self
    }

    /// Says that the state cannot be handled now: the key is tried again with back-off.
    pub fn retry(&mut self, because: impl Into<String>) -> &mut Self {
        self.failure = Some(because.into());
        self
    }

    /// Takes out the writes that may not be done now. Stages that follow one of them wait with it, since they count on its
    /// success.
    pub(crate) fn retain(&mut self, may: &mut dyn FnMut(&Write) -> bool) {
        for number in 0..self.stages.len() {
            let before = self.stages[number].len();
            self.stages[number].retain(&mut *may);
            if self.stages[number].len() < before {
                self.held = true;
                self.stages.truncate(number + 1);
                break;
            }
        }
        self.status = self.status.take().filter(|status| may(status));
    }

    /// Whether not everything is to be done now.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Forgets the status, which tells of more than will have happened.
    pub(crate) fn without_status(&mut self) {
        self.status = None;
    }

    /// The stages with their writes.
    pub fn stages(&self) -> &[Vec<Write>] {
        &self.stages
    }

    /// All writes but the status.
    pub fn writes(&self) -> impl Iterator<Item = &Write> {
        self.stages.iter().flatten()
    }

    /// The status write.
    pub fn status(&self) -> Option<&Write> {
        self.status.as_ref()
    }

    /// The merge patch of the status, for tests.
    pub fn status_change(&self) -> Option<&Value> {
        match &self.status.as_ref()?.verb {
            Verb::Update { change, .. } => change.get("status"),
            _ => None,
        }
    }

    /// The events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Why the key has to be tried again.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Whether there is nothing to write or record.
    pub fn is_empty(&self) -> bool {
        self.writes().next().is_none() && self.status.is_none() && self.events.is_empty()
    }

    /// The names of the objects that would be deleted.
    pub fn deletes(&self) -> Vec<&str> {
        self.writes()
            .filter(|write| matches!(write.verb, Verb::Delete { .. }))
            .map(|write| &*write.key.name)
            .collect()
    }

    /// The objects that would be created.
    pub fn creates(&self) -> Vec<&Value> {
        let created =
            |write: &'_ Write| matches!(&write.verb, Verb::Create(_) if write.subresource.is_none());
        self.writes()
            .filter(|write| created(write))
            .filter_map(|write| match &write.verb {
                Verb::Create(object) => Some(object),
                _ => None,
            })
            .collect()
    }

    /// Object name and merge patch of the updates and patches.
    pub fn changes(&self) -> Vec<(&str, &Value)> {
        self.writes()
            .filter_map(|write| match &write.verb {
                Verb::Update { change, .. } => Some((&*write.key.name, change)),
                Verb::Patch { body, .. } => Some((&*write.key.name, body)),
                _ => None,
            })
            .collect()
    }
}

impl Write {
    /// A write of which nothing is told.
    pub fn new(resource: &Resource, key: Key, subresource: Option<&'static str>, verb: Verb) -> Self {
        Self {
            resource: resource.clone(),
            key,
            subresource,
            verb,
            announce: None,
            tolerant: false,
            pace: None,
            telling: Vec::new(),
        }
    }

    /// Records an event about the outcome.
    pub fn announce<T: Kind>(
        &mut self,
        about: &T,
        success: Option<(&'static str, String)>,
        failure: Option<(&'static str, String)>,
    ) -> &mut Self {
        self.announce = Some(Announce { about: Reference::to(about), success, failure });
        self
    }

    /// Records an event when the write is tried.
    pub fn telling<T: Kind>(
        &mut self,
        about: &T,
        warning: bool,
        reason: &str,
        message: impl Into<String>,
    ) -> &mut Self {
        let (about, reason) = (Reference::to(about), reason.to_owned());
        self.telling.push(Event { about, warning, reason, message: message.into() });
        self
    }

    /// Lets the write be repeated only at this pace.
    pub fn paced(&mut self, pace: Pace) -> &mut Self {
        self.pace = Some(pace);
        self
    }

    /// Takes absence (or presence, for a create) for success.
    pub fn tolerant(&mut self) -> &mut Self {
        self.tolerant = true;
        self
    }

    /// Accepts whatever revision the object has by now.
    pub fn any_revision(&mut self) -> &mut Self {
        if let Verb::Update { revision, .. } | Verb::Delete { revision, .. } = &mut self.verb {
            *revision = None;
        }
        self
    }

    /// Writes to a subresource.
    pub fn subresource(&mut self, subresource: &'static str) -> &mut Self {
        self.subresource = Some(subresource);
        self
    }

    /// Sets the grace period of a delete.
    pub fn grace(&mut self, seconds: i64) -> &mut Self {
        if let Verb::Delete { grace_period_seconds, .. } = &mut self.verb {
            *grace_period_seconds = Some(seconds);
        }
        self
    }

    /// Makes a delete depend on the revision that was seen.
    pub fn at_revision(&mut self, meta: &Meta) -> &mut Self {
        if let Verb::Delete { revision, .. } = &mut self.verb {
            *revision = Some(meta.resource_version.clone());
        }
        self
    }
}

fn update_of(resource: &Resource, meta: &Meta, subresource: Option<&'static str>, change: Value) -> Write {
    let revision = Some(meta.resource_version.clone());
    Write::new(resource, meta.key(), subresource, Verb::Update { change, uid: meta.uid.clone(), revision })
}

/// Merges `change` into `target` as RFC 7386 says.
pub fn merge(target: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *target = change.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { return };
    for (name, value) in change {
        if value.is_null() {
            target.shift_remove(name);
        } else {
            merge(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// A merge patch that turns `old` into `new`: fields that are missing in `new` become null. Nothing if they are equal.
pub fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (old, new) else { return Some(new.clone()) };
    let mut change = serde_json::Map::new();
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        change.insert(name.clone(), Value::Null);
    }
    for (name, value) in to {
        let part = from.get(name).map_or_else(|| Some(value.clone()), |old| difference(old, value));
        if let Some(part) = part {
            change.insert(name.clone(), part);
        }
    }
    Some(Value::Object(change))
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            writeln!(out, "nothing to do")?;
        }
        for (number, stage) in self.stages.iter().enumerate().filter(|(_, stage)| !stage.is_empty()) {
            writeln!(out, "stage {}:", number + 1)?;
            for write in stage {
                writeln!(out, "  {write}")?;
            }
        }
        if let Some(status) = &self.status {
            writeln!(out, "finally:\n  {status}")?;
        }
        for event in &self.events {
            let kind = if event.warning { "warning" } else { "event" };
            writeln!(out, "{kind} on {}: {}: {}", event.about.key, event.reason, event.message)?;
        }
        if let Some(at) = self.requeue_at {
            writeln!(out, "look again at {at}")?;
        }
        if let Some(failure) = &self.failure {
            writeln!(out, "try again: {failure}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Write {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sub = self.subresource.map(|sub| format!("/{sub}")).unwrap_or_default();
        let (resource, key) = (&self.resource, &self.key);
        match &self.verb {
            Verb::Create(object) if key.name.is_empty() => {
                let prefix = object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or("");
                write!(out, "create {resource}{sub} {}/{prefix}…", key.namespace)
            }
            Verb::Create(_) => write!(out, "create {resource}{sub} {key}"),
            Verb::Update { change, .. } => write!(out, "update {resource}{sub} {key} {change}"),
            Verb::Replace(_) => write!(out, "replace {resource}{sub} {key}"),
            Verb::Patch { body, .. } => write!(out, "patch {resource}{sub} {key} {body}"),
            Verb::Delete { .. } => write!(out, "delete {resource} {key}"),
            Verb::DeleteCollection => write!(out, "delete all {resource} in {}", key.namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_merged_into_the_old_gives_the_new() {
        let cases = [
            (json!({"a":1,"b":{"c":2,"d":3}}), json!({"b":{"c":2},"e":[1]})),
            (json!({"a":[1,2]}), json!({"a":[2]})),
            (json!({}), json!({"x":{"y":1}})),
        ];
        for (old, new) in cases {
            let change = difference(&old, &new).unwrap();
            let mut merged = old.clone();
            merge(&mut merged, &change);
            assert_eq!(merged, new, "{old} -> {new} by {change}");
        }
        assert_eq!(difference(&json!({"a":1}), &json!({"a":1})), None);
    }

    #[test]
    fn a_plan_prints_its_stages() {
        let mut plan = Plan::default();
        let pods = Resource::namespaced("", "v1", "pods", "Pod");
        plan.create(&pods, json!({"metadata":{"namespace":"n","generateName":"web-"}}));
        plan.then().create(&pods, json!({"metadata":{"namespace":"n","name":"x"}}));
        assert_eq!(plan.to_string(), "stage 1:\n  create pods n/web-…\nstage 2:\n  create pods n/x\n");
    }
}
