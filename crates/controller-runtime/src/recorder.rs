//! Records events as upstream's components do: equal ones are counted, similar ones combined, floods cut off.
//!
//! What happens to an event is decided by [`Correlator`], a pure function of the events before it; one task per
//! process writes. Events are best effort: when the queue is full, or the server refuses twice, they are dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use client::{Client, Patch, resources};
use jiff::Timestamp;
use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::debug;

use crate::meta::time;
use crate::plan::{Event, Reference};
use crate::runtime::Clock;

const WAITING: usize = 1024;
const REMEMBERED: usize = 4096;
/// Events that differ only in their text are combined from this many within ten minutes.
const SIMILAR: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// An object's events of one source: 25 at once, then one in five minutes.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;

struct Item {
    client: Client,
    component: &'static str,
    host: Arc<str>,
    event: Event,
    field_path: String,
    doing: Doing,
    at: Timestamp,
}

/// What a component was about when something happened, and whom else it concerns.
#[derive(Clone, Debug, Default)]
pub struct Doing {
    pub action: &'static str,
    pub related: Option<Reference>,
}

/// Takes the events of one component. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    sender: mpsc::Sender<Item>,
    client: Client,
    component: &'static str,
    host: Arc<str>,
    clock: Clock,
}

impl Recorder {
    /// Starts the task that writes events, and returns the recorder of one component.
    pub fn start(client: Client, component: &'static str, clock: Clock, tasks: &Tasks) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Item>(WAITING);
        tasks.spawn("event-recorder", |stop| async move {
            let mut correlator = Correlator::default();
            while let Some(Some(item)) = stop.or(receiver.recv()).await {
                let Some(mut action) =
                    correlator.decide(item.component, &item.event, &item.field_path, item.at)
                else {
                    continue;
                };
                if !item.host.is_empty() {
                    action.object["source"]["host"] = json!(*item.host);
                    action.object["reportingInstance"] = json!(*item.host);
                }
                if !item.field_path.is_empty() {
                    action.object["involvedObject"]["fieldPath"] = json!(item.field_path);
                }
                if !item.doing.action.is_empty() {
                    action.object["action"] = json!(item.doing.action);
                }
                if let Some(related) = &item.doing.related {
                    action.object["related"] = related.to_value();
                }
                if let Err(error) = write(&item.client, &mut correlator, &action).await {
                    debug!(error = %telemetry::chain(&error), reason = item.event.reason, "event dropped");
                }
            }
        });
        Self { sender, client, component, host: "".into(), clock }
    }

    /// A recorder for another component, on the same task.
    pub fn of(&self, client: Client, component: &'static str) -> Self {
        Self {
            sender: self.sender.clone(),
            client,
            component,
            host: self.host.clone(),
            clock: self.clock.clone(),
        }
    }

    /// The same recorder, telling on which host the component runs.
    pub fn on_host(mut self, host: impl Into<Arc<str>>) -> Self {
        self.host = host.into();
        self
    }

    /// Records an event, soon.
    pub fn record(&self, event: Event) {
        self.send(event, String::new(), Doing::default());
    }

    /// Records an event with what the component was about.
    pub fn record_doing(&self, event: Event, doing: Doing) {
        self.send(event, String::new(), doing);
    }

    /// Records an event about a part of the object, such as one container of a pod.
    pub fn record_part(&self, event: Event, field_path: String) {
        self.send(event, field_path, Doing::default());
    }

    fn send(&self, event: Event, field_path: String, doing: Doing) {
        let item = Item {
            client: self.client.clone(),
            component: self.component,
            host: self.host.clone(),
            event,
            field_path,
            doing,
            at: (self.clock)(),
        };
        if self.sender.try_send(item).is_err() {
            debug!("event dropped: too many are waiting");
        }
    }
}

async fn write(client: &Client, correlator: &mut Correlator, action: &Action) -> Result<(), client::Error> {
    let namespace = action.object["metadata"]["namespace"].as_str().unwrap_or("default");
    let api = client.api(&resources::CORE_EVENTS).within(namespace);
    if let Some((name, patch)) = &action.patch {
        match api.patch::<serde::de::IgnoredAny>(name, Patch::Strategic(patch)).await {
            // Events expire; then this one begins anew.
            Err(error) if error.is_not_found() => correlator.restart(&action.identity),
            other => return other.map(drop),
        }
    }
    api.create::<serde::de::IgnoredAny>(&action.object).await.map(drop)
}

/// What to write for an event: a patch of an earlier one if there is one, else the object.
#[derive(Debug)]
struct Action {
    identity: Identity,
    patch: Option<(String, Value)>,
    object: Value,
}

/// What makes two events equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    group: Arc<Group>,
    message: Box<str>,
}

/// What makes two events similar.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Group {
    component: &'static str,
    kind: String,
    uid: Box<str>,
    name: String,
    field_path: Box<str>,
    warning: bool,
    reason: String,
}

struct Seen {
    name: String,
    count: u64,
    first: Timestamp,
}

struct Similar {
    messages: Vec<Box<str>>,
    last: Timestamp,
}

struct Bucket {
    tokens: f64,
    at: Timestamp,
}

/// An event as the API has it.
fn object(component: &str, event: &Event, seen: &Seen, message: &str, now: Timestamp) -> Value {
    let about = &event.about;
    let namespace = if about.key.namespace.is_empty() { "default" } else { &about.key.namespace };
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": seen.name, "namespace": namespace},
        "involvedObject": about.to_value(),
        "reason": event.reason,
        "message": message,
        "source": {"component": component},
        "firstTimestamp": time(seen.first),
        "lastTimestamp": time(now),
        "count": seen.count,
        "type": if event.warning { "Warning" } else { "Normal" },
        "eventTime": null,
        "reportingComponent": component,
        "reportingInstance": "",
    })
}

fn event_name(event: &Event, now: Timestamp) -> String {
    format!("{}.{:x}", event.about.key.name, now.as_nanosecond())
}

/// An event that happens once, for those who run before there is a recorder.
pub(crate) fn single(component: &str, event: &Event, now: Timestamp) -> Value {
    let seen = Seen { name: event_name(event, now), count: 1, first: now };
    object(component, event, &seen, &event.message, now)
}

/// Remembers enough of past events to count, combine and limit new ones.
#[derive(Default)]
struct Correlator {
    seen: HashMap<Identity, Seen>,
    order: VecDeque<Identity>,
    similar: HashMap<Arc<Group>, Similar>,
    buckets: HashMap<(&'static str, Box<str>), Bucket>,
}

impl Correlator {
    fn decide(
        &mut self,
        component: &'static str,
        event: &Event,
        field_path: &str,
        now: Timestamp,
    ) -> Option<Action> {
        let about = &event.about;
        let group = Arc::new(Group {
            component,
            kind: about.kind.clone(),
            uid: about.uid.clone(),
            name: about.key.to_string(),
            field_path: field_path.into(),
            warning: event.warning,
            reason: event.reason.clone(),
        });
        let (message, combined) = self.combine(&group, &event.message, now);
        if !self.take_token(component, &about.uid, now) {
            return None;
        }
        // Combined ones are one event, whatever they say last.
        let own = if combined { Box::default() } else { message.clone().into() };
        let identity = Identity { group, message: own };
        self.limit_memory();
        let order = &mut self.order;
        let seen = self.seen.entry(identity.clone()).or_insert_with(|| {
            order.push_back(identity.clone());
            Seen { name: event_name(event, now), count: 0, first: now }
        });
        seen.count += 1;
        let object = object(component, event, seen, &message, now);
        let patch = (seen.count > 1).then(|| {
            let change = json!({"count": seen.count, "lastTimestamp": time(now), "message": message});
            (seen.name.clone(), change)
        });
        Some(Action { identity, patch, object })
    }

    /// The text to use, and whether it is a common one because too many differ.
    fn combine(&mut self, group: &Arc<Group>, message: &str, now: Timestamp) -> (String, bool) {
        let similar =
            self.similar.entry(group.clone()).or_insert_with(|| Similar { messages: Vec::new(), last: now });
        if now.as_second() - similar.last.as_second() > SIMILAR_SECONDS {
            similar.messages.clear();
        }
        similar.last = now;
        if !similar.messages.iter().any(|known| **known == *message) {
            similar.messages.push(message.into());
        }
        if similar.messages.len() < SIMILAR {
            return (message.to_owned(), false);
        }
        similar.messages.truncate(SIMILAR);
        (format!("(combined from similar events): {message}"), true)
    }

    fn take_token(&mut self, component: &'static str, uid: &str, now: Timestamp) -> bool {
        let bucket = self.buckets.entry((component, uid.into())).or_insert(Bucket { tokens: BURST, at: now });
        let passed = (now.as_second() - bucket.at.as_second()).max(0) as f64;
        bucket.tokens = (bucket.tokens + passed / REFILL_SECONDS).min(BURST);
        bucket.at = now;
        if bucket.tokens < 1.0 {
            return false;
        }
        bucket.tokens -= 1.0;
        true
    }

    fn restart(&mut self, identity: &Identity) {
        self.seen.remove(identity);
    }

    /// Forgets the oldest; the smaller memories are dropped whole, which at worst lets a few more events through.
    fn limit_memory(&mut self) {
        while self.order.len() >= REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.seen.remove(&oldest);
            }
        }
        if self.similar.len() > REMEMBERED {
            self.similar.clear();
        }
        if self.buckets.len() > REMEMBERED {
            self.buckets.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Key;

    fn event(message: &str) -> Event {
        let about = Reference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            key: Key::new("n", "web"),
            uid: "u1".into(),
            revision: "5".into(),
        };
        Event { about, warning: true, reason: "FailedCreate".into(), message: message.into() }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn equal_events_are_counted_on_one_object() {
        let mut correlator = Correlator::default();
        let first = correlator.decide("rs", &event("no"), "", at(0)).unwrap();
        assert!(first.patch.is_none());
        let second = correlator.decide("rs", &event("no"), "", at(5)).unwrap();
        let (name, patch) = second.patch.unwrap();
        assert_eq!(name, first.object["metadata"]["name"]);
        assert_eq!(patch["count"], 2);
    }

    #[test]
    fn ten_similar_events_are_combined() {
        let mut correlator = Correlator::default();
        let all: Vec<Action> = (0..12)
            .map(|i| correlator.decide("rs", &event(&format!("no {i}")), "", at(i)).unwrap())
            .collect();
        assert_eq!(all[8].object["message"], "no 8");
        assert_eq!(all[9].object["message"], "(combined from similar events): no 9");
        let (name, patch) = all[11].patch.as_ref().unwrap();
        assert_eq!(all[9].object["metadata"]["name"], **name, "the combined ones are one event");
        assert_eq!(
            (&patch["count"], &patch["message"]),
            (&json!(3), &json!("(combined from similar events): no 11"))
        );
    }

    #[test]
    fn a_flood_is_cut_off_and_flows_again_later() {
        let mut correlator = Correlator::default();
        let passed = (0..100).filter(|_| correlator.decide("rs", &event("no"), "", at(0)).is_some()).count();
        assert_eq!(passed, 25);
        assert!(correlator.decide("rs", &event("no"), "", at(301)).is_some());
    }
}
