//! When the node runs short of something: signals, thresholds, and what they mean at a moment. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use crate::pod::Quantity;

/// Something that can run short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    PidAvailable,
}

/// Signals by upstream's names, in the order in which shortages are dealt with: memory before all else.
const SIGNALS: [(&str, Signal); 6] = [
    ("memory.available", Signal::MemoryAvailable),
    ("nodefs.available", Signal::NodefsAvailable),
    ("nodefs.inodesFree", Signal::NodefsInodesFree),
    ("imagefs.available", Signal::ImagefsAvailable),
    ("imagefs.inodesFree", Signal::ImagefsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

/// What holds where no threshold is given.
pub const DEFAULT_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// A condition of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    Memory,
    Disk,
    Pid,
}

impl Pressure {
    pub fn condition(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

impl Signal {
    fn named(name: &str) -> Option<Self> {
        SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal)
    }

    pub fn pressure(self) -> Pressure {
        match self {
            Self::MemoryAvailable => Pressure::Memory,
            Self::PidAvailable => Pressure::Pid,
            _ => Pressure::Disk,
        }
    }

    /// The resource that pods use up, as events and messages call it.
    pub fn resource(self) -> &'static str {
        match self {
            Self::MemoryAvailable => "memory",
            Self::NodefsAvailable | Self::ImagefsAvailable => "ephemeral-storage",
            Self::NodefsInodesFree | Self::ImagefsInodesFree => "inodes",
            Self::PidAvailable => "pids",
        }
    }
}

/// So much, or a share of all there is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    Number(u64),
    /// Thousandths of a percent.
    Share(u64),
}

impl Amount {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))?;
                Some(Self::Share((percent * 1000.0) as u64))
            }
            None => u64::try_from(Quantity(text.to_owned()).value()?).ok().map(Self::Number),
        }
    }

    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Number(number) => number,
            Self::Share(share) => (u128::from(capacity) * u128::from(share) / 100_000) as u64,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub below: Amount,
    /// Of soft ones: how long it has to be crossed. Hard ones have none.
    pub grace: Option<Duration>,
    /// Once crossed, this much more has to be free before it counts as over.
    pub reclaim: Option<Amount>,
}

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub thresholds: Vec<Threshold>,
    /// The most grace that a soft threshold leaves a pod.
    pub max_pod_grace: Duration,
    /// How long a condition stays after the last shortage.
    pub transition_period: Duration,
}

/// A threshold that cannot be meant.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BadThreshold {
    #[error("unsupported eviction signal {0:?}")]
    Signal(String),
    #[error("{1:?} of {0} is neither an amount nor a percentage from 0% to 100%")]
    Amount(String, String),
    #[error("the soft threshold of {0} has no grace period")]
    NoGrace(String),
    #[error("{1:?} is no grace period of {0}")]
    Grace(String, String),
}

impl Default for Settings {
    fn default() -> Self {
        let hard = DEFAULT_HARD.map(|(signal, amount)| (signal.to_owned(), amount.to_owned()));
        let none = BTreeMap::new();
        Self {
            // The table above is well formed, which a test says too.
            thresholds: thresholds(&hard.into(), &none, &none, &none).unwrap_or_default(),
            max_pod_grace: Duration::ZERO,
            transition_period: Duration::from_secs(300),
        }
    }
}

impl Settings {
    /// The hard threshold of a signal: what is kept free of pods.
    pub fn hard(&self, signal: Signal, capacity: u64) -> u64 {
        let hard = self.thresholds.iter().find(|one| one.signal == signal && one.grace.is_none());
        hard.map_or(0, |one| one.below.of(capacity))
    }
}

/// Reads thresholds as configuration has them. A threshold of nothing is none.
pub fn thresholds(
    hard: &BTreeMap<String, String>,
    soft: &BTreeMap<String, String>,
    grace: &BTreeMap<String, String>,
    reclaim: &BTreeMap<String, String>,
) -> Result<Vec<Threshold>, BadThreshold> {
    let amount = |name: &str, text: &str| {
        Amount::parse(text).ok_or_else(|| BadThreshold::Amount(name.to_owned(), text.to_owned()))
    };
    let signal = |name: &str| Signal::named(name).ok_or_else(|| BadThreshold::Signal(name.to_owned()));
    for (name, text) in reclaim {
        signal(name)?;
        amount(name, text)?;
    }
    let mut all = Vec::new();
    for (name, text, is_soft) in
        hard.iter().map(|(name, text)| (name, text, false)).chain(soft.iter().map(|(a, b)| (a, b, true)))
    {
        let signal = signal(name)?;
        let below = amount(name, text)?;
        let grace = match (is_soft, grace.get(name)) {
            (false, _) => None,
            (true, None) => return Err(BadThreshold::NoGrace(name.clone())),
            (true, Some(text)) => {
                let bad = || BadThreshold::Grace(name.clone(), text.clone());
                Some(controller_runtime::program::go_duration(text).map_err(|_| bad())?)
            }
        };
        if matches!(below, Amount::Number(0) | Amount::Share(0)) {
            continue;
        }
        let reclaim = reclaim.get(name).map(|text| amount(name, text)).transpose()?;
        all.push(Threshold { signal, below, grace, reclaim });
    }
    Ok(all)
}

/// How much there is of something, and how much is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    pub available: u64,
    pub capacity: u64,
}

pub type Observations = BTreeMap<Signal, Observation>;

impl Threshold {
    fn is_crossed(&self, seen: &Observations, with_reclaim: bool) -> bool {
        let Some(seen) = seen.get(&self.signal) else { return false };
        let more = self.reclaim.filter(|_| with_reclaim).map_or(0, |more| more.of(seen.capacity));
        seen.available < self.below.of(seen.capacity).saturating_add(more)
    }
}

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub struct Memory {
    /// Thresholds that were met, by index.
    met: Vec<usize>,
    first_seen: BTreeMap<usize, Timestamp>,
    last_seen: BTreeMap<Pressure, Timestamp>,
}

/// What a look means.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub pressures: Vec<Pressure>,
    /// What has to be reclaimed now, the most urgent first.
    pub met: Vec<Threshold>,
}

/// Compares what there is with the thresholds.
pub fn judge(settings: &Settings, seen: &Observations, memory: &mut Memory, now: Timestamp) -> Found {
    let crossed: Vec<usize> = settings
        .thresholds
        .iter()
        .enumerate()
        .filter(|(index, one)| {
            one.is_crossed(seen, false) || memory.met.contains(index) && one.is_crossed(seen, true)
        })
        .map(|(index, _)| index)
        .collect();
    memory.first_seen.retain(|index, _| crossed.contains(index));
    for index in &crossed {
        memory.first_seen.entry(*index).or_insert(now);
        memory.last_seen.insert(settings.thresholds[*index].signal.pressure(), now);
    }
    let passed = |since: Timestamp| now.duration_since(since);
    let transition = SignedDuration::try_from(settings.transition_period).unwrap_or(SignedDuration::MAX);
    memory.last_seen.retain(|_, last| passed(*last) < transition || *last == now);
    memory.met = crossed
        .into_iter()
        .filter(|index| {
            let since = memory.first_seen.get(index).copied().unwrap_or(now);
            let grace = settings.thresholds[*index].grace.unwrap_or_default();
            passed(since).unsigned_abs() >= grace
        })
        .collect();
    let mut met: Vec<Threshold> = memory.met.iter().map(|index| settings.thresholds[*index]).collect();
    met.sort_by_key(|one| (one.signal, one.grace.is_some()));
    Found { pressures: memory.last_seen.keys().copied().collect(), met }
}

/// Whether anything is still short, with the reclaim that was asked for.
pub fn is_short(settings: &Settings, seen: &Observations) -> bool {
    settings.thresholds.iter().any(|one| one.is_crossed(seen, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1000 + second).unwrap()
    }

    fn memory_left(available: u64) -> Observations {
        [(Signal::MemoryAvailable, Observation { available, capacity: 1000 })].into()
    }

    #[test]
    fn thresholds_are_read_or_refused() {
        let none = BTreeMap::new();
        let read = |hard: &[(&str, &str)]| thresholds(&map(hard), &none, &none, &none);
        let both = read(&[("memory.available", "1Gi"), ("nodefs.available", "12.5%")]).unwrap();
        assert_eq!((both[0].below, both[1].below), (Amount::Number(1 << 30), Amount::Share(12_500)));
        assert_eq!(both[1].below.of(800), 100);
        assert_eq!(read(&[("memory.available", "0%")]).unwrap(), []);
        assert!(
            read(&[("memory.available", "101%")]).is_err() && read(&[("memory.available", "x")]).is_err()
        );
        assert_eq!(read(&[("disk", "1")]), Err(BadThreshold::Signal("disk".into())));
        let soft = map(&[("memory.available", "2Gi")]);
        assert!(matches!(thresholds(&none, &soft, &none, &none), Err(BadThreshold::NoGrace(_))));
        let grace = map(&[("memory.available", "1m30s")]);
        let found = thresholds(&none, &soft, &grace, &map(&[("memory.available", "5%")])).unwrap();
        assert_eq!(
            (found[0].grace, found[0].reclaim),
            (Some(Duration::from_secs(90)), Some(Amount::Share(5000)))
        );
        assert_eq!(Settings::default().thresholds.len(), DEFAULT_HARD.len());
    }

    #[test]
    fn a_hard_threshold_counts_at_once_and_its_condition_stays_a_while() {
        let none = BTreeMap::new();
        let settings = Settings {
            thresholds: thresholds(
                &map(&[("memory.available", "100")]),
                &none,
                &none,
                &map(&[("memory.available", "50")]),
            )
            .unwrap(),
            ..Settings::default()
        };
        let mut memory = Memory::default();
        let mut look = |available, second| judge(&settings, &memory_left(available), &mut memory, at(second));
        assert_eq!(look(100, 0), Found::default());
        let found = look(99, 10);
        assert_eq!((found.pressures.as_slice(), found.met.len()), (&[Pressure::Memory][..], 1));
        // Not over before the reclaim is reached as well.
        assert_eq!(look(149, 20).met.len(), 1);
        let found = look(150, 30);
        assert_eq!((found.pressures.len(), found.met.len()), (1, 0));
        assert_eq!(look(150, 319).pressures.len(), 1);
        assert_eq!(look(150, 320), Found::default());
    }

    #[test]
    fn a_soft_threshold_waits_for_its_grace() {
        let none = BTreeMap::new();
        let (soft, grace) = (map(&[("memory.available", "10%")]), map(&[("memory.available", "30s")]));
        let settings =
            Settings { thresholds: thresholds(&none, &soft, &grace, &none).unwrap(), ..Settings::default() };
        let mut memory = Memory::default();
        let mut look = |available, second| judge(&settings, &memory_left(available), &mut memory, at(second));
        assert_eq!((look(50, 0).met.len(), look(50, 29).met.len()), (0, 0));
        // It rose meanwhile: the clock begins anew.
        assert_eq!((look(200, 30).met.len(), look(50, 31).met.len(), look(50, 60).met.len()), (0, 0, 0));
        assert_eq!(look(50, 61).met.len(), 1);
    }
}
