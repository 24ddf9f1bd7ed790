//! Events, in their core form (stored) and in the form of events.k8s.io.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_str},
    names,
};
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{
    Change, Column, Definition, Rules,
    columns::age,
    definition::{Conversion, FieldLabel},
    print,
};

/// Something that happened to an object.
pub fn core() -> Definition {
    let mut definition = Definition::namespaced("", "v1", "Event", "events")
        .any_finalizers()
        .checks_update(&[])
        .short(&["ev"])
        .create_on_update()
        .label("involvedObject.kind")
        .label("involvedObject.namespace")
        .label("involvedObject.name")
        .label("involvedObject.uid")
        .label("involvedObject.apiVersion")
        .label("involvedObject.resourceVersion")
        .label("involvedObject.fieldPath")
        .label("reason")
        .label("reportingComponent")
        .label("type")
        .label_fn("source", &["source.component", "reportingComponent"], |event| {
            print::or(get_str(event, "source.component"), get_str(event, "reportingComponent")).into()
        })
        .columns(columns())
        .named(names::is_path_segment_name)
        .metadata_last()
        .rules(Event);
    definition.name_column = false;
    definition
}

/// The same, as events.k8s.io shows it.
pub fn events() -> Definition {
    let mut definition = Definition::namespaced("events.k8s.io", "v1", "Event", "events")
        .short(&["ev"])
        .create_on_update()
        .label("reason")
        .label("type")
        .columns(
            columns()
                .into_iter()
                .map(|column| Column { cell: crate::Cell::Shared(on_core_form(column.clone())), ..column })
                .collect(),
        )
        .stored_as("", "v1", Conversion { to_storage, from_storage })
        .rules(NewEvent);
    for field in ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"] {
        let path = format!("regarding.{field}");
        definition.field_labels.push(FieldLabel::Path {
            label: path.clone().into(),
            path: path.into(),
            absent: "".into(),
        });
    }
    definition.field_labels.push(FieldLabel::Path {
        label: "reportingController".into(),
        path: "reportingController".into(),
        absent: "".into(),
    });
    definition.name_column = false;
    definition
}

fn on_core_form(column: Column) -> crate::columns::SharedCell {
    std::sync::Arc::new(move |event, now| {
        let mut core = event.clone();
        to_storage(&mut core);
        column.value(&core, now)
    })
}

fn columns() -> Vec<Column> {
    vec![
        Column::new("Last Seen", |event, now| last_seen(event, now).into()),
        Column::path("Type", "type"),
        Column::path("Reason", "reason"),
        Column::new("Object", |event, _| {
            let kind = get_str(event, "involvedObject.kind").to_lowercase();
            match get_str(event, "involvedObject.name") {
                "" => kind.into(),
                name => format!("{kind}/{name}").into(),
            }
        }),
        Column::path("Subobject", "involvedObject.fieldPath").wide(),
        Column::new("Source", |event, _| source(event).into()).wide(),
        Column::new("Message", |event, _| get_str(event, "message").trim().into()),
        Column::new("First Seen", |event, now| first_seen(event, now).into()).wide(),
        Column::new("Count", |event, _| {
            let series = get(event, "series.count").and_then(Value::as_i64);
            series.or(event["count"].as_i64()).unwrap_or(1).into()
        })
        .wide(),
        Column { format: "name".into(), ..Column::new("Name", |event, _| event.name().into()).wide() },
    ]
}

fn first_seen(event: &Value, now: Timestamp) -> String {
    age(print::or(get_str(event, "firstTimestamp"), get_str(event, "eventTime")), now)
}

fn last_seen(event: &Value, now: Timestamp) -> String {
    match (get_str(event, "series.lastObservedTime"), get_str(event, "lastTimestamp")) {
        ("", "") => first_seen(event, now),
        ("", last) | (last, _) => age(last, now),
    }
}

fn source(event: &Value) -> String {
    let component = print::or(get_str(event, "source.component"), get_str(event, "reportingComponent"));
    match print::or(get_str(event, "source.host"), get_str(event, "reportingInstance")) {
        "" => component.into(),
        host => format!("{component}, {host}"),
    }
}

/// Pairs of fields: the newer form's name, the stored form's.
const RENAMED: &[(&str, &str)] = &[
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn to_storage(event: &mut Value) {
    rename(event, |new, old| (new, old), "v1");
}

fn from_storage(event: &mut Value) {
    rename(event, |new, old| (old, new), "events.k8s.io/v1");
}

fn rename(
    event: &mut Value,
    direction: fn(&'static str, &'static str) -> (&'static str, &'static str),
    api_version: &str,
) {
    let Some(map) = event.as_object_mut() else { return };
    let mut out = Map::new();
    for (key, value) in std::mem::take(map) {
        let pair = RENAMED.iter().map(|(new, old)| direction(new, old)).find(|(from, _)| *from == key);
        out.insert(pair.map_or(key, |(_, to)| to.to_owned()), value);
    }
    out.insert("apiVersion".into(), api_version.into());
    *map = out;
}

/// What is asked of every event. A new one, with an `eventTime`, has to say more.
fn every(event: &Value, controller: &str, problems: &mut Problems) {
    const LONG: &str = "can have at most 128 characters";
    let either = |stored: &str, new: &str| match event.get(stored) {
        Some(_) => get_str(event, stored).to_owned(),
        None => get_str(event, new).to_owned(),
    };
    let regarding = event.get("involvedObject").or_else(|| event.get("regarding")).unwrap_or(&Value::Null);
    let about = get_str(regarding, "namespace");
    let path = Path::new("involvedObject");
    let path = path.child("namespace");
    let namespace = event.namespace();
    let is_new = !get_str(event, "eventTime").is_empty();
    let fits = match (is_new, about.is_empty()) {
        (false, true) => namespace.is_empty() || namespace == "default",
        (false, false) => namespace == about,
        (true, true) => namespace == "default" || namespace == "kube-system",
        (true, false) => true,
    };
    if !fits {
        problems.invalid(&path, about, "does not match event.namespace");
    }
    if is_new {
        let reporter = either("reportingComponent", "reportingController");
        let path = Path::new(controller);
        if reporter.is_empty() {
            problems.required(&path, "");
        }
        problems.invalid_each(&path, &reporter, names::is_qualified_name(&reporter));
        for field in ["reportingInstance", "action", "reason"] {
            match get_str(event, field) {
                "" => problems.required(&Path::new(field), ""),
                text if text.len() > 128 => problems.invalid(&Path::new(field), "", LONG),
                _ => {}
            }
        }
        if either("message", "note").len() > 1024 {
            problems.invalid(&Path::new("message"), "", "can have at most 1024 characters");
        }
    }
}

fn series(event: &Value, problems: &mut Problems) {
    let Some(series) = event.get("series").filter(|series| !series.is_null()) else { return };
    if series["count"].as_i64().unwrap_or(0) < 2 {
        problems.invalid(&Path::new("series.count"), "", "should be at least 2");
    }
    if get_str(series, "lastObservedTime").is_empty() {
        problems.required(&Path::new("series.lastObservedTime"), "");
    }
}

struct Event;

impl Rules for Event {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        every(change.new, "reportingComponent", problems);
    }
}

/// Of an event only its series goes on. Fields are called what upstream calls them inside.
fn unchanged(event: &Value, old: &Value, problems: &mut Problems) {
    // Upstream looks at the reason twice.
    const FIELDS: [(&str, &str); 14] = [
        ("regarding", "involvedObject"),
        ("reason", "reason"),
        ("note", "message"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("reason", "reason"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingController", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ];
    for (field, name) in FIELDS {
        let none = |event: &Value| event.get(field).cloned().filter(|value| *value != serde_json::json!({}));
        let (after, before) = (none(event), none(old));
        if after != before {
            let shown = match (field, &after) {
                ("regarding", _) => crate::go_form::shown(&after.unwrap_or_default(), "ObjectReference"),
                ("related", _) => crate::go_form::shown_or_null(after.as_ref(), "ObjectReference"),
                ("deprecatedSource", _) => crate::go_form::shown(&after.unwrap_or_default(), "EventSource"),
                (_, Some(after)) => after.clone(),
                (_, None) => match before {
                    Some(Value::String(_)) if field != "eventTime" => "".into(),
                    _ => Value::Null,
                },
            };
            problems.invalid(&Path::new(name), shown, crate::metadata::IMMUTABLE);
        }
    }
}

struct NewEvent;

impl Rules for NewEvent {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let event = change.new;
        every(event, "reportingController", problems);
        if change.old.is_none_or(|old| old.get("series") != event.get("series")) {
            series(event, problems);
        }
        if let Some(old) = change.old {
            unchanged(event, old, problems);
            return;
        }
        if get_str(event, "eventTime").is_empty() {
            problems.required(&Path::new("eventTime"), "");
        }
        match get_str(event, "type") {
            "Normal" | "Warning" => {}
            other => problems.invalid(&Path::new("type"), "", format!("has invalid value: {other}")),
        }
        let set = |value: Option<&Value>| {
            value.is_some_and(|value| !matches!(value, Value::Null) && value != 0 && value != "")
        };
        let source = |field: &str| set(event["deprecatedSource"].get(field));
        for (field, given) in [
            ("firstTimestamp", set(event.get("deprecatedFirstTimestamp"))),
            ("lastTimestamp", set(event.get("deprecatedLastTimestamp"))),
            ("count", set(event.get("deprecatedCount"))),
            ("source", source("component") || source("host")),
        ] {
            if given {
                problems.invalid(&Path::new(field), "", "needs to be unset");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_two_forms_convert_without_loss() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "a"},
            "regarding": {"kind": "Pod"}, "note": "hi", "reportingController": "c", "deprecatedCount": 3, "type": "Normal"});
        let mut event = new.clone();
        to_storage(&mut event);
        assert_eq!(event["involvedObject"]["kind"], "Pod");
        assert_eq!(
            (&event["message"], &event["count"], &event["apiVersion"]),
            (&json!("hi"), &json!(3), &json!("v1"))
        );
        from_storage(&mut event);
        assert_eq!(event, new);
    }
}
