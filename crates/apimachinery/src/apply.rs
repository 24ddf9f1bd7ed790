//! Server-side apply and the bookkeeping of who owns which field.
//!
//! Every write goes through here: [`update_managed_fields`] for creates, updates and patches, [`apply`] for apply
//! configurations. Ownership lives in `metadata.managedFields` as sets of paths ([`set::Set`]); values are compared and
//! merged along the schema ([`walk`]). An apply merges its configuration into the live object, removes what
//! the same manager applied before and no longer wants (unless someone else owns it), and fails with the
//! conflicts unless forced.

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{
    decode::{self, FieldValidation, Options},
    meta::{self, Meta, MetaMut},
    schema::Schema,
    status::{Cause, Status},
    time,
};

pub mod managed;
pub mod set;
pub mod walk;

#[cfg(test)]
mod tests;

use managed::{Entry, Operation};
use set::Set;
use walk::Comparison;

/// Who writes, and how.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    /// Name, from the `fieldManager` parameter or the user agent.
    pub name: &'a str,
    /// Group-version of the request.
    pub api_version: &'a str,
    /// Subresource that is written, "" for the object.
    pub subresource: &'a str,
    /// The time of the request.
    pub now: Timestamp,
    /// Dotted paths that this endpoint does not write, such as `status`.
    pub ignored: &'a [&'a str],
}

impl Manager<'_> {
    /// When its entry was last changed. What is written through a scale has no time, upstream loses it on the way.
    fn time(&self) -> Option<String> {
        (self.subresource != "scale").then(|| time::seconds(self.now))
    }
}

/// A field that someone else owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Who owns it, as shown in messages.
    pub manager: String,
    /// Where, as `.spec.replicas`.
    pub path: String,
}

/// Why an apply did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    /// Others own fields with other values.
    #[error("{}", conflict_message(.0))]
    Conflict(Vec<Conflict>),
    /// The configuration does not fit the schema.
    #[error("failed to create typed patch object ({object}): {problem}")]
    Typed {
        /// namespace/name; apiVersion, Kind=kind
        object: String,
        /// what does not fit
        problem: String,
    },
    /// managedFields must not be applied.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
}

impl ApplyError {
    /// The answer to the client.
    pub fn to_status(&self) -> Status {
        match self {
            ApplyError::Conflict(conflicts) => {
                let causes = conflicts
                    .iter()
                    .map(|conflict| Cause {
                        reason: "FieldManagerConflict".into(),
                        message: format!("conflict with {}", conflict.manager),
                        field: conflict.path.clone(),
                    })
                    .collect();
                Status::apply_conflict(causes, self.to_string())
            }
            other => Status::bad_request(other.to_string()),
        }
    }
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [only] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", only.manager, only.path);
    }
    let mut managers: Vec<&str> = conflicts.iter().map(|conflict| conflict.manager.as_str()).collect();
    managers.sort_unstable();
    managers.dedup();
    let texts: Vec<String> = managers
        .into_iter()
        .map(|manager| {
            let paths = conflicts.iter().filter(|conflict| conflict.manager == manager);
            let list: Vec<String> = paths.map(|conflict| format!("- {}", conflict.path)).collect();
            format!("conflicts with {manager}:\n{}", list.join("\n"))
        })
        .collect();
    format!("Apply failed with {} conflicts: {}", conflicts.len(), texts.join("\n"))
}

/// What no one owns, as elements of a set.
const UNOWNED: &[&str] = &["f:apiVersion", "f:kind"];
/// Metadata that no one owns.
const UNOWNED_METADATA: &[&str] = &[
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:clusterName",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn strip(set: &mut Set, ignored: &[&str]) {
    UNOWNED.iter().for_each(|element| set.remove(element));
    ignored.iter().for_each(|field| set.remove(&format!("f:{field}")));
    if let Some(metadata) = set.below_mut("f:metadata") {
        UNOWNED_METADATA.iter().for_each(|element| metadata.remove(element));
    }
    set.remove_member("metadata");
}

/// Records in `new` that `manager` wrote what differs from `live`. `live` is `None` for creates.
///
/// Never fails: an object whose managedFields do not decode starts over.
pub fn update_managed_fields(live: Option<&Value>, new: &mut Value, schema: &Schema, manager: &Manager<'_>) {
    let sent = new.take_meta("managedFields");
    if sent.as_ref().is_some_and(is_reset) {
        return; // an explicit `[{}]` asks to forget all owners
    }
    // The live object's own bookkeeping shows as removed, and is stripped with the rest that no one owns.
    let empty = Value::Object(empty_object(schema));
    let mut changed = walk::compare(live.unwrap_or(&empty), new, schema.node());
    for set in [&mut changed.added, &mut changed.modified, &mut changed.removed] {
        strip(set, manager.ignored);
    }
    let Comparison { added, modified, removed } = changed;
    let touched = added.joined(modified);
    let recorded = live.and_then(|live| live.metadata()?.get("managedFields"));
    // Most writes change again what their author has changed before. Then nothing has to be read and written anew.
    if let Some(recorded) = recorded
        && sent.as_ref().is_none_or(|sent| meta::same(sent, recorded))
        && managed::stays(recorded, manager, &touched, &removed)
    {
        return new.put_meta("managedFields", sent.unwrap_or_else(|| recorded.clone()));
    }
    let given = sent.as_ref().and_then(managed::decode).filter(|entries| !entries.is_empty());
    let mut entries = given.or_else(|| recorded.and_then(managed::decode)).unwrap_or_default();
    record_update(&mut entries, manager, touched, &removed);
    managed::encode(&entries, new);
}

/// Gives the manager what it touched, and takes that and what is gone from everybody else.
fn record_update(entries: &mut Vec<Entry>, manager: &Manager<'_>, touched: Set, removed: &Set) {
    let own = entries.iter().position(|entry| entry.is(manager, Operation::Update));
    for (index, entry) in entries.iter_mut().enumerate() {
        if Some(index) != own {
            entry.set = entry.set.difference(&touched).difference(removed);
        }
    }
    let previous = own.map(|index| entries[index].set.clone()).unwrap_or_default();
    let set = previous.difference(removed).joined(touched);
    match own {
        Some(index) => {
            if set != previous {
                entries[index].time = manager.time();
            }
            entries[index].set = set;
        }
        None => entries.push(Entry::new(manager, Operation::Update, set)),
    }
    entries.retain(|entry| !entry.set.is_empty());
    managed::cap(entries);
}

/// What upstream compares a new object with: the empty struct as Go writes it, whose fields nobody owns for having
/// sent them empty too.
fn empty_object(schema: &Schema) -> Map<String, Value> {
    let mut out = Map::new();
    if !schema.node().arena().custom {
        schema.node().add_zeroes(&mut out, true);
    }
    out
}

fn is_reset(sent: &Value) -> bool {
    matches!(sent.as_array().map(Vec::as_slice), Some([Value::Object(only)]) if only.is_empty())
}

/// Applies a configuration. Returns the whole new object with its bookkeeping; `live` is `None` when it is created.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    schema: &Schema,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    if !config.managed_fields().is_empty() {
        return Err(ApplyError::ManagedFields);
    }
    let config = typed(config, schema)?;
    let outcome = apply_typed(live, &config, schema, manager, force);
    // kubectl moving from client-side to server-side apply may take what its own annotation says it set.
    if let (Err(ApplyError::Conflict(conflicts)), "kubectl", Some(live)) = (&outcome, manager.name, live)
        && let Some(allowed) = last_applied(live, schema)
    {
        let rest: Vec<Conflict> =
            conflicts.iter().filter(|conflict| !allowed.contains(&conflict.path)).cloned().collect();
        if rest.is_empty() {
            return apply_typed(Some(live), &config, schema, manager, true);
        }
        return Err(ApplyError::Conflict(rest));
    }
    outcome
}

/// The configuration, checked against the schema. Everything sent is kept: it is what will be owned.
fn typed(config: &Value, schema: &Schema) -> Result<Value, ApplyError> {
    let object = || {
        let (namespace, name) = (config.namespace(), config.name());
        let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let version = text("apiVersion");
        let version = if version.contains('/') { version } else { format!("/{version}") };
        format!("{namespace}/{name}; {version}, Kind={}", text("kind"))
    };
    let undeclared = walk::undeclared(config, schema.node());
    if !undeclared.is_empty() {
        return Err(ApplyError::Typed { object: object(), problem: error_list(&undeclared) });
    }
    let options = Options::verbatim(FieldValidation::Ignore);
    let config = decode::value_with(config.clone(), schema.node(), options)
        .map_err(|err| ApplyError::Typed { object: object(), problem: err.to_string() })?
        .value;
    let broken = walk::bad_lists(&config, schema.node());
    if !broken.is_empty() {
        return Err(ApplyError::Typed { object: object(), problem: error_list(&broken) });
    }
    Ok(config)
}

fn error_list(problems: &[String]) -> String {
    match problems {
        [only] => only.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    }
}

fn apply_typed(
    live: Option<&Value>,
    config: &Value,
    schema: &Schema,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    let node = schema.node();
    let mut entries =
        live.and_then(|live| managed::decode(live.metadata()?.get("managedFields")?)).unwrap_or_default();
    let before = live.map_or_else(|| Value::Object(Map::new()), |live| meta::without(live, "managedFields"));
    if entries.is_empty() && live.is_some() {
        // What was there before anyone kept books belongs to a manager of that name, so that conflicts show.
        let mut set = walk::field_set(&before, node);
        strip(&mut set, manager.ignored);
        let first = Manager { name: "before-first-apply", ..*manager };
        if !set.is_empty() {
            entries.push(Entry { time: None, ..Entry::new(&first, Operation::Update, set) });
        }
    }

    let mut merged = walk::merge(&before, config, node);
    let mut wanted = walk::field_set(config, node);
    strip(&mut wanted, manager.ignored);
    let own = entries.iter().position(|entry| entry.is(manager, Operation::Apply));
    let last = own.map(|index| entries[index].set.clone());
    let time = own.and_then(|index| entries[index].time.clone());
    let mut entry = Entry { time, ..Entry::new(manager, Operation::Apply, wanted) };
    let index = match own {
        Some(index) => {
            std::mem::swap(&mut entries[index], &mut entry);
            index
        }
        None => {
            entries.push(entry);
            entries.len() - 1
        }
    };
    // Mostly everything that was applied last time is applied again, and nothing has to go. Empty containers are
    // looked at: whether they stay depends on who else has something in them.
    let complete = |last: &Set| last.is_within(&entries[index].set) && !walk::has_empty_container(config);
    if let Some(last) = last.filter(|last| !last.is_empty() && !complete(last)) {
        // A container that has lost everything is gone; it comes back if it is applied as an empty one.
        merged = walk::merge(&prune(&merged, &entries, &last, schema), config, node);
    }

    let mut changed = walk::compare(&before, &merged, node);
    for set in [&mut changed.added, &mut changed.modified, &mut changed.removed] {
        strip(set, manager.ignored);
    }
    let touched = changed.added.joined(changed.modified);
    // The time is that of the last change. Who only said what was so already has none.
    if !touched.is_empty() || !changed.removed.is_empty() {
        entries[index].time = Some(time::seconds(manager.now));
    }
    let mut conflicts = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        if number == index {
            continue;
        }
        for path in entry.set.intersection(&touched).paths() {
            conflicts.push(Conflict { manager: entry.shown(), path });
        }
    }
    if !conflicts.is_empty() && !force {
        conflicts.sort_by(|a, b| (&a.manager, &a.path).cmp(&(&b.manager, &b.path)));
        return Err(ApplyError::Conflict(conflicts));
    }
    for (number, entry) in entries.iter_mut().enumerate() {
        if number != index {
            entry.set = entry.set.difference(&touched).difference(&changed.removed);
        }
    }
    entries.retain(|entry| !entry.set.is_empty());
    if let Some(live) = live {
        refresh_last_applied(live, &mut merged, config, manager);
    }
    managed::encode(&entries, &mut merged);
    Ok(merged)
}

/// Removes what the manager applied last time and does not apply now, unless someone owns it or something owned is below it.
fn prune(merged: &Value, entries: &[Entry], last: &Set, schema: &Schema) -> Value {
    let node = schema.node();
    let named = |set: &Set| walk::named_parents(set, node);
    let last = named(last);
    let merged_set = named(&walk::field_set(merged, node));
    let pruned = walk::remove(merged, &last, node);
    let pruned_set = named(&walk::field_set(&pruned, node));
    let managed = entries.iter().fold(Set::default(), |all, entry| all.union(&entry.set));
    let pruned = walk::remove(merged, &merged_set.difference(&pruned_set.union(&named(&managed))), node);
    // Only what this manager had may go: items that nobody owned before stay.
    let pruned_set = named(&walk::field_set(&pruned, node));
    walk::remove(merged, &merged_set.difference(&pruned_set).intersection(&last), node)
}

/// Paths that kubectl's annotation says client-side apply set, and that still have those values.
fn last_applied(live: &Value, schema: &Schema) -> Option<Vec<String>> {
    let text = live.annotation(LAST_APPLIED)?;
    let applied: Value = serde_json::from_str(text).ok()?;
    let options = Options::verbatim(FieldValidation::Ignore);
    let applied = decode::value_with(applied, schema.node(), options).ok()?.value;
    let set = walk::field_set(&applied, schema.node());
    let change = walk::compare(live, &applied, schema.node());
    let same = set.difference(&change.modified).difference(&change.added).difference(&change.removed);
    Some(same.paths())
}

/// kubectl's annotation follows when kubectl applies server-side, so that going back works.
fn refresh_last_applied(live: &Value, merged: &mut Value, config: &Value, manager: &Manager<'_>) {
    if manager.name != "kubectl"
        || live.annotation(LAST_APPLIED).is_none()
        || merged.annotation(LAST_APPLIED).is_none()
    {
        return;
    }
    let mut plain = config.clone();
    if let Some(annotations) = plain.metadata_mut().get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(LAST_APPLIED);
    }
    let text = format!("{}\n", json!(plain));
    if text.len() < 256 * 1024 {
        merged.set_annotation(LAST_APPLIED, &text);
    }
}
