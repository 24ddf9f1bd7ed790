//! One service account per controller, for a program that runs on its own: tokens are asked for and renewed.

use std::sync::Arc;

use bytes::Bytes;
use client::{Body, Client, Credentials, Error, Https, HttpsConfig, Transport, TransportError, resources};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::Mutex;

const NAMESPACE: &str = "kube-system";
/// Tokens are renewed this long before they expire.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

/// Makes clients that act as service accounts.
pub struct Identities {
    program: &'static str,
    own: Client,
    server: HttpsConfig,
}

impl Identities {
    /// Asks for tokens with `own`; the clients then speak to `server`.
    pub fn new(program: &'static str, own: Client, server: HttpsConfig) -> Self {
        Self { program, own, server }
    }

    /// The client of a service account, which is made when it is missing.
    pub fn client(&self, name: &str) -> Client {
        let account = Account {
            name: name.to_owned(),
            own: self.own.clone(),
            server: self.server.clone(),
            session: Mutex::default(),
        };
        Client::new(Arc::new(account), format!("{}/{name}", self.program))
    }
}

struct Account {
    name: String,
    own: Client,
    server: HttpsConfig,
    session: Mutex<Option<Session>>,
}

#[derive(Clone)]
struct Session {
    connection: Arc<Https>,
    renew_at: Timestamp,
}

impl Account {
    async fn connection(&self) -> Result<Arc<Https>, TransportError> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| session.renew_at > Timestamp::now()) {
            return Ok(session.connection.clone());
        }
        let (token, renew_at) = self.token().await.map_err(TransportError::broken)?;
        let config = HttpsConfig { credentials: Credentials::Token(token), ..self.server.clone() };
        let connection = Https::new(config).map_err(TransportError::broken)?;
        *session = Some(Session { connection: connection.clone(), renew_at });
        Ok(connection)
    }

    async fn token(&self) -> Result<(String, Timestamp), Error> {
        let accounts = self.own.api(&resources::SERVICE_ACCOUNTS).within(NAMESPACE);
        if accounts.find::<Value>(&self.name).await?.is_none() {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": self.name, "namespace": NAMESPACE}});
            match accounts.create::<Value>(&account).await {
                Err(error) if !error.is_already_exists() => return Err(error),
                _ => {}
            }
        }
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600}});
        let answer: Value = accounts.create_sub(&self.name, "token", &request).await?;
        let token = answer["status"]["token"].as_str().unwrap_or("").to_owned();
        let expires: Option<Timestamp> =
            answer["status"]["expirationTimestamp"].as_str().and_then(|text| text.parse().ok());
        let renew_at = expires.unwrap_or_else(Timestamp::now).checked_sub(MARGIN).unwrap_or(Timestamp::MIN);
        Ok((token, renew_at))
    }
}

impl Transport for Account {
    fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>> {
        Box::pin(async move { self.connection().await?.call(request).await })
    }
}
