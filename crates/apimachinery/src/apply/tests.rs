//! Who owns what, and the laws of apply.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::schema::{Arena, Field, Kind, List, ListType, Object, Scalar};

/// A small kind: spec.replicas, spec.labels (map), spec.items (list-map by name), spec.set, spec.atomic.
fn schema() -> Schema {
    let mut arena = Arena::default();
    let text = arena.add(Kind::Scalar(Scalar::String));
    let number = arena.add(Kind::Scalar(Scalar::Int64));
    let field = |name: &'static str, node| Field { pointer: true, ..Field::new(name, node) };
    let object = |arena: &mut Arena, fields: Vec<Field>| {
        let fields = arena.add_fields(fields);
        arena.add(Kind::Object(Object {
            name: "T".into(),
            definition: "T".into(),
            fields,
            inlines: Vec::new(),
            additional: None,
            preserve_unknown: false,
            embedded: false,
            atomic: false,
        }))
    };
    let map = arena.add(Kind::Map { value: text, atomic: false });
    let item = object(&mut arena, vec![field("name", text), field("value", text), field("count", number)]);
    let list = |items, list_type| Kind::List(List { items, list_type, merge_key: None, wrapped: false });
    let items = arena.add(list(item, ListType::Map(vec!["name".into()])));
    let set = arena.add(list(text, ListType::Set));
    let atomic = arena.add(list(text, ListType::Atomic));
    let spec = object(
        &mut arena,
        vec![
            field("replicas", number),
            field("labels", map),
            field("items", items),
            field("set", set),
            field("atomic", atomic),
        ],
    );
    let meta = object(
        &mut arena,
        vec![field("name", text), field("labels", map), field("annotations", map), field("namespace", text)],
    );
    let root = object(
        &mut arena,
        vec![
            field("apiVersion", text),
            field("kind", text),
            field("metadata", meta),
            field("spec", spec),
            field("status", map),
        ],
    );
    Schema::new(Arc::new(arena), root)
}

fn manager(name: &str) -> Manager<'_> {
    Manager {
        name,
        api_version: "v1",
        subresource: "",
        now: Timestamp::UNIX_EPOCH,
        ignored: &["status"],
        versions: None,
    }
}

fn config(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": "a"}, "spec": spec})
}

fn applied(live: Option<&Value>, name: &str, spec: Value, force: bool) -> Result<Value, ApplyError> {
    apply(live, &Configuration::new(config(spec), &schema())?, &schema(), &manager(name), force)
}

#[test]
fn an_applied_object_tells_who_owns_what() {
    let live = applied(None, "a", json!({"replicas": 1, "items": [{"name": "x", "value": "1"}]}), false)
        .expect("created");
    assert_eq!(
        live["metadata"]["managedFields"],
        json!([{"manager": "a", "operation": "Apply", "apiVersion": "v1", "time": "1970-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:items": {"k:{\"name\":\"x\"}": {".": {}, "f:name": {}, "f:value": {}}},
            "f:replicas": {}}}}])
    );
}

#[test]
fn another_managers_value_is_a_conflict_until_forced() {
    let live = applied(None, "a", json!({"replicas": 1}), false).expect("created");
    let err = applied(Some(&live), "b", json!({"replicas": 2}), false).expect_err("a owns it");
    assert_eq!(err.to_string(), "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas");
    let status = err.to_status();
    assert_eq!(status.code, 409);
    assert_eq!(status.to_value()["details"]["causes"][0]["field"], ".spec.replicas");
    let live = applied(Some(&live), "b", json!({"replicas": 2}), true).expect("forced");
    assert_eq!(live["spec"]["replicas"], 2);
    assert_eq!(live.managed_fields().len(), 1, "a owns nothing any more");
    // The same value is shared, not fought over.
    let live = applied(Some(&live), "c", json!({"replicas": 2}), false).expect("same value");
    assert_eq!(live.managed_fields().len(), 2);
}

#[test]
fn fields_that_are_no_longer_applied_go_unless_shared() {
    let items = json!({"items": [{"name": "x", "value": "1"}, {"name": "y"}], "set": ["p", "q"], "labels": {"k": "v"}});
    let live = applied(None, "a", items, false).expect("created");
    let live =
        applied(Some(&live), "b", json!({"items": [{"name": "y", "count": 3}]}), false).expect("shares y");
    let live = applied(Some(&live), "a", json!({"set": ["q"]}), false).expect("lets go");
    assert_eq!(live["spec"], json!({"items": [{"name": "y", "count": 3}], "set": ["q"]}));
}

#[test]
fn updates_take_ownership_of_what_they_change() {
    let mut live = applied(None, "a", json!({"replicas": 1, "labels": {"k": "v"}}), false).expect("created");
    let before = live.clone();
    live["spec"]["replicas"] = json!(5);
    update_managed_fields(Some(&before), &mut live, &schema(), &manager("scaler"));
    let entries = live.managed_fields();
    assert_eq!(entries[1]["manager"], "scaler");
    assert_eq!(entries[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {"f:labels": {"f:k": {}}}}));
    let err = applied(Some(&live), "a", json!({"replicas": 1, "labels": {"k": "v"}}), false)
        .expect_err("scaler owns it");
    assert_eq!(
        err.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" using v1: .spec.replicas"
    );
}

#[test]
fn unknown_fields_are_named() {
    let err = applied(None, "a", json!({"nope": 1}), false).expect_err("no such field");
    assert_eq!(
        err.to_string(),
        "failed to create typed patch object (/a; /v1, Kind=T): .spec.nope: field not declared in schema"
    );
}

#[test]
fn kubectl_migrates_from_its_own_annotation() {
    let mut live = json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": "a", "annotations": {
        LAST_APPLIED: "{\"apiVersion\":\"v1\",\"kind\":\"T\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"replicas\":1}}"}},
        "spec": {"replicas": 1}});
    update_managed_fields(None, &mut live, &schema(), &manager("kubectl-client-side-apply"));
    assert!(matches!(
        applied(Some(&live), "other", json!({"replicas": 2}), false),
        Err(ApplyError::Conflict(_))
    ));
    let moved = applied(Some(&live), "kubectl", json!({"replicas": 2}), false).expect("kubectl may");
    assert_eq!(moved["spec"]["replicas"], 2);
}

#[test]
fn an_empty_entry_resets_ownership() {
    let mut live = applied(None, "a", json!({"replicas": 1}), false).expect("created");
    let before = live.clone();
    live["metadata"]["managedFields"] = json!([{}]);
    update_managed_fields(Some(&before), &mut live, &schema(), &manager("b"));
    assert!(live.managed_fields().is_empty());
}

/// The object in v1 or v2, which have the same fields. There is no v0 any more, and v3 is not made yet.
fn other_version(object: &Value, version: &str) -> Option<Version> {
    match version {
        "v1" | "v2" => {
            let mut made = object.clone();
            made["apiVersion"] = json!(version);
            Some(Version::Made(made, schema()))
        }
        "v3" => Some(Version::Awaited),
        _ => None,
    }
}

/// An object of which several own something in several versions.
fn owned(entries: &[(&str, &str, &str, Value)], spec: Value) -> Value {
    let mut object = config(spec);
    let entries = entries.iter().map(|(manager, operation, version, spec)| {
        json!({"manager": manager, "operation": operation, "apiVersion": version, "time": "1970-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": spec}})
    });
    object["metadata"]["managedFields"] = entries.collect();
    object
}

fn owners(object: &Value) -> Vec<String> {
    let text = |entry: &Value| format!("{} {}", entry["manager"], entry["apiVersion"]).replace('"', "");
    object.managed_fields().iter().map(text).collect()
}

#[test]
fn owners_in_a_version_that_is_gone_are_forgotten() {
    let own = Manager { versions: Some(Versions(&other_version)), ..manager("a") };
    let live = owned(
        &[
            ("a", "Apply", "v1", json!({"f:replicas": {}, "f:labels": {"f:k": {}, "f:l": {}}})),
            ("b", "Apply", "v2", json!({"f:labels": {"f:l": {}}})),
            ("gone", "Update", "v0", json!({"f:replicas": {}, "f:labels": {"f:k": {}}})),
        ],
        json!({"replicas": 1, "labels": {"k": "1", "l": "1"}}),
    );
    // What only a version that is gone says of an owner neither is a conflict nor stays.
    let wanted = Configuration::new(config(json!({"replicas": 2})), &schema()).expect("fits");
    let made = apply(Some(&live), &wanted, &schema(), &own, false).expect("nobody else owns it");
    assert_eq!(made["spec"], json!({"replicas": 2, "labels": {"l": "1"}}));
    assert_eq!(owners(&made), ["a v1", "b v2"]);
    // An update forgets them as well.
    let mut updated = live.clone();
    updated["spec"]["atomic"] = json!(["x"]);
    update_managed_fields(Some(&live), &mut updated, &schema(), &own);
    assert_eq!(owners(&updated), ["a v1", "b v2", "a v1"]);
}

#[test]
fn what_was_applied_in_a_version_that_is_gone_stays() {
    let own = Manager { versions: Some(Versions(&other_version)), ..manager("a") };
    let live =
        owned(&[("a", "Apply", "v0", json!({"f:labels": {"f:k": {}}}))], json!({"labels": {"k": "1"}}));
    let wanted = Configuration::new(config(json!({"replicas": 1})), &schema()).expect("fits");
    let made = apply(Some(&live), &wanted, &schema(), &own, false).expect("no conflict");
    assert_eq!(made["spec"], json!({"labels": {"k": "1"}, "replicas": 1}));
    assert_eq!(owners(&made), ["a v1"]);
}

#[test]
fn owners_in_a_version_that_is_awaited_are_kept() {
    let own = Manager { versions: Some(Versions(&other_version)), ..manager("a") };
    let live =
        owned(&[("b", "Update", "v3", json!({"f:labels": {"f:k": {}}}))], json!({"labels": {"k": "1"}}));
    let mut updated = live.clone();
    updated["spec"]["replicas"] = json!(1);
    update_managed_fields(Some(&live), &mut updated, &schema(), &own);
    assert_eq!(owners(&updated), ["a v1", "b v3"]);
}

#[test]
fn ignored_paths_may_be_of_any_length() {
    let mut set = Set::from_value(&json!({"f:a": {"f:b": {"f:c": {}, "f:d": {}}, "f:e": {}}, "f:g": {}}))
        .expect("reads");
    strip(&mut set, &["a.b.c", "a.x.y", "g"]);
    assert_eq!(set.to_value(), json!({"f:a": {"f:b": {"f:d": {}}, "f:e": {}}}));
}

#[test]
fn a_long_name_on_the_way_to_many_fields_does_not_fill_the_memory() {
    let mut item: Value = (0..100_000).map(|n| (n.to_string(), json!(1))).collect();
    item["name"] = "x".repeat(1 << 20).into();
    let err = applied(None, "a", json!({"items": [item]}), false).expect_err("no such fields");
    assert!(err.to_string().len() < 8 << 20);
    let below: Map<String, Value> = (0..100_000).map(|n| (format!("f:{n}"), json!({}))).collect();
    let set = Set::from_value(&json!({format!("f:{}", "x".repeat(1 << 20)): below})).expect("reads");
    assert!((1..100).contains(&set.paths().len()));
}

#[test]
fn long_lists_are_compared_and_merged() {
    const MANY: usize = 50_000;
    let items = |from: usize, value: &str| -> Value {
        (from..from + MANY).rev().map(|n| json!({"name": n.to_string(), "value": value})).collect()
    };
    let texts = |from: usize| -> Value { (from..from + MANY).rev().map(|n| n.to_string()).collect() };
    let spec = |from: usize, value: &str| json!({"items": items(from, value), "set": texts(from)});
    let live = applied(None, "a", spec(0, "1"), false).expect("created");
    // Half of the items are new, and half of the old ones come again.
    let made = applied(Some(&live), "b", spec(MANY / 2, "2"), true).expect("forced");
    let count = |list: &Value| list.as_array().map_or(0, Vec::len);
    assert_eq!([count(&made["spec"]["items"]), count(&made["spec"]["set"])], [MANY * 3 / 2; 2]);
    let mut changed = made.clone();
    changed["spec"] = spec(0, "3");
    update_managed_fields(Some(&made), &mut changed, &schema(), &manager("c"));
    assert_eq!(owners(&changed), ["a v1", "b v1", "c v1"]);
    let twice: Value = (0..MANY).map(|n| (n / 2).to_string()).collect();
    let err = applied(None, "a", json!({"set": twice}), false).expect_err("all come twice");
    assert_eq!(err.to_string().matches("duplicate entries").count(), MANY / 2);
}

fn spec() -> impl Strategy<Value = Value> {
    let names = proptest::sample::subsequence(vec!["x", "y", "z"], 0..=3);
    let labels = proptest::sample::subsequence(vec!["k", "l", "m"], 0..=3);
    (proptest::option::of(0..3i64), names, labels, 0..3i64).prop_map(|(replicas, names, labels, value)| {
        let mut spec = Map::new();
        if let Some(replicas) = replicas {
            spec.insert("replicas".into(), replicas.into());
        }
        if !names.is_empty() {
            let items = names.iter().map(|name| json!({"name": name, "count": value}));
            spec.insert("items".into(), items.collect());
            spec.insert("set".into(), json!(names));
        }
        if !labels.is_empty() {
            let map: Map<String, Value> =
                labels.iter().map(|key| ((*key).to_owned(), value.to_string().into())).collect();
            spec.insert("labels".into(), map.into());
        }
        Value::Object(spec)
    })
}

/// Whether everything in a configuration is in the object.
fn holds(object: &Value, config: &Value) -> bool {
    match (object, config) {
        (Value::Object(object), Value::Object(config)) => {
            config.iter().all(|(key, value)| object.get(key).is_some_and(|have| holds(have, value)))
        }
        (Value::Array(object), Value::Array(config)) => {
            config.iter().all(|wanted| object.iter().any(|have| holds(have, wanted)))
        }
        (object, config) => object == config,
    }
}

/// The first value with the numbers and texts of the second wherever both have one.
fn with_values_of(first: &Value, second: &Value) -> Value {
    match (first, second) {
        (Value::Object(map), _) => {
            let part = |(key, value): (&String, &Value)| (key.clone(), with_values_of(value, &second[key]));
            Value::Object(map.iter().map(part).collect())
        }
        (Value::Array(list), Value::Array(other)) if list.iter().all(Value::is_object) => {
            let beside = |item: &Value| other.iter().find(|have| have["name"] == item["name"]).cloned();
            list.iter().map(|item| with_values_of(item, &beside(item).unwrap_or_default())).collect()
        }
        (Value::Number(_) | Value::String(_), Value::Number(_) | Value::String(_)) => second.clone(),
        _ => first.clone(),
    }
}

proptest! {
    #[test]
    fn applying_twice_changes_nothing(first in spec(), second in spec(), third in spec()) {
        let live = applied(None, "a", first, true).expect("forced");
        let live = applied(Some(&live), "b", second, true).expect("forced");
        let once = applied(Some(&live), "a", third.clone(), true).expect("forced");
        let twice = applied(Some(&once), "a", third, false).expect("nothing left to fight over");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn a_forced_apply_holds(first in spec(), second in spec()) {
        let live = applied(None, "a", first, true).expect("forced");
        let live = applied(Some(&live), "b", second.clone(), true).expect("forced");
        prop_assert!(holds(&live["spec"], &second) || second.as_object().is_some_and(Map::is_empty));
    }

    #[test]
    fn applying_nothing_leaves_only_what_others_own(first in spec(), second in spec()) {
        let alone = applied(None, "b", second.clone(), true).expect("forced");
        let live = applied(None, "a", first, true).expect("forced");
        let live = applied(Some(&live), "b", second, true).expect("forced");
        let rest = applied(Some(&live), "a", json!({}), true).expect("forced");
        let spec = |object: &Value| object.get("spec").cloned().unwrap_or_else(|| json!({}));
        let same = |a: &Value, b: &Value| holds(a, b) && holds(b, a);
        prop_assert!(same(&spec(&rest), &spec(&alone)), "{} {}", spec(&rest), spec(&alone));
    }

    #[test]
    fn books_that_stay_are_those_that_would_be_written(first in spec(), second in spec(), third in spec(), own in any::<bool>()) {
        let schema = schema();
        let mut live = applied(None, "a", first, true).expect("forced");
        let before = live.clone();
        live["spec"] = second;
        update_managed_fields(Some(&before), &mut live, &schema, &manager("b"));
        let writer = manager(if own { "b" } else { "c" });
        let change = walk::compare(&live["spec"], &third, schema.node().child("spec").expect("declared"));
        let below = |set: Set| { let mut out = Set::default(); out.add("f:spec".into(), false, set); out };
        let (touched, removed) = (below(change.added.joined(change.modified)), below(change.removed));
        let recorded = &live["metadata"]["managedFields"];
        let mut entries = managed::decode(recorded).unwrap_or_default();
        record_update(&mut entries, &writer, touched.clone(), &removed, &Elsewhere(Vec::new()));
        let mut written = json!({});
        managed::encode(&entries, &mut written);
        let same = written["metadata"]["managedFields"] == *recorded;
        prop_assert_eq!(managed::stays(recorded, &writer, &touched, &removed), same && recorded.is_array());
    }

    #[test]
    fn the_short_way_leads_to_the_same_place(first in spec(), second in spec(), third in spec(), updated in any::<bool>()) {
        let schema = schema();
        let mut live = applied(None, "a", first.clone(), true).expect("forced");
        if updated {
            let before = live.clone();
            live["spec"] = second;
            update_managed_fields(Some(&before), &mut live, &schema, &manager("b"));
        }
        // What was applied before, with other values: the fields stay, mostly.
        let again = with_values_of(&first, &third);
        let config = config(again);
        let mut wanted = walk::field_set(&config, schema.node());
        strip(&mut wanted, &["status"]);
        let later = Manager { now: Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(60), ..manager("a") };
        let long = apply_anew(Some(&live), &config, wanted.clone(), &schema, &later, false);
        match apply_again(&live, &config, &wanted, &schema, &later) {
            Some(short) => prop_assert_eq!(Ok(short), long),
            // Nothing is refused for no reason: somebody else has a part of it, or the fields are others.
            None => prop_assert!(updated || first.as_object().is_some_and(Map::is_empty)),
        }
    }

    #[test]
    fn sets_obey_their_algebra(first in spec(), second in spec()) {
        let schema = schema();
        let (a, b) = (walk::field_set(&config(first), schema.node()), walk::field_set(&config(second), schema.node()));
        prop_assert_eq!(Set::from_value(&a.to_value()), Some(a.clone()));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b), a.joined(b));
    }

    #[test]
    fn comparing_tells_exactly_the_difference(first in spec(), second in spec()) {
        let schema = schema();
        let (a, b) = (config(first), config(second));
        let change = walk::compare(&a, &b, schema.node());
        let none = change.added.is_empty() && change.modified.is_empty() && change.removed.is_empty();
        prop_assert_eq!(none, walk::field_set(&a, schema.node()) == walk::field_set(&b, schema.node()) && holds(&a, &b));
    }
}
