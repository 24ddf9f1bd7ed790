//! Values as Go shows its own structs of them in messages: every field, in the order and under the names of the Go types.
//!
//! What a message shows of a value that may not change is upstream's internal struct of it, which has other names than
//! the API and says what is absent, too. `overlay/go-structs.txt` lists those that messages show; it is read only when
//! there is something to complain about.

use serde_json::{Map, Value};

static STRUCTS: &str = include_str!("../overlay/go-structs.txt");

/// Fields of a pod spec that Go keeps in the security context.
const OF_SECURITY: [&str; 5] = ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"];

/// A value of a type. What is not there is a struct of which nothing is said.
pub fn shown(value: &Value, kind: &str) -> Value {
    match value {
        Value::Array(list) => Value::Array(list.iter().map(|entry| shown(entry, kind)).collect()),
        _ => {
            let mut out = Map::new();
            structure(value, kind, &mut out);
            Value::Object(out)
        }
    }
}

/// A value behind a pointer, or a list: null when it is not there.
pub fn shown_or_null(value: Option<&Value>, kind: &str) -> Value {
    value.filter(|value| !value.is_null()).map(|value| shown(value, kind)).unwrap_or_default()
}

fn fields(kind: &str) -> impl Iterator<Item = &'static str> {
    let line = STRUCTS.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    line.unwrap_or_default().split(' ')
}

fn structure(value: &Value, kind: &str, out: &mut Map<String, Value>) {
    for field in fields(kind).filter(|field| !field.is_empty()) {
        if field == "+meta" {
            structure(&value["metadata"], "ObjectMeta", out);
            continue;
        }
        if let Some(embedded) = field.strip_prefix('+') {
            structure(value, embedded, out);
            continue;
        }
        let end = field.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(field.len());
        let (name, rest) = field.split_at(end);
        let (own, form) = match rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
            Some((own, form)) => (own, form),
            None => (name, rest),
        };
        let joined = (kind == "PodSpec" && name == "SecurityContext").then(|| security(value));
        let given = joined.as_ref().filter(|joined| !joined.is_null()).or_else(|| lookup(value, own));
        let tagged = name.starts_with(|c: char| c.is_ascii_lowercase());
        if tagged && given.is_none() {
            continue;
        }
        out.insert(name.to_owned(), shown_field(given, form));
    }
}

fn shown_field(given: Option<&Value>, form: &str) -> Value {
    let typed = |mark: char| form.strip_prefix(mark).filter(|kind| !kind.is_empty());
    if let Some(kind) = typed('=') {
        return shown(given.unwrap_or(&Value::Null), kind);
    }
    match given {
        None => match form {
            "" => "".into(),
            "#" => 0.into(),
            "?" => false.into(),
            "@" => "0".into(),
            _ if form.starts_with('"') => form.trim_matches('"').into(),
            _ => Value::Null,
        },
        Some(given) => match (typed('~'), typed('%'), given) {
            (Some(kind), ..) => shown(given, kind),
            (_, Some(kind), Value::Object(map)) => {
                let mut map: Map<String, Value> =
                    map.iter().map(|(key, entry)| (key.clone(), shown(entry, kind))).collect();
                map.sort_keys();
                Value::Object(map)
            }
            (_, _, Value::Object(map)) => crate::checks::sorted(map),
            _ => given.clone(),
        },
    }
}

/// A field by its name in Go, which differs from that in the API by its capitals.
fn lookup<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let map = value.as_object()?;
    let found = map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value).filter(|value| !value.is_null())
}

fn security(spec: &Value) -> Value {
    let mut context = spec.get("securityContext").cloned().unwrap_or_default();
    for field in OF_SECURITY {
        if let Some(value) = spec.get(field) {
            context[field] = value.clone();
        }
    }
    context
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn structs_say_what_is_absent() {
        let cases = [
            (json!({"kind": "Role"}), "rbac.RoleRef", r#"{"APIGroup":"","Kind":"Role","Name":""}"#),
            (
                json!({"rules": [{"succeededCount": 1}]}),
                "batch.SuccessPolicy",
                r#"{"Rules":[{"SucceededIndexes":null,"SucceededCount":1}]}"#,
            ),
            (
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}),
                "VolumeNodeAffinity",
                r#"{"Required":{"NodeSelectorTerms":[{"MatchExpressions":[{"Key":"a","Operator":"Exists","Values":null}],"MatchFields":null}]}}"#,
            ),
            (json!(null), "VolumeNodeAffinity", r#"{"Required":null}"#),
            (
                json!({"ownerReferences": [{"uid": "u", "name": "n"}]}),
                "ObjectMeta",
                r#"{"ownerReferences":[{"name":"n","uid":"u"}]}"#,
            ),
        ];
        for (value, kind, wanted) in cases {
            assert_eq!(shown(&value, kind).to_string(), wanted);
        }
        assert_eq!(shown_or_null(None, "rbac.RoleRef"), Value::Null);
    }

    #[test]
    fn a_template_shows_its_labels_sorted_and_its_security_in_one_place() {
        let template = json!({"metadata": {"labels": {"b": "1", "a": "2"}}, "spec": {"hostPID": true}});
        let text = shown(&template, "PodTemplateSpec").to_string();
        assert!(
            text.starts_with(r#"{"labels":{"a":"2","b":"1"},"Spec":{"Volumes":null,"InitContainers":null,"#),
            "{text}"
        );
        assert!(text.contains(r#""SecurityContext":{"HostNetwork":false,"HostPID":true,"#), "{text}");
    }

    #[test]
    fn every_type_that_is_named_is_told() {
        for line in STRUCTS.lines().filter(|line| !line.starts_with('#')) {
            for field in line.split(' ').skip(1).filter(|field| *field != "+meta") {
                let Some((_, kind)) =
                    field.split_once(['~', '%', '=', '+']).filter(|(_, kind)| !kind.is_empty())
                else {
                    continue;
                };
                assert!(fields(kind).next().is_some_and(|first| !first.is_empty()), "{kind} in {line}");
            }
        }
    }
}
