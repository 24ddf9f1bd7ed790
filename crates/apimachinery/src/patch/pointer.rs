//! JSON pointers (RFC 6901), as far as patches need them.

use serde_json::Value;

use super::PatchError;

fn missing<T>(path: &str) -> Result<T, PatchError> {
    Err(PatchError::DoesNotApply(format!("the path {path:?} does not exist in the object")))
}

/// Splits a pointer into the parent's pointer and the last part, unescaped. `None` for the whole document.
fn split(path: &str) -> Result<Option<(&str, String)>, PatchError> {
    if path.is_empty() {
        return Ok(None);
    }
    match path.rsplit_once('/') {
        Some((parent, last)) if path.starts_with('/') => {
            Ok(Some((parent, last.replace("~1", "/").replace("~0", "~"))))
        }
        _ => Err(PatchError::DoesNotApply(format!("the path {path:?} does not begin with \"/\""))),
    }
}

/// A position in a list; `-` is the one after the last, which only an addition may name.
fn position(text: &str, length: usize, path: &str) -> Result<usize, PatchError> {
    let index = match text.parse::<i64>() {
        // As upstream's library has it, a negative index counts from the end.
        Ok(index) if index < 0 => index + length as i64,
        Ok(index) => index,
        Err(_) => return missing(path),
    };
    usize::try_from(index).ok().filter(|index| *index <= length).map_or_else(|| missing(path), Ok)
}

/// The value at a path; `None` for a field that is not in its object. A path through something that is not there is an error.
pub fn get<'a>(document: &'a Value, path: &str) -> Result<Option<&'a Value>, PatchError> {
    let Some((above, last)) = split(path)? else { return Ok(Some(document)) };
    match document.pointer(above) {
        Some(Value::Object(map)) => Ok(map.get(&last)),
        Some(Value::Array(list)) => {
            list.get(position(&last, list.len(), path)?).map_or_else(|| missing(path), |item| Ok(Some(item)))
        }
        _ => missing(path),
    }
}

fn parent<'a>(document: &'a mut Value, pointer: &str, path: &str) -> Result<&'a mut Value, PatchError> {
    document.pointer_mut(pointer).map_or_else(|| missing(path), Ok)
}

pub fn add(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let Some((above, last)) = split(path)? else {
        *document = value;
        return Ok(());
    };
    match parent(document, above, path)? {
        Value::Object(map) => {
            map.insert(last, value);
        }
        Value::Array(list) if last == "-" => list.push(value),
        Value::Array(list) => {
            let index = position(&last, list.len(), path)?;
            list.insert(index, value);
        }
        _ => return missing(path),
    }
    Ok(())
}

pub fn remove(document: &mut Value, path: &str) -> Result<Value, PatchError> {
    let Some((above, last)) = split(path)? else { return Ok(document.take()) };
    match parent(document, above, path)? {
        Value::Object(map) => map.shift_remove(&last).map_or_else(|| missing(path), Ok),
        Value::Array(list) => {
            let index = position(&last, list.len(), path)?;
            if index == list.len() { missing(path) } else { Ok(list.remove(index)) }
        }
        _ => missing(path),
    }
}

/// Puts a value in another's place. As upstream's library has it, a field that is not there yet is added.
pub fn replace(document: &mut Value, path: &str, value: Value) -> Result<(), PatchError> {
    let Some((above, last)) = split(path)? else {
        *document = value;
        return Ok(());
    };
    match parent(document, above, path)? {
        Value::Object(map) => {
            map.insert(last, value);
            Ok(())
        }
        Value::Array(list) => {
            let index = position(&last, list.len(), path)?;
            match list.get_mut(index) {
                Some(target) => *target = value,
                None => return missing(path),
            }
            Ok(())
        }
        _ => missing(path),
    }
}
