//! Defaults as data: a table of paths and values, executed by one engine.
//!
//! A path is dotted; `*` steps into every element of a list or every value of a map. A default is set where its
//! parent exists and the field itself is absent.

use serde_json::{Map, Value};

/// A value that can stand in a constant.
#[derive(Debug, Clone, Copy)]
pub enum Constant {
    /// Text.
    Text(&'static str),
    /// Number.
    Number(i64),
    /// Truth.
    Bool(bool),
    /// `{}`
    Empty,
}

impl Constant {
    /// The value.
    pub fn value(self) -> Value {
        match self {
            Constant::Text(text) => text.into(),
            Constant::Number(number) => number.into(),
            Constant::Bool(value) => value.into(),
            Constant::Empty => Value::Object(Map::new()),
        }
    }
}

/// One default: where, and what.
pub type Default = (&'static str, Constant);

/// Sets every default of a table, in order.
pub fn apply(object: &mut Value, table: &[Default]) {
    for (path, constant) in table {
        set(object, path, *constant, false);
    }
}

/// The same for fields that Go holds by value and always writes: zero counts as absent.
pub fn apply_over_zero(object: &mut Value, table: &[Default]) {
    for (path, constant) in table {
        set(object, path, *constant, true);
    }
}

fn set(value: &mut Value, path: &str, constant: Constant, over_zero: bool) {
    match path.split_once('.') {
        None => {
            if let Value::Object(map) = value
                && map
                    .get(path)
                    .is_none_or(|have| have.is_null() || over_zero && apimachinery::schema::is_zero(have))
            {
                map.insert(path.into(), constant.value());
            }
        }
        Some(("*", rest)) => match value {
            Value::Array(list) => list.iter_mut().for_each(|item| set(item, rest, constant, over_zero)),
            Value::Object(map) => map.values_mut().for_each(|item| set(item, rest, constant, over_zero)),
            _ => {}
        },
        Some((name, rest)) => {
            if let Some(next) = value.get_mut(name) {
                set(next, rest, constant, over_zero);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_fill_only_gaps() {
        let mut object = json!({"spec": {"ports": [{"port": 1}, {"port": 2, "protocol": "UDP"}]}});
        apply(
            &mut object,
            &[
                ("spec.ports.*.protocol", Constant::Text("TCP")),
                ("spec.type", Constant::Text("ClusterIP")),
                ("spec.absent.field", Constant::Number(1)),
            ],
        );
        assert_eq!(
            object,
            json!({"spec": {"ports": [{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "UDP"}],
                   "type": "ClusterIP"}})
        );
    }
}
