//! JSON as Go's programs print it: fields sorted, `<`, `>` and `&` written as numbers.

use serde_json::Value;

/// In lines, four spaces for each level.
pub fn pretty(value: &Value) -> String {
    let mut out = String::new();
    write(value, Some(0), &mut out);
    out
}

/// In lines, with the fields in the order in which they stand.
pub fn pretty_unsorted(value: &Value) -> String {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    // A value can always be written to memory.
    let _ = serde::Serialize::serialize(value, &mut serializer);
    let text = String::from_utf8_lossy(&text).into_owned();
    if text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) { escaped(&text) } else { text }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(letter)))
            }
            other => out.push(other),
        }
    }
    out
}

/// In one line.
pub fn compact(value: &Value) -> String {
    let mut out = String::new();
    write(value, None, &mut out);
    out
}

fn write(value: &Value, depth: Option<usize>, out: &mut String) {
    let inner = depth.map(|depth| depth + 1);
    let separator = |depth: Option<usize>, out: &mut String| {
        if let Some(depth) = depth {
            out.push('\n');
            out.extend(std::iter::repeat_n("    ", depth));
        }
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                separator(inner, out);
                write(item, inner, out);
            }
            separator(depth, out);
            out.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            out.push('{');
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            for (index, (name, item)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                separator(inner, out);
                quoted(name, out);
                out.push_str(if depth.is_some() { ": " } else { ":" });
                write(item, inner, out);
            }
            separator(depth, out);
            out.push('}');
        }
        Value::String(text) => quoted(text, out),
        other => out.push_str(&other.to_string()),
    }
}

fn quoted(text: &str, out: &mut String) {
    let plain = Value::String(text.to_owned()).to_string();
    if text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        out.push_str(&escaped(&plain));
    } else {
        out.push_str(&plain);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_looks_as_go_writes_it() {
        let value = json!({"b": [1, {}], "a": "<x>&", "c": []});
        assert_eq!(compact(&value), r#"{"a":"\u003cx\u003e\u0026","b":[1,{}],"c":[]}"#);
        assert_eq!(
            pretty(&value),
            "{\n    \"a\": \"\\u003cx\\u003e\\u0026\",\n    \"b\": [\n        1,\n        {}\n    ],\n    \"c\": []\n}"
        );
    }
}
