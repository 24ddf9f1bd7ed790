//! Paths that are no resources: discovery, documents, health, version, metrics, keys.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use sha2::Digest;

use crate::body::Body;
use crate::discovery;
use crate::negotiate::{self, Accepted};
use crate::request_info::{Query, RequestInfo};
use crate::respond;
use crate::server::ApiServer;
use crate::user::UserInfo;

/// The version that clients are told.
pub const VERSION: &str = "v1.36.0";
/// The version that `/version` tells instead, if one was given.
pub static REPORTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Has another version told. It must be this one with something appended, as upstream demands of `--version=vX.Y.Z...`.
pub fn report(version: &str) -> Result<(), String> {
    let rest = version.strip_prefix(VERSION).filter(|rest| rest.is_empty() || rest.starts_with(['-', '+']));
    if rest.is_none() {
        return Err(format!("{version} is not {VERSION} with a suffix"));
    }
    REPORTED.set(version.to_owned()).map_err(|_| "a version was given already".to_owned())
}

impl ApiServer {
    /// GET of a path that is no resource.
    pub(crate) async fn non_resource(
        self: &Arc<Self>,
        user: &Arc<UserInfo>,
        request: Request<Body>,
        info: &RequestInfo,
        query: &Query,
    ) -> Result<Response<Body>, Status> {
        let path = info.path.trim_end_matches('/');
        let headers = request.headers();
        if let Some(rest) = ["/healthz", "/livez", "/readyz"]
            .iter()
            .find_map(|start| path.strip_prefix(start).map(|rest| (start, rest)))
        {
            return Ok(self.health(rest.0, rest.1.trim_start_matches('/'), query).await);
        }
        // Most documents can only be got; indexes and pages that are not there do not look at the method.
        let is_get = *request.method() == Method::GET;
        let only_get = || if is_get { Ok(()) } else { Err(Status::method_not_allowed()) };
        let table = self.registry.table();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match parts.as_slice() {
            [""] => Ok(json_answer(&self.paths())),
            ["version"] => {
                only_get()?;
                let header = negotiate::accept_header(headers);
                let takes =
                    |range: &negotiate::MediaRange<'_>| matches!(range.media, "application/json" | "*/*");
                if !header.is_empty() && !negotiate::media_ranges(&header).iter().any(takes) {
                    return Err(Status::not_acceptable(&["application/json"]));
                }
                Ok(json_answer(&version()))
            }
            ["metrics"] => Ok(plain(self.metrics_text().await)),
            ["metrics", "slis"] => Ok(plain(self.metrics.health.text())),
            ["api" | "apis"] if let Some(format) = wanted_aggregated(headers, parts[0]) => {
                let core = parts[0] == "api";
                let mut value = discovery::aggregated(&table, core);
                if !core {
                    self.add_aggregated_discovery(&mut value).await;
                }
                let json = discovery::encode_aggregated(&value, negotiate::Format::Json)?;
                let tag = digest_of(&json);
                let bytes = match format {
                    negotiate::Format::Json => json,
                    other => discovery::encode_aggregated(&value, other)?,
                };
                let mut response = tagged_as(headers, bytes, discovery::aggregated_type(format), &tag);
                response.headers_mut().insert(http::header::VARY, HeaderValue::from_static("Accept"));
                let shared = HeaderValue::from_static("public");
                response.headers_mut().insert(http::header::CACHE_CONTROL, shared);
                Ok(response)
            }
            ["api"] => {
                only_get()?;
                self.discovered(headers, &discovery::api_versions(self.external.as_deref()))
            }
            ["apis"] => {
                let mut value = discovery::groups(&table);
                self.add_aggregated_groups(&mut value);
                self.discovered(headers, &value)
            }
            ["api", version] => {
                let found = discovery::resources(&table, "", version).ok_or_else(Status::no_such_path)?;
                only_get()?;
                self.discovered(headers, &found)
            }
            ["apis", group] => match discovery::group(&table, group).or_else(|| self.aggregated_group(group))
            {
                Some(found) => self.discovered(headers, &found),
                None => Ok(no_page()),
            },
            ["apis", group, version] => match discovery::resources(&table, group, version) {
                Some(found) => {
                    only_get()?;
                    self.discovered(headers, &found)
                }
                None => match self.aggregated(user, info) {
                    Some(backend) => self.aggregate(user, request, backend?).await,
                    None if discovery::group(&table, group).is_some() => Err(Status::no_such_path()),
                    None => Ok(no_page()),
                },
            },
            ["openapi"] => Ok(no_page()),
            ["openapi", ..] if !is_get && *request.method() != Method::HEAD => {
                Err(Status::method_not_allowed())
            }
            ["openapi", ..] => self.openapi_document(&parts[1..], headers, query),
            [".well-known", "openid-configuration"] => {
                only_get()?;
                let document = self.authenticator.service_accounts.discovery(&self.jwks_uri);
                issuer_document(headers, "application/json", &document)
            }
            ["openid", "v1", "jwks"] => {
                only_get()?;
                let keys = self.authenticator.service_accounts.jwks();
                issuer_document(headers, "application/jwk-set+json", &keys)
            }
            _ => Ok(no_page()),
        }
    }

    fn discovered(&self, headers: &HeaderMap, value: &Value) -> Result<Response<Body>, Status> {
        let all = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
        // Groups are told of by another hand than what is in them.
        let groups = matches!(value["kind"].as_str(), Some("APIGroup" | "APIGroupList"));
        if !groups && !negotiate::is_known_media(headers) {
            return Err(Status::not_acceptable(&all));
        }
        let accepted =
            negotiate::accept(headers, false, true, None).ok_or_else(|| Status::only_accepted(&all))?;
        let kind = value["kind"].as_str().unwrap_or_default();
        let schema = api::schemas::schemas().get(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"));
        let accepted = if schema.is_none() { Accepted::JSON } else { accepted };
        respond::value(StatusCode::OK, value, &accepted, schema.as_ref())
    }

    fn paths(&self) -> Value {
        let mut paths = vec!["/api/v1".to_owned(), "/apis/".to_owned(), "/openapi/v3/".to_owned()];
        for (group, versions) in self.registry.table().groups.iter().filter(|(group, _)| !group.is_empty()) {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|version| format!("/apis/{group}/{version}")));
        }
        let fixed = [
            "/.well-known/openid-configuration",
            "/api",
            "/apis",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/version",
        ];
        paths.extend(fixed.map(str::to_owned));
        for kind in ["healthz", "livez", "readyz"] {
            paths.push(format!("/{kind}"));
            paths.extend(
                self.checks(kind, Default::default()).iter().map(|(check, _)| format!("/{kind}/{check}")),
            );
        }
        paths.sort();
        json!({"paths": paths})
    }

    /// The store's size, not older than it may be.
    pub(crate) async fn store_size(&self) -> Option<u64> {
        let every = self.settings.size_every?;
        let mut known = self.store_size.lock().await;
        if let Some((at, size)) = *known
            && at.elapsed() < every
        {
            return Some(size);
        }
        let store = self.hub.store();
        let asking = tokio::time::timeout(self.settings.store_health, store.size_in_bytes());
        let size = asking.await.ok()?.ok()?;
        *known = Some((tokio::time::Instant::now(), size));
        Some(size)
    }
}

/// What `/version` says.
pub fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
        "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
        "gitVersion": REPORTED.get().cloned().unwrap_or_else(|| format!("{VERSION}+kelson")), "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    })
}

/// The format of the aggregated form, if that is wanted. What the router in front of `/api` does not know is left to it.
fn wanted_aggregated(headers: &HeaderMap, root: &str) -> Option<negotiate::Format> {
    let passes = root == "apis" || negotiate::is_known_media(headers);
    negotiate::aggregated_discovery(headers).filter(|_| passes)
}

/// A document about the issuer of service account tokens, which others may keep for an hour.
fn issuer_document(headers: &HeaderMap, kind: &'static str, value: &Value) -> Result<Response<Body>, Status> {
    let header = negotiate::accept_header(headers);
    let takes = |range: &negotiate::MediaRange<'_>| {
        range.media == kind || matches!(range.media, "*/*" | "application/*")
    };
    if !header.is_empty() && !negotiate::media_ranges(&header).iter().any(takes) {
        return Err(Status::not_acceptable(&[kind]));
    }
    let mut response = Response::new(Body::from(Bytes::from(value.to_string())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let keep = HeaderValue::from_static("public, max-age=3600");
    response.headers_mut().insert(http::header::CACHE_CONTROL, keep);
    Ok(response)
}

fn json_answer(value: &Value) -> Response<Body> {
    let mut response =
        Response::new(Body::from(Bytes::from(serde_json::to_vec_pretty(value).unwrap_or_default())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn text(code: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// The answer to a path that nobody serves and that is no resource.
pub(crate) fn no_page() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

fn plain(body: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

/// The entity tag of bytes.
pub fn digest_of(bytes: &[u8]) -> String {
    sha2::Sha512::digest(bytes).iter().map(|byte| format!("{byte:02X}")).collect()
}

/// An answer with an entity tag; nothing is sent if the client has it.
pub fn tagged_as(
    headers: &HeaderMap,
    bytes: Bytes,
    content_type: &'static str,
    digest: &str,
) -> Response<Body> {
    let known = is_known(headers, digest);
    let mut response = Response::new(if known { Body::Empty } else { Body::from(bytes) });
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if let Ok(value) = HeaderValue::from_str(&format!("\"{digest}\"")) {
        response.headers_mut().insert(ETAG, value);
    }
    response
}

/// Whether the client says that it has what this is the digest of.
pub fn is_known(headers: &HeaderMap, digest: &str) -> bool {
    let tags = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    tags.split(',').any(|one| one.trim().trim_matches('"') == digest)
}
