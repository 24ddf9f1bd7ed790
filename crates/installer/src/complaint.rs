//! What a line of a log complains about. Pure.

/// The complaint without time, level and place; nothing if the line does not complain.
pub fn of_line(line: &str) -> Option<&str> {
    let line = line.trim();
    if let Some(text) = line.strip_prefix("error: ") {
        return Some(text);
    }
    // TIME LEVEL target: text
    let (_, rest) = line.split_once(' ')?;
    let rest = rest.trim_start();
    let rest = rest.strip_prefix("WARN ").or_else(|| rest.strip_prefix("ERROR "))?;
    Some(rest.split_once(": ").map_or(rest, |(_, text)| text))
}

/// The last complaint of a container's log, whose lines begin with time, stream and tag.
pub fn of_container(log: &str) -> Option<&str> {
    log.lines().rev().find_map(|line| of_line(line.splitn(4, ' ').nth(3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_from_other_lines() {
        let line =
            "2026-11-18T06:56:57Z  WARN kubelet::certificates: no client certificate yet error=no such name";
        assert_eq!(of_line(line), Some("no client certificate yet error=no such name"));
        assert_eq!(of_line("error: no space left on device"), Some("no space left on device"));
        assert_eq!(of_line("2026-11-18T06:56:57Z  INFO kubelet: WARN is a word"), None);
        assert_eq!(of_line(""), None);
        let log = "2026-11-18T06:00:00Z stderr F error: one\n2026-11-18T06:00:01Z stderr F error: two\n2026-11-18T06:00:02Z stdout F fine\n";
        assert_eq!(of_container(log), Some("two"));
    }
}
