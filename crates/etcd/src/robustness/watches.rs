//! What watches promise, each as a rule over what one stream has brought and what really happened.
//!
//! The names are those of etcd's documentation: ordered, unique, atomic, reliable, resumable, bookmarkable; and that events are in the range that
//! was asked for and say rightly what was there before.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::robustness::model::{Pair, Span, Version};

/// One key's change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which key.
    pub key: Bytes,
    /// At which revision.
    pub revision: i64,
    /// Its new version; none if it was deleted.
    pub version: Option<Version>,
    /// What was there before.
    pub previous: Option<Version>,
}

/// One message of a watch.
#[derive(Clone, Debug)]
pub struct Response {
    /// When it came.
    pub at: u64,
    /// The store's revision, by the message's header.
    pub revision: i64,
    /// What it tells; none in a message about progress.
    pub events: Vec<Event>,
}

/// What one watch has brought, from one `start` on.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Who watched whom.
    pub label: String,
    /// What was watched.
    pub span: Span,
    /// From which revision on.
    pub start: i64,
    /// What came.
    pub responses: Vec<Response>,
}

impl Stream {
    fn events(&self) -> impl Iterator<Item = &Event> {
        self.responses.iter().flat_map(|response| &response.events)
    }

    /// The events, to be completed.
    pub fn events_mut(&mut self) -> impl Iterator<Item = &mut Event> {
        self.responses.iter_mut().flat_map(|response| &mut response.events)
    }

    /// Up to which revision everything must have come: the last event, or a later word about progress.
    pub fn reached(&self) -> i64 {
        let told = self
            .responses
            .iter()
            .map(|response| response.events.last().map_or(response.revision, |event| event.revision));
        told.max().unwrap_or(0).max(self.start - 1)
    }

    /// Takes what has come so far; the stream goes on after it.
    pub fn take(&mut self) -> Self {
        let taken = self.clone();
        self.start = self.reached() + 1;
        self.responses.clear();
        taken
    }
}

/// What was there before a change may be forgotten once it is compacted: who comes later is not told. Each of two views of one change gets what only
/// the other has.
pub fn complete(one: &mut Event, other: &mut Event) {
    if one.key == other.key {
        one.previous = one.previous.take().or_else(|| other.previous.clone());
        other.previous = other.previous.take().or_else(|| one.previous.clone());
    }
}

/// What really happened: every revision's changes.
pub type Truth = BTreeMap<i64, Vec<Event>>;

type Rule = fn(&Stream, &Truth) -> Option<String>;

/// All rules with their names.
pub const RULES: [(&str, Rule); 8] = [
    ("filtered", filtered),
    ("ordered", ordered),
    ("unique", unique),
    ("atomic", atomic),
    ("resumable", resumable),
    ("reliable", reliable),
    ("bookmarkable", bookmarkable),
    ("previous", previous),
];

/// Every rule that a stream breaks, with how.
pub fn broken(stream: &Stream, truth: &Truth) -> Vec<String> {
    RULES
        .iter()
        .filter_map(|(name, rule)| {
            rule(stream, truth).map(|how| format!("{}: not {name}: {how}", stream.label))
        })
        .collect()
}

/// Only what was asked for comes.
fn filtered(stream: &Stream, _: &Truth) -> Option<String> {
    let stray =
        stream.events().find(|event| !stream.span.has(&event.key) || event.revision < stream.start)?;
    Some(format!("{:?} at {} came to a watch from {}", stray.key, stray.revision, stream.start))
}

/// Revisions do not go back.
fn ordered(stream: &Stream, _: &Truth) -> Option<String> {
    let events: Vec<&Event> = stream.events().collect();
    let back = events.windows(2).find(|pair| pair[0].revision > pair[1].revision)?;
    Some(format!("{} came after {}", back[1].revision, back[0].revision))
}

/// Nothing comes twice.
fn unique(stream: &Stream, _: &Truth) -> Option<String> {
    let mut seen = std::collections::HashSet::new();
    let again = stream.events().find(|event| !seen.insert((event.key.clone(), event.revision)))?;
    Some(format!("{:?} at {} came twice", again.key, again.revision))
}

/// A revision comes in one message.
fn atomic(stream: &Stream, _: &Truth) -> Option<String> {
    let told: Vec<&Response> =
        stream.responses.iter().filter(|response| !response.events.is_empty()).collect();
    let split = told.windows(2).find(|pair| {
        pair[0].events.last().map(|event| event.revision)
            == pair[1].events.first().map(|event| event.revision)
    })?;
    Some(format!("{} came in two messages", split[1].events.first()?.revision))
}

/// What is in the watch's range between two revisions.
fn expected<'a>(stream: &'a Stream, truth: &'a Truth, upto: i64) -> impl Iterator<Item = &'a Event> {
    // An empty range where the end is before the start.
    truth
        .range(stream.start..=upto.max(stream.start - 1).max(stream.start))
        .filter(move |(revision, _)| **revision <= upto)
        .flat_map(|(_, events)| events)
        .filter(|event| stream.span.has(&event.key))
}

/// It begins with the first change from its start on.
fn resumable(stream: &Stream, truth: &Truth) -> Option<String> {
    let first = stream.events().next()?;
    let due = expected(stream, truth, i64::MAX - 1).next();
    match due {
        Some(due) if due.revision == first.revision => None,
        Some(due) => {
            Some(format!("from {} it begins with {}, not {}", stream.start, first.revision, due.revision))
        }
        None => Some(format!("{} never happened", first.revision)),
    }
}

/// Between the first and the last nothing is missing, and nothing else comes.
fn reliable(stream: &Stream, truth: &Truth) -> Option<String> {
    let last = stream.events().map(|event| event.revision).max()?;
    let sorted = |events: Vec<&Event>| {
        let mut found: Vec<(i64, Bytes, Option<Version>)> =
            events.iter().map(|event| (event.revision, event.key.clone(), event.version.clone())).collect();
        found.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        found
    };
    let (came, due) = (sorted(stream.events().collect()), sorted(expected(stream, truth, last).collect()));
    if came == due {
        return None;
    }
    let missing = due.iter().find(|event| !came.contains(event));
    let extra = came.iter().find(|event| !due.contains(event));
    Some(format!("missing {missing:?}, not what happened {extra:?}"))
}

/// Word of progress means that everything up to it has come.
fn bookmarkable(stream: &Stream, truth: &Truth) -> Option<String> {
    let mut told = stream.start - 1;
    let mut came = 0;
    for response in &stream.responses {
        if let Some(late) = response.events.iter().find(|event| event.revision <= told) {
            return Some(format!("{} came after word of {told}", late.revision));
        }
        came += response.events.len();
        if response.events.is_empty() {
            let due = expected(stream, truth, response.revision).count();
            if response.revision >= stream.start && came < due {
                return Some(format!("word of {} came after {came} of {due} events", response.revision));
            }
            told = told.max(response.revision);
        }
    }
    None
}

/// What was there before is told rightly, and what is new has its first version.
fn previous(stream: &Stream, truth: &Truth) -> Option<String> {
    let wrong = stream.events().find(|event| {
        let real =
            truth.get(&event.revision).and_then(|events| events.iter().find(|real| real.key == event.key));
        let before_is_right = real.is_none_or(|real| real.previous == event.previous);
        let counted = event.version.as_ref().is_none_or(|version| match &event.previous {
            None => version.version == 1 && version.created == event.revision,
            Some(before) => version.version == before.version + 1 && version.created == before.created,
        });
        !before_is_right || !counted
    })?;
    Some(format!("{:?} at {}: before it {:?}", wrong.key, wrong.revision, wrong.previous))
}

/// An event from the wire.
pub fn event(event: &crate::v3::messages::Event) -> Option<Event> {
    let (key, version): Pair = crate::robustness::model::pair(event.kv.as_ref()?);
    let previous = event.prev_kv.as_ref().map(|kv| crate::robustness::model::pair(kv).1);
    let revision = version.modified;
    Some(Event { key, revision, version: (event.kind == 0).then_some(version), previous })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(created: i64, modified: i64, version: i64) -> Version {
        Version { value: Bytes::from(modified.to_string()), created, modified, version, lease: 0 }
    }

    /// a is created, changed together with b, and deleted.
    fn truth() -> Truth {
        let event = |key: &'static str, revision, version, previous| Event {
            key: Bytes::from_static(key.as_bytes()),
            revision,
            version,
            previous,
        };
        let (a2, a3) = (version(2, 2, 1), version(2, 3, 2));
        Truth::from([
            (2, vec![event("a", 2, Some(a2.clone()), None)]),
            (3, vec![event("a", 3, Some(a3.clone()), Some(a2)), event("b", 3, Some(version(3, 3, 1)), None)]),
            (4, vec![event("a", 4, None, Some(a3))]),
            (5, vec![event("z", 5, Some(version(5, 5, 1)), None)]),
        ])
    }

    fn stream(start: i64, messages: &[&[i64]]) -> Stream {
        let truth = truth();
        let all = Span { key: Bytes::from_static(b"a"), end: Bytes::from_static(b"c") };
        let responses = messages
            .iter()
            .map(|revisions| Response {
                at: 0,
                revision: revisions.last().map_or(5, |revision| *revision),
                events: revisions
                    .iter()
                    .flat_map(|revision| truth[revision].clone())
                    .filter(|event| all.has(&event.key))
                    .collect(),
            })
            .collect();
        Stream { label: "w".to_owned(), span: all, start, responses }
    }

    fn names(stream: &Stream) -> Vec<String> {
        let name = |text: String| {
            text.split("not ").nth(1).and_then(|rest| rest.split(':').next()).map(str::to_owned)
        };
        broken(stream, &truth()).into_iter().filter_map(name).collect()
    }

    #[test]
    fn what_a_good_watch_brings_breaks_no_rule() {
        for good in [
            stream(1, &[&[2], &[3], &[4], &[]]),
            stream(1, &[&[2, 3, 4]]),
            stream(3, &[&[3], &[4], &[]]),
            stream(3, &[]),
            stream(1, &[&[2]]),
        ] {
            assert_eq!(names(&good), [""; 0], "{good:?}");
        }
    }

    #[test]
    fn every_rule_is_broken_by_what_it_forbids() {
        assert_eq!(names(&stream(1, &[&[3], &[2], &[4]])), ["ordered", "resumable"]);
        assert_eq!(names(&stream(1, &[&[2], &[3], &[3], &[4]])), ["unique", "atomic", "reliable"]);
        assert_eq!(names(&stream(1, &[&[2], &[4]])), ["reliable"]);
        assert_eq!(names(&stream(2, &[&[3], &[4]])), ["resumable", "reliable"]);
        assert_eq!(names(&stream(3, &[&[2], &[3]])), ["filtered", "resumable", "reliable", "bookmarkable"]);
        assert_eq!(names(&stream(1, &[&[2], &[], &[3], &[4]])), ["bookmarkable"]);
        let mut split = stream(1, &[&[2], &[3], &[4]]);
        let second = split.responses[1].events.split_off(1);
        split.responses.insert(2, Response { at: 0, revision: 3, events: second });
        assert_eq!(names(&split), ["atomic"]);
        let mut wrong = stream(1, &[&[2], &[3], &[4]]);
        wrong.responses[1].events[0].previous = None;
        assert_eq!(names(&wrong), ["previous"]);
        let mut invented = stream(1, &[&[2], &[3], &[4]]);
        invented.responses[2].events[0].key = Bytes::from_static(b"b");
        assert!(names(&invented).contains(&"reliable".to_owned()));
        let mut stray = stream(1, &[&[2]]);
        stray.responses[0].events[0].key = Bytes::from_static(b"z");
        assert!(names(&stray).contains(&"filtered".to_owned()));
    }
}
