//! When a CronJob is due: the five fields of cron, the `@` words, in a time zone.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

/// Why a schedule cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ScheduleError {
    /// The words do not form a schedule.
    #[error("expected exactly 5 fields, found {0}")]
    Fields(usize),
    /// One field makes no sense.
    #[error("failed to parse {0:?}")]
    Field(String),
    /// The time zone is not known.
    #[error("unknown time zone {0}")]
    Zone(String),
}

/// A parsed schedule.
#[derive(Clone, Debug)]
pub struct Schedule {
    when: When,
    zone: TimeZone,
}

#[derive(Clone, Debug)]
enum When {
    Fields {
        minutes: u64,
        hours: u64,
        days: u64,
        months: u64,
        weekdays: u64,
        any_day: bool,
        any_weekday: bool,
    },
    Every(SignedDuration),
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// A schedule that does not come up in this many days never does.
const HORIZON: usize = 366 * 5;

impl Schedule {
    /// Reads a schedule. Without a zone it is in UTC, or in the one that a `TZ=` prefix names.
    pub fn new(text: &str, zone: Option<&str>) -> Result<Self, ScheduleError> {
        let (mut text, mut zone) = (text.trim(), zone);
        for prefix in ["TZ=", "CRON_TZ="] {
            if let Some((own, rest)) = text.strip_prefix(prefix).and_then(|rest| rest.split_once(' ')) {
                (text, zone) = (rest.trim(), zone.or(Some(own)));
            }
        }
        let zone = match zone {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| ScheduleError::Zone(name.to_owned()))?,
        };
        Ok(Self { when: When::parse(text)?, zone })
    }

    /// The first time after `after`.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let (minutes, hours, months) = match &self.when {
            When::Every(period) => {
                return Timestamp::from_second(after.as_second()).ok()?.checked_add(*period).ok();
            }
            When::Fields { minutes, hours, months, .. } => (*minutes, *hours, *months),
        };
        let start = after.to_zoned(self.zone.clone());
        let mut date = start.date();
        for _ in 0..HORIZON {
            if months & bit(date.month()) != 0 && self.when.has_day(date) {
                for hour in (0..24).filter(|hour| hours & bit(*hour) != 0) {
                    for minute in (0..60).filter(|minute| minutes & bit(*minute) != 0) {
                        let local = date.at(hour, minute, 0, 0);
                        if local < start.datetime()
                            && date == start.date()
                            && start.datetime().duration_since(local).as_secs() > 7200
                        {
                            continue;
                        }
                        let at = local.to_zoned(self.zone.clone()).ok()?.timestamp();
                        if at > after {
                            return Some(at);
                        }
                    }
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// The latest time in `(after, now]`, how many there were (counted only roughly when they are many), and the next one.
    pub fn latest(&self, after: Timestamp, now: Timestamp) -> Due {
        let mut due = Due { latest: None, missed: 0, next: self.next(after) };
        // Of a long pause only the last part is walked through.
        if let (Some(first), Some(second)) = (due.next, due.next.and_then(|first| self.next(first)))
            && second <= now
        {
            let period = (second.as_second() - first.as_second()).max(1);
            let skipped = ((now.as_second() - first.as_second()) / period - 2000).max(0);
            if skipped > 0 {
                let from = Timestamp::from_second(first.as_second() + skipped * period).unwrap_or(first);
                due = Due { latest: Some(first), missed: skipped, next: self.next(from) };
            }
        }
        while let Some(next) = due.next.filter(|next| *next <= now) {
            due.latest = Some(next);
            due.missed += 1;
            due.next = self.next(next);
        }
        due
    }

    /// The zone's rendering of a time.
    pub fn local(&self, at: Timestamp) -> String {
        let zoned = at.to_zoned(self.zone.clone());
        let text = zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
        text.strip_suffix("+00:00").map(|text| format!("{text}Z")).unwrap_or(text)
    }
}

/// See [`Schedule::latest`].
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// The latest time that has come.
    pub latest: Option<Timestamp>,
    /// How many times have come.
    pub missed: i64,
    /// The next time.
    pub next: Option<Timestamp>,
}

fn bit(number: i8) -> u64 {
    1 << number
}

impl When {
    fn parse(text: &str) -> Result<Self, ScheduleError> {
        let text = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(period) = text.strip_prefix("@every ") {
            let nanos = apimachinery::time::parse_duration(period.trim());
            let seconds = nanos.map(|nanos| nanos / 1_000_000_000).filter(|seconds| *seconds > 0);
            let seconds = seconds.ok_or_else(|| ScheduleError::Field(text.to_owned()))?;
            return Ok(Self::Every(SignedDuration::from_secs(seconds)));
        }
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(ScheduleError::Fields(fields.len()));
        };
        let is_any = |field: &str| field.starts_with('*') || field.starts_with('?');
        Ok(Self::Fields {
            minutes: parse_field(minute, 0, 59, &[])?,
            hours: parse_field(hour, 0, 23, &[])?,
            days: parse_field(day, 1, 31, &[])?,
            months: parse_field(month, 1, 12, &MONTHS)?,
            weekdays: parse_field(weekday, 0, 6, &DAYS)?,
            any_day: is_any(day),
            any_weekday: is_any(weekday),
        })
    }

    /// A day fits if both fields allow it, or, when both are restricted, if one does.
    fn has_day(&self, date: Date) -> bool {
        let Self::Fields { days, weekdays, any_day, any_weekday, .. } = self else { return false };
        let by_day = days & bit(date.day()) != 0;
        let weekday: Weekday = date.weekday();
        let by_weekday = weekdays & bit(weekday.to_sunday_zero_offset()) != 0;
        if *any_day || *any_weekday { by_day && by_weekday } else { by_day || by_weekday }
    }
}

/// One field as a set of bits: `*`, `?`, numbers, names, ranges, lists, each with an optional step.
fn parse_field(field: &str, least: i8, most: i8, names: &[&str]) -> Result<u64, ScheduleError> {
    let wrong = || ScheduleError::Field(field.to_owned());
    let number = |word: &str| -> Result<i8, ScheduleError> {
        let lower = word.to_ascii_lowercase();
        let named = names.iter().position(|name| *name == lower);
        let value = match named {
            Some(index) => i8::try_from(index).map_err(|_| wrong())? + least,
            None => word.parse().map_err(|_| wrong())?,
        };
        if (least..=most).contains(&value) { Ok(value) } else { Err(wrong()) }
    };
    let mut bits = 0;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range, Some(step.parse::<i8>().ok().filter(|step| *step > 0).ok_or_else(wrong)?))
            }
            None => (part, None),
        };
        let (first, last) = match (range, range.split_once('-')) {
            ("*" | "?", _) => (least, most),
            (_, Some((first, last))) => (number(first)?, number(last)?),
            (only, None) => {
                let first = number(only)?;
                // `5/15` means from five on.
                (first, if step.is_some() { most } else { first })
            }
        };
        if first > last {
            return Err(wrong());
        }
        let mut value = i16::from(first);
        while value <= i16::from(last) {
            bits |= 1_u64 << value;
            value += i16::from(step.unwrap_or(1));
        }
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(schedule: &str, zone: Option<&str>, after: &str) -> String {
        Schedule::new(schedule, zone)
            .unwrap()
            .next(after.parse().unwrap())
            .map_or("never".into(), |at| at.to_string())
    }

    #[test]
    fn schedules_come_up_when_cron_says() {
        let cases = [
            ("* * * * *", "2026-01-01T12:00:00Z", "2026-01-01T12:01:00Z"),
            ("*/15 * * * *", "2026-01-01T12:01:30Z", "2026-01-01T12:15:00Z"),
            ("5/15 * * * *", "2026-01-01T12:06:00Z", "2026-01-01T12:20:00Z"),
            ("0 0 * * *", "2026-01-01T12:00:00Z", "2026-01-02T00:00:00Z"),
            ("30 4 1,15 * 5", "2026-01-01T12:00:00Z", "2026-01-02T04:30:00Z"),
            ("0 0 * * MON", "2026-01-01T12:00:00Z", "2026-01-05T00:00:00Z"),
            ("0 0 29 2 *", "2026-01-01T12:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 31 FEB *", "2026-01-01T12:00:00Z", "never"),
            ("@hourly", "2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z"),
            ("@every 90s", "2026-01-01T12:00:00Z", "2026-01-01T12:01:30Z"),
        ];
        for (schedule, after, wanted) in cases {
            assert_eq!(next(schedule, None, after), wanted, "{schedule} after {after}");
        }
    }

    #[test]
    fn time_zones_count_and_so_does_summer_time() {
        assert_eq!(
            next("0 9 * * *", Some("America/New_York"), "2026-01-01T12:00:00Z"),
            "2026-01-01T14:00:00Z"
        );
        assert_eq!(
            next("0 9 * * *", Some("America/New_York"), "2026-07-01T12:00:00Z"),
            "2026-07-01T13:00:00Z"
        );
        assert_eq!(
            Schedule::new("* * * * *", Some("Moon/Base")).unwrap_err(),
            ScheduleError::Zone("Moon/Base".into())
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "* * * 13 *",
            "5-1 * * * *",
            "*/0 * * * *",
            "a b c d e",
        ] {
            assert!(Schedule::new(text, None).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_latest_missed_time_is_found_quickly_even_after_years() {
        let schedule = Schedule::new("* * * * *", None).unwrap();
        let due =
            schedule.latest("2020-01-01T00:00:00Z".parse().unwrap(), "2026-01-01T12:00:30Z".parse().unwrap());
        assert_eq!(due.latest.unwrap().to_string(), "2026-01-01T12:00:00Z");
        assert_eq!(due.next.unwrap().to_string(), "2026-01-01T12:01:00Z");
        assert!(due.missed > 100);
    }
}
