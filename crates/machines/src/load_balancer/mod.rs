//! A balancer of TCP connections: clients come to frontends, servers behind them are asked for their health, and those
//! that are well get the connections. Its configuration is haproxy's language ([`config`]).

pub mod config;
mod health;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, info, warn};

pub use config::ConfigError;
use config::{Balance, Config, Frontend};

/// Runs a load balancer
#[derive(Debug, clap::Args)]
pub struct LoadBalancerArgs {
    /// Configuration, in the part of haproxy's language that installations use
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

impl LoadBalancerArgs {
    /// Balances until the stop; SIGHUP reads the configuration again without cutting connections.
    pub async fn run(self, stop: &Stop) -> Result<(), ConfigError> {
        let tasks = Tasks::under(stop);
        let balancer = Balancer::start(&self.config, &tasks).await?;
        let fail = |error| ConfigError::Read(self.config.clone(), error);
        let mut hangup =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).map_err(fail)?;
        while stop.or(hangup.recv()).await.is_some() {
            if let Err(error) = balancer.reload().await {
                warn!(error = %telemetry::chain(&error), "the load balancer goes on as it was");
            }
        }
        tasks.drain(Duration::from_secs(2)).await;
        Ok(())
    }
}

/// A server with its health.
#[derive(Debug)]
struct Server {
    config: config::Server,
    /// Whether it is well; who serves a connection to it watches.
    up: watch::Sender<bool>,
    last: RwLock<String>,
    stop: Stop,
}

#[derive(Debug)]
struct Backend {
    balance: Balance,
    check: config::Check,
    servers: Vec<Arc<Server>>,
    turn: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    backends: BTreeMap<String, Arc<Backend>>,
    config: Config,
}

/// A running balancer.
#[derive(Debug, Clone)]
pub struct Balancer {
    path: PathBuf,
    table: Arc<RwLock<Table>>,
    checker: health::Checker,
    tasks: Tasks,
}

fn read(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read(path.to_owned(), error))?;
    config::parse(&text)
}

impl Balancer {
    /// Listens and begins to check.
    pub async fn start(path: &Path, tasks: &Tasks) -> Result<Self, ConfigError> {
        let config = read(path)?;
        let balancer = Self {
            path: path.to_owned(),
            table: Arc::default(),
            checker: health::Checker::new().map_err(ConfigError::Tls)?,
            tasks: tasks.clone(),
        };
        balancer.take(config.clone());
        let room = Arc::new(Semaphore::new(config.settings.most_connections.max(1)));
        for frontend in config.frontends {
            for address in frontend.binds.clone() {
                let listener = listen(address).await.map_err(|error| ConfigError::Bind(address, error))?;
                let (balancer, frontend, room) = (balancer.clone(), frontend.clone(), room.clone());
                tasks.spawn(format!("balance/{address}"), move |stop| async move {
                    balancer.accept(listener, frontend, room, stop).await;
                });
            }
        }
        Ok(balancer)
    }

    /// Reads the configuration again. Connections that stand go on; servers that left are not used any more.
    pub async fn reload(&self) -> Result<(), ConfigError> {
        let config = read(&self.path)?;
        if config.frontends != self.table().config.frontends {
            return Err(ConfigError::Restart);
        }
        self.take(config);
        info!(config = %self.path.display(), "read the load balancer's configuration again");
        Ok(())
    }

    fn table(&self) -> std::sync::RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a configuration the one in use, keeping servers that it has already.
    fn take(&self, config: Config) {
        let mut backends = BTreeMap::new();
        let mut kept: Vec<Arc<Server>> = Vec::new();
        {
            let old = self.table();
            for (name, backend) in &config.backends {
                let known = old.backends.get(name).filter(|known| known.check == backend.check);
                let servers = backend.servers.iter().map(|server| {
                    let same = known.and_then(|known| known.servers.iter().find(|one| one.config == *server));
                    match same {
                        Some(server) => {
                            kept.push(server.clone());
                            server.clone()
                        }
                        None => self.watch(name, server, &backend.check, config.settings.check),
                    }
                });
                let backend = Backend {
                    balance: backend.balance,
                    check: backend.check.clone(),
                    servers: servers.collect(),
                    turn: AtomicUsize::new(0),
                };
                backends.insert(name.clone(), Arc::new(backend));
            }
            let gone = old.backends.values().flat_map(|backend| &backend.servers);
            gone.filter(|server| !kept.iter().any(|one| Arc::ptr_eq(one, server)))
                .for_each(|server| server.stop.request());
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Table { backends, config };
    }

    /// A server and the task that asks for its health.
    fn watch(
        &self,
        backend: &str,
        config: &config::Server,
        check: &config::Check,
        limit: Duration,
    ) -> Arc<Server> {
        let server = Arc::new(Server {
            config: config.clone(),
            // As haproxy: well until a check says otherwise, so that a restart cuts nobody off.
            up: watch::Sender::new(true),
            last: RwLock::default(),
            stop: self.tasks.stop().child(),
        });
        if config.checked {
            let (watched, check, checker) = (server.clone(), check.clone(), self.checker.clone());
            let name = format!("{backend}/{}", config.name);
            self.tasks.spawn(format!("check/{name}"), move |_| async move {
                let stop = watched.stop.clone();
                stop.or(health::watch(&name, &watched, &check, &checker, limit)).await;
            });
        }
        server
    }

    async fn accept(self, listener: TcpListener, frontend: Frontend, room: Arc<Semaphore>, stop: Stop) {
        loop {
            // Clients beyond the limit wait in the kernel's queue.
            let Some(Ok(permit)) = stop.or(room.clone().acquire_owned()).await else { return };
            let Some(accepted) = stop.or(listener.accept()).await else { return };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, frontend = frontend.name, "cannot accept a connection");
                    stop.or(tokio::time::sleep(Duration::from_millis(50))).await;
                    continue;
                }
            };
            let (balancer, frontend) = (self.clone(), frontend.clone());
            self.tasks.spawn(format!("connection/{}", frontend.name), move |stop| async move {
                let _permit = permit;
                let work = async {
                    match &frontend.stats {
                        Some(path) => balancer.show(stream, path).await,
                        None => balancer.carry(stream, client.ip(), &frontend).await,
                    }
                };
                if let Some(Err(error)) = stop.or(work).await {
                    debug!(%client, frontend = frontend.name, %error, "a connection ended");
                }
            });
        }
    }

    /// Carries a connection to a server that is well.
    async fn carry(&self, client: TcpStream, from: IpAddr, frontend: &Frontend) -> std::io::Result<()> {
        let (backend, settings) = {
            let table = self.table();
            let Some(backend) = table.backends.get(&frontend.backend) else { return Ok(()) };
            (backend.clone(), table.config.settings.clone())
        };
        let mut tried: Vec<usize> = Vec::new();
        loop {
            let well: Vec<usize> = (0..backend.servers.len())
                .filter(|index| *backend.servers[*index].up.borrow() && !tried.contains(index))
                .collect();
            let Some(index) = choose(&backend, &well, from) else {
                return Err(std::io::Error::other(format!("no server of {} is well", frontend.backend)));
            };
            let server = &backend.servers[index];
            let connect = TcpStream::connect(server.config.address);
            match tokio::time::timeout(settings.connect, connect).await {
                Ok(Ok(stream)) => {
                    client.set_nodelay(true)?;
                    stream.set_nodelay(true)?;
                    let mut up = server.up.subscribe();
                    let cut = async {
                        match server.config.cuts {
                            true => drop(up.wait_for(|up| !up).await),
                            false => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        outcome = pump(client, stream, settings.idle) => return outcome,
                        () = cut => return Ok(()),
                    }
                }
                failed => {
                    debug!(server = server.config.name, ?failed, "a server does not take a connection");
                    tried.push(index);
                    if tried.len() > settings.retries {
                        return Err(std::io::Error::other("no server took the connection"));
                    }
                }
            }
        }
    }

    /// One line per server, for people and scripts.
    async fn show(&self, mut stream: TcpStream, path: &str) -> std::io::Result<()> {
        let mut request = vec![0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut request)).await;
        let Ok(Ok(read)) = read else { return Ok(()) };
        let wanted =
            String::from_utf8_lossy(&request[..read]).split(' ').nth(1).unwrap_or_default().to_owned();
        let (status, body) =
            if wanted == path { ("200 OK", self.stats()) } else { ("404 Not Found", String::new()) };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await
    }

    /// The state of all servers.
    pub fn stats(&self) -> String {
        let mut out = String::new();
        for (name, backend) in &self.table().backends {
            for server in &backend.servers {
                let state = if *server.up.borrow() { "UP" } else { "DOWN" };
                let last = server.last.read().unwrap_or_else(PoisonError::into_inner);
                out.push_str(&format!(
                    "{name}/{} {} {state} {last}\n",
                    server.config.name, server.config.address
                ));
            }
        }
        out
    }
}

/// The server for a client among those that are well.
fn choose(backend: &Backend, well: &[usize], from: IpAddr) -> Option<usize> {
    if well.is_empty() {
        return None;
    }
    let number = match backend.balance {
        Balance::RoundRobin => backend.turn.fetch_add(1, Ordering::Relaxed),
        Balance::Source => match from {
            IpAddr::V4(address) => u32::from(address) as usize,
            IpAddr::V6(address) => (u128::from(address) % 65521) as usize,
        },
    };
    well.get(number % well.len()).copied()
}

/// A listener; `::` is for both families, and for IPv4 alone where there is no IPv6.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error)
            if address.ip().is_unspecified()
                && address.is_ipv6()
                && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
        {
            TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        other => other,
    }
}

/// Carries bytes both ways until both ends are done or nothing moved for too long.
async fn pump(client: TcpStream, server: TcpStream, idle: Duration) -> std::io::Result<()> {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let moved = watch::Sender::new(());
    let quiet = async {
        let mut moves = moved.subscribe();
        while tokio::time::timeout(idle, moves.changed()).await.is_ok() {}
    };
    tokio::select! {
        both = async { tokio::try_join!(one_way(from_client, to_server, &moved), one_way(from_server, to_client, &moved)) } => both.map(drop),
        () = quiet => Ok(()),
    }
}

async fn one_way(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    moved: &watch::Sender<()>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        moved.send_replace(());
    }
}

#[cfg(test)]
mod tests;
