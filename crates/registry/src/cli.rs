//! `kelson registry serve|garbage-collect`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lifecycle::{Stop, Tasks};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info};

use crate::auth::{Auth, Htpasswd, HtpasswdError, Signer};
use crate::server::{Limits, Registry};
use crate::store::{Store, StoreError};

/// Connections at once; others wait.
const CONNECTIONS: usize = 1024;
/// How long a caller may take to say hello, and to say what it wants.
const HELLO: Duration = Duration::from_secs(30);
const DRAIN: Duration = Duration::from_secs(10);

/// Serves images from a directory, as any other registry does.
#[derive(Args, Clone, Debug)]
pub struct RegistryArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Serves until it is stopped
    Serve(ServeArgs),
    /// Removes content that no image needs; the registry must not be running
    GarbageCollect(CollectArgs),
}

#[derive(Args, Clone, Debug)]
struct Root {
    /// Where everything is kept
    #[arg(long, default_value = "/var/lib/registry")]
    root: PathBuf,
}

#[derive(Args, Clone, Debug)]
struct ServeArgs {
    #[command(flatten)]
    root: Root,
    /// The address to serve on
    #[arg(long, default_value = "127.0.0.1:5000")]
    listen: SocketAddr,
    /// The serving certificate; without it plain HTTP is spoken, which is refused on other addresses than this host's own
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Speak plain HTTP to everyone
    #[arg(long, conflicts_with = "tls_cert_file")]
    insecure: bool,
    /// Who may use it: users and bcrypt passwords, as `htpasswd -B` writes them
    #[arg(long)]
    htpasswd: Option<PathBuf>,
    /// How users prove who they are
    #[arg(long, value_enum, default_value_t = Means::Basic, requires = "htpasswd")]
    auth: Means,
    /// Refuse every change
    #[arg(long)]
    read_only: bool,
    /// Bytes of one blob at most
    #[arg(long, default_value_t = Limits::default().blob)]
    max_blob_size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Means {
    /// Name and password with every request
    Basic,
    /// A token, given for name and password
    Token,
}

#[derive(Args, Clone, Debug)]
struct CollectArgs {
    #[command(flatten)]
    root: Root,
    /// Only say what would be removed
    #[arg(long, short)]
    dry_run: bool,
    /// Remove images that no tag leads to, too
    #[arg(long, short = 'm')]
    delete_untagged: bool,
}

/// Why the registry does not run.
#[derive(Debug, Error)]
pub enum RegistryCommandError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} cannot be used", path = path.display())]
    Htpasswd { path: PathBuf, source: HtpasswdError },
    #[error("{path} cannot be used: {reason}", path = path.display())]
    Certificate { path: PathBuf, reason: String },
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("{0} is not an address of this host only: give --tls-cert-file, or --insecure")]
    Insecure(SocketAddr),
    #[error("no random numbers")]
    Random,
    #[error("the registry's directory does not work")]
    Disk(#[source] io::Error),
    #[error("the answer cannot be written")]
    Output(#[source] io::Error),
}

fn read(path: &Path) -> Result<Vec<u8>, RegistryCommandError> {
    std::fs::read(path).map_err(|source| RegistryCommandError::Read { path: path.to_owned(), source })
}

impl RegistryArgs {
    /// Runs the command; `serve` until the stop.
    pub async fn run(self, stop: Stop, out: &mut dyn Write) -> Result<(), RegistryCommandError> {
        match self.command {
            Command::Serve(args) => args.run(stop).await,
            Command::GarbageCollect(args) => args.run(out),
        }
    }
}

impl CollectArgs {
    fn run(self, out: &mut dyn Write) -> Result<(), RegistryCommandError> {
        let store = Store::open(&self.root.root)?;
        let done = store.collect(self.delete_untagged, self.dry_run).map_err(RegistryCommandError::Disk)?;
        let verb = if self.dry_run { "eligible for deletion" } else { "deleted" };
        let mut write = || {
            for (name, digest) in &done.manifests {
                writeln!(out, "manifest {verb}: {name}@{digest}")?;
            }
            for digest in &done.blobs {
                writeln!(out, "blob {verb}: {digest}")?;
            }
            writeln!(
                out,
                "{} blobs ({} bytes) and {} manifests {verb}",
                done.blobs.len(),
                done.bytes,
                done.manifests.len()
            )
        };
        write().map_err(RegistryCommandError::Output)
    }
}

impl ServeArgs {
    fn tls(&self) -> Result<Option<TlsAcceptor>, RegistryCommandError> {
        let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_private_key_file) else {
            return Ok(None);
        };
        let bad =
            |path: &Path, reason: String| RegistryCommandError::Certificate { path: path.to_owned(), reason };
        let chain = CertificateDer::pem_slice_iter(&read(certificate)?)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| bad(certificate, error.to_string()))?;
        let secret =
            PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| bad(key, error.to_string()))?;
        let config =
            rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(chain, secret)?;
        Ok(Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn auth(&self) -> Result<Auth, RegistryCommandError> {
        let Some(path) = &self.htpasswd else { return Ok(Auth::Open) };
        let text = String::from_utf8_lossy(&read(path)?).into_owned();
        let users = Htpasswd::parse(&text)
            .map_err(|source| RegistryCommandError::Htpasswd { path: path.clone(), source })?;
        Ok(match self.auth {
            Means::Basic => Auth::Basic(users),
            Means::Token => Auth::Token(users, Signer::new().ok_or(RegistryCommandError::Random)?),
        })
    }

    async fn run(self, stop: Stop) -> Result<(), RegistryCommandError> {
        let tls = self.tls()?;
        if tls.is_none() && !self.insecure && !self.listen.ip().is_loopback() {
            return Err(RegistryCommandError::Insecure(self.listen));
        }
        let store = Store::open(&self.root.root)?;
        let limits = Limits { blob: self.max_blob_size, ..Limits::default() };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let registry = Arc::new(Registry::new(store, self.auth()?, limits, self.read_only, scheme));
        let failed = |source| RegistryCommandError::Listen { address: self.listen, source };
        let listener = TcpListener::bind(self.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        info!(%address, scheme, root = %self.root.root.display(), "serving");
        let tasks = Tasks::under(&stop);
        serve(listener, tls, registry, &tasks, &stop).await;
        tasks.drain(DRAIN).await;
        Ok(())
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    registry: Arc<Registry>,
    tasks: &Tasks,
    stop: &Stop,
) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Some(Ok(place)) = stop.or(room.clone().acquire_owned()).await else { return };
        let stream = match stop.or(listener.accept()).await {
            None => return,
            Some(Ok((stream, _))) => stream,
            Some(Err(error)) => {
                debug!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await; // out of descriptors: others must end first
                continue;
            }
        };
        let (registry, tls) = (registry.clone(), tls.clone());
        tasks.spawn("connection", move |stop| async move {
            let _place = place;
            match tls {
                None => connection(stream, registry, &stop).await,
                Some(tls) => match tokio::time::timeout(HELLO, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connection(stream, registry, &stop).await,
                    _ => debug!("no TLS handshake"),
                },
            }
        });
    }
}

async fn connection<S>(stream: S, registry: Arc<Registry>, stop: &Stop)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let registry = registry.clone();
        async move { Ok::<_, std::convert::Infallible>(registry.handle(request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HELLO);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    let outcome = tokio::select! {
        outcome = &mut serving => outcome,
        () = stop.requested() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = outcome {
        debug!(%error, "a connection ended");
    }
}
