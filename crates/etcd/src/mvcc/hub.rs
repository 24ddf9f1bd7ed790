//! Hands published changes to the watches.
//!
//! A watch is either *attached* (it gets every batch pushed, as one shared allocation for all watches of the same
//! range) or it reads history at its own pace. When an attached watch's queue is full it is detached, so a slow
//! reader costs a bounded queue and nothing else; once it has drained its queue it reads history from where it
//! was and attaches again. Attaching happens under the same lock as dispatching, so there is neither a gap nor a
//! duplicate between the two.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::mvcc::range::KeyRange;
use crate::store::{Event, Revision};

/// Changes of whole revisions, shared by all watches of one range.
#[derive(Debug)]
pub struct Batch {
    /// The changes, in order; never empty.
    pub events: Vec<Event>,
    /// Every event up to this revision is in this batch or an earlier one.
    pub revision: Revision,
    /// The events in wire form, made by the first watch that needs it: with and without previous values.
    pub encoded: [OnceLock<Bytes>; 2],
}

impl Batch {
    /// A batch whose wire form is not made yet.
    pub fn new(events: Vec<Event>, revision: Revision) -> Self {
        Self { events, revision, encoded: Default::default() }
    }
}

/// What an attached watch is given.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// Changes.
    Events(Arc<Batch>),
    /// Everything up to this revision has been delivered.
    Progress(Revision),
}

/// Identifies an attached watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberId(u64);

/// Where an attached watch's deliveries go: the tag tells apart the watches that share one queue.
pub type Sender = mpsc::Sender<(i64, Delivery)>;

#[derive(Debug)]
struct Member {
    id: MemberId,
    tag: i64,
    sender: Sender,
    lost: Arc<AtomicBool>,
}

impl Member {
    /// Whether the watch stays attached.
    fn deliver(&self, delivery: Delivery) -> bool {
        match self.sender.try_send((self.tag, delivery)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Closed(_)) => {
                self.lost.store(true, Ordering::Release);
                false
            }
        }
    }
}

#[derive(Debug, Default)]
struct Group {
    members: Vec<Member>,
}

/// The attached watches.
#[derive(Debug, Default)]
pub struct Hub {
    dispatched: Revision,
    single: HashMap<Bytes, Group>,
    spans: Vec<(KeyRange, Group)>,
    next_id: u64,
}

impl Hub {
    /// A hub that will dispatch from the revision after this one.
    pub fn new(dispatched: Revision) -> Self {
        Self { dispatched, ..Self::default() }
    }

    /// The newest revision handed to the watches.
    pub fn dispatched(&self) -> Revision {
        self.dispatched
    }

    /// How many watches are attached.
    pub fn attached(&self) -> usize {
        self.single.values().map(|group| group.members.len()).sum::<usize>()
            + self.spans.iter().map(|(_, group)| group.members.len()).sum::<usize>()
    }

    /// Attaches a watch: it gets everything after [`Hub::dispatched`]. `lost` is set when it is detached because its
    /// queue is full.
    pub fn attach(&mut self, range: &KeyRange, tag: i64, sender: Sender, lost: Arc<AtomicBool>) -> MemberId {
        self.next_id += 1;
        let id = MemberId(self.next_id);
        let member = Member { id, tag, sender, lost };
        match range {
            KeyRange::One(key) => self.single.entry(key.clone()).or_default().members.push(member),
            _ => match self.spans.iter_mut().find(|(known, _)| known == range) {
                Some((_, group)) => group.members.push(member),
                None => self.spans.push((range.clone(), Group { members: vec![member] })),
            },
        }
        id
    }

    /// Whether a watch is attached.
    pub fn is_attached(&self, range: &KeyRange, id: MemberId) -> bool {
        let group = match range {
            KeyRange::One(key) => self.single.get(key),
            _ => self.spans.iter().find(|(known, _)| known == range).map(|(_, group)| group),
        };
        group.is_some_and(|group| group.members.iter().any(|member| member.id == id))
    }

    /// Detaches a watch; one that is not attached is ignored.
    pub fn detach(&mut self, range: &KeyRange, id: MemberId) {
        if let Some(group) = self.group(range) {
            group.members.retain(|member| member.id != id);
        }
        self.drop_empty();
    }

    /// Tells an attached watch how far it is. Returns whether it was told.
    pub fn tell_progress(&mut self, range: &KeyRange, id: MemberId) -> bool {
        let progress = Delivery::Progress(self.dispatched);
        let Some(group) = self.group(range) else { return false };
        let Some(index) = group.members.iter().position(|member| member.id == id) else { return false };
        if group.members[index].deliver(progress) {
            return true;
        }
        group.members.swap_remove(index);
        false
    }

    /// Hands out the events of all revisions up to `revision`.
    pub fn dispatch(&mut self, events: impl Iterator<Item = Event>, revision: Revision) {
        self.dispatched = self.dispatched.max(revision);
        if self.spans.is_empty() && self.single.is_empty() {
            return;
        }
        let mut for_spans: Vec<Vec<Event>> = vec![Vec::new(); self.spans.len()];
        let mut for_keys: HashMap<Bytes, Vec<Event>> = HashMap::new();
        for event in events {
            if self.single.contains_key(&event.kv.key) {
                for_keys.entry(event.kv.key.clone()).or_default().push(event.clone());
            }
            for ((range, _), chosen) in self.spans.iter().zip(&mut for_spans) {
                if range.contains(&event.kv.key) {
                    chosen.push(event.clone());
                }
            }
        }
        let mut lost = false;
        let mut deliver = |group: &mut Group, events: Vec<Event>| {
            let batch = Arc::new(Batch::new(events, revision));
            group.members.retain(|member| member.deliver(Delivery::Events(batch.clone())));
            lost |= group.members.is_empty();
        };
        for ((_, group), events) in self.spans.iter_mut().zip(for_spans) {
            if !events.is_empty() {
                deliver(group, events);
            }
        }
        for (key, events) in for_keys {
            if let Some(group) = self.single.get_mut(&key) {
                deliver(group, events);
            }
        }
        if lost {
            self.drop_empty();
        }
    }

    /// Ends all attached watches.
    pub fn close(&mut self) {
        self.single.clear();
        self.spans.clear();
    }

    fn group(&mut self, range: &KeyRange) -> Option<&mut Group> {
        match range {
            KeyRange::One(key) => self.single.get_mut(key),
            _ => self.spans.iter_mut().find(|(known, _)| known == range).map(|(_, group)| group),
        }
    }

    fn drop_empty(&mut self) {
        self.single.retain(|_, group| !group.members.is_empty());
        self.spans.retain(|(_, group)| !group.members.is_empty());
    }
}
