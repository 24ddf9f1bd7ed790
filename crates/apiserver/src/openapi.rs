//! The OpenAPI documents, printed from the registry when asked for.
//!
//! A document's hash is that of what it is made from, so that listing all of them makes none. The documents last
//! asked for are kept, compressed; a change of the registry drops them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, EXPIRES, LAST_MODIFIED, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use sha2::Digest;

use crate::body::Body;
use crate::endpoints::{VERSION, is_known, tagged_as};
use crate::negotiate;
use crate::openapi_protobuf;
use crate::registry::{Resource, Table};
use crate::request_info::Query;
use crate::server::ApiServer;

/// The documents made for one generation of the registry: name to compressed JSON.
pub struct Documents {
    made: Mutex<Made>,
}

struct Made {
    generation: u64,
    since: Timestamp,
    documents: BTreeMap<String, Bytes>,
}

impl Default for Documents {
    fn default() -> Self {
        let made = Made { generation: 0, since: crate::clock::now(), documents: BTreeMap::new() };
        Self { made: Mutex::new(made) }
    }
}

/// At most so many documents are kept.
const KEPT: usize = 12;

impl Documents {
    fn get(&self, generation: u64, name: &str, make: impl FnOnce() -> Value) -> Bytes {
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if made.generation != generation {
            *made = Made { generation, since: crate::clock::now(), documents: BTreeMap::new() };
        }
        if made.documents.len() > KEPT {
            made.documents.clear();
        }
        if let Some(packed) = made.documents.get(name) {
            return unpack(packed);
        }
        let bytes = Bytes::from(make().to_string());
        made.documents.insert(name.to_owned(), pack(&bytes));
        bytes
    }

    /// Since when they are as they are.
    fn since(&self) -> Timestamp {
        self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).since
    }
}

fn pack(bytes: &[u8]) -> Bytes {
    use std::io::Write;
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing into memory cannot fail.
    let _ = encoder.write_all(bytes);
    Bytes::from(encoder.finish().unwrap_or_default())
}

fn unpack(bytes: &[u8]) -> Bytes {
    use std::io::Read;
    let mut out = Vec::new();
    // The bytes are our own.
    let _ = flate2::read::DeflateDecoder::new(bytes).read_to_end(&mut out);
    Bytes::from(out)
}

impl ApiServer {
    /// GET below `/openapi`.
    pub(crate) fn openapi_document(
        self: &Arc<Self>,
        parts: &[&str],
        headers: &HeaderMap,
        query: &Query,
    ) -> Result<Response<Body>, Status> {
        let table = self.registry.table();
        match parts {
            ["v2"] => {
                let make = || {
                    self.openapi.get(table.generation, "v2", || {
                        api::openapi::v2(sorted(&table).iter().map(|one| &one.definition))
                    })
                };
                let tag = digest(&table, None);
                self.document(headers, &V2_PROTOBUF, openapi_protobuf::encode, &tag, make)
            }
            ["v3"] => {
                // Told by the aggregator, which knows neither its type nor a tag of it.
                let mut response = Response::new(Body::from(Bytes::from(index(&table).to_string())));
                let text = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(CONTENT_TYPE, text);
                self.as_file(&mut response);
                Ok(response)
            }
            ["v3", path @ ..] => {
                let name = path.join("/");
                let Some((bytes, tag)) = self.version_3(&table, path) else { return Ok(no_document()) };
                let response =
                    self.document(headers, &V3_PROTOBUF, openapi_protobuf::encode_v3, &tag, bytes)?;
                Ok(with_hash(response, query.get("hash").unwrap_or_default(), &name, &tag))
            }
            _ => Err(Status::no_such_path()),
        }
    }

    /// How to make the document of a part of the third version, and its tag.
    #[allow(clippy::type_complexity)] // a thing to be made later, and its name
    fn version_3<'a>(
        &'a self,
        table: &'a Table,
        path: &[&str],
    ) -> Option<(Box<dyn Fn() -> Bytes + 'a>, String)> {
        let name = path.join("/");
        let get = |make: fn(&str) -> Value| {
            let name = name.clone();
            let bytes = move || self.openapi.get(table.generation, &name, || make(&name));
            Box::new(bytes) as Box<dyn Fn() -> Bytes>
        };
        if api::openapi::OTHERS.contains(&name.as_str()) {
            return Some((get(api::openapi::v3_other), discovery_digest(&name)));
        }
        if discovery_paths(table).contains(&name) {
            return Some((get(api::openapi::v3_discovery), discovery_digest(&name)));
        }
        let (group, version) = match path {
            ["api", version] => ("", *version),
            ["apis", group, version] => (*group, *version),
            _ => return None,
        };
        let found = table.of_version(group, version);
        if found.is_empty() {
            return None;
        }
        let tag = digest(table, Some((group, version)));
        let bytes = move || {
            let make = || api::openapi::v3(found.iter().map(|one| &one.definition));
            self.openapi.get(table.generation, &name, make)
        };
        Some((Box::new(bytes), tag))
    }

    /// A document in the form that the client wants most; it is not made for who has it.
    fn document(
        &self,
        headers: &HeaderMap,
        protobuf: &[&'static str],
        encode: fn(&Value) -> Vec<u8>,
        tag: &str,
        make: impl FnOnce() -> Bytes,
    ) -> Result<Response<Body>, Status> {
        let mut response = match form(headers, protobuf) {
            Some(_) if is_known(headers, tag) => tagged_as(headers, Bytes::new(), "", tag),
            Some(Form::Json) => tagged_as(headers, make(), "application/json", tag),
            Some(Form::Protobuf) => {
                let document = serde_json::from_slice(&make()).map_err(Status::internal)?;
                tagged_as(headers, Bytes::from(encode(&document)), protobuf[0], tag)
            }
            None => not_acceptable(),
        };
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
        if response.status() == StatusCode::OK {
            self.as_file(&mut response);
        }
        Ok(response)
    }

    /// Documents are served as files are: it is said since when they are as they are.
    fn as_file(&self, response: &mut Response<Body>) {
        let since = self.openapi.since();
        if let Ok(value) = HeaderValue::from_str(&since.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
            response.headers_mut().insert(LAST_MODIFIED, value);
        }
    }
}

/// Who names the hash that he wants may keep the document for ever, or is told where the newer one is.
fn with_hash(mut response: Response<Body>, hash: &str, name: &str, tag: &str) -> Response<Body> {
    let ok = matches!(response.status(), StatusCode::OK | StatusCode::NOT_MODIFIED);
    if hash.is_empty() || !ok {
        return response;
    }
    if hash != tag {
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        *response.body_mut() = Body::Empty;
        response.headers_mut().remove(LAST_MODIFIED);
        if let Ok(place) = HeaderValue::from_str(&format!("/openapi/v3/{name}?hash={tag}")) {
            response.headers_mut().insert(LOCATION, place);
        }
        return response;
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    let year = crate::clock::now() + jiff::SignedDuration::from_hours(365 * 24);
    if let Ok(value) = HeaderValue::from_str(&year.strftime("%a, %d %b %Y %H:%M:%S UTC").to_string()) {
        response.headers_mut().insert(EXPIRES, value);
    }
    response
}

/// 404 without a word.
fn no_document() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// The media types of the second version in protobuf: the one that upstream answers with, and the one that older
/// clients ask for.
const V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// Those of the third version.
const V3_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
];

enum Form {
    Json,
    Protobuf,
}

/// The form that a client wants most of those there are.
fn form(headers: &HeaderMap, protobuf: &[&str]) -> Option<Form> {
    let accept = negotiate::accept_header(headers);
    if accept.is_empty() {
        return Some(Form::Json);
    }
    negotiate::media_ranges(&accept).iter().find_map(|range| match range.media {
        "application/json" | "application/*" | "*/*" => Some(Form::Json),
        other if protobuf.contains(&other) => Some(Form::Protobuf),
        _ => None,
    })
}

/// Documents are refused without a word, as upstream does.
fn not_acceptable() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
    response
}

/// The hash of what a document, or all of them, are made from.
fn digest(table: &Table, only: Option<(&str, &str)>) -> String {
    let mut hash = sha2::Sha512::new();
    hash.update(VERSION);
    for (group, versions) in &table.groups {
        for version in versions {
            if only.is_some_and(|only| only != (group.as_str(), version.as_str())) {
                continue;
            }
            for resource in table.of_version(group, version) {
                hash.update(format!("{group}/{version}/{}", resource.plural()));
                if let Some(schema) = &resource.definition.published_schema {
                    hash.update(schema.to_string());
                }
            }
        }
    }
    written(hash)
}

fn written(hash: sha2::Sha512) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The paths of discovery that have a document: the two roots and the groups of built-in kinds.
fn discovery_paths(table: &Table) -> Vec<String> {
    let mut paths = vec!["api".to_owned(), "apis".to_owned()];
    for (group, _) in table.groups.iter().filter(|(group, _)| !group.is_empty()) {
        if table.all().any(|one| one.group() == group && !one.definition.custom) {
            paths.push(format!("apis/{group}"));
        }
    }
    paths
}

/// Such a document changes only with the server.
fn discovery_digest(path: &str) -> String {
    let mut hash = sha2::Sha512::new();
    hash.update(VERSION);
    hash.update(path);
    written(hash)
}

fn index(table: &Table) -> Value {
    let mut paths = Map::new();
    let mut add = |path: &str, hash: &str| {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path.to_owned(), json!({"serverRelativeURL": url}));
    };
    for path in discovery_paths(table) {
        add(&path, &discovery_digest(&path));
    }
    for path in api::openapi::OTHERS {
        add(path, &discovery_digest(path));
    }
    for (group, versions) in &table.groups {
        for version in versions {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            add(&path, &digest(table, Some((group, version))));
        }
    }
    json!({"paths": paths})
}

fn sorted(table: &Table) -> Vec<&Arc<Resource>> {
    let mut resources: Vec<&Arc<Resource>> = table.all().collect();
    resources.sort_by_key(|one| (one.group().to_owned(), one.version().to_owned(), one.plural().to_owned()));
    resources
}
