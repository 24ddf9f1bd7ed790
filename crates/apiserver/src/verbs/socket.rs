//! Watches and logs as WebSocket messages, for clients that have no other stream, such as browsers.
//!
//! The answer is made as for everybody else; here its body is cut into messages: one per event of a watch, one per
//! piece of a log. A client that closes its end, or breaks, ends the answer.

use std::sync::Arc;

use apimachinery::status::Status;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes};
use http::header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Response};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use streaming::upgrade::{self, Wire};
use streaming::websocket::{self, Message, Role, WebSocket};
use tokio::sync::mpsc;

use crate::body::Body;
use crate::negotiate::Format;
use crate::server::ApiServer;

/// The sub-protocols of a plain stream of bytes.
const BYTES: [&str; 3] = ["", "binary.k8s.io", "base64.binary.k8s.io"];

/// How a body becomes messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Events of a watch, one message each.
    Events(Format),
    /// Bytes as they come.
    Bytes,
    /// The same in base64 text.
    Base64,
}

/// Takes the connection of a request that asks for a WebSocket.
pub fn take(headers: &HeaderMap, extensions: &mut http::Extensions) -> Option<OnUpgrade> {
    (upgrade::wanted(headers) == Some(Wire::WebSocket)).then(|| extensions.remove::<OnUpgrade>()).flatten()
}

/// Removes what asks for an upgrade, so that whoever gets the request next is not asked.
pub fn forget(headers: &mut HeaderMap) {
    let asking: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with("sec-websocket-")).cloned().collect();
    for name in asking.iter().chain([&CONNECTION, &UPGRADE]) {
        headers.remove(name);
    }
}

impl ApiServer {
    /// Sends a successful answer over the client's connection; any other stays what it is. `events` is the
    /// format of a watch.
    pub(crate) fn into_socket(
        self: &Arc<Self>,
        client: OnUpgrade,
        headers: &HeaderMap,
        answer: Response<Body>,
        events: Option<Format>,
    ) -> Result<Response<Body>, Status> {
        if !answer.status().is_success() {
            return Ok(answer);
        }
        // The events of a watch say themselves what they are: whatever the client calls the protocol is fine.
        let offered =
            headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let offered: Vec<&str> = offered.split(',').map(str::trim).chain([""]).collect();
        let known: &[&str] = if events.is_some() { &offered } else { &BYTES };
        let accepted = upgrade::negotiate(headers, &[], known)
            .map_err(|error| Status::bad_request(telemetry::chain(&error).to_string()))?;
        let framing = match events {
            Some(format) => Framing::Events(format),
            None if accepted.protocol == "base64.binary.k8s.io" => Framing::Base64,
            None => Framing::Bytes,
        };
        let body = answer.into_body();
        self.tasks.spawn("websocket-answer", move |stop| async move {
            stop.or(serve(client, body, framing)).await;
        });
        Ok(accepted.response.map(|()| Body::Empty))
    }
}

async fn serve(client: OnUpgrade, body: Body, framing: Framing) {
    let Ok(client) = client.await else { return };
    let (WebSocket { mut incoming, outgoing }, driver) = websocket::split(TokioIo::new(client), Role::Server);
    let talking = async move {
        // Nothing is expected from the client but its leave.
        let leaving =
            async { while let Some(Message::Text(_) | Message::Binary(_)) = incoming.recv().await {} };
        tokio::select! { () = send(body, &outgoing, framing) => {}, () = leaving => {} }
    };
    tokio::join!(driver, talking);
}

async fn send(mut body: Body, outgoing: &mpsc::Sender<Message>, framing: Framing) {
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(piece) = frame.into_data() else { continue };
        for message in messages(piece, framing) {
            if outgoing.send(message).await.is_err() {
                return;
            }
        }
    }
}

/// Cuts a piece of a body. A piece of a watch holds whole events.
fn messages(mut piece: Bytes, framing: Framing) -> Vec<Message> {
    let mut out = Vec::new();
    match framing {
        Framing::Bytes => out.push(Message::Binary(piece)),
        Framing::Base64 => out.push(Message::Text(STANDARD.encode(&piece).into())),
        Framing::Events(Format::Json) => {
            while !piece.is_empty() {
                let end = memchr::memchr(b'\n', &piece).map_or(piece.len(), |at| at + 1);
                out.push(Message::Text(piece.split_to(end)));
            }
        }
        Framing::Events(Format::Yaml) => out.push(Message::Text(piece)),
        Framing::Events(Format::Protobuf) => {
            while piece.len() >= 4 {
                let length = piece.get_u32() as usize;
                out.push(Message::Binary(piece.split_to(length.min(piece.len()))));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_a_message() {
        let cut = |bytes: &'static [u8], framing| messages(Bytes::from_static(bytes), framing);
        assert_eq!(
            cut(b"{\"a\":1}\n{\"b\":2}\n", Framing::Events(Format::Json)),
            [Message::Text("{\"a\":1}\n".into()), Message::Text("{\"b\":2}\n".into())]
        );
        assert_eq!(
            cut(b"\0\0\0\x02hi\0\0\0\x01x", Framing::Events(Format::Protobuf)),
            [Message::Binary("hi".into()), Message::Binary("x".into())]
        );
        assert_eq!(cut(b"a\nb", Framing::Bytes), [Message::Binary("a\nb".into())]);
        assert_eq!(cut(b"hi", Framing::Base64), [Message::Text("aGk=".into())]);
    }

    #[test]
    fn a_forgotten_upgrade_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "k"),
            ("accept", "*/*"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        forget(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
