//! Changes to an object in the three forms that clients send: JSON patch (RFC 6902), JSON merge patch (RFC 7396)
//! and Kubernetes' strategic merge patch.
//!
//! All are pure: they take the object as it is, and return it as it shall be. What the result means to the kind
//! (defaults, validation) is decided afterwards, as for any other write.

use serde_json::{Map, Value};
use thiserror::Error;

use crate::golang;

mod pointer;
mod strategic;

pub use strategic::strategic_merge_patch;

/// More operations in one JSON patch are refused.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;
/// Upstream's `JSONPatchMaxCopyBytes`: so much may be copied by the operations of one JSON patch together.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Why a patch cannot be applied; told apart by the answer it gets.
#[derive(Debug, Error, PartialEq)]
pub enum PatchError {
    /// The patch itself makes no sense: a bad request.
    #[error("{0}")]
    Malformed(String),
    /// The patch does not fit this object: cannot be processed.
    #[error("{0}")]
    DoesNotApply(String),
    /// Neither of these, for which upstream has no answer but that it failed.
    #[error("{0}")]
    Failed(String),
    /// Too many operations: too large.
    #[error("The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {0}")]
    TooLarge(usize),
}

fn malformed<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Malformed(message.into()))
}

fn unfit<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::DoesNotApply(message.into()))
}

fn failed<T>(message: impl Into<String>) -> Result<T, PatchError> {
    Err(PatchError::Failed(message.into()))
}

/// Applies the operations of a JSON patch in order; all of them or none.
pub fn json_patch(mut object: Value, patch: &Value) -> Result<Value, PatchError> {
    let operations = match patch {
        Value::Null => return Ok(object),
        Value::Array(operations) => operations,
        other => {
            let found = golang::json_type(other);
            return malformed(format!(
                "json: cannot unmarshal {found} into Go value of type jsonpatch.Patch"
            ));
        }
    };
    if let Some(other) = operations.iter().find(|operation| !operation.is_object() && !operation.is_null()) {
        let found = golang::json_type(other);
        return malformed(format!(
            "json: cannot unmarshal {found} into Go value of type jsonpatch.Operation"
        ));
    }
    if operations.len() > MAX_JSON_PATCH_OPERATIONS {
        return Err(PatchError::TooLarge(operations.len()));
    }
    let mut copied = 0;
    for operation in operations {
        apply_operation(&mut object, operation, &mut copied)?;
    }
    Ok(object)
}

/// `copied` counts the bytes that were copied so far.
fn apply_operation(document: &mut Value, operation: &Value, copied: &mut usize) -> Result<(), PatchError> {
    let text = |name: &str| match operation.get(name) {
        Some(Value::String(text)) => Ok(text.as_str()),
        _ => unfit(format!("a JSON patch operation needs {name:?}: {operation}")),
    };
    // An operation without a value has null for one.
    let value = || operation.get("value").cloned().unwrap_or(Value::Null);
    let path = text("path")?;
    match text("op")? {
        "add" => pointer::add(document, path, value()),
        "remove" => pointer::remove(document, path).map(drop),
        "replace" => pointer::replace(document, path, value()),
        "move" => {
            let moved = pointer::remove(document, text("from")?)?;
            pointer::add(document, path, moved)
        }
        "copy" => {
            let from = match text("from")? {
                "" => return unfit("a document cannot be copied into itself"),
                from => pointer::get(document, from)?,
            };
            // Copies of copies double: without a limit a short patch would fill all memory.
            *copied += from.map_or(0, size);
            if *copied > MAX_COPIED_BYTES {
                return unfit(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                ));
            }
            // A field that is not there is copied as null, as upstream's library does.
            let value = from.cloned().unwrap_or(Value::Null);
            pointer::add(document, path, value)
        }
        "test" => {
            let wanted = operation.get("value").unwrap_or(&Value::Null);
            // A field that is absent passes a test for null.
            match same(pointer::get(document, path)?.unwrap_or(&Value::Null), wanted) {
                true => Ok(()),
                false => unfit(format!("testing value {path} failed")),
            }
        }
        other => unfit(format!("unexpected kind: {other}")),
    }
}

/// How long a value is as Go writes it, which escapes what means something to HTML.
fn size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let escaped = bytes.iter().filter(|byte| b"<>&".contains(byte)).count();
            self.0 += bytes.len() + escaped * (r"\u003c".len() - 1);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail, and a value has nothing that JSON could not say.
    let _infallible = serde_json::to_writer(&mut count, value);
    count.0
}

/// Equality of JSON, in which 1 and 1.0 are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

/// Merges a patch into an object: null removes, objects merge, everything else replaces.
pub fn merge_patch(mut object: Value, patch: &Value) -> Result<Value, PatchError> {
    match patch {
        Value::Object(_) => merge(&mut object, patch),
        Value::Array(_) => object = patch.clone(),
        _ => return malformed("Invalid JSON Patch"),
    }
    Ok(object)
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    // All at once: each removal by itself would move up everything behind it.
    if patch.values().any(Value::is_null) {
        target.retain(|key, _| !patch.get(key).is_some_and(Value::is_null));
    }
    for (key, value) in patch.iter().filter(|(_, value)| !value.is_null()) {
        merge(target.entry(key.as_str()).or_insert(Value::Null), value);
    }
}

#[cfg(test)]
mod tests;
