//! `port-forward`: ports here that lead to ports of a pod.

use std::io::Write;

use clap::Args;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use serde_json::Value;
use streaming::spdy;
use streaming::websocket::{Role, byte_stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::exec::pods_of;
use crate::error::{CliError, message};
use crate::resource::{FileFlags, Info, Selection, fetch_one};
use crate::session::Session;

/// Forward one or more local ports to a pod
#[derive(Args, Debug)]
pub struct PortForward {
    /// TYPE/NAME, and [LOCAL_PORT:]REMOTE_PORT...
    args: Vec<String>,
    /// Addresses to listen on (comma separated)
    #[arg(long, value_delimiter = ',', default_value = "localhost")]
    address: Vec<String>,
    /// The length of time to wait until at least one pod is running
    #[arg(long, value_parser = crate::flags::refused)]
    pod_running_timeout: Option<String>,
}

impl PortForward {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let Some((target, ports)) = self.args.split_first().filter(|(_, ports)| !ports.is_empty()) else {
            return Err(CliError::Usage {
                message: "TYPE/NAME and list of ports are required for port-forward".to_owned(),
                command: "port-forward".to_owned(),
            });
        };
        let args: Vec<String> =
            if target.contains('/') { vec![target.clone()] } else { vec!["pods".to_owned(), target.clone()] };
        let named = fetch_one(session, Selection::new(session, &args, &FileFlags::default())?).await?;
        let pod = if named.resource.name == "pods" {
            named.clone()
        } else {
            let pods = pods_of(session, &named).await?;
            pods.into_iter()
                .next()
                .ok_or_else(|| message(format!("no pods of {} are running", named.object_name())))?
        };
        if pod.object["status"]["phase"] != "Running" {
            let phase = pod.object["status"]["phase"].as_str().unwrap_or("Unknown");
            return Err(message(format!(
                "unable to forward port because pod is not running. Current status={phase}"
            )));
        }
        let mut pairs = Vec::new();
        for port in ports {
            pairs.push(pair(port, &named, &pod.object)?);
        }
        let (upgraded, _) =
            crate::stream::open(session, &pod.subresource("portforward"), &[], "SPDY/3.1+portforward.k8s.io")
                .await?;
        let tasks = Tasks::new();
        let (bytes, tunnel) = byte_stream(TokioIo::new(upgraded), Role::Client);
        let (connection, driver) = spdy::Session::new(bytes, false);
        let (ended, mut lost) = tokio::sync::mpsc::channel::<()>(1);
        tasks.spawn("tunnel", move |stop| async move {
            stop.or(async {
                tokio::join!(tunnel, driver);
            })
            .await;
            // Whoever waits sees that nobody sends any more.
            drop(ended);
        });
        let connection = std::sync::Arc::new(connection);
        let (accepted, mut incoming) = tokio::sync::mpsc::channel::<(TcpStream, u16, u16)>(16);
        for (local, remote) in pairs {
            self.listen(local, remote, &accepted, &tasks, out).await?;
        }
        drop(accepted);
        out.flush()?;
        let mut number = 0u64;
        loop {
            tokio::select! {
                // The receiver keeps what it holds.
                next = incoming.recv() => {
                    let Some((stream, local, remote)) = next else { return Ok(()) };
                    writeln!(out, "Handling connection for {local}")?;
                    out.flush()?;
                    let connection = connection.clone();
                    tasks.spawn("forward", move |stop| async move {
                        stop.or(forward(connection, stream, local, remote, number)).await;
                    });
                    number += 1;
                }
                _ = lost.recv() => return Err(message("lost connection to pod")),
            }
        }
    }

    async fn listen(
        &self,
        local: u16,
        remote: u16,
        accepted: &tokio::sync::mpsc::Sender<(TcpStream, u16, u16)>,
        tasks: &Tasks,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut chosen = local;
        let mut bound = 0;
        let mut failed = None;
        for address in &self.address {
            let hosts: Vec<&str> =
                if address == "localhost" { vec!["127.0.0.1", "::1"] } else { vec![address] };
            for host in hosts {
                let listener = match TcpListener::bind((host, chosen)).await {
                    Ok(listener) => listener,
                    Err(error) => {
                        failed = Some(format!(
                            "unable to listen on port {local}: Listeners failed to create with the following errors: [unable to create listener: Error listen {host}:{local}: {error}]"
                        ));
                        continue;
                    }
                };
                let place = listener.local_addr()?;
                chosen = place.port();
                bound += 1;
                writeln!(out, "Forwarding from {place} -> {remote}")?;
                let accepted = accepted.clone();
                tasks.spawn("listen", move |stop| async move {
                    stop.or(async {
                        while let Ok((stream, _)) = listener.accept().await {
                            if accepted.send((stream, place.port(), remote)).await.is_err() {
                                return;
                            }
                        }
                    })
                    .await;
                });
            }
        }
        match failed {
            Some(failed) if bound == 0 => Err(message(failed)),
            _ => Ok(()),
        }
    }
}

/// Carries one connection: a stream for its bytes, and one on which the other side tells what went wrong.
async fn forward(
    connection: std::sync::Arc<spdy::Session>,
    stream: TcpStream,
    local: u16,
    remote: u16,
    number: u64,
) {
    let headers = |kind: &str| {
        [("streamType", kind.to_owned()), ("port", remote.to_string()), ("requestID", number.to_string())]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec()
    };
    let (Ok(mut error), Ok(data)) =
        (connection.open(headers("error")).await, connection.open(headers("data")).await)
    else {
        eprintln!("error creating forwarding stream for port {local} -> {remote}");
        return;
    };
    // The other side speaks on it, and we do not.
    let _ = error.shutdown().await;
    let (mut from_pod, mut to_pod) = tokio::io::split(data);
    let (mut from_user, mut to_user) = stream.into_split();
    let up = async {
        // A connection that breaks ends; its peer sees the end.
        let _ = tokio::io::copy(&mut from_user, &mut to_pod).await;
        let _ = to_pod.shutdown().await;
    };
    let down = async {
        let _ = tokio::io::copy(&mut from_pod, &mut to_user).await;
        let _ = to_user.shutdown().await;
    };
    let said = async {
        let mut text = String::new();
        let _ = error.read_to_string(&mut text).await;
        if !text.is_empty() {
            eprintln!("an error occurred forwarding {local} -> {remote}: {text}");
        }
    };
    tokio::join!(up, down, said);
}

/// `8080`, `8080:80`, `:80`, `8080:http`; a service's port becomes its target's.
fn pair(text: &str, named: &Info, pod: &Value) -> Result<(u16, u16), CliError> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let bad = || message(format!("error parsing port spec {text:?}"));
    let remote = remote_port(remote, named, pod)?;
    let local = match local {
        "" => 0,
        word => match word.parse() {
            Ok(number) => number,
            Err(_) if !text.contains(':') => remote,
            Err(_) => return Err(bad()),
        },
    };
    Ok((local, remote))
}

fn remote_port(word: &str, named: &Info, pod: &Value) -> Result<u16, CliError> {
    let by_name = |name: &str| {
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
        containers
            .flat_map(|container| container["ports"].as_array().into_iter().flatten())
            .find(|port| port["name"] == name)
            .and_then(|port| u16::try_from(port["containerPort"].as_u64()?).ok())
            .ok_or_else(|| {
                message(format!(
                    "Pod '{}' does not have a named port '{name}'",
                    pod["metadata"]["name"].as_str().unwrap_or_default()
                ))
            })
    };
    let number = word.parse::<u16>().ok();
    if named.resource.name != "services" {
        return number.map_or_else(|| by_name(word), Ok);
    }
    let ports = named.object["spec"]["ports"].as_array().into_iter().flatten();
    let found = ports.into_iter().find(|port| match number {
        Some(number) => port["port"] == number,
        None => port["name"] == word,
    });
    let port = found
        .ok_or_else(|| message(format!("Service {} does not have a service port {word}", named.name)))?;
    match &port["targetPort"] {
        Value::String(name) => name.parse().map_or_else(|_| by_name(name), Ok),
        Value::Number(target) => u16::try_from(target.as_u64().unwrap_or(0))
            .map_err(|_| message("the service's target port is no port")),
        _ => u16::try_from(port["port"].as_u64().unwrap_or(0))
            .map_err(|_| message("the service's port is no port")),
    }
}
