//! Who asks, and whether he may: client certificates and bearer tokens, then the API server's own authorizer.
//!
//! The API server's identity is allowed at once; for others the answer of a SubjectAccessReview is kept for a while, as
//! is a token's review, so that a monitoring system does not cost two requests per scrape.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use client::resources;
use http::{HeaderMap, Method, StatusCode, header};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::config::Authorization;
use crate::host::SharedHost;

const TOKEN_KEPT: Duration = Duration::from_secs(120);
const ALLOWED_KEPT: Duration = Duration::from_secs(300);
const DENIED_KEPT: Duration = Duration::from_secs(30);
/// Entries kept before the oldest half is forgotten.
const MOST_KEPT: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
}

impl Identity {
    /// The subject of a certificate that TLS has verified.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = pki::Certificate::from_der(certificate.to_vec()).ok()?;
        let mut groups = certificate.subject.organizations.clone();
        groups.push("system:authenticated".into());
        Some(Self { user: certificate.subject.common_name.clone(), uid: String::new(), groups })
    }

    fn anonymous() -> Self {
        Self {
            user: "system:anonymous".into(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".into()],
        }
    }
}

pub type Refusal = (StatusCode, String);

type Kept<K, V> = Mutex<HashMap<K, (Instant, V)>>;

pub struct Auth {
    host: SharedHost,
    tokens: Kept<[u8; 32], Option<Identity>>,
    decisions: Kept<(Identity, &'static str, &'static str), bool>,
}

fn recall<K: std::hash::Hash + Eq, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.get(key).filter(|(until, _)| *until > Instant::now()).map(|(_, value)| value.clone())
}

fn remember<K: std::hash::Hash + Eq, V>(kept: &Kept<K, V>, key: K, value: V, time: Duration) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if kept.len() >= MOST_KEPT {
        kept.retain(|_, (until, _)| *until > now);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
    }
    kept.insert(key, (now + time, value));
}

impl Auth {
    pub fn new(host: SharedHost) -> Self {
        Self { host, tokens: Mutex::default(), decisions: Mutex::default() }
    }

    /// Lets a request pass or says why not.
    pub async fn check(
        &self,
        headers: &HeaderMap,
        certificate: Option<Identity>,
        method: &Method,
        path: &str,
    ) -> Result<(), Refusal> {
        let identity = match (certificate, bearer(headers)) {
            (Some(identity), _) => identity,
            (None, Some(token)) if self.host.config.token_reviews => self.review_token(token).await?,
            (None, _) if self.host.config.anonymous_auth => Identity::anonymous(),
            (None, _) => return Err((StatusCode::UNAUTHORIZED, "Unauthorized".into())),
        };
        if self.host.config.authorization == Authorization::AlwaysAllow
            || self.host.config.trusted_users.contains(&identity.user)
            || identity.groups.iter().any(|group| group == "system:masters")
        {
            return Ok(());
        }
        let verb = verb(method, path);
        for subresource in subresources(path) {
            if self.review_access(&identity, verb, subresource).await? {
                return Ok(());
            }
        }
        let message = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)={:?})",
            identity.user,
            subresources(path)
        );
        Err((StatusCode::FORBIDDEN, message))
    }

    async fn review_token(&self, token: &str) -> Result<Identity, Refusal> {
        let unauthorized = || (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned());
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = recall(&self.tokens, &key) {
            return known.ok_or_else(unauthorized);
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        let answer: Value =
            self.host.config.client.api(&resources::TOKEN_REVIEWS).create(&review).await.map_err(
                |error| {
                    (
                        StatusCode::INTERNAL_SERVER_ERROR,
                        format!("Authentication error: {}", telemetry::chain(&error)),
                    )
                },
            )?;
        let status = &answer["status"];
        let identity = (status["authenticated"] == true).then(|| Identity {
            user: status["user"]["username"].as_str().unwrap_or_default().to_owned(),
            uid: status["user"]["uid"].as_str().unwrap_or_default().to_owned(),
            groups: strings(&status["user"]["groups"]),
        });
        remember(&self.tokens, key, identity.clone(), TOKEN_KEPT);
        identity.ok_or_else(unauthorized)
    }

    async fn review_access(
        &self,
        identity: &Identity,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, Refusal> {
        let key = (identity.clone(), verb, subresource);
        if let Some(known) = recall(&self.decisions, &key) {
            return Ok(known);
        }
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": identity.user, "uid": identity.uid, "groups": identity.groups,
                "resourceAttributes": {
                    "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource,
                    "name": self.host.config.node_name,
                },
            },
        });
        let answer: Value =
            self.host.config.client.api(&resources::SUBJECT_ACCESS_REVIEWS).create(&review).await.map_err(
                |error| {
                    (
                        StatusCode::INTERNAL_SERVER_ERROR,
                        format!("Authorization error: {}", telemetry::chain(&error)),
                    )
                },
            )?;
        let allowed = answer["status"]["allowed"] == true;
        remember(&self.decisions, key, allowed, if allowed { ALLOWED_KEPT } else { DENIED_KEPT });
        Ok(allowed)
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|one| Some(one.as_str()?.to_owned())).collect()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Running something in a container is `create`, also by the GET that opens a WebSocket: who may only read nodes runs nothing.
fn verb(method: &Method, path: &str) -> &'static str {
    let first = path.trim_matches('/').split('/').next().unwrap_or("");
    if matches!(first, "exec" | "attach" | "run" | "portForward") {
        return "create";
    }
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// The subresources of which one has to be allowed.
fn subresources(path: &str) -> &'static [&'static str] {
    match path.trim_matches('/').split('/').next().unwrap_or("") {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_map_to_subresources_of_the_node() {
        for (path, wanted) in [
            ("/stats/summary", &["stats"][..]),
            ("/metrics/resource", &["metrics"]),
            ("/pods", &["pods", "proxy"]),
            ("/exec/n/p/c", &["proxy"]),
            ("/containerLogs/n/p/c", &["proxy"]),
        ] {
            assert_eq!(subresources(path), wanted, "{path}");
        }
        assert_eq!(verb(&Method::POST, "/pods"), "create");
        assert_eq!(verb(&Method::GET, "/containerLogs/n/p/c"), "get");
        for path in ["/exec/n/p/c", "/attach/n/p/c", "/run/n/p/c", "/portForward/n/p", "//exec/n/p/c"] {
            assert_eq!(verb(&Method::GET, path), "create", "{path}");
        }
    }

    #[test]
    fn bearer_tokens_are_found() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), None);
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        assert_eq!(bearer(&headers), Some("abc"));
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
