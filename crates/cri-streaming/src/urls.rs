//! The server behind the URLs that CRI answers exec, attach and port-forward with.
//!
//! It listens on the loopback address. A URL holds 128 random bits, works once and for a minute: whoever was given it is
//! allowed, as with every other runtime.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cri::server::Streams;
use cri::{AttachOptions, Error, ExecOptions, RuntimeService};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::{Stop, Tasks};
use ring::rand::{SecureRandom, SystemRandom};
use streaming::remote_command::Options;
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use crate::What;

/// How long a URL may be used.
const LIFE: Duration = Duration::from_secs(60);
/// URLs that were given out and not used.
const MOST: usize = 1000;
/// How long a client may take for its request.
const HEADERS: Duration = Duration::from_secs(30);

struct Pending {
    what: What,
    options: Options,
    until: Instant,
}

/// Gives out URLs and serves them.
pub struct Urls {
    address: SocketAddr,
    runtime: Arc<dyn RuntimeService>,
    pending: Mutex<HashMap<String, Pending>>,
}

impl Urls {
    /// Listens, on `tasks`.
    pub async fn start(runtime: Arc<dyn RuntimeService>, tasks: &Tasks) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let urls = Arc::new(Self { address, runtime, pending: Mutex::default() });
        let (serving, streams) = (urls.clone(), tasks.clone());
        tasks.spawn("cri/streams", |stop| async move { serving.accept(listener, streams, stop).await });
        Ok(urls)
    }

    async fn accept(self: Arc<Self>, listener: TcpListener, tasks: Tasks, stop: Stop) {
        // Dropping accept loses nothing: the connection stays in the backlog.
        while let Some(accepted) = stop.or(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    let (urls, streams) = (self.clone(), tasks.clone());
                    tasks.spawn("cri/stream-connection", |stop| async move {
                        stop.or(urls.serve(stream, streams)).await;
                    });
                }
                Err(error) => {
                    debug!(%error, "connection not accepted");
                    stop.or(tokio::time::sleep(Duration::from_millis(100))).await;
                }
            }
        }
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, tasks: Tasks) {
        let service = service_fn(move |request| {
            let answer = self.answer(request, &tasks);
            async move { Ok::<_, Infallible>(answer) }
        });
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(64 << 10);
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        if let Err(error) = connection.await {
            debug!(%error, "connection ended");
        }
    }

    fn answer(&self, request: Request<Incoming>, tasks: &Tasks) -> Response<Full<Bytes>> {
        let refuse = |code: StatusCode, text: String| {
            let mut response = Response::new(Full::from(text));
            *response.status_mut() = code;
            response
        };
        let token = request.uri().path().rsplit('/').next().unwrap_or_default();
        let Some(pending) = self.lock().remove(token).filter(|pending| pending.until > Instant::now()) else {
            return refuse(StatusCode::NOT_FOUND, "404 page not found\n".to_owned());
        };
        match crate::upgrade(request, pending.what, pending.options, self.runtime.clone(), tasks) {
            Ok(response) => response.map(|()| Full::default()),
            Err((code, text)) => refuse(code, text),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Pending>> {
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(&self, kind: &str, what: What, options: Options) -> Result<String, Error> {
        let mut bytes = [0_u8; 16];
        SystemRandom::new()
            .fill(&mut bytes)
            .map_err(|_| Error::failed("making a URL", "the kernel has no random bytes"))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        let mut pending = self.lock();
        pending.retain(|_, one| one.until > now);
        if pending.len() >= MOST {
            return Err(Error::failed("making a URL", "too many were asked for and not used"));
        }
        let url = format!("http://{}/{kind}/{token}", self.address);
        pending.insert(token, Pending { what, options, until: now + LIFE });
        Ok(url)
    }
}

impl Streams for Urls {
    fn exec(&self, container_id: &str, command: &[String], options: ExecOptions) -> Result<String, Error> {
        let ExecOptions { tty, stdin, stdout, stderr } = options;
        if command.is_empty() {
            return Err(Error::invalid("cmd", "it is empty"));
        }
        if !stdin && !stdout && !stderr {
            return Err(Error::invalid("streams", "one of stdin, stdout and stderr must be asked for"));
        }
        if tty && stderr {
            return Err(Error::invalid("streams", "there is no stderr beside a terminal"));
        }
        let what = What::Exec { container: container_id.to_owned(), command: command.to_vec() };
        self.add("exec", what, Options { stdin, stdout, stderr, tty })
    }

    fn attach(&self, container_id: &str, options: AttachOptions, tty: bool) -> Result<String, Error> {
        let AttachOptions { stdin, stdout, stderr } = options;
        if !stdin && !stdout && !stderr {
            return Err(Error::invalid("streams", "one of stdin, stdout and stderr must be asked for"));
        }
        let what = What::Attach { container: container_id.to_owned() };
        self.add("attach", what, Options { stdin, stdout, stderr, tty })
    }

    fn port_forward(&self, sandbox_id: &str, ports: &[u16]) -> Result<String, Error> {
        let what = What::PortForward { sandbox: sandbox_id.to_owned(), ports: ports.to_vec() };
        self.add("portforward", what, Options { stdin: false, stdout: false, stderr: false, tty: false })
    }
}
