//! Between bytes and objects, for every format: the one place that knows the envelopes.

use api::schemas::schemas;
use apimachinery::decode::{self, DecodeError, FieldValidation};
use apimachinery::protobuf;
use apimachinery::schema::Schema;
use apimachinery::status::Status;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::Value;

use crate::negotiate::Format;
use crate::yaml;

/// What an object in a request body is expected to be.
pub struct Expected<'a> {
    /// Its API version.
    pub api_version: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// Its shape.
    pub schema: &'a Schema,
    /// Whether another kind or version may come.
    pub exact: bool,
}

/// Decodes a request body; warnings come with it.
pub fn decode(
    bytes: &[u8],
    format: Format,
    expected: &Expected<'_>,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Status> {
    let decoded = match format {
        Format::Json => decode::json(bytes, expected.schema, validation)
            .map_err(|error| refuse(&error, expected, Some(bytes))),
        Format::Yaml => {
            decode::yaml(bytes, expected.schema, validation).map_err(|error| refuse(&error, expected, None))
        }
        Format::Protobuf => {
            let value = protobuf::decode(bytes, expected.schema).map_err(|error| {
                Status::bad_request(format!(
                    "the object provided is unrecognized (must be of type {}): {error} ({})",
                    expected.kind,
                    summary(bytes)
                ))
            })?;
            Ok(decode::Decoded { value, warnings: Vec::new() })
        }
    }?;
    let mut value = decoded.value;
    if value.is_null() {
        value = Value::Object(serde_json::Map::new()); // as Go reads it
    }
    let Some(map) = value.as_object_mut() else {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): the body is no object",
            expected.kind
        )));
    };
    let custom = expected.schema.node().arena().custom;
    if expected.exact && !custom {
        check_kind(map, expected)?;
    }
    if expected.exact && custom && !matches!(map.get("kind"), Some(Value::String(kind)) if !kind.is_empty()) {
        return Err(Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{}' ({})",
            expected.kind,
            String::from_utf8_lossy(bytes),
            summary(bytes)
        )));
    }
    for (field, wanted, what) in
        [("apiVersion", expected.api_version, "API version"), ("kind", expected.kind, "kind")]
    {
        let given = map.get(field).and_then(Value::as_str).unwrap_or_default();
        if given.is_empty() {
            map.insert(field.to_owned(), Value::String(wanted.to_owned()));
        } else if expected.exact && given != wanted {
            return Err(Status::bad_request(format!(
                "the {what} in the data ({given}) does not match the expected {what} ({wanted})"
            )));
        }
    }
    Ok((value, decoded.warnings))
}

/// Another kind than the one that is served here cannot be made into it.
fn check_kind(map: &serde_json::Map<String, Value>, expected: &Expected<'_>) -> Result<(), Status> {
    let given = |field: &str, wanted: &str| match map.get(field).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => text.to_owned(),
        _ => wanted.to_owned(),
    };
    let (version, kind) = (given("apiVersion", expected.api_version), given("kind", expected.kind));
    if version == expected.api_version && kind == expected.kind {
        return Ok(());
    }
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let package = |group: &str| match group.split('.').next() {
        None | Some("") => "core".to_owned(),
        Some(first) => first.to_owned(),
    };
    let known = api::builtins().iter().any(|one| {
        one.names.group == group && one.names.version == version_of(&version) && one.names.kind == kind
    });
    let why = if known {
        let own = expected.api_version.split_once('/').map_or("", |(group, _)| group);
        let (from, to) = (version_of(&version), package(own));
        format!("converting ({from}.{kind}) to ({to}.{}): unknown conversion", expected.kind)
    } else {
        format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    let version = version_of(&version);
    Err(Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {why}",
        expected.kind
    )))
}

/// The beginning of a body that cannot be read, for the message about it.
fn summary(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let short = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { " ..." } else { "" };
    match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(short)),
        Some(_) => format!("{}{more}", short.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

fn version_of(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or(api_version)
}

fn refuse(error: &DecodeError, expected: &Expected<'_>, json: Option<&[u8]>) -> Status {
    let text = error.to_string();
    match (error, json) {
        (DecodeError::Syntax(_), Some(bytes)) => Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {text} ({})",
            expected.kind,
            summary(bytes)
        )),
        _ => Status::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {kind}: {text}",
            version_of(expected.api_version),
            kind = expected.kind
        )),
    }
}

/// Encodes an object that has a schema.
pub fn encode(value: &Value, format: Format, pretty: bool, schema: Option<&Schema>) -> Result<Bytes, Status> {
    match format {
        Format::Json if pretty => {
            let mut bytes = serde_json::to_vec_pretty(value).map_err(Status::internal)?;
            bytes.push(b'\n');
            Ok(Bytes::from(bytes))
        }
        Format::Json => {
            let mut bytes = serde_json::to_vec(value).map_err(Status::internal)?;
            bytes.push(b'\n');
            Ok(Bytes::from(bytes))
        }
        Format::Yaml => Ok(Bytes::from(yaml::write(value))),
        Format::Protobuf => {
            let schema =
                schema.ok_or_else(|| Status::not_acceptable(&["application/json", "application/yaml"]))?;
            let raw = protobuf_raw(value, schema);
            Ok(envelope(&raw, &[], value["apiVersion"].as_str(), value["kind"].as_str()))
        }
    }
}

/// The bare protobuf message of an object.
pub fn protobuf_raw(value: &Value, schema: &Schema) -> Bytes {
    Bytes::from(protobuf::encode_raw(value, schema.node()))
}

/// The schema of the Status kind.
pub fn status_schema() -> Option<Schema> {
    schemas().get("io.k8s.apimachinery.pkg.apis.meta.v1.Status")
}

/// Wraps a message in `k8s\0` and runtime.Unknown. `tail` is appended to the message: fields set there override
/// or complete the message, by protobuf's rule for repeated occurrences.
pub fn envelope(raw: &[u8], tail: &[u8], api_version: Option<&str>, kind: Option<&str>) -> Bytes {
    let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
    let mut type_meta = BytesMut::with_capacity(api_version.len() + kind.len() + 4);
    put_field(&mut type_meta, 1, api_version.as_bytes());
    put_field(&mut type_meta, 2, kind.as_bytes());
    let mut out = BytesMut::with_capacity(raw.len() + tail.len() + type_meta.len() + 24);
    out.put_slice(b"k8s\0");
    put_field(&mut out, 1, &type_meta);
    put_tag(&mut out, 2);
    put_varint(&mut out, (raw.len() + tail.len()) as u64);
    out.put_slice(raw);
    out.put_slice(tail);
    // contentEncoding and contentType are always written, empty.
    put_field(&mut out, 3, b"");
    put_field(&mut out, 4, b"");
    out.freeze()
}

/// `metadata.resourceVersion` as a second occurrence of the metadata field, to be appended to a message.
pub fn revision_tail(revision: i64, out: &mut BytesMut) {
    let mut number = BytesMut::with_capacity(24);
    crate::cache::entry::put_number(revision, &mut number);
    let mut metadata = BytesMut::with_capacity(28);
    put_field(&mut metadata, 6, &number);
    put_field(out, 1, &metadata);
}

/// Writes a length-delimited field.
pub fn put_field(out: &mut BytesMut, number: u32, bytes: &[u8]) {
    put_tag(out, number);
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Writes the tag of a length-delimited field.
pub fn put_tag(out: &mut BytesMut, number: u32) {
    put_varint(out, u64::from(number << 3 | 2));
}

/// Writes a variable-length number.
pub fn put_varint(out: &mut BytesMut, mut number: u64) {
    while number >= 0x80 {
        out.put_u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

/// The length of a variable-length number.
pub fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}
