//! `kelson explain install-config.path`: the schema, read aloud.

use thiserror::Error;

use crate::install_config::schema::{Field, Kind, ROOT};

/// Why nothing can be explained.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ExplainError {
    /// Another subject.
    #[error("only install-config is explained here, not {0}")]
    Subject(String),
    /// No such field.
    #[error("{parent} has no field {name}; it has: {}", known.join(", "))]
    NoField {
        /// Where it was looked for.
        parent: String,
        /// What was looked for.
        name: String,
        /// What is there.
        known: Vec<&'static str>,
    },
}

/// Documentation of a path such as `install-config.networking.clusterNetwork`.
pub fn explain(path: &str) -> Result<String, ExplainError> {
    let mut parts = path.split('.');
    let subject = parts.next().unwrap_or_default();
    if subject != "install-config" && subject != "installconfig" {
        return Err(ExplainError::Subject(subject.to_owned()));
    }
    let mut kind = Kind::Object(ROOT);
    let mut doc = "What a cluster is to be: the one file from which everything else is made.";
    let mut default = "";
    let mut walked = subject.to_owned();
    for name in parts {
        let name = name.split('[').next().unwrap_or_default();
        let fields = fields_of(&kind);
        let field = fields.iter().find(|field| field.name == name).ok_or_else(|| ExplainError::NoField {
            parent: walked.clone(),
            name: name.to_owned(),
            known: fields.iter().map(|field| field.name).collect(),
        })?;
        (kind, doc, default) = (field.kind, field.doc, field.default);
        walked = format!("{walked}.{name}");
    }
    let mut out = format!("PATH:     {walked}\nTYPE:     {}\n", type_name(&kind));
    if !default.is_empty() {
        out.push_str(&format!("DEFAULT:  {default}\n"));
    }
    if let Kind::Choice(choices) = kind {
        let shown: Vec<&str> = choices.iter().copied().filter(|choice| !choice.is_empty()).collect();
        out.push_str(&format!("CHOICES:  {}\n", shown.join(", ")));
    }
    out.push_str(&format!("\n  {doc}\n"));
    let fields = fields_of(&kind);
    if !fields.is_empty() {
        out.push_str("\nFIELDS:\n");
    }
    for Field { name, kind, default, doc } in fields {
        let default = if default.is_empty() { String::new() } else { format!(" (default: {default})") };
        out.push_str(&format!("  {name} <{}>{default}\n      {doc}\n", type_name(kind)));
    }
    Ok(out)
}

/// Fields of an object, or of the objects in a list.
fn fields_of(kind: &Kind) -> &'static [Field] {
    match kind {
        Kind::Object(fields) => fields,
        Kind::List(element) => fields_of(element),
        _ => &[],
    }
}

fn type_name(kind: &Kind) -> String {
    match kind {
        Kind::Text | Kind::Choice(_) => "string".to_owned(),
        Kind::Number => "integer".to_owned(),
        Kind::Flag => "boolean".to_owned(),
        Kind::Object(_) | Kind::Any => "object".to_owned(),
        Kind::Labels => "map[string]string".to_owned(),
        Kind::List(element) => format!("[]{}", type_name(element)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_explains_itself() {
        fn walk(path: &str, fields: &[Field]) {
            for field in fields {
                let path = format!("{path}.{}", field.name);
                let text = explain(&path).unwrap();
                assert!(text.contains(field.doc) && !field.doc.is_empty(), "{path}");
                walk(&path, fields_of(&field.kind));
            }
        }
        walk("install-config", ROOT);
        assert!(
            explain("install-config.networking.clusterNetwork").unwrap().contains("hostPrefix <integer>")
        );
    }

    #[test]
    fn an_unknown_field_names_its_neighbours() {
        let error = explain("install-config.metadata.nome").unwrap_err();
        assert!(error.to_string().contains("it has: name"), "{error}");
        assert!(matches!(explain("pods"), Err(ExplainError::Subject(_))));
    }
}
