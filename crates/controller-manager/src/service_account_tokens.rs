//! Tokens in Secrets: fills Secrets of type `kubernetes.io/service-account-token`, and removes those whose account is gone.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Plan};
use pki::{PkiError, PrivateKey};
use serde_json::json;

use crate::kinds::{Secret, ServiceAccount};

const KIND: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// What signs tokens, and what stands beside them.
#[derive(Clone)]
pub struct Tokens {
    /// Signs.
    pub key: Arc<PrivateKey>,
    /// The authority of the API server, in PEM.
    pub root_ca: Option<Arc<str>>,
}

/// What one Secret depends on.
pub struct View {
    secret: Arc<Secret>,
    account: Option<Arc<ServiceAccount>>,
    tokens: Tokens,
}

fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let secret = &*view.secret;
    let Some(account) = &view.account else {
        plan.delete(secret);
        return plan;
    };
    let uid = secret.metadata.annotation(ACCOUNT_UID);
    if uid.is_some_and(|uid| *uid != *account.metadata.uid) {
        plan.delete(secret);
        return plan;
    }
    if secret.has_token && uid.is_some() {
        return plan;
    }
    match token(&view.tokens.key, secret, account) {
        Ok(token) => {
            let mut data = json!({"token": STANDARD.encode(token), "namespace": STANDARD.encode(&*secret.metadata.namespace)});
            if let Some(pem) = &view.tokens.root_ca {
                data["ca.crt"] = json!(STANDARD.encode(&**pem));
            }
            plan.update(
                secret,
                json!({"metadata": {"annotations": {ACCOUNT_UID: account.metadata.uid}}, "data": data}),
            );
        }
        Err(error) => {
            plan.retry(telemetry::chain(&error).to_string());
        }
    }
    plan
}

/// A token without end, valid as long as its Secret and its account are.
fn token(key: &PrivateKey, secret: &Secret, account: &ServiceAccount) -> Result<String, PkiError> {
    let (namespace, name) = (&*account.metadata.namespace, &*account.metadata.name);
    let header = json!({"alg": key.jws_algorithm(), "kid": key.public().key_id()});
    let claims = json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": secret.metadata.name,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": account.metadata.uid,
        "sub": format!("system:serviceaccount:{namespace}:{name}"),
    });
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    let signature = key.sign_jws(signed.as_bytes())?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}

fn of_account(caches: &Caches, change: &Change<ServiceAccount>) -> Vec<Key> {
    let metadata = &change.latest().metadata;
    let secrets = caches.of::<Secret>().in_namespace(&metadata.namespace);
    let own = |secret: &&Arc<Secret>| {
        &*secret.kind == KIND && secret.metadata.annotation(ACCOUNT) == Some(&metadata.name)
    };
    secrets.iter().filter(own).map(|secret| secret.key()).collect()
}

/// The controller.
pub fn controller(tokens: Tokens) -> Controller {
    let gather = move |context: &Context| {
        let secret = context.object::<Secret>().filter(|secret| &*secret.kind == KIND)?;
        let name = secret.metadata.annotation(ACCOUNT)?;
        let account = context.caches.of::<ServiceAccount>().get(&Key::new(&secret.metadata.namespace, name));
        Some(View { account, secret, tokens: tokens.clone() })
    };
    Controller::new("serviceaccount-token-controller", gather, reconcile)
        .acting_as("")
        .events_from("serviceaccount-token-controller")
        .watching::<Secret>(|_, change| match &change.new {
            Some(secret) if &*secret.kind == KIND => vec![change.key()],
            _ => Vec::new(),
        })
        .watching::<ServiceAccount>(of_account)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use pki::Algorithm;
    use serde_json::Value;

    fn plan(secret: Value, account: Option<Value>) -> (Plan, Arc<PrivateKey>) {
        let key = Arc::new(PrivateKey::generate(Algorithm::EcdsaP256).unwrap());
        let tokens = Tokens { key: key.clone(), root_ca: Some("PEM".into()) };
        let account = account.map(|account| Arc::new(object(account)));
        (reconcile(&View { secret: Arc::new(object(secret)), account, tokens }), key)
    }

    fn secret(uid: Option<&str>) -> Value {
        json!({"metadata":{"name":"s","namespace":"n","annotations":{ACCOUNT:"a",ACCOUNT_UID:uid}},"type":KIND})
    }

    #[test]
    fn a_secret_gets_a_token_that_verifies() {
        let bare = json!({"metadata":{"name":"s","namespace":"n","annotations":{ACCOUNT:"a"}},"type":KIND});
        let (plan, key) = plan(bare, Some(json!({"metadata":{"name":"a","namespace":"n","uid":"u1"}})));
        let change = plan.changes()[0].1.clone();
        let token =
            String::from_utf8(STANDARD.decode(change["data"]["token"].as_str().unwrap()).unwrap()).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        assert!(key.public().verify_jws("ES256", signed.as_bytes(), &signature).unwrap());
        assert_eq!(change["metadata"]["annotations"][ACCOUNT_UID], "u1");
    }

    #[test]
    fn a_secret_of_a_lost_account_goes() {
        assert_eq!(plan(secret(Some("u1")), None).0.deletes(), ["s"]);
        let other = json!({"metadata":{"name":"a","namespace":"n","uid":"u2"}});
        assert_eq!(plan(secret(Some("u1")), Some(other)).0.deletes(), ["s"]);
    }
}
