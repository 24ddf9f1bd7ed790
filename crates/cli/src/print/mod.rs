//! The output forms: tables, YAML, JSON, names, paths, templates and columns of one's own.

pub mod age;
mod columns;
pub mod json;
pub mod jsonpath;
pub mod kyaml;
pub mod table;
pub mod tabwriter;
pub mod template;

use std::fs;
use std::io::Write;

use apimachinery::yaml;
use clap::{ArgAction, Args};
use serde_json::Value;

use crate::error::{CliError, message};
use crate::flags::DryRun;
use crate::resource::{is_list, name_of};
pub use columns::Columns;
use jsonpath::JsonPath;
use template::Template;

/// `-o` and what belongs to it.
#[derive(Args, Clone, Debug, Default)]
pub struct OutputFlags {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "", hide_default_value = true)]
    pub output: String,
    /// Template string or path to template file to use when -o=go-template, -o=go-template-file
    #[arg(long, default_value = "", hide_default_value = true)]
    pub template: String,
    /// If true, ignore any errors in templates when a field or map key is missing in the template
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    pub allow_missing_template_keys: bool,
    /// If true, keep the managedFields when printing objects in JSON or YAML format
    #[arg(long)]
    pub show_managed_fields: bool,
}

const GENERIC: &str = "go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,yaml";

/// One form.
pub enum Printer {
    Json,
    Yaml { began: bool },
    KYaml { began: bool },
    Name,
    Path { path: JsonPath, as_json: bool },
    Template(Template),
    Columns(Columns),
}

/// A printer and what it leaves out.
pub struct Output {
    printer: Printer,
    managed_fields: bool,
    source: String,
}

impl OutputFlags {
    /// The printer of the form that was asked for; `None` for the form that people read.
    pub fn printer(&self) -> Result<Option<Output>, CliError> {
        self.printer_among(GENERIC, false)
    }

    pub fn printer_among(&self, allowed: &str, columns: bool) -> Result<Option<Output>, CliError> {
        let format = match self.output.as_str() {
            "" if !self.template.is_empty() => "go-template",
            other => other,
        };
        if format.is_empty() {
            return Ok(None);
        }
        let (word, argument) = match format.split_once('=') {
            Some((word, argument)) => (word, Some(argument.to_owned())),
            None => (format, None),
        };
        let argument = argument.or_else(|| Some(self.template.clone()).filter(|text| !text.is_empty()));
        let file = |path: &str| {
            fs::read_to_string(path).map_err(|error| {
                message(format!("error reading --template {path}, {}", crate::go_io(&error, path)))
            })
        };
        let wanted = |what: &str| argument.clone().ok_or_else(|| message(what));
        let mut source = String::new();
        let printer = match word {
            "json" => Printer::Json,
            "yaml" => Printer::Yaml { began: false },
            "kyaml" => Printer::KYaml { began: false },
            "name" => Printer::Name,
            "jsonpath" | "jsonpath-as-json" | "jsonpath-file" => {
                let text = wanted("template format specified but no template given")?;
                let text = if word == "jsonpath-file" { file(&text)? } else { text };
                let mut path = JsonPath::parse(&text)
                    .map_err(|error| message(format!("error parsing jsonpath {text}, {error}")))?;
                path.strict = !self.allow_missing_template_keys;
                source = text;
                Printer::Path { path, as_json: word == "jsonpath-as-json" }
            }
            "go-template" | "template" | "go-template-file" | "templatefile" => {
                let text = wanted("template format specified but no template given")?;
                let text = if word.ends_with("file") { file(&text)? } else { text };
                let mut template = Template::parse(&text)
                    .map_err(|error| message(format!("error parsing template {text}, {error}")))?;
                template.strict = !self.allow_missing_template_keys;
                source = text;
                Printer::Template(template)
            }
            "custom-columns" | "custom-columns-file" if columns => {
                let text = wanted("custom-columns format specified but no custom columns given")?;
                Printer::Columns(if word == "custom-columns" {
                    Columns::parse(&text)?
                } else {
                    Columns::of_file(&file(&text)?)?
                })
            }
            _ => {
                return Err(message(format!(
                    "unable to match a printer suitable for the output format {format:?}, allowed formats are: {allowed}"
                )));
            }
        };
        Ok(Some(Output { printer, managed_fields: self.show_managed_fields, source }))
    }

    /// As [`Self::report`], for objects that kubectl has a type of: JSON shows their fields as they stand.
    pub fn report_typed(
        &self,
        object: &Value,
        operation: &str,
        dry_run: DryRun,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        match self.printer()? {
            Some(mut printer) => printer.print_typed(object, out),
            None => self.report(object, operation, dry_run, out),
        }
    }

    /// Prints the object in the form that was asked for, or `kind/name operation`.
    pub fn report(
        &self,
        object: &Value,
        operation: &str,
        dry_run: DryRun,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        match self.printer()? {
            Some(mut printer) => printer.print(object, out),
            None => {
                writeln!(out, "{} {operation}{}", kind_and_name(object), dry_run.suffix())?;
                Ok(())
            }
        }
    }
}

/// `deployment.apps/web`, from the object alone.
pub fn kind_and_name(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or("<unknown>").to_lowercase();
    let group =
        object["apiVersion"].as_str().and_then(|version| version.rsplit_once('/')).map(|(group, _)| group);
    match group {
        Some(group) => format!("{kind}.{group}/{}", name_of(object)),
        None => format!("{kind}/{}", name_of(object)),
    }
}

impl Output {
    pub fn no_headers(&mut self) {
        if let Printer::Columns(columns) = &mut self.printer {
            columns.no_headers = true;
        }
    }

    /// An object whose fields are in the order of kubectl's own type.
    pub fn print_typed(&mut self, object: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.printer, Printer::Json) {
            return self.print(object, out);
        }
        let mut object = object.clone();
        if !self.managed_fields {
            drop_managed_fields(&mut object);
        }
        let mut ordered = serde_json::Map::new();
        for name in ["kind", "apiVersion"] {
            if let Some(value) = object.get_mut(name) {
                ordered.insert(name.to_owned(), value.take());
            }
        }
        for (name, value) in object.as_object_mut().map(std::mem::take).into_iter().flatten() {
            ordered.entry(name).or_insert(value);
        }
        writeln!(out, "{}", json::pretty_unsorted(&Value::Object(ordered)))?;
        Ok(())
    }

    /// A list that kubectl makes itself, whose fields stand in another order in JSON.
    pub fn print_typed_list(&mut self, list: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.printer, Printer::Json) {
            return self.print(list, out);
        }
        let mut list = list.clone();
        if !self.managed_fields {
            drop_managed_fields(&mut list);
        }
        let text = json::pretty(&serde_json::json!({"items": list["items"]}));
        let items = text.strip_prefix('{').unwrap_or(&text);
        writeln!(
            out,
            "{{\n    \"kind\": \"List\",\n    \"apiVersion\": \"v1\",\n    \"metadata\": {{}},{items}"
        )?;
        Ok(())
    }

    pub fn print(&mut self, object: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        let mut trimmed;
        let object = if self.managed_fields || !has_managed_fields(object) {
            object
        } else {
            trimmed = object.clone();
            drop_managed_fields(&mut trimmed);
            &trimmed
        };
        match &mut self.printer {
            Printer::Json => writeln!(out, "{}", json::pretty(object))?,
            Printer::Yaml { began } => {
                if std::mem::replace(began, true) {
                    writeln!(out, "---")?;
                }
                out.write_all(yaml::write(object).as_bytes())?;
            }
            Printer::KYaml { began } => {
                if !std::mem::replace(began, true) {
                    writeln!(out, "---")?;
                }
                writeln!(out, "{}", kyaml::write(object))?;
            }
            Printer::Name => {
                for item in if is_list(object) {
                    object["items"].as_array().cloned().unwrap_or_default()
                } else {
                    vec![object.clone()]
                } {
                    writeln!(out, "{}", kind_and_name(&item))?;
                }
            }
            Printer::Path { path, as_json } => {
                if *as_json {
                    let found: Vec<Value> = path
                        .find(object)
                        .map_err(|error| {
                            message(format!("error executing jsonpath {:?}: {error}", self.source))
                        })?
                        .into_iter()
                        .cloned()
                        .collect();
                    writeln!(out, "{}", json::pretty(&Value::Array(found)))?;
                } else {
                    let text = path.render(object).map_err(|error| {
                        message(format!(
                            "error executing jsonpath {}: Error executing template: {error}. Printing more information for debugging the template:\n\ttemplate was:\n\t\t{}\n\tobject given to jsonpath engine was:\n\t\t{}\n\n",
                            apimachinery::field::go_quote(&self.source),
                            self.source,
                            apimachinery::golang::syntax(object)
                        ))
                    })?;
                    out.write_all(text.as_bytes())?;
                }
            }
            Printer::Template(template) => {
                let text = template.render(object).map_err(|error| {
                    message(format!(
                        "error executing template {}: {error}",
                        apimachinery::field::go_quote(&self.source)
                    ))
                })?;
                out.write_all(text.as_bytes())?;
            }
            Printer::Columns(columns) => columns.print(object, out)?,
        }
        Ok(())
    }
}

fn has_managed_fields(object: &Value) -> bool {
    object["metadata"].get("managedFields").is_some()
        || object["items"].as_array().is_some_and(|items| items.iter().any(has_managed_fields))
}

pub fn drop_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    if let Some(items) = object.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(drop_managed_fields);
    }
}
