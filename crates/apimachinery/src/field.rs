//! Field paths and the problems found at them, in upstream's words.
//!
//! A rule walks an object with a [`Path`], which is a chain on the stack and costs nothing until a problem is
//! reported; [`Problems`] collects what is wrong; [`crate::status::Status::invalid`] turns them into the answer.

use std::fmt;

use serde_json::Value;

/// A place in an object: a linked list of steps up to the root, built on the stack.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl Path<'static> {
    /// The object itself.
    pub const ROOT: Path<'static> = Path { parent: None, step: Step::Root };
}

impl<'a> Path<'a> {
    /// A top-level field.
    pub const fn new(name: &'a str) -> Self {
        Path { parent: None, step: Step::Name(name) }
    }

    /// A named field below this place. The name may itself be dotted.
    pub const fn child(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Name(name) }
    }

    /// A list element below this place.
    pub const fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// A map entry below this place.
    pub const fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Step::Key(key) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            steps.push(path.step);
            at = path.parent;
        }
        let mut first = true;
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => continue,
                Step::Name(name) if first => f.write_str(name)?,
                Step::Name(name) => write!(f, ".{name}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => write!(f, "[{key}]")?,
            }
            first = false;
        }
        Ok(())
    }
}

/// What is wrong with a value; each has a reason that clients match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    /// Must be given.
    Required,
    /// Malformed or out of range.
    Invalid,
    /// Not one of the allowed values.
    NotSupported,
    /// Must be unique.
    Duplicate,
    /// Not allowed here.
    Forbidden,
    /// Text is too long.
    TooLong,
    /// List has too many elements.
    TooMany,
    /// Refers to something absent.
    NotFound,
    /// Wrong JSON type.
    TypeInvalid,
    /// Could not be checked.
    InternalError,
}

impl ProblemKind {
    /// The machine-readable reason of a status cause.
    pub fn reason(self) -> &'static str {
        match self {
            ProblemKind::Required => "FieldValueRequired",
            ProblemKind::Invalid => "FieldValueInvalid",
            ProblemKind::NotSupported => "FieldValueNotSupported",
            ProblemKind::Duplicate => "FieldValueDuplicate",
            ProblemKind::Forbidden => "FieldValueForbidden",
            ProblemKind::TooLong => "FieldValueTooLong",
            ProblemKind::TooMany => "FieldValueTooMany",
            ProblemKind::NotFound => "FieldValueNotFound",
            ProblemKind::TypeInvalid => "FieldValueTypeInvalid",
            ProblemKind::InternalError => "InternalError",
        }
    }

    fn text(self) -> &'static str {
        match self {
            ProblemKind::Required => "Required value",
            ProblemKind::Invalid | ProblemKind::TypeInvalid => "Invalid value",
            ProblemKind::NotSupported => "Unsupported value",
            ProblemKind::Duplicate => "Duplicate value",
            ProblemKind::Forbidden => "Forbidden",
            ProblemKind::TooLong => "Too long",
            ProblemKind::TooMany => "Too many",
            ProblemKind::NotFound => "Not found",
            ProblemKind::InternalError => "Internal error",
        }
    }
}

/// One thing wrong at one place.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What is wrong.
    pub kind: ProblemKind,
    /// Where.
    pub path: String,
    /// The offending value, when showing it helps.
    pub value: Option<Value>,
    /// Why.
    pub detail: String,
}

impl Problem {
    /// The text without the path: the message of a status cause.
    pub fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if let Some(value) = &self.value
            && !matches!(self.kind, ProblemKind::Required | ProblemKind::Forbidden | ProblemKind::TooLong)
        {
            text.push_str(": ");
            match value {
                Value::String(s) => text.push_str(&go_quote(s)),
                other => text.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", if self.path.is_empty() { "<nil>" } else { &self.path }, self.body())
    }
}

/// Quotes text as Go's `%q` does, for the characters that occur in practice.
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Everything found wrong with one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    /// No problems yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a problem.
    pub fn push(&mut self, problem: Problem) {
        self.list.push(problem);
    }

    fn add(&mut self, kind: ProblemKind, path: &Path<'_>, value: Option<Value>, detail: impl Into<String>) {
        self.list.push(Problem { kind, path: path.to_string(), value, detail: detail.into() });
    }

    /// Must be given.
    pub fn required(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ProblemKind::Required, path, None, detail);
    }

    /// Malformed or out of range.
    pub fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(ProblemKind::Invalid, path, Some(value.into()), detail);
    }

    /// The same, without showing the value.
    pub fn invalid_unshown(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ProblemKind::Invalid, path, None, detail);
    }

    /// Says again what was found since there were so many: upstream judges some parts twice.
    pub fn repeat_since(&mut self, count: usize) {
        self.list.extend_from_within(count..);
    }

    /// Not one of the allowed values.
    pub fn not_supported(&mut self, path: &Path<'_>, value: impl Into<Value>, allowed: &[&str]) {
        let mut sorted: Vec<&str> = allowed.to_vec();
        sorted.sort_by_key(|text| go_quote(text));
        self.not_one_of(path, value, &sorted);
    }

    /// The same, with the allowed values named in the given order.
    pub fn not_one_of(&mut self, path: &Path<'_>, value: impl Into<Value>, allowed: &[&str]) {
        let quoted: Vec<String> = allowed.iter().map(|text| go_quote(text)).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        self.add(ProblemKind::NotSupported, path, Some(value.into()), detail);
    }

    /// Must be unique.
    pub fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.add(ProblemKind::Duplicate, path, Some(value.into()), "");
    }

    /// Not allowed here.
    pub fn forbidden(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ProblemKind::Forbidden, path, None, detail);
    }

    /// Text longer than `max` bytes.
    pub fn too_long(&mut self, path: &Path<'_>, max: usize) {
        let unit = if max == 1 { "byte" } else { "bytes" };
        self.add(ProblemKind::TooLong, path, None, format!("may not be more than {max} {unit}"));
    }

    /// More than `max` elements.
    pub fn too_many(&mut self, path: &Path<'_>, actual: usize, max: usize) {
        let unit = if max == 1 { "item" } else { "items" };
        self.add(
            ProblemKind::TooMany,
            path,
            Some(Value::from(actual)),
            format!("must have at most {max} {unit}"),
        );
    }

    /// Refers to something absent.
    pub fn not_found(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.add(ProblemKind::NotFound, path, Some(value.into()), "");
    }

    /// Wrong JSON type.
    pub fn type_invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        self.add(ProblemKind::TypeInvalid, path, Some(value.into()), detail);
    }

    /// Could not be checked.
    pub fn internal(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.add(ProblemKind::InternalError, path, None, detail);
    }

    /// Records one `Invalid` per message, as the name checks return several.
    pub fn invalid_each<M: Into<String>>(
        &mut self,
        path: &Path<'_>,
        value: &str,
        messages: impl IntoIterator<Item = M>,
    ) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many problems there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The problems in the order found.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.list.iter()
    }

    /// Adds another collection.
    pub fn append(&mut self, mut other: Problems) {
        self.list.append(&mut other.list);
    }

    /// The problems joined as upstream's aggregate does: alone, or in brackets.
    pub fn summary(&self) -> String {
        let mut seen: Vec<String> = Vec::with_capacity(self.list.len());
        for problem in &self.list {
            let text = problem.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        match seen.len() {
            1 => seen.remove(0),
            _ => format!("[{}]", seen.join(", ")),
        }
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_problems_read_as_upstream_prints_them() {
        let mut problems = Problems::new();
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        problems.required(&first.child("name"), "");
        problems.invalid(&spec.child("replicas"), -1, "must be greater than or equal to 0");
        problems.not_supported(&first.child("imagePullPolicy"), "Often", &["Never", "Always"]);
        let labels = Path::new("metadata").child("labels").key("a/b").to_string();
        assert_eq!(labels, "metadata.labels[a/b]");
        let texts: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.containers[0].name: Required value",
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Often\": supported values: \"Always\", \"Never\"",
            ]
        );
    }
}
