//! One CertificateSigningRequest: made, waited for, and taken when it is signed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Informer, Key, ListOptions, Metadata, Projection, resources};
use lifecycle::{Stop, Tasks};
use pki::{Csr, PkiError, San, Subject};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;
use tracing::info;

use super::store::{Identity, Store};

#[derive(Debug, Error)]
pub enum RequestError {
    #[error("the request cannot be made")]
    Make(#[from] PkiError),
    #[error("the API server does not take the request")]
    Send(#[from] client::Error),
    #[error("the certificate signing request {name} was {outcome}: {reason}")]
    Refused { name: String, outcome: String, reason: String },
    #[error("the certificate signing request {name} was deleted")]
    Deleted { name: String },
    #[error("the certificate in the signing request {name} is not base64")]
    Encoding { name: String },
    #[error("stopping")]
    Stopping,
}

/// What to ask for.
pub struct Wanted {
    pub signer: &'static str,
    pub subject: Subject,
    pub sans: Vec<San>,
    pub usages: &'static [&'static str],
    /// The request is named by this and a digest of its content, so that a restart finds it again; without it the
    /// server names it `csr-…`.
    pub name_prefix: Option<&'static str>,
}

#[derive(Debug, Deserialize)]
struct RequestObject {
    metadata: Metadata,
    #[serde(default)]
    status: RequestStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RequestStatus {
    certificate: String,
    conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

impl Projection for RequestObject {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl RequestObject {
    fn refusal(&self) -> Option<&Condition> {
        let refused = |one: &&Condition| matches!(&*one.r#type, "Denied" | "Failed") && one.status != "False";
        self.status.conditions.iter().find(refused)
    }

    fn is_decided(&self) -> bool {
        !self.status.certificate.is_empty() || self.refusal().is_some()
    }
}

impl Wanted {
    /// Asks, and waits as long as it takes.
    pub async fn obtain(self, client: &Client, store: &Store, stop: &Stop) -> Result<Identity, RequestError> {
        let key = store.pending_key()?;
        let text = Csr::create(&key, &self.subject, &self.sans)?;
        let mut object = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {},
            "spec": {"request": STANDARD.encode(text), "signerName": self.signer, "usages": self.usages},
        });
        match self.name_prefix {
            Some(prefix) => {
                let mut digest = Sha256::new();
                for part in [self.signer.as_bytes(), self.subject.to_string().as_bytes(), key.public().spki()]
                {
                    digest.update(part);
                    digest.update([0]);
                }
                let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
                object["metadata"]["name"] = json!(format!("{prefix}{digest}"));
            }
            None => object["metadata"]["generateName"] = json!("csr-"),
        }
        let api = client.api(&resources::CERTIFICATE_SIGNING_REQUESTS);
        let created: Result<Value, client::Error> =
            stop.or(api.create(&object)).await.ok_or(RequestError::Stopping)?;
        let name = match created {
            Ok(made) => made["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            Err(error) if error.is_already_exists() => {
                object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
            }
            Err(error) => return Err(error.into()),
        };
        info!(csr = name, signer = self.signer, "waiting until the certificate signing request is approved");
        let chain = decision(client, &name, stop).await;
        if matches!(&chain, Err(RequestError::Refused { .. } | RequestError::Deleted { .. })) {
            store.drop_pending();
        }
        Ok(Identity::new(&chain?, &key)?)
    }
}

async fn decision(client: &Client, name: &str, stop: &Stop) -> Result<Vec<u8>, RequestError> {
    let tasks = Tasks::under(stop);
    let which = ListOptions::fields(format!("metadata.name={name}"));
    let informer: Informer<RequestObject> =
        Informer::start(client, &resources::CERTIFICATE_SIGNING_REQUESTS, "", which, &tasks);
    let key = Key::cluster(name);
    let waited = async {
        informer.synced().await;
        informer.until(&key, |found| found.is_none_or(RequestObject::is_decided)).await;
    };
    let waited = stop.or(waited).await;
    let found = informer.get(&key);
    tasks.stop().request();
    waited.ok_or(RequestError::Stopping)?;
    let found = found.ok_or_else(|| RequestError::Deleted { name: name.to_owned() })?;
    if let Some(refusal) = found.refusal() {
        return Err(RequestError::Refused {
            name: name.to_owned(),
            outcome: refusal.r#type.to_lowercase(),
            reason: format!("{} {}", refusal.reason, refusal.message).trim().to_owned(),
        });
    }
    let chain = STANDARD.decode(&found.status.certificate);
    chain.map_err(|_| RequestError::Encoding { name: name.to_owned() })
}
