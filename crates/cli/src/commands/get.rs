//! `get`: the server's tables, or objects in any other form.

use std::io::Write;

use clap::Args;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::print::jsonpath::{JsonPath, relaxed};
use crate::print::table::{TableOptions, TablePrinter};
use crate::print::tabwriter::TabWriter;
use crate::print::{Output, OutputFlags};
use crate::resource::{FileFlags, Info, Selection, is_list, items, name_of, namespace_of};
use crate::session::discovery::ApiResource;
use crate::session::{Ask, Session};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const FORMATS: &str = "custom-columns,custom-columns-file,go-template,go-template-file,json,jsonpath,jsonpath-as-json,jsonpath-file,kyaml,name,template,templatefile,wide,yaml";
const MAX_LINE: usize = 64 << 20;

/// Display one or many resources
#[derive(Args, Debug)]
pub struct Get {
    /// TYPE, TYPE/NAME, or TYPE NAME...
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// If present, list the requested object(s) across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Selector (field query) to filter on
    #[arg(long, default_value = "", hide_default_value = true)]
    field_selector: String,
    /// After listing/getting the requested object, watch for changes
    #[arg(short, long)]
    watch: bool,
    /// Watch for changes to the requested object(s), without listing/getting first
    #[arg(long)]
    watch_only: bool,
    /// Output watch event objects when --watch or --watch-only is used
    #[arg(long)]
    output_watch_events: bool,
    /// Return large lists in chunks rather than all at once
    #[arg(long, default_value = "500")]
    chunk_size: u64,
    /// If true, missing objects are not an error
    #[arg(long)]
    ignore_not_found: bool,
    /// When using the default or custom-column output format, don't print headers
    #[arg(long)]
    no_headers: bool,
    /// When printing, show all labels as the last column
    #[arg(long)]
    show_labels: bool,
    /// If present, list the resource type for the requested object(s)
    #[arg(long)]
    show_kind: bool,
    /// Labels that are going to be presented as columns
    #[arg(short = 'L', long, value_delimiter = ',')]
    label_columns: Vec<String>,
    /// If non-empty, sort list types using this field specification
    #[arg(long, default_value = "", hide_default_value = true)]
    sort_by: String,
    /// If specified, gets the subresource of the requested object
    #[arg(long, default_value = "", hide_default_value = true)]
    subresource: String,
    /// Raw URI to request from the server
    #[arg(long, default_value = "", hide_default_value = true)]
    raw: String,
    /// If true, have the server return the appropriate table output
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    server_print: bool,
}

impl Get {
    pub async fn run(mut self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if !self.raw.is_empty() {
            if self.watch || self.watch_only || !self.selector.is_empty() {
                return Err(message(
                    "--raw may not be specified with other flags that filter the server request or alter the output",
                ));
            }
            if !self.output.output.is_empty() {
                return Err(message("--raw and --output are mutually exclusive"));
            }
            return session.copy(Ask::get(self.raw), out).await;
        }
        let wide = self.output.output == "wide";
        if self.show_labels && !self.output.output.is_empty() && !wide {
            return Err(message(format!(
                "--show-labels option cannot be used with {} printer",
                self.output.output
            )));
        }
        if self.output_watch_events && !self.watch && !self.watch_only {
            return Err(message(
                "--output-watch-events option can only be used with --watch or --watch-only",
            ));
        }
        if self.args.is_empty() && self.files.is_empty() {
            let program = session.program.name();
            eprint!(
                "You must specify the type of resource to get. Use \"{program} api-resources\" for a complete list of supported resources.\n\n"
            );
            return Err(CliError::Usage {
                message: format!(
                    "Required resource not specified.\nUse \"{program} explain <resource>\" for a detailed description of that resource (e.g. {program} explain pods)."
                ),
                command: "get".to_owned(),
            });
        }
        let (namespace, explicit) = session.namespace()?;
        let selection = Selection {
            args: self.args.clone(),
            files: self.files.clone(),
            namespace: namespace.clone(),
            enforce_namespace: explicit,
            all_namespaces: self.all_namespaces,
            labels: self.selector.clone(),
            fields: self.field_selector.clone(),
            select_all: true,
            subresource: self.subresource.clone(),
            chunk: if self.sort_by.is_empty() { self.chunk_size } else { 0 },
            latest: true,
            single_type: self.watch || self.watch_only,
        };
        if wide {
            self.output.output.clear();
        }
        let printer = self.output.printer_among(FORMATS, true)?;
        if wide {
            self.output.output = "wide".to_owned();
        }
        if self.watch || self.watch_only {
            return self.watching(session, selection, printer, out).await;
        }
        match printer {
            Some(printer) => self.generic(session, selection, printer, out).await,
            None => self.tables(session, selection, &namespace, out).await,
        }
    }

    fn options(&self, resource: &ApiResource, with_kind: bool) -> TableOptions {
        let kind = resource.kind.to_lowercase();
        let kind = if resource.group.is_empty() { kind } else { format!("{kind}.{}", resource.group) };
        TableOptions {
            wide: self.output.output == "wide",
            no_headers: self.no_headers,
            with_namespace: self.all_namespaces && resource.namespaced,
            kind: (with_kind || self.show_kind).then_some(kind),
            show_labels: self.show_labels,
            label_columns: self.label_columns.clone(),
        }
    }

    async fn tables(
        &self,
        session: &Session,
        selection: Selection,
        namespace: &str,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let wanted = selection.plan(session).await?;
        let mut query = Vec::new();
        if !self.sort_by.is_empty() {
            query.push(("includeObject", "Object"));
        }
        let accept = self.server_print.then_some(TABLE);
        let mut errors = Vec::new();
        let mut infos: Vec<Info> = Vec::new();
        for wanted in wanted {
            match wanted.fetch(session, accept, &query).await {
                Ok(found) => infos.extend(found),
                Err(error) if self.ignore_not_found && error.is_not_found() => {}
                Err(error) => errors.push(error),
            }
        }
        for info in &mut infos {
            if info.object["kind"] != "Table" {
                info.object = plain_table(std::mem::take(&mut info.object));
            }
            if !self.sort_by.is_empty() {
                sort_rows(&mut info.object, &self.sort_by)?;
            }
        }
        let several = infos.windows(2).any(|pair| {
            pair[0].resource.kind != pair[1].resource.kind || pair[0].resource.group != pair[1].resource.group
        });
        let mut all_namespaced = !self.all_namespaces;
        let mut written = false;
        let mut index = 0;
        while index < infos.len() {
            let resource = infos[index].resource.clone();
            let mut printer = TablePrinter::new(self.options(&resource, several));
            let mut table = TabWriter::table();
            while index < infos.len() && infos[index].resource == resource {
                printer.add(&infos[index].object, None, &mut table);
                index += 1;
            }
            all_namespaced &= resource.namespaced;
            if !table.is_empty() {
                if written && !self.no_headers {
                    writeln!(out)?;
                }
                out.write_all(table.finish().as_bytes())?;
                written = true;
            }
        }
        if !written && !self.ignore_not_found && errors.is_empty() {
            out.flush()?;
            if all_namespaced {
                eprintln!("No resources found in {namespace} namespace.");
            } else {
                eprintln!("No resources found");
            }
        }
        CliError::all(errors)
    }

    async fn generic(
        &self,
        session: &Session,
        selection: Selection,
        mut printer: Output,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        if self.no_headers {
            printer.no_headers();
        }
        let wanted = selection.plan(session).await?;
        let single = wanted.len() == 1 && !matches!(wanted[0], crate::resource::Wanted::Collection { .. });
        let (mut objects, mut errors) = (Vec::new(), Vec::new());
        for wanted in wanted {
            match wanted.fetch(session, None, &[]).await {
                Ok(found) => {
                    for info in found {
                        if single {
                            objects.push(info.object);
                        } else {
                            objects.extend(items(info.object));
                        }
                    }
                }
                Err(error) if self.ignore_not_found && error.is_not_found() => {}
                Err(error) if single => return Err(error),
                Err(error) => errors.push(error),
            }
        }
        if objects.is_empty() && self.ignore_not_found {
            return CliError::all(errors);
        }
        if !self.sort_by.is_empty() {
            let path = sort_path(&self.sort_by)?;
            sort(&mut objects, &path, &self.sort_by, |object| object)?;
        }
        if single && objects.len() == 1 {
            printer.print(&objects[0], out)?;
        } else {
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects});
            printer.print(&list, out)?;
        }
        CliError::all(errors)
    }

    async fn watching(
        &self,
        session: &Session,
        selection: Selection,
        mut printer: Option<Output>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let mut wanted = selection.plan(session).await?;
        if wanted.len() != 1 {
            return Err(message(
                "watch is only supported on individual resources and resource collections - more than 1 resource was found",
            ));
        }
        let wanted = wanted.remove(0);
        let resource = wanted.resource().clone();
        let human = printer.is_none();
        let accept = (human && self.server_print).then_some(TABLE);
        let found = match wanted.clone().fetch(session, accept, &[]).await {
            Ok(found) => found,
            Err(error) if error.is_not_found() && self.ignore_not_found => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut table = TablePrinter::new(self.options(&resource, false));
        let mut writer = TabWriter::remembering();
        let mut version = "0".to_owned();
        let single = !matches!(wanted, crate::resource::Wanted::Collection { .. });
        let event_word = self.output_watch_events.then_some("ADDED");
        for info in found {
            if !single && let Some(seen) = info.object["metadata"]["resourceVersion"].as_str() {
                version = seen.to_owned();
            }
            if self.watch_only {
                continue;
            }
            match &mut printer {
                None => {
                    let object =
                        if info.object["kind"] == "Table" { info.object } else { plain_table(info.object) };
                    table.add(&object, event_word, &mut writer);
                }
                Some(printer) => {
                    for object in items(info.object) {
                        print_event(printer, "ADDED", &object, self.output_watch_events, out)?;
                    }
                }
            }
        }
        out.write_all(writer.finish().as_bytes())?;
        out.flush()?;
        let mut ask = match &wanted {
            crate::resource::Wanted::Collection { resource, namespace, labels, fields, .. } => {
                Ask::get(resource.path(namespace, "", ""))
                    .query_some("labelSelector", labels)
                    .query_some("fieldSelector", fields)
            }
            crate::resource::Wanted::Object { resource, namespace, name, .. } => {
                Ask::get(resource.path(namespace, "", ""))
                    .query("fieldSelector", format!("metadata.name={name}"))
            }
            crate::resource::Wanted::File { info, .. } => {
                Ask::get(info.resource.path(&info.namespace, "", ""))
                    .query("fieldSelector", format!("metadata.name={}", info.name))
            }
        };
        ask = ask.query("watch", "true").query("resourceVersion", version);
        ask.accept = accept.map(str::to_owned);
        let mut events = Events::new(session.send(ask).await?.into_body());
        // A watch of one object begins with what was printed already.
        let mut skip = single && !self.watch_only;
        while let Some((kind, object)) = events.next().await? {
            if kind == "BOOKMARK" {
                continue;
            }
            if kind == "ERROR" {
                return Err(CliError::Status(Box::new(crate::error::Failure { status: object })));
            }
            if std::mem::replace(&mut skip, false) && kind == "ADDED" {
                continue;
            }
            match &mut printer {
                None => {
                    let object = if object["kind"] == "Table" { object } else { plain_table(object) };
                    table.add(&object, self.output_watch_events.then_some(kind.as_str()), &mut writer);
                    out.write_all(writer.finish().as_bytes())?;
                }
                Some(printer) => print_event(printer, &kind, &object, self.output_watch_events, out)?,
            }
            out.flush()?;
        }
        Ok(())
    }
}

fn print_event(
    printer: &mut Output,
    kind: &str,
    object: &Value,
    as_event: bool,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    if as_event {
        return printer.print(&json!({"type": kind, "object": object}), out);
    }
    printer.print(object, out)
}

/// The events of a watch, one per line.
pub struct Events {
    body: hyper::body::Incoming,
    buffer: Vec<u8>,
}

impl Events {
    pub fn new(body: hyper::body::Incoming) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// The type and the object of the next event; `None` at the end of the watch.
    pub async fn next(&mut self) -> Result<Option<(String, Value)>, CliError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let mut event: Value = serde_json::from_slice(&line).map_err(|error| {
                    message(format!("unable to decode an event from the watch stream: {error}"))
                })?;
                return Ok(Some((
                    event["type"].as_str().unwrap_or_default().to_owned(),
                    event["object"].take(),
                )));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(message("an event of the watch is too large"));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(message(format!("unable to decode an event from the watch stream: {error}")));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// The table that a server which makes none would have made: name and age.
fn plain_table(object: Value) -> Value {
    let now = jiff::Timestamp::now();
    let row = |object: Value| {
        let age =
            object["metadata"]["creationTimestamp"].as_str().map(|then| crate::print::age::since(then, now));
        json!({"cells": [name_of(&object), age.unwrap_or_else(|| "<unknown>".to_owned())], "object": object})
    };
    let columns = json!([{"name": "Name", "priority": 0}, {"name": "Age", "priority": 0}]);
    let version = object["metadata"]["resourceVersion"].clone();
    let list = is_list(&object);
    let rows: Vec<Value> = items(object).into_iter().map(row).collect();
    let _ = namespace_of;
    json!({"kind": "Table", "metadata": if list { json!({"resourceVersion": version}) } else { json!({}) }, "columnDefinitions": columns, "rows": rows})
}

fn sort_path(text: &str) -> Result<JsonPath, CliError> {
    let relaxed = relaxed(text).unwrap_or_else(|_| text.to_owned());
    JsonPath::parse(&relaxed).map_err(|error| message(error.to_string()))
}

fn sort_rows(table: &mut Value, by: &str) -> Result<(), CliError> {
    let path = sort_path(by)?;
    let Some(rows) = table["rows"].as_array_mut() else { return Ok(()) };
    sort(rows, &path, by, |row| &row["object"])
}

/// Sorts by what a path finds: numbers, quantities and times by their worth, other text by its letters, and what has none first.
pub fn sort(
    list: &mut [Value],
    path: &JsonPath,
    by: &str,
    object: impl Fn(&Value) -> &Value,
) -> Result<(), CliError> {
    let mut found_any = list.is_empty();
    let mut keys: Vec<Option<Value>> = Vec::with_capacity(list.len());
    for item in list.iter() {
        let found = path.find(object(item)).map_err(|error| message(error.to_string()))?;
        let key = found.first().map(|value| (*value).clone()).filter(|value| !value.is_null());
        found_any |= key.is_some();
        keys.push(key);
    }
    if !found_any {
        return Err(message(
            format!(
                "couldn't find any field with path {:?} in the list of objects",
                relaxed(by).unwrap_or_else(|_| by.to_owned())
            )
            .replace("\\\"", "\""),
        ));
    }
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by(|a, b| compare(keys[*a].as_ref(), keys[*b].as_ref()));
    let sorted: Vec<Value> = order.into_iter().map(|index| list[index].clone()).collect();
    list.clone_from_slice(&sorted);
    Ok(())
}

fn compare(a: Option<&Value>, b: Option<&Value>) -> std::cmp::Ordering {
    use std::cmp::Ordering::{Equal, Greater, Less};
    match (a, b) {
        (None, None) => Equal,
        (None, Some(_)) => Less,
        (Some(_), None) => Greater,
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Equal)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => {
            use apimachinery::quantity::Quantity;
            match (a.parse::<Quantity>(), b.parse::<Quantity>()) {
                (Ok(first), Ok(second)) => first.cmp(&second),
                _ => natural(a, b),
            }
        }
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        _ => Equal,
    }
}

/// `a2` before `a10`.
fn natural(a: &str, b: &str) -> std::cmp::Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        match (a.first(), b.first()) {
            (None, None) => return std::cmp::Ordering::Equal,
            (None, _) => return std::cmp::Ordering::Less,
            (_, None) => return std::cmp::Ordering::Greater,
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let run = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let (first, second) = (&a[..run(a)], &b[..run(b)]);
                fn strip(digits: &[u8]) -> &[u8] {
                    let start = digits.iter().position(|digit| *digit != b'0').unwrap_or(digits.len());
                    &digits[start..]
                }
                let order = strip(first)
                    .len()
                    .cmp(&strip(second).len())
                    .then_with(|| strip(first).cmp(strip(second)));
                if order.is_ne() {
                    return order;
                }
                (a, b) = (&a[first.len()..], &b[second.len()..]);
            }
            (Some(x), Some(y)) if x != y => return x.cmp(y),
            _ => (a, b) = (&a[1..], &b[1..]),
        }
    }
}
