//! Which protocol a request asks to upgrade to, and the response that accepts it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderName, Response, StatusCode};
use thiserror::Error;

/// Where SPDY clients list, and servers answer, the protocol inside the streams.
pub const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The wire a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// `Upgrade: SPDY/3.1`
    Spdy,
    /// `Upgrade: websocket`
    WebSocket,
}

/// Why an upgrade is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UpgradeError {
    /// A plain request came where only an upgrade makes sense.
    #[error("unable to upgrade: missing upgrade headers in request")]
    NotAnUpgrade,
    /// No protocol in common.
    #[error("unable to negotiate protocol: client supports {offered:?}, server accepts {accepted:?}")]
    NoCommonProtocol {
        /// What the client listed.
        offered: Vec<String>,
        /// What we take.
        accepted: Vec<String>,
    },
    /// A websocket request without its key.
    #[error("websocket request without Sec-WebSocket-Key")]
    NoKey,
}

/// What was agreed on, and the response to send before the connection changes its language.
#[derive(Debug)]
pub struct Accepted {
    /// The wire.
    pub wire: Wire,
    /// The protocol inside it, one of those offered (or the empty string if the client named none).
    pub protocol: String,
    /// `101 Switching Protocols` with its headers.
    pub response: Response<()>,
}

/// The wire a request's headers ask for, if any.
pub fn wanted(headers: &HeaderMap) -> Option<Wire> {
    let upgrades = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")));
    if !upgrades {
        return None;
    }
    let name = headers.get(UPGRADE)?.to_str().ok()?;
    if name.eq_ignore_ascii_case("websocket") {
        Some(Wire::WebSocket)
    } else if name.eq_ignore_ascii_case("SPDY/3.1") {
        Some(Wire::Spdy)
    } else {
        None
    }
}

/// Agrees on the wire and on the first of the client's protocols that we take.
pub fn negotiate(headers: &HeaderMap, spdy: &[&str], websocket: &[&str]) -> Result<Accepted, UpgradeError> {
    let wire = wanted(headers).ok_or(UpgradeError::NotAnUpgrade)?;
    let (header, accepted) = match wire {
        Wire::Spdy => (STREAM_PROTOCOL, spdy),
        Wire::WebSocket => (SEC_WEBSOCKET_PROTOCOL, websocket),
    };
    let offered: Vec<String> = headers
        .get_all(&header)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|value| value.trim().to_owned())
        .filter(|value| !value.is_empty())
        .collect();
    let protocol = if offered.is_empty() && accepted.contains(&"") {
        String::new()
    } else {
        offered.iter().find(|name| accepted.contains(&name.as_str())).cloned().ok_or_else(|| {
            UpgradeError::NoCommonProtocol {
                offered: offered.clone(),
                accepted: accepted.iter().map(ToString::to_string).collect(),
            }
        })?
    };
    let mut response =
        Response::builder().status(StatusCode::SWITCHING_PROTOCOLS).header(CONNECTION, "Upgrade");
    response = match wire {
        Wire::Spdy => response.header(UPGRADE, "SPDY/3.1"),
        Wire::WebSocket => {
            let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(UpgradeError::NoKey)?;
            response.header(UPGRADE, "websocket").header(SEC_WEBSOCKET_ACCEPT, accept_key(key.as_bytes()))
        }
    };
    if !protocol.is_empty() {
        response = response.header(header, &protocol);
    }
    // Every header above is a constant or was a header before.
    let response = response.body(()).map_err(|_| UpgradeError::NotAnUpgrade)?;
    Ok(Accepted { wire, protocol, response })
}

/// The answer to a websocket client's key.
pub fn accept_key(key: &[u8]) -> String {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
    digest.update(key);
    digest.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(digest.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, value.parse().unwrap());
        }
        map
    }

    #[test]
    fn the_accept_key_is_that_of_the_rfc() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn the_clients_first_choice_that_we_take_wins() {
        let request = headers(&[
            ("connection", "Upgrade"),
            ("upgrade", "SPDY/3.1"),
            ("x-stream-protocol-version", "v9.channel.k8s.io"),
            ("x-stream-protocol-version", "v4.channel.k8s.io"),
            ("x-stream-protocol-version", "v3.channel.k8s.io"),
        ]);
        let accepted = negotiate(&request, &["v3.channel.k8s.io", "v4.channel.k8s.io"], &[]).unwrap();
        assert_eq!((accepted.wire, accepted.protocol.as_str()), (Wire::Spdy, "v4.channel.k8s.io"));
        assert_eq!(accepted.response.headers()[STREAM_PROTOCOL], "v4.channel.k8s.io");
    }

    #[test]
    fn refusals_say_why() {
        assert_eq!(negotiate(&headers(&[]), &[], &[]).unwrap_err(), UpgradeError::NotAnUpgrade);
        let request = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", "a, b"),
        ]);
        assert!(matches!(
            negotiate(&request, &[], &["c"]).unwrap_err(),
            UpgradeError::NoCommonProtocol { offered, .. } if offered == ["a", "b"]
        ));
        assert_eq!(negotiate(&request, &[], &["b"]).unwrap_err(), UpgradeError::NoKey);
    }
}
