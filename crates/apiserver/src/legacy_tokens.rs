//! Tokens of old, which live in Secrets and do not end: since when their uses are noted, and when each was last used.
//!
//! The controllers read both to find the ones that nobody needs (`legacy-serviceaccount-token-cleaner-controller`). A use
//! is a label with a date, so a Secret is written at most once a day.

use std::sync::Arc;

use apimachinery::status::Status;
use jiff::civil::Date;
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tracing::{debug, warn};

use crate::authn::service_account::{LAST_USED, Used};
use crate::bootstrap;
use crate::server::ApiServer;

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

/// The day as labels tell it.
pub fn today() -> String {
    crate::clock::now().strftime("%Y-%m-%d").to_string()
}

/// Says since when uses are noted; what is not a date is put right.
pub async fn tell_since(server: &Arc<ApiServer>) -> Result<(), Status> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": TRACKING, "namespace": "kube-system"},
        "data": {"since": today()},
    });
    bootstrap::reconcile(server, "", "configmaps", "kube-system", map, &with_date).await
}

fn with_date(present: &Value, wanted: &Value) -> Value {
    let mut new = present.clone();
    if present["data"]["since"].as_str().is_none_or(|text| text.parse::<Date>().is_err()) {
        new["data"]["since"] = wanted["data"]["since"].clone();
    }
    new
}

/// Notes uses while the server runs.
pub fn follow(server: &Arc<ApiServer>, uses: Receiver<Used>) {
    let own = server.clone();
    let uses = Arc::new(tokio::sync::Mutex::new(uses));
    server.tasks.keep("legacy-tokens", move |stop| note_uses(own.clone(), uses.clone(), stop));
}

async fn note_uses(own: Arc<ApiServer>, uses: Arc<tokio::sync::Mutex<Receiver<Used>>>, stop: Stop) {
    let mut uses = uses.lock().await;
    while let Some(Some(used)) = stop.or(uses.recv()).await {
        let (namespace, name) = (used.namespace.clone(), used.secret.clone());
        let secret = json!({"metadata": {"name": used.secret, "labels": {LAST_USED: used.day}}});
        match bootstrap::reconcile(&own, "", "secrets", &namespace, secret, &labelled).await {
            Ok(()) => debug!(namespace, name, "a token of old was used"),
            Err(status) => warn!(namespace, name, error = %status, "cannot note the use of a token"),
        }
    }
}

fn labelled(present: &Value, wanted: &Value) -> Value {
    let mut new = present.clone();
    new["metadata"]["labels"][LAST_USED] = wanted["metadata"]["labels"][LAST_USED].clone();
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_date_is_put_right() {
        let wanted = json!({"data": {"since": "2026-01-01"}});
        for (since, told) in [("2024-05-06", "2024-05-06"), ("yesterday", "2026-01-01")] {
            assert_eq!(with_date(&json!({"data": {"since": since}}), &wanted)["data"]["since"], told);
        }
        assert_eq!(with_date(&json!({}), &wanted)["data"]["since"], "2026-01-01");
    }
}
