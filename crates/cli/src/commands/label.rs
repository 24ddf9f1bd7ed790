//! `label` and `annotate`: pairs set, changed and removed; one mechanism for both.

use std::io::Write;

use apimachinery::names;
use clap::Args;
use serde_json::{Map, Value, json};

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag};
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, fetch_all};
use crate::session::Session;
use crate::write::{self, Options};

/// The flags of both.
#[derive(Args, Debug)]
pub struct Pairs {
    /// TYPE NAME or TYPE/NAME, then KEY=VALUE or KEY-
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    /// Select all resources, in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// If true, check the specified action in all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Selector (field query) to filter on
    #[arg(long, default_value = "", hide_default_value = true)]
    field_selector: String,
    /// If true, allow pairs to be overwritten
    #[arg(long)]
    overwrite: bool,
    /// If true, display the pairs of the resource
    #[arg(long)]
    list: bool,
    /// If true, will NOT contact api-server but run locally
    #[arg(long)]
    local: bool,
    /// If non-empty, the update will only succeed if this is the current resource-version for the object
    #[arg(long, default_value = "", hide_default_value = true)]
    resource_version: String,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "", hide_default_value = true)]
    field_manager: String,
}

/// Update the labels on a resource
#[derive(Args, Debug)]
pub struct Label {
    #[command(flatten)]
    pairs: Pairs,
}

/// Update the annotations on a resource
#[derive(Args, Debug)]
pub struct Annotate {
    #[command(flatten)]
    pairs: Pairs,
}

impl Label {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        self.pairs.run(session, LABELS, out).await
    }
}

impl Annotate {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        self.pairs.run(session, ANNOTATIONS, out).await
    }
}

/// What differs between the two.
#[derive(Clone, Copy)]
struct Word {
    field: &'static str,
    single: &'static str,
    command: &'static str,
    done: &'static str,
}

const LABELS: Word = Word { field: "labels", single: "label", command: "label", done: "labeled" };
const ANNOTATIONS: Word =
    Word { field: "annotations", single: "annotation", command: "annotate", done: "annotated" };

/// Pairs to set and keys to remove.
#[derive(Debug, Default, PartialEq)]
struct Change {
    set: Vec<(String, String)>,
    remove: Vec<String>,
}

/// Takes the resources and the pairs apart.
fn read(args: &[String], word: Word) -> Result<(Vec<String>, Change), CliError> {
    let is_pair =
        |arg: &String| (arg.contains('=') && !arg.starts_with('=')) || (arg.ends_with('-') && arg.len() > 1);
    let mut resources = Vec::new();
    let mut change = Change::default();
    let mut first = true;
    for arg in args {
        match is_pair(arg) {
            true => first = false,
            false if first => {
                resources.push(arg.clone());
                continue;
            }
            false => {
                return Err(message(format!(
                    "all resources must be specified before {} changes: {arg}",
                    word.single
                )));
            }
        }
        match arg.split_once('=') {
            Some((key, value)) => {
                if change.set.iter().any(|(known, _)| known == key) {
                    return Err(message(format!("{} {key:?} specified multiple times", word.single)));
                }
                change.set.push((key.to_owned(), value.to_owned()));
            }
            None => change.remove.push(arg[..arg.len() - 1].to_owned()),
        }
    }
    if change.remove.iter().any(|key| change.set.iter().any(|(known, _)| known == key)) {
        return Err(message(format!("can not both modify and remove {} in the same command", article(word))));
    }
    Ok((resources, change))
}

fn article(word: Word) -> String {
    if word.single == "annotation" { "an annotation".to_owned() } else { "a label".to_owned() }
}

impl Pairs {
    async fn run(self, session: &Session, word: Word, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        let (resources, change) = read(&self.args, word)?;
        if resources.is_empty() && self.files.is_empty() {
            return Err(message(
                "one or more resources must be specified as <resource> <name> or <resource>/<name>",
            ));
        }
        if change == Change::default() && !self.list {
            return Err(message(format!("at least one {} update is required", word.single)));
        }
        if word.field == "labels" {
            for (key, value) in &change.set {
                let problems = names::is_label_value(value);
                if !problems.is_empty() {
                    return Err(message(format!(
                        "invalid label value: {:?}: {}",
                        format!("{key}={value}"),
                        problems.join(";")
                    )));
                }
            }
        }
        let mut selection = Selection::new(session, &resources, &self.files)?;
        selection.all_namespaces = self.all_namespaces;
        selection.labels = self.selector.clone();
        selection.fields = self.field_selector.clone();
        selection.select_all = self.all;
        selection.latest = !self.local;
        let (infos, mut errors) = fetch_all(session, selection.plan(session).await?).await?;
        let several = infos.len() > 1;
        for info in infos {
            if let Err(error) = self.one(session, &info, word, &change, dry_run, several, out).await {
                errors.push(error);
            }
        }
        CliError::all(errors)
    }

    #[allow(clippy::too_many_arguments, reason = "one object of a loop")]
    async fn one(
        &self,
        session: &Session,
        info: &Info,
        word: Word,
        change: &Change,
        dry_run: DryRun,
        several: bool,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let before = info.object["metadata"][word.field].as_object().cloned().unwrap_or_default();
        if !self.overwrite {
            taken(&before, change, word)?;
        }
        if self.list {
            let mut lines: Vec<String> = applied(&before, change)
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
                .collect();
            lines.sort();
            if several {
                writeln!(
                    out,
                    "Listing {} for {}.{}/{}:",
                    word.field, info.resource.kind, info.resource.group, info.name
                )?;
            }
            let indent = if several { " " } else { "" };
            for line in lines {
                writeln!(out, "{indent}{line}")?;
            }
            return Ok(());
        }
        let after = applied(&before, change);
        let mut object = info.object.clone();
        if after.is_empty() {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.shift_remove(word.field);
            }
        } else {
            object["metadata"][word.field] = Value::Object(after.clone());
        }
        for key in change.remove.iter().filter(|key| !before.contains_key(*key)) {
            writeln!(out, "{} {key:?} not found.", word.single)?;
        }
        let changed = before != after;
        let operation = match word.field {
            "labels" if !changed => "not labeled",
            "labels" if change.set.is_empty() => "unlabeled",
            _ => word.done,
        };
        if !self.local && dry_run != DryRun::Client && (changed || word.field == "annotations") {
            let mut fields = Map::new();
            for (key, value) in &change.set {
                fields.insert(key.clone(), value.clone().into());
            }
            for key in change.remove.iter().filter(|key| before.contains_key(*key)) {
                fields.insert(key.clone(), Value::Null);
            }
            let mut patch = json!({"metadata": {word.field: fields}});
            if !self.resource_version.is_empty() {
                patch["metadata"]["resourceVersion"] = self.resource_version.clone().into();
            }
            let manager = if self.field_manager.is_empty() {
                format!("kubectl-{}", word.command)
            } else {
                self.field_manager.clone()
            };
            object = write::patch(session, info, "", write::MERGE, &patch, &Options::new(&manager, dry_run))
                .await?;
        }
        self.output.report(&object, operation, dry_run, out)
    }
}

/// A key that has another value already is kept, unless it is overwritten.
fn taken(before: &Map<String, Value>, change: &Change, word: Word) -> Result<(), CliError> {
    let errors: Vec<String> = change
        .set
        .iter()
        .filter_map(|(key, value)| {
            let old = before.get(key)?.as_str()?;
            (old != value || word.field == "annotations").then(|| match word.field {
                "labels" => format!("'{key}' already has a value ({old}), and --overwrite is false"),
                _ => format!("--overwrite is false but found the following declared annotation(s): '{key}' already has a value ({old})"),
            })
        })
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(message(errors.join("; "))) }
}

fn applied(before: &Map<String, Value>, change: &Change) -> Map<String, Value> {
    let mut after = before.clone();
    for (key, value) in &change.set {
        after.insert(key.clone(), value.clone().into());
    }
    for key in &change.remove {
        after.shift_remove(key);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_come_before_pairs() {
        let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let (resources, change) = read(&words(&["pods", "a", "x=y", "z-"]), LABELS).expect("read");
        assert_eq!(resources, ["pods", "a"]);
        assert_eq!(change, Change { set: vec![("x".into(), "y".into())], remove: vec!["z".into()] });
        assert!(read(&words(&["pods", "x=y", "a"]), LABELS).is_err());
        assert!(read(&words(&["pods", "a", "x=y", "x-"]), LABELS).is_err());
    }
}
