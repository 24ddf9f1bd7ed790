//! How programs on the machine speak to init: one request and one reply, each a line of JSON, on a socket that only
//! root opens.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use lifecycle::Tasks;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::Down;
use super::manager::Manager;

/// Where systemd's own tools look too.
const SOCKET: &str = "/run/systemd/private";
const LARGEST: u64 = 1 << 20;

/// What can be asked of init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum Request {
    Start { units: Vec<String>, block: bool },
    Stop { units: Vec<String>, block: bool },
    Restart { units: Vec<String>, block: bool, only_active: bool },
    Status { units: Vec<String> },
    List,
    Reload,
    ResetFailed { units: Vec<String> },
    Poweroff,
    Reboot,
}

/// What init answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reply {
    /// What went wrong, for each unit.
    pub errors: Vec<String>,
    /// What was asked for.
    pub units: Vec<UnitStatus>,
}

/// What is known of a unit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct UnitStatus {
    pub name: String,
    pub description: String,
    pub load: String,
    pub fragment: String,
    pub dropins: Vec<String>,
    pub active: String,
    pub sub: String,
    pub result: String,
    pub main_pid: i32,
    pub status_text: String,
    pub restarts: u32,
    pub since: String,
    pub last_end: String,
    pub enabled: bool,
}

/// Answers requests until the machine goes down.
pub fn serve(manager: Arc<Manager>, tasks: &Tasks) -> io::Result<()> {
    let _ = fs::remove_file(SOCKET);
    let listener = UnixListener::bind(SOCKET)?;
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o600))?;
    let connections = tasks.clone();
    tasks.spawn("control", move |stop| async move {
        while let Some(Ok((stream, _))) = stop.or(listener.accept()).await {
            let manager = manager.clone();
            connections.spawn("control/request", |_| async move {
                let (read, mut write) = stream.into_split();
                let mut line = String::new();
                let mut reader = tokio::io::BufReader::new(read.take(LARGEST));
                if reader.read_line(&mut line).await.is_err() {
                    return;
                }
                let reply = match serde_json::from_str(&line) {
                    Ok(request) => answer(&manager, request).await,
                    Err(error) => Reply { errors: vec![error.to_string()], units: Vec::new() },
                };
                let mut text = serde_json::to_vec(&reply).unwrap_or_default();
                text.push(b'\n');
                // Who asked may be gone.
                let _ = write.write_all(&text).await;
            });
        }
    });
    Ok(())
}

async fn answer(manager: &Arc<Manager>, request: Request) -> Reply {
    let mut reply = Reply::default();
    match request {
        Request::Start { units, block } => each(manager, units, block, &mut reply, Work::Start).await,
        Request::Stop { units, block } => each(manager, units, block, &mut reply, Work::Stop).await,
        Request::Restart { units, block, only_active } => {
            let units =
                units.into_iter().filter(|unit| !only_active || manager.status(unit).active == "active");
            each(manager, units.collect(), block, &mut reply, Work::Restart).await;
        }
        Request::Status { units } => reply.units = units.iter().map(|unit| manager.status(unit)).collect(),
        Request::List => reply.units = manager.statuses(),
        Request::Reload => manager.reload(),
        Request::ResetFailed { units } if units.is_empty() => manager.reset_failed(None),
        Request::ResetFailed { units } => units.iter().for_each(|unit| manager.reset_failed(Some(unit))),
        Request::Poweroff => manager.go_down(Down::Poweroff),
        Request::Reboot => manager.go_down(Down::Reboot),
    }
    reply
}

#[derive(Clone, Copy)]
enum Work {
    Start,
    Stop,
    Restart,
}

async fn each(manager: &Arc<Manager>, units: Vec<String>, block: bool, reply: &mut Reply, work: Work) {
    for unit in units {
        let manager = manager.clone();
        let (tell, hear) = tokio::sync::oneshot::channel();
        let name = unit.clone();
        manager.clone().task(format!("order/{unit}"), async move {
            if matches!(work, Work::Stop | Work::Restart) {
                manager.stop(&name).await;
            }
            let outcome = match work {
                Work::Stop => Ok(()),
                Work::Start | Work::Restart => manager.start(&name).await,
            };
            // Nobody hears of what was not waited for.
            let _ = tell.send(outcome);
        });
        if block && let Ok(Err(reason)) = hear.await {
            reply.errors.push(reason);
        }
    }
}

/// Asks init.
pub fn call(request: &Request) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(SOCKET)?;
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    stream.write_all(&text)?;
    let mut line = String::new();
    BufReader::new(stream.take(16 * LARGEST)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}
