//! The function call that stands for a network connection when client and API server share a process.

use std::sync::Arc;

use apiserver::{ApiServer, UserInfo};
use bytes::Bytes;
use client::{Body, Client, Transport, TransportError};
use futures::future::BoxFuture;

/// Calls into the API server under one identity, through the same chain as a request from the network.
struct InProcess {
    server: Arc<ApiServer>,
    identity: UserInfo,
}

impl Transport for InProcess {
    fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>> {
        use http_body_util::BodyExt;
        Box::pin(async move {
            let request = request.map(apiserver::Body::Full);
            let response = self.server.handle(self.identity.clone(), request).await;
            Ok(response.map(|body| body.map_err(TransportError::broken).boxed_unsync()))
        })
    }
}

/// A client that is `identity`.
pub fn client(server: &Arc<ApiServer>, identity: UserInfo, user_agent: &str) -> Client {
    let transport = InProcess { server: server.clone(), identity };
    Client::new(Arc::new(transport), user_agent)
}

/// Makes the client of a component that runs in this process.
pub type Clients<'a> = &'a (dyn Fn(UserInfo, &str) -> Client + Sync);
