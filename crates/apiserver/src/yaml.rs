//! YAML as Go's clients and servers write it: fields sorted, and quotes round text that a reader of an older YAML would
//! take for something else (times, `yes`, `012`).

use serde_json::{Map, Value};

/// The document of a value.
pub fn write(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => fields(map, 0, false, &mut out),
        Value::Array(list) if !list.is_empty() => items(list, 0, &mut out),
        other => {
            scalar(other, 0, &mut out);
            out.push('\n');
        }
    }
    out
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', depth));
}

/// The fields of an object; the first one follows a dash that is already written when `inline`.
fn fields(map: &Map<String, Value>, depth: usize, mut inline: bool, out: &mut String) {
    let mut names: Vec<&String> = map.keys().collect();
    names.sort();
    for name in names {
        if !std::mem::take(&mut inline) {
            indent(depth, out);
        }
        match name.contains('\n') {
            true => out.push_str(&Value::from(name.as_str()).to_string()),
            false => text(name, depth, out),
        }
        out.push(':');
        match &map[name] {
            Value::Object(below) if !below.is_empty() => {
                out.push('\n');
                fields(below, depth + 2, false, out);
            }
            // Lists stand as deep as their name.
            Value::Array(list) if !list.is_empty() => {
                out.push('\n');
                items(list, depth, out);
            }
            other => {
                out.push(' ');
                scalar(other, depth, out);
                out.push('\n');
            }
        }
    }
}

fn items(list: &[Value], depth: usize, out: &mut String) {
    for item in list {
        indent(depth, out);
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => fields(map, depth + 2, true, out),
            Value::Array(below) if !below.is_empty() => {
                let mut nested = String::new();
                items(below, depth + 2, &mut nested);
                out.push_str(nested.trim_start());
            }
            other => {
                scalar(other, depth, out);
                out.push('\n');
            }
        }
    }
}

fn scalar(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::String(content) => text(content, depth, out),
        other => out.push_str(&other.to_string()),
    }
}

/// Text plain, quoted, or as a block of lines.
fn text(content: &str, depth: usize, out: &mut String) {
    let lines = content.contains('\n');
    let printable = |letter: char| letter == '\n' || letter == '\t' || !letter.is_control();
    if !content.chars().all(printable) || lines && content.starts_with([' ', '\n', '\t']) {
        out.push_str(&Value::from(content).to_string());
    } else if lines {
        // `|-` has no line break at its end, `|` one, `|+` several.
        let body = content.trim_end_matches('\n');
        out.push_str(match content.len() - body.len() {
            0 => "|-",
            1 => "|",
            _ => "|+",
        });
        for line in content.strip_suffix('\n').unwrap_or(content).split('\n') {
            out.push('\n');
            if !line.is_empty() {
                indent(depth + 2, out);
                out.push_str(line);
            }
        }
    } else if is_other(content) {
        out.push_str(&Value::from(content).to_string());
    } else if needs_quotes(content) {
        out.push('\'');
        out.push_str(&content.replace('\'', "''"));
        out.push('\'');
    } else {
        out.push_str(content);
    }
}

/// Whether plain text would be read as a number, a boolean, nothing or a time.
fn is_other(content: &str) -> bool {
    const WORDS: &[&str] = &["", "~", "null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let lower = content.to_ascii_lowercase();
    let number = content.trim_start_matches(['+', '-']).replace('_', "");
    let odd = number.strip_prefix("0x").is_some_and(|hex| u128::from_str_radix(hex, 16).is_ok())
        || number.strip_prefix("0o").is_some_and(|octal| u128::from_str_radix(octal, 8).is_ok())
        || number.strip_prefix("0b").is_some_and(|binary| u128::from_str_radix(binary, 2).is_ok());
    let numeric = number.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && number.bytes().any(|byte| byte.is_ascii_digit())
        && (number.parse::<f64>().is_ok() || sexagesimal(&number));
    WORDS.contains(&lower.as_str())
        || odd
        || numeric
        || [".nan", ".inf", "+.inf", "-.inf"].contains(&lower.as_str())
        || is_time(content)
}

/// `1:30` was a number once.
fn sexagesimal(number: &str) -> bool {
    number.contains(':')
        && number
            .split(':')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
}

/// A date, or one with a time.
fn is_time(content: &str) -> bool {
    let (date, rest) = content.split_at_checked(10).unwrap_or((content, ""));
    let shape =
        |(at, byte): (usize, u8)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() };
    date.len() == 10
        && date.bytes().enumerate().all(shape)
        && (rest.is_empty() || rest.starts_with(['T', 't', ' ']) && rest.contains(':'))
}

/// Whether plain text would be read as syntax.
fn needs_quotes(content: &str) -> bool {
    content.starts_with([' ', '\t'])
        || content.ends_with([' ', '\t', ':'])
        || content.contains(": ")
        || content.contains(" #")
        || content.contains('\t')
        || content
            .starts_with(['!', '&', '*', '{', '}', '[', ']', ',', '#', '|', '>', '@', '`', '"', '\'', '%'])
        || content.starts_with(['-', '?', ':']) && (content.len() == 1 || content[1..].starts_with(' '))
        || content.starts_with("---")
        || content.starts_with("...")
        || content == "="
        || content == "<<"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_sorted_and_text_that_looks_like_something_else_is_quoted() {
        let value = json!({"kind": "K", "a": {"time": "2020-01-01T00:00:00Z", "n": 1, "s": "1", "y": "yes"},
            "list": [{"b": 1, "a": []}, "x", [1]], "lines": "a\nb\n", "empty": {}, "e": "", "p": "a: b", "date": "2020-01-01",
            "plain": "v1.2.3", "star": "*", "null": null, "hash": "a#b", "cont": "a\nb"});
        let wanted = "a:\n  \"n\": 1\n  s: \"1\"\n  time: \"2020-01-01T00:00:00Z\"\n  \"y\": \"yes\"\ncont: |-\n  a\n  b\ndate: \"2020-01-01\"\ne: \"\"\nempty: {}\nhash: a#b\nkind: K\nlines: |\n  a\n  b\nlist:\n- a: []\n  b: 1\n- x\n- - 1\n\"null\": null\np: 'a: b'\nplain: v1.2.3\nstar: '*'\n";
        assert_eq!(write(&value), wanted);
    }

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "",
            " a",
            "a ",
            "'",
            "\"",
            "\\",
            "a\tb",
            "a\u{7}b",
            "\n",
            "a\n\n",
            " a\nb",
            "-",
            "- a",
            "-a",
            "0x1f",
            "1e3",
            "1_000",
            "012",
            "1:30",
            "~",
            "No",
            "? a",
            ":",
            "a:",
            "%x",
            "@x",
            "`x`",
            "a\r\nb",
            "ü",
            "{",
            "--- a",
            "2020-01-01 x",
            "|",
            ">-",
        ] {
            let value = json!({"k": text, "list": [text], text: "v"});
            let read: Value =
                serde_yaml_ng::from_str(&write(&value)).unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(read, value, "{text:?} as {:?}", write(&value));
        }
    }
}
