//! KYAML: YAML in its flow style, in which nothing depends on indentation and every text is quoted.

use serde_json::Value;

/// The value, without an end of line.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    put(value, 0, &mut out);
    out
}

fn put(value: &Value, depth: usize, out: &mut String) {
    let indent = |depth: usize, out: &mut String| out.extend(std::iter::repeat_n("  ", depth));
    match value {
        Value::Object(map) if map.is_empty() => out.push_str("{}"),
        Value::Object(map) => {
            out.push_str("{\n");
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            for (name, value) in fields {
                indent(depth + 1, out);
                out.push_str(&key(name));
                out.push_str(": ");
                put(value, depth + 1, out);
                out.push_str(",\n");
            }
            indent(depth, out);
            out.push('}');
        }
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Array(items) if items.iter().all(|item| item.is_object() || item.is_array()) => {
            // Brackets and braces share their lines.
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                put(item, depth, out);
            }
            out.push(']');
        }
        Value::Array(items) => {
            out.push_str("[\n");
            for item in items {
                indent(depth + 1, out);
                put(item, depth + 1, out);
                out.push_str(",\n");
            }
            indent(depth, out);
            out.push(']');
        }
        Value::String(text) => out.push_str(&Value::String(text.clone()).to_string()),
        other => out.push_str(&other.to_string()),
    }
}

/// A key stands bare if no YAML could take it for something else.
fn key(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !matches!(
            name.to_lowercase().as_str(),
            "y" | "n" | "yes" | "no" | "on" | "off" | "true" | "false" | "null"
        );
    if plain { name.to_owned() } else { Value::String(name.to_owned()).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_is_in_braces_and_quotes() {
        let value = json!({"b": ["x"], "a": [{"n": 1}], "e": {}, "no": "1"});
        assert_eq!(
            write(&value),
            "{\n  a: [{\n    \"n\": 1,\n  }],\n  b: [\n    \"x\",\n  ],\n  e: {},\n  \"no\": \"1\",\n}"
        );
    }
}
