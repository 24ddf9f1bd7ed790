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

use crate::alarm;
use crate::v3::messages::Member;
use crate::v3::metrics;
use crate::v3::server::Serves;
use crate::v3::service::{Service, VERSION};
use crate::v3::{cluster, downgrade};

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

/// The values of one parameter of a query.
fn parameters<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.filter(move |(known, _)| *known == name).map(|(_, value)| value)
}

/// What clients and monitoring ask for.
fn client(service: &Service, path: &str, query: &str) -> Option<Answer> {
    let shared = &service.etcd.shared;
    let open = shared.check_open().is_ok();
    Some(match path {
        "/health" => {
            let excluded = |name: &str| parameters(query, "exclude").any(|alarm| alarm == name);
            let alarm = shared.has_space_alarm() && !excluded("NOSPACE");
            let corrupt = shared.has_alarm(alarm::CORRUPT) && !excluded("CORRUPT");
            let serializable = parameters(query, "serializable").any(|value| value == "true");
            let failed = if alarm {
                Some("ALARM NOSPACE")
            } else if corrupt {
                Some("ALARM CORRUPT")
            } else if !Condition::of(service).has_leader && !serializable {
                Some("RAFT NO LEADER")
            } else if !open {
                Some("server stopped")
            } else {
                None
            };
            match failed {
                None => {
                    service.counters.healthy.increment();
                    (StatusCode::OK, TEXT, r#"{"health":"true","reason":""}"#.to_owned())
                }
                Some(reason) => {
                    service.counters.unhealthy.increment();
                    let body = format!(r#"{{"health":"false","reason":"{reason}"}}"#);
                    (StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
                }
            }
        }
        "/version" => (StatusCode::OK, JSON, version(service)),
        "/metrics" => (StatusCode::OK, METRICS, metrics::page(service)),
        _ => probe(path, query, Condition::of(service), |kind, name, fine| {
            service.counters.probed(kind, name, fine)
        })?,
    })
}

/// The probes and what they check.
pub const CHECKS: &[(&str, &[&str])] = &[
    ("livez", &["serializable_read"]),
    ("readyz", &["data_corruption", "serializable_read", "linearizable_read", "non_learner"]),
];

/// What can be asked of the server, and why the answer is no.
#[derive(Clone, Copy, Debug)]
struct Condition {
    open: bool,
    learner: bool,
    has_leader: bool,
    corrupt: bool,
}

impl Condition {
    fn of(service: &Service) -> Self {
        let open = service.etcd.shared.check_open().is_ok();
        let standing = service.replica.standing();
        let corrupt = service.etcd.shared.has_alarm(alarm::CORRUPT);
        Self { open, learner: standing.learner, has_leader: standing.leader != 0, corrupt }
    }

    /// Why a check fails, if it does.
    fn failure(&self, check: &str) -> Option<&'static str> {
        match check {
            "data_corruption" if self.corrupt => Some("alarm activated: CORRUPT"),
            "non_learner" if self.learner => Some("local node is a learner"),
            _ if !self.open => Some("server stopped"),
            "linearizable_read" if self.learner => Some("rpc not supported for learner"),
            "linearizable_read" if !self.has_leader => Some("no leader"),
            _ => None,
        }
    }
}

/// `/livez` and `/readyz`: all checks but those excluded, or one of them.
fn probe(
    path: &str,
    query: &str,
    condition: Condition,
    mut count: impl FnMut(&str, &str, bool),
) -> Option<Answer> {
    let path = path.trim_start_matches('/');
    let (root, one) = path.split_once('/').unwrap_or((path, ""));
    let (_, checks) = CHECKS.iter().find(|(kind, _)| *kind == root)?;
    if !one.is_empty() && !checks.contains(&one) {
        return None;
    }
    let excluded = |check: &str| parameters(query, "exclude").any(|excluded| excluded == check);
    let wanted = |check: &&&str| if one.is_empty() { !excluded(check) } else { **check == one };
    let mut body = String::new();
    let mut fine = true;
    for check in checks.iter().filter(wanted) {
        let failure = condition.failure(check);
        count(root, check, failure.is_none());
        match failure {
            None => body.push_str(&format!("[+]{check} ok\n")),
            Some(why) => {
                fine = false;
                body.push_str(&format!("[-]{check} failed: {why}\n"));
            }
        }
    }
    Some(if !fine {
        (StatusCode::SERVICE_UNAVAILABLE, TEXT, body)
    } else if parameters(query, "verbose").next().is_some() {
        (StatusCode::OK, TEXT, body + "ok\n")
    } else {
        (StatusCode::OK, TEXT, "ok\n".to_owned())
    })
}

fn version(service: &Service) -> String {
    let cluster = downgrade::cluster_version(&service.etcd.shared.read().settings);
    format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"{cluster}","storage":"{cluster}"}}"#)
}

/// What members ask each other.
fn members(service: &Service, path: &str) -> Option<Answer> {
    match path {
        "/version" => Some((StatusCode::OK, JSON, version(service))),
        "/members" => {
            let quoted = |text: &String| format!("{text:?}");
            let list = |urls: &[String]| urls.iter().map(quoted).collect::<Vec<_>>().join(",");
            let entry = |member: Member| {
                let learner = if member.is_learner { r#""isLearner":true,"# } else { "" };
                format!(
                    r#"{{"id":{},"peerURLs":[{}],{learner}"name":{},"clientURLs":[{}]}}"#,
                    member.id,
                    list(&member.peer_urls),
                    quoted(&member.name),
                    list(&member.client_urls),
                )
            };
            let members = cluster::members(&service.etcd.shared.read().settings);
            let body = format!("[{}]", members.into_iter().map(entry).collect::<Vec<_>>().join(","));
            Some((StatusCode::OK, JSON, body + "\n"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_answer_as_a_whole_or_by_one_check_and_leave_out_what_is_excluded() {
        let good = Condition { open: true, learner: false, has_leader: true, corrupt: false };
        let learner = Condition { learner: true, ..good };
        let closed = Condition { open: false, ..good };
        let cases = [
            ("/livez", "", good, Some((200, "ok\n"))),
            ("/livez", "verbose", good, Some((200, "[+]serializable_read ok\nok\n"))),
            ("/livez", "exclude=serializable_read&verbose", closed, Some((200, "ok\n"))),
            ("/livez", "", closed, Some((503, "[-]serializable_read failed: server stopped\n"))),
            ("/livez", "", learner, Some((200, "ok\n"))),
            ("/livez/non_learner", "", good, None),
            ("/readyz/non_learner", "verbose", good, Some((200, "[+]non_learner ok\nok\n"))),
            (
                "/readyz/non_learner",
                "",
                learner,
                Some((503, "[-]non_learner failed: local node is a learner\n")),
            ),
            ("/readyz/serializable_read", "", learner, Some((200, "ok\n"))),
            ("/readyz", "exclude=non_learner&exclude=linearizable_read", learner, Some((200, "ok\n"))),
            ("/readyz/nope", "", good, None),
            ("/other", "", good, None),
        ];
        for (path, query, condition, expected) in cases {
            let answer = probe(path, query, condition, |_, _, _| {});
            let answer = answer.as_ref().map(|(status, _, body)| (status.as_u16(), body.as_str()));
            assert_eq!(answer, expected, "{path}?{query}");
        }
    }
}
