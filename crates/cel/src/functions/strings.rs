//! Text: the standard functions, the strings extension, regular expressions.

use super::convert::double_text;
use super::{Entry, Growing, Outcome, Run, regex};
use crate::error::Error;
use crate::value::{ITEM, List, Val};

/// What shared text takes beside its letters.
const SHARED: usize = 16;

/// The functions.
pub const TABLE: &[Entry] = &[
    ("contains", contains, &["string.(string)->bool"]),
    ("startsWith", starts_with, &["string.(string)->bool"]),
    ("endsWith", ends_with, &["string.(string)->bool"]),
    ("matches", matches, &["string.(string)->bool", "(string,string)->bool"]),
    ("find", find, &["string.(string)->string"]),
    ("findAll", find_all, &["string.(string)->list(string)", "string.(string,int)->list(string)"]),
    ("charAt", char_at, &["string.(int)->string"]),
    ("lowerAscii", lower, &["string.()->string"]),
    ("upperAscii", upper, &["string.()->string"]),
    ("trim", trim, &["string.()->string"]),
    ("replace", replace, &["string.(string,string)->string", "string.(string,string,int)->string"]),
    ("split", split, &["string.(string)->list(string)", "string.(string,int)->list(string)"]),
    ("substring", substring, &["string.(int)->string", "string.(int,int)->string"]),
    ("join", join, &["list(string).()->string", "list(string).(string)->string"]),
    ("format", format, &["string.(list(dyn))->string"]),
    ("strings.quote", quote, &["(string)->string"]),
    ("jsonpatch.escapeKey", escape_key, &["(string)->string"]),
];

fn contains<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(part)] => Ok(Val::Bool(text.contains(&**part))),
        _ => Err(Error::NoOverload),
    }
}

fn starts_with<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(part)] => Ok(Val::Bool(text.starts_with(&**part))),
        _ => Err(Error::NoOverload),
    }
}

fn ends_with<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(part)] => Ok(Val::Bool(text.ends_with(&**part))),
        _ => Err(Error::NoOverload),
    }
}

fn matches<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(pattern)] => Ok(Val::Bool(regex(pattern)?.is_match(text))),
        _ => Err(Error::NoOverload),
    }
}

fn find<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(pattern)] => {
            let found = regex(pattern)?.find(text).map_or("", |found| found.as_str()).to_owned();
            Ok(found.into())
        }
        _ => Err(Error::NoOverload),
    }
}

fn find_all<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, pattern, limit) = match args {
        [Val::Text(text), Val::Text(pattern)] => (text, pattern, -1),
        [Val::Text(text), Val::Text(pattern), Val::Int(limit)] => (text, pattern, *limit),
        _ => return Err(Error::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let expression = regex(pattern)?;
    parts(run, expression.find_iter(text).take(limit).map(|found| found.as_str()))
}

/// A list of texts. There may be as many as letters, and each takes more room than it has letters.
fn parts<'a, 't>(run: &mut Run<'_>, found: impl Iterator<Item = &'t str>) -> Outcome<'a> {
    let mut parts: Vec<Val<'a>> = Vec::new();
    for part in found {
        run.allow(ITEM.saturating_add(SHARED).saturating_add(part.len()))?;
        parts.push(part.to_owned().into());
    }
    Ok(parts.into())
}

/// The byte at which a letter starts.
fn byte_of(text: &str, letter: i64) -> Result<usize, Error> {
    let bounds = || Error::invalid(format!("index out of range: {letter}"));
    let letter = usize::try_from(letter).map_err(|_| bounds())?;
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(letter).ok_or_else(bounds)
}

fn char_at<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Int(index)] => {
            let at = byte_of(text, *index)?;
            Ok(text[at..].chars().next().map(String::from).unwrap_or_default().into())
        }
        _ => Err(Error::NoOverload),
    }
}

/// The place of a part of a text, counted in letters.
pub fn index_of(text: &str, part: &str, from: i64, last: bool) -> Result<i64, Error> {
    let found = if last {
        let end = byte_of(text, from)?;
        let limit = text[end..].char_indices().map(|(at, _)| end + at).chain([text.len()]);
        let limit = limit.take_while(|at| *at <= end + part.len()).last().unwrap_or(text.len());
        text[..limit].rfind(part)
    } else {
        let start = byte_of(text, from)?;
        text[start..].find(part).map(|at| at + start)
    };
    Ok(found.map_or(-1, |at| text[..at].chars().count() as i64))
}

fn ascii<'a>(args: &[Val<'a>], change: fn(&str) -> String) -> Outcome<'a> {
    match args {
        [Val::Text(text)] => Ok(change(text).into()),
        _ => Err(Error::NoOverload),
    }
}

fn lower<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    ascii(args, str::to_ascii_lowercase)
}

fn upper<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    ascii(args, str::to_ascii_uppercase)
}

fn trim<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    ascii(args, |text| text.trim().to_owned())
}

fn escape_key<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    ascii(args, |text| text.replace('~', "~0").replace('/', "~1"))
}

fn quote<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    ascii(args, apimachinery::field::go_quote)
}

fn replace<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, old, new, limit) = match args {
        [Val::Text(text), Val::Text(old), Val::Text(new)] => (text, old, new, -1),
        [Val::Text(text), Val::Text(old), Val::Text(new), Val::Int(limit)] => (text, old, new, *limit),
        _ => return Err(Error::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&**old).count() };
    run.allow(count.min(limit).saturating_mul(new.len()).saturating_add(text.len()))?;
    Ok(text.replacen(&**old, new, limit).into())
}

fn split<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, by, limit) = match args {
        [Val::Text(text), Val::Text(by)] => (text, by, -1),
        [Val::Text(text), Val::Text(by), Val::Int(limit)] => (text, by, *limit),
        _ => return Err(Error::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if limit == 0 {
        Ok(Vec::new().into())
    } else if by.is_empty() {
        parts(run, text.char_indices().map(|(at, letter)| &text[at..at + letter.len_utf8()]))
    } else {
        parts(run, text.splitn(limit, &**by))
    }
}

fn substring<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, start, end) = match args {
        [Val::Text(text), Val::Int(start)] => (text, byte_of(text, *start)?, text.len()),
        [Val::Text(text), Val::Int(start), Val::Int(end)] => {
            if start > end {
                return Err(Error::invalid(format!("invalid substring range. start: {start}, end: {end}")));
            }
            (text, byte_of(text, *start)?, byte_of(text, *end)?)
        }
        _ => return Err(Error::NoOverload),
    };
    Ok(text[start..end].to_owned().into())
}

fn join<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (list, by) = match args {
        [Val::List(list)] => (list, ""),
        [Val::List(list), Val::Text(by)] => (list, &**by),
        _ => return Err(Error::NoOverload),
    };
    let mut out = Growing::new(run);
    for (index, item) in list.iter().enumerate() {
        let Val::Text(text) = item? else { return Err(Error::NoOverload) };
        if index > 0 {
            out.push(by)?;
        }
        out.push(&text)?;
    }
    let out = out.into_text();
    run.charge((out.chars().count() as u64).saturating_mul(2).div_ceil(10))?;
    Ok(out.into())
}

/// Writes a value as `%s` shows it.
fn show(value: &Val<'_>, out: &mut Growing<'_, '_>) -> Result<(), Error> {
    match value {
        Val::Text(text) => out.push(text),
        Val::Null => out.push("null"),
        Val::Double(number) => out.push(&double_text(*number)),
        Val::Uint(number) => out.add(format_args!("{number}")),
        Val::Bytes(bytes) => out.push(&String::from_utf8_lossy(&bytes.read())),
        Val::Timestamp(at) => out.add(format_args!("{at}")),
        Val::Duration(nanos) => out.add(format_args!("{}s", *nanos as f64 / 1e9)),
        Val::List(list) => {
            out.push("[")?;
            for (index, item) in list.iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                show(&item?, out)?;
            }
            out.push("]")
        }
        Val::Map(map) => {
            let mut entries: Vec<String> = Vec::new();
            for key in map.keys() {
                let mut entry = out.other();
                show(&key, &mut entry)?;
                entry.push(": ")?;
                show(&map.get(&key)?.unwrap_or(Val::Null), &mut entry)?;
                entries.push(entry.into_text());
            }
            entries.sort();
            out.push("{")?;
            for (index, entry) in entries.iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                out.push(entry)?;
            }
            out.push("}")
        }
        other => out.add(format_args!("{other:?}")),
    }
}

fn format<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::List(list)] = args else { return Err(Error::NoOverload) };
    let mut out = Growing::new(run);
    write_formatted(text, list, &mut out)?;
    Ok(out.into_text().into())
}

/// Only the template is paid for, not what it shows.
fn write_formatted(text: &str, list: &List<'_>, out: &mut Growing<'_, '_>) -> Result<(), Error> {
    let mut letters = text.chars().peekable();
    let mut next = 0;
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter.encode_utf8(&mut [0; 4]))?;
            continue;
        }
        if letters.peek() == Some(&'%') {
            letters.next();
            out.push("%")?;
            continue;
        }
        let mut precision = 6;
        if letters.peek() == Some(&'.') {
            letters.next();
            let mut digits = String::new();
            while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            precision = digits.parse::<usize>().unwrap_or(6).min(100);
        }
        let clause = letters.next().ok_or_else(|| Error::invalid("unexpected end of format string"))?;
        let value = list.get(next).map_err(|_| Error::invalid(format!("index {next} out of range")))?;
        next += 1;
        let bad =
            || Error::invalid(format!("error during formatting: %{clause} cannot show a {}", value.kind()));
        match (clause, &value) {
            ('s', value) => show(value, out)?,
            ('d', Val::Int(number)) => out.add(format_args!("{number}"))?,
            ('d', Val::Uint(number)) => out.add(format_args!("{number}"))?,
            ('d', Val::Double(number)) => out.push(&double_text(*number))?,
            ('f', number) => out.add(format_args!("{:.precision$}", number_of(number).ok_or_else(bad)?))?,
            ('e', number) => {
                let text = format!("{:.precision$e}", number_of(number).ok_or_else(bad)?);
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let sign = if exponent < 0 { '-' } else { '+' };
                out.add(format_args!("{digits}e{sign}{:02}", exponent.abs()))?;
            }
            ('b', Val::Int(number)) => out.push(&signed(*number, |abs| format!("{abs:b}")))?,
            ('b', Val::Uint(number)) => out.add(format_args!("{number:b}"))?,
            ('b', Val::Bool(value)) => out.push(if *value { "1" } else { "0" })?,
            ('o', Val::Int(number)) => out.push(&signed(*number, |abs| format!("{abs:o}")))?,
            ('o', Val::Uint(number)) => out.add(format_args!("{number:o}"))?,
            ('x' | 'X', Val::Text(text)) => show_hex(text.as_bytes(), clause == 'X', out)?,
            ('x' | 'X', Val::Bytes(bytes)) => show_hex(&bytes.read(), clause == 'X', out)?,
            ('x', Val::Int(number)) => out.push(&signed(*number, |abs| format!("{abs:x}")))?,
            ('X', Val::Int(number)) => out.push(&signed(*number, |abs| format!("{abs:X}")))?,
            ('x', Val::Uint(number)) => out.add(format_args!("{number:x}"))?,
            ('X', Val::Uint(number)) => out.add(format_args!("{number:X}"))?,
            ('d' | 'b' | 'o' | 'x' | 'X', _) => return Err(bad()),
            _ => {
                return Err(Error::invalid(format!(
                    "could not parse formatting clause: unrecognized formatting clause \"{clause}\""
                )));
            }
        }
    }
    Ok(())
}

fn number_of(value: &Val<'_>) -> Option<f64> {
    match value {
        Val::Int(number) => Some(*number as f64),
        Val::Uint(number) => Some(*number as f64),
        Val::Double(number) => Some(*number),
        _ => None,
    }
}

fn signed(number: i64, print: impl Fn(u64) -> String) -> String {
    format!("{}{}", if number < 0 { "-" } else { "" }, print(number.unsigned_abs()))
}

fn show_hex(bytes: &[u8], upper: bool, out: &mut Growing<'_, '_>) -> Result<(), Error> {
    bytes.iter().try_for_each(|byte| {
        if upper { out.add(format_args!("{byte:02X}")) } else { out.add(format_args!("{byte:02x}")) }
    })
}
