//! What starting or stopping a unit entails, and in which order. Pure: units come from a function.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::Unit;

/// Why a transaction cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum TransactionError {
    #[error("{unit} cannot be loaded: {reason}")]
    Load { unit: String, reason: String },
    #[error("{unit} requires {needed}, which cannot be loaded: {reason}")]
    Needed { unit: String, needed: String, reason: String },
    #[error("{} wait for each other", .0.join(", "))]
    Cycle(Vec<String>),
}

/// What is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transaction {
    /// Jobs by unit, each with the jobs of this transaction that it waits for.
    pub jobs: BTreeMap<String, Job>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// Units that conflict with one that starts.
    pub stops: BTreeSet<String>,
}

/// One unit's start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Job {
    pub waits_for: BTreeSet<String>,
    /// Those of `waits_for` without which it does not start.
    pub needs: BTreeSet<String>,
}

/// Everything that starting `first` starts.
pub fn start(
    first: &str,
    load: &mut dyn FnMut(&str) -> Result<Unit, String>,
) -> Result<Transaction, TransactionError> {
    let mut units: BTreeMap<String, Unit> = BTreeMap::new();
    let mut out = Transaction::default();
    let mut unloadable: BTreeMap<String, String> = BTreeMap::new();
    // Units that something else cannot do without.
    let mut required: BTreeSet<String> = BTreeSet::from([first.to_owned()]);
    let mut queue: Vec<(String, Option<String>)> = vec![(first.to_owned(), None)];
    while let Some((name, needed_by)) = queue.pop() {
        if units.contains_key(&name) {
            continue;
        }
        let unit = match load(&name) {
            Ok(unit) => unit,
            Err(reason) if name == first => return Err(TransactionError::Load { unit: name, reason }),
            Err(reason) => {
                match needed_by {
                    Some(unit) if unit == first => {
                        return Err(TransactionError::Needed { unit, needed: name, reason });
                    }
                    Some(unit) => out.notes.push(format!("{unit} requires {name}: {reason}")),
                    None => out.notes.push(reason.clone()),
                }
                unloadable.insert(name, reason);
                continue;
            }
        };
        for wanted in &unit.wants {
            queue.push((wanted.clone(), None));
        }
        for needed in unit.requires.iter().chain(&unit.binds_to) {
            required.insert(needed.clone());
            queue.push((needed.clone(), Some(name.clone())));
        }
        units.insert(name, unit);
    }
    // Who needs what cannot be loaded cannot start either.
    loop {
        let broken: Vec<String> = units
            .iter()
            .filter(|(_, unit)| {
                unit.requires.iter().chain(&unit.binds_to).any(|name| unloadable.contains_key(name))
            })
            .map(|(name, _)| name.clone())
            .collect();
        if broken.is_empty() {
            break;
        }
        for name in broken {
            let unit = units.remove(&name);
            let needed = unit
                .iter()
                .flat_map(|unit| unit.requires.iter().chain(&unit.binds_to))
                .find(|needed| unloadable.contains_key(*needed))
                .cloned()
                .unwrap_or_default();
            let reason = unloadable.get(&needed).cloned().unwrap_or_default();
            if name == first {
                return Err(TransactionError::Needed { unit: name, needed, reason });
            }
            unloadable.insert(name, reason);
        }
    }
    for (name, unit) in &units {
        let conflicts = unit.conflicts.iter().filter(|other| *other != "shutdown.target" || name == first);
        out.stops.extend(conflicts.cloned());
    }
    let mut edges = order(&units);
    break_cycles(&mut edges, &mut units, &required, &mut out.notes)?;
    for (name, unit) in &units {
        let waits_for = edges.remove(name).unwrap_or_default();
        let needs = unit
            .requires
            .iter()
            .chain(&unit.binds_to)
            .filter(|needed| waits_for.contains(*needed))
            .cloned()
            .collect();
        out.jobs.insert(name.clone(), Job { waits_for, needs });
    }
    Ok(out)
}

/// For each unit those that start before it.
pub fn order(units: &BTreeMap<String, Unit>) -> BTreeMap<String, BTreeSet<String>> {
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, unit) in units {
        for earlier in unit.after.iter().filter(|earlier| units.contains_key(*earlier) && *earlier != name) {
            edges.entry(name.clone()).or_default().insert(earlier.clone());
        }
        for later in unit.before.iter().filter(|later| units.contains_key(*later) && *later != name) {
            edges.entry(later.clone()).or_default().insert(name.clone());
        }
    }
    edges
}

/// Leaves units out, of those that nothing requires, until no cycle is left.
fn break_cycles(
    edges: &mut BTreeMap<String, BTreeSet<String>>,
    units: &mut BTreeMap<String, Unit>,
    required: &BTreeSet<String>,
    notes: &mut Vec<String>,
) -> Result<(), TransactionError> {
    while let Some(cycle) = find_cycle(edges) {
        let Some(victim) = cycle.iter().find(|name| !required.contains(*name)).cloned() else {
            return Err(TransactionError::Cycle(cycle));
        };
        notes.push(format!("{victim} is not started: {} wait for each other", cycle.join(", ")));
        units.remove(&victim);
        edges.remove(&victim);
        for earlier in edges.values_mut() {
            earlier.remove(&victim);
        }
    }
    Ok(())
}

fn find_cycle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    // Removing whatever waits for nothing leaves only cycles and what waits for them.
    let mut left: BTreeMap<&str, BTreeSet<&str>> = edges
        .iter()
        .map(|(name, earlier)| (name.as_str(), earlier.iter().map(String::as_str).collect()))
        .collect();
    loop {
        let present: BTreeSet<&str> = left.keys().copied().collect();
        let before = left.len();
        left.retain(|_, earlier| {
            earlier.retain(|name| present.contains(name));
            !earlier.is_empty()
        });
        if left.len() == before {
            break;
        }
    }
    let mut path: Vec<&str> = vec![*left.keys().next()?];
    loop {
        let next = *left.get(path.last()?)?.iter().next()?;
        if let Some(at) = path.iter().position(|name| *name == next) {
            return Some(path[at..].iter().map(|name| (*name).to_owned()).collect());
        }
        path.push(next);
    }
}

/// The units that stop with `first`, in the order in which they stop, later starters first.
pub fn stop(first: &str, active: &BTreeMap<String, Unit>) -> Vec<String> {
    let mut chosen: BTreeSet<String> = BTreeSet::from([first.to_owned()]);
    loop {
        let more: Vec<String> = active
            .iter()
            .filter(|(name, unit)| {
                !chosen.contains(*name)
                    && unit
                        .requires
                        .iter()
                        .chain(&unit.binds_to)
                        .chain(&unit.part_of)
                        .any(|needed| chosen.contains(needed))
            })
            .map(|(name, _)| name.clone())
            .collect();
        if more.is_empty() {
            break;
        }
        chosen.extend(more);
    }
    let mut wave = waves(active);
    wave.reverse();
    wave.into_iter().flatten().filter(|name| chosen.contains(name)).collect()
}

/// Units in waves: each waits only for those of earlier waves. Cycles end up in the last one.
pub fn waves(units: &BTreeMap<String, Unit>) -> Vec<Vec<String>> {
    let edges = order(units);
    let mut left: BTreeSet<&String> = units.keys().collect();
    let mut out = Vec::new();
    while !left.is_empty() {
        let ready: Vec<&String> = left
            .iter()
            .copied()
            .filter(|name| {
                edges.get(*name).is_none_or(|earlier| earlier.iter().all(|one| !left.contains(one)))
            })
            .collect();
        let ready = if ready.is_empty() { left.iter().copied().collect() } else { ready };
        for name in &ready {
            left.remove(*name);
        }
        out.push(ready.into_iter().cloned().collect());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::{Specifiers, directives, syntax};

    fn units(texts: &[(&str, &str)]) -> BTreeMap<String, Unit> {
        let read = |(name, text): &(&str, &str)| {
            let mut unit = directives::empty(name).unwrap();
            let text = if name.ends_with(".service") {
                format!("{text}[Service]\nExecStart=/x\n")
            } else {
                text.to_string()
            };
            let all = syntax::parse(&format!("[Unit]\nDefaultDependencies=no\n{text}")).unwrap();
            directives::apply(&mut unit, name, &all, &Specifiers::default()).unwrap();
            directives::finish(&mut unit).unwrap();
            (name.to_string(), unit)
        };
        texts.iter().map(read).collect()
    }

    fn plan(texts: &[(&str, &str)], first: &str) -> Result<Transaction, TransactionError> {
        let all = units(texts);
        start(first, &mut |name| all.get(name).cloned().ok_or_else(|| format!("unit {name} not found")))
    }

    #[test]
    fn wanted_and_required_units_start_in_order() {
        let plan = plan(
            &[
                ("t.target", "Wants=b.service a.service missing.service\nAfter=a.service b.service\n"),
                ("a.service", "Requires=c.service\nAfter=c.service\n"),
                ("b.service", "Before=a.service\n"),
                ("c.service", ""),
                ("other.service", ""),
            ],
            "t.target",
        )
        .unwrap();
        assert_eq!(plan.jobs.keys().collect::<Vec<_>>(), ["a.service", "b.service", "c.service", "t.target"]);
        let a = &plan.jobs["a.service"];
        assert_eq!(a.waits_for, BTreeSet::from(["b.service".to_owned(), "c.service".to_owned()]));
        assert_eq!(a.needs, BTreeSet::from(["c.service".to_owned()]));
        assert_eq!(plan.notes, ["unit missing.service not found"]);
    }

    #[test]
    fn who_needs_the_missing_does_not_start_and_says_why() {
        let scene = [
            ("t.target", "Wants=a.service b.service\n"),
            ("a.service", "Requires=gone.service\n"),
            ("b.service", "BindsTo=a.service\n"),
        ];
        let made = plan(&scene, "t.target").unwrap();
        assert_eq!(made.jobs.keys().collect::<Vec<_>>(), ["t.target"]);
        assert!(
            matches!(plan(&scene, "a.service"), Err(TransactionError::Needed { needed, .. }) if needed == "gone.service")
        );
        assert!(matches!(plan(&scene, "gone.service"), Err(TransactionError::Load { .. })));
    }

    #[test]
    fn a_cycle_loses_what_nobody_requires_or_is_an_error() {
        let plan_of = |need: &str| {
            plan(
                &[("t.target", need), ("a.service", "After=b.service\n"), ("b.service", "After=a.service\n")],
                "t.target",
            )
        };
        let made = plan_of("Requires=a.service\nWants=b.service\n").unwrap();
        assert_eq!(made.jobs.keys().collect::<Vec<_>>(), ["a.service", "t.target"]);
        assert!(made.notes[0].contains("b.service is not started"), "{:?}", made.notes);
        assert!(matches!(plan_of("Requires=a.service b.service\n"), Err(TransactionError::Cycle(_))));
    }

    #[test]
    fn stopping_takes_dependants_along_in_reverse_order() {
        let all = units(&[
            ("a.service", ""),
            ("b.service", "Requires=a.service\nAfter=a.service\n"),
            ("c.service", "PartOf=b.service\nAfter=b.service\n"),
            ("d.service", "Wants=a.service\nAfter=a.service\n"),
        ]);
        assert_eq!(stop("a.service", &all), ["c.service", "b.service", "a.service"]);
        assert_eq!(waves(&all).len(), 3);
    }
}
