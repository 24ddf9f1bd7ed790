//! Server-side tables: which columns are shown, and the text of their cells.

use serde_json::Value;

use super::tabwriter::TabWriter;

/// What `get` was asked to show.
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    pub wide: bool,
    pub no_headers: bool,
    pub with_namespace: bool,
    /// `pod/` before each name, or nothing.
    pub kind: Option<String>,
    pub show_labels: bool,
    pub label_columns: Vec<String>,
}

/// Prints tables one after another; the header comes again only when it changes.
#[derive(Default)]
pub struct TablePrinter {
    pub options: TableOptions,
    header: Option<Vec<String>>,
    definitions: Vec<Value>,
}

impl TablePrinter {
    pub fn new(options: TableOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Adds the rows of a table; `event` is the type of a watch's event, where it is shown.
    pub fn add(&mut self, table: &Value, event: Option<&str>, out: &mut TabWriter) {
        let empty = Vec::new();
        // The events of a watch say their columns only once.
        if let Some(definitions) = table["columnDefinitions"].as_array().filter(|list| !list.is_empty()) {
            self.definitions = definitions.clone();
        }
        let shown: Vec<usize> = (0..self.definitions.len())
            .filter(|index| {
                self.options.wide || self.definitions[*index]["priority"].as_i64().unwrap_or(0) == 0
            })
            .collect();
        let rows = table["rows"].as_array().unwrap_or(&empty);
        if rows.is_empty() {
            return;
        }
        if !self.options.no_headers {
            let header = self.header_of(&shown, event.is_some());
            if self.header.as_ref() != Some(&header) {
                out.row(header.clone());
                self.header = Some(header);
            }
        }
        for row in rows {
            out.row(self.row(row, &shown, event));
        }
    }

    fn header_of(&self, shown: &[usize], event: bool) -> Vec<String> {
        let mut header = Vec::new();
        if event {
            header.push("EVENT".to_owned());
        }
        if self.options.with_namespace {
            header.push("NAMESPACE".to_owned());
        }
        let names = shown.iter().map(|index| self.definitions[*index]["name"].as_str().unwrap_or_default());
        header.extend(names.map(str::to_uppercase));
        header.extend(
            self.options
                .label_columns
                .iter()
                .map(|label| label.rsplit('/').next().unwrap_or_default().to_uppercase()),
        );
        if self.options.show_labels {
            header.push("LABELS".to_owned());
        }
        header
    }

    fn row(&self, row: &Value, shown: &[usize], event: Option<&str>) -> Vec<String> {
        let metadata = &row["object"]["metadata"];
        let mut cells = Vec::new();
        cells.extend(event.map(str::to_owned));
        if self.options.with_namespace {
            cells.push(metadata["namespace"].as_str().unwrap_or_default().to_owned());
        }
        for (position, index) in shown.iter().enumerate() {
            let mut cell = cell(&row["cells"][*index]);
            if position == 0
                && let Some(kind) = &self.options.kind
            {
                cell = format!("{kind}/{cell}");
            }
            cells.push(cell);
        }
        let labels = metadata["labels"].as_object();
        for name in &self.options.label_columns {
            let value = labels.and_then(|labels| labels.get(name)?.as_str());
            cells.push(value.unwrap_or("<none>").to_owned());
        }
        if self.options.show_labels {
            cells.push(labels_text(&metadata["labels"]));
        }
        cells
    }
}

/// Text up to its first line end; control characters cannot move the cursor.
pub fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        other => apimachinery::golang::plain(other),
    };
    let text = match text.find(['\n', '\r', '\u{c}']) {
        Some(end) => format!("{}...", &text[..end]),
        None => text,
    };
    text.replace('\u{1b}', "^[").replace('\t', " ")
}

/// `a=b,c=d`, sorted, or `<none>`.
pub fn labels_text(labels: &Value) -> String {
    let Some(map) = labels.as_object().filter(|map| !map.is_empty()) else { return "<none>".to_owned() };
    let mut pairs: Vec<String> =
        map.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    pairs.sort();
    pairs.join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_wide_form_shows_what_is_not_important() {
        let table = json!({"columnDefinitions": [
            {"name": "Name", "priority": 0}, {"name": "Node", "priority": 1}, {"name": "Age", "priority": 0}],
            "rows": [{"cells": ["a\nb", "n1", 5], "object": {"metadata": {"labels": {"x/app": "web"}, "namespace": "ns"}}}]});
        let print = |options: TableOptions| {
            let mut out = TabWriter::table();
            TablePrinter::new(options).add(&table, None, &mut out);
            out.finish()
        };
        assert_eq!(print(TableOptions::default()), "NAME   AGE\na...   5\n");
        let options = TableOptions {
            wide: true,
            with_namespace: true,
            kind: Some("pod".into()),
            label_columns: vec!["x/app".into(), "y".into()],
            show_labels: true,
            no_headers: false,
        };
        assert_eq!(
            print(options),
            "NAMESPACE   NAME       NODE   AGE   APP   Y        LABELS\nns          pod/a...   n1     5     web   <none>   x/app=web\n"
        );
    }
}
