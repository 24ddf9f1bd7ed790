//! A transport whose identity comes later and is replaced: requests wait for the first one, and each goes out with the one
//! of its time.

use std::sync::Arc;

use bytes::Bytes;
use client::{Body, Https, HttpsConfig, HttpsError, Transport, TransportError};
use futures::future::BoxFuture;
use tokio::sync::watch;

/// See the module.
pub struct Rotating {
    current: watch::Sender<Option<Arc<Https>>>,
}

impl Rotating {
    /// Without an identity, requests wait for one.
    pub fn new(config: Option<HttpsConfig>) -> Result<Arc<Self>, HttpsError> {
        let current = config.map(Https::new).transpose()?;
        Ok(Arc::new(Self { current: watch::Sender::new(current) }))
    }

    /// From now on requests are made so. What still runs under the identity before, such as watches, breaks and is
    /// resumed: as upstream, which closes its connections.
    pub fn set(&self, config: HttpsConfig) -> Result<(), HttpsError> {
        self.current.send_replace(Some(Https::new(config)?));
        Ok(())
    }
}

impl Transport for Rotating {
    fn call(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'_, Result<http::Response<Body>, TransportError>> {
        Box::pin(async move {
            let mut receiver = self.current.subscribe();
            let current = match receiver.wait_for(Option::is_some).await {
                Ok(current) => current.clone(),
                Err(closed) => return Err(TransportError::broken(closed)),
            };
            match current {
                Some(https) => https.call(request).await,
                None => Err(TransportError::broken("there is no client certificate yet")),
            }
        })
    }
}
