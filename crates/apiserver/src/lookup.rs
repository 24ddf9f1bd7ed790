//! Looks into the caches for those who need a fact: token checks, bootstrap tokens, admission.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::meta::Meta;
use base64::Engine;
use serde_json::Value;

use crate::authn::bootstrap_token::Tokens;
use crate::authn::service_account::{HeldToken, INVALID_SINCE, Known, LAST_USED, Lookup};
use crate::cache::Hub;

/// Core objects by name.
pub struct CacheLookup {
    hub: Arc<Hub>,
}

impl CacheLookup {
    /// Looks into this hub.
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }

    fn object(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let stored = if resource == "nodes" { "minions" } else { resource };
        let prefix = format!("/registry/{stored}/");
        let key = if namespace.is_empty() {
            format!("{prefix}{name}")
        } else {
            format!("{prefix}{namespace}/{name}")
        };
        Some(self.hub.cache(prefix.as_bytes())?.get(key.as_bytes())?.parse())
    }
}

fn secret_field(secret: &Value, field: &str) -> Option<Vec<u8>> {
    base64::engine::general_purpose::STANDARD.decode(secret["data"][field].as_str()?).ok()
}

impl Lookup for CacheLookup {
    fn find(&self, resource: &str, namespace: &str, name: &str) -> Option<Known> {
        let object = self.object(resource, namespace, name)?;
        Some(Known { uid: object.uid().to_owned(), deleted: object.deleted() })
    }

    fn secret_token(&self, namespace: &str, name: &str) -> Option<HeldToken> {
        let secret = self.object("secrets", namespace, name).filter(|secret| !secret.is_terminating())?;
        let label = |name: &str| secret["metadata"]["labels"][name].as_str();
        Some(HeldToken {
            token: secret_field(&secret, "token")?,
            last_used: label(LAST_USED).map(str::to_owned),
            is_invalid: label(INVALID_SINCE).is_some_and(|day| !day.is_empty()),
        })
    }
}

impl Tokens for CacheLookup {
    fn secret(&self, name: &str) -> Option<(String, HashMap<String, String>)> {
        let secret = self.object("secrets", "kube-system", name).filter(|secret| !secret.is_terminating())?;
        let data = secret["data"].as_object()?;
        let fields = data
            .keys()
            .filter_map(|key| Some((key.clone(), String::from_utf8(secret_field(&secret, key)?).ok()?)))
            .collect();
        Some((secret["type"].as_str().unwrap_or_default().to_owned(), fields))
    }
}
