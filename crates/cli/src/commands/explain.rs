//! `explain`: the server's schemas, read aloud.

use std::io::Write;

use clap::Args;

use crate::error::{CliError, message};
use crate::openapi::{Schema, document};
use crate::session::Session;

/// Get documentation for a resource
#[derive(Args, Debug)]
pub struct Explain {
    /// TYPE[.FIELD.PATH]
    args: Vec<String>,
    /// When true, print the name of all the fields recursively
    #[arg(long)]
    recursive: bool,
    /// Use given api-version (group/version) of the resource
    #[arg(long, default_value = "", hide_default_value = true)]
    api_version: String,
    /// Format in which to render the schema; valid values are: (plaintext, plaintext-openapiv2)
    #[arg(long, default_value = "plaintext")]
    output: String,
}

const WIDTH: usize = 80;
/// No schema is deeper; some contain themselves.
const MAX_DEPTH: usize = 50;

impl Explain {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let [word] = &self.args[..] else {
            return Err(if self.args.is_empty() {
                message(format!(
                    "You must specify the type of resource to explain. Use \"{} api-resources\" for a complete list of supported resources.",
                    session.program.name()
                ))
            } else {
                message("We accept only this format: explain RESOURCE")
            });
        };
        if !matches!(self.output.as_str(), "plaintext" | "plaintext-openapiv2") {
            return Err(message(format!("unrecognized format: {}", self.output)));
        }
        let (name, path) = word.split_once('.').unwrap_or((word, ""));
        let mut resource = match session.resource(word).await {
            Ok(found) if word.contains('.') && found.group_resource() == *word => found,
            _ => session.resource(name).await.map_err(|error| match error {
                CliError::Message(text) => CliError::Plain(text),
                other => other,
            })?,
        };
        let path = if resource.group_resource() == *word { "" } else { path };
        if !self.api_version.is_empty() {
            let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", &self.api_version));
            let discovery = session.discovery().await?;
            let other = discovery.resources.iter().find(|other| {
                other.group == group && other.version == version && other.name == resource.name
            });
            resource = other.cloned().ok_or_else(|| {
                message(format!(
                    "couldn't find resource for \"{}, Resource={}\"",
                    self.api_version, resource.name
                ))
            })?;
        }
        let document = document(session, &resource).await?;
        let missing = || {
            message(format!(
                "couldn't find resource for \"{}, Kind={}\"",
                resource.api_version(),
                resource.kind
            ))
        };
        let document = document.ok_or_else(missing)?;
        let root = document.kind(&resource.group, &resource.version, &resource.kind).ok_or_else(missing)?;
        let mut text = String::new();
        if !resource.group.is_empty() {
            text.push_str(&format!("GROUP:      {}\n", resource.group));
        }
        text.push_str(&format!("KIND:       {}\nVERSION:    {}\n\n", resource.kind, resource.version));
        let mut place = root;
        let mut field = "";
        for part in path.split('.').filter(|part| !part.is_empty()) {
            let Some(found) = inside(place).field(part) else {
                out.write_all(text.as_bytes())?;
                return Err(message(format!("field {part:?} does not exist")));
            };
            place = found;
            field = part;
        }
        if !field.is_empty() {
            let list = type_of(place);
            text.push_str(&format!("FIELD: {field} <{list}>\n"));
            if let Some(values) = place.declared["enum"].as_array().or_else(|| place.node["enum"].as_array())
            {
                text.push_str("ENUM:\n");
                for value in values {
                    text.push_str(&format!("    {}\n", apimachinery::golang::plain(value)));
                }
            } else {
                text.push('\n');
            }
            text.push('\n');
        }
        text.push_str("DESCRIPTION:\n");
        let mut described: Vec<&str> = Vec::new();
        for schema in [Some(place), place.items(), place.values().filter(|_| place.fields().is_empty())]
            .into_iter()
            .flatten()
        {
            for said in [&schema.declared["description"], &schema.node["description"]] {
                if let Some(said) = said.as_str().filter(|said| !said.is_empty() && !described.contains(said))
                {
                    described.push(said);
                }
            }
        }
        if described.is_empty() {
            described.push("<empty>");
        }
        for line in described.into_iter().flat_map(|said| wrapped(said, WIDTH - 4)) {
            text.push_str(&format!("    {line}\n"));
        }
        text.push_str("    \n");
        let content = inside(place);
        if !content.fields().is_empty() {
            text.push_str("FIELDS:\n");
            for name in content.fields() {
                let Some(schema) = content.field(name) else { continue };
                self.field(content, name, schema, 1, &mut text);
            }
        }
        text.push('\n');
        out.write_all(text.as_bytes())?;
        Ok(())
    }

    fn field(&self, owner: Schema<'_>, name: &str, schema: Schema<'_>, depth: usize, text: &mut String) {
        let indent = "  ".repeat(depth);
        let required = if owner.is_required(name) { " -required-" } else { "" };
        text.push_str(&format!("{indent}{name}\t<{}>{required}\n", type_of(schema)));
        if let Some(values) = enumerated(schema) {
            text.push_str(&format!("{indent}{values}"));
        }
        if self.recursive {
            let content = inside(schema);
            if depth < MAX_DEPTH && !repeats(schema, depth) {
                for inner in content.fields() {
                    if let Some(found) = content.field(inner) {
                        self.field(content, inner, found, depth + 1, text);
                    }
                }
            }
            return;
        }
        let described = schema.description();
        let described = if described.is_empty() { "<no description>" } else { described };
        for line in wrapped(described, WIDTH - 4) {
            text.push_str(&format!("{indent}  {line}\n"));
        }
        text.push('\n');
    }
}

/// A schema of schemas contains itself; its second appearance says nothing new.
fn repeats(schema: Schema<'_>, depth: usize) -> bool {
    depth > 12 && schema.node["properties"].get("allOf").is_some()
}

/// What is inside lists and maps.
fn inside(schema: Schema<'_>) -> Schema<'_> {
    let mut place = schema;
    for _ in 0..8 {
        match place.items().or_else(|| if place.fields().is_empty() { place.values() } else { None }) {
            Some(inner) => place = inner,
            None => break,
        }
    }
    place
}

/// `string`, `[]Container`, `map[string]string`.
fn type_of(schema: Schema<'_>) -> String {
    if let Some(items) = schema.items() {
        return format!("[]{}", type_of(items));
    }
    if let Some(values) = schema.values()
        && schema.fields().is_empty()
    {
        return format!("map[string]{}", type_of(values));
    }
    let reference = schema.declared["$ref"].as_str().or_else(|| schema.declared["allOf"][0]["$ref"].as_str());
    if let Some(reference) = reference {
        let name = reference.rsplit('/').next().unwrap_or_default().rsplit('.').next().unwrap_or_default();
        return name.to_owned();
    }
    if schema.node["x-kubernetes-int-or-string"] == true || schema.node["format"] == "int-or-string" {
        return "IntOrString".to_owned();
    }
    match schema.node["type"].as_str() {
        Some("object") => "Object".to_owned(),
        Some(word) => word.to_owned(),
        None => "Object".to_owned(),
    }
}

fn enumerated(schema: Schema<'_>) -> Option<String> {
    let values = schema.declared["enum"].as_array().or_else(|| schema.node["enum"].as_array())?;
    let words: Vec<String> = values.iter().map(apimachinery::golang::plain).collect();
    Some(format!("enum: {}\n", words.join(", ")))
}

/// Lines of at most that many letters, cut between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}
