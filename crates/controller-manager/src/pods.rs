//! Making pods from templates, hashing templates, and choosing which pods go first.

use controller_runtime::{Kind, Raw};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kinds::Pod;

/// A pod as an owner's template describes it, controlled by the owner. The server makes the name.
pub fn from_template<O: Kind>(owner: &O, template: &Raw) -> Value {
    let mut template = template.value();
    let mut metadata = Map::new();
    let prefix = format!("{}-", owner.meta().name);
    metadata.insert("generateName".into(), json!(prefix));
    metadata.insert("namespace".into(), json!(owner.meta().namespace));
    for part in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.pointer_mut(&format!("/metadata/{part}")) {
            metadata.insert(part.into(), value.take());
        }
    }
    metadata.insert("ownerReferences".into(), json!([owner.controller_ref()]));
    json!({"metadata": metadata, "spec": template["spec"].take()})
}

/// The labels of a template.
pub fn template_labels(template: &Raw) -> client::Labels {
    let value = template.value();
    value
        .pointer("/metadata/labels")
        .and_then(Value::as_object)
        .map(|labels| {
            labels.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect()
        })
        .unwrap_or_default()
}

/// A short word for a value: equal values give equal words on every machine and in every version of ours. Upstream
/// hashes its own memory layout, so the words differ from upstream's; no one may compare them.
pub fn hash(value: &Value, collisions: Option<i64>) -> String {
    let mut hash = Fnv(0x811c_9dc5);
    hash.value(value);
    if let Some(count) = collisions {
        hash.bytes(&count.to_le_bytes());
    }
    safe_word(&hash.0.to_string())
}

/// Turns digits into letters that spell no words and look like no others, as upstream does.
fn safe_word(text: &str) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

/// FNV-1a, 32 bits.
struct Fnv(u32);

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }

    /// Field order does not count.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort();
                self.bytes(b"{");
                for name in names {
                    self.bytes(name.as_bytes());
                    self.bytes(b":");
                    self.value(&fields[name]);
                }
                self.bytes(b"}");
            }
            Value::Array(items) => {
                self.bytes(b"[");
                items.iter().for_each(|item| self.value(item));
                self.bytes(b"]");
            }
            other => {
                self.bytes(other.to_string().as_bytes());
                self.bytes(b",");
            }
        }
    }
}

/// Orders pods so that those whose loss hurts least come first. `crowd` counts the related pods on a pod's node.
pub fn deletion_order<P: AsRef<Pod>>(pods: &mut [P], now: Timestamp, crowd: impl Fn(&Pod) -> usize) {
    pods.sort_by_cached_key(|pod| rank(pod.as_ref(), now, crowd(pod.as_ref())));
}

type Rank = (bool, u8, bool, i64, std::cmp::Reverse<usize>, u8, std::cmp::Reverse<i64>, u8, Box<str>);

/// Smaller goes first: unbound, not yet running, not ready, cheap, on a crowded node, recently ready, often restarted,
/// young. Ages are compared by their magnitude only, so that equals are picked at random (here: by uid).
fn rank(pod: &Pod, now: Timestamp, crowd: usize) -> Rank {
    let phase = match &*pod.status.phase {
        "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let cost = pod
        .metadata
        .annotation("controller.kubernetes.io/pod-deletion-cost")
        .and_then(|cost| cost.parse::<i64>().ok())
        .unwrap_or(0);
    let magnitude = |since: Timestamp| {
        let seconds = (now.as_second() - since.as_second()).max(0) as u64;
        (u64::BITS - seconds.leading_zeros()) as u8
    };
    let ready = pod.ready_since();
    (
        !pod.spec.node_name.is_empty(),
        phase,
        ready.is_some(),
        cost,
        std::cmp::Reverse(crowd),
        ready.map_or(0, magnitude),
        std::cmp::Reverse(pod.restarts()),
        magnitude(pod.metadata.created()),
        pod.metadata.uid.clone(),
    )
}

impl AsRef<Pod> for Pod {
    fn as_ref(&self) -> &Pod {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, more: Value) -> Pod {
        let mut value = json!({"metadata":{"name":name,"uid":name,"creationTimestamp":"2026-01-01T00:00:00Z"},
            "spec":{"nodeName":"n"},"status":{"phase":"Running","conditions":[
                {"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}});
        controller_runtime::merge(&mut value, &more);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn pods_that_serve_least_go_first() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let mut pods = vec![
            pod("old", json!({})),
            pod("restarted", json!({"status":{"containerStatuses":[{"restartCount":3}]}})),
            pod("young", json!({"metadata":{"creationTimestamp":"2026-01-01T23:59:00Z"}})),
            pod(
                "cheap",
                json!({"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-1"}}}),
            ),
            pod("unready", json!({"status":{"conditions":[]}})),
            pod("pending", json!({"status":{"phase":"Pending","conditions":[]}})),
            pod("unbound", json!({"spec":{"nodeName":""},"status":{"phase":"Pending","conditions":[]}})),
        ];
        deletion_order(&mut pods, now, |_| 0);
        let names: Vec<&str> = pods.iter().map(|pod| &*pod.metadata.name).collect();
        assert_eq!(names, ["unbound", "pending", "unready", "cheap", "restarted", "young", "old"]);
    }

    #[test]
    fn hashes_ignore_field_order_and_heed_collisions() {
        let (a, b) = (json!({"x":1,"y":[1,2]}), json!({"y":[1,2],"x":1}));
        assert_eq!(hash(&a, None), hash(&b, None));
        assert_ne!(hash(&a, None), hash(&a, Some(1)));
        assert_ne!(hash(&a, None), hash(&json!({"x":1,"y":[2,1]}), None));
    }
}
