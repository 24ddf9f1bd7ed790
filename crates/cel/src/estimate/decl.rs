//! How large values can be, by their schema: what is not bounded is bounded by the largest request.

use serde_json::Value;

/// The largest request.
pub const REQUEST: u64 = 3 * 1024 * 1024;
/// The largest moment or span of time, written out.
const LONGEST_TIME: u64 = 32;

/// What is known of the values at some place.
#[derive(Clone, Copy, Debug)]
pub enum Decl<'s> {
    /// They fit a schema; a resource of its own has a name and a kind whatever it declares.
    Schema(&'s Value, bool),
    /// The metadata of a resource.
    Metadata,
    /// Text of any length.
    Text,
    /// The keys of a map, whose length nobody counts.
    Key,
}

impl<'s> Decl<'s> {
    /// The most letters or elements. Whatever is no text, list or map has none.
    pub fn most(self) -> u64 {
        match self {
            Decl::Schema(schema, _) => most(schema),
            Decl::Metadata | Decl::Key => 0,
            Decl::Text => REQUEST - 2,
        }
    }

    /// What stands in a field.
    pub fn field(self, name: &str) -> Option<Decl<'s>> {
        match self {
            Decl::Metadata => matches!(name, "name" | "generateName").then_some(Decl::Text),
            Decl::Schema(schema, resource) => {
                if resource && matches!(name, "apiVersion" | "kind") {
                    return Some(Decl::Text);
                }
                if resource && name == "metadata" {
                    return Some(Decl::Metadata);
                }
                if schema.get("additionalProperties").is_some_and(Value::is_object) {
                    return None;
                }
                schema["properties"].get(name).map(below)
            }
            Decl::Text | Decl::Key => None,
        }
    }

    /// The elements of a list or the values of a map.
    pub fn items(self) -> Option<Decl<'s>> {
        let Decl::Schema(schema, _) = self else { return None };
        match schema["type"].as_str() {
            Some("array") => schema.get("items").map(below),
            Some("object") => schema.get("additionalProperties").filter(|one| one.is_object()).map(below),
            _ => None,
        }
    }

    /// The keys of a map.
    pub fn keys(self) -> Option<Decl<'s>> {
        let Decl::Schema(schema, _) = self else { return None };
        schema.get("additionalProperties").is_some_and(Value::is_object).then_some(Decl::Key)
    }
}

fn below(schema: &Value) -> Decl<'_> {
    Decl::Schema(schema, schema["x-kubernetes-embedded-resource"] == true)
}

/// The least bytes that a value of a schema takes in a request.
pub fn least(schema: &Value) -> u64 {
    if schema["x-kubernetes-int-or-string"] == true {
        return 1;
    }
    match schema["type"].as_str().unwrap_or_default() {
        "string" => match schema["format"].as_str() {
            Some("duration") => 3,
            Some("date") => 12,
            Some("date-time") => 21,
            _ => 2,
        },
        "boolean" => 4,
        "array" => 2,
        "object" if schema.get("additionalProperties").is_some_and(Value::is_object) => 2,
        "object" => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            // What has a default need not be sent.
            let sent = required.filter_map(|name| {
                let field = schema["properties"].get(name)?;
                field.get("default").is_none().then(|| name.len() as u64 + 4 + least(field))
            });
            2 + sent.sum::<u64>()
        }
        _ => 1,
    }
}

/// The most letters or elements that a value of a schema has; 0 for what has neither.
fn most(schema: &Value) -> u64 {
    let bound = |name: &str| schema[name].as_i64().map(|bound| bound.max(0) as u64);
    // A letter takes up to four bytes.
    let text = || bound("maxLength").map(|length| length.saturating_mul(4));
    if schema["x-kubernetes-int-or-string"] == true {
        return text().unwrap_or(REQUEST - 2);
    }
    match schema["type"].as_str().unwrap_or_default() {
        "string" => match schema["format"].as_str() {
            Some("byte") => bound("maxLength").unwrap_or(REQUEST - 2),
            Some("date") => 12,
            Some("date-time" | "duration") => LONGEST_TIME,
            _ => text().unwrap_or_else(|| match schema["enum"].as_array() {
                Some(values) if !values.is_empty() => {
                    values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max().unwrap_or(0)
                }
                _ => REQUEST - 2,
            }),
        },
        "array" => bound("maxItems").unwrap_or_else(|| (REQUEST - 2) / (least(&schema["items"]) + 1)),
        "object" => match schema.get("additionalProperties").filter(|values| values.is_object()) {
            Some(values) => bound("maxProperties").unwrap_or_else(|| (REQUEST - 2) / (least(values) + 6)),
            None => 0,
        },
        _ => 0,
    }
}

/// How many values of a schema a request can hold.
pub fn occurrences(schema: &Value) -> u64 {
    REQUEST / (least(schema) + 1)
}

/// How many children each value of a schema has at most, if it says so: the elements of a list or map, or a field.
pub fn children(schema: &Value) -> Option<u64> {
    let bound = |name: &str| schema[name].as_i64().map(|bound| bound.max(0) as u64);
    match schema["type"].as_str() {
        Some("array") => bound("maxItems"),
        Some("object") if schema.get("additionalProperties").is_some() => bound("maxProperties"),
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_follow_bounds_formats_and_requests() {
        for (schema, want) in [
            (json!({"type": "string"}), REQUEST - 2),
            (json!({"type": "string", "maxLength": 10}), 40),
            (json!({"type": "string", "enum": ["a", "abc"]}), 3),
            (json!({"type": "string", "format": "byte", "maxLength": 10}), 10),
            (json!({"type": "string", "format": "date", "maxLength": 100}), 12),
            (json!({"x-kubernetes-int-or-string": true, "maxLength": 2}), 8),
            (json!({"type": "integer"}), 0),
            (json!({"type": "array", "maxItems": 7, "items": {"type": "string"}}), 7),
            (json!({"type": "array", "items": {"type": "integer"}}), 1_572_863),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), 393_215),
            (json!({"type": "object", "properties": {"a": {"type": "string"}}}), 0),
        ] {
            assert_eq!(most(&schema), want, "{schema}");
        }
        let object = json!({"type": "object", "required": ["ab", "d"], "properties": {
            "ab": {"type": "boolean"}, "c": {"type": "string"}, "d": {"type": "string", "default": "x"}}});
        assert_eq!(least(&object), 2 + 2 + 4 + 4);
    }
}
