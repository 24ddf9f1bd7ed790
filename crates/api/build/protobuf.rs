//! Reads the prost structs of k8s-pb: field numbers, nesting, the markers in comments, and what is said of lists and
//! query options, which k8s-openapi leaves out.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
};

use super::openapi::Property;

pub type Marks = BTreeMap<String, Vec<String>>;

struct Field {
    name: String,
    tag: u16,
    /// Last part of the Rust type of a message, lower case.
    message: Option<String>,
    repeated: bool,
    marks: Marks,
    description: String,
}

#[derive(Default)]
pub struct Messages {
    /// Package and lower-case struct name to fields.
    structs: HashMap<(String, String), Vec<Field>>,
    /// The same to what the struct is.
    descriptions: HashMap<(String, String), String>,
}

/// Where a JSON field travels.
pub struct Slot {
    pub tag: u16,
    pub via: u8,
    pub marks: Marks,
}

#[derive(Default)]
pub struct Layout {
    pub slots: HashMap<String, Slot>,
    /// Nested messages that JSON does not show: tag and the inline they sit in.
    pub inlines: Vec<(u16, u8)>,
}

/// Names are spelled differently (`volume_id`, `volumeID`, `$ref`): compare their letters and digits only.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

impl Messages {
    pub fn read(root: &Path, packages: &[&str]) -> Self {
        let mut messages = Self::default();
        let more =
            ["apimachinery/pkg/api/resource", "apimachinery/pkg/runtime", "apimachinery/pkg/util/intstr"];
        for package in packages.iter().chain(&more) {
            let path = root.join(package).join("mod.rs");
            let text =
                fs::read_to_string(&path).unwrap_or_else(|err| panic!("read {}: {err}", path.display()));
            messages.parse(package, &text);
        }
        messages
    }

    fn parse(&mut self, package: &str, text: &str) {
        let mut current: Option<(String, Vec<Field>)> = None;
        let mut marks = Marks::new();
        let mut comment: Vec<&str> = Vec::new();
        let mut attribute: Option<(u16, String)> = None;
        let mut declaration = String::new();
        for line in text.lines() {
            let line = line.trim();
            if let Some(mark) = line.strip_prefix("/// +") {
                let (key, value) = mark.split_once('=').unwrap_or((mark, ""));
                marks.entry(key.trim().to_owned()).or_default().push(value.trim().to_owned());
            } else if let Some(text) = line.strip_prefix("///") {
                comment.push(text.strip_prefix(' ').unwrap_or(text));
            } else if let Some(rest) = line.strip_prefix("#[prost(") {
                let tag = rest.split("tag = \"").nth(1).and_then(|rest| rest.split('"').next());
                if let Some(tag) = tag.and_then(|tag| tag.parse().ok()) {
                    attribute = Some((tag, rest.to_owned()));
                }
            } else if let Some(rest) = line.strip_prefix("pub struct ") {
                let name = plain(rest.split([' ', '{']).next().unwrap_or_default());
                marks.clear();
                let key = (package.to_owned(), name.clone());
                self.descriptions.insert(key, flow(&std::mem::take(&mut comment)));
                if line.ends_with("{}") {
                    self.structs.insert((package.to_owned(), name), Vec::new());
                } else {
                    current = Some((name, Vec::new()));
                }
            } else if line == "}" {
                if let Some((name, fields)) = current.take() {
                    self.structs.insert((package.to_owned(), name), fields);
                }
                marks.clear();
                comment.clear();
            } else if current.is_some() && (line.starts_with("pub ") || !declaration.is_empty()) {
                declaration.push_str(line);
                if !line.ends_with(',') {
                    continue;
                }
                let text = std::mem::take(&mut declaration);
                let (Some((tag, kind)), Some((_, fields))) = (attribute.take(), current.as_mut()) else {
                    continue;
                };
                let (name, ty) = text.trim_start_matches("pub ").split_once(':').expect("a field has a type");
                let inner = plain(ty.rsplit([':', '<', ' ']).next().unwrap_or_default());
                let message = (kind.starts_with("message") || inner == "extravalue").then_some(inner);
                fields.push(Field {
                    name: plain(name.trim_start_matches("r#")),
                    tag,
                    message,
                    repeated: kind.contains("repeated") || kind.contains("map ="),
                    marks: std::mem::take(&mut marks),
                    description: flow(&std::mem::take(&mut comment)),
                });
            }
        }
    }

    /// What is said of a type and of its fields, these by the letters of their names.
    pub fn descriptions(&self, path: &str) -> Option<(&str, Vec<(&str, &str)>)> {
        let (package, name) = path.rsplit_once('/')?;
        let key = (package.to_owned(), plain(name));
        let fields = self.structs.get(&key)?.iter();
        let fields = fields.map(|field| (field.name.as_str(), field.description.as_str())).collect();
        Some((self.descriptions.get(&key)?, fields))
    }

    /// Places the JSON fields of a type in its message.
    pub fn layout(&self, path: &str, properties: &[Property]) -> Layout {
        let mut layout = Layout::default();
        let names: HashMap<String, &str> =
            properties.iter().map(|property| (plain(&property.name), property.name.as_str())).collect();
        let (package, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.place(package, &plain(name), 0, &names, &mut layout);
        layout
    }

    fn place(&self, package: &str, name: &str, via: u8, names: &HashMap<String, &str>, layout: &mut Layout) {
        let Some(fields) = self.structs.get(&(package.to_owned(), name.to_owned())) else { return };
        for field in fields {
            if let Some(json) = names.get(&field.name) {
                let mut marks = field.marks.clone();
                if field.message.as_deref() == Some("extravalue") || field.message.as_deref() == Some("verbs")
                {
                    marks.insert("wrapped".into(), Vec::new());
                }
                layout.slots.entry((*json).to_owned()).or_insert(Slot { tag: field.tag, via, marks });
            } else if let Some(message) = &field.message
                && !field.repeated
                && self.structs.get(&(package.to_owned(), message.clone())).is_some_and(|inner| {
                    inner.iter().any(|inner| names.contains_key(&inner.name) || inner.message.is_some())
                })
                && layout.inlines.len() < 8
            {
                layout.inlines.push((field.tag, via));
                let number = layout.inlines.len() as u8;
                self.place(package, message, number, names, layout);
            }
        }
    }
}

/// Lines of a comment as the text that they were before: one line a paragraph, indented ones line by line, addresses
/// without the brackets that rustdoc wants.
fn flow(lines: &[&str]) -> String {
    let mut out = String::new();
    let mut indented = false;
    let texts = lines.iter().map(|line| line.trim_end()).filter(|line| !line.starts_with("```"));
    for line in texts {
        let apart = indented | line.starts_with([' ', '\t']);
        indented = line.starts_with([' ', '\t']);
        if line.is_empty() {
            if !out.is_empty() {
                out.push_str("\n\n");
            }
            continue;
        }
        if !out.is_empty() && !out.ends_with('\n') {
            out.push(if apart { '\n' } else { ' ' });
        }
        out.push_str(line);
    }
    let mut plain = String::new();
    let mut rest = out.trim_end();
    while let Some((before, address)) = rest.split_once("<http") {
        let (inside, after) = address.split_once('>').unwrap_or((address, ""));
        plain.push_str(&format!("{before}http{inside}"));
        rest = after;
    }
    plain.push_str(rest);
    plain.replace("\\[", "[").replace("\\]", "]")
}
