//! The client of a kubelet without an API server: every request fails at once, with a sentence.

use std::sync::Arc;

use bytes::Bytes;
use client::{Body, Client, Transport, TransportError};
use futures::future::BoxFuture;

/// Nobody at the other end.
struct NoServer;

impl Transport for NoServer {
    fn call(
        &self,
        _request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>> {
        Box::pin(async {
            Err(TransportError::broken("this kubelet has no --kubeconfig: there is no API server"))
        })
    }
}

pub fn client() -> Client {
    Client::new(Arc::new(NoServer), "kubelet")
}
