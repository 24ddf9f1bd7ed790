//! Label and field selectors, from their query-string syntax and from `matchLabels`/`matchExpressions`.

use std::fmt;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::{
    field::{Path, Problems},
    names,
};

/// Why a selector text was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectorError {
    /// Syntax.
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    /// Trailing or leading garbage.
    #[error("{0}")]
    Token(String),
    /// Field selectors know only =, == and !=.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Field {
        /// whole text
        selector: String,
        /// the part not understood
        term: String,
    },
}

/// How a requirement compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Equals,
    NotEquals,
    GreaterThan,
    LessThan,
}

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Comparison.
    pub operator: Operator,
    /// Values, sorted.
    pub values: Vec<String>,
}

impl Requirement {
    /// A checked requirement.
    pub fn new(key: &str, operator: Operator, mut values: Vec<String>) -> Result<Self, SelectorError> {
        let refuse = |text: String| Err(SelectorError::Requirement(text));
        if let Some(problem) = Some(names::is_label_key(key)).filter(|list| !list.is_empty()) {
            return refuse(format!("<nil>: Invalid value: {key:?}: {}", problem.join("; ")));
        }
        let shown = || format!("[{}]", values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(","));
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                return refuse(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                        .into(),
                );
            }
            Operator::Equals | Operator::NotEquals if values.len() != 1 => {
                return refuse(format!(
                    "values: Invalid value: {}: exact-match compatibility requires one single value",
                    shown()
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                return refuse(format!(
                    "values: Invalid value: {}: values set must be empty for exists and does not exist",
                    shown()
                ));
            }
            Operator::GreaterThan | Operator::LessThan => {
                if values.len() != 1 {
                    return refuse(format!(
                        "values: Invalid value: {}: for 'Gt', 'Lt' operators, exactly one value is required",
                        shown()
                    ));
                }
                if values[0].parse::<i64>().is_err() {
                    return refuse(format!(
                        "values[0]: Invalid value: {:?}: for 'Gt', 'Lt' operators, the value must be an integer",
                        values[0]
                    ));
                }
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let complaints = names::is_label_value(value);
            if !complaints.is_empty() {
                return refuse(format!(
                    "values[{index}][{key}]: Invalid value: {value:?}: {}",
                    complaints.join("; ")
                ));
            }
        }
        values.sort();
        values.dedup();
        Ok(Self { key: key.into(), operator, values })
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let among = |value: &str| self.values.iter().any(|have| have == value);
        match (self.operator, value) {
            (Operator::In | Operator::Equals, value) => value.is_some_and(among),
            (Operator::NotIn | Operator::NotEquals, value) => !value.is_some_and(among),
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::GreaterThan, value) => compare(value, &self.values).is_some_and(|order| order.is_gt()),
            (Operator::LessThan, value) => compare(value, &self.values).is_some_and(|order| order.is_lt()),
        }
    }
}

fn compare(value: Option<&str>, bound: &[String]) -> Option<std::cmp::Ordering> {
    let value: i64 = value?.parse().ok()?;
    let bound: i64 = bound.first()?.parse().ok()?;
    Some(value.cmp(&bound))
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match self.operator {
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={}", self.values[0]),
            Operator::NotEquals => write!(f, "{key}!={}", self.values[0]),
            Operator::GreaterThan => write!(f, "{key}>{}", self.values[0]),
            Operator::LessThan => write!(f, "{key}<{}", self.values[0]),
            Operator::In => write!(f, "{key} in ({})", self.values.join(",")),
            Operator::NotIn => write!(f, "{key} notin ({})", self.values.join(",")),
        }
    }
}

/// A conjunction of requirements on labels. Without any it selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

impl LabelSelector {
    /// Selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects nothing (what an absent selector in an object means).
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), nothing: true }
    }

    /// Parses `a=b,c in (d,e),!f`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut parser = Parser { tokens: lex(text), at: 0 };
        let mut requirements = Vec::new();
        loop {
            match parser.peek() {
                Token::End => break,
                Token::Not | Token::Word(_) | Token::In | Token::NotIn => {
                    requirements.push(parser.requirement()?);
                    match parser.next() {
                        Token::End => break,
                        Token::Comma => match parser.peek() {
                            Token::Not | Token::Word(_) | Token::In | Token::NotIn => {}
                            other => {
                                return Err(SelectorError::Token(format!(
                                    "found '{other}', expected: identifier after ','"
                                )));
                            }
                        },
                        other => {
                            return Err(SelectorError::Token(format!(
                                "found '{other}', expected: ',' or 'end of string'"
                            )));
                        }
                    }
                }
                other => {
                    return Err(SelectorError::Token(format!(
                        "found '{other}', expected: !, identifier, or 'end of string'"
                    )));
                }
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// From a `metav1.LabelSelector` object. Absent (null) selects nothing, empty selects everything.
    pub fn from_object(value: &Value) -> Result<Self, SelectorError> {
        let Value::Object(object) = value else { return Ok(Self::nothing()) };
        let mut requirements = Vec::new();
        if let Some(Value::Object(labels)) = object.get("matchLabels") {
            for (key, value) in labels {
                let value = value.as_str().unwrap_or_default().to_owned();
                requirements.push(Requirement::new(key, Operator::Equals, vec![value])?);
            }
        }
        if let Some(Value::Array(expressions)) = object.get("matchExpressions") {
            for expression in expressions {
                let operator = match expression["operator"].as_str().unwrap_or_default() {
                    "In" => Operator::In,
                    "NotIn" => Operator::NotIn,
                    "Exists" => Operator::Exists,
                    "DoesNotExist" => Operator::DoesNotExist,
                    "Gt" => Operator::GreaterThan,
                    "Lt" => Operator::LessThan,
                    other => {
                        return Err(SelectorError::Token(format!(
                            "{other:?} is not a valid label selector operator"
                        )));
                    }
                };
                let values = expression["values"].as_array().into_iter().flatten();
                let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
                requirements.push(Requirement::new(
                    expression["key"].as_str().unwrap_or_default(),
                    operator,
                    values,
                )?);
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements, nothing: false })
    }

    /// From a plain map (`spec.selector` of Services and ReplicationControllers); empty selects everything.
    pub fn from_map(labels: &Map<String, Value>) -> Self {
        let mut requirements: Vec<Requirement> = labels
            .iter()
            .map(|(key, value)| Requirement {
                key: key.clone(),
                operator: Operator::Equals,
                values: vec![value.as_str().unwrap_or_default().to_owned()],
            })
            .collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements, nothing: false }
    }

    /// The terms.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty() && !self.nothing
    }

    /// Whether a set of labels, given by a lookup, is selected.
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|term| term.matches(lookup(&term.key)))
    }

    /// Whether a labels map is selected. Absent labels are an empty map.
    pub fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.matches_with(|key| labels?.get(key)?.as_str())
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{term}")?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    End,
    Word(String),
    In,
    NotIn,
    Not,
    Equals,
    DoubleEquals,
    NotEquals,
    Greater,
    Less,
    Open,
    Close,
    Comma,
    Bad(String),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Token::End => "",
            Token::Word(word) | Token::Bad(word) => word,
            Token::In => "in",
            Token::NotIn => "notin",
            Token::Not => "!",
            Token::Equals => "=",
            Token::DoubleEquals => "==",
            Token::NotEquals => "!=",
            Token::Greater => ">",
            Token::Less => "<",
            Token::Open => "(",
            Token::Close => ")",
            Token::Comma => ",",
        })
    }
}

fn lex(text: &str) -> Vec<Token> {
    let b = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    let special = |c: u8| matches!(c, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<');
    while at < b.len() {
        let c = b[at];
        if matches!(c, b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
            continue;
        }
        if special(c) {
            let (token, width) = match (c, b.get(at + 1)) {
                (b'=', Some(b'=')) => (Token::DoubleEquals, 2),
                (b'!', Some(b'=')) => (Token::NotEquals, 2),
                (b'=', _) => (Token::Equals, 1),
                (b'!', _) => (Token::Not, 1),
                (b'(', _) => (Token::Open, 1),
                (b')', _) => (Token::Close, 1),
                (b',', _) => (Token::Comma, 1),
                (b'>', _) => (Token::Greater, 1),
                (b'<', _) => (Token::Less, 1),
                _ => (Token::Bad((c as char).to_string()), 1),
            };
            tokens.push(token);
            at += width;
            continue;
        }
        let start = at;
        while at < b.len() && !special(b[at]) && !matches!(b[at], b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
        }
        tokens.push(match &text[start..at] {
            "in" => Token::In,
            "notin" => Token::NotIn,
            word => Token::Word(word.to_owned()),
        });
    }
    tokens.push(Token::End);
    tokens
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens[self.at.min(self.tokens.len() - 1)].clone()
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let refuse = |text: String| Err(SelectorError::Requirement(text));
        let negated = self.peek() == Token::Not;
        if negated {
            self.at += 1;
        }
        let key = match self.next() {
            Token::Word(word) => word,
            Token::In => "in".into(),
            Token::NotIn => "notin".into(),
            other => return refuse(format!("found '{other}', expected: identifier")),
        };
        if negated {
            return Requirement::new(&key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Requirement::new(&key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals | Token::DoubleEquals => Operator::Equals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            other => {
                return refuse(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt"));
            }
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => match self.peek() {
                Token::End | Token::Comma => vec![String::new()],
                Token::Word(_) | Token::In | Token::NotIn => vec![self.next().to_string()],
                other => return refuse(format!("found '{other}', expected: identifier")),
            },
        };
        Requirement::new(&key, operator, values)
    }

    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        let refuse = |text: String| Err(SelectorError::Requirement(text));
        let open = self.next();
        if open != Token::Open {
            return refuse(format!("found '{open}' expected: '('"));
        }
        let mut values = Vec::new();
        let mut wanted = true;
        loop {
            match self.next() {
                Token::Close => {
                    if wanted {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                Token::Comma => {
                    if wanted {
                        values.push(String::new());
                    }
                    wanted = true;
                }
                word @ (Token::Word(_) | Token::In | Token::NotIn) if wanted => {
                    values.push(word.to_string());
                    wanted = false;
                }
                other => return refuse(format!("found '{other}', expected: ',' or ')'")),
            }
        }
    }
}

/// One term of a field selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FieldTerm {
    /// Dotted field label.
    pub field: String,
    /// Wanted (or unwanted) text.
    pub value: String,
    /// Whether equality is wanted.
    pub equal: bool,
}

/// A conjunction of comparisons on the field labels that a kind declares.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Selects everything.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Parses `a.b=c,d!=e`; `\\`, `\,` and `\=` are escapes.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms = Vec::new();
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let error = || SelectorError::Field { selector: text.to_owned(), term: part.to_owned() };
            let (field, equal, value) = split_term(part).ok_or_else(error)?;
            terms.push(FieldTerm {
                field: field.to_owned(),
                value: unescape(value).ok_or_else(error)?,
                equal,
            });
        }
        Ok(Self { terms })
    }

    /// A single equality, as `metadata.name=x`.
    pub fn equals(field: &str, value: &str) -> Self {
        Self { terms: vec![FieldTerm { field: field.into(), value: value.into(), equal: true }] }
    }

    /// The terms.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that a field must equal, when the selector says so (`metadata.name=x` makes a list a get).
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// Whether an object, given by a lookup of field labels, is selected. Unknown labels read as "".
    pub fn matches_with<'a>(&self, lookup: impl Fn(&str) -> std::borrow::Cow<'a, str>) -> bool {
        self.terms.iter().all(|term| (lookup(&term.field) == term.value) == term.equal)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let sign = if term.equal { "=" } else { "!=" };
            let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            write!(f, "{comma}{}{sign}{value}", term.field)?;
        }
        Ok(())
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let at = term.find(['=', '!'])?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((field, true, value))
}

fn unescape(value: &str) -> Option<String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next()? {
                c @ ('\\' | ',' | '=') => out.push(c),
                _ => return None,
            },
            ',' | '=' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

/// Checks a `metav1.LabelSelector` object field by field.
pub fn validate_object(selector: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        validate_labels(labels, &path.child("matchLabels"), problems);
    }
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    let list = path.child("matchExpressions");
    for (index, expression) in expressions.into_iter().flatten().enumerate() {
        let path = list.index(index);
        let values = expression["values"].as_array().map_or(&[][..], Vec::as_slice);
        match expression["operator"].as_str().unwrap_or_default() {
            "In" | "NotIn" => {
                if values.is_empty() {
                    problems.required(
                        &path.child("values"),
                        "must be specified when `operator` is 'In' or 'NotIn'",
                    );
                }
            }
            "Exists" | "DoesNotExist" => {
                if !values.is_empty() {
                    problems.forbidden(
                        &path.child("values"),
                        "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                    );
                }
            }
            other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        let key = expression["key"].as_str().unwrap_or_default();
        problems.invalid_each(&path.child("key"), key, names::is_label_key(key));
        let value_path = path.child("values");
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            problems.invalid_each(&value_path.index(index), value, names::is_label_value(value));
        }
    }
}

/// Checks keys and values of a labels map.
pub fn validate_labels(labels: &Map<String, Value>, path: &Path<'_>, problems: &mut Problems) {
    for (key, value) in labels {
        problems.invalid_each(path, key, names::is_label_key(key));
        let value = value.as_str().unwrap_or_default();
        problems.invalid_each(path, value, names::is_label_value(value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn labels(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn label_selectors_select_as_upstream_does() {
        let have = labels(json!({"a": "1", "tier": "db", "n": "5"}));
        for (text, want) in [
            ("", true),
            ("a", true),
            ("!a", false),
            ("a=1", true),
            ("a==1,tier=db", true),
            ("a!=1", false),
            ("x!=1", true),
            ("tier in (db, web)", true),
            ("tier notin (db)", false),
            ("x notin (db)", true),
            ("n>4,n<6", true),
            ("n>5", false),
            ("a in (1,)", true),
            ("x=", false),
        ] {
            let selector = LabelSelector::parse(text).unwrap_or_else(|err| panic!("{text}: {err}"));
            assert_eq!(selector.matches(Some(&have)), want, "{text}");
            assert_eq!(LabelSelector::parse(&selector.to_string()).as_ref(), Ok(&selector));
        }
        for bad in ["a=b=c", ",", "a,,b", "a in", "a in (", "(a)", "a b", "a>x", "-a", "a=-", "!"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn objects_select_too() {
        let selector = LabelSelector::from_object(&json!({
            "matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]
        }));
        assert!(selector.as_ref().is_ok_and(|s| s.matches(Some(&labels(json!({"a": "1"}))))));
        assert!(LabelSelector::from_object(&json!({})).is_ok_and(|s| s.matches(None)));
        assert!(LabelSelector::from_object(&Value::Null).is_ok_and(|s| !s.matches(None)));
    }

    #[test]
    fn field_selectors_unescape() {
        let selector = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=Running").expect("valid");
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert_eq!(FieldSelector::parse(&selector.to_string()).as_ref(), Ok(&selector));
        assert!(FieldSelector::parse("metadata.name").is_err());
        assert!(selector.matches_with(|field| if field == "metadata.name" {
            "a,b".into()
        } else {
            "".into()
        }));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z=!(),<> \\\\/.-]{0,30}") {
            let _parsed = (LabelSelector::parse(&text).is_ok(), FieldSelector::parse(&text).is_ok());
        }
    }
}
