//! The two time texts of the API: whole seconds and microseconds, both in UTC.

use jiff::Timestamp;

use crate::field::go_quote;

/// `2024-05-01T12:00:00Z`, as `metadata.creationTimestamp` has it.
pub fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2024-05-01T12:00:00.000000Z`, as leases and events have it.
pub fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// Parses RFC 3339; `None` when malformed.
pub fn parse(text: &str) -> Option<Timestamp> {
    // The common case first: it is already in the form that we write.
    let b = text.as_bytes();
    if b.len() < 20 || b[10] != b'T' && b[10] != b't' {
        return None;
    }
    text.parse().ok()
}

/// The canonical second-precision text of a time, `None` when it already is canonical.
pub fn canonical_seconds(text: &str) -> Result<Option<String>, String> {
    canonical(text, "2006-01-02T15:04:05Z07:00", 20, seconds)
}

/// The canonical microsecond-precision text of a time, `None` when it already is canonical.
pub fn canonical_micros(text: &str) -> Result<Option<String>, String> {
    canonical(text, "2006-01-02T15:04:05.000000Z07:00", 27, micros)
}

fn canonical(
    text: &str,
    layout: &str,
    length: usize,
    write: fn(Timestamp) -> String,
) -> Result<Option<String>, String> {
    let said = |what: String| format!("parsing time {}{what}", go_quote(text));
    let cannot = |rest: &str, part: &str| {
        said(format!(" as {}: cannot parse {} as {}", go_quote(layout), go_quote(rest), go_quote(part)))
    };
    follow(text, layout.contains('.')).map_err(|problem| match problem {
        Misfit::Part(rest, part) => cannot(rest, part),
        Misfit::Range(part) => said(format!(": {part} out of range")),
        Misfit::Extra(rest) => said(format!(": extra text: {}", go_quote(rest))),
    })?;
    // What Go takes and this does not is an offset of a whole day and more.
    let time = parse(text)
        .or_else(|| parse(&text.replace(',', ".")))
        .ok_or_else(|| said(": time zone offset hour out of range".to_owned()))?;
    Ok((text.len() != length || !text.ends_with('Z')).then(|| write(time)))
}

/// Where a text leaves Go's layout of a time.
enum Misfit<'a> {
    /// What is left of it does not begin with this part.
    Part(&'a str, &'static str),
    /// The number is not one of those there are.
    Range(&'static str),
    /// Something follows.
    Extra(&'a str),
}

/// Goes through a text as Go's `time.Parse` does, which has an opinion on every part. `micros` are six digits that must be
/// there; otherwise any fraction may be.
fn follow(text: &str, micros: bool) -> Result<(), Misfit<'_>> {
    let digits = |text: &str, count: usize| {
        text.as_bytes().get(..count).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    let mut rest = text;
    let mut numbers = [0u32; 6];
    const PARTS: [(&str, &str, &str, u32); 6] = [
        ("", "2006", "", 9999),
        ("-", "01", "month", 12),
        ("-", "02", "", 31),
        ("T", "15", "hour", 23),
        (":", "04", "minute", 59),
        (":", "05", "second", 59),
    ];
    for (index, (before, part, range, most)) in PARTS.into_iter().enumerate() {
        rest = rest.strip_prefix(before).ok_or(Misfit::Part(rest, before))?;
        if !digits(rest, part.len()) {
            return Err(Misfit::Part(rest, part));
        }
        let (number, after) = rest.split_at(part.len());
        numbers[index] = number.parse().unwrap_or_default();
        if !range.is_empty() && (numbers[index] > most || index == 1 && numbers[index] == 0) {
            return Err(Misfit::Range(range));
        }
        rest = after;
    }
    if micros {
        if !rest.starts_with(['.', ',']) || !digits(&rest[1..], 6) {
            return Err(Misfit::Part(rest, ".000000"));
        }
        rest = &rest[7..];
    } else if let Some(fraction) = rest.strip_prefix(['.', ',']).filter(|fraction| digits(fraction, 1)) {
        rest = fraction.trim_start_matches(|letter: char| letter.is_ascii_digit());
    }
    const ZONE: &str = "Z07:00";
    rest = match rest.strip_prefix('Z') {
        Some(after) => after,
        None => {
            let zone = rest.strip_prefix(['+', '-']).ok_or(Misfit::Part(rest, ZONE))?;
            let is_zone = digits(zone, 2) && zone[2..].starts_with(':') && digits(&zone[3..], 2);
            if !is_zone {
                return Err(Misfit::Part(rest, ZONE));
            }
            for (number, most, what) in
                [(&zone[..2], 24, "time zone offset hour"), (&zone[3..5], 60, "time zone offset minute")]
            {
                if number.parse().unwrap_or(u32::MAX) > most {
                    return Err(Misfit::Range(what));
                }
            }
            &zone[5..]
        }
    };
    if !rest.is_empty() {
        return Err(Misfit::Extra(rest));
    }
    let [year, month, day, ..] = numbers;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if day == 0 || day > days { Err(Misfit::Range("day")) } else { Ok(()) }
}

/// Parses Go's duration text (`1h30m`, `1.5s`, `0`) into nanoseconds.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let end = rest.bytes().position(|c| !c.is_ascii_digit() && c != b'.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest.bytes().position(|c| c.is_ascii_digit() || c == b'.').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number * unit;
        rest = &rest[end..];
    }
    if total > i64::MAX as f64 {
        return None;
    }
    Some(if negative { -(total as i64) } else { total as i64 })
}

/// Go's text of a duration in nanoseconds (`1h30m0s`).
pub fn format_duration(nanos: i64) -> String {
    if nanos == 0 {
        return "0s".into();
    }
    let sign = if nanos < 0 { "-" } else { "" };
    let n = nanos.unsigned_abs();
    let fraction = |value: u64, unit: u64, suffix: &str| {
        let (whole, rest) = (value / unit, value % unit);
        if rest == 0 {
            return format!("{whole}{suffix}");
        }
        let width = unit.ilog10() as usize;
        let digits = format!("{rest:0width$}");
        format!("{whole}.{}{suffix}", digits.trim_end_matches('0'))
    };
    if n < 1_000 {
        return format!("{sign}{n}ns");
    }
    if n < 1_000_000 {
        return format!("{sign}{}", fraction(n, 1_000, "µs"));
    }
    if n < 1_000_000_000 {
        return format!("{sign}{}", fraction(n, 1_000_000, "ms"));
    }
    let whole = n / 1_000_000_000;
    let (hours, minutes) = (whole / 3600, whole % 3600 / 60);
    let seconds = fraction(n - (hours * 3600 + minutes * 60) * 1_000_000_000, 1_000_000_000, "s");
    match (hours, minutes) {
        (0, 0) => format!("{sign}{seconds}"),
        (0, m) => format!("{sign}{m}m{seconds}"),
        (h, m) => format!("{sign}{h}h{m}m{seconds}"),
    }
}

/// kubectl's short age: `5s`, `3m20s`, `5h`, `2d3h`, `400d`, `3y20d`.
pub fn human_duration(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".into();
    }
    if seconds < 0 {
        return "0s".into();
    }
    let pair = |major: i64, unit: &str, minor: i64, small: &str| {
        if minor == 0 { format!("{major}{unit}") } else { format!("{major}{unit}{minor}{small}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    if seconds < 60 * 2 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 60 * 3 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        pair(days, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        pair(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_become_canonical() {
        assert_eq!(canonical_seconds("2024-05-01T12:00:00Z"), Ok(None));
        assert_eq!(
            canonical_seconds("2024-05-01T14:00:00.25+02:00"),
            Ok(Some("2024-05-01T12:00:00Z".into()))
        );
        assert_eq!(
            canonical_micros("2024-05-01T12:00:00.000001+01:00"),
            Ok(Some("2024-05-01T11:00:00.000001Z".into()))
        );
        assert_eq!(canonical_micros("0001-01-01T00:00:00.000000Z"), Ok(None));
        assert!(canonical_seconds("yesterday").is_err());
        assert!(canonical_seconds("2024-13-01T12:00:00Z").is_err());
    }

    /// As Go's `time.Parse` said of each.
    #[test]
    fn what_is_wrong_with_a_time_is_told_as_go_does() {
        let layout = r#" as "2006-01-02T15:04:05Z07:00": cannot parse"#;
        for (text, want) in [
            ("yesterday", format!(r#"{layout} "yesterday" as "2006""#)),
            ("2024-05-01", format!(r#"{layout} "" as "T""#)),
            ("2024-05-01t12:00:00Z", format!(r#"{layout} "t12:00:00Z" as "T""#)),
            ("2024-05-01T12:00:00", format!(r#"{layout} "" as "Z07:00""#)),
            ("2024-05-01T12:00:00z", format!(r#"{layout} "z" as "Z07:00""#)),
            ("2024-13-01T12:00:00Z", ": month out of range".to_owned()),
            ("2023-02-29T12:00:00Z", ": day out of range".to_owned()),
            ("2024-05-01T12:60:00Z", ": minute out of range".to_owned()),
            ("2024-05-01T12:00:00Zé", r#": extra text: "é""#.to_owned()),
            ("2024-05-01T12:00:00+25:00", ": time zone offset hour out of range".to_owned()),
        ] {
            assert_eq!(
                canonical_seconds(text),
                Err(format!("parsing time {}{want}", go_quote(text))),
                "{text}"
            );
        }
        let micros = r#" as "2006-01-02T15:04:05.000000Z07:00": cannot parse "Z" as ".000000""#;
        let refused = canonical_micros("2024-05-01T12:00:00Z");
        assert_eq!(refused, Err(format!("parsing time \"2024-05-01T12:00:00Z\"{micros}")));
    }

    #[test]
    fn durations_read_and_print_as_go_does() {
        for (text, nanos) in
            [("1h30m0s", 5_400_000_000_000), ("1.5s", 1_500_000_000), ("10ms", 10_000_000), ("0s", 0)]
        {
            assert_eq!(parse_duration(text), Some(nanos), "{text}");
            assert_eq!(format_duration(nanos), text);
        }
        assert_eq!(parse_duration("5"), None);
        let ages: Vec<String> =
            [5, 119, 120, 200, 3600, 5 * 3600, 50 * 3600, 10 * 86400].map(human_duration).into();
        assert_eq!(ages, ["5s", "119s", "2m", "3m20s", "60m", "5h", "2d2h", "10d"]);
    }
}
