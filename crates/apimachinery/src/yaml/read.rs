//! From a YAML document to JSON text.
//!
//! The text is made, and not a value, because that is what upstream does: a fraction without a remainder becomes a whole number
//! on the way, fields come sorted, and complaints about wrong types are those about JSON.

use std::{collections::BTreeMap, collections::HashMap};

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::libyaml::{Event, Parser, Scalar};
use super::resolve::{Resolved, resolve};

/// How deep lists and maps may stand in each other; more than any reader of the result takes.
const MAX_DEPTH: usize = 256;
const TAG_PREFIX: &str = "tag:yaml.org,2002:";
/// An alias repeats a text, and the short name of a tag stands for a long one. Such bytes may be so many for each one that was
/// sent, and [`FREE_BYTES`] more; otherwise a small document would fill all memory.
const EXPANSION: usize = 16;
const FREE_BYTES: usize = 1 << 20;
/// The parser compares each directive with all others.
const MAX_DIRECTIVES: usize = 1000;
/// So many repetitions are told.
const MAX_NOTES: usize = 100;

/// A document, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Json {
    /// As JSON.
    pub text: String,
    /// What is said about keys that stand twice in a map: `line 3: key "a" already set in map`. Not more than a hundred.
    pub repeated: Vec<String>,
}

/// Reads the first document. What is wrong with it is told in upstream's words.
pub fn to_json(bytes: &[u8]) -> Result<Json, String> {
    let of_yaml = |problem: String| format!("yaml: {problem}");
    let directives = bytes.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"%"));
    if directives.count() > MAX_DIRECTIVES {
        return Err(of_yaml("document contains too many directives".to_owned()));
    }
    let room = Room(bytes.len().saturating_mul(EXPANSION).saturating_add(FREE_BYTES));
    let mut tree = Tree { parser: Parser::new(bytes), nodes: Vec::new(), anchors: HashMap::new(), room };
    let Some(root) = tree.document().map_err(of_yaml)? else {
        return Ok(Json { text: "null".to_owned(), repeated: Vec::new() });
    };
    let (nodes, room) = (&tree.nodes, tree.room);
    let mut reader = Reader { nodes, open: Vec::new(), values: 0, aliased: 0, room, repeated: Vec::new() };
    let value = reader.value(root, 0).map_err(of_yaml)?;
    let mut text = String::with_capacity(bytes.len());
    value.put(&mut text)?;
    Ok(Json { text, repeated: reader.repeated })
}

/// How many bytes there may still be that do not stand in the document.
struct Room(usize);

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(excess)?;
        Ok(())
    }
}

fn excess() -> String {
    "document contains excessive aliasing".to_owned()
}

/// A part of the document.
struct Node {
    /// Counted from 0.
    line: u64,
    kind: NodeKind,
}

enum NodeKind {
    Scalar(Scalar),
    List(Vec<usize>),
    Map(Vec<(usize, usize)>),
    Alias { name: String, of: usize },
}

struct Tree<'input> {
    parser: Parser<'input>,
    nodes: Vec<Node>,
    anchors: HashMap<String, usize>,
    room: Room,
}

impl Tree<'_> {
    /// The first document's root, if there is one. What follows it is not looked at.
    fn document(&mut self) -> Result<Option<usize>, String> {
        loop {
            match self.parser.next()?.0 {
                Event::DocumentStart => break,
                Event::StreamEnd => return Ok(None),
                _ => {}
            }
        }
        let (event, line) = self.next()?;
        let root = self.node(event, line, 0)?;
        self.parser.next()?;
        Ok(Some(root))
    }

    fn next(&mut self) -> Result<(Event, u64), String> {
        let (event, line, tag) = self.parser.next()?;
        self.room.take(tag)?;
        Ok((event, line))
    }

    fn add(&mut self, line: u64, anchor: Option<String>, kind: NodeKind) -> usize {
        self.nodes.push(Node { line, kind });
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, self.nodes.len() - 1);
        }
        self.nodes.len() - 1
    }

    fn node(&mut self, event: Event, line: u64, depth: usize) -> Result<usize, String> {
        if depth > MAX_DEPTH {
            return Err(format!("line {}: exceeded max depth of {MAX_DEPTH}", line + 1));
        }
        Ok(match event {
            Event::Scalar(mut scalar) => {
                let anchor = scalar.anchor.take();
                self.add(line, anchor, NodeKind::Scalar(scalar))
            }
            Event::Alias(name) => match self.anchors.get(&name) {
                Some(&of) => self.add(line, None, NodeKind::Alias { name, of }),
                None => return Err(format!("unknown anchor '{name}' referenced")),
            },
            Event::SequenceStart { anchor } => {
                let own = self.add(line, anchor, NodeKind::List(Vec::new()));
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break,
                        (event, line) => items.push(self.node(event, line, depth + 1)?),
                    }
                }
                self.nodes[own].kind = NodeKind::List(items);
                own
            }
            Event::MappingStart { anchor } => {
                let own = self.add(line, anchor, NodeKind::Map(Vec::new()));
                let mut fields = Vec::new();
                loop {
                    let key = match self.next()? {
                        (Event::MappingEnd, _) => break,
                        (event, line) => self.node(event, line, depth + 1)?,
                    };
                    let (event, line) = self.next()?;
                    fields.push((key, self.node(event, line, depth + 1)?));
                }
                self.nodes[own].kind = NodeKind::Map(fields);
                own
            }
            _ => return Err("attempted to go past the end of stream; corrupted value?".to_owned()),
        })
    }
}

/// A value as Go has it, before keys have become text.
#[derive(Debug, Clone)]
enum Yaml {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(Yaml, Yaml)>),
}

struct Reader<'tree> {
    nodes: &'tree [Node],
    /// Aliases that are being followed.
    open: Vec<usize>,
    /// Values read so far, and those of them that an alias brought.
    values: usize,
    aliased: usize,
    room: Room,
    repeated: Vec<String>,
}

impl Reader<'_> {
    fn value(&mut self, at: usize, depth: usize) -> Result<Yaml, String> {
        self.count(depth)?;
        let nodes = self.nodes;
        match &nodes[at].kind {
            NodeKind::Scalar(scalar) => {
                if !self.open.is_empty() {
                    self.room.take(scalar.value.len() + scalar.tag.len())?;
                }
                scalar_value(scalar)
            }
            NodeKind::Alias { .. } => self.follow(at, |reader, of| reader.value(of, depth + 1)),
            NodeKind::List(items) => {
                let items = items.iter().map(|item| self.value(*item, depth + 1));
                Ok(Yaml::List(items.collect::<Result<_, _>>()?))
            }
            NodeKind::Map(_) => {
                let mut map = Fields::default();
                self.fields(at, &mut map, depth)?;
                Ok(Yaml::Map(map.list))
            }
        }
    }

    /// A small document may consist of aliases nearly as a whole, a large one only for a tenth.
    fn count(&mut self, depth: usize) -> Result<(), String> {
        const SMALL: f64 = 400_000.0;
        const LARGE: f64 = 4_000_000.0;
        if depth > MAX_DEPTH {
            return Err(format!("exceeded max depth of {MAX_DEPTH}"));
        }
        self.values += 1;
        self.aliased += usize::from(!self.open.is_empty());
        let (values, aliased) = (self.values as f64, self.aliased as f64);
        let allowed = 0.99 - 0.89 * ((values - SMALL) / (LARGE - SMALL)).clamp(0.0, 1.0);
        match self.aliased > 100 && self.values > 1000 && aliased / values > allowed {
            true => Err(excess()),
            false => Ok(()),
        }
    }

    fn follow<T>(
        &mut self,
        at: usize,
        read: impl FnOnce(&mut Self, usize) -> Result<T, String>,
    ) -> Result<T, String> {
        let NodeKind::Alias { name, of } = &self.nodes[at].kind else { return read(self, at) };
        if self.open.contains(&at) {
            return Err(format!("anchor '{name}' value contains itself"));
        }
        self.open.push(at);
        let value = read(self, *of);
        self.open.pop();
        value
    }

    /// Reads the fields of a map into one that may have some already.
    fn fields(&mut self, at: usize, out: &mut Fields, depth: usize) -> Result<(), String> {
        let nodes = self.nodes;
        let NodeKind::Map(fields) = &nodes[at].kind else { return Err(WANT_MAP.to_owned()) };
        for (key, below) in fields {
            if is_merge(&nodes[*key]) {
                self.merge(*below, out, depth + 1)?;
                continue;
            }
            let key = self.value(*key, depth + 1)?;
            if matches!(key, Yaml::List(_) | Yaml::Map(_)) {
                return Err(format!("invalid map key: {}", key.shown()));
            }
            let value = self.value(*below, depth + 1)?;
            if !out.put(&key, value) && self.repeated.len() < MAX_NOTES {
                let line = nodes[*below].line + 1;
                self.repeated.push(format!("line {line}: key {} already set in map", key.shown()));
            }
        }
        Ok(())
    }

    /// `<<` brings the fields of another map, or of several of which the first is the one that counts.
    fn merge(&mut self, at: usize, out: &mut Fields, depth: usize) -> Result<(), String> {
        let nodes = self.nodes;
        let is_map = |at: usize| match &nodes[at].kind {
            NodeKind::Map(_) => true,
            NodeKind::Alias { of, .. } => matches!(nodes[*of].kind, NodeKind::Map(_)),
            _ => false,
        };
        let sources = match &nodes[at].kind {
            NodeKind::List(items) => items.iter().rev().copied().collect(),
            _ => vec![at],
        };
        for source in sources {
            if !is_map(source) {
                return Err(WANT_MAP.to_owned());
            }
            self.count(depth)?;
            self.follow(source, |reader, of| reader.fields(of, out, depth))?;
        }
        Ok(())
    }
}

const WANT_MAP: &str = "map merge requires map or sequence of maps as the value";

fn is_merge(node: &Node) -> bool {
    matches!(&node.kind, NodeKind::Scalar(scalar)
        if scalar.value == "<<" && (scalar.implicit || scalar.tag == "tag:yaml.org,2002:merge"))
}

/// The fields of a map in the order in which they were first set, found by what they are called.
#[derive(Default)]
struct Fields {
    list: Vec<(Yaml, Yaml)>,
    places: HashMap<String, usize>,
}

impl Fields {
    /// False if the field was there. It is replaced.
    fn put(&mut self, key: &Yaml, value: Yaml) -> bool {
        match self.places.entry(key.shown()) {
            std::collections::hash_map::Entry::Occupied(place) => {
                self.list[*place.get()].1 = value;
                false
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(self.list.len());
                self.list.push((key.clone(), value));
                true
            }
        }
    }
}

fn scalar_value(scalar: &Scalar) -> Result<Yaml, String> {
    let text = &scalar.value;
    let tag = match scalar.tag.strip_prefix(TAG_PREFIX) {
        Some(short) => format!("!!{short}"),
        None => scalar.tag.clone(),
    };
    let resolved = match tag.as_str() {
        "" if !scalar.implicit => Resolved::Text,
        "" | "!!bool" | "!!int" | "!!float" | "!!null" | "!!timestamp" => {
            resolve(text, matches!(tag.as_str(), "" | "!!timestamp"))
        }
        "!!binary" => {
            let bytes: String = text.split(['\n', '\r']).collect();
            let bytes = STANDARD
                .decode(bytes)
                .map_err(|_| "!!binary value contains invalid base64 data".to_owned())?;
            return Ok(Yaml::Text(String::from_utf8_lossy(&bytes).into_owned()));
        }
        _ => Resolved::Text,
    };
    let resolved = match (tag.as_str(), resolved) {
        ("!!float", Resolved::Int(number)) => Resolved::Float(number as f64),
        (wanted @ ("!!bool" | "!!int" | "!!float" | "!!null" | "!!timestamp"), other)
            if other.tag() != wanted =>
        {
            return Err(format!("cannot decode {} `{text}` as a {wanted}", other.tag()));
        }
        (_, resolved) => resolved,
    };
    Ok(match resolved {
        Resolved::Null => Yaml::Null,
        Resolved::Bool(value) => Yaml::Bool(value),
        Resolved::Int(number) => Yaml::Int(number),
        Resolved::Uint(number) => Yaml::Uint(number),
        Resolved::Float(number) => Yaml::Float(number),
        Resolved::Time | Resolved::Text => Yaml::Text(text.clone()),
    })
}

impl Yaml {
    /// As JSON.
    fn put(&self, out: &mut String) -> Result<(), String> {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(number) => out.push_str(&number.to_string()),
            Self::Uint(number) => out.push_str(&number.to_string()),
            Self::Float(number) => out.push_str(&json_float(*number)?),
            Self::Text(text) => put_text(text, out),
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.put(out)?;
                }
                out.push(']');
            }
            Self::Map(fields) => {
                let mut named = BTreeMap::new();
                for (key, value) in fields {
                    named.insert(key.name(value)?, value);
                }
                out.push('{');
                for (index, (name, value)) in named.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    put_text(name, out);
                    out.push(':');
                    value.put(out)?;
                }
                out.push('}');
            }
        }
        Ok(())
    }

    /// The name of a field whose key this is.
    fn name(&self, value: &Yaml) -> Result<String, String> {
        Ok(match self {
            Self::Text(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Float(number) if number.is_nan() => ".nan".to_owned(),
            Self::Float(number) if number.is_infinite() && *number > 0.0 => ".inf".to_owned(),
            Self::Float(number) if number.is_infinite() => "-.inf".to_owned(),
            // No more digits than a small float has.
            Self::Float(number) => crate::golang::shortest(&format!("{:e}", *number as f32)),
            other => {
                let kind = match other {
                    Self::Uint(_) => "uint64",
                    _ => "%!s(<nil>)",
                };
                let (key, value) = (other.shown(), value.shown());
                return Err(format!("unsupported map key of type: {kind}, key: {key}, value: {value}"));
            }
        })
    }

    /// As Go's `%#v` shows it.
    fn shown(&self) -> String {
        match self {
            Self::Null => "<nil>".to_owned(),
            Self::Bool(value) => value.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Uint(number) => format!("{number:#x}"),
            Self::Float(number) => crate::golang::shortest(&format!("{number:e}")),
            Self::Text(text) => crate::field::go_quote(text),
            Self::List(items) => {
                let items: Vec<_> = items.iter().map(Self::shown_inside).collect();
                format!("[]interface {{}}{{{}}}", items.join(", "))
            }
            Self::Map(fields) => {
                let fields: Vec<_> = fields
                    .iter()
                    .map(|(key, value)| format!("{}:{}", key.shown_inside(), value.shown_inside()))
                    .collect();
                format!("map[interface {{}}]interface {{}}{{{}}}", fields.join(", "))
            }
        }
    }

    fn shown_inside(&self) -> String {
        match self {
            Self::Null => "interface {}(nil)".to_owned(),
            other => other.shown(),
        }
    }
}

fn put_text(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// A float as Go writes it into JSON: whole if it is, with an exponent only if it is very large or very small.
fn json_float(number: f64) -> Result<String, String> {
    if !number.is_finite() {
        let name = if number.is_nan() {
            "NaN"
        } else if number > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        };
        return Err(format!("json: unsupported value: {name}"));
    }
    let size = number.abs();
    Ok(if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{number:e}");
        match text.contains("e-") {
            true => text,
            false => text.replace('e', "e+"),
        }
    } else {
        number.to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCESS: &str = "yaml: document contains excessive aliasing";

    #[test]
    fn aliases_of_a_long_text_do_not_fill_the_memory() {
        let text =
            |aliases: usize| format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a,".repeat(aliases));
        assert_eq!(to_json(text(300_000).as_bytes()), Err(EXCESS.to_owned()));
        assert_eq!(to_json(text(32).as_bytes()), Err(EXCESS.to_owned()));
        let made = to_json(text(16).as_bytes()).unwrap().text;
        assert!(made.len() > 17 << 20, "{}", made.len());
        // The same by keys, and by maps that are merged.
        let keys = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "{*a : 1},".repeat(100_000));
        assert_eq!(to_json(keys.as_bytes()), Err(EXCESS.to_owned()));
        let maps = format!("a: &a {{b: {}}}\nb: [{}]\n", "x".repeat(1 << 20), "{<<: *a},".repeat(100_000));
        assert_eq!(to_json(maps.as_bytes()), Err(EXCESS.to_owned()));
    }

    #[test]
    fn tags_with_a_long_prefix_do_not_fill_the_memory() {
        for item in ["x", "[]", "{}"] {
            let items = format!("- !e!a {item}\n").repeat(100_000);
            let text = format!("%TAG !e! !{}\n---\n{items}", "x".repeat(1 << 20));
            assert_eq!(to_json(text.as_bytes()), Err(EXCESS.to_owned()));
        }
        let many: String = (0..200_000).map(|n| format!("%TAG !{n}! x\n")).collect();
        let said = to_json((many + "---\na").as_bytes());
        assert_eq!(said, Err("yaml: document contains too many directives".to_owned()));
        let few = to_json(b"%TAG !e! tag:yaml.org,2002:\n---\n- !e!str 1\n- !!str 2\n- 3\n").unwrap();
        assert_eq!(few.text, r#"["1","2",3]"#);
    }

    #[test]
    fn a_hundred_repetitions_are_told() {
        assert_eq!(to_json(b"a: 1\na: 2\n").unwrap().repeated, ["line 2: key \"a\" already set in map"]);
        assert_eq!(to_json("a: 1\n".repeat(1000).as_bytes()).unwrap().repeated.len(), MAX_NOTES);
        assert_eq!(
            to_json("\"\\e\": 1\n".repeat(2).as_bytes()).unwrap().repeated,
            ["line 2: key \"\\x1b\" already set in map"]
        );
    }

    #[test]
    fn depth_ends_the_reading_at_once() {
        for piece in ["[", "{a: ", "- ", "? ", "[\n", "[a, ", "!a ["] {
            let said = to_json(piece.repeat(1_000_000).as_bytes()).unwrap_err();
            assert!(said.ends_with("exceeded max depth of 256"), "{piece:?}: {said}");
        }
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(to_json(deep(MAX_DEPTH + 1).as_bytes()).is_ok());
        assert!(to_json(deep(MAX_DEPTH + 2).as_bytes()).is_err());
    }
}
