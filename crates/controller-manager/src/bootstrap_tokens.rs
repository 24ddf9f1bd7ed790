//! Bootstrap tokens: removes expired ones, and signs the public cluster information with the valid ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use controller_runtime::{Context, Controller, Key, Plan, difference};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{ConfigMap, Secret};

const KIND: &str = "bootstrap.kubernetes.io/token";
const SIGNATURE: &str = "jws-kubeconfig-";

impl Secret {
    fn entry(&self, name: &str) -> Option<String> {
        String::from_utf8(STANDARD.decode(&**self.data.get(name)?).ok()?).ok()
    }

    fn expires(&self) -> Option<Timestamp> {
        self.entry("expiration")?.trim().parse().ok()
    }

    fn is_bootstrap_token(&self) -> bool {
        &*self.kind == KIND && &*self.metadata.namespace == "kube-system"
    }
}

/// What one token's stay depends on.
pub struct View {
    token: Arc<Secret>,
    now: Timestamp,
}

fn clean(view: &View) -> Plan {
    let mut plan = Plan::default();
    match view.token.expires() {
        Some(at) if at <= view.now => {
            plan.delete(&*view.token).at_revision(&view.token.metadata);
        }
        Some(at) => {
            plan.look_again(at);
        }
        None => {}
    }
    plan
}

/// Removes expired tokens.
pub fn cleaner() -> Controller {
    let gather = |context: &Context| {
        let token = context.object::<Secret>().filter(|secret| secret.is_bootstrap_token())?;
        Some(View { token, now: context.now })
    };
    Controller::new("token-cleaner-controller", gather, clean).acting_as("token-cleaner").for_kind::<Secret>()
}

/// What the signatures depend on.
pub struct Public {
    map: Arc<ConfigMap>,
    tokens: Vec<Arc<Secret>>,
    now: Timestamp,
}

fn sign(view: &Public) -> Plan {
    let mut plan = Plan::default();
    let Some(content) = view.map.data.get("kubeconfig") else { return plan };
    let mut wanted: BTreeMap<String, String> = BTreeMap::new();
    for token in &view.tokens {
        let valid = token.expires().is_none_or(|at| at > view.now)
            && token.entry("usage-bootstrap-signing").as_deref() == Some("true");
        let (Some(id), Some(secret)) = (token.entry("token-id"), token.entry("token-secret")) else {
            continue;
        };
        if valid && *token.metadata.name == *format!("bootstrap-token-{id}") {
            wanted.insert(format!("{SIGNATURE}{id}"), signature(content, &id, &secret));
            if let Some(at) = token.expires() {
                plan.look_again(at);
            }
        }
    }
    let signatures = |data: &mut dyn Iterator<Item = (String, String)>| -> Value {
        Value::Object(data.map(|(name, value)| (name, json!(value))).collect())
    };
    let present = view.map.data.iter().filter(|(name, _)| name.starts_with(SIGNATURE));
    let old = signatures(&mut present.map(|(name, value)| (name.to_string(), value.to_string())));
    if let Some(change) = difference(&old, &signatures(&mut wanted.into_iter())) {
        plan.update(&*view.map, json!({"data": change}));
    }
    plan
}

/// A detached JWS over the content: header and signature, without what lies between.
fn signature(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret.as_bytes());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, signed.as_bytes())))
}

/// Signs the cluster information in `kube-public`.
pub fn signer() -> Controller {
    let place = || Key::new("kube-public", "cluster-info");
    let gather = move |context: &Context| {
        let map = context.caches.of::<ConfigMap>().get(&place())?;
        let mut tokens = context.caches.of::<Secret>().in_namespace("kube-system");
        tokens.retain(|secret| secret.is_bootstrap_token());
        Some(Public { map, tokens, now: context.now })
    };
    Controller::new("bootstrap-signer-controller", gather, sign)
        .acting_as("bootstrap-signer")
        .watching::<ConfigMap>(
            move |_, change| if change.key() == place() { vec![place()] } else { Vec::new() },
        )
        .watching::<Secret>(
            move |_, change| {
                if change.latest().is_bootstrap_token() { vec![place()] } else { Vec::new() }
            },
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};

    fn token(expiration: &str) -> Arc<Secret> {
        let encode = |text: &str| STANDARD.encode(text);
        Arc::new(object(
            json!({"metadata":{"name":"bootstrap-token-abcdef","namespace":"kube-system"},"type":KIND,"data":{
            "token-id":encode("abcdef"),"token-secret":encode("0123456789abcdef"),"expiration":encode(expiration),
            "usage-bootstrap-signing":encode("true")}}),
        ))
    }

    #[test]
    fn a_token_goes_when_it_expires() {
        let plan = |at: &str| clean(&View { token: token(at), now: now() });
        assert_eq!(plan("2026-01-01T11:00:00Z").deletes().len(), 1);
        assert_eq!(plan("2026-01-01T13:00:00Z").requeue_at.unwrap().to_string(), "2026-01-01T13:00:00Z");
    }

    #[test]
    fn valid_tokens_sign_and_stale_signatures_go() {
        let map = |data: Value| {
            Arc::new(object(
                json!({"metadata":{"name":"cluster-info","namespace":"kube-public"},"data":data}),
            ))
        };
        let first = sign(&Public {
            map: map(json!({"kubeconfig":"x"})),
            tokens: vec![token("2027-01-01T00:00:00Z")],
            now: now(),
        });
        let text = first.changes()[0].1["data"]["jws-kubeconfig-abcdef"].as_str().unwrap().to_owned();
        assert!(text.contains(".."), "{text}");
        let signed = map(json!({"kubeconfig":"x","jws-kubeconfig-abcdef":text,"jws-kubeconfig-old":"y"}));
        let second = sign(&Public { map: signed, tokens: vec![token("2027-01-01T00:00:00Z")], now: now() });
        assert_eq!(second.changes()[0].1["data"], json!({"jws-kubeconfig-old":null}));
    }
}
