//! What can go wrong with a request, told apart by what the caller can do about it.

use http::StatusCode;
use serde::Deserialize;
use thiserror::Error;

use crate::TransportError;

/// A failed request.
#[derive(Debug, Error)]
pub enum Error {
    /// The server answered with a Status object.
    #[error("{message}")]
    Status { code: u16, reason: String, message: String, retry_after: Option<u64> },
    /// Nobody knows whether the request took effect.
    #[error("{method} {path} got no answer")]
    Transport { method: http::Method, path: String, source: TransportError },
    /// The server's answer is not what was asked for.
    #[error("the answer to {method} {path} could not be read")]
    Decode { method: http::Method, path: String, source: serde_json::Error },
    /// The request itself cannot be expressed.
    #[error("the request for {path} is malformed")]
    Request { path: String, source: http::Error },
    /// The body to send cannot be expressed as JSON.
    #[error("the body for {path} cannot be encoded")]
    Encode { path: String, source: serde_json::Error },
}

impl Error {
    pub(crate) fn from_answer(code: StatusCode, retry_after: Option<u64>, body: &[u8]) -> Self {
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct Status {
            message: String,
            reason: String,
        }
        let status: Status = serde_json::from_slice(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&body[..body.len().min(512)]).trim().to_owned(),
            reason: String::new(),
        });
        let message = if status.message.is_empty() {
            format!("the server answered {}", code.as_u16())
        } else {
            status.message
        };
        Self::Status { code: code.as_u16(), reason: status.reason, message, retry_after }
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    fn has_reason(&self, wanted: &str) -> bool {
        matches!(self, Self::Status { reason, .. } if reason == wanted)
    }

    /// The object is not there. A failed look-up is not this.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Someone else changed the object first.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409) && !self.is_already_exists()
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists")
    }

    /// The revision to read or watch from is no longer kept.
    pub fn is_expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// The server refuses for now; the same request may work later.
    pub fn is_too_many_requests(&self) -> bool {
        self.code() == Some(429)
    }

    /// The object would be invalid; the same request will never work.
    pub fn is_invalid(&self) -> bool {
        self.code() == Some(422)
    }

    /// The identity may not do that.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// The request may have taken effect all the same.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Transport { .. } | Self::Decode { .. } => true,
            Self::Status { code, .. } => *code >= 500,
            Self::Request { .. } | Self::Encode { .. } => false,
        }
    }

    /// The namespace is going away, so nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.is_forbidden()
            && matches!(self, Self::Status { message, .. } if message.contains("being terminated"))
    }
}
