//! Reads only what stands at certain paths of an object; the rest is skipped, not built.
//!
//! Each version of an object that a watch with a field selector might show is looked at, and of a pod's two or three kilobytes
//! the selectors want a few words.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// An object with nothing but what stands at or below these dotted paths.
pub fn read(bytes: &[u8], paths: &[&str]) -> serde_json::Result<Value> {
    Part(paths).deserialize(&mut serde_json::Deserializer::from_slice(bytes))
}

/// A map of which only these are wanted.
struct Part<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(field) = map.next_key_seed(Field(self.0))? {
            match field {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some((name, below)) if below.contains(&"") => drop(found.insert(name, map.next_value()?)),
                Some((name, below)) => drop(found.insert(name, map.next_value_seed(Part(&below))?)),
            }
        }
        Ok(Value::Object(found))
    }

    // Where a path goes on there should be a map; anything else has nothing at that path.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// The name of a field: nothing if no path leads there, else the name with what is left of the paths.
struct Field<'a>(&'a [&'a str]);

impl<'de, 'a> DeserializeSeed<'de> for Field<'a> {
    type Value = Option<(String, Vec<&'a str>)>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Field<'a> {
    type Value = Option<(String, Vec<&'a str>)>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let below = |path: &&'a str| match path.strip_prefix(name)? {
            "" => Some(""),
            rest => rest.strip_prefix('.'),
        };
        let below: Vec<&str> = self.0.iter().filter_map(below).collect();
        Ok((!below.is_empty()).then(|| (name.to_owned(), below)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_is_asked_for_is_read() {
        let text = br#"{"kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},
            "spec":{"nodeName":"n","nodeNames":1,"containers":[{"name":"c"}],"os":{"name":"linux","more":{}}},
            "status":{"phase":"Running","podIPs":[{"ip":"1.2.3.4"}],"conditions":[1,2]}}"#;
        let cases = [
            (&["spec.nodeName"][..], json!({"spec": {"nodeName": "n"}})),
            (
                &["spec.os.name", "status.podIPs", "kind"],
                json!({"kind": "Pod", "spec": {"os": {"name": "linux"}}, "status": {"podIPs": [{"ip": "1.2.3.4"}]}}),
            ),
            (&["spec.os", "spec.os.name"], json!({"spec": {"os": {"name": "linux", "more": {}}}})),
            (
                &["spec.nodeName.x", "spec.containers.name", "status.conditions.x"],
                json!({"spec": {"nodeName": null, "containers": null}, "status": {"conditions": null}}),
            ),
            (&["data.x", ""], json!({})),
        ];
        for (paths, expected) in cases {
            assert_eq!(read(text, paths).unwrap(), expected, "{paths:?}");
        }
        assert!(read(b"{\"spec\":", &["spec.x"]).is_err());
    }
}
