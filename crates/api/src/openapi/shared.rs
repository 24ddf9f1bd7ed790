//! Parameters that many operations have stand once in version 2's document; operations refer to them.

use serde_json::{Map, Value, json};

/// Replaces what is shared by references; returns what they refer to.
pub fn take_out(paths: &mut Map<String, Value>) -> Map<String, Value> {
    let mut shared = Map::new();
    for path in paths.values_mut().filter_map(Value::as_object_mut) {
        for (name, own) in path.iter_mut() {
            let list = if name == "parameters" { Some(own) } else { own.get_mut("parameters") };
            for parameter in list.and_then(Value::as_array_mut).into_iter().flatten() {
                if is_shared(parameter) {
                    let name = name_of(parameter);
                    let reference = json!({"$ref": format!("#/parameters/{name}")});
                    shared.insert(name, std::mem::replace(parameter, reference));
                }
            }
        }
    }
    shared.sort_keys();
    shared
}

/// Names and bodies differ from kind to kind; older clients look for the other two where they are used.
fn is_shared(parameter: &Value) -> bool {
    match parameter["in"].as_str() {
        Some("body") => parameter["schema"]["$ref"]
            .as_str()
            .is_some_and(|name| name.starts_with("#/definitions/io.k8s.apimachinery")),
        _ => !matches!(parameter["name"].as_str(), Some("name" | "fieldValidation" | "dryRun")),
    }
}

/// A name with something of all the rest, so that parameters of one name but several meanings stay apart.
fn name_of(parameter: &Value) -> String {
    const START: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let mixed =
        parameter.to_string().bytes().fold(START, |mixed, byte| mixed.wrapping_mul(PRIME) ^ u64::from(byte));
    format!("{}-{:08x}", parameter["name"].as_str().unwrap_or_default(), mixed as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_stands_once() {
        let limit = |text: &str| json!({"name": "limit", "in": "query", "description": text});
        let name = json!({"name": "name", "in": "path", "description": "name of the Pod"});
        let mut paths = Map::new();
        paths.insert("/a".into(), json!({"get": {"parameters": [limit("x")]}, "parameters": [name]}));
        paths.insert("/b".into(), json!({"get": {"parameters": [limit("x"), limit("y")]}}));
        let shared = take_out(&mut paths);
        assert_eq!(shared.len(), 2);
        let reference = &paths["/b"]["get"]["parameters"][0]["$ref"];
        assert_eq!(reference, &paths["/a"]["get"]["parameters"][0]["$ref"]);
        let found = reference.as_str().and_then(|own| shared.get(own.trim_start_matches("#/parameters/")));
        assert_eq!(found, Some(&limit("x")));
        assert_eq!(paths["/a"]["parameters"][0], name);
    }
}
