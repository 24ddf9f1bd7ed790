//! Authentication: who asks? Each method either knows the user, has no opinion, or refuses; the first that knows wins.
//!
//! Order: request-header proxy, client certificate, static token, service account token, bootstrap token, OIDC
//! issuers, webhook, anonymous. A wrong credential never falls back to anonymous: unless another one is good, it ends
//! in 401.

pub mod bootstrap_token;
pub mod claims;
pub mod jwt;
pub mod oidc;
pub mod request_header;
pub mod service_account;
pub mod webhook;
pub mod x509;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use base64::Engine;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use jiff::Timestamp;
use sha2::Digest;
use tracing::debug;

use crate::listen::Connection;
use crate::metrics::histogram::Histogram;
use crate::user::{AUTHENTICATED, UserInfo};

/// How long a token that was good stays good without being looked at.
const REMEMBER: Duration = Duration::from_secs(10);
/// The most tokens remembered.
const REMEMBER_AT_MOST: usize = 4096;
/// WebSocket clients in browsers can set no headers; they send the token as a sub-protocol.
const BEARER_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Nobody is known by what was shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unauthorized;

/// What those who know a token's kind find wrong with it; nothing if nobody knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Complaints(pub Vec<String>);

impl std::fmt::Display for Complaints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const UNKNOWN: &str = "invalid bearer token";
        if self.0.is_empty() { f.write_str(UNKNOWN) } else { write!(f, "[{UNKNOWN}, {}]", self.0.join(", ")) }
    }
}

/// Who may come without credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Nobody.
    Never,
    /// Whoever asks for one of these paths.
    Paths(Vec<String>),
    /// Everybody; authorization decides.
    Always,
}

impl Anonymous {
    /// The health end points and nothing else.
    pub fn health_only() -> Self {
        Self::Paths(["/healthz", "/livez", "/readyz", "/version"].map(str::to_owned).into())
    }

    fn allows(&self, path: &str) -> bool {
        match self {
            Self::Never => false,
            Self::Always => true,
            Self::Paths(paths) => paths.iter().any(|own| own == path),
        }
    }
}

/// All configured methods.
pub struct Authenticator {
    /// How long client certificates were still good when they were shown.
    pub certificate_ends: Histogram,
    /// Judges client certificates; replaceable for CA rotation.
    pub certificates: RwLock<Option<x509::CertificateAuthenticator>>,
    /// Takes users from a proxy's headers.
    pub request_header: Option<request_header::RequestHeader>,
    /// Service account tokens.
    pub service_accounts: Arc<service_account::ServiceAccounts>,
    /// Tokens from a file.
    pub static_tokens: HashMap<String, UserInfo>,
    /// Tokens of joining nodes.
    pub bootstrap_tokens: Option<Arc<dyn bootstrap_token::Tokens>>,
    /// OIDC issuers; replaced when their file changes.
    pub oidc: RwLock<Arc<[oidc::Issuer]>>,
    /// A remote judge of tokens.
    pub webhook: Option<webhook::TokenWebhook>,
    /// Requests without credentials.
    pub anonymous: Anonymous,
    /// The audiences of tokens for this server.
    pub audiences: Vec<String>,
    /// What was good a moment ago.
    pub remembered: Mutex<HashMap<[u8; 32], (Instant, (UserInfo, Vec<String>))>>,
}

impl Authenticator {
    /// The user of a request.
    pub async fn authenticate(
        &self,
        connection: &Connection,
        headers: &mut HeaderMap,
        path: &str,
    ) -> Result<Arc<UserInfo>, Unauthorized> {
        if let Some(proxy) = &self.request_header
            && let Some(user) = proxy.authenticate(&connection.certificates, headers)?
        {
            return Ok(Arc::new(finish(user)));
        }
        // Whoever is known by one credential may show wrong ones beside it; who is known by none may not.
        let mut refused = false;
        if !connection.certificates.is_empty() {
            let judge = self.certificates.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
            if let Some(judge) = judge {
                match judge.authenticate_again(&connection.certificates, &connection.verdict, finish) {
                    Ok(Some((user, left))) => {
                        self.certificate_ends.observe(left as f64);
                        return Ok(user);
                    }
                    Ok(None) => refused = true,
                    Err(error) => {
                        debug!(remote = %connection.remote, error = %telemetry::chain(&error), "client certificate refused");
                        refused = true;
                    }
                }
            }
        }
        if let Some(token) = bearer(headers) {
            let user = self.token(&token, &self.audiences).await.map_err(|_| Unauthorized)?.0;
            return Ok(Arc::new(finish(user)));
        }
        if refused {
            return Err(Unauthorized);
        }
        if self.anonymous.allows(path) { Ok(Arc::new(UserInfo::anonymous())) } else { Err(Unauthorized) }
    }

    /// The user of a token and the audiences that it is good for among those wanted, or what is said of it.
    pub async fn token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(UserInfo, Vec<String>), Complaints> {
        let own = audiences == self.audiences;
        let digest: [u8; 32] = sha2::Sha256::digest(token).into();
        if own && let Some(found) = self.recall(&digest) {
            return Ok(found);
        }
        let found = Box::pin(self.judge(token, audiences)).await?;
        if own {
            self.remember(digest, &found);
        }
        Ok(found)
    }

    async fn judge(&self, token: &str, audiences: &[String]) -> Result<(UserInfo, Vec<String>), Complaints> {
        let mut complaints = Complaints::default();
        let for_us: Vec<String> =
            audiences.iter().filter(|one| self.audiences.contains(one)).cloned().collect();
        if let Some(user) = self.static_tokens.get(token)
            && !for_us.is_empty()
        {
            return Ok((user.clone(), for_us));
        }
        if self.service_accounts.claims_issuer(token) {
            match self.service_accounts.authenticate(token, audiences, Timestamp::now()) {
                Ok(found) => return Ok(found),
                Err(error) => {
                    debug!(error = %telemetry::chain(&error), "service account token refused");
                    complaints.0.push(error.to_string());
                }
            }
        }
        if let Some(tokens) = &self.bootstrap_tokens
            && let Some(user) = bootstrap_token::authenticate(token, tokens.as_ref(), Timestamp::now())
            && !for_us.is_empty()
        {
            return Ok((user, for_us));
        }
        let issuers = self.oidc.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        // Issuers know nothing of the audiences of this server: their tokens are for all of them, and for nobody else.
        for issuer in issuers.iter().filter(|_| !for_us.is_empty()) {
            if issuer.is_of(token) {
                match issuer.authenticate(token, Timestamp::now()).await {
                    Ok(user) => return Ok((user, for_us)),
                    Err(error) => {
                        debug!(error = %telemetry::chain(&error), "OIDC token refused");
                        complaints.0.push(format!("oidc: {error}"));
                    }
                }
            }
        }
        if let Some(webhook) = &self.webhook {
            match webhook.authenticate(token, audiences).await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(complaint) => complaints.0.push(complaint),
            }
        }
        Err(complaints)
    }

    /// Takes other issuers from now on, and forgets whom the old ones let in.
    pub fn replace_issuers(&self, issuers: Arc<[oidc::Issuer]>) {
        *self.oidc.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = issuers;
        self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }

    fn recall(&self, digest: &[u8; 32]) -> Option<(UserInfo, Vec<String>)> {
        let remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        remembered.get(digest).filter(|(until, _)| *until > Instant::now()).map(|(_, found)| found.clone())
    }

    fn remember(&self, digest: [u8; 32], found: &(UserInfo, Vec<String>)) {
        let mut remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let now = Instant::now();
        if remembered.len() >= REMEMBER_AT_MOST {
            remembered.retain(|_, (until, _)| *until > now);
        }
        if remembered.len() < REMEMBER_AT_MOST {
            remembered.insert(digest, (now + REMEMBER, found.clone()));
        }
    }
}

fn finish(mut user: UserInfo) -> UserInfo {
    if user.name != crate::user::ANONYMOUS && !user.is_in(AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// Takes the bearer token out of the headers, so that nobody behind sees it.
fn bearer(headers: &mut HeaderMap) -> Option<String> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        // An unreadable token is a wrong one, not none.
        let text = String::from_utf8_lossy(value.as_bytes());
        let mut words = text.trim().split(' ');
        let scheme = words.next()?;
        return scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| words.next().unwrap_or_default().to_owned())
            .filter(|token| !token.is_empty());
    }
    let protocols = headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?.to_owned();
    let encoded = protocols.split(',').find_map(|one| one.trim().strip_prefix(BEARER_PROTOCOL))?;
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(encoded).ok()?;
    let rest: Vec<&str> =
        protocols.split(',').map(str::trim).filter(|one| !one.starts_with(BEARER_PROTOCOL)).collect();
    if let Ok(value) = rest.join(", ").parse() {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    String::from_utf8(token).ok()
}

/// Reads a token file: `token,user,uid,"group1,group2"` per line.
pub fn static_tokens(text: &str) -> HashMap<String, UserInfo> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (fields, groups) = match line.split_once('"') {
            Some((fields, rest)) => (fields, rest.split('"').next()),
            None => match line.match_indices(',').nth(2) {
                Some((at, _)) => (&line[..at], line[at + 1..].split(',').next()),
                None => (line, None),
            },
        };
        let mut fields = fields.split(',').map(str::trim);
        let (Some(token), Some(name), Some(uid)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let groups: Vec<&str> = groups.map(|groups| groups.split(',').collect()).unwrap_or_default();
        found.insert(token.to_owned(), UserInfo { uid: uid.to_owned(), ..UserInfo::new(name, &groups) });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_gives_users_with_groups() {
        let tokens = static_tokens("t1,ann,1,\"a,b\"\n\nt2,bob,2\nt3,eve,3,c\nbroken\n");
        assert_eq!(tokens.len(), 3);
        assert_eq!(tokens["t1"].groups, ["a", "b", "system:authenticated"]);
        assert_eq!(tokens["t2"].name, "bob");
        assert_eq!(tokens["t3"].groups[0], "c");
    }

    #[test]
    fn a_token_is_taken_from_header_or_sub_protocol() {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "Bearer abc".parse().unwrap());
        assert_eq!(bearer(&mut headers).as_deref(), Some("abc"));
        let mut headers = HeaderMap::new();
        let value = format!("{BEARER_PROTOCOL}YWJj, v5.channel.k8s.io");
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value.parse().unwrap());
        assert_eq!(bearer(&mut headers).as_deref(), Some("abc"));
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
        let mut headers = HeaderMap::new();
        for (shown, token) in [
            ("Basic abc", None),
            ("Bearer  abc", None),
            ("Bearer", None),
            ("bearer abc def", Some("abc")),
            (" Bearer abc ", Some("abc")),
        ] {
            headers.insert(AUTHORIZATION, shown.parse().unwrap());
            assert_eq!(bearer(&mut headers).as_deref(), token, "{shown:?}");
        }
        headers.insert(AUTHORIZATION, http::HeaderValue::from_bytes(b"Bearer \xfc").unwrap());
        assert!(bearer(&mut headers).is_some(), "a wrong credential is not none");
    }

    struct NoObjects;

    impl service_account::Lookup for NoObjects {
        fn find(&self, _: &str, _: &str, _: &str) -> Option<service_account::Known> {
            None
        }

        fn secret_token(&self, _: &str, _: &str) -> Option<service_account::HeldToken> {
            None
        }
    }

    #[tokio::test]
    async fn an_issuers_token_is_for_this_server_and_nobody_else() {
        let key = pki::PrivateKey::generate(pki::Algorithm::EcdsaP256).unwrap();
        let key = jwt::SigningKey::from_pem(key.to_pem().as_bytes()).unwrap();
        let config = oidc::IssuerConfig {
            url: "https://i".to_owned(),
            audiences: vec!["k".to_owned()],
            username_claim: "sub".to_owned(),
            ..oidc::IssuerConfig::default()
        };
        let issuer = oidc::Issuer::with_keys(config, vec![key.public.clone()]);
        let own = vec!["https://kubernetes".to_owned()];
        let accounts = service_account::ServiceAccounts::new(
            None,
            Vec::new(),
            own.clone(),
            own.clone(),
            Arc::new(NoObjects),
        );
        let authenticator = Authenticator {
            certificate_ends: Histogram::new(&[]),
            certificates: RwLock::default(),
            request_header: None,
            service_accounts: Arc::new(accounts),
            static_tokens: HashMap::new(),
            bootstrap_tokens: None,
            oidc: RwLock::new(Arc::new([issuer])),
            webhook: None,
            anonymous: Anonymous::Never,
            audiences: own.clone(),
            remembered: Mutex::default(),
        };
        let exp = Timestamp::now().as_second() + 60;
        let token = key.sign(&serde_json::json!({"iss": "https://i", "aud": "k", "sub": "ann", "exp": exp}));
        let token = token.unwrap();
        let (user, audiences) = authenticator.token(&token, &own).await.unwrap();
        assert_eq!((user.name.as_str(), audiences), ("ann", own));
        let other = authenticator.token(&token, &["vault".to_owned()]).await;
        assert_eq!(other.unwrap_err(), Complaints::default());
    }
}
