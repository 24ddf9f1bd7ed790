//! Service account tokens: issued by TokenRequest, checked against the objects they are bound to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;

use super::jwt::{self, JwtError, SigningKey, VerifyingKey};
use crate::user::UserInfo;

const LEGACY_ISSUER: &str = "kubernetes/serviceaccount";
/// By how much clocks may differ; a bound object's token stays good for as long after its deletion began.
const LEEWAY_SECONDS: i64 = 60;

/// A bound object as a token names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundObject {
    /// The plural resource: `pods`, `secrets`, `nodes`.
    pub resource: &'static str,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What is known of an object that a token depends on.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its uid.
    pub uid: String,
    /// When its deletion began.
    pub deleted: Option<Timestamp>,
}

/// A label with the day of the last use of a token of old.
pub const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
/// A label with the day since which such a token is not taken any more.
pub const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// What a secret says of the token of old in it.
#[derive(Clone, Debug)]
pub struct HeldToken {
    /// The token.
    pub token: Vec<u8>,
    /// The day of its last use.
    pub last_used: Option<String>,
    /// Whether it was marked as not to be used.
    pub is_invalid: bool,
}

/// A token of old was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    /// The secret's namespace.
    pub namespace: String,
    /// The secret.
    pub secret: String,
    /// The day.
    pub day: String,
}

/// Looks up objects that tokens depend on.
pub trait Lookup: Send + Sync {
    /// The core object, if it exists.
    fn find(&self, resource: &str, namespace: &str, name: &str) -> Option<Known>;
    /// The token that a legacy secret holds.
    fn secret_token(&self, namespace: &str, name: &str) -> Option<HeldToken>;
}

/// Why a token was refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The signature or form.
    #[error("{0}")]
    Jwt(#[from] JwtError),
    /// A claim.
    #[error("{0}")]
    Claim(&'static str),
    /// It is for others.
    #[error("token audiences {own:?} is invalid for the target audiences {wanted:?}", own = Words(.own), wanted = Words(.wanted))]
    Audience {
        /// Whom it is for.
        own: Vec<String>,
        /// Who asks.
        wanted: Vec<String>,
    },
    /// The account is not there.
    #[error("serviceaccounts {0:?} not found")]
    NoAccount(String),
    /// The account is on its way out.
    #[error("service account {0} has been deleted")]
    AccountDeleted(String),
    /// An object of that name is there, but it is another one.
    #[error("{what} UID ({uid}) does not match {whose}claim ({claimed})")]
    Another {
        /// Which kind.
        what: &'static str,
        /// The uid it has.
        uid: String,
        /// Which reference of the token.
        whose: &'static str,
        /// The uid the token has.
        claimed: String,
    },
    /// An object it is bound to is not there any more.
    #[error("service account token has been invalidated")]
    Gone,
    /// A token of old that nobody used for long.
    #[error(
        "the token in secret {namespace}/{secret} for service account {namespace}/{account} has been marked invalid: \
         remove the label {INVALID_SINCE} from the secret to use it again"
    )]
    Invalid {
        /// Of secret and account.
        namespace: String,
        /// Holds the token.
        secret: String,
        /// Whom it is for.
        account: String,
    },
}

/// Words as Go lists them: quoted, with spaces between.
struct Words<'a>(&'a [String]);

impl std::fmt::Debug for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(|word| format!("{word:?}")).collect();
        write!(f, "[{}]", words.join(" "))
    }
}

/// What to put into a token.
#[derive(Clone, Debug)]
pub struct TokenSpec<'a> {
    /// The service account's namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its uid.
    pub uid: &'a str,
    /// Who may take it.
    pub audiences: &'a [String],
    /// What it is bound to.
    pub bound: Option<&'a BoundObject>,
    /// The node of a bound pod.
    pub node: Option<&'a BoundObject>,
    /// When it begins.
    pub now: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// When its use begins to be warned about.
    pub warn_after: Option<Timestamp>,
    /// The token's own id.
    pub id: &'a str,
}

/// Issues and checks tokens.
pub struct ServiceAccounts {
    signing: Option<SigningKey>,
    keys: Vec<VerifyingKey>,
    issuers: Vec<String>,
    audiences: Vec<String>,
    lookup: Arc<dyn Lookup>,
    /// Where uses of tokens of old are told.
    uses: OnceLock<Sender<Used>>,
    /// Tokens that were good, for the metrics.
    pub valid: AtomicU64,
    /// Of these, how many were older than those who hold them should use,
    pub stale: AtomicU64,
    /// and how many live in a secret.
    pub legacy: AtomicU64,
    /// How many of the latter were not taken because they had not been used for long.
    pub invalid_legacy: AtomicU64,
}

impl ServiceAccounts {
    /// The first issuer signs; all are accepted. The first audience is the default.
    pub fn new(
        signing: Option<SigningKey>,
        mut keys: Vec<VerifyingKey>,
        issuers: Vec<String>,
        audiences: Vec<String>,
        lookup: Arc<dyn Lookup>,
    ) -> Self {
        if let Some(signing) = &signing
            && !keys.contains(&signing.public)
        {
            keys.insert(0, signing.public.clone());
        }
        Self {
            signing,
            keys,
            issuers,
            audiences,
            lookup,
            uses: OnceLock::new(),
            valid: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            legacy: AtomicU64::new(0),
            invalid_legacy: AtomicU64::new(0),
        }
    }

    /// Lets uses of tokens of old be known.
    pub fn tell_uses(&self, uses: Sender<Used>) {
        let _ = self.uses.set(uses); // the first one keeps it
    }

    /// The issuer of new tokens.
    pub fn issuer(&self) -> &str {
        self.issuers.first().map_or("", String::as_str)
    }

    /// Whom tokens are for if nobody says.
    pub fn default_audiences(&self) -> &[String] {
        &self.audiences
    }

    /// The keys that verify tokens.
    pub fn keys(&self) -> &[VerifyingKey] {
        &self.keys
    }

    /// Whether `token` says that it is from here.
    pub fn claims_issuer(&self, token: &str) -> bool {
        jwt::unverified_claims(token).is_some_and(|claims| {
            claims["iss"]
                .as_str()
                .is_some_and(|issuer| issuer == LEGACY_ISSUER || self.issuers.iter().any(|own| own == issuer))
        })
    }

    /// Signs a token.
    pub fn issue(&self, spec: &TokenSpec<'_>) -> Result<String, TokenError> {
        let signing =
            self.signing.as_ref().ok_or(TokenError::Jwt(JwtError::Key("no signing key configured")))?;
        let mut private = json!({
            "namespace": spec.namespace,
            "serviceaccount": {"name": spec.name, "uid": spec.uid},
        });
        for bound in [spec.bound, spec.node].into_iter().flatten() {
            let field = bound.resource.trim_end_matches('s');
            private[field] = match bound.uid.as_str() {
                // A node that is not there is named all the same.
                "" => json!({"name": bound.name}),
                uid => json!({"name": bound.name, "uid": uid}),
            };
        }
        if let Some(warn_after) = spec.warn_after {
            private["warnafter"] = json!(warn_after.as_second());
        }
        let claims = json!({
            "aud": spec.audiences,
            "exp": spec.expires.as_second(),
            "iat": spec.now.as_second(),
            "iss": self.issuer(),
            "jti": spec.id,
            "kubernetes.io": private,
            "nbf": spec.now.as_second(),
            "sub": format!("system:serviceaccount:{}:{}", spec.namespace, spec.name),
        });
        Ok(signing.sign(&claims)?)
    }

    /// The user of a token and the audiences it is good for here.
    pub fn authenticate(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<(UserInfo, Vec<String>), TokenError> {
        let found = self.judge(token, audiences, now)?;
        self.valid.fetch_add(1, Ordering::Relaxed);
        Ok(found)
    }

    fn judge(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<(UserInfo, Vec<String>), TokenError> {
        let claims = jwt::verify(token, &self.keys)?;
        if claims["iss"] == LEGACY_ISSUER {
            return self.legacy(token, &claims, audiences, now);
        }
        if !claims["iss"].as_str().is_some_and(|issuer| self.issuers.iter().any(|own| own == issuer)) {
            return Err(TokenError::Claim("unknown issuer"));
        }
        let second = now.as_second();
        // A minute of leeway, as clocks of several servers differ.
        if claims["exp"].as_i64().is_none_or(|end| end + LEEWAY_SECONDS < second) {
            return Err(TokenError::Claim("service account token has expired"));
        }
        if claims["nbf"].as_i64().is_some_and(|begin| begin > second + LEEWAY_SECONDS) {
            return Err(TokenError::Claim("service account token is not valid yet"));
        }
        let wanted = if audiences.is_empty() { &self.audiences } else { audiences };
        let own: Vec<&str> = match &claims["aud"] {
            Value::String(one) => vec![one],
            Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let good: Vec<String> =
            wanted.iter().filter(|audience| own.contains(&audience.as_str())).cloned().collect();
        if good.is_empty() {
            let own = own.into_iter().map(str::to_owned).collect();
            return Err(TokenError::Audience { own, wanted: wanted.to_vec() });
        }
        let private = &claims["kubernetes.io"];
        let namespace = private["namespace"].as_str().ok_or(TokenError::Claim("no namespace"))?;
        let account = &private["serviceaccount"];
        let name = account["name"].as_str().ok_or(TokenError::Claim("no service account"))?;
        self.check("serviceaccounts", namespace, account, now)?;
        let mut user = UserInfo::service_account(namespace, name);
        user.uid = account["uid"].as_str().unwrap_or_default().to_owned();
        let mut extra = |key: &str, value: &Value| {
            if let Some(value) = value.as_str() {
                user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(id) = claims["jti"].as_str() {
            extra("credential-id", &json!(format!("JTI={id}")));
        }
        if private["pod"].is_object() {
            self.check("pods", namespace, &private["pod"], now)?;
            extra("pod-name", &private["pod"]["name"]);
            extra("pod-uid", &private["pod"]["uid"]);
            extra("node-name", &private["node"]["name"]);
            extra("node-uid", &private["node"]["uid"]);
        } else if private["node"].is_object() {
            self.check("nodes", "", &private["node"], now)?;
            extra("node-name", &private["node"]["name"]);
            extra("node-uid", &private["node"]["uid"]);
        } else if private["secret"].is_object() {
            self.check("secrets", namespace, &private["secret"], now)?;
        }
        if private["warnafter"].as_i64().is_some_and(|after| after < second) {
            self.stale.fetch_add(1, Ordering::Relaxed);
        }
        Ok((user, good))
    }

    fn check(
        &self,
        resource: &str,
        namespace: &str,
        named: &Value,
        now: Timestamp,
    ) -> Result<(), TokenError> {
        let name = named["name"].as_str().unwrap_or_default();
        let (what, whose) = match resource {
            "serviceaccounts" => ("service account", ""),
            "pods" => ("pod", "service account pod ref "),
            "secrets" => ("secret", "service account secret ref "),
            _ => ("node", "service account node ref "),
        };
        let is_account = resource == "serviceaccounts";
        let Some(known) = self.lookup.find(resource, namespace, name) else {
            return Err(if is_account { TokenError::NoAccount(name.to_owned()) } else { TokenError::Gone });
        };
        let claimed = named["uid"].as_str().unwrap_or_default();
        if claimed != known.uid {
            return Err(TokenError::Another { what, uid: known.uid, whose, claimed: claimed.to_owned() });
        }
        if known.deleted.is_some_and(|when| when.as_second() + LEEWAY_SECONDS < now.as_second()) {
            return Err(if is_account {
                TokenError::AccountDeleted(format!("{namespace}/{name}"))
            } else {
                TokenError::Gone
            });
        }
        Ok(())
    }

    /// Tokens that live in a secret and do not end.
    fn legacy(
        &self,
        token: &str,
        claims: &Value,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<(UserInfo, Vec<String>), TokenError> {
        let good = if audiences.is_empty() {
            self.audiences.clone()
        } else {
            audiences.iter().filter(|audience| self.audiences.contains(audience)).cloned().collect()
        };
        if good.is_empty() {
            let own = self.audiences.clone();
            return Err(TokenError::Audience { own, wanted: audiences.to_vec() });
        }
        let part = |name: &str| {
            claims[format!("kubernetes.io/serviceaccount/{name}")]
                .as_str()
                .ok_or(TokenError::Claim("incomplete"))
        };
        let namespace = part("namespace")?;
        let (name, uid, secret) =
            (part("service-account.name")?, part("service-account.uid")?, part("secret.name")?);
        let known = self
            .lookup
            .find("serviceaccounts", namespace, name)
            .filter(|known| known.uid == uid && known.deleted.is_none())
            .ok_or_else(|| TokenError::NoAccount(name.to_owned()))?;
        let held = self.lookup.secret_token(namespace, secret).filter(|held| held.token == token.as_bytes());
        let held = held.ok_or(TokenError::Gone)?;
        let day = now.strftime("%Y-%m-%d").to_string();
        if let Some(uses) = self.uses.get().filter(|_| held.last_used.as_ref() != Some(&day)) {
            // What does not fit now is told with the next use.
            let _ = uses.try_send(Used { namespace: namespace.to_owned(), secret: secret.to_owned(), day });
        }
        if held.is_invalid {
            self.invalid_legacy.fetch_add(1, Ordering::Relaxed);
            let (secret, account) = (secret.to_owned(), name.to_owned());
            return Err(TokenError::Invalid { namespace: namespace.to_owned(), secret, account });
        }
        self.legacy.fetch_add(1, Ordering::Relaxed);
        let mut user = UserInfo::service_account(namespace, name);
        user.uid = known.uid;
        Ok((user, good))
    }

    /// Signs a token for a legacy secret.
    pub fn issue_legacy(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        secret: &str,
    ) -> Result<String, TokenError> {
        let signing =
            self.signing.as_ref().ok_or(TokenError::Jwt(JwtError::Key("no signing key configured")))?;
        Ok(signing.sign(&json!({
            "iss": LEGACY_ISSUER,
            "kubernetes.io/serviceaccount/namespace": namespace,
            "kubernetes.io/serviceaccount/secret.name": secret,
            "kubernetes.io/serviceaccount/service-account.name": name,
            "kubernetes.io/serviceaccount/service-account.uid": uid,
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
        }))?)
    }

    /// The OpenID discovery document. `jwks` is where the keys are served.
    pub fn discovery(&self, jwks: &str) -> Value {
        let mut algorithms: Vec<Value> = self.keys.iter().map(|key| key.to_jwk()["alg"].clone()).collect();
        algorithms.dedup();
        json!({
            "issuer": self.issuer(),
            "jwks_uri": jwks,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }

    /// The public keys.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(VerifyingKey::to_jwk).collect::<Vec<_>>()})
    }
}
