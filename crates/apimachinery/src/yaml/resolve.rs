//! What a plain text stands for in the YAML that Go's clients and servers speak: mostly version 1.1, with the octals of 1.2
//! beside those of 1.1.

/// What a text that is neither quoted nor tagged means.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Resolved {
    Null,
    Bool(bool),
    Int(i64),
    /// Too large for the other.
    Uint(u64),
    Float(f64),
    /// A moment, which is passed on as its text.
    Time,
    Text,
}

impl Resolved {
    /// The short name of its tag.
    pub(super) fn tag(&self) -> &'static str {
        match self {
            Self::Null => "!!null",
            Self::Bool(_) => "!!bool",
            Self::Int(_) | Self::Uint(_) => "!!int",
            Self::Float(_) => "!!float",
            Self::Time => "!!timestamp",
            Self::Text => "!!str",
        }
    }
}

/// What the text means. Moments are told from numbers only where no tag says that it is another thing.
pub(super) fn resolve(text: &str, times: bool) -> Resolved {
    if let Some(word) = word(text) {
        return word;
    }
    match text.as_bytes().first() {
        Some(b'.') => real(text).map_or(Resolved::Text, Resolved::Float),
        Some(b'+' | b'-' | b'0'..=b'9') => {
            if times && is_time(text) {
                return Resolved::Time;
            }
            let digits = text.replace('_', "");
            if let Some(number) = integer(&digits) {
                return number;
            }
            real(&digits).map_or(Resolved::Text, Resolved::Float)
        }
        _ => Resolved::Text,
    }
}

fn word(text: &str) -> Option<Resolved> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Resolved::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Resolved::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Resolved::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" => Resolved::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Resolved::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Resolved::Float(f64::NEG_INFINITY),
        _ => return None,
    })
}

/// A number in the base that its beginning says: `0x`, `0b`, `0o`, or a bare `0` for octal.
fn integer(text: &str) -> Option<Resolved> {
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (0, text),
    };
    let mark = digits.get(..2).unwrap_or_default().to_ascii_lowercase();
    let (base, digits) = match mark.as_str() {
        "0x" => (16, &digits[2..]),
        "0b" => (2, &digits[2..]),
        "0o" => (8, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.starts_with(|first: char| first.is_digit(base)) {
        return None; // a second sign
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    match i64::try_from(if sign < 0 { -number } else { number }) {
        Ok(number) => Some(Resolved::Int(number)),
        Err(_) if sign == 0 => u64::try_from(number).ok().map(Resolved::Uint),
        Err(_) => None,
    }
}

/// A decimal fraction that a float can hold.
fn real(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let all = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_mantissa = all(whole) && all(part) && !(whole.is_empty() && part.is_empty());
    let has_exponent = exponent.is_none_or(|text| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        all(digits) && !digits.is_empty()
    });
    if !has_mantissa || !has_exponent {
        return None;
    }
    text.parse::<f64>().ok().filter(|number| number.is_finite())
}

/// A date, or one with a time.
pub(super) fn is_time(text: &str) -> bool {
    let (date, rest) = match text.find(['T', 't', ' ']) {
        Some(at) => (&text[..at], Some(&text[at..])),
        None => (text, None),
    };
    let number = |text: &str, from: u32, to: u32| {
        (1..=2).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && text.parse().is_ok_and(|number: u32| (from..=to).contains(&number))
    };
    let mut parts = date.splitn(3, '-');
    let (Some(year), Some(month), Some(day)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let days = match (month.parse(), year.parse()) {
        (Ok(2), Ok(year)) if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        (Ok(2), Ok::<u32, _>(_)) => 28,
        (Ok(4 | 6 | 9 | 11), _) => 30,
        (Ok::<u32, _>(_), _) => 31,
        _ => return false,
    };
    let date = year.len() == 4
        && year.bytes().all(|byte| byte.is_ascii_digit())
        && number(month, 1, 12)
        && number(day, 1, days);
    let Some(rest) = rest else { return date };
    let (clock, zone) = match (&rest[..1], rest.rfind(['Z', '+', '-'])) {
        (" ", None) => (&rest[1..], true),
        (" ", _) | (_, None) => return false,
        (_, Some(at)) => (&rest[1..at], is_zone(&rest[at..])),
    };
    let mut parts = clock.splitn(3, ':');
    let (Some(hour), Some(minute), Some(seconds)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let (seconds, part) = seconds.split_once(['.', ',']).unwrap_or((seconds, "0"));
    date && zone
        && number(hour, 0, 23)
        && number(minute, 0, 59)
        && number(seconds, 0, 59)
        && !part.is_empty()
        && part.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_zone(text: &str) -> bool {
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    text == "Z" || text[1..].split_once(':').is_some_and(|(hours, minutes)| digits(hours) && digits(minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_means_what_it_means_to_go() {
        use Resolved::*;
        for (text, wanted) in [
            ("", Null),
            ("~", Null),
            ("NULL", Null),
            ("nULL", Text),
            ("y", Bool(true)),
            ("Off", Bool(false)),
            ("oFF", Text),
            ("0644", Int(0o644)),
            ("0o644", Int(0o644)),
            ("-0b11", Int(-3)),
            ("0X1f", Int(31)),
            ("1_000", Int(1000)),
            ("+_1_", Int(1)),
            ("_1", Text),
            ("08", Float(8.0)),
            ("0", Int(0)),
            ("-0", Int(0)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("18446744073709551615", Uint(u64::MAX)),
            ("18446744073709551616", Float(18446744073709551616.0)),
            ("0x8000000000000000", Uint(1 << 63)),
            ("1e3", Float(1000.0)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("._5", Text),
            (".", Text),
            ("1e", Text),
            ("1e999", Text),
            ("0x", Text),
            ("--1", Text),
            ("1:30", Text),
            (".Inf", Float(f64::INFINITY)),
            (".iNF", Text),
            ("2020-01-01", Time),
            ("2020-1-1", Time),
            ("2020-02-30", Text),
            ("2020-01-01T00:00:00Z", Time),
            ("2020-01-01t1:2:3.5+02:00", Time),
            ("2020-01-01 00:00:00", Time),
            ("2020-01-01 00:00:00Z", Text),
            ("2020-01-01T00:00:00", Text),
            ("<<", Text),
            ("=", Text),
        ] {
            assert_eq!(resolve(text, true), wanted, "{text:?}");
        }
    }
}
