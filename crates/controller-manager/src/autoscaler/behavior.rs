//! How fast a size may change: policies per period, and a memory of recommendations against flapping.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::View;

/// Bounds in both directions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Behavior {
    /// For growing.
    pub scale_up: Option<Rules>,
    /// For shrinking.
    pub scale_down: Option<Rules>,
}

/// Bounds in one direction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rules {
    /// How long recommendations are remembered.
    pub stabilization_window_seconds: Option<i64>,
    /// `Max`, `Min` or `Disabled`.
    pub select_policy: Option<Box<str>>,
    /// The policies.
    pub policies: Option<Vec<Policy>>,
}

/// So much in such a time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// `Pods` or `Percent`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// How much.
    pub value: i64,
    /// In which time.
    pub period_seconds: i64,
}

/// What was recommended and done before.
#[derive(Clone, Debug, Default)]
pub struct History {
    recommendations: Vec<(Timestamp, i64)>,
    changes: Vec<(Timestamp, i64)>,
    tried: Option<Try>,
}

/// A change that was decided on; whether it came about is seen when the target is looked at again.
#[derive(Clone, Debug)]
struct Try {
    at: Timestamp,
    from: i64,
    to: i64,
}

impl History {
    /// Notes a recommendation and the size that is about to be asked for; forgets what is older than an hour.
    pub fn remember(&mut self, now: Timestamp, recommended: Option<i64>, from: i64, to: Option<i64>) {
        let oldest = now.checked_sub(SignedDuration::from_hours(1)).unwrap_or(now);
        self.recommendations.retain(|(at, _)| *at > oldest);
        self.changes.retain(|(at, _)| *at > oldest);
        self.recommendations.extend(recommended.map(|size| (now, size)));
        self.tried = to.filter(|to| *to != from).map(|to| Try { at: now, from, to });
    }

    /// The target has this size: what was tried last counts only if it came about.
    pub fn settle(&mut self, replicas: i64) {
        if let Some(tried) = self.tried.take().filter(|tried| tried.to == replicas) {
            self.changes.push((tried.at, tried.to - tried.from));
        }
    }
}

/// A size within its bounds, and what is told of it.
pub struct Bounded {
    pub replicas: i64,
    pub limited: bool,
    pub able: (&'static str, String),
    pub reason: (&'static str, String),
}

fn default_up() -> Vec<Policy> {
    vec![
        Policy { kind: "Percent".into(), value: 100, period_seconds: 15 },
        Policy { kind: "Pods".into(), value: 4, period_seconds: 15 },
    ]
}

fn default_down() -> Vec<Policy> {
    vec![Policy { kind: "Percent".into(), value: 100, period_seconds: 15 }]
}

/// Brings a recommendation within all bounds.
pub fn bound(view: &View, current: i64, wanted: i64) -> Bounded {
    let hpa = &view.hpa.spec;
    let behavior = hpa.behavior.clone().unwrap_or_default();
    let (up, down) = (behavior.scale_up.unwrap_or_default(), behavior.scale_down.unwrap_or_default());
    let stable = stabilize(view, wanted, current, &up, &down);
    let able = if stable == wanted {
        ("ReadyForNewScale", "recommended size matches current size".to_owned())
    } else if stable < wanted {
        (
            "ScaleUpStabilized",
            "recent recommendations were lower than current one, applying the lowest recent recommendation"
                .to_owned(),
        )
    } else {
        (
            "ScaleDownStabilized",
            "recent recommendations were higher than current one, applying the highest recent recommendation"
                .to_owned(),
        )
    };
    let (least, most) = (hpa.min_replicas.unwrap_or(1), hpa.max_replicas);
    let (fast_up, fast_down) =
        (limit(view, current, &up, default_up(), true), limit(view, current, &down, default_down(), false));
    let (mut replicas, mut reason) = (stable, None);
    if replicas > current && replicas > fast_up.max(current) {
        (replicas, reason) = (
            fast_up.max(current),
            Some((
                "ScaleUpLimit",
                "the desired replica count is increasing faster than the maximum scale rate".to_owned(),
            )),
        );
    } else if replicas < current && replicas < fast_down.min(current) {
        (replicas, reason) = (
            fast_down.min(current),
            Some((
                "ScaleDownLimit",
                "the desired replica count is decreasing faster than the maximum scale rate".to_owned(),
            )),
        );
    }
    if replicas > most {
        (replicas, reason) = (
            most,
            Some((
                "TooManyReplicas",
                "the desired replica count is more than the maximum replica count".to_owned(),
            )),
        );
    } else if replicas < least {
        (replicas, reason) = (
            least,
            Some((
                "TooFewReplicas",
                "the desired replica count is less than the minimum replica count".to_owned(),
            )),
        );
    }
    Bounded {
        replicas,
        limited: reason.is_some(),
        able,
        reason: reason
            .unwrap_or(("DesiredWithinRange", "the desired count is within the acceptable range".to_owned())),
    }
}

/// Grows only as far as all recent recommendations agree, and shrinks only as far.
fn stabilize(view: &View, wanted: i64, current: i64, up: &Rules, down: &Rules) -> i64 {
    let since = |seconds: i64| view.now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(view.now);
    let recent = |window: i64| {
        let from = since(window);
        view.history.recommendations.iter().filter(move |(at, _)| *at > from).map(|(_, size)| *size)
    };
    let up_window = up.stabilization_window_seconds.unwrap_or(0);
    let down_window = down.stabilization_window_seconds.unwrap_or(view.settings.stabilization.as_secs());
    let lowest = recent(up_window).chain([wanted]).min().unwrap_or(wanted);
    let highest = recent(down_window).chain([wanted]).max().unwrap_or(wanted);
    current.clamp(lowest.min(highest), highest)
}

/// How far the policies allow to go now.
fn limit(view: &View, current: i64, rules: &Rules, default: Vec<Policy>, up: bool) -> i64 {
    let select = rules.select_policy.as_deref().unwrap_or("Max");
    if select == "Disabled" {
        return current;
    }
    let reach = |policy: &Policy| {
        let from = view.now.checked_sub(SignedDuration::from_secs(policy.period_seconds)).unwrap_or(view.now);
        let done: i64 = view
            .history
            .changes
            .iter()
            .filter(|(at, _)| *at > from)
            .map(|(_, change)| *change)
            .filter(|change| (*change > 0) == up)
            .sum();
        let start = current - done;
        match (&*policy.kind, up) {
            ("Pods", true) => start + policy.value,
            ("Pods", false) => start - policy.value,
            (_, true) => (start as f64 * (1.0 + policy.value as f64 / 100.0)).ceil() as i64,
            (_, false) => (start as f64 * (1.0 - policy.value as f64 / 100.0)) as i64,
        }
    };
    let policies = rules.policies.clone().unwrap_or(default);
    let reaches = policies.iter().map(reach);
    // The policy that changes most (or least, if asked) decides.
    let furthest = if (select == "Max") == up { reaches.max() } else { reaches.min() };
    furthest.unwrap_or(current)
}
