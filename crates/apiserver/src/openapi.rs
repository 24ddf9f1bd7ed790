//! The OpenAPI documents, printed from the registry when asked for.
//!
//! A document's hash is that of what it is made from, so that listing all of them makes none. The documents last
//! asked for are kept, compressed; a change of the registry drops them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use apimachinery::status::Status;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Map, Value, json};
use sha2::Digest;

use crate::body::Body;
use crate::endpoints::{VERSION, tagged_as};
use crate::negotiate;
use crate::openapi_protobuf;
use crate::registry::{Resource, Table};
use crate::request_info::Query;
use crate::server::ApiServer;

/// The documents made for one generation of the registry: name to compressed JSON.
#[derive(Default)]
pub struct Documents {
    made: Mutex<(u64, BTreeMap<String, Bytes>)>,
}

/// At most so many documents are kept.
const KEPT: usize = 12;

impl Documents {
    fn get(&self, generation: u64, name: &str, make: impl FnOnce() -> Value) -> Bytes {
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if made.0 != generation || made.1.len() > KEPT {
            *made = (generation, BTreeMap::new());
        }
        if let Some(packed) = made.1.get(name) {
            return unpack(packed);
        }
        let bytes = Bytes::from(make().to_string());
        made.1.insert(name.to_owned(), pack(&bytes));
        bytes
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
        _query: &Query,
    ) -> Result<Response<Body>, Status> {
        let table = self.registry.table();
        match parts {
            ["v2"] => {
                let json = self.openapi.get(table.generation, "v2", || {
                    api::openapi::v2(sorted(&table).iter().map(|one| &one.definition))
                });
                let tag = digest(&table, None);
                match form(headers, &V2_PROTOBUF) {
                    Some(Form::Json) => Ok(tagged_as(headers, json, "application/json", &tag)),
                    Some(Form::Protobuf) => {
                        let document = serde_json::from_slice(&json).map_err(Status::internal)?;
                        let bytes = Bytes::from(openapi_protobuf::encode(&document));
                        Ok(tagged_as(headers, bytes, V2_PROTOBUF[0], &tag))
                    }
                    None => Ok(not_acceptable()),
                }
            }
            ["v3"] => Ok(tagged_as(
                headers,
                Bytes::from(index(&table).to_string()),
                "application/json",
                &digest(&table, None),
            )),
            ["v3", path @ ..] => {
                if form(headers, &[]).is_none() {
                    return Ok(not_acceptable());
                }
                let name = path.join("/");
                if discovery_paths(&table).contains(&name) {
                    let bytes =
                        self.openapi.get(table.generation, &name, || api::openapi::v3_discovery(&name));
                    return Ok(tagged_as(headers, bytes, "application/json", &discovery_digest(&name)));
                }
                let (group, version) = match path {
                    ["api", version] => ("", *version),
                    ["apis", group, version] => (*group, *version),
                    _ => return Err(Status::no_such_path()),
                };
                let found = table.of_version(group, version);
                if found.is_empty() {
                    return Err(Status::no_such_path());
                }
                let bytes = self.openapi.get(table.generation, &name, || {
                    api::openapi::v3(found.iter().map(|one| &one.definition))
                });
                Ok(tagged_as(headers, bytes, "application/json", &digest(&table, Some((group, version)))))
            }
            _ => Err(Status::no_such_path()),
        }
    }
}

/// The media types of the second version in protobuf: the one that upstream answers with, and the one that older
/// clients ask for.
const V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
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
    let mut hash = sha2::Sha256::new();
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

fn written(hash: sha2::Sha256) -> String {
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
    let mut hash = sha2::Sha256::new();
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
