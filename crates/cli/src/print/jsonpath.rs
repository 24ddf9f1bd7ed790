//! kubectl's JSONPath templates: text, and paths between braces.
//!
//! The work is bounded by the object: no path visits a value more often than its text has steps, and `..` visits each once.

use apimachinery::golang;
use serde_json::Value;
use thiserror::Error;

use super::json::compact;

/// What is wrong with a template, or with what it met.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PathError {
    #[error("{0}")]
    Syntax(String),
    #[error("{0}")]
    Evaluation(String),
}

fn syntax(text: impl Into<String>) -> PathError {
    PathError::Syntax(text.into())
}

/// A template, read.
#[derive(Debug, Clone)]
pub struct JsonPath {
    parts: Vec<Part>,
    /// A field that is not there is an error.
    pub strict: bool,
}

#[derive(Debug, Clone)]
enum Part {
    Text(String),
    Path(Vec<Step>),
    Range(Vec<Step>, Vec<Part>),
}

#[derive(Debug, Clone)]
enum Step {
    Field(String),
    Slice(Option<i64>, Option<i64>, i64),
    Index(i64),
    All,
    Recursive,
    Filter(Box<Operand>, Option<(String, Box<Operand>)>),
    Union(Vec<Vec<Step>>),
    Literal(Value),
    Root,
    Current,
}

#[derive(Debug, Clone)]
enum Operand {
    Literal(Value),
    Path(Vec<Step>),
}

impl JsonPath {
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let mut parser = Parser { text: text.chars().collect(), at: 0 };
        let parts = parser.parts(false)?;
        Ok(Self { parts, strict: false })
    }

    /// The results of each part, as text.
    pub fn render(&self, root: &Value) -> Result<String, PathError> {
        let mut out = String::new();
        self.run(&self.parts, root, root, &mut out)?;
        Ok(out)
    }

    /// The values of the first path.
    pub fn find<'a>(&self, root: &'a Value) -> Result<Vec<&'a Value>, PathError> {
        for part in &self.parts {
            if let Part::Path(steps) = part {
                let found = self.walk(steps, root, root)?;
                let borrowed = found.into_iter().filter_map(|found| match found {
                    Found::Borrowed(value) => Some(value),
                    Found::Owned(_) => None,
                });
                return Ok(borrowed.collect());
            }
        }
        Ok(Vec::new())
    }

    fn run(&self, parts: &[Part], root: &Value, current: &Value, out: &mut String) -> Result<(), PathError> {
        for part in parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Path(steps) => {
                    let found = self.walk(steps, root, current)?;
                    for (index, value) in found.iter().enumerate() {
                        if index > 0 {
                            out.push(' ');
                        }
                        out.push_str(&shown(value.get()));
                    }
                }
                Part::Range(steps, body) => {
                    for value in self.walk(steps, root, current)? {
                        match value.get() {
                            Value::Array(items) => {
                                for item in items {
                                    self.run(body, root, item, out)?;
                                }
                            }
                            other => self.run(body, root, other, out)?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn walk<'a>(
        &self,
        steps: &[Step],
        root: &'a Value,
        current: &'a Value,
    ) -> Result<Vec<Found<'a>>, PathError> {
        let mut values = vec![Found::Borrowed(current)];
        for step in steps {
            values = self.step(step, values, root)?;
        }
        Ok(values)
    }

    fn step<'a>(
        &self,
        step: &Step,
        values: Vec<Found<'a>>,
        root: &'a Value,
    ) -> Result<Vec<Found<'a>>, PathError> {
        let mut next = Vec::new();
        if let Step::Literal(value) = step {
            return Ok(vec![Found::Owned(value.clone())]);
        }
        if let Step::Root = step {
            return Ok(vec![Found::Borrowed(root)]);
        }
        for found in values {
            let Found::Borrowed(value) = found else { continue };
            match step {
                Step::Current => next.push(Found::Borrowed(value)),
                Step::Field(name) => match value {
                    Value::Object(map) => match map.get(name) {
                        Some(inner) => next.push(Found::Borrowed(inner)),
                        None if self.strict => {
                            return Err(PathError::Evaluation(format!("{name} is not found")));
                        }
                        None => {}
                    },
                    _ if self.strict => return Err(PathError::Evaluation(format!("{name} is not found"))),
                    _ => {}
                },
                Step::All => match value {
                    Value::Array(items) => next.extend(items.iter().map(Found::Borrowed)),
                    Value::Object(map) => next.extend(sorted(map).into_iter().map(Found::Borrowed)),
                    _ => {}
                },
                Step::Index(index) => {
                    let Value::Array(items) = value else {
                        if value.is_null() {
                            continue;
                        }
                        return Err(PathError::Evaluation(format!(
                            "{} is not array or slice",
                            go_kind(value)
                        )));
                    };
                    let position = if *index < 0 { items.len() as i64 + index } else { *index };
                    match usize::try_from(position).ok().and_then(|position| items.get(position)) {
                        Some(item) => next.push(Found::Borrowed(item)),
                        None => {
                            return Err(PathError::Evaluation(format!(
                                "array index out of bounds: index {}, length {}",
                                position.max(*index),
                                items.len()
                            )));
                        }
                    }
                }
                Step::Slice(start, end, by) => {
                    let Value::Array(items) = value else { continue };
                    let length = items.len() as i64;
                    let fix = |place: i64| if place < 0 { place + length } else { place };
                    let start = fix(start.unwrap_or(0)).max(0);
                    let end = fix(end.unwrap_or(length)).min(length);
                    let mut at = start;
                    while at < end {
                        next.push(Found::Borrowed(&items[at as usize]));
                        at += by;
                    }
                }
                Step::Recursive => descend(value, &mut next),
                Step::Filter(left, comparison) => {
                    let Value::Array(items) = value else { continue };
                    for item in items {
                        if self.keeps(left, comparison.as_ref(), item, root)? {
                            next.push(Found::Borrowed(item));
                        }
                    }
                }
                Step::Union(paths) => {
                    for path in paths {
                        next.extend(self.walk(path, root, value)?);
                    }
                }
                Step::Literal(_) | Step::Root => {}
            }
        }
        Ok(next)
    }

    fn keeps(
        &self,
        left: &Operand,
        comparison: Option<&(String, Box<Operand>)>,
        item: &Value,
        root: &Value,
    ) -> Result<bool, PathError> {
        let value = |operand: &Operand| -> Result<Option<Value>, PathError> {
            match operand {
                Operand::Literal(value) => Ok(Some(value.clone())),
                Operand::Path(steps) => {
                    let lax = Self { parts: Vec::new(), strict: false };
                    let found = lax.walk(steps, root, item)?;
                    if found.len() > 1 {
                        return Err(PathError::Evaluation(
                            "can only compare one element at a time".to_owned(),
                        ));
                    }
                    Ok(found.first().map(|found| found.get().clone()))
                }
            }
        };
        let Some(left) = value(left)? else { return Ok(false) };
        let Some((operator, right)) = comparison else { return Ok(true) };
        let Some(right) = value(right)? else { return Ok(false) };
        let order = match (&left, &right) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            (Value::Null, Value::Null) => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        let order =
            order.ok_or_else(|| PathError::Evaluation("incompatible types for comparison".to_owned()))?;
        Ok(match operator.as_str() {
            "==" => order.is_eq(),
            "!=" => order.is_ne(),
            "<" => order.is_lt(),
            "<=" => order.is_le(),
            ">" => order.is_gt(),
            _ => order.is_ge(),
        })
    }
}

enum Found<'a> {
    Borrowed(&'a Value),
    Owned(Value),
}

impl Found<'_> {
    fn get(&self) -> &Value {
        match self {
            Self::Borrowed(value) => value,
            Self::Owned(value) => value,
        }
    }
}

fn go_kind(value: &Value) -> String {
    golang::plain(value)
}

fn sorted(map: &serde_json::Map<String, Value>) -> Vec<&Value> {
    let mut fields: Vec<_> = map.iter().collect();
    fields.sort_by_key(|(name, _)| *name);
    fields.into_iter().map(|(_, value)| value).collect()
}

/// A value and everything in it, without scalars, as the steps behind `..` look at them.
fn descend<'a>(value: &'a Value, out: &mut Vec<Found<'a>>) {
    match value {
        Value::Array(items) => {
            out.push(Found::Borrowed(value));
            items.iter().for_each(|item| descend(item, out));
        }
        Value::Object(map) => {
            out.push(Found::Borrowed(value));
            sorted(map).into_iter().for_each(|item| descend(item, out));
        }
        _ => {}
    }
}

/// A value in a line: text as it is, lists and maps as JSON.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => compact(value),
        Value::Null => "null".to_owned(),
        other => golang::plain(other),
    }
}

struct Parser {
    text: Vec<char>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn starts_with(&self, word: &str) -> bool {
        word.chars().enumerate().all(|(index, letter)| self.text.get(self.at + index) == Some(&letter))
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn parts(&mut self, inside: bool) -> Result<Vec<Part>, PathError> {
        let mut parts = Vec::new();
        let mut text = String::new();
        while let Some(letter) = self.peek() {
            if letter != '{' {
                text.push(letter);
                self.at += 1;
                continue;
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            self.at += 1;
            self.spaces();
            if self.word("end") {
                self.close()?;
                if inside {
                    return Ok(parts);
                }
                return Err(syntax("not in range, nothing to end"));
            }
            if self.word("range") {
                self.spaces();
                let steps = self.path(&['}'])?;
                self.close()?;
                parts.push(Part::Range(steps, self.parts(true)?));
                continue;
            }
            loop {
                self.spaces();
                match self.peek() {
                    None => return Err(syntax("unclosed action")),
                    Some('}') => {
                        self.at += 1;
                        break;
                    }
                    Some(quote @ ('"' | '\'')) => {
                        let literal = self.quoted(quote)?;
                        parts.push(Part::Text(literal));
                    }
                    Some(_) => {
                        let before = self.at;
                        let steps = self.path(&['}'])?;
                        if self.at == before {
                            let letter = self.text[self.at];
                            return Err(syntax(format!(
                                "unrecognized character in action: U+{:04X} '{letter}'",
                                u32::from(letter)
                            )));
                        }
                        parts.push(Part::Path(steps));
                    }
                }
            }
        }
        if inside {
            return Err(syntax("unclosed range, expected {end}"));
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    fn word(&mut self, word: &str) -> bool {
        let after = self.text.get(self.at + word.len());
        let ends = after.is_none_or(|letter| !letter.is_alphanumeric());
        let found = self.starts_with(word) && ends;
        if found {
            self.at += word.len();
        }
        found
    }

    fn close(&mut self) -> Result<(), PathError> {
        self.spaces();
        if self.peek() != Some('}') {
            return Err(syntax("unclosed action"));
        }
        self.at += 1;
        Ok(())
    }

    fn quoted(&mut self, quote: char) -> Result<String, PathError> {
        self.at += 1;
        let mut out = String::new();
        while let Some(letter) = self.peek() {
            self.at += 1;
            match letter {
                '\\' => {
                    let next = self.peek().ok_or_else(|| syntax("unterminated quoted string"))?;
                    self.at += 1;
                    match next {
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        other => out.push(other),
                    }
                }
                _ if letter == quote => return Ok(out),
                other => out.push(other),
            }
        }
        Err(syntax("unterminated quoted string"))
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(letter) = self.peek() {
            match letter {
                '\\' => {
                    self.at += 1;
                    name.extend(self.peek());
                }
                _ if letter.is_whitespace() || "[]{}().,@$'\"=<>!*?:".contains(letter) => break,
                other => name.push(other),
            }
            self.at += 1;
        }
        name
    }

    fn path(&mut self, ends: &[char]) -> Result<Vec<Step>, PathError> {
        let mut steps = Vec::new();
        while let Some(letter) = self.peek() {
            if ends.contains(&letter) || letter.is_whitespace() {
                break;
            }
            match letter {
                '$' => {
                    self.at += 1;
                    steps.push(Step::Root);
                }
                '@' => {
                    self.at += 1;
                    steps.push(Step::Current);
                }
                '.' => {
                    self.at += 1;
                    if self.peek() == Some('.') {
                        self.at += 1;
                        steps.push(Step::Recursive);
                        if self.peek().is_some_and(|letter| !"[}".contains(letter)) {
                            self.field(&mut steps);
                        }
                    } else {
                        self.field(&mut steps);
                    }
                }
                '[' => {
                    self.at += 1;
                    steps.push(self.bracket()?);
                }
                '*' => {
                    self.at += 1;
                    steps.push(Step::All);
                }
                _ if letter.is_alphanumeric() || letter == '_' || letter == '-' => {
                    let name = self.name();
                    if let Ok(number) = name.parse::<i64>() {
                        steps.push(Step::Literal(number.into()));
                    } else if steps.is_empty() && (name == "true" || name == "false") {
                        steps.push(Step::Literal((name == "true").into()));
                    } else {
                        return Err(syntax(format!("unrecognized identifier {name}")));
                    }
                }
                _ => break,
            }
        }
        Ok(steps)
    }

    fn field(&mut self, steps: &mut Vec<Step>) {
        if self.peek() == Some('*') {
            self.at += 1;
            steps.push(Step::All);
            return;
        }
        let name = self.name();
        if !name.is_empty() {
            steps.push(Step::Field(name));
        }
    }

    fn bracket(&mut self) -> Result<Step, PathError> {
        self.spaces();
        if self.starts_with("?(") {
            self.at += 2;
            let left = self.operand()?;
            self.spaces();
            let operator = ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|word| self.starts_with(word));
            let comparison = match operator {
                None => None,
                Some(operator) => {
                    self.at += operator.len();
                    Some((operator.to_owned(), Box::new(self.operand()?)))
                }
            };
            self.spaces();
            if !self.starts_with(")") {
                return Err(syntax("unterminated filter"));
            }
            self.at += 1;
            self.spaces();
            if self.peek() != Some(']') {
                return Err(syntax("unclosed array expect ]"));
            }
            self.at += 1;
            return Ok(Step::Filter(Box::new(left), comparison));
        }
        let mut members: Vec<Vec<Step>> = Vec::new();
        loop {
            self.spaces();
            let mut member = Vec::new();
            match self.peek() {
                Some(quote @ ('\'' | '"')) => member.push(Step::Field(self.quoted(quote)?)),
                Some('*') => {
                    self.at += 1;
                    member.push(Step::All);
                }
                Some('.' | '@' | '$') => member = self.path(&[',', ']'])?,
                _ => {
                    let mut text = String::new();
                    while let Some(letter) = self.peek().filter(|letter| !",]".contains(*letter)) {
                        text.push(letter);
                        self.at += 1;
                    }
                    member.push(index_of(text.trim())?);
                }
            }
            members.push(member);
            self.spaces();
            match self.peek() {
                Some(',') => self.at += 1,
                Some(']') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(syntax("unterminated array")),
            }
        }
        match members.len() {
            1 if members[0].len() == 1 => Ok(members.remove(0).remove(0)),
            _ => Ok(Step::Union(members)),
        }
    }

    fn operand(&mut self) -> Result<Operand, PathError> {
        self.spaces();
        match self.peek() {
            Some(quote @ ('\'' | '"')) => Ok(Operand::Literal(self.quoted(quote)?.into())),
            Some('@' | '$' | '.') => {
                let mut steps = self.path(&[')', '=', '!', '<', '>'])?;
                if matches!(steps.first(), Some(Step::Current)) {
                    steps.remove(0);
                }
                Ok(Operand::Path(steps))
            }
            _ => {
                let mut text = String::new();
                while let Some(letter) =
                    self.peek().filter(|letter| !letter.is_whitespace() && !")=!<>".contains(*letter))
                {
                    text.push(letter);
                    self.at += 1;
                }
                let value: Value = serde_json::from_str(&text)
                    .map_err(|_| syntax(format!("cannot parse {text:?} in a filter")))?;
                Ok(Operand::Literal(value))
            }
        }
    }
}

fn index_of(text: &str) -> Result<Step, PathError> {
    let bad = || syntax(format!("invalid array index {text}"));
    let number = |text: &str| -> Result<Option<i64>, PathError> {
        if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| bad()) }
    };
    let parts: Vec<&str> = text.split(':').collect();
    match parts[..] {
        [one] => Ok(Step::Index(number(one)?.ok_or_else(bad)?)),
        [start, end] => Ok(Step::Slice(number(start)?, number(end)?, 1)),
        [start, end, by] => {
            let by = number(by)?.unwrap_or(1);
            if by <= 0 {
                return Err(syntax("step must be > 0"));
            }
            Ok(Step::Slice(number(start)?, number(end)?, by))
        }
        _ => Err(bad()),
    }
}

/// `metadata.name`, `.metadata.name` and `{.metadata.name}` are the same path.
pub fn relaxed(text: &str) -> Result<String, PathError> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let inner = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    if inner.contains(['{', '}']) {
        return Err(syntax(
            "unexpected path string, expected a 'name1.name2' or '.name1.name2' or '{name1.name2}' or '{.name1.name2}'",
        ));
    }
    let inner = inner.strip_prefix('.').unwrap_or(inner);
    Ok(if inner.starts_with('[') { format!("{{{inner}}}") } else { format!("{{.{inner}}}") })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str) -> String {
        let value = json!({"items": [
            {"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "x"}}, "n": 1, "ok": true},
            {"metadata": {"name": "b"}, "n": 2, "ok": false}], "kind": "List"});
        JsonPath::parse(template)
            .and_then(|path| path.render(&value))
            .unwrap_or_else(|error| format!("error: {error}"))
    }

    #[test]
    fn paths_find_what_kubectl_finds() {
        for (template, wanted) in [
            ("{.kind}", "List"),
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata}", r#"{"labels":{"app.kubernetes.io/name":"x"},"name":"a"}"#),
            ("{.items[-1].n}", "2"),
            ("{.items[0:1].n}", "1"),
            ("{range .items[*]}{.metadata.name}{'\\t'}{.n}{'\\n'}{end}", "a\t1\nb\t2\n"),
            ("{.items[?(@.metadata.name=='b')].n}", "2"),
            ("{.items[?(@.n>1)].metadata.name}", "b"),
            ("{.items[?(@.ok==true)].n}", "1"),
            ("{.items[?(@.metadata.labels)].n}", "1"),
            ("{..name}", "a b"),
            ("{.items[*]['metadata.name','n']}", "1 2"),
            ("{.items[0].metadata.labels.app\\.kubernetes\\.io/name}", "x"),
            ("{.items[0].metadata.labels['app\\.kubernetes\\.io/name']}", "x"),
            ("{.missing.deep}", ""),
            ("text {.kind} more", "text List more"),
            ("{$.kind}", "List"),
            ("{.items[5].n}", "error: array index out of bounds: index 5, length 2"),
            ("{.items", "error: unclosed action"),
            ("{range .items[*]}x", "error: unclosed range, expected {end}"),
        ] {
            assert_eq!(render(template), wanted, "{template}");
        }
    }

    #[test]
    fn paths_may_be_written_shortly() {
        assert_eq!(relaxed("metadata.name").as_deref(), Ok("{.metadata.name}"));
        assert_eq!(relaxed(".metadata.name").as_deref(), Ok("{.metadata.name}"));
        assert_eq!(relaxed("{.metadata.name}").as_deref(), Ok("{.metadata.name}"));
        assert!(relaxed("{a}{b}").is_err());
    }
}
