//! OpenID Connect: tokens of other issuers, verified with keys that the issuer publishes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use lifecycle::Tasks;
use serde_json::Value;

use super::claims::{self, ClaimsError, Expressions};
use super::jwt::{self, JwtError, VerifyingKey};
use crate::outbound::{self, CallError, Target};
use crate::user::UserInfo;

/// Keys are fetched again at most this often when a token does not verify.
const REFRESH: Duration = Duration::from_secs(10);

/// How an issuer's tokens become users.
#[derive(Clone, Debug, Default)]
pub struct IssuerConfig {
    /// The issuer's URL, exactly as in the tokens.
    pub url: String,
    /// Where its keys are looked for, if not below the URL itself.
    pub discovery_url: String,
    /// One of these must be among the token's audiences.
    pub audiences: Vec<String>,
    /// The claim with the user's name.
    pub username_claim: String,
    /// Put before the name.
    pub username_prefix: String,
    /// The claim with the groups.
    pub groups_claim: String,
    /// Put before each group.
    pub groups_prefix: String,
    /// The claim with the user's uid, or nothing.
    pub uid_claim: String,
    /// Claims that must have these values.
    pub required_claims: Vec<(String, String)>,
    /// The algorithms that tokens may be signed with; all that are known if empty.
    pub algorithms: Vec<String>,
    /// What is said by expressions instead.
    pub expressions: Arc<Expressions>,
}

/// Why a token was refused.
#[derive(Debug, thiserror::Error)]
pub enum OidcError {
    /// The keys could not be had.
    #[error("verify token: failed to verify signature: fetching keys {0}")]
    Keys(#[source] CallError),
    /// The signature or form.
    #[error("verify token: failed to verify signature: failed to verify id token signature")]
    Jwt(#[from] JwtError),
    /// It is too old or too young, or for others.
    #[error("verify token: oidc: {0}")]
    Token(String),
    /// A claim that is not there or not of its type.
    #[error("parse {part} {claim:?}: {why}")]
    Claim {
        /// What it is for.
        part: &'static str,
        /// Which.
        claim: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A claim that has to have another value.
    #[error("required claim {0} is missing or has another value")]
    Required(String),
    /// The issuer does not vouch for the address.
    #[error("email not verified")]
    Unverified,
    /// An expression.
    #[error("{0}")]
    Expression(#[from] ClaimsError),
}

/// One issuer and its keys.
pub struct Issuer {
    config: IssuerConfig,
    tls: Arc<rustls::ClientConfig>,
    tasks: Tasks,
    keys: Mutex<(Option<Instant>, Vec<VerifyingKey>)>,
}

impl Issuer {
    /// An issuer whose keys are fetched when first needed.
    pub fn new(config: IssuerConfig, tls: Arc<rustls::ClientConfig>, tasks: Tasks) -> Self {
        Self { config, tls, tasks, keys: Mutex::default() }
    }

    /// An issuer whose keys need not be fetched.
    #[cfg(test)]
    pub(super) fn with_keys(config: IssuerConfig, keys: Vec<VerifyingKey>) -> Self {
        let tls = Arc::new(crate::tls::unverified_client_config(None).expect("no identity is a good one"));
        let keys = Mutex::new((Some(Instant::now()), keys));
        Self { config, tls, tasks: Tasks::new(), keys }
    }

    /// Whether the token says that it is from this issuer.
    pub fn is_of(&self, token: &str) -> bool {
        jwt::unverified_claims(token).is_some_and(|claims| claims["iss"] == self.config.url.as_str())
    }

    /// The user of a token.
    pub async fn authenticate(&self, token: &str, now: Timestamp) -> Result<UserInfo, OidcError> {
        let algorithm = jwt::algorithm(token).unwrap_or_default();
        if !self.config.algorithms.is_empty() && !self.config.algorithms.contains(&algorithm) {
            return Err(JwtError::Algorithm(algorithm).into());
        }
        let (fetched, keys) = self.keys.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let claims = match jwt::verify(token, &keys) {
            Ok(claims) => claims,
            Err(error) => {
                if fetched.is_some_and(|at| at.elapsed() < REFRESH) {
                    return Err(error.into());
                }
                let keys = self.fetch().await.map_err(OidcError::Keys)?;
                *self.keys.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                    (Some(Instant::now()), keys.clone());
                jwt::verify(token, &keys)?
            }
        };
        user(&self.config, &claims, now)
    }

    async fn fetch(&self) -> Result<Vec<VerifyingKey>, CallError> {
        let at_most = Duration::from_secs(10);
        let url = match self.config.discovery_url.as_str() {
            "" => format!("{}/.well-known/openid-configuration", self.config.url.trim_end_matches('/')),
            url => url.to_owned(),
        };
        let target = Target::parse(&url)?;
        let document =
            outbound::json(&target.backend(self.tls.clone()), &target.path, None, at_most, &self.tasks)
                .await?;
        let target = Target::parse(document["jwks_uri"].as_str().unwrap_or_default())?;
        let keys =
            outbound::json(&target.backend(self.tls.clone()), &target.path, None, at_most, &self.tasks)
                .await?;
        let keys = keys["keys"].as_array().cloned().unwrap_or_default();
        Ok(keys.iter().filter_map(|key| VerifyingKey::from_jwk(key).ok()).collect())
    }
}

/// A word or a list of them; nothing if it is something else.
fn strings(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(many) => many.iter().map(|one| one.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

fn text<'a>(claims: &'a Value, part: &'static str, claim: &str) -> Result<&'a str, OidcError> {
    let wrong = |why| OidcError::Claim { part, claim: claim.to_owned(), why };
    let value = claims.get(claim).ok_or_else(|| wrong("claim not present"))?;
    value.as_str().ok_or_else(|| wrong("it is not a string"))
}

/// Maps verified claims to a user.
fn user(config: &IssuerConfig, claims: &Value, now: Timestamp) -> Result<UserInfo, OidcError> {
    let moment = |second: i64| {
        let time = Timestamp::from_second(second).unwrap_or_default();
        time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string()
    };
    match claims["exp"].as_i64() {
        Some(end) if end > now.as_second() => {}
        end => {
            let end = end.map_or_else(|| "0001-01-01 00:00:00 +0000 UTC".to_owned(), moment);
            return Err(OidcError::Token(format!("token is expired (Token Expiry: {end})")));
        }
    }
    if let Some(begin) = claims["nbf"].as_i64().filter(|begin| *begin > now.as_second() + 300) {
        let (now, begin) = (moment(now.as_second()), moment(begin));
        let why = format!("current time {now} before the nbf (not before) time: {begin}");
        return Err(OidcError::Token(why));
    }
    let audiences = strings(&claims["aud"]).unwrap_or_default();
    if !audiences.iter().any(|own| config.audiences.contains(own)) {
        let wanted = config.audiences.join(" ");
        let audiences: Vec<String> = audiences.iter().map(|one| format!("{one:?}")).collect();
        let why = format!("expected audience {wanted:?} got [{}]", audiences.join(" "));
        return Err(OidcError::Token(why));
    }
    for (claim, value) in &config.required_claims {
        if claims[claim].as_str() != Some(value) {
            return Err(OidcError::Required(claim.clone()));
        }
    }
    let expressions = &config.expressions;
    let name = match &expressions.username {
        Some(_) => "",
        None => text(claims, "username claims", &config.username_claim)?,
    };
    if config.username_claim == "email" && claims.get("email_verified").is_some_and(|value| value != true) {
        return Err(OidcError::Unverified);
    }
    let groups: Vec<String> = match claims.get(&config.groups_claim) {
        Some(claim) if !config.groups_claim.is_empty() => {
            let groups = strings(claim).ok_or_else(|| OidcError::Claim {
                part: "groups claim",
                claim: config.groups_claim.clone(),
                why: match claim {
                    Value::Number(_) => "json: cannot unmarshal number into Go value of type string",
                    Value::Bool(_) => "json: cannot unmarshal bool into Go value of type string",
                    Value::Object(_) => "json: cannot unmarshal object into Go value of type string",
                    _ => "json: cannot unmarshal array into Go value of type string",
                },
            })?;
            groups.iter().map(|group| format!("{}{group}", config.groups_prefix)).collect()
        }
        _ => Vec::new(),
    };
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let mut user = UserInfo::new(format!("{}{name}", config.username_prefix), &groups);
    if !config.uid_claim.is_empty() {
        user.uid = text(claims, "uid claims", &config.uid_claim)?.to_owned();
    }
    if let Some(id) = claims["jti"].as_str() {
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={id}")]);
    }
    let seen = if expressions.need_claims() { claims::as_doubles(claims) } else { Value::Null };
    expressions.map(&seen, &mut user)?;
    expressions.judge(&seen, &user)?;
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn claims_become_a_user_only_if_all_hold() {
        let config = IssuerConfig {
            url: "https://i".into(),
            audiences: vec!["k".into()],
            username_claim: "email".into(),
            username_prefix: "oidc:".into(),
            groups_claim: "groups".into(),
            groups_prefix: "g:".into(),
            uid_claim: "sub".into(),
            required_claims: vec![("hd".into(), "corp".into())],
            ..IssuerConfig::default()
        };
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = json!({"exp": now.as_second() + 9, "aud": ["k"], "sub": "7", "email": "a@b", "groups": ["x"], "hd": "corp"});
        let found = user(&config, &good, now).unwrap();
        assert_eq!((found.name.as_str(), found.groups[0].as_str()), ("oidc:a@b", "g:x"));
        assert_eq!(found.uid, "7");
        for (claim, value) in [
            ("exp", json!(1)),
            ("aud", json!("other")),
            ("email", json!(7)),
            ("groups", json!(7)),
            ("groups", json!(["x", 7])),
            ("hd", json!("x")),
            ("email_verified", json!(false)),
            ("nbf", json!(now.as_second() + 3600)),
        ] {
            let mut bad = good.clone();
            bad[claim] = value;
            assert!(user(&config, &bad, now).is_err(), "{claim}");
        }
    }
}
