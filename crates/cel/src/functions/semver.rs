//! Semantic versions.

use std::cmp::Ordering;

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{Opaque, Val};

/// A version: major, minor, patch, and what comes before a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Semver {
    numbers: [u64; 3],
    before: Vec<String>,
}

const PART: &[&str] = &["kubernetes.Semver.()->int"];

/// The functions; comparisons are in the table of quantities, which have the same names.
pub const TABLE: &[Entry] = &[
    ("semver", semver, &["(string)->kubernetes.Semver", "(string,bool)->kubernetes.Semver"]),
    ("isSemver", is_semver, &["(string)->bool", "(string,bool)->bool"]),
    ("major", major, PART),
    ("minor", minor, PART),
    ("patch", patch, PART),
];

impl Semver {
    /// Reads a version; a lenient reading drops a leading `v` and zeros, and adds missing numbers.
    pub fn parse(text: &str, lenient: bool) -> Option<Semver> {
        let text = if lenient { text.trim().strip_prefix('v').unwrap_or(text.trim()) } else { text };
        let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
        let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
        let word = |part: &str| {
            !part.is_empty() && part.bytes().all(|letter| letter.is_ascii_alphanumeric() || letter == b'-')
        };
        if build.is_some_and(|build| !build.split('.').all(word)) {
            return None;
        }
        let before: Vec<String> =
            before.into_iter().flat_map(|text| text.split('.')).map(str::to_owned).collect();
        let numeric = |part: &str| part.bytes().all(|digit| digit.is_ascii_digit());
        if !before
            .iter()
            .all(|part| word(part) && !(numeric(part) && part.len() > 1 && part.starts_with('0')))
        {
            return None;
        }
        let parts: Vec<&str> = core.split('.').collect();
        if parts.len() > 3 || !lenient && parts.len() != 3 {
            return None;
        }
        let mut numbers = [0; 3];
        for (slot, part) in numbers.iter_mut().zip(&parts) {
            let zeros = part.len() > 1 && part.starts_with('0') && !lenient;
            if part.is_empty() || !numeric(part) || zeros {
                return None;
            }
            *slot = part.parse().ok()?;
        }
        Some(Semver { numbers, before })
    }
}

impl PartialOrd for Semver {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Semver {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.before.is_empty(), other.before.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => {
                    let parts = self.before.iter().zip(&other.before).map(|(one, two)| {
                        match (one.parse::<u64>(), two.parse::<u64>()) {
                            (Ok(one), Ok(two)) => one.cmp(&two),
                            (Ok(_), Err(_)) => Ordering::Less,
                            (Err(_), Ok(_)) => Ordering::Greater,
                            _ => one.cmp(two),
                        }
                    });
                    let first = parts.into_iter().find(|order| order.is_ne());
                    first.unwrap_or(self.before.len().cmp(&other.before.len()))
                }
            }
        })
    }
}

fn read(args: &[Val<'_>]) -> Result<Option<Semver>, Error> {
    match args {
        [Val::Text(text)] => Ok(Semver::parse(text, false)),
        [Val::Text(text), Val::Bool(lenient)] => Ok(Semver::parse(text, *lenient)),
        _ => Err(Error::NoOverload),
    }
}

fn semver<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let version = read(args)?.ok_or_else(|| Error::invalid("invalid semantic version"))?;
    // A part may be one letter, and takes far more.
    run.allow(version.before.len().saturating_mul(2 * size_of::<String>()))?;
    Ok(Val::opaque(Opaque::Semver(version)))
}

fn is_semver<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(read(args)?.is_some()))
}

fn number<'a>(args: &[Val<'a>], index: usize) -> Outcome<'a> {
    match args {
        [Val::Opaque(opaque)] => match &**opaque {
            Opaque::Semver(version) => Ok(Val::Int(version.numbers[index] as i64)),
            _ => Err(Error::NoOverload),
        },
        _ => Err(Error::NoOverload),
    }
}

fn major<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    number(args, 0)
}

fn minor<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    number(args, 1)
}

fn patch<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    number(args, 2)
}
