//! Answers: objects, lists and Status in the form that the client accepts.
//!
//! In JSON, an object is its cached bytes with the resource version spliced in, and a list streams those of its
//! items; nothing is parsed. Other shapes (tables, metadata only) and YAML are made from parsed objects.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use apimachinery::meta::MetaMut;
use apimachinery::status::Status;
use apimachinery::table;
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, VARY};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::body::Body;
use crate::cache::entry::Entry;
use crate::codec;
use crate::context::Context;
use crate::negotiate::{Accepted, Format, Shape};
use crate::registry::Resource;

/// Blocks of a streamed list are about this large.
const BLOCK: usize = 128 << 10;
/// Answers larger than this are compressed for clients far away.
const COMPRESS_FROM: usize = 128 << 10;

/// A page of objects.
pub struct Page {
    /// In key order.
    pub entries: Vec<Arc<Entry>>,
    /// What the page shows.
    pub revision: i64,
    /// Where to go on.
    pub continue_token: String,
    /// How many are left.
    pub remaining: Option<i64>,
}

/// The content type of an answer.
fn content_type(accepted: &Accepted) -> HeaderValue {
    HeaderValue::from_static(match (accepted.shape, accepted.format) {
        (_, Format::Yaml) => "application/yaml",
        (_, Format::Protobuf) => "application/vnd.kubernetes.protobuf",
        (_, Format::Json) => "application/json",
    })
}

/// An answer of bytes.
pub fn bytes(code: StatusCode, accepted: &Accepted, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, content_type(accepted));
    response
}

/// A Status. It is never a table, whatever was asked for.
pub fn status(status: &Status, accepted: &Accepted) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let accepted = Accepted { shape: Shape::Object, ..*accepted };
    let value = status.to_value();
    let encoded = codec::encode(&value, accepted.format, accepted.pretty, codec::status_schema().as_ref());
    let mut response = match encoded {
        Ok(body) => bytes(code, &accepted, body),
        Err(_) => bytes(code, &Accepted::JSON, Bytes::from(value.to_string())),
    };
    if let Some(details) = &status.details
        && details.retry_after_seconds > 0
    {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(details.retry_after_seconds));
    }
    response
}

/// A value that is not in the cache (scale, reviews, merged objects). `schema` gives it a protobuf form.
pub fn value(
    code: StatusCode,
    value: &Value,
    accepted: &Accepted,
    schema: Option<&apimachinery::schema::Schema>,
) -> Result<Response<Body>, Status> {
    Ok(bytes(code, accepted, codec::encode(value, accepted.format, accepted.pretty, schema)?))
}

/// One object.
pub fn object(context: &Context, code: StatusCode, entry: &Arc<Entry>) -> Result<Response<Body>, Status> {
    let resource = &context.resource;
    let entry = resource.entry_in_version(entry);
    let accepted = &context.accepted;
    let body = match (accepted.shape, accepted.format) {
        (Shape::Object, Format::Json) if !accepted.pretty => {
            let mut out = BytesMut::with_capacity(entry.served_len() + 1);
            entry.write_at(entry.revision, &mut out);
            out.put_u8(b'\n');
            out.freeze()
        }
        (Shape::Object, Format::Protobuf) => protobuf_object(resource, &entry, entry.revision),
        (Shape::Object, _) => codec::encode(&resource.parse(&entry), accepted.format, accepted.pretty, None)?,
        (Shape::Metadata, Format::Protobuf) => {
            let partial = metadata_of(resource, &resource.parse(&entry));
            codec::encode(&partial, Format::Protobuf, false, Some(&metadata_schema(false)))?
        }
        (Shape::Metadata, _) => {
            let partial = in_version(accepted, metadata_of(resource, &resource.parse(&entry)));
            codec::encode(&partial, accepted.format, accepted.pretty, None)?
        }
        (Shape::Table, _) => {
            let metadata = json!({"resourceVersion": entry.revision.to_string()});
            let table = in_version(accepted, table_of(context, metadata, std::slice::from_ref(&entry), true));
            codec::encode(&table, accepted.format, accepted.pretty, None)?
        }
    };
    let mut response = bytes(code, accepted, body);
    maybe_compress(context, &mut response);
    Ok(response)
}

/// A table or metadata in the version that was asked for.
pub fn in_version(accepted: &Accepted, mut value: Value) -> Value {
    if accepted.beta {
        let old = |value: &mut Value| {
            if value["apiVersion"] == "meta.k8s.io/v1" {
                value["apiVersion"] = json!("meta.k8s.io/v1beta1");
            }
        };
        old(&mut value);
        if let Some(Value::Array(rows)) = value.get_mut("rows") {
            rows.iter_mut().for_each(|row| old(&mut row["object"]));
        }
        if let Some(Value::Array(items)) = value.get_mut("items") {
            items.iter_mut().for_each(old);
        }
    }
    value
}

/// The enveloped protobuf form of an entry.
pub fn protobuf_object(resource: &Resource, entry: &Entry, revision: i64) -> Bytes {
    let raw = entry.protobuf(|value| codec::protobuf_raw(value, &resource.definition.schema));
    let mut head = BytesMut::with_capacity(192);
    let rest = codec::with_revision(raw, revision, &mut head);
    codec::envelope(&[&head, rest], Some(&resource.api_version), Some(resource.kind()))
}

fn metadata_schema(list: bool) -> apimachinery::schema::Schema {
    let (one, many) = api::schemas::partial_metadata();
    if list { many } else { one }
}

/// The PartialObjectMetadata of an object.
pub fn metadata_of(resource: &Resource, object: &Value) -> Value {
    let mut partial = table::partial_metadata(object);
    let metadata = partial.metadata_mut();
    for name in resource.definition.annotated_fields {
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.shift_remove(*name);
            if annotations.is_empty() {
                metadata.shift_remove("annotations");
            }
        }
    }
    partial
}

/// The table of some objects. `headers`: whether to say what the columns are.
pub fn table_of(context: &Context, metadata: Value, entries: &[Arc<Entry>], headers: bool) -> Value {
    let definition = &context.resource.definition;
    let now = Timestamp::now();
    let include = context.query.get("includeObject").unwrap_or("Metadata");
    let rows = entries
        .iter()
        .map(|entry| {
            let value = context.resource.parse(entry);
            let cells = definition.table_cells(&value, now);
            let object = match include {
                "None" => None,
                "Object" => Some(value),
                _ => Some(metadata_of(&context.resource, &value)),
            };
            table::row(cells, object)
        })
        .collect();
    let columns = if headers { definition.table_headers() } else { Vec::new() };
    let mut table = table::table(metadata, &columns, rows);
    if !headers {
        table["columnDefinitions"] = Value::Null;
    }
    table
}

fn list_metadata(page: &Page) -> Map<String, Value> {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), Value::String(page.revision.to_string()));
    if !page.continue_token.is_empty() {
        metadata.insert("continue".to_owned(), Value::String(page.continue_token.clone()));
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".to_owned(), Value::from(remaining));
    }
    metadata
}

/// An object in a list. Only custom ones say again of what kind they are.
fn item(resource: &Resource, entry: &Entry) -> Value {
    let mut object = resource.parse(entry);
    if let Some(map) = object.as_object_mut().filter(|_| !resource.definition.custom) {
        map.shift_remove("kind");
        map.shift_remove("apiVersion");
    }
    object
}

/// A list.
pub fn list(context: &Context, page: Page) -> Result<Response<Body>, Status> {
    let accepted = &context.accepted;
    let resource = &context.resource;
    let metadata = list_metadata(&page);
    let mut response = match (accepted.shape, accepted.format) {
        (Shape::Object, Format::Json) if !accepted.pretty => {
            let mut response = Response::new(json_list(resource.clone(), page.entries, metadata));
            response.headers_mut().insert(CONTENT_TYPE, content_type(accepted));
            response
        }
        (Shape::Object, Format::Protobuf) => {
            bytes(StatusCode::OK, accepted, protobuf_list(resource, &page.entries, &page))
        }
        (shape, format) => {
            let value = match shape {
                Shape::Table => table_of(context, Value::Object(metadata), &page.entries, true),
                Shape::Metadata => json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                    "items": page.entries.iter()
                        .map(|entry| metadata_of(resource, &resource.parse(entry)))
                        .collect::<Vec<_>>(),
                }),
                Shape::Object => json!({
                    "kind": resource.definition.names.list_kind, "apiVersion": resource.api_version,
                    "metadata": metadata,
                    "items": page.entries.iter().map(|entry| item(resource, entry)).collect::<Vec<_>>(),
                }),
            };
            let value = in_version(accepted, value);
            let body = codec::encode(&value, format, accepted.pretty, Some(&metadata_schema(true)))?;
            bytes(StatusCode::OK, accepted, body)
        }
    };
    maybe_compress(context, &mut response);
    Ok(response)
}

/// Streams a JSON list block by block, so that its size never stands in memory at once.
fn json_list(resource: Arc<Resource>, entries: Vec<Arc<Entry>>, metadata: Map<String, Value>) -> Body {
    let mut start = BytesMut::new();
    start.put_slice(
        format!(
            "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
            resource.definition.names.list_kind,
            resource.api_version,
            Value::Object(metadata)
        )
        .as_bytes(),
    );
    let total: usize = entries.iter().map(|entry| entry.served_len()).sum();
    let mut cursor = ListCursor { resource, entries: entries.into_iter(), first: true, ended: false };
    if total <= BLOCK {
        start.reserve(total + 16);
        while cursor.fill(&mut start) {}
        return Body::from(start.freeze());
    }
    cursor.fill(&mut start);
    let blocks = futures::stream::unfold((Some(start), cursor), |(ready, mut cursor)| async move {
        if let Some(ready) = ready {
            return Some((Ok(ready.freeze()), (None, cursor)));
        }
        let mut block = BytesMut::with_capacity(BLOCK + (8 << 10));
        if !cursor.fill(&mut block) && block.is_empty() {
            return None;
        }
        Some((Ok(block.freeze()), (None, cursor)))
    });
    Body::stream(blocks)
}

struct ListCursor {
    resource: Arc<Resource>,
    entries: std::vec::IntoIter<Arc<Entry>>,
    first: bool,
    ended: bool,
}

impl ListCursor {
    /// Adds items until the block is full. Returns whether there may be more.
    fn fill(&mut self, out: &mut BytesMut) -> bool {
        if self.ended {
            return false;
        }
        let custom = self.resource.definition.custom;
        while out.len() < BLOCK {
            let Some(entry) = self.entries.next() else {
                out.put_slice(b"]}\n");
                self.ended = true;
                return false;
            };
            if !std::mem::take(&mut self.first) {
                out.put_u8(b',');
            }
            let entry = self.resource.entry_in_version(&entry);
            // Items of typed lists do not repeat kind and version.
            entry.write_item(entry.revision, if custom { 0 } else { self.resource.head_of(&entry) }, out);
        }
        true
    }
}

fn protobuf_list(resource: &Arc<Resource>, entries: &[Arc<Entry>], page: &Page) -> Bytes {
    let mut meta = BytesMut::new();
    codec::put_field(&mut meta, 1, b"");
    codec::put_field(&mut meta, 2, page.revision.to_string().as_bytes());
    codec::put_field(&mut meta, 3, page.continue_token.as_bytes());
    if let Some(remaining) = page.remaining {
        codec::put_varint(&mut meta, 4 << 3);
        codec::put_varint(&mut meta, remaining as u64);
    }
    let mut out =
        BytesMut::with_capacity(entries.iter().map(|entry| entry.value.len() / 2).sum::<usize>() + 64);
    codec::put_field(&mut out, 1, &meta);
    let mut head = BytesMut::with_capacity(192);
    for entry in entries {
        let entry = resource.entry_in_version(entry);
        let raw = entry.protobuf(|value| codec::protobuf_raw(value, &resource.definition.schema));
        let rest = codec::with_revision(raw, entry.revision, &mut head);
        codec::put_tag(&mut out, 2);
        codec::put_varint(&mut out, (head.len() + rest.len()) as u64);
        out.put_slice(&head);
        out.put_slice(rest);
    }
    let kind = &resource.definition.names.list_kind;
    codec::envelope(&[&out], Some(&resource.api_version), Some(kind))
}

/// Compresses large answers for clients that ask for it over a network worth saving.
fn maybe_compress(context: &Context, response: &mut Response<Body>) {
    if context.compress {
        compress(response);
    }
}

/// Compresses an answer if it is large.
pub fn compress(response: &mut Response<Body>) {
    let body = std::mem::take(response.body_mut());
    let small = match &body {
        Body::Full(bytes) => bytes.len() < COMPRESS_FROM,
        Body::Stream(_) => false,
        _ => true,
    };
    if small {
        *response.body_mut() = body;
        return;
    }
    *response.body_mut() = match body {
        Body::Full(bytes) => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            // Writing into memory cannot fail.
            let _ = encoder.write_all(&bytes);
            encoder.finish().unwrap_or_default().into()
        }
        Body::Stream(stream) => {
            let encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            let packed =
                futures::stream::unfold((stream, Some(encoder)), |(mut stream, encoder)| async move {
                    let mut encoder = encoder?;
                    loop {
                        match stream.next().await {
                            Some(Ok(block)) => {
                                if let Err(error) = encoder.write_all(&block) {
                                    return Some((Err(error), (stream, None)));
                                }
                                let ready = std::mem::take(encoder.get_mut());
                                if !ready.is_empty() {
                                    return Some((Ok(Bytes::from(ready)), (stream, Some(encoder))));
                                }
                            }
                            Some(Err(error)) => return Some((Err(error), (stream, None))),
                            None => return Some((encoder.finish().map(Bytes::from), (stream, None))),
                        }
                    }
                });
            Body::stream(packed)
        }
        other => other,
    };
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// Puts warnings into headers, as quoted text with code 299.
pub fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    const NAME: HeaderName = http::header::WARNING;
    // Clients and proxies have limits; what does not fit is cut.
    let mut total = 0;
    for warning in warnings {
        let mut text = String::with_capacity(warning.len() + 8);
        for letter in warning.chars() {
            match letter {
                '"' | '\\' => {
                    text.push('\\');
                    text.push(letter);
                }
                letter if letter.is_control() => text.push(' '),
                letter => text.push(letter),
            }
        }
        total += text.len();
        if total > 4096 {
            break;
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{text}\"").as_bytes()) {
            response.headers_mut().append(NAME, value);
        }
    }
}

/// Pieces as a body.
pub fn pieces(pieces: Vec<Bytes>) -> Body {
    Body::Shared(VecDeque::from(pieces))
}
