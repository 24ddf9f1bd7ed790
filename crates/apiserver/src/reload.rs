//! Configuration files that are read again while the server runs: who is known, who decides, which keys are used.
//!
//! The kernel tells of changes in a file's directory; once a minute it is looked at anyway, for mounts that do not
//! tell. What cannot be used is logged and counted, and what was in force stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tracing::{info, warn};

use crate::authn::oidc::{Issuer, IssuerConfig};
use crate::authz::webhook::WebhookAuthorizer;
use crate::authz::{Authorizer, abac};
use crate::config::AuthorizationMode;
use crate::config_files::{self, FileError};
use crate::encryption::EncryptionError;
use crate::outbound::{Webhook, WebhookError};
use crate::proxy::tunnel::Tunnel;
use crate::server::ApiServer;
use crate::tls;

/// A file is looked at this often even if nobody tells of a change.
const ANYWAY: Duration = Duration::from_secs(60);

/// A file and what stood in it at the start.
#[derive(Clone, Debug)]
pub struct Followed {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub text: String,
}

/// The files of one server.
#[derive(Clone, Debug, Default)]
pub struct Reloaded {
    /// `--authentication-config`, with the issuers that may not stand in it.
    pub authentication: Option<(Followed, Vec<String>)>,
    /// `--authorization-config`, with the policies for ABAC.
    pub authorization: Option<(Followed, Option<Arc<abac::Policies>>)>,
    /// `--encryption-provider-config`.
    pub encryption: Option<Followed>,
}

/// How often a file was read again.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Taken over.
    pub good: AtomicU64,
    /// Not usable.
    pub bad: AtomicU64,
    /// When the last one was taken over, in seconds; 0 is never.
    pub last: AtomicI64,
    /// When the last one was not.
    pub last_bad: AtomicI64,
}

/// Why a changed file is not taken over.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("it cannot be read")]
    Read(#[from] std::io::Error),
    #[error("it cannot be used")]
    File(#[from] FileError),
    #[error("TLS cannot be set up")]
    Tls(#[from] tls::TlsError),
    #[error("a webhook cannot be used")]
    Webhook(#[from] WebhookError),
    #[error("the encryption configuration cannot be used")]
    Encryption(#[from] EncryptionError),
    #[error("anonymous: changed from initial configuration file")]
    Anonymous,
}

/// Issuers that are ready to judge tokens.
pub fn issuers(
    list: &[(IssuerConfig, Option<Vec<u8>>)],
    tasks: &Tasks,
) -> Result<Arc<[Issuer]>, tls::TlsError> {
    let one = |(config, ca): &(IssuerConfig, Option<Vec<u8>>)| {
        let roots = match ca {
            Some(ca) => tls::roots(ca, "an OIDC issuer's CA")?,
            None => client::system_roots(),
        };
        let client = Arc::new(tls::client_config(roots, None)?);
        Ok(Issuer::new(config.clone(), client, tasks.clone()))
    };
    list.iter().map(one).collect()
}

/// Authorizers that are ready to be asked.
pub fn authorizers(
    modes: Vec<AuthorizationMode>,
    tunnel: Option<&Arc<Tunnel>>,
    tasks: &Tasks,
) -> Result<Arc<[Authorizer]>, WebhookError> {
    let one = |mode| {
        Ok(match mode {
            AuthorizationMode::AlwaysAllow => Authorizer::AlwaysAllow,
            AuthorizationMode::AlwaysDeny => Authorizer::AlwaysDeny,
            AuthorizationMode::Node => Authorizer::Node,
            AuthorizationMode::Rbac => Authorizer::Rbac,
            AuthorizationMode::Abac(policies) => Authorizer::Abac(policies),
            AuthorizationMode::Webhook(own) => {
                let mut webhook = Webhook::from_kubeconfig(&own.kubeconfig, tasks)?;
                webhook.backend.reach.tunnel = tunnel.cloned();
                Authorizer::Webhook(Box::new(WebhookAuthorizer::new(*own, webhook)))
            }
        })
    };
    modes.into_iter().map(one).collect()
}

/// Follows the files for as long as the server runs.
pub fn follow(server: &Arc<ApiServer>, files: Reloaded) {
    if let Some((file, own)) = files.authentication {
        let server = server.clone();
        let anonymous = config_files::authentication(&file.text, &own).ok().and_then(|found| found.1);
        let tasks = server.tasks.clone();
        tasks.spawn("authentication-config", move |stop| async move {
            let apply = |text: &str| {
                let (list, now) = config_files::authentication(text, &own)?;
                if now != anonymous {
                    return Err(ReloadError::Anonymous);
                }
                server.authenticator.replace_issuers(issuers(&list, &server.tasks)?);
                Ok(())
            };
            run(file, "authentication", apply, &server.metrics.authentication_reloads, stop).await;
        });
    }
    if let Some((file, policies)) = files.authorization {
        let server = server.clone();
        let tasks = server.tasks.clone();
        tasks.spawn("authorization-config", move |stop| async move {
            let apply = |text: &str| {
                let modes = config_files::authorization(text, policies.as_ref())?;
                let tunnel = server.settings.egress.control_plane.as_ref();
                let new = authorizers(modes, tunnel, &server.tasks)?;
                *server.authorizers.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = new;
                Ok(())
            };
            run(file, "authorization", apply, &server.metrics.authorization_reloads, stop).await;
        });
    }
    if let (Some(file), Some(encryption)) = (files.encryption, server.encryption.clone()) {
        let server = server.clone();
        let tasks = server.tasks.clone();
        tasks.spawn("encryption-config", move |stop| async move {
            let apply = |text: &str| {
                encryption.replace(text)?;
                server.hub.reread();
                Ok(())
            };
            run(file, "encryption", apply, &server.metrics.encryption_reloads, stop).await;
        });
    }
}

async fn run(
    mut file: Followed,
    what: &str,
    mut apply: impl FnMut(&str) -> Result<(), ReloadError>,
    count: &Reloads,
    stop: Stop,
) {
    let changes = Changes::of(&file.path);
    loop {
        let outcome = match std::fs::read_to_string(&file.path) {
            Ok(text) if text == file.text => None,
            Ok(text) => {
                file.text = text;
                Some(apply(&file.text))
            }
            Err(error) => Some(Err(error.into())),
        };
        match outcome {
            None => {}
            Some(Ok(())) => {
                info!(what, path = %file.path.display(), "the configuration was read again");
                count.good.fetch_add(1, Ordering::Relaxed);
                count.last.store(Timestamp::now().as_second(), Ordering::Relaxed);
            }
            Some(Err(error)) => {
                warn!(what, path = %file.path.display(), error = %telemetry::chain(&error), "the configuration stays as it was");
                count.bad.fetch_add(1, Ordering::Relaxed);
                count.last_bad.store(Timestamp::now().as_second(), Ordering::Relaxed);
            }
        }
        if stop.or(changes.next()).await.is_none() {
            return;
        }
    }
}

/// Changes in the directory of a file: written, replaced, or its link turned elsewhere.
struct Changes(Option<AsyncFd<OwnedFd>>);

impl Changes {
    fn of(path: &Path) -> Self {
        let told = || -> std::io::Result<AsyncFd<OwnedFd>> {
            let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
            let directory = path.parent().filter(|own| !own.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::CREATE;
            inotify::add_watch(&fd, directory, flags)?;
            // Its successor is unsafe for types that may give up their descriptor; an OwnedFd inside AsyncFd cannot.
            #[allow(deprecated)]
            AsyncFd::new(fd)
        };
        match told() {
            Ok(fd) => Self(Some(fd)),
            Err(error) => {
                warn!(path = %path.display(), %error, "changes are seen once a minute only");
                Self(None)
            }
        }
    }

    async fn next(&self) {
        let told = async {
            let Some(fd) = &self.0 else { return std::future::pending().await };
            let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
            let mut buffer = [0; 4096];
            while rustix::io::read(fd.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
            ready.clear_ready();
        };
        // Either way the file is looked at.
        let _ = tokio::time::timeout(ANYWAY, told).await;
    }
}
