//! One object as it is kept and served.
//!
//! The bytes are those of the store: compact JSON beginning with `{"kind":…,"apiVersion":…,"metadata":{`, without
//! a resource version, since that is only known after the write. It is spliced in when the object is sent, at an
//! offset found once; nothing is parsed for that. Labels, selectable fields, the protobuf form and the parsed object
//! are made when first asked for and then shared; most entries are never asked and have no room for them.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::Value;

/// Names and values, few enough for a linear search.
pub type Pairs = Box<[(Box<str>, Box<str>)]>;

/// An object at one revision.
pub struct Entry {
    /// The store's key.
    pub key: Bytes,
    /// JSON without resource version.
    pub value: Bytes,
    /// The revision of the write that made it.
    pub revision: i64,
    /// Where the resource version goes: right after `"metadata":{`. 0 if the object has no such place.
    splice: u32,
    /// Where the object's name begins in `key`.
    name_at: u32,
    /// Where the namespace begins in `key`; equal to `name_at` for cluster-scoped objects.
    namespace_at: u32,
    derived: OnceLock<Box<Derived>>,
}

/// What is made of an entry's bytes when it is first asked for.
#[derive(Default)]
struct Derived {
    labels: OnceLock<Pairs>,
    fields: OnceLock<Pairs>,
    protobuf: OnceLock<Bytes>,
    parsed: OnceLock<Value>,
}

impl Entry {
    /// An entry below a resource's prefix (`/registry/pods/`).
    pub fn new(prefix_len: usize, key: Bytes, value: Bytes, revision: i64) -> Self {
        let name_at = key.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1).max(prefix_len);
        Self {
            splice: splice_offset(&value) as u32,
            name_at: name_at as u32,
            namespace_at: prefix_len.min(name_at) as u32,
            key,
            value,
            revision,
            derived: OnceLock::new(),
        }
    }

    fn derived(&self) -> &Derived {
        self.derived.get_or_init(Box::default)
    }

    /// The object's name.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.key[self.name_at as usize..]).unwrap_or_default()
    }

    /// The object's namespace, or nothing.
    pub fn namespace(&self) -> &str {
        let end = (self.name_at as usize).saturating_sub(1).max(self.namespace_at as usize);
        std::str::from_utf8(&self.key[self.namespace_at as usize..end]).unwrap_or_default()
    }

    /// The labels.
    pub fn labels(&self) -> &Pairs {
        self.derived().labels.get_or_init(|| read_labels(&self.value))
    }

    /// The selectable fields, made on first use by `make` out of what stands at `paths`.
    pub fn fields<'a>(
        &self,
        paths: impl Iterator<Item = &'a str>,
        make: impl FnOnce(&Value) -> Vec<(String, String)>,
    ) -> &Pairs {
        self.derived().fields.get_or_init(|| {
            let paths: Vec<&str> = paths.collect();
            make(&super::sparse::read(&self.value, &paths).unwrap_or_default())
                .into_iter()
                .map(|(key, value)| (key.into_boxed_str(), value.into_boxed_str()))
                .collect()
        })
    }

    /// The protobuf form without resource version, made by `make` on first use.
    pub fn protobuf(&self, make: impl FnOnce(&Value) -> Bytes) -> &Bytes {
        self.derived().protobuf.get_or_init(|| make(&self.parse()))
    }

    /// The object without resource version, parsed once and kept: for the few objects that every write asks for
    /// (its namespace, its account, classes and limits). Others are parsed where they are needed and let go.
    pub fn parsed(&self) -> &Value {
        self.derived().parsed.get_or_init(|| self.parse())
    }

    /// The object without resource version.
    pub fn parse(&self) -> Value {
        serde_json::from_slice(&self.value).unwrap_or_default()
    }

    /// The object as a client sees it at `revision`.
    pub fn parse_at(&self, revision: i64) -> Value {
        let mut value = self.parse();
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
        }
        value
    }

    /// How many bytes [`Entry::write_at`] writes at most.
    pub fn served_len(&self) -> usize {
        self.value.len() + 44
    }

    /// Writes the object as a client sees it at `revision`.
    pub fn write_at(&self, revision: i64, out: &mut BytesMut) {
        let splice = self.splice as usize;
        // Revision 0: a dry run, which has none.
        if splice == 0 || revision == 0 {
            out.put_slice(&self.value);
            return;
        }
        out.put_slice(&self.value[..splice]);
        out.put_slice(b"\"resourceVersion\":\"");
        put_number(revision, out);
        // An empty metadata object takes no comma.
        out.put_slice(if self.value.get(splice) == Some(&b'}') { b"\"" } else { b"\"," });
        out.put_slice(&self.value[splice..]);
    }

    /// Writes the object as an item of a list: without its first `head` bytes, which are `{"kind":…,"apiVersion":…,`.
    pub fn write_item(&self, revision: i64, head: usize, out: &mut BytesMut) {
        let splice = self.splice as usize;
        if head == 0 || splice < head {
            return self.write_at(revision, out);
        }
        out.put_u8(b'{');
        out.put_slice(&self.value[head..splice]);
        out.put_slice(b"\"resourceVersion\":\"");
        put_number(revision, out);
        out.put_slice(if self.value.get(splice) == Some(&b'}') { b"\"" } else { b"\"," });
        out.put_slice(&self.value[splice..]);
    }

    /// The object as a client sees it.
    pub fn served(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.served_len());
        self.write_at(self.revision, &mut out);
        out.freeze()
    }
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Entry({:?}@{})", self.key, self.revision)
    }
}

/// Writes a decimal number without formatting machinery.
pub fn put_number(number: i64, out: &mut BytesMut) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

/// The place after `"metadata":{`, looked for near the front where our own encoding has it.
fn splice_offset(value: &[u8]) -> usize {
    const MARK: &[u8] = b"\"metadata\":{";
    // Kind and apiVersion stand before it; both are short.
    let window = &value[..value.len().min(512)];
    window.windows(MARK.len()).position(|part| part == MARK).map_or(0, |at| at + MARK.len())
}

fn read_labels(value: &[u8]) -> Pairs {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: Option<std::collections::BTreeMap<Box<str>, Box<str>>>,
    }
    serde_json::from_slice::<Object>(value)
        .ok()
        .and_then(|object| object.metadata.labels)
        .map(|labels| labels.into_iter().collect())
        .unwrap_or_default()
}

/// A thread keeps this much of the buffer that objects are encoded in.
const SCRATCH_KEPT: usize = 32 << 10;

thread_local! {
    /// Objects are encoded here and copied out, so that what is kept for long has no room to spare.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Puts an object into the form that is stored: kind, apiVersion and metadata first, no resource version.
pub fn encode_for_store(object: &Value) -> Bytes {
    struct Ordered<'a>(&'a serde_json::Map<String, Value>);
    struct Metadata<'a>(&'a Value);
    impl serde::Serialize for Metadata<'_> {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            match self.0 {
                Value::Object(map) if map.contains_key("resourceVersion") => {
                    to.collect_map(map.iter().filter(|(key, _)| *key != "resourceVersion"))
                }
                other => other.serialize(to),
            }
        }
    }
    impl serde::Serialize for Ordered<'_> {
        fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeMap;
            let mut map = to.serialize_map(None)?;
            for key in ["kind", "apiVersion"] {
                if let Some(value) = self.0.get(key) {
                    map.serialize_entry(key, value)?;
                }
            }
            if let Some(metadata) = self.0.get("metadata") {
                map.serialize_entry("metadata", &Metadata(metadata))?;
            }
            for (key, value) in self.0 {
                if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
                    map.serialize_entry(key, value)?;
                }
            }
            map.end()
        }
    }
    match object {
        Value::Object(map) => SCRATCH.with_borrow_mut(|out| {
            out.clear();
            // Writing a Value into memory cannot fail.
            let _ = serde_json::to_writer(&mut *out, &Ordered(map));
            let bytes = Bytes::copy_from_slice(out);
            out.shrink_to(SCRATCH_KEPT);
            bytes
        }),
        other => Bytes::from(other.to_string()),
    }
}

/// What happened to an object, to be told to watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It came into view.
    Added,
    /// It changed.
    Modified,
    /// It left the view.
    Deleted,
}

impl ChangeKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One event for one watcher: the object to show and the resource version to show it with.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What happened, seen through the watcher's filter.
    pub kind: ChangeKind,
    /// The object.
    pub entry: Arc<Entry>,
    /// What it was before it was modified.
    pub previous: Option<Arc<Entry>>,
    /// The revision of the event.
    pub revision: i64,
    /// The event as it is written, shared by all watchers that are told of the change at once.
    pub lines: Option<Arc<Lines>>,
}

/// What watchers are sent of one change in JSON, by its kind: the first of them writes it.
#[derive(Debug, Default)]
pub struct Lines([OnceLock<Bytes>; 3]);

impl Delivery {
    /// The event as a line of JSON, written once for all who share it.
    pub fn line(&self) -> Bytes {
        let write = || {
            let mut out = BytesMut::with_capacity(self.entry.served_len() + 36);
            self.write(&mut out);
            out.freeze()
        };
        match &self.lines {
            Some(lines) => lines.0[self.kind as usize].get_or_init(write).clone(),
            None => write(),
        }
    }

    /// Writes the event as a line of JSON.
    pub fn write(&self, out: &mut BytesMut) {
        write_event(self.kind, &self.entry, self.revision, out);
    }

    /// The event of an object that was and is seen like this: one that comes into view is added, one that leaves is
    /// deleted and shown as it last looked inside.
    pub fn of(before: Option<Arc<Entry>>, now: Option<Arc<Entry>>, revision: i64) -> Option<Self> {
        let (kind, entry, previous) = match (before, now) {
            (None, Some(entry)) => (ChangeKind::Added, entry, None),
            (before @ Some(_), Some(entry)) => (ChangeKind::Modified, entry, before),
            (Some(entry), None) => (ChangeKind::Deleted, entry, None),
            (None, None) => return None,
        };
        Some(Self { kind, entry, previous, revision, lines: None })
    }
}

/// Writes an event of an object that is served as it is stored, as a line of JSON.
pub fn write_event(kind: ChangeKind, entry: &Entry, revision: i64, out: &mut BytesMut) {
    out.reserve(entry.served_len() + 36);
    out.put_slice(b"{\"type\":\"");
    out.put_slice(kind.as_str().as_bytes());
    out.put_slice(b"\",\"object\":");
    entry.write_at(revision, out);
    out.put_slice(b"}\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_resource_version_is_spliced_in_and_never_stored() {
        let object = json!({
            "apiVersion": "v1", "data": {"a": "b"}, "kind": "ConfigMap",
            "metadata": {"name": "x", "resourceVersion": "3", "labels": {"k": "v"}},
        });
        let stored = encode_for_store(&object);
        assert!(
            stored.starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x""#),
            "{stored:?}"
        );
        let entry =
            Entry::new("/registry/configmaps/".len(), "/registry/configmaps/ns/x".into(), stored, 1234567);
        let served: Value = serde_json::from_slice(&entry.served()).unwrap();
        assert_eq!(served["metadata"]["resourceVersion"], "1234567");
        assert_eq!(served["metadata"]["name"], "x");
        assert_eq!((entry.namespace(), entry.name()), ("ns", "x"));
        assert_eq!(&*entry.labels()[0].0, "k");
        assert_eq!(entry.parse_at(5)["metadata"]["resourceVersion"], "5");
    }

    #[test]
    fn empty_metadata_gets_no_comma() {
        let entry = Entry::new(3, "/x/y".into(), encode_for_store(&json!({"kind": "K", "metadata": {}})), 7);
        assert_eq!(entry.served(), r#"{"kind":"K","metadata":{"resourceVersion":"7"}}"#);
        assert_eq!((entry.namespace(), entry.name()), ("", "y"));
    }
}
