use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::schema::{Arena, Object};

/// `text` is a Go string, `pointer` one that may be empty.
fn schema() -> Schema {
    let mut arena = Arena::default();
    let text = arena.add(Kind::Scalar(Scalar::String));
    let pointer = Field { pointer: true, ..Field::new("pointer", text) };
    let fields = arena.add_fields(vec![Field::new("text", text), pointer]);
    let root = arena.add(Kind::Object(Object {
        name: "T".into(),
        definition: "T".into(),
        fields,
        inlines: Vec::new(),
        additional: None,
        preserve_unknown: false,
        embedded: false,
        atomic: false,
    }));
    Schema::new(Arc::new(arena), root)
}

#[test]
fn of_a_repeated_field_the_last_value_counts() {
    for (text, want) in [
        (r#"{"text": "x", "text": ""}"#, json!({})),
        (r#"{"text": "", "text": "x"}"#, json!({"text": "x"})),
        (r#"{"pointer": "x", "pointer": ""}"#, json!({"pointer": ""})),
        (r#"{"pointer": "x", "pointer": null}"#, json!({})),
    ] {
        let decoded = json(text.as_bytes(), &schema(), FieldValidation::Warn).unwrap();
        assert_eq!((decoded.value, decoded.warnings.len()), (want, 1), "{text}");
    }
}

#[test]
fn a_great_many_unknown_fields_of_a_patched_object_are_dropped() {
    let mut value: Value = (0..300_000).map(|n| (n.to_string(), json!(1))).collect();
    value["text"] = json!("new");
    let from = json!({"text": "old"});
    let decoded = changed(value, &from, &schema(), Options::new(FieldValidation::Warn)).unwrap();
    assert_eq!((decoded.value, decoded.warnings.len()), (json!({"text": "new"}), 100));
}
