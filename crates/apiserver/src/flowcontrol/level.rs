//! Priority levels: their seats, who sits and waits, and what is lent between them.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::Instant;

use serde_json::Value;
use tokio::sync::oneshot;

use super::demand::Demand;

/// A priority level and who is in it.
///
/// Its seats are its own; those that nobody sits on it lends, up to its lendable part, to levels that are full and may
/// borrow more. It never waits for what it lent: who borrowed finishes, while it sits down on its own seats.
pub struct Level {
    pub uid: String,
    pub exempt: bool,
    pub reject: bool,
    pub shares: i64,
    hand_size: usize,
    pub queue_length: usize,
    lendable_percent: usize,
    /// Percent of its own seats that it may borrow; none: as many as there are.
    borrowing_percent: Option<usize>,
    /// What others may read without the lock: seats of its own, and how many of them are taken.
    pub seats: AtomicUsize,
    used: AtomicUsize,
    pub waiting: AtomicUsize,
    state: Mutex<LevelState>,
}

#[derive(Default)]
pub struct LevelState {
    /// Seats taken, the borrowed ones included.
    pub taken: usize,
    borrowed: usize,
    /// Seats that those want who wait.
    pub wanted: usize,
    pub queues: Vec<VecDeque<(oneshot::Sender<Seat>, usize)>>,
    next: usize,
    demand: Demand,
}

impl Level {
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let exempt = spec["type"] == "Exempt";
        let limited = if exempt { &spec["exempt"] } else { &spec["limited"] };
        let queuing = &limited["limitResponse"]["queuing"];
        let number = |value: &Value, default: i64| value.as_i64().unwrap_or(default).max(1) as usize;
        let percent = |value: &Value| value.as_u64().map(|percent| percent as usize);
        let queues = number(&queuing["queues"], 64).min(4096);
        let mut state = LevelState::default();
        state.queues.resize_with(queues, VecDeque::new);
        let shares = if exempt { 0 } else { 30 };
        Self {
            uid: object["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            exempt,
            reject: limited["limitResponse"]["type"] != "Queue",
            shares: limited["nominalConcurrencyShares"].as_i64().unwrap_or(shares).max(0),
            hand_size: number(&queuing["handSize"], 8).min(queues),
            queue_length: number(&queuing["queueLengthLimit"], 50),
            lendable_percent: percent(&limited["lendablePercent"]).unwrap_or(0).min(100),
            borrowing_percent: percent(&limited["borrowingLimitPercent"]),
            seats: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, LevelState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The shortest of the queues that this flow may use.
    pub fn queue_of(&self, flow: &str, state: &LevelState) -> usize {
        (0..self.hand_size)
            .map(|card| {
                let mut hasher = DefaultHasher::new();
                (flow, card).hash(&mut hasher);
                (hasher.finish() % state.queues.len() as u64) as usize
            })
            .min_by_key(|queue| state.queues[*queue].len())
            .unwrap_or(0)
    }

    /// Seats that it could lend if it had nothing to do.
    fn most_lendable(&self) -> usize {
        (self.seats.load(Ordering::Relaxed) * self.lendable_percent).div_ceil(100)
    }

    /// Seats that it could lend now.
    fn lendable(&self) -> usize {
        let free = self.seats.load(Ordering::Relaxed).saturating_sub(self.used.load(Ordering::Relaxed));
        self.most_lendable().min(free)
    }

    /// How many seats it has now, and how many it wanted; `total` are those of all levels.
    pub fn figures(&self, total: usize) -> Figures {
        let seats = self.seats.load(Ordering::Relaxed);
        let mut state = self.lock();
        let borrowed = state.borrowed;
        Figures {
            nominal: seats,
            lower: seats - self.most_lendable(),
            upper: seats + self.borrowing_limit().min(total),
            current: seats + borrowed,
            demand: state.demand.look(Instant::now(), seats).clone(),
        }
    }

    /// Notes how many seats are taken or wanted from now on.
    pub fn note(&self, state: &mut LevelState) {
        let seats = self.seats.load(Ordering::Relaxed);
        let (taken, wanted) = (state.taken, state.taken + state.wanted);
        state.demand.set(Instant::now(), seats, taken, wanted);
    }

    /// The most seats that it may have borrowed at a time.
    fn borrowing_limit(&self) -> usize {
        let seats = self.seats.load(Ordering::Relaxed);
        self.borrowing_percent.map_or(usize::MAX, |percent| (seats * percent).div_ceil(100))
    }
}

/// What a level has and wants.
#[allow(missing_docs, reason = "the numbers are explained where they are shown")]
pub struct Figures {
    pub nominal: usize,
    pub lower: usize,
    pub upper: usize,
    pub current: usize,
    pub demand: Demand,
}

/// Seats that are lent across levels.
#[derive(Default)]
pub struct Pool {
    pub levels: RwLock<HashMap<String, Arc<Level>>>,
    lent: Mutex<usize>,
}

impl Pool {
    pub fn lent(&self) -> MutexGuard<'_, usize> {
        self.lent.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn all(&self) -> RwLockReadGuard<'_, HashMap<String, Arc<Level>>> {
        self.levels.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes seats for a request if there are any: the level's own, or borrowed ones.
    pub fn take(self: &Arc<Self>, level: &Arc<Level>, state: &mut LevelState, width: usize) -> Option<Seat> {
        let own = state.taken - state.borrowed;
        // Who is exempt needs no seat, but is counted. A request that is wider than the level may run alone.
        let borrowed = if level.exempt || own == 0 || own + width <= level.seats.load(Ordering::Relaxed) {
            false
        } else if state.borrowed + width <= level.borrowing_limit() && self.borrow(level, width) {
            true
        } else {
            return None;
        };
        state.taken += width;
        if borrowed {
            state.borrowed += width;
        }
        level.used.store(state.taken - state.borrowed, Ordering::Relaxed);
        level.note(state);
        Some(Seat { held: Some(Held { level: level.clone(), pool: self.clone(), width, borrowed }) })
    }

    fn borrow(&self, level: &Arc<Level>, width: usize) -> bool {
        let mut lent = self.lent();
        let levels = self.all();
        let others = levels.values().filter(|other| !Arc::ptr_eq(other, level));
        let spare = others.map(|other| other.lendable()).sum::<usize>();
        if spare < *lent + width {
            return false;
        }
        *lent += width;
        true
    }

    /// Gives seats back that no one sits on any more.
    fn give_back(&self, held: &Held, state: &mut LevelState) {
        state.taken -= held.width;
        if held.borrowed {
            state.borrowed -= held.width;
            *self.lent() -= held.width;
        }
        held.level.used.store(state.taken - state.borrowed, Ordering::Relaxed);
        held.level.note(state);
    }

    /// Lets in who waits, queue after queue, as long as there are seats.
    pub fn dispatch(self: &Arc<Self>, level: &Arc<Level>, state: &mut LevelState) {
        while level.waiting.load(Ordering::Relaxed) > 0 {
            let count = state.queues.len();
            let Some(queue) =
                (0..count).map(|step| (state.next + step) % count).find(|at| !state.queues[*at].is_empty())
            else {
                return;
            };
            let Some((waiter, width)) = state.queues[queue].front() else { return };
            let (gone, width) = (waiter.is_closed(), *width); // gave up while waiting
            state.wanted -= width;
            let seat = if gone { None } else { self.take(level, state, width) };
            if !gone && seat.is_none() {
                state.wanted += width;
                return;
            }
            state.next = (queue + 1) % count;
            let Some((waiter, _)) = state.queues[queue].pop_front() else { return };
            level.waiting.fetch_sub(1, Ordering::Relaxed);
            if gone {
                level.note(state);
            }
            if let Some(seat) = seat
                && let Err(mut seat) = waiter.send(seat)
                && let Some(held) = seat.held.take()
            {
                // It gave up in this instant; the seat goes back without asking for the lock that is held.
                self.give_back(&held, state);
            }
        }
    }
}

struct Held {
    level: Arc<Level>,
    pool: Arc<Pool>,
    width: usize,
    borrowed: bool,
}

/// The right to run. Dropping it lets the next one in.
pub struct Seat {
    held: Option<Held>,
}

impl Seat {
    /// One of no level.
    pub(super) fn nowhere() -> Self {
        Self { held: None }
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Seat")
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let pool = held.pool.clone();
        {
            let mut state = held.level.lock();
            pool.give_back(&held, &mut state);
            pool.dispatch(&held.level, &mut state);
        }
        if held.level.exempt {
            return; // nobody borrows from it
        }
        // What is free now may be borrowed by a level where somebody waits.
        let waiting: Vec<Arc<Level>> = {
            let levels = pool.all();
            levels.values().filter(|one| one.waiting.load(Ordering::Relaxed) > 0).cloned().collect()
        };
        for level in waiting.iter().filter(|one| !Arc::ptr_eq(one, &held.level)) {
            pool.dispatch(level, &mut level.lock());
        }
    }
}
