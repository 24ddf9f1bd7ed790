//! Between bytes and objects, for every format: the one place that knows the envelopes.

use api::schemas::schemas;
use apimachinery::decode::{self, DecodeError, FieldValidation};
use apimachinery::protobuf;
use apimachinery::schema::Schema;
use apimachinery::status::Status;
use apimachinery::yaml;
use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};

use crate::negotiate::Format;

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
            .map_err(|error| refuse(&error, expected, bytes, format)),
        Format::Yaml => decode::yaml(bytes, expected.schema, validation)
            .map_err(|error| refuse(&error, expected, bytes, format)),
        Format::Protobuf => {
            let value = protobuf::decode(bytes, expected.schema).map_err(|error| {
                if !expected.exact {
                    return Status::bad_request(error.to_string());
                }
                another_kind(bytes, format, expected).unwrap_or_else(|| {
                    Status::bad_request(format!(
                        "the object provided is unrecognized (must be of type {}): {error} ({})",
                        expected.kind,
                        summary(bytes)
                    ))
                })
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
        } else if expected.exact && custom && field == "kind" && given != wanted {
            let mut problems = apimachinery::field::Problems::new();
            problems.invalid(&apimachinery::field::Path::new("kind"), given, format!("must be {wanted}"));
            let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
            let name = map.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
            return Err(Status::invalid(group, given, name, &problems));
        } else if expected.exact && given != wanted {
            return Err(Status::bad_request(format!(
                "the {what} in the data ({given}) does not match the expected {what} ({wanted})"
            )));
        }
    }
    Ok((value, decoded.warnings))
}

/// What is to be said of an object that cannot be read as what is expected because it is of another kind.
fn another_kind(bytes: &[u8], format: Format, expected: &Expected<'_>) -> Option<Status> {
    if !expected.exact || expected.schema.node().arena().custom {
        return None;
    }
    let any = Schema::any();
    let value = match format {
        Format::Json => decode::json(bytes, &any, FieldValidation::Ignore).ok()?.value,
        Format::Yaml => decode::yaml(bytes, &any, FieldValidation::Ignore).ok()?.value,
        Format::Protobuf => {
            let envelope = protobuf::unwrap(bytes).ok()?;
            json!({"apiVersion": envelope.api_version, "kind": envelope.kind})
        }
    };
    check_kind(value.as_object()?, expected).err()
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
    let why = unknown_conversion(&version, &kind, expected.api_version, expected.kind);
    let version = version_of(&version);
    Err(Status::bad_request(format!(
        "{kind} in version {version:?} cannot be handled as a {}: {why}",
        expected.kind
    )))
}

/// Why an object of one kind is no object of another.
pub fn unknown_conversion(version: &str, kind: &str, own_version: &str, own_kind: &str) -> String {
    let group_of = |version: &str| version.split_once('/').map_or("", |(group, _)| group).to_owned();
    let group = group_of(version);
    let package = |group: &str| match group.split('.').next() {
        None | Some("") => "core".to_owned(),
        Some(first) => first.to_owned(),
    };
    let known = api::builtins().iter().any(|one| {
        one.names.group == group && one.names.version == version_of(version) && one.names.kind == kind
    });
    if known || (group.is_empty() && kind == "Status") {
        let (from, to) = (version_of(version), package(&group_of(own_version)));
        format!("converting ({from}.{kind}) to ({to}.{own_kind}): unknown conversion")
    } else {
        let scheme = match group_of(own_version).as_str() {
            "apiextensions.k8s.io" => "k8s.io/apiextensions-apiserver/pkg/apiserver/apiserver.go:55",
            "apiregistration.k8s.io" => "k8s.io/kube-aggregator/pkg/apiserver/scheme/scheme.go:28",
            _ => "pkg/api/legacyscheme/scheme.go:30",
        };
        format!("no kind {kind:?} is registered for version {version:?} in scheme {scheme:?}")
    }
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

fn refuse(error: &DecodeError, expected: &Expected<'_>, bytes: &[u8], format: Format) -> Status {
    let text = error.to_string();
    // Kind and version are read before anything else, by themselves.
    let early = match error {
        DecodeError::Syntax(_) => Some(format!("couldn't get version/kind; json parse error: {text}")),
        DecodeError::Type(_) => about_kind(&text, expected)
            .map(|text| format!("couldn't get version/kind; json parse error: {text}")),
        DecodeError::Yaml(_) => Some(text.clone()),
        DecodeError::Strict(_) => None,
    };
    if early.is_none()
        && let Some(status) = another_kind(bytes, format, expected)
    {
        return status;
    }
    Status::bad_request(match (early, expected.exact) {
        (Some(early), true) => format!(
            "the object provided is unrecognized (must be of type {}): {early} ({})",
            expected.kind,
            summary(bytes)
        ),
        // Options are read before it is known of what kind they are, and what is wrong is passed on as it is.
        (Some(early), false) => early,
        (None, false) => text,
        (None, true) => format!(
            "{kind} in version {:?} cannot be handled as a {kind}: {text}",
            version_of(expected.api_version),
            kind = expected.kind
        ),
    })
}

/// The complaint about a body that is no object, or whose kind or version is no text.
fn about_kind(text: &str, expected: &Expected<'_>) -> Option<String> {
    const FIELDS: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let whole = format!("Go value of type {}", expected.schema.node().go_type());
    if let Some(start) = text.strip_suffix(&whole) {
        return Some(format!("{start}Go value of type {FIELDS}"));
    }
    ["apiVersion", "kind"].iter().find_map(|field| {
        let start = text.strip_suffix(&format!("{}.{field} of type string", expected.kind))?;
        Some(format!("{start}.{field} of type string"))
    })
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
            Ok(envelope(&[&raw], value["apiVersion"].as_str(), value["kind"].as_str()))
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

/// Wraps a message, given in parts, in `k8s\0` and runtime.Unknown.
pub fn envelope(parts: &[&[u8]], api_version: Option<&str>, kind: Option<&str>) -> Bytes {
    let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
    let mut type_meta = BytesMut::with_capacity(api_version.len() + kind.len() + 4);
    put_field(&mut type_meta, 1, api_version.as_bytes());
    put_field(&mut type_meta, 2, kind.as_bytes());
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = BytesMut::with_capacity(length + type_meta.len() + 24);
    out.put_slice(b"k8s\0");
    put_field(&mut out, 1, &type_meta);
    put_tag(&mut out, 2);
    put_varint(&mut out, length as u64);
    parts.iter().for_each(|part| out.put_slice(part));
    // contentEncoding and contentType are always written, empty.
    put_field(&mut out, 3, b"");
    put_field(&mut out, 4, b"");
    out.freeze()
}

/// The message of an object that was encoded without a resource version, with one: `head` becomes what comes before, with
/// the new length of the metadata, and what comes after is returned.
pub fn with_revision<'a>(raw: &'a [u8], revision: i64, head: &mut BytesMut) -> &'a [u8] {
    head.clear();
    match (revision_place(raw), revision.checked_ilog10()) {
        (Some((metadata, length, place)), Some(power)) => {
            let digits = power as usize + 1;
            put_tag(head, 1);
            put_varint(head, (length + digits) as u64);
            head.put_slice(&raw[metadata..place]);
            put_tag(head, 6);
            put_varint(head, digits as u64);
            crate::cache::entry::put_number(revision, head);
            &raw[place + 2..]
        }
        _ => raw,
    }
}

/// Where metadata begins, how long it is, and where its empty resource version stands: after name, generateName,
/// namespace, selfLink and uid, all of which are always there.
fn revision_place(raw: &[u8]) -> Option<(usize, usize, usize)> {
    if raw.first() != Some(&0x0a) {
        return None;
    }
    let (length, metadata) = read_varint(raw, 1)?;
    let mut at = metadata;
    for number in 1..=5u8 {
        if raw.get(at) != Some(&(number << 3 | 2)) {
            return None;
        }
        let (length, begin) = read_varint(raw, at + 1)?;
        at = begin + length;
    }
    (raw.get(at..at + 2) == Some(&[6 << 3 | 2, 0])).then_some((metadata, length, at))
}

fn read_varint(bytes: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut value = 0usize;
    for shift in (0..35).step_by(7) {
        let byte = *bytes.get(at)?;
        at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((value, at));
        }
    }
    None
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages are those of upstream's generated code: in the order of tags, with what is zero but no pointer.
    #[test]
    fn an_object_is_encoded_as_go_does_it_and_gets_its_revision_in_place() {
        let schema = schemas().get("io.k8s.api.core.v1.Secret").unwrap();
        let object = json!({"type": "Opaque", "kind": "Secret", "apiVersion": "v1",
            "metadata": {"uid": "u", "labels": {"b": "2", "a": "1"}, "name": "x"}});
        let raw = protobuf_raw(&object, &schema);
        let mut head = BytesMut::new();
        let rest = with_revision(&raw, 300, &mut head);
        let whole = [&head[..], rest].concat();
        let mut metadata: Vec<u8> =
            b"\x0a\x01x\x12\x00\x1a\x00\x22\x00\x2a\x01u\x32\x03300\x38\x00\x42\x00".to_vec();
        metadata.extend(b"\x5a\x06\x0a\x01a\x12\x011\x5a\x06\x0a\x01b\x12\x012");
        let want = [&[0x0a, metadata.len() as u8][..], &metadata, b"\x1a\x06Opaque"].concat();
        assert_eq!(whole, want);
        let rest = with_revision(&raw, 0, &mut head);
        assert_eq!([&head[..], rest].concat(), raw);
    }
}
