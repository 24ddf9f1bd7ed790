//! The lease by which each API server says that it is there, and the end of leases whose servers are gone.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::meta::Meta;
use apimachinery::time;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::bootstrap;
use crate::context::Context;
use crate::server::ApiServer;
use crate::user::UserInfo;
use crate::verbs::delete::DeleteOptions;

const GROUP: &str = "coordination.k8s.io";
const NAMESPACE: &str = "kube-system";
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOST: &str = "kubernetes.io/hostname";
/// How long a silent server is believed to be there: upstream's hour.
const BELIEVED: i64 = 3600;
/// How often it speaks. Upstream does so every ten seconds, which an idle store would feel.
const SPEAK: i64 = 600;
/// How often the leases in the cache are looked at.
const LOOK: Duration = Duration::from_secs(60);

/// A name in upstream's form for a server on this host.
fn name(host: &str) -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha256::digest(host.as_bytes());
    let number = hash.iter().take(16).fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
    // 26 letters of five bits; the last one has only three.
    let letter = |index: u32| {
        let bits = if index == 25 { number << 2 } else { number >> (123 - 5 * index) };
        char::from(LETTERS[(bits & 31) as usize])
    };
    format!("apiserver-{}", (0..26).map(letter).collect::<String>())
}

/// What this server is called in metrics: a name that tells nothing of its host.
pub fn hash() -> String {
    let digest = Sha256::digest(name(&host()).as_bytes());
    digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Whether nobody has spoken for this lease in its time.
fn is_over(lease: &Value, now: Timestamp) -> bool {
    let spec = &lease["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let (Some(renewed), Some(seconds)) = (renewed, spec["leaseDurationSeconds"].as_i64()) else {
        return false;
    };
    renewed.checked_add(SignedDuration::from_secs(seconds)).is_ok_and(|end| end < now)
}

/// Speaks, and looks after the others, while the server runs.
pub fn follow(server: &Arc<ApiServer>) {
    let own = server.clone();
    let host = host();
    let (name, holder) = (name(&host), format!("{}_{}", name(&host), own.new_uid()));
    server.tasks.keep("identity", move |stop| {
        let (own, name, holder, host) = (own.clone(), name.clone(), holder.clone(), host.clone());
        async move {
            loop {
                look(&own, &name, &holder, &host).await;
                if stop.or(tokio::time::sleep(LOOK)).await.is_none() {
                    return;
                }
            }
        }
    });
}

async fn look(server: &Arc<ApiServer>, name: &str, holder: &str, host: &str) {
    let now = crate::clock::now();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {IDENTITY: "kube-apiserver", HOST: host}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": BELIEVED, "renewTime": time::micros(now)},
    });
    let renewed = |present: &Value, wanted: &Value| {
        let said = present["spec"]["renewTime"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
        let fresh = said.is_some_and(|said| now.duration_since(said).as_secs() < SPEAK);
        if fresh && present["spec"]["holderIdentity"] == wanted["spec"]["holderIdentity"] {
            return present.clone();
        }
        let mut new = present.clone();
        new["metadata"]["labels"] = wanted["metadata"]["labels"].clone();
        new["spec"] = wanted["spec"].clone();
        new
    };
    if let Err(status) = bootstrap::reconcile(server, GROUP, "leases", NAMESPACE, lease, &renewed).await {
        warn!(error = %status, "cannot renew this server's lease");
    }
    for lease in leases(server) {
        if lease.name() == name || !is_over(&lease, now) {
            continue;
        }
        let Ok(resource) = server.builtin(GROUP, "leases") else { return };
        let user = Arc::new(UserInfo::loopback());
        let context = Context::internal(user, resource, "delete", NAMESPACE, lease.name());
        match server.delete_object(&context, &DeleteOptions::default()).await {
            Ok(_) => {}
            Err(status) if status.code == 404 => {}
            Err(status) => warn!(error = %status, lease = lease.name(), "cannot remove a server's lease"),
        }
    }
}

/// The leases of all servers.
fn leases(server: &ApiServer) -> Vec<Value> {
    let Ok(resource) = server.builtin(GROUP, "leases") else { return Vec::new() };
    let Some(cache) = server.hub.cache(&resource.prefix) else { return Vec::new() };
    let entries = cache.snapshot(&resource.collection(NAMESPACE), 0).entries;
    let of_server = |entry: &Arc<crate::cache::entry::Entry>| {
        entry.labels().iter().any(|(key, value)| &**key == IDENTITY && &**value == "kube-apiserver")
    };
    entries.iter().filter(|entry| of_server(entry)).map(|entry| entry.parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_upstreams_form() {
        // `printf host | sha256sum`, its first sixteen bytes in base32.
        assert_eq!(name("host"), "apiserver-i5ak4y2hwalsyajfj72vxls274");
    }

    #[test]
    fn a_lease_ends_with_its_time() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let lease = |renewed: &str| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": 60}});
        assert!(is_over(&lease("2026-01-01T11:58:00.000000Z"), now));
        assert!(!is_over(&lease("2026-01-01T11:59:30.000000Z"), now));
        assert!(!is_over(&json!({"spec": {}}), now));
    }
}
