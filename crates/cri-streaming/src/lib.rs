//! Exec, attach and port-forward: ties a client's streams (SPDY or WebSocket) to a runtime's.
//!
//! [`upgrade`] takes a request that asks for an upgrade and carries it out on a runtime. The kubelet's server calls it with
//! what a path of its own names; [`urls`] serves the URLs that CRI answers with. [`remote`] is the other side: a runtime
//! behind a socket as a kubelet uses it, whose URLs are dialled.

mod dial;
mod relay;
pub mod remote;
pub mod urls;

use std::sync::Arc;

use cri::RuntimeService;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use streaming::port_forward;
use streaming::remote_command::{self, Options};
use streaming::upgrade::{Accepted, UpgradeError, negotiate};
use tracing::debug;

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    Exec { container: String, command: Vec<String> },
    Attach { container: String },
    PortForward { sandbox: String, ports: Vec<u16> },
}

/// Agrees on a protocol and carries the stream out on `tasks`. Gives the answer to send, or why there is none.
pub fn upgrade(
    mut request: Request<Incoming>,
    what: What,
    options: Options,
    runtime: Arc<dyn RuntimeService>,
    tasks: &Tasks,
) -> Result<Response<()>, (StatusCode, String)> {
    let (spdy, websocket) = match what {
        What::PortForward { .. } => (port_forward::SPDY_PROTOCOLS, port_forward::WEBSOCKET_PROTOCOLS),
        _ => (remote_command::SPDY_PROTOCOLS, remote_command::WEBSOCKET_PROTOCOLS),
    };
    let accepted = negotiate(request.headers(), spdy, websocket).map_err(|error| match error {
        UpgradeError::NotAnUpgrade => (StatusCode::BAD_REQUEST, "Upgrade request required".to_owned()),
        other => (StatusCode::FORBIDDEN, other.to_string()),
    })?;
    let upgraded = hyper::upgrade::on(&mut request);
    let Accepted { wire, protocol, response } = accepted;
    tasks.spawn("stream", |stop| async move {
        let work = async {
            let io = match upgraded.await {
                Ok(io) => TokioIo::new(io),
                Err(error) => return debug!(%error, "the connection was not upgraded"),
            };
            match what {
                What::PortForward { sandbox, ports } => {
                    let (connections, driver) = port_forward::accept(io, wire, &protocol, &ports);
                    relay::forward(runtime.as_ref(), &sandbox, connections, driver).await;
                }
                what => match remote_command::accept(io, wire, &protocol, options).await {
                    Ok((session, driver)) => {
                        relay::run(runtime.as_ref(), what, options, session, driver).await
                    }
                    Err(error) => debug!(%error, "no session came about"),
                },
            }
        };
        stop.or(work).await;
    });
    Ok(response)
}
