//! The part of JSONPath that CRD columns use: fields, indexes, wildcards and equality filters.

use serde_json::Value;

/// A parsed path.
pub struct JsonPath {
    steps: Vec<Step>,
}

enum Step {
    Field(String),
    Index(i64),
    All,
    Where { field: Vec<String>, equals: bool, value: Value },
}

impl JsonPath {
    /// Parses a path; parts that are not understood select nothing.
    pub fn parse(text: &str) -> Self {
        let mut steps = Vec::new();
        let mut rest = text.trim().trim_start_matches('$');
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let Some(end) = closing(after) else { break };
                steps.extend(bracket(&after[..end]));
                rest = &after[end + 1..];
            } else {
                rest = rest.trim_start_matches('.');
                let mut name = String::new();
                let mut escaped = false;
                let mut end = rest.len();
                for (index, c) in rest.char_indices() {
                    match c {
                        _ if escaped => {
                            name.push(c);
                            escaped = false;
                        }
                        '\\' => escaped = true,
                        '.' | '[' => {
                            end = index;
                            break;
                        }
                        c => name.push(c),
                    }
                }
                rest = &rest[end..];
                match name.as_str() {
                    "" => {}
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Field(name)),
                }
            }
        }
        Self { steps }
    }

    /// Every value that the path selects.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.steps {
            found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        }
        found.retain(|value| !value.is_null());
        found
    }
}

/// Where the bracket ends, quotes and nested parentheses considered.
fn closing(text: &str) -> Option<usize> {
    let mut quote: Option<char> = None;
    for (index, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, ']') => return Some(index),
            (None, _) => {}
        }
    }
    None
}

fn bracket(inside: &str) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Ok(index) = inside.parse() {
        return Some(Step::Index(index));
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        let (left, equals, right) = match (filter.split_once("=="), filter.split_once("!=")) {
            (Some((left, right)), _) => (left, true, right),
            (None, Some((left, right))) => (left, false, right),
            (None, None) => return None,
        };
        let field = left.trim().trim_start_matches("@.").split('.').map(str::to_owned).collect();
        let right = right.trim();
        let text = right.trim_matches(['"', '\'']);
        let value = if text.len() == right.len() {
            serde_json::from_str(right).unwrap_or_else(|_| Value::from(right))
        } else {
            Value::from(text)
        };
        return Some(Step::Where { field, equals, value });
    }
    Some(Step::Field(inside.trim_matches(['"', '\'']).to_owned()))
}

impl Step {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Step::Field(name) => value.get(name).into_iter().collect(),
            Step::Index(index) => {
                let Some(list) = value.as_array() else { return Vec::new() };
                let at = if *index < 0 { list.len() as i64 + index } else { *index };
                usize::try_from(at).ok().and_then(|at| list.get(at)).into_iter().collect()
            }
            Step::All => match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Step::Where { field, equals, value: wanted } => value
                .as_array()
                .into_iter()
                .flatten()
                .filter(|item| {
                    let found = field.iter().try_fold(*item, |at, name| at.get(name));
                    found.is_some_and(|found| (found == wanted) == *equals)
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_find_their_values() {
        let object = json!({"spec": {"a": [{"n": 1}, {"n": 2}], "k.l": "dotted"},
            "metadata": {"labels": {"x/y": "z"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}});
        for (path, want) in [
            (".spec.a[0].n", json!([1])),
            (".spec.a[-1].n", json!([2])),
            (".spec.a[*].n", json!([1, 2])),
            (".spec.k\\.l", json!(["dotted"])),
            (".metadata.labels['x/y']", json!(["z"])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.nothing.here", json!([])),
        ] {
            assert_eq!(json!(JsonPath::parse(path).find(&object)), want, "{path}");
        }
    }
}
