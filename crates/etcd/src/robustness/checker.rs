//! Whether a concurrent history could have happened one call after the other.
//!
//! Wing and Gong's search with Lowe's memory of what was tried: take any call that may come next (no call that has ended before it began is still
//! open), let the model say whether its answer can be right, go on, and go back when nothing fits. Calls with an unknown answer never end; those
//! that may not have happened at all need no place.

use std::collections::HashSet;
use std::hash::Hash;

/// What is checked against.
pub trait Model {
    /// What one call leaves to the next.
    type State: Clone + Eq + Hash;
    /// A call and its answer.
    type Call;
    /// The state after a call, if its answer can be right.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// A call in a history. Times only need an order.
#[derive(Clone, Debug)]
pub struct Entry<C> {
    /// What was asked and answered.
    pub call: C,
    /// When the call was made.
    pub begun: u64,
    /// When the answer came; `None` if none came that says anything.
    pub ended: Option<u64>,
    /// Whether it may never have happened.
    pub optional: bool,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order exists: this one.
    Linearizable(Vec<usize>),
    /// None exists.
    Illegal {
        /// How many calls the longest attempt placed.
        placed: usize,
        /// Those that could have come next there, and did not fit.
        stuck: Vec<usize>,
    },
    /// Not decided within the number of steps.
    Undecided,
}

/// What stands in the list: a call's begin or its end.
#[derive(Clone, Copy)]
struct Node {
    entry: usize,
    end: bool,
    before: usize,
    after: usize,
}

/// A list of nodes in the order of time, from which calls are taken and into which they are put back. Node 0 is before all.
struct Timeline {
    nodes: Vec<Node>,
    /// The nodes of each call's begin and end (0: it has none).
    places: Vec<(usize, usize)>,
}

impl Timeline {
    fn of<C>(history: &[Entry<C>]) -> Self {
        // At the same moment begins come first: the two calls count as concurrent.
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for (number, entry) in history.iter().enumerate() {
            moments.push((entry.begun, false, number));
            if !entry.optional {
                moments.push((entry.ended.unwrap_or(u64::MAX), true, number));
            }
        }
        moments.sort_unstable();
        let mut nodes = vec![Node { entry: usize::MAX, end: false, before: 0, after: 0 }];
        let mut places = vec![(0, 0); history.len()];
        for (_, end, entry) in moments {
            let number = nodes.len();
            nodes.push(Node { entry, end, before: number - 1, after: 0 });
            nodes[number - 1].after = number;
            if end { places[entry].1 = number } else { places[entry].0 = number }
        }
        Self { nodes, places }
    }

    fn out(&mut self, node: usize) {
        let Node { before, after, .. } = self.nodes[node];
        self.nodes[before].after = after;
        if after != 0 {
            self.nodes[after].before = before;
        }
    }

    fn back(&mut self, node: usize) {
        let Node { before, after, .. } = self.nodes[node];
        self.nodes[before].after = node;
        if after != 0 {
            self.nodes[after].before = node;
        }
    }

    fn lift(&mut self, entry: usize) {
        let (begin, end) = self.places[entry];
        self.out(begin);
        if end != 0 {
            self.out(end);
        }
    }

    /// The exact opposite of [`Timeline::lift`], in the opposite order.
    fn unlift(&mut self, entry: usize) {
        let (begin, end) = self.places[entry];
        if end != 0 {
            self.back(end);
        }
        self.back(begin);
    }

    /// The calls that may come next.
    fn open(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut at = self.nodes[0].after;
        while at != 0 && !self.nodes[at].end {
            found.push(self.nodes[at].entry);
            at = self.nodes[at].after;
        }
        found
    }
}

/// Looks for an order, trying at most `steps` placements.
pub fn check<M: Model>(model: &M, initial: M::State, history: &[Entry<M::Call>], steps: u64) -> Verdict {
    let mut timeline = Timeline::of(history);
    let mut needed = history.iter().filter(|entry| !entry.optional).count();
    let mut done = vec![0u64; history.len().div_ceil(64)];
    let mut tried: HashSet<(Vec<u64>, M::State)> = HashSet::new();
    let mut placed: Vec<(usize, M::State)> = Vec::new();
    let mut state = initial;
    let mut best = (0, Vec::new());
    let mut at = timeline.nodes[0].after;
    let mut left = steps;
    while needed > 0 {
        let node = timeline.nodes[at];
        let next = if at == 0 || node.end { None } else { model.step(&state, &history[node.entry].call) };
        if let Some(next) = next {
            left = match left.checked_sub(1) {
                Some(left) => left,
                None => return Verdict::Undecided,
            };
            let entry = node.entry;
            done[entry / 64] |= 1 << (entry % 64);
            if tried.insert((done.clone(), next.clone())) {
                placed.push((entry, std::mem::replace(&mut state, next)));
                timeline.lift(entry);
                needed -= usize::from(!history[entry].optional);
                at = timeline.nodes[0].after;
                continue;
            }
            done[entry / 64] &= !(1 << (entry % 64));
        }
        if at != 0 && !node.end {
            at = node.after;
            continue;
        }
        // A call has to come before this end, and none fits.
        if placed.len() >= best.0 {
            best = (placed.len(), timeline.open());
        }
        let Some((entry, before)) = placed.pop() else {
            return Verdict::Illegal { placed: best.0, stuck: best.1 };
        };
        state = before;
        done[entry / 64] &= !(1 << (entry % 64));
        timeline.unlift(entry);
        needed += usize::from(!history[entry].optional);
        at = timeline.nodes[timeline.places[entry].0].after;
    }
    Verdict::Linearizable(placed.into_iter().map(|(entry, _)| entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One number, which is read, written and swapped.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Read(u64),
        Write(u64),
        Swap(u64, u64),
    }

    impl Model for Register {
        type State = u64;
        type Call = Call;
        fn step(&self, state: &u64, call: &Call) -> Option<u64> {
            match *call {
                Call::Read(seen) => (seen == *state).then_some(*state),
                Call::Write(value) => Some(value),
                Call::Swap(from, to) => (from == *state).then_some(to),
            }
        }
    }

    fn entry(begun: u64, ended: u64, call: Call) -> Entry<Call> {
        Entry { call, begun, ended: Some(ended), optional: false }
    }

    fn unknown(begun: u64, call: Call) -> Entry<Call> {
        Entry { call, begun, ended: None, optional: true }
    }

    fn verdict(history: &[Entry<Call>]) -> Verdict {
        check(&Register, 0, history, 1 << 20)
    }

    fn is_linearizable(history: &[Entry<Call>]) -> bool {
        matches!(verdict(history), Verdict::Linearizable(_))
    }

    #[test]
    fn concurrent_calls_may_come_in_any_order() {
        let history = [
            entry(0, 10, Call::Write(1)),
            entry(5, 15, Call::Read(0)),
            entry(11, 20, Call::Read(1)),
            entry(12, 30, Call::Swap(1, 2)),
            entry(31, 32, Call::Read(2)),
        ];
        assert_eq!(verdict(&history), Verdict::Linearizable(vec![1, 0, 2, 3, 4]));
    }

    #[test]
    fn a_read_of_what_is_over_is_found() {
        let history = [entry(0, 10, Call::Write(1)), entry(11, 12, Call::Read(0))];
        assert_eq!(verdict(&history), Verdict::Illegal { placed: 1, stuck: vec![1] });
    }

    #[test]
    fn two_swaps_of_one_value_are_found() {
        let history =
            [entry(0, 1, Call::Write(1)), entry(2, 10, Call::Swap(1, 2)), entry(3, 9, Call::Swap(1, 3))];
        assert!(!is_linearizable(&history));
    }

    #[test]
    fn a_write_without_an_answer_may_happen_late_or_never_but_not_before_it_began() {
        let late = [unknown(0, Call::Write(7)), entry(1, 2, Call::Read(0)), entry(3, 4, Call::Read(7))];
        assert!(is_linearizable(&late));
        let never = [unknown(0, Call::Write(7)), entry(1, 2, Call::Read(0)), entry(3, 4, Call::Read(0))];
        assert!(is_linearizable(&never));
        let undone = [entry(1, 2, Call::Read(7)), unknown(3, Call::Write(7))];
        assert!(!is_linearizable(&undone));
        let twice = [unknown(0, Call::Write(7)), entry(1, 2, Call::Read(7)), entry(3, 4, Call::Read(0))];
        assert!(!is_linearizable(&twice));
    }

    #[test]
    fn a_search_that_is_too_long_says_so() {
        let mut history: Vec<_> = (1..40).map(|number| entry(0, 100, Call::Write(number))).collect();
        history.push(entry(101, 102, Call::Read(99)));
        assert_eq!(check(&Register, 0, &history, 1000), Verdict::Undecided);
    }

    /// Against every order there is, for short histories of every kind.
    #[test]
    fn it_agrees_with_trying_every_order() {
        fn every(history: &[Entry<Call>], done: u32, state: u64) -> bool {
            let open = |number: usize| done >> number & 1 == 0;
            if (0..history.len()).all(|number| !open(number) || history[number].optional) {
                return true;
            }
            (0..history.len()).filter(|number| open(*number)).any(|number| {
                let first = (0..history.len())
                    .filter(|other| open(*other))
                    .all(|other| history[other].ended.is_none_or(|ended| history[number].begun <= ended));
                first
                    && Register
                        .step(&state, &history[number].call)
                        .is_some_and(|next| every(history, done | 1 << number, next))
            })
        }
        let mut random = crate::robustness::random::Random::new(11);
        let (mut right, mut wrong) = (0, 0);
        for _ in 0..4000 {
            let history: Vec<_> = (0..random.below(7))
                .map(|_| {
                    let begun = random.below(12);
                    let call = match random.below(3) {
                        0 => Call::Read(random.below(3)),
                        1 => Call::Write(random.below(3)),
                        _ => Call::Swap(random.below(3), random.below(3)),
                    };
                    if random.below(5) == 0 {
                        unknown(begun, call)
                    } else {
                        entry(begun, begun + random.below(6), call)
                    }
                })
                .collect();
            let expected = every(&history, 0, 0);
            assert_eq!(is_linearizable(&history), expected, "{history:?}");
            if expected { right += 1 } else { wrong += 1 }
        }
        assert!(right > 500 && wrong > 500, "{right} right, {wrong} wrong");
    }
}
