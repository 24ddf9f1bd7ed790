//! Leader election on Leases, in upstream's protocol: candidates of both kinds can stand for the same lease.
//!
//! The holder renews every `retry_period`; others take over once the lease was not renewed for its duration, measured
//! on their own clock from when they saw it change, so that skewed clocks do no harm.

use std::future::Future;
use std::time::Duration;

use client::{Client, Error, Key, resources};
use jiff::Timestamp;
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::meta::micro_time;
use crate::plan::{Event, Reference};
use crate::recorder;
use crate::runtime::Clock;

/// How long telling of a change of leaders may take: nobody waits for it.
const TELLING: Duration = Duration::from_secs(1);

/// Who stands for which lease.
#[derive(Clone)]
pub struct LeaderElection {
    /// The client to read and write the lease with.
    pub client: Client,
    /// The lease's namespace.
    pub namespace: String,
    /// The lease's name.
    pub name: String,
    /// The candidate; must be unique.
    pub identity: String,
    /// How long others wait after the last renewal (upstream: 15 s).
    pub lease_duration: Duration,
    /// How long the holder keeps trying to renew before it gives up (upstream: 10 s).
    pub renew_deadline: Duration,
    /// The pause between attempts (upstream: 2 s).
    pub retry_period: Duration,
    /// The clock for the times in the lease.
    pub clock: Clock,
}

/// How an election ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Election {
    /// The stop was requested.
    Stopped,
    /// Another candidate holds the lease, or it could not be renewed in time.
    Lost,
}

/// The lease as last seen, and when.
struct Observed {
    lease: Value,
    at: Instant,
}

impl LeaderElection {
    /// Waits for the lease, runs `lead` while it is held, and releases it at the stop. `lead` gets a stop that is
    /// requested when the lease is lost.
    pub async fn run<F: Future<Output = ()>>(&self, stop: &Stop, lead: impl FnOnce(Stop) -> F) -> Election {
        let mut observed = None;
        loop {
            match self.attempt(&mut observed).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    warn!(lease = self.name, error = %telemetry::chain(&error), "cannot look at lease")
                }
            }
            if stop.or(tokio::time::sleep(self.retry_period)).await.is_none() {
                return Election::Stopped;
            }
        }
        info!(lease = self.name, identity = self.identity, "became leader");
        self.tell(&observed, "became leader").await;
        let term = stop.child();
        let work = lead(term.clone());
        tokio::pin!(work);
        let ended = tokio::select! {
            ended = self.renew(stop, &mut observed) => ended,
            () = &mut work => Election::Stopped,
        };
        term.request();
        self.tell(&observed, "stopped leading").await;
        match ended {
            Election::Stopped => self.release(&observed).await,
            Election::Lost => warn!(lease = self.name, "lost leadership"),
        }
        ended
    }

    /// Records an event about the lease, as well as that goes.
    async fn tell(&self, observed: &Option<Observed>, what: &str) {
        let Some(seen) = observed else { return };
        let field = |name: &str| seen.lease["metadata"][name].as_str().unwrap_or_default();
        let event = Event {
            about: Reference {
                api_version: resources::LEASES.api_version(),
                kind: resources::LEASES.kind.to_string(),
                key: Key::new(&self.namespace, &self.name),
                uid: field("uid").into(),
                revision: field("resourceVersion").into(),
            },
            warning: false,
            reason: "LeaderElection".to_owned(),
            message: format!("{} {what}", self.identity),
        };
        let event = recorder::single(&self.name, &event, (self.clock)());
        let api = self.client.api(&resources::CORE_EVENTS).within(&self.namespace);
        let told = tokio::time::timeout(TELLING, api.create::<serde::de::IgnoredAny>(&event)).await;
        if !matches!(told, Ok(Ok(_))) {
            debug!(lease = self.name, what, "the event was not recorded");
        }
    }

    async fn renew(&self, stop: &Stop, observed: &mut Option<Observed>) -> Election {
        let mut renewed = Instant::now();
        loop {
            if stop.or(tokio::time::sleep(self.retry_period)).await.is_none() {
                return Election::Stopped;
            }
            match tokio::time::timeout(self.renew_deadline, self.attempt(observed)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => return Election::Lost,
                Ok(Err(_)) | Err(_) if renewed.elapsed() < self.renew_deadline => {}
                Ok(Err(_)) | Err(_) => return Election::Lost,
            }
        }
    }

    /// Takes or renews the lease; `false` if somebody else holds it.
    async fn attempt(&self, observed: &mut Option<Observed>) -> Result<bool, Error> {
        let api = self.client.api(&resources::LEASES).within(&self.namespace);
        let now = (self.clock)();
        let Some(lease) = api.find::<Value>(&self.name).await? else {
            let created = api.create::<Value>(&self.first(now)).await;
            return match created {
                Ok(lease) => {
                    *observed = Some(Observed { lease, at: Instant::now() });
                    Ok(true)
                }
                Err(error) if error.is_already_exists() => Ok(false),
                Err(error) => Err(error),
            };
        };
        if observed.as_ref().is_none_or(|seen| seen.lease["spec"] != lease["spec"]) {
            *observed = Some(Observed { lease: lease.clone(), at: Instant::now() });
        }
        let seen_for = observed.as_ref().map_or(Duration::ZERO, |seen| seen.at.elapsed());
        let Some(next) = next_lease(&lease, &self.identity, self.lease_duration, seen_for, now) else {
            return Ok(false);
        };
        match api.replace::<Value>(&self.name, &next).await {
            Ok(lease) => {
                *observed = Some(Observed { lease, at: Instant::now() });
                Ok(true)
            }
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn first(&self, now: Timestamp) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self.lease_duration.as_secs(),
                "acquireTime": micro_time(now),
                "renewTime": micro_time(now),
                "leaseTransitions": 0,
            },
        })
    }

    /// Lets the next candidate in at once. A failure only costs it the lease's duration.
    async fn release(&self, observed: &Option<Observed>) {
        let Some(seen) = observed else { return };
        let mut lease = seen.lease.clone();
        let now = micro_time((self.clock)());
        lease["spec"]["holderIdentity"] = json!("");
        lease["spec"]["leaseDurationSeconds"] = json!(1);
        lease["spec"]["renewTime"] = now.clone();
        lease["spec"]["acquireTime"] = now;
        let api = self.client.api(&resources::LEASES).within(&self.namespace);
        if let Err(error) = api.replace::<Value>(&self.name, &lease).await {
            warn!(lease = self.name, error = %telemetry::chain(&error), "cannot release lease");
        }
    }
}

/// The lease as the candidate would write it, or nothing while another's is valid.
fn next_lease(
    lease: &Value,
    identity: &str,
    duration: Duration,
    unchanged_for: Duration,
    now: Timestamp,
) -> Option<Value> {
    let spec = &lease["spec"];
    let holder = spec["holderIdentity"].as_str().unwrap_or("");
    let valid_for = Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(0));
    if holder != identity && !holder.is_empty() && unchanged_for < valid_for {
        return None;
    }
    let mut next = lease.clone();
    if holder != identity {
        let transitions = spec["leaseTransitions"].as_u64().unwrap_or(0) + 1;
        next["spec"]["holderIdentity"] = json!(identity);
        next["spec"]["acquireTime"] = micro_time(now);
        next["spec"]["leaseTransitions"] = json!(transitions);
    }
    next["spec"]["leaseDurationSeconds"] = json!(duration.as_secs());
    next["spec"]["renewTime"] = micro_time(now);
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_taken_only_when_free_or_expired() {
        let lease = |holder: &str| json!({"spec":{"holderIdentity":holder,"leaseDurationSeconds":15,"leaseTransitions":3}});
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let take = |holder: &str, seconds| {
            next_lease(&lease(holder), "me", Duration::from_secs(15), Duration::from_secs(seconds), now)
                .map(|next| next["spec"]["leaseTransitions"].clone())
        };
        assert_eq!(take("other", 14), None);
        assert_eq!(take("other", 15), Some(json!(4)));
        assert_eq!(take("", 0), Some(json!(4)));
        assert_eq!(take("me", 0), Some(json!(3)), "a renewal is no transition");
    }
}
