//! Values as Go's `fmt` prints them, and base64 as Go reads it. Some of upstream's messages show what they refuse in this form.

use serde_json::{Number, Value};

use crate::field::go_quote;

/// The bytes of a base64 text; or the place of what is wrong with it. Line ends may stand anywhere, and the bits that are left
/// over may be any.
pub fn base64(text: &str) -> Result<Vec<u8>, usize> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let mut letters = text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\n' | b'\r'));
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0u32, 0);
    while let Some((at, byte)) = letters.next() {
        let Some(six) = value(byte) else {
            if byte != b'=' || count < 2 {
                return Err(at);
            }
            if count == 2 {
                match letters.next() {
                    None => return Err(text.len()),
                    Some((_, b'=')) => {}
                    Some((at, _)) => return Err(at - 1),
                }
            }
            if let Some((at, _)) = letters.next() {
                return Err(at);
            }
            out.extend_from_slice(&(bits << (8 + 6 * (4 - count))).to_be_bytes()[..count - 1]);
            return Ok(out);
        };
        (bits, count) = (bits << 6 | u32::from(six), count + 1);
        if count == 4 {
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
            (bits, count) = (0, 0);
        }
    }
    if count == 0 { Ok(out) } else { Err(text.len() - count) }
}

/// `%v`: `map[a:1 b:[x y]]`, with sorted keys.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) => shown(number),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            let shown: Vec<_> =
                fields.into_iter().map(|(key, value)| format!("{key}:{}", plain(value))).collect();
            format!("map[{}]", shown.join(" "))
        }
    }
}

/// `%#v`: `map[string]interface {}{"a":1}`, with sorted keys.
pub fn syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::String(text) => go_quote(text),
        Value::Bool(_) => value.to_string(),
        Value::Number(number) => shown(number),
        Value::Array(items) => {
            format!("[]interface {{}}{{{}}}", items.iter().map(syntax).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(key, _)| *key);
            let shown: Vec<_> = fields
                .into_iter()
                .map(|(key, value)| format!("{}:{}", go_quote(key), syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", shown.join(", "))
        }
    }
}

/// A number that is not whole, or too large to be one in Go, is a float.
fn shown(number: &Number) -> String {
    match number.as_i64() {
        Some(whole) => whole.to_string(),
        None => shortest(&format!("{:e}", number.as_f64().unwrap_or_default())),
    }
}

/// `%g` with as many digits as are needed, of a number that is given as one digit, a fraction and an exponent
/// (`1.5e3`, what `{:e}` writes): without the exponent if that is short.
pub fn shortest(number: &str) -> String {
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if mantissa.starts_with('-') { "-" } else { "" };
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    if !(-4..6).contains(&exponent) && !digits.trim_matches('0').is_empty() {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    match usize::try_from(exponent) {
        Err(_) => format!("{sign}0.{}{digits}", "0".repeat(exponent.unsigned_abs() as usize - 1)),
        Ok(whole) if digits.len() <= whole + 1 => {
            format!("{sign}{digits}{}", "0".repeat(whole + 1 - digits.len()))
        }
        Ok(whole) => format!("{sign}{}.{}", &digits[..=whole], &digits[whole + 1..]),
    }
}

/// `%T`: Go's type of a value that was read without a schema.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// What Go's JSON reader calls a value of the wrong type.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_read_as_go_does() {
        for (text, want) in [
            ("", Ok("")),
            ("YWJj", Ok("abc")),
            ("YWI=", Ok("ab")),
            ("YQ==", Ok("a")),
            ("YR==", Ok("a")),
            ("YW\nJj\r\n", Ok("abc")),
            ("YQ=\n=", Ok("a")),
            ("0", Err(0)),
            ("YWJjYW", Err(4)),
            ("Bad_Name!", Err(3)),
            ("Y===", Err(1)),
            ("YQ=", Err(3)),
            ("YQ=x", Err(2)),
            ("YQ==YQ==", Err(4)),
        ] {
            assert_eq!(base64(text), want.map(|text| text.as_bytes().to_vec()), "{text:?}");
        }
    }

    #[test]
    fn values_look_as_in_go() {
        let value = json!({"b": [1, "x", null], "a": {"c": true}});
        assert_eq!(plain(&value), "map[a:map[c:true] b:[1 x <nil>]]");
        assert_eq!(
            syntax(&value),
            "map[string]interface {}{\"a\":map[string]interface {}{\"c\":true}, \"b\":[]interface {}{1, \"x\", interface {}(nil)}}"
        );
        let numbers = json!([1.0, 1e8, 1.5e9, u64::MAX, -7]);
        assert_eq!(syntax(&numbers), "[]interface {}{1, 1e+08, 1.5e+09, 1.8446744073709552e+19, -7}");
        assert_eq!(plain(&numbers), "[1 1e+08 1.5e+09 1.8446744073709552e+19 -7]");
        assert_eq!(
            syntax(&json!({"\u{1b}": "\0\u{7}'\u{85}"})),
            r#"map[string]interface {}{"\x1b":"\x00\a'\u0085"}"#
        );
        for (number, shown) in [
            (0.0, "0"),
            (1.0, "1"),
            (-1500.5, "-1500.5"),
            (100000.0, "100000"),
            (1234567.0, "1.234567e+06"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e100, "1e+100"),
        ] {
            assert_eq!(shortest(&format!("{number:e}")), shown);
        }
        for (value, name) in [(json!(1), "int64"), (json!(1.5), "float64"), (json!("a"), "string")] {
            assert_eq!(type_name(&value), name);
        }
    }
}
