//! Time spans (`5min 20s`) and the calendar words of timers.

use std::time::Duration;

use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};

/// Reads a span: numbers with units, seconds if there is none. `infinity` is `None` inside.
pub fn span(text: &str) -> Option<Option<Duration>> {
    let text = text.trim();
    if text == "infinity" {
        return Some(None);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(rest.len());
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|char: char| !char.is_alphabetic()).unwrap_or(rest.len());
        let scale = match &rest[..letters] {
            "us" | "usec" | "µs" => 1e-6,
            "ms" | "msec" => 1e-3,
            "" | "s" | "sec" | "second" | "seconds" => 1.0,
            "m" | "min" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86400.0,
            "w" | "week" | "weeks" => 7.0 * 86400.0,
            "M" | "month" | "months" => 30.44 * 86400.0,
            "y" | "year" | "years" => 365.25 * 86400.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * scale).ok()?)?;
        rest = rest[letters..].trim_start();
    }
    Some(Some(total))
}

/// When a calendar timer elapses: the words that stand for whole expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Calendar {
    Minutely,
    Hourly,
    Daily,
    Weekly,
    Monthly,
    Yearly,
}

impl Calendar {
    /// The word's meaning; other expressions are not understood.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "minutely" => Self::Minutely,
            "hourly" => Self::Hourly,
            "daily" | "midnight" => Self::Daily,
            "weekly" => Self::Weekly,
            "monthly" => Self::Monthly,
            "yearly" | "annually" => Self::Yearly,
            _ => return None,
        })
    }

    /// The first moment after `now`, in UTC, which is the time of machines.
    pub fn next(self, now: Timestamp) -> Option<Timestamp> {
        let here: DateTime = TimeZone::UTC.to_datetime(now);
        let midnight = here.date().to_datetime(Time::midnight());
        let next = match self {
            Self::Minutely => {
                midnight.date().at(here.hour(), here.minute(), 0, 0).checked_add(1.minute()).ok()?
            }
            Self::Hourly => midnight.date().at(here.hour(), 0, 0, 0).checked_add(1.hour()).ok()?,
            Self::Daily => midnight.checked_add(1.day()).ok()?,
            Self::Weekly => {
                let days = 7 - i64::from(here.date().weekday().to_monday_zero_offset());
                midnight.checked_add(days.days()).ok()?
            }
            Self::Monthly => {
                here.date().first_of_month().to_datetime(Time::midnight()).checked_add(1.month()).ok()?
            }
            Self::Yearly => {
                here.date().first_of_year().to_datetime(Time::midnight()).checked_add(1.year()).ok()?
            }
        };
        TimeZone::UTC.to_timestamp(next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units_or_are_seconds() {
        assert_eq!(span("90"), Some(Some(Duration::from_secs(90))));
        assert_eq!(span("5min 20s"), Some(Some(Duration::from_secs(320))));
        assert_eq!(span("100ms"), Some(Some(Duration::from_millis(100))));
        assert_eq!(span("infinity"), Some(None));
        assert_eq!((span("5 parsecs"), span(""), span("-1")), (None, None, None));
    }

    #[test]
    fn calendar_words_end_at_the_next_boundary() {
        let now: Timestamp = "2024-02-28T23:59:30Z".parse().unwrap();
        let at = |calendar: Calendar| calendar.next(now).unwrap().to_string();
        assert_eq!(at(Calendar::Minutely), "2024-02-29T00:00:00Z");
        assert_eq!(at(Calendar::Hourly), "2024-02-29T00:00:00Z");
        assert_eq!(at(Calendar::Daily), "2024-02-29T00:00:00Z");
        assert_eq!(at(Calendar::Weekly), "2024-03-04T00:00:00Z");
        assert_eq!(at(Calendar::Monthly), "2024-03-01T00:00:00Z");
        assert_eq!(at(Calendar::Yearly), "2025-01-01T00:00:00Z");
        assert_eq!(Calendar::parse("Mon *-*-* 00:00"), None);
    }
}
