//! What differs between two values, line by line, for messages that refuse a change.
//!
//! Clients compare these messages, so the lines are paired the way upstream's library pairs them: the longest block that
//! both sides have, then the same on either side of it.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Value, ser};

/// Unchanged lines that are shown around a change.
const AROUND: usize = 3;

/// Values longer than this are compared from the first to the last line that differs, without looking for what stayed
/// in between.
const LONG: usize = 2000;

/// From this many lines on, a line that is repeated often (one in a hundred) does not begin a block.
const MANY: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Both,
    Old,
    New,
}

/// The difference in the form of `diff -u`, empty when there is none.
pub fn lines(old: &Value, new: &Value) -> String {
    let (old, new) = (pretty(old), pretty(new));
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let script = script(&old, &new);
    let changed: Vec<usize> = (0..script.len()).filter(|at| script[*at].0 != Side::Both).collect();
    let mut out = String::new();
    let mut rest = changed.as_slice();
    while let Some(first) = rest.first() {
        // Changes that are near each other are told together.
        let count = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] <= 2 * AROUND + 1).count();
        let from = first.saturating_sub(AROUND);
        let to = (rest[count - 1] + AROUND + 1).min(script.len());
        rest = &rest[count..];
        let before = |wanted: Side| {
            script[..from].iter().filter(|(side, _)| *side == Side::Both || *side == wanted).count()
        };
        let within = |wanted: Side| {
            script[from..to].iter().filter(|(side, _)| *side == Side::Both || *side == wanted).count()
        };
        let range = |side: Side| match (before(side), within(side)) {
            (before, 1) => format!("{}", before + 1),
            (before, 0) => format!("{before},0"),
            (before, count) => format!("{},{count}", before + 1),
        };
        out.push_str(&format!("@@ -{} +{} @@\n", range(Side::Old), range(Side::New)));
        for (side, line) in &script[from..to] {
            out.push(match side {
                Side::Both => ' ',
                Side::Old => '-',
                Side::New => '+',
            });
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// JSON with one space per level, and with the letters escaped that Go escapes.
fn pretty(value: &Value) -> String {
    let mut out = Vec::new();
    let mut writer = ser::Serializer::with_formatter(&mut out, ser::PrettyFormatter::with_indent(b" "));
    if value.serialize(&mut writer).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&out);
    text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Old and new lines in one row, each with the side that it is on.
fn script<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Side, &'a str)> {
    let mut out: Vec<(Side, &str)> = Vec::new();
    let (mut left, mut right) = (0, 0);
    for (at_old, at_new, size) in blocks(old, new) {
        out.extend(old[left..at_old].iter().map(|line| (Side::Old, *line)));
        out.extend(new[right..at_new].iter().map(|line| (Side::New, *line)));
        out.extend(old[at_old..at_old + size].iter().map(|line| (Side::Both, *line)));
        (left, right) = (at_old + size, at_new + size);
    }
    out
}

/// What both have, as places in the old and the new lines and a length; the last one is empty and at the ends.
fn blocks(old: &[&str], new: &[&str]) -> Vec<(usize, usize, usize)> {
    let ends = (old.len(), new.len(), 0);
    if old.len() > LONG || new.len() > LONG {
        let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
        let rest = old[start..].iter().rev().zip(new[start..].iter().rev());
        let end = rest.take_while(|(old, new)| old == new).count();
        return vec![(0, 0, start), (old.len() - end, new.len() - end, end), ends];
    }
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in new.iter().enumerate() {
        places.entry(*line).or_default().push(at);
    }
    if new.len() >= MANY {
        places.retain(|_, places| places.len() <= new.len() / 100 + 1);
    }
    let mut found = Vec::new();
    let mut open = vec![(0, old.len(), 0, new.len())];
    while let Some((left, left_end, right, right_end)) = open.pop() {
        let (at_old, at_new, size) = longest(old, new, &places, (left, left_end, right, right_end));
        if size > 0 {
            found.push((at_old, at_new, size));
            open.push((left, at_old, right, at_new));
            open.push((at_old + size, left_end, at_new + size, right_end));
        }
    }
    found.sort_unstable();
    found.push(ends);
    found
}

/// The longest block within bounds, of several the first.
fn longest(
    old: &[&str],
    new: &[&str],
    places: &HashMap<&str, Vec<usize>>,
    (left, left_end, right, right_end): (usize, usize, usize, usize),
) -> (usize, usize, usize) {
    let (mut at_old, mut at_new, mut size) = (left, right, 0);
    // How long the block is that ends at a place of the new lines and at the old line before this one.
    let mut lengths: HashMap<usize, usize> = HashMap::new();
    for (at, line) in old.iter().enumerate().take(left_end).skip(left) {
        let mut next = HashMap::new();
        for place in places.get(line).into_iter().flatten().filter(|at| (right..right_end).contains(*at)) {
            let length = 1 + place.checked_sub(1).and_then(|before| lengths.get(&before)).unwrap_or(&0);
            next.insert(*place, length);
            if length > size {
                (at_old, at_new, size) = (at + 1 - length, place + 1 - length, length);
            }
        }
        lengths = next;
    }
    // Lines that are too frequent to begin a block may still be at its edges.
    while at_old > left && at_new > right && old[at_old - 1] == new[at_new - 1] {
        (at_old, at_new, size) = (at_old - 1, at_new - 1, size + 1);
    }
    while at_old + size < left_end && at_new + size < right_end && old[at_old + size] == new[at_new + size] {
        size += 1;
    }
    (at_old, at_new, size)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_told_with_its_surroundings() {
        let old = json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7});
        let new = json!({"a": 1, "b": 2, "c": 3, "d": 9, "e": 5, "f": 6, "g": 7});
        let told = lines(&old, &new);
        assert_eq!(
            told,
            "@@ -2,7 +2,7 @@\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3,\n- \"d\": 4,\n+ \"d\": 9,\n  \"e\": 5,\n  \"f\": 6,\n  \"g\": 7\n"
        );
        assert_eq!(lines(&old, &old), "");
    }

    #[test]
    fn text_is_shown_as_go_writes_it() {
        let told = lines(&json!("a  <b>"), &json!("a  <c>"));
        assert_eq!(told, "@@ -1 +1 @@\n-\"a  \\u003cb\\u003e\"\n+\"a  \\u003cc\\u003e\"\n");
    }

    #[test]
    fn the_longest_block_is_kept_and_not_the_most_lines() {
        let (old, new) = (["a", "b"], ["a", "c", "a", "b"]);
        assert_eq!(blocks(&old, &new), [(0, 2, 2), (2, 4, 0)]);
        // What is frequent among many lines belongs to a block that something rare begins.
        let (mut old, mut new) = (vec!["x"; 300], vec!["x"; 300]);
        assert_eq!(blocks(&old, &new), [(0, 0, 300), (300, 300, 0)]);
        (old[10], new[20]) = ("rare", "rare");
        assert_eq!(blocks(&old, &new), [(0, 10, 290), (300, 300, 0)]);
    }

    #[test]
    fn what_is_only_on_one_side_has_its_sign() {
        let told = lines(&json!([1, 2]), &json!([2, 3]));
        assert!(told.contains("\n- 1,\n") && told.contains("\n+ 3\n"), "{told}");
    }

    #[test]
    fn changes_far_apart_are_told_apart() {
        let old: Vec<u32> = (0..40).collect();
        let mut new = old.clone();
        new[1] = 100;
        new[35] = 200;
        assert_eq!(lines(&json!(old), &json!(new)).matches("@@ -").count(), 2);
    }
}
