//! Reads the `json_schema!` texts of k8s-openapi.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fs,
    path::Path,
};

/// A struct type and its properties.
pub struct Type {
    /// `api/core/v1/Pod`
    pub path: String,
    /// `io.k8s.api.core.v1.Pod`
    pub definition: String,
    /// `Pod`
    pub name: String,
    pub description: String,
    pub properties: Vec<Property>,
}

pub struct Property {
    pub name: String,
    pub description: String,
    pub required: bool,
    pub schema: Shape,
}

pub enum Shape {
    /// One of the table's letters.
    Scalar(char),
    Reference(String),
    Map(Box<Shape>),
    List(Box<Shape>),
}

pub struct Openapi {
    pub types: Vec<Type>,
}

/// Types that the table spells as a letter; they have no fields of their own.
const SPECIAL: &[&str] = &[
    "Quantity",
    "IntOrString",
    "Time",
    "MicroTime",
    "Duration",
    "RawExtension",
    "JSON",
    "FieldsV1",
    "JSONSchemaPropsOrBool",
    "JSONSchemaPropsOrArray",
    "JSONSchemaPropsOrStringArray",
    "Patch",
    "WatchEvent",
];

impl Openapi {
    /// Reads every type of the given packages and what they refer to.
    pub fn read(root: &Path, packages: &[&str]) -> Self {
        let mut files: HashMap<String, String> = HashMap::new();
        let mut wanted: VecDeque<String> = VecDeque::new();
        for package in packages {
            for (name, file) in modules(root, package) {
                files.insert(format!("{package}/{name}"), file);
                wanted.push_back(format!("{package}/{name}"));
            }
        }
        let mut types = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(path) = wanted.pop_front() {
            let (package, name) = path.rsplit_once('/').expect("a type sits in a package");
            if SPECIAL.contains(&name) || !seen.insert(path.clone()) {
                continue;
            }
            if !files.contains_key(&path) {
                for (name, file) in modules(root, package) {
                    files.insert(format!("{package}/{name}"), file);
                }
            }
            let Some(file) = files.get(&path) else { panic!("{path} is declared in its package") };
            let text = fs::read_to_string(root.join(package).join(format!("{file}.rs")))
                .unwrap_or_else(|err| panic!("read {path}: {err}"));
            if let Some(ty) = parse_type(&path, name, &text) {
                for property in &ty.properties {
                    references(&property.schema, &mut |path| wanted.push_back(path.to_owned()));
                }
                types.push(ty);
            }
        }
        types.sort_by(|a, b| a.path.cmp(&b.path));
        Self { types }
    }
}

fn references(shape: &Shape, found: &mut dyn FnMut(&str)) {
    match shape {
        Shape::Reference(path) => found(path),
        Shape::Map(inner) | Shape::List(inner) => references(inner, found),
        Shape::Scalar(_) => {}
    }
}

/// `pub use self::pod::Pod;` lines: type name and file.
fn modules(root: &Path, package: &str) -> Vec<(String, String)> {
    let path = root.join(package).join("mod.rs");
    let text = fs::read_to_string(&path).unwrap_or_else(|err| panic!("read {}: {err}", path.display()));
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("pub use self::")?.strip_suffix(';')?.split_once("::"))
        .filter(|(_, name)| !name.contains(['{', ' ', '*']))
        .map(|(file, name)| (name.to_owned(), file.trim_start_matches("r#").to_owned()))
        .collect()
}

fn parse_type(path: &str, name: &str, text: &str) -> Option<Type> {
    let definition = text.split_once("fn schema_name()")?.1.split_once('"')?.1.split_once('"')?.0.to_owned();
    let body = text.split_once("json_schema!(")?.1;
    let tree = Parser { text: body.as_bytes(), at: 0 }.value();
    let Tree::Object(mut object) = tree else { return None };
    let description = object.remove("description").map(Tree::text).unwrap_or_default();
    let required: HashSet<String> = match object.remove("required") {
        Some(Tree::List(list)) => list.into_iter().map(Tree::text).collect(),
        _ => HashSet::new(),
    };
    let properties = match object.remove("properties") {
        Some(Tree::Object(properties)) => properties,
        _ => BTreeMap::new(),
    };
    let properties = properties
        .into_iter()
        .map(|(name, tree)| {
            let description = match &tree {
                Tree::Object(object) => {
                    object.get("description").cloned().map(Tree::text).unwrap_or_default()
                }
                Tree::Reference(_, description) => description.clone(),
                _ => String::new(),
            };
            Property { required: required.contains(&name), description, schema: shape(&tree), name }
        })
        .collect();
    Some(Type { path: path.to_owned(), definition, name: name.to_owned(), description, properties })
}

fn shape(tree: &Tree) -> Shape {
    let object = match tree {
        Tree::Reference(path, _) => return Shape::Reference(path.clone()),
        Tree::Object(object) => object,
        _ => panic!("a property is an object or a reference"),
    };
    let text = |key: &str| object.get(key).cloned().map(Tree::text).unwrap_or_default();
    match (text("type").as_str(), text("format").as_str()) {
        ("string", "byte") => Shape::Scalar('y'),
        ("string", _) => Shape::Scalar('s'),
        ("integer", "int32") => Shape::Scalar('i'),
        ("integer", _) => Shape::Scalar('l'),
        ("number", _) => Shape::Scalar('d'),
        ("boolean", _) => Shape::Scalar('b'),
        ("array", _) => Shape::List(Box::new(object.get("items").map_or(Shape::Scalar('*'), shape))),
        ("object", _) => match object.get("additionalProperties") {
            Some(value) => Shape::Map(Box::new(shape(value))),
            None => Shape::Scalar('*'),
        },
        _ => Shape::Scalar('*'),
    }
}

/// The macro's argument: JSON with trailing commas and with Rust expressions in parentheses.
#[derive(Clone)]
enum Tree {
    Object(BTreeMap<String, Tree>),
    List(Vec<Tree>),
    Text(String),
    Other,
    Reference(String, String),
}

impl Tree {
    fn text(self) -> String {
        match self {
            Tree::Text(text) => text,
            _ => String::new(),
        }
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn skip(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\n' | b',' | b':')) {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Tree {
        self.skip();
        match self.text[self.at] {
            b'{' => {
                self.at += 1;
                let mut object = BTreeMap::new();
                loop {
                    self.skip();
                    if self.text[self.at] == b'}' {
                        self.at += 1;
                        return Tree::Object(object);
                    }
                    let key = self.string();
                    let value = self.value();
                    object.insert(key, value);
                }
            }
            b'[' => {
                self.at += 1;
                let mut list = Vec::new();
                loop {
                    self.skip();
                    if self.text[self.at] == b']' {
                        self.at += 1;
                        return Tree::List(list);
                    }
                    list.push(self.value());
                }
            }
            b'"' => Tree::Text(self.string()),
            b'(' => self.expression(),
            _ => {
                let start = self.at;
                while !matches!(self.text[self.at], b',' | b'}' | b']' | b'\n') {
                    self.at += 1;
                }
                let text = String::from_utf8_lossy(&self.text[start..self.at]);
                match text.split_once("::<crate::").and_then(|(_, rest)| rest.split_once('>')) {
                    Some((path, _)) => Tree::Reference(path.replace("::", "/"), String::new()),
                    None => Tree::Other,
                }
            }
        }
    }

    /// `(__gen.subschema_for::<crate::a::B>())`, or a block that also inserts a description.
    fn expression(&mut self) -> Tree {
        let (mut depth, mut path, mut strings) = (0, String::new(), Vec::new());
        loop {
            match self.text[self.at] {
                b'(' => depth += 1,
                b')' => {
                    depth -= 1;
                    if depth == 0 {
                        self.at += 1;
                        let description = strings.pop().unwrap_or_default();
                        return Tree::Reference(path, description);
                    }
                }
                b'"' => {
                    strings.push(self.string());
                    continue;
                }
                b'<' if path.is_empty() => {
                    let end = self.at + self.text[self.at..].iter().position(|&c| c == b'>').expect("closed");
                    let inside = String::from_utf8_lossy(&self.text[self.at + 1..end]);
                    path = inside.trim_start_matches("crate::").replace("::", "/").replace("r#", "");
                    self.at = end;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn string(&mut self) -> String {
        self.at += 1;
        let mut out = Vec::new();
        loop {
            match self.text[self.at] {
                b'"' => {
                    self.at += 1;
                    return String::from_utf8(out).expect("source text is UTF-8");
                }
                b'\\' => {
                    self.at += 1;
                    match self.text[self.at] {
                        b'n' => out.push(b'\n'),
                        b't' => out.push(b'\t'),
                        b'r' => out.push(b'\r'),
                        b'u' => {
                            let end = self.at
                                + self.text[self.at..].iter().position(|&c| c == b'}').expect("closed");
                            let hex = String::from_utf8_lossy(&self.text[self.at + 2..end]);
                            let c =
                                u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32).unwrap_or(' ');
                            out.extend(c.to_string().bytes());
                            self.at = end;
                        }
                        other => out.push(other),
                    }
                    self.at += 1;
                }
                other => {
                    out.push(other);
                    self.at += 1;
                }
            }
        }
    }
}
