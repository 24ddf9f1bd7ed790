//! The values of templates, and the functions that every template has.

use std::cmp::Ordering;

use apimachinery::field::go_quote;
use apimachinery::golang;
use serde_json::Value;

/// A value: what an object holds, in which every number is a float, or a whole number of the template's own.
#[derive(Debug, Clone, PartialEq)]
pub enum Val {
    Nothing,
    Int(i64),
    Json(Value),
}

impl Val {
    pub fn text(text: String) -> Self {
        Self::Json(Value::String(text))
    }

    pub fn is_true(&self) -> bool {
        match self {
            Self::Nothing | Self::Json(Value::Null) => false,
            Self::Int(number) => *number != 0,
            Self::Json(Value::Bool(value)) => *value,
            Self::Json(Value::Number(number)) => number.as_f64() != Some(0.0),
            Self::Json(Value::String(text)) => !text.is_empty(),
            Self::Json(Value::Array(items)) => !items.is_empty(),
            Self::Json(Value::Object(map)) => !map.is_empty(),
        }
    }

    pub fn shown(&self) -> String {
        match self {
            Self::Nothing | Self::Json(Value::Null) => "<no value>".to_owned(),
            Self::Int(number) => number.to_string(),
            Self::Json(value) => plain(value),
        }
    }

    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Nothing => "<nil>",
            Self::Int(_) => "int",
            Self::Json(Value::Number(_)) => "float64",
            Self::Json(value) => golang::type_name(value),
        }
    }

    fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }
}

/// Go's `%v`, where every number is a float.
fn plain(value: &Value) -> String {
    match value {
        Value::Number(number) => golang::shortest(&format!("{:e}", number.as_f64().unwrap_or_default())),
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields: Vec<String> =
                fields.into_iter().map(|(name, value)| format!("{name}:{}", plain(value))).collect();
            format!("map[{}]", fields.join(" "))
        }
        other => golang::plain(other),
    }
}

const KNOWN: &[&str] = &[
    "and",
    "or",
    "not",
    "len",
    "index",
    "slice",
    "print",
    "printf",
    "println",
    "html",
    "js",
    "urlquery",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "call",
    "exists",
    "base64decode",
];

pub fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

pub fn call(name: &str, arguments: &[Val]) -> Result<Val, String> {
    let one = || match arguments {
        [one] => Ok(one),
        _ => Err(format!("wrong number of args for {name}: want 1 got {}", arguments.len())),
    };
    let joined = || arguments.iter().map(Val::shown).collect::<Vec<_>>().join(" ");
    Ok(match name {
        "not" => Val::Json((!one()?.is_true()).into()),
        "len" => Val::Int(match one()? {
            Val::Json(Value::String(text)) => text.len(),
            Val::Json(Value::Array(items)) => items.len(),
            Val::Json(Value::Object(map)) => map.len(),
            Val::Nothing | Val::Json(Value::Null) => return Err("len of nil pointer".to_owned()),
            other => return Err(format!("len of type {}", other.type_name())),
        } as i64),
        "index" => index(arguments)?,
        "slice" => slice(arguments)?,
        "exists" => Val::Json(index(arguments).is_ok_and(|found| found != Val::Nothing).into()),
        "base64decode" => {
            let text = one()?.shown();
            let bytes = golang::base64(&text)
                .map_err(|at| format!("base64 decode failed: illegal base64 data at input byte {at}"))?;
            Val::text(String::from_utf8_lossy(&bytes).into_owned())
        }
        "print" | "println" => Val::text(print(arguments, name == "println")),
        "printf" => {
            let Some((Val::Json(Value::String(format)), rest)) = arguments.split_first() else {
                return Err("wrong number of args for printf: want at least 1".to_owned());
            };
            Val::text(printf(format, rest))
        }
        "html" => Val::text(
            joined()
                .replace('&', "&amp;")
                .replace('\'', "&#39;")
                .replace('<', "&lt;")
                .replace('>', "&gt;")
                .replace('"', "&#34;"),
        ),
        "js" => Val::text(
            joined()
                .replace('\\', "\\\\")
                .replace('\'', "\\'")
                .replace('"', "\\\"")
                .replace('<', "\\u003C")
                .replace('>', "\\u003E")
                .replace('&', "\\u0026")
                .replace('=', "\\u003D"),
        ),
        "urlquery" => Val::text(crate::session::escape(&joined()).replace("%20", "+")),
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" => Val::Json(compare(name, arguments)?.into()),
        "call" => return Err("there are no functions to call in an object".to_owned()),
        other => return Err(format!("function {other:?} not defined")),
    })
}

fn index(arguments: &[Val]) -> Result<Val, String> {
    let Some((first, keys)) = arguments.split_first() else {
        return Err("wrong number of args for index: want at least 1 got 0".to_owned());
    };
    let mut value = first.clone();
    for key in keys {
        value = match (value, key) {
            (Val::Json(Value::Array(mut items)), key) => {
                let position = key
                    .as_int()
                    .ok_or_else(|| format!("cannot index slice/array with type {}", key.type_name()))?;
                let position = usize::try_from(position)
                    .ok()
                    .filter(|position| *position < items.len())
                    .ok_or_else(|| format!("index out of range: {position}"))?;
                Val::Json(items.swap_remove(position))
            }
            (Val::Json(Value::Object(mut map)), Val::Json(Value::String(name))) => {
                map.shift_remove(name).map_or(Val::Nothing, Val::Json)
            }
            (Val::Json(Value::Object(_)), key) => {
                return Err(format!("value has type {}; should be string", key.type_name()));
            }
            (Val::Nothing | Val::Json(Value::Null), _) => return Err("index of untyped nil".to_owned()),
            (other, _) => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(value)
}

fn slice(arguments: &[Val]) -> Result<Val, String> {
    let Some((value, bounds)) = arguments.split_first() else {
        return Err("wrong number of args for slice".to_owned());
    };
    let place = |position: usize, otherwise: usize| match bounds.get(position) {
        None => Ok(otherwise),
        Some(bound) => bound
            .as_int()
            .and_then(|bound| usize::try_from(bound).ok())
            .ok_or_else(|| format!("cannot index slice/array with type {}", bound.type_name())),
    };
    let out_of_range = || "index out of range".to_owned();
    match value {
        Val::Json(Value::String(text)) => {
            let (start, end) = (place(0, 0)?, place(1, text.len())?);
            text.get(start..end).map(|part| Val::text(part.to_owned())).ok_or_else(out_of_range)
        }
        Val::Json(Value::Array(items)) => {
            let (start, end) = (place(0, 0)?, place(1, items.len())?);
            items.get(start..end).map(|part| Val::Json(part.to_vec().into())).ok_or_else(out_of_range)
        }
        other => Err(format!("can't slice item of type {}", other.type_name())),
    }
}

fn compare(name: &str, arguments: &[Val]) -> Result<bool, String> {
    let (first, rest) = arguments.split_first().ok_or("missing argument for comparison")?;
    if rest.is_empty() {
        return Err("missing argument for comparison".to_owned());
    }
    if name == "eq" {
        for other in rest {
            if order(first, other, true)? == Some(Ordering::Equal) {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let [second] = rest else {
        return Err(format!("wrong number of args for {name}: want 2 got {}", arguments.len()));
    };
    let order = order(first, second, name == "ne")?;
    Ok(match name {
        "ne" => order != Some(Ordering::Equal),
        "lt" => order == Some(Ordering::Less),
        "le" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        "gt" => order == Some(Ordering::Greater),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

fn order(a: &Val, b: &Val, only_equality: bool) -> Result<Option<Ordering>, String> {
    let incompatible = || Err("incompatible types for comparison".to_owned());
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => Ok(Some(a.cmp(b))),
        (Val::Json(Value::String(a)), Val::Json(Value::String(b))) => Ok(Some(a.cmp(b))),
        (Val::Json(Value::Number(a)), Val::Json(Value::Number(b))) => {
            Ok(a.as_f64().unwrap_or_default().partial_cmp(&b.as_f64().unwrap_or_default()))
        }
        (Val::Json(Value::Bool(a)), Val::Json(Value::Bool(b))) if only_equality => Ok(Some(a.cmp(b))),
        (Val::Nothing | Val::Json(Value::Null), Val::Nothing | Val::Json(Value::Null)) if only_equality => {
            Ok(Some(Ordering::Equal))
        }
        (Val::Nothing | Val::Json(Value::Null), _) | (_, Val::Nothing | Val::Json(Value::Null))
            if only_equality =>
        {
            Ok(None)
        }
        (Val::Json(Value::Array(_) | Value::Object(_)), _)
        | (_, Val::Json(Value::Array(_) | Value::Object(_))) => Err("invalid type for comparison".to_owned()),
        _ => incompatible(),
    }
}

/// Spaces stand between operands where neither is text, or everywhere and with a line end.
fn print(arguments: &[Val], line: bool) -> String {
    let mut out = String::new();
    for (index, value) in arguments.iter().enumerate() {
        let is_text = |value: &Val| matches!(value, Val::Json(Value::String(_)));
        if index > 0 && (line || (!is_text(value) && !is_text(&arguments[index - 1]))) {
            out.push(' ');
        }
        out.push_str(&value.shown());
    }
    if line {
        out.push('\n');
    }
    out
}

/// No padding is wider.
const MAX_WIDTH: usize = 10_000;

fn printf(format: &str, arguments: &[Val]) -> String {
    let mut out = String::new();
    let mut used = 0;
    let mut letters = format.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let (mut left, mut zero, mut plus, mut sharp) = (false, false, false, false);
        while let Some(flag) = letters.next_if(|letter| "-0+# ".contains(*letter)) {
            match flag {
                '-' => left = true,
                '0' => zero = true,
                '+' => plus = true,
                '#' => sharp = true,
                _ => {}
            }
        }
        let digits = |letters: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut text = String::new();
            while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                text.push(digit);
            }
            text
        };
        let width: usize = digits(&mut letters).parse().unwrap_or(0).min(MAX_WIDTH);
        let precision: Option<usize> = letters
            .next_if(|letter| *letter == '.')
            .map(|_| digits(&mut letters).parse().unwrap_or(0).min(MAX_WIDTH));
        let Some(verb) = letters.next() else {
            out.push_str("%!(NOVERB)");
            break;
        };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some(value) = arguments.get(used) else {
            out.push_str(&format!("%!{verb}(MISSING)"));
            continue;
        };
        used += 1;
        let text = formatted(verb, value, precision, plus, sharp);
        let length = text.chars().count();
        let fill = width.saturating_sub(length);
        if left {
            out.push_str(&text);
            out.extend(std::iter::repeat_n(' ', fill));
        } else if zero && !matches!(verb, 's' | 'v' | 'q') {
            let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
            out.push_str(sign);
            out.extend(std::iter::repeat_n('0', fill));
            out.push_str(digits);
        } else {
            out.extend(std::iter::repeat_n(' ', fill));
            out.push_str(&text);
        }
    }
    if used < arguments.len() {
        let extra: Vec<String> = arguments[used..]
            .iter()
            .map(|value| format!("{}={}", value.type_name(), value.shown()))
            .collect();
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

fn formatted(verb: char, value: &Val, precision: Option<usize>, plus: bool, sharp: bool) -> String {
    let wrong = || format!("%!{verb}({}={})", value.type_name(), value.shown());
    match (verb, value) {
        ('v', Val::Json(value)) if sharp => golang::syntax(value),
        ('v', Val::Nothing) => "<nil>".to_owned(),
        ('v', value) => value.shown(),
        ('T', value) => value.type_name().to_owned(),
        ('s', Val::Json(Value::String(text))) => match precision {
            Some(most) => text.chars().take(most).collect(),
            None => text.clone(),
        },
        ('q', Val::Json(Value::String(text))) => go_quote(text),
        ('s', Val::Json(Value::Array(_) | Value::Object(_))) => value.shown(),
        ('d', Val::Int(number)) if plus && *number >= 0 => format!("+{number}"),
        ('d', Val::Int(number)) => number.to_string(),
        ('x', Val::Int(number)) => format!("{number:x}"),
        ('X', Val::Int(number)) => format!("{number:X}"),
        ('o', Val::Int(number)) => format!("{number:o}"),
        ('b', Val::Int(number)) => format!("{number:b}"),
        ('c', Val::Int(number)) => {
            u32::try_from(*number).ok().and_then(char::from_u32).unwrap_or('\u{fffd}').to_string()
        }
        ('x', Val::Json(Value::String(text))) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
        ('f' | 'F', Val::Json(Value::Number(number))) => {
            format!("{:.*}", precision.unwrap_or(6), number.as_f64().unwrap_or_default())
        }
        ('e' | 'g', Val::Json(Value::Number(number))) => {
            golang::shortest(&format!("{:e}", number.as_f64().unwrap_or_default()))
        }
        ('t', Val::Json(Value::Bool(value))) => value.to_string(),
        _ => wrong(),
    }
}
