//! Refusals, in the protocol's words.

use http::StatusCode;
use serde_json::{Value, json};

/// A refusal: status, code, sentence, detail.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub detail: Value,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), detail: Value::Null }
    }

    pub fn with(mut self, detail: Value) -> Self {
        self.detail = detail;
        self
    }

    pub fn name(name: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        Self::new(StatusCode::BAD_REQUEST, "NAME_INVALID", "invalid repository name")
            .with(json!({"name": name}))
    }

    pub fn unknown_name(name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry")
            .with(json!({"name": name}))
    }

    pub fn unknown_manifest(reference: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown")
            .with(json!({"reference": reference}))
    }

    pub fn unknown_blob(digest: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry")
            .with(json!({"digest": digest}))
    }

    pub fn unknown_upload() -> Self {
        Self::new(StatusCode::NOT_FOUND, "BLOB_UPLOAD_UNKNOWN", "blob upload unknown to registry")
    }

    pub fn digest(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "DIGEST_INVALID", "provided digest did not match uploaded content")
            .with(json!({"reason": reason.into()}))
    }

    pub fn unsupported() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "The operation is unsupported.")
    }

    pub fn disk(doing: &str, error: &std::io::Error) -> Self {
        tracing::error!(%error, doing, "the registry's directory does not work");
        let status = match error.kind() {
            std::io::ErrorKind::StorageFull => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, "UNKNOWN", "unknown error")
    }

    /// The answer's body.
    pub fn body(&self) -> Vec<u8> {
        let error = json!({"code": self.code, "message": self.message, "detail": self.detail});
        json!({"errors": [error]}).to_string().into_bytes()
    }
}
