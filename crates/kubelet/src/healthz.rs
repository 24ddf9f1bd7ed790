//! `/healthz` over HTTP on loopback: what a machine's supervisor asks.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::Tasks;
use tokio::net::TcpListener;
use tracing::{debug, warn};

use crate::StartError;
use crate::host::SharedHost;

/// A runtime that takes longer to say its name does not work.
const PATIENCE: Duration = Duration::from_secs(2);
const HEADERS: Duration = Duration::from_secs(10);

/// Serves, if an address is configured.
pub async fn start(host: &SharedHost, tasks: &Tasks) -> Result<(), StartError> {
    let Some(address) = host.config.healthz else { return Ok(()) };
    let failed = |source| StartError::Healthz { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let (host, connections) = (host.clone(), tasks.clone());
    tasks.spawn("kubelet/healthz", |stop| async move {
        while let Some(accepted) = stop.or(listener.accept()).await {
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "cannot accept a health check");
                    stop.or(tokio::time::sleep(Duration::from_millis(200))).await;
                    continue;
                }
            };
            let host = host.clone();
            connections.spawn("kubelet/health-check", |stop| async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let host = host.clone();
                    async move { Ok::<_, Infallible>(answer(&host, request.uri().path()).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADERS)
                    .serve_connection(TokioIo::new(stream), service);
                if let Some(Err(error)) = stop.or(connection).await {
                    debug!(%error, "health check ended");
                }
            });
        }
    });
    Ok(())
}

async fn answer(host: &SharedHost, path: &str) -> Response<Full<Bytes>> {
    let (code, text) = match path {
        "/healthz/ping" => (StatusCode::OK, "ok".to_owned()),
        "/healthz" | "/healthz/" | "/healthz/syncloop" => match runtime_works(host).await {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(why) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("[-]syncloop failed: {why}\nhealthz check failed\n"),
            ),
        },
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = code;
    let text = http::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(http::header::CONTENT_TYPE, text);
    answer
}

async fn runtime_works(host: &SharedHost) -> Result<(), String> {
    match tokio::time::timeout(PATIENCE, host.config.runtime.status()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(telemetry::chain(&error).to_string()),
        Err(_) => Err("the container runtime does not answer".to_owned()),
    }
}
