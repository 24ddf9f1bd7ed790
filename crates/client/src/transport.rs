//! How a request reaches the API server: in the same process or over the network.

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use thiserror::Error;

/// A response body that may stream, as watches and logs do.
pub type Body = UnsyncBoxBody<Bytes, TransportError>;

/// Carries requests to an API server under one identity.
pub trait Transport: Send + Sync + 'static {
    /// Sends the request. Only the path and query of its URI count.
    fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>>;
}

/// The request did not reach the server, or its answer did not come back whole.
#[derive(Debug, Error)]
pub enum TransportError {
    #[error("could not connect to {server}")]
    Connect { server: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("the connection to the API server broke")]
    Broken { source: Box<dyn std::error::Error + Send + Sync> },
}

impl TransportError {
    /// Wraps whatever ended a connection or stream.
    pub fn broken(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Broken { source: source.into() }
    }
}

/// A body that is already complete.
pub fn full_body(bytes: impl Into<Bytes>) -> Body {
    http_body_util::Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
