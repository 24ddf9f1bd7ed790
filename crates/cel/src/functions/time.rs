//! Parts of moments and spans. Zones are UTC, `Z`, or an offset such as `+02:00`.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::Val;

const OF_MOMENT: &[&str] = &["timestamp.()->int", "timestamp.(string)->int"];
const OF_BOTH: &[&str] = &["timestamp.()->int", "timestamp.(string)->int", "duration.()->int"];

/// The functions.
pub const TABLE: &[Entry] = &[
    ("getFullYear", year, OF_MOMENT),
    ("getMonth", month, OF_MOMENT),
    ("getDayOfYear", day_of_year, OF_MOMENT),
    ("getDayOfMonth", day_of_month, OF_MOMENT),
    ("getDate", date, OF_MOMENT),
    ("getDayOfWeek", day_of_week, OF_MOMENT),
    ("getHours", hours, OF_BOTH),
    ("getMinutes", minutes, OF_BOTH),
    ("getSeconds", seconds, OF_BOTH),
    ("getMilliseconds", milliseconds, OF_BOTH),
];

fn zone(name: &str) -> Result<TimeZone, Error> {
    let bad = || Error::invalid(format!("unknown time zone {name}"));
    if matches!(name, "" | "UTC" | "Z" | "GMT") {
        return Ok(TimeZone::UTC);
    }
    let (sign, rest) = match name.as_bytes()[0] {
        b'-' => (-1, &name[1..]),
        b'+' => (1, &name[1..]),
        _ => (1, name),
    };
    let (hours, minutes) = rest.split_once(':').ok_or_else(bad)?;
    let part = |text: &str| text.parse::<i32>().map_err(|_| bad());
    let seconds = sign * (part(hours)? * 3600 + part(minutes)? * 60);
    Offset::from_seconds(seconds).map(TimeZone::fixed).map_err(|_| bad())
}

fn part<'a>(args: &[Val<'a>], read: impl Fn(&jiff::Zoned) -> i64) -> Outcome<'a> {
    let (at, name): (&Timestamp, &str) = match args {
        [Val::Timestamp(at)] => (at, ""),
        [Val::Timestamp(at), Val::Text(name)] => (at, name),
        _ => return Err(Error::NoOverload),
    };
    Ok(Val::Int(read(&at.to_zoned(zone(name)?))))
}

fn either<'a>(args: &[Val<'a>], nanos: i64, wrap: bool, read: impl Fn(&jiff::Zoned) -> i64) -> Outcome<'a> {
    match args {
        [Val::Duration(span)] if wrap => Ok(Val::Int(span / nanos % 1000)),
        [Val::Duration(span)] => Ok(Val::Int(span / nanos)),
        _ => part(args, read),
    }
}

fn year<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.year()))
}

fn month<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.month()) - 1)
}

fn day_of_year<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.day_of_year()) - 1)
}

fn day_of_month<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.day()) - 1)
}

fn date<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.day()))
}

fn day_of_week<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(args, |at| i64::from(at.weekday().to_sunday_zero_offset()))
}

fn hours<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    either(args, 3_600_000_000_000, false, |at| i64::from(at.hour()))
}

fn minutes<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    either(args, 60_000_000_000, false, |at| i64::from(at.minute()))
}

fn seconds<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    either(args, 1_000_000_000, false, |at| i64::from(at.second()))
}

fn milliseconds<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    either(args, 1_000_000, true, |at| i64::from(at.millisecond()))
}
