//! When a container's probes run and what their results mean. Pure: the worker runs what [`Probes::due`] names and
//! hands the outcome to [`Probes::record`].
//!
//! Liveness and readiness wait until the startup probe succeeded; the startup probe then never runs again. A result
//! counts once its threshold of equal outcomes in a row is reached. All memory is of one container id: a new container
//! begins anew.

use jiff::{SignedDuration, Timestamp};

use crate::pod::{Container, OldContainerStatus, Probe};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Startup, Self::Liveness, Self::Readiness];

    /// As in upstream's events.
    pub fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

#[derive(Debug, Clone, Default)]
struct State {
    /// The result that counts; nothing before the first threshold.
    result: Option<bool>,
    last: Option<bool>,
    streak: u32,
    next_at: Option<Timestamp>,
    running: bool,
}

/// The probes of one container.
#[derive(Debug, Clone, Default)]
pub struct Probes {
    container_id: String,
    states: [State; 3],
}

/// What a recorded outcome changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// Readiness or "started" changed: the status has to be computed again.
    Changed,
    /// The container has to be killed.
    Condemned,
}

impl Probes {
    /// Begins to follow a container; keeps what is known if it is the same one. `old` is the status written before the
    /// kubelet restarted: a container that was ready then stays ready until a probe says otherwise.
    pub fn follow(&mut self, container_id: &str, old: Option<&OldContainerStatus>) {
        if self.container_id == container_id {
            return;
        }
        *self = Self { container_id: container_id.to_owned(), ..Self::default() };
        if let Some(old) =
            old.filter(|old| old.container_id.ends_with(container_id) && !container_id.is_empty())
        {
            if old.started == Some(true) {
                self.states[Kind::Startup as usize].result = Some(true);
            }
            if old.ready {
                self.states[Kind::Readiness as usize].result = Some(true);
            }
        }
    }

    pub fn started(&self, container: &Container) -> bool {
        container.startup_probe.is_none() || self.state(Kind::Startup).result == Some(true)
    }

    pub fn ready(&self, container: &Container) -> bool {
        container.readiness_probe.is_none() || self.state(Kind::Readiness).result == Some(true)
    }

    fn state(&self, kind: Kind) -> &State {
        &self.states[kind as usize]
    }

    /// The probes to run now, and when the next one is due.
    pub fn due(
        &self,
        container: &Container,
        started_at: Timestamp,
        stopping: bool,
        now: Timestamp,
    ) -> (Vec<Kind>, Option<Timestamp>) {
        let (mut due, mut wake) = (Vec::new(), None::<Timestamp>);
        for kind in Kind::ALL {
            let (Some(probe), state) = (kind.of(container), self.state(kind)) else { continue };
            let waits = match kind {
                Kind::Startup => self.started(container) || stopping,
                Kind::Liveness => !self.started(container) || stopping,
                Kind::Readiness => !self.started(container),
            };
            let failed = kind != Kind::Readiness && state.result == Some(false);
            if waits || state.running || failed {
                continue;
            }
            let first = started_at
                .checked_add(SignedDuration::from_secs(probe.initial_delay_seconds.unwrap_or(0).max(0)))
                .unwrap_or(now);
            let at = state.next_at.map_or(first, |next| next.max(first));
            if at <= now {
                due.push(kind);
            } else {
                wake = Some(wake.map_or(at, |known| known.min(at)));
            }
        }
        (due, wake)
    }

    /// Notes that a probe runs.
    pub fn begin(&mut self, kind: Kind, container: &Container, now: Timestamp) {
        let period = kind.of(container).and_then(|probe| probe.period_seconds).unwrap_or(10).max(1);
        let state = &mut self.states[kind as usize];
        state.running = true;
        state.next_at = now.checked_add(SignedDuration::from_secs(period)).ok();
    }

    /// Takes the outcome of a probe of this container.
    pub fn record(&mut self, kind: Kind, container_id: &str, container: &Container, success: bool) -> Effect {
        if self.container_id != container_id {
            return Effect::Nothing;
        }
        let Some(probe) = kind.of(container) else { return Effect::Nothing };
        let state = &mut self.states[kind as usize];
        state.running = false;
        state.streak = if state.last == Some(success) { state.streak.saturating_add(1) } else { 1 };
        state.last = Some(success);
        let threshold = match success {
            true => probe.success_threshold.unwrap_or(1),
            false => probe.failure_threshold.unwrap_or(3),
        };
        if state.streak < threshold.max(1) || state.result == Some(success) {
            return Effect::Nothing;
        }
        state.result = Some(success);
        match (kind, success) {
            (Kind::Startup | Kind::Liveness, false) => Effect::Condemned,
            (Kind::Liveness, true) => Effect::Nothing,
            (Kind::Startup, true) | (Kind::Readiness, _) => Effect::Changed,
        }
    }

    /// Notes that a probe was given up, for example because its container ended under it.
    pub fn abandon(&mut self, kind: Kind, container_id: &str) {
        if self.container_id == container_id {
            self.states[kind as usize].running = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(value: serde_json::Value) -> Container {
        serde_json::from_value(value).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1000 + second).unwrap()
    }

    fn followed() -> Probes {
        let mut probes = Probes::default();
        probes.follow("c1", None);
        probes
    }

    #[test]
    fn a_probe_waits_its_delay_then_its_period() {
        let container = container(json!({"livenessProbe": {"initialDelaySeconds": 5, "periodSeconds": 3}}));
        let mut probes = followed();
        assert_eq!(probes.due(&container, at(0), false, at(4)), (vec![], Some(at(5))));
        assert_eq!(probes.due(&container, at(0), false, at(5)), (vec![Kind::Liveness], None));
        probes.begin(Kind::Liveness, &container, at(5));
        assert_eq!(probes.due(&container, at(0), false, at(6)), (vec![], None), "runs");
        probes.record(Kind::Liveness, "c1", &container, true);
        assert_eq!(probes.due(&container, at(0), false, at(6)), (vec![], Some(at(8))));
        assert_eq!(probes.due(&container, at(0), true, at(9)).0, [], "the pod is stopping");
    }

    #[test]
    fn liveness_condemns_after_its_threshold_only() {
        let container = container(json!({"livenessProbe": {"failureThreshold": 2}}));
        let mut probes = followed();
        let mut record = |ok| probes.record(Kind::Liveness, "c1", &container, ok);
        assert_eq!(record(false), Effect::Nothing);
        assert_eq!(record(true), Effect::Nothing);
        assert_eq!(record(false), Effect::Nothing);
        assert_eq!(record(false), Effect::Condemned);
        assert_eq!(probes.due(&container, at(0), false, at(99)).0, [], "a condemned container is left alone");
    }

    #[test]
    fn others_wait_for_the_startup_probe() {
        let container = container(json!({"startupProbe": {}, "readinessProbe": {"successThreshold": 2}}));
        let mut probes = followed();
        assert_eq!(probes.due(&container, at(0), false, at(0)).0, [Kind::Startup]);
        assert!(!probes.started(&container));
        assert_eq!(probes.record(Kind::Startup, "c1", &container, true), Effect::Changed);
        assert!(probes.started(&container) && !probes.ready(&container));
        assert_eq!(probes.due(&container, at(0), false, at(0)).0, [Kind::Readiness]);
        assert_eq!(probes.record(Kind::Readiness, "c1", &container, true), Effect::Nothing);
        assert_eq!(probes.record(Kind::Readiness, "c1", &container, true), Effect::Changed);
        assert!(probes.ready(&container));
    }

    #[test]
    fn results_of_an_older_container_do_not_count() {
        let container = container(json!({"livenessProbe": {"failureThreshold": 1}}));
        let mut probes = followed();
        assert_eq!(probes.record(Kind::Liveness, "c0", &container, false), Effect::Nothing);
    }

    #[test]
    fn an_adopted_container_stays_ready() {
        let container = container(json!({"readinessProbe": {}, "startupProbe": {}}));
        let old = OldContainerStatus {
            container_id: "kelson://c1".into(),
            ready: true,
            started: Some(true),
            ..OldContainerStatus::default()
        };
        let mut probes = Probes::default();
        probes.follow("c1", Some(&old));
        assert!(probes.ready(&container) && probes.started(&container));
        probes.follow("c2", Some(&old));
        assert!(!probes.ready(&container));
    }
}
