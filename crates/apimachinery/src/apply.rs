//! Server-side apply and the bookkeeping of who owns which field.
//!
//! Every write goes through here: [`update_managed_fields`] for creates, updates and patches, [`apply`] for apply
//! configurations. Ownership lives in `metadata.managedFields` as sets of paths ([`set::Set`]); values are compared and
//! merged along the schema ([`walk`]). An apply merges its configuration into the live object, removes what
//! the same manager applied before and no longer wants (unless someone else owns it), and fails with the
//! conflicts unless forced.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{
    decode::{self, FieldValidation, Options},
    meta::{self, Meta, MetaMut},
    schema::Schema,
    status::{Cause, Reason, Status},
    time,
};

pub mod managed;
pub mod scale;
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
    /// How the object looks in other versions; `None` if all versions have the same fields.
    pub versions: Option<Versions<'a>>,
}

/// An object in another version than it was given in.
#[derive(Debug, Clone)]
pub enum Version {
    /// As it is there, with the schema of that version.
    Made(Value, Schema),
    /// Not converted yet. What is found without it is not final: whoever asked has it converted and asks again.
    Awaited,
}

/// Looks for an object in another version; `None` if there is no such version, or not any more.
pub type InVersion<'a> = dyn Fn(&Value, &str) -> Option<Version> + 'a;

/// Makes other versions of objects: what somebody owns is said in the version that it was written in.
#[derive(Clone, Copy)]
pub struct Versions<'a>(pub &'a InVersion<'a>);

impl std::fmt::Debug for Versions<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Versions")
    }
}

impl Manager<'_> {
    /// When its entry was last changed.
    fn time(&self) -> String {
        time::seconds(self.now)
    }

    /// Whether an entry is to be read in another version than that of the request.
    fn is_elsewhere(&self, api_version: &str) -> bool {
        self.versions.is_some() && api_version != self.api_version
    }

    /// Whether any entry of a list, as it is written, is.
    fn has_elsewhere(&self, list: &Value) -> bool {
        let version = |entry: &Value| entry["apiVersion"].as_str().unwrap_or_default().to_owned();
        let mut entries = list.as_array().into_iter().flatten();
        self.versions.is_some() && entries.any(|entry| self.is_elsewhere(&version(entry)))
    }

    /// The object in a version, if it is known by now.
    fn in_version(&self, object: &Value, schema: &Schema, api_version: &str) -> Option<(Value, Schema)> {
        if object["apiVersion"] == api_version {
            return Some((object.clone(), schema.clone()));
        }
        match self.versions.and_then(|Versions(make)| make(object, api_version)) {
            Some(Version::Made(object, schema)) => Some((object, schema)),
            Some(Version::Awaited) | None => None,
        }
    }

    /// Drops the entries of versions that are gone: nobody can say any more what they own.
    fn forget_gone(&self, entries: &mut Vec<Entry>, object: &Value) {
        let Some(Versions(make)) = self.versions else { return };
        let mut known: HashMap<String, bool> = HashMap::from([(self.api_version.to_owned(), true)]);
        entries.retain(|entry| {
            let version = entry.api_version.as_str();
            if let Some(known) = known.get(version) {
                return *known;
            }
            let served = make(object, version).is_some();
            known.insert(version.to_owned(), served);
            served
        });
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
    /// The configuration fits the schema, and the object that it makes does not.
    #[error("failed to convert new object ({object}) to proper version: {problem}")]
    Untyped {
        /// namespace/name; apiVersion, Kind=kind
        object: String,
        /// what does not fit
        problem: String,
    },
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
            ApplyError::ManagedFields => Status::bad_request(self.to_string()),
            // Upstream gives no reason for these, which makes them its own failure.
            ApplyError::Typed { .. } | ApplyError::Untyped { .. } => {
                Status::failure(Reason::Unknown, self.to_string())
            }
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
    for path in ignored {
        let (parents, field) = path.rsplit_once('.').unwrap_or(("", path));
        let mut parents = parents.split('.').filter(|parent| !parent.is_empty());
        let below = parents.try_fold(&mut *set, |set, parent| set.below_mut(&format!("f:{parent}")));
        if let Some(below) = below {
            below.remove(&format!("f:{field}"));
        }
    }
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
    let sent = sent.filter(|_| manager.subresource.is_empty());
    let reset = sent.as_ref().is_some_and(is_reset);
    let recorded = live.and_then(|live| live.metadata()?.get("managedFields")).filter(|_| !reset);
    // An explicit `[]` or `[{}]` asks to forget all owners, and nobody keeps books again before the next apply.
    let kept = |books: &Value| books.as_array().is_some_and(|entries| !entries.is_empty());
    if live.is_some() && !recorded.is_some_and(kept) && (reset || !sent.as_ref().is_some_and(kept)) {
        return;
    }
    let sent = sent.filter(|_| !reset);
    // The live object's own bookkeeping shows as removed, and is stripped with the rest that no one owns.
    let empty = Value::Object(empty_object(schema));
    let (touched, removed) = changes(live.unwrap_or(&empty), new, schema, manager);
    // Most writes change again what their author has changed before. Then nothing has to be read and written anew.
    if let Some(recorded) = recorded
        && !manager.has_elsewhere(recorded)
        && sent.as_ref().is_none_or(|sent| meta::same(sent, recorded))
        && managed::stays(recorded, manager, &touched, &removed)
    {
        return new.put_meta("managedFields", sent.unwrap_or_else(|| recorded.clone()));
    }
    let given = sent.as_ref().and_then(managed::decode).filter(|entries| !entries.is_empty());
    let mut entries = given.or_else(|| recorded.and_then(managed::decode)).unwrap_or_default();
    let before = meta::without(live.unwrap_or(&empty), "managedFields");
    manager.forget_gone(&mut entries, &before);
    let elsewhere = Elsewhere::new(&entries, &before, new, schema, manager);
    record_update(&mut entries, manager, touched, &removed, &elsewhere);
    managed::encode(&entries, new);
}

/// Gives the manager what it touched, and takes that and what is gone from everybody else.
fn record_update(
    entries: &mut Vec<Entry>,
    manager: &Manager<'_>,
    touched: Set,
    removed: &Set,
    elsewhere: &Elsewhere,
) {
    let own = entries.iter().position(|entry| entry.is(manager, Operation::Update));
    for (index, entry) in entries.iter_mut().enumerate() {
        if Some(index) != own {
            let (touched, removed) = elsewhere.of(entry, &touched, removed);
            entry.set.subtract(touched);
            entry.set.subtract(removed);
        }
    }
    let previous = own.map(|index| entries[index].set.clone()).unwrap_or_default();
    let set = previous.difference(removed).joined(touched);
    match own {
        Some(index) => {
            if set != previous {
                entries[index].time = Some(manager.time());
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
    match sent.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(only)]) => only.is_empty(),
        _ => false,
    }
}

/// What somebody applies, known to fit the schema. Everything sent is kept: it is what will be owned.
#[derive(Debug, Clone)]
pub struct Configuration(Value);

impl Configuration {
    /// Checks a configuration against the schema.
    pub fn new(config: Value, schema: &Schema) -> Result<Self, ApplyError> {
        if !config.managed_fields().is_empty() {
            return Err(ApplyError::ManagedFields);
        }
        let mut problems = walk::undeclared(&config, schema.node());
        problems.extend(walk::bad_lists(&config, schema.node()));
        if !problems.is_empty() {
            problems.sort();
            return Err(ApplyError::Typed { object: title(&config), problem: error_list(&problems) });
        }
        Ok(Self(config))
    }

    /// Its error if the object that it makes cannot be read.
    pub fn unreadable(&self, problem: String) -> ApplyError {
        ApplyError::Untyped { object: title(&self.0), problem }
    }
}

/// How errors name a configuration: namespace/name; apiVersion, Kind=kind
fn title(config: &Value) -> String {
    let text = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
    let slash = if text("apiVersion").contains('/') { "" } else { "/" };
    let (namespace, name) = (config.namespace(), config.name());
    format!("{namespace}/{name}; {slash}{}, Kind={}", text("apiVersion"), text("kind"))
}

/// Applies a configuration. Returns the whole new object with its bookkeeping; `live` is `None` when it is created.
pub fn apply(
    live: Option<&Value>,
    config: &Configuration,
    schema: &Schema,
    manager: &Manager<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    let Configuration(config) = config;
    let mut wanted = walk::field_set(config, schema.node());
    strip(&mut wanted, manager.ignored);
    if let Some(live) = live
        && let Some(merged) = apply_again(live, config, &wanted, schema, manager)
    {
        return Ok(merged);
    }
    let outcome = apply_anew(live, config, wanted.clone(), schema, manager, force);
    // kubectl moving from client-side to server-side apply may take what its own annotation says it set.
    if let (Err(ApplyError::Conflict(conflicts)), "kubectl", Some(live)) = (&outcome, manager.name, live)
        && let Some(allowed) = last_applied(live, schema)
    {
        let rest: Vec<Conflict> =
            conflicts.iter().filter(|conflict| !allowed.contains(&conflict.path)).cloned().collect();
        if rest.is_empty() {
            return apply_anew(Some(live), config, wanted, schema, manager, true);
        }
        return Err(ApplyError::Conflict(rest));
    }
    outcome
}

/// What mostly happens: the manager applies the fields that it applied before, and nobody else owns one that changes. Then
/// nothing goes, and of the books only the time is new. `None` when it is not so.
fn apply_again(
    live: &Value,
    config: &Value,
    wanted: &Set,
    schema: &Schema,
    manager: &Manager<'_>,
) -> Option<Value> {
    let recorded = live.metadata()?.get("managedFields")?;
    if manager.has_elsewhere(recorded) {
        return None;
    }
    let own = managed::applied_before(recorded, manager, wanted)?;
    // Whether an empty container stays depends on who else has something in it.
    if walk::has_empty_container(config) {
        return None;
    }
    let mut merged = meta::without(live, "managedFields");
    walk::merge(&mut merged, config, schema.node());
    let (touched, removed) = changes(live, &merged, schema, manager);
    if !managed::spares_others(recorded, own, &touched, &removed) {
        return None;
    }
    let mut books = recorded.clone();
    if !touched.is_empty() || !removed.is_empty() {
        books[own]["time"] = manager.time().into();
    }
    refresh_last_applied(live, &mut merged, config, manager);
    merged.put_meta("managedFields", books);
    Some(merged)
}

/// What a write touches and removes, as it looks in the versions that other managers wrote in.
struct Elsewhere(Vec<(String, Set, Set)>);

impl Elsewhere {
    fn new(entries: &[Entry], before: &Value, after: &Value, schema: &Schema, manager: &Manager<'_>) -> Self {
        let mut found: Vec<(String, Set, Set)> = Vec::new();
        for entry in entries.iter().filter(|entry| manager.is_elsewhere(&entry.api_version)) {
            let version = &entry.api_version;
            if found.iter().any(|(own, ..)| own == version) {
                continue;
            }
            let old = manager.in_version(before, schema, version);
            let new = manager.in_version(after, schema, version);
            if let (Some((old, schema)), Some((new, _))) = (old, new) {
                let (touched, removed) = changes(&old, &new, &schema, manager);
                found.push((version.clone(), touched, removed));
            }
        }
        Self(found)
    }

    /// What concerns an entry. While its version is awaited, that of the request has to do.
    fn of<'a>(&'a self, entry: &Entry, touched: &'a Set, removed: &'a Set) -> (&'a Set, &'a Set) {
        let own = self.0.iter().find(|(version, ..)| *version == entry.api_version);
        own.map_or((touched, removed), |(_, touched, removed)| (touched, removed))
    }
}

/// What a write adds or changes, and what it removes, of all that somebody can own.
fn changes(before: &Value, after: &Value, schema: &Schema, manager: &Manager<'_>) -> (Set, Set) {
    let mut changed = walk::compare(before, after, schema.node());
    for set in [&mut changed.added, &mut changed.modified, &mut changed.removed] {
        strip(set, manager.ignored);
    }
    let Comparison { added, modified, removed } = changed;
    (added.joined(modified), removed)
}

fn error_list(problems: &[String]) -> String {
    match problems {
        [only] => only.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    }
}

fn apply_anew(
    live: Option<&Value>,
    config: &Value,
    wanted: Set,
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

    let is_own = |entry: &Entry| entry.is(manager, Operation::Apply);
    let time = entries.iter().find(|entry| is_own(entry)).and_then(|entry| entry.time.clone());
    manager.forget_gone(&mut entries, &before);

    let mut merged = before.clone();
    walk::merge(&mut merged, config, node);
    let own = entries.iter().position(is_own);
    let entry = Entry { time, ..Entry::new(manager, Operation::Apply, wanted) };
    let (index, last) = match own {
        Some(index) => (index, Some(std::mem::replace(&mut entries[index], entry))),
        None => {
            entries.push(entry);
            (entries.len() - 1, None)
        }
    };
    // Mostly everything that was applied last time is applied again, and nothing has to go. Empty containers are
    // looked at: whether they stay depends on who else has something in them.
    let complete = |last: &Entry| {
        !manager.is_elsewhere(&last.api_version)
            && last.set.is_within(&entries[index].set)
            && !walk::has_empty_container(config)
    };
    if let Some(last) = last.filter(|last| !last.set.is_empty() && !complete(last)) {
        // A container that has lost everything is gone; it comes back if it is applied as an empty one.
        let other = entries.iter().chain([&last]).any(|entry| manager.is_elsewhere(&entry.api_version));
        // Also what nobody owns keeps its container, such as the name the metadata.
        let applied = walk::field_set(config, node);
        merged = if other {
            prune_elsewhere(&merged, &entries, &last, &applied, schema, manager).unwrap_or(merged)
        } else {
            prune(&merged, &entries, &last.set, &applied, schema)
        };
        walk::merge(&mut merged, config, node);
    }

    let (touched, removed) = changes(&before, &merged, schema, manager);
    // The time is that of the last change. Who only said what was so already has none.
    if !touched.is_empty() || !removed.is_empty() {
        entries[index].time = Some(manager.time());
    }
    let elsewhere = Elsewhere::new(&entries, &before, &merged, schema, manager);
    let mut conflicts = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        if number == index {
            continue;
        }
        let (touched, _) = elsewhere.of(entry, &touched, &removed);
        for path in entry.set.intersection(touched).paths() {
            conflicts.push(Conflict { manager: entry.shown(), path });
        }
    }
    if !conflicts.is_empty() && !force {
        conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
        return Err(ApplyError::Conflict(conflicts));
    }
    for (number, entry) in entries.iter_mut().enumerate() {
        if number != index {
            let (touched, removed) = elsewhere.of(entry, &touched, &removed);
            entry.set.subtract(touched);
            entry.set.subtract(removed);
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
fn prune(merged: &Value, entries: &[Entry], last: &Set, applied: &Set, schema: &Schema) -> Value {
    let node = schema.node();
    let named = |set: &Set| walk::named_parents(set, node);
    let last = named(last);
    let merged_set = named(&walk::field_set(merged, node));
    let pruned = walk::remove(merged, &last, node);
    let pruned_set = named(&walk::field_set(&pruned, node));
    let managed = entries.iter().fold(applied.clone(), |all, entry| all.union(&entry.set));
    let pruned = walk::remove(merged, &merged_set.difference(&pruned_set.union(&named(&managed))), node);
    // Only what this manager had may go: items that nobody owned before stay.
    let pruned_set = named(&walk::field_set(&pruned, node));
    walk::remove(merged, &merged_set.difference(&pruned_set).intersection(&last), node)
}

/// The same where managers wrote in several versions: what was applied last goes in the version that it was applied in, and what
/// others own comes back in theirs. `None` while a version is awaited.
fn prune_elsewhere(
    merged: &Value,
    entries: &[Entry],
    last: &Entry,
    applied: &Set,
    schema: &Schema,
    manager: &Manager<'_>,
) -> Option<Value> {
    let in_version = |object: &Value, version: &str| {
        let own = manager.in_version(object, schema, version)?;
        // A request's own version is described by the request's schema.
        Some(if version == manager.api_version { (own.0, schema.clone()) } else { own })
    };
    let (whole, own_schema) = in_version(merged, &last.api_version)?;
    let named = |set: &Set, schema: &Schema| walk::named_parents(set, schema.node());
    let last_set = named(&last.set, &own_schema);
    let mut pruned = walk::remove(&whole, &last_set, own_schema.node());
    let mut versions = vec![last.api_version.as_str()];
    for entry in entries {
        if !versions.contains(&entry.api_version.as_str()) {
            versions.push(&entry.api_version);
        }
    }
    for version in versions {
        let same = entries.iter().filter(|entry| entry.api_version == version);
        let own = if version == manager.api_version { applied.clone() } else { Set::default() };
        let managed = same.fold(own, |all, entry| all.union(&entry.set));
        if managed.is_empty() {
            continue;
        }
        let (all, schema) = in_version(&whole, version)?;
        let (left, _) = in_version(&pruned, version)?;
        let all_set = named(&walk::field_set(&all, schema.node()), &schema);
        let left_set = named(&walk::field_set(&left, schema.node()), &schema);
        let gone = all_set.difference(&left_set.union(&named(&managed, &schema)));
        pruned = walk::remove(&all, &gone, schema.node());
    }
    let (left, _) = in_version(&pruned, &last.api_version)?;
    let left_set = named(&walk::field_set(&left, own_schema.node()), &own_schema);
    let whole_set = named(&walk::field_set(&whole, own_schema.node()), &own_schema);
    let pruned =
        walk::remove(&whole, &whole_set.difference(&left_set).intersection(&last_set), own_schema.node());
    Some(in_version(&pruned, manager.api_version)?.0)
}

/// Paths that kubectl's annotation says client-side apply set, and that still have those values.
fn last_applied(live: &Value, schema: &Schema) -> Option<HashSet<String>> {
    let text = live.annotation(LAST_APPLIED)?;
    let applied: Value = serde_json::from_str(text).ok()?;
    let options = Options::verbatim(FieldValidation::Ignore);
    let applied = decode::value_with(applied, schema.node(), options).ok()?.value;
    let set = walk::field_set(&applied, schema.node());
    let change = walk::compare(live, &applied, schema.node());
    let same = set.difference(&change.modified).difference(&change.added).difference(&change.removed);
    Some(same.paths().into_iter().collect())
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
