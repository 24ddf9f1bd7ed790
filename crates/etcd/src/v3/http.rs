//! Plain HTTP beside gRPC: health, version, metrics, and the list of members.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lifecycle::Stop;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::v3::metrics;
use crate::v3::server::Serves;
use crate::v3::service::{Service, VERSION};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves one connection.
pub async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    serves: Serves,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    let handler = hyper::service::service_fn(|request: Request<Incoming>| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or(""));
        let answered = match serves {
            Serves::Members => members(service, path),
            _ => client(service, path, query),
        };
        let (status, kind, body) =
            answered.unwrap_or((StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()));
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
        if let Ok(id) = format!("{:x}", service.identity.cluster_id).parse() {
            headers.insert("x-etcd-cluster-id", id);
        }
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), handler);
    match stop.or(serving).await {
        Some(served) => served.map_err(io::Error::other),
        None => Ok(()),
    }
}

type Answer = (StatusCode, &'static str, String);

/// The value of one parameter of a query.
fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// What clients and monitoring ask for.
fn client(service: &Service, path: &str, query: &str) -> Option<Answer> {
    let shared = &service.etcd.shared;
    let open = shared.check_open().is_ok();
    Some(match path {
        "/health" => {
            let excluded = parameter(query, "exclude") == Some("NOSPACE");
            let alarm = shared.has_space_alarm() && !excluded;
            let failed = match (open, alarm) {
                (true, false) => None,
                (_, true) => Some("ALARM NOSPACE"),
                (false, false) => Some("server stopped"),
            };
            match failed {
                None => {
                    service.counters.healthy.increment();
                    (StatusCode::OK, JSON, r#"{"health":"true","reason":""}"#.to_owned())
                }
                Some(reason) => {
                    service.counters.unhealthy.increment();
                    let body = format!(r#"{{"health":"false","reason":"{reason}"}}"#);
                    (StatusCode::SERVICE_UNAVAILABLE, JSON, body)
                }
            }
        }
        "/version" => (StatusCode::OK, JSON, version()),
        "/metrics" => (StatusCode::OK, METRICS, metrics::page(service)),
        _ => probe(path, query, open)?,
    })
}

/// `/livez` and `/readyz`, whole or one check of them.
fn probe(path: &str, query: &str, open: bool) -> Option<Answer> {
    const LIVE: &[&str] = &["serializable_read"];
    const READY: &[&str] = &["data_corruption", "serializable_read", "linearizable_read", "non_learner"];
    let (root, one) =
        path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), ""));
    let checks = match root {
        "livez" => LIVE,
        "readyz" => READY,
        _ => return None,
    };
    if !one.is_empty() && !checks.contains(&one) {
        return None;
    }
    let (sign, word) = if open { ('+', "ok") } else { ('-', "failed: server stopped") };
    let mut body = String::new();
    if parameter(query, "verbose").is_some() || !open {
        for check in checks.iter().filter(|check| one.is_empty() || **check == one) {
            body.push_str(&format!("[{sign}]{check} {word}\n"));
        }
    }
    Some(if open {
        (StatusCode::OK, TEXT, body + "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
    })
}

fn version() -> String {
    format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"3.6.0","storage":"3.6.0"}}"#)
}

/// What members ask each other.
fn members(service: &Service, path: &str) -> Option<Answer> {
    match path {
        "/version" => Some((StatusCode::OK, JSON, version())),
        "/members" => {
            let member = service.member();
            let quoted = |text: &String| format!("{text:?}");
            let list = |urls: &[String]| urls.iter().map(quoted).collect::<Vec<_>>().join(",");
            let body = format!(
                r#"[{{"id":{},"peerURLs":[{}],"name":{},"clientURLs":[{}]}}]"#,
                member.id,
                list(&member.peer_urls),
                quoted(&member.name),
                list(&member.client_urls),
            );
            Some((StatusCode::OK, JSON, body + "\n"))
        }
        _ => None,
    }
}
