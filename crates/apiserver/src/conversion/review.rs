//! The question to a conversion webhook and what counts as an answer to it. Pure: `mod.rs` sends and receives.

use apimachinery::field::{Path, Problems};
use apimachinery::meta::{Meta, get_str};
use apimachinery::selector::validate_labels;
use serde_json::{Map, Value, json};

/// What was wrong with an answer; the name is that of upstream's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There was none.
    Call,
    /// It cannot be read, is another's, or says no.
    Malformed,
    /// It has more or fewer objects than were sent.
    Partial,
    /// An object in it is not what it may be.
    Object,
}

impl Failure {
    /// The label of the metric.
    pub fn word(self) -> &'static str {
        match self {
            Self::Call => "conversion_webhook_call_failure",
            Self::Malformed => "conversion_webhook_malformed_response_failure",
            Self::Partial => "conversion_webhook_partial_response_failure",
            Self::Object => "conversion_webhook_invalid_converted_object_failure",
        }
    }
}

/// Which of the versions that a webhook understands is spoken: the first that this server knows too.
pub fn version(understood: &[String]) -> Option<&str> {
    understood.iter().map(String::as_str).find(|version| matches!(*version, "v1" | "v1beta1"))
}

/// The question.
pub fn question(version: &str, uid: &str, wanted: &str, objects: &[Value]) -> Value {
    json!({
        "kind": "ConversionReview", "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": objects},
    })
}

/// How messages name the kind of an object.
pub fn kind_of(object: &Value) -> String {
    let version = get_str(object, "apiVersion");
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={}", get_str(object, "kind"))
}

/// The converted objects of an answer, in the order of the question.
pub fn answer(
    version: &str,
    uid: &str,
    wanted: &str,
    sent: &[Value],
    answer: Value,
) -> Result<Vec<Value>, (Failure, String)> {
    let kind = sent.first().map(kind_of).unwrap_or_default();
    let failed = |failure: Failure, why: String| (failure, format!("conversion webhook for {kind} {why}"));
    let found =
        objects(version, uid, answer).map_err(|why| failed(Failure::Malformed, format!("failed: {why}")))?;
    if found.len() != sent.len() {
        let why = format!("returned {} objects, expected {}", found.len(), sent.len());
        return Err(failed(Failure::Partial, why));
    }
    let mut converted = Vec::with_capacity(found.len());
    for (sent, found) in sent.iter().zip(found) {
        // Upstream asks for each stored object alone, and so its words are those about one.
        let object = checked(sent, found, wanted).map_err(|why| {
            (Failure::Object, format!("conversion webhook for {} returned invalid {why}", kind_of(sent)))
        })?;
        converted.push(object);
    }
    Ok(converted)
}

fn objects(version: &str, uid: &str, mut answer: Value) -> Result<Vec<Value>, String> {
    let api_version = format!("apiextensions.k8s.io/{version}");
    if version == "v1"
        && (get_str(&answer, "apiVersion"), get_str(&answer, "kind")) != (&api_version, "ConversionReview")
    {
        return Err(format!(
            "expected webhook response of {api_version}, Kind=ConversionReview, got {}",
            kind_of(&answer)
        ));
    }
    let Some(response) = answer.get_mut("response").filter(|response| response.is_object()) else {
        return Err("no response provided".to_owned());
    };
    if version == "v1" && get_str(response, "uid") != uid {
        return Err(format!("expected response.uid={uid:?}, got {:?}", get_str(response, "uid")));
    }
    let result = &response["result"];
    if get_str(result, "status") != "Success" {
        return Err(match get_str(result, "message") {
            "" => format!("response.result.status was '{}', not 'Success'", get_str(result, "status")),
            message => message.to_owned(),
        });
    }
    Ok(match response.get_mut("convertedObjects").map(Value::take) {
        Some(Value::Array(objects)) => objects,
        _ => Vec::new(),
    })
}

/// The converted object with the metadata that the sent one has, but for labels and annotations.
fn checked(sent: &Value, mut found: Value, wanted: &str) -> Result<Value, String> {
    let (version, kind) = (get_str(&found, "apiVersion"), get_str(&found, "kind"));
    if version != wanted {
        return Err(format!(
            "object at index 0: invalid groupVersion (expected {wanted}, received {version})"
        ));
    }
    if kind != get_str(sent, "kind") {
        let own = get_str(sent, "kind");
        return Err(format!("object at index 0: invalid kind (expected {own}, received {kind})"));
    }
    for (what, own, other) in [
        ("name", sent.name(), found.name()),
        ("namespace", sent.namespace(), found.namespace()),
        ("UID", sent.uid(), found.uid()),
    ] {
        if own != other {
            return Err(format!("object: must have the same {what}: {own} != {other}"));
        }
    }
    let metadata = restored(sent, &found).map_err(|why| format!("metadata: {why}"))?;
    found["metadata"] = Value::Object(metadata);
    Ok(found)
}

/// The metadata of the sent object with the labels and annotations of the found one.
fn restored(sent: &Value, found: &Value) -> Result<Map<String, Value>, String> {
    let given = match found.get("metadata") {
        None => return Err("missing metadata in converted object".to_owned()),
        Some(Value::Object(given)) => given,
        Some(other) => {
            return Err(format!("invalid metadata of type {} in converted object", go_type(other)));
        }
    };
    let mut metadata = sent.metadata().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let new = match given.get(field) {
            None | Some(Value::Null) => {
                metadata.shift_remove(field);
                continue;
            }
            Some(Value::Object(new)) => new,
            Some(other) => {
                return Err(format!(
                    "invalid metadata.{field} of type {} in converted object",
                    go_type(other)
                ));
            }
        };
        for (key, value) in new {
            if !value.is_string() {
                return Err(format!(
                    "metadata.{field}[{key}] must be a string, but is {} in converted object",
                    go_type(value)
                ));
            }
        }
        let old = metadata.get(field).and_then(Value::as_object);
        if old != Some(new) {
            let mut problems = Problems::new();
            let parent = Path::new("metadata");
            if field == "labels" {
                validate_labels(new, &parent.child("labels"), &mut problems);
            } else {
                api::metadata::validate_annotations(new, &parent.child("annotation"), &mut problems);
            }
            if !problems.is_empty() {
                return Err(problems.summary());
            }
        }
        metadata.insert(field.to_owned(), Value::Object(new.clone()));
    }
    Ok(metadata)
}

/// What Go calls the type of a value that it knows nothing about.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(version: &str) -> Value {
        json!({"apiVersion": format!("g.io/{version}"), "kind": "K", "metadata": {"name": "a", "namespace": "n", "uid": "u",
            "labels": {"x": "y"}, "generation": 3}})
    }

    fn said(result: Value, objects: &[Value]) -> Value {
        json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": "q", "result": result, "convertedObjects": objects}})
    }

    #[test]
    fn metadata_comes_from_the_sent_object_but_for_labels_and_annotations() {
        let mut new = object("v2");
        new["metadata"]["labels"] = json!({"x": "z"});
        new["metadata"]["annotations"] = json!({"a": "b"});
        new["metadata"]["generation"] = json!(9);
        new["metadata"]["finalizers"] = json!(["f"]);
        new["host"] = json!("h");
        let found = answer("v1", "q", "g.io/v2", &[object("v1")], said(json!({"status": "Success"}), &[new]))
            .unwrap();
        assert_eq!(
            found[0],
            json!({"apiVersion": "g.io/v2", "kind": "K", "host": "h", "metadata": {"name": "a", "namespace": "n", "uid": "u",
                "labels": {"x": "z"}, "generation": 3, "annotations": {"a": "b"}}})
        );
    }

    #[test]
    fn answers_that_are_none_are_refused_in_upstreams_words() {
        let ok = json!({"status": "Success"});
        let with = |change: &dyn Fn(&mut Value)| {
            let mut new = object("v2");
            change(&mut new);
            said(ok.clone(), &[new])
        };
        let mut other = said(ok.clone(), &[object("v2")]);
        other["response"]["uid"] = json!("p");
        let mut old = said(ok.clone(), &[object("v2")]);
        old["apiVersion"] = json!("apiextensions.k8s.io/v1beta1");
        let mut silent = said(ok.clone(), &[]);
        silent["response"] = Value::Null;
        let head = "conversion webhook for g.io/v1, Kind=K ";
        for (said, failure, want) in [
            (
                old,
                Failure::Malformed,
                "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
            ),
            (silent, Failure::Malformed, "failed: no response provided"),
            (other, Failure::Malformed, "failed: expected response.uid=\"q\", got \"p\""),
            (
                said(json!({"status": "Failure", "message": "no way"}), &[]),
                Failure::Malformed,
                "failed: no way",
            ),
            (
                said(json!({}), &[]),
                Failure::Malformed,
                "failed: response.result.status was '', not 'Success'",
            ),
            (said(ok.clone(), &[]), Failure::Partial, "returned 0 objects, expected 1"),
            (
                with(&|new| new["apiVersion"] = json!("g.io/v3")),
                Failure::Object,
                "returned invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v3)",
            ),
            (
                with(&|new| new["kind"] = json!("L")),
                Failure::Object,
                "returned invalid object at index 0: invalid kind (expected K, received L)",
            ),
            (
                with(&|new| new["metadata"]["name"] = json!("b")),
                Failure::Object,
                "returned invalid object: must have the same name: a != b",
            ),
            (
                with(&|new| new["metadata"]["uid"] = json!("v")),
                Failure::Object,
                "returned invalid object: must have the same UID: u != v",
            ),
            (
                with(&|new| new["metadata"]["labels"] = json!({"a": 1})),
                Failure::Object,
                "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            ),
        ] {
            let (kind, text) = answer("v1", "q", "g.io/v2", &[object("v1")], said).unwrap_err();
            assert_eq!((kind, text), (failure, format!("{head}{want}")));
        }
        let bad = with(&|new| new["metadata"]["labels"] = json!({"a b": "c"}));
        let (_, text) = answer("v1", "q", "g.io/v2", &[object("v1")], bad).unwrap_err();
        assert!(
            text.contains("returned invalid metadata: metadata.labels: Invalid value: \"a b\""),
            "{text}"
        );
    }

    #[test]
    fn the_older_review_is_less_strict() {
        let said = json!({"response": {"result": {"status": "Success"}, "convertedObjects": [object("v2")]}});
        assert!(answer("v1beta1", "q", "g.io/v2", &[object("v1")], said).is_ok());
        assert_eq!(version(&["v7".into(), "v1beta1".into(), "v1".into()]), Some("v1beta1"));
        assert_eq!(version(&["v7".into()]), None);
    }
}
