//! The objects of the load: encoded once, with holes for what differs.

use bytes::Bytes;
use serde_json::{Value, json};

/// The value that every change changes; in the object as `"count":"000000000000"`.
const COUNT: &[u8] = b"\"count\":\"";
const COUNT_WIDTH: usize = 12;
const NAME: &str = "name-to-be-set";

/// The kinds of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ConfigMap,
    Pod,
}

impl Kind {
    /// The path of a collection.
    pub fn path(self, namespace: &str) -> String {
        match self {
            Self::ConfigMap => format!("/api/v1/namespaces/{namespace}/configmaps"),
            Self::Pod => format!("/api/v1/namespaces/{namespace}/pods"),
        }
    }

    /// A whole object.
    pub fn object(self) -> Template {
        Template::new(&match self {
            Self::ConfigMap => config_map(),
            Self::Pod => pod(),
        })
    }

    /// A merge patch (ConfigMaps) or a strategic one (Pods) that changes the count.
    pub fn patch(self) -> Template {
        Template::new(&match self {
            Self::ConfigMap => json!({"data": {"count": "000000000000"}}),
            Self::Pod => json!({
                "metadata": {"annotations": {"count": "000000000000"}},
                "spec": {"containers": [{"name": "main", "image": "registry.example.com/team/service:1.2.3"}]},
            }),
        })
    }

    /// The content type of [`Kind::patch`].
    pub fn patch_type(self) -> &'static str {
        match self {
            Self::ConfigMap => "application/merge-patch+json",
            Self::Pod => "application/strategic-merge-patch+json",
        }
    }
}

/// The name of an object: that of a client and a number.
pub fn name(client: usize, number: u64) -> String {
    format!("b-{client:03}-{number:08}")
}

/// Encoded JSON with holes for a name and a count.
#[derive(Clone, Debug)]
pub struct Template {
    text: Bytes,
    name_at: Option<usize>,
    count_at: Option<usize>,
}

impl Template {
    fn new(value: &Value) -> Self {
        let text = value.to_string();
        let find = |what: &[u8]| memchr::memmem::find(text.as_bytes(), what);
        Self {
            name_at: find(NAME.as_bytes()),
            count_at: find(COUNT).map(|at| at + COUNT.len()),
            text: text.into(),
        }
    }

    /// The JSON with the holes filled.
    pub fn fill(&self, name: &str, count: u64) -> Bytes {
        let mut text = self.text.to_vec();
        if let Some(at) = self.name_at {
            // Names have the width of the hole.
            text[at..at + NAME.len()].copy_from_slice(name.as_bytes());
        }
        if let Some(at) = self.count_at {
            write_count(&mut text[at..at + COUNT_WIDTH], count);
        }
        text.into()
    }
}

fn write_count(hole: &mut [u8], mut count: u64) {
    for digit in hole.iter_mut().rev() {
        *digit = b'0' + (count % 10) as u8;
        count /= 10;
    }
}

/// An object as a server gave it, with another count.
pub fn recount(object: &[u8], count: u64) -> Option<Bytes> {
    let at = memchr::memmem::find(object, COUNT)? + COUNT.len();
    let mut text = object.to_vec();
    write_count(text.get_mut(at..at + COUNT_WIDTH)?, count);
    Some(text.into())
}

/// The count in an object.
pub fn read_count(object: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(object, COUNT)? + COUNT.len();
    number(object.get(at..at + COUNT_WIDTH)?)
}

/// The resource version in an object: the first one that stands in it.
pub fn read_revision(object: &[u8]) -> Option<u64> {
    const MARK: &[u8] = b"\"resourceVersion\":\"";
    let at = memchr::memmem::find(object, MARK)? + MARK.len();
    let length = memchr::memchr(b'"', &object[at..])?;
    number(&object[at..at + length])
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A ConfigMap of 1 KiB.
fn config_map() -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": NAME, "labels": {"app": "bench"}},
        "data": {"count": "000000000000", "text": "x".repeat(880)},
    })
}

/// A pod as a deployment would make it: about 2.5 KB once the server has added what it adds.
fn pod() -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": NAME,
            "labels": {"app.kubernetes.io/name": "bench", "app.kubernetes.io/component": "load"},
            "annotations": {"count": "000000000000"},
        },
        "spec": {
            // Nobody's: these pods lie still, whatever else runs in the cluster.
            "schedulerName": "kelson-bench",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": "registry.example.com/team/service:1.2.3",
                "args": ["--config=/etc/service/config.yaml"],
                "env": [{"name": "LEVEL", "value": "info"}],
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/service"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "service"}}],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_and_read_back() {
        for kind in [Kind::ConfigMap, Kind::Pod] {
            let bytes = kind.object().fill(&name(7, 42), 1234);
            let object: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(object["metadata"]["name"], "b-007-00000042");
            assert_eq!(read_count(&bytes), Some(1234));
            assert_eq!(read_count(&recount(&bytes, 5).unwrap()), Some(5));
            assert_eq!(read_count(&kind.patch().fill("", 9)), Some(9));
            assert_eq!(read_revision(&bytes), None);
        }
        let size = Kind::ConfigMap.object().fill(&name(0, 0), 0).len();
        assert!((1000..1050).contains(&size), "{size}");
        assert_eq!(read_revision(br#"{"metadata":{"name":"a","resourceVersion":"77"}}"#), Some(77));
    }
}
