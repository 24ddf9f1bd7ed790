//! Broken bytes to everything that reads what clients send: nothing panics, and what is accepted stays itself.
//!
//! The same entry points as the fuzz targets of `apimachinery`, fed with good inputs that were damaged at random, so
//! that every test run takes some of their steps.

use apimachinery::decode::{self, FieldValidation};
use apimachinery::quantity::Quantity;
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::{apply, patch, protobuf, time};
use serde_json::{Value, json};

/// A small generator of random numbers; a fixed seed makes failures repeatable.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }

    /// Changes, removes, repeats or inserts some bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(5) {
                0 if !bytes.is_empty() => bytes[at] = self.below(256) as u8,
                1 if !bytes.is_empty() => drop(bytes.remove(at)),
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + self.below(16)).min(bytes.len());
                    let piece = bytes[at.min(end)..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                _ => {
                    const TOKENS: [&[u8]; 12] = [
                        b"{", b"}", b"[", b"]", b"\"", b"null", b"-1", b"1e999", b": ", b"&a *a", b"\xff",
                        b"$patch",
                    ];
                    bytes.splice(at..at, TOKENS[self.below(TOKENS.len())].iter().copied());
                }
            }
        }
    }
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"a": "b"}, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}],
                "env": [{"name": "A", "value": "1"}], "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}]}}}})
}

#[test]
fn decoders_take_any_bytes() {
    let schema = api::schemas::schemas().get("io.k8s.api.apps.v1.Deployment").unwrap();
    let object = deployment();
    let good = [
        serde_json::to_vec(&object).unwrap(),
        serde_yaml_ng::to_string(&object).unwrap().into_bytes(),
        protobuf::encode(&object, &schema),
    ];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for turn in 0..6_000 {
        let mut bytes = good[turn % good.len()].clone();
        random.damage(&mut bytes);
        for validation in [FieldValidation::Strict, FieldValidation::Warn] {
            if let Ok(decoded) = decode::json(&bytes, &schema, validation) {
                accepted += 1;
                let again = protobuf::encode(&decoded.value, &schema);
                assert!(protobuf::decode(&again, &schema).is_ok(), "{}", decoded.value);
            }
            let _ = decode::yaml(&bytes, &schema, validation);
        }
        let _ = protobuf::decode(&bytes, &schema);
    }
    assert!(accepted > 100, "most turns should get past the first byte: {accepted}");
}

#[test]
fn patches_take_any_document() {
    let schema = api::schemas::schemas().get("io.k8s.api.apps.v1.Deployment").unwrap();
    let object = deployment();
    let changes = [
        json!([{"op": "replace", "path": "/spec/replicas", "value": 3}, {"op": "move", "from": "/metadata/labels/a", "path": "/metadata/labels/c"}]),
        json!({"metadata": {"labels": {"a": null}}, "spec": {"template": {"spec": {"containers": [{"name": "c", "$patch": "delete"}],
            "$setElementOrder/containers": [{"name": "c"}], "$retainKeys": ["containers"]}}}}),
        object.clone(),
    ];
    let manager = apply::Manager {
        name: "t",
        api_version: "apps/v1",
        subresource: "",
        now: Default::default(),
        ignored: &["status"],
        versions: None,
    };
    let mut random = Random(0xdead_beef_cafe_f00d);
    let mut applied_twice = 0;
    for turn in 0..6_000 {
        let mut bytes = serde_json::to_vec(&changes[turn % changes.len()]).unwrap();
        random.damage(&mut bytes);
        let Ok(change) = serde_json::from_slice::<Value>(&bytes) else { continue };
        let _ = patch::json_patch(object.clone(), &change);
        let _ = patch::merge_patch(object.clone(), &change);
        let _ = patch::strategic_merge_patch(object.clone(), &change, &schema);
        if let Ok(config) = apply::Configuration::new(change.clone(), &schema)
            && let Ok(applied) = apply::apply(Some(&object), &config, &schema, &manager, true)
        {
            let again = apply::apply(Some(&applied), &config, &schema, &manager, true);
            assert_eq!(again.as_ref(), Ok(&applied), "applying twice differs from applying once: {change}");
            applied_twice += 1;
        }
    }
    assert!(applied_twice > 10, "{applied_twice}");
}

#[test]
fn selectors_and_quantities_take_any_text() {
    let good = [
        "a=b,c!=d",
        "x in (1,2),!y,z notin (3)",
        "metadata.name=a,spec.nodeName!=b",
        "1.5Gi",
        "100m",
        "12e6",
        "1h30m",
        "2026-01-01T00:00:00Z",
    ];
    let mut random = Random(0x1234_5678_9abc_def1);
    for turn in 0..40_000 {
        let mut bytes = good[turn % good.len()].as_bytes().to_vec();
        random.damage(&mut bytes);
        let Ok(text) = String::from_utf8(bytes) else { continue };
        if let Ok(selector) = LabelSelector::parse(&text) {
            assert_eq!(LabelSelector::parse(&selector.to_string()).as_ref(), Ok(&selector), "{text:?}");
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            assert!(FieldSelector::parse(&selector.to_string()).is_ok(), "{text:?}");
        }
        if let Ok(quantity) = text.parse::<Quantity>() {
            assert_eq!(quantity.to_string().parse(), Ok(quantity), "{text:?}");
        }
        let _ = (time::parse(&text), time::parse_duration(&text));
    }
}

#[test]
fn yaml_of_endless_depth_is_refused_at_once() {
    for piece in ["[", "{a: ", "- ", "? "] {
        let said = decode::parse_yaml(piece.repeat(200_000).as_bytes()).unwrap_err().to_string();
        assert!(said.contains("max depth"), "{piece:?}: {said}");
    }
    assert!(decode::parse_yaml(b"a: [[1], {b: '----[[[['}]").is_ok());
}
