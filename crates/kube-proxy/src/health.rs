//! `/healthz`, `/livez` and `/metrics`.

use std::convert::Infallible;
use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::{Stop, Tasks};
use tokio::net::TcpListener;
use tracing::debug;

use crate::{Config, Error};

/// Failing for longer than this is unhealthy: rules may be out of date.
const TOLERATED: Duration = Duration::from_secs(120);
const BUCKETS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];

/// How the proxy is doing. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    last_sync: Option<SystemTime>,
    failing_since: Option<SystemTime>,
    services: usize,
    last_queued: Option<SystemTime>,
    service_changes: u64,
    endpoint_changes: u64,
    forgotten: u64,
    syncs: u64,
    failures: u64,
    changes: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
}

impl Health {
    pub fn synced(&self, took: Duration, changes: usize, services: usize) {
        let mut record = self.lock();
        record.last_sync = Some(SystemTime::now());
        record.failing_since = None;
        record.services = services;
        record.syncs += 1;
        record.changes += changes as u64;
        record.seconds += took.as_secs_f64();
        let took = took.as_secs_f64();
        for (bucket, bound) in record.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(took <= bound);
        }
    }

    /// A Service changed, and the rules with it have to.
    pub fn service_changed(&self) {
        let mut record = self.lock();
        record.service_changes += 1;
        record.last_queued = Some(SystemTime::now());
    }

    /// An EndpointSlice did.
    pub fn endpoints_changed(&self) {
        let mut record = self.lock();
        record.endpoint_changes += 1;
        record.last_queued = Some(SystemTime::now());
    }

    /// Connections were forgotten whose endpoints are gone.
    pub fn forgot(&self, connections: usize) {
        self.lock().forgotten += connections as u64;
    }

    pub fn failed(&self) {
        let mut record = self.lock();
        record.failures += 1;
        record.failing_since.get_or_insert_with(SystemTime::now);
    }

    fn answer(&self, path: &str) -> (StatusCode, &'static str, String) {
        let record = self.lock();
        match path {
            "/healthz" | "/livez" => {
                let failing = record.failing_since.and_then(|since| since.elapsed().ok());
                let is_well = record.last_sync.is_some() && failing.is_none_or(|time| time < TOLERATED);
                let code = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                let last = seconds(record.last_sync);
                (
                    code,
                    "application/json",
                    format!("{{\"lastUpdated\": {last:.3}, \"healthy\": {is_well}}}\n"),
                )
            }
            "/metrics" => (StatusCode::OK, "text/plain; version=0.0.4", record.metrics()),
            _ => (StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".to_owned()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn metrics(&self) -> String {
        let mut out = String::new();
        let histogram = "kubeproxy_sync_proxy_rules_duration_seconds";
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# TYPE {histogram} histogram");
        for (count, bound) in self.buckets.iter().zip(BUCKETS) {
            let _ = writeln!(out, "{histogram}_bucket{{le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(out, "{histogram}_bucket{{le=\"+Inf\"}} {}", self.syncs);
        let _ = writeln!(out, "{histogram}_sum {}\n{histogram}_count {}", self.seconds, self.syncs);
        let rows = [
            ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge", seconds(self.last_sync)),
            ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge", seconds(self.last_queued)),
            ("kubeproxy_sync_proxy_rules_service_changes_total", "counter", self.service_changes as f64),
            ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter", self.endpoint_changes as f64),
            ("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter", self.forgotten as f64),
            ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "counter", self.failures as f64),
            ("kelson_proxy_rule_changes_total", "counter", self.changes as f64),
            ("kelson_proxy_services", "gauge", self.services as f64),
        ];
        for (name, kind, value) in rows {
            let _ = writeln!(out, "# TYPE {name} {kind}\n{name} {value}");
        }
        out
    }
}

fn seconds(time: Option<SystemTime>) -> f64 {
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}

/// Starts the servers that the configuration asks for.
pub async fn serve(config: &Config, health: &Health, tasks: &Tasks) -> Result<(), Error> {
    for (purpose, address) in [("healthz", config.healthz), ("metrics", config.metrics)] {
        let Some(address) = address else { continue };
        let listener =
            TcpListener::bind(address).await.map_err(|source| Error::Listen { purpose, address, source })?;
        let health = health.clone();
        let page: Page = Arc::new(move |path| health.answer(path));
        serve_pages(format!("kube-proxy/{purpose}"), listener, page, tasks, tasks.stop());
    }
    Ok(())
}

/// What a path answers: code, content type, body.
pub type Page = Arc<dyn Fn(&str) -> (StatusCode, &'static str, String) + Send + Sync>;

/// Answers requests on a listener until the stop.
pub fn serve_pages(name: String, listener: TcpListener, page: Page, tasks: &Tasks, stop: Stop) {
    let connections = tasks.clone();
    tasks.spawn(name.clone(), move |_| async move {
        // Nothing is lost when accept is abandoned at the stop.
        while let Some(accepted) = stop.or(listener.accept()).await {
            let Ok((stream, _)) = accepted else {
                // Out of file descriptors, most likely: give others time to close theirs.
                stop.or(tokio::time::sleep(Duration::from_millis(100))).await;
                continue;
            };
            let (page, stop) = (page.clone(), stop.clone());
            connections.spawn(format!("{name}/connection"), move |_| async move {
                let service = service_fn(move |request| respond(page.clone(), request));
                let mut builder = http1::Builder::new();
                let served = builder.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service);
                if let Some(Err(error)) = stop.or(served).await {
                    debug!(%error, "connection ended");
                }
            });
        }
    });
}

async fn respond(page: Page, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (code, kind, body) = page(request.uri().path());
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_begins_with_the_first_sync_and_outlives_a_short_failure() {
        let health = Health::default();
        assert_eq!(health.answer("/healthz").0, StatusCode::SERVICE_UNAVAILABLE);
        health.synced(Duration::from_millis(3), 7, 2);
        health.failed();
        assert_eq!(health.answer("/healthz").0, StatusCode::OK);
        health.lock().failing_since = Some(SystemTime::now() - TOLERATED * 2);
        assert_eq!(health.answer("/livez").0, StatusCode::SERVICE_UNAVAILABLE);
        let text = health.answer("/metrics").2;
        assert!(
            text.contains("kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.005\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("_bucket{le=\"0.002\"} 0\n"));
        assert_eq!(health.answer("/other").0, StatusCode::NOT_FOUND);
    }
}
