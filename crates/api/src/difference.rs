//! What differs between two values, line by line, for messages that refuse a change.

use serde_json::Value;

/// Unchanged lines that are shown around a change.
const AROUND: usize = 3;

/// Values longer than this are compared from the first to the last line that differs, without looking for what stayed
/// in between.
const LONG: usize = 2000;

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
        out.push_str(&format!(
            "@@ -{},{} +{},{} @@\n",
            before(Side::Old) + 1,
            within(Side::Old),
            before(Side::New) + 1,
            within(Side::New)
        ));
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

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default().replace("  ", " ")
}

/// Old and new lines in one row, each with the side that it is on.
fn script<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Side, &'a str)> {
    let start = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let end =
        old[start..].iter().rev().zip(new[start..].iter().rev()).take_while(|(old, new)| old == new).count();
    let (left, right) = (&old[start..old.len() - end], &new[start..new.len() - end]);
    let mut out: Vec<(Side, &str)> = old[..start].iter().map(|line| (Side::Both, *line)).collect();
    if left.len() > LONG || right.len() > LONG {
        out.extend(left.iter().map(|line| (Side::Old, *line)));
        out.extend(right.iter().map(|line| (Side::New, *line)));
    } else {
        middle(left, right, &mut out);
    }
    out.extend(old[old.len() - end..].iter().map(|line| (Side::Both, *line)));
    out
}

/// The longest common row of lines, by the usual table.
fn middle<'a>(old: &[&'a str], new: &[&'a str], out: &mut Vec<(Side, &'a str)>) {
    let width = new.len() + 1;
    let mut common = vec![0_u16; (old.len() + 1) * width];
    for left in (0..old.len()).rev() {
        for right in (0..new.len()).rev() {
            common[left * width + right] = if old[left] == new[right] {
                common[(left + 1) * width + right + 1] + 1
            } else {
                common[(left + 1) * width + right].max(common[left * width + right + 1])
            };
        }
    }
    let (mut left, mut right) = (0, 0);
    while left < old.len() || right < new.len() {
        if left < old.len() && right < new.len() && old[left] == new[right] {
            out.push((Side::Both, old[left]));
            (left, right) = (left + 1, right + 1);
        } else if left < old.len()
            && (right == new.len() || common[(left + 1) * width + right] >= common[left * width + right + 1])
        {
            out.push((Side::Old, old[left]));
            left += 1;
        } else {
            out.push((Side::New, new[right]));
            right += 1;
        }
    }
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
