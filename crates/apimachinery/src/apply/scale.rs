//! Owners of a scale are those of the replicas of the object that it is a part of. Between the two their entries are
//! translated, with what upstream loses on the way: the time of a new entry, and that a manager who updated the object owns its
//! replicas and its other fields in one entry.

use serde_json::Value;

use super::managed::{self, Entry, Operation};
use super::set::Set;

/// The version that scales are written in.
pub const SCALE: &str = "autoscaling/v1";

/// Where an object has its replicas.
pub struct Place<'a> {
    /// The version of the object.
    pub api_version: &'a str,
    /// `.spec.replicas`, or wherever a CRD says.
    pub replicas: &'a str,
}

impl Place<'_> {
    fn set(&self) -> Set {
        path_set(self.replicas)
    }

    /// Entries of another group mean fields that are not these.
    fn knows(&self, entry: &Entry) -> bool {
        let group = |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
        group(&entry.api_version) == group(self.api_version)
    }
}

fn path_set(path: &str) -> Set {
    let mut value = Value::Object(serde_json::Map::new());
    for field in path.split('.').rev().filter(|field| !field.is_empty()) {
        value = serde_json::json!({format!("f:{field}"): value});
    }
    Set::from_value(&value).unwrap_or_default()
}

/// What two entries of one manager have in common. Appliers keep one entry over all versions.
fn is_same(one: &Entry, other: &Entry) -> bool {
    one.manager == other.manager
        && one.operation == other.operation
        && one.subresource == other.subresource
        && (one.operation == Operation::Apply || one.api_version == other.api_version)
}

/// The entries; of several of one manager the last counts.
fn read(books: Option<&Value>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for entry in books.and_then(managed::decode).unwrap_or_default() {
        entries.retain(|other| !is_same(other, &entry));
        entries.push(entry);
    }
    entries
}

/// Gives a scale the owners that its object says.
pub fn show(books: Option<&Value>, place: &Place<'_>, scale: &mut Value) {
    let (replicas, own) = (place.set(), path_set("spec.replicas"));
    let entries: Vec<Entry> = read(books)
        .into_iter()
        .filter(|entry| place.knows(entry) && replicas.is_within(&entry.set))
        .map(|entry| Entry { api_version: SCALE.to_owned(), set: own.clone(), ..entry })
        .collect();
    managed::encode(&entries, scale);
}

/// Gives an object the owners that its scale says. `books` are those that it had.
pub fn take(books: Option<&Value>, place: &Place<'_>, scale: Option<&Value>, object: &mut Value) {
    let (replicas, shown) = (place.set(), path_set("spec.replicas"));
    let mut scaled = read(scale);
    let before = read(books);
    let mut entries: Vec<Entry> = Vec::new();
    for entry in before.iter().filter(|entry| place.knows(entry)) {
        let mut entry = entry.clone();
        if replicas.is_within(&entry.set) {
            match scaled.iter().position(|other| is_same(other, &entry)) {
                Some(at) => drop(scaled.remove(at)),
                None => entry.set.subtract(&replicas),
            }
        }
        entries.push(entry);
    }
    for entry in scaled.into_iter().filter(|entry| shown.is_within(&entry.set)) {
        entries.retain(|other| !is_same(other, &entry));
        let time = before.iter().find(|other| is_same(other, &entry)).and_then(|other| other.time.clone());
        let api_version = place.api_version.to_owned();
        entries.push(Entry { api_version, time, set: replicas.clone(), ..entry });
    }
    entries.retain(|entry| !entry.set.is_empty());
    managed::encode(&entries, object);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owners_of_replicas_are_owners_of_the_scale() {
        let place = Place { api_version: "apps/v1", replicas: ".spec.replicas" };
        let entry =
            |manager: &str, operation: &str, version: &str, sub: &str, time: Option<&str>, fields: Value| {
                let mut entry = json!({"manager": manager, "operation": operation, "apiVersion": version,
                "fieldsType": "FieldsV1", "fieldsV1": fields});
                if !sub.is_empty() {
                    entry["subresource"] = json!(sub);
                }
                if let Some(time) = time {
                    entry["time"] = json!(time);
                }
                entry
            };
        let (replicas, other) = (json!({"f:spec": {"f:replicas": {}}}), json!({"f:spec": {"f:paused": {}}}));
        let both = json!({"f:spec": {"f:paused": {}, "f:replicas": {}}});
        let old = json!([
            entry("a", "Apply", "apps/v1", "", Some("1"), both.clone()),
            entry("u", "Update", "apps/v1", "", Some("2"), both.clone()),
            entry("x", "Update", "apps/v1", "", Some("3"), other.clone()),
        ]);
        let mut scale = json!({"metadata": {}});
        show(Some(&old), &place, &mut scale);
        let shown = json!([
            entry("a", "Apply", SCALE, "", Some("1"), replicas.clone()),
            entry("u", "Update", SCALE, "", Some("2"), replicas.clone()),
        ]);
        assert!(crate::meta::same(&scale["metadata"]["managedFields"], &shown), "{scale}");
        // Somebody applies to the scale and takes it from all others.
        let applied = json!([entry("s", "Apply", SCALE, "scale", Some("9"), replicas.clone())]);
        let mut object = json!({"metadata": {}});
        take(Some(&old), &place, Some(&applied), &mut object);
        let wanted = json!([
            entry("s", "Apply", "apps/v1", "scale", None, replicas.clone()),
            entry("a", "Apply", "apps/v1", "", Some("1"), other.clone()),
            entry("u", "Update", "apps/v1", "", Some("2"), other.clone()),
            entry("x", "Update", "apps/v1", "", Some("3"), other.clone()),
        ]);
        assert!(crate::meta::same(&object["metadata"]["managedFields"], &wanted), "{object}");
        // Who applied the object and still owns its replicas keeps his entry; who updated it has two from then on.
        let mut object = json!({"metadata": {}});
        take(Some(&old), &place, Some(&shown), &mut object);
        let wanted = json!([
            entry("a", "Apply", "apps/v1", "", Some("1"), both),
            entry("u", "Update", "apps/v1", "", None, replicas),
            entry("u", "Update", "apps/v1", "", Some("2"), other.clone()),
            entry("x", "Update", "apps/v1", "", Some("3"), other),
        ]);
        assert!(crate::meta::same(&object["metadata"]["managedFields"], &wanted), "{object}");
    }
}
