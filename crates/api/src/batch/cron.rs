//! The schedule language of CronJobs: five fields, or a descriptor.

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// What is wrong with a schedule, if anything.
pub fn problem(schedule: &str) -> Option<String> {
    let mut rest = schedule.trim();
    for prefix in ["TZ=", "CRON_TZ="] {
        if let Some(after) = rest.strip_prefix(prefix) {
            rest = after.split_once(' ').map_or("", |(_, rest)| rest.trim());
        }
    }
    if rest.is_empty() {
        return Some("empty spec string".into());
    }
    if let Some(descriptor) = rest.strip_prefix('@') {
        return match descriptor {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => None,
            _ => match descriptor.strip_prefix("every ") {
                Some(every) if apimachinery::time::parse_duration(every).is_some() => None,
                Some(_) => Some(format!("failed to parse duration {rest}: time: invalid duration")),
                None => Some(format!("unrecognized descriptor: {rest}")),
            },
        };
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != 5 {
        return Some(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    let bounds: [(u32, u32, &[&str]); 5] =
        [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, &MONTHS), (0, 6, &DAYS)];
    fields.iter().zip(bounds).find_map(|(field, (low, high, words))| field_problem(field, low, high, words))
}

fn field_problem(field: &str, low: u32, high: u32, words: &[&str]) -> Option<String> {
    field.split(',').find_map(|part| range_problem(part, low, high, words))
}

fn range_problem(part: &str, low: u32, high: u32, words: &[&str]) -> Option<String> {
    let number = |text: &str| -> Result<u32, String> {
        let lower = text.to_lowercase();
        if let Some(index) = words.iter().position(|word| *word == lower) {
            return Ok(index as u32 + low);
        }
        text.parse().map_err(|_| {
            format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
        })
    };
    let (range, step) = match part.split_once('/') {
        Some((_, step)) if step.contains('/') => return Some(format!("too many slashes: {part}")),
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    let (start, end) = match range {
        "*" | "?" => (low, high),
        _ => match range.split_once('-') {
            Some((_, end)) if end.contains('-') => return Some(format!("too many hyphens: {part}")),
            Some((start, end)) => match (number(start), number(end)) {
                (Ok(start), Ok(end)) => (start, end),
                (Err(text), _) | (_, Err(text)) => return Some(text),
            },
            None => match number(range) {
                Ok(only) => (only, if step.is_some() { high } else { only }),
                Err(text) => return Some(text),
            },
        },
    };
    match step.map(number) {
        Some(Err(text)) => return Some(text),
        Some(Ok(0)) => return Some(format!("step of range should be a positive number: {part}")),
        _ => {}
    }
    if start < low {
        return Some(format!("beginning of range ({start}) below minimum ({low}): {part}"));
    }
    if end > high {
        return Some(format!("end of range ({end}) above maximum ({high}): {part}"));
    }
    (start > end).then(|| format!("beginning of range ({start}) beyond end of range ({end}): {part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_judged_as_upstream_does() {
        for good in
            ["* * * * *", "*/5 0-6 1,15 jan-mar MON", "@hourly", "@every 1h30m", "0 0 * * 0", "? * * * *"]
        {
            assert_eq!(problem(good), None, "{good}");
        }
        for bad in [
            "",
            "* * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "*/0 * * * *",
            "a * * * *",
            "@never",
            "5-1 * * * *",
        ] {
            assert!(problem(bad).is_some(), "{bad}");
        }
    }
}
