//! Columns of the tables that `kubectl get` shows.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use apimachinery::{meta, table::TableColumn, time};
use jiff::Timestamp;
use serde_json::Value;

use crate::schemas::schemas;

/// Computes a cell from an object and the present time.
pub type CellFn = fn(&Value, Timestamp) -> Value;

/// The same with data of its own, for CRD columns.
pub type SharedCell = Arc<dyn Fn(&Value, Timestamp) -> Value + Send + Sync>;

/// How a cell gets its value.
#[derive(Clone)]
pub enum Cell {
    /// Computed.
    Function(CellFn),
    /// Whatever stands at a dotted path.
    Path(Cow<'static, str>),
    /// The number at a dotted path, 0 if there is none.
    Count(Cow<'static, str>),
    /// Computed with data of its own (CRD columns).
    Shared(SharedCell),
}

/// A column.
#[derive(Clone)]
pub struct Column {
    /// Header.
    pub name: Cow<'static, str>,
    /// OpenAPI type.
    pub kind: Cow<'static, str>,
    /// OpenAPI format.
    pub format: Cow<'static, str>,
    /// What it shows.
    pub description: Cow<'static, str>,
    /// 0 always, 1 with `-o wide`.
    pub priority: i32,
    /// Its cells.
    pub cell: Cell,
}

impl Column {
    /// A text column that is always shown.
    pub fn new(name: &'static str, cell: CellFn) -> Self {
        Self {
            name: name.into(),
            kind: "string".into(),
            format: "".into(),
            description: "".into(),
            priority: 0,
            cell: Cell::Function(cell),
        }
    }

    /// A text column that shows what stands at a path.
    pub fn path(name: &'static str, path: &'static str) -> Self {
        Self { cell: Cell::Path(path.into()), ..Self::new(name, |_, _| Value::Null) }
    }

    /// A number that upstream declares as text.
    pub fn count(name: &'static str, path: &'static str) -> Self {
        Self { cell: Cell::Count(path.into()), ..Self::new(name, |_, _| Value::Null) }
    }

    /// When the object was made.
    pub fn created_at() -> Self {
        Self { kind: "date".into(), ..Self::path("Created At", "metadata.creationTimestamp") }
    }

    /// Shown with `-o wide` only.
    #[must_use]
    pub fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    /// A whole number.
    #[must_use]
    pub fn integer(mut self) -> Self {
        self.kind = "integer".into();
        self
    }

    /// The age of the object.
    pub fn age() -> Self {
        Self::new("Age", |object, now| age(meta::get_str(object, "metadata.creationTimestamp"), now).into())
    }

    /// The cell of an object.
    pub fn value(&self, object: &Value, now: Timestamp) -> Value {
        match &self.cell {
            Cell::Function(read) => read(object, now),
            Cell::Shared(read) => read(object, now),
            Cell::Count(path) => meta::get(object, path).cloned().unwrap_or_else(|| 0.into()),
            Cell::Path(path) => match meta::get(object, path) {
                Some(value) if value.is_object() || value.is_array() => value.to_string().into(),
                Some(value) => value.clone(),
                None if self.kind == "integer" => 0.into(),
                None => "".into(),
            },
        }
    }

    /// The header.
    pub fn header(&self) -> TableColumn {
        TableColumn {
            name: self.name.to_string(),
            kind: self.kind.to_string(),
            format: self.format.to_string(),
            description: self.description.to_string(),
            priority: self.priority,
        }
    }
}

/// The header of the first column, which every table has.
pub fn name_header() -> TableColumn {
    TableColumn {
        name: "Name".into(),
        kind: "string".into(),
        format: "name".into(),
        description: String::new(),
        priority: 0,
    }
}

/// How long ago a time was, in kubectl's short form.
pub fn age(text: &str, now: Timestamp) -> String {
    match time::parse(text) {
        Some(then) => time::human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".into(),
    }
}

/// What columns show, by kind (or `*`) and name. The texts are mostly those of fields; they are picked out once, when the
/// first table is made.
fn documentation() -> &'static HashMap<(&'static str, &'static str), String> {
    static LINES: &str = include_str!("../overlay/column-docs.txt");
    static TEXTS: OnceLock<HashMap<(&'static str, &'static str), String>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let descriptions = schemas().descriptions();
        let text = |of: &str| match of.strip_prefix("= ") {
            Some(text) => text.to_owned(),
            None => {
                let (kind, field) = of.split_once(' ').unwrap_or((of, ""));
                let text = descriptions.of_field(kind, field);
                text.split("\n\nPossible enum values").next().unwrap_or(text).to_owned()
            }
        };
        let lines = LINES.lines().filter(|line| !line.starts_with('#'));
        let parts = lines.filter_map(|line| {
            let mut parts = line.splitn(3, "; ");
            Some((parts.next()?, parts.next()?, parts.next()?))
        });
        parts.map(|(kind, column, of)| ((kind, column), text(of))).collect()
    })
}

impl crate::Definition {
    /// Headers of the table: the name first, for all but events.
    pub fn table_headers(&self) -> Vec<TableColumn> {
        let name = self.name_column.then(name_header);
        let mut headers: Vec<TableColumn> =
            name.into_iter().chain(self.columns.iter().map(Column::header)).collect();
        let texts: &HashMap<(&str, &str), String> = documentation();
        for header in &mut headers {
            let name = header.name.as_str();
            let own = texts.get(&(&*self.names.kind, name)).filter(|_| !self.custom);
            // A CRD may say itself what its columns show.
            let general =
                || texts.get(&("*", name)).filter(|_| !self.custom || header.description.is_empty());
            if let Some(text) = own.or_else(general) {
                header.description.clone_from(text);
            }
        }
        headers
    }

    /// Cells of an object's row.
    pub fn table_cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = self.name_column.then(|| (self.name_cell)(object));
        name.into_iter().chain(self.columns.iter().map(|column| column.value(object, now))).collect()
    }
}
