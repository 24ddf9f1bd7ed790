//! What the extension points of one profile cost, and how often their plugins were asked.
//!
//! A cycle reads the clock a few times in all, never for each node. Single calls are timed in one cycle of ten, as
//! upstream does it; of filters and scores, those for the first node. Calls are counted by places in the framework's
//! lists, once per point.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Cycle, Fit, Verdict};
use crate::metrics::{Bounds, Histogram};

/// One cycle of so many has its plugins timed.
const SAMPLED: u32 = 10;

/// An extension point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    PreEnqueue,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Unreserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    pub fn label(self) -> &'static str {
        match self {
            Self::PreEnqueue => "PreEnqueue",
            Self::PreFilter => "PreFilter",
            Self::Filter => "Filter",
            Self::PostFilter => "PostFilter",
            Self::PreScore => "PreScore",
            Self::Score => "Score",
            Self::Reserve => "Reserve",
            Self::Unreserve => "Unreserve",
            Self::Permit => "Permit",
            Self::PreBind => "PreBind",
            Self::Bind => "Bind",
            Self::PostBind => "PostBind",
        }
    }
}

/// How a point, or a plugin there, answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    Success,
    Error,
    Refused,
    Never,
    Wait,
    Skip,
}

impl Code {
    /// Upstream's name for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Success => "Success",
            Self::Error => "Error",
            Self::Refused => "Unschedulable",
            Self::Never => "UnschedulableAndUnresolvable",
            Self::Wait => "Wait",
            Self::Skip => "Skip",
        }
    }
}

impl From<Fit> for Code {
    fn from(fit: Fit) -> Self {
        match fit {
            Fit::Fits => Self::Success,
            Fit::Refused => Self::Refused,
            Fit::Never => Self::Never,
        }
    }
}

impl From<&Verdict> for Code {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Fits => Self::Success,
            Verdict::Refused(_) => Self::Refused,
            Verdict::Never(_) => Self::Never,
        }
    }
}

/// The numbers of one profile.
#[derive(Debug, Default)]
pub struct Measures {
    cycles: AtomicU32,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
pub struct Book {
    pub points: BTreeMap<(Point, Code), Histogram>,
    pub plugins: BTreeMap<(&'static str, Point, Code), Histogram>,
    /// How often each plugin was asked, by its place among the point's.
    pub asked: BTreeMap<Point, Vec<(&'static str, u64)>>,
}

impl Book {
    pub fn took(&mut self, point: Point, code: Code, time: Duration) {
        self.points.entry((point, code)).or_insert_with(|| Histogram::new(Bounds::POINT)).took(time);
    }

    pub fn asked(&mut self, point: Point, plugins: impl Iterator<Item = (usize, &'static str, u64)>) {
        let counts = self.asked.entry(point).or_default();
        for (place, name, times) in plugins {
            if counts.len() <= place {
                counts.resize(place + 1, ("", 0));
            }
            counts[place] = (name, counts[place].1 + times);
        }
    }
}

impl Measures {
    pub fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of a new cycle; its plugins are timed if it is its turn.
    pub fn cycle(&self) -> Cycle {
        let turn = self.cycles.fetch_add(1, Ordering::Relaxed);
        Cycle { sampled: turn.is_multiple_of(SAMPLED), ..Cycle::default() }
    }

    pub fn took(&self, point: Point, code: Code, began: Instant) {
        let time = began.elapsed();
        self.lock().took(point, code, time);
    }

    /// Notes one call of a plugin, if [`Cycle::clock`] was read for it.
    pub fn ran(&self, began: Option<Instant>, plugin: &'static str, point: Point, code: Code) {
        if let Some(began) = began {
            self.spent(plugin, point, code, began.elapsed());
        }
    }

    pub fn spent(&self, plugin: &'static str, point: Point, code: Code, time: Duration) {
        let mut book = self.lock();
        let histogram = book.plugins.entry((plugin, point, code));
        histogram.or_insert_with(|| Histogram::new(Bounds::PLUGIN)).took(time);
    }
}
