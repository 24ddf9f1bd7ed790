//! `-o custom-columns=NAME:.metadata.name,…`.

use std::io::Write;

use apimachinery::golang;
use serde_json::Value;

use super::jsonpath::{JsonPath, relaxed};
use super::tabwriter::TabWriter;
use crate::error::{CliError, message};
use crate::resource::is_list;

/// Headers and the paths below them.
pub struct Columns {
    columns: Vec<(String, JsonPath)>,
    pub no_headers: bool,
    began: bool,
}

impl Columns {
    pub fn parse(text: &str) -> Result<Self, CliError> {
        let mut columns = Vec::new();
        for part in text.split(',') {
            let Some((header, path)) = part.split_once(':') else {
                return Err(message(format!(
                    "unexpected custom-columns spec: {part}, expected <header>:<json-path-expr>"
                )));
            };
            columns.push((header.to_owned(), compile(path)?));
        }
        Ok(Self { columns, no_headers: false, began: false })
    }

    /// A line of headers, and a line of paths.
    pub fn of_file(text: &str) -> Result<Self, CliError> {
        let mut lines = text.lines();
        let headers: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        let paths: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        if headers.is_empty() || headers.len() != paths.len() {
            return Err(message(format!(
                "number of headers ({}) and field specifications ({}) don't match",
                headers.len(),
                paths.len()
            )));
        }
        let columns: Result<Vec<_>, CliError> = headers
            .into_iter()
            .zip(paths)
            .map(|(header, path)| Ok((header.to_owned(), compile(path)?)))
            .collect();
        Ok(Self { columns: columns?, no_headers: false, began: false })
    }

    pub fn print(&mut self, object: &Value, out: &mut dyn Write) -> Result<(), CliError> {
        let mut table = TabWriter::table();
        if !std::mem::replace(&mut self.began, true) && !self.no_headers {
            table.row(self.columns.iter().map(|(header, _)| header.clone()).collect());
        }
        let none = Vec::new();
        let objects: Vec<&Value> = if is_list(object) {
            object["items"].as_array().unwrap_or(&none).iter().collect()
        } else {
            vec![object]
        };
        for object in objects {
            let cells: Result<Vec<String>, CliError> = self
                .columns
                .iter()
                .map(|(_, path)| {
                    let found = path.find(object).map_err(|error| message(error.to_string()))?;
                    let texts: Vec<String> = found.into_iter().map(golang::plain).collect();
                    Ok(if texts.is_empty() { "<none>".to_owned() } else { texts.join(",") })
                })
                .collect();
            table.row(
                cells?
                    .into_iter()
                    .map(|cell| if cell == "<nil>" { "<none>".to_owned() } else { cell })
                    .collect(),
            );
        }
        out.write_all(table.finish().as_bytes())?;
        Ok(())
    }
}

fn compile(path: &str) -> Result<JsonPath, CliError> {
    let relaxed = relaxed(path).map_err(|error| message(error.to_string()))?;
    JsonPath::parse(&relaxed).map_err(|error| message(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_show_what_their_paths_find() {
        let list = json!({"kind": "List", "items": [{"a": {"b": "x"}, "l": [1, 2]}, {"a": {}}]});
        let mut columns = Columns::parse("B:.a.b,LIST:l[*]").expect("columns");
        let mut out = Vec::new();
        columns.print(&list, &mut out).expect("printed");
        assert_eq!(String::from_utf8_lossy(&out), "B        LIST\nx        1,2\n<none>   <none>\n");
        assert!(Columns::parse("B").is_err());
    }
}
