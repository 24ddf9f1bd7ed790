//! Entries of `metadata.managedFields`.

use serde_json::{Map, Value};

use super::{Manager, set::Set};
use crate::field::go_quote;
use crate::meta::MetaMut;

/// How fields came to be owned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// By an apply configuration.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    fn word(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// What one manager owns.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Name of the manager.
    pub manager: String,
    /// How.
    pub operation: Operation,
    /// Group-version of the write.
    pub api_version: String,
    /// When it last changed.
    pub time: Option<String>,
    /// Through which subresource.
    pub subresource: String,
    /// What.
    pub set: Set,
}

impl Entry {
    /// A new entry, written now.
    pub fn new(manager: &Manager<'_>, operation: Operation, set: Set) -> Self {
        Self {
            manager: manager.name.to_owned(),
            operation,
            api_version: manager.api_version.to_owned(),
            time: Some(manager.time()),
            subresource: manager.subresource.to_owned(),
            set,
        }
    }

    /// Whether this is the manager's own entry. Appliers keep one entry over all versions.
    pub fn is(&self, manager: &Manager<'_>, operation: Operation) -> bool {
        self.manager == manager.name
            && self.operation == operation
            && self.subresource == manager.subresource
            && (operation == Operation::Apply || self.api_version == manager.api_version)
    }

    /// The manager in a conflict message.
    pub fn shown(&self) -> String {
        let mut text = go_quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", go_quote(&self.subresource)));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn to_value(&self) -> Value {
        let mut out = Map::new();
        out.insert("manager".into(), self.manager.clone().into());
        out.insert("operation".into(), self.operation.word().into());
        out.insert("apiVersion".into(), self.api_version.clone().into());
        if let Some(time) = &self.time {
            out.insert("time".into(), time.clone().into());
        }
        out.insert("fieldsType".into(), "FieldsV1".into());
        out.insert("fieldsV1".into(), self.set.to_value());
        if !self.subresource.is_empty() {
            out.insert("subresource".into(), self.subresource.clone().into());
        }
        Value::Object(out)
    }
}

/// Reads the list; `None` when any entry does not decode.
pub fn decode(list: &Value) -> Option<Vec<Entry>> {
    list.as_array()?
        .iter()
        .map(|entry| {
            let operation = match entry.get("operation")?.as_str()? {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return None,
            };
            if entry.get("fieldsType").and_then(Value::as_str) != Some("FieldsV1") {
                return None;
            }
            Some(Entry {
                manager: text(entry, "manager").to_owned(),
                operation,
                api_version: text(entry, "apiVersion").to_owned(),
                time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
                subresource: text(entry, "subresource").to_owned(),
                set: entry.get("fieldsV1").map_or_else(|| Some(Set::default()), Set::from_value)?,
            })
        })
        .collect()
}

/// A text of an entry as it is written.
fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Whether an entry, as it is written, is of this manager, operation and version.
fn is_of(entry: &Value, manager: &Manager<'_>, operation: Operation) -> bool {
    text(entry, "manager") == manager.name
        && text(entry, "operation") == operation.word()
        && text(entry, "subresource") == manager.subresource
        && text(entry, "apiVersion") == manager.api_version
}

/// The entry of a manager that has applied just these fields before and is the only one who applies.
pub fn applied_before(list: &Value, manager: &Manager<'_>, wanted: &Set) -> Option<usize> {
    let applies = |entry: &Value| text(entry, "operation") == Operation::Apply.word();
    let mut appliers = list.as_array()?.iter().enumerate().filter(|(_, entry)| applies(entry));
    let (Some((index, entry)), None) = (appliers.next(), appliers.next()) else { return None };
    let fields = entry.get("fieldsV1")?.as_object()?;
    (is_of(entry, manager, Operation::Apply) && wanted.is_written(fields)).then_some(index)
}

/// Whether nobody but the owner of one entry has anything of what changes or goes.
pub fn spares_others(list: &Value, own: usize, touched: &Set, removed: &Set) -> bool {
    let others = list.as_array().into_iter().flatten().enumerate().filter(|(index, _)| *index != own);
    let fields = others.map(|(_, entry)| entry.get("fieldsV1").and_then(Value::as_object));
    fields.flatten().all(|fields| !touched.meets_written(fields) && !removed.meets_written(fields))
}

/// Whether the list, as it is written, stays as it is when `manager` updates the `touched` paths and removes others: all of
/// `touched` is the manager's already, and nobody else has any of it.
pub fn stays(list: &Value, manager: &Manager<'_>, touched: &Set, removed: &Set) -> bool {
    let Some(list) = list.as_array().filter(|list| !list.is_empty()) else { return false };
    let empty = Map::new();
    let mut owned = touched.is_empty();
    for entry in list {
        let fields = entry.get("fieldsV1").and_then(Value::as_object).unwrap_or(&empty);
        let own = is_of(entry, manager, Operation::Update);
        let fits = if own { touched.is_within_written(fields) } else { !touched.meets_written(fields) };
        if !fits || removed.meets_written(fields) {
            return false;
        }
        owned |= own;
    }
    owned
}

/// Writes the list, in upstream's order: appliers first, then by time.
pub fn encode(entries: &[Entry], object: &mut Value) {
    if entries.is_empty() {
        object.take_meta("managedFields");
        return;
    }
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|a, b| {
        let rank = |entry: &Entry| u8::from(entry.operation == Operation::Update);
        (rank(a), &a.time, &a.manager, &a.api_version, &a.subresource).cmp(&(
            rank(b),
            &b.time,
            &b.manager,
            &b.api_version,
            &b.subresource,
        ))
    });
    object.put_meta("managedFields", sorted.into_iter().map(Entry::to_value).collect());
}

/// The most update managers that are kept apart.
const MAX_UPDATE_MANAGERS: usize = 10;

/// Folds the oldest update managers into one when there are too many.
pub fn cap(entries: &mut Vec<Entry>) {
    let updates =
        |entries: &[Entry]| entries.iter().filter(|entry| entry.operation == Operation::Update).count();
    let count = updates(entries);
    if count <= MAX_UPDATE_MANAGERS {
        return;
    }
    let mut order: Vec<usize> =
        (0..entries.len()).filter(|index| entries[*index].operation == Operation::Update).collect();
    order.sort_by(|a, b| entries[*a].time.cmp(&entries[*b].time));
    let old: Vec<usize> = order[..=count - MAX_UPDATE_MANAGERS].to_vec();
    // One bucket per version, so that the paths stay meaningful.
    let mut buckets: Vec<Entry> = Vec::new();
    for index in &old {
        let entry = &entries[*index];
        match buckets.iter_mut().find(|bucket| bucket.api_version == entry.api_version) {
            Some(bucket) => {
                bucket.set = bucket.set.union(&entry.set);
                bucket.time = bucket.time.clone().max(entry.time.clone());
            }
            None => {
                let renamed =
                    Entry { manager: "ancient-changes".into(), subresource: String::new(), ..entry.clone() };
                buckets.push(renamed);
            }
        }
    }
    let mut index = 0;
    entries.retain(|_| {
        index += 1;
        !old.contains(&(index - 1))
    });
    entries.extend(buckets);
}
