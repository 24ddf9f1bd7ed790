//! The forms of output.

use base64::Engine;
use serde_json::{Map, Value, json};

use crate::v3::messages::*;

/// A JSON object without what is empty, as Go leaves it out.
pub fn object(fields: Vec<(&str, Value)>) -> Value {
    let empty = |value: &Value| match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(_) => false,
    };
    let kept = fields.into_iter().filter(|(_, value)| !empty(value));
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// Bytes as Go writes them in JSON.
pub fn base64(bytes: &[u8]) -> Value {
    base64::engine::general_purpose::STANDARD.encode(bytes).into()
}

/// A header in JSON.
pub fn header_json(header: Option<&ResponseHeader>) -> Value {
    let Some(header) = header else { return Value::Null };
    object(vec![
        ("cluster_id", header.cluster_id.into()),
        ("member_id", header.member_id.into()),
        ("revision", header.revision.into()),
        ("raft_term", header.raft_term.into()),
    ])
}

/// A pair in JSON.
pub fn kv_json(kv: &KeyValue) -> Value {
    object(vec![
        ("key", base64(&kv.key)),
        ("create_revision", kv.create_revision.into()),
        ("mod_revision", kv.mod_revision.into()),
        ("version", kv.version.into()),
        ("value", base64(&kv.value)),
        ("lease", kv.lease.into()),
    ])
}

/// Pairs in JSON.
pub fn kvs_json(kvs: &[KeyValue]) -> Value {
    kvs.iter().map(kv_json).collect()
}

/// A header as fields.
pub fn header_fields(header: Option<&ResponseHeader>, out: &mut String) {
    let none = ResponseHeader::default();
    let header = header.unwrap_or(&none);
    out.push_str(&format!(
        "\"ClusterID\" : {}\n\"MemberID\" : {}\n\"Revision\" : {}\n\"RaftTerm\" : {}\n",
        header.cluster_id, header.member_id, header.revision, header.raft_term
    ));
}

/// Bytes in quotes, with what is not text escaped as Go does.
pub fn quoted(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\u{7}' => out.push_str("\\a"),
                '\u{8}' => out.push_str("\\b"),
                '\u{b}' => out.push_str("\\v"),
                '\u{c}' => out.push_str("\\f"),
                char if char.is_control() && (char as u32) < 0x80 => {
                    out.push_str(&format!("\\x{:02x}", char as u32));
                }
                char if char.is_control() => out.push_str(&format!("\\u{:04x}", char as u32)),
                char => out.push(char),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

/// A pair as fields, each name with a prefix.
pub fn kv_fields(prefix: &str, kv: &KeyValue, out: &mut String) {
    out.push_str(&format!("\"{prefix}Key\" : {}\n", quoted(&kv.key)));
    out.push_str(&format!("\"{prefix}CreateRevision\" : {}\n", kv.create_revision));
    out.push_str(&format!("\"{prefix}ModRevision\" : {}\n", kv.mod_revision));
    out.push_str(&format!("\"{prefix}Version\" : {}\n", kv.version));
    out.push_str(&format!("\"{prefix}Value\" : {}\n", quoted(&kv.value)));
    out.push_str(&format!("\"{prefix}Lease\" : {}\n", kv.lease));
}

/// A pair as it is: bytes, because keys and values need not be text.
pub fn kv_simple(kv: &KeyValue, hex: bool, value_only: bool, out: &mut Vec<u8>) {
    let mut line = |bytes: &[u8]| {
        if hex {
            bytes.iter().for_each(|byte| out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()));
        } else {
            out.extend_from_slice(bytes);
        }
        out.push(b'\n');
    };
    if !value_only {
        line(&kv.key);
    }
    line(&kv.value);
}

/// Bytes for people: with the unit that leaves few digits.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let value = (value * 10.0 + 0.5).floor() / 10.0;
    if value < 10.0 { format!("{value:.1} {}", UNITS[unit]) } else { format!("{value:.0} {}", UNITS[unit]) }
}

/// A framed table: names in the middle, cells to the right.
pub fn table(names: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([names[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let mut rule = String::from("+");
    for width in &widths {
        rule.push_str(&"-".repeat(width + 2));
        rule.push('+');
    }
    rule.push('\n');
    let mut out = rule.clone();
    out.push('|');
    for (name, width) in names.iter().zip(&widths) {
        let name = name.to_uppercase();
        let left = (width - name.chars().count()) / 2;
        out.push_str(&format!(" {}{name:<1$} |", " ".repeat(left), width - left));
    }
    out.push('\n');
    out.push_str(&rule);
    for row in rows {
        out.push('|');
        for (cell, width) in row.iter().zip(&widths) {
            out.push_str(&format!(" {cell:>width$} |"));
        }
        out.push('\n');
    }
    out.push_str(&rule);
    out
}

/// A length of time as Go prints it.
pub fn took(time: std::time::Duration) -> String {
    let trimmed = |value: f64, digits: usize| {
        let text = format!("{value:.digits$}");
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        text.to_owned()
    };
    let nanos = time.as_nanos() as f64;
    match nanos {
        nanos if nanos < 1e3 => format!("{nanos}ns"),
        nanos if nanos < 1e6 => format!("{}µs", trimmed(nanos / 1e3, 3)),
        nanos if nanos < 1e9 => format!("{}ms", trimmed(nanos / 1e6, 6)),
        nanos => format!("{}s", trimmed(nanos / 1e9, 9)),
    }
}

/// A lease's header fields at the top level, as etcdctl has them.
pub fn with_header(header: Option<&ResponseHeader>, fields: Vec<(&str, Value)>) -> Value {
    let mut all = match header_json(header) {
        Value::Object(all) => all,
        _ => Map::new(),
    };
    for (name, value) in fields {
        all.insert(name.to_owned(), value);
    }
    json!(all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sizes_and_times_are_gos() {
        let sizes = [5, 10, 999, 1000, 4096, 61_440, 1_933_312, 20_480];
        assert_eq!(sizes.map(size), ["5 B", "10 B", "999 B", "1.0 kB", "4.1 kB", "61 kB", "1.9 MB", "20 kB"]);
        let times = [910_246, 1_462_399, 52_294_245, 2_000_000_000, 7];
        let times = times.map(|nanos| took(Duration::from_nanos(nanos)));
        assert_eq!(times, ["910.246µs", "1.462399ms", "52.294245ms", "2s", "7ns"]);
    }

    #[test]
    fn a_table_is_framed_with_names_in_the_middle() {
        let text = table(&["endpoint", "health"], &[vec!["http://127.0.0.1:1".into(), "true".into()]]);
        assert_eq!(
            text,
            "+--------------------+--------+\n\
             |      ENDPOINT      | HEALTH |\n\
             +--------------------+--------+\n\
             | http://127.0.0.1:1 |   true |\n\
             +--------------------+--------+\n"
        );
        assert_eq!(quoted(b"a\"\n\xff\x01"), "\"a\\\"\\n\\xff\\x01\"");
    }
}
