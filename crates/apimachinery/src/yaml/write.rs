//! From a value to a YAML document: fields sorted, and quotes round text that a reader of this or of another YAML would take
//! for something else (times, `yes`, `012`).

use serde_json::{Map, Number, Value};

use super::libyaml::{Emitter, Piece, Style};
use super::resolve::{Resolved, resolve};
use crate::golang;

/// The document of a value.
pub fn write(value: &Value) -> String {
    let mut emitter = Emitter::new();
    put(value, &mut emitter);
    emitter.finish()
}

fn put(value: &Value, out: &mut Emitter) {
    match value {
        Value::Null => out.put(&Piece::Scalar("null", Style::Plain)),
        Value::Bool(true) => out.put(&Piece::Scalar("true", Style::Plain)),
        Value::Bool(false) => out.put(&Piece::Scalar("false", Style::Plain)),
        Value::Number(number) => out.put(&Piece::Scalar(&shown(number), Style::Plain)),
        Value::String(content) => out.put(&text(content)),
        Value::Array(items) => {
            out.put(&Piece::SequenceStart);
            items.iter().for_each(|item| put(item, out));
            out.put(&Piece::SequenceEnd);
        }
        Value::Object(map) => {
            out.put(&Piece::MappingStart);
            for name in names(map) {
                out.put(&text(name));
                put(&map[name], out);
            }
            out.put(&Piece::MappingEnd);
        }
    }
}

/// A number that went through JSON: a fraction without a remainder is a whole number if it is not too large.
fn shown(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() && (float.fract() != 0.0 || float.abs() >= 1e21) => {
            golang::shortest(&format!("{float:e}"))
        }
        Some(float) if number.is_f64() => match resolve(&float.to_string(), false) {
            Resolved::Float(float) => golang::shortest(&format!("{float:e}")),
            _ => float.to_string(),
        },
        _ => number.to_string(),
    }
}

fn text(content: &str) -> Piece<'_> {
    let style = if content.contains('\n') {
        Style::Literal
    } else if resolve(content, true) != Resolved::Text || is_sexagesimal(content) {
        Style::Quoted
    } else {
        Style::Plain
    };
    Piece::Scalar(content, style)
}

/// `1:30` was a number once: `[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?`.
fn is_sexagesimal(content: &str) -> bool {
    let number = content.strip_prefix(['+', '-']).unwrap_or(content);
    let (number, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let mut parts = number.split(':');
    let first = parts.next().unwrap_or_default();
    let small = |text: &str| match text.as_bytes() {
        [one] => one.is_ascii_digit(),
        [ten, one] => (b'0'..=b'5').contains(ten) && one.is_ascii_digit(),
        _ => false,
    };
    number.contains(':')
        && first.starts_with(|first: char| first.is_ascii_digit())
        && digits(first)
        && digits(part)
        && parts.all(small)
}

/// The names of the fields in the order in which people count: `a2` before `a10`, and letters last.
fn names(map: &Map<String, Value>) -> Vec<&String> {
    let letters: Vec<(Vec<char>, &String)> = map.keys().map(|name| (name.chars().collect(), name)).collect();
    let sorted = sorted(letters.iter().collect(), |a, b| is_before(&a.0, &b.0));
    sorted.into_iter().map(|(_, name)| *name).collect()
}

/// Merges pairs of sorted runs until one is left. The standard library may panic, because the order is not one that it could
/// rely on in all cases.
fn sorted<T: Copy>(mut list: Vec<T>, is_before: impl Fn(T, T) -> bool) -> Vec<T> {
    let mut run = 1;
    while run < list.len() {
        let mut merged = Vec::with_capacity(list.len());
        for pair in list.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let ([first, rest @ ..], [second, others @ ..]) = (left, right) {
                if is_before(*second, *first) {
                    merged.push(*second);
                    right = others;
                } else {
                    merged.push(*first);
                    left = rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        list = merged;
        run *= 2;
    }
    list
}

fn is_before(a: &[char], b: &[char]) -> bool {
    let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) else { return a.len() < b.len() };
    match (a[at].is_alphabetic(), b[at].is_alphabetic()) {
        (true, true) => return a[at] < b[at],
        (false, false) => {}
        (_, second) => return second,
    }
    // Behind a digit other than nought a nought counts as much as any other.
    let run = a[..at].iter().rev().take_while(|letter| letter.is_numeric());
    let counts = (a[at] == '0' || b[at] == '0') && run.into_iter().any(|letter| *letter != '0');
    let number = |text: &[char]| {
        let digits = text[at..].iter().take_while(|letter| letter.is_ascii_digit());
        digits.fold((i64::from(counts), 0), |(number, length), letter| {
            let digit = i64::from(letter.to_digit(10).unwrap_or(0));
            (number.wrapping_mul(10).wrapping_add(digit), length + 1)
        })
    };
    let (first, second) = (number(a), number(b));
    match first == second {
        true => a[at] < b[at],
        false => first < second,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml::to_json;

    #[test]
    fn fields_are_sorted_and_text_that_looks_like_something_else_is_quoted() {
        let value = json!({"kind": "K", "a": {"time": "2020-01-01T00:00:00Z", "n": 1, "s": "1", "y": "yes"},
            "list": [{"b": 1, "a": []}, "x", [1]], "lines": "a\nb\n", "empty": {}, "e": "", "p": "a: b", "date": "2020-01-01",
            "plain": "v1.2.3", "star": "*", "null": null, "hash": "a#b", "cont": "a\nb", "f": 1.5, "g": 1000000.0,
            "h": 1234567.5, "k10": "0644", "k9": "1e3", "k1": "1:30"});
        let wanted = "a:\n  \"n\": 1\n  s: \"1\"\n  time: \"2020-01-01T00:00:00Z\"\n  \"y\": \"yes\"\ncont: |-\n  a\n  b\ndate: \"2020-01-01\"\ne: \"\"\nempty: {}\nf: 1.5\ng: 1000000\nh: 1.2345675e+06\nhash: a#b\nk1: \"1:30\"\nk9: \"1e3\"\nk10: \"0644\"\nkind: K\nlines: |\n  a\n  b\nlist:\n- a: []\n  b: 1\n- x\n- - 1\n\"null\": null\np: 'a: b'\nplain: v1.2.3\nstar: '*'\n";
        assert_eq!(write(&value), wanted);
    }

    #[test]
    fn a_great_many_fields_are_sorted() {
        // The last ones first: whoever puts one before the others has to move all of them.
        let map: Map<String, Value> = (0..300_000).rev().map(|n| (format!("name{n}"), Value::Null)).collect();
        let sorted = names(&map);
        assert!(sorted.iter().enumerate().all(|(n, name)| name[4..] == n.to_string()));
    }

    #[test]
    fn an_order_that_is_none_is_borne() {
        let order = |_: usize, _: usize| true;
        for length in 0..70 {
            let mut found = sorted((0..length).collect(), order);
            found.sort_unstable();
            assert!(found.into_iter().eq(0..length));
        }
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
            "...",
            "2020-01-01 x",
            "|",
            ">-",
            "=",
            "\u{85}",
            "\u{2028}x\n",
            "\u{feff}",
            "y",
            "0o17",
            ".inf",
            "a\n b\n",
            "\ta\n",
            "a \nb",
        ] {
            let value = json!({"k": text, "list": [text], text: "v"});
            let written = write(&value);
            let read =
                to_json(written.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error} in {written}"));
            let read: Value = serde_json::from_str(&read.text).unwrap();
            assert_eq!(read, value, "{text:?} as {written:?}");
        }
    }
}
