//! The projections that the controllers share: of each kind, only what some controller reads.
//!
//! One cache per kind serves them all, so a field is added here once and paid for by every cached object: keep them few.

mod apps;
mod batch;
mod core;
mod network;
mod pod;

pub use apps::*;
pub use batch::*;
pub use core::*;
pub use network::*;
pub use pod::*;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use controller_runtime::Labels;

/// Ties a projection to its kind. Options: `owned` files objects under their controller, `shrink` drops annotations
/// but those for which the function says yes, `index` adds lists.
macro_rules! kind {
    ($type:ident, $resource:ident $(, owned $owned:literal)? $(, keep $keep:expr)? $(, index $index:expr)?) => {
        impl client::Projection for $type {
            fn metadata(&self) -> &client::Metadata {
                self.metadata.base()
            }

            $(fn shrink(&mut self) {
                let keep: fn(&str) -> bool = $keep;
                self.metadata.keep_annotations(keep);
            })?

            #[allow(unused_variables)]
            fn indices(&self, add: &mut dyn FnMut(&'static str, &str)) {
                $(if $owned {
                    controller_runtime::index_by_controller(&self.metadata, add);
                })?
                $({
                    let index: fn(&$type, &mut dyn FnMut(&'static str, &str)) = $index;
                    index(self, add);
                })?
            }
        }

        impl controller_runtime::Kind for $type {
            const RESOURCE: client::Resource = client::resources::$resource;

            fn meta(&self) -> &controller_runtime::Meta {
                &self.metadata
            }
        }
    };
}
pub(crate) use kind;

/// Whether no annotation is kept: the answer of `kind!(…, keep none)`.
pub(crate) fn none(_: &str) -> bool {
    false
}

/// One entry of `status.conditions`, of whatever kind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// What is told.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
    /// The generation that was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The last update (deployments).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    /// The last probe (jobs, pods).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Timestamp>,
    /// The last heartbeat (nodes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Timestamp>,
    /// The last change of the status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// The reason word.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: Box<str>,
    /// The sentence.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub message: Box<str>,
}

impl Condition {
    /// A condition that changed at `now`.
    pub fn new(kind: &str, status: &str, reason: &str, message: impl Into<String>, now: Timestamp) -> Self {
        Self {
            kind: kind.into(),
            status: status.into(),
            last_transition_time: Some(whole_second(now)),
            reason: reason.into(),
            message: message.into().into(),
            ..Self::default()
        }
    }

    /// Whether it says yes.
    pub fn is_true(&self) -> bool {
        &*self.status == "True"
    }
}

/// Times in objects have no fraction; comparing with what was read needs the same.
pub fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Finds a condition.
pub fn condition<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| *condition.kind == *kind)
}

/// Puts a condition in. An unchanged status keeps its transition time; nothing changes at all if status, reason and
/// message are as they were.
pub fn set_condition(conditions: &mut Vec<Condition>, mut new: Condition) {
    match conditions.iter_mut().find(|old| old.kind == new.kind) {
        Some(old) => {
            let same = old.status == new.status && old.reason == new.reason && old.message == new.message;
            if same && old.observed_generation == new.observed_generation {
                return;
            }
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

/// Puts a condition in as the loops of workloads do: one whose status and reason stay is no news, whatever its text; news
/// go to the end of the list.
pub fn put_condition(conditions: &mut Vec<Condition>, mut new: Condition) {
    if let Some(at) = conditions.iter().position(|old| old.kind == new.kind) {
        if conditions[at].status == new.status && conditions[at].reason == new.reason {
            return;
        }
        let old = conditions.remove(at);
        if old.status == new.status {
            new.last_transition_time = old.last_transition_time;
        }
    }
    conditions.push(new);
}

/// Takes a condition out.
pub fn remove_condition(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|condition| *condition.kind != *kind);
}

/// A number or a percentage.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum IntOrString {
    /// A number.
    Int(i64),
    /// A percentage, or the name of a port.
    Text(Box<str>),
}

impl IntOrString {
    /// The number, or the share of `total`, rounded up or down.
    pub fn scaled(&self, total: i64, round_up: bool) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Text(text) => {
                let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
                let product = percent * total;
                Some(if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) })
            }
        }
    }
}

/// Labels as JSON.
pub fn labels_json(labels: &Labels) -> Value {
    Value::Object(labels.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        let quarter = IntOrString::Text("25%".into());
        assert_eq!((quarter.scaled(10, true), quarter.scaled(10, false)), (Some(3), Some(2)));
        assert_eq!(IntOrString::Int(4).scaled(10, true), Some(4));
        assert_eq!(IntOrString::Text("x".into()).scaled(10, true), None);
    }

    #[test]
    fn a_condition_keeps_its_transition_time_while_its_status_stays() {
        let (t1, t2) = (Timestamp::from_second(100).unwrap(), Timestamp::from_second(200).unwrap());
        let mut conditions = vec![Condition::new("Ready", "True", "A", "", t1)];
        set_condition(&mut conditions, Condition::new("Ready", "True", "B", "", t2));
        assert_eq!((&*conditions[0].reason, conditions[0].last_transition_time), ("B", Some(t1)));
        set_condition(&mut conditions, Condition::new("Ready", "False", "B", "", t2));
        assert_eq!(conditions[0].last_transition_time, Some(t2));
    }

    #[test]
    fn only_another_status_or_reason_is_news_of_a_workload() {
        let at = jiff::Timestamp::UNIX_EPOCH;
        let mut conditions =
            vec![Condition::new("A", "True", "R", "one", at), Condition::new("B", "True", "R", "", at)];
        put_condition(&mut conditions, Condition::new("A", "True", "R", "two", at));
        assert_eq!((&*conditions[0].kind, &*conditions[0].message), ("A", "one"));
        put_condition(&mut conditions, Condition::new("A", "False", "R", "three", at));
        assert_eq!((&*conditions[1].kind, &*conditions[1].message), ("A", "three"));
    }
}
