//! The kubelet's own certificates: who it is to the API server, and who it is to those who ask the node.
//!
//! A node starts with nothing but a bootstrap kubeconfig. It makes a key, asks for a certificate by a
//! CertificateSigningRequest, waits until somebody approves, and is then a node; its serving certificate it asks for as
//! that node. Both are replaced before they end, if the configuration says so. Files have upstream's names ([`store`]).
//!
//! Nothing else waits for this: static pods run while the node is still unknown to the cluster. Requests of the rest of
//! the kubelet wait inside [`Rotating`] until there is an identity to send them with.

mod request;
mod serving;
mod store;
mod transport;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Credentials, Https, HttpsConfig};
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use pki::kubeconfig::{Cluster, Context, NamedCluster, NamedContext, NamedUser, User};
use pki::{Kubeconfig, San, Subject};
use thiserror::Error;
use tracing::{info, warn};

pub use request::RequestError;
pub use serving::Serving;
pub use store::{Identity, Store};
pub use transport::Rotating;

use request::Wanted;

/// Between attempts; doubled up to the longest.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";

#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("the certificate's files cannot be used")]
    Files(#[from] pki::PkiError),
    #[error("the API server cannot be addressed")]
    Https(#[from] client::HttpsError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the certificate authority {path} cannot be read")]
    Authority {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What is to be kept, and how.
#[derive(Clone)]
pub struct Certificates {
    pub node_name: String,
    /// `--cert-dir`.
    pub directory: PathBuf,
    /// Written once there is a client certificate.
    pub kubeconfig: PathBuf,
    /// As whom to ask for the first one; none if it is there.
    pub bootstrap: Option<HttpsConfig>,
    /// Where the API server is; the credentials in it are those at the start.
    pub server: HttpsConfig,
    pub transport: Arc<Rotating>,
    /// Whether the client certificate is replaced before it ends.
    pub rotate_client: bool,
    /// The serving certificate, if it is asked for.
    pub serving: Option<Arc<Serving>>,
    /// What the serving certificate is for: the node's name and addresses.
    pub names: Vec<String>,
}

impl Certificates {
    pub fn start(self, tasks: &Tasks) {
        if let Some(serving) = self.serving.clone() {
            let this = self.clone();
            tasks.spawn("kubelet/serving-certificate", |stop| this.keep_serving(serving, stop));
        }
        if self.bootstrap.is_some() || self.rotate_client {
            tasks.spawn("kubelet/client-certificate", |stop| self.keep_client(stop));
        }
    }

    fn subject(&self) -> Subject {
        Subject::new(&format!("system:node:{}", self.node_name), &["system:nodes"])
    }

    async fn keep_client(self, stop: Stop) {
        let store = Store::new(&self.directory, "kubelet-client");
        let own = Client::new(self.transport.clone(), "kubelet");
        let mut bootstrap = self.bootstrap.clone();
        loop {
            if bootstrap.is_none() {
                // Without a readable certificate there is no date to go by; the next start asks anew.
                let Ok(Some(current)) = store.current() else { return };
                if !self.rotate_client || !wait_until(current.rotate_at(), &stop).await {
                    return;
                }
            }
            let mut pause = RETRY;
            loop {
                let wanted = Wanted {
                    signer: CLIENT_SIGNER,
                    subject: self.subject(),
                    sans: Vec::new(),
                    usages: &["digital signature", "client auth"],
                    name_prefix: bootstrap.is_some().then_some("node-csr-"),
                };
                let attempt = async {
                    let client = match &bootstrap {
                        Some(config) => Client::new(Https::new(config.clone())?, "kubelet"),
                        None => own.clone(),
                    };
                    let identity = wanted.obtain(&client, &store, &stop).await?;
                    self.adopt(&store, &identity)
                };
                match attempt.await {
                    Ok(()) => break,
                    Err(_) if stop.is_requested() => return,
                    Err(error) => {
                        warn!(error = %telemetry::chain(&error), "no client certificate yet");
                    }
                }
                if stop.or(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
                pause = (pause * 2).min(RETRY_LONGEST);
            }
            bootstrap = None;
        }
    }

    /// Keeps a new identity and speaks with it from now on.
    fn adopt(&self, store: &Store, identity: &Identity) -> Result<(), CertificateError> {
        store.keep(identity)?;
        write_kubeconfig(&self.kubeconfig, &self.server, &store.current_path())?;
        let credentials = identity.credentials();
        self.transport.set(HttpsConfig { credentials, ..self.server.clone() })?;
        info!(until = %identity.certificate.not_after, "client certificate in use");
        Ok(())
    }

    async fn keep_serving(self, serving: Arc<Serving>, stop: Stop) {
        let store = Store::new(&self.directory, "kubelet-server");
        let client = Client::new(self.transport.clone(), "kubelet");
        let sans: Vec<San> = self.names.iter().map(|name| San::parse(name)).collect();
        match store.current() {
            Ok(Some(identity)) if identity.is_valid() && identity.is_for(&sans) => {
                if let Err(error) = serving.set(&identity) {
                    warn!(error = %telemetry::chain(&error), "the serving certificate cannot be used");
                }
            }
            Ok(_) => {}
            Err(error) => warn!(error = %telemetry::chain(&error), "the serving certificate cannot be read"),
        }
        loop {
            if let Some(at) = serving.rotate_at()
                && !wait_until(at, &stop).await
            {
                return;
            }
            let mut pause = RETRY;
            loop {
                let wanted = Wanted {
                    signer: SERVING_SIGNER,
                    subject: self.subject(),
                    sans: sans.clone(),
                    usages: &["digital signature", "server auth"],
                    name_prefix: None,
                };
                let attempt = async {
                    let identity = wanted.obtain(&client, &store, &stop).await?;
                    store.keep(&identity)?;
                    serving.set(&identity)?;
                    info!(until = %identity.certificate.not_after, "serving certificate in use");
                    Ok::<(), CertificateError>(())
                };
                match attempt.await {
                    Ok(()) => break,
                    Err(_) if stop.is_requested() => return,
                    Err(error) => {
                        warn!(error = %telemetry::chain(&error), "no serving certificate yet");
                    }
                }
                if stop.or(tokio::time::sleep(pause)).await.is_none() {
                    return;
                }
                pause = (pause * 2).min(RETRY_LONGEST);
            }
        }
    }
}

/// False if stopping was requested first. Looks at the clock now and then: it may be set.
async fn wait_until(at: Timestamp, stop: &Stop) -> bool {
    const LOOK: Duration = Duration::from_secs(60);
    loop {
        let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
        if left.is_zero() {
            return !stop.is_requested();
        }
        if stop.or(tokio::time::sleep(left.min(LOOK))).await.is_none() {
            return false;
        }
    }
}

/// Whether the kubeconfig can be used as it is: it is there, and a certificate in it has not ended.
pub fn is_usable(path: &Path) -> bool {
    let Ok(config) = Kubeconfig::load(path) else { return false };
    let Ok(access) = config.access(None) else { return false };
    match access.client_certificate {
        Some(pem) => pki::Certificate::from_pem(&pem)
            .is_ok_and(|certificate| certificate.is_valid_at(Timestamp::now())),
        None => access.token.is_some(),
    }
}

/// As upstream writes it: the certificate by the name that follows rotations, everything else as the bootstrap file has it.
fn write_kubeconfig(path: &Path, server: &HttpsConfig, identity: &Path) -> Result<(), pki::PkiError> {
    use base64::Engine as _;
    let data =
        (!server.ca_pem.is_empty()).then(|| base64::engine::general_purpose::STANDARD.encode(&server.ca_pem));
    let mut config = Kubeconfig::empty();
    config.clusters = vec![NamedCluster {
        name: "default-cluster".to_owned(),
        cluster: Cluster {
            server: server.server.clone(),
            certificate_authority_data: data,
            tls_server_name: server.server_name.clone(),
            insecure_skip_tls_verify: server.insecure,
            ..Cluster::default()
        },
    }];
    config.users = vec![NamedUser {
        name: "default-auth".to_owned(),
        user: User {
            client_certificate: Some(identity.to_owned()),
            client_key: Some(identity.to_owned()),
            ..User::default()
        },
    }];
    config.contexts = vec![NamedContext {
        name: "default-context".to_owned(),
        context: Context {
            cluster: "default-cluster".to_owned(),
            user: "default-auth".to_owned(),
            namespace: Some("default".to_owned()),
        },
    }];
    config.current_context = "default-context".to_owned();
    config.write(path)
}

/// The credentials of an identity in one file.
impl Identity {
    pub fn credentials(&self) -> Credentials {
        Credentials::Certificate { chain_pem: self.pem.clone(), key_pem: self.pem.clone() }
    }
}

#[cfg(test)]
mod tests;
