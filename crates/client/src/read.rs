//! Objects read from text.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads an object. A field that is null is a field that is not there: Go's programs write an empty list or map that way where the field is not optional
/// (`rules` of a role, `endpoints` of a slice), and a projection expects a list. Only an object that cannot be read as it stands pays for that.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|error| {
        let mut value: Value = serde_json::from_slice(text)?;
        drop_nulls(&mut value);
        // As text again, since a projection may keep parts of it so.
        serde_json::from_slice(&serde_json::to_vec(&value)?).map_err(|_| error)
    })
}

/// Takes out every field that is null.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug)]
    struct Slice {
        #[serde(default)]
        endpoints: Vec<String>,
        text: Option<Box<serde_json::value::RawValue>>,
        count: Option<u32>,
    }

    #[test]
    fn a_null_is_an_absent_field_and_other_errors_stay() {
        let slice: Slice = read(br#"{"endpoints":null,"text":{"a":1},"count":2}"#).expect("read");
        assert!(slice.endpoints.is_empty());
        assert_eq!(slice.text.expect("kept").get(), r#"{"a":1}"#);
        assert_eq!(slice.count, Some(2));
        let error = read::<Slice>(br#"{"endpoints":7}"#).expect_err("no list").to_string();
        assert!(error.contains("expected a sequence"), "{error}");
        assert!(read::<Slice>(b"{").is_err());
    }
}
