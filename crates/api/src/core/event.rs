//! Events, in their core form (stored) and in the form of events.k8s.io.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_str},
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
        definition.field_labels.push(FieldLabel::Path {
            label: format!("involvedObject.{field}").into(),
            path: format!("regarding.{field}").into(),
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

struct Event;

impl Rules for Event {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let event = change.new;
        let namespace = get_str(event, "involvedObject.namespace");
        let path = Path::new("involvedObject");
        if namespace.is_empty() {
            if event.namespace() != "default" && event.namespace() != "kube-system" {
                problems.invalid(&path.child("namespace"), namespace, "does not match event.namespace");
            }
        } else if namespace != event.namespace() {
            problems.invalid(&path.child("namespace"), namespace, "does not match event.namespace");
        }
    }
}

struct NewEvent;

impl Rules for NewEvent {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let event = change.new;
        let path = Path::new("regarding");
        let namespace = get_str(event, "regarding.namespace");
        if !namespace.is_empty() && namespace != event.namespace() {
            problems.invalid(&path.child("namespace"), namespace, "does not match event.namespace");
        }
        if change.old.is_some() {
            return;
        }
        if get_str(event, "eventTime").is_empty() {
            problems.required(&Path::new("eventTime"), "");
        }
        for field in ["reportingController", "reportingInstance", "action", "reason"] {
            let text = get_str(event, field);
            if text.is_empty() {
                problems.required(&Path::new(field), "");
            } else if text.len() > 128 && field != "reportingController" {
                problems.invalid(&Path::new(field), text, "can have at most 128 characters");
            }
        }
        let controller = get_str(event, "reportingController");
        if !controller.is_empty() {
            problems.invalid_each(
                &Path::new("reportingController"),
                controller,
                apimachinery::names::is_qualified_name(controller),
            );
        }
        let note = get_str(event, "note");
        if note.len() > 1024 {
            problems.invalid(&Path::new("message"), note, "can have at most 1024 characters");
        }
        match get_str(event, "type") {
            "Normal" | "Warning" => {}
            other => problems.invalid(&Path::new("type"), other, "has invalid value"),
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
