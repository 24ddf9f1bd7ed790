//! Text: the standard functions, the strings extension, regular expressions.

use super::convert::double_text;
use super::{Entry, Outcome, Run, regex};
use crate::error::Error;
use crate::value::{List, Val};

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

fn find_all<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, pattern, limit) = match args {
        [Val::Text(text), Val::Text(pattern)] => (text, pattern, -1),
        [Val::Text(text), Val::Text(pattern), Val::Int(limit)] => (text, pattern, *limit),
        _ => return Err(Error::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let expression = regex(pattern)?;
    let found: Vec<Val<'a>> =
        expression.find_iter(text).take(limit).map(|found| found.as_str().to_owned().into()).collect();
    Ok(found.into())
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
    run.allow(count.min(limit).saturating_mul(new.len()))?;
    Ok(text.replacen(&**old, new, limit).into())
}

fn split<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (text, by, limit) = match args {
        [Val::Text(text), Val::Text(by)] => (text, by, -1),
        [Val::Text(text), Val::Text(by), Val::Int(limit)] => (text, by, *limit),
        _ => return Err(Error::NoOverload),
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let parts: Vec<Val<'a>> = if limit == 0 {
        Vec::new()
    } else if by.is_empty() {
        text.chars().map(|letter| letter.to_string().into()).collect()
    } else {
        text.splitn(limit, &**by).map(|part| part.to_owned().into()).collect()
    };
    Ok(parts.into())
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
    let mut out = String::new();
    for (index, item) in list.items()?.iter().enumerate() {
        let Val::Text(text) = item else { return Err(Error::NoOverload) };
        if index > 0 {
            out.push_str(by);
        }
        out.push_str(text);
        run.allow(out.len())?;
    }
    run.charge((out.chars().count() as u64).saturating_mul(2).div_ceil(10))?;
    Ok(out.into())
}

/// A value as `%s` shows it.
fn shown(value: &Val<'_>, nested: bool) -> String {
    match value {
        Val::Text(text) if nested => format!("{:?}", &**text),
        Val::Text(text) => text.to_string(),
        Val::Null => "null".to_owned(),
        Val::Double(number) => double_text(*number),
        Val::Uint(number) => number.to_string(),
        Val::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Val::Timestamp(at) => at.to_string(),
        Val::Duration(nanos) => format!("{}s", *nanos as f64 / 1e9),
        Val::List(list) => {
            let items: Vec<String> =
                list.items().unwrap_or_default().iter().map(|item| shown(item, nested)).collect();
            format!("[{}]", items.join(", "))
        }
        Val::Map(map) => {
            let mut entries: Vec<String> = map
                .keys()
                .iter()
                .filter_map(|key| {
                    Some(format!("{}: {}", shown(key, nested), shown(&map.get(key).ok()??, nested)))
                })
                .collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        other => format!("{other:?}"),
    }
}

fn format<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text), Val::List(list)] = args else { return Err(Error::NoOverload) };
    Ok(formatted(text, list)?.into())
}

fn formatted(text: &str, list: &List<'_>) -> Result<String, Error> {
    let mut out = String::new();
    let mut letters = text.chars().peekable();
    let mut next = 0;
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        if letters.peek() == Some(&'%') {
            letters.next();
            out.push('%');
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
            ('s', value) => out.push_str(&shown(value, false)),
            ('d', Val::Int(number)) => out.push_str(&number.to_string()),
            ('d', Val::Uint(number)) => out.push_str(&number.to_string()),
            ('d', Val::Double(number)) => out.push_str(&double_text(*number)),
            ('f', number) => out.push_str(&format!("{:.precision$}", number_of(number).ok_or_else(bad)?)),
            ('e', number) => {
                let text = format!("{:.precision$e}", number_of(number).ok_or_else(bad)?);
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let exponent: i32 = exponent.parse().unwrap_or(0);
                let sign = if exponent < 0 { '-' } else { '+' };
                out.push_str(&format!("{digits}e{sign}{:02}", exponent.abs()));
            }
            ('b', Val::Int(number)) => out.push_str(&signed(*number, |abs| format!("{abs:b}"))),
            ('b', Val::Uint(number)) => out.push_str(&format!("{number:b}")),
            ('b', Val::Bool(value)) => out.push(if *value { '1' } else { '0' }),
            ('o', Val::Int(number)) => out.push_str(&signed(*number, |abs| format!("{abs:o}"))),
            ('o', Val::Uint(number)) => out.push_str(&format!("{number:o}")),
            ('x', value) => out.push_str(&hex(value).ok_or_else(bad)?),
            ('X', value) => out.push_str(&hex(value).ok_or_else(bad)?.to_uppercase()),
            ('d' | 'b' | 'o', _) => return Err(bad()),
            _ => {
                return Err(Error::invalid(format!(
                    "could not parse formatting clause: unrecognized formatting clause \"{clause}\""
                )));
            }
        }
    }
    Ok(out)
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

fn hex(value: &Val<'_>) -> Option<String> {
    let bytes = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    match value {
        Val::Int(number) => Some(signed(*number, |abs| format!("{abs:x}"))),
        Val::Uint(number) => Some(format!("{number:x}")),
        Val::Text(text) => Some(bytes(text.as_bytes())),
        Val::Bytes(content) => Some(bytes(content)),
        _ => None,
    }
}
