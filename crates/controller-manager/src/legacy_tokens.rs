//! Puts an end to tokens in Secrets that were made for accounts of old and that nobody uses: first they are marked as
//! invalid, and a period later they go. The API server notes when a token was used.

use std::sync::Arc;

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Plan};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::{ConfigMap, Pod, Secret, ServiceAccount};

const KIND: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Tells since when uses are noted; before that, nothing is known of any.
pub const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// What one Secret depends on.
pub struct View {
    secret: Arc<Secret>,
    /// Whether its account lists it: those that people made themselves are theirs.
    listed: bool,
    /// Whether a pod mounts it.
    mounted: bool,
    /// Since when uses are noted.
    tracked: Option<Timestamp>,
    period: SignedDuration,
    now: Timestamp,
}

fn day(text: &str) -> Option<Timestamp> {
    let date: Date = text.parse().ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// Decides on one Secret.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let secret = &*view.secret;
    let Some(tracked) = view.tracked.filter(|_| view.listed && !view.mounted) else { return plan };
    let label = |name: &str| secret.metadata.label(name).and_then(day);
    let used = label(LAST_USED).unwrap_or(tracked).max(tracked).max(secret.metadata.created());
    let after = |at: Timestamp| at.checked_add(view.period).unwrap_or(Timestamp::MAX);
    // Labels tell days: a use of the same day came before.
    let day_of_use = used.to_zoned(TimeZone::UTC).start_of_day().map_or(used, |day| day.timestamp());
    let invalid = label(INVALID_SINCE).filter(|invalid| *invalid >= day_of_use);
    let due = after(invalid.unwrap_or(used));
    if due > view.now {
        plan.look_again(due);
        return plan;
    }
    match invalid {
        Some(_) => {
            plan.delete(secret).at_revision(&secret.metadata);
        }
        None => {
            let today = view.now.to_zoned(TimeZone::UTC).date().to_string();
            plan.patch(secret, json!({"metadata": {"labels": {INVALID_SINCE: today}}}));
        }
    }
    plan
}

fn tracked(caches: &Caches) -> Option<Timestamp> {
    let map = caches.of::<ConfigMap>().get(&Key::new("kube-system", TRACKING))?;
    day(map.data.get("since")?)
}

fn mounts(pod: &Pod, secret: &str) -> bool {
    pod.spec
        .volumes
        .iter()
        .any(|volume| volume.secret.as_ref().is_some_and(|own| *own.secret_name == *secret))
}

/// The controller; tokens that were not used for `period` end.
pub fn controller(period: SignedDuration) -> Controller {
    let gather = move |context: &Context| {
        let secret = context.object::<Secret>().filter(|secret| &*secret.kind == KIND)?;
        let (namespace, name) = (&secret.metadata.namespace, &secret.metadata.name);
        let account = secret.metadata.annotation(ACCOUNT)?;
        let account = context.caches.of::<ServiceAccount>().get(&Key::new(namespace, account));
        let listed = account.is_some_and(|account| account.secrets.iter().any(|own| own.name == *name));
        let mounted = context.caches.of::<Pod>().in_namespace(namespace).iter().any(|pod| mounts(pod, name));
        let tracked = tracked(&context.caches);
        Some(View { listed, mounted, tracked, period, now: context.now, secret })
    };
    let all = |caches: &Caches| -> Vec<Key> {
        let secrets = caches.of::<Secret>().list();
        secrets.iter().filter(|secret| &*secret.kind == KIND).map(|secret| secret.key()).collect()
    };
    Controller::new("legacy-serviceaccount-token-cleaner-controller", gather, reconcile)
        .acting_as("legacy-service-account-token-cleaner")
        .workers(1)
        .watching::<Secret>(|_, change| match &change.new {
            Some(secret) if &*secret.kind == KIND => vec![change.key()],
            _ => Vec::new(),
        })
        .watching::<ConfigMap>(move |caches, change: &Change<ConfigMap>| {
            if &*change.latest().metadata.name == TRACKING { all(caches) } else { Vec::new() }
        })
        .reading_kind::<ServiceAccount>()
        .reading_kind::<Pod>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn plan(labels: Value, change: impl Fn(&mut View)) -> Plan {
        let secret = json!({"metadata":{"name":"s","namespace":"n","labels":labels},"type":KIND});
        let mut view = View {
            secret: Arc::new(object(secret)),
            listed: true,
            mounted: false,
            tracked: day("2024-01-01"),
            period: SignedDuration::from_hours(24 * 365),
            now: now(),
        };
        change(&mut view);
        reconcile(&view)
    }

    #[test]
    fn an_unused_token_is_marked_and_then_goes() {
        let marked = plan(json!({LAST_USED:"2024-06-01"}), |_| {});
        assert_eq!(marked.changes()[0].1["metadata"]["labels"], json!({INVALID_SINCE:"2026-01-01"}));
        let old = plan(json!({LAST_USED:"2023-06-01",INVALID_SINCE:"2024-12-01"}), |_| {});
        assert_eq!(old.deletes(), ["s"]);
        let fresh = plan(json!({INVALID_SINCE:"2025-06-01"}), |_| {});
        assert!(fresh.is_empty() && fresh.requeue_at.is_some());
        assert_eq!(
            plan(json!({LAST_USED:"2024-12-15",INVALID_SINCE:"2024-12-01"}), |_| {}).deletes().len(),
            0
        );
    }

    #[test]
    fn tokens_in_use_and_tokens_of_people_stay() {
        assert!(plan(json!({LAST_USED:"2025-12-01"}), |_| {}).is_empty());
        assert!(plan(json!({}), |view| view.listed = false).is_empty());
        assert!(plan(json!({}), |view| view.mounted = true).is_empty());
        assert!(plan(json!({}), |view| view.tracked = None).is_empty());
        assert!(plan(json!({}), |view| view.tracked = day("2025-06-01")).is_empty(), "too early to know");
        let user = pod("p", json!({"spec":{"volumes":[{"name":"v","secret":{"secretName":"s"}}]}}));
        assert!(mounts(&user, "s") && !mounts(&user, "t"));
    }
}
