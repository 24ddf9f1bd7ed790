//! Label selectors as objects carry them, and the plain maps of older kinds.

use client::Labels;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value, json};

/// Which labels an object must have. The default selects nothing, as an absent selector does; [`Selector::everything`]
/// is what an empty one means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selector(Option<Vec<Requirement>>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Requirement {
    In(Box<str>, Vec<Box<str>>),
    NotIn(Box<str>, Vec<Box<str>>),
    Exists(Box<str>),
    Absent(Box<str>),
}

impl Selector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self(Some(Vec::new()))
    }

    /// Selects objects that have all these labels.
    pub fn of_labels(labels: &Labels) -> Self {
        Self(Some(
            labels.iter().map(|(name, value)| Requirement::In(name.into(), vec![value.into()])).collect(),
        ))
    }

    /// Selects what this does, of that only objects that also have all these labels.
    pub fn and(&self, labels: &Labels) -> Self {
        let more = Self::of_labels(labels).0.unwrap_or_default();
        Self(self.0.as_ref().map(|own| own.iter().cloned().chain(more).collect()))
    }

    /// Selects what this does, of that only objects that have none of these labels with these values.
    pub fn and_not(&self, labels: &Labels) -> Self {
        let not = |(name, value): (&str, &str)| Requirement::NotIn(name.into(), vec![value.into()]);
        Self(self.0.as_ref().map(|own| own.iter().cloned().chain(labels.iter().map(not)).collect()))
    }

    /// Selects what both do.
    pub fn and_selector(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (Some(own), Some(more)) => Self(Some(own.iter().chain(more).cloned().collect())),
            _ => Self::default(),
        }
    }

    /// Whether objects with these labels are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        let Some(requirements) = &self.0 else { return false };
        requirements.iter().all(|requirement| match requirement {
            Requirement::In(name, values) => {
                labels.get(name).is_some_and(|value| values.iter().any(|wanted| **wanted == *value))
            }
            Requirement::NotIn(name, values) => {
                labels.get(name).is_none_or(|value| values.iter().all(|unwanted| **unwanted != *value))
            }
            Requirement::Exists(name) => labels.get(name).is_some(),
            Requirement::Absent(name) => labels.get(name).is_none(),
        })
    }

    /// Whether the selector is there but asks for nothing.
    pub fn is_everything(&self) -> bool {
        self.0.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether nothing can be selected.
    pub fn is_nothing(&self) -> bool {
        self.0.is_none()
    }

    /// The selector as objects carry it.
    pub fn to_json(&self) -> Value {
        let mut labels = Map::new();
        let mut expressions = Vec::new();
        for requirement in self.0.iter().flatten() {
            let (name, operator, values) = match requirement {
                Requirement::In(name, values) if values.len() == 1 && !labels.contains_key(&**name) => {
                    labels.insert(name.to_string(), json!(values[0]));
                    continue;
                }
                Requirement::In(name, values) => (name, "In", Some(values)),
                Requirement::NotIn(name, values) => (name, "NotIn", Some(values)),
                Requirement::Exists(name) => (name, "Exists", None),
                Requirement::Absent(name) => (name, "DoesNotExist", None),
            };
            let mut expression = json!({"key": name, "operator": operator});
            if let Some(values) = values {
                expression["values"] = json!(values);
            }
            expressions.push(expression);
        }
        let mut selector = Map::new();
        if !labels.is_empty() {
            selector.insert("matchLabels".into(), Value::Object(labels));
        }
        if !expressions.is_empty() {
            selector.insert("matchExpressions".into(), Value::Array(expressions));
        }
        Value::Object(selector)
    }

    /// The selector in the form of a query parameter or of `status.selector`.
    pub fn to_query(&self) -> String {
        let mut parts: Vec<String> = self
            .0
            .iter()
            .flatten()
            .map(|requirement| match requirement {
                Requirement::In(name, values) if values.len() == 1 => format!("{name}={}", values[0]),
                Requirement::In(name, values) => format!("{name} in ({})", values.join(",")),
                Requirement::NotIn(name, values) => format!("{name} notin ({})", values.join(",")),
                Requirement::Exists(name) => name.to_string(),
                Requirement::Absent(name) => format!("!{name}"),
            })
            .collect();
        parts.sort();
        parts.join(",")
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Written {
            #[serde(default)]
            match_labels: Labels,
            match_expressions: Option<Vec<Expression>>,
        }
        #[derive(Deserialize)]
        struct Expression {
            key: Box<str>,
            operator: Box<str>,
            values: Option<Vec<Box<str>>>,
        }
        let Some(written) = Option::<Written>::deserialize(input)? else { return Ok(Self::default()) };
        let mut selector = Self::of_labels(&written.match_labels);
        for expression in written.match_expressions.unwrap_or_default() {
            let (key, mut values) = (expression.key, expression.values.unwrap_or_default());
            values.sort();
            let requirement = match &*expression.operator {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::Absent(key),
                other => return Err(D::Error::custom(format_args!("unknown selector operator {other:?}"))),
            };
            selector.0.get_or_insert_default().push(requirement);
        }
        Ok(selector)
    }
}

impl TryFrom<&Value> for Selector {
    type Error = serde_json::Error;

    fn try_from(value: &Value) -> Result<Self, Self::Error> {
        Self::deserialize(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_match_as_the_api_says() {
        let labels: Labels = [("app", "web"), ("tier", "front")].into_iter().collect();
        let cases = [
            (json!({}), true),
            (Value::Null, false),
            (json!({"matchLabels":{"app":"web"}}), true),
            (json!({"matchLabels":{"app":"db"}}), false),
            (json!({"matchExpressions":[{"key":"app","operator":"In","values":["db","web"]}]}), true),
            (json!({"matchExpressions":[{"key":"app","operator":"NotIn","values":["web"]}]}), false),
            (json!({"matchExpressions":[{"key":"zone","operator":"NotIn","values":["a"]}]}), true),
            (json!({"matchExpressions":[{"key":"zone","operator":"Exists"}]}), false),
            (json!({"matchExpressions":[{"key":"zone","operator":"DoesNotExist"}]}), true),
        ];
        for (written, wanted) in cases {
            assert_eq!(Selector::try_from(&written).unwrap().matches(&labels), wanted, "{written}");
        }
    }

    #[test]
    fn selectors_print_as_queries() {
        let written = json!({"matchLabels":{"b":"2"},"matchExpressions":[
            {"key":"a","operator":"In","values":["y","x"]},{"key":"c","operator":"DoesNotExist"}]});
        let selector = Selector::try_from(&written).unwrap();
        assert_eq!(selector.to_query(), "!c,a in (x,y),b=2");
        assert_eq!(Selector::try_from(&selector.to_json()).unwrap(), selector);
    }
}
